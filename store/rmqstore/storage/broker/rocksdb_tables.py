"""The broker's tables that lie in RocksDB: topics, subscription groups and committed offsets.

A broker with ``storeType=defaultRocksDB`` keeps each table in a database of its own. From 5.4 on
all are in one if ``useSingleRocksDBForAllConfigs`` is set, and with ``configManagerVersion=V2`` in
one with keys of another form. FORMAT.md has the keys.

Source: RocksDBConfigManager.java, RocksDBTopicConfigManager.java,
RocksDBConsumerOffsetManager.java; ConfigStorage.java, ConfigHelper.java,
ConsumerOffsetManagerV2.java.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptDatabaseError
from rmqstore.storage.files.paths import has_database
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.rocksdb import RocksDb, open_rocksdb

_VERSION_FAMILY, _VERSION_KEY = "kvDataVersion", b"kvDataVersionKey"
_EVERYTHING: Final = (b"", b"\xff" * 8)  # no key begins so: keys are text, or begin with 1
_MAX_BYTES: Final = 64 << 20  # a parsed table may take forty times as much memory
_JSON = 1  # Source: SerializationType.java
_SHARED, _SECOND_FORM = "metadata", "rdb"
_DATA_VERSION, _DATA = 1, 2  # Source: RecordPrefix.java
_COUNTERS = struct.Struct(">qqq")  # state version, timestamp and counter of a table
_VERSION_NAME = b"data_version"


class _Location(NamedTuple):
    """Where a table lies in each kind of database."""

    folder: str  # of its own database
    family: str  # in the shared one
    number: int  # in that of the second form. Source: TableId.java


LOCATIONS: Final = {
    "topics.json": _Location("topics", "topic", 3),
    "subscriptionGroup.json": _Location("subscriptionGroups", "subscriptionGroup", 4),
    "consumerOffset.json": _Location("consumerOffsets", "consumerOffset", 1),
}


class StoredTable(NamedTuple):
    """A table of a broker in a database.

    Attributes:
        path: the folder of the database.
        entries: JSON by key; of committed offsets, by ``topic@group``.
        counter: of its data version; the higher one of two tables is the newer one.
        is_alone: whether the broker looks at no other one beside it.
    """

    path: Path
    entries: dict[str, bytes]
    counter: int
    is_alone: bool = False


def database_folders(config: Path, storage: Storage, name: str | None = None) -> list[Path]:
    """Return the folders of databases with tables of a broker.

    Args:
        config: the folder ``config`` of the store.
        storage: the storage that has it.
        name: the file that the broker would keep the table in without RocksDB; None for all.
    """
    names = [location.folder for file, location in LOCATIONS.items() if name in (None, file)]
    folders = [config / folder for folder in (_SECOND_FORM, _SHARED, *names)] if names else []
    return [folder for folder in folders if has_database(storage, folder)]


def stored_tables(config: Path, storage: Storage, name: str) -> list[StoredTable]:
    """Return a table as databases hold it, in the order in which the broker reads them.

    Args:
        config: the folder ``config`` of the store.
        storage: the storage that has it.
        name: the file that the broker would keep the table in without RocksDB.

    Raises:
        CorruptDatabaseError: a database is damaged, or it is not one of tables.
        UnsupportedFeatureError: the library is not installed.
    """
    tables = []
    for folder in database_folders(config, storage, name):
        database, location = open_rocksdb(folder, storage), LOCATIONS[name]
        if folder.name == _SECOND_FORM:
            return [_second_form(database, name, location)]
        family, version = "default", _VERSION_FAMILY
        if folder.name == _SHARED:
            family, version = location.family, f"{location.family}Version"
        items = _bounded(database, database.items(family, *_EVERYTHING))
        entries = {_text(key): value for key, value in items}
        stored = database.get(version, _VERSION_KEY)
        try:
            counter = json.loads(b"{}" if stored is None else stored).get("counter", 0)
        except (AttributeError, ValueError, RecursionError) as err:
            raise CorruptDatabaseError(str(folder), f"its data version: {err}") from err
        tables.append(StoredTable(folder, entries, counter if isinstance(counter, int) else 0))
    return tables


def _bounded(
    database: RocksDb, items: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield items, and refuse more than memory should hold."""
    n_bytes = 0
    for key, value in items:
        n_bytes += len(key) + len(value)
        if n_bytes > _MAX_BYTES:
            reason = f"a table of more than {_MAX_BYTES} bytes"
            raise CorruptDatabaseError(str(database.folder), reason)
        yield key, value


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _second_form(database: RocksDb, name: str, location: _Location) -> StoredTable:
    prefix = struct.pack(">BhB", 1, location.number, _DATA)
    stop = struct.pack(">BhB", 1, location.number, _DATA + 1)
    items = _bounded(database, database.items("default", prefix, stop))
    try:
        if name == "consumerOffset.json":
            entries = _offsets(items, len(prefix))
        else:
            entries = dict(_named(items, len(prefix)))
    except (struct.error, ValueError) as err:
        raise CorruptDatabaseError(str(database.folder), f"a key of {name}: {err}") from err
    version = database.get(
        "default", struct.pack(">BhB", 1, location.number, _DATA_VERSION) + _VERSION_NAME
    )
    is_version = version is not None and len(version) == _COUNTERS.size
    counter = _COUNTERS.unpack(version)[2] if version is not None and is_version else 0
    return StoredTable(database.folder, entries, counter, is_alone=True)


def _named(items: Iterator[tuple[bytes, bytes]], start: int) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of a table whose keys are names with their length before them."""
    for key, value in items:
        (length,) = struct.unpack_from(">H", key, start)
        name = key[start + 2 :]
        if length != len(name) or value[:1] != bytes([_JSON]):
            raise ValueError(f"{key!r} with {value[:1]!r} before its value is of no known form")
        yield _text(name), value[1:]


def _offsets(items: Iterator[tuple[bytes, bytes]], start: int) -> dict[str, bytes]:
    """Return committed offsets by ``topic@group``, in the JSON of the other databases."""
    by_key: dict[str, dict[int, int]] = {}
    for key, value in items:
        names, at = [], start
        for _ in ("group", "topic"):
            (length,) = struct.unpack_from(">H", key, at)
            names.append(_text(key[at + 2 : at + 2 + length]))
            at += 2 + length + 1  # a byte 1 follows each name
        (queue_id,) = struct.unpack(">i", key[at:])
        (offset,) = struct.unpack(">q", value)
        by_key.setdefault(f"{names[1]}@{names[0]}", {})[queue_id] = offset
    return {key: json.dumps({"offsetTable": offsets}).encode() for key, offsets in by_key.items()}
