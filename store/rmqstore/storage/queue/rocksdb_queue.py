"""One queue whose units lie in RocksDB, read-only.

Source: RocksDBConsumeQueueTable.java, RocksDBConsumeQueueOffsetTable.java. FORMAT.md has the keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptDatabaseError, CorruptQueueError
from rmqstore.format.layout import ROCKSDB_UNIT
from rmqstore.lazy import cached_property
from rmqstore.spans import QueueKey
from rmqstore.storage.files.paths import MAX_OFFSET, MAX_QUEUE_ID, StorePaths
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.queue.queue import (
    Units,
    count_existing,
    cut_at,
    first_existing,
    weights_of,
)
from rmqstore.storage.rocksdb import RocksDb, open_rocksdb, require_rocksdb

_UNITS, _OFFSETS = "default", "offset"
_SEPARATOR = b"\1"
_CHECKPOINT = "CHECKPOINT_TOPIC"
_MAX_TOPIC_BYTES = 32767
_DATABASES_AT_ONCE = 16
_END = b"\xff" * 8  # after every key, for topics have fewer bytes


class QueueBounds(NamedTuple):
    """What family ``offset`` says of a queue."""

    first: int  # 0 where the broker never corrected it
    last: int  # queue offset of the last unit
    last_physical_offset: int  # of its record


class RocksDbQueues:
    """The queues in one database, as of the moment it was opened.

    Attributes:
        path: the folder of the database.
        bounds: of each queue.
        checkpoint: physical offset after the last record that is in its queues; records after it
            may be in none, because a broker flushes queues late.

    Raises:
        CorruptDatabaseError: the database cannot be opened, or it is not one of queues.
        UnsupportedFeatureError: the library is not installed.
    """

    def __init__(self, database: RocksDb) -> None:
        self._database = database
        self.path = str(database.folder)
        if not (database.has_family(_UNITS) and database.has_family(_OFFSETS)):
            raise CorruptDatabaseError(self.path, "it has no families of queues")
        self.n_entries = database.n_entries
        self.checkpoint = 0
        self.bounds: dict[QueueKey, QueueBounds] = {}
        self._queue_ids: dict[str, list[int]] = {}
        lasts: dict[QueueKey, tuple[int, int]] = {}
        firsts: dict[QueueKey, int] = {}
        for key, value in database.items(_OFFSETS, b"", _END):
            parsed = _parse(key)
            if parsed is None or len(value) < 8:
                continue
            topic, queue_id, is_last = parsed
            if topic == _CHECKPOINT:
                self.checkpoint = int.from_bytes(value[:8], signed=True)
            elif len(value) == 16:
                physical_offset, queue_offset = struct.unpack(">qq", value)
                if is_last:
                    lasts[topic, queue_id] = queue_offset, physical_offset
                else:
                    firsts[topic, queue_id] = queue_offset
        for queue, (last, physical_offset) in lasts.items():
            if 0 <= last < MAX_OFFSET:
                first = firsts.get(queue, 0)
                self.bounds[queue] = QueueBounds(
                    first if 0 <= first <= last else 0, last, physical_offset
                )
                self._queue_ids.setdefault(queue[0], []).append(queue[1])

    @classmethod
    def of(cls, paths: StorePaths, known: RocksDbQueues | None = None) -> RocksDbQueues | None:
        """Return the queues that a store has in RocksDB now, None without such a database.

        Args:
            paths: the files of the store.
            known: what was returned before, which is returned again if the database is the same.

        Raises:
            CorruptDatabaseError: the database cannot be opened, or it is not one of queues.
            UnsupportedFeatureError: the library is not installed, or the database is too large.
        """
        folder = paths.rocksdb_queues
        if folder is None:
            return None
        require_rocksdb(folder)
        if known is not None and known.is_current(paths.storage):
            return known
        return _queues_in(open_rocksdb(folder, paths.storage, (_OFFSETS,)))

    def is_current(self, storage: Storage) -> bool:
        """Return whether the database has not changed since it was opened; ``storage`` has it."""
        return self._database.is_current(storage)

    def topics(self) -> set[str]:
        """Return the topics that have queues."""
        return set(self._queue_ids)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the queues of a topic, sorted."""
        return sorted(self._queue_ids.get(topic, ()))

    def first_unit(self, key: QueueKey, start: int) -> int | None:
        """Return the queue offset of the first unit from ``start`` on, None without one."""
        stop = _unit_key(key, MAX_OFFSET)
        found = self._database.first_key(_UNITS, _unit_key(key, start), stop)
        return None if found is None else int.from_bytes(found[-8:], signed=True)

    def units(self, key: QueueKey, start: int, end: int) -> NDArray[np.void]:
        """Return the units ``[start, end)``, ROCKSDB_UNIT (n,); zeros where there is none."""
        low, high = _unit_key(key, start), _unit_key(key, end)
        joined = b"".join(self._database.values(_UNITS, low, high))
        if len(joined) == (end - start) * ROCKSDB_UNIT.itemsize:
            return np.frombuffer(joined, ROCKSDB_UNIT)
        units = np.zeros(end - start, ROCKSDB_UNIT)
        for found, value in self._database.items(_UNITS, low, high):
            if len(found) == len(low) and len(value) == ROCKSDB_UNIT.itemsize:
                ordinal = int.from_bytes(found[-8:], signed=True) - start
                units[ordinal] = np.frombuffer(value, ROCKSDB_UNIT)[0]
        return units

    def require_units(self, key: QueueKey, start: int, end: int) -> None:
        """Read the units ``[start, end)``, in which damage may be that no other file shows.

        Raises:
            CorruptDatabaseError: a block with one of them is damaged.
        """
        self._database.require_items(_UNITS, _unit_key(key, start), _unit_key(key, end))

    def units_of(self, key: QueueKey, queue_offsets: NDArray[np.int64]) -> NDArray[np.void]:
        """Return single units, ROCKSDB_UNIT (n,); zeros where there is none."""
        keys = [_unit_key(key, queue_offset) for queue_offset in queue_offsets.tolist()]
        none = bytes(ROCKSDB_UNIT.itemsize)
        values = [
            value if value is not None and len(value) == len(none) else none
            for value in self._database.get_each(_UNITS, keys)
        ]
        return np.frombuffer(b"".join(values), ROCKSDB_UNIT)


