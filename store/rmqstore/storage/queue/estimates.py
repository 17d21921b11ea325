"""Estimates where messages of a queue lie in the log, by a vote of the units around them."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.layout import Mask
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.units import NO_UNITS, Units

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
    units = _units_there(queue, low, high)
    voters = np.sort(units.physical_offsets[units.may_be_right(log_end)])
    return int(voters[len(voters) // 2]) if len(voters) else None


def _units_there(queue: Queue, start: int, end: int) -> Units:
    """Return the units of a range that the files have, in most cases all."""
    with suppress(OffsetOutOfRangeError):
        return queue.units(start, end)
    return Units.joined(NO_UNITS, *(queue.units(*run) for run in queue.runs(start, end)))


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
