"""The index by key: 40 bytes of header, hash slots, and items chained from newest to oldest.

Source: IndexFile.java, IndexHeader.java, IndexService.java.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptIndexError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Mask
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, StoredFile
from rmqstore.storage.index.sizes import IndexSizes

_MAX_NAME = (1 << 63) - 1


def index_files(folder: Path, storage: Storage = LOCAL) -> list[Path]:
    """Return the index files, oldest first: all files whose name is a Java long.

    Raises:
        UnreadableFileError: the folder is not a folder.
    """
    files = (entry for entry in storage.list_folder(folder) if not entry.is_folder)
    return sorted(folder / file.name for file in files if is_name(file.name))


def is_name(name: str) -> bool:
    """Tell whether RocketMQ loads a file of this name. Source: DefaultMappedFile.java#init."""
    return name.isascii() and name.isdigit() and int(name) <= _MAX_NAME


def read_header(path: Path, storage: Storage = LOCAL) -> np.void:
    """Return the header of an index file, INDEX_HEADER; what a short file lacks is zero."""
    stored = np.zeros(INDEX_HEADER.itemsize, np.uint8)
    with storage.open(path) as file:
        file.read_into(stored, 0)
    header: np.void = stored.view(INDEX_HEADER)[0]
    return header


def was_ended(path: Path) -> bool:
    """Tell whether a put to the file was ever completed: it writes the end time last."""
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

    def items(self) -> NDArray[np.void]:
        """Return the items in the order they were put, INDEX_ITEM (n,)."""
        with self._storage.open(self.path) as file:
            return self._newest_items(file, self.n_items).copy()

    def newest_items(self, count: int) -> NDArray[np.void]:
        """Return the newest items, at most ``count``, INDEX_ITEM (n,), in the order of puts."""
        with self._storage.open(self.path) as file:
            return self._newest_items(file, min(count, self.n_items)).copy()

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
        # In a sound file each slot leads to its newest item, and each item to the one before it in
        # its slot. Only the chains of other slots have to be followed.
        odd = np.union1d(slots[previous != expected], slots[newest[stored != numbers[newest]]])
        is_hidden: Mask = np.isin(slots, odd)
        chained = stored[np.isin(slots[newest], odd)]  # numbers of one item for each chain
        while len(chained):
            chained = chained[(chained > 0) & (chained <= len(items))]
            is_hidden[chained - 1] = False
            following = previous[chained - 1]
            # A sound item leads to an older one. Any other would make a loop.
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
