"""Where times of one kind lie in a queue or a log, found without a belief that store times rise.

A broker stamps a record when it appends it. So times rise, until its clock is set back or another
master with another clock takes over. No file says where that happened. It shows at samples, whose
times then fall, or it is so short that it hides between two of them. What samples leave open is
looked at more closely, in the end message by message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.layout import Positions
from rmqstore.query.conditions import time_ranges
from rmqstore.spans import QueueKey
from rmqstore.storage.queue.queue import find_first, short_units
from rmqstore.storage.queue.queue_source import QueuePart

_Place = tuple[str, int]  # a log by its folders, and a time, ms
# Returns the class of times (n,), which is 0 or greater. Times between two of a class are of it.
ClassOf = Callable[[NDArray[np.int64]], NDArray[np.int64]]

UNREADABLE: Final = -1  # the class of rows whose times cannot be read
_UNSURE: Final = -2
_NONE: Final = -3

_SAMPLES: Final = 128
_FEW: Final = 2 * _SAMPLES  # rows that are looked at one by one
_MANY_LOST: Final = 1 << 16  # rows
# How far before a row found by halves others are looked at: all that are close, then four for each
# doubling of the distance.
_DISTANCES: Final = np.unique(
    np.append(np.arange(1, 32), np.floor(2 ** np.arange(5, 62, 0.25)).astype(np.int64))
)[::-1]
_STEPS: Final = 8  # messages that are looked at where other queues have shown the place
_ENOUGH_QUEUES: Final = 16
_FAR: Final = 1 << 60  # ms; before and after any time


class TimeSearch:
    """Searches the queues of a store for times. What one search finds shortens the next ones.

    A queue is halved. That shows the first message at or after the time only if no message before
    it was as late, so others before it are looked at, on all scales: their times, and those that
    may hide between two of them. Where one of them may be late, all that may be are looked at.

    Args:
        on_fall: called with a queue if times fall around the time that is searched for.
    """

    def __init__(self, on_fall: Callable[[QueueKey], None]) -> None:
        self._on_fall = on_fall
        # By log and time: physical offsets and times of messages before the time, and the physical
        # offset before which none was as late, 0 where times fall.
        self._seen = defaultdict[_Place, list[tuple[Positions, Positions]]](list)
        self._before: dict[_Place, int] = {}

    def first(self, key: QueueKey, part: QueuePart, timestamp: int, *, tolerant: bool) -> int:
        """Return the first queue offset at or after a time, ms; see ``SearchByTime``."""
        place = part.log.folders, timestamp
        offset_of = _physical_offsets(part)
        with suppress(CorruptRecordError, OffsetOutOfRangeError):
            before = self._before.get(place, 0)
            found = _first_behind(part, timestamp, offset_of, before) if before else None
            if found is None:
                found, rows, times = _first_by_halves(part, timestamp, offset_of)
                if found is not None and len(rows) and place not in self._before:
                    self._note(place, part.units.units_of(rows).physical_offsets, times)
            if found is not None:
                return found

        def on_fall() -> None:
            self._before[place] = 0
            self._on_fall(key)

        return _first_of_all(part, timestamp, on_fall, tolerant=tolerant)

    def _note(self, place: _Place, physical_offsets: Positions, times: Positions) -> None:
        """Note messages before a time, of enough queues to know where others have to be searched.

        Those of all the queues lie close together, and hardly a time can hide between them.
        """
        seen = self._seen[place]
        seen.append((physical_offsets, times))
        if len(seen) == _ENOUGH_QUEUES:
            places, times = (np.concatenate(column) for column in zip(*seen, strict=True))
            order = np.argsort(places)
            may_be_late = time_ranges(times[order])[1][1:] >= place[1]
            row = int(np.argmax(np.append(may_be_late, True)))
            self._before[place] = int(places[order[min(row, len(order) - 1)]])


def _physical_offsets(part: QueuePart) -> Callable[[int], int]:
    """Return what gives the physical offset of a queue offset in a range, 0 without a unit."""
    units = short_units(part.units, (part.start, part.end))
    if units is None:
        return lambda queue_offset: part.units.unit(queue_offset)[0]
    physical_offsets = units.physical_offsets.tolist()
    return lambda queue_offset: physical_offsets[queue_offset - part.start]


def _first_behind(
    part: QueuePart, timestamp: int, offset_of: Callable[[int], int], physical_offset: int
) -> int | None:
    """Return the first queue offset at or after a time near a physical offset, None if farther."""
    stored_at = part.log.store_timestamp
    first = find_first(part.start, part.end, lambda number: offset_of(number) >= physical_offset)
    if first == part.start or stored_at(offset_of(first - 1)) < timestamp:
        for queue_offset in range(first, min(first + _STEPS, part.end)):
            if stored_at(offset_of(queue_offset)) >= timestamp:
                return queue_offset
        if first + _STEPS >= part.end:
            return part.end
    return None


def _first_by_halves(
    part: QueuePart, timestamp: int, offset_of: Callable[[int], int]
) -> tuple[int | None, Positions, Positions]:
    """Return the first queue offset at or after a time, None if an earlier one may be as late.

    The messages before it that were looked at, and their times, are returned as well.
    """
    start, stored_at = part.start, part.log.store_timestamp
    found = find_first(start, part.end, lambda number: stored_at(offset_of(number)) >= timestamp)
    distances = _DISTANCES[found - start > _DISTANCES]
    rows = np.append(start, found - distances)[: found - start]
    times, are_right = part.times(rows)
    is_early = are_right & (times < timestamp)
    if is_early.all() and len(rows):
        highs = time_ranges(times)[1][1:]
        is_early = (highs < timestamp) | (np.diff(rows, append=found) == 1)
    return found if is_early.all() else None, rows, times


def _first_of_all(
    part: QueuePart, timestamp: int, on_fall: Callable[[], None], *, tolerant: bool
) -> int:
    """Return the first queue offset at or after a time, however times fall."""
    unreadable = None  # the first of the messages right before ``first``

    def is_late(times: Positions) -> Positions:
        return (times >= timestamp).astype(np.int64)

    for first, _, number in runs_by_class(part, is_late, on_fall):
        if number == UNREADABLE:
            unreadable = first if unreadable is None else unreadable
        elif number:
            break
        else:
            unreadable = None
    else:
        first = part.end
    if unreadable is None:
        return first
    if not tolerant:
        part.stored_at(unreadable)  # says what is wrong with it
    return unreadable if first < part.end else first  # it takes the time of the next message


def runs_by_class(
    part: QueuePart, class_of: ClassOf, on_fall: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of messages of one class with the class, in the order of the queue.

    Two runs that follow each other may be of the same class. Messages are looked at as late as
    possible and as few as possible, so a caller that needs the first runs only stops there.

    An example: of a million messages, those from 700,000 on were stored at noon or later. Of 128
    samples the 89th is the last one before noon. The parts around it are widened, so that noon may
    lie in five of them. These are sampled again, and so on, until no more than 256 messages are
    left.

    Args:
        part: the messages.
        class_of: see ``ClassOf``.
        on_fall: called where messages are of a lower class than some before them.
    """
    waiting = [*_known(part)][::-1]
    while waiting:
        start, end, kind = waiting.pop()
        if start >= end:
            continue
        if kind > _UNSURE:
            yield start, end, kind
            continue
        if end - start <= _FEW:
            bounds = np.arange(start, end + 1)
            times, are_right = part.times(bounds[:-1])
            classes = np.where(are_right, class_of(times), UNREADABLE)
        else:
            bounds, classes = _sampled(part, start, end, class_of)
        if (np.diff(classes[classes >= 0]) < 0).any():
            on_fall()
        n_unsure = int(np.diff(bounds)[classes == _UNSURE].sum())
        begins_run = np.diff(classes, prepend=_NONE) != 0
        if 2 * n_unsure > end - start:  # each part is sampled by itself
            begins_run |= classes == _UNSURE
        firsts = np.flatnonzero(begins_run)
        edges = [*bounds[firsts].tolist(), end]
        waiting += reversed([*zip(edges[:-1], edges[1:], classes[firsts].tolist(), strict=True)])


