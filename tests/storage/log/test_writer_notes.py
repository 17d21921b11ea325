"""The notes of our writer: the history of commits, which no damage stops, and an open append."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from goldens import Golden
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.log import writer_notes
from rmqstore.storage.log.writer_notes import Commit, read_commits, read_intent


def table(n: int, first: int = 0) -> pa.Table:
    bodies = [f"m{number}".encode() for number in range(first, first + n)]
    return pa.table({"topic": ["T"] * n, "body": bodies})


def commits(root: Path) -> list[Commit]:
    return read_commits(find_store(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with rmqstore.create(tmp_path / "store") as writer:
        writer.append(table(3))
    return tmp_path / "store"


def test_each_commit_is_a_line_whose_range_has_its_messages(root: Path) -> None:
    before = time.time_ns() // 1_000_000
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
    assert [(each.number, each.n_records, each.app_id, each.version) for each in found] == [
        (1, 3, None, None), (2, 4, "app", 7), (3, 0, "app", 8), (4, 1, None, None)
    ]  # fmt: skip
    assert (found[2].start, found[2].end) == (None, None)
    assert before <= found[1].time <= found[3].time <= time.time_ns() // 1_000_000
    with rmqstore.open(root) as store:
        bodies = [
            store.scan(
                columns="body",
                starting_physical_offset=each.start,
                ending_physical_offset=each.end,
            ).to_arrow()["body"].to_pylist()
            for each in found
            if each.n_records
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
        numbers = [each.number for each in commits(root)]
        assert numbers == [*range(max(number - 9, 1), number + 1)]
        assert file.stat().st_size < size + 200
    assert older.stat().st_size < 2000
    file.unlink()
    with rmqstore.open(root, mode="a") as writer:
        writer.append(table(1))
    assert commits(root)[-1].number == 31


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
def test_no_damage_of_the_history_stops_a_commit(
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
        assert commits(root)[-1].app_id == "app"
        assert commits(root)[-1].n_records == 2


def test_lines_that_mean_nothing_are_left_out(root: Path) -> None:
    file = find_store(root).own.commits
    good = file.read_bytes()
    file.write_bytes(b"\n".join([*LINES, good, *LINES]))
    assert [each.n_records for each in commits(root)] == [3]
    far = b'{"number":5,"time":9223372036854775807,"n_records":1,"start":0,"end":1}'
    file.write_bytes(good + b"\n" + far)
    assert [each.n_records for each in commits(root)] == [3, 1]


def test_a_store_of_a_broker_has_no_history(golden_store: Golden) -> None:
    assert commits(golden_store("basic")) == []


@pytest.mark.parametrize(
    ("text", "offset"),
    [("0", 0), ("131072", 131072), ("", None), ("-1", None), ("12x", None), ("1" * 40, None)],
)
def test_the_note_holds_where_the_append_began(
    tmp_path: Path, text: str, offset: int | None
) -> None:
    rmqstore.create(tmp_path / "s").close()
    paths = find_store(tmp_path / "s")
    assert read_intent(paths) is None
    paths.own.append_intent.parent.mkdir(parents=True, exist_ok=True)
    paths.own.append_intent.write_text(text)
    assert read_intent(paths) == offset
