"""Read options: keys, defaults, and how their text is parsed. Unknown keys are refused by name."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_rmqstore.option_names import SELECTION_ARGUMENTS, option_names
from pyspark_rmqstore.option_values import (
    absolute_path,
    boolean,
    count,
    duration,
    known_options,
    size,
    stated_paths,
    storage_options,
    store_path,
    word,
)
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.keys import Wanted, parse_wanted
from rmqstore.query.selection import Selection, parse_selection, parse_tags
from rmqstore.query.sql92.filter import Filter, parse_filter
from rmqstore.storage.remote.location import is_uri, matching

STORE_PATHS = (
    "storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "storePathDLedgerCommitLog",
    "dLegerSelfId", "tiered",
)  # fmt: skip
_OTHERS = (
    "includeSystemTopics", "tags", "columns", "scan", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "mode", "columnNameOfCorruptRecord", "checkCRC", "failOnDataLoss",
    "ignoreLogEnd", "brokerName", "msgKey", "msgKeyLimit", "msgId", "msgTags", "indexOnly",
    "filter", "includePending", "storageOptions",
)  # fmt: skip
_LOOKUP = ("msgKey", "msgKeyLimit", "msgId", "msgTags", "indexOnly")
_STREAM = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "consumerOffsetFile", "consumerGroup",
)  # fmt: skip
NAMES = (*SELECTION_ARGUMENTS, *STORE_PATHS, *_OTHERS, *_STREAM, "view")

_NO_PATH = (
    "load('/path/to/store'). "
    "Spark keeps the options of a table only if it was created without a list of columns; "
    "read other tables by SELECT … FROM t WITH (path = '/path/to/store')"
)
DEFAULT_SPLIT, _DEFAULT_DELAY = "128m", "15m"


@dataclass(frozen=True, slots=True)
class StoreRef:
    """Where one store lies, and the name of its broker if it is given."""

    path: str
    broker_name: str | None
    commitlogs: tuple[str, ...]
    consumequeue: str | None
    index: str | None
    dledger_logs: tuple[str, ...]
    dledger_self_id: str | None
    ignore_log_end: bool
    tiered: str | None = None
    # how to reach the storage of a URI; they may be secrets, so no text shows them
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def folders(self) -> FolderArguments:
        """The parts of the store that lie elsewhere, as arguments of the core."""
        return {
            "commitlogs": self.commitlogs,
            "consumequeue": self.consumequeue,
            "index": self.index,
            "dledger_logs": self.dledger_logs,
            "dledger_self_id": self.dledger_self_id,
        }


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The options that determine the columns, validated."""

    columns: tuple[str, ...] | None
    mode: str
    corrupt_column: str
    include_pending: bool


@dataclass(frozen=True, slots=True)
class ReadOptions(ColumnOptions):
    """The options of one read, validated."""

    stores: tuple[StoreRef, ...]
    selection: Selection
    wanted: Wanted
    index_only: bool
    msg_key_limit: int | None
    tags: frozenset[str] | None
    filter: Filter | None
    scan: str
    check_crc: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream, of its reads and of its triggers, validated.

    Progress is written to ``consumer_offset_file``, as the offsets of ``consumer_group``.
    """

    read: ReadOptions
    max_rows: int | None
    min_rows: int | None
    max_bytes: int | None
    max_delay_seconds: float
    consumer_offset_file: Path | None
    consumer_group: str


@option_names()
def parse_column_options(options: Mapping[str, str]) -> ColumnOptions:
    """Parse the options that determine the columns; raises as :func:`parse_read_options` does."""
    given = _known(options)
    columns = given.get("columns")
    return ColumnOptions(
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        mode=word(given, "mode", ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")),
        corrupt_column=_corrupt_column(given),
        include_pending=boolean(given, "includePending", default=False),
    )


@option_names()
def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
        UnsupportedFeatureError: an option requests what is not supported yet.
    """
    given = _known(options)
    misplaced = [name for name in _STREAM if name in given]
    if misplaced:
        raise OptionError(
            f"{', '.join(misplaced)}: for streams only; "
            "use readStream, or leave it out of a batch read"
        )
    return _read_options(options, given, streaming=False)


