"""The parts of a range of a queue whose messages may lie in parts of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from rmqstore.errors import (
    CorruptQueueError,
    OffsetOutOfRangeError,
)
from rmqstore.format.layout import Mask
from rmqstore.read.time_search import short_units
from rmqstore.spans import QueueSlice, Span
from rmqstore.storage.queue.queue import NO_UNITS, Queue, Units, find_first

logger = logging.getLogger(__name__)

VOTING_UNITS: Final = 64  # consulted on each side of a queue offset


def estimate_physical_offset(
    queue: Queue, queue_offset: int, start: int, end: int, log_end: int
) -> int | None:
    """Return the median physical offset of the plausible units around a queue offset.

    The median is the physical offset of a unit at most ``VOTING_UNITS`` away, and a few damaged
    units do not move it far. A unit is plausible if it has the size of a record and points before
    the end of the log. If no unit is plausible, the result is None.

    An example with two voting units on each side, for queue offset 7 in a log of 1,000 bytes::

        queue offsets      4     5     6     7      8     9    10
        physical offsets  300   500   600    7  99999   900   950
        voters                  500   600    7          900        # 99999 is after the log end
        sorted              7   500   600   900
        estimate                      600                          # upper one of the middle two

    Args:
        queue: any kind of queue.
        queue_offset: in the range.
        start: first queue offset of the range whose units may vote.
        end: queue offset after the last of them.
        log_end: physical offset where the log ends.
    """
    low = max(queue_offset - VOTING_UNITS, start)
    high = min(queue_offset + VOTING_UNITS + 1, end)
    try:
        units = queue.units(low, high)
    except OffsetOutOfRangeError:
        # Some units are missing: those that the files have may vote.
        units = Units.joined(NO_UNITS, *(queue.units(*run) for run in queue.runs(low, high)))
    voters = np.sort(units.physical_offsets[units.may_be_right(log_end)])
    return int(voters[len(voters) // 2]) if len(voters) else None


def trim(
    queue: Queue, start: int, end: int, places: tuple[int, int], log_end: int
) -> tuple[int, int]:
    """Shrink a range by the messages at its ends that lie outside of a part of the log.

    No more than ``2 * VOTING_UNITS`` units are looked at on each side. A unit that is not plausible
    ends the search, for its message may lie anywhere.

    An example, for the part of the log from 250 to 450 and a log of 1,000 bytes::

        queue offsets     10    11    12    13    14    15    16
        physical offsets 100   200   300   400   500  9999   600
        outside          yes   yes                            yes  # 9999 may belong inside
        trimmed range                 12 ... ... ... ... 16        # (12, 16)

    Args:
        queue: any kind of queue.
        start: first queue offset of the range.
        end: queue offset after its last.
        places: physical offsets where the part of the log begins and ends.
        log_end: physical offset where the log ends.
    """
    max_units = 2 * VOTING_UNITS
    for low, high in queue.runs(start, min(start + max_units, end)):
        if low == start:
            units = queue.units(low, high)
            is_before = units.may_be_right(log_end) & (units.physical_offsets < places[0])
            start += _n_leading(is_before)
        break
    for low, high in queue.runs(max(end - max_units, start), end):
        if high == end:
            units = queue.units(low, high)
            is_after = units.may_be_right(log_end) & (units.physical_offsets >= places[1])
            end -= _n_leading(is_after[::-1])
    return start, end


def _n_leading(mask: Mask) -> int:
    """Return how many rows a mask sets before the first that it does not."""
    return len(mask) if mask.all() else int(np.argmin(mask))


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
