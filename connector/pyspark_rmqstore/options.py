"""Read options: keys, defaults, and how their text is parsed. Unknown keys are refused by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_rmqstore.option_values import (
    KAFKA,
    SELECTION_ARGUMENTS,
    absolute_path,
    boolean,
    count,
    duration,
    known_options,
    offsets_per_trigger,
    one_or_many,
    option_names,
    size,
    without_kafka_own,
    word,
    zone_of,
)
from pyspark_rmqstore.store_options import STORE_PATHS, StoreRef, parse_stores
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD
from rmqstore.query.keys import Wanted, parse_wanted
from rmqstore.query.selection import Selection, parse_selection, parse_tags
from rmqstore.query.sql92_filter import Filter, parse_filter
from rmqstore.storage.remote.location import is_uri

logger = logging.getLogger(__name__)

_OTHERS = (
    "includeSystemTopics", "tags", "columns", "scan", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "mode", "columnNameOfCorruptRecord", "checkCRC", "failOnDataLoss",
    "ignoreLogEnd", "brokerName", "brokers", "msgKey", "msgKeyLimit", "msgId", "msgTags",
    "indexOnly", "filter", "includePending", "storageOptions", "includeHeaders", "timeZone",
)  # fmt: skip
_LOOKUP = ("msgKey", "msgKeyLimit", "msgId", "msgTags", "indexOnly")
_TRIGGERS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_STREAM = (*_TRIGGERS, "maxBytesPerTrigger", "consumerOffsetFile", "consumerGroup")
_VIEWS = ("view", "clients", "strategy", "rooms")
NAMES = (*SELECTION_ARGUMENTS, *STORE_PATHS, *_OTHERS, *_STREAM, *_VIEWS)

DEFAULT_SPLIT, _DEFAULT_DELAY = "128m", "15m"


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The options that determine the columns, validated.

    With ``is_kafka`` they are those of Spark's Kafka source, and ``columns`` is None.
    """

    columns: tuple[str, ...] | None
    is_kafka: bool
    include_headers: bool
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
    is_kafka = _is_kafka(given)
    if is_kafka:
        # Rows may not need columns that Kafka's source does not have.
        if given.get("mode", "").upper() == "PERMISSIVE":
            raise OptionError(
                "columns=kafka: no column says what is damaged; "
                "set mode to FAILFAST or DROPMALFORMED"
            )
        if boolean(given, "includePending", default=False):
            raise OptionError(
                "columns=kafka: no column says what is pending; leave out includePending"
            )
        columns = None
    elif "includeHeaders" in given:
        raise OptionError("includeHeaders: with columns=kafka only; column properties has them")
    include_headers = boolean(given, "includeHeaders", default=False)
    mode = word(given, "mode", ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"))
    corrupt_column = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
    if not corrupt_column or corrupt_column in ALL_COLUMNS.names:
        raise OptionError(
            f"columnNameOfCorruptRecord {corrupt_column!r}: "
            "must be a name that no column of a message has"
        )
    return ColumnOptions(
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        is_kafka=is_kafka,
        include_headers=include_headers,
        mode=mode,
        corrupt_column=corrupt_column,
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
    if _is_kafka(given) and (ignored := [name for name in _TRIGGERS if name in given]):
        logger.warning(
            "%s: ignored in a batch read, as by Spark's Kafka source", ", ".join(ignored)
        )
        misplaced = [name for name in misplaced if name not in ignored]
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
    max_rows, min_rows = offsets_per_trigger(given)
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
        path = Path(absolute_path(file))
        store, *others = read.stores
        if others:
            raise OptionError(
                f"consumerOffsetFile is for one broker, but path names {len(read.stores)} stores"
            )
        if not is_uri(store.path) and path.resolve().is_relative_to(Path(store.path).resolve()):
            raise OptionError(
                f"consumerOffsetFile {path} lies in the store, "
                "into which reading never writes: put it elsewhere"
            )
        consumer_offset_file = path
    return StreamOptions(
        read=read,
        max_rows=max_rows,
        min_rows=min_rows,
        max_bytes=max_bytes,
        max_delay_seconds=duration(given, "maxTriggerDelay", _DEFAULT_DELAY),
        consumer_offset_file=consumer_offset_file,
        consumer_group=given.get("consumerGroup", ""),
    )


def _read_options(
    options: Mapping[str, str], given: dict[str, str], *, streaming: bool
) -> ReadOptions:
    arguments = {
        SELECTION_ARGUMENTS[name]: value
        for name, value in given.items()
        if name in SELECTION_ARGUMENTS
    }
    with zone_of(given.get("timeZone")):
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
        is_kafka=chosen.is_kafka,
        include_headers=chosen.include_headers,
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
    wanted = parse_wanted(*(one_or_many(given, name) for name in names))
    if named and not wanted:
        raise OptionError(
            f"{', '.join(named)}: for look-ups only; give msgKey, msgId or msgTags too"
        )
    if wanted:
        selection.require_by_log()
    return wanted


def _is_kafka(given: Mapping[str, str]) -> bool:
    return given.get("columns", "").strip().lower() == KAFKA


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling."""
    given = known_options(without_kafka_own(options), NAMES)
    view = given.pop("view", "messages")
    if view != "messages":
        raise OptionError(f"view {view!r}: views are for batch reads; a stream reads messages")
    misplaced = [name for name in _VIEWS if name in given]
    if misplaced:
        raise OptionError(f"{', '.join(misplaced)}: for view assignments only")
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
