"""Finds the end of a store's log as a broker's recovery does, but changes no file."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.search import find_blanks, store_their_offsets, stores_its_offset
from rmqstore.format.columns.walk import Walk
from rmqstore.format.framing import FrameNumbers, StopKind
from rmqstore.format.layout import (
    FIXED_PART_V4,
    FRAME_HEAD,
    MAX_FIXED_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
)
from rmqstore.format.record import check_record, split_record
from rmqstore.spans import FOREVER, LogSlice
from rmqstore.storage.broker.broker_run import Checkpoint, may_be_before_5
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog, first_record, read_frame
from rmqstore.storage.log.walks import (
    Window,
    newest_windows,
    next_record,
    walk_back,
    walk_forward,
    whole_records,
    window_at,
)

logger = logging.getLogger(__name__)

# A blank is shorter than the record that did not fit: a message or batch of at most 4 MiB, unless
# the broker is configured for longer ones.
_MAX_BLANK_BYTES = 5 << 20
_MAX_BLANKS = 16  # looked at in one file
# Source: DLedgerMmapFileStore.java#recover.
_RECOVERED_ENTRY_FILES = 3
_RECOVERED_FILES = 3  # of a log that was closed, before 5.0


class LogEnd(NamedTuple):
    """The end of a log: a recovery keeps the records before ``physical_offset``."""

    physical_offset: int
    path: str  # the file in which the log ends
    reason: str  # why the scan stopped; empty if only unwritten bytes follow
    bytes_behind: int  # from the end of the log to the end of its file
    last_store_timestamp: int = 0  # ms, of the last record; 0 without records
    scanned_from: int = 0  # physical offset where the scan began
    is_stale_after: bool = False  # a frame of before a cut follows
    blank_start: int | None = None  # of the blank before the end, if the end follows a blank


def find_log_end(log: CommitLog, checkpoint: Checkpoint) -> LogEnd:
    """Find the first record that a recovery refuses, in a store that was not closed.

    The scan begins where that of a broker would: at the newest file whose first record was on the
    disk according to the checkpoint. That of a DLedger log begins at the third last file of it.

    Source: CommitLog.java#recoverAbnormally, #isMappedFileMatchedRecover;
    DLedgerMmapFileStore.java#recover.
    """
    start = first_scanned = scan_start(log, checkpoint)
    entry_files = log.entry_segments[-_RECOVERED_ENTRY_FILES:]
    if entry_files:
        first_scanned = entry_files[0].start
        start = min(start, first_scanned)
    return find_end_from(log, first_scanned)._replace(scanned_from=start)


def find_end_from(log: CommitLog, start: int) -> LogEnd:
    """Find the first record that a recovery refuses, from physical offset ``start`` on.

    A record begins there, or will begin.

    Source: CommitLog.java#recoverNormally, #checkMessageAndReturnSize.
    """
    segments = log.segments
    if not segments:
        return LogEnd(0, "", "", 0)
    last_timestamp = 0
    after: FrameNumbers | None = None
    blank_start: int | None = None
    for segment in segments:
        if segment.end <= start:
            continue
        stop, file_timestamp = _scan(log, segment, after, max(segment.start, start))
        after = stop.last
        last_timestamp = file_timestamp or last_timestamp
        if stop.kind is not StopKind.BLANK:
            end = segment.start + stop.position
            is_unwritten = stop.kind is StopKind.EMPTY or not segment.size
            reason = "" if is_unwritten else stop.reason or stop.kind.value
            n_left = segment.end - end
            path = str(segment.path)
            is_stale = stop.kind is StopKind.STALE
            follows_blank = is_unwritten and end == segment.start
            return LogEnd(
                end, path, reason, n_left, last_timestamp, start, is_stale,
                blank_start if follows_blank else None,
            )  # fmt: skip
        blank_start = segment.start + stop.position
    return LogEnd(
        segments[-1].end, str(segments[-1].path), "", 0, last_timestamp, start,
        blank_start=blank_start,
    )  # fmt: skip


def end_in_last_files(
    log: CommitLog, paths: StorePaths, scanned_from: int = FOREVER, cut_at: int = FOREVER
) -> LogEnd | None:
    """Return where a broker before 5.0 ends a log that was closed; None for a later one's store.

    Later ones go by the queues. None also if a scan from ``scanned_from`` on has found the end.
    Files from ``cut_at`` on do not count.

    Source: CommitLog.java#recoverNormally of 4.9.
    """
    segments = [segment for segment in log.segments if segment.start < cut_at]
    if not segments or not may_be_before_5(paths):
        return None
    start = segments[-_RECOVERED_FILES:][0].start
    return find_end_from(log, start) if start < scanned_from else None


def end_of_broker(log: CommitLog, end: LogEnd) -> LogEnd:
    """Return where a broker continues after a blank: in the next segment if there is one.

    It does not ask whether that is the one that follows. If there is none, it writes its next
    record over the blank.

    Source: CommitLog.java#recoverNormally.
    """
    before = before_blank_of(log, end)
    at = end.blank_start
    if at is None:
        return before
    following = next((one for one in log.segments if one.start > at and one.size), None)
    if following is None:
        return before
    return end._replace(
        physical_offset=following.start, path=str(following.path), bytes_behind=following.size
    )


def before_blank_of(log: CommitLog, end: LogEnd) -> LogEnd:
    """Return the end of the records: the start of the blank if the log ends with one.

    A writer continues in the next segment. But a blank may hide an append of ours, and then records
    come to stand in its place. A read up to the end of its segment would continue after the last
    one of them, and miss records there.
    """
    segment = None if end.blank_start is None else log.find(end.blank_start)
    if segment is None or end.blank_start is None:
        return end
    n_left = segment.end - end.blank_start
    return end._replace(
        physical_offset=end.blank_start, path=str(segment.path), bytes_behind=n_left
    )


def before_our_blank(log: CommitLog, end: LogEnd, append_start: int | None) -> LogEnd:
    """Return the start of an append of ours that is not committed if only a blank hides it.

    The scan continues after the blank and ends in the empty segment that follows. Otherwise the
    result is ``end``.
    """
    return before_blank_of(log, end) if end.blank_start == append_start else end


def scan_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Return the physical offset where a recovery begins to scan: the start of a file.

    Brokers from 5.5.0 on go by the last record that is in all queues, if the checkpoint names it,
    and by first records that are whole; earlier ones look at the heads of these alone.

    Source: CommitLog.java, ConsumeQueueStore.java#isMappedFileMatchedRecover.
    """
    in_queues = checkpoint.logics_phy_offset
    latest = FOREVER if in_queues else checkpoint.min_timestamp
    for segment in reversed(log.segments[1:]):
        if in_queues and segment.start > in_queues:
            continue
        if 0 < log.first_timestamp(segment) <= latest:
            if not in_queues:
                return segment.start
            with suppress(MalformedBytesError):
                split_record(log.record(first_record(log, segment)).data, 0)
                return segment.start
    return log.min_offset


