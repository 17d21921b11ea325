"""Which records get a unit when a queue is built from the log, and where their units stand.

A broker puts the unit of a record at the end of its queue. The queue offset in the record decides
only where a new queue begins, and whether the record gets a unit: it gets none if it names an
offset before the end, which an earlier record has. One that leaps ahead follows on the last one.

The place of a unit is the queue offset of its message. Readers, checks and writers compare it with
no queue offset in a record.

Source: ConsumeQueue.java#putMessagePositionInfo.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import MIN_RECORD_BYTES, QUEUE_UNIT
from rmqstore.spans import LostSpan, Span

_UNIT: Final = QUEUE_UNIT.itemsize
# The name of its file still fits, and sums of larger offsets stay inside a Java long.
MAX_QUEUE_OFFSET: Final = (1 << 58) // _UNIT
_STARTS_LOOKED_AT: Final = 8
_Lost = TypeVar("_Lost", Span, LostSpan)
_start_of = attrgetter("start")


class Placed(NamedTuple):
    """Records with consecutive queue offsets, in the order of the log.

    Attributes:
        passed: rows of the first ones, which get no unit.
        taken: rows of the others.
        place: the queue offset of the first unit.
    """

    passed: slice
    taken: slice
    place: int


def place_records(
    queue_offsets: NDArray[np.int64],
    end: int | None,
    keeps_gap: Callable[[int, int], bool] = lambda _row, _n_missing: False,
    n_older: int = 0,
) -> Iterator[Placed]:
    """Yield where the units of records stand, run by run.

    Args:
        queue_offsets: those in the records, (n,), in the order of the log.
        end: the queue offset after the last unit; None for a queue that has none yet.
        keeps_gap: asked with the row of a record that leaps ahead and the number of queue offsets
            that it leaves out. If these were of records that the log has lost, the record keeps
            its own.
        n_older: how many records, the first ones, no broker comes to. It appends each other one
            that names queue offset 0.
    """
    # A broker compares places in bytes, which overflow.
    compared = queue_offsets * _UNIT // _UNIT
    is_zero = queue_offsets == 0
    is_zero[:n_older] = False
    cuts = np.flatnonzero((np.diff(queue_offsets) != 1) | is_zero[1:]) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(queue_offsets)] if len(is_zero) else []):
        start, first = low, int(compared[low])
        place = end if end is not None else max(first, 0)
        if is_zero[low] and place > 0:
            yield Placed(slice(low, low), slice(low, low + 1), place)
            start, first, place = low + 1, 1, place + 1
        n_passed = min(max(place - first, 0), high - start)
        if end is None and first >= MAX_QUEUE_OFFSET:
            n_passed = high - start
        elif first > place and keeps_gap(start, first - place):
            place = first
        taken = slice(start + n_passed, high)
        if start < high:
            yield Placed(slice(start, taken.start), taken, place)
        if end is not None or taken.start < high:
            end = place + high - taken.start


def begins_again_at(queue_offsets: NDArray[np.int64], expected: int) -> int | None:
    """Return the row from which on a queue begins again, None if it does not.

    The topic was deleted then, and made again: its first record has queue offset 0 once more. A
    record with queue offset 0 from which the later ones do not continue has a wrong one instead.

    Args:
        queue_offsets: int64 (n,), in the order of the log.
        expected: the next queue offset.
    """
    for row in np.flatnonzero(queue_offsets == 0)[: -_STARTS_LOOKED_AT - 1 : -1].tolist():
        has_some_before = expected > 0 or bool((queue_offsets[:row] >= 0).any())
        following = queue_offsets[row + 1 : row + 2]
        if has_some_before and (not len(following) or following[0] == 1):
            return int(row)
    return None


def lost_between(
    lost: Sequence[_Lost],
    start: int,
    stop: int,
    n_missing: int,
    min_bytes: int = MIN_RECORD_BYTES,
) -> Sequence[_Lost]:
    """Return the parts of the log that may have held missing records; none if they had no room.

    Args:
        lost: parts of the log in which no record was found, rising.
        start: physical offset after the record before the missing ones.
        stop: physical offset of the record after them.
        n_missing: how many are missing.
        min_bytes: the least number of bytes of each.
    """
    before = lost[: bisect_left(lost, stop, key=_start_of)]
    between = before[bisect_left(before, start, key=_start_of) :]
    found = between or [span for span in before[-1:] if span.end > start]
    n_bytes = sum(span.end - span.start for span in found)
    return found if n_missing <= max(n_bytes // min_bytes, 1) else ()