_queues_in = lru_cache(maxsize=_DATABASES_AT_ONCE)(RocksDbQueues)


def _unit_key(key: QueueKey, queue_offset: int) -> bytes:
    topic, queue_id = key
    name = topic.encode("utf-8", "surrogateescape")
    prefix = len(name).to_bytes(4) + _SEPARATOR + name + _SEPARATOR
    return prefix + queue_id.to_bytes(4) + _SEPARATOR + queue_offset.to_bytes(8)


def _parse(key: bytes) -> tuple[str, int, bool] | None:
    """Return topic, queue id and whether it is the last offset; None if it is another key."""
    n_bytes = int.from_bytes(key[:4])
    rest = key[5 + n_bytes :]
    is_bound = rest[:1] + rest[4:5] == 2 * _SEPARATOR and rest[1:4] in (b"max", b"min")
    if not (0 < n_bytes <= _MAX_TOPIC_BYTES and len(rest) == 9 and is_bound):
        return None
    queue_id = int.from_bytes(rest[5:])
    try:
        topic = key[5 : 5 + n_bytes].decode()
    except UnicodeDecodeError:
        return None
    return (topic, queue_id, rest[1:4] == b"max") if queue_id <= MAX_QUEUE_ID else None


class RocksDbQueue:
    """One queue of one topic. Source: RocksDBConsumeQueue.java.

    Args:
        database: the queues of the database.
        key: topic and queue id.
    """

    is_batch = False
    is_recovered = False
    end_files = None  # which show where the queue begins and ends

    def __init__(self, database: RocksDbQueues, key: QueueKey) -> None:
        self._database = database
        self._key = key
        self._bounds = database.bounds.get(key)

    @property
    def is_present(self) -> bool:
        """Whether the database has a unit of the queue."""
        return self._bounds is not None

    @property
    def n_full_bytes(self) -> int:
        """The bytes of its units before they are compressed."""
        bounds = self._bounds
        return 0 if bounds is None else (bounds.last - bounds.first) * ROCKSDB_UNIT.itemsize

    @cached_property
    def begin(self) -> int:
        """The first queue offset with a unit; 0 without units.

        The database may still name an earlier one: units of deleted records are dropped when their
        table is compacted.

        Source: RocksDBConsumeQueueOffsetTable.java#getMinCqOffset.
        """
        if self._bounds is None:
            return 0
        found = self._database.first_unit(self._key, self._bounds.first)
        end = self._bounds.last + 1
        return end if found is None else min(found, end)

    def end(self) -> int:
        """Return the queue offset after the last unit.

        Raises:
            CorruptQueueError: the database names a last unit that it cannot have.
        """
        bounds = self._bounds
        if bounds is None:
            return 0
        if bounds.last - self.begin >= self._database.n_entries:
            raise CorruptQueueError(
                self._database.path,
                0,
                f"{self._key[0]}-{self._key[1]} is to end at queue offset {bounds.last}, and the "
                f"database has only {self._database.n_entries} entries",
            )
        return bounds.last + 1

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the part of ``[start, end)`` between the first unit and the last."""
        low, high = max(start, self.begin), min(end, self.end())
        if low < high:
            yield low, high

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if there is none."""
        if queue_offset < 0:
            return 0, 0, 0
        physical_offset, size, tags_code, _ = self._stored(np.array([queue_offset]))[0].item()
        return physical_offset, size, tags_code

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        A unit that is missing between others is one of zeros, as in a file.
        """
        return Units.of(self._database.units(self._key, start, end))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with rising queue offsets; zeros where there is none."""
        return Units.of(self._stored(queue_offsets))

    def _stored(self, queue_offsets: NDArray[np.int64]) -> NDArray[np.void]:
        if self.is_present:
            return self._database.units_of(self._key, queue_offsets)
        return np.zeros(len(queue_offsets), ROCKSDB_UNIT)

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the folder of the database, and the queue offset."""
        return self._database.path, queue_offset

    def refresh(self) -> None:
        """Do nothing: a changed database is opened as another one."""

    def prefetch(self, _queue_offsets: NDArray[np.int64], _count: int) -> None:
        """Do nothing: the database lies on a local disk, or was copied to it."""

    first = first_existing
    cut = cut_at
    weights = weights_of
    count_units = count_existing

    def close(self) -> None:
        """Do nothing: the database is shared by its queues."""
