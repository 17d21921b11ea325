"""Read options: keys, defaults, text to values. Case does not matter in keys; unknown ones are refused by name."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD
from rmqstore.selection import Selection, parse_selection, parse_tags

_SELECTION = {
    "subscribe": "subscribe",
    "subscribePattern": "subscribe_pattern",
    "assign": "assign",
    "startingOffsets": "starting_offsets",
    "endingOffsets": "ending_offsets",
    "startingTimestamp": "starting_timestamp",
    "endingTimestamp": "ending_timestamp",
    "startingOffsetsByTimestamp": "starting_offsets_by_timestamp",
    "endingOffsetsByTimestamp": "ending_offsets_by_timestamp",
    "startingOffsetsByTimestampStrategy": "starting_offsets_by_timestamp_strategy",
}
_STORE_PATHS = ("storePathCommitLog", "storePathConsumeQueue", "storePathIndex")
_OTHERS = (
    "includeSystemTopics", "tags", "columns", "scan", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "mode", "columnNameOfCorruptRecord", "checkCRC", "failOnDataLoss", "ignoreLogEnd",
    "brokerName",
)  # fmt: skip
_LATER = {
    "msgKey": "look-ups by key",
    "msgKeyLimit": "look-ups by key",
    "msgId": "look-ups by id",
    "filter": "SQL92 filters",
    "includePending": "pending messages",
    **dict.fromkeys(
        ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"), "streaming"
    ),
}
# What Spark itself hands to a source, or users set for Spark.
_SPARK_OWN = {"path", "paths", "queryname", "checkpointlocation", "timezone", "recursivefilelookup"}
_SPELLINGS = {name.lower(): name for name in (*_SELECTION, *_STORE_PATHS, *_OTHERS, *_LATER, "view")}

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DEFAULT_SPLIT = "128m"


@dataclass(frozen=True, slots=True)
class StoreRef:
    """Where one store lies and what its broker is called, if that is given."""

    path: str
    broker_name: str | None
    commitlogs: tuple[str, ...]
    consumequeue: str | None
    index: str | None
    ignore_log_end: bool


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read, checked."""

    stores: tuple[StoreRef, ...]
    selection: Selection
    columns: tuple[str, ...] | None
    tags: frozenset[str] | None
    scan: str
    mode: str
    corrupt_column: str
    check_crc: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
        UnsupportedFeatureError: a key is known, but what it asks for is not there yet.
    """
    given = _known(options)
    selection = parse_selection(
        **{_SELECTION[name]: value for name, value in given.items() if name in _SELECTION},
        include_system_topics=_boolean(given, "includeSystemTopics", default=False),
    )
    columns = given.get("columns")
    return ReadOptions(
        stores=_stores(options, given),
        selection=selection,
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        tags=parse_tags(given.get("tags")),
        scan=_scan(given, selection),
        mode=_word(given, "mode", ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")),
        corrupt_column=_corrupt_column(given),
        check_crc=_boolean(given, "checkCRC", default=True),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        min_partitions=_count(given, "minPartitions"),
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=_size(given, "maxBytesPerPartition", _DEFAULT_SPLIT),
    )


def _corrupt_column(given: Mapping[str, str]) -> str:
    name = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
    if not name or name in ALL_COLUMNS.names:
        raise OptionError(f"columnNameOfCorruptRecord {name!r}: a name that no column of a message has")
    return name


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling."""
    given = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _SPARK_OWN:
            continue
        if lower not in _SPELLINGS:
            raise OptionError(f"unknown option {key!r}; known are: path, {', '.join(sorted(_SPELLINGS.values()))}")
        given[_SPELLINGS[lower]] = value
    if given.get("includePending", "").lower() == "false":
        del given["includePending"]
    for name, what in _LATER.items():
        if name in given:
            raise UnsupportedFeatureError(f"option {name}: {what} cannot be read yet")
    view = given.pop("view", "messages")
    if view != "messages":
        raise UnsupportedFeatureError(f"view {view!r}: only messages can be read yet")
    return given


def _scan(given: Mapping[str, str], selection: Selection) -> str:
    scan = _word(given, "scan", ("queue", "commitlog"))
    if scan == "commitlog":
        selection.require_by_log()
    if scan == "commitlog" and "maxRecordsPerPartition" in given:
        raise OptionError("maxRecordsPerPartition: scan=commitlog cannot count records before it reads them; "
                          "use maxBytesPerPartition")  # fmt: skip
    return scan


