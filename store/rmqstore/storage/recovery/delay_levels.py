"""The delay of each level, by the broker's settings or by the units of delayed messages.

A unit of a delayed message holds its time of delivery: the store time and the delay of its level.
So a store whose broker has a ``messageDelayLevel`` of its own shows that, and mostly the table too.

Source: MessageStoreConfig.java#messageDelayLevel; ScheduleMessageService.java.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.dispatch_requests import delay_ms
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    DELIVERY_TOLERANCE_MS,
    PRE_BLANK_SIZE,
    PROPERTY_DELAY,
    SCHEDULE_TOPIC,
)
from rmqstore.format.text import parse_properties
from rmqstore.storage.broker.store_config import sizes_of
from rmqstore.storage.files.paths import StorePaths, has_queue_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_set import open_files
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueues

_NEWEST_UNITS = 16  # of each level that are looked at
_HIGHEST_LEVEL = 1000
_SECOND_MS = 1000


class DelayLevels(NamedTuple):
    """The delay of each level in ms, level 1 first."""

    delays: tuple[int, ...]
    # Whether the settings say so, or no unit says otherwise. If not, delays were taken from units,
    # and those of levels without units are RocketMQ's usual ones.
    are_known: bool = True


def find_delay_levels(
    paths: StorePaths, log: CommitLog, in_rocksdb: RocksDbQueues | None = None
) -> DelayLevels:
    """Return the delays of the levels of one store.

    Args:
        paths: paths of the store; its settings decide if there are any.
        log: its CommitLog.
        in_rocksdb: its queues in RocksDB, None if it has none there.
    """
    if paths.settings is not None:
        return DelayLevels(sizes_of(paths.settings).delay_levels or DELAY_LEVELS_MS)
    seen: dict[int, int] = {}
    queue_ids = set() if in_rocksdb is None else {*in_rocksdb.queue_ids(SCHEDULE_TOPIC)}
    if has_queue_folder(paths, SCHEDULE_TOPIC):
        queue_ids.update(paths.queue_folders.queue_ids(SCHEDULE_TOPIC))
    for queue_id in sorted(queue_ids):
        with closing(open_files(paths, SCHEDULE_TOPIC, queue_id, in_rocksdb=in_rocksdb)) as queue:
            seen |= _delays_in(queue, log)
    odd = {
        level: delay
        for level, delay in seen.items()
        if abs(delay - (delay_ms(str(level)) or 0)) > DELIVERY_TOLERANCE_MS
    }
    if not odd:
        return DelayLevels(DELAY_LEVELS_MS)
    usual = dict(enumerate(DELAY_LEVELS_MS, start=1))
    highest = max(*usual, *seen)
    delays = [seen.get(level, usual.get(level, 0)) for level in range(1, highest + 1)]
    return DelayLevels(tuple(delays), are_known=False)


def _delays_in(queue: Queue, log: CommitLog) -> dict[int, int]:
    """Return the delays by level that all of the newest units of a queue agree upon."""
    end = queue.end()
    start = max(queue.begin, end - _NEWEST_UNITS)
    if start >= end:
        return {}
    units = queue.units_of(np.arange(start, end))
    delays: dict[int, list[int]] = {}
    for physical_offset, size, due in zip(*(column.tolist() for column in units), strict=True):
        if not 0 < size < PRE_BLANK_SIZE:
            continue
        try:
            parts = log.parts(physical_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            continue
        text = parse_properties(parts.properties).get(PROPERTY_DELAY, "")
        is_level = text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _HIGHEST_LEVEL
        if is_level and parts.topic == SCHEDULE_TOPIC.encode():
            delay = due - int(parts.fixed["store_timestamp"])
            delays.setdefault(int(text[:9]), []).append(delay)
    return {
        level: found[0] // _SECOND_MS * _SECOND_MS
        for level, found in delays.items()
        if max(found) - min(found) <= DELIVERY_TOLERANCE_MS
        and found[0] >= 0
        and found[0] % _SECOND_MS <= DELIVERY_TOLERANCE_MS  # a table of levels has whole seconds
    }
