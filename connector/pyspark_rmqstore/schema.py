"""Spark's and Arrow's schema of messages: columns, types and nullability.

No session, no files.

Source: KafkaRecordToRowConverter of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rmqstore.options import ColumnOptions, ReadOptions
from rmqstore.errors import OptionError
from rmqstore.format.schema import (
    ALL_COLUMNS,
    ALSO_AS,
    PENDING,
    PROPERTIES,
    RESERVED_PROPERTIES,
    TIMESTAMP,
    select_columns,
)
from rmqstore.query.damage import PERMISSIVE
from rmqstore.read.request import ScanRequest

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

SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    TIMESTAMP: TimestampType(),
    PROPERTIES: MapType(StringType(), StringType()),
}
_MAY_BE_NULL = {"tags", "keys", "bornTimestamp"}
_NULL_IF_PENDING = {"queueOffset", "tagsCode", *PENDING.names}


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
    require_names(schema)
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


def as_asked(
    request: ScanRequest, batches: Iterator[pa.RecordBatch], kafka_names: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield messages in the columns that Spark asks for.

    Args:
        request: that of the read.
        batches: the messages, with the columns that a condition compares.
        kafka_names: the columns of Kafka's; None for columns of messages.
    """
    for batch in request.returned(batches):
        if batch.num_rows:
            yield batch if kafka_names is None else as_kafka(batch, kafka_names)


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
    if name != _HEADERS:
        return column
    # The properties that a producer has set, null for a message without any.
    is_header = pc.invert(pc.is_in(column.keys, value_set=_reserved()))
    kept = np.concatenate(([0], np.cumsum(is_header.to_numpy(zero_copy_only=False))))
    offsets = kept[column.offsets.to_numpy()].astype(np.int32)
    values = column.items.filter(is_header).cast(pa.binary())
    return header_lists(pa.array(offsets), column.keys.filter(is_header), values)


def header_lists(offsets: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return headers as Spark has them: names may be null, and a row without headers has null."""
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    is_empty = pc.equal(offsets[1:], offsets[:-1])
    return pa.ListArray.from_arrays(offsets, pairs, mask=is_empty)


@cache
def _reserved() -> pa.Array:
    """Return the properties that are no headers; pyarrow loads pandas for an array of values."""
    return pa.array(RESERVED_PROPERTIES)


def default_schema(options: ColumnOptions) -> StructType:
    """Return the columns that the options request, as Spark types."""
    if options.of_messages is None:
        return kafka_schema(include_headers=options.include_headers)
    return spark_schema(options.of_messages)


def spark_schema(columns: pa.Schema) -> StructType:
    """Return columns of messages or of a view as Spark types; all of them may be null."""
    return StructType([StructField(column.name, SPARK_TYPES[column.type]) for column in columns])


def request_of(schema: StructType, options: ReadOptions) -> ScanRequest:
    """Return the request of a read of a Spark schema, which may be a user's projection.

    With ``columns=kafka`` it asks for the columns of messages that those of Kafka are made of.

    Raises:
        OptionError: a column is unknown or named twice, its type is neither its own nor a safe
            widening of it, or a column that may be null is declared NOT NULL.
    """
    columns, request = options.columns, options.request
    if columns.is_kafka:
        asked = columns_of_messages(schema, include_headers=columns.include_headers)
    else:
        require_names(schema, columns.named, but=request.corrupt_column)
        asked = pa.schema([_arrow_field(field, request) for field in schema.fields])
    return replace(request, schema=asked)


def require_names(
    schema: StructType, columns: Sequence[str] | None = None, but: str | None = None
) -> None:
    """Refuse a schema that names a column twice, or other columns than option ``columns``.

    Args:
        schema: the schema to check.
        columns: the columns that option ``columns`` names, None without the option.
        but: a column that only one of the two may name.
    """
    names = schema.fieldNames()
    if len(set(names)) < len(names) or not names:
        raise OptionError(f"schema: name at least one column, and each only once; got {names}")
    if columns is not None and {*columns} - {but} != {*names} - {but}:
        raise OptionError(
            f"columns ({', '.join(columns)}) and the schema ({', '.join(names)}) disagree; "
            "give only one of them"
        )


def _arrow_field(field: StructField, request: ScanRequest) -> pa.Field:
    may_be_null = field.name in _MAY_BE_NULL or request.mode == PERMISSIVE
    if request.include_pending and field.name in _NULL_IF_PENDING:
        may_be_null = True
    if field.name == request.corrupt_column:
        allowed = (pa.string(),)
        if request.mode != PERMISSIVE:
            raise OptionError(
                f"schema: column {field.name} needs mode=PERMISSIVE, not {request.mode}"
            )
    elif field.name in PENDING.names:
        allowed = (PENDING.field(field.name).type,)
        if not request.include_pending:
            raise OptionError(f"schema: column {field.name} needs includePending=true")
    elif field.name in ALL_COLUMNS.names:
        own = ALL_COLUMNS.field(field.name).type
        allowed = (own, *ALSO_AS.get(own, ()))
    else:
        raise OptionError(
            f"schema: unknown column {field.name}; a message has {', '.join(ALL_COLUMNS.names)}"
        )
    return as_allowed(field, allowed, may_be_null=may_be_null)


def as_allowed(
    field: StructField, allowed: Iterable[pa.DataType], *, may_be_null: bool
) -> pa.Field:
    """Return the Arrow field for a Spark field, of one of the allowed types.

    Raises:
        OptionError: the field has none of these types, or may be null but is declared NOT NULL.
    """
    requested = field.dataType
    for kind in allowed:
        own = SPARK_TYPES[kind]
        is_same = requested == own
        if isinstance(requested, MapType) and isinstance(own, MapType):
            is_same = requested.keyType == own.keyType and requested.valueType == own.valueType
        if not is_same:
            continue
        if may_be_null and not field.nullable:
            raise OptionError(f"schema: column {field.name} may be null, so it cannot be NOT NULL")
        if isinstance(requested, MapType) and not requested.valueContainsNull:
            values = pa.field("value", pa.string(), nullable=False)
            return pa.field(field.name, pa.map_(pa.string(), values), field.nullable)
        return pa.field(field.name, kind, field.nullable)
    names = " or ".join(SPARK_TYPES[kind].simpleString() for kind in allowed)
    raise OptionError(
        f"schema: column {field.name} is {names} and cannot be read as {requested.simpleString()}"
    )
