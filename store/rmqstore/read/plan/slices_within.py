"""Finds the messages of a queue that lie in parts of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from rmqstore.errors import CorruptQueueError
from rmqstore.read.plan.time_search import short_units
from rmqstore.spans import QueueSlice, Span
from rmqstore.storage.queue.bounds import find_first
from rmqstore.storage.queue.estimates import VOTING_UNITS, estimate_physical_offset, trim
from rmqstore.storage.queue.queue import Queue

logger = logging.getLogger(__name__)


def slices_within(
    queue: Queue, piece: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice]:
    """Return the parts of a range whose messages may lie in parts of the log, ascending.

    Around damaged units the parts also include some neighbouring messages.

    Args:
        queue: any kind of queue.
        piece: the range of it.
        spans: the parts of the log, rising.
        log_end: physical offset where the log ends.
    """
    parts = _sound_within(queue, piece, spans, log_end)
    if parts is not None:
        return parts

    def first_at(physical_offset: int, start: int) -> int:
        def is_reached(queue_offset: int) -> bool:
            estimate = estimate_physical_offset(
                queue, queue_offset, piece.start, piece.end, log_end
            )
            if estimate is None:
                raise CorruptQueueError(*queue.place(queue_offset), "no unit around is sound")
            return estimate >= physical_offset

        return find_first(start, piece.end, is_reached)

    parts = []
    stop = piece.start
    try:
        for span in spans:
            start = first_at(span.start, stop)
            stop = first_at(span.end, start)
            low = max(start - VOTING_UNITS, piece.start)
            high = min(stop + VOTING_UNITS, piece.end)
            low, high = trim(queue, low, high, span, log_end)
            if low >= high:
                continue
            if parts and low <= parts[-1].end:
                parts[-1] = parts[-1]._replace(end=max(high, parts[-1].end))
            else:
                parts.append(piece._replace(start=low, end=high))
    except CorruptQueueError as err:
        logger.info("%s: all of the range is read", err)
        return [piece]
    return parts


def _sound_within(
    queue: Queue, piece: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice] | None:
    """Return the parts of a short range in parts of the log; None unless all units are sound."""
    units = short_units(queue, (piece.start, piece.end))
    if units is None or not units.may_be_right(log_end).all():
        return None
    physical_offsets = units.physical_offsets
    if (np.diff(physical_offsets) < 0).any():
        return None
    parts: list[QueueSlice] = []
    for low, high in (piece.start + np.searchsorted(physical_offsets, spans)).tolist():
        if parts and low == parts[-1].end:
            parts[-1] = parts[-1]._replace(end=high)
        elif low < high:
            parts.append(piece._replace(start=low, end=high))
    return parts
