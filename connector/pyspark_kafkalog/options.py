"""Options: those of Spark's Kafka source, and where the log directories lie.

Source: KafkaSourceProvider of Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import kafkalog
from kafkalog.opening import require_reachable
from kafkalog.read.spec import CORRUPT_RECORD, MODES, PERMISSIVE, ScanSpec
from pyspark_kafkalog.offset_limits import (
    Choice,
    OffsetLimit,
    parse_choice,
    parse_limit,
    require_span,
)
from pyspark_rmqstore.kafka_columns import KAFKA_COLUMNS
from pyspark_rmqstore.option_values import (
    boolean,
    count,
    duration,
    known_options,
    offsets_per_trigger,
    size,
    stated_paths,
    storage_options,
    store_path,
    word,
)
from rmqstore.errors import OptionError
from rmqstore.query.selection import EARLIEST, LATEST

logger = logging.getLogger(__name__)

_CHOICE = ("assign", "subscribe", "subscribePattern")
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OTHERS = (
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "maxBytesPerPartition", "includeHeaders", "mode", "checkCRC",
    "columnNameOfCorruptRecord", "storageOptions",
)  # fmt: skip
NAMES: Final = (*_CHOICE, *_STARTS, *_ENDS, *_STREAM, *_OTHERS)

# Of how Kafka is reached, which no folder asks for. A job keeps them when it changes its format.
_OF_BROKERS: Final = re.compile(
    r"(kafka|kafkaConsumer|fetchOffset)\..*|groupIdPrefix", re.IGNORECASE | re.DOTALL
)
_ISOLATION_LEVEL: Final = "kafka.isolation.level"
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_DEFAULT_SPLIT, _DEFAULT_DELAY = "128m", "15m"
_MISSING_PATH = "name a log directory of a broker (log.dirs): load('/path/to/kafka-logs')"


@dataclass(frozen=True, slots=True)
class LogDirsRef:
    """Where the log directories of one broker lie.

    Attributes:
        paths: absolute local paths, or URIs in one storage.
        storage_options: how to reach the storage of URIs. They may be secrets, so no text shows
            them.
    """

    paths: tuple[str, ...]
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return ", ".join(self.paths)

    def open(self) -> kafkalog.LogDirs:
        """Open them.

        Raises:
            NotAStoreError: a path is not a log directory.
            StoreStateError: two directories hold the same partition.
        """
        return kafkalog.open(*self.paths, storage_options=dict(self.storage_options))


def parse_log_dirs(paths: list[str], given: dict[str, str]) -> LogDirsRef:
    """Return the log directories that options name.

    Args:
        paths: as they are named, at least one.
        given: the options by their documented spelling.

    Raises:
        OptionError: the paths lie in several storages, or an option of the storage is unknown.
        UnsupportedFeatureError: a URI is of a file system that is not known.
    """
    to_reach = storage_options(given)
    absolute = tuple(store_path(path) for path in paths)
    require_reachable(absolute, to_reach)
    return LogDirsRef(absolute, tuple(to_reach.items()))


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The columns that rows have beside those that they always have.

    Attributes:
        include_headers: whether there is one of headers.
        corrupt: name of the one that says what is damaged; None if there is none.
    """

    include_headers: bool
    corrupt: str | None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read, validated.

    Attributes:
        log_dirs: log directories of one broker.
        columns: which columns there are.
        choice: the partitions that are read.
        start: where they start.
        end: where they end; the latest offsets for a stream.
        start_is_strict: whether a start time after the last record is an error.
        isolation_level: read_uncommitted or read_committed.
        mode: what is done about damage.
        check_crc: whether a wrong CRC is damage.
        fail_on_data_loss: whether records that are gone are an error.
        min_partitions: the least number of tasks; a record is never divided.
        max_records: the most records of a task.
        max_bytes: the most bytes of a task, estimated.
    """

    log_dirs: LogDirsRef
    columns: ColumnOptions
    choice: Choice
    start: OffsetLimit
    end: OffsetLimit
    start_is_strict: bool
    isolation_level: str
    mode: str
    check_crc: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records: int | None
    max_bytes: int

    def spec(self, columns: tuple[str, ...]) -> ScanSpec:
        """Return how these columns of records are read."""
        return ScanSpec(
            columns,
            self.isolation_level,
            self.mode,
            check_crcs=self.check_crc,
            fail_on_data_loss=self.fail_on_data_loss,
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream: of its reads, and the limits of its triggers."""

    read: ReadOptions
    max_offsets: int | None
    min_offsets: int | None
    max_delay_seconds: float


