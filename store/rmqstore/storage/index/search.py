"""Look-ups in the index: from hashes of keys to places of the log. What it finds is a guess until the record agrees.

Source: IndexService.java#queryOffset, IndexFile.java#selectPhyOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import UnreadableFileError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Mask, Positions
from rmqstore.spans import FOREVER, LATEST_TIME, Span
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, StoredFile
from rmqstore.storage.index.index_file import index_files, read_header
from rmqstore.storage.index.sizes import IndexSizes, find_sizes_in_any

logger = logging.getLogger(__name__)
_MAX_SECONDS = (1 << 31) - 1
_MAX_STEPS = 512  # of a chain, one item after the other; what is longer is found by reading all items
_ITEMS_AT_ONCE = 1 << 20
_NOWHERE = np.empty(0, np.int64)


def may_be_stored_within(
    items: NDArray[np.void], numbers: Positions, begin_timestamp: int, begin: Positions | int, end: Positions | int
) -> Mask:
    """Return which items may be of records stored from ``begin`` to ``end`` (ms, both included), (n,).

    An item says whole seconds since its file's first record. The first item of a file counts them from another time,
    and zero also stands for "earlier", as after a clock was set back.

    Args:
        items: INDEX_ITEM (n,).
        numbers: which of their file they are, (n,).
        begin_timestamp: what the file's header says, ms.
    """
    seconds = items["seconds"].astype(np.int64)
    stored = begin_timestamp + seconds * 1000
    vague = (seconds <= 0) | (seconds == _MAX_SECONDS) | (numbers == 1)
    found: Mask = vague | ((stored > np.subtract(begin, 1000)) & (stored <= end))
    return found


class _OpenIndexFile:
    """One file, open for a look-up. Nothing in it is trusted: numbers are bounded, and chains only lead back."""

    def __init__(self, file: StoredFile, sizes: IndexSizes) -> None:
        header = file.read(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0]
        self._begin_timestamp = int(header["begin_timestamp"])
        self._first, self._last = int(header["begin_phy_offset"]), int(header["end_phy_offset"])
        self._n_slots = sizes.n_slots
        self._file, self._items_at = file, INDEX_HEADER.itemsize + sizes.n_slots * INDEX_SLOT.itemsize
        self._end_timestamp = int(header["end_timestamp"])
        # A running broker sets slots before it counts their items: what they lead to need not be counted yet.
        self._n_items, self._count = sizes.n_items, min(int(header["index_count"]), sizes.n_items)

    def _read(self, numbers: Positions) -> NDArray[np.void]:
        starts = self._items_at + numbers * INDEX_ITEM.itemsize
        self._file.want(starts, INDEX_ITEM.itemsize)
        return self._file.read_each(starts, INDEX_ITEM.itemsize).view(INDEX_ITEM)

    def find(self, hashes: NDArray[np.int64], begin: int, end: int) -> Iterator[Positions]:
        """Yield physical offsets of items with these hashes, as they come."""
        slots = INDEX_HEADER.itemsize + hashes % self._n_slots * INDEX_SLOT.itemsize
        self._file.want(slots, INDEX_SLOT.itemsize)
        numbers = self._file.read_each(slots, INDEX_SLOT.itemsize).view(INDEX_SLOT).astype(np.int64)
        for _ in range(_MAX_STEPS):
            inside = (numbers > 0) & (numbers < self._n_items)
            numbers, hashes = numbers[inside], hashes[inside]
            if not len(numbers):
                return
            items = self._read(numbers)
            yield self._chosen(items, numbers, items["key_hash"] == hashes, begin, end)
            before = items["previous"].astype(np.int64)
            numbers = np.where(before < numbers, before, 0)  # items lead to older ones; others are a loop
        yield from self._find_among(int(numbers.max()) + 1, np.unique(hashes), begin, end)

    def _find_among(self, stop: int, hashes: NDArray[np.int64], begin: int, end: int) -> Iterator[Positions]:
        """Read all items before one: a chain is followed item by item, and waits for memory at each."""
        for low in range(1, stop, _ITEMS_AT_ONCE):
            numbers = np.arange(low, min(low + _ITEMS_AT_ONCE, stop))
            stored = np.zeros(len(numbers) * INDEX_ITEM.itemsize, np.uint8)
            self._file.read_into(stored, self._items_at + low * INDEX_ITEM.itemsize)
            items = stored.view(INDEX_ITEM)
            rows = np.flatnonzero(np.isin(items["key_hash"], hashes))
            yield self._chosen(items[rows], numbers[rows], np.ones(len(rows), np.bool_), begin, end)

    def _chosen(self, items: NDArray[np.void], numbers: Positions, hits: Mask, begin: int, end: int) -> Positions:
        if begin > 0 or end < LATEST_TIME:
            hits = hits & may_be_stored_within(items, numbers, self._begin_timestamp, begin, end)
        found: Positions = items["physical_offset"][hits].astype(np.int64)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether it says that it holds nothing."""
        return self._count <= 1

    def was_flushed(self, until: int) -> bool:
        """Tell whether all of its records were stored until a time, ms."""
        return self._end_timestamp <= until

    def span(self) -> Span | None:
        """Return the places of the first and the last record that it has keys of; None if it has none, or is damaged.

        Header and items both say them. Where they differ the range that both vouch for counts: a running broker sets
        the header after the item.
        """
        first, last = self._read(np.array([1, self._count - 1]))["physical_offset"].tolist()
        found = Span(max(self._first, first), min(self._last, last))
        return found if 0 <= found.start <= found.end else None


