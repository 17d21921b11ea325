"""Prunes reads of a store to the ranges of queues and of the log that can meet conditions."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.format.layout import Positions
from rmqstore.format.schema import select_columns
from rmqstore.lazy import cached_property
from rmqstore.query.conditions import LogSpans, Pruning, StoreTimes, lie_in, parts_that_meet
from rmqstore.query.damage import DROPMALFORMED
from rmqstore.read.queue_ranges import slices_within
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import find_candidates, read_records
from rmqstore.read.record_filter import ALL_RECORDS
from rmqstore.read.rows import UnitRows
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, QueueKey, QueueSlice, Span
from rmqstore.storage.queue.queue import places_of
from rmqstore.storage.queue.tiered import TieredQueue, TieredQueues

logger = logging.getLogger(__name__)

# share of the log that the index may leave uncovered; with more it saves little
_MAX_UNCOVERED = 0.5
_SHORT_LOG = 32 << 20  # bytes of the log of one queue, of which every record is looked at
_SHORT_RANGE = 1 << 17  # units of such a log
_SAMPLES = 1 << 10  # records of a longer one
_HEADS = select_columns(["topic", "queueId", "queueOffset", "commitLogOffset", "storeSize"])


class PrunedQueues(NamedTuple):
    """What pruning leaves of ranges of queues."""

    slices: list[QueueSlice]  # those in tiered storage first
    single: UnitRows | None  # messages outside of the slices that the index pointed out


class StorePruner:
    """Prunes reads of one store."""

    def __init__(self, store: StoreParts, pruning: Pruning) -> None:
        self._store = store
        self._pruning = pruning

    @cached_property
    def headers(self) -> list[int]:
        """Physical offsets where a scan of the log may be cut; see ``sampling.Sampler``."""
        return self._store.sampler.log_headers()

    def queues(self, slices: Sequence[QueueSlice]) -> PrunedQueues:
        """Return the parts of ranges of queues that have to be read."""
        pruning = self._pruning
        kept: list[QueueSlice] = []
        for queue_slice in slices:
            start = max(queue_slice.start, pruning.queue_offsets.low)
            end = min(queue_slice.end, pruning.queue_offsets.high + 1)
            if start < end and pruning.keeps(queue_slice.topic, queue_slice.queue_id):
                kept.append(queue_slice._replace(start=start, end=end))
        in_tier, bounded = self._store.store_queues.divide(kept)
        for tier in self._store.tiers:
            in_tier = prune_tiered(tier, in_tier, pruning)
        if not bounded:
            return PrunedQueues(in_tier, None)
        log = self._store.ends.log_slice()
        whole = Span(log.start, log.end)
        parts = self._parts(whole)
        topics = self._store.ranges.indexed_topics({queue_slice.topic for queue_slice in bounded})
        lookup_keys = pruning.lookup_keys
        if not lookup_keys or not topics:
            return PrunedQueues(in_tier + self._cut_all(bounded, parts, whole), None)
        candidates = find_candidates(self._store, lookup_keys, sorted(topics), None, None)
        n_bytes = candidates.n_uncovered_bytes
        if n_bytes > _MAX_UNCOVERED * (whole.end - whole.start):
            logger.info("the index does not cover %d bytes of the log: the log is read", n_bytes)
            return PrunedQueues(in_tier + self._cut_all(bounded, parts, whole), None)
        gaps = LogSpans.of(candidates.uncovered)
        physical_offsets = candidates.physical_offsets
        physical_offsets = physical_offsets[
            lie_in(physical_offsets, parts.spans) & ~lie_in(physical_offsets, gaps.spans)
        ]
        indexed = [queue_slice for queue_slice in bounded if queue_slice.topic in topics]
        others = [queue_slice for queue_slice in bounded if queue_slice.topic not in topics]
        uncovered = self._cut_all(indexed, parts.met(gaps), whole)
        single = self._units(physical_offsets, indexed, uncovered)
        return PrunedQueues(in_tier + uncovered + self._cut_all(others, parts, whole), single)

    def _cut_all(self, slices: list[QueueSlice], parts: LogSpans, whole: Span) -> list[QueueSlice]:
        if parts.spans == (whole,):
            return slices
        cut: list[QueueSlice] = []
        for queue_slice in slices:
            queue = self._store.queues.open(queue_slice.topic, queue_slice.queue_id)
            cut += slices_within(queue, queue_slice, parts.spans, self._store.log.max_offset)
        return cut

    def log(self, whole: LogSlice) -> list[LogSlice]:
        """Return the parts of the log that have to be read.

        The index does not help: it may lack queueless records.
        """
        span = Span(whole.start, whole.end)
        parts = self._parts(span)
        if parts.spans == (span,):
            return [whole]
        # The parts are widened to physical offsets where a record surely begins.
        inner = [head for head in self.headers if whole.start < head < whole.end]
        headers = np.array([whole.start, *inner])
        widened = []
        for part in parts.spans:
            before = int(np.searchsorted(headers, part.start, side="right")) - 1
            after = int(np.searchsorted(headers, part.end))
            end = int(headers[after]) if after < len(headers) else whole.end
            widened.append(Span(int(headers[before]), end))
        joined = LogSpans.of(widened)
        return [whole._replace(start=part.start, end=part.end) for part in joined.spans]

    def _parts(self, whole: Span) -> LogSpans:
        """Return the parts of the log that conditions on physical offsets and store times leave."""
        store = self._store

        def points() -> StoreTimes:
            return store.sampler.log_points(store.ends.log_slice(), lambda: self.headers)

        return parts_that_meet(self._pruning, whole, points)

    def _units(
        self, physical_offsets: Positions, slices: Sequence[QueueSlice], but: Sequence[QueueSlice]
    ) -> UnitRows | None:
        """Return the units that point at physical offsets, in the order of the log.

        None if there is no such unit.

        Args:
            slices: the ranges of queues that the units are taken from.
            but: parts of these ranges that no unit is taken from.
        """
        spec = ReadSpec(_HEADS, mode=DROPMALFORMED, check_crc=False)
        batches = [*read_records(self._store, physical_offsets, spec, ALL_RECORDS)]
        if not batches:
            return None
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        queue_ids, offsets, physical_offsets, sizes = (
            rows.column(name).to_numpy() for name in _HEADS.names[1:]
        )
        encoded = rows.column("topic").dictionary_encode()
        topics, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        by_queue: dict[QueueKey, list[tuple[QueueSlice, bool]]] = defaultdict(list)
        for queue_slices, are_included in ((slices, True), (but, False)):
            for queue_slice in queue_slices:
                by_queue[queue_slice.topic, queue_slice.queue_id].append(
                    (queue_slice, are_included)
                )
        units = []
        for members in rows_by_queue(codes, queue_ids):
            key = topics[int(codes[members[0]])], int(queue_ids[members[0]])
            queue = self._store.queues.open(*key)
            span = queue.begin, queue.end()
            places = places_of(
                queue, offsets[members], physical_offsets[members], sizes[members], span
            )
            chosen = np.zeros(len(members), np.bool_)
            for queue_slice, is_included in by_queue[key]:
                is_in_slice = (places >= queue_slice.start) & (places < queue_slice.end)
                chosen[is_in_slice] = is_included
            if chosen.any():
                chosen_places = np.sort(places[chosen])
                stored = queue.units_of(chosen_places)
                units.append(UnitRows.of_queue(*key, chosen_places, stored))
        if not units:
            return None
        joined = UnitRows.joined(units)
        return joined.take(np.argsort(joined.physical_offsets, kind="stable"))


def prune_tiered(
    tier: TieredQueues, slices: Sequence[QueueSlice], pruning: Pruning
) -> list[QueueSlice]:
    """Return the parts of ranges in tiered storage that can meet conditions.

    Each queue has a log of its own there, so the conditions are applied to each by itself. Those on
    topics, queues and queue offsets have been applied.
    """
    left: list[QueueSlice] = []
    for queue_slice in slices:
        queue = tier.queue(queue_slice.topic, queue_slice.queue_id)
        whole = Span(queue.log.min_offset, queue.log.max_offset)
        parts = parts_that_meet(pruning, whole, partial(_points, queue, queue_slice))
        if parts.spans == (whole,):
            left.append(queue_slice)
        else:
            left += slices_within(queue.units, queue_slice, parts.spans, whole.end)
    return left


def _points(queue: TieredQueue, queue_slice: QueueSlice) -> StoreTimes:
    """Return records of a range with their times; none if their physical offsets do not rise.

    They are all records where the log of the queue is short.
    """
    n_units = queue_slice.end - queue_slice.start
    n_bytes = queue.log.max_offset - queue.log.min_offset
    are_all = n_units <= _SHORT_RANGE and n_bytes <= _SHORT_LOG
    count = n_units if are_all else min(n_units, _SAMPLES)
    spaced = np.linspace(queue_slice.start, queue_slice.end - 1, count).astype(np.int64)
    units = queue.units.units_of(np.unique(spaced))
    offsets = units.physical_offsets[units.may_be_right(queue.log.max_offset)]
    times, are_right = queue.log.store_timestamps(offsets)
    are_all &= len(offsets) == n_units and bool(are_right.all())
    offsets, times = offsets[are_right], times[are_right]
    if (np.diff(offsets) <= 0).any():
        return StoreTimes(offsets[:0], times[:0])
    return StoreTimes(offsets, times, are_all=are_all)