def parse_column_options(options: Mapping[str, str]) -> ColumnOptions:
    """Parse the options that decide which columns there are; raises as the others do."""
    return _column_options(_known(options))


def _column_options(given: Mapping[str, str]) -> ColumnOptions:
    name = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD)
    if not name or name.lower() in {column.lower() for column in KAFKA_COLUMNS}:  # as in Spark
        raise OptionError(
            f"columnNameOfCorruptRecord {name!r}: must be a name that no column of Kafka has"
        )
    return ColumnOptions(
        boolean(given, "includeHeaders", default=False),
        name if word(given, "mode", MODES) == PERMISSIVE else None,
    )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch. Limits of triggers are ignored, with a warning, as in Spark.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
    """
    given = _known(options)
    _warn_of_ignored(tuple(name for name in _STREAM if name in given), "a batch has no triggers")
    read = _read_options(options, given, EARLIEST)
    require_span(read.start, read.end)
    return read


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream; raises as :func:`parse_read_options` does."""
    given = _known(options)
    misplaced = [name for name in _ENDS if name in given]
    if misplaced:
        raise OptionError(f"{', '.join(misplaced)}: a stream has no end")
    most, least = offsets_per_trigger(given)
    return StreamOptions(
        _read_options(options, given, LATEST),
        most,
        least,
        duration(given, "maxTriggerDelay", _DEFAULT_DELAY),
    )


def _read_options(
    options: Mapping[str, str], given: Mapping[str, str], default_start: int
) -> ReadOptions:
    return ReadOptions(
        log_dirs=parse_log_dirs(stated_paths(options, _MISSING_PATH), dict(given)),
        columns=_column_options(given),
        choice=parse_choice(given),
        start=parse_limit(given, "starting", default_start),
        end=parse_limit(given, "ending", LATEST),
        start_is_strict=word(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "error",
        isolation_level=_isolation_level(options),
        mode=word(given, "mode", MODES),
        check_crc=boolean(given, "checkCRC", default=True),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        min_partitions=count(given, "minPartitions"),
        max_records=count(given, "maxRecordsPerPartition"),
        max_bytes=size(given, "maxBytesPerPartition", _DEFAULT_SPLIT),
    )


def _isolation_level(options: Mapping[str, str]) -> str:
    """Return ``kafka.isolation.level``; its key may be written in any case."""
    values = [value for key, value in options.items() if key.lower() == _ISOLATION_LEVEL]
    given = {_ISOLATION_LEVEL: values[0]} if values else {}
    return word(given, _ISOLATION_LEVEL, _ISOLATION_LEVELS)


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling, without those that only a broker needs."""
    ignored = [key for key in options if _OF_BROKERS.fullmatch(key)]
    of_brokers = sorted(key for key in ignored if key.lower() != _ISOLATION_LEVEL)
    _warn_of_ignored(tuple(of_brokers), "no broker is asked")
    return known_options(
        {key: value for key, value in options.items() if key not in ignored}, NAMES
    )


@cache
def _warn_of_ignored(names: tuple[str, ...], reason: str) -> None:
    """Say once which options have no effect. Their values may be secrets and are not shown."""
    if names:
        logger.warning("ignored, because %s: %s", reason, ", ".join(names))
