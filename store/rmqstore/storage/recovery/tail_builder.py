"""The end of one queue while it is built from the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.layout import LMQ_PREFIX, QUEUE_UNIT
from rmqstore.spans import QueueKey
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import reach, whole_end
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.units import RecoveredUnits
from rmqstore.storage.recovery.unit_checks import confirmed_end


class OpenedQueue(NamedTuple):
    """The files of a queue, and the first physical offset whose record can belong to it.

    The queue of a deleted topic begins again at a later record of the log.
    """

    queue: Queue
    since: int = 0


OpenQueue = Callable[[str, int], OpenedQueue | None]


def _shift_of_last(log: CommitLog, queue: Queue, key: QueueKey, end: int) -> int:
    """Return by how much the queue offset in the record of the last unit exceeds its place."""
    if queue.is_batch or key[0].startswith(LMQ_PREFIX):
        return 0
    try:
        fixed = log.parts(queue.unit(end - 1)[0]).fixed
    except (CorruptRecordError, OffsetOutOfRangeError):
        return 0
    return max(int(fixed["queue_offset"]) - (end - 1), 0)


class TailBuilder:
    """The units that one queue lacks, gathered while the log is scanned.

    Args:
        log: the log of the store.
        opened: the files of the queue.
        key: topic and queue id.
        first: queue offset of the first record of the queue that the scan met.
        log_end: physical offset where the log ends; None for a log that was closed, whose units
            are taken as they are.
    """

    def __init__(
        self, log: CommitLog, opened: OpenedQueue, key: QueueKey, first: int, log_end: int | None
    ) -> None:
        queue, self.since = opened
        files_end = queue.end()
        if log_end is not None:
            files_end = queue.cut(queue.begin, files_end, log_end)
            files_end = confirmed_end(log, queue, key, files_end, log_end)
            # Units before the scanned part of the log count as whole: nothing could replace them.
            scanned_from = min(max(first, queue.begin), files_end)
            files_end = whole_end(queue, scanned_from, files_end)
        # Retention deletes files of a queue after those of the log: a queue that begins later has
        # lost its first files.
        is_new = not queue.is_present or (log_end is not None and first < queue.begin)
        self.is_batch = queue.is_batch
        self.lacks_older = is_new and first > 0
        # queue offsets of the first unit that the files lack, and after the last unit built so far
        self.start = self.end = first if is_new else files_end
        # physical offsets after the records of the last unit in the files, and of the last one
        # built so far; -1 without any
        has_units = not is_new and self.end > queue.begin
        self.files_reach = self.reach = reach(queue, self.end) if has_units else -1
        # by how much the queue offsets in its records exceed the places of their units
        self.shift = _shift_of_last(log, queue, key, self.end) if has_units else 0
        self.parts: list[NDArray[np.void]] = []
        self.n_repeated = 0
        self.is_short = False

    @property
    def n_units(self) -> int:
        return self.end - self.start

    @property
    def lacks_units(self) -> bool:
        """Whether the files lack units of scanned records."""
        return bool(self.parts) or self.is_short

    def place_of(self, queue_offset: int) -> int:
        """Return where the unit of the next record goes, by the queue offset in the record.

        A broker goes on one place too early after a record that it could not dispatch, until it is
        started again: then it counts from the end of the queue.
        """
        if queue_offset == self.end:
            self.shift = 0
        return queue_offset - self.shift if queue_offset - self.shift == self.end else queue_offset

    def add(self, units: NDArray[np.void], record_end: int) -> None:
        """Append units, QUEUE_UNIT (n,); the record of the last one ends at ``record_end``."""
        self.parts.append(units)
        self.end += len(units)
        self.reach = record_end

    def give_up(self) -> None:
        """Drop all units, which are more than memory should hold."""
        self.parts.clear()
        self.start = self.end
        self.is_short = True

    def recovered(self) -> RecoveredUnits:
        """Return the units that were built."""
        units = np.concatenate([np.empty(0, QUEUE_UNIT), *self.parts])
        return RecoveredUnits(self.start, units, self.is_short, self.is_batch)
