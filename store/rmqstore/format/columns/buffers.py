"""Spans of a buffer and parts of records, joined into Arrow arrays.

One library call for each column. Nothing here knows about records.

A part is a column, or bytes that are the same in every row. Each part costs the join some 10 ns
a row, so neighbours of one fixed width are laid side by side first, which costs a quarter of that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.layout import FIRST_TIMESTAMP, LAST_TIMESTAMP, Bytes, Mask, Positions
from rmqstore.format.schema import TIMESTAMP
from rmqstore.format.text import decode_text

# A binary column (n,) without nulls, or the same bytes for each of n rows.
Part: TypeAlias = "pa.BinaryArray | bytes"

_WIDEST = 64  # bytes; wider columns are joined as they are

# Bytes that a buffer should have after its records, so that gathers of a whole word need not care
# for the last one.
GATHER_SLACK = 64
_SHORT = 64  # equal spans up to this width are gathered by value; longer ones by Arrow's take


# pyarrow's array, scalar and to_numpy import pandas where that is installed. In a process that
# Spark starts for a task, that would take longer than most tasks do. So the code that every read
# goes through uses these functions instead.


def bounded(kind: pa.DataType, bounds: NDArray[np.int32], data: object) -> pa.Array:
    """Return bytes as an array, cut at bounds (n + 1,); ``data`` is any object with a buffer."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(bounds) - 1, buffers)


def fixed_width(rows: NDArray[np.uint8]) -> pa.BinaryArray:
    """Return the rows of a matrix of bytes, (n, width), as a binary column."""
    n, width = rows.shape
    bounds = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    return bounded(pa.binary(), bounds, np.ascontiguousarray(rows))


def as_binary(column: pa.Array) -> pa.BinaryArray:
    """Return a string column as a binary one over the same buffers."""
    if pa.types.is_binary(column.type):
        return column
    return pa.Array.from_buffers(
        pa.binary(), len(column), column.buffers(), column.null_count, column.offset
    )


