"""Splits a read into parts within limits, by samples of what is read. Pure: no files.

Parts of a read by queue are ranges of the *CommitLog* over all chosen queues at once. The log
interleaves the queues, so a part that reads one queue would touch nearly every page of the log, and
as many parts as queues would each read all of it from a cold disk. If parts are cut by physical
offset instead, each page is read by one part, or by two at a cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.spans import LogSlice, QueueSlice, Span


def total_length(ranges: Iterable[QueueSlice | LogSlice | Span]) -> int:
    """Return how many messages, or bytes of the log, ranges have together."""
    return sum(part.end - part.start for part in ranges)


class Limits(NamedTuple):
    """The largest size of a part of a read, and the least number of parts."""

    max_bytes: int
    max_records: int | None = None
    min_partitions: int | None = None

    def target(self, total: int) -> int:
        """Return the bytes of each part of a read of ``total`` bytes; at least 1."""
        evenly = -(-total // (self.min_partitions or 1))
        return max(min(self.max_bytes, evenly), 1)

    def share(self, n_bytes: float, total: float) -> Limits:
        """Return the limits for a share of a read, which follows its bytes."""
        if self.min_partitions is None or n_bytes >= total:
            return self
        return self._replace(min_partitions=math.ceil(self.min_partitions * n_bytes / total) or 1)


WHOLE: Final = Limits(1 << 62)  # nothing is cut, but parts know their sizes


class Sample(NamedTuple):
    """One message of a queue: where it lies in the log, and the mean record size around it."""

    queue_offset: int
    physical_offset: int
    mean_bytes: float


class SampledSpan(NamedTuple):
    """A range of the log in which no cut is possible, and its bytes, without holes of the file."""

    log_slice: LogSlice
    n_bytes: int


class SampledSlice(NamedTuple):
    """A range of a queue with samples of it: the first and the last message, and some between."""

    queue_slice: QueueSlice
    samples: Sequence[Sample]

    @property
    def n_bytes(self) -> float:
        """A first estimate of its bytes."""
        if not self.samples:
            return 0.0
        mean_bytes = sum(sample.mean_bytes for sample in self.samples) / len(self.samples)
        return mean_bytes * (self.queue_slice.end - self.queue_slice.start)

    def with_a_sample(self) -> SampledSlice:
        """Return the range with at least one sample.

        A queue whose files are missing has no sample. It gets one of 0 bytes.
        """
        if self.samples:
            return self
        return self._replace(samples=[Sample(self.queue_slice.start, 0, 0.0)])


class SampledQueues:
    """Ranges of queues with their samples, as arrays over the samples of all of them.

    The points of a range are its samples and its end. Between two of them, the messages are assumed
    to be spread evenly over the log.

    Args:
        sampled: the ranges; empty ones are left out.
    """

    def __init__(self, sampled: Iterable[SampledSlice]) -> None:
        ranges = [
            item.with_a_sample()
            for item in sampled
            if item.queue_slice.start < item.queue_slice.end
        ]
        self._slices = [item.queue_slice for item in ranges]
        self._starts = np.array([queue_slice.start for queue_slice in self._slices], np.int64)
        self._ends = np.array([queue_slice.end for queue_slice in self._slices], np.int64)
        samples = [sample for item in ranges for sample in item.samples]
        counts = np.array([len(item.samples) for item in ranges], np.int64)
        self._first = np.cumsum(counts) - counts  # of the samples of each range, (n_ranges,)
        last = self._first + counts - 1
        self._range = np.repeat(np.arange(len(ranges)), counts)  # of each sample
        mean_bytes = np.array([sample.mean_bytes for sample in samples], np.float64)
        self._low = np.array([sample.queue_offset for sample in samples], np.int64)
        self._high = np.append(self._low[1:], self._low[:1])
        self._high[last] = self._ends
        # Where the part of the log from each sample to the next point begins and ends.
        self._begin = np.array([sample.physical_offset for sample in samples], np.float64)
        ends = self._begin[last] + mean_bytes[last]
        self._end = np.append(self._begin[1:], self._begin[:1])
        self._end[last] = ends
        # Neither falls within a range.
        falling = np.flatnonzero(self._end < self._begin)
        for number in np.unique(self._range[falling]).tolist():
            rows = slice(int(self._first[number]), int(last[number]) + 1)
            points = np.maximum.accumulate(np.append(self._begin[rows], ends[number]))
            self._begin[rows] = points[:-1]
            self._end[rows] = points[1:]
        self._weights = (self._high - self._low) * mean_bytes

    @property
    def n_bytes(self) -> float:
        """The estimated bytes of all messages."""
        return float(self._weights.sum())

    @property
    def n_records(self) -> int:
        """The number of all messages."""
        return int((self._ends - self._starts).sum())

    def cut(self, limits: Limits) -> list[tuple[QueueSlice, ...]]:
        """Cut and join the ranges into tasks of about equal bytes.

        Every queue offset of every range is in exactly one task. The ranges of one queue in
        successive tasks follow one another. No task is empty.

        Args:
            limits: ``max_bytes`` is a goal, ``max_records`` is never exceeded, and
                ``min_partitions`` is reached if there are enough messages.
        """
        n_records = self.n_records
        if not n_records:
            return []
        n_tasks = max(1, -(-int(self.n_bytes) // limits.max_bytes), limits.min_partitions or 1)
        if limits.max_records:
            n_tasks = max(n_tasks, -(-n_records // limits.max_records))
        n_tasks = min(n_tasks, n_records)
        widths = np.maximum(self._end - self._begin, 1.0)
        tasks = self._cut_at(_cuts(self._begin, widths, self._weights, n_tasks))
        parts = [part for task in tasks for part in _within_records(task, limits.max_records)]
        least = min(limits.min_partitions or 1, n_records)
        # The parts with most records are halved until there are enough; their order is kept.
        while len(parts) < least:
            sizes = [*map(total_length, parts)]
            n_missing = least - len(parts)
            largest = sorted(range(len(parts)), key=sizes.__getitem__, reverse=True)[:n_missing]
            chosen = {number for number in largest if sizes[number] > 1}
            halved: list[list[QueueSlice]] = []
            for number, part in enumerate(parts):
                halved += _halves(part) if number in chosen else [part]
            parts = halved
        return [tuple(part) for part in parts]

    def _cut_at(self, cuts: NDArray[np.float64]) -> list[list[QueueSlice]]:
        """Return the parts of all ranges between physical offsets, without empty tasks.

        Each cut between a sample and the next point becomes a queue offset by interpolation.
        """
        first_cut = np.searchsorted(cuts, self._begin, side="right")
        n_cuts = np.searchsorted(cuts, self._end, side="right") - first_cut
        samples = np.repeat(np.arange(len(n_cuts)), n_cuts)
        before = np.cumsum(n_cuts) - n_cuts
        numbers = first_cut[samples] + np.arange(len(samples)) - before[samples]
        begin, low, high = self._begin[samples], self._low[samples], self._high[samples]
        shares = (cuts[numbers] - begin) / (self._end[samples] - begin)
        offsets = np.clip(np.ceil(low + shares * (high - low)).astype(np.int64), low, high)
        # The part of a range before its first cut, and the parts that follow each of its cuts.
        rows = np.concatenate((np.arange(len(self._slices)), self._range[samples]))
        tasks = np.concatenate((first_cut[self._first], numbers + 1))
        starts = np.concatenate((self._starts, offsets))
        order = np.lexsort((tasks, rows))
        rows, tasks, starts = rows[order], tasks[order], starts[order]
        is_last = np.diff(rows, append=-1) != 0
        ends = np.append(starts[1:], 0)
        ends[is_last] = self._ends
        kept = np.flatnonzero(starts < ends)
        kept = kept[np.argsort(tasks[kept], kind="stable")]
        columns = (values[kept].tolist() for values in (rows, tasks, starts, ends))
        by_task: dict[int, list[QueueSlice]] = {}
        for row, task, start, end in zip(*columns, strict=True):
            topic, queue_id, _, _ = self._slices[row]
            by_task.setdefault(task, []).append(QueueSlice(topic, queue_id, start, end))
        return list(by_task.values())


def _cuts(
    begins: NDArray[np.float64],
    widths: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_tasks: int,
) -> NDArray[np.float64]:
    """Return the physical offsets at which one task ends and the next begins.

    The bytes of a queue are assumed to be spread evenly over the log between two of its samples. So
    the number of bytes to be read before a physical offset is a piecewise linear function of this
    offset, which bends only at samples.

    Example: a queue has 100 bytes between the physical offsets 0 and 100, and another one has 100
    bytes between 50 and 100, for estimates may overlap. There are 50 bytes before offset 50, and 3
    per byte of the log after it. So two tasks of 100 bytes are cut at offset 66.7.

    Args:
        begins: physical offsets of the samples of all queues, (n,).
        widths: the bytes of the log from each sample to the next point of its queue, (n,).
        weights: the bytes of the queue's own messages there, (n,).
        n_tasks: number of tasks.

    Returns:
        (n_tasks - 1,), never falling.
    """
    if n_tasks == 1:
        return np.empty(0)
    slopes = weights / widths
    bends = np.concatenate((begins, begins + widths))
    order = np.argsort(bends, kind="stable")
    bends = bends[order]
    turns = np.concatenate((slopes, -slopes))[order]
    bytes_before = np.concatenate(([0.0], np.cumsum(np.cumsum(turns)[:-1] * np.diff(bends))))
    goals = bytes_before[-1] * np.arange(1, n_tasks) / n_tasks
    return np.maximum.accumulate(np.interp(goals, bytes_before, bends))


def _within_records(task: list[QueueSlice], max_records: int | None) -> list[list[QueueSlice]]:
    """Halve a task until no part has more than ``max_records``; ranges are cut in the middle."""
    if max_records is None or total_length(task) <= max_records:
        return [task]
    return [part for half in _halves(task) for part in _within_records(half, max_records)]


def _halves(task: list[QueueSlice]) -> list[list[QueueSlice]]:
    """Cut a task of more than one record in two, each of its ranges in the middle if one can be."""
    if all(queue_slice.end - queue_slice.start == 1 for queue_slice in task):
        middle = len(task) // 2
        return [task[:middle], task[middle:]]
    first: list[QueueSlice] = []
    second: list[QueueSlice] = []
    for queue_slice in task:
        middle = (queue_slice.start + queue_slice.end + 1) // 2
        first.append(queue_slice._replace(end=middle))
        if middle < queue_slice.end:
            second.append(queue_slice._replace(start=middle))
    return [first, second]


def cut_log(parts: Sequence[SampledSpan], limits: Limits) -> list[tuple[SampledSpan, ...]]:
    """Join parts of the log, in their order, into tasks.

    Args:
        parts: the parts; each of them is in one task.
        limits: ``max_bytes`` is exceeded by parts that are larger.
    """
    goal = limits.max_bytes
    if limits.min_partitions:
        n_bytes = sum(part.n_bytes for part in parts)
        goal = max(1, min(goal, n_bytes // limits.min_partitions))
    return join_parts(parts, goal)


def cut_rows(sizes: NDArray[np.number], limits: Limits) -> list[slice]:
    """Cut n single records, in the order of the log, into tasks.

    Args:
        sizes: bytes of each record, (n,).
        limits: as for :meth:`SampledQueues.cut`.
    """
    n_rows = len(sizes)
    if not n_rows:
        return []
    goal = limits.max_bytes
    if limits.min_partitions:
        goal = min(goal, int(sizes.sum()) // limits.min_partitions)
    tasks = np.cumsum(sizes) // max(goal, 1)
    bounds = np.append(np.flatnonzero(np.diff(tasks, prepend=-1)), n_rows)
    most = min(limits.max_records or n_rows, max(1, n_rows // (limits.min_partitions or 1)))
    return [
        slice(start, min(start + most, high))
        for low, high in pairwise(bounds.tolist())
        for start in range(low, high, most)
    ]


def join_parts(parts: Iterable[SampledSpan], max_bytes: int) -> list[tuple[SampledSpan, ...]]:
    """Join parts of the log, in their order, to groups of at most ``max_bytes``.

    A part that is larger makes a group of its own. Parts that touch each other become one.
    """
    groups: list[list[SampledSpan]] = []
    n_bytes = 0
    for part in parts:
        if not groups or (n_bytes and n_bytes + part.n_bytes > max_bytes):
            groups.append([])
            n_bytes = 0
        group = groups[-1]
        if group and group[-1].log_slice.end == part.log_slice.start:
            whole = group[-1].log_slice._replace(end=part.log_slice.end)
            group[-1] = SampledSpan(whole, group[-1].n_bytes + part.n_bytes)
        else:
            group.append(part)
        n_bytes += part.n_bytes
    return [tuple(group) for group in groups]
