"""Options: those of Spark's Kafka source, and where the log directories lie.

Names of topics have letters, digits, ``.``, ``_`` and ``-`` of ASCII only. What their patterns need
is the same in Java and in Python, but for a hyphen after a set of characters. All else is refused.

Source: KafkaSourceProvider, ConsumerStrategy, KafkaOffsetRangeLimit and JsonUtils of Spark;
java.util.regex.Pattern.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import kafkalog
from kafkalog.opening import require_reachable
from kafkalog.scan import ScanSpec
from kafkalog.storage.names import TopicPartition, is_internal
from pyspark_kafkalog.offsets import IDENTITY
from pyspark_rmqstore.option_names import KAFKA_OWN, SPARK_OWN
from pyspark_rmqstore.paths import store_path, user_paths
from pyspark_rmqstore.schema import KAFKA_COLUMNS
from pyspark_rmqstore.triggers import TriggerLimits
from rmqstore.errors import OptionError
from rmqstore.json_text import one_value_each
from rmqstore.query.damage import CORRUPT_RECORD, FAILFAST, MODES, PERMISSIVE
from rmqstore.query.options import (
    BATCH,
    READ,
    STREAM,
    GivenOptions,
    OneOf,
    Option,
    boolean,
    count,
    duration,
    json_object,
    size,
)
from rmqstore.query.selection import EARLIEST, LATEST, json_table, plain_integer
from rmqstore.query.times import parse_timestamp
from rmqstore.read.split import Limits

logger = logging.getLogger(__name__)

_IGNORE_CASE: Final = "(?i)"  # which Python takes at the beginning only
_REPETITION: Final = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})"
_SET: Final = r"\\[dDwWsS]"
_ESCAPED: Final = r"\\[^A-Za-z0-9]"
_GROUP: Final = r"\((?:\?(?:-?i)?:|\?<?[=!]|(?!\?))"
# What is the same in both languages, outside a class and in one.
_ALIKE: Final = re.compile(rf"{_GROUP}|{_REPETITION}(?!\+)|{_SET}|\\[AbB]|{_ESCAPED}|[^\\\[({{*+?]")
_CLASS: Final = re.compile(rf"\[\^?((?:{_SET}|{_ESCAPED}|(?!&&|--|~~|\|\|)[^\\\[\]])*)")
_SET_AND_HYPHEN: Final = re.compile(rf"({_SET})-|\\.", re.DOTALL)
# How what is refused begins, of which the first that matches counts; what it is; what to write.
_REFUSED: Final = (
    (r"\\[pP](?:\{[^}]*\}?)?", "a property of characters", "write a class, such as [A-Z]"),
    (r"\\[QE]", "quoted text", r"write a backslash before each special character, as in \."),
    (r"\\[Zz]", "an end of this kind", "write $"),
    (r"\\G", "the end of the last match", "write ^"),
    (r"\\[1-9k]", "a reference to a group", "write the alternatives, as in aa|bb"),
    (r"(?s:\\.?)", "an escape of this kind", "write the characters that it stands for"),
    (r"\(\?[a-zA-Z-]*[:)]", "a flag of this kind or here", "begin with (?i), or write (?i:…)"),
    (r"\((?s:..?)", "a group of this kind", "write (…) or (?:…)"),
    (rf"{_REPETITION}\+", "a possessive quantifier", "leave out its last +"),
    (r"\{", "a { without a number of repetitions", r"write {n}, {n,} or {n,m}, or \{"),
    (r"&&", "an intersection of classes", "write one class of the characters that are left"),
    (r"--|~~|\|\|", "a doubled character in a class", "write it once"),
    (r"\[", "a class within a class", r"write one class of all characters, or \["),
    (r"\]", "a class that begins with ]", r"write \]"),
)

_WORDS: Final = {"latest": LATEST, "earliest": EARLIEST}
_LAST_TIME: Final = (1 << 63) - 1

_MISSING_PATH = "name a log directory of a broker (log.dirs): load('/path/to/kafka-logs')"
_ISOLATION_LEVEL: Final = "kafka.isolation.level"

OPTIONS: Final = (
    Option("subscribe", "subscribe", READ, "topics, separated by commas"),
    Option(
        "subscribePattern", "subscribe_pattern", READ,
        "a regular expression of Java that is found in the name of a topic",
        "[patterns of topics](#patterns-of-topics)",
    ),
    Option("assign", "assign", READ, "single partitions", '`{"G":[0,2]}`'),
    Option(
        "startingOffsets", "starting_offsets", READ, "the offsets at which to start",
        "`earliest`, `latest`, or JSON that names every partition that is read, where -2 is the "
        'earliest and -1 the latest: `{"G":{"0":23,"1":-2}}`', shown="earliest; latest in a stream",
    ),
    Option(
        "endingOffsets", "ending_offsets", BATCH, "the offsets at which to end, excluded",
        "as `startingOffsets`", shown="latest",
    ),
    Option(
        "startingTimestamp", "starting_timestamp", READ, "the time from which on to read",
        "ms since the epoch, or as [elsewhere](reading.md#times); takes precedence over offsets. "
        "As to a broker, -1 is the latest offset and -2 the earliest; times before 1970 are "
        "refused",
    ),
    Option(
        "endingTimestamp", "ending_timestamp", BATCH, "the time before which to end", "the same",
    ),
    Option(
        "startingOffsetsByTimestamp", "starting_offsets_by_timestamp", READ,
        "times to start at, by partition",
        'for every one that is read: `{"G":{"0":1700000010000}}`',
    ),
    Option(
        "endingOffsetsByTimestamp", "ending_offsets_by_timestamp", BATCH,
        "times to end before, by partition", "the same",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "starting_offsets_by_timestamp_strategy", READ,
        "what happens if a partition has no record at or after its start time",
        "`latest`: it starts at its end; `error`: the read fails. With `read_committed`, a record "
        "from the last stable offset on counts as none", "error", OneOf("error", "latest"),
    ),
    Option("includeHeaders", "", READ, "add the column `headers`", "", "false", boolean),
    Option(
        _ISOLATION_LEVEL, "isolation_level", READ,
        "with read_committed nothing of transactions that were aborted or are open",
        "records of aborted transactions are left out, and reads end at the last stable offset",
        "read_uncommitted", OneOf("read_uncommitted", "read_committed"),
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", READ,
        "fail if records are gone, as retention deletes them", "`false` warns", "true", boolean,
    ),
    Option(
        "mode", "mode", READ,
        "damaged batches: an error, left out, or a row with the reason",
        "`FAILFAST`, `DROPMALFORMED` with a warning, or `PERMISSIVE`", FAILFAST, OneOf(*MODES),
    ),
    Option(
        "columnNameOfCorruptRecord", "column_name_of_corrupt_record", READ,
        "the column with the reason of damage", "Kafka's columns have no such name, in any case",
        CORRUPT_RECORD,
    ),
    Option("checkCRC", "check_crc", READ, "whether a wrong CRC is damage", "", "true", boolean),
    Option(
        "storageOptions", "storage_options", READ, "how to reach the storage of a URI",
        "as [elsewhere](remote.md)", "{}", json_object, shown="none",
    ),
    Option(
        "minPartitions", "", READ, "the least number of tasks, about",
        "large partitions are cut to reach it", None, count,
    ),
    Option("maxRecordsPerPartition", "", READ, "the most offsets of a task", "", None, count),
    Option(
        "maxBytesPerPartition", "", READ, "the most bytes of a task, estimated", "", "128m", size,
    ),
    Option(
        "maxOffsetsPerTrigger", "", STREAM, "the most offsets of a micro-batch", "", None, count,
    ),
    Option(
        "minOffsetsPerTrigger", "", STREAM, "the least offsets that a micro-batch waits for",
        "", None, count,
    ),
    Option(
        "maxTriggerDelay", "", STREAM, "the longest that it waits for these",
        "these three are for streams; a batch ignores them, with a warning", "15m", duration,
    ),
)  # fmt: skip


@cache
def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of Java; ``search`` finds what Java finds in names of topics.

    Raises:
        OptionError: it is malformed, or has something that is not supported.
    """
    translated = "".join(_translated(pattern))
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as err:
        raise _error(pattern, f"is not a regular expression that can be used here: {err}") from err


