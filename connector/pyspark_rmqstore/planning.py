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
from rmqstore.read.plan.sampling import Sample, cut_log
from rmqstore.read.scan.rows import UnitRows
from rmqstore.spans import LogSlice, LostStretch, QueueKey, QueueSlice
from rmqstore.storage.queue.units import RecoveredUnits


@dataclass(frozen=True)
class QueueSplit(InputPartition):
    """A task by queue: ranges of queues of one store, and the units that were recovered from its log."""

    store: StoreRef
    slices: tuple[QueueSlice, ...]
    recovered: dict[QueueKey, RecoveredUnits] = field(default_factory=dict)


@dataclass(frozen=True)
class LostSplit(InputPartition):
    """A task by queue for the damaged parts of one store's CommitLog that may have held messages of its queues."""

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
        """Return the range with at least one sample; a queue whose files are missing has none, and gets weight 0."""
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
    sampled = [one.with_a_sample() for one in sampled if one.piece.start < one.piece.end]
    if not sampled:
        return []
    weights = [_weights(one) for one in sampled]
    n_records = sum(one.piece.end - one.piece.start for one in sampled)
    n_tasks = _task_count(sum(float(one.sum()) for one in weights), n_records, limits)
    cuts = _cuts([_sample_positions(one) for one in sampled], weights, n_tasks)
    tasks: list[list[QueueSlice]] = [[] for _ in range(len(cuts) + 1)]
    for one in sampled:
        for task, piece in _cut_slice(one, cuts):
            tasks[task].append(piece)
    parts = [part for task in tasks if task for part in _within_records(task, limits.max_records)]
    return [tuple(part) for part in _at_least(parts, min(limits.min_partitions or 1, n_records))]


def _task_count(n_bytes: float, n_records: int, limits: Limits) -> int:
    count = max(1, -(-int(n_bytes) // limits.max_bytes), limits.min_partitions or 1)
    if limits.max_records:
        count = max(count, -(-n_records // limits.max_records))
    return min(count, n_records)


def _sample_positions(one: SampledSlice) -> NDArray[np.float64]:
    """Return the physical offsets of the samples and the end of the last message, never falling, (n + 1,)."""
    last = one.samples[-1]
    positions = [sample.physical_offset for sample in one.samples] + [
        last.physical_offset + last.mean_bytes
    ]
    return np.maximum.accumulate(np.array(positions, np.float64))


def _cuts(
    positions: Sequence[NDArray[np.float64]], weights: Sequence[NDArray[np.float64]], n_tasks: int
) -> NDArray[np.float64]:
    """Return the physical offsets at which one task ends and the next begins, (n_tasks - 1,), never falling.

    The bytes of a queue are assumed to be spread evenly over the log between two of its samples. So
    the number of bytes to be read before a physical offset is a piecewise linear function, which
    bends only at samples.

    Example: a queue has 100 bytes between the physical offsets 0 and 100 (samples overlap, as
        estimates may), another
    one has 100 bytes between 50 and 100. There are 50 bytes before offset 50, and 3 per byte of the
    log after it. So two tasks of 100 bytes are cut at offset 66.7.

    Args:
        positions: for each queue the physical offsets of its samples and the end of its last
            message, (n + 1,).
        weights: for each queue the bytes from each sample to the next, (n,).
        n_tasks: number of tasks.
    """
    widths = [np.maximum(np.diff(one), 1.0) for one in positions]
    slopes = np.concatenate([weight / width for weight, width in zip(weights, widths, strict=True)])
    begins = np.concatenate([one[:-1] for one in positions])
    bends = np.concatenate((begins, begins + np.concatenate(widths)))
    order = np.argsort(bends, kind="stable")
    bends, turns = bends[order], np.concatenate((slopes, -slopes))[order]
    reached = np.concatenate(([0.0], np.cumsum(np.cumsum(turns)[:-1] * np.diff(bends))))
    goals = reached[-1] * np.arange(1, n_tasks) / n_tasks
    return np.maximum.accumulate(np.interp(goals, reached, bends)) if n_tasks > 1 else np.empty(0)


def _cut_slice(one: SampledSlice, cuts: NDArray[np.float64]) -> list[tuple[int, QueueSlice]]:
    """Return the parts of a range, each with the number of its task."""
    start, end = one.piece.start, one.piece.end
    offsets = np.array([*(sample.queue_offset for sample in one.samples), end], np.float64)
    inner = np.ceil(np.interp(cuts, _sample_positions(one), offsets))
    bounds = np.concatenate(([start], np.clip(inner, start, end), [end])).astype(np.int64)
    bounds = np.maximum.accumulate(bounds).tolist()
    return [
        (task, one.piece._replace(start=low, end=high))
        for task, (low, high) in enumerate(pairwise(bounds))
        if low < high
    ]


def _within_records(task: list[QueueSlice], max_records: int | None) -> list[list[QueueSlice]]:
    """Halve a task, each of its ranges in the middle, until no part has more than ``max_records``."""
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
        tasks = [
            part
            for number, task in enumerate(tasks)
            for part in (_halves(task) if number in chosen else [task])
        ]
    return tasks


def _halves(task: list[QueueSlice]) -> list[list[QueueSlice]]:
    """Cut a task of more than one record in two, each of its ranges in the middle if one can be."""
    if all(piece.end - piece.start == 1 for piece in task):
        middle = len(task) // 2
        halves = [task[:middle], task[middle:]]
    else:
        middles = [(piece.start + piece.end + 1) // 2 for piece in task]
        halves = [
            [piece._replace(end=middle) for piece, middle in zip(task, middles, strict=True)],
            [
                piece._replace(start=middle)
                for piece, middle in zip(task, middles, strict=True)
                if middle < piece.end
            ],
        ]
    return halves


def plan_log(whole: LogSlice, heads: Sequence[int], limits: Limits) -> list[LogSlice]:
    """Cut a range of the log into tasks at physical offsets where records are known to begin.

    Args:
        whole: the range.
        heads: physical offsets where records begin, sorted; some may lie outside the range.
        limits: ``max_bytes`` is exceeded where no head is near enough.
    """
    goal = limits.max_bytes
    if limits.min_partitions:
        goal = max(1, min(goal, (whole.end - whole.start) // limits.min_partitions))
    return cut_log(whole, heads, goal)


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
