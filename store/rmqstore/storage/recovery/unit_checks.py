"""Checks whether units of a queue point at records with their queue offsets; the log decides.

A recovery moves the end of a queue and clears nothing. The units of messages that it cut off stand
after that end until they are written over one by one. By then other records, or the middle of one,
may stand at their physical offsets. Or these lie in the blank that closes a file, where the records
of the units may still stand.

A process that is killed, or a machine that loses its power, ends a write between two pages of a
file. The last unit may then lack its last bytes: its record is named, and its tags code is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.checks import valid_topics
from rmqstore.format.columns.lmq import have_torn_properties, offsets_in_queues
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import (
    LMQ_PREFIX,
    MIN_RECORD_BYTES,
    PRE_BLANK_SIZE,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
    Mask,
)
from rmqstore.format.text import parse_properties
from rmqstore.spans import LATEST_TIME, QueueKey
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, find_first, have_units_at, whole_end
from rmqstore.storage.recovery.log_end import before_blank

# Addresses into consumequeue_ext, but for the first one: half of any of them is equal to it.
_EXT_ADDRESSES = range(1 - (1 << 63), -(1 << 62))
_FIRST_UNITS = 64
_MOST_UNITS = 1 << 20
_UNITS_AT_ONCE = 1 << 18


def confirmed_end(
    log: CommitLog,
    queue: Queue,
    key: QueueKey,
    end: int,
    log_end: int,
    *,
    counts_damaged: bool = True,
) -> int:
    """Return the queue offset after the last unit before ``end`` that its record confirms.

    If no unit is confirmed, this is the first queue offset of the queue. If too many units at the
    end are not confirmed, it is ``end``: they are damaged, which a read of them reports. So do
    units whose record is gone count: nothing else stands in its place.

    Args:
        log: the log of the store.
        queue: the queue as its files have it.
        key: its topic and queue id.
        end: queue offset after the last unit in the files.
        log_end: physical offset where the log ends.
        counts_damaged: whether a unit counts that has another size than its record, or whose
            record is damaged behind its head. A broker keeps it, and a read reports it.
    """
    if queue.begin < end and _is_confirmed(log, key, end - 1, queue.unit(end - 1), log_end):
        return end
    size = _FIRST_UNITS
    while size <= _MOST_UNITS:
        start = max(queue.begin, end - size)
        queue_offsets = np.arange(start, end)
        confirmed, is_behind = confirm(
            log, queue, key, queue_offsets, log_end, counts_damaged=counts_damaged
        )
        # Units whose records name earlier queue offsets may be of before a cut of the log, unless
        # they follow on others. Those before a cut lead to records that have units of their own.
        followed = np.maximum.accumulate(np.where(is_behind, -1, np.arange(end - start)))
        confirmed &= (confirmed[followed] & (followed >= 0)) | (
            (followed < 0) & (start == queue.begin)
        )
        confirmed |= _are_lost(log, queue, queue_offsets, log_end)
        right = np.flatnonzero(confirmed)
        if len(right):
            return start + int(right[-1]) + 1
        if start == queue.begin:
            return start
        size *= 8
    return end


def completed_end(
    log: CommitLog, queue: Queue, key: QueueKey, start: int, end: int, log_end: int
) -> int:
    """Return the queue offset after the last unit that was written whole before a kill.

    The last unit that its record confirms is compared whole; those before it were written earlier.

    Args:
        log, queue, key: as for :func:`confirmed_end`.
        start: the first queue offset whose unit may not have been written.
        end: queue offset after the last unit in the files.
        log_end: physical offset where the log ends.
    """
    end = queue.cut(queue.begin, end, log_end)
    end = whole_end(queue, min(start, end), end)
    end = confirmed_end(log, queue, key, end, log_end, counts_damaged=False)
    if end == queue.begin or _has_its_tags_code(log, key, queue.unit(end - 1)):
        return end
    torn = queue.unit(end - 1)[0]  # messages of one record share their unit
    return find_first(queue.begin, end, lambda offset: queue.unit(offset)[0] >= torn)


def _has_its_tags_code(log: CommitLog, key: QueueKey, unit: tuple[int, int, int]) -> bool:
    physical_offset, _, code = unit
    try:
        record = log.parts(physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return True  # its record was lost, or deleted long after
    if b"\0" in record.properties:
        return True  # another page took its tags
    properties = parse_properties(record.properties)
    if key[0] == SCHEDULE_TOPIC and PROPERTY_DELAY in properties:
        # The settings may have had other delays when the unit was written.
        return code >= int(record.fixed["store_timestamp"])
    return code == tags_code(properties.get(PROPERTY_TAGS)) or code in _EXT_ADDRESSES


def _is_confirmed(
    log: CommitLog, key: QueueKey, queue_offset: int, unit: tuple[int, int, int], log_end: int
) -> bool:
    """Return quickly whether one unit is confirmed by a record of its own in a file that exists.

    There are many queues, and the last unit of most of them is confirmed this way. Units of light
    message queues and of batches need :func:`confirm`.
    """
    physical_offset, size, _ = unit
    if size <= 0 or not log.min_offset <= physical_offset <= log_end - size:
        return False
    try:
        parts = log.parts(physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return False
    names = ("physical_offset", "total_size", "queue_id")
    stored = tuple(int(parts.fixed[name]) for name in names)
    topic, queue_id = key
    if stored != (physical_offset, size, queue_id) or parts.topic != topic.encode():
        return False
    if int(parts.fixed["queue_offset"]) < queue_offset:
        return False
    segment = log.locate(physical_offset).segment
    if segment.end > log_end:
        return True
    return bool(before_blank(log, segment, np.array([physical_offset])).all())


def is_confirmed(
    log: CommitLog, queue: Queue, key: QueueKey, start: int, end: int, log_end: int
) -> bool:
    """Return whether the units ``[start, end)`` are confirmed; checks a sample of very many units.

    The sample is evenly spaced and includes both ends.
    """
    sample = np.linspace(start, end - 1, min(end - start, _UNITS_AT_ONCE))
    queue_offsets = np.unique(sample.astype(np.int64))
    return bool(confirm(log, queue, key, queue_offsets, log_end).mask.all())


def confirmed_runs(
    log: CommitLog,
    queue: Queue,
    key: QueueKey,
    start: int,
    end: int,
    log_end: int,
    stored_until: int = LATEST_TIME,
) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, end)`` whose units are confirmed by records stored in time.

    Args:
        log: the log of the store.
        queue: any kind of queue.
        key: its topic and queue id.
        start: first queue offset.
        end: queue offset after the last.
        log_end: physical offset where the log ends.
        stored_until: the latest store time of a record that confirms a unit, ms.
    """
    for low in range(start, end, _UNITS_AT_ONCE):
        queue_offsets = np.arange(low, min(low + _UNITS_AT_ONCE, end))
        confirmed = confirm(log, queue, key, queue_offsets, log_end, stored_until).mask
        edges = np.diff(confirmed.astype(np.int8), prepend=0, append=0)
        run_starts = low + np.flatnonzero(edges > 0)
        run_ends = low + np.flatnonzero(edges < 0)
        yield from zip(run_starts.tolist(), run_ends.tolist(), strict=True)


