"""Messages in the columns of Spark's Kafka source, for jobs that read Kafka before.

Source: KafkaRecordToRowConverter of Spark.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqstore.errors import OptionError
from rmqstore.format.schema import RESERVED_PROPERTIES, select_columns

LOG_APPEND_TIME: Final = 1  # Kafka's TimestampType: the time at which the broker stored the record

_HEADERS: Final = "headers"
_TIMESTAMP_TYPE: Final = "timestampType"
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    _TIMESTAMP_TYPE: IntegerType(),
    _HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
KAFKA_COLUMNS: Final = tuple(_TYPES)
# Each column with the one of a message that it is made of; timestampType is made of none.
MADE_OF: Final = {
    "key": "keys",
    "value": "body",
    "topic": "topic",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    _HEADERS: "properties",
}


def kafka_schema(*, include_headers: bool) -> StructType:
    """Return the columns of Spark's Kafka source."""
    names = [name for name in _TYPES if include_headers or name != _HEADERS]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def require_kafka_columns(schema: StructType, source: str, *, include_headers: bool) -> None:
    """Refuse a schema whose columns are not columns of Spark's Kafka source.

    Args:
        schema: the columns of a read.
        source: what reads them, for the error.
        include_headers: whether there is a column of headers.

    Raises:
        OptionError: a column is unknown, named twice, NOT NULL or of another type than Kafka's.
    """
    known = {field.name: field.dataType for field in kafka_schema(include_headers=include_headers)}
    names = schema.fieldNames()
    if len(set(names)) < len(names) or not names:
        raise OptionError(f"schema: name at least one column, and each only once; got {names}")
    for field in schema:
        if known.get(field.name) != field.dataType or not field.nullable:
            expected = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise OptionError(
                f"schema: {field.name} {field.dataType.simpleString()} is not one of the columns "
                f"of {source}, which may all be null: {expected}"
            )


def columns_of_messages(schema: StructType, *, include_headers: bool) -> pa.Schema:
    """Return the columns of messages that Kafka's columns, or some of them, are made of.

    Raises:
        OptionError: as :func:`require_kafka_columns`.
    """
    require_kafka_columns(schema, "columns=kafka", include_headers=include_headers)
    made_of = [MADE_OF[name] for name in schema.fieldNames() if name in MADE_OF]
    return select_columns(made_of or ["queueOffset"])


def as_kafka(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return messages in columns of Kafka."""
    return pa.RecordBatch.from_arrays([_column(batch, name) for name in names], names)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == _TIMESTAMP_TYPE:
        values = np.full(batch.num_rows, LOG_APPEND_TIME, np.int32)
        return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
    column = batch.column(MADE_OF[name])
    if name == "key":
        return column.cast(pa.binary())
    return _headers(column) if name == _HEADERS else column


def _headers(properties: pa.MapArray) -> pa.Array:
    """Return the properties that a producer has set, null for a message without any."""
    is_header = pc.invert(pc.is_in(properties.keys, value_set=_reserved()))
    kept = np.concatenate(([0], np.cumsum(is_header.to_numpy(zero_copy_only=False))))
    offsets = kept[properties.offsets.to_numpy()].astype(np.int32)
    headers = pa.StructArray.from_arrays(
        [
            properties.keys.filter(is_header),
            properties.items.filter(is_header).cast(pa.binary()),
        ],
        ["key", "value"],
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets), headers, mask=pa.array(offsets[1:] == offsets[:-1])
    )


@cache
def _reserved() -> pa.Array:
    return pa.array(RESERVED_PROPERTIES)
