"""Where the bounds of a selection lie in queues, and searches of many queues for store times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, rendered
from rmqstore.format.layout import Positions
from rmqstore.query.selection import EARLIEST, LATEST, Bound, Selection
from rmqstore.spans import QueueKey
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, Units, find_first

logger = logging.getLogger(__name__)

# Queue offsets by queue and store time, ms; see TimeSearch.run.
FoundTimes = Mapping[tuple[QueueKey, int], int]

_SHORT_RANGE = 1024  # units
_MAX_UNITS = 1 << 20  # 8 bytes each
_NEIGHBOURS = 256  # messages tried after a damaged one for a store time


class TimeSearch:
    """Bisects queues for store times, one step of all searches at a time.

    So each step reads the headers of many records in the order of the log. The steps are those of
    ``QueueRanges.at_time``, which decides where a record on the way cannot be read.

    An example: a queue has messages of the times 10, 20, 20 and 30, and queue offset 5 is the
    first. Time 20 is found at queue offset 6, and time 31 at the end, queue offset 9.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._physical_offsets: list[Positions] = []
        self._searches: list[tuple[QueueKey, int, int, int]] = []  # queue, time, first unit, start
        self._lengths: list[int] = []
        self._n_units = 0

    @property
    def is_full(self) -> bool:
        """Whether memory should not hold more units."""
        return self._n_units >= _MAX_UNITS

    def add(
        self, key: QueueKey, times: Collection[int], start: int, physical_offsets: Positions
    ) -> None:
        """Add the searches of a queue.

        Args:
            key: topic and queue id.
            times: the times to search for, ms.
            start: the first queue offset.
            physical_offsets: those of its units from there on, (n,).
        """
        for time in times:
            self._searches.append((key, time, self._n_units, start))
            self._lengths.append(len(physical_offsets))
        self._physical_offsets.append(physical_offsets)
        self._n_units += len(physical_offsets)

    def run(self) -> dict[tuple[QueueKey, int], int]:
        """Return for queues and times the first queue offset stored at or after the time.

        It is the end of the queue if there is none. A search that met a record which cannot be read
        is left out.
        """
        if not self._searches:
            return {}
        physical_offsets = np.concatenate(self._physical_offsets)
        times = np.array([time for _, time, _, _ in self._searches], np.int64)
        first_units = np.array([first for _, _, first, _ in self._searches], np.int64)
        low = np.zeros(len(times), np.int64)
        high = np.array(self._lengths, np.int64)
        is_valid = np.ones(len(times), np.bool_)
        while len(rows := np.flatnonzero((low < high) & is_valid)):
            middle = (low[rows] + high[rows]) // 2
            middles = physical_offsets[first_units[rows] + middle]
            stored, is_valid[rows] = self._log.store_timestamps(middles)
            is_late = stored >= times[rows]
            high[rows] = np.where(is_late, middle, high[rows])
            low[rows] = np.where(is_late, low[rows], middle + 1)
        return {
            (key, time): start + row
            for (key, time, _, start), row, is_found in zip(
                self._searches, low.tolist(), is_valid.tolist(), strict=True
            )
            if is_found
        }


def search_together(
    log: CommitLog,
    open_queue: Callable[[str, int], Queue],
    queues: Iterable[tuple[QueueKey, tuple[int, int]]],
    times_of: Callable[[str, int], Collection[int]],
) -> Iterator[tuple[QueueKey, tuple[int, int], FoundTimes]]:
    """Yield queues with their ranges, in order, and with what was found for their times.

    Nothing is found in long ranges, which are better searched one by one.

    Args:
        log: the log of the store.
        open_queue: returns a queue by topic and id.
        queues: the queues with their ranges, by queue offset.
        times_of: returns the times to search a queue for, ms.
    """
    search = TimeSearch(log)
    waiting: list[tuple[QueueKey, tuple[int, int]]] = []
    for key, span in queues:
        times = times_of(*key)
        if not times and not waiting:
            yield key, span, {}
            continue
        waiting.append((key, span))
        units = short_units(open_queue(*key), span) if times else None
        if units is not None:
            search.add(key, times, span[0], units.physical_offsets)
        if search.is_full:
            found = search.run()
            yield from ((*queue, found) for queue in waiting)
            search, waiting = TimeSearch(log), []
    found = search.run()
    yield from ((*queue, found) for queue in waiting)


def first_stored_at(
    log: CommitLog, queue: Queue, timestamp: int, span: tuple[int, int], *, tolerant: bool
) -> int:
    """Return the first queue offset in a span whose message was stored at or after a time.

    See ``QueueRanges.at_time``.
    """
    physical_offset_of = _physical_offsets(queue, span)

    def is_late(queue_offset: int) -> bool:
        for neighbour in range(queue_offset, min(queue_offset + _NEIGHBOURS, span[1])):
            try:
                return log.store_timestamp(physical_offset_of(neighbour)) >= timestamp
            except (CorruptRecordError, OffsetOutOfRangeError):
                if not tolerant:
                    raise
        return False

    return find_first(*span, is_late)


