"""The framing of both kinds of logs, which walks ask for everything that differs.

In a CommitLog each record is a frame of its own. In a DLedger log each record is the body of an
entry, which is the frame.

Source: DLedgerEntryCoder.java, DLedgerMmapFileStore.java#recover, MmapFileList.java#preAppend.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import (
    BLANK_MAGIC,
    ENTRY_BLANK_MAGIC,
    ENTRY_HEAD,
    ENTRY_MAGIC,
    FRAME_HEAD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MIN_BLANK_BYTES,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
)

_HEAD = struct.Struct(">iiqqqiiii")
_FRAME_HEAD = struct.Struct(">ii")
_HEAD_BYTES = ENTRY_HEAD.itemsize


class StopKind(Enum):
    """Why a walk ended."""

    END = "the end of the range"
    BLANK = "the blank that closes a file"
    EMPTY = "bytes never written"
    STALE = "a frame that does not continue the one before"
    DAMAGE = "not a record"


class Stop(NamedTuple):
    """The reason for the end of a walk, with the damage of the bytes there."""

    kind: StopKind
    reason: str = ""


class FrameNumbers(NamedTuple):
    """What a frame says of its place in the sequence of frames."""

    sequence: int  # from 0, without gaps
    term: int  # never falls


def stop_before_end(buf: Bytes, position: int) -> Stop:
    """Return the kind of bytes that are too few for a blank."""
    kind = StopKind.DAMAGE if buf[position:].any() else StopKind.EMPTY
    left = len(buf) - position
    return Stop(kind, f"{left} bytes are left, too few for a record or a blank")


class RecordFraming:
    """The framing of a CommitLog: a record is its own frame.

    The first eight bytes of a frame, and of the blank that closes a file, are two integers of four
    bytes: a size and a magic.

    Attributes:
        head_bytes: bytes of a frame before its record.
        size_word: which of the two integers is the size, 0 or 1.
        raw_magics: the magics of frames, in the byte order of the file.
        blank_magic: the magic of a blank.
        min_bytes: size of the smallest frame.
        keeps_torn_records: whether a recovery keeps a record whose body is torn. The frame is
            valid, and the record is in no queue.
        clears_blanks: whether all bytes of a blank are written, so that no old record is in them.

    Source: CommitLog.java.
    """

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
        """Walk frame by frame, as the reference for all faster walks.

        Magic and size are all that a record is refused for.

        Args:
            buf: uint8 (nbytes,), one file.
            start: where a frame begins.
            end: frames that begin before this position are walked.
            _base: physical offset of the buffer's first byte.
            _after: the numbers of the frame before the first one, None if they are not known.

        Returns:
            The starts of the frames, int64 (n,), and the position where the walk ended.
        """
        return self.follow_by_size(buf, start, end)

    def follow_by_size(self, buf: Bytes, start: int, end: int) -> tuple[Positions, int]:
        """Walk as :meth:`follow` does, but look only at the magic and the size of each frame.

        Source: CommitLog.java#recoverNormally.
        """
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
        """Return the rows of the frames that :meth:`follow` would refuse, rising: none here.

        Args:
            _buf: uint8 (nbytes,).
            _frames: int64 (n,), starts of frames as :meth:`follow_by_size` finds them.
            _physical_base: physical offset of the buffer's first byte; (n,) if it is another for
                each frame.
            _firsts: the rows, rising, that are the first ones of a chain.
            _after: the numbers of the frame before the first row, None if they are not known.
        """
        return np.empty(0, np.int64)

    def numbers(self, _buf: Bytes, _frame: int) -> FrameNumbers | None:
        """Return the numbers of a frame: a record has none."""
        return None

    def stop(self, buf: Bytes, position: int, _base: int, _after: FrameNumbers | None) -> Stop:
        """Return the kind of bytes at a position without a frame.

        Source: CommitLog.java#checkMessageAndReturnSize.
        """
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
        """Return whether a blank has this magic and size; a shorter one ends the file too."""
        return magic == BLANK_MAGIC and size <= left


RECORDS: Final = RecordFraming()


class _Entry(NamedTuple):
    """The head of one entry."""

    magic: int
    size: int
    sequence: int
    term: int
    position: int  # physical offset
    channel: int
    chain_crc: int
    body_crc: int
    body_length: int


class EntryFraming:
    """The framing of a DLedger log.

    :class:`RecordFraming` describes the attributes and the methods.

    The rules are those by which DLedger finds the end of its log. It looks at headers of
    entries alone, so a torn body is damage of one record.
    """

    head_bytes = _HEAD_BYTES
    size_word = 1
    raw_magics = tuple(np.array([ENTRY_MAGIC], ">i4").view(np.int32))
    blank_magic = ENTRY_BLANK_MAGIC
    min_bytes = _HEAD_BYTES
    keeps_torn_records = True
    clears_blanks = True

    def follow(
        self, buf: Bytes, start: int, end: int, base: int, after: FrameNumbers | None
    ) -> tuple[Positions, int]:
        """Walk entry by entry."""
        starts = []
        position = start
        while position < end:
            entry = _entry_at(buf, position)
            if entry is None or _refuse(entry, base + position, len(buf) - position, after):
                break
            starts.append(position)
            position += entry.size
            after = FrameNumbers(entry.sequence, entry.term)
        return np.array(starts, np.int64), position

    def follow_by_size(self, buf: Bytes, start: int, end: int) -> tuple[Positions, int]:
        """Walk entry by entry, and look only at the magic and the size of each."""
        view = buf.data
        starts = []
        position = start
        while position < end:
            left = len(buf) - position
            if left < _HEAD_BYTES:
                break
            magic, size = _FRAME_HEAD.unpack_from(view, position)
            if magic != ENTRY_MAGIC or not _HEAD_BYTES <= size <= left:
                break
            starts.append(position)
            position += size
        return np.array(starts, np.int64), position

    def refused_rows(
        self,
        buf: Bytes,
        frames: Positions,
        physical_base: int | Positions,
        firsts: Positions,
        after: FrameNumbers | None = None,
    ) -> Positions:
        """Return the rows of the entries that are refused."""
        if not len(frames):
            return np.empty(0, np.int64)
        last = len(buf) - _HEAD_BYTES
        headers: NDArray[Any]
        if last < 0:
            headers = np.zeros(len(frames), ENTRY_HEAD)
        else:
            # numpy copies named fields one by one, and a whole item at once.
            every = np.ndarray((last + 1,), (np.void, _HEAD_BYTES), buf, 0, (1,))
            headers = every[np.clip(frames, 0, last)].view(ENTRY_HEAD)
            outside = (frames < 0) | (frames > last)
            if outside.any():  # they are safe to look at, and refused
                headers[outside] = np.zeros(1, ENTRY_HEAD)
        sizes = headers["size"].astype(np.int64)
        refused: Mask = (headers["magic"] != ENTRY_MAGIC) | (sizes < _HEAD_BYTES)
        refused |= headers["body_length"] != sizes - _HEAD_BYTES
        refused |= headers["position"] != frames + physical_base
        indices = headers["index"].astype(np.int64)
        terms = headers["term"].astype(np.int64)
        continues = np.ones(len(headers), np.bool_)
        continues[1:] = (indices[1:] - indices[:-1] == 1) & (indices[1:] > indices[:-1])
        continues[1:] &= terms[1:] >= terms[:-1]
        continues[firsts] = True
        if after is not None:
            is_next = int(indices[0]) == after.sequence + 1
            continues[0] = is_next and int(terms[0]) >= after.term
        return np.flatnonzero(refused | ~continues)

    def numbers(self, buf: Bytes, frame: int) -> FrameNumbers | None:
        """Return index and term of an entry."""
        entry = _entry_at(buf, frame)
        return None if entry is None else FrameNumbers(entry.sequence, entry.term)

    def stop(self, buf: Bytes, position: int, base: int, after: FrameNumbers | None) -> Stop:
        """Return the kind of bytes at a position without an entry of the log."""
        left = len(buf) - position
        if left < MIN_BLANK_BYTES:
            return stop_before_end(buf, position)
        magic, size = _FRAME_HEAD.unpack_from(buf.data, position)
        if self.is_blank(magic, size, left):
            return Stop(StopKind.BLANK)
        if magic == 0 and size == 0:
            return Stop(StopKind.EMPTY)
        entry = _entry_at(buf, position)
        if entry is None:
            return Stop(StopKind.DAMAGE, f"{left} bytes are left, too few for an entry")
        offset = base + position
        is_damaged = bool(_refuse(entry, offset, left, None))
        next_offset = entry.position + entry.size
        following = _entry_at(buf, next_offset - base)
        if not is_damaged and after is not None and following is not None:
            # If the entry after this one continues the log as if this one had other numbers, these
            # are damaged. Otherwise this one is of before a cut.
            skipped = FrameNumbers(after.sequence + 1, after.term)
            n_left = len(buf) - (next_offset - base)
            is_damaged = not _refuse(following, next_offset, n_left, skipped)
        kind = StopKind.DAMAGE if is_damaged else StopKind.STALE
        return Stop(kind, _refuse(entry, offset, left, after))

    def is_blank(self, magic: int, size: int, left: int) -> bool:
        """Return whether a blank has this magic and this size.

        DLedger looks at the magic alone. Entries may stand behind one that is not as long as what
        is left.
        """
        return magic == ENTRY_BLANK_MAGIC and size == left >= MIN_BLANK_BYTES


def _entry_at(buf: Bytes, position: int) -> _Entry | None:
    """Return the head of the entry at a position, None if too few bytes are left."""
    if not 0 <= position <= len(buf) - _HEAD_BYTES:
        return None
    return _Entry(*_HEAD.unpack_from(buf.data, position))


def _refuse(entry: _Entry, offset: int, left: int, after: FrameNumbers | None) -> str:
    """Return why no entry of the log begins at a physical offset; empty if one does.

    Args:
        entry: the bytes there.
        left: bytes from there to the end of the file.
        after: the numbers of the entry before, None if they are not known.
    """
    if entry.magic != ENTRY_MAGIC:
        return f"magic {entry.magic & 0xFFFFFFFF:#010x} is neither an entry's nor a blank's"
    if not _HEAD_BYTES <= entry.size <= left:
        return (
            f"entry size {entry.size} is not between {_HEAD_BYTES} "
            f"and the {left} bytes left in the file"
        )
    if entry.body_length != entry.size - _HEAD_BYTES:
        return f"body length {entry.body_length} does not fit the entry size {entry.size}"
    if entry.position != offset:
        return f"the entry says that it begins at {entry.position}"
    if after is not None and entry.sequence != after.sequence + 1:
        return f"entry index {entry.sequence} does not follow {after.sequence}"
    if after is not None and entry.term < after.term:
        return f"entry term {entry.term} is lower than {after.term} of the entry before"
    return ""


ENTRIES: Final = EntryFraming()

Framing: TypeAlias = RecordFraming | EntryFraming
