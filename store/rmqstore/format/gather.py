"""Spans of a buffer, gathered into Arrow arrays with one library call a column; knows no record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqstore.format.heads import windows
from rmqstore.format.layout import Bytes, Positions

_SHORT = 64  # equal spans up to this width are gathered by value; longer ones by Arrow's take


def gather_spans(buf: Bytes, starts: Positions, lengths: Positions, kind: pa.DataType) -> pa.Array:
    """Copy the spans ``[start, start + length)`` of ``buf`` into a binary or string array of n values.

    Args:
        buf: uint8 (nbytes,), less than 2 GiB.
        starts: int64 (n,), in any order; every span lies inside ``buf``.
        lengths: int64 (n,).
        kind: pa.binary() or pa.string(); text is not checked, see ``text.valid_text``.

    Returns:
        n values without nulls; nothing of ``buf`` is referred to.
    """
    n = len(starts)
    if not n:
        return pa.array([], kind)
    width = int(lengths[0])
    if width <= _SHORT and (lengths == width).all():
        return equal_spans(buf, starts, width, kind)
    # Every second value of this array is a wanted span, the others are what lies between and is never looked at.
    ends = np.empty(2 * n, np.int32)
    ends[0::2] = starts
    ends[1::2] = starts + lengths
    spans = pa.Array.from_buffers(kind, 2 * n - 1, [None, pa.py_buffer(ends), pa.py_buffer(buf)])
    return spans.take(pa.array(np.arange(0, 2 * n, 2, dtype=np.int32)))


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