class IndexSearch:
    """The index files of one store, opened for each question: a broker makes and deletes them all the time.

    Args:
        folder: that holds the files.
        sizes: of the broker's configuration; where they do not fit, the files tell.
        storage: what the files are read from.
    """

    def __init__(self, folder: Path, sizes: IndexSizes, storage: Storage = LOCAL) -> None:
        self.folder, self._sizes, self._storage = folder, sizes, storage

    def _each(self) -> Iterator[_OpenIndexFile]:
        """Yield the files that hold something, oldest first, one open at a time; a warning names what is none."""
        lengths = {path: length for path, length in self._lengths() if length > INDEX_HEADER.itemsize}
        if self._sizes.file_size not in lengths.values():
            filled = [path for path in lengths if self._holds_items(path)]
            if not filled:
                return
            self._sizes = find_sizes_in_any(filled, self._sizes, self._storage)
        for path, length in lengths.items():
            if length != self._sizes.file_size:
                logger.warning("%s has %d bytes, %d are expected of an index file: it is passed over",
                               path, length, self._sizes.file_size)  # fmt: skip
                continue
            try:
                with self._storage.open(path, scattered=True) as file:
                    opened = _OpenIndexFile(file, self._sizes)
                    if not opened.is_empty:
                        yield opened
            except FileNotFoundError:
                continue  # deleted, and its records with it

    def find(self, hashes: NDArray[np.int32], begin: int = 0, end: int = FOREVER) -> Positions:
        """Return where records may stand that have a key of one of these hashes, rising, none twice.

        Some may have other keys, of the same hash. None is left out that the chains lead to.

        Args:
            hashes: int32 (k,), see ``dispatch_requests.key_hashes``; never negative.
            begin: records stored from then on, ms.
            end: records stored until then, ms, included.

        Raises:
            StoreStateError: no numbers of slots and items fit the files.
        """
        wanted = np.unique(hashes).astype(np.int64)
        begin, end = max(begin, 0), min(end, FOREVER)
        found = [places for file in self._each() for places in file.find(wanted, begin, end)]
        return np.unique(np.concatenate(found)) if found else _NOWHERE

    def spans(self, flushed_until: int = FOREVER) -> list[Span]:
        """Return the ranges of the log, each by the places of two records, whose keys the files say they hold.

        Args:
            flushed_until: files with records stored later do not count, ms.
        """
        found = [file.span() for file in self._each() if file.was_flushed(flushed_until)]
        return sorted(span for span in found if span is not None)

    def _lengths(self) -> Iterator[tuple[Path, int]]:
        for path in index_files(self.folder, self._storage):
            try:
                yield path, self._storage.size(path)
            except FileNotFoundError:
                continue
            except UnreadableFileError as err:
                logger.warning("%s: it is passed over", err)

    def _holds_items(self, path: Path) -> bool:
        try:
            return int(read_header(path, self._storage)["index_count"]) > 1
        except FileNotFoundError:
            return False