def lengths_of(column: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of binary or string values in bytes, (n,)."""
    return np.diff(array_bytes(column)[1])


def are_filled(values: pa.Array) -> Mask:
    """Return a mask (n,) of the binary or string values that are neither null nor empty."""
    mask: Mask = lengths_of(values) > 0
    if values.null_count:
        mask &= mask_of(values.is_valid())
    return mask


def join(parts: Sequence[Part], n: int) -> pa.BinaryArray:
    """Return n rows, each the parts of that row one after the other, binary (n,)."""
    # Neighbours of fixed width become one column.
    merged: list[Part] = []
    run: list[bytes | NDArray[np.uint8]] = []
    for part in parts:
        fixed = part if isinstance(part, bytes) else _matrix(part)
        if fixed is not None:
            run.append(fixed)
        else:
            merged += [*_merged(run, n), part]
            run = []
    merged += _merged(run, n)
    if all(isinstance(part, bytes) for part in merged):
        merged.append(fixed_width(np.empty((n, 0), np.uint8)))
    separator = _scalar(b"")
    values = [_scalar(part) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*values, separator)


def _scalar(value: bytes) -> pa.BinaryScalar:
    # pa.scalar would import pandas; see columns.buffers
    return fixed_width(np.frombuffer(value, np.uint8).reshape(1, -1))[0]


def _merged(run: list[bytes | NDArray[np.uint8]], n: int) -> list[Part]:
    if not run:
        return []
    if all(isinstance(part, bytes) for part in run):
        return [b"".join(part for part in run if isinstance(part, bytes))]
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in run]
    block = np.empty((n, sum(widths)), np.uint8)
    start = 0
    for part, width in zip(run, widths, strict=True):
        is_constant = isinstance(part, bytes)
        block[:, start : start + width] = np.frombuffer(part, np.uint8) if is_constant else part
        start += width
    return [fixed_width(block)]


def _matrix(column: pa.BinaryArray) -> NDArray[np.uint8] | None:
    """Return a column as a matrix of bytes, (n, width), or None if widths differ or are large."""
    data, offsets = array_bytes(column)
    if len(offsets) < 2:
        return None
    width = int(offsets[1] - offsets[0])
    n = len(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if not 0 < width <= _WIDEST or last - first != n * width:
        return None
    if (np.diff(offsets) != width).any():
        return None
    return data[first:last].reshape(n, width)


def interleave(parts: Sequence[pa.Array], rows: Sequence[Positions]) -> pa.Array:
    """Return one array of parts, at least one, which hold its values of these rows."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(numbers(np.argsort(np.concatenate(rows))))


def numbers(values: NDArray[Any], valid: Mask | None = None) -> pa.Array:
    """Return numbers as an Arrow array, null where ``valid`` is False, if it is given."""
    kind = pa.from_numpy_dtype(values.dtype)
    buffers = [None if valid is None else bits(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def bits(mask: Mask) -> pa.Buffer:
    """Return a mask as the buffer of bits that Arrow has of it."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def booleans(values: Mask, valid: Mask | None = None) -> pa.Array:
    """Return booleans as an Arrow array, null where ``valid`` is False, if it is given."""
    buffers = [None if valid is None else bits(valid), bits(values)]
    return pa.Array.from_buffers(pa.bool_(), len(values), buffers)


def in_calendar(millis: NDArray[np.int64]) -> Mask:
    """Return a mask (n,) of the times, ms since the epoch, that lie in the years 1 to 9999."""
    return (millis >= FIRST_TIMESTAMP) & (millis <= LAST_TIMESTAMP)


def calendar_times(millis: NDArray[np.int64], known: Mask | None = None) -> pa.Array:
    """Return times in ms as a timestamp column; those not known or out of the calendar are null."""
    valid = in_calendar(millis) if known is None else in_calendar(millis) & known
    if valid.all():
        return numbers(millis * 1000).view(TIMESTAMP)
    return numbers(np.where(valid, millis, 0) * 1000, valid).view(TIMESTAMP)


def mask_of(values: pa.BooleanArray) -> Mask:
    """Return booleans without nulls as a mask, (n,).

    Equals ``values.to_numpy(zero_copy_only=False)``.
    """
    packed = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    bits = np.unpackbits(packed, count=values.offset + len(values), bitorder="little")
    return bits[values.offset :].view(np.bool_)


def codes_of(encoded: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return the indices of a dictionary array without nulls, (n,), read-only."""
    return np.from_dlpack(encoded.indices).astype(np.int32, copy=False)


def texts(values: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array without nulls; equals ``pa.array(values, pa.string())``."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return bounded(pa.string(), ends, b"".join(encoded))


def texts_where(values: Sequence[str | None]) -> pa.Array:
    """Return texts as an Arrow array, null where there is None."""
    valid = np.array([value is not None for value in values], np.bool_)
    filled = texts([value or "" for value in values])
    return pa.Array.from_buffers(pa.string(), len(values), [bits(valid), *filled.buffers()[1:]])


def numbers_of(values: pa.Array) -> NDArray[Any]:
    """Return fixed-width numbers as an array, (n,); what stands in place of nulls may be any."""
    dtype = np.dtype(values.type.to_pandas_dtype())
    stored = np.frombuffer(values.buffers()[1] or b"", dtype)
    return stored[values.offset : values.offset + len(values)]


def gather_spans(buf: Bytes, starts: Positions, lengths: Positions, kind: pa.DataType) -> pa.Array:
    """Copy spans ``[start, start + length)`` of ``buf`` into a binary or string array.

    Args:
        buf: uint8 (nbytes,), less than 2 GiB.
        starts: int64 (n,), in any order; every span lies inside ``buf``.
        lengths: int64 (n,).
        kind: pa.binary() or pa.string(); text is not validated, see :func:`valid_text`.

    Returns:
        n values without nulls, which hold no reference to ``buf``.
    """
    n = len(starts)
    if not n:
        return pa.nulls(0, kind)
    width = int(lengths[0])
    if width <= _SHORT and (lengths == width).all():
        return equal_spans(buf, starts, width, kind)
    # Every second value of this array is one of the spans. The others lie between them and are
    # never read.
    ends = starts + lengths
    last = int(ends.max())
    bounds = np.empty(2 * n + 2, np.int32)
    bounds[1:-1:2] = starts
    bounds[2:-1:2] = ends
    bounds[-1] = last
    # Arrow takes the mean length of all values from the first and the last bound, and reserves
    # memory by it.
    bounds[0] = max(0, last - 2 * int(lengths.sum() * 1.05) - 64)
    return bounded(kind, bounds, buf).take(numbers(np.arange(1, 2 * n, 2, dtype=np.int32)))


def equal_spans(buf: Bytes, starts: Positions, width: int, kind: pa.DataType) -> pa.Array:
    """Copy spans that all have the same width; see :func:`gather_spans`."""
    n = len(starts)
    data = windows(buf, width)[starts] if width else np.empty(0, np.uint8)
    return bounded(kind, np.arange(n + 1, dtype=np.int32) * np.int32(width), data)


def array_bytes(values: pa.Array) -> tuple[Bytes, Positions]:
    """Return the data of a binary or string array, uint8 (nbytes,), and its offsets, (n + 1,)."""
    _, offsets_buffer, data_buffer = values.buffers()
    has_data = data_buffer is not None and data_buffer.size
    data = np.frombuffer(data_buffer, np.uint8) if has_data else np.empty(0, np.uint8)
    first = values.offset
    if not len(values):  # then the offsets may be left out, as pyarrow 18 does
        return data, np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32)[first : first + len(values) + 1]
    return data, offsets.astype(np.int64)


def has_aligned_words(buf: Bytes) -> bool:
    """Return whether whole words of a buffer can be viewed as numbers in memory order.

    The buffer has to begin at a word boundary, and the machine to be little-endian.
    """
    return buf.ctypes.data % 8 == 0 and sys.byteorder == "little"


def gather_words(buf: Bytes, positions: Positions) -> NDArray[np.uint64]:
    """Return the 8 bytes at each position in memory order, uint64 (n,); all lie inside ``buf``.

    Two aligned reads and a shift are faster than one unaligned read if the bytes are not in the
    cache.
    """
    if not has_aligned_words(buf) or int(positions.max(initial=0)) + 16 > len(buf):
        return windows(buf, 8)[positions].view(np.uint64)
    words = buf[: len(buf) // 8 * 8].view(np.uint64)
    indices = positions >> 3
    shifts = ((positions & 7) << 3).astype(np.uint64)
    low = words[indices] >> shifts
    gathered: NDArray[np.uint64] = low | (words[indices + 1] << (np.uint64(64) - shifts))
    return gathered


def find_byte(data: Bytes, byte: int) -> Positions:
    """Return the positions of a byte value, int64, in rising order.

    Equals ``np.flatnonzero(data == byte)``, but tests eight bytes at once, which is faster for rare
    values.
    """
    is_match = data == byte
    if sys.byteorder != "little":
        return np.flatnonzero(is_match)
    n_in_words = len(is_match) // 8 * 8
    words = is_match[:n_in_words].view(np.uint64)
    indices = np.flatnonzero(words != 0)
    remaining = words[indices]
    parts: list[Positions] = []
    while len(remaining):
        below = remaining - np.uint64(1)
        # A match sets the lowest bit of its byte. The bits that differ are this one and all below
        # it, eight for each byte before it in the word.
        parts.append((indices << 3) + (np.bitwise_count(below ^ remaining) >> 3))
        remaining &= below
        has_more = remaining != 0
        if not has_more.any():
            break
        indices = indices[has_more]
        remaining = remaining[has_more]
    parts.append(np.flatnonzero(is_match[n_in_words:]) + n_in_words)
    positions = np.concatenate(parts)
    if len(parts) > 2:  # a word has several matches
        positions.sort()
    return positions


def valid_text(values: pa.Array) -> pa.Array:
    """Return the string array with invalid bytes replaced by U+FFFD, as Java's decoder does.

    ASCII data, the usual case, takes one pass over the bytes.
    """
    data, _ = array_bytes(values)
    if not len(data) or data.max() < 0x80:
        return values
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        stored = values.cast(pa.binary()).to_pylist()
        decoded = [None if text is None else decode_text(text) for text in stored]
        return pa.array(decoded, pa.string())
    return values


def windows(buf: Bytes, width: int) -> NDArray[np.void]:
    """Return a view whose item *i* is ``buf[i : i + width]``, void (nbytes - width + 1,).

    Indexing it with positions gathers whole items, which is five times as fast as gathering field
    by field.
    """
    kind = np.dtype((np.void, width))
    count = len(buf) - width + 1
    return np.ndarray((count,), kind, buf, 0, (1,)) if count > 0 else np.empty(0, kind)
