"""The index by key: 40 bytes of header, hash slots, and items chained from newest to oldest.

No file holds the number of slots and of items that all files have room for, so these are worked out
from the content.

Source: IndexFile.java, IndexHeader.java, IndexService.java.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptIndexError, StoreStateError, UnreadableFileError
from rmqstore.format.columns.buffers import windows
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Bytes, Mask
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, StoredFile

_SIZES_AT_ONCE = 1 << 18
_MAX_TRIED = 1000  # pairs of sizes whose chains are checked

_MAX_NAME = (1 << 63) - 1


class IndexSizes(NamedTuple):
    """Number of slots of a file, and number of items that fit; the first item is never used."""

    n_slots: int
    n_items: int

    @classmethod
    def of(cls, config: StoreConfig) -> IndexSizes:
        """Return the sizes of the files of a broker with this configuration."""
        return cls(config.max_hash_slot_num, config.max_index_num)

    @property
    def file_size(self) -> int:
        """Bytes of a file."""
        slots_size = self.n_slots * INDEX_SLOT.itemsize
        items_size = self.n_items * INDEX_ITEM.itemsize
        return INDEX_HEADER.itemsize + slots_size + items_size


def find_sizes(path: Path, guess: IndexSizes, storage: Storage = LOCAL) -> IndexSizes:
    """Work out the numbers of slots and items of an index file from its length and content.

    An example: a file of 440 bytes, whose header says that its first record is at 1000. Of the
    numbers of slots that fit this length, see :func:`_slot_counts`, only 10 leads to an item of
    that record::

        slots   first item at byte   content at that byte
            5   40 +  20 + 20 =  80  zeros: with 10 slots this is the item that is never used
           10   40 +  40 + 20 = 100  hash 3, record at 1000; the slot of the hash is in use
           15   40 +  60 + 20 = 120  hash 13, record at 1300: the second item
          ...
        result  10 slots, 18 items

    Args:
        path: the index file.
        guess: returned if it fits the length, as RocketMQ's defaults nearly always do.
        storage: the storage to read the file from.

    Raises:
        StoreStateError: no numbers fit what the file holds, or several do.
        UnreadableFileError: it is not a regular file.
    """
    length = storage.size(path)
    if length == guess.file_size:
        return guess
    with storage.open(path) as file:
        data = file.read(0, file.size)
        matches: list[IndexSizes] = []
        for candidates in _possible_sizes(data):
            matches = candidates
            if len(candidates) <= _MAX_TRIED:
                matches = [sizes for sizes in candidates if _fits(data, sizes)]
            if matches:
                break
    if len(matches) != 1:
        raise StoreStateError(
            f"{path}: {len(matches)} pairs of maxHashSlotNum and maxIndexNum "
            f"fit its {length} bytes; give those of the broker's configuration"
        )
    return matches[0]


def find_sizes_in_any(files: list[Path], guess: IndexSizes, storage: Storage = LOCAL) -> IndexSizes:
    """Return :func:`find_sizes` of the first file that is intact enough.

    Only files of the most frequent length are tried, because all files of a store have one length.

    Raises:
        StoreStateError: no file is intact enough; the error is that of the first.
    """
    refused: StoreStateError | None = None
    lengths: dict[Path, int] = {}
    for path in files:
        try:
            lengths[path] = storage.size(path)
        except (FileNotFoundError, UnreadableFileError) as err:
            refused = refused or StoreStateError(str(err))
    usual = Counter(lengths.values()).most_common(1)
    for path in (path for path, length in lengths.items() if length == usual[0][0]):
        try:
            return find_sizes(path, guess, storage)
        except StoreStateError as err:
            refused = refused or err
        except (FileNotFoundError, UnreadableFileError) as err:
            refused = refused or StoreStateError(str(err))
    raise refused or StoreStateError("there is no index file to find the sizes from")


def _slot_counts(length: int) -> range:
    """Return the numbers of slots after which two or more whole items fill a file of a length.

    An item is as long as five slots. For a file of 440 bytes, of which 40 are the header::

        slots   5   10   15  ...  90   # 4 bytes each
        items  19   18   17  ...   2   # 20 bytes each
    """
    slot, item = INDEX_SLOT.itemsize, INDEX_ITEM.itemsize
    room = length - INDEX_HEADER.itemsize
    step = item // slot
    for smallest in range(1, step + 1):
        if (room - smallest * slot) % item == 0:
            return range(smallest, (room - 2 * item) // slot + 1, step)
    return range(0)


def _possible_sizes(data: Bytes) -> tuple[list[IndexSizes], list[IndexSizes]]:
    """Return sizes that fit the length of a file, its header and its first item.

    The first list has only sizes that also fit the last item that the header refers to. The second
    has all of them, because a crash during a put may have left another last item. A list with more
    sizes than can be tried is cut short.
    """
    counts = _slot_counts(len(data))
    by_both: list[int] = []
    by_first: list[int] = []
    for low in range(0, len(counts), _SIZES_AT_ONCE):
        block = counts[low : low + _SIZES_AT_ONCE]
        n_slots = np.arange(block.start, block.stop, block.step)
        likely = n_slots[_know_their_first_item(data, n_slots)]
        by_both += likely[_know_their_last_item(data, likely)].tolist()
        by_first += likely[: _MAX_TRIED + 1 - len(by_first)].tolist()
        if len(by_both) > _MAX_TRIED:
            break
    return _with_items(by_both, len(data)), _with_items(by_first, len(data))


def _with_items(slot_counts: list[int], length: int) -> list[IndexSizes]:
    """Return sizes with these numbers of slots, and with items that fill the rest of the length."""
    room = length - INDEX_HEADER.itemsize
    return [
        IndexSizes(count, (room - count * INDEX_SLOT.itemsize) // INDEX_ITEM.itemsize)
        for count in slot_counts
    ]


def _know_their_first_item(data: Bytes, n_slots: NDArray[np.int64]) -> Mask:
    """Return a mask of the numbers of slots for which the first item fits header and slots.

    The item has to be of the header's first record, and its slot in use.
    """
    first_record = data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]["begin_phy_offset"]
    field, field_at = INDEX_ITEM.fields["physical_offset"][:2]  # type: ignore[index]
    items = INDEX_HEADER.itemsize + n_slots * INDEX_SLOT.itemsize + INDEX_ITEM.itemsize
    hashes = windows(data, INDEX_SLOT.itemsize)[items].view(INDEX_SLOT).astype(np.int64)
    slots = INDEX_HEADER.itemsize + np.maximum(hashes, 0) % n_slots * INDEX_SLOT.itemsize
    is_slot_used = windows(data, INDEX_SLOT.itemsize)[slots].view(INDEX_SLOT) != 0
    is_first_record = windows(data, field.itemsize)[items + field_at].view(field) == first_record
    # Without this check, bytes that were never written would fit a first record at offset 0.
    is_written = hashes != 0
    known: Mask = is_slot_used & is_first_record & is_written
    return known


def _know_their_last_item(data: Bytes, n_slots: NDArray[np.int64]) -> Mask:
    """Return a mask of the numbers of slots for which the last item is of the last record.

    The header says how many items there are, and which record is the last.
    """
    header = data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]
    field, field_at = INDEX_ITEM.fields["physical_offset"][:2]  # type: ignore[index]
    n_before = max(int(header["index_count"]) - 1, 0)
    items = INDEX_HEADER.itemsize + n_slots * INDEX_SLOT.itemsize + n_before * INDEX_ITEM.itemsize
    known: Mask = items <= len(data) - INDEX_ITEM.itemsize
    stored = windows(data, field.itemsize)[items[known] + field_at].view(field)
    known[known] = stored == header["end_phy_offset"]
    return known


def _fits(data: Bytes, sizes: IndexSizes) -> bool:
    """Return whether a file read with these sizes is an index; its newest slots may be missing.

    The unused first item is all zeros, slots point at items that belong to them, and items point at
    older items of their slot.
    """
    header = data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]
    count = int(header["index_count"])
    items_at = INDEX_HEADER.itemsize + sizes.n_slots * INDEX_SLOT.itemsize
    if not 1 < count <= sizes.n_items:
        return False
    items = data[items_at : items_at + count * INDEX_ITEM.itemsize].view(INDEX_ITEM)
    if data[items_at : items_at + INDEX_ITEM.itemsize].any():
        return False
    if items[1]["physical_offset"] != header["begin_phy_offset"]:
        return False
    item_slots = items["key_hash"].astype(np.int64) % sizes.n_slots
    previous = items["previous"].astype(np.int64)
    numbers = np.arange(count)
    if (items["key_hash"] < 0).any() or (previous < 0).any() or (previous[1:] >= numbers[1:]).any():
        return False
    linked = np.flatnonzero(previous)
    if (item_slots[linked] != item_slots[previous[linked]]).any():
        return False
    slots = data[INDEX_HEADER.itemsize : items_at].view(INDEX_SLOT).astype(np.int64)
    used = np.flatnonzero(slots)
    newest = slots[used]
    if not len(used) or not ((newest > 0) & (newest < count)).all():
        return False
    return bool((item_slots[newest] == used).all())


def index_files(folder: Path, storage: Storage = LOCAL) -> list[Path]:
    """Return the index files, oldest first: all files whose name is a Java long.

    Raises:
        UnreadableFileError: the folder is not a folder.
    """
    files = (entry for entry in storage.list_folder(folder) if not entry.is_folder)
    return sorted(folder / file.name for file in files if is_name(file.name))


def is_name(name: str) -> bool:
    """Return whether RocketMQ loads a file of this name. Source: DefaultMappedFile.java#init."""
    return name.isascii() and name.isdigit() and int(name) <= _MAX_NAME


