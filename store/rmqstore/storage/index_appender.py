"""Appends index items, file after file.

Keys are put in groups of many. The items of all groups are written first; :meth:`commit` makes them
findable.

Source: IndexFile.java#putKey.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_files import IndexFile, IndexSizes, index_files, is_name

_MAX_DIFF_SECONDS = (1 << 31) - 1
_FEW_KEYS = 1 << 17  # for fewer, only their own slots are read and written
_SLOTS_AT_ONCE = 1 << 18  # of all
_SLOTS_ONE_BY_ONE = 2048  # this takes as long as one write of all, and a third of the disk's time
_NAME_FORMAT = "%Y%m%d%H%M%S"

_KEYS_AT_ONCE = 1 << 18


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
    """One file, open for appending. Its header covers all keys that were committed so far."""

    def __init__(self, disk: Disk, path: Path, sizes: IndexSizes) -> None:
        super().__init__(path, sizes)
        self._disk = disk
        # Covers the keys that were put, too, but for their end, which is written last.
        self._next_header = self.header.copy()
        self._next_end = self.end_phy_offset, self.end_timestamp
        # All slots as the next commit will leave them; None if no large group was put since.
        self._next_slots: NDArray[np.int32] | None = None

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
        return int(self._sizes.n_items - self._next_header["index_count"])

    def put(self, keys: IndexKeys) -> None:
        """Add keys, no more than there is room for.

        Few keys can be found at once; many, once :meth:`commit` has returned.

        Source: IndexFile.java#putKey.
        """
        n = len(keys)
        if not n:
            return
        slots = keys.hashes % np.int32(self._sizes.n_slots)
        self._next_end = int(keys.physical_offsets[-1]), int(keys.store_timestamps[-1])
        if self._next_slots is None and n < _FEW_KEYS:
            numbers, slot_rows = np.unique(slots, return_inverse=True)
            newest = self._read_slots(numbers)
            self._write_items(keys, newest, slot_rows)
            self._show(numbers, newest)
            return
        if self._next_slots is None:
            self._next_slots = self._read_slots(None)
        self._write_items(keys, self._next_slots, slots)

    def _write_items(
        self, keys: IndexKeys, newest: NDArray[np.int32], slot_rows: NDArray[np.integer[Any]]
    ) -> None:
        """Write the items of keys, which nothing points at yet, and bring their slots up to date.

        Args:
            keys: n keys.
            newest: the number of the newest item of each slot, 0 without one.
            slot_rows: the row of the slot of each key in ``newest``, (n,).
        """
        n = len(keys)
        header = self._next_header
        count = int(header["index_count"])
        items = np.zeros(n, INDEX_ITEM)
        items["key_hash"] = keys.hashes
        items["physical_offset"] = keys.physical_offsets
        times = keys.store_timestamps
        begin = int(header["begin_timestamp"])
        if count > 1:
            items["seconds"] = _seconds_since(begin, times)
        else:
            items["seconds"] = _seconds_since(int(times[0]), times)
            # The first item of a file counts from the end of the file before.
            items["seconds"][:1] = _seconds_since(begin, times[:1])
        previous = chain(newest, slot_rows, np.arange(count, count + n, dtype=np.int32))
        items["previous"] = previous
        if count <= 1:
            header["begin_phy_offset"] = keys.physical_offsets[0]
            header["begin_timestamp"] = keys.store_timestamps[0]
        header["hash_slot_count"] += int((previous == 0).sum())
        header["index_count"] = count + n
        position = self._items_at + count * INDEX_ITEM.itemsize
        self._disk.reserve(self.path, position, items.nbytes)
        self._disk.write(self.path, position, items)

    def commit(self) -> None:
        """Make all keys findable that were put, and wait until they are on the disk."""
        if self._next_slots is not None:
            self._show(None, self._next_slots)
            self._next_slots = None
        self._disk.flush(self.path)

    def _show(self, numbers: NDArray[np.int32] | None, newest: NDArray[np.int32]) -> None:
        """Write count, slots and end, after the items.

        A crash in between leaves all earlier keys findable: a slot that points past the count hides
        its chain, and the end in the header is written last.

        Args:
            numbers: the slots to write, rising; None for all.
            newest: the number of the newest item of each of them.
        """
        header = self._next_header
        self._disk.flush(self.path)
        self._disk.write(self.path, 0, header.tobytes())
        self._disk.flush(self.path)
        if numbers is None:
            self._disk.reserve(self.path, self._slots_at, len(newest) * INDEX_SLOT.itemsize)
            for low in range(0, len(newest), _SLOTS_AT_ONCE):
                values = newest[low : low + _SLOTS_AT_ONCE].astype(INDEX_SLOT)
                self._disk.write(self.path, self._slots_at + low * INDEX_SLOT.itemsize, values)
        elif len(numbers) <= _SLOTS_ONE_BY_ONE:
            values = newest.astype(INDEX_SLOT)
            positions = self._slots_at + numbers.astype(np.int64) * INDEX_SLOT.itemsize
            for row, position in enumerate(positions.tolist()):
                self._disk.write(self.path, position, values[row : row + 1])
        else:  # many are written together with those between them
            low, high = int(numbers[0]), int(numbers[-1]) + 1
            all_values = np.zeros(high - low, INDEX_SLOT)
            if self.n_items:
                with self._storage.open(self.path) as file:
                    all_values[:] = self._slots(file, low, high)
            all_values[numbers - low] = newest.astype(INDEX_SLOT)
            position = self._slots_at + low * INDEX_SLOT.itemsize
            self._disk.reserve(self.path, position, all_values.nbytes)
            self._disk.write(self.path, position, all_values)
        self._disk.flush(self.path)
        header["end_phy_offset"], header["end_timestamp"] = self._next_end
        self._disk.write(self.path, 0, header.tobytes())
        self.header = header.copy()

    def _read_slots(self, numbers: NDArray[np.int32] | None) -> NDArray[np.int32]:
        """Return the number of the newest item of each of the slots, or of all; 0 without one."""
        n_slots, count = self._sizes.n_slots, int(self.header["index_count"])
        newest = np.zeros(n_slots if numbers is None else len(numbers), np.int32)
        if not self.n_items:  # in a new file all slots are zero and need not be read
            return newest
        with self._storage.open(self.path) as file:
            slots = self._slots(file, 0, n_slots)
            for start in range(0, len(newest), _SLOTS_AT_ONCE):
                rows = slice(start, start + _SLOTS_AT_ONCE)
                part = newest[rows]
                part[:] = slots[rows if numbers is None else numbers[rows]]
                part[(part < 0) | (part > count)] = 0
        return newest


def chain(
    newest: NDArray[np.int32], slot_rows: NDArray[np.integer[Any]], numbers: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the item before each of n new ones in its slot, 0 for the first, int32 (n,).

    Args:
        newest: the number of the newest item of each slot, 0 without one; brought up to date.
        slot_rows: the row of the slot of each new item in ``newest``, (n,).
        numbers: the numbers of the new items, (n,), rising.
    """
    n = len(slot_rows)
    # By slot, then in the given order. A sort of both in one number is several times as fast as a
    # stable argsort, and slots in order are also faster to look up.
    slots_and_keys = np.sort(slot_rows.astype(np.int64) << 32 | np.arange(n))
    order = slots_and_keys & 0xFFFFFFFF
    by_slot = slots_and_keys >> 32
    is_first = np.append(True, by_slot[1:] != by_slot[:-1])
    is_last = np.append(is_first[1:], True)
    previous = np.empty(n, np.int32)
    previous[order[1:]] = numbers[order[:-1]]
    previous[order[is_first]] = newest[by_slot[is_first]]
    newest[by_slot[is_last]] = numbers[order[is_last]]
    return previous


