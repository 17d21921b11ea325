"""The numbers of slots and items in the index files of a store.

No file holds these sizes, so they are worked out from the content of the files.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError, UnreadableFileError
from rmqstore.format.columns.buffers import windows
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Bytes, Mask
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage

_SIZES_AT_ONCE = 1 << 18
_MAX_TRIED = 1000  # pairs of sizes whose chains are checked


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
    item_counts = [
        (room - count * INDEX_SLOT.itemsize) // INDEX_ITEM.itemsize for count in slot_counts
    ]
    return [IndexSizes(*counts) for counts in zip(slot_counts, item_counts, strict=True)]


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
    """Tell whether a file read with these sizes is an index; its newest slots may be missing.

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
