"""Batches to columns, without a loop per record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.arrow_columns import (
    even_headers,
    header_lists,
    no_headers,
    nullable_numbers,
    nullable_spans,
)
from kafkalog.format.batch_heads import BatchHeads, Data
from kafkalog.format.layout import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP
from kafkalog.format.legacy_columns import (
    LEAST_MESSAGE_BYTES,
    LegacyRecords,
    legacy_records,
    legacy_runs,
    most_records,
)
from kafkalog.format.record_fields import (
    Fields,
    RowFaultError,
    proved_fields,
    read_fields,
    read_headers,
)
from kafkalog.format.record_starts import (
    BatchFaultError,
    record_runs,
    record_starts,
    supposed_starts,
)
from kafkalog.format.schema import RECORD
from kafkalog.format.sections import Section, sections
from rmqstore.errors import MalformedBytesError

Longs = NDArray[np.int64]

_PIECE_ROWS: Final = 1 << 18  # some 30 MB of numbers while they are read


def decode(
    data: Data,
    heads: BatchHeads,
    *,
    columns: Sequence[str],
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> pa.RecordBatch:
    """Return the records of batches, without control records.

    Args:
        data: the data that was walked, less than 2 GiB.
        heads: some of its heads.
        columns: names of columns of ``schema.RECORD``.
        start_offset: first offset.
        end_offset: offset after the last one.

    Raises:
        MalformedBytesError: a batch contradicts the format. The position is that of the batch in
            the segment. Checksums of batches are not compared, and headers are checked only if they
            are among the columns.
        OverflowError: a column has more than 2 GiB; :func:`decode_pieces` has no such limit.

    All records lie in memory at once, so it is :func:`decode_pieces` that reads whole logs.
    """
    schema = pa.schema([RECORD.field(name) for name in columns])
    pieces = list(
        decode_pieces(
            data, heads, columns=columns, start_offset=start_offset, end_offset=end_offset
        )
    )
    if len(pieces) == 1:
        return pieces[0]
    joined = pa.Table.from_batches(pieces, schema).combine_chunks().to_batches()
    if len(joined) > 1:
        raise OverflowError("the records have more than 2 GiB: decode fewer batches at a time")
    if not joined:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(0, kind) for kind in schema.types], schema=schema
        )
    return joined[0]


def decode_pieces(
    data: Data,
    heads: BatchHeads,
    *,
    columns: Sequence[str],
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of batches a piece at a time; see :func:`decode`.

    A piece has some 16 MiB, or one batch that inflates to more, and at most 256 Ki records. If a
    batch is damaged, the error comes before any of its records.
    """
    for _, piece in counted_pieces(data, heads, columns, start_offset, end_offset):
        yield piece


