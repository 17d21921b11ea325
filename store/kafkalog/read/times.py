"""The offset for a time, as a broker answers it."""

from __future__ import annotations

import numpy as np

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.reference import records_of
from kafkalog.storage.indexes import TimeEntry, read_time_index
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.windows import Window
from rmqstore.errors import MalformedBytesError, OptionError, about

_NS_PER_MS = 1_000_000


def offset_for_time(log: PartitionLog, timestamp: int) -> int | None:
    """Return the offset that a broker gives for a time, None if it gives none.

    A broker looks into one segment only: the first whose largest timestamp is not earlier. In it,
    the answer is the first record that is not earlier; records of aborted transactions and markers
    count. The largest timestamp of a segment without any is the time of its file, so an empty
    segment, or one of format v0, may hide what follows it.

    Args:
        log: the log of a partition.
        timestamp: ms since the epoch, not negative.

    Raises:
        OptionError: the timestamp is negative.
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
        CorruptBatchError: the batch that has the answer is damaged, or one that may have it. A
            broker compares no CRC here, and believes what damaged batches say.

    Source: UnifiedLog.java#fetchOffsetByTimestamp, LogSegment.java#findOffsetByTimestamp.
    """
    if timestamp < 0:
        raise OptionError(about("timestamp", f" {timestamp}: must not be negative"))
    for number in range(len(log.segments)):
        largest, position = _largest_timestamp(log, number, timestamp)
        if largest >= timestamp:
            return _first_at(log, number, timestamp, position)
    return None


def _largest_timestamp(log: PartitionLog, number: int, timestamp: int) -> tuple[int, int | None]:
    """Return the largest timestamp of a segment, ms; the time of its file if it has none.

    A walk that begins at the start of the segment ends at the first batch that is not earlier than
    the timestamp asked for. The position of that batch is returned as well, or else None.

    The last entry of a time index was written when the segment was closed, unless the index was cut
    or the segment was not closed, so the batches after the one that it means count, too. Their
    heads are believed, as by a broker. A recovery builds the index again, from the batches.
    """
    last, begin = -1, None
    if log.is_recovered(number):
        last = log.largest_timestamps[log.segments[number].base_offset]
    else:
        entry = read_time_index(log.storage, log.segments[number]).last
        position = None if entry is None else _position_of(log, number, entry)
        if entry is None or position is None:
            last, begin = _first_later(log, number, timestamp)
        else:
            maxima = (window.heads.max_timestamp for window in log.windows_of(number, position))
            last = max(entry.timestamp, *(int(each.max(initial=-1)) for each in maxima))
    if last >= 0:
        return last, begin
    status = log.storage.status(log.segments[number].path)
    return -1 if status is None else status.modified_ns // _NS_PER_MS, None


def _first_later(log: PartitionLog, number: int, timestamp: int) -> tuple[int, int | None]:
    """Walk a segment to the first batch that is not earlier than a time.

    Returns:
        The largest timestamp up to it, and its position; None if all batches are earlier.

    Raises:
        CorruptBatchError: a batch up to it is damaged.
    """
    largest = -1
    for window in log.windows_of(number):
        heads = window.heads
        later = np.flatnonzero(heads.max_timestamp >= timestamp)
        window.require_sound(heads[: later[0] + 1] if len(later) else heads)
        largest = max(largest, int(heads.max_timestamp.max(initial=-1)))
        if len(later):
            return largest, int(heads.position[later[0]])
    return largest, None


def _position_of(log: PartitionLog, number: int, entry: TimeEntry) -> int | None:
    """Return a position at or before the batch that an entry of a time index means.

    Returns:
        None if the batch with the offset of the entry does not have its timestamp.
    """
    position = log.position_of(number, entry.offset)
    for window in log.windows_of(number, position):
        heads = window.heads
        rows = np.flatnonzero(heads.last_offset >= entry.offset)
        if len(rows):
            return position if heads.max_timestamp[rows[0]] == entry.timestamp else None
    return None


def _first_at(log: PartitionLog, number: int, timestamp: int, position: int | None) -> int | None:
    """Return the offset of the first record of a segment that is not earlier, None without one.

    Args:
        log: the log.
        number: of the segment.
        timestamp: the time, ms.
        position: all batches before it are known to be earlier; None if nothing is known.
    """
    told = -1  # the index tells that all up to this offset is earlier
    if position is None and not log.is_recovered(number):
        entry = read_time_index(log.storage, log.segments[number]).before(timestamp)
        position = None if entry is None else _position_of(log, number, entry)
        if entry is not None and position is not None:
            told = entry.offset
    for window in log.windows_of(number, position or 0):
        heads = window.heads
        rows = (heads.max_timestamp >= timestamp) & (heads.last_offset >= log.start_offset)
        n_checked = int(np.count_nonzero(np.logical_and.accumulate(heads.last_offset <= told)))
        for row in np.flatnonzero(rows).tolist():
            window.require_sound(heads[n_checked : row + 1])
            n_checked = row + 1
            offset = _first_in(window, heads[row : row + 1], log.start_offset, timestamp)
            if offset is not None:
                return offset
        window.require_sound(heads[n_checked:])
    return None


def _first_in(window: Window, heads: BatchHeads, start_offset: int, timestamp: int) -> int | None:
    """Return the offset of the first record of one batch that is not earlier, None without one."""
    try:
        for record in records_of(window.data, heads):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.offset
    except MalformedBytesError as err:
        position = int(heads.position[0])
        raise CorruptBatchError(window.segment.path, position, err.reason) from err
    return None