def _error(pattern: str, text: str) -> OptionError:
    return OptionError(f"subscribePattern {pattern!r}: {text}")


def _refusal(pattern: str, at: int) -> OptionError:
    """Return the error that names the refused text, and its replacement."""
    for begin, what, instead in _REFUSED:
        found = re.compile(begin).match(pattern, at)
        if found is not None:
            return _error(pattern, f"{found[0]} ({what}) is not supported here; {instead}")
    return _error(pattern, "a [ is not closed")


def _translated(pattern: str) -> Iterator[str]:
    """Yield the parts of a pattern in Python's syntax.

    Raises:
        OptionError: one is not supported.
    """
    at = 0
    if pattern.startswith(_IGNORE_CASE):
        at = len(_IGNORE_CASE)
        yield _IGNORE_CASE
    while at < len(pattern):
        found = _CLASS.match(pattern, at) or _ALIKE.match(pattern, at)
        if found is None:
            raise _refusal(pattern, at)
        at = found.end()
        text = found[0]
        if found.re is _CLASS:
            if not found[1] or not pattern.startswith("]", at):
                raise _refusal(pattern, at)
            text = _SET_AND_HYPHEN.sub(_with_literal_hyphen, text)
        yield text


def _with_literal_hyphen(found: re.Match[str]) -> str:
    return f"{found[1]}\\-" if found[1] else found[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen partitions; exactly one of the three has a value.

    Attributes:
        topics: names of topics.
        pattern: a regular expression of Java that is found in names of topics.
        partitions: single partitions.
    """

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: frozenset[TopicPartition] | None = None

    def of(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the chosen ones of the partitions that exist, sorted.

        A pattern finds no topic of Kafka's own: Spark asks a broker for topics without these.
        """
        if self.partitions is not None:
            return sorted(key for key in known if key in self.partitions)
        if self.topics is not None:
            return sorted(key for key in known if key.topic in self.topics)
        found_in = compile_java(self.pattern or "").search
        return sorted(key for key in known if not is_internal(key.topic) and found_in(key.topic))


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """The starts or ends of partitions; the first given one of timestamp, times and offsets counts.

    Attributes:
        default: LATEST or EARLIEST, for all partitions if no other attribute is set.
        offsets: an offset, LATEST or EARLIEST by partition, for all that are read.
        timestamp: ms since the epoch, LATEST or EARLIEST, for all partitions.
        times: ms since the epoch, LATEST or EARLIEST by partition, for all that are read.
    """

    default: int
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    times: Mapping[TopicPartition, int] | None = None

    def time_of(self, key: TopicPartition) -> int | None:
        """Return the time that decides for a partition, as above; None if an offset does."""
        if self.timestamp is not None:
            return self.timestamp
        return None if self.times is None else self.times[key]

    def offset_of(self, key: TopicPartition) -> int:
        """Return the offset of a partition, which may be LATEST or EARLIEST."""
        return self.default if self.offsets is None else self.offsets[key]

    @property
    def named(self) -> set[TopicPartition] | None:
        """The partitions that are named; None if one value is meant for all."""
        if self.timestamp is not None:
            return None
        by_partition = self.offsets if self.times is None else self.times
        return None if by_partition is None else set(by_partition)


def parse_choice(given: GivenOptions) -> Choice:
    """Parse ``assign``, ``subscribe`` or ``subscribePattern``.

    Raises:
        OptionError: none or several of them are given, or one is malformed.
    """
    names = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(names) != 1:
        found = f"got {' and '.join(names)}" if names else "got none of them"
        raise OptionError(f"give one of assign, subscribe and subscribePattern; {found}")
    value = given[names[0]]
    if names[0] == "assign":
        table = json_table("assign", value, '{"topicA":[0,1],"topicB":[2,4]}')
        keys: set[TopicPartition] = set()
        for topic, numbers in table.items():
            if not isinstance(numbers, list):
                raise OptionError(f"assign: {topic!r} needs a list of partitions, got {numbers!r}")
            keys.update(
                TopicPartition(topic, plain_integer("assign", number)) for number in numbers
            )
        if not keys:
            raise OptionError("assign: names no partition")
        return Choice(partitions=frozenset(keys))
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise OptionError(f"subscribe {value!r}: must be a comma list of topics")
        return Choice(topics=topics)
    pattern = value.strip()
    if not pattern:
        raise OptionError("subscribePattern: names no topic")
    compile_java(pattern)
    return Choice(pattern=pattern)


def parse_limit(given: GivenOptions, end: str, default: int) -> OffsetLimit:
    """Parse the options of one end of a query.

    Args:
        given: the options.
        end: ``starting`` or ``ending``.
        default: LATEST or EARLIEST, where no option says more.

    Raises:
        OptionError: a value is malformed.
    """
    by_time, by_offset = f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if f"{end}Timestamp" in given:
        name = f"{end}Timestamp"
        return OffsetLimit(default, timestamp=_time(name, given[name]))
    if by_time in given:
        times = _by_partition(by_time, given[by_time], lambda value: _time(by_time, value))
        return OffsetLimit(default, times=times)
    value = (given[by_offset] or "").strip()
    if value.lower() in ("", *_WORDS):
        return OffsetLimit(_WORDS.get(value.lower(), default))

    def parse_offset(value: object) -> int:
        offset = plain_integer(by_offset, value)
        if offset < EARLIEST:
            raise OptionError(
                f"{by_offset}: offset {offset}; -2 is the earliest, -1 the latest, others count "
                "from 0"
            )
        return offset

    return OffsetLimit(default, _by_partition(by_offset, value, parse_offset))


def require_span(start: OffsetLimit, end: OffsetLimit) -> None:
    """Refuse words that leave a batch nothing to read, as Spark's Kafka source does.

    Raises:
        OptionError: a batch would start at the latest offset or end at the earliest.
    """
    for name, limit, refused, text in (
        ("startingOffsets", start, LATEST, "latest"),
        ("endingOffsets", end, EARLIEST, "earliest"),
    ):
        if limit.timestamp is None and limit.times is None and limit.default == refused:
            raise OptionError(f"{name} {text}: a batch would have nothing to read")
        if refused in (limit.offsets or {}).values():
            raise OptionError(
                f"{name}: {refused} ({text}) would leave a batch nothing to read of that partition"
            )


def _by_partition(
    name: str, value: str, parse: Callable[[object], int]
) -> dict[TopicPartition, int]:
    table = json_table(name, value, '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}')
    parsed: list[tuple[TopicPartition, int]] = []
    for topic, numbers in table.items():
        if topic == IDENTITY:  # in an offset of a checkpoint or of a query's progress
            continue
        if not isinstance(numbers, dict):
            raise OptionError(
                f"{name}: {topic!r} needs a value for each partition; got {numbers!r}"
            )
        for number, inner in numbers.items():
            parsed.append((TopicPartition(topic, plain_integer(name, number)), parse(inner)))
    return one_value_each(parsed, f"{name}: ")  # partitions "0" and "00" are one


def _time(name: str, value: object) -> int:
    """Return a time in ms, LATEST or EARLIEST.

    An integer is taken as it is, as by Spark's Kafka source. That hands it to a broker, to which -1
    and -2 mean the latest and the earliest offset.
    """
    text = str(value).strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text) and not isinstance(value, bool):
        time = int(text)
        if EARLIEST <= time <= _LAST_TIME:
            return time
    elif (time := parse_timestamp(name, str(value))) >= 0:
        return time
    raise OptionError(
        f"{name} {text!r}: must lie between 1970 and {_LAST_TIME} ms; -1 is the latest offset, and"
        " -2 the earliest"
    )


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


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The optional columns of rows.

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
        spec: how records are read, with the column of offsets alone.
        limits: of tasks, whose bytes are estimated and whose records are offsets.
    """

    log_dirs: LogDirsRef
    columns: ColumnOptions
    choice: Choice
    start: OffsetLimit
    end: OffsetLimit
    start_is_strict: bool
    spec: ScanSpec
    limits: Limits


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream: of its reads, and the limits of its triggers."""

    read: ReadOptions
    triggers: TriggerLimits  # their rows are offsets


