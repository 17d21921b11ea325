"""One queue whose units lie in RocksDB, read-only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError
from rmqstore.format.layout import ROCKSDB_UNIT
from rmqstore.spans import QueueKey
from rmqstore.storage.queue.bounds import (
    count_existing,
    cut_at,
    first_existing,
    weights_of,
)
from rmqstore.storage.queue.units import Units
from rmqstore.storage.rocksdb.queue_tables import RocksDbQueues


class RocksDbQueue:
    """One queue of one topic. Source: RocksDBConsumeQueue.java.

    Args:
        database: the queues of the database.
        key: topic and queue id.
    """

    is_batch = False
    is_recovered = False

    def __init__(self, database: RocksDbQueues, key: QueueKey) -> None:
        self._database, self._key = database, key
        self._begin: int | None = None

    @property
    def is_present(self) -> bool:
        """Whether the database has a unit of the queue."""
        return self._key in self._database.bounds

    @property
    def end_files(self) -> None:
        """None: where the queue begins and ends is not looked for at the ends of files."""
        return

    @property
    def n_full_bytes(self) -> int:
        """The bytes of its units before they are compressed."""
        bounds = self._database.bounds.get(self._key)
        return 0 if bounds is None else (bounds.last - bounds.first) * ROCKSDB_UNIT.itemsize

    @property
    def begin(self) -> int:
        """The first queue offset with a unit; 0 without units.

        The database may still name an earlier one: units of deleted records are dropped when their
        table is compacted.

        Source: RocksDBConsumeQueueOffsetTable.java#getMinCqOffset.
        """
        if self._begin is None:
            self._begin = self._find_begin()
        return self._begin

    def _find_begin(self) -> int:
        bounds = self._database.bounds.get(self._key)
        if bounds is None:
            return 0
        if self._database.has_unit(self._key, bounds.first):
            return bounds.first
        found = self._database.first_unit(self._key, bounds.first)
        return bounds.last + 1 if found is None else min(found, bounds.last + 1)

    def end(self) -> int:
        """Return the queue offset after the last unit.

        Raises:
            CorruptQueueError: the database names a last unit that it cannot have.
        """
        bounds = self._database.bounds.get(self._key)
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
        """Return the units with some queue offsets, which rise; zeros where there is none."""
        return Units.of(self._stored(queue_offsets))

    def _stored(self, queue_offsets: NDArray[np.int64]) -> NDArray[np.void]:
        if self.is_present:
            return self._database.units_of(self._key, queue_offsets)
        return np.zeros(len(queue_offsets), ROCKSDB_UNIT)

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the folder of the database, and the queue offset."""
        return self._database.path, queue_offset

    def refresh(self) -> None:
        """Keep what was read: a database that has changed is opened as another one."""

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``."""
        return first_existing(self, end, min_physical_offset)

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end."""
        return cut_at(self, start, end, log_end)

    def want(self, _queue_offsets: NDArray[np.int64], _count: int) -> None:
        """Do nothing: the database lies on a local disk, or was copied to it."""

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        Raises as :meth:`units` does.
        """
        return weights_of(self, start, end)

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
        return count_existing(self, start, end, min_physical_offset)

    def close(self) -> None:
        """Do nothing: the database is shared by its queues."""
