"""The identity of a log, which the log of a topic that was made again does not have.

Offsets begin at 0 in both. The topic id decides where the folder names it, which brokers from 2.8
on write. Otherwise the batch before an offset does: its CRC, or, where a compaction may have
written it again, its timestamp and leader epoch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.layout import BATCH_HEAD, MAGIC_AT
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.windows import lowest_offsets

_MAGIC: Final = 2


class BatchNote(NamedTuple):
    """What is noted of a batch.

    Attributes:
        leader_epoch: -1 if unknown.
        max_timestamp: its largest timestamp, ms; -1 if it has none.
        crc: its checksum.
    """

    leader_epoch: int
    max_timestamp: int
    crc: int

    def is_before(self, other: BatchNote) -> bool:
        """Return whether another batch is later, by its time or its leader epoch."""
        return (
            other.max_timestamp > self.max_timestamp >= 0
            or other.leader_epoch > self.leader_epoch >= 0
        )


class LogIdentity(NamedTuple):
    """Which log an offset belongs to.

    Attributes:
        topic_id: as ``partition.metadata`` names it; None if it does not.
        batch: the last batch before the offset; None if there is none.
    """

    topic_id: str | None = None
    batch: BatchNote | None = None


def batch_before(log: PartitionLog, offset: int) -> BatchHeaders | None:
    """Return the header of the last valid batch that begins before an offset, None without one.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    found: BatchHeaders | None = None
    if not log.segments or offset <= log.segments[0].base_offset:
        return None
    for window in log.windows(offset - 1):
        headers = window.headers
        lowest = lowest_offsets(headers)
        rows = np.flatnonzero(lowest < offset)
        for row in rows[np.argsort(headers.last_offset[rows], kind="stable")[::-1]].tolist():
            header = headers[row : row + 1]
            if found is not None and header.last_offset[0] <= found.last_offset[0]:
                break
            if header.check_crcs(window.data)[0]:
                found = header
                break
        if (lowest >= offset).any():
            break
    return found


def note_before(log: PartitionLog, offset: int) -> BatchNote | None:
    """Return what is noted of the batch before an offset; raises as :func:`batch_before`.

    Where a recovery has walked to the offset, it kept the header of that batch.
    """
    end = None if log.recovered_end is None else log.recovered_end.end
    if end is not None and end.last is not None and end.offset == offset == log.end_offset:
        content = end.last.header
        if len(content) == BATCH_HEAD.itemsize and content[MAGIC_AT] == _MAGIC:
            (header,) = np.frombuffer(content, BATCH_HEAD)
            return BatchNote(*(int(header[name]) for name in BatchNote._fields))
    return _note_of(batch_before(log, offset))


def _note_of(header: BatchHeaders | None) -> BatchNote | None:
    if header is None:
        return None
    return BatchNote(int(header.leader_epoch[0]), int(header.max_timestamp[0]), int(header.crc[0]))


def is_another(log: PartitionLog, noted: BatchNote, offset: int) -> bool:
    """Return whether a log is not the one that the noted batch was in.

    A log that now ends before the offset may have been cut; it is another one if its last batch is
    later than the one that was noted. A batch that a compaction may have written again is another
    one if it is later. Where the noted batch is gone, and an earlier one took its place, only its
    leader epoch counts, and its time if the broker gave it: producers may give any.

    Args:
        log: the log.
        noted: the batch before the offset.
        offset: the next one to be read.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    if log.end_offset == offset and note_before(log, offset) == noted:
        return False
    header = batch_before(log, min(offset, log.end_offset))
    found = _note_of(header)
    if header is None or found is None or found.crc == noted.crc:
        return False
    if log.end_offset < offset:
        return noted.is_before(found)
    if header.last_offset[0] < offset - 1:
        if not header.is_log_append_time[0]:
            found = found._replace(max_timestamp=-1)
        return noted.is_before(found)
    # A compaction may have written the batch, so that its CRC is another one.
    n_offsets = int(header.last_offset[0] - header.base_offset[0]) + 1
    is_thinned = 0 <= int(header.record_count[0]) < n_offsets
    is_wrapper = bool(header.magic[0] < 2 and header.codec[0])
    may_be_rewritten = is_thinned or is_wrapper or bool(header.has_delete_horizon[0])
    return noted.is_before(found) or not may_be_rewritten