def parse_column_options(options: Mapping[str, str]) -> ColumnOptions:
    """Parse the options of columns; raises as the others do."""
    return _column_options(_known(options))


def _column_options(given: GivenOptions) -> ColumnOptions:
    name = given["columnNameOfCorruptRecord"]
    if not name or name.lower() in {column.lower() for column in KAFKA_COLUMNS}:  # as in Spark
        raise OptionError(
            f"columnNameOfCorruptRecord {name!r}: must be a name that no column of Kafka has"
        )
    return ColumnOptions(given["includeHeaders"], name if given["mode"] == PERMISSIVE else None)


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch. Limits of triggers are ignored, with a warning, as in Spark.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
    """
    given = _known(options)
    ignored = tuple(option.name for option in given.outside("batch"))
    _warn_of_ignored(ignored, "a batch has no triggers")
    read = _read_options(given, EARLIEST)
    require_span(read.start, read.end)
    return read


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream; raises as :func:`parse_read_options` does."""
    given = _known(options)
    misplaced = [option.name for option in given.outside("stream")]
    if misplaced:
        raise OptionError(f"{', '.join(misplaced)}: a stream has no end")
    return StreamOptions(_read_options(given, LATEST), TriggerLimits.parse(given))


def _read_options(given: GivenOptions, default_start: int) -> ReadOptions:
    paths = tuple(store_path(path) for path in user_paths(given, _MISSING_PATH))
    storage_options = given["storageOptions"]
    require_reachable(paths, storage_options)
    return ReadOptions(
        log_dirs=LogDirsRef(paths, tuple(storage_options.items())),
        columns=_column_options(given),
        choice=parse_choice(given),
        start=parse_limit(given, "starting", default_start),
        end=parse_limit(given, "ending", LATEST),
        start_is_strict=given["startingOffsetsByTimestampStrategy"] == "error",
        spec=ScanSpec(
            ("offset",),
            given[_ISOLATION_LEVEL],
            mode=given["mode"],
            check_crc=given["checkCRC"],
            fail_on_data_loss=given["failOnDataLoss"],
        ),
        limits=Limits(
            given["maxBytesPerPartition"], given["maxRecordsPerPartition"], given["minPartitions"]
        ),
    )


def _known(options: Mapping[str, str]) -> GivenOptions:
    """Return the options by their documented names, without those that only a broker needs."""
    of_brokers = [
        key for key in options if KAFKA_OWN.fullmatch(key) and key.lower() != _ISOLATION_LEVEL
    ]
    _warn_of_ignored(tuple(sorted(of_brokers)), "no broker is asked")
    return GivenOptions(
        {key: value for key, value in options.items() if key not in of_brokers}, OPTIONS, SPARK_OWN
    )


@cache
def _warn_of_ignored(names: tuple[str, ...], reason: str) -> None:
    """Say once which options have no effect. Their values may be secrets and are not shown."""
    if names:
        logger.warning("ignored, because %s: %s", reason, ", ".join(names))
