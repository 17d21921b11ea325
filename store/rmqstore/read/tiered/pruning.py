"""Prunes ranges of queues in tiered storage by conditions on store times and physical offsets.

Each queue has a log of its own there, so it is pruned by itself, in the way in which
``read.pruner`` prunes all queues by the log of a broker.
"""

from __future__ import annotations

import numpy as np

from rmqstore.query.conditions import ANY_NUMBER, LogParts, Points, Pruning, parts_stored_within
from rmqstore.read.plan.slices_within import slices_within
from rmqstore.spans import QueueSlice, Span
from rmqstore.storage.tiered.queues import TieredQueue

_MAX_POINTS = 256  # records of a queue whose store times are looked at


def prune(queue: TieredQueue, piece: QueueSlice, pruning: Pruning) -> list[QueueSlice]:
    """Return the parts of a range whose messages can meet the conditions.

    Args:
        queue: the queue in tiered storage.
        piece: a range of it.
        pruning: the conditions; those on topics, queues and queue offsets have been applied.
    """
    whole = Span(queue.log.min_offset, queue.log.max_offset)
    parts = LogParts.of([whole])
    if pruning.places != ANY_NUMBER:
        start = max(pruning.places.low, whole.start)
        end = min(pruning.places.high + 1, whole.end)
        parts = LogParts.of([Span(start, end)])
    if pruning.has_times:
        points = _points(queue, piece)
        parts = parts.met(parts_stored_within(points, whole, pruning.store_timestamps))
    if parts.spans == (whole,):
        return [piece]
    return slices_within(queue.units, piece, parts.spans, whole.end)


def _points(queue: TieredQueue, piece: QueueSlice) -> Points:
    """Return records of a range with their times; none if their physical offsets do not rise."""
    count = min(piece.end - piece.start, _MAX_POINTS)
    spaced = np.linspace(piece.start, piece.end - 1, count).astype(np.int64)
    units = queue.units.units_of(np.unique(spaced))
    offsets = units.physical_offsets[units.may_be_right(queue.log.max_offset)]
    times, are_right = queue.log.store_timestamps(offsets)
    offsets, times = offsets[are_right], times[are_right]
    if (np.diff(offsets) <= 0).any():
        return Points(offsets[:0], times[:0])
    return Points(offsets, times)
