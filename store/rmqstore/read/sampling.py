"""Samples of queues and of the log, by which planning cuts a read into tasks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptDatabaseError,
    FileDeletedError,
    UnreadableFileError,
)
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import MAX_FIXED_BYTES, Positions
from rmqstore.query.conditions import StoreTimes
from rmqstore.read.split import Limits, Sample, SampledSlice, SampledSpan
from rmqstore.read.store_queues import StoreQueues
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog, frame_of, records_in
from rmqstore.storage.log.walks import window_at
from rmqstore.storage.queue.queue import Queue, Units, short_units
from rmqstore.storage.recovery.queues import Queues

_SAMPLES_PER_TASK = 16
_REMOTE_SAMPLES_PER_TASK = 2  # each takes a request
_FEWEST_SAMPLES = 2  # of a range: at its first and last record
_MAX_SAMPLES = 1024
# records; a range of at most this many is sampled at its first and last record only
_SMALL_QUEUE = 64
_MANY_RANGES = 1024  # for which some are sampled first
_ESTIMATED_BY = 128  # ranges of each sort that are sampled then
_SAMPLED_UNITS = 16  # units whose mean size stands for the messages around a sample
_UNITS_AT_ONCE = 1 << 12
_SAMPLED_QUEUES = 256
_SAMPLED_HEADERS = 1024  # samples taken of all queues together
_MIN_HEADERS = 64  # samples taken of each queue
# Each header of a remote log takes two requests.
_REMOTE_QUEUES = 2
_BYTES_PER_REMOTE_HEADER = 128 << 20
_SHORT_LOG = 32 << 20  # bytes; reading such a log takes no longer than sampling it


class Sampler:
    """Takes samples of one store."""

    def __init__(self, log: CommitLog, queues: Queues, store_queues: StoreQueues) -> None:
        self._log = log
        self._queues = queues
        self._store_queues = store_queues
        self._bases: dict[str, int] = {}
        self._lowest_base = 0

    def sample(self, queue_slice: QueueSlice, count: int) -> list[Sample]:
        """Return up to ``count`` samples of a range, from its first to its last message.

        They are evenly spaced by queue offset. A range of at most ``_SAMPLED_UNITS`` messages gives
        one sample, which covers all of them.

        The logs of queues in tiered storage have no order among them. For planning, each of them
        lies before the log of the local store, at offsets below 0.
        """
        in_tier, local = self._store_queues.divide([queue_slice])
        samples: list[Sample] = []
        for tier in self._store_queues.tiers:
            for part in in_tier:
                queue_in_tier = tier.queue(part.topic, part.queue_id)
                log = queue_in_tier.log
                if log.folders not in self._bases:
                    self._lowest_base -= max(log.max_offset - log.min_offset, 1)
                    self._bases[log.folders] = self._lowest_base - log.min_offset
                base = self._bases[log.folders]
                for sample in sample_queue(queue_in_tier.units, part.start, part.end, count):
                    offset = sample.physical_offset + base
                    samples.append(sample._replace(physical_offset=offset))
        for part in local:
            queue = self._queues.open(part.topic, part.queue_id)
            samples += sample_queue(queue, part.start, part.end, count)
        return samples

    def at_ends(self, queue_slice: QueueSlice) -> SampledSlice:
        """Return a range sampled at its first and its last message."""
        return SampledSlice(queue_slice, self.sample(queue_slice, _FEWEST_SAMPLES))

    def mean_if_one_task(self, slices: Sequence[QueueSlice], limits: Limits) -> float | None:
        """Return the mean size of the messages in many ranges, None if one task cannot hold them.

        The longest ranges are sampled, and some others.
        """
        lengths = np.array(
            [queue_slice.end - queue_slice.start for queue_slice in slices], np.int64
        )
        n_records = int(lengths.sum())
        is_limited = n_records > (limits.max_records or n_records)
        if len(slices) < _MANY_RANGES or is_limited or (limits.min_partitions or 1) > 1:
            return None
        longest = np.argsort(-lengths, kind="stable")[:_ESTIMATED_BY]
        others = np.linspace(0, len(slices) - 1, _ESTIMATED_BY).astype(np.int64)
        n_bytes = [
            sum(self.at_ends(slices[row]).n_bytes for row in rows.tolist())
            for rows in (longest, others)
        ]
        # The longest are known by themselves; all the rest is like the others.
        n_rest = n_records - int(lengths[longest].sum())
        estimate = n_bytes[0] + n_bytes[1] / int(lengths[others].sum()) * n_rest
        return estimate / n_records if 2 * estimate < limits.max_bytes else None

    def evenly(self, sampled: Sequence[SampledSlice], limits: Limits) -> list[SampledSlice]:
        """Return ranges with as many samples as they need to be cut evenly.

        Args:
            sampled: the ranges, sampled at their ends.
            limits: those of the tasks that they are cut into.
        """
        n_bytes = sum(item.n_bytes for item in sampled)
        task_bytes = min(limits.max_bytes, n_bytes / (limits.min_partitions or 1))
        n_samples = _REMOTE_SAMPLES_PER_TASK if self._log.is_remote else _SAMPLES_PER_TASK
        # The bytes of a queue after which it needs another sample.
        step = max(task_bytes / _SAMPLES_PER_TASK, 1.0) * (_SAMPLES_PER_TASK / n_samples)
        result = []
        for item in sampled:
            n_records = item.queue_slice.end - item.queue_slice.start
            if n_records > _SMALL_QUEUE and item.n_bytes >= step:
                count = int(min(_FEWEST_SAMPLES + item.n_bytes / step, n_records, _MAX_SAMPLES))
                result.append(SampledSlice(item.queue_slice, self.sample(item.queue_slice, count)))
            else:
                result.append(item)
        return result

    def rows_within(self, queue_slice: QueueSlice, n_bytes: int) -> int:
        """Return how many messages at the start of a range have records of ``n_bytes`` at most."""
        count = 0
        queues = self._store_queues
        divided = queues.divide([queue_slice])[-len(queues.sources) :]
        for source, parts in zip(queues.sources, divided, strict=True):
            for part in parts:
                units = source.open(part.topic, part.queue_id)
                fitting, n_bytes = rows_that_fit(units, part.start, part.end, n_bytes)
                count += fitting
                if fitting < part.end - part.start:
                    return count
        return count

    def log_headers(self) -> list[int]:
        """Return the physical offsets where a scan of the log may be cut, sorted.

        These are the bounds of files within the log, and the frames of sampled records that store
        their own physical offset. Without queues only the bounds of files are sure.
        """
        headers = {bound for file in self._log.segments for bound in (file.start, file.end)}
        headers.discard(self._log.max_offset)
        queues = self._queues.plain()
        sampled = queues[:: max(1, len(queues) // _SAMPLED_QUEUES)]
        count = max(_MIN_HEADERS, _SAMPLED_HEADERS // max(len(sampled), 1))
        if self._log.is_remote:
            n_bytes = self._log.max_offset - self._log.min_offset
            sampled = sampled[:_REMOTE_QUEUES]
            count = max(2, min(count, n_bytes // (_BYTES_PER_REMOTE_HEADER * max(len(sampled), 1))))
        samples: list[Sample] = []
        with suppress(CorruptDatabaseError):  # the log can be read without queues
            for number, (topic, queue_id) in enumerate(sampled):
                _, queue, start, end, _ = self._queues.part(topic, queue_id)
                # Round-robin producers put the same offsets of all queues next to each other, so
                # samples are staggered.
                start += (end - start) * number // (count * len(sampled))
                if self._log.is_remote:
                    queue_offsets = np.array(_spaced(start, end, count), np.int64)
                    queue.prefetch(queue_offsets, min(_SAMPLED_UNITS, end - start))
                samples += sample_queue(queue, start, end, count)
        by_segment: dict[Segment, list[int]] = {}
        for sample in samples if self._log.is_remote else ():
            segment = self._log.find(sample.physical_offset)
            if segment is not None:
                position = sample.physical_offset - segment.start
                by_segment.setdefault(segment, []).append(position)
        # The headers of records, and of the frames that they are in, come together.
        for segment, positions in by_segment.items():
            starts = np.maximum(np.array(positions, np.int64) - MAX_FIXED_BYTES, 0)
            with suppress(FileDeletedError, UnreadableFileError):
                self._log.file_of(segment).prefetch(starts, 2 * MAX_FIXED_BYTES)
        for sample in samples:
            frame = frame_of(self._log, sample.physical_offset)
            if frame is not None:
                headers.add(frame)
        return sorted(headers)

    def log_parts(self, slices: Iterable[LogSlice], headers: Sequence[int]) -> list[SampledSpan]:
        """Cut ranges of the log at all headers in them; see :func:`join_parts`.

        Args:
            slices: the ranges; empty ones are left out.
            headers: physical offsets at which records begin, rising, also outside of the ranges.
        """
        parts: list[SampledSpan] = []
        for whole in slices:
            if whole.start >= whole.end:
                continue
            inner = headers[bisect_right(headers, whole.start) : bisect_left(headers, whole.end)]
            points = [whole.start, *inner, whole.end]
            lengths = self._log.data_lengths(np.array(points, np.int64)).tolist()
            parts += [
                SampledSpan(whole._replace(start=start, end=end), n_bytes)
                for (start, end), n_bytes in zip(pairwise(points), lengths, strict=True)
            ]
        return parts

    def log_points(self, whole: LogSlice, headers: Callable[[], Iterable[int]]) -> StoreTimes:
        """Return records of the log with their store times.

        They are all records of a short, valid log, else those at ``headers``.
        """
        points = self._every_record(whole)
        if points is not None:
            return points
        # Those in frames that cannot be read are left out.
        physical_offsets = np.array([*headers()], np.int64)
        records = records_in(self._log, physical_offsets)
        times, are_right = self._log.store_timestamps(records)
        return StoreTimes(physical_offsets[are_right], times[are_right])

    def _every_record(self, whole: LogSlice) -> StoreTimes | None:
        """Return all records of a range of the log, or None if the range is long or damaged."""
        physical_offsets = [np.empty(0, np.int64)]
        times = [np.empty(0, np.int64)]
        left = _SHORT_LOG
        for start, end, segment in self._log.segment_spans(whole.start, whole.end):
            if segment is None:
                continue
            window = window_at(self._log, segment, start, end, left)
            stop = window.records
            left -= window.stopped - start
            is_done = stop.kind is not StopKind.END or window.stopped == end
            is_lost = (
                stop.kind is StopKind.EMPTY
                and self._log.file_of(segment).written_end(segment.size) > stop.position
            )
            is_damaged = stop.kind in (StopKind.DAMAGE, StopKind.STALE)
            if is_damaged or is_lost or not is_done:
                return None
            for starts, headers, are_whole in window.headers():
                if not are_whole.all():
                    return None
                physical_offsets.append(starts + (segment.start - stop.head_bytes))
                times.append(headers.column("store_timestamp").astype(np.int64))
        return StoreTimes(np.concatenate(physical_offsets), np.concatenate(times), are_all=True)


def sample_queue(queue: Queue, start: int, end: int, count: int) -> list[Sample]:
    """Return samples of a range of a queue; see :meth:`Sampler.sample`."""
    if start >= end:
        return []
    units = short_units(queue, (start, end))
    whole = None if units is None else _weigh(queue, units, start, end)
    samples = []
    for queue_offset in _spaced(start, end, count):
        stop = min(queue_offset + _SAMPLED_UNITS, end)
        if whole is not None:
            rows = slice(queue_offset - start, stop - start)
            physical_offsets, weights = whole[0][rows], whole[1][rows]
        else:
            run = next(queue.runs(queue_offset, stop), None)
            if run is None or run[0] != queue_offset:
                continue
            physical_offsets, weights = _weigh(queue, queue.units(*run), *run)
        mean_bytes = float(weights.sum()) / len(weights)
        samples.append(Sample(queue_offset, int(physical_offsets[0]), mean_bytes))
    return samples


def rows_that_fit(queue: Queue, start: int, end: int, n_bytes: int) -> tuple[int, int]:
    """Return how many messages at the start of a range fit into ``n_bytes``, and what is left."""
    left = n_bytes
    for low, high in queue.runs(start, end):
        for first in range(low, high, _UNITS_AT_ONCE):
            sizes = np.cumsum(queue.weights(first, min(first + _UNITS_AT_ONCE, high)))
            fitting = int(np.searchsorted(sizes, left, side="right"))
            if fitting < len(sizes):
                return first - start + fitting, 0
            left -= int(sizes[-1])
    return end - start, left


def _spaced(start: int, end: int, count: int) -> list[int]:
    """Return the queue offsets at which a range is sampled."""
    if end - start <= _SAMPLED_UNITS:
        return [start]
    if count <= 2:
        return [start, end - 1]
    last = end - 1 - start  # from the start, as a float has no exact value for each queue offset
    places = np.linspace(0, last, count).astype(np.int64).clip(max=last)
    spaced: list[int] = (start + np.unique(places)).tolist()
    return spaced


def _weigh(queue: Queue, units: Units, start: int, end: int) -> tuple[Positions, NDArray[np.int64]]:
    """Return where the records of the messages in ``[start, end)`` lie, and their bytes, (n,)."""
    if queue.is_batch:  # messages share the bytes of a record
        return units.physical_offsets, queue.weights(start, end)
    return units.physical_offsets, np.maximum(units.sizes, 0)
