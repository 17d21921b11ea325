"""What a follower asks for, and what it concludes from the bytes that it compares.

Two logs of one broker differ only by a cut and by what was written after it. Records carry their
time and their place, so the logs agree up to some physical offset and differ from there on: if the
last record of a copy agrees, all before it do. A whole record has to agree, because zeros and equal
bodies agree by chance.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from rmqstore.copying.following.remoting.broker import Bounds

OVERLAP_BYTES: Final = 8 << 20  # a record, or the blank at the end of a file, is shorter
_GROWTH: Final = 8


class Extent(NamedTuple):
    """The part of the log that a copy holds."""

    begin: int
    end: int


def compared_from(extent: Extent, bounds: Bounds, overlap: int) -> int:
    """Return the physical offset from which a copy is compared with the log of its source."""
    return max(extent.begin, bounds.low, min(extent.end, bounds.high) - overlap)


def request_at(physical_offset: int, bounds: Bounds, file_size: int) -> int:
    """Return what to ask for to get the log from a physical offset on.

    0 stands for the start of the last file, so byte 0 of a longer log is not asked for. It is the
    highest byte of the size of a record, which is always 0.
    """
    return 1 if physical_offset == 0 and bounds.high >= file_size else physical_offset


class Verdict(Enum):
    """What follows from a comparison."""

    CUT = "the copy is cut, and goes on with the bytes of the source"
    COMPARE_MORE = "the comparison has to begin further back"
    NOTHING_IN_COMMON = "no record of the copy is in the log of the source"


def judge(*, has_agreed: bool, compared: int, extent: Extent, low: int) -> Verdict:
    """Return what to do where the logs are known to differ.

    Args:
        has_agreed: whether a whole record agreed before.
        compared: the physical offset from which they were compared.
        extent: what the copy holds.
        low: physical offset where the log of the source begins.
    """
    if has_agreed:
        return Verdict.CUT
    if compared > max(extent.begin, low):
        return Verdict.COMPARE_MORE
    return Verdict.NOTHING_IN_COMMON


def larger(overlap: int) -> int:
    """Return the next larger part of the log to compare."""
    return overlap * _GROWTH
