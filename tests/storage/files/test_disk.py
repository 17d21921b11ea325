"""The door to changes: a file that is created is never seen with another length."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore.storage.files.disk import Disk


class Killed(Exception):  # noqa: N818 - an event, not an error of ours
    """The process is gone."""


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def has_unnamed_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the file system has files without a name."""
    open_file = os.open

    def refuse_unnamed(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return open_file(path, flags, mode)

    if not request.param:
        monkeypatch.setattr(os, "open", refuse_unnamed)
    return bool(request.param)


def test_a_file_that_is_created_has_no_name_before_it_has_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_unnamed_files: bool
) -> None:
    error = Killed() if has_unnamed_files else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(type(error)):
        Disk().create(tmp_path / "file", 100)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("has_unnamed_files")
def test_a_file_is_created_once_with_zeros(tmp_path: Path) -> None:
    disk = Disk()
    disk.create(tmp_path / "file", 100)
    disk.write(tmp_path / "file", 98, b"ab")
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "file", 100)
    disk.close()
    assert (tmp_path / "file").read_bytes() == bytes(98) + b"ab"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def make_folders(disk: Disk, folder: Path) -> None:
    """Make folders and a file in one of them, whose names are flushed together."""
    disk.make_folder(folder / "new" / "a", is_flushed=False)
    disk.make_folder(folder / "new" / "b", is_flushed=False)
    disk.create(folder / "new" / "a" / "file", 0)
    disk.flush_all([folder / "new" / "a" / "file"])


@pytest.mark.parametrize(
    ("flush", "flushed"),
    [
        (lambda disk, folder: disk.flush(folder / "a"), ["a"]),
        (lambda disk, folder: disk.flush_folder(folder), [""]),
        (lambda disk, folder: disk.flush_all([folder / "a", folder / "b"]), ["", "a", "b"]),
        (make_folders, ["", "new", "new/a", "new/a/file"]),
        (lambda disk, folder: disk.replace(folder / "a", b"x"), ["", "a"]),
    ],
    ids=["flush", "flush_folder", "flush_all", "make_folder", "replace"],
)
def test_a_flush_reaches_the_kernel(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flush: Callable[[Disk, Path], None],
    flushed: list[str],
) -> None:
    """Flushes are recorded by inode: a file gets its name only after its bytes are on the disk."""
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
    disk = Disk()
    flush(disk, tmp_path)
    disk.close()
    assert synced == {(tmp_path / name).stat().st_ino for name in flushed}


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("fsync", lambda disk, path: disk.flush(path)),
        ("fsync", lambda disk, path: disk.flush_all([path])),
        ("fsync", lambda disk, path: disk.flush_folder(path)),
        ("pwrite", lambda disk, path: disk.write(path, 0, b"x")),
        ("pwritev", lambda disk, path: disk.write_through(path, 0, np.zeros(8, np.uint8))),
        ("posix_fallocate", lambda disk, path: disk.reserve(path, 0, 10)),
        ("ftruncate", lambda disk, path: disk.shorten(path, 10)),
    ],
)
def test_an_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, change: Callable[[Disk, Path], None]
) -> None:
    """The calls take descriptors, so the system does not know the name."""
    path, disk = tmp_path / "file", Disk()
    path.mkdir() if "flush_folder" in change.__code__.co_names else path.touch()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError, match="Input/output") as caught:
            change(disk, path)
    assert caught.value.filename == str(path)
    disk.close()


def test_an_error_of_one_file_leaves_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, close, closed = Disk(), os.close, list[int]()
    for name in "abc":
        disk.create(tmp_path / name, 10)

    def refuse_second(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        if len(closed) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", refuse_second)
        with pytest.raises(OSError, match="Input/output") as caught:
            disk.close()
    assert caught.value.filename == str(tmp_path / "b")
    assert len(closed) == 3
