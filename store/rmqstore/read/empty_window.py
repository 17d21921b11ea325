"""The warning of a window of time that contains none of the queues' messages."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from rmqstore.errors import RmqStoreError, number_of
from rmqstore.query.conditions import Pruning
from rmqstore.query.selection import Bound, Selection
from rmqstore.query.times import in_current_zone
from rmqstore.read.store_parts import StoreParts

logger = logging.getLogger(__name__)

_FEW: Final = 3  # topics that are named
_MOST_QUEUES: Final = 1024  # that are looked at: each takes two records


def warn_of_empty_window(store: StoreParts, selection: Selection, pruning: Pruning) -> None:
    """Log when the messages of a selection were stored, if it asks for a window of time.

    For a read that found no message in it. The first and the last message of each queue are looked
    at; what cannot be read is left out, since nothing is read of it.
    """
    if not (_is_of_time(selection.start) or _is_of_time(selection.end)):
        return
    topics = dict[str, None]()
    times: list[int] = []
    for topic, queue_id in islice(store.ranges.keys(selection, pruning), _MOST_QUEUES):
        with suppress(RmqStoreError, OSError):
            start, end = store.store_queues.range(topic, queue_id)
            if start < end:
                topics[topic] = None
                times.append(store.store_queues.stored_at(topic, queue_id, start))
                times.append(store.store_queues.stored_at(topic, queue_id, end - 1))
    if times:
        is_some = len(topics) > _FEW
        named = number_of(len(topics), "topic") if is_some else ", ".join(topics)
        logger.warning(
            "%s: no message was stored in the window of time that is asked for; those of %s were "
            "stored from %s to %s",
            store.paths.root, named, _time_text(min(times)), _time_text(max(times)),
        )  # fmt: skip


def _is_of_time(bound: Bound) -> bool:
    return bound.timestamp is not None or bool(bound.by_timestamp)


def _time_text(millis: int) -> str:
    try:
        time = in_current_zone(datetime.fromtimestamp(millis / 1000, UTC))
    except (ValueError, OverflowError):
        return f"{millis} ms"
    return time.isoformat(timespec="milliseconds")
