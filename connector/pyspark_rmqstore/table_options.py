"""The options of SQL tables.

Spark passes them to ``schema()`` when a table is created, and never again. But it keeps the schema
and gives it to every reader, so the options are stored in the metadata of a column. Only reads
take them from there: the schema of a write is that of its rows, which may come from another table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructField, StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.option_values import (
    brokers,
    stated_paths,
    storage_options,
    without_kafka_own,
)
from rmqstore.errors import OptionError
from rmqstore.storage.remote.location import SECRETS, options_by_path

_FORMAT = "rmqstore"
_METADATA = "rmqstore.options"
_STATED = "option."  # Source: TableCatalog.java#OPTION_PREFIX


def creates_table(options: Mapping[str, str]) -> bool:
    """Tell whether options are the properties of a table that is being created."""
    return _lowered(options).get("provider", "").lower() == _FORMAT


def stated_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave, without what else Spark passes when a table is created.

    Spark also passes the owner, location, comment, TBLPROPERTIES and so on. It passes what OPTIONS
    holds twice, with a prefix and without.
    """
    if not creates_table(options):
        return without_kafka_own(options)
    given = _lowered(options)
    stated = {
        key.removeprefix(_STATED): value for key, value in given.items() if key.startswith(_STATED)
    }
    if "path" in given:  # the LOCATION of the table
        stated["path"] = given["path"]
    return without_kafka_own(stated)


@option_names()
def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options in the metadata of the first column.

    Raises:
        OptionError: there are secrets among them, or in a path; the catalog would show them to
            everyone. Or an option of the storage is unknown, which may be a secret whose name is
            misspelt.
    """
    stated = storage_options({"storageOptions": _lowered(options).get("storageoptions", "{}")})
    is_named = {"path", "paths"} & _lowered(options).keys()
    paths = stated_paths(options, "") if is_named else []
    named = _lowered(options).get("brokers")
    if named is not None:
        paths += [path for stores in brokers(named).values() for path in stores]
    options_by_path(paths, stated)  # refuses what is unknown
    secrets = sorted(set(stated) & set(SECRETS))
    if secrets:
        raise OptionError(
            f"storageOptions: {', '.join(secrets)} would be stored in the catalog with the table; "
            "leave credentials to the environment of Spark's processes"
        )
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    metadata["comment"] = _comment(paths, options)  # which DESCRIBE shows beside the column
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _comment(paths: Sequence[str], options: Mapping[str, str]) -> str:
    """Return what a table reads: its stores and its options, but how to reach them."""
    left_out = {"path", "paths", "storageoptions", "brokers"}
    others = [f"{key}={one}" for key, one in options.items() if key.lower() not in left_out]
    return "; ".join(["table of " + ", ".join(paths), *others]) if paths else "; ".join(others)


def options_of_read(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those of its table, and those that ``WITH (…)`` adds.

    A read that names stores has only its own options, because it does not read a table, or reads
    another store than the table's.
    """
    given = stated_options(options)
    if {"path", "paths", "brokers"} & _lowered(given).keys():
        return given
    of_table = next(
        (field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), "{}"
    )
    return json.loads(of_table) | _lowered(given)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}
