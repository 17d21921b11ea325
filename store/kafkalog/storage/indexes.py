"""The offset, time and transaction indexes of a segment.

They propose where to begin, and the log decides. What a read of committed records gives is decided
by the markers; the transaction index is only shown and compared with them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.storage.segments import INDEX, TIME_INDEX, Segment
from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.storage import Storage, read_small

_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),  # of the marker, which lies in the segment
        ("last_stable_offset", ">i8"),  # when the entry was written
    ]
)
_VERSION: Final = 0

_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = _OFFSET_ENTRY.itemsize, _TIME_ENTRY.itemsize
_FIRST_ENTRIES: Final = 8192  # read at first, of a segment of 32 MiB
_GROWTH: Final = 8
_MAX_BYTES: Final = 64 << 20  # far more than segment.index.bytes is ever set to


def read_transaction_index(storage: Storage, path: str) -> NDArray[np.void]:
    """Return the entries of a transaction index, with the fields of _ENTRY.

    Raises:
        FileNotFoundError: there is no such file, as where no transaction was aborted.
        UnreadableFileError: it cannot be read.
        CorruptBatchError: it ends within an entry, or the version of one is unknown.

    Source: TransactionIndex.java, AbortedTxn.java.
    """
    content = read_small(storage, path, _MAX_BYTES)
    count, left = divmod(len(content), _ENTRY.itemsize)
    entries = np.frombuffer(content, _ENTRY, count)
    odd = np.flatnonzero(entries["version"] != _VERSION)
    if len(odd):
        text = f"version {entries['version'][odd[0]]} of an entry is unknown"
        raise CorruptBatchError(path, int(odd[0]) * _ENTRY.itemsize, text)
    if left:
        raise CorruptBatchError(path, len(content) - left, "the file ends within an entry")
    return entries


class OffsetEntries(NamedTuple):
    """What an offset index proposes, rising.

    Attributes:
        offsets: int64 (n,); the batches with greater offsets begin at or after the position.
        positions: int64 (n,), in the log file.
    """

    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    def before(self, offset: int) -> int:
        """Return the position from which to look for an offset; 0 if none is proposed."""
        row = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return int(self.positions[row]) if row >= 0 else 0


class TimeEntry(NamedTuple):
    """An entry of a time index: the largest timestamp up to an offset."""

    timestamp: int  # ms
    offset: int


class TimeEntries(NamedTuple):
    """What a time index proposes, rising.

    Attributes:
        timestamps: ms, int64 (n,).
        offsets: int64 (n,); each is in the batch that has the timestamp.
    """

    timestamps: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def last(self) -> TimeEntry | None:
        """The last entry, with the largest timestamp of a closed segment."""
        return self._entry(len(self.timestamps) - 1)

    def before(self, timestamp: int) -> TimeEntry | None:
        """Return the last entry with a timestamp before another one."""
        return self._entry(int(np.searchsorted(self.timestamps, timestamp)) - 1)

    def _entry(self, row: int) -> TimeEntry | None:
        return TimeEntry(int(self.timestamps[row]), int(self.offsets[row])) if row >= 0 else None


def read_offset_index(storage: Storage, segment: Segment) -> OffsetEntries:
    """Return the entries of an offset index up to the first that does not rise.

    Args:
        storage: the storage to read from.
        segment: the segment.

    Source: OffsetIndex.java.
    """
    offsets, positions = stored_offset_index(storage, segment)
    n_rising = min(_rising(offsets - segment.base_offset), _rising(positions))
    return OffsetEntries(offsets[:n_rising], positions[:n_rising])


def stored_offset_index(storage: Storage, segment: Segment) -> OffsetEntries:
    """Return all entries of an offset index, rising or not, but for the zeros at its end."""
    entries = _entries(storage, segment.path_of(INDEX), _OFFSET_ENTRY)
    offsets = segment.base_offset + entries["offset"].astype(np.int64)
    return OffsetEntries(offsets, entries["position"].astype(np.int64))


def read_time_index(storage: Storage, segment: Segment) -> TimeEntries:
    """Return the entries of a time index; none if it is missing, or if they do not rise.

    Args:
        storage: the storage to read from.
        segment: the segment.

    Source: TimeIndex.java.
    """
    timestamps, offsets = stored = stored_time_index(storage, segment)
    if min(_rising(timestamps), _rising(offsets - segment.base_offset)) == len(offsets):
        return stored
    return TimeEntries(timestamps[:0], offsets[:0])


def stored_time_index(storage: Storage, segment: Segment) -> TimeEntries:
    """Return all entries of a time index, rising or not, but for the zeros at its end."""
    entries = _entries(storage, segment.path_of(TIME_INDEX), _TIME_ENTRY)
    offsets = segment.base_offset + entries["offset"].astype(np.int64)
    return TimeEntries(entries["timestamp"].astype(np.int64), offsets)


def _rising(values: NDArray[np.int64]) -> int:
    """Return how many values rise from the first on; equal ones and negative ones do not."""
    falls = np.flatnonzero(np.diff(values, prepend=-1) <= 0)
    return int(falls[0]) if len(falls) else len(values)


def _entries(storage: Storage, path: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the entries of an index without the zeros of a preallocated file.

    A running broker's index is 10 MiB long, most of it zeros, which are not read.
    """
    n_bytes = _FIRST_ENTRIES * dtype.itemsize
    try:
        content = storage.read_bytes(path, n_bytes)
        while len(content) == n_bytes < _MAX_BYTES and any(content[-dtype.itemsize :]):
            n_bytes *= _GROWTH
            content = storage.read_bytes(path, n_bytes)
    except (FileNotFoundError, UnreadableFileError):
        return np.empty(0, dtype)
    entries = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
    written = np.flatnonzero(entries.view(np.uint8).reshape(-1, dtype.itemsize).any(axis=1))
    return entries[: written[-1] + 1] if len(written) else entries[:0]
