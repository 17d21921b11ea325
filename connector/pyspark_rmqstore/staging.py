"""Where tasks leave encoded records for the driver: a folder a job under the store's ``.rmqstore/staging``.

The commit uses only the files that the tasks' messages name; all else in the folder is of failed attempts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.encode import Records

_FOLDER = Path(".rmqstore", "staging")
_WINDOW_BYTES = 64 << 20
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
        self._n_records = self._n_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._data, self._sizes):
            if file is not None:
                file.close()

    def write(self, records: Records) -> None:
        """Stage records; the first ones make the files."""
        if self._data is None or self._sizes is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._data = (self._folder / self._name).open("wb")
            self._sizes = _sizes_of(self._folder / self._name).open("wb")
        self._data.write(records.data.data)
        self._sizes.write(np.diff(records.starts).astype(_SIZE).tobytes())
        self._n_records += len(records.starts) - 1
        self._n_bytes += len(records.data)

    def part(self) -> StagedPart:
        """Return what was staged."""
        return StagedPart(str(self._folder / self._name), self._n_records, self._n_bytes)


def _sizes_of(path: Path) -> Path:
    return path.with_name(path.name + ".sizes")


def read_part(part: StagedPart) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield staged records as bytes, which may be written to, and sizes, so many bytes at a time."""
    if not part.n_records:
        return
    path = Path(part.path)
    sizes = np.fromfile(_sizes_of(path), _SIZE).astype(np.int64)
    if len(sizes) != part.n_records or path.stat().st_size != part.n_bytes or int(sizes.sum()) != part.n_bytes:
        raise OSError(f"{path}: not what its task staged: {part.n_records} records, {part.n_bytes} bytes")
    ends, row = np.cumsum(sizes), 0
    with path.open("rb") as file:
        while row < len(sizes):
            begun = int(ends[row] - sizes[row])
            stop = max(row + 1, int(np.searchsorted(ends, begun + _WINDOW_BYTES, side="right")))
            yield np.fromfile(file, np.uint8, int(ends[stop - 1]) - begun), sizes[row:stop]
            row = stop


def sweep(folder: Path) -> None:
    """Remove a job's folder, and those above it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    for above in (folder.parent, folder.parent.parent):
        if above.is_dir() and not any(above.iterdir()):
            above.rmdir()
