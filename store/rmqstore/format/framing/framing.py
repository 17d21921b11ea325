"""The framing of a file of the log: what a walk has to know to go from record to record.

In a CommitLog each record is a frame of its own (:mod:`~rmqstore.format.framing.records`). In a
DLedger log each record is the body of an entry, which is the frame
(:mod:`~rmqstore.format.framing.entries`). Walks ask the framing for everything that differs.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from rmqstore.format.layout import Bytes, Positions


class StopKind(Enum):
    """Why a walk ended."""

    END = "the end of the range"
    BLANK = "the blank that closes a file"
    EMPTY = "bytes never written"
    STALE = "a frame that does not continue the one before"
    DAMAGE = "not a record"


class Stop(NamedTuple):
    """What ended a walk, and what is wrong with the bytes there if they are damaged."""

    kind: StopKind
    reason: str = ""


class FrameNumbers(NamedTuple):
    """What a frame says of its place in the sequence of frames."""

    sequence: int  # from 0, without gaps
    term: int  # never falls


class Framing(Protocol):
    """One way to frame records.

    The first eight bytes of a frame, and of the blank that closes a file, are two integers of four
    bytes: a size and a magic.

    Attributes:
        head_bytes: bytes of a frame before its record.
        size_word: which of the two integers is the size, 0 or 1.
        raw_magics: the magics of frames, in the byte order of the file.
        blank_magic: the magic of a blank.
        min_bytes: size of the smallest frame.
        keeps_torn_records: whether a recovery keeps a record whose body is torn. The frame is
            sound, and the record is in no queue.
        clears_blanks: whether all bytes of a blank are written, so that no old record is in them.
    """

    head_bytes: int
    size_word: int
    raw_magics: tuple[np.int32, ...]
    blank_magic: int
    min_bytes: int
    keeps_torn_records: bool
    clears_blanks: bool

    def follow(
        self, buf: Bytes, start: int, end: int, base: int, after: FrameNumbers | None
    ) -> tuple[Positions, int]:
        """Walk frame by frame, as the reference for all faster walks.

        Args:
            buf: uint8 (nbytes,), one file.
            start: where a frame begins.
            end: frames that begin before this position are walked.
            base: physical offset of the buffer's first byte.
            after: the numbers of the frame before the first one, None if they are not known.

        Returns:
            The starts of the frames, int64 (n,), and the position where the walk ended.
        """

    def follow_by_size(self, buf: Bytes, start: int, end: int) -> tuple[Positions, int]:
        """Walk as :meth:`follow` does, but look only at the magic and the size of each frame."""

    def refused_rows(
        self,
        buf: Bytes,
        frames: Positions,
        physical_base: int | Positions,
        firsts: Positions,
        after: FrameNumbers | None = None,
    ) -> Positions:
        """Return the rows of the frames that :meth:`follow` would refuse, rising.

        Args:
            buf: uint8 (nbytes,).
            frames: int64 (n,), starts of frames as :meth:`follow_by_size` finds them.
            physical_base: physical offset of the buffer's first byte; (n,) if it is another for
                each frame.
            firsts: the rows, rising, that are the first ones of a chain.
            after: the numbers of the frame before the first row, None if they are not known.
        """

    def numbers(self, buf: Bytes, frame: int) -> FrameNumbers | None:
        """Return the numbers of a frame, None if frames of this kind have none."""

    def stop(self, buf: Bytes, position: int, base: int, after: FrameNumbers | None) -> Stop:
        """Return what stands at a position where no frame begins."""

    def is_blank(self, magic: int, size: int, left: int) -> bool:
        """Tell whether a blank has this magic and size where this many bytes are left."""


def stop_before_end(buf: Bytes, position: int) -> Stop:
    """Return what stands where too few bytes for a blank are left."""
    kind = StopKind.DAMAGE if buf[position:].any() else StopKind.EMPTY
    left = len(buf) - position
    return Stop(kind, f"{left} bytes are left, too few for a record or a blank")
