"""Look-ups in the index, in files or in RocksDB: from keys to the physical offsets of candidates.

Source: IndexService.java#queryOffset, IndexFile.java#selectPhyOffset; IndexRocksDBStore.java,
IndexRocksDBRecord.java, MessageRocksDBStorage.java. FORMAT.md has the keys in RocksDB.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptDatabaseError,
    NotPermittedError,
    StoreFormatError,
    UnreadableFileError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Mask, Positions
from rmqstore.lazy import cached_property
from rmqstore.spans import FOREVER, LATEST_TIME, Span
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage, StoredFile
from rmqstore.storage.index_files import IndexSizes, find_sizes_in_any, index_files, read_header
from rmqstore.storage.rocksdb import RocksDb, can_read_rocksdb, fingerprint, open_rocksdb

logger = logging.getLogger(__name__)

_MAX_SECONDS = (1 << 31) - 1
_MAX_STEPS = 512  # along a chain; for a longer one all items are read
_ITEMS_AT_ONCE = 1 << 20

INDEX_FAMILY = "default"
_LAST_OFFSET = b"lastOffsetPy"
_HOUR_MS = 3_600_000
# A broker deletes the items of 168 hours together.
_DELETED_MS = 168 * _HOUR_MS
_MAX_HOURS = 1 << 17  # 15 years
_NUMBER = 8  # bytes of an hour, and of a physical offset
_KEYS_PER_SEEK = 4  # that a walk passes in the time of a seek
_SEPARATOR = "@"
_AFTER_SEPARATOR = b"A"
_DATABASES_AT_ONCE = 4


def may_be_stored_within(
    items: NDArray[np.void],
    numbers: Positions,
    begin_timestamp: int,
    begin: Positions | int,
    end: Positions | int,
) -> Mask:
    """Return a mask (n,) of items whose records may have been stored in ``[begin, end]``.

    Items hold whole seconds since the first record of their file. The first item of a file counts
    from another time, and 0 can also mean an earlier time, for instance after a clock was set back.

    Args:
        items: INDEX_ITEM (n,).
        numbers: numbers of the items in their file, (n,).
        begin_timestamp: begin time in the header of the file, ms.
        begin: earliest store time, ms; one for all items or (n,).
        end: latest store time, ms; one for all items or (n,).
    """
    seconds = items["seconds"].astype(np.int64)
    stored = begin_timestamp + seconds * 1000
    is_vague = (seconds <= 0) | (seconds == _MAX_SECONDS) | (numbers == 1)
    may_match: Mask = is_vague | ((stored > np.subtract(begin, 1000)) & (stored <= end))
    return may_match


class _OpenIndexFile:
    """One file, open for a look-up, and not trusted.

    Item numbers are checked against its size, and a chain is followed only to older items.
    """

    def __init__(self, file: StoredFile, sizes: IndexSizes) -> None:
        header = file.read(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0]
        self._begin_timestamp = int(header["begin_timestamp"])
        self._first_offset = int(header["begin_phy_offset"])
        self._last_offset = int(header["end_phy_offset"])
        self._n_slots = sizes.n_slots
        self._file = file
        self._items_at = INDEX_HEADER.itemsize + sizes.n_slots * INDEX_SLOT.itemsize
        self.end_timestamp = int(header["end_timestamp"])  # ms, when its last record was stored
        # A running broker sets slots before it counts their items, so a slot may lead to an item
        # past the count.
        self._n_items = sizes.n_items
        self.count = min(int(header["index_count"]), sizes.n_items)  # 1 without an item

    def _read(self, numbers: Positions) -> NDArray[np.void]:
        starts = self._items_at + numbers * INDEX_ITEM.itemsize
        self._file.prefetch(starts, INDEX_ITEM.itemsize)
        return self._file.read_each(starts, INDEX_ITEM.itemsize).view(INDEX_ITEM)

    def find(self, hashes: NDArray[np.int64], begin: int, end: int) -> Iterator[Positions]:
        """Yield physical offsets of items with these hashes, in no particular order."""
        slots = INDEX_HEADER.itemsize + hashes % self._n_slots * INDEX_SLOT.itemsize
        self._file.prefetch(slots, INDEX_SLOT.itemsize)
        numbers = self._file.read_each(slots, INDEX_SLOT.itemsize).view(INDEX_SLOT).astype(np.int64)
        for _ in range(_MAX_STEPS):
            inside = (numbers > 0) & (numbers < self._n_items)
            numbers, hashes = numbers[inside], hashes[inside]
            if not len(numbers):
                return
            items = self._read(numbers)
            yield self._chosen(items, numbers, items["key_hash"] == hashes, begin, end)
            previous = items["previous"].astype(np.int64)
            # A valid item leads to an older one. Any other would make a loop.
            numbers = np.where(previous < numbers, previous, 0)
        # To search all items up to those that are left is faster than to follow long chains.
        stop = int(numbers.max()) + 1
        hashes = np.unique(hashes)
        for low in range(1, stop, _ITEMS_AT_ONCE):
            numbers = np.arange(low, min(low + _ITEMS_AT_ONCE, stop))
            stored = np.zeros(len(numbers) * INDEX_ITEM.itemsize, np.uint8)
            self._file.read_into(stored, self._items_at + low * INDEX_ITEM.itemsize)
            items = stored.view(INDEX_ITEM)
            rows = np.flatnonzero(np.isin(items["key_hash"], hashes))
            yield self._chosen(items[rows], numbers[rows], np.ones(len(rows), np.bool_), begin, end)

    def _chosen(
        self, items: NDArray[np.void], numbers: Positions, hits: Mask, begin: int, end: int
    ) -> Positions:
        if begin > 0 or end < LATEST_TIME:
            hits = hits & may_be_stored_within(items, numbers, self._begin_timestamp, begin, end)
        return items["physical_offset"][hits].astype(np.int64)

    def span(self) -> Span | None:
        """Return the range from the first to the last record with keys in the file.

        None if the file is damaged. Header and items both hold these physical offsets. If they
        differ, the range that both cover counts: a running broker sets the header after the item.
        """
        first, last = self._read(np.array([1, self.count - 1]))["physical_offset"].tolist()
        span = Span(max(self._first_offset, first), min(self._last_offset, last))
        return span if 0 <= span.start <= span.end else None


class IndexSearch:
    """The index files of one store, opened for each look-up: a broker creates and deletes them.

    Args:
        folder: the folder that holds the files.
        sizes: sizes in the broker's configuration; if they do not fit, the files show their own.
        storage: the storage to read the files from.
    """

    def __init__(self, folder: Path, sizes: IndexSizes, storage: Storage = LOCAL) -> None:
        self.folder = folder
        self._sizes = sizes
        self._storage = storage

    def _each(self) -> Iterator[_OpenIndexFile]:
        """Yield the files that hold items, oldest first, one open at a time.

        A file of another length is skipped with a warning.
        """
        min_length = INDEX_HEADER.itemsize + 1
        lengths = {path: length for path, length in self._lengths() if length >= min_length}
        if self._sizes.file_size not in lengths.values():
            filled = []
            for path in lengths:
                try:
                    count = int(read_header(path, self._storage)["index_count"])
                except FileNotFoundError:
                    continue
                if count > 1:
                    filled.append(path)
            if not filled:
                return
            self._sizes = find_sizes_in_any(filled, self._sizes, self._storage)
        for path, length in lengths.items():
            if length != self._sizes.file_size:
                logger.warning(
                    "%s has %d bytes, %d are expected of an index file: it is passed over",
                    path, length, self._sizes.file_size,
                )  # fmt: skip
                continue
            try:
                with self._storage.open(path, scattered=True) as file:
                    opened = _OpenIndexFile(file, self._sizes)
                    if opened.count > 1:
                        yield opened
            except FileNotFoundError:
                continue  # deleted together with its records

    def has_files(self) -> bool:
        """Return whether there are index files, whatever they hold."""
        return bool(index_files(self.folder, self._storage))

    def find(self, hashes: NDArray[np.int32], begin: int = 0, end: int = FOREVER) -> Positions:
        """Return the physical offsets of candidate records, rising and distinct.

        A candidate may have a key with one of these hashes, perhaps another key than the one that
        is looked for. Every item that a chain leads to is included.

        Args:
            hashes: int32 (k,), see ``dispatch_requests.key_hashes``; never negative.
            begin: earliest store time, ms.
            end: latest store time, ms, included.

        Raises:
            StoreStateError: no numbers of slots and items fit the files.
        """
        distinct = np.unique(hashes).astype(np.int64)
        begin, end = max(begin, 0), min(end, FOREVER)
        parts = [offsets for file in self._each() for offsets in file.find(distinct, begin, end)]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def spans(self, flushed_until: int = FOREVER) -> list[Span]:
        """Return the range of the log whose keys each file holds, sorted.

        Args:
            flushed_until: files with records that were stored later are left out, ms.
        """
        spans = [file.span() for file in self._each() if file.end_timestamp <= flushed_until]
        return sorted(span for span in spans if span is not None)

    def _lengths(self) -> Iterator[tuple[Path, int]]:
        for path in index_files(self.folder, self._storage):
            try:
                yield path, self._storage.size(path)
            except FileNotFoundError:
                continue
            except UnreadableFileError as err:
                logger.warning("%s: it is passed over", err)


class ItemKind(StrEnum):
    """What an item is of. Source: MessageConst.java#INDEX_KEY_TYPE, #INDEX_UNIQUE_TYPE."""

    KEY = "K"
    TAGS = "T"
    UNIQUE_KEY = "U"