def _physical_offsets(queue: Queue, span: tuple[int, int]) -> Callable[[int], int]:
    """Return what gives the physical offset of a queue offset in ``span``, 0 without a unit."""
    units = short_units(queue, span)
    if units is None:
        return lambda queue_offset: queue.unit(queue_offset)[0]
    physical_offsets = units.physical_offsets.tolist()
    return lambda queue_offset: physical_offsets[queue_offset - span[0]]


def short_units(queue: Queue, span: tuple[int, int]) -> Units | None:
    """Return the units of a short range; None if it is long, or if files of it are missing.

    To read them at once costs as much as to read one.
    """
    start, end = span
    if 0 < end - start <= _SHORT_RANGE and [*queue.runs(start, end)] == [span]:
        with suppress(OffsetOutOfRangeError):
            return queue.units(start, end)
    return None


class SearchByTime(Protocol):
    """Returns the queue offset of the first message at or after a store time, ms."""

    def __call__(
        self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int], *, tolerant: bool
    ) -> int: ...


class _Side(NamedTuple):
    """The starts or the ends of a selection's ranges."""

    argument: str  # starting_offsets or ending_offsets
    bound: Bound
    committed: Mapping[QueueKey, int]  # the offsets of the group that the bound names, if any


class BoundResolver:
    """Turns the bounds of one selection into offsets of the queues of one broker.

    Args:
        selection: the selection with the bounds.
        broker: name of the broker.
        at_time: searches a queue, given with its span, by a store time.
        committed: returns the committed offsets of a group.
        fail_on_data_loss: whether a bound outside of the messages that are left is an error.
        tolerant: whether a damaged message whose time is needed is skipped.

    Raises:
        OptionError: the group of a bound has no offsets.
    """

    def __init__(
        self,
        selection: Selection,
        broker: str,
        at_time: SearchByTime,
        committed: Callable[[str], Mapping[QueueKey, int]],
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> None:
        self._selection = selection
        self._broker = broker
        self._at_time = at_time
        self._fail_on_data_loss = fail_on_data_loss
        self._tolerant = tolerant
        start, end = selection.start, selection.end
        of_start = {} if start.group is None else committed(start.group)
        of_end = {} if end.group is None else committed(end.group)
        self._start = _Side("starting_offsets", start, of_start)
        self._end = _Side("ending_offsets", end, of_end)

    def times(self, topic: str, queue_id: int) -> set[int]:
        """Return the store times, ms, for which a queue has to be searched."""
        times = (self._time(topic, queue_id, side.bound) for side in (self._start, self._end))
        return {time for time in times if time is not None}

    def bounds(
        self, topic: str, queue_id: int, span: tuple[int, int], found: FoundTimes
    ) -> tuple[int, int]:
        """Return where the selection starts and ends in a queue.

        Args:
            topic: topic name.
            queue_id: queue id.
            span: where the queue begins and ends.
            found: results of searches by time; others are made when they are needed.
        """
        start = self.start(topic, queue_id, span, found)
        return start, self._offset(topic, queue_id, span, self._end, found)

    def start(self, topic: str, queue_id: int, span: tuple[int, int], found: FoundTimes) -> int:
        """Return where the selection starts in a queue; see :meth:`bounds`."""
        return self._offset(topic, queue_id, span, self._start, found)

    def _time(self, topic: str, queue_id: int, bound: Bound) -> int | None:
        if bound.timestamp is not None or not bound.by_timestamp:
            return bound.timestamp
        return bound.of(self._broker, topic, queue_id, bound.by_timestamp)

    def _offset(
        self, topic: str, queue_id: int, span: tuple[int, int], side: _Side, found: FoundTimes
    ) -> int:
        bound = side.bound
        timestamp = self._time(topic, queue_id, bound)
        if timestamp is not None:
            first = found.get(((topic, queue_id), timestamp))
            if first is None:
                tolerant = self._tolerant or not self._fail_on_data_loss
                first = self._at_time(topic, queue_id, timestamp, span, tolerant=tolerant)
            is_start = side is self._start
            if first == span[1] and is_start and self._selection.timestamp_strategy == "error":
                raise OffsetOutOfRangeError(
                    f"{topic}-{queue_id} has no message stored at or after {timestamp} ms; "
                    "`starting_offsets_by_timestamp_strategy=latest` begins at the end of such "
                    "queues"
                )
            return first
        queue_offset = side.committed.get((topic, queue_id))
        if queue_offset is None:
            queue_offset = bound.of(self._broker, topic, queue_id, bound.offsets)
        if queue_offset is None:
            queue_offset = bound.default
        if queue_offset == EARLIEST:
            return span[0]
        if queue_offset == LATEST:
            return span[1]
        return self._within(topic, queue_id, span, side, queue_offset)

    def _within(
        self, topic: str, queue_id: int, span: tuple[int, int], side: _Side, queue_offset: int
    ) -> int:
        """Return an offset that lies in the queue: a bound itself, or the nearest offset to it."""
        low, high = span
        if low <= queue_offset <= high:
            return queue_offset
        if side is self._end and queue_offset < low:
            # The range ends before the messages that are left; its start shows a loss.
            return low
        text = (
            f"`{side.argument}` of {topic}-{queue_id} is {queue_offset}, the queue holds "
            f"{low} to {high} (excluded)"
        )
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; `fail_on_data_loss=False` reads what is left")
        logger.warning("data loss: %s; reading what is left", rendered(text))
        return min(max(queue_offset, low), high)
