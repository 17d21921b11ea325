"""Damage in a store, and what verbs give of the rest."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import rmqstore
from command_line import rows, rows_of, run
from goldens import Golden


@pytest.fixture
def damaged(live: Path, tmp_path: Path) -> Path:
    """Return a store in which one of the newest messages of LivePlain-1 is damaged."""
    root = Path(shutil.copytree(live, tmp_path / "s"))
    with rmqstore.open(root) as store:
        chosen = store.scan(subscribe="LivePlain", where="queueId = 1", columns="commitLogOffset")
        place = chosen.to_arrow()["commitLogOffset"].to_pylist()[-2]
        log = store.parts.log
        segment = next(one for one in log.segments if one.start <= place < one.end)
    with Path(segment.path).open("r+b") as file:
        file.seek(place - segment.start + 92)  # in the body
        file.write(b"\xff\xfe")
    return root


@pytest.mark.parametrize("amount", [("--last", 3), ("-n", 400)])
def test_messages_beside_damage_come_and_the_error_comes_at_the_end(
    damaged: Path, amount: tuple[object, ...]
) -> None:
    command = ["dump", damaged, "-t", "LivePlain", "--columns", "queueId,queueOffset", *amount]
    shown = run(*command)
    assert shown.exit_code == 1
    assert re.search("damage: .*CRC of the body", shown.stderr)
    assert rows_of(shown) == rows(*command, "--mode", "DROPMALFORMED")
    assert {row["queueId"] for row in rows_of(shown)} == {0, 1, 2, 3}
    every = run(*command, "--mode", "PERMISSIVE")
    assert every.exit_code == 1
    damage = [row for row in rows_of(every) if row["_corrupt_record"]]
    assert [row["queueId"] for row in damage] == [1]


def test_a_queue_whose_file_is_cut_does_not_hide_the_others(copied: Golden) -> None:
    root = copied("live")
    with (root / "consumequeue/LivePlain/1" / f"{0:020d}").open("r+b") as file:
        file.truncate(100)
    columns = ("-t", "LivePlain", "--columns", "queueId,queueOffset")
    shown = run("dump", root, *columns, "-n", 40)
    assert shown.exit_code == 1
    assert "damage: " in shown.stderr
    assert "a file is missing or cut" in shown.stderr
    assert len(rows_of(shown)) == 40
    assert {row["queueId"] for row in rows_of(shown)} == {0, 1, 2, 3}
    assert run("dump", root, *columns).stdout == ""


@pytest.mark.parametrize("form", ["json", "csv", "table", "pretty"])
def test_each_form_is_whole_and_has_the_rows_before_damage(damaged: Path, form: str) -> None:
    words = ("dump", damaged, "--scan", "commitlog", "--columns", "commitLogOffset", "--format")
    lines, shown = run(*words, "jsonl"), run(*words, form)
    assert (lines.exit_code, shown.exit_code) == (1, 1)
    assert "damage: " in shown.stderr
    target = damaged.with_name("rows")
    assert (run(*words, form, "--output", target).exit_code, target.exists()) == (1, False)
    before = [row["commitLogOffset"] for row in rows_of(lines)]
    assert len(before) > 100
    if form == "json":
        assert [row["commitLogOffset"] for row in json.loads(shown.stdout)] == before
    else:
        assert str(before[-1]) in shown.stdout