def item_prefix(topic: str, kind: ItemKind, name: str) -> bytes:
    """Return what the keys of all items of a name have after the hour."""
    text = _SEPARATOR.join(("", topic, kind, name, ""))
    return text.encode("utf-8", "surrogateescape")


def has_database_entries(paths: StorePaths) -> bool:
    """Return whether the database of a store has entries; every broker from 5.4 on makes one.

    Raises:
        UnreadableFileError: one of its files is not a regular file.
    """
    files = fingerprint(paths.rocksdb_store, paths.storage)
    return any(size and name.endswith((".sst", ".log")) for name, size, _ in files)


def may_have_index_table(paths: StorePaths) -> bool:
    """Return whether a store has an index in RocksDB, or a database that does not say.

    Raises:
        NotPermittedError: a file may not be read by this user.
    """
    try:
        if not can_read_rocksdb():
            return has_database_entries(paths)
        return IndexTable.of(paths) is not None
    except NotPermittedError:
        raise
    except (StoreFormatError, UnsupportedFeatureError):
        return True


class IndexTable:
    """The index in one database, as of the moment it was opened.

    Only records with a UNIQ_KEY have items. The time in an item's key is the hour in which its
    record was stored, by the clock of the broker's time zone.

    Attributes:
        last_offset: physical offset of the last record whose items are surely in the table; -1
            without one.

    Raises:
        CorruptDatabaseError: a block of the database is damaged.
    """

    def __init__(self, database: RocksDb) -> None:
        self._database = database
        stored = database.get(INDEX_FAMILY, _LAST_OFFSET) or b""
        self.last_offset = int.from_bytes(stored, signed=True) if len(stored) == _NUMBER else -1

    @classmethod
    def of(cls, paths: StorePaths) -> IndexTable | None:
        """Return the index that a store has in RocksDB now.

        None without one, and without the library that reads it.

        Raises:
            CorruptDatabaseError: the database cannot be opened.
            UnreadableFileError: one of its files is not a regular file.
            UnsupportedFeatureError: the database is too large.
        """
        if not can_read_rocksdb() or not has_database_entries(paths):
            return None
        table = _table_in(open_rocksdb(paths.rocksdb_store, paths.storage))
        return table if len(table.hours) else None

    @cached_property
    def hours(self) -> NDArray[np.int64]:
        """The hours of the items, ms, rising; perhaps some of other keys too.

        Raises:
            CorruptDatabaseError: there are more than a broker writes.
        """
        hours: list[int] = []
        start = 1
        while start <= LATEST_TIME:
            stop = (LATEST_TIME + 1).to_bytes(_NUMBER)
            key = self._database.first_key(INDEX_FAMILY, start.to_bytes(_NUMBER), stop)
            if key is None:
                break
            hour = int.from_bytes(key[:_NUMBER].ljust(_NUMBER, b"\0"))
            hours.append(hour)
            if len(hours) > _MAX_HOURS:
                path = str(self._database.folder)
                raise CorruptDatabaseError(path, f"its index has more than {_MAX_HOURS} hours")
            start = hour + 1
        return np.array(hours, np.int64)

    def find(self, prefixes: Collection[bytes], begin: int = 0, end: int = FOREVER) -> Positions:
        """Return the physical offsets of candidate records, rising and distinct.

        Args:
            prefixes: of the wanted items, from :func:`item_prefix`.
            begin: earliest store time, ms.
            end: latest store time, ms, included.

        Raises:
            CorruptDatabaseError: a block of the database is damaged.
        """
        hours = self.hours[(self.hours > begin - _HOUR_MS) & (self.hours <= end)].tolist()
        if not hours or not prefixes:
            return np.empty(0, np.int64)
        if len(hours) * len(prefixes) * _KEYS_PER_SEEK > self._database.n_entries:
            keys = self._among_all(hours[0], hours[-1], frozenset(prefixes))
        else:
            keys = self._of_each(hours, prefixes)
        joined = b"".join(key[-_NUMBER:] for key in keys)
        return np.unique(np.frombuffer(joined, ">i8")).astype(np.int64)

    def _of_each(self, hours: list[int], prefixes: Collection[bytes]) -> Iterator[bytes]:
        for hour in hours:
            for prefix in prefixes:
                start = hour.to_bytes(_NUMBER) + prefix
                for key in self._database.keys(INDEX_FAMILY, start, start[:-1] + _AFTER_SEPARATOR):
                    if len(key) >= len(start) + _NUMBER:
                        yield key

    def _among_all(self, first: int, last: int, prefixes: frozenset[bytes]) -> Iterator[bytes]:
        """Yield the keys with one of many prefixes by a walk over all keys of these hours."""
        lengths = sorted({len(prefix) for prefix in prefixes})
        start, stop = first.to_bytes(_NUMBER), (last + 1).to_bytes(_NUMBER)
        for key in self._database.keys(INDEX_FAMILY, start, stop):
            if len(key) < 2 * _NUMBER:
                continue
            names = key[_NUMBER:-_NUMBER]
            if any(names[:length] in prefixes for length in lengths):
                yield key

    def hour_of(
        self, topic: str, uniq_key: str, physical_offset: int, store_timestamp: int
    ) -> int | None:
        """Return the hour of the item of a record's UNIQ_KEY, None if it has none.

        Raises:
            CorruptDatabaseError: a block of the database is damaged.
        """
        names = item_prefix(topic, ItemKind.UNIQUE_KEY, uniq_key)
        names += physical_offset.to_bytes(_NUMBER)
        is_near = (self.hours > store_timestamp - _HOUR_MS) & (self.hours <= store_timestamp)
        for hour in self.hours[is_near].tolist():
            if self._database.get(INDEX_FAMILY, hour.to_bytes(_NUMBER) + names) is not None:
                return int(hour)
        return None

    def may_lack_hours(self, hours: tuple[int, int]) -> bool:
        """Return whether items between two hours may have been deleted.

        A broker deletes those of a week before its oldest file of the log was made, which in a
        restored store is a later time than that of the records.

        Source: IndexRocksDBStore.java#deleteExpiredIndex.
        """
        within = self.hours[(self.hours >= min(hours)) & (self.hours <= max(hours))]
        return bool((np.diff(within) >= _DELETED_MS).any())


_table_in = lru_cache(maxsize=_DATABASES_AT_ONCE)(IndexTable)
