"""What conditions on columns leave of a read: queues, queue offsets, parts of the log, keys.

Opens no file.

Pruning leaves out what surely does not meet the conditions. The rest may still hold messages that
do not meet them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import Mask, Positions
from rmqstore.query.selection import KEY_SEPARATOR, LookupKeys
from rmqstore.spans import LogSlice, Span

_LOWEST, _HIGHEST = -(1 << 63), 1 << 63
_FAR = 1 << 60  # ms; small enough that sums do not overflow
_CLOCK_SLACK_MS = 1000  # at least, because points that lie close together would give none
_NEIGHBOURS = 2  # parts on each side whose intervals widen those of a part
_MAX_LISTED = 8  # values of one condition in a log line
_MAX_PARTS = 1024  # of a log


class Between(NamedTuple):
    """The numbers from ``low`` to ``high``, both included."""

    low: int = _LOWEST
    high: int = _HIGHEST

    def met(self, other: Between) -> Between:
        """Return the numbers that are in both."""
        return Between(max(self.low, other.low), min(self.high, other.high))

    def joined(self, other: Between) -> Between:
        """Return the numbers from the lowest of both to the highest of both."""
        return Between(min(self.low, other.low), max(self.high, other.high))


ANY_NUMBER: Final = Between()
_Allowed = TypeVar("_Allowed", frozenset[str], frozenset[int], Between)  # values of a column


@dataclass(frozen=True, slots=True)
class Pruning:
    """Conditions that all requested rows meet.

    None, or ANY_NUMBER, if a column may have any value.
    """

    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    queue_ids: frozenset[int] | None = None
    queue_offsets: Between = ANY_NUMBER
    physical_offsets: Between = ANY_NUMBER
    store_timestamps: Between = ANY_NUMBER  # ms
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None  # whole strings as column keys has them
    msg_ids: frozenset[str] | None = None
    broker_names: frozenset[str] | None = None

    def __str__(self) -> str:
        """Return the conditions, for a log line."""
        texts = []
        for condition in fields(self):
            value = getattr(self, condition.name)
            if isinstance(value, Between):
                low = "" if value.low == _LOWEST else value.low
                high = "" if value.high == _HIGHEST else value.high
                value = f"{low}..{high}" if value != ANY_NUMBER else None
            elif value is not None and len(value) > _MAX_LISTED:
                value = f"{len(value)} of them"
            elif value is not None:
                value = ", ".join(map(str, sorted(value)))
            if value:
                texts.append(f"{condition.name} {value}")
        return "; ".join(texts) or "no conditions that leave anything out"

    def met(self, other: Pruning) -> Pruning:
        """Return the conditions of the rows that meet both."""
        prefixes = self.topic_prefixes + other.topic_prefixes
        return self._by_column(other, _met, prefixes)

    def joined(self, other: Pruning) -> Pruning:
        """Return conditions that both of two conditions imply.

        They are joined column by column, so other rows may meet them too.
        ``topic = 'A' AND queueId = 0 OR topic = 'B' AND queueId = 1`` leaves queues 0 and 1 of
        topics A and B.
        """
        prefixes = tuple(prefix for prefix in self.topic_prefixes if prefix in other.topic_prefixes)
        return self._by_column(other, _joined, prefixes)

    def _by_column(
        self, other: Pruning, join: Callable[[Any, Any], Any], topic_prefixes: tuple[str, ...]
    ) -> Pruning:
        """Return the conditions of each column joined, and the given prefixes of topics."""
        conditions = {
            column.name: join(getattr(self, column.name), getattr(other, column.name))
            for column in fields(self)
            if column.name != "topic_prefixes"
        }
        return Pruning(topic_prefixes=topic_prefixes, **conditions)

    def keeps_broker(self, name: str) -> bool:
        """Return whether rows of a broker can meet the conditions."""
        return self.broker_names is None or name in self.broker_names

    def keeps_topic(self, topic: str) -> bool:
        """Return whether rows of a topic can meet the conditions."""
        if self.topics is not None and topic not in self.topics:
            return False
        return all(map(topic.startswith, self.topic_prefixes))

    def keeps(self, topic: str, queue_id: int) -> bool:
        """Return whether rows of a queue can meet the conditions."""
        return self.keeps_topic(topic) and (self.queue_ids is None or queue_id in self.queue_ids)

    @property
    def lookup_keys(self) -> LookupKeys:
        """The keys or ids to look up in the index, none if the index cannot help."""
        if self.msg_ids is not None:
            return LookupKeys(msg_ids=self.msg_ids)
        if not self.keys:
            return LookupKeys()
        # The index holds words of KEYS: the first word of each key is enough to find its messages.
        words = {next(filter(None, key.split(KEY_SEPARATOR)), "") for key in self.keys}
        return LookupKeys() if "" in words else LookupKeys(keys=frozenset(words))

    def tagged(self, tags: frozenset[str] | None) -> frozenset[str] | None:
        """Return the tags that both the conditions and ``tags`` allow, None for all."""
        return _met(self.tags, tags)


def _met(left: _Allowed | None, right: _Allowed | None) -> _Allowed | None:
    """Return the values of both conditions on a column; None stands for all values."""
    if left is None or right is None:
        return right if left is None else left
    return left.met(right) if isinstance(left, Between) else left & right


def _joined(left: _Allowed | None, right: _Allowed | None) -> _Allowed | None:
    """Return the values of either condition on a column; None stands for all values."""
    if left is None or right is None:
        return None
    return left.joined(right) if isinstance(left, Between) else left | right


NO_PRUNING: Final = Pruning()


class StoreTimes(NamedTuple):
    """Records of the log in rising order, (n,): their physical offsets and store times, ms.

    Where records stand in frames, the offsets are those of the frames.
    """

    physical_offsets: Positions
    store_timestamps: NDArray[np.int64]
    are_all: bool = False  # all records of the log, not only some


class LogSpans(NamedTuple):
    """Ranges of the log in rising order that do not touch."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Self:
        """Join ranges that touch, and leave out empty ones; they are given in rising order."""
        joined: list[Span] = []
        for span in spans:
            if span.start >= span.end:
                continue
            if joined and span.start <= joined[-1].end:
                joined[-1] = Span(joined[-1].start, max(span.end, joined[-1].end))
            else:
                joined.append(span)
        return cls(tuple(joined))

    def met(self, other: LogSpans) -> LogSpans:
        """Return the ranges that lie in both."""
        common = [
            Span(max(a.start, b.start), min(a.end, b.end)) for a in self.spans for b in other.spans
        ]
        return LogSpans.of(common)


