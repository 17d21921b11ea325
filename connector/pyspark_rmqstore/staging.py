"""Where tasks leave encoded records for the driver: a folder a job under the store's ``.rmqstore/staging``.

The commit uses only the files that the tasks' messages name; all else in the folder is of failed attempts.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import time
from typing import BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import read_small

logger = logging.getLogger(__name__)

_FOLDER = Path(".rmqstore", "staging")
_WINDOW_BYTES = 16 << 20
_RESERVED_BYTES = 16 << 20
_ABANDONED_SECONDS = 24 * 60 * 60
_PATIENCE = 10
_SIZE = np.dtype("<i4")


class StagedPart(NamedTuple):
    """What one task staged."""

    path: str
    n_records: int
    n_bytes: int


def job_folder(root: str, job_id: str) -> Path:
    """Return the folder of a job."""
    return Path(root) / _FOLDER / job_id


class PartWriter:
    """The file of one attempt of one task: records one behind the other, and beside it the size of each."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._data: BinaryIO | None = None
        self._sizes: BinaryIO | None = None
        self._n_records = self._n_bytes = self._reserved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as files:  # what fails to be closed keeps the other from nothing
            for file in (self._sizes, self._data):
                if file is not None:
                    files.enter_context(file)
            if self._data is not None:
                self._data.truncate(self._n_bytes)

    def write(self, records: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        """Stage records of these sizes; the first ones make the files."""
        if self._data is None or self._sizes is None:
            self._data = _new_file(self._folder / self._name)
            self._sizes = _new_file(_sizes_of(self._folder / self._name))
        self._reserve(len(records))
        self._data.write(records.data)
        self._sizes.write(sizes.astype(_SIZE).tobytes())
        self._n_records += len(sizes)
        self._n_bytes += len(records)

    def _reserve(self, size: int) -> None:
        """Take place on the disk before it is written to, in large pieces: much cheaper than page by page."""
        assert self._data is not None, "files are open"
        if self._n_bytes + size <= self._reserved:
            return
        more = max(size, _RESERVED_BYTES)
        try:
            os.posix_fallocate(self._data.fileno(), self._n_bytes, more)
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            more = size  # no room for more than this: let the write say whether there is so much
        self._reserved = self._n_bytes + more

    def part(self) -> StagedPart:
        """Return what was staged."""
        return StagedPart(str(self._folder / self._name), self._n_records, self._n_bytes)


def _new_file(path: Path) -> BinaryIO:
    """Open a file that is made here, whatever had its name: a link is not written through."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _sizes_of(path: Path) -> Path:
    return path.with_name(path.name + ".sizes")


def read_part(part: StagedPart) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield staged records as bytes, which may be written to, and sizes, so many bytes at a time; remove them then.

    What was read is needed no more, and the store's own files take its place in the page cache.
    """
    if not part.n_records:
        return
    path = Path(part.path)
    stored = read_small(LOCAL, _sizes_of(path), part.n_records * _SIZE.itemsize)
    sizes = np.frombuffer(stored[: len(stored) // _SIZE.itemsize * _SIZE.itemsize], _SIZE).astype(np.int64)
    if len(sizes) != part.n_records or LOCAL.size(path) != part.n_bytes or int(sizes.sum()) != part.n_bytes:
        raise OSError(f"{path}: not what its task staged: {part.n_records} records, {part.n_bytes} bytes")
    ends, row = np.cumsum(sizes), 0
    with path.open("rb") as file:
        while row < len(sizes):
            begun = int(ends[row] - sizes[row])
            stop = max(row + 1, int(np.searchsorted(ends, begun + _WINDOW_BYTES, side="right")))
            yield np.fromfile(file, np.uint8, int(ends[stop - 1]) - begun), sizes[row:stop]
            row = stop
    path.unlink()


def begin(root: str, job_id: str) -> None:
    """Make a job's folder, and remove those that jobs left whose driver died.

    Only the driver makes it: a task that still runs when its job is given up finds no place to write to.
    """
    join(root, job_id)


def join(root: str, job_id: str) -> None:
    """Make a job's folder if no other task has made it: the driver of a stream does not know whose batch it plans."""
    disk = _disk_of(root)
    disk.make_folder(job_folder(root, job_id))
    _sweep_abandoned(disk, root, job_id)


def _disk_of(root: str) -> Disk:
    """Return what changes a store's files, and follows no link that stands in the store."""
    disk = Disk()
    disk.keep_within(Path(root))
    return disk


def _sweep_abandoned(disk: Disk, root: str, job_id: str) -> None:
    folder = job_folder(root, job_id)
    for other in folder.parent.iterdir():
        if other != folder and time() - _last_change(other) > _ABANDONED_SECONDS:
            logger.warning("%s was left by a job that came to no end; it is removed", other)
            disk.delete_tree(other)


def _last_change(folder: Path) -> float:
    """Return when something in a folder was last written to, now if it just vanishes."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return time()


def sweep(root: str, job_id: str) -> None:
    """Remove a job's folder, and those above it that are empty then."""
    folder, disk = job_folder(root, job_id), _disk_of(root)
    for _ in range(_PATIENCE):  # a task that is being killed may make one more file while the others are removed
        disk.delete_tree(folder)
        if not folder.exists():
            break
    for above in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # another job's folder is there
            above.rmdir()
