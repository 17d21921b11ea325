"""The framing of a CommitLog: a record is its own frame."""

from __future__ import annotations

import struct

import numpy as np

from rmqstore.format.framing.framing import (
    FrameNumbers,
    Framing,
    Stop,
    StopKind,
    stop_before_end,
)
from rmqstore.format.layout import (
    BLANK_MAGIC,
    FRAME_HEAD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Positions,
)

_FRAME_HEAD = struct.Struct(">ii")


class RecordFraming:
    """The framing of a CommitLog: a record is its own frame. Source: CommitLog.java."""

    head_bytes = 0
    size_word = 0
    raw_magics = tuple(np.array([MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2], ">i4").view(np.int32))
    blank_magic = BLANK_MAGIC
    min_bytes = MIN_RECORD_BYTES
    keeps_torn_records = False
    clears_blanks = False

    def follow(
        self, buf: Bytes, start: int, end: int, _base: int, _after: FrameNumbers | None
    ) -> tuple[Positions, int]:
        """Walk record by record: magic and size are all that a record is refused for."""
        return self.follow_by_size(buf, start, end)

    def follow_by_size(self, buf: Bytes, start: int, end: int) -> tuple[Positions, int]:
        """Walk record by record. Source: CommitLog.java#recoverNormally."""
        view = buf.data
        starts = []
        position = start
        while position < end:
            left = len(buf) - position
            if left < FRAME_HEAD.itemsize:
                break
            total_size, magic = _FRAME_HEAD.unpack_from(view, position)
            if magic not in TOPIC_LENGTH_BYTES or not MIN_RECORD_BYTES <= total_size <= left:
                break
            starts.append(position)
            position += total_size
        return np.array(starts, np.int64), position

    def refused_rows(
        self,
        _buf: Bytes,
        _frames: Positions,
        _physical_base: int | Positions,
        _firsts: Positions,
        _after: FrameNumbers | None = None,
    ) -> Positions:
        """Return no rows; see :meth:`follow`."""
        return np.empty(0, np.int64)

    def numbers(self, _buf: Bytes, _frame: int) -> FrameNumbers | None:
        """Return None."""
        return None

    def stop(self, buf: Bytes, position: int, _base: int, _after: FrameNumbers | None) -> Stop:
        """Return what stands at a position. Source: CommitLog.java#checkMessageAndReturnSize."""
        left = len(buf) - position
        if left < FRAME_HEAD.itemsize:
            return stop_before_end(buf, position)
        total_size, magic = _FRAME_HEAD.unpack_from(buf.data, position)
        if self.is_blank(magic, total_size, left):
            return Stop(StopKind.BLANK)
        if total_size == 0 and magic == 0:
            return Stop(StopKind.EMPTY)
        if magic == BLANK_MAGIC:
            reason = f"a blank of {total_size} bytes where {left} bytes are left"
        elif magic not in TOPIC_LENGTH_BYTES:
            reason = f"magic {magic & 0xFFFFFFFF:#010x} is neither a record's nor a blank's"
        else:
            reason = (
                f"total size {total_size} is not between {MIN_RECORD_BYTES} "
                f"and the {left} bytes left in the file"
            )
        return Stop(StopKind.DAMAGE, reason)

    def is_blank(self, magic: int, size: int, left: int) -> bool:
        """Tell whether a blank has this magic and size; a shorter one ends the file too."""
        return magic == BLANK_MAGIC and size <= left


RECORDS: Framing = RecordFraming()
