"""Compares the fast path with the reference, which both see the same headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from kafkalog.format.batch_headers import BatchHeaders, Data, walk_batches
from kafkalog.format.layout import RECORD
from kafkalog.format.records import decode_chunks
from kafkalog.format.reference import Record, records_of
from rmqstore.errors import MalformedBytesError

Rows = list[dict[str, Any]]


def decoded(
    data: Data,
    batch_headers: BatchHeaders,
    columns: Sequence[str] = RECORD.names,
    **bounds: int | None,
) -> pa.Table:
    chunks = (chunk for _, chunk in decode_chunks(data, batch_headers, columns, **bounds))
    return pa.Table.from_batches(chunks, pa.schema([RECORD.field(name) for name in columns]))


def rows_of(table: pa.Table) -> Rows:
    table.validate(full=True)
    times = table.column("timestamp").cast(pa.int64())
    return table.set_column(table.column_names.index("timestamp"), "timestamp", times).to_pylist()


def row_of(record: Record) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "offset": record.offset,
        "timestamp": None if record.timestamp == -1 else record.timestamp,
        "timestamp_type": record.timestamp_type,
        "headers": [{"key": name, "value": value} for name, value in record.headers],
        "leader_epoch": record.leader_epoch,
    }


def reference_rows(data: Data, batch_headers: BatchHeaders) -> Rows:
    return [row_of(record) for record in records_of(data, batch_headers[~batch_headers.is_control])]


def both(data: Data, batch_headers: BatchHeaders | None = None) -> Rows | None:
    """Return the rows of both paths, which are the same; None if both refuse them."""
    batch_headers = (
        walk_batches(data, base_position=1000) if batch_headers is None else batch_headers
    )
    positions = set(batch_headers.position.tolist())
    expected = _rows_or_position(lambda: reference_rows(data, batch_headers))
    found = _rows_or_position(lambda: rows_of(decoded(data, batch_headers)))
    if isinstance(expected, int):
        assert expected in positions
        assert found in positions
        return None
    assert found == expected
    return expected


def _rows_or_position(read: Callable[[], Rows]) -> Rows | int:
    try:
        return read()
    except MalformedBytesError as err:
        return err.position
