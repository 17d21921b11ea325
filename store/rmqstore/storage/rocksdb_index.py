"""The index that a broker keeps in RocksDB: which records it proposes for a key.

Source: IndexRocksDBStore.java, IndexRocksDBRecord.java, MessageRocksDBStorage.java. FORMAT.md has
the keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptDatabaseError
from rmqstore.format.layout import Positions
from rmqstore.spans import FOREVER, LATEST_TIME
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.rocksdb import RocksDb, can_read_rocksdb, fingerprint, open_rocksdb

_INDEX = "default"
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


class ItemKind(StrEnum):
    """What an item is of. Source: MessageConst.java#INDEX_KEY_TYPE, #INDEX_UNIQUE_TYPE."""

    KEY = "K"
    TAGS = "T"
    UNIQUE_KEY = "U"


def item_prefix(topic: str, kind: ItemKind, name: str) -> bytes:
    """Return what the keys of all items of a name have after the hour."""
    text = _SEPARATOR.join(("", topic, kind, name, ""))
    return text.encode("utf-8", "surrogateescape")


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
        stored = database.get(_INDEX, _LAST_OFFSET) or b""
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
        folder = paths.rocksdb_store
        if not can_read_rocksdb():
            return None
        files = fingerprint(folder, paths.storage)
        # Every broker from 5.4 on makes a database, which may have no entries.
        if not any(size and name.endswith((".sst", ".log")) for name, size, _ in files):
            return None
        table = _table_in(open_rocksdb(folder, paths.storage))
        return table if len(table.hours) else None

    @cached_property
    def hours(self) -> NDArray[np.int64]:
        """The hours that items are of, ms, rising; perhaps some that only other keys begin with.

        Raises:
            CorruptDatabaseError: there are more than a broker writes.
        """
        hours: list[int] = []
        start = 1
        while start <= LATEST_TIME:
            stop = (LATEST_TIME + 1).to_bytes(_NUMBER)
            key = self._database.first_key(_INDEX, start.to_bytes(_NUMBER), stop)
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
                for key in self._database.keys(_INDEX, start, start[:-1] + _AFTER_SEPARATOR):
                    if len(key) >= len(start) + _NUMBER:
                        yield key

    def _among_all(self, first: int, last: int, prefixes: frozenset[bytes]) -> Iterator[bytes]:
        """Yield the keys with one of many prefixes by a walk over all keys of these hours."""
        lengths = sorted({len(prefix) for prefix in prefixes})
        start, stop = first.to_bytes(_NUMBER), (last + 1).to_bytes(_NUMBER)
        for key in self._database.keys(_INDEX, start, stop):
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
            if self._database.get(_INDEX, hour.to_bytes(_NUMBER) + names) is not None:
                return int(hour)
        return None

    def may_lack_hours(self, hours: tuple[int, int]) -> bool:
        """Tell whether items between two hours may have been deleted.

        A broker deletes those of a week before its oldest file of the log was made, which in a
        restored store is a later time than that of the records.

        Source: IndexRocksDBStore.java#deleteExpiredIndex.
        """
        within = self.hours[(self.hours >= min(hours)) & (self.hours <= max(hours))]
        return bool((np.diff(within) >= _DELETED_MS).any())


_table_in = lru_cache(maxsize=_DATABASES_AT_ONCE)(IndexTable)
