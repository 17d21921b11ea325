"""Turns the bounds of a selection into queue offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from rmqstore.errors import Argument, OffsetOutOfRangeError, OptionError, Text, about
from rmqstore.query.selection import EARLIEST, LATEST, Bound, Selection
from rmqstore.read.plan.time_search import FoundTimes
from rmqstore.spans import QueueKey
from rmqstore.storage.broker.config_files import BrokerConfig

logger = logging.getLogger(__name__)


class QueueOffsets(Protocol):
    """The method of ``queue_ranges.QueueRanges`` that this module uses."""

    def at_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        span: tuple[int, int],
        *,
        tolerant: bool = False,
    ) -> int: ...


class _Side(NamedTuple):
    """Where the ranges of a selection start, or where they end."""

    argument: str  # starting_offsets or ending_offsets
    bound: Bound
    committed: Mapping[QueueKey, int]  # the offsets of the group that the bound names, if any


class BoundResolver:
    """Turns the bounds of one selection into offsets of one store's queues.

    Args:
        queues: tells where queues begin and end.
        selection: the selection with the bounds.
        config: configuration of the store's broker, which has the committed offsets of groups.
        broker: name of the broker.
        fail_on_data_loss: whether a bound outside of the messages that are left is an error.
        tolerant: whether a damaged message whose time is needed is skipped.

    Raises:
        OptionError: the group of a bound has no offsets.
    """

    def __init__(
        self,
        queues: QueueOffsets,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> None:
        self._queues, self._selection, self._broker = queues, selection, broker
        self._fail_on_data_loss, self._tolerant = fail_on_data_loss, tolerant
        start, end = selection.start, selection.end
        self._start = _Side("starting_offsets", start, _committed(start.group, config))
        self._end = _Side("ending_offsets", end, _committed(end.group, config))

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
        if bound.timestamp is not None:
            return bound.timestamp
        return bound.of(self._broker, topic, queue_id, bound.by_timestamp)

    def _offset(
        self, topic: str, queue_id: int, span: tuple[int, int], side: _Side, found: FoundTimes
    ) -> int:
        bound = side.bound
        timestamp = self._time(topic, queue_id, bound)
        if timestamp is not None:
            return self._at_time(topic, queue_id, span, side, timestamp, found)
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

    def _at_time(
        self,
        topic: str,
        queue_id: int,
        span: tuple[int, int],
        side: _Side,
        timestamp: int,
        found: FoundTimes,
    ) -> int:
        first = found.get(((topic, queue_id), timestamp))
        if first is None:
            tolerant = self._tolerant or not self._fail_on_data_loss
            first = self._queues.at_time(topic, queue_id, timestamp, span, tolerant=tolerant)
        is_start = side is self._start
        if first == span[1] and is_start and self._selection.timestamp_strategy == "error":
            raise OffsetOutOfRangeError(
                Text(
                    f"{topic}-{queue_id} has no message stored at or after {timestamp} ms; ",
                    Argument("starting_offsets_by_timestamp_strategy", "latest"),
                    " begins at the end of such queues",
                )
            )
        return first

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
        text = about(
            side.argument,
            f" of {topic}-{queue_id} is {queue_offset}, the queue holds {low} to {high} (excluded)",
        )
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(
                Text(text, "; ", Argument("fail_on_data_loss", value=False), " reads what is left")
            )
        logger.warning("data loss: %s; reading what is left", text)
        return min(max(queue_offset, low), high)


def _committed(group: str | None, config: BrokerConfig) -> Mapping[QueueKey, int]:
    if group is None:
        return {}
    offsets = config.consumer_offsets(group)
    if not offsets:
        known = ", ".join(config.groups()) or "none"
        raise OptionError(
            f"group {group!r} has no committed offsets in config/; groups that have: {known}"
        )
    return offsets
