"""The options of SQL tables. Spark hands them to ``schema()`` when a table is created, and to nothing after that.

What Spark does keep is the schema, and it gives it to every reader: so the options go along as metadata of a column.
Only reads ask for them there. The schema of a write is that of the rows, which may come from another table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

_FORMAT = "rmqstore"
_METADATA = "rmqstore.options"
_STATED = "option."  # Source: TableCatalog.java#OPTION_PREFIX


def creates_table(options: Mapping[str, str]) -> bool:
    """Tell whether options are the properties of a table that is being created."""
    return _lowered(options).get("provider", "").lower() == _FORMAT


def stated_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave, without what else Spark hands over when a table is created.

    That is its owner, location, comment, TBLPROPERTIES and so on. What OPTIONS states comes with a prefix, and without.
    """
    if not creates_table(options):
        return dict(options)
    given = _lowered(options)
    stated = {key.removeprefix(_STATED): value for key, value in given.items() if key.startswith(_STATED)}
    return stated | {key: given[key] for key in ("path",) if key in given}  # LOCATION comes as path


def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a table's schema that keeps options, in the metadata of its first column."""
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of_read(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those of its table, which ``WITH (…)`` may add to.

    A read that names a path is not one of a table, or of another store than the table's, and has its own options only.
    """
    given = stated_options(options)
    if {"path", "paths"} & _lowered(given).keys():
        return given
    kept = next((field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), "{}")
    return json.loads(kept) | _lowered(given)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}
