"""Spark's and Arrow's schema of messages: columns, types and nullability. No session, no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import (
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

from pyspark_rmqstore.options import ColumnOptions
from rmqstore.errors import OptionError
from rmqstore.format.schema import (
    ALL_COLUMNS,
    ALSO_AS,
    MESSAGE,
    PENDING,
    PROPERTIES,
    TIMESTAMP,
    select_columns,
)

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
_NULL_IF_PENDING = {"queueOffset", "tagsCode"}


def default_schema(options: ColumnOptions) -> StructType:
    """Return the columns that the options request, as Spark types."""
    if options.is_kafka:
        from pyspark_rmqstore.kafka_columns import kafka_schema

        return kafka_schema(include_headers=options.include_headers)
    corrupt = options.corrupt_column if options.mode == "PERMISSIVE" else None
    extra = _extra(options)
    names = list(options.columns or (*MESSAGE.names, *extra))
    if corrupt is not None and corrupt not in names:
        names.append(corrupt)
    own = select_columns(name for name in names if name != corrupt and name not in extra)
    types = {field.name: SPARK_TYPES[field.type] for field in (*own, *PENDING)}
    return StructType([StructField(name, types.get(name, StringType())) for name in names])


def _extra(options: ColumnOptions) -> list[str]:
    return PENDING.names if options.include_pending else []


def arrow_schema(schema: StructType, options: ColumnOptions) -> pa.Schema:
    """Return the Arrow schema for a Spark schema, which may be a user's projection.

    With ``columns=kafka`` it is that of the messages, before their columns become those of Kafka.

    Raises:
        OptionError: a column is unknown or named twice, its type is neither its own nor a safe
            widening of it, or a column that may be null is declared NOT NULL.
    """
    if options.is_kafka:
        from pyspark_rmqstore.kafka_columns import columns_of_messages

        return columns_of_messages(schema, include_headers=options.include_headers)
    require_names(schema, options.columns, but=options.corrupt_column)
    return pa.schema([_arrow_field(field, options) for field in schema.fields])


def require_names(
    schema: StructType, columns: Sequence[str] | None, but: str | None = None
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


def _arrow_field(field: StructField, options: ColumnOptions) -> pa.Field:
    extra = _extra(options)
    may_be_null = field.name in _MAY_BE_NULL or options.mode == "PERMISSIVE"
    if field.name in extra or (extra and field.name in _NULL_IF_PENDING):
        may_be_null = True
    if field.name == options.corrupt_column:
        allowed = (pa.string(),)
        may_be_null = True
        if options.mode != "PERMISSIVE":
            raise OptionError(
                f"schema: column {field.name} needs mode=PERMISSIVE, not {options.mode}"
            )
    elif field.name in extra:
        allowed = (PENDING.field(field.name).type,)
    elif field.name in PENDING.names:
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
    for kind in allowed:
        if _same_type(field.dataType, SPARK_TYPES[kind]):
            if may_be_null and not field.nullable:
                raise OptionError(
                    f"schema: column {field.name} may be null, so it cannot be NOT NULL"
                )
            return pa.field(field.name, _nullable_values(kind, field.dataType), field.nullable)
    names = " or ".join(SPARK_TYPES[kind].simpleString() for kind in allowed)
    requested = field.dataType.simpleString()
    raise OptionError(f"schema: column {field.name} is {names} and cannot be read as {requested}")


def _same_type(requested: DataType, own: DataType) -> bool:
    if isinstance(requested, MapType) and isinstance(own, MapType):
        return requested.keyType == own.keyType and requested.valueType == own.valueType
    return requested == own


def _nullable_values(kind: pa.DataType, requested: DataType) -> pa.DataType:
    if isinstance(requested, MapType) and not requested.valueContainsNull:
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return kind