def _seconds_since(begin: int, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole seconds from ``begin`` to each time (n,), both in ms.

    0 for earlier times, and if ``begin`` is not set.
    """
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    seconds: NDArray[np.int64] = np.maximum(timestamps - begin, 0) // 1000
    return np.minimum(seconds, _MAX_DIFF_SECONDS, out=seconds)


class IndexAppender:
    """The end of the index: the last file and, once it is full, a new one.

    Source: IndexService.java.
    """

    def __init__(self, disk: Disk, folder: Path, sizes: IndexSizes) -> None:
        self._disk = disk
        self._folder = folder
        self._sizes = sizes
        files = index_files(folder)
        self._last = IndexFileAppender(disk, files[-1], sizes) if files else None
        self._waiting: list[IndexKeys] = []
        self._n_waiting = 0
        # All records before the last one of the index are in it. Some keys of the last record may
        # have been in a file that is lost, so its items are counted.
        # Source: IndexService.java#buildIndex.
        self._last_record = -1  # physical offset
        self._n_items_of_last_record = 0
        if self._last is not None and self._last.end_timestamp:
            self._last_record = self._last.end_phy_offset
            for path in reversed(files):
                file = IndexFile(path, sizes)
                count = file.items_at_end(self._last_record)
                self._n_items_of_last_record += count
                if count < file.n_items:
                    break

    def add(self, keys: IndexKeys) -> None:
        """Add keys, skipping those that the index already has.

        They are written in groups, and by :meth:`flush`.
        """
        self._waiting.append(keys)
        self._n_waiting += len(keys)
        if self._n_waiting >= _KEYS_AT_ONCE:
            self._put_waiting()

    def _put_waiting(self) -> None:
        """Put many keys together, because each put costs some time of its own."""
        if not self._waiting:
            return
        keys = IndexKeys(*map(np.concatenate, zip(*self._waiting, strict=True)))
        offsets = keys.physical_offsets
        done = int(np.searchsorted(offsets, self._last_record))
        n_of_last_record = int(np.searchsorted(offsets, self._last_record, side="right")) - done
        done += min(n_of_last_record, self._n_items_of_last_record)
        while done < len(keys):
            if self._last is None or not self._last.room:
                last_name = None
                if self._last is not None:
                    last_name = self._last.path.name
                    self._last.commit()
                path = self._folder / next_name(last_name, datetime.now().astimezone())
                self._last = IndexFileAppender.create(self._disk, path, self._sizes, self._last)
            count = min(self._last.room, len(keys) - done)
            self._last.put(keys.take(slice(done, done + count)))
            done += count
        self._waiting.clear()
        self._n_waiting = 0

    def flush(self) -> None:
        """Write all keys and wait until they are on the disk."""
        self._put_waiting()
        if self._last is not None:
            self._last.commit()
            self._disk.flush_folder(self._folder)
