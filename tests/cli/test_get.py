"""``get``: messages by ids of all kinds, and a word about ids that name none."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import rows_of, run
from goldens import Golden
from rmqstore.format.schema import Message


def test_all_kinds_of_ids_show_the_same_message(live: Path) -> None:
    one = json.loads(run("get", live, 496).stdout)
    assert list(one) == list(Message._fields)
    for name in ("offsetMsgId", "msgId"):
        shown = run("get", live, one[name])
        assert (shown.exit_code, json.loads(shown.stdout), shown.stderr) == (0, one, "")
    assert json.loads(run("get", live, 496, "--json").stdout) == one
    assert json.loads(run("get", live, 496, "--format", "json").stdout) == [one]
    assert '"keys": "key-1",' in run("get", live, 496).stdout


def test_several_ids_and_those_that_name_nothing(live: Path) -> None:
    columns = ("--columns", "commitLogOffset,body", "--body", "hex", "--json")
    shown = run("get", live, 496, "no-such-id", 0, 5, *columns)
    assert shown.exit_code == 2
    found = rows_of(shown)
    assert [(row["commitLogOffset"], len(row["bodyHex"]) > 2) for row in found] == [
        (496, True), (0, True),
    ]  # fmt: skip
    assert [line.split(": ")[1] for line in shown.stderr.splitlines()] == ["5", "no-such-id"]


def test_topics_choose_among_the_records_of_an_id(live: Path) -> None:
    dead = json.loads(run("dump", live, "-t", "%DLQ%CG_retry", "-n", 1).stdout)["msgId"]
    lines = run("get", live, dead, "--json", "--columns", "topic").stdout.splitlines()
    every = [json.loads(line)["topic"] for line in lines]
    assert every == ["LiveRetry", "SCHEDULE_TOPIC_XXXX", "%RETRY%CG_retry", "%DLQ%CG_retry"]
    only = run("get", live, dead, "-t", "%DLQ*", "--json", "--columns", "topic").stdout
    assert only == '{"topic":"%DLQ%CG_retry"}\n'


def test_unique_keys_are_found_in_tiered_storage(golden_store: Golden) -> None:
    tier = golden_store("tiered") / "tieredstore"
    row = json.loads(run("dump", tier, "-n", 1).stdout)
    shown = run("get", tier, row["msgId"], "--columns", "msgId,queueOffset", "--json")
    assert json.loads(shown.stdout) == {name: row[name] for name in ("msgId", "queueOffset")}