def is_whole_between(log: CommitLog, start: int, end: int) -> bool:
    """Return whether a recovery scan of the files from ``start`` to ``end`` reaches the next."""
    files = (segment for segment in log.segments if start <= segment.start < end)
    return all(
        _scan(log, segment, None, segment.start)[0].kind is StopKind.BLANK for segment in files
    )


def _scan(
    log: CommitLog, segment: Segment, after: FrameNumbers | None, start: int
) -> tuple[Walk, int]:
    """Walk one file from a physical offset on as a recovery does.

    It checks each record, its parts and the CRC of its body.

    Of a DLedger log only the headers of entries are checked.

    Returns:
        What ended the walk, and the store time of the last record before it, 0 without records.
    """
    last_timestamp = 0
    stop = Walk(np.empty(0, np.int64), StopKind.END, 0)
    checks_records = not log.framing(segment).keeps_torn_records
    end = segment.start + log.file_of(segment).size
    for window in walk_forward(log, segment, start, end, after):
        data, stop = window.data, window.records
        for starts, headers, whole in window.headers():
            if not checks_records:
                times = headers.column("store_timestamp")[whole]
                last_timestamp = int(times[-1]) if len(times) else last_timestamp
                continue
            has_its_body = valid_crcs(data, headers, stored_bodies(data, headers), of_records=False)
            refused = np.flatnonzero(~(whole & has_its_body))
            times = headers.column("store_timestamp")
            if len(refused):
                row = int(refused[0])
                position = int(starts[row])
                if row:
                    last_timestamp = int(times[row - 1])
                reason = _refusal(data, position)
                return Walk(stop.starts, StopKind.DAMAGE, position, reason), last_timestamp
            last_timestamp = int(times[-1])
        if window.damage is not None:
            break
    return stop, last_timestamp


