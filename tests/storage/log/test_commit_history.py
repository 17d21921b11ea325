"""The history of commits: what view ``commits`` shows, and that nothing depends on it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import rmqstore
from reading import rows
from rmqstore.cli import main
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.log import writer_notes
from rmqstore.storage.log.writer_notes import read_commits

Row = dict[str, Any]


def table(n: int, first: int = 0) -> pa.Table:
    bodies = [f"m{number}".encode() for number in range(first, first + n)]
    return pa.table({"topic": ["T"] * n, "body": bodies})


def commits(root: Path) -> list[Row]:
    with rmqstore.open(root) as store:
        return rows(store.view("commits"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with rmqstore.create(tmp_path / "store") as writer:
        writer.append(table(3))
    return tmp_path / "store"


def test_each_commit_is_a_row_whose_range_has_its_messages(root: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    with rmqstore.open(root, mode="a") as writer:
        writer.append(table(2, 3))
        writer.append(table(2, 5))
        writer.flush(txn=("app", 7))
        writer.append(table(1, 7))
        writer.abandon()
        writer.flush()  # of nothing
        writer.flush(txn=("app", 8))
        writer.append(table(1, 8))
    found = commits(root)
    assert [(row["commit"], row["messages"]) for row in found] == [(1, 3), (2, 4), (3, 0), (4, 1)]
    assert [(row["txnAppId"], row["txnVersion"]) for row in found] == [
        (None, None), ("app", 7), ("app", 8), (None, None)
    ]  # fmt: skip
    assert (found[2]["startOffset"], found[2]["endOffset"]) == (None, None)
    assert before <= found[1]["timestamp"] <= found[3]["timestamp"] <= datetime.now(UTC)
    with rmqstore.open(root) as store:
        bodies = [
            store.scan(
                columns="body",
                starting_physical_offset=row["startOffset"],
                ending_physical_offset=row["endOffset"],
            ).to_arrow()["body"].to_pylist()
            for row in found
            if row["messages"]
        ]  # fmt: skip
    assert bodies == [[b"m0", b"m1", b"m2"], [b"m3", b"m4", b"m5", b"m6"], [b"m8"]]


def test_the_newest_are_kept_and_a_commit_writes_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_notes, "MOST_COMMITS", 10)
    file = find_store(root).own.commits
    older = file.with_name("commits.older")
    for number in range(2, 36):
        size = file.stat().st_size
        with rmqstore.open(root, mode="a") as writer:
            writer.append(table(1))
        numbers = [row["commit"] for row in commits(root)]
        assert numbers == [*range(max(number - 9, 1), number + 1)]
        assert file.stat().st_size < size + 200
    assert older.stat().st_size < 2000
    file.unlink()
    with rmqstore.open(root, mode="a") as writer:
        writer.append(table(1))
    assert commits(root)[-1]["commit"] == 31


def _torn(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 9)


def _zeroed(file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, size - 20)
    os.truncate(file, size)


def _links_elsewhere(file: Path) -> None:
    file.rename(file.parents[2] / "elsewhere")
    file.symlink_to(file.parents[2] / "elsewhere")


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "torn": _torn,
    "zeroed": _zeroed,
    "gone": Path.unlink,
    "empty": lambda file: os.truncate(file, 0),
    "random": lambda file: file.write_bytes(bytes(range(256)) * 100),
    "one long line": lambda file: file.write_bytes(b"[" * 100_000),
    "nested": lambda file: file.write_bytes(b"[" * 4000 + b"\n" + b"{" * 4000),
    "link": _links_elsewhere,
    "folder": _a_folder,
}
LINES = [
    b'{"number":-1,"time":1,"n_records":1,"start":0,"end":1}',
    b'{"number":1,"time":1e400,"n_records":1,"start":0,"end":1}',
    b'{"number":1,"time":1,"n_records":true,"start":0,"end":1}',
    b'{"number":1,"time":1,"n_records":1,"start":"0","end":1}',
    b'{"number":1,"time":1,"n_records":1,"start":0,"end":9223372036854775808}',
    b'{"number":1,"time":1,"n_records":1,"start":0,"end":1,"app_id":5}',
    b'{"number":1,"time":1,"n_records":1,"start":0,"end":1,"app_id":"\\ud800"}',
    b'{"number":1,"time":1,"n_records":1,"start":0,"end":1,"app_id":"' + b"a" * 600 + b'"}',
    b'{"number":1,"time":1,"n_records":1,"start":0,"end":1,"other":5}',
    b'{"number":1}',
    b"null",
    b"[1,2]",
    b"NaN",
]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_no_damage_of_the_history_stops_a_commit_or_the_view(
    root: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    damage(find_store(root).own.commits)
    with caplog.at_level(logging.WARNING), rmqstore.open(root, mode="a") as writer:
        writer.append(table(2))
        writer.flush(txn=("app", 1))
    with rmqstore.open(root) as store:
        assert store.count() == 5
    is_refused = damage in (_links_elsewhere, _a_folder)
    assert ("all is committed, but the history lacks the commit" in caplog.text) == is_refused
    if not is_refused:
        assert commits(root)[-1]["txnAppId"] == "app"
        assert commits(root)[-1]["messages"] == 2


def test_lines_that_mean_nothing_are_left_out(root: Path) -> None:
    file = find_store(root).own.commits
    good = file.read_bytes()
    file.write_bytes(b"\n".join([*LINES, good, *LINES]))
    assert [row["messages"] for row in commits(root)] == [3]
    far = b'{"number":5,"time":9223372036854775807,"n_records":1,"start":0,"end":1}'
    file.write_bytes(good + b"\n" + far)
    assert [row["messages"] for row in commits(root)] == [3, 1]


def test_a_store_without_a_history_has_an_empty_view(golden_store: Callable[[str], Path]) -> None:
    assert commits(golden_store("basic")) == []
    assert read_commits(find_store(golden_store("basic"))) == []


def test_commits_that_were_cut_off_are_marked(root: Path) -> None:
    for first in (3, 6):
        with rmqstore.open(root, mode="a") as writer:
            writer.append(table(3, first))
    assert [row["isCut"] for row in commits(root)] == [False, False, False]
    _, second, third = commits(root)
    log = root / "commitlog" / f"{0:020d}"
    stored = log.read_bytes()
    log.write_bytes(stored[: third["startOffset"]].ljust(len(stored), b"\0"))
    assert [row["isCut"] for row in commits(root)] == [False, False, True]
    log.write_bytes(stored[: second["startOffset"]].ljust(len(stored), b"\0"))
    assert [row["isCut"] for row in commits(root)] == [False, True, True]
    assert CliRunner().invoke(main, ["rebuild", str(root)]).exit_code == 0
    with rmqstore.open(root, mode="a") as writer:
        writer.append(table(1, 3))
    assert [row["isCut"] for row in commits(root)] == [False, True, True, False]


def test_a_copy_has_the_history(root: Path, tmp_path: Path) -> None:
    with rmqstore.open(root, mode="a") as writer:
        writer.append(table(3, 3))
    rmqstore.copy(root, tmp_path / "copy")
    found = commits(tmp_path / "copy")
    assert [row["messages"] for row in found] == [3, 3]
    assert not any(row["isCut"] for row in found)
