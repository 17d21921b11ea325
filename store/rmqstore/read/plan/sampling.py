"""Points of queues and of the log that planning asks for: where a queue's messages lie, where the log may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.walk import StopKind
from rmqstore.query.conditions import Points
from rmqstore.read.plan.queue_ranges import QueueRanges
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import window_at
from rmqstore.storage.queue.queue_set import Queues

_SAMPLED_UNITS, _UNITS_AT_ONCE = 16, 1 << 12
_SAMPLED_QUEUES, _SAMPLED_HEADS = 256, 1024  # queues that are asked, and heads that all of them give
_MIN_HEADS = 64  # of a queue
_SHORT_LOG = 32 << 20  # bytes: as soon read as sampled


class Sample(NamedTuple):
    """A point of a queue, for planning: where its message lies in the log, and what messages there weigh."""

    queue_offset: int
    physical_offset: int
    mean_bytes: float


class Sampler:
    """Looks at a few places of a store."""

    def __init__(self, log: CommitLog, queues: Queues, ranges: QueueRanges) -> None:
        self._log, self._queues, self._ranges = log, queues, ranges

    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return up to ``count`` points of a queue, evenly spaced by offset, the first and the last among them.

        The first alone where the messages are so few that it tells of all of them.
        """
        if piece.start >= piece.end:
            return []
        samples = []
        queue = self._queues.open(piece.topic, piece.queue_id)
        places = [piece.start]
        if piece.end - piece.start > _SAMPLED_UNITS:
            places = np.unique(np.linspace(piece.start, piece.end - 1, max(count, 2)).astype(np.int64)).tolist()
        for at in places:
            run = next(queue.runs(at, min(at + _SAMPLED_UNITS, piece.end)), None)
            if run is None or run[0] != at:
                continue
            samples.append(Sample(at, queue.unit(at)[0], float(queue.weights(*run).mean())))
        return samples

    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages from a range's start on take at most so many bytes together, as their units say."""
        queue, rows, left = self._queues.open(piece.topic, piece.queue_id), 0, n_bytes
        for low, high in queue.runs(piece.start, piece.end):
            for at in range(low, high, _UNITS_AT_ONCE):
                sizes = np.cumsum(queue.weights(at, min(at + _UNITS_AT_ONCE, high)))
                fitting = int(np.searchsorted(sizes, left, side="right"))
                rows = at - piece.start + fitting
                if fitting < len(sizes):
                    return rows
                left -= int(sizes[-1])
        return piece.end - piece.start

    def log_heads(self) -> list[int]:
        """Return places where a scan of the log may be cut, sorted: files' starts, and records that queues point at.

        A place counts only if the record there knows it; without queues only the starts of files are sure.
        """
        heads = {segment.start for segment in self._log.segments}
        queues = self._queues.plain()
        asked = queues[:: max(1, len(queues) // _SAMPLED_QUEUES)]
        count = max(_MIN_HEADS, _SAMPLED_HEADS // max(len(asked), 1))
        for number, (topic, queue_id) in enumerate(asked):
            start, end = self._ranges.range(topic, queue_id)
            # Messages that are sent in turn lie together: each queue is asked a little further on than the last one.
            start += (end - start) * number // (count * len(asked))
            for sample in self.sample(QueueSlice(topic, queue_id, start, end), count):
                if self._log.is_head(sample.physical_offset):
                    heads.add(sample.physical_offset)
        return sorted(heads)

    def log_points(self, whole: LogSlice, heads: Callable[[], Iterable[int]]) -> Points:
        """Return records of the log with their times: all of a short log that is sound, else those at some heads."""
        return self._every_record(whole) or self._records_at(heads())

    def _records_at(self, heads: Iterable[int]) -> Points:
        """Return the records at heads; those that cannot be read are left out."""
        found = []
        for head in heads:
            with suppress(CorruptRecordError, OffsetOutOfRangeError):
                found.append((head, self._log.store_timestamp(head)))
        return Points(*np.array(found, np.int64).reshape(-1, 2).T)

    def _every_record(self, whole: LogSlice) -> Points | None:
        """Return all records of a range of the log, None where it is long or damaged."""
        places, times, left = [np.empty(0, np.int64)], [np.empty(0, np.int64)], _SHORT_LOG
        for start, end, segment in self._log.stretches(whole.start, whole.end):
            if segment is None:
                continue
            window = window_at(self._log, segment, start, end, left)
            stop = window.records
            left -= window.stopped - start
            is_done = stop.kind is not StopKind.END or window.stopped == end
            is_lost = stop.kind is StopKind.EMPTY and self._log.written_end(segment) > stop.position
            if stop.kind is StopKind.DAMAGE or is_lost or not is_done:
                return None
            for starts, heads, are_whole in window.heads():
                if not are_whole.all():
                    return None
                places.append(starts + segment.start)
                times.append(heads.column("store_timestamp").astype(np.int64))
        return Points(np.concatenate(places), np.concatenate(times), are_all=True)


def cut_log(whole: LogSlice, heads: Sequence[int], goal: int) -> list[LogSlice]:
    """Cut a range of the log into pieces of so many bytes, more where no place is near enough.

    Args:
        whole: the range.
        heads: places where records surely begin, sorted; some may lie outside the range.
        goal: bytes.
    """
    pieces, start, last = [], whole.start, whole.start
    for head in (*(head for head in heads if whole.start < head < whole.end), whole.end):
        if head - start > goal and last > start:
            pieces.append(whole._replace(start=start, end=last))
            start = last
        last = head
    if start < whole.end:
        pieces.append(whole._replace(start=start))
    return pieces