def counted_pieces(
    data: Data,
    heads: BatchHeads,
    columns: Sequence[str],
    start_offset: int | None,
    end_offset: int | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the pieces of :func:`decode_pieces`, each with the position after its last batch.

    The position is that in the segment. It does not rise before all of a batch was yielded.
    """
    schema = pa.schema([RECORD.field(name) for name in columns])
    chosen = heads[~heads.is_control & (heads.record_count != 0)]
    for section in (part for whole in sections(data, chosen) for part in _parts(whole)):
        begin = int(section.heads.position[0])
        after = int(section.heads.position[-1] + section.heads.size[-1])
        try:
            is_huge = _is_huge(section)
            left = 0
            for rows in _runs(section) if is_huge else ():  # the last record may be the damaged one
                _arrays(section, rows, columns)
                left += len(rows.offsets)
            for rows in _runs(section) if is_huge else (_rows(section),):
                left -= len(rows.offsets)
                arrays = _arrays(section, _within(rows, start_offset, end_offset), columns)
                piece = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield after if left <= 0 else begin, piece
        except BatchFaultError as err:
            raise MalformedBytesError(int(section.heads.position[err.batch]), err.reason) from err


def _parts(section: Section) -> Iterator[Section]:
    """Yield the batches of a section, not too many records at a time, but at least one batch."""
    heads, data, starts, ends = section
    totals = np.cumsum(_most_records(section))
    if totals[-1] <= _PIECE_ROWS:
        yield section
        return
    first = 0
    while first < len(heads):
        before = int(totals[first - 1]) if first else 0
        after = max(first + 1, int(np.searchsorted(totals, before + _PIECE_ROWS, side="right")))
        part = slice(first, after)
        yield Section(heads[part], data, starts[part], ends[part])
        first = after


def _is_huge(section: Section) -> bool:
    """Tell whether a section is one batch of more records than are read at a time."""
    return len(section.heads) == 1 and bool(_most_records(section)[0] > _PIECE_ROWS)


def _most_records(section: Section) -> Longs:
    """Return the most records that each batch may have, (n,)."""
    if section.heads.is_v2[0]:
        return section.heads.record_count.astype(np.int64)
    return most_records(section)


def _arrays(section: Section, rows: _Rows, columns: Sequence[str]) -> list[pa.Array]:
    return [_column(section, rows, name) for name in columns]


class _Rows(NamedTuple):
    """Records of a section. ``owners`` are the numbers of their batches, (n,)."""

    owners: Longs
    offsets: Longs
    timestamps: Longs
    timestamp_types: Longs
    fields: Fields


def _rows(section: Section) -> _Rows:
    heads = section.heads
    if not heads.is_v2[0]:
        return _of_legacy(legacy_records(section))
    counts = heads.record_count.astype(np.int64)
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


def _of_legacy(legacy: LegacyRecords) -> _Rows:
    return _Rows(
        legacy.owners, legacy.offsets, legacy.timestamps, legacy.timestamp_types, legacy.fields
    )


def _runs(section: Section) -> Iterator[_Rows]:
    """Yield the records of the one batch of a section, some at a time."""
    if not section.heads.is_v2[0]:
        yield from map(_of_legacy, legacy_runs(section, _PIECE_ROWS * LEAST_MESSAGE_BYTES))
        return
    counts = section.heads.record_count.astype(np.int64)
    for bodies, ends in record_runs(
        section.data, section.starts, section.ends, counts, _PIECE_ROWS
    ):
        yield _rows_at(section, np.array([len(bodies)]), bodies, ends)


def _rows_at(section: Section, counts: Longs, bodies: Longs, ends: Longs) -> _Rows:
    """Return the records of batches of format v2, by where their bodies are and how many."""
    try:
        fields = read_fields(section.data, bodies, ends)
    except RowFaultError as err:
        owners = np.repeat(np.arange(len(counts)), counts)
        raise BatchFaultError(int(owners[err.row]), err.reason) from err
    return _rows_of(section, counts, fields)


def _rows_of(section: Section, counts: Longs, fields: Fields) -> _Rows:
    heads = section.heads
    owners = np.repeat(np.arange(len(heads)), counts)
    offsets = np.repeat(heads.base_offset, counts) + fields.offset_deltas
    is_append_time = heads.is_log_append_time
    timestamps = np.repeat(heads.base_timestamp, counts) + fields.time_deltas
    if is_append_time.any():
        append_times = np.repeat(heads.max_timestamp, counts)
        timestamps = np.where(is_append_time[owners], append_times, timestamps)
        types = np.where(is_append_time, LOG_APPEND_TIME, CREATE_TIME)[owners]
    else:
        types = np.full(len(owners), CREATE_TIME)
    return _Rows(owners, offsets, timestamps, types, fields)


def _within(rows: _Rows, start_offset: int | None, end_offset: int | None) -> _Rows:
    """Return the rows whose offsets are in a range."""
    inside = np.ones(len(rows.offsets), np.bool_)
    if start_offset is not None:
        inside &= rows.offsets >= start_offset
    if end_offset is not None:
        inside &= rows.offsets < end_offset
    if inside.all():
        return rows
    chosen = np.flatnonzero(inside)
    return _Rows(
        rows.owners[chosen],
        rows.offsets[chosen],
        rows.timestamps[chosen],
        rows.timestamp_types[chosen],
        rows.fields.take(chosen),
    )


def _column(section: Section, rows: _Rows, name: str) -> pa.Array:
    data, fields = section.data, rows.fields
    kind = RECORD.field(name).type
    if name == "key":
        return nullable_spans(data, fields.key_starts, fields.key_lengths)
    if name == "value":
        return nullable_spans(data, fields.value_starts, fields.value_lengths)
    if name == "offset":
        return pa.Array.from_buffers(kind, len(rows.offsets), [None, pa.py_buffer(rows.offsets)])
    if name == "timestamp":
        return nullable_numbers(rows.timestamps, kind, NO_TIMESTAMP)
    if name == "timestamp_type":
        types = rows.timestamp_types.astype(np.int32)
        return pa.Array.from_buffers(kind, len(types), [None, pa.py_buffer(types)])
    if name == "leader_epoch":
        epochs = np.maximum(section.heads.leader_epoch, -1)[rows.owners]
        return nullable_numbers(epochs, kind, -1)
    return _headers(section, rows)


def _headers(section: Section, rows: _Rows) -> pa.Array:
    fields = rows.fields
    if not fields.header_counts.any():
        return no_headers(len(rows.owners))
    even = even_headers(section.data, fields)
    if even is not None:
        return even
    try:
        headers = read_headers(section.data, fields)
    except RowFaultError as err:
        raise BatchFaultError(int(rows.owners[err.row]), err.reason) from err
    return header_lists(section.data, fields.header_counts, headers)