def _refusal(data: Bytes, position: int) -> str:
    """Return why a recovery refuses the record at a position of a file."""
    head = data[position : position + FIXED_PART_V4.itemsize].view(FIXED_PART_V4)[0]
    try:
        check_record(data.data, position, int(head["physical_offset"]))
    except MalformedBytesError as err:
        return err.reason
    return "a recovery refuses the record"


def count_after(log: CommitLog, end: LogEnd) -> tuple[int, int]:
    """Return the number and the bytes of whole records after the end of a log, in all files."""
    n_records = n_bytes = 0
    for segment in log.segments:
        if segment.end <= end.physical_offset:
            continue
        written = log.written_end(segment)
        first = next_record(log, segment, max(end.physical_offset + 1, segment.start), written)
        for window, headers in whole_records(log, first, written):
            counted = store_their_offsets(window.data, headers.starts, segment.start)
            n_records += int(counted.sum())
            n_bytes += int(headers.column("total_size")[counted].sum())
    return n_records, n_bytes


def find_written_end(log: CommitLog) -> int:
    """Return the physical offset after the newest record of a closed log; reads its last bytes."""
    for window in newest_windows(log):
        is_closed = window.records.kind is StopKind.BLANK
        return window.segment.end if is_closed else window.stopped
    return log.min_offset


def n_written(log: CommitLog, log_slices: Iterable[LogSlice]) -> list[int]:
    """Return how many bytes of each range of a log may hold records.

    A file of a closed log has its full size, however little was written to it.
    """
    end = log.max_offset if log.is_remote else written_end(log)
    return [max(min(log_slice.end, end) - log_slice.start, 0) for log_slice in log_slices]


def written_end(log: CommitLog) -> int:
    """Return the physical offset after the last byte of the log that is not zero."""
    for segment in reversed(log.segments):
        end = log.written_end(segment)
        if end > segment.start:
            return end
    return log.min_offset


def last_record_before(log: CommitLog, physical_offset: int) -> int | None:
    """Return the physical offset of the last record before one where records, or a blank, end.

    None if there is no such record in the same file.
    """
    segment = log.find(physical_offset - 1)
    if segment is None:
        return None
    for window in walk_back(log, segment, physical_offset):
        starts, is_closed = window.records.starts, window.records.kind is StopKind.BLANK
        if len(starts) and (is_closed or window.stopped == physical_offset):
            return segment.start + int(starts[-1])
    return None