def _known(part: QueuePart) -> Iterator[tuple[int, int, int]]:
    """Yield what the files have of a range, and what they lack, which is unreadable."""
    at = part.start
    for start, end in [*part.runs(), (part.end, part.end)]:
        yield at, start, UNREADABLE
        yield start, end, _UNSURE
        at = end


def _sampled(
    part: QueuePart, start: int, end: int, class_of: ClassOf
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the parts into which samples cut rows, (n + 1,), and the class of each, (n,)."""
    rows = np.linspace(start, end - 1, _SAMPLES).astype(np.int64)
    times, are_right = part.times(rows)
    rows, times = rows[are_right], times[are_right]
    if not len(rows):
        if end - start > _MANY_LOST:
            return np.array([start, end]), np.array([UNREADABLE])
        bounds = np.arange(start, end + _FEW, _FEW).clip(max=end)
        return bounds, np.full(len(bounds) - 1, _UNSURE)
    lows, highs = time_ranges(times)
    lows[0] = -_FAR
    if rows[-1] < end - 1:
        highs[-1] = _FAR
    classes = class_of(lows)
    classes = np.where(classes == class_of(highs), classes, _UNSURE)
    bounds = np.concatenate(([start], rows, [end]))
    is_part = np.diff(bounds) > 0
    return np.append(bounds[:-1][is_part], end), classes[is_part]
