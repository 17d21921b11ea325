"""The sizes of the index files of a store.

No file records them, but its content follows from them.
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
_MAX_TRIED = 1000  # pairs of sizes whose chains are looked at


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
        return (
            INDEX_HEADER.itemsize
            + self.n_slots * INDEX_SLOT.itemsize
            + self.n_items * INDEX_ITEM.itemsize
        )


def find_sizes(path: Path, guess: IndexSizes, storage: Storage = LOCAL) -> IndexSizes:
    """Return the numbers of slots and items that an index file was created with, from its length and content.

    An example: a file of 440 bytes, whose header says that its first record is at 1000. Of the
        numbers of slots that
    fit this length, see :func:`_slot_counts`, only 10 leads to an item of that record::

        slots   first item at byte   what stands there
            5   40 +  20 + 20 =  80  zeros: with 10 slots this is the item that is never used
           10   40 +  40 + 20 = 100  hash 3, record at 1000: the slot of the hash has to be in use,
           and is 15   40 +  60 + 20 = 120  hash 13, record at 1300: the second item
          ...
        found  10 slots, 18 items

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
        found: list[IndexSizes] = []
        for possible in _possible_sizes(data):
            found = (
                [sizes for sizes in possible if _fits(data, sizes)]
                if len(possible) <= _MAX_TRIED
                else possible
            )
            if found:
                break
    if len(found) != 1:
        raise StoreStateError(
            f"{path}: {len(found)} pairs of maxHashSlotNum and maxIndexNum fit its {length} bytes; "
            "give those of the broker's configuration"
        )
    return found[0]


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
    counts = Counter(lengths.values())
    for path in (path for path in lengths if lengths[path] == counts.most_common(1)[0][0]):
        try:
            return find_sizes(path, guess, storage)
        except StoreStateError as err:
            refused = refused or err
        except (FileNotFoundError, UnreadableFileError) as err:
            refused = refused or StoreStateError(str(err))
    raise refused or StoreStateError("there is no index file to find the sizes from")


def _slot_counts(length: int) -> range:
    """Return the numbers of slots that leave room for a whole number of items, at least two, in a file of a length.

    An item is as long as five slots. For a file of 440 bytes, of which 40 are the header::

        slots   5   10   15  ...  90   # 4 bytes each
        items  19   18   17  ...   2   # 20 bytes each
    """
    slot, item = INDEX_SLOT.itemsize, INDEX_ITEM.itemsize
    room = length - INDEX_HEADER.itemsize
    step = item // slot
    smallest = next(
        (count for count in range(1, step + 1) if (room - count * slot) % item == 0), None
    )
    return range(0) if smallest is None else range(smallest, (room - 2 * item) // slot + 1, step)


def _possible_sizes(data: Bytes) -> tuple[list[IndexSizes], list[IndexSizes]]:
    """Return sizes that fit the length of a file and the first item that its header and a slot refer to.

    The first list has those that also fit the last item that the header refers to. The second has
    all, because a crash during a put may have left another last item. The lists have few more sizes
    than can be tried.
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
    """Return sizes with these numbers of slots, whose items fill the rest of a file of a length."""
    room = length - INDEX_HEADER.itemsize
    return [
        IndexSizes(count, (room - count * INDEX_SLOT.itemsize) // INDEX_ITEM.itemsize)
        for count in slot_counts
    ]


def _know_their_first_item(data: Bytes, n_slots: NDArray[np.int64]) -> Mask:
    """Return for which numbers of slots the first item is of the header's first record and its slot is used."""
    first_record = data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]["begin_phy_offset"]
    field, field_at = INDEX_ITEM.fields["physical_offset"][:2]  # type: ignore[index]
    items = INDEX_HEADER.itemsize + n_slots * INDEX_SLOT.itemsize + INDEX_ITEM.itemsize
    hashes = windows(data, INDEX_SLOT.itemsize)[items].view(INDEX_SLOT).astype(np.int64)
    slots = INDEX_HEADER.itemsize + np.maximum(hashes, 0) % n_slots * INDEX_SLOT.itemsize
    is_slot_used = windows(data, INDEX_SLOT.itemsize)[slots].view(INDEX_SLOT) != 0
    is_first_record = windows(data, field.itemsize)[items + field_at].view(field) == first_record
    # any place that was never written would fit where the first record is at offset 0
    is_written = hashes != 0
    known: Mask = is_slot_used & is_first_record & is_written
    return known


def _know_their_last_item(data: Bytes, n_slots: NDArray[np.int64]) -> Mask:
    """Return a mask of the numbers of slots for which the last counted item is of the header's last record."""
    header = data[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]
    offset, at = INDEX_ITEM.fields["physical_offset"][:2]  # type: ignore[index]
    items_before = max(int(header["index_count"]) - 1, 0)
    lasts = (
        INDEX_HEADER.itemsize + n_slots * INDEX_SLOT.itemsize + items_before * INDEX_ITEM.itemsize
    )
    known: Mask = lasts <= len(data) - INDEX_ITEM.itemsize
    known[known] = (
        windows(data, offset.itemsize)[lasts[known] + at].view(offset) == header["end_phy_offset"]
    )
    return known


def _fits(data: Bytes, sizes: IndexSizes) -> bool:
    """Tell whether a file read with these sizes is an index, perhaps one whose newest slots were not written.

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
    own = items["key_hash"].astype(np.int64) % sizes.n_slots
    previous = items["previous"].astype(np.int64)
    numbers = np.arange(count)
    if (items["key_hash"] < 0).any() or (previous < 0).any() or (previous[1:] >= numbers[1:]).any():
        return False
    linked = np.flatnonzero(previous)
    if (own[linked] != own[previous[linked]]).any():
        return False
    slots = data[INDEX_HEADER.itemsize : items_at].view(INDEX_SLOT).astype(np.int64)
    used = np.flatnonzero(slots)
    return bool(
        len(used)
        and ((slots[used] > 0) & (slots[used] < count)).all()
        and (own[slots[used]] == used).all()
    )
