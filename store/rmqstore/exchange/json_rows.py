"""Rows as JSON objects: times are ISO-8601, properties an object, and bytes text.

Bytes that are not UTF-8 are encoded in base64, under the column's name with ``Base64`` appended.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import IO, Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.buffers import in_calendar, numbers_of
from rmqstore.query.times import zone_name

BASE64: Final = "Base64"
_NO_TIME: Final = -(1 << 63)  # to numpy
# the metadata of a column of text that is JSON already
JSON_TEXT: Final = {b"rmqstore": b"json"}
_PER_MINUTE: Final = {"ms": 60_000, "us": 60_000_000}
# More rows would not stay in the processor's cache until their lines are written.
_ROWS_AT_ONCE: Final = 512


def write_json_lines(
    sink: IO[bytes] | pa.NativeFile, _schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Write rows as JSON Lines.

    Args:
        sink: an open file.
        batches: the rows.
    """
    for batch in batches:
        for start in range(0, len(batch), _ROWS_AT_ONCE):
            sink.write(b"".join(json_lines(batch.slice(start, _ROWS_AT_ONCE))))
        sink.flush()


def json_lines(batch: pa.RecordBatch) -> list[bytes]:
    """Return the rows of a batch as lines of JSON, (n,), each with its line end.

    The columns are converted one by one, which is several times as fast as row by row.
    """
    return [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in json_rows(batch)]


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch with values that JSON can hold, (n,)."""
    names = []
    columns = []
    others = []  # bytes of which some are not UTF-8
    for field, column in zip(batch.schema, batch.columns, strict=True):
        values = _values(field, column)
        if values is None:
            others.append((field.name, column))
        else:
            names.append(field.name)
            columns.append(values)
    rows: list[dict[str, Any]] = [{} for _ in range(len(batch))]
    if columns:
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for name, column in others:
        for row, text, encoded in zip(rows, *base64_texts(column), strict=True):
            if encoded is None:
                row[name] = text
            else:
                row[f"{name}{BASE64}"] = encoded
    for name in names:
        # A column of text may stand beside one of the bytes that are not; a row keeps one of them.
        encoded_name = f"{name}{BASE64}"
        if encoded_name in names:
            for row in rows:
                del row[encoded_name if row[encoded_name] is None else name]
    return rows


def numbered_times(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the columns and the batches of rows with times as epoch ms."""
    in_millis = numbered = schema
    for position, field in enumerate(schema):
        if pa.types.is_timestamp(field.type):
            millis = field.with_type(pa.timestamp("ms", field.type.tz))
            in_millis = in_millis.set(position, millis)
            numbered = numbered.set(position, field.with_type(pa.int64()))
    return numbered, (batch.cast(in_millis, safe=False).cast(numbered) for batch in batches)


def _values(field: pa.Field, column: pa.Array) -> list[Any] | None:
    """Return the values of a column; None for bytes of which some are not UTF-8."""
    if pa.types.is_binary(column.type):
        return _texts(column)
    if field.metadata == JSON_TEXT:
        return [None if text is None else orjson.Fragment(text) for text in column.to_pylist()]
    return json_values(column)


def _texts(column: pa.Array) -> list[str | None] | None:
    """Return bytes as text; None if some are not UTF-8."""
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return None
    return texts


def base64_texts(column: pa.Array) -> tuple[list[str | None], list[str | None]]:
    """Return bytes as text, and those that are not UTF-8 in base64 instead, (n,) each."""
    texts = _texts(column)
    if texts is not None:
        return texts, [None] * len(texts)
    texts = []
    encoded: list[str | None] = []
    for value in column.to_pylist():
        try:
            texts.append(None if value is None else value.decode())
            encoded.append(None)
        except UnicodeDecodeError:
            texts.append(None)
            encoded.append(base64.b64encode(value).decode())
    return texts, encoded


def json_values(column: pa.Array) -> list[Any]:
    """Return the values of a column that does not hold bytes, (n,), as JSON can hold them."""
    if pa.types.is_timestamp(column.type):
        return _times(column)
    if pa.types.is_map(column.type) and column.null_count:
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    if pa.types.is_map(column.type):
        ends = column.offsets.to_pylist()
        first = ends[0]
        keys = column.keys.slice(first, ends[-1] - first).to_pylist()
        items = column.items.slice(first, ends[-1] - first).to_pylist()
        bounds = pairwise(end - first for end in ends)
        return [dict(zip(keys[low:high], items[low:high], strict=True)) for low, high in bounds]
    values: list[Any] = column.to_pylist()
    return values


def _times(column: pa.Array) -> list[str | None]:
    """Return times as ISO-8601 with milliseconds, by the clock of the current time zone."""
    unit = column.type.unit
    if unit != "ms":  # those in ms may be too far off to be counted in microseconds
        unit = "us"
        column = column.cast(pa.timestamp(unit, column.type.tz))
    stored = numbers_of(column.cast(pa.int64()))
    zone_now = zone_name()
    clock = stored
    zones: Iterable[str] = repeat("+00:00", len(stored))
    if zone_now != "UTC":
        local = pc.local_timestamp(column.cast(pa.timestamp(unit, zone_now))).cast(pa.int64())
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        # Whole minutes, as ISO-8601 has them, and none where the clock would leave the calendar.
        minutes = np.where(is_valid, numbers_of(local) - stored, 0) // _PER_MINUTE[unit]
        clock = stored + minutes * _PER_MINUTE[unit]
        minutes = np.where(in_calendar(clock // (_PER_MINUTE[unit] // 60_000)), minutes, 0)
        clock = stored + minutes * _PER_MINUTE[unit]
        distinct, codes = np.unique(minutes, return_inverse=True)
        names = [f"{'-' if n < 0 else '+'}{abs(n) // 60:02}:{abs(n) % 60:02}" for n in distinct]
        zones = [names[code] for code in codes]
    texts = np.datetime_as_string(clock.view(f"datetime64[{unit}]").astype("datetime64[ms]"))
    times = [text + zone for text, zone in zip(texts.tolist(), zones, strict=True)]
    if not column.null_count and stored.min(initial=0) > _NO_TIME:
        return times
    nulls = (column.is_null().to_numpy(zero_copy_only=False) | (stored == _NO_TIME)).tolist()
    return [None if is_null else text for text, is_null in zip(times, nulls, strict=True)]
