"""The sources of the queues of a store, and the parts of a queue that each of them has.

A source is the local store, its tiered storage, or the compacted logs of a broker. A broker uploads
each message to tiered storage some time after it has stored it, and deletes its own copy later. So
the two overlap, and agree on queue offsets. A read takes from tiered storage what the local store
no longer has, and all else from the local store, as the broker does.

An example: tiered storage has the queue offsets 0 to 98, and the local store has 74 to 104. Then 0
to 74 are read from tiered storage, and 74 to 104 from the local store.

Source: TieredMessageStore.java, whose default for ``tieredStorageLevel`` is NOT_IN_DISK.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from rmqstore.errors import CorruptQueueError, OffsetOutOfRangeError
from rmqstore.format.layout import Mask, Positions
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, total_weight
from rmqstore.storage.queue.sparse_consumequeue import SparseConsumeQueue

logger = logging.getLogger(__name__)


class QueuePart(NamedTuple):
    """Messages of a queue that lie in one log.

    Attributes:
        log: the log.
        units: the units of the queue that point into it.
        start: the first queue offset that may be read.
        end: queue offset after the last message.
        folder: the folder of the source.
    """

    log: CommitLog
    units: Queue
    start: int
    end: int
    folder: str

    @property
    def first(self) -> int:
        """The queue offset of the first message, which in a compacted queue may lie after start."""
        return self.units.begin if self._is_sparse else self.start

    @property
    def n_bytes(self) -> int:
        """The bytes of the records, as the units say."""
        return total_weight(self.units, self.start, self.end)

    @property
    def _is_sparse(self) -> bool:
        return isinstance(self.units, SparseConsumeQueue)

    def stored_at(self, queue_offset: int) -> int:
        """Return the store time of a message, ms."""
        physical_offset, size, _ = self.units.unit(queue_offset)
        if not physical_offset and not size:
            path, byte = self.units.location(queue_offset)
            raise OffsetOutOfRangeError(f"{path}, byte {byte}: no unit of {queue_offset}")
        return self.log.store_timestamp(physical_offset)

    def times(self, queue_offsets: Positions) -> tuple[Positions, Mask]:
        """Return when messages (n,) were stored, ms, and which times can be read."""
        units = self.units.units_of(queue_offsets)
        times, are_right = self.log.store_timestamps(units.physical_offsets)
        return times, are_right & ((units.sizes > 0) | (units.physical_offsets > 0))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Return the parts of the range whose messages the files have, as far as they say."""
        if self._is_sparse:
            return iter([(self.start, self.end)])
        return self.units.runs(self.start, self.end)

    def slices(self, key: QueueKey, start: int, end: int, *, tolerant: bool) -> list[QueueSlice]:
        """Return the parts of a range that the files of the queue have.

        Raises:
            CorruptQueueError: some of it is missing, and ``tolerant`` is false.
        """
        runs = list(self.units.runs(start, end))
        if start < end and runs != [(start, end)] and not self._is_sparse:
            missing = runs[0][1] if runs and runs[0][0] == start else start
            path, byte = self.units.location(missing)
            reason = f"a file is missing or cut: queue offset {missing} should be there"
            if not tolerant:
                raise CorruptQueueError(path, byte, reason)
            logger.warning("%s, byte %d: %s; continuing with what is left", path, byte, reason)
        return [QueueSlice(*key, *run) for run in runs]


def join_parts(parts: Sequence[QueuePart]) -> list[QueuePart]:
    """Return the parts of a queue without overlaps, in the order of their queue offsets.

    Of what several have, the last one has it. It is there also if it has no message; others are
    not. If a part does not begin where the one before ends, the messages between the two are gone.

    Args:
        parts: what each log has of the queue, the one with the newest messages last.
    """
    last = parts[-1]
    if last.start >= last.end:
        end = max(part.end for part in parts if part is last or part.start < part.end)
        last = last._replace(start=end, end=end)
    joined = [last]
    for part in reversed(parts[:-1]):
        end = min(part.end, joined[0].start)
        if part.start < end:
            joined.insert(0, part._replace(end=end))
    return joined


class QueueSource(Protocol):
    """Queues by topic and id, with the log or the logs that their messages lie in.

    ``Queues`` of a store and ``TieredQueues`` describe the methods.
    """

    def topics(self) -> list[str]: ...
    def ids(self, topic: str) -> list[int]: ...
    def open(self, topic: str, queue_id: int) -> Queue: ...
    def part(self, topic: str, queue_id: int) -> QueuePart: ...
