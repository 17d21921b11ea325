"""Plans tasks from ranges of queues and of the log. Pure: no session, no files.

Tasks are ranges of the *CommitLog* over all chosen queues at once. The log interleaves the queues,
so a task that reads one queue would touch nearly every page of the log, and as many tasks as queues
would each read all of it from a cold disk. If tasks are cut by physical offset instead, each page
is read by one task, or by two at a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.options import StoreRef
from rmqstore.read.lookup.pending import PendingRows
from rmqstore.read.plan.sampling import Measure, Sample, cut_log
from rmqstore.read.scan.rows import UnitRows
from rmqstore.spans import LogSlice, LostStretch, QueueKey, QueueSlice
from rmqstore.storage.queue.units import RecoveredUnits


@dataclass(frozen=True)
class QueueSplit(InputPartition):
    """A task by queue: ranges of queues of one store, with units that its log gave."""

    store: StoreRef
    slices: tuple[QueueSlice, ...]
    recovered: dict[QueueKey, RecoveredUnits] = field(default_factory=dict)


@dataclass(frozen=True)
class LostSplit(InputPartition):
    """A task by queue for damage of one store's CommitLog that may have held messages of queues."""

    store: StoreRef
    stretches: tuple[LostStretch, ...]


@dataclass(frozen=True)
class LogSplit(InputPartition):
    """A task by log: a range of one store's CommitLog."""

    store: StoreRef
    piece: LogSlice


@dataclass(frozen=True)
class UnitSplit(InputPartition):
    """A task by queue: single messages of one store that its index named."""

    store: StoreRef
    picked: UnitRows


@dataclass(frozen=True)
class RecordSplit(InputPartition):
    """A task by log: single records of one store's CommitLog that its index named."""

    store: StoreRef
    physical_offsets: NDArray[np.int64]


@dataclass(frozen=True)
class PendingSplit(InputPartition):
    """A task of pending messages."""

    store: StoreRef
    rows: PendingRows


class Limits(NamedTuple):
    """The largest size of a task, and the least number of tasks."""

    max_bytes: int
    max_records: int | None = None
    min_partitions: int | None = None


class SampledSlice(NamedTuple):
    """A range of a queue with samples of it: the first and the last message, and some between."""

    piece: QueueSlice
    samples: Sequence[Sample]

    def with_a_sample(self) -> SampledSlice:
        """Return the range with at least one sample.

        A queue whose files are missing has no sample. It gets one of 0 bytes.
        """
        return self if self.samples else self._replace(samples=[Sample(self.piece.start, 0, 0.0)])


def _weights(sampled: SampledSlice) -> NDArray[np.float64]:
    """Return the estimated bytes from each sample to the next, (n,)."""
    offsets = np.array([sample.queue_offset for sample in sampled.samples] + [sampled.piece.end])
    return np.diff(offsets) * np.array([sample.mean_bytes for sample in sampled.samples])


def plan_queues(sampled: Sequence[SampledSlice], limits: Limits) -> list[tuple[QueueSlice, ...]]:
    """Cut and join ranges of queues into tasks of about equal bytes.

    Every queue offset of every range is in exactly one task. The ranges of one queue in successive
    tasks follow one another. No task is empty.

    Args:
        sampled: the ranges, each with its samples; empty ranges are dropped.
        limits: ``max_bytes`` is a goal, ``max_records`` is never exceeded, and ``min_partitions``
            is reached if there are enough messages.
    """
    ranges = [item.with_a_sample() for item in sampled if item.piece.start < item.piece.end]
    if not ranges:
        return []
    weights = [_weights(item) for item in ranges]
    n_bytes = sum(float(weight.sum()) for weight in weights)
    n_records = sum(item.piece.end - item.piece.start for item in ranges)
    n_tasks = _task_count(n_bytes, n_records, limits)
    cuts = _cuts([_sample_positions(item) for item in ranges], weights, n_tasks)
    tasks: list[list[QueueSlice]] = [[] for _ in range(len(cuts) + 1)]
    for item in ranges:
        for task, piece in _cut_slice(item, cuts):
            tasks[task].append(piece)
    parts = [part for task in tasks if task for part in _within_records(task, limits.max_records)]
    return [tuple(part) for part in _at_least(parts, min(limits.min_partitions or 1, n_records))]


