"""Options that name stores: paths, brokers, and the parts of a store outside its folder.

Spark passes them to ``schema()`` when a table is created, and never again. But it keeps the schema
and gives it to every reader, so the options are stored in the metadata of a column. Only reads
take them from there: the schema of a write is that of its rows, which may come from another table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Final

from pyspark.sql.types import StructField, StructType

from pyspark_rmqstore.option_names import SPARK_OWN, option_names, without_kafka_own
from pyspark_rmqstore.paths import absolute_path, store_path, user_paths
from rmqstore.errors import OptionError
from rmqstore.query.options import ALL_READ_OPTIONS, GivenOptions
from rmqstore.query.selection import json_table
from rmqstore.query.times import time_zone
from rmqstore.read.store_ref import StoreRef, find_stores
from rmqstore.storage.broker.folders import read_brokers
from rmqstore.storage.broker.store_config import read_conf, root_of
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.remote_location import (
    SECRETS,
    is_live,
    options_by_path,
)

MESSAGES: Final = "messages"  # option view: no view
_FORMAT = "rmqstore"
_METADATA = "rmqstore.options"
_OPTION_PREFIX = "option."  # Source: TableCatalog.java#OPTION_PREFIX

STORE_PATHS: Final = (  # of one store only
    "storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storePathDLedgerCommitLog",
    "dLegerSelfId", "tiered", "conf",
)  # fmt: skip
_NO_PATH = (
    "name the root of the store, the folder that holds commitlog/: load('/path/to/store'). "
    "Spark keeps the options of a table only if it was created without a list of columns; "
    "read other tables by SELECT … FROM t WITH (path = '/path/to/store')"
)


def creates_table(options: Mapping[str, str]) -> bool:
    """Return whether options are the properties of a table that is being created."""
    return _lowered(options).get("provider", "").lower() == _FORMAT


def user_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the user's options, without those that Spark adds when a table is created.

    Spark also passes the owner, location, comment, TBLPROPERTIES and so on. It passes what OPTIONS
    holds twice, with a prefix and without.
    """
    if not creates_table(options):
        return without_kafka_own(options)
    given = _lowered(options)
    given_options = {
        key.removeprefix(_OPTION_PREFIX): value
        for key, value in given.items()
        if key.startswith(_OPTION_PREFIX)
    }
    if "path" in given:  # the LOCATION of the table
        given_options["path"] = given["path"]
    return without_kafka_own(given_options)


@option_names()
def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options in the metadata of the first column.

    Raises:
        OptionError: there are secrets among them, or in a path; the catalog would show them to
            everyone. Or an option of the storage is unknown, which may be a secret whose name is
            misspelt.
    """
    given = GivenOptions(options, ALL_READ_OPTIONS, SPARK_OWN)
    storage_options = given["storageOptions"]
    paths = given.paths
    if "brokers" in given:
        paths += [path for stores in brokers(given["brokers"]).values() for path in stores]
    if paths and all(map(is_live, paths)):
        live = import_module("pyspark_rmqstore.live.source")
        secrets, elsewhere = live.secrets_in_table(paths, storage_options)
    else:
        options_by_path(paths, storage_options)  # refuses what is unknown
        secrets = sorted(set(storage_options) & set(SECRETS))
        elsewhere = "leave credentials to the environment of Spark's processes"
    if secrets:
        raise OptionError(
            f"storageOptions: {', '.join(secrets)} would be stored in the catalog with the table; "
            f"{elsewhere}"
        )
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    # DESCRIBE shows beside the column what the table reads: its stores and its options, but not how
    # to reach them.
    left_out = {"path", "paths", "storageoptions", "brokers"}
    parts = [f"{key}={value}" for key, value in options.items() if key.lower() not in left_out]
    if paths:
        parts.insert(0, "table of " + ", ".join(paths))
    metadata["comment"] = "; ".join(parts)
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of_read(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those of its table, and those that ``WITH (…)`` adds.

    A read that names stores has only its own options, because it does not read a table, or reads
    another store than the table's.
    """
    given = user_options(options)
    if {"path", "paths", "brokers"} & _lowered(given).keys():
        return given
    of_table = next(
        (field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), "{}"
    )
    return json.loads(of_table) | _lowered(given)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def asks_for_view(options: Mapping[str, str]) -> bool:
    """Return whether options ask for a view of stores, and not for messages."""
    return _lowered(options).get("view", MESSAGES).strip().lower() != MESSAGES


