"""Files in which tasks leave encoded records for the driver.

Each job has a folder of its own under ``.rmqstore/staging``.
The commit only uses the files that the messages of the tasks name; other files in the folder are of
failed attempts.
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
_MAX_RETRIES = 10
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
    """The file with the records of one attempt of one task, and a file with the size of each."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._data: BinaryIO | None = None
        self._sizes: BinaryIO | None = None
        self._n_records = self._n_bytes = self._reserved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as files:  # closes both files even if closing one of them raises
            for file in (self._sizes, self._data):
                if file is not None:
                    files.enter_context(file)
            if self._data is not None:
                self._data.truncate(self._n_bytes)

    def write(self, records: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        """Stage records of these sizes; the first call makes the files."""
        if self._data is None or self._sizes is None:
            self._data = _new_file(self._folder / self._name)
            self._sizes = _new_file(_sizes_of(self._folder / self._name))
        self._reserve(len(records))
        self._data.write(records.data)
        self._sizes.write(sizes.astype(_SIZE).tobytes())
        self._n_records += len(sizes)
        self._n_bytes += len(records)

    def _reserve(self, size: int) -> None:
        """Reserve disk space in large blocks, which is much cheaper than page by page."""
        assert self._data is not None, "files are open"
        if self._n_bytes + size <= self._reserved:
            return
        more = max(size, _RESERVED_BYTES)
        try:
            os.posix_fallocate(self._data.fileno(), self._n_bytes, more)
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            more = size  # the disk is nearly full: the write itself shows whether the records fit
        self._reserved = self._n_bytes + more

    def part(self) -> StagedPart:
        """Return the description of what was staged."""
        return StagedPart(str(self._folder / self._name), self._n_records, self._n_bytes)


def _new_file(path: Path) -> BinaryIO:
    """Make and open a new file in place of whatever had its name; a link is not followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _sizes_of(path: Path) -> Path:
    return path.with_name(path.name + ".sizes")


def read_part(part: StagedPart) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield staged records, one window at a time, then remove the file that held them.

    The file is not needed again, and the store's own files take its place in the page cache.

    Yields:
        The records as bytes, which may be changed, and their sizes.
    """
    if not part.n_records:
        return
    path = Path(part.path)
    stored = read_small(LOCAL, _sizes_of(path), part.n_records * _SIZE.itemsize)
    n_sizes = len(stored) // _SIZE.itemsize
    sizes = np.frombuffer(stored, _SIZE, n_sizes).astype(np.int64)
    totals = (len(sizes), int(sizes.sum()), LOCAL.size(path))
    if totals != (part.n_records, part.n_bytes, part.n_bytes):
        raise OSError(
            f"{path} does not hold what its task staged: "
            f"{part.n_records} records, {part.n_bytes} bytes; the file was changed or cut"
        )
    ends = np.cumsum(sizes)
    row = 0
    with path.open("rb") as file:
        while row < len(sizes):
            start = int(ends[row] - sizes[row])
            stop = max(row + 1, int(np.searchsorted(ends, start + _WINDOW_BYTES, side="right")))
            yield np.fromfile(file, np.uint8, int(ends[stop - 1]) - start), sizes[row:stop]
            row = stop
    path.unlink()


def begin(root: str, job_id: str) -> None:
    """Make the folder of a job, and remove the folders of jobs whose driver died.

    Only the driver makes the folder, so a task that still runs when its job is aborted cannot write
    any more.
    """
    join(root, job_id)


def join(root: str, job_id: str) -> None:
    """Make the folder of a job unless another task has made it.

    Tasks of a stream do this, because its driver does not know the id of the query.
    """
    disk = _disk_of(root)
    disk.make_folder(job_folder(root, job_id))
    _sweep_abandoned(disk, root, job_id)


def _disk_of(root: str) -> Disk:
    """Return what changes a store's files; it does not follow links inside the store."""
    disk = Disk()
    disk.keep_within(Path(root))
    return disk


def _sweep_abandoned(disk: Disk, root: str, job_id: str) -> None:
    folder = job_folder(root, job_id)
    for other in folder.parent.iterdir():
        if other != folder and time() - _last_change(other) > _ABANDONED_SECONDS:
            logger.warning("%s was left by a job that never ended; it is removed", other)
            disk.delete_tree(other)


def _last_change(folder: Path) -> float:
    """Return when something in a folder was last changed.

    If the folder is being removed, this is the present time.
    """
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return time()


def sweep(root: str, job_id: str) -> None:
    """Remove the folder of a job, and the folders above it that are empty then."""
    folder = job_folder(root, job_id)
    disk = _disk_of(root)
    # a task that is being killed may still make a file while the others are removed
    for _ in range(_MAX_RETRIES):
        disk.delete_tree(folder)
        if not folder.exists():
            break
    for above in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # the folder of another job is in it
            above.rmdir()
