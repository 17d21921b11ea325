"""Samples of queues and of the log, which tell planning where messages lie and where to cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.walk import StopKind
from rmqstore.format.layout import Positions
from rmqstore.query.conditions import Points
from rmqstore.read.plan.queue_ranges import QueueRanges
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import window_at
from rmqstore.storage.queue.queue_set import Queues

_SAMPLED_UNITS = 16  # units whose mean size stands for the messages around a sample
_UNITS_AT_ONCE = 1 << 12
_SAMPLED_QUEUES = 256
_SAMPLED_HEADS = 1024  # samples taken of all queues together
_MIN_HEADS = 64  # samples taken of each queue
_SHORT_LOG = 32 << 20  # bytes; reading such a log takes no longer than sampling it


# Returns the bytes between each two of rising physical offsets (n,), (n - 1,).
Measure = Callable[[Positions], Positions]


class Sample(NamedTuple):
    """One message of a queue: where it lies in the log, and the mean record size around it."""

    queue_offset: int
    physical_offset: int
    mean_bytes: float


class Sampler:
    """Takes samples of one store."""

    def __init__(self, log: CommitLog, queues: Queues, ranges: QueueRanges) -> None:
        self._log, self._queues, self._ranges = log, queues, ranges

    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return up to ``count`` samples of a range, from its first to its last message.

        They are evenly spaced by queue offset. A range of at most ``_SAMPLED_UNITS`` messages gives
        one sample, which covers all of them.
        """
        if piece.start >= piece.end:
            return []
        samples = []
        queue = self._queues.open(piece.topic, piece.queue_id)
        queue_offsets = [piece.start]
        if piece.end - piece.start > _SAMPLED_UNITS:
            queue_offsets.append(piece.end - 1)
            if count > len(queue_offsets):
                spaced = np.linspace(piece.start, piece.end - 1, count).astype(np.int64)
                queue_offsets = np.unique(spaced).tolist()
        for queue_offset in queue_offsets:
            stop = min(queue_offset + _SAMPLED_UNITS, piece.end)
            run = next(queue.runs(queue_offset, stop), None)
            if run is None or run[0] != queue_offset:
                continue
            units = queue.units(*run)
            weights = queue.weights(*run) if queue.is_batch else np.maximum(units.sizes, 0)
            mean_bytes = float(weights.sum()) / (run[1] - run[0])
            samples.append(Sample(queue_offset, int(units.physical_offsets[0]), mean_bytes))
        return samples

    def rows_within(self, piece: QueueSlice, n_bytes: int) -> int:
        """Return how many messages at the start of a range have records of ``n_bytes`` at most."""
        queue = self._queues.open(piece.topic, piece.queue_id)
        left = n_bytes
        for low, high in queue.runs(piece.start, piece.end):
            for start in range(low, high, _UNITS_AT_ONCE):
                sizes = np.cumsum(queue.weights(start, min(start + _UNITS_AT_ONCE, high)))
                fitting = int(np.searchsorted(sizes, left, side="right"))
                if fitting < len(sizes):
                    return start - piece.start + fitting
                left -= int(sizes[-1])
        return piece.end - piece.start

    def log_heads(self) -> list[int]:
        """Return the physical offsets where a scan of the log may be cut, sorted.

        These are the starts of files, and sampled records that store their own physical offset.
        Without queues only the starts of files are sure.
        """
        heads = {segment.start for segment in self._log.segments}
        queues = self._queues.plain()
        sampled = queues[:: max(1, len(queues) // _SAMPLED_QUEUES)]
        count = max(_MIN_HEADS, _SAMPLED_HEADS // max(len(sampled), 1))
        for number, (topic, queue_id) in enumerate(sampled):
            start, end = self._ranges.range(topic, queue_id)
            # Round-robin producers put the same offsets of all queues next to each other, so
            # samples are staggered.
            start += (end - start) * number // (count * len(sampled))
            for sample in self.sample(QueueSlice(topic, queue_id, start, end), count):
                if self._log.is_head(sample.physical_offset):
                    heads.add(sample.physical_offset)
        return sorted(heads)

    def log_points(self, whole: LogSlice, heads: Callable[[], Iterable[int]]) -> Points:
        """Return records of the log with their store times.

        They are all records of a short, sound log, else those at ``heads``.
        """
        return self._every_record(whole) or self._records_at(heads())

    def _records_at(self, heads: Iterable[int]) -> Points:
        """Return the records at heads; those that cannot be read are left out."""
        points = []
        for head in heads:
            with suppress(CorruptRecordError, OffsetOutOfRangeError):
                points.append((head, self._log.store_timestamp(head)))
        return Points(*np.array(points, np.int64).reshape(-1, 2).T)

    def _every_record(self, whole: LogSlice) -> Points | None:
        """Return all records of a range of the log, or None if the range is long or damaged."""
        physical_offsets = [np.empty(0, np.int64)]
        times = [np.empty(0, np.int64)]
        left = _SHORT_LOG
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
                physical_offsets.append(starts + segment.start)
                times.append(heads.column("store_timestamp").astype(np.int64))
        return Points(np.concatenate(physical_offsets), np.concatenate(times), are_all=True)


def cut_log(
    whole: LogSlice,
    heads: Sequence[int],
    goal: Callable[[int], int],
    measure: Measure = np.diff,
) -> list[LogSlice]:
    """Cut a range of the log into slices of about equal size.

    A slice is larger where no head lies near enough.

    Args:
        whole: the range to cut.
        heads: physical offsets where records surely begin, sorted, also outside of the range.
        goal: returns the target size of a slice for the size of all, in bytes.
        measure: returns the bytes between each two of rising physical offsets (n,), (n - 1,);
            ``CommitLog.data_lengths`` leaves out the holes of sparse files.
    """
    if whole.start >= whole.end:
        return []
    inner = [head for head in heads if whole.start < head < whole.end]
    points = [whole.start, *inner, whole.end]
    lengths = measure(np.array(points, np.int64)).tolist()
    most = goal(sum(lengths))
    pieces = []
    start = whole.start
    size = 0
    for point, length in zip(points, lengths, strict=False):
        if size and size + length > most:
            pieces.append(whole._replace(start=start, end=point))
            start = point
            size = 0
        size += length
    return [*pieces, whole._replace(start=start)]
