"""Spans of keys, values and headers as Arrow arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.record_fields import Fields, Headers, RowFaultError, header_spans
from kafkalog.format.schema import HEADER, RECORD
from kafkalog.format.varints import WORD_BYTES
from rmqstore.format.columns.buffers import (
    array_bytes,
    equal_spans,
    gather_spans,
    valid_text,
    windows,
)

Longs = NDArray[np.int64]

_INLINE = 12  # bytes that a view holds itself
_MOST_EVEN = 1024  # bytes of the headers of a record up to which those of all are compared
_SAME_NAMES = 64  # bytes of a name up to which those of all records are compared


def nullable_spans(data: NDArray[np.uint8], starts: Longs, lengths: Longs) -> pa.Array:
    """Copy spans into a binary array, null where a length is negative."""
    is_null = lengths < 0
    if not is_null.any():
        return _spans(data, starts, lengths)
    filled = _spans(data, starts, np.where(is_null, 0, lengths))
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [_validity(~is_null), *filled.buffers()[1:]]
    )


def _spans(data: NDArray[np.uint8], starts: Longs, lengths: Longs) -> pa.Array:
    """Copy spans into a binary array."""
    if not len(starts):
        return pa.nulls(0, pa.binary())
    least, most = int(lengths.min()), int(lengths.max())
    if least == most:
        return equal_spans(data, starts, most, pa.binary())
    if least <= _INLINE:
        return gather_spans(data, starts, lengths, pa.binary())
    # A view names a length, the first four bytes, a buffer and a place in it. Arrow copies what
    # views show in one pass, and does not look at the four bytes.
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0], views[:, 3] = lengths, starts
    buffers = [None, pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def nullable_numbers(values: NDArray[Any], kind: pa.DataType, null: int) -> pa.Array:
    """Return numbers as an array of a type of the same width, null where they have one value."""
    is_null = values == null
    validity = _validity(~is_null) if is_null.any() else None
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, data])


def header_lists(data: NDArray[np.uint8], counts: Longs, headers: Headers) -> pa.Array:
    """Return the headers of records as lists.

    Args:
        data: the bytes that spans point into.
        counts: number of headers of each record, (n,).
        headers: where their names and values are.
    """
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names = _header_names(data, counts, headers)
    values = nullable_spans(data, headers.value_starts, headers.value_lengths)
    return _lists(offsets, names, values)


def _lists(offsets: NDArray[np.int32], names: pa.Array, values: pa.Array) -> pa.Array:
    structs = pa.Array.from_buffers(HEADER, len(names), [None], children=[names, values])
    buffers = [None, pa.py_buffer(offsets)]
    kind = RECORD.field("headers").type
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[structs])


def even_headers(data: NDArray[np.uint8], records: Fields) -> pa.Array | None:
    """Return the headers of records as lists if all have the same names and lengths; else None.

    Args:
        data: the bytes.
        records: the fields of at least one record.
    """
    starts, n_headers = records.header_starts, int(records.header_counts[0])
    n_bytes = int(records.ends[0] - starts[0])
    words = -(-n_bytes // WORD_BYTES)
    if not n_headers or n_bytes > _MOST_EVEN or int(starts.max()) + words * WORD_BYTES > len(data):
        return None
    if (records.header_counts != n_headers).any() or (records.ends - starts != n_bytes).any():
        return None
    first = data[starts[0] : starts[0] + n_bytes]
    try:
        spans = header_spans(first.tobytes(), n_headers, 0)
    except RowFaultError:
        return None
    name_starts, name_lengths, value_starts, value_lengths = spans
    if (value_lengths < 0).any() or value_starts[-1] + value_lengths[-1] != n_bytes:
        return None
    stored = windows(data, words * WORD_BYTES)[starts].view(np.uint8).reshape(len(starts), -1)
    values = [slice(at, at + size) for at, size in zip(value_starts, value_lengths, strict=True)]
    is_same = np.zeros(words * WORD_BYTES, np.uint8)
    is_same[:n_bytes] = 0xFF
    for span in values:
        is_same[span] = 0
    by_word = stored.view(np.uint64)
    if (((by_word ^ by_word[0]) & is_same.view(np.uint64)) != 0).any():
        return None
    names = valid_text(gather_spans(first, name_starts, name_lengths, pa.string()))
    texts, ends = array_bytes(names)
    keys = _repeated(np.tile(texts, len(starts)), np.diff(ends), len(starts), pa.string())
    together = np.concatenate([stored[:, span] for span in values], axis=1)
    contents = _repeated(together, value_lengths, len(starts), pa.binary())
    offsets = np.arange(0, len(keys) + 1, n_headers, dtype=np.int32)
    return _lists(offsets, keys, contents)


def _repeated(
    content: NDArray[np.uint8], lengths: Longs, times: int, kind: pa.DataType
) -> pa.Array:
    """Return texts or bytes whose lengths repeat."""
    ends = np.cumsum(lengths, dtype=np.int32)
    offsets = np.zeros(times * len(lengths) + 1, np.int32)
    firsts = np.arange(times, dtype=np.int32) * ends[-1]
    np.add(firsts[:, None], ends, out=offsets[1:].reshape(times, -1))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def no_headers(count: int) -> pa.Array:
    """Return empty lists."""
    none = np.empty(0, np.int64)
    lengths = np.zeros(count, np.int64)
    return header_lists(np.empty(0, np.uint8), lengths, Headers(none, none, none, none))


def _header_names(data: NDArray[np.uint8], counts: Longs, headers: Headers) -> pa.Array:
    starts, lengths = headers.name_starts, headers.name_lengths
    each = int(counts[0]) if len(counts) else 0
    if each and (counts == each).all():
        names = _same_names(data, starts.reshape(-1, each), lengths.reshape(-1, each))
        if names is not None:
            return names
    return valid_text(gather_spans(data, starts, lengths, pa.string()))


def _same_names(data: NDArray[np.uint8], starts: Longs, lengths: Longs) -> pa.Array | None:
    """Return the names of headers if all records have the same; else None.

    Args:
        data: the bytes.
        starts: where the names begin, (n_records, headers of each).
        lengths: their lengths, the same.
    """
    widths = lengths[0]
    if int(widths.max()) > _SAME_NAMES or (lengths != widths).any():
        return None
    texts: list[bytes] = []
    for column, width in enumerate(widths.tolist()):
        first = int(starts[0, column])
        text = data[first : first + width]
        if width:
            stored = windows(data, width)[starts[:, column]].view(np.uint8).reshape(-1, width)
            if (stored != text).any():
                return None
        texts.append(text.tobytes())
    count = starts.size
    repeated = b"".join(texts) * len(starts)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.tile(widths, len(starts)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(repeated)]
    return valid_text(pa.Array.from_buffers(pa.string(), count, buffers))


def _validity(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