@option_names()
def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream; raises as :func:`parse_read_options` does."""
    given = _known(options)
    read = _read_options(options, given, streaming=True)
    max_rows, min_rows = count(given, "maxOffsetsPerTrigger"), count(given, "minOffsetsPerTrigger")
    if max_rows is not None and min_rows is not None and min_rows > max_rows:
        raise OptionError(
            f"minOffsetsPerTrigger {min_rows} is above maxOffsetsPerTrigger {max_rows}"
        )
    if read.scan != "queue":
        raise UnsupportedFeatureError(
            "scan=commitlog: a stream follows queues; scan the log in a batch read"
        )
    max_bytes = None
    if "maxBytesPerTrigger" in given:
        max_bytes = size(given, "maxBytesPerTrigger", "1")
    file = given.get("consumerOffsetFile")
    if (file is None) != ("consumerGroup" not in given):
        raise OptionError("consumerOffsetFile and consumerGroup: give both, or none")
    consumer_offset_file = None
    if file is not None:
        consumer_offset_file = _outside(Path(absolute_path(file)), read.stores)
    return StreamOptions(
        read=read,
        max_rows=max_rows,
        min_rows=min_rows,
        max_bytes=max_bytes,
        max_delay_seconds=duration(given, "maxTriggerDelay", _DEFAULT_DELAY),
        consumer_offset_file=consumer_offset_file,
        consumer_group=given.get("consumerGroup", ""),
    )


def _outside(file: Path, stores: tuple[StoreRef, ...]) -> Path:
    if len(stores) > 1:
        raise OptionError(
            f"consumerOffsetFile is for one broker, but path names {len(stores)} stores"
        )
    if is_uri(stores[0].path):
        return file
    if file.resolve().is_relative_to(Path(stores[0].path).resolve()):
        raise OptionError(
            f"consumerOffsetFile {file} lies in the store, "
            "into which reading never writes: put it elsewhere"
        )
    return file


def _read_options(
    options: Mapping[str, str], given: dict[str, str], *, streaming: bool
) -> ReadOptions:
    arguments = {
        SELECTION_ARGUMENTS[name]: value
        for name, value in given.items()
        if name in SELECTION_ARGUMENTS
    }
    selection = parse_selection(
        **arguments,
        include_system_topics=boolean(given, "includeSystemTopics", default=False),
        streaming=streaming,
    )
    chosen = parse_column_options(options)
    wanted = _parse_look_up(given, selection, streaming=streaming)
    is_by_queue = given.get("scan", "queue").lower() == "queue"
    if chosen.include_pending and (streaming or wanted or not is_by_queue):
        raise UnsupportedFeatureError(
            "includePending: only a batch read by queue finds pending messages; "
            "with a stream, a look-up or scan=commitlog, read them in the topics "
            "SCHEDULE_TOPIC_XXXX, RMQ_SYS_TRANS_HALF_TOPIC and rmq_sys_wheel_timer"
        )
    return ReadOptions(
        columns=chosen.columns,
        mode=chosen.mode,
        corrupt_column=chosen.corrupt_column,
        include_pending=chosen.include_pending,
        stores=parse_stores(options, given),
        selection=selection,
        wanted=wanted,
        index_only=boolean(given, "indexOnly", default=False),
        msg_key_limit=count(given, "msgKeyLimit"),
        tags=parse_tags(given.get("tags")),
        filter=parse_filter(given.get("filter")),
        scan=_scan(given, selection, streaming=streaming),
        check_crc=boolean(given, "checkCRC", default=True),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        min_partitions=count(given, "minPartitions"),
        max_records_per_partition=count(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=size(given, "maxBytesPerPartition", DEFAULT_SPLIT),
    )


def _parse_look_up(given: Mapping[str, str], selection: Selection, *, streaming: bool) -> Wanted:
    named = [name for name in _LOOKUP if name in given]
    if streaming and named:
        raise UnsupportedFeatureError(
            f"{', '.join(named)}: a stream follows queues; look messages up in a batch read"
        )
    names = ("msgKey", "msgId", "msgTags")
    wanted = parse_wanted(*(_one_or_many(given, name) for name in names))
    if named and not wanted:
        raise OptionError(
            f"{', '.join(named)}: for look-ups only; give msgKey, msgId or msgTags too"
        )
    if wanted:
        selection.require_by_log()
    return wanted


def _one_or_many(given: Mapping[str, str], name: str) -> str | list[str] | None:
    value = given.get(name)
    if value is None or not value.startswith("["):
        return value
    try:
        values = json.loads(value)
    except json.JSONDecodeError as err:
        raise OptionError(
            f'{name} {value!r}: must be one text, or a JSON list like ["a","b"] ({err})'
        ) from err
    if not all(isinstance(text, str) for text in values):
        raise OptionError(f"{name} {value!r}: must be a JSON list of texts")
    return list(values)


def _corrupt_column(given: Mapping[str, str]) -> str:
    name = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
    if not name or name in ALL_COLUMNS.names:
        raise OptionError(
            f"columnNameOfCorruptRecord {name!r}: must be a name that no column of a message has"
        )
    return name


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling."""
    given = known_options(options, NAMES)
    view = given.pop("view", "messages")
    if view != "messages":
        raise OptionError(f"view {view!r}: views are for batch reads; a stream reads messages")
    return given


