"""Messages of topics by hour or day, counted by the units of their queues: no body is read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa

from rmqstore.errors import CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError
from rmqstore.query.arguments import TopicArguments
from rmqstore.query.selection import parse_selection
from rmqstore.query.times import current_zone
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

    None stands for the start where the store time of a message cannot be read.
    """
    parts = store.parts
    length = _LENGTHS[unit]
    at, end = store.queue_range(topic, queue_id)
    while at < end:
        try:
            stored = parts.store_queues.stored_at(topic, queue_id, at)
        except (CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError):
            yield None, 1
            at += 1
            continue
        # A day need not have 24 hours: it ends where the next date begins.
        try:
            moment = datetime.fromtimestamp(stored / 1000, current_zone())
            first = moment.replace(minute=0, second=0, microsecond=0)
            if unit == HOUR:
                start = round(first.timestamp()) * 1000
                stop = start + length
            else:
                midnight = first.replace(hour=0, fold=0)
                start = round(midnight.timestamp()) * 1000
                stop = round((midnight + timedelta(days=1)).timestamp()) * 1000
        except (OverflowError, ValueError, OSError):  # at the edge of the calendar
            start = stored - stored % length
            stop = start + length
        queues = parts.store_queues
        search = partial(queues.at_time, topic, queue_id, stop, (at + 1, end), tolerant=True)
        following = parts.retry(search)
        yield start, queues.n_messages(topic, queue_id, at, following)
        at = following
