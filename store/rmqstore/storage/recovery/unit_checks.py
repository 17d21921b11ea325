"""Whether units of a queue point at the records that they stand for; the log has the last word.

A recovery moves the end of a queue and clears nothing. The units of messages that it cut off stand
after that end until they are written over one by one, and point at places where other records, or
the middle of one, stand by now, or in the blank that closes a file, where their own records may
still stand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.checks import sound_topics
from rmqstore.format.columns.heads import Heads, read_heads
from rmqstore.format.columns.lmq import name_queues
from rmqstore.format.layout import LMQ_PREFIX, PRE_BLANK_SIZE, Bytes, Mask
from rmqstore.spans import LATEST_TIME, QueueKey
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.recovery.log_end import before_blank

_FIRST_UNITS = 64
_MOST_UNITS = 1 << 20
_UNITS_AT_ONCE = 1 << 18


def confirmed_end(log: CommitLog, queue: Queue, key: QueueKey, end: int, log_end: int) -> int:
    """Return the queue offset after the last unit before ``end`` that its record confirms.

    It is the queue's first offset where no unit is confirmed, and ``end`` where too many are not:
    that is damage, which reading them reports.

    Args:
        log: of the store.
        queue: by its files.
        key: its topic and queue id.
        end: queue offset after the last unit in the files.
        log_end: physical offset where the log ends.
    """
    if queue.begin < end and _is_confirmed(log, key, end - 1, queue.unit(end - 1), log_end):
        return end
    stop, size = end, _FIRST_UNITS
    while queue.begin < stop and end - stop < _MOST_UNITS:
        start = max(queue.begin, stop - size)
        right = np.flatnonzero(are_confirmed(log, queue, key, np.arange(start, stop), log_end))
        if len(right):
            return start + int(right[-1]) + 1
        stop, size = start, 8 * size
    return queue.begin if stop <= queue.begin else end


def _is_confirmed(
    log: CommitLog, key: QueueKey, queue_offset: int, unit: tuple[int, int, int], log_end: int
) -> bool:
    """Tell plainly whether a unit of a plain queue is confirmed: mostly the last one is, and there are many queues."""
    place, size, _ = unit
    if size <= 0 or not log.min_offset <= place <= log_end - size:
        return False
    try:
        parts = log.parts(place)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return False
    told = tuple(
        int(parts.fixed[name])
        for name in ("physical_offset", "total_size", "queue_id", "queue_offset")
    )
    if told != (place, size, key[1], queue_offset) or parts.topic != key[0].encode():
        return False
    segment = log.locate(place).segment
    return segment.end > log_end or bool(before_blank(log, segment, np.array([place])).all())


def look_confirmed(
    log: CommitLog, queue: Queue, key: QueueKey, start: int, end: int, log_end: int
) -> bool:
    """Tell whether the units ``[start, end)`` are confirmed; of very many, evenly spaced ones are looked at."""
    queue_offsets = np.unique(
        np.linspace(start, end - 1, min(end - start, _UNITS_AT_ONCE)).astype(np.int64)
    )
    return bool(are_confirmed(log, queue, key, queue_offsets, log_end).all())


def confirmed_runs(
    log: CommitLog,
    queue: Queue,
    key: QueueKey,
    start: int,
    end: int,
    log_end: int,
    stored_until: int = LATEST_TIME,
) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, end)`` whose units are confirmed by records that were not stored later, in ms."""
    for low in range(start, end, _UNITS_AT_ONCE):
        queue_offsets = np.arange(low, min(low + _UNITS_AT_ONCE, end))
        confirmed = are_confirmed(log, queue, key, queue_offsets, log_end, stored_until)
        edges = np.diff(confirmed.astype(np.int8), prepend=0, append=0)
        yield from zip(
            (low + np.flatnonzero(edges > 0)).tolist(),
            (low + np.flatnonzero(edges < 0)).tolist(),
            strict=True,
        )


def are_confirmed(
    log: CommitLog,
    queue: Queue,
    key: QueueKey,
    queue_offsets: NDArray[np.int64],
    log_end: int,
    stored_until: int = LATEST_TIME,
) -> Mask:
    """Return which units, by rising queue offset (n,), point at a record before the end of the log that says the same.

    A unit whose record was deleted with its file counts as confirmed.
    """
    units = queue.units_of(queue_offsets)
    places, sizes = units.physical_offsets, units.sizes
    is_unit = (sizes > 0) & (sizes < PRE_BLANK_SIZE) & (places >= 0)
    confirmed: Mask = is_unit & (places < log.min_offset)
    inside = is_unit & (places >= log.min_offset) & (places + sizes <= log_end)
    for segment in log.segments:
        rows = np.flatnonzero(inside & (places >= segment.start) & (places < segment.end))
        if len(rows) and segment.end <= log_end:
            rows = rows[before_blank(log, segment, places[rows])]
        if len(rows):
            starts = places[rows] - segment.start
            data = log.read_in_place(segment, starts, sizes[rows])
            heads, whole = read_heads(data, starts)
            whole &= (heads.column("physical_offset") == places[rows]) & (
                heads.column("total_size") == sizes[rows]
            )
            whole &= heads.column("store_timestamp") <= stored_until
            rows, heads = rows[whole], heads.take(whole)
            confirmed[rows] = _say_the_same(
                data, heads, key, queue_offsets[rows], is_batch=queue.is_batch
            )
    return confirmed


def _say_the_same(
    data: Bytes, heads: Heads, key: QueueKey, queue_offsets: NDArray[np.int64], *, is_batch: bool
) -> Mask:
    """Return which records (n,) are of a queue, and have, or hold, the message with the queue offset beside them."""
    topic, queue_id = key
    if topic.startswith(LMQ_PREFIX):
        return name_queues(data, heads, pa.repeat(topic, len(heads)), queue_offsets)
    same, _ = sound_topics(data, heads, [topic], np.zeros(len(heads), np.int32))
    told = heads.column("queue_offset")
    same &= (told <= queue_offsets) if is_batch else (told == queue_offsets)
    same &= heads.column("queue_id") == queue_id
    return same