class Confirmed(NamedTuple):
    """What the log says of n units.

    Attributes:
        mask: (n,) those that point at a record of the queue before the end of the log. A unit
            whose record was deleted with its file counts as confirmed.
        is_behind: (n,) those of them that stand behind the queue offset in their record.
    """

    mask: Mask
    is_behind: Mask


def confirm(
    log: CommitLog,
    queue: Queue,
    key: QueueKey,
    queue_offsets: NDArray[np.int64],
    log_end: int,
    stored_until: int = LATEST_TIME,
    *,
    counts_damaged: bool = False,
) -> Confirmed:
    """Compare units with the records that they point at.

    Args:
        log: the log of the store.
        queue: any kind of queue.
        key: its topic and queue id.
        queue_offsets: those of the units, rising, (n,).
        log_end: physical offset where the log ends.
        stored_until: the latest store time of a record that confirms a unit, ms.
        counts_damaged: whether units are confirmed by records of another size, and by the heads of
            damaged ones.
    """
    topic, queue_id = key
    units = queue.units_of(queue_offsets)
    physical_offsets, sizes = units.physical_offsets, units.sizes
    is_unit = (sizes > 0) & (sizes < PRE_BLANK_SIZE) & (physical_offsets >= 0)
    if counts_damaged:
        sizes = _record_sizes(log, physical_offsets)
    is_deleted = physical_offsets < log.min_offset
    confirmed: Mask = is_unit & is_deleted
    is_behind = np.zeros(len(queue_offsets), np.bool_)
    is_inside = is_unit & ~is_deleted & (sizes > 0) & (physical_offsets + sizes <= log_end)
    for segment in log.segments:
        is_in_file = (physical_offsets >= segment.start) & (physical_offsets < segment.end)
        rows = np.flatnonzero(is_inside & is_in_file)
        if len(rows) and segment.end <= log_end:
            rows = rows[before_blank(log, segment, physical_offsets[rows])]
        if not len(rows):
            continue
        starts = physical_offsets[rows] - segment.start
        data = log.read_in_place(segment, starts, sizes[rows])
        headers, is_whole = read_headers(data, starts)
        agree = headers.column("physical_offset") == physical_offsets[rows]
        agree &= headers.column("total_size") == sizes[rows]
        if counts_damaged:
            is_named = headers.column("queue_id") == queue_id
            is_named &= headers.column("queue_offset") == queue_offsets[rows]
            confirmed[rows] = agree & ~is_whole & is_named
        agree &= is_whole & (headers.column("store_timestamp") <= stored_until)
        rows, headers = rows[agree], headers.take(agree)
        expected = queue_offsets[rows]
        if topic.startswith(LMQ_PREFIX):
            # Another page may have taken the names of the queues: a broker keeps the unit.
            named = offsets_in_queues(data, headers, pa.repeat(topic, len(headers)))
            stored = np.where(have_torn_properties(data, headers), expected, named)
            matches = stored >= 0
        else:
            matches, _ = valid_topics(data, headers, [topic], np.zeros(len(headers), np.int32))
            matches &= headers.column("queue_id") == queue_id
            stored = headers.column("queue_offset")
        if queue.is_batch:  # its record holds several messages
            confirmed[rows] = matches & (stored <= expected)
            continue
        is_behind[rows] = stored < expected
        behind = np.flatnonzero(matches & is_behind[rows])
        of_behind = rows[behind]
        matches[behind] = ~have_units_at(
            queue, stored[behind], physical_offsets[of_behind], sizes[of_behind]
        )
        confirmed[rows] = matches
    return Confirmed(confirmed, is_behind & confirmed)


def _are_lost(log: CommitLog, queue: Queue, queue_offsets: NDArray[np.int64], log_end: int) -> Mask:
    """Return a mask (n,) of the units that lead to a missing file of the log, or to zeros."""
    units = queue.units_of(queue_offsets)
    are_lost: Mask = units.may_be_right(log_end) & (units.physical_offsets >= log.min_offset)
    are_lost &= _record_sizes(log, units.physical_offsets) == 0
    return are_lost


def _record_sizes(log: CommitLog, physical_offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the total sizes of records, 0 where nothing was written, and -1 where none can be."""
    sizes = np.zeros(len(physical_offsets), np.int64)
    for segment in log.segments:
        starts = physical_offsets - segment.start
        rows = np.flatnonzero((starts >= 0) & (starts <= segment.size - MIN_RECORD_BYTES))
        if len(rows):
            data = log.read_in_place(segment, starts[rows], np.full(len(rows), MIN_RECORD_BYTES))
            found = read_headers(data, starts[rows])[0].column("total_size").astype(np.int64)
            sizes[rows] = np.where(found <= segment.size - starts[rows], found, -1)
    return sizes
