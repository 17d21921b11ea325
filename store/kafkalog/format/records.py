"""Batches to columns, without a loop per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.batch_headers import BatchHeaders, Data, Longs
from kafkalog.format.layout import HEADER, NO_TIMESTAMP, RECORD
from kafkalog.format.legacy_columns import (
    LEAST_MESSAGE_BYTES,
    legacy_records,
    legacy_runs,
    most_records,
)
from kafkalog.format.record_fields import (
    Fields,
    Headers,
    RowFaultError,
    Rows,
    header_spans,
    proved_fields,
    read_fields,
    read_headers,
)
from kafkalog.format.record_starts import (
    BatchFaultError,
    Section,
    record_runs,
    record_starts,
    sections,
    supposed_starts,
)
from kafkalog.format.varints import WORD_BYTES
from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.buffers import (
    array_bytes,
    bits,
    bounded,
    equal_spans,
    gather_spans,
    numbers,
    valid_text,
    windows,
)

_INLINE = 12  # bytes that a view holds itself
_MOST_EVEN = 1024  # bytes of the headers of a record up to which those of all are compared

_CHUNK_ROWS: Final = 1 << 18  # some 30 MB of numbers while they are read

T = TypeVar("T")


def nullable_spans(data: NDArray[np.uint8], starts: Longs, lengths: Longs) -> pa.Array:
    """Copy spans into a binary array, null where a length is negative."""
    is_null = lengths < 0
    if not is_null.any():
        return _spans(data, starts, lengths)
    filled = _spans(data, starts, np.where(is_null, 0, lengths))
    buffers = [bits(~is_null), *filled.buffers()[1:]]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


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
    stored = numbers(values, ~is_null) if is_null.any() else numbers(values)
    return stored.view(kind)


def header_lists(data: NDArray[np.uint8], counts: Longs, headers: Headers) -> pa.Array:
    """Return the headers of records as lists.

    Args:
        data: the bytes that spans point into.
        counts: number of headers of each record, (n,).
        headers: where their names and values are.
    """
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names = valid_text(gather_spans(data, headers.name_starts, headers.name_lengths, pa.string()))
    values = nullable_spans(data, headers.value_starts, headers.value_lengths)
    return _lists(offsets, names, values)


def _lists(offsets: NDArray[np.int32], names: pa.Array, values: pa.Array) -> pa.Array:
    structs = pa.StructArray.from_arrays([names, values], fields=[*HEADER])
    return pa.ListArray.from_arrays(numbers(offsets), structs, type=RECORD.field("headers").type)


def even_headers(data: NDArray[np.uint8], records: Fields) -> pa.Array | None:
    """Return the headers of records as lists if all have the same names and lengths; else None.

    Args:
        data: the bytes.
        records: the fields of at least one record.
    """
    starts = records.header_starts
    n_headers = int(records.header_counts[0])
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
    return bounded(kind, offsets, np.ascontiguousarray(content))


def decode_chunks(
    data: Data,
    batch_headers: BatchHeaders,
    columns: Sequence[str],
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of batches, without control records, a chunk at a time.

    With each chunk comes the position after its last batch, which is that in the segment. It does
    not rise before all of a batch was yielded.

    A chunk has some 16 MiB, or one batch that inflates to more, and at most 256 Ki records. If a
    batch is damaged, the error comes before any of its records.

    Args:
        data: the data that was walked.
        batch_headers: some of its headers.
        columns: names of columns of ``schema.RECORD``.
        start_offset: first offset.
        end_offset: the offset after the last one.

    Raises:
        MalformedBytesError: a batch contradicts the format. The position is that of the batch in
            the segment. Checksums of batches are not compared, and headers are checked only if they
            are among the columns.
    """
    schema = pa.schema([RECORD.field(name) for name in columns])
    chosen = batch_headers[~batch_headers.is_control & (batch_headers.record_count != 0)]
    for section in chain.from_iterable(map(_parts, sections(data, chosen))):
        begin = int(section.headers.position[0])
        after = int(section.headers.position[-1] + section.headers.size[-1])
        try:
            # One batch of more records than are read at a time.
            is_huge = len(section.headers) == 1 and bool(_most_records(section)[0] > _CHUNK_ROWS)
            left = 0
            for rows in _runs(section) if is_huge else ():  # the last record may be the damaged one
                for name in columns:
                    _column(section, rows, name)
                left += len(rows.offsets)
            for rows in _runs(section) if is_huge else (_rows(section),):
                left -= len(rows.offsets)
                within = rows.within(start_offset, end_offset)
                arrays = [_column(section, within, name) for name in columns]
                chunk = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield after if left <= 0 else begin, chunk
        except BatchFaultError as err:
            raise MalformedBytesError(int(section.headers.position[err.batch]), err.reason) from err


