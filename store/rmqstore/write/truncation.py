"""Removes what lies after the end of a log, from the log and from queues.

Source: MappedFileQueue.java#truncateDirtyFiles, ConsumeQueue.java#truncateDirtyLogicFiles.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.files.disk import Disk, clear
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import valid_end, whole_end
from rmqstore.storage.recovery.log_end import LogEnd

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20
_OFFSET_BYTES = QUEUE_UNIT["physical_offset"].itemsize


def truncate_log(disk: Disk, log: CommitLog, end: LogEnd, copies: Path | None) -> None:
    """Delete the files and clear the bytes after the end of a log.

    Args:
        disk: performs all changes.
        log: the log to truncate.
        end: its end.
        copies: folder for copies of what is removed and not zero; None keeps no copy.
    """
    truncation = _Truncation(disk, end, copies)
    for segment in log.segments:
        # The first file stays, even if it is empty, unless the log ends before it.
        is_later = segment.start >= end.physical_offset and (
            segment.start > min(log.min_offset, end.physical_offset)
        )
        if is_later or not segment.size:
            truncation.remove_file(segment)
        elif segment.start <= end.physical_offset < segment.end:
            truncation.clear_tail(segment)
    log.refresh()


class _Truncation:
    def __init__(self, disk: Disk, end: LogEnd, copies: Path | None) -> None:
        self._disk, self._end, self._copies = disk, end, copies

    def remove_file(self, segment: Segment) -> None:
        with LOCAL.open(segment.path) as file:
            is_empty = not file.written_end(segment.size)
        if is_empty or self._copies is None:
            self._disk.delete(segment.path)
            return
        self._disk.make_folder(self._copies)
        target = self._copies / segment.path.name
        logger.warning("%s lies after the end of the log; it is moved to %s", segment.path, target)
        self._disk.rename(segment.path, target)
        self._disk.flush_folder(self._copies)
        self._disk.flush_folder(segment.path.parent)

    def clear_tail(self, segment: Segment) -> None:
        """Clear the bytes of a file after the end of the log, which lies in this file."""
        position = self._end.physical_offset - segment.start
        with LOCAL.open(segment.path) as file:
            written_end = file.written_end(segment.size)
            if written_end <= position:
                return
            if self._copies is not None:
                self._disk.make_folder(self._copies)
                target = self._copies / f"{segment.path.name}.{self._end.physical_offset}"
                logger.warning(
                    "%s: the log ends at %d (%s); the %d bytes after it are kept in %s and cleared",
                    segment.path,
                    self._end.physical_offset,
                    self._end.reason or "never written",
                    written_end - position,
                    target,
                )
                self._disk.delete(target)
                self._disk.create(target, 0)
                for start in range(position, written_end, _BLOCK_BYTES):
                    block = np.empty(min(_BLOCK_BYTES, written_end - start), np.uint8)
                    file.read_into(block, start)
                    self._disk.write(target, start - position, block)
                self._disk.flush(target)
                self._disk.flush_folder(self._copies)
        self._disk.clear_append(segment.path, position, written_end)


def cut_queue(
    disk: Disk, queue: ConsumeQueue | BatchConsumeQueue, log_end: int, *, was_closed: bool
) -> tuple[int, int]:
    """Remove the units of a queue after which no unit points before the log end.

    Args:
        disk: performs the changes.
        queue: the queue as its files have it.
        log_end: physical offset of the log end.
        was_closed: whether all units before these were written; otherwise the queue ends before the
            first that was not.

    Returns:
        The queue offset after the last unit that is left, and how many units were removed.
    """
    start, end = queue.begin, queue.end()
    if end > start and was_closed:
        physical_offset, size, _ = queue.unit(end - 1)
        if size > 0 and 0 <= physical_offset < log_end:
            return end, 0
    new_end = queue.cut(start, end, log_end)
    if not was_closed:
        new_end = whole_end(queue, start, new_end)
    new_end = valid_end(queue, start, new_end)
    if new_end == end:
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
