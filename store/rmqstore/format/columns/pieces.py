"""Strings of bytes that are made of pieces: row by row, the pieces are joined.

A piece is a column, or bytes that are the same in every row. Each piece costs the join some 10 ns
a row, so neighbours of one fixed width are laid side by side first, which costs a quarter of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import array_bytes

# A binary column (n,) without nulls, or the same bytes for each of n rows.
Piece: TypeAlias = "pa.BinaryArray | bytes"

_WIDEST = 64  # bytes; wider columns are joined as they are


def fixed_width(rows: NDArray[np.uint8]) -> pa.BinaryArray:
    """Return the rows of a matrix of bytes, (n, width), as a binary column."""
    n, width = rows.shape
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), data])


def as_binary(column: pa.Array) -> pa.BinaryArray:
    """Return a string column as a binary one over the same buffers."""
    if pa.types.is_binary(column.type):
        return column
    return pa.Array.from_buffers(
        pa.binary(), len(column), column.buffers(), column.null_count, column.offset
    )


def rows_of(piece: Piece, rows: slice) -> Piece:
    """Return a piece for consecutive rows."""
    return piece if isinstance(piece, bytes) else piece[rows]


def lengths_of(column: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of binary or string values in bytes, (n,)."""
    return np.diff(array_bytes(column)[1])


def join(pieces: Sequence[Piece], n: int) -> pa.BinaryArray:
    """Return n rows, each the pieces of that row one after the other, binary (n,)."""
    merged = _side_by_side(pieces, n)
    if all(isinstance(piece, bytes) for piece in merged):
        merged.append(fixed_width(np.empty((n, 0), np.uint8)))
    separator = _scalar(b"")
    values = [_scalar(piece) if isinstance(piece, bytes) else piece for piece in merged]
    return pc.binary_join_element_wise(*values, separator)


def _scalar(value: bytes) -> pa.BinaryScalar:
    # pa.scalar would import pandas; see columns.buffers
    return fixed_width(np.frombuffer(value, np.uint8).reshape(1, -1))[0]


def _side_by_side(pieces: Sequence[Piece], n: int) -> list[Piece]:
    """Return pieces that join to the same rows, with neighbours of fixed width in one column."""
    merged: list[Piece] = []
    run: list[bytes | NDArray[np.uint8]] = []
    for piece in pieces:
        fixed = piece if isinstance(piece, bytes) else _matrix(piece)
        if fixed is not None:
            run.append(fixed)
        else:
            merged += [*_merged(run, n), piece]
            run = []
    return merged + _merged(run, n)


def _merged(run: list[bytes | NDArray[np.uint8]], n: int) -> list[Piece]:
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