def salvaged(
    batch_headers: BatchHeaders, read: Callable[[BatchHeaders], Iterator[tuple[int, T]]]
) -> Iterator[T | MalformedBytesError]:
    """Yield what batches give, and in place of each damaged one its error, found by halving.

    Args:
        batch_headers: the batches.
        read: reads some of them, and yields each result with the position up to which they need not
            be read again, as :func:`decode_chunks` does.
    """
    done = 0
    try:
        for done, result in read(batch_headers):  # noqa: B007 - read after an error
            yield result
    except MalformedBytesError as err:
        left = batch_headers[batch_headers.position >= done]
        if len(left) == 1:
            yield err
            return
        half = len(left) // 2
        yield from salvaged(left[:half], read)
        yield from salvaged(left[half:], read)


def _parts(section: Section) -> Iterator[Section]:
    """Yield the batches of a section, not too many records at a time, but at least one batch."""
    batch_headers, data, starts, ends = section
    totals = np.cumsum(_most_records(section))
    if totals[-1] <= _CHUNK_ROWS:
        yield section
        return
    first = 0
    while first < len(batch_headers):
        before = int(totals[first - 1]) if first else 0
        after = max(first + 1, int(np.searchsorted(totals, before + _CHUNK_ROWS, side="right")))
        part = slice(first, after)
        yield Section(batch_headers[part], data, starts[part], ends[part])
        first = after


def _most_records(section: Section) -> Longs:
    """Return the most records that each batch may have, (n,)."""
    if section.headers.is_v2[0]:
        return section.headers.record_count.astype(np.int64)
    return most_records(section)


def _rows(section: Section) -> Rows:
    batch_headers = section.headers
    if not batch_headers.is_v2[0]:
        return legacy_records(section)
    counts = batch_headers.record_count.astype(np.int64)
    if int(counts.min()) < 0:
        batch = int(counts.argmin())
        raise BatchFaultError(batch, f"the number of records is {counts[batch]}")
    data, starts, ends = section.data, section.starts, section.ends
    fields = None
    begins = supposed_starts(data, starts, ends, counts)
    if begins is not None and len(begins):
        fields = proved_fields(data, begins, ends, counts)
    if fields is not None:
        return _rows_of(section, counts, fields)
    return _rows_at(section, counts, *record_starts(data, starts, ends, counts))


def _runs(section: Section) -> Iterator[Rows]:
    """Yield the records of the one batch of a section, some at a time."""
    if not section.headers.is_v2[0]:
        yield from legacy_runs(section, _CHUNK_ROWS * LEAST_MESSAGE_BYTES)
        return
    counts = section.headers.record_count.astype(np.int64)
    runs = record_runs(section.data, section.starts, section.ends, counts, _CHUNK_ROWS)
    for bodies, ends in runs:
        yield _rows_at(section, np.array([len(bodies)]), bodies, ends)


def _rows_at(section: Section, counts: Longs, bodies: Longs, ends: Longs) -> Rows:
    """Return the records of batches of format v2, by where their bodies are and how many."""
    try:
        fields = read_fields(section.data, bodies, ends)
    except RowFaultError as err:
        owners = np.repeat(np.arange(len(counts)), counts)
        raise BatchFaultError(int(owners[err.row]), err.reason) from err
    return _rows_of(section, counts, fields)


def _rows_of(section: Section, counts: Longs, fields: Fields) -> Rows:
    batch_headers = section.headers
    owners = np.repeat(np.arange(len(batch_headers)), counts)
    offsets = np.repeat(batch_headers.base_offset, counts) + fields.offset_deltas
    timestamps = np.repeat(batch_headers.base_timestamp, counts) + fields.time_deltas
    is_append_time = batch_headers.is_log_append_time
    if is_append_time.any():
        append_times = np.repeat(batch_headers.max_timestamp, counts)
        timestamps = np.where(is_append_time[owners], append_times, timestamps)
    return Rows(owners, offsets, timestamps, fields)


def _column(section: Section, rows: Rows, name: str) -> pa.Array:
    data = section.data
    fields = rows.fields
    kind = RECORD.field(name).type
    if name == "key":
        return nullable_spans(data, fields.key_starts, fields.key_lengths)
    if name == "value":
        return nullable_spans(data, fields.value_starts, fields.value_lengths)
    if name == "offset":
        return numbers(rows.offsets)
    if name == "timestamp":
        return nullable_numbers(rows.timestamps, kind, NO_TIMESTAMP)
    if name == "timestamp_type":
        return numbers(section.headers.timestamp_type[rows.owners])
    if name == "leader_epoch":
        epochs = np.maximum(section.headers.leader_epoch, -1)[rows.owners]
        return nullable_numbers(epochs, kind, -1)
    if not fields.header_counts.any():
        none = np.empty(0, np.int64)
        return header_lists(data, fields.header_counts, Headers(none, none, none, none))
    even = even_headers(data, fields)
    if even is not None:
        return even
    try:
        headers = read_headers(data, fields)
    except RowFaultError as err:
        raise BatchFaultError(int(rows.owners[err.row]), err.reason) from err
    return header_lists(data, fields.header_counts, headers)
