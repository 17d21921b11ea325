"""Spans of a buffer, gathered into Arrow arrays with one library call a column; knows no record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.layout import Bytes, Mask, Positions
from rmqstore.format.utf8 import decode_text

_SHORT = 64  # equal spans up to this width are gathered by value; longer ones by Arrow's take


# pyarrow's array, scalar and to_numpy import pandas where that is installed. In a process that Spark starts for a task,
# that would cost more than most tasks do: what every read goes through uses these instead.


def numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array without nulls; equals ``pa.array(values)``."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def booleans(values: Mask) -> pa.Array:
    """Return booleans as an Arrow array without nulls; equals ``pa.array(values)``."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def mask_of(values: pa.BooleanArray) -> Mask:
    """Return booleans without nulls as a mask, (n,); equals ``values.to_numpy(zero_copy_only=False)``."""
    bits = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(np.bool_)


def texts(values: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array without nulls; equals ``pa.array(values, pa.string())``."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def gather_spans(buf: Bytes, starts: Positions, lengths: Positions, kind: pa.DataType) -> pa.Array:
    """Copy the spans ``[start, start + length)`` of ``buf`` into a binary or string array of n values.

    Args:
        buf: uint8 (nbytes,), less than 2 GiB.
        starts: int64 (n,), in any order; every span lies inside ``buf``.
        lengths: int64 (n,).
        kind: pa.binary() or pa.string(); text is not checked, see ``buffers.valid_text``.

    Returns:
        n values without nulls; nothing of ``buf`` is referred to.
    """
    n = len(starts)
    if not n:
        return pa.nulls(0, kind)
    width = int(lengths[0])
    if width <= _SHORT and (lengths == width).all():
        return equal_spans(buf, starts, width, kind)
    # Every second value of this array is a wanted span, the others are what lies between and is never looked at.
    bounds = np.empty(2 * n + 2, np.int32)
    bounds[1:-1:2] = starts
    bounds[2:-1:2] = ends = starts + lengths
    # Arrow reserves memory by the mean length of all values, which the first and last bound tell it.
    bounds[-1] = last = int(ends.max())
    bounds[0] = max(0, last - 2 * int(lengths.sum() * 1.05) - 64)
    spans = pa.Array.from_buffers(kind, 2 * n + 1, [None, pa.py_buffer(bounds), pa.py_buffer(buf)])
    return spans.take(numbers(np.arange(1, 2 * n, 2, dtype=np.int32)))


def equal_spans(buf: Bytes, starts: Positions, width: int, kind: pa.DataType) -> pa.Array:
    """Copy spans of one width; see :func:`gather_spans`."""
    n = len(starts)
    data = windows(buf, width)[starts] if width else np.empty(0, np.uint8)
    offsets = np.arange(0, n * width + 1, width, dtype=np.int32) if width else np.zeros(n + 1, np.int32)
    return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def array_bytes(values: pa.Array) -> tuple[Bytes, Positions]:
    """Return the data buffer of a binary or string array and its offsets, uint8 (nbytes,) and int64 (n + 1,)."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8), ends


def has_aligned_words(buf: Bytes) -> bool:
    """Tell whether the buffer begins at a word of memory and words are little-endian, as they are nearly everywhere."""
    return buf.ctypes.data % 8 == 0 and sys.byteorder == "little"


def aligned_words(buf: Bytes) -> NDArray[np.uint64]:
    """Return the whole words of a buffer, uint64 (nbytes // 8,); nothing is copied."""
    return buf[: len(buf) // 8 * 8].view(np.uint64)


def gather_words(buf: Bytes, positions: Positions) -> NDArray[np.uint64]:
    """Return the 8 bytes at each position as they lie in memory, uint64 (n,); every position has them behind it.

    Two aligned words and a shift are faster than one unaligned read where the bytes are not in the cache.
    """
    if not has_aligned_words(buf) or int(positions.max(initial=0)) + 16 > len(buf):
        return windows(buf, 8)[positions].view(np.uint64)
    words, at = aligned_words(buf), positions >> 3
    shift = ((positions & 7) << 3).astype(np.uint64)
    found: NDArray[np.uint64] = (words[at] >> shift) | (words[at + 1] << (np.uint64(64) - shift))
    return found


def find_byte(data: Bytes, byte: int) -> Positions:
    """Return the positions of a byte value, int64, rising; for values that are rare, eight bytes are looked at in one.

    Equals ``np.flatnonzero(data == byte)``.
    """
    hits = data == byte
    if sys.byteorder != "little":
        return np.flatnonzero(hits)
    in_words = len(hits) // 8 * 8
    words = hits[:in_words].view(np.uint64)
    places = np.flatnonzero(words != 0)
    left = words[places]
    found: list[Positions] = []
    while len(left):
        below = left - np.uint64(1)
        # A hit is one bit at the bottom of its byte, so the bits below it are eight for each byte below.
        found.append((places << 3) + (np.bitwise_count(below & ~left) >> 3))
        left &= below
        if left.any():
            more = left != 0
            places, left = places[more], left[more]
        else:
            break
    found.append(np.flatnonzero(hits[in_words:]) + in_words)
    positions = np.concatenate(found)
    if len(found) > 2:  # words with several hits
        positions.sort()
    return positions


def valid_text(values: pa.Array) -> pa.Array:
    """Return the string array with every invalid byte sequence replaced by U+FFFD, as Java's decoder does.

    All-ASCII data, the usual case, costs one pass over the bytes.
    """
    data, _ = array_bytes(values)
    if not len(data) or data.max() < 0x80:
        return values
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        stored = values.cast(pa.binary()).to_pylist()
        return pa.array([None if text is None else decode_text(text) for text in stored], pa.string())
    return values


def windows(buf: Bytes, width: int) -> NDArray[np.void]:
    """Return a view whose item *i* is the ``width`` bytes of ``buf`` from *i* on: void (nbytes - width + 1,).

    Indexed with positions it gathers them at once, five times as fast as field by field.
    """
    kind = np.dtype((np.void, width))
    count = len(buf) - width + 1
    return np.ndarray((count,), kind, buf, 0, (1,)) if count > 0 else np.empty(0, kind)
