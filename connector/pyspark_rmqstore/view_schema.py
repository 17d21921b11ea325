"""Spark's and Arrow's schema of a view. No session, no files."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pyspark_rmqstore.schema import SPARK_TYPES, as_allowed, require_names
from pyspark_rmqstore.view_options import ViewOptions
from rmqstore.errors import OptionError
from rmqstore.format.schema import ALSO_AS, PROPERTIES
from rmqstore.read.views.schema import view_columns


def view_schema(options: ViewOptions) -> StructType:
    """Return the columns that the options request, as Spark types; all of them may be null."""
    return StructType(
        [StructField(column.name, SPARK_TYPES[column.type]) for column in options.columns]
    )


def arrow_view_schema(schema: StructType, options: ViewOptions) -> pa.Schema:
    """Return the Arrow schema for a Spark schema, which may be a user's projection.

    Raises:
        OptionError: a column is unknown or named twice, or its type is neither the view's nor a
            safe widening of it.
    """
    require_names(schema, options.columns.names if options.has_named_columns else None)
    return pa.schema([_arrow_field(field, options.view) for field in schema.fields])


def _arrow_field(field: StructField, view: str) -> pa.Field:
    known = view_columns(view)
    if field.name not in known.names:
        raise OptionError(
            f"schema: unknown column {field.name}; view {view} has {', '.join(known.names)}"
        )
    own = known.field(field.name).type
    wider = () if own == PROPERTIES else ALSO_AS.get(own, ())
    allowed = (own, *(kind for kind in wider if kind in SPARK_TYPES))
    return as_allowed(field, allowed, may_be_null=True)
