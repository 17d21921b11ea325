"""Where the bounds of a selection lie in queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from rmqstore.errors import OffsetOutOfRangeError, rendered
from rmqstore.query.selection import EARLIEST, LATEST, Bound, Selection
from rmqstore.spans import QueueKey

logger = logging.getLogger(__name__)

# Queue offsets by queue and store time, ms, of searches that were made together.
FoundTimes = Mapping[tuple[QueueKey, int], int]
_NOTHING_FOUND: Final[FoundTimes] = MappingProxyType({})


class SearchByTime(Protocol):
    """Returns the first queue offset in ``span`` whose message was stored at or after a time, ms.

    The end of the span is returned if no message is late enough. With ``tolerant`` a message that
    is damaged takes the time of the next one that can be read.

    Raises:
        CorruptRecordError: a message whose time is needed is damaged.
        OffsetOutOfRangeError: a message whose time is needed is missing.
    """

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
        self,
        topic: str,
        queue_id: int,
        span: tuple[int, int],
        found: FoundTimes = _NOTHING_FOUND,
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

    def start(
        self,
        topic: str,
        queue_id: int,
        span: tuple[int, int],
        found: FoundTimes = _NOTHING_FOUND,
    ) -> int:
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