def _scan(given: Mapping[str, str], selection: Selection, *, streaming: bool) -> str:
    scan = word(given, "scan", ("queue", "commitlog"))
    if scan == "commitlog" and not streaming:
        selection.require_by_log()
    if scan == "commitlog" and "maxRecordsPerPartition" in given:
        raise OptionError(
            "maxRecordsPerPartition: scan=commitlog cannot count records before it reads them; "
            "use maxBytesPerPartition"
        )
    return scan


def parse_stores(options: Mapping[str, str], given: Mapping[str, str]) -> tuple[StoreRef, ...]:
    """Return the stores that the options name.

    Args:
        options: the options as Spark passes them.
        given: the options by their documented spelling.
    """
    to_reach = storage_options(given)
    paths = [
        path for pattern in stated_paths(options, _NO_PATH) for path in _expand(pattern, to_reach)
    ]
    if len(set(paths)) < len(paths):
        raise OptionError(f"path names a store twice: {paths}")
    elsewhere = {name: given[name] for name in STORE_PATHS if name in given}
    if elsewhere and len(paths) > 1:
        raise OptionError(
            f"{', '.join(elsewhere)} can be given for one store only, but path names {len(paths)}"
        )
    names = _broker_names(given.get("brokerName"), paths)
    return tuple(
        StoreRef(
            path=path,
            broker_name=names.get(path),
            commitlogs=_folders(elsewhere, "storePathCommitLog"),
            consumequeue=elsewhere.get("storePathConsumeQueue"),
            index=elsewhere.get("storePathIndex"),
            dledger_logs=_folders(elsewhere, "storePathDLedgerCommitLog"),
            dledger_self_id=elsewhere.get("dLegerSelfId"),
            tiered=absolute_path(elsewhere["tiered"]) if "tiered" in elsewhere else None,
            ignore_log_end=boolean(given, "ignoreLogEnd", default=False),
            storage_options=tuple(to_reach.items()),
        )
        for path in paths
    )


def _folders(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the folders that an option lists, separated by commas."""
    parts = (part.strip() for part in given.get(name, "").split(","))
    return tuple(part for part in parts if part)


def _expand(pattern: str, to_reach: Mapping[str, str]) -> list[str]:
    absolute = store_path(pattern)
    if not glob.has_magic(absolute):
        return [absolute]
    in_disk_order = [] if is_uri(absolute) else glob.glob(absolute)  # noqa: PTH207 - it is absolute
    matches = matching(absolute, to_reach) if is_uri(absolute) else sorted(in_disk_order)
    if not matches:
        raise OptionError(f"path {pattern!r} does not match any folder")
    return matches


def _broker_names(value: str | None, paths: list[str]) -> dict[str, str]:
    if value is None:
        return {}
    if value.lstrip().startswith("{"):
        try:
            table = json.loads(value)
        except json.JSONDecodeError as err:
            raise OptionError(
                f"brokerName {value!r}: must be a name, or a JSON object of names by path ({err})"
            ) from err
        if not isinstance(table, dict) or not all(
            isinstance(name, str) and name for name in table.values()
        ):
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
