"""Spark's schema of messages and Arrow's: which columns, as which types, may they be null. No session, no files."""

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
from rmqstore.format.schema import ALL_COLUMNS, ALSO_AS, MESSAGE, PENDING, PROPERTIES, TIMESTAMP, select_columns

SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    TIMESTAMP: TimestampType(),
    PROPERTIES: MapType(StringType(), StringType()),
}
_MAY_BE_NULL = {"tags", "keys"}


def default_schema(options: ColumnOptions) -> StructType:
    """Return the columns that the options ask for, as Spark types."""
    corrupt = options.corrupt_column if options.mode == "PERMISSIVE" else None
    names = list(options.columns or [*MESSAGE.names, *(PENDING.names if options.include_pending else ())])
    if corrupt is not None and corrupt not in names:
        names.append(corrupt)
    extra = _extra(options)
    chosen = [*select_columns(name for name in names if name != corrupt and name not in extra), *PENDING]
    types = {field.name: SPARK_TYPES[field.type] for field in chosen}
    return StructType([StructField(name, types.get(name, StringType())) for name in names])


def _extra(options: ColumnOptions) -> list[str]:
    return PENDING.names if options.include_pending else []


def arrow_schema(schema: StructType, options: ColumnOptions) -> pa.Schema:
    """Return the Arrow schema of a Spark one, which may be a user's: a projection with types of the user's choice.

    Raises:
        OptionError: a column is unknown or named twice, a type is not the column's nor a safe widening of it, or a
            column that may be null is declared NOT NULL.
    """
    require_names(schema, options.columns, but=options.corrupt_column)
    return pa.schema([_arrow_field(field, options) for field in schema.fields])


def require_names(schema: StructType, columns: Sequence[str] | None, but: str | None = None) -> None:
    """Refuse a schema that names a column twice, or others than option ``columns``, if that is given.

    Args:
        but: a column that only one of them may name.
    """
    names = schema.fieldNames()
    if len(set(names)) < len(names) or not names:
        raise OptionError(f"schema: name each column once and at least one, got {names}")
    if columns is not None and {*columns} - {but} != {*names} - {but}:
        raise OptionError(f"columns ({', '.join(columns)}) and the schema ({', '.join(names)}) disagree; give one")


def _arrow_field(field: StructField, options: ColumnOptions) -> pa.Field:
    extra = _extra(options)
    may_be_null = field.name in _MAY_BE_NULL or options.mode == "PERMISSIVE"
    may_be_null = may_be_null or field.name in extra or (bool(extra) and field.name in ("queueOffset", "tagsCode"))
    if field.name == options.corrupt_column:
        allowed, may_be_null = (pa.string(),), True
        if options.mode != "PERMISSIVE":
            raise OptionError(f"schema: column {field.name} comes only with mode=PERMISSIVE, not {options.mode}")
    elif field.name in extra:
        allowed = (PENDING.field(field.name).type,)
    elif field.name in PENDING.names:
        raise OptionError(f"schema: column {field.name} comes only with includePending=true")
    elif field.name in ALL_COLUMNS.names:
        own = ALL_COLUMNS.field(field.name).type
        allowed = (own, *ALSO_AS.get(own, ()))
    else:
        raise OptionError(f"schema: unknown column {field.name}; a message has {', '.join(ALL_COLUMNS.names)}")
    return as_allowed(field, allowed, may_be_null=may_be_null)


def as_allowed(field: StructField, allowed: Iterable[pa.DataType], *, may_be_null: bool) -> pa.Field:
    """Return the Arrow field of a Spark one, of one of the types that are allowed.

    Raises:
        OptionError: it has none of them, or is NOT NULL though it may be null.
    """
    for kind in allowed:
        if _same_type(field.dataType, SPARK_TYPES[kind]):
            if may_be_null and not field.nullable:
                raise OptionError(f"schema: column {field.name} may be null, it cannot be NOT NULL")
            return pa.field(field.name, _nullable_values(kind, field.dataType), field.nullable)
    names = " or ".join(SPARK_TYPES[kind].simpleString() for kind in allowed)
    raise OptionError(f"schema: column {field.name} is {names}, it cannot be read as {field.dataType.simpleString()}")


def _same_type(asked: DataType, own: DataType) -> bool:
    if isinstance(asked, MapType) and isinstance(own, MapType):
        return asked.keyType == own.keyType and asked.valueType == own.valueType
    return asked == own


def _nullable_values(kind: pa.DataType, asked: DataType) -> pa.DataType:
    if isinstance(asked, MapType) and not asked.valueContainsNull:
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return kind
