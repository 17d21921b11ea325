"""Spark's schema of a view and Arrow's. No session, no files."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pyspark_rmqstore.schema import SPARK_TYPES
from pyspark_rmqstore.view_options import ViewOptions
from rmqstore.errors import OptionError
from rmqstore.format.schema import ALSO_AS
from rmqstore.views.schema import view_columns


def view_schema(options: ViewOptions) -> StructType:
    """Return the columns that the options ask for, as Spark types; any may be null."""
    return StructType([StructField(column.name, SPARK_TYPES[column.type]) for column in options.columns])


def arrow_view_schema(schema: StructType, options: ViewOptions) -> pa.Schema:
    """Return the Arrow schema of a Spark one, which may be a user's projection.

    Raises:
        OptionError: a column is unknown or named twice, or its type is neither the view's nor a safe widening of it.
    """
    names = [field.name for field in schema.fields]
    if len(set(names)) < len(names) or not names:
        raise OptionError(f"schema: name each column once and at least one, got {names}")
    if options.has_named_columns and set(options.columns.names) != set(names):
        raise OptionError(
            f"columns ({', '.join(options.columns.names)}) and the schema ({', '.join(names)}) disagree; give one"
        )
    return pa.schema([_arrow_field(field, options.view) for field in schema.fields])


def _arrow_field(field: StructField, view: str) -> pa.Field:
    known = view_columns(view)
    if field.name not in known.names:
        raise OptionError(f"schema: unknown column {field.name}; view {view} has {', '.join(known.names)}")
    own = known.field(field.name).type
    allowed = (own, *(kind for kind in ALSO_AS.get(own, ()) if kind in SPARK_TYPES))
    for kind in allowed:
        if field.dataType == SPARK_TYPES[kind]:
            if not field.nullable:
                raise OptionError(f"schema: column {field.name} may be null, it cannot be NOT NULL")
            return pa.field(field.name, kind)
    texts = " or ".join(SPARK_TYPES[kind].simpleString() for kind in allowed)
    raise OptionError(f"schema: column {field.name} is {texts}, it cannot be read as {field.dataType.simpleString()}")
