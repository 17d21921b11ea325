"""Large writes put the same bytes into a file as plain ones, with and without direct access."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore.storage.files import disk as direct_writes
from rmqstore.storage.files.disk import Disk

BLOCK = 4096


def file_of(path: Path, size: int) -> Path:
    path.write_bytes(b"\1" * size)
    return path


def refuse_direct_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as tmpfs of an older kernel."""
    open_file = os.open

    def refuse(path: Path, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return open_file(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)


def refuse_direct_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as a disk whose blocks are larger than a page."""
    write = direct_writes.write_all

    def refuse(descriptor: int, position: int, parts: Any) -> None:
        if "o_direct" in flags_of(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        write(descriptor, position, parts)

    monkeypatch.setattr(direct_writes, "write_all", refuse)


def flags_of(descriptor: int) -> str:
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    flags = int(info.split("flags:")[1].split()[0], 8)
    return "o_direct" if flags & os.O_DIRECT else ""


@pytest.mark.parametrize("refuse", [None, refuse_direct_files, refuse_direct_writes])
@pytest.mark.parametrize(
    ("position", "size"),
    [(0, 10 * BLOCK), (1, 1), (5, 3), (BLOCK - 1, 2), (BLOCK, BLOCK), (100, 9 * BLOCK)],
)
def test_a_large_write_is_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Any, position: int, size: int
) -> None:
    if refuse is not None:
        refuse(monkeypatch)
    path = file_of(tmp_path / "file", 12 * BLOCK)
    data = np.frombuffer(random.Random(size).randbytes(size), np.uint8)
    disk = Disk()
    disk.write_large(path, position, data)
    disk.flush(path)
    disk.close()
    expected = bytearray(b"\1" * 12 * BLOCK)
    expected[position : position + size] = data.tobytes()
    assert path.read_bytes() == expected


def test_bytes_that_lie_in_memory_as_in_the_file_are_written_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = []
    write = direct_writes.write_all

    def note(descriptor: int, position: int, parts: Any) -> None:
        if "o_direct" in flags_of(descriptor):
            addresses.extend(part.ctypes.data for part in parts)
        write(descriptor, position, parts)

    monkeypatch.setattr(direct_writes, "write_all", note)
    path, size = file_of(tmp_path / "file", 12 * BLOCK), 9 * BLOCK
    data = direct_writes.aligned_bytes(100 + size)[100:]
    data[:] = np.frombuffer(random.Random(2).randbytes(size), np.uint8)
    disk = Disk()
    disk.write_large(path, 100, data)
    disk.close()
    assert path.read_bytes() == b"\1" * 100 + data.tobytes() + b"\1" * (3 * BLOCK - 100)
    if addresses:  # else the file system has no direct writes
        assert addresses == [data.ctypes.data + BLOCK - 100]


def test_many_large_writes_one_after_another(tmp_path: Path) -> None:
    random_ = random.Random(1)
    expected = random_.randbytes(3 * direct_writes._WINDOW_BYTES + 77)
    paths = [file_of(tmp_path / name, len(expected) + BLOCK) for name in "ab"]
    disk, position = Disk(), 0
    while position < len(expected):
        size = random_.choice([1, 100, BLOCK, 300_000, 5_000_000])
        for path in paths:
            data = np.frombuffer(expected[position : position + size], np.uint8)
            disk.write_large(path, 33 + position, data)
        disk.write(paths[0], 20, b"plain")
        position += size
    disk.flush_all(paths)
    disk.close()
    for path in paths:
        assert path.read_bytes()[33 : 33 + len(expected)] == expected
    assert paths[0].read_bytes()[20:25] == b"plain"


@pytest.mark.parametrize("change", ["write", "flush", "flush_all", "delete", "large"])
def test_a_large_write_that_failed_fails_each_change_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = file_of(tmp_path / "file", 4 * BLOCK)
    data, disk = np.zeros(BLOCK, np.uint8), Disk()
    changes = {
        "write": lambda: disk.write(path, 0, b"a"),
        "flush": lambda: disk.flush(path),
        "flush_all": lambda: disk.flush_all([path]),
        "delete": lambda: disk.delete(path),
        "large": lambda: disk.write_large(path, 0, data),
    }

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(direct_writes, "write_all", fail)
        disk.write_large(path, 0, data)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                changes[change]()
    disk.forget_large_write()
    changes[change]()
    disk.close()
