"""Compares the fast path with the reference, which both see the same heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kafkalog.format.batch_heads import BatchHeads, Data, walk_batches
from kafkalog.format.layout import RECORD
from kafkalog.format.records import decode
from kafkalog.format.reference import Record, records_of
from rmqstore.errors import MalformedBytesError

Rows = list[dict[str, Any]]


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return the rows of a batch, with times as numbers."""
    batch.validate(full=True)
    times = batch.column("timestamp").cast(pa.int64())
    table = pa.Table.from_batches([batch])
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


def reference_rows(data: Data, heads: BatchHeads) -> Rows:
    return [row_of(record) for record in records_of(data, heads[~heads.is_control])]


def both(data: Data, heads: BatchHeads | None = None) -> Rows | None:
    """Return the rows of both paths, which are the same; None if both refuse them."""
    heads = walk_batches(data, base_position=1000) if heads is None else heads
    positions = set(heads.position.tolist())
    expected = _rows_or_position(lambda: reference_rows(data, heads))
    found = _rows_or_position(lambda: rows_of(decode(data, heads, columns=RECORD.names)))
    if isinstance(expected, int):
        assert expected in positions
        assert found in positions
        return None
    assert found == expected
    return expected


def _rows_or_position(read: Callable[[], Rows]) -> Rows | int:
    """Return the rows, or where the batch is that was refused."""
    try:
        return read()
    except MalformedBytesError as err:
        return err.position
