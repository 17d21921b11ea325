"""Messages of topics by hour or day, counted by the units of their queues: no body is read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.query.arguments import TopicArguments
from rmqstore.query.selection import parse_selection
from rmqstore.query.times import current_zone
from rmqstore.read.stored_times import UNREADABLE, runs_by_class
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

HOUR = "hour"
DAY = "day"
_LENGTHS: Final = {HOUR: 3_600_000, DAY: 86_400_000}  # ms
COLUMNS: Final = pa.schema(
    [("topic", pa.string()), ("time", pa.timestamp("ms", "UTC")), ("messages", pa.int64())]
)


def count_by_time(stores: Iterable[MessageStore], unit: str, chosen: TopicArguments) -> pa.Table:
    """Return how many messages of each topic were stored in each hour or day that has any.

    Hours and days begin in the current time zone. A few messages of each queue are looked at for
    each of them, as for a search by time.

    Args:
        stores: one of each broker.
        unit: ``hour`` or ``day``.
        chosen: which topics.
    """
    counts: Counter[tuple[str, int | None]] = Counter()
    for store in stores:
        selection = parse_selection(**chosen)
        store.parts.ranges.require_queues(selection)
        queues = store.parts.ranges.choose(selection)
        for topic, queue_ids in queues.items():
            for queue_id in queue_ids:
                for start, count in _counts(store, topic, queue_id, unit):
                    counts[topic, start] += count
    unknown = {topic: count for (topic, start), count in counts.items() if start is None}
    for topic, count in sorted(unknown.items()):
        logger.warning("%s: the store time of %d messages cannot be read", topic, count)
    rows = [
        {"topic": topic, "time": start, "messages": count}
        for (topic, start), count in sorted(
            counts.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or 0)
        )
    ]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def _counts(
    store: MessageStore, topic: str, queue_id: int, unit: str
) -> Iterable[tuple[int | None, int]]:
    """Yield the start of each hour or day of a queue, ms, and the number of its messages.

    None stands for the start where the store time of a message cannot be read. Where a clock was
    set back, an hour comes again.
    """
    queues, periods = store.parts.store_queues, _Periods(unit)
    runs = store.parts.retry(
        lambda: [
            run
            for part in queues.parts(topic, queue_id)
            for run in runs_by_class(part, periods.numbers)
        ]
    )
    for start, end, number in runs:
        begin = None if number == UNREADABLE else periods.starts[number]
        yield begin, queues.n_messages(topic, queue_id, start, end)


class _Periods:
    """The hours or days of the current time zone that times lie in, numbered as they are met.

    Attributes:
        starts: when each begins, ms.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self.starts: list[int] = []
        self._numbers: dict[int, int] = {}  # by start

    def numbers(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the hour or day of each time, (n,)."""
        numbers = np.full(len(times), -1, np.int64)
        while len(left := np.flatnonzero(numbers < 0)):
            start, stop = self._around(int(times[left[0]]))
            if start not in self._numbers:
                self._numbers[start] = len(self.starts)
                self.starts.append(start)
            inside = left[(times[left] >= start) & (times[left] < stop)]
            numbers[inside] = numbers[left[0]] = self._numbers[start]
        return numbers

    def _around(self, stored: int) -> tuple[int, int]:
        """Return when the hour or day of a time begins and when the next one does."""
        # A day need not have 24 hours: it ends where the next date begins.
        try:
            moment = datetime.fromtimestamp(stored / 1000, current_zone())
            first = moment.replace(minute=0, second=0, microsecond=0)
            if self._unit == HOUR:
                start = round(first.timestamp()) * 1000
                return start, start + _LENGTHS[HOUR]
            midnight = first.replace(hour=0, fold=0)
            stop = midnight + timedelta(days=1)
            return round(midnight.timestamp()) * 1000, round(stop.timestamp()) * 1000
        except (OverflowError, ValueError, OSError):  # at the edge of the calendar
            start = stored - stored % _LENGTHS[self._unit]
            return start, start + _LENGTHS[self._unit]