def _stores(options: Mapping[str, str], given: Mapping[str, str]) -> tuple[StoreRef, ...]:
    paths = [path for pattern in _path_values(options) for path in _expand(pattern)]
    if len(set(paths)) < len(paths):
        raise OptionError(f"path: a store is named twice in {paths}")
    elsewhere = {name: given[name] for name in _STORE_PATHS if name in given}
    if elsewhere and len(paths) > 1:
        raise OptionError(f"{', '.join(elsewhere)} fits one store only, path names {len(paths)}")
    names = _broker_names(given.get("brokerName"), paths)
    return tuple(
        StoreRef(
            path=path,
            broker_name=names.get(path),
            commitlogs=tuple(
                part.strip() for part in elsewhere.get("storePathCommitLog", "").split(",") if part.strip()
            ),
            consumequeue=elsewhere.get("storePathConsumeQueue"),
            index=elsewhere.get("storePathIndex"),
            ignore_log_end=_boolean(given, "ignoreLogEnd", default=False),
        )
        for path in paths
    )


def _path_values(options: Mapping[str, str]) -> list[str]:
    by_lower = {key.lower(): value for key, value in options.items()}
    values = [by_lower["path"]] if by_lower.get("path") else []
    if by_lower.get("paths"):
        values += _path_list(by_lower["paths"])
    if not values:
        raise OptionError("path: give the store's root, the folder that holds commitlog/: load('/path/to/store')")
    return values


def _path_list(value: str) -> list[str]:
    try:
        paths = json.loads(value)
    except json.JSONDecodeError as err:
        raise OptionError(f"paths {value!r}: a JSON list of paths ({err})") from err
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError(f"paths {value!r}: a JSON list of paths")
    return paths


def _expand(pattern: str) -> list[str]:
    absolute = _absolute(pattern)
    if not glob.has_magic(absolute):
        return [absolute]
    found = sorted(glob.glob(absolute))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise OptionError(f"path {pattern!r} matches nothing")
    return found


def _absolute(path: str) -> str:
    """Return an absolute local path; a ``file:`` URI loses its scheme, others are refused."""
    found = _URI.match(path)
    if found:
        scheme, host = found["scheme"].lower(), found["host"] or ""
        if scheme != "file" or host not in ("", "localhost"):
            raise UnsupportedFeatureError(f"path {path!r}: only files of this machine can be read yet")
        path = unquote(path[found.end() :])
    return str(Path(path).expanduser().absolute())


def _broker_names(value: str | None, paths: list[str]) -> dict[str, str]:
    if value is None:
        return {}
    if value.lstrip().startswith("{"):
        try:
            table = json.loads(value)
        except json.JSONDecodeError as err:
            raise OptionError(f"brokerName {value!r}: a name, or JSON from path to name ({err})") from err
        if not isinstance(table, dict) or not all(isinstance(name, str) and name for name in table.values()):
            raise OptionError(f"brokerName {value!r}: JSON from path to name")
        names = {_absolute(path): name for path, name in table.items()}
        strangers = sorted(set(names) - set(paths))
        if strangers:
            raise OptionError(f"brokerName names stores that path does not: {', '.join(strangers)}")
        return names
    if len(paths) > 1:
        raise OptionError(f"brokerName {value!r}: path names {len(paths)} stores; give JSON from path to name")
    return {paths[0]: value}


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    value = given.get(name, words[0])
    for word in words:
        if value.lower() == word.lower():
            return word
    raise OptionError(f"{name} {value!r}: one of {', '.join(words)}")


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = str(given.get(name, default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} {value!r}: true or false")
    return value == "true"


def _count(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]+", value.strip()) or int(value) < 1:
        raise OptionError(f"{name} {value!r}: a whole number from 1 on")
    return int(value)


def _size(given: Mapping[str, str], name: str, default: str) -> int:
    value = given.get(name, default)
    found = _SIZE.fullmatch(value.strip())
    if not found or not int(found[1]):
        raise OptionError(f"{name} {value!r}: bytes, or with a unit as in 128m")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2].lower()]
