"""Appending to one index file so that a crash at any write leaves all earlier keys findable.

Source: IndexFile.java#putKey.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index.index_file import IndexFile, is_name
from rmqstore.storage.index.sizes import IndexSizes

_MAX_DIFF_SECONDS = (1 << 31) - 1
_SLOTS_ONE_BY_ONE = 512
_NAME_FORMAT = "%Y%m%d%H%M%S"


class IndexKeys(NamedTuple):
    """Keys of records as columns, (m,) each, in the order of the log."""

    hashes: NDArray[np.int32]  # never negative
    physical_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms

    def take(self, rows: slice) -> IndexKeys:
        """Return the chosen keys."""
        return IndexKeys(
            self.hashes[rows], self.physical_offsets[rows], self.store_timestamps[rows]
        )

    def __len__(self) -> int:
        return len(self.hashes)


def next_name(last: str | None, now: datetime) -> str:
    """Return the present time as the name of a new file, or a later time after the last name.

    A name that is not a time is followed by the next number, so that the new file is the last one
    in the folder.

    Raises:
        StoreStateError: no name follows the last one.

    Source: UtilAll.java#timeMillisToHumanString.
    """
    name = _name_of(now)
    if last is None or last < name:
        return name
    try:
        later = datetime.strptime(last[:14], _NAME_FORMAT).astimezone(now.tzinfo)
        name = _name_of(later + timedelta(milliseconds=int(last[14:] or 0) + 1))
    except (ValueError, OverflowError):
        name = ""
    if name <= last:
        name = str(int(last) + 1).zfill(len(last))
    if name <= last or not is_name(name):
        raise StoreStateError(
            f"no index file can follow {last}; rebuild the index (rmqstore rebuild)"
        )
    return name


def _name_of(time: datetime) -> str:
    return f"{time.strftime(_NAME_FORMAT)}{time.microsecond // 1000:03d}"


class IndexFileAppender(IndexFile):
    """One file, open for appending. Its header covers all keys that were put so far."""

    def __init__(self, disk: Disk, path: Path, sizes: IndexSizes) -> None:
        super().__init__(path, sizes)
        self._disk = disk

    @classmethod
    def create(cls, disk: Disk, path: Path, sizes: IndexSizes, before: IndexFile | None) -> Self:
        """Create a file whose header starts with the end of the file before."""
        disk.make_folder(path.parent)
        header = np.zeros(1, INDEX_HEADER)
        header["index_count"] = 1
        if before is not None:
            header["begin_timestamp"] = header["end_timestamp"] = before.header["end_timestamp"]
            header["begin_phy_offset"] = header["end_phy_offset"] = before.header["end_phy_offset"]
        disk.create(path, sizes.file_size)
        disk.write(path, 0, header)
        return cls(disk, path, sizes)

    @property
    def room(self) -> int:
        """Number of further keys that fit."""
        return int(self._sizes.n_items - self.header["index_count"])

    def put(self, keys: IndexKeys) -> None:
        """Add keys, no more than there is room for.

        The order of writes leaves all earlier keys findable after a crash. First come the items,
        which nothing points at. Then comes the count, because a slot that points past it hides its
        chain. The slots follow, and the end in the header is last.

        Source: IndexFile.java#putKey.
        """
        n = len(keys)
        count = int(self.header["index_count"])
        if not n:
            return
        slots = keys.hashes % self._sizes.n_slots
        numbers = np.arange(count, count + n, dtype=np.int32)
        # By slot, then in the given order. A sort of both in one number is several times as fast as
        # a stable argsort.
        slots_and_rows = np.sort(slots.astype(np.int64) << 32 | np.arange(n))
        order = slots_and_rows & 0xFFFFFFFF
        by_slot = (slots_and_rows >> 32).astype(np.int32)
        is_first = np.append(True, by_slot[1:] != by_slot[:-1])
        is_last = np.append(is_first[1:], True)
        present = self._present_slots(by_slot[is_first])
        present = np.where((present <= 0) | (present > count), 0, present)
        previous = np.empty(n, np.int32)
        previous[order[1:]] = numbers[order[:-1]]
        previous[order[is_first]] = present

        items = np.zeros(n, INDEX_ITEM)
        items["key_hash"] = keys.hashes
        items["physical_offset"] = keys.physical_offsets
        items["seconds"] = self._seconds(keys.store_timestamps)
        items["previous"] = previous
        header = self.header.copy()
        if count <= 1:
            header["begin_phy_offset"] = keys.physical_offsets[0]
            header["begin_timestamp"] = keys.store_timestamps[0]
        header["hash_slot_count"] += int((present == 0).sum())
        header["index_count"] = count + n
        position = self._items_at + count * INDEX_ITEM.itemsize
        self._disk.reserve(self.path, position, items.nbytes)
        self._disk.write(self.path, position, items)
        self._disk.flush(self.path)
        self._disk.write(self.path, 0, header.tobytes())
        self._disk.flush(self.path)
        self._write_slots(by_slot[is_last], numbers[order][is_last])
        self._disk.flush(self.path)
        header["end_phy_offset"] = keys.physical_offsets[-1]
        header["end_timestamp"] = keys.store_timestamps[-1]
        self._disk.write(self.path, 0, header.tobytes())
        self.header = header

    def _seconds(self, store_timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        begin = int(self.header["begin_timestamp"])
        if self.n_items:
            return _seconds_since(begin, store_timestamps)
        seconds = _seconds_since(int(store_timestamps[0]), store_timestamps)
        # The first item of a file counts from the end of the file before.
        seconds[:1] = _seconds_since(begin, store_timestamps[:1])
        return seconds

    def _present_slots(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        if not self.n_items:  # in a new file all slots are zero and need not be read
            return np.zeros(len(slots), np.int32)
        with self._storage.open(self.path) as file:
            return self._slots(file, 0, self._sizes.n_slots)[slots].astype(np.int32)

    def _write_slots(self, slots: NDArray[np.int32], numbers: NDArray[np.int32]) -> None:
        """Set slots, given in rising order: a few one by one, many in one write."""
        values = numbers.astype(INDEX_SLOT)
        if len(slots) <= _SLOTS_ONE_BY_ONE:
            positions = self._slots_at + slots.astype(np.int64) * INDEX_SLOT.itemsize
            for row, position in enumerate(positions.tolist()):
                self._disk.write(self.path, position, values[row : row + 1])
            return
        low, high = int(slots[0]), int(slots[-1]) + 1
        if self.n_items:
            with self._storage.open(self.path) as file:
                stored = self._slots(file, low, high).copy()
        else:
            stored = np.zeros(high - low, INDEX_SLOT)
        stored[slots - low] = values
        position = self._slots_at + low * INDEX_SLOT.itemsize
        self._disk.reserve(self.path, position, stored.nbytes)
        self._disk.write(self.path, position, stored)


def _seconds_since(begin: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole seconds from ``begin`` to each time (n,), both in ms.

    0 for earlier times, and if ``begin`` is not set.
    """
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    seconds: NDArray[np.int64] = np.maximum(timestamps - begin, 0) // 1000
    return np.minimum(seconds, _MAX_DIFF_SECONDS, out=seconds)
