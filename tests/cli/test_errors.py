"""Errors on the command line name its options, those of Python its arguments."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
from command_line import refusal, run
from goldens import Golden
from pyspark_rmqstore.option_names import option_names
from rmqstore.errors import OptionError
from rmqstore.query.times import parse_timestamp

TIME = "must be epoch milliseconds, an ISO-8601 time"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dump", "STORE", "-b", "soon"], f"error: -b/--begin 'soon': {TIME}"),
        (["dump", "STORE", "-b", "9" * 20], "error: -b/--begin '99999999999999999999': epoch"),
        (["dump", "STORE", "-e", "2026"], "error: -e/--end '2026': as epoch milliseconds"),
        (["query", "STORE", "-k", "a b"], "error: -k/--key 'a b': a key must not be empty"),
        (["query", "STORE", "-t", "LivePlain", "--time", "x"], f"error: --time 'x': {TIME}"),
        (["dump", "STORE", "--where", "x = 1"], "error: --where 'x = 1', character 1: 'x' is not"),
        (["dump", "STORE", "--columns", "x"], "error: --columns: unknown column x"),
        (["dump", "STORE", "--tags", "||"], "error: -s/--tags '||': must be tags separated by"),
        (["dump", "STORE", "--filter", "queueOffset > 3"], "put the condition into --where"),
        (["view", "files", "STORE", "--columns", "x"], "error: --columns: unknown x; view files"),
        (["assign", "STORE", "-g", "", "-c", "c"], "error: -g/--group: name the consumer group"),
        (["stat", "STORE", "--dledger-self-id", "n7"], "--dledger-self-id n7 names a node without"),
        (["stat", "STORE/.."], "own folders with --commitlog; stores in it: STORE"),
        (
            ["stat", "127.0.0.1:9876"],
            "running brokers of RocketMQ are read as rocketmq://127.0.0.1",
        ),
        (["dump", "ns1:9876;ns2:9876"], "are read as rocketmq://ns1:9876;ns2:9876"),
        (["stat", "~/store"], "only shells replace ~: write /"),
        (["export", "STORE", "-o", "x.parquet"], "-o means here: dump writes to the file"),
        (["export", "STORE", "-", "--format", "jsonl"], "rmqstore dump"),
        (["export", "STORE", "none/x.parquet"], "there is no folder"),
        (["get", "STORE", "259"], "no message begins"),
        (["get", "STORE", "ABCDEF"], "not found: ABCDEF: no message has"),
        (["dump", "STORE", "-t", "Nope"], "no topic Nope"),
        (["dump", "STORE", "-o", "3"], "-o needs -t"),
        (["query", "STORE", "-k", "a", "-m", "b"], "give one of -k, -m, --tags and --time"),
        (["stats", "STORE"], "No such command 'stats'; did you mean rmqstore stat?"),
        (["tail", "STORE"], "did you mean rmqstore dump --follow?"),
        (["view", "STORE", "groups"], "is a path: the name of a view comes before it"),
        (["stat", "STORE", "--storage-option", "a=b"], "error: --storage-option: a store on the"),
        (["copy", "STORE", "/lake/copy", "--since", "soon"], f"error: --since 'soon': {TIME}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_says_what_to_type(live: Path, words: list[str], text: str) -> None:
    store = str(live)
    said = refusal(*(word.replace("STORE", store) for word in words))
    assert text.replace("STORE", store) in said


def test_messages_that_are_gone_are_left_out_on_request(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("expired")
    first, *_ = sorted((root / "commitlog").iterdir())
    first.unlink()
    words = ("dump", root, "-t", "ExpA", "-i", "0", "-o", "0")
    assert "--ignore-data-loss reads" in run(*words).stderr
    done = run(*words, "--ignore-data-loss")
    assert "data loss: -o/--offset of ExpA-0 is 0" in caplog.text
    assert "fail_on_data_loss" not in done.stderr


def test_what_is_no_store_is_not_followed_under_the_head_of_a_table(tmp_path: Path) -> None:
    done = run("dump", tmp_path, "--follow", "--format", "table")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is not a RocketMQ store" in done.stderr


def test_a_warning_names_the_option_of_its_place(
    golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    """Each handler formats a warning at once, while the verb runs."""
    root = golden_store("crash2")
    run("dump", root)
    assert "--ignore-log-end with --mode DROPMALFORMED and --all reads them" in caplog.text
    run("stat", root)
    assert "dump --ignore-log-end with --mode DROPMALFORMED and --all reads" in caplog.text
    caplog.clear()
    with rmqstore.open(root) as store:
        assert store.log_end is not None
    in_python = "ignore_log_end=True with mode=DROPMALFORMED and include_system_topics=True reads"
    assert in_python in caplog.text
    caplog.clear()
    with option_names(), rmqstore.open(root) as store:
        assert store.log_end is not None
    in_spark = "ignoreLogEnd=true with mode=DROPMALFORMED and includeSystemTopics=true reads them"
    assert in_spark in caplog.text


def test_an_error_has_a_name_for_each_place() -> None:
    with pytest.raises(OptionError) as caught:
        parse_timestamp("starting_timestamp", "soon")
    assert str(caught.value).startswith("starting_timestamp 'soon': ")
    with option_names():
        assert str(caught.value).startswith("startingTimestamp 'soon': ")


NAMES = (
    "fail_on_data_loss|ignore_log_end|starting_timestamp|ending_timestamp|starting_offsets|"
    "ending_offsets|storage_options|dledger_self_id|msg_key|include_pending|broker_name"
)


def test_no_error_of_the_core_names_an_argument_in_plain_text() -> None:
    """Such an argument would keep its name in every place."""
    root = Path(rmqstore.__file__).parent
    plain = re.compile(rf"^[^#\n]*\"[^\"\n]*(?<!`)\b(?:{NAMES})(?:=| '|: )[^\"\n]*\"", re.MULTILINE)
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if plain.search(path.read_text(encoding="utf-8"))
    }
    assert found <= {"storage/recovery/store_ends.py"}, "that is a warning"


@pytest.mark.parametrize(
    "file", ["commitlog", "consumequeue/LivePlain/0", "index", "config/consumerOffset.json"]
)
def test_a_file_that_may_not_be_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    root = goldens.unpack("live", tmp_path)
    place = root / file
    denied = str(place if place.is_file() else min(place.iterdir()))
    really_open = os.open

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path) == denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), denied)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)  # root may read any file
    said = refusal("verify", root)
    assert f"error: {denied} may not be read by this user (Permission denied)" in said
    assert "damage" not in said
