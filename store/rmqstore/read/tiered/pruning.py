"""Prunes ranges of queues in tiered storage by conditions on store times and physical offsets.

Each queue has a log of its own there, so it is pruned by itself, in the way in which
``read.pruner`` prunes all queues by the log of a broker.
"""

from __future__ import annotations

import numpy as np

from rmqstore.query.conditions import Points, Pruning, parts_that_meet
from rmqstore.read.plan.slices_within import slices_within
from rmqstore.spans import QueueSlice, Span
from rmqstore.storage.tiered.queue import TieredQueue

_SHORT_LOG = 32 << 20  # bytes, of which every record is looked at
_SHORT_RANGE = 1 << 17  # units of such a log
_SAMPLES = 1 << 10  # records of a longer one


def prune(queue: TieredQueue, piece: QueueSlice, pruning: Pruning) -> list[QueueSlice]:
    """Return the parts of a range whose messages can meet the conditions.

    Args:
        queue: the queue in tiered storage.
        piece: a range of it.
        pruning: the conditions; those on topics, queues and queue offsets have been applied.
    """
    whole = Span(queue.log.min_offset, queue.log.max_offset)
    parts = parts_that_meet(pruning, whole, lambda: _points(queue, piece))
    if parts.spans == (whole,):
        return [piece]
    return slices_within(queue.units, piece, parts.spans, whole.end)


def _points(queue: TieredQueue, piece: QueueSlice) -> Points:
    """Return records of a range with their times; none if their physical offsets do not rise.

    They are all records where the log of the queue is short.
    """
    n_units = piece.end - piece.start
    n_bytes = queue.log.max_offset - queue.log.min_offset
    are_all = n_units <= _SHORT_RANGE and n_bytes <= _SHORT_LOG
    count = n_units if are_all else min(n_units, _SAMPLES)
    spaced = np.linspace(piece.start, piece.end - 1, count).astype(np.int64)
    units = queue.units.units_of(np.unique(spaced))
    offsets = units.physical_offsets[units.may_be_right(queue.log.max_offset)]
    times, are_right = queue.log.store_timestamps(offsets)
    are_all &= len(offsets) == n_units and bool(are_right.all())
    offsets, times = offsets[are_right], times[are_right]
    if (np.diff(offsets) <= 0).any():
        return Points(offsets[:0], times[:0])
    return Points(offsets, times, are_all=are_all)
