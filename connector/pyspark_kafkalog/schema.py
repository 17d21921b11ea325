"""The columns of Spark's Kafka source, and the one that says what is damaged."""

from __future__ import annotations

from pyspark.sql.types import StringType, StructField, StructType

from pyspark_kafkalog.options import ColumnOptions
from pyspark_rmqstore.kafka_columns import kafka_schema, require_kafka_columns
from rmqstore.errors import OptionError


def default_schema(columns: ColumnOptions) -> StructType:
    """Return the columns of a read that names none."""
    schema = kafka_schema(include_headers=columns.include_headers)
    return schema if columns.corrupt is None else schema.add(_corrupt_field(columns.corrupt))


def require_columns(schema: StructType, columns: ColumnOptions) -> None:
    """Refuse a schema whose columns are not among those of a read.

    Raises:
        OptionError: a column is unknown, named twice, NOT NULL or of another type.
    """
    expected = None if columns.corrupt is None else _corrupt_field(columns.corrupt)
    others = [field for field in schema.fields if field != expected]
    if len(others) < len(schema.fields) - 1:
        raise OptionError(f"schema: name {columns.corrupt} only once")
    if any(field.name == columns.corrupt for field in others):
        raise OptionError(f"schema: {columns.corrupt} is a string, which may be null")
    if others or not schema.fields:
        require_kafka_columns(
            StructType(others), "kafkalog", include_headers=columns.include_headers
        )


def _corrupt_field(name: str) -> StructField:
    return StructField(name, StringType())
