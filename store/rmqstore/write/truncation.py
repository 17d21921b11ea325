"""Removes what lies after the end of a log, from the log and from queues.

Source: MappedFileQueue.java#truncateDirtyFiles, ConsumeQueue.java#truncateDirtyLogicFiles.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from rmqstore.format.layout import BATCH_UNIT, NOT_COMPACTED, QUEUE_UNIT
from rmqstore.spans import QueueKey
from rmqstore.storage.files.disk import Disk, clear
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import records_end, valid_end, whole_end
from rmqstore.storage.queue.queue_set import recovered_begin
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.unit_checks import completed_end

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20
_OFFSET_BYTES = QUEUE_UNIT["physical_offset"].itemsize
QueueInFiles: TypeAlias = ConsumeQueue | BatchConsumeQueue

# What becomes of a file of the log.
CLEARED: Final = "cleared"
DELETED: Final = "deleted"
MOVED: Final = "moved"
RESIZED: Final = "resized"


class LogChange(NamedTuple):
    """A change of one file of the log.

    Attributes:
        what: :data:`CLEARED`, :data:`DELETED`, :data:`MOVED` into the folder of copies, or
            :data:`RESIZED`.
        path: the file.
        start: the position in it from which on it is cleared, or its length; 0 for the whole file.
        stop: the position after the last byte that is not zero, or the length that it gets; 0 for
            the whole file.
    """

    what: str
    path: Path
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        if self.what == CLEARED:
            return f"{self.path}: bytes {self.start:,} to {self.stop:,} are cleared; a copy is kept"
        if self.what == RESIZED:
            return f"{self.path}: its length of {self.start:,} bytes becomes {self.stop:,}"
        if self.what == MOVED:
            return f"{self.path} is moved into .rmqstore/cut"
        return f"{self.path}, in which nothing is written, is deleted"


def plan_truncation(log: CommitLog, end: LogEnd, *, keeps_copies: bool) -> list[LogChange]:
    """Return what :func:`truncate_log` changes.

    Args:
        log: the log to truncate.
        end: its end.
        keeps_copies: whether what is removed and not zero is kept elsewhere.
    """
    changes = []
    # The first file that is not of 0 bytes stays, unless the log ends before it.
    begin = next((segment.start for segment in log.segments if segment.size), log.min_offset)
    for segment in log.segments:
        is_later = segment.start >= end.physical_offset and (
            segment.start > min(begin, end.physical_offset)
        )
        is_cut = segment.start <= end.physical_offset < segment.end
        if not is_later and segment.size and not is_cut:
            continue
        with LOCAL.open(segment.path) as file:
            written_end = file.written_end(segment.size)
        if is_later or not segment.size:
            is_kept = written_end and keeps_copies
            changes.append(LogChange(MOVED if is_kept else DELETED, segment.path))
        elif (position := end.physical_offset - segment.start) < written_end:
            changes.append(LogChange(CLEARED, segment.path, position, written_end))
    return changes


def truncate_log(disk: Disk, log: CommitLog, end: LogEnd, copies: Path | None) -> None:
    """Delete the files and clear the bytes after the end of a log.

    Args:
        disk: performs all changes.
        log: the log to truncate.
        end: its end.
        copies: folder for copies of what is removed and not zero; None keeps no copy.
    """
    for change in plan_truncation(log, end, keeps_copies=copies is not None):
        if change.what == DELETED:
            disk.delete(change.path)
        elif change.what == MOVED:
            assert copies is not None, "what is moved is kept"
            disk.make_folder(copies)
            target = copies / change.path.name
            logger.warning(
                "%s lies after the end of the log; it is moved to %s", change.path, target
            )
            disk.rename(change.path, target)
            disk.flush_folder(copies)
            disk.flush_folder(change.path.parent)
        else:
            if copies is not None:
                _keep_tail(disk, change, end, copies)
            disk.clear_append(change.path, change.start, change.stop)
    log.refresh()


def _keep_tail(disk: Disk, cleared: LogChange, end: LogEnd, copies: Path) -> None:
    """Copy the bytes of a file that will be cleared."""
    _, path, position, written_end = cleared
    disk.make_folder(copies)
    target = copies / f"{path.name}.{end.physical_offset}"
    logger.warning(
        "%s: the log ends at %d (%s); the %d bytes after it are kept in %s and cleared",
        path,
        end.physical_offset,
        end.reason or "never written",
        written_end - position,
        target,
    )
    disk.delete(target)
    disk.create(target, 0)
    with LOCAL.open(path) as file:
        for start in range(position, written_end, _BLOCK_BYTES):
            block = np.empty(min(_BLOCK_BYTES, written_end - start), np.uint8)
            file.read_into(block, start)
            disk.write(target, start - position, block)
    disk.flush(target)
    disk.flush_folder(copies)


class LeftOpen(NamedTuple):
    """A store that was not closed, so that its last units may not be written, or not whole.

    Attributes:
        log: its log.
        safe_until: physical offset up to which the units of records are on the disk.
    """

    log: CommitLog
    safe_until: int

    def written_end(self, queue: QueueInFiles, end: int) -> int:
        """Return the queue offset before which nothing is missing that a repair would build again.

        A broker passes over what stands before its last three files, and over files that are
        missing between these.

        Args:
            queue: the queue as its files have it.
            end: the queue offset after its last unit.
        """
        start = queue.begin
        written = whole_end(queue, start, queue.cut(start, end, self.safe_until))
        looked_at = recovered_begin(queue)
        while True:
            hole = whole_end(queue, written, end)
            behind = looked_at
            if hole >= looked_at:
                behind = next((low for low, _ in queue.runs(hole, end)), end)
            if not hole < behind < end:
                return written
            known = queue.unit(hole - 1)[0] if hole > start else 0
            if self.log.min_offset <= known <= queue.unit(behind)[0]:
                return written
            written = behind


def _lacks_last_field(queue: QueueInFiles, queue_offset: int) -> bool:
    """Return whether a unit of a BatchConsumeQueue lacks the field that is the same in all."""
    path, position = queue.location(queue_offset)
    with LOCAL.open(Path(path)) as file:
        unit = file.read(position, BATCH_UNIT.itemsize).view(BATCH_UNIT)
    return bool(unit["compacted"][0] != NOT_COMPACTED)


def _without_zeros(queue: QueueInFiles, start: int, end: int, log_end: int) -> int:
    """Return the end of a queue without the zeros behind its last unit that leads into the log.

    Zeros seem to lead to the begin of the log, and may follow units that lead behind its end. A
    record that ends behind it is not there, and a queue that had it would get no unit of the next.
    """
    before = -1
    while end != before:
        before = end
        end = queue.cut(start, valid_end(queue, start, end), log_end)
        while end > start and records_end(queue, end) > log_end:
            end -= 1
    return end


def cut_queue(
    disk: Disk,
    queue: QueueInFiles,
    key: QueueKey,
    log_end: int,
    left_open: LeftOpen | None = None,
) -> tuple[int, int]:
    """Remove the units of a queue after which no unit points before the log end.

    In a store that was left open, the queue ends before the first unit that was not written, and
    after the last one that was written whole. An empty last file is deleted, as a broker does.

    Args:
        disk: performs the changes.
        queue: the queue as its files have it.
        key: its topic and queue id.
        log_end: physical offset of the log end.
        left_open: None for a store that was closed, all of whose units were written.

    Returns:
        The queue offset after the last unit that is left, and how many units were removed.
    """
    if queue.segments and not queue.segments[-1].size:
        disk.delete(queue.segments[-1].path)
        queue.refresh()
    start = queue.begin
    end = queue.end()
    if end > start and left_open is None:
        physical_offset, size, _ = queue.unit(end - 1)
        if size > 0 and 0 <= physical_offset <= log_end - size:
            return end, 0
    new_end = queue.cut(start, end, log_end)
    if left_open is not None:
        safe_end = left_open.written_end(queue, new_end)
        new_end = completed_end(left_open.log, queue, key, safe_end, new_end, log_end)
        if new_end > start and queue.is_batch and _lacks_last_field(queue, new_end - 1):
            new_end -= 1
    new_end = _without_zeros(queue, start, new_end, log_end)
    if new_end == end:
        delete_behind(disk, queue)
        return end, 0
    n_removed = end - new_end
    logger.info("%s: %d units from %d on are removed", queue.folder, n_removed, new_end)
    position = queue.position(new_end)
    for segment in queue.segments:
        if segment.start >= position:
            disk.delete(segment.path)
        elif segment.end > position:
            low = position - segment.start
            with LOCAL.open(segment.path) as file:
                written = file.written_end(segment.size)
            # The physical offset of the first unit is cleared last: without it a unit that still
            # has a size would point at the start of the log.
            clear(disk, segment.path, low + _OFFSET_BYTES, written)
            clear(disk, segment.path, low, min(low + _OFFSET_BYTES, written))
            disk.flush(segment.path)
    disk.flush_folder(queue.folder)
    queue.refresh()
    return queue.end(), n_removed


def delete_behind(disk: Disk, queue: QueueInFiles) -> None:
    """Delete the files behind the last unit of a queue, whose zeros a broker takes for units.

    The name of the first file shows the next queue offset of a queue without a unit.
    """
    end = queue.end()
    behind = [one for one in queue.segments if one.start >= queue.position(end)]
    behind = behind[end == queue.begin :]
    if behind:
        for segment in reversed(behind):
            disk.delete(segment.path)
        disk.flush_folder(queue.folder)
        queue.refresh()
