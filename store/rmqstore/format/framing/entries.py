"""The framing of a DLedger log, whose entries have one record each as their body.

Source: DLedgerEntryCoder.java, DLedgerMmapFileStore.java#recover, MmapFileList.java#preAppend.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.framing.framing import (
    FrameNumbers,
    Framing,
    Stop,
    StopKind,
    stop_before_end,
)
from rmqstore.format.layout import (
    ENTRY_BLANK_MAGIC,
    ENTRY_HEAD,
    ENTRY_MAGIC,
    MIN_BLANK_BYTES,
    Bytes,
    Mask,
    Positions,
)

_HEAD = struct.Struct(">iiqqqiiii")
_FRAME_HEAD = struct.Struct(">ii")
_HEAD_BYTES = ENTRY_HEAD.itemsize


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

    The rules are those by which DLedger finds the end of its log. It looks at the heads of entries
    alone, so a torn body is damage of one record.
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
        heads = _heads(buf, frames)
        sizes = heads["size"].astype(np.int64)
        refused: Mask = (heads["magic"] != ENTRY_MAGIC) | (sizes < _HEAD_BYTES)
        refused |= heads["body_length"] != sizes - _HEAD_BYTES
        refused |= heads["position"] != frames + physical_base
        is_break = ~_continue(heads)
        is_break[firsts] = False
        if after is not None:
            first = FrameNumbers(int(heads["index"][0]), int(heads["term"][0]))
            is_break[0] = not _follows(first, after)
        rows: Positions = np.flatnonzero(refused | is_break)
        return rows

    def numbers(self, buf: Bytes, frame: int) -> FrameNumbers | None:
        """Return index and term of an entry."""
        entry = _entry_at(buf, frame)
        return None if entry is None else FrameNumbers(entry.sequence, entry.term)

    def stop(self, buf: Bytes, position: int, base: int, after: FrameNumbers | None) -> Stop:
        """Return what stands at a position where no entry of the log begins."""
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
        place = base + position
        is_damaged = _refuse(entry, place, left, None) or _is_skipped(buf, entry, after, base)
        kind = StopKind.DAMAGE if is_damaged else StopKind.STALE
        return Stop(kind, _refuse(entry, place, left, after))

    def is_blank(self, magic: int, _size: int, left: int) -> bool:
        """Tell whether a blank has this magic: DLedger looks at nothing else."""
        return magic == ENTRY_BLANK_MAGIC and left >= MIN_BLANK_BYTES


def _entry_at(buf: Bytes, position: int) -> _Entry | None:
    """Return the head of the entry at a position, None if too few bytes are left."""
    if not 0 <= position <= len(buf) - _HEAD_BYTES:
        return None
    return _Entry(*_HEAD.unpack_from(buf.data, position))


def _refuse(entry: _Entry, place: int, left: int, after: FrameNumbers | None) -> str:
    """Return why no entry of the log begins at a physical offset; empty if one does.

    Args:
        entry: the bytes there.
        place: the physical offset.
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
    if entry.position != place:
        return f"the entry says that it begins at {entry.position}"
    if after is not None and entry.sequence != after.sequence + 1:
        return f"entry index {entry.sequence} does not follow {after.sequence}"
    if after is not None and entry.term < after.term:
        return f"entry term {entry.term} is lower than {after.term} of the entry before"
    return ""


def _is_skipped(buf: Bytes, entry: _Entry, after: FrameNumbers | None, base: int) -> bool:
    """Tell whether the entry after a whole one continues the log, as if that had other numbers.

    If so, the numbers of the whole one are damaged. Otherwise it is of before a cut.
    """
    position = entry.position + entry.size - base
    following = _entry_at(buf, position)
    if after is None or following is None:
        return False
    skipped = FrameNumbers(after.sequence + 1, after.term)
    return not _refuse(following, base + position, len(buf) - position, skipped)


def _follows(numbers: FrameNumbers, after: FrameNumbers) -> bool:
    return numbers.sequence == after.sequence + 1 and numbers.term >= after.term


def _heads(buf: Bytes, frames: Positions) -> NDArray[Any]:
    """Return the heads of entries, ENTRY_HEAD (n,); all of them lie inside of the buffer.

    A head that does not is replaced by zeros.
    """
    last = len(buf) - _HEAD_BYTES
    if last < 0:
        return np.zeros(len(frames), ENTRY_HEAD)
    inside = (frames >= 0) & (frames <= last)
    # numpy copies named fields one by one, and a whole item at once.
    every = np.ndarray((last + 1,), (np.void, _HEAD_BYTES), buf, 0, (1,))
    heads: NDArray[Any] = every[np.clip(frames, 0, last)].view(ENTRY_HEAD)
    if not inside.all():
        heads[~inside] = np.zeros(1, ENTRY_HEAD)
    return heads


def _continue(heads: NDArray[Any]) -> Mask:
    """Return a mask (n,) of the entries that continue the one before them; the first does."""
    indices = heads["index"].astype(np.int64)
    terms = heads["term"].astype(np.int64)
    mask = np.ones(len(heads), np.bool_)
    mask[1:] = (indices[1:] - indices[:-1] == 1) & (indices[1:] > indices[:-1])
    mask[1:] &= terms[1:] >= terms[:-1]
    return mask


ENTRIES: Framing = EntryFraming()