def paths_or_root(given: GivenOptions, conf: BrokerSettings | None, remedy: str) -> list[str]:
    """Return the paths in the options, or else the root in a broker's file.

    Raises as :func:`user_paths` does.
    """
    if conf is None or given.paths:
        return user_paths(given, remedy)
    return [str(root_of(None, conf))]


def brokers(value: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of each broker's stores from a JSON object, or from a file that is named."""
    table = read_brokers(value if value.lstrip().startswith("{") else absolute_path(value))
    return {name: tuple(map(store_path, paths)) for name, paths in table.items()}


def zone_of(name: str | None) -> AbstractContextManager[None]:
    """Return a context in which times without a zone have that of option ``timeZone``."""
    return nullcontext() if name is None else time_zone(name)


def parse_stores(given: GivenOptions) -> tuple[StoreRef, ...]:
    """Return the stores that the options name."""
    conf = given_conf(given)
    tiered = given["tiered"]
    common = StoreRef(
        path="",
        folders={
            "commitlogs": _folders(given["storePathCommitLog"]),
            "consumequeue": _folder(given["storePathConsumeQueue"]),
            "index": _folder(given["storePathIndex"]),
            "dledger_logs": _folders(given["storePathDLedgerCommitLog"]),
            "dledger_self_id": given["dLegerSelfId"],
            "conf": conf,
        },
        tiered=None if tiered is None else absolute_path(tiered),
        ignore_log_end=given["ignoreLogEnd"],
        storage_options=given["storageOptions"],
    )
    if "brokers" in given:
        others = [name for name in ("path", "paths", "brokerName") if name in given]
        if others:
            raise OptionError(
                f"brokers: it names the stores and their brokers, so leave out {', '.join(others)}"
            )
        stores = find_stores(brokers(given["brokers"]), common)
    else:
        stores = find_stores([*map(store_path, paths_or_root(given, conf, _NO_PATH))], common)
        names = _broker_names(given["brokerName"], [ref.path for ref in stores])
        stores = tuple(replace(ref, broker_name=names.get(ref.path)) for ref in stores)
    elsewhere = [name for name in STORE_PATHS if name in given]
    if elsewhere and len(stores) > 1:
        raise OptionError(
            f"{', '.join(elsewhere)} can be given for one store only, but path names {len(stores)}"
        )
    return stores


def given_conf(given: GivenOptions) -> BrokerSettings | None:
    """Return the broker's properties file of option ``conf``; None without it.

    Its folders are those that this process finds: tasks run elsewhere, in folders of their own.
    """
    if "conf" not in given:
        return None
    conf = read_conf(absolute_path(given["conf"]))
    paths = {key: text for key, text in conf.values.items() if "storepath" in key.lower()}
    absolute = {key: ",".join(_folders(text)) for key, text in paths.items()}
    return conf._replace(values={**conf.values, **absolute})


def _folders(text: str | None) -> tuple[str, ...]:
    """Return the folders that an option lists, separated by commas."""
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(store_path(part) for part in parts if part)


def _folder(text: str | None) -> str | None:
    return store_path(text) if text else None


def _broker_names(value: str | None, paths: list[str]) -> dict[str, str]:
    if value is None:
        return {}
    if value.lstrip().startswith("{"):
        table = json_table("brokerName", value, '{"/data/store-a":"broker-a"}')
        if not all(isinstance(name, str) and name for name in table.values()):
            raise OptionError(f"brokerName {value!r}: must be a JSON object of names by path")
        names = {store_path(path): name for path, name in table.items()}
        unknown = sorted(set(names) - set(paths))
        if unknown:
            raise OptionError(
                f"brokerName names stores that path does not name: {', '.join(unknown)}"
            )
        return names
    if len(paths) > 1:
        raise OptionError(
            f"brokerName {value!r}: path names {len(paths)} stores; "
            "give a JSON object of names by path"
        )
    return {paths[0]: value}
