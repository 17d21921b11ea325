"""Read options: keys, defaults, text to values. Case does not matter in keys; unknown ones are refused by name."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_rmqstore.option_values import absolute_path, boolean, count, known_options, size, stated_paths, word
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
_NAMES = (*_SELECTION, *_STORE_PATHS, *_OTHERS, *_LATER, "view")

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
        include_system_topics=boolean(given, "includeSystemTopics", default=False),
    )
    columns = given.get("columns")
    return ReadOptions(
        stores=_stores(options, given),
        selection=selection,
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        tags=parse_tags(given.get("tags")),
        scan=_scan(given, selection),
        mode=word(given, "mode", ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")),
        corrupt_column=_corrupt_column(given),
        check_crc=boolean(given, "checkCRC", default=True),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        min_partitions=count(given, "minPartitions"),
        max_records_per_partition=count(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=size(given, "maxBytesPerPartition", _DEFAULT_SPLIT),
    )


def _corrupt_column(given: Mapping[str, str]) -> str:
    name = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
    if not name or name in ALL_COLUMNS.names:
        raise OptionError(f"columnNameOfCorruptRecord {name!r}: a name that no column of a message has")
    return name


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling."""
    given = known_options(options, _NAMES)
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
    scan = word(given, "scan", ("queue", "commitlog"))
    if scan == "commitlog":
        selection.require_by_log()
    if scan == "commitlog" and "maxRecordsPerPartition" in given:
        raise OptionError("maxRecordsPerPartition: scan=commitlog cannot count records before it reads them; "
                          "use maxBytesPerPartition")  # fmt: skip
    return scan


def _stores(options: Mapping[str, str], given: Mapping[str, str]) -> tuple[StoreRef, ...]:
    paths = [path for pattern in stated_paths(options) for path in _expand(pattern)]
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
            ignore_log_end=boolean(given, "ignoreLogEnd", default=False),
        )
        for path in paths
    )


def _expand(pattern: str) -> list[str]:
    absolute = absolute_path(pattern)
    if not glob.has_magic(absolute):
        return [absolute]
    found = sorted(glob.glob(absolute))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise OptionError(f"path {pattern!r} matches nothing")
    return found


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
        names = {absolute_path(path): name for path, name in table.items()}
        strangers = sorted(set(names) - set(paths))
        if strangers:
            raise OptionError(f"brokerName names stores that path does not: {', '.join(strangers)}")
        return names
    if len(paths) > 1:
        raise OptionError(f"brokerName {value!r}: path names {len(paths)} stores; give JSON from path to name")
    return {paths[0]: value}
