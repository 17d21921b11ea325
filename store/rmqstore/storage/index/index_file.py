"""The index by key: 40 bytes of header, hash slots, and items chained from newest to oldest.

Source: IndexFile.java, IndexHeader.java, IndexService.java.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptIndexError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Mask
from rmqstore.storage.files.mapped_file import MappedFile
from rmqstore.storage.files.regular import is_folder, list_folder
from rmqstore.storage.index.sizes import IndexSizes

_MAX_NAME = (1 << 63) - 1


def index_files(folder: Path) -> list[Path]:
    """Return the index files, oldest first; a name that is not a number of Java's is not one of theirs.

    Raises:
        UnreadableFileError: the folder is not a folder.
    """
    return sorted(Path(entry.path) for entry in list_folder(folder) if is_name(entry.name) and not is_folder(entry))


def is_name(name: str) -> bool:
    """Tell whether a file is named as RocketMQ loads it. Source: DefaultMappedFile.java#init."""
    return name.isascii() and name.isdigit() and int(name) <= _MAX_NAME


def read_header(path: Path) -> np.void:
    """Return the header of an index file, INDEX_HEADER; what a short file lacks of it is zero."""
    stored = np.zeros(INDEX_HEADER.itemsize, np.uint8)
    with MappedFile(path) as file:
        file.read_into(stored, 0)
    header: np.void = stored.view(INDEX_HEADER)[0]
    return header


def was_ended(path: Path) -> bool:
    """Tell whether a file was ever put to whole: its end time is what a put writes last."""
    return bool(read_header(path)["end_timestamp"])


class IndexFile:
    """One file, read-only: its header, as it was when the file was opened, and its items.

    Args:
        path: of the file.
        sizes: how many slots and items it was made with.

    Raises:
        CorruptIndexError: its length is not that of these sizes, or it says that it holds more items than fit.
    """

    def __init__(self, path: Path, sizes: IndexSizes) -> None:
        self.path, self._sizes = path, sizes
        self._slots_at = INDEX_HEADER.itemsize
        self._items_at = self._slots_at + sizes.n_slots * INDEX_SLOT.itemsize
        with MappedFile(path) as mapped:
            if len(mapped.data) != sizes.file_size:
                reason = f"{len(mapped.data)} bytes, {sizes.file_size} are expected for {sizes.n_slots} slots"
                raise CorruptIndexError(str(path), 0, reason)
            self.header = mapped.data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0].copy()
        self.header["index_count"] = max(self.header["index_count"], 1)
        if self.header["index_count"] > sizes.n_items:
            raise CorruptIndexError(str(path), 36, f"{self.header['index_count']} items, {sizes.n_items} fit")

    @property
    def n_items(self) -> int:
        """How many keys it holds."""
        return int(self.header["index_count"]) - 1

    def items(self) -> NDArray[np.void]:
        """Return the items in the order they were put, INDEX_ITEM (n,)."""
        with MappedFile(self.path) as mapped:
            end = self._items_at + int(self.header["index_count"]) * INDEX_ITEM.itemsize
            return mapped.data[self._items_at + INDEX_ITEM.itemsize : end].view(INDEX_ITEM).copy()

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
        with MappedFile(self.path) as mapped:
            stored = mapped.data[self._slots_at : self._items_at].view(INDEX_SLOT)[slots[newest]].astype(np.int64)
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
        with MappedFile(self.path) as mapped:
            end = self._items_at + (self.n_items + 1) * INDEX_ITEM.itemsize
            items = mapped.data[self._items_at + INDEX_ITEM.itemsize : end].view(INDEX_ITEM)
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
