"""What a repair removes after the end of a log, and what it keeps aside."""

from __future__ import annotations

from pathlib import Path

import pytest

import store_builder as build
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.write.truncation import truncate_log

SIZE = 4096
FILES = [f"{number * SIZE:020d}" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a log of three files, each of which begins with a record."""
    store = build.Store(SIZE)
    while len(store.segments) < 3:
        store.append(build.Record(topic="T", body=b"x" * 100))
    return store.write(tmp_path / "s") / "commitlog"


@pytest.mark.parametrize(
    ("end", "left", "kept"),
    [
        pytest.param(2 * SIZE, FILES[:2], FILES[2:], id="between two files"),
        pytest.param(SIZE + 400, FILES[:2], [f"{FILES[1]}.{SIZE + 400}", FILES[2]], id="in a file"),
        pytest.param(0, FILES[:1], [f"{FILES[0]}.0", *FILES[1:]], id="at the first byte"),
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_files_after_the_end_go_and_the_first_one_stays(
    folder: Path, tmp_path: Path, end: int, left: list[str], kept: list[str], *, keeps: bool
) -> None:
    before = b"".join((folder / name).read_bytes() for name in FILES)
    copies = tmp_path / "cut"
    disk = Disk()
    log_end = LogEnd(end, FILES[0], "torn", 0)
    truncate_log(disk, CommitLog([folder]), log_end, copies if keeps else None)
    disk.close()
    assert sorted(path.name for path in folder.iterdir()) == left
    after = b"".join((folder / name).read_bytes() for name in left)
    assert after == before[:end] + bytes(len(left) * SIZE - end)
    assert copies.exists() == keeps
    if keeps:
        assert sorted(path.name for path in copies.iterdir()) == kept
        parts = [(copies / name).read_bytes() for name in kept]
        tail = before[end : len(left) * SIZE].rstrip(b"\0")
        assert b"".join(parts) == tail + before[len(left) * SIZE :]
