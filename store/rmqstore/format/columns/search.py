"""Searches for records by their headers, where no chain of total sizes leads to them.

A head has a magic, and the physical offset at which it lies: a copy of a record inside a body has
another one. Where records stand in frames, the frame has to be there too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import find_byte, windows
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.framing import RECORDS, Framing
from rmqstore.format.layout import (
    BLANK_MAGIC,
    FIXED_PART_V4,
    FRAME_HEAD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
)

# V1 and V2 differ in the last byte only.
_MAGIC_HEAD = MESSAGE_MAGIC_V1.to_bytes(4, signed=True)[:3]
_BLANK_HEAD = BLANK_MAGIC.to_bytes(4, signed=True)
_MAGIC_AT = FRAME_HEAD.fields["magic"][1]  # type: ignore[index]
_HEAD = struct.Struct(">4xi20xq")  # magic and physical offset

_GUESS_BYTES = 1 << 10, 8 << 10  # searched for one guess, the second if the first had none
_SMALLEST_BLOCK, _LARGEST_BLOCK = 4 << 10, 1 << 20


def guess_headers(
    buf: Bytes, stripes: Positions, physical_base: int, framing: Framing = RECORDS
) -> Positions:
    """Return the first plausible frame of each stripe; some stripes have none.

    Args:
        buf: uint8 (nbytes,), one file of the log.
        stripes: (n,), where the stripes begin; only the first bytes of each are searched.
        physical_base: physical offset of the buffer's first byte.
        framing: how records follow one another.
    """
    headers = np.full(len(stripes), -1, np.int64)
    for width in _GUESS_BYTES:
        rows = np.flatnonzero((headers < 0) & (stripes <= len(buf) - width))
        searched = windows(buf, width)[stripes[rows]].view(np.uint8)
        of_rows, positions = np.divmod(find_byte(searched, _MAGIC_HEAD[0]), width)
        candidates = stripes[rows[of_rows]] + positions - _MAGIC_AT
        is_head = store_their_offsets(buf, candidates, physical_base)
        rows, candidates = rows[of_rows[is_head]], candidates[is_head]
        headers[rows[::-1]] = candidates[::-1]  # the first one of a stripe is set last
    found = headers[headers >= 0]
    return _frames_of(buf, found, physical_base, framing)


def _frames_of(buf: Bytes, headers: Positions, physical_base: int, framing: Framing) -> Positions:
    """Return where the frames of records begin, (k,); headers without a frame are left out."""
    if not framing.head_bytes:
        return headers
    frames = headers - framing.head_bytes
    frames = frames[frames >= 0]
    every = np.arange(len(frames))
    refused = framing.refused_rows(buf, frames, physical_base, every)
    return np.delete(frames, refused)


def stores_its_offset(buf: Bytes, position: int, physical_offset: int) -> bool:
    """Return whether a head at ``position`` holds this physical offset.

    Its record need not be whole.
    """
    if not 0 <= position <= len(buf) - FIXED_PART_V4.itemsize:
        return False
    # Reading one head by its dtype takes far longer.
    magic, own_offset = _HEAD.unpack_from(buf.data, position)
    return magic in TOPIC_LENGTH_BYTES and bool(own_offset == physical_offset)


def store_their_offsets(buf: Bytes, positions: Positions, physical_base: int) -> Mask:
    """Return a mask (n,) of the positions at which :func:`stores_its_offset` holds.

    Args:
        buf: uint8 (nbytes,), one CommitLog file.
        positions: int64 (n,), any positions, which may lie outside of ``buf``.
        physical_base: physical offset of the buffer's first byte.
    """
    mask = have_magic(buf, positions)
    inside = positions[mask]
    if len(inside):
        fixed = windows(buf, FIXED_PART_V4.itemsize)[inside].view(FIXED_PART_V4)
        mask[mask] = fixed["physical_offset"] == inside + physical_base
    return mask


def have_magic(buf: Bytes, positions: Positions) -> Mask:
    """Return a mask (n,) of the positions where a record with a magic code may begin.

    Args:
        buf: uint8 (nbytes,), one CommitLog file.
        positions: int64 (n,), any positions, which may lie outside of ``buf``.
    """
    mask = (positions >= 0) & (positions <= len(buf) - FIXED_PART_V4.itemsize)
    inside = positions[mask]
    if len(inside):
        magics = windows(buf, FIXED_PART_V4.itemsize)[inside].view(FIXED_PART_V4)["magic"]
        mask[mask] = are_magics(magics)
    return mask


def are_magics(magics: NDArray[np.int32]) -> Mask:
    """Return a mask (n,) of the magic codes that records have."""
    mask: Mask = (magics == MESSAGE_MAGIC_V1) | (magics == MESSAGE_MAGIC_V2)
    return mask


def find_next_record(
    buf: Bytes, start: int, end: int, physical_base: int, framing: Framing = RECORDS
) -> int:
    """Return where the frame of the first whole record begins in ``[start, end)``, or ``end``.

    This is how a walk continues after damage. It could only be misled by a body that holds a copy
    of a record, with its frame, at exactly the physical offset that the copy names.
    """
    for low, high in search_blocks(start, end):
        frames = find_frames(buf, low, high, physical_base, framing)
        if len(frames):
            records = frames[read_headers(buf, frames + framing.head_bytes)[1]]
            if len(records):
                return int(records[0])
    return end


def search_blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield ``[start, end)`` in blocks: small ones first, as the next record is mostly near."""
    size = _SMALLEST_BLOCK
    while start < end:
        yield start, min(start + size, end)
        start += size
        size = min(2 * size, _LARGEST_BLOCK)


def find_headers(buf: Bytes, start: int, end: int, physical_base: int) -> Positions:
    """Return the positions of the headers in ``[start, end)``, rising, also of records cut off.

    A head has a magic and its own physical offset.
    """
    stored = buf[start + _MAGIC_AT : end + FRAME_HEAD.itemsize]
    is_magic = stored == _MAGIC_HEAD[0]
    for index, byte in enumerate(_MAGIC_HEAD[1:], start=1):
        is_magic[:-index] &= stored[index:] == byte
    is_magic[1 - len(_MAGIC_HEAD) :] = False
    candidates = np.flatnonzero(is_magic) + start
    candidates = candidates[candidates < end]
    return candidates[store_their_offsets(buf, candidates, physical_base)]


def find_frames(
    buf: Bytes, start: int, end: int, physical_base: int, framing: Framing
) -> Positions:
    """Return where frames of headers begin in a range, rising; see :func:`find_headers`."""
    headers = find_headers(buf, start + framing.head_bytes, end + framing.head_bytes, physical_base)
    return _frames_of(buf, headers, physical_base, framing)


def find_blanks(buf: Bytes, start: int, end: int) -> Positions:
    """Return the positions in a range at which a blank would reach to the buffer's end, rising."""
    stored = buf[start : end + FRAME_HEAD.itemsize]
    if stored.tobytes().find(_BLANK_HEAD) < 0:  # mostly there is none
        return np.empty(0, np.int64)
    headers = windows(stored, FRAME_HEAD.itemsize).view(FRAME_HEAD)
    indices = np.flatnonzero(headers["magic"] == BLANK_MAGIC)
    positions = indices + start
    blanks: Positions = positions[headers["total_size"][indices] == len(buf) - positions]
    return blanks