def before_blank(log: CommitLog, segment: Segment, physical_offsets: Positions) -> Mask:
    """Return a mask (n,) of the physical offsets before the blank that closes a full file.

    A broker writes only the head of a blank. After a recovery, records that it cut off may stand in
    the rest of the blank, whole and at their physical offsets, and end with an older blank. The
    chain of records leads to the first blank.
    """
    if log.framing(segment).clears_blanks:
        return np.ones(len(physical_offsets), np.bool_)
    start = max(log.file_of(segment).size - _MAX_BLANK_BYTES, 0)
    end = int(physical_offsets.max()) - segment.start
    if end <= start:
        return np.ones(len(physical_offsets), np.bool_)
    size = end - start + FRAME_HEAD.itemsize
    data = log.read_in_place(segment, np.array([start]), np.array([size]))
    for blank in (find_blanks(data, start, end) + segment.start)[:_MAX_BLANKS].tolist():
        if last_record_before(log, blank) is not None:
            before: Mask = physical_offsets < blank
            return before
    return np.ones(len(physical_offsets), np.bool_)


def damage_met(window: Window, queues_end: int) -> str | None:
    """Return whether a read of a store that was closed met damage or the end of the log.

    The log also ends there if a record has come to stand there since the walk: a writer has opened
    the store, and the queues point at its records.

    Args:
        window: the walk, which stopped before its end.
        queues_end: physical offset after the last record that any queue points at, -1 where there
            are no queues.

    Returns:
        What is damaged; None where the log ends, or ended when the walk looked.
    """
    log, segment, stop = window.log, window.segment, window.records
    reason = damage_at(log, segment, stop, queues_end)
    if reason is None:
        if stop.kind is not StopKind.EMPTY:
            logger.warning(
                "%s: the log ends at %d; old bytes follow, left by a recovery (%s)",
                segment.path, window.stopped, stop.reason,
            )  # fmt: skip
        return None
    now = window_at(log, segment, window.stopped, segment.end, size=1, after=stop.last).records
    has_gone_on = bool(len(now.starts)) or now.kind is StopKind.BLANK
    return None if has_gone_on else reason


def damage_at(log: CommitLog, segment: Segment, stop: Walk, queues_end: int) -> str | None:
    """Return whether a walk over a store that was *closed* met damage or the end of the log.

    Args:
        segment: the file that was walked.
        stop: what ended the walk: EMPTY, STALE or DAMAGE.
        queues_end: physical offset after the last record that any queue points at, -1 where there
            are no queues.

    Returns:
        What is damaged; None where the log ends here.
    """
    physical_offset = segment.start + stop.position
    reason = stop.reason or stop.kind.value
    if queues_end > physical_offset:
        return f"{reason}, but the queues point at records up to {queues_end}"
    newer = (other for other in log.segments if other.start > segment.start)
    headers = ((other, read_frame(log, first_record(log, other))) for other in newer)
    later = next((other for other, head in headers if head[1] in TOPIC_LENGTH_BYTES), None)
    if later is not None and (
        stop.kind is not StopKind.EMPTY or later.start <= queues_end or queues_end < 0
    ):
        return f"{reason}, though {later.path.name} holds records"
    if stop.kind is StopKind.EMPTY:
        # Without queues, the log ends here only if nothing was ever written after it.
        if queues_end < 0 and log.file_of(segment).written_end(segment.size) > stop.position:
            return "bytes never written, but more bytes follow in the file"
        return None
    if stop.kind is not StopKind.STALE:
        if queues_end < 0:
            return stop.reason
        record = physical_offset + stop.head_bytes
        stored_head = log.read(segment, record - segment.start, MAX_FIXED_BYTES)
        if stores_its_offset(stored_head, 0, record):
            return stop.reason
    # A recovery cuts a log by moving its end. The bytes after the end stay until the next record is
    # written over them. DLedger cuts off entries that a new leader does not have in the same way.
    return None


def is_damaged_at(log: CommitLog, end: LogEnd, queues_end: int) -> bool:
    """Return whether a recovery ends the log of a store that was *closed* at damage.

    See :func:`damage_at`. After an empty last file there is nothing.
    """
    segment = log.find(end.physical_offset)
    if segment is None:
        return False
    kind = StopKind.DAMAGE if end.reason else StopKind.EMPTY
    stop = Walk(np.empty(0, np.int64), kind, end.physical_offset - segment.start, end.reason)
    return damage_at(log, segment, stop, queues_end) is not None