def _task_count(n_bytes: float, n_records: int, limits: Limits) -> int:
    count = max(1, -(-int(n_bytes) // limits.max_bytes), limits.min_partitions or 1)
    if limits.max_records:
        count = max(count, -(-n_records // limits.max_records))
    return min(count, n_records)


def _sample_positions(sampled: SampledSlice) -> NDArray[np.float64]:
    """Return the physical offsets of the samples and the end of the last message.

    Returns:
        (n + 1,), never falling.
    """
    last = sampled.samples[-1]
    positions: list[float] = [sample.physical_offset for sample in sampled.samples]
    positions.append(last.physical_offset + last.mean_bytes)
    return np.maximum.accumulate(np.array(positions, np.float64))


def _cuts(
    positions: Sequence[NDArray[np.float64]], weights: Sequence[NDArray[np.float64]], n_tasks: int
) -> NDArray[np.float64]:
    """Return the physical offsets at which one task ends and the next begins.

    The bytes of a queue are assumed to be spread evenly over the log between two of its samples. So
    the number of bytes to be read before a physical offset is a piecewise linear function of this
    offset, which bends only at samples.

    Example: a queue has 100 bytes between the physical offsets 0 and 100, and another one has 100
    bytes between 50 and 100, for estimates may overlap. There are 50 bytes before offset 50, and 3
    per byte of the log after it. So two tasks of 100 bytes are cut at offset 66.7.

    Args:
        positions: for each queue the physical offsets of its samples and the end of its last
            message, (n + 1,).
        weights: for each queue the bytes from each sample to the next, (n,).
        n_tasks: number of tasks.

    Returns:
        (n_tasks - 1,), never falling.
    """
    if n_tasks == 1:
        return np.empty(0)
    widths = [np.maximum(np.diff(offsets), 1.0) for offsets in positions]
    slopes = np.concatenate([weight / width for weight, width in zip(weights, widths, strict=True)])
    begins = np.concatenate([offsets[:-1] for offsets in positions])
    bends = np.concatenate((begins, begins + np.concatenate(widths)))
    order = np.argsort(bends, kind="stable")
    bends = bends[order]
    turns = np.concatenate((slopes, -slopes))[order]
    bytes_before = np.concatenate(([0.0], np.cumsum(np.cumsum(turns)[:-1] * np.diff(bends))))
    goals = bytes_before[-1] * np.arange(1, n_tasks) / n_tasks
    return np.maximum.accumulate(np.interp(goals, bytes_before, bends))


def _cut_slice(sampled: SampledSlice, cuts: NDArray[np.float64]) -> list[tuple[int, QueueSlice]]:
    """Return the parts of a range, each with the number of its task."""
    start, end = sampled.piece.start, sampled.piece.end
    offsets = np.array([*(sample.queue_offset for sample in sampled.samples), end], np.float64)
    inner = np.ceil(np.interp(cuts, _sample_positions(sampled), offsets))
    bounds = np.concatenate(([start], np.clip(inner, start, end), [end])).astype(np.int64)
    bounds = np.maximum.accumulate(bounds).tolist()
    return [
        (task, sampled.piece._replace(start=low, end=high))
        for task, (low, high) in enumerate(pairwise(bounds))
        if low < high
    ]


def _within_records(task: list[QueueSlice], max_records: int | None) -> list[list[QueueSlice]]:
    """Halve a task until no part has more than ``max_records``; ranges are cut in the middle."""
    if max_records is None or sum(piece.end - piece.start for piece in task) <= max_records:
        return [task]
    return [part for half in _halves(task) for part in _within_records(half, max_records)]


def _at_least(tasks: list[list[QueueSlice]], count: int) -> list[list[QueueSlice]]:
    """Halve the tasks with most records until there are ``count`` tasks; their order is kept."""
    while len(tasks) < count:
        sizes = [sum(piece.end - piece.start for piece in task) for task in tasks]
        n_missing = count - len(tasks)
        largest = sorted(range(len(tasks)), key=sizes.__getitem__, reverse=True)[:n_missing]
        chosen = {number for number in largest if sizes[number] > 1}
        halved: list[list[QueueSlice]] = []
        for number, task in enumerate(tasks):
            halved += _halves(task) if number in chosen else [task]
        tasks = halved
    return tasks


def _halves(task: list[QueueSlice]) -> list[list[QueueSlice]]:
    """Cut a task of more than one record in two, each of its ranges in the middle if one can be."""
    if all(piece.end - piece.start == 1 for piece in task):
        middle = len(task) // 2
        return [task[:middle], task[middle:]]
    first: list[QueueSlice] = []
    second: list[QueueSlice] = []
    for piece in task:
        middle = (piece.start + piece.end + 1) // 2
        first.append(piece._replace(end=middle))
        if middle < piece.end:
            second.append(piece._replace(start=middle))
    return [first, second]


def plan_log(
    whole: LogSlice,
    heads: Sequence[int],
    limits: Limits,
    measure: Measure = np.diff,
) -> list[LogSlice]:
    """Cut a range of the log into tasks at physical offsets where records are known to begin.

    Args:
        whole: the range.
        heads: physical offsets where records begin, sorted; some may lie outside the range.
        limits: ``max_bytes`` is exceeded where no head is near enough.
        measure: returns the bytes between offsets; see :func:`cut_log`.
    """

    def goal(n_bytes: int) -> int:
        if not limits.min_partitions:
            return limits.max_bytes
        return max(1, min(limits.max_bytes, n_bytes // limits.min_partitions))

    return cut_log(whole, heads, goal, measure)


def cut_rows(sizes: NDArray[np.number], limits: Limits) -> list[slice]:
    """Cut n single records, in the order of the log, into tasks.

    Args:
        sizes: bytes of each record, (n,).
        limits: as for :func:`plan_queues`.
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
