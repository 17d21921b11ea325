"""What tasks stage: the files hold it, whatever has their names, and on a nearly full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore.errors import IllegalMessageError, StoreStateError, UnreadableFileError
from rmqstore.storage.files.disk import Disk
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter, StagedRecords, StagedTask, read_batches


def rows(*bodies: bytes, **columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), **columns})


def stage(path: Path, *batches: pa.RecordBatch, disk: Disk | None = None) -> StagedTask:
    maker = MessageMaker(WriteSpec(topic="T"))
    with PartWriter(disk or Disk(), path, 1 << 30) as writer:
        for batch in batches:
            columns = maker.make(batch)
            writer.write(columns)
        return writer.part()


def bodies_of(part: StagedTask) -> list[bytes]:
    found = []
    with StagedRecords(Disk()) as staged:
        for batch in read_batches(part):
            records = staged.read(part, batch, physical_offset=batch.position + 100)
            starts = records.starts[:-1].tolist()
            found += [records.data[start + 88 : start + 90].tobytes() for start in starts]
    return found


def test_a_part_holds_what_was_staged(tmp_path: Path) -> None:
    part = stage(tmp_path / "part", rows(b"aa", b"bb", tags=["t", None]), rows(b"cc"))
    found = list(read_batches(part))
    assert [len(batch.sys_flags) for batch in found] == [2, 1]
    assert [len(batch.requests.key_hashes) for batch in found] == [2, 1]
    assert found[0].requests.tags_codes.tolist() == [ord("t"), 0]
    assert part.n_records == 3
    assert (tmp_path / "part").stat().st_size == part.n_bytes, "nothing more is reserved"
    assert bodies_of(part) == [b"aa", b"bb", b"cc"]
    assert not (tmp_path / "part").exists(), "what was read is removed"


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    part = stage(tmp_path / "part")
    assert part.n_records == 0
    assert list(read_batches(part)) == []
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_attempt_and_links_are_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "part").symlink_to(precious)
    (tmp_path / "part.side").symlink_to(precious)
    assert bodies_of(stage(tmp_path / "part", rows(b"aa"))) == [b"aa"]
    assert bodies_of(stage(tmp_path / "part", rows(b"bb"))) == [b"bb"]
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", ["part", "part.side"])
def test_a_part_that_is_not_a_file_is_refused(tmp_path: Path, name: str) -> None:
    part = stage(tmp_path / "part", rows(b"aa"))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UnreadableFileError, match="a FIFO"):
        bodies_of(part)


@pytest.mark.parametrize("name", ["part", "part.side"])
@pytest.mark.parametrize("kept", [0, 100, -8])
def test_a_part_that_was_cut_is_refused(tmp_path: Path, name: str, kept: int) -> None:
    part = stage(tmp_path / "part", rows(b"aa" * 100), rows(b"bb"))
    path = tmp_path / name
    size = part.n_bytes if name == "part" else path.stat().st_size
    stored = path.read_bytes()[:size].rstrip(b"\0") if name == "part.side" else path.read_bytes()
    path.write_bytes(stored[: kept if kept >= 0 else min(size, len(stored)) + kept])
    with pytest.raises(OSError, match="cut"):
        bodies_of(part)


def test_a_part_needs_no_more_room_than_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(_: int, __: int, size: int) -> None:
        if size > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", allocate)
    part = stage(tmp_path / "part", *[rows(*[b"aa"] * 100)] * 5)
    assert (tmp_path / "part").stat().st_size == part.n_bytes
    assert bodies_of(part) == [b"aa"] * 500


class FailingDisk(Disk):
    """Refuses a change, or to close: so a file system of a network says that writes were lost."""

    def __init__(self, method: str, at: int, code: int) -> None:
        super().__init__()
        change, calls = getattr(self, method), iter(range(1, 1000))

        def failing(*args: Any) -> None:
            fails = next(calls) == at
            if method == "close" or not fails:  # it closes even if it fails
                change(*args)
            if fails:
                raise OSError(code, os.strerror(code), *map(str, args[:1]))

        setattr(self, method, failing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("create", 1), ("create", 2), ("shorten", 1), ("shorten", 2), ("close", 1),
        ("write", 1), ("write", 2), ("write", 3), ("write", 4),  # of records and of the side file
    ],
)  # fmt: skip
def test_a_task_that_fails_says_why_and_leaves_no_file(
    tmp_path: Path, method: str, at: int, code: int
) -> None:
    disk, batch = FailingDisk(method, at, code), rows(b"aa", b"bb")
    with pytest.raises(StoreStateError) as caught:
        stage(tmp_path / "part", batch, batch, disk=disk)
    for text in (
        str(tmp_path / "part"),
        {errno.ENOSPC: "the disk is full", errno.EIO: "Input/output error"}[code],
        "the task leaves nothing and can be repeated",
    ):
        assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_task_whose_rows_fail_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(IllegalMessageError, match="body is null"):
        stage(tmp_path / "part", rows(b"aa"), pa.record_batch({"body": pa.array([None], "binary")}))
    assert list(tmp_path.iterdir()) == []
