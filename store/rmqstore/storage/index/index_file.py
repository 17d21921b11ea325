"""The index by key: 40 bytes of header, hash slots, and items chained from newest to oldest.

Source: IndexFile.java, IndexHeader.java, IndexService.java.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptIndexError, StoreStateError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Mask
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, StoredFile
from rmqstore.storage.index.sizes import IndexSizes

_MAX_DIFF_SECONDS = (1 << 31) - 1
_SLOTS_ONE_BY_ONE = 512
_NAME_FORMAT = "%Y%m%d%H%M%S"
_MAX_NAME = (1 << 63) - 1


class IndexKeys(NamedTuple):
    """Keys to be found by, (m,) each, in the order of the log."""

    hashes: NDArray[np.int32]  # never negative
    physical_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms

    def take(self, rows: slice) -> IndexKeys:
        """Return the chosen keys."""
        return IndexKeys(self.hashes[rows], self.physical_offsets[rows], self.store_timestamps[rows])

    def __len__(self) -> int:
        return len(self.hashes)


def index_files(folder: Path, storage: Storage = LOCAL) -> list[Path]:
    """Return the index files, oldest first; a name that is not a number of Java's is not one of theirs.

    Raises:
        UnreadableFileError: the folder is not a folder.
    """
    entries = storage.list_folder(folder)
    return sorted(folder / entry.name for entry in entries if _is_name(entry.name) and not entry.is_folder)


def _is_name(name: str) -> bool:
    """Tell whether a file is named as RocketMQ loads it. Source: DefaultMappedFile.java#init."""
    return name.isascii() and name.isdigit() and int(name) <= _MAX_NAME


