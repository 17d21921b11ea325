"""Removes what lies after the end of a log, and keeps a copy of it.

Source: MappedFileQueue.java#truncateDirtyFiles.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.storage import StoredFile
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import LogEnd

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20


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
        is_later = segment.start >= end.physical_offset and segment.start > log.min_offset
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
                self._copy_tail(segment, file, written_end, self._copies)
        self._disk.clear(segment.path, position, written_end)
        self._disk.flush(segment.path)

    def _copy_tail(self, segment: Segment, file: StoredFile, stop: int, copies: Path) -> None:
        end = self._end
        position = end.physical_offset - segment.start
        self._disk.make_folder(copies)
        target = copies / f"{segment.path.name}.{end.physical_offset}"
        logger.warning(
            "%s: the log ends at %d (%s); the %d bytes after it are kept in %s and cleared",
            segment.path,
            end.physical_offset,
            end.reason or "never written",
            stop - position,
            target,
        )
        self._disk.delete(target)
        self._disk.create(target, 0)
        for start in range(position, stop, _BLOCK_BYTES):
            block = np.empty(min(_BLOCK_BYTES, stop - start), np.uint8)
            file.read_into(block, start)
            self._disk.write(target, start - position, block)
        self._disk.flush(target)
        self._disk.flush_folder(copies)