def lie_in(physical_offsets: Positions, ranges: Iterable[Span | LogSlice]) -> Mask:
    """Return a mask (n,) of the physical offsets that lie in ranges, which rise."""
    bounds = np.array([bound for part in ranges for bound in part[:2]], np.int64)
    inside: Mask = np.searchsorted(bounds, physical_offsets, side="right") % 2 == 1
    return inside


def parts_that_meet(pruning: Pruning, whole: Span, points: Callable[[], StoreTimes]) -> LogSpans:
    """Return the parts of a log that conditions on physical offsets and store times leave.

    Args:
        pruning: the conditions.
        whole: the range of the whole log.
        points: gives records of the log; called only if store times are limited.
    """
    start = max(pruning.physical_offsets.low, whole.start)
    end = min(pruning.physical_offsets.high + 1, whole.end)
    parts = LogSpans.of([Span(start, end)])
    if pruning.store_timestamps != ANY_NUMBER:
        parts = parts.met(parts_stored_within(points(), whole, pruning.store_timestamps))
    return parts


def time_ranges(
    store_timestamps: NDArray[np.int64], least_slack: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the least and the greatest time that records between points may have, (n + 1,).

    The parts are that before the first point, those between two points, and that after the last
    point. The first may hold any earlier time too, and the last any later one.

    A clock that is set back further than the time from one point to the next shows at the points,
    whose times then fall. A smaller step hides between them. So the times of each part are widened,
    on both sides, by twice the longest interval among its own and those of its neighbours.

    Args:
        store_timestamps: of the points, ms, (n,), n at least 1.
        least_slack: the least time by which they are widened, ms.
    """
    at_start = np.concatenate((store_timestamps[:1], store_timestamps))
    at_end = np.concatenate((store_timestamps, store_timestamps[-1:]))
    intervals = np.abs(at_end - at_start)
    longest_around = intervals.copy()
    for shift in range(1, _NEIGHBOURS + 1):
        longest_around[shift:] = np.maximum(longest_around[shift:], intervals[:-shift])
        longest_around[:-shift] = np.maximum(longest_around[:-shift], intervals[shift:])
    slack = np.maximum(2 * longest_around, least_slack)
    return np.minimum(at_start, at_end) - slack, np.maximum(at_start, at_end) + slack


def parts_stored_within(points: StoreTimes, whole: Span, times: Between) -> LogSpans:
    """Return the parts of the log that can hold records with the given store times.

    Where all records are known, the parts are those of the records that match, joined if little
    lies between them. Otherwise the points cut the log into parts, and a part holds the times from
    one of its ends to the other. The part before the first point may hold any earlier time, and the
    part after the last point any later one.

    The times are widened as :func:`time_ranges` says.

    For example, points at 100, 200, 300 and 400 of a log of 500 bytes, whose records were stored at
    seconds 10, 12, 15 and 20, leave three of five parts for a question about second 23::

        part            [0, 100)   [100, 200)   [200, 300)   [300, 400)   [400, 500)
        its ends        10, 10     10, 12       12, 15       15, 20       20, 20
        longest around  3          5            5            5            5
        widened         4 to 16    0 to 22      2 to 25      5 to 30      10 to 30
        holds 23        no         no           yes          yes          yes

    Args:
        points: records of the log.
        whole: the range of the whole log.
        times: store times, ms.
    """
    bounds = np.concatenate(([whole.start], points.physical_offsets, [whole.end]))
    if points.are_all:
        is_match = (points.store_timestamps >= times.low) & (points.store_timestamps <= times.high)
        return _joined_parts(bounds, np.append(False, is_match), whole)
    if not len(points.physical_offsets):
        return LogSpans.of([whole])
    lows, highs = time_ranges(points.store_timestamps.clip(-_FAR, _FAR), _CLOCK_SLACK_MS)
    may_match = (lows <= times.high) & (highs >= times.low)
    may_match[0] |= times.low <= highs[0]
    may_match[-1] |= times.high >= lows[-1]
    return _joined_parts(bounds, may_match, whole)


def _joined_parts(bounds: Positions, mask: Mask, whole: Span) -> LogSpans:
    """Return the chosen parts of a log, those that lie close together joined.

    Args:
        bounds: (n + 1,), where the parts begin and end.
        mask: (n,), the parts to choose.
    """
    edges = bounds[np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))]
    starts, ends = edges[0::2], edges[1::2]
    if not len(starts):
        return LogSpans(())
    joined_gap = (whole.end - whole.start) // _MAX_PARTS
    gaps = np.flatnonzero(starts[1:] - ends[:-1] > joined_gap)
    spans = zip(starts[np.append(0, gaps + 1)], ends[np.append(gaps, -1)], strict=True)
    return LogSpans.of([Span(int(start), int(end)) for start, end in spans])