def next_name(last: str | None, now: datetime) -> str:
    """Return a name for a new file: the time it is made, later than the last one's.

    After a name that is not a time the next number follows, so that the new file is the last one in the folder.

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
    if name <= last or not _is_name(name):
        raise StoreStateError(f"no index file can follow {last}; rebuild the index (rmqstore rebuild)")
    return name


def _name_of(time: datetime) -> str:
    return f"{time.strftime(_NAME_FORMAT)}{time.microsecond // 1000:03d}"


def read_header(path: Path, storage: Storage = LOCAL) -> np.void:
    """Return the header of an index file, INDEX_HEADER; what a short file lacks of it is zero."""
    stored = np.zeros(INDEX_HEADER.itemsize, np.uint8)
    with storage.open(path) as file:
        file.read_into(stored, 0)
    header: np.void = stored.view(INDEX_HEADER)[0]
    return header


def was_ended(path: Path) -> bool:
    """Tell whether a file was ever put to whole: its end time is what a put writes last."""
    return bool(read_header(path)["end_timestamp"])


class IndexFile:
    """One file, open for appending."""

    def __init__(self, disk: Disk, path: Path, sizes: IndexSizes, storage: Storage = LOCAL) -> None:
        self.path, self._disk, self._sizes, self._storage = path, disk, sizes, storage
        self._slots_at = INDEX_HEADER.itemsize
        self._items_at = self._slots_at + sizes.n_slots * INDEX_SLOT.itemsize
        with storage.open(path) as file:
            if file.size != sizes.file_size:
                reason = f"{file.size} bytes, {sizes.file_size} are expected for {sizes.n_slots} slots"
                raise CorruptIndexError(str(path), 0, reason)
            self.header = file.read(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0].copy()
        self.header["index_count"] = max(self.header["index_count"], 1)
        if self.header["index_count"] > sizes.n_items:
            raise CorruptIndexError(str(path), 36, f"{self.header['index_count']} items, {sizes.n_items} fit")

    @classmethod
    def create(cls, disk: Disk, path: Path, sizes: IndexSizes, before: IndexFile | None) -> IndexFile:
        """Make a file that follows another one, whose end its header begins with."""
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
        """How many more keys fit."""
        return int(self._sizes.n_items - self.header["index_count"])

    @property
    def n_items(self) -> int:
        """How many keys it holds."""
        return int(self.header["index_count"]) - 1

    def items(self) -> NDArray[np.void]:
        """Return the items in the order they were put, INDEX_ITEM (n,)."""
        with self._storage.open(self.path) as file:
            return self._newest_items(file, self.n_items).copy()

    def _newest_items(self, file: StoredFile, count: int) -> NDArray[np.void]:
        """Return the last of the items, INDEX_ITEM (n,)."""
        first = self.n_items + 1 - count  # the item with number 0 is never used
        stored = file.read(self._items_at + first * INDEX_ITEM.itemsize, count * INDEX_ITEM.itemsize)
        return stored.view(INDEX_ITEM)

    def _slots(self, file: StoredFile, low: int, high: int) -> NDArray[Any]:
        """Return slots by number, INDEX_SLOT (n,)."""
        width = INDEX_SLOT.itemsize
        return file.read(self._slots_at + low * width, (high - low) * width).view(INDEX_SLOT)

    def hidden(self, items: NDArray[np.void]) -> Mask:
        """Return which items a search does not come by, (n,): no slot, and no chain from one, leads there.

        Args:
            items: of this file, see :meth:`items`.
        """
        hashes = items["key_hash"].astype(np.int64)
        slots = np.where(hashes >= 0, hashes, 0) % self._sizes.n_slots
        previous = items["previous"].astype(np.int64)
        order = np.argsort(slots, kind="stable")
        numbers = np.arange(1, len(slots) + 1)
        expected = np.zeros(len(slots), np.int64)
        same = slots[order[1:]] == slots[order[:-1]]
        expected[order[1:][same]] = numbers[order[:-1][same]]
        last = np.append(~same, True) if len(slots) else np.empty(0, np.bool_)
        newest = order[last]
        with self._storage.open(self.path) as file:
            stored = self._slots(file, 0, self._sizes.n_slots)[slots[newest]].astype(np.int64)
        # In a sound file each item leads to the one before it in its slot; only elsewhere are chains followed.
        odd = np.union1d(slots[previous != expected], slots[newest[stored != numbers[newest]]])
        found: Mask = np.isin(slots, odd)
        at = stored[np.isin(slots[newest], odd)]
        while len(at):
            at = at[(at > 0) & (at <= len(items))]
            found[at - 1] = False
            after = previous[at - 1]
            at = after[after < at]  # a chain leads to older items only; others are a loop
        return found

    def items_at_end(self, physical_offset: int) -> int:
        """Return how many of its newest items are of the record at this offset; looks at no others."""
        with self._storage.open(self.path) as file:
            items = self._newest_items(file, self.n_items)
            count = 0
            while count < len(items) and items[-1 - count]["physical_offset"] == physical_offset:
                count += 1
            return count

    @property
    def end_phy_offset(self) -> int:
        """Physical offset of the last record that is indexed."""
        return int(self.header["end_phy_offset"])

    @property
    def end_timestamp(self) -> int:
        """Its store time, ms."""
        return int(self.header["end_timestamp"])

    def put(self, keys: IndexKeys) -> None:
        """Add keys, no more than there is room for.

        Written so that a cut anywhere leaves every key findable that was: first the items, which nothing points at,
        then the count, for a slot beyond it hides its chain, then the slots, and the header's end last.

        Source: IndexFile.java#putKey.
        """
        n, count = len(keys), int(self.header["index_count"])
        if not n:
            return
        slots = keys.hashes % self._sizes.n_slots
        numbers = np.arange(count, count + n, dtype=np.int32)
        # By slot, then in the order given: sorting both in one number is several times as fast as a stable argsort.
        both = np.sort(slots.astype(np.int64) << 32 | np.arange(n))
        order, by_slot = both & 0xFFFFFFFF, (both >> 32).astype(np.int32)
        is_first = np.append(True, by_slot[1:] != by_slot[:-1])
        is_last = np.append(is_first[1:], True)
        present = self._present_slots(by_slot[is_first])
        present = np.where((present <= 0) | (present > count), 0, present)
        previous = np.empty(n, np.int32)
        previous[order[1:]] = numbers[order[:-1]]
        previous[order[is_first]] = present

        items = np.zeros(n, INDEX_ITEM)
        items["key_hash"], items["physical_offset"] = keys.hashes, keys.physical_offsets
        items["seconds"] = self._seconds(keys.store_timestamps)
        items["previous"] = previous
        header = self.header.copy()
        if count <= 1:
            header["begin_phy_offset"], header["begin_timestamp"] = keys.physical_offsets[0], keys.store_timestamps[0]
        header["hash_slot_count"] += int((present == 0).sum())
        header["index_count"] = count + n
        items_at = self._items_at + count * INDEX_ITEM.itemsize
        self._disk.reserve(self.path, items_at, items.nbytes)
        self._disk.write(self.path, items_at, items)
        self._disk.flush(self.path)
        self._disk.write(self.path, 0, header.tobytes())
        self._disk.flush(self.path)
        self._write_slots(by_slot[is_last], numbers[order][is_last])
        self._disk.flush(self.path)
        header["end_phy_offset"], header["end_timestamp"] = keys.physical_offsets[-1], keys.store_timestamps[-1]
        self._disk.write(self.path, 0, header.tobytes())
        self.header = header

    def _seconds(self, store_timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        begin = int(self.header["begin_timestamp"])
        if self.n_items:
            return _seconds_since(begin, store_timestamps)
        seconds = _seconds_since(int(store_timestamps[0]), store_timestamps)
        seconds[:1] = _seconds_since(begin, store_timestamps[:1])  # it still sees what the file before left here
        return seconds

    def _present_slots(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        if not self.n_items:  # a new file: all are zero, and reading them would only fetch them
            return np.zeros(len(slots), np.int32)
        with self._storage.open(self.path) as file:
            return self._slots(file, 0, self._sizes.n_slots)[slots].astype(np.int32)

    def _write_slots(self, slots: NDArray[np.int32], numbers: NDArray[np.int32]) -> None:
        """Set slots, which rise: one by one where they are few, else all between the first and the last at once."""
        values = numbers.astype(INDEX_SLOT)
        if len(slots) <= _SLOTS_ONE_BY_ONE:
            for row, slot in enumerate(slots.tolist()):
                self._disk.write(self.path, self._slots_at + slot * INDEX_SLOT.itemsize, values[row : row + 1])
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
    """Return whole seconds from ``begin`` on, (n,) as times (ms); 0 for earlier ones, and where nothing began yet."""
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    found: NDArray[np.int64] = np.maximum(timestamps - begin, 0) // 1000
    return np.minimum(found, _MAX_DIFF_SECONDS, out=found)
