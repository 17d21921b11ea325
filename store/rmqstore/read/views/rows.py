"""The rows of views as batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import (
    booleans,
    calendar_times,
    mask_of,
    numbers,
    numbers_of,
    texts,
    texts_where,
)
from rmqstore.format.schema import TIMESTAMP
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.schema import BROKER_NAME, DROPMALFORMED, ViewSpec

_ROWS = 1 << 14

Column: TypeAlias = NDArray[Any] | pa.Array
Row: TypeAlias = Mapping[str, object]


def to_batch(
    spec: ViewSpec, source: StoreParts, columns: Mapping[str, Column], count: int
) -> pa.RecordBatch:
    """Return a batch with the requested columns; those that ``columns`` lacks are null."""
    arrays = []
    for column in spec.schema:
        if column.name in columns:
            values = columns[column.name]
        elif column.name == BROKER_NAME:
            values = texts([source.view_broker_name] * count)
        else:
            values = pa.nulls(count, column.type)
        array = values if isinstance(values, pa.Array) else pa.array(values)
        arrays.append(array if array.type == column.type else array.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=spec.schema)


def to_batches(spec: ViewSpec, source: StoreParts, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows that are made one by one, such as those of queues and files.

    Times in rows are ms. Rows without a broker's name get that of the source.
    """
    left = iter(rows)
    while chunk := list(islice(left, _ROWS)):
        yield _from_rows(spec, source, chunk)


def _from_rows(spec: ViewSpec, source: StoreParts, rows: Sequence[Row]) -> pa.RecordBatch:
    columns: dict[str, Column] = {}
    for column in spec.schema:
        name, kind = column.name, column.type
        if name == BROKER_NAME and name not in rows[0]:
            continue
        values = [row.get(name) for row in rows]
        if kind == TIMESTAMP:
            columns[name] = calendar_times(*_numbers(values, pa.int64()))
        elif pa.types.is_integer(kind):
            columns[name] = numbers(*_numbers(values, kind))
        elif kind == pa.string():
            columns[name] = texts_where([_text(value) for value in values])
        elif pa.types.is_boolean(kind):
            valid = np.array([value is not None for value in values], np.bool_)
            columns[name] = booleans(np.array(values, np.bool_), valid)
        else:
            columns[name] = pa.array(values, kind)
    return to_batch(spec, source, columns, len(rows))


def _text(value: object) -> str | None:
    """Return a value as a text of Arrow, which is UTF-8; the names of files need not be."""
    return None if value is None else str(value).encode("utf-8", "replace").decode()


def times(millis: NDArray[np.int64] | pa.Array) -> pa.Array:
    """Return times (n,) in ms as a timestamp column; those out of the calendar become null."""
    if not isinstance(millis, pa.Array):
        return calendar_times(millis)
    return calendar_times(numbers_of(millis.cast(pa.int64())), mask_of(millis.is_valid()))


def _numbers(
    values: Sequence[object], kind: pa.DataType
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return numbers (n,) within the bounds of a column, and a mask of the existing ones.

    The JSON of a broker may contain anything.
    """
    limit = 1 << (kind.bit_width - 1)
    numbers = np.zeros(len(values), kind.to_pandas_dtype())
    valid = np.zeros(len(values), np.bool_)
    for row, value in enumerate(values):
        if isinstance(value, int) and -limit <= value < limit:
            numbers[row] = value
            valid[row] = True
    return numbers, valid


def shown(spec: ViewSpec, batch: pa.RecordBatch, faults: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch that a view shows, if there are any; it may leave out damaged ones.

    Args:
        spec: the view, whose mode says so.
        batch: the rows.
        faults: what is wrong with each row; null if nothing is.
    """
    if spec.mode == DROPMALFORMED:
        batch = batch.filter(faults.is_null())
    if batch.num_rows:
        yield batch


def reasons(texts: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
    """Return for each row the text of the first true mask, null without one.

    Args:
        texts: masks (n,), by text.
        count: n.
    """
    codes = np.zeros(count, np.int32)
    for number, mask in reversed(list(enumerate(texts.values(), start=1))):
        codes[mask] = number
    names = pa.array([None, *texts], pa.string())
    return names.take(pa.array(codes))