def read_header(path: Path, storage: Storage = LOCAL) -> np.void:
    """Return the header of an index file, INDEX_HEADER; what a short file lacks is zero."""
    stored = np.zeros(INDEX_HEADER.itemsize, np.uint8)
    with storage.open(path) as file:
        file.read_into(stored, 0)
    header: np.void = stored.view(INDEX_HEADER)[0]
    return header


def was_ended(path: Path) -> bool:
    """Return whether a put to the file was ever completed: it writes the end time last."""
    return bool(read_header(path)["end_timestamp"])


class IndexFile:
    """One file, read-only: its header, as it was when the file was opened, and its items.

    Args:
        path: the file to read.
        sizes: numbers of slots and items that the file was created with.
        storage: the storage to read the file from.

    Raises:
        CorruptIndexError: its length does not fit the sizes, or its header counts too many items.
    """

    def __init__(self, path: Path, sizes: IndexSizes, storage: Storage = LOCAL) -> None:
        self.path = path
        self._sizes = sizes
        self._storage = storage
        self._slots_at = INDEX_HEADER.itemsize
        self._items_at = self._slots_at + sizes.n_slots * INDEX_SLOT.itemsize
        with storage.open(path) as file:
            if file.size != sizes.file_size:
                expected = f"{sizes.file_size} are expected for {sizes.n_slots} slots"
                raise CorruptIndexError(str(path), 0, f"{file.size} bytes, {expected}")
            self.header = file.read(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0].copy()
        self.header["index_count"] = max(self.header["index_count"], 1)
        count = self.header["index_count"]
        if count > sizes.n_items:
            raise CorruptIndexError(str(path), 36, f"{count} items, {sizes.n_items} fit")

    @property
    def n_items(self) -> int:
        """Number of keys that the file holds."""
        return int(self.header["index_count"]) - 1

    def items(self, newest: int | None = None) -> NDArray[np.void]:
        """Return the items in the order they were put, INDEX_ITEM (n,).

        Args:
            newest: how many of the newest ones, at most; all items if None.
        """
        count = self.n_items if newest is None else min(newest, self.n_items)
        with self._storage.open(self.path) as file:
            return self._newest_items(file, count).copy()

    def _newest_items(self, file: StoredFile, count: int) -> NDArray[np.void]:
        """Return the newest ``count`` items, INDEX_ITEM (count,)."""
        first = self.n_items + 1 - count  # the item with number 0 is never used
        width = INDEX_ITEM.itemsize
        return file.read(self._items_at + first * width, count * width).view(INDEX_ITEM)

    def _slots(self, file: StoredFile, low: int, high: int) -> NDArray[Any]:
        """Return slots by number, INDEX_SLOT (n,)."""
        width = INDEX_SLOT.itemsize
        return file.read(self._slots_at + low * width, (high - low) * width).view(INDEX_SLOT)

    def hidden(self, items: NDArray[np.void]) -> Mask:
        """Return a mask (n,) of the items that no search finds, because no chain leads to them.

        Args:
            items: all items of this file, see :meth:`items`.
        """
        hashes = items["key_hash"].astype(np.int64)
        slots = np.where(hashes >= 0, hashes, 0) % self._sizes.n_slots
        previous = items["previous"].astype(np.int64)
        order = np.argsort(slots, kind="stable")
        numbers = np.arange(1, len(slots) + 1)
        expected = np.zeros(len(slots), np.int64)
        is_same = slots[order[1:]] == slots[order[:-1]]
        expected[order[1:][is_same]] = numbers[order[:-1][is_same]]
        is_newest = np.append(~is_same, True) if len(slots) else np.empty(0, np.bool_)
        newest = order[is_newest]
        with self._storage.open(self.path) as file:
            stored = self._slots(file, 0, self._sizes.n_slots)[slots[newest]].astype(np.int64)
        # In a valid file each slot leads to its newest item, and each item to the one before it in
        # its slot. Only the chains of other slots have to be followed.
        odd = np.union1d(slots[previous != expected], slots[newest[stored != numbers[newest]]])
        is_hidden: Mask = np.isin(slots, odd)
        chained = stored[np.isin(slots[newest], odd)]  # numbers of one item for each chain
        while len(chained):
            chained = chained[(chained > 0) & (chained <= len(items))]
            is_hidden[chained - 1] = False
            following = previous[chained - 1]
            # A valid item leads to an older one. Any other would make a loop.
            chained = following[following < chained]
        return is_hidden

    def items_at_end(self, physical_offset: int) -> int:
        """Return how many of the newest items are of the record at this offset."""
        with self._storage.open(self.path) as file:
            items = self._newest_items(file, self.n_items)
            count = 0
            while count < len(items) and items[-1 - count]["physical_offset"] == physical_offset:
                count += 1
            return count

    @property
    def end_phy_offset(self) -> int:
        """Physical offset of the last indexed record."""
        return int(self.header["end_phy_offset"])

    @property
    def end_timestamp(self) -> int:
        """Store time of the last indexed record, ms."""
        return int(self.header["end_timestamp"])
