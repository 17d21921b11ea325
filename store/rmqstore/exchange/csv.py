"""Rows as CSV: with a head, and quotes where a value needs them.

Columns hold what JSON Lines have. A map or a list is written as JSON. Next to a column of bytes is
one with ``Base64`` appended to its name, for those that are not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import orjson
import pyarrow as pa
from pyarrow import csv

from rmqstore.exchange.json_rows import BASE64, base64_texts, json_values


def write_csv(
    sink: IO[bytes] | pa.NativeFile, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Write rows, and a head also without rows.

    Args:
        sink: an open file.
        schema: the columns.
        batches: the rows.
    """
    written = _text_schema(schema)
    with csv.CSVWriter(sink, written) as file:
        for batch in batches:
            file.write_batch(_text_batch(batch, written))
            sink.flush()


def _text_schema(schema: pa.Schema) -> pa.Schema:
    fields = []
    for field in schema:
        fields.append((field.name, pa.string() if _is_text(field.type) else field.type))
        if pa.types.is_binary(field.type):
            fields.append((f"{field.name}{BASE64}", pa.string()))
    return pa.schema(fields)


def _is_text(kind: pa.DataType) -> bool:
    is_of = (pa.types.is_binary, pa.types.is_temporal, pa.types.is_nested)
    return any(test(kind) for test in is_of)


def _text_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column in batch.columns:
        if pa.types.is_binary(column.type):
            texts, encoded = base64_texts(column)
            columns += [pa.array(texts, pa.string()), pa.array(encoded, pa.string())]
        elif pa.types.is_nested(column.type):
            values = [None if one is None else orjson.dumps(one) for one in json_values(column)]
            columns.append(pa.array(values, pa.string()))
        elif pa.types.is_temporal(column.type):
            columns.append(pa.array(json_values(column), pa.string()))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
