"""The options of reads, streams, views and writes: one table for Spark, Python and commands.

A row says how Spark's users spell an option, which argument of Python it stands for, where it may
be given, how its text is parsed, its default and what it does. Parsing, refusals, names in errors,
help texts and the manual use these tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from rmqstore.errors import OptionError, RmqStoreError, UnsupportedFeatureError
from rmqstore.json_text import parse_json
from rmqstore.query.selection import nearest_name

Scope = Literal["batch", "stream", "view", "write"]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d|)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True)
class Option:
    """An option of a data source.

    Attributes:
        name: how Spark's users spell it; the case of its letters does not matter.
        argument: the argument of Python that it stands for; "" if there is none.
        scope: where it may be given, of which ``view`` means every view. The views that take it
            besides are named by ``ALLOWED`` in ``rmqstore.read.views.schema``, by its argument.
        doc: what it is, in one line that help texts show.
        more: what the manual adds to that, in Markdown.
        default: the text that counts where it is not given; None if nothing does.
        parse: returns its value, given its name and its text.
        shown: the default as the manual shows it, if that is not its text.
    """

    name: str
    argument: str
    scope: frozenset[Scope]
    doc: str
    more: str = ""
    default: str | None = None
    parse: Callable[[str, str], Any] = lambda _, text: text
    shown: str = ""

    @property
    def default_value(self) -> Any:  # noqa: ANN401 - as the parser returns it
        """The parsed default; None if there is none."""
        return None if self.default is None else self.parse(self.name, self.default)


class GivenOptions:
    """The options that a user gave, by their documented names.

    An item is the parsed value of an option, or of its default: None if it has none. ``in`` says
    whether an option was given. The first item that is asked for parses all: an option that has no
    meaning here can be refused before, whatever its value.

    Args:
        given: options as they were given, in any case of letters.
        table: the options that are known.
        ignored: lower-case names of unknown ones that are passed over.

    Raises:
        OptionError: a name is unknown; when an item is asked for: a value is out of its domain, of
            which the first one in the order of the table is named.
    """

    def __init__(
        self, given: Mapping[str, str], table: Iterable[Option], ignored: Iterable[str] = ()
    ) -> None:
        self._known = {option.name: option for option in (*PATH_OPTIONS, *table)}
        self._texts: dict[str, str] = {}  # as they were given
        names = {name.lower(): name for name in self._known}
        for key, value in given.items():
            name = names.get(key.lower())
            if name is not None:
                self._texts[name] = value
            elif key.lower() not in ignored:
                nearest = nearest_name(key, self._known)
                suggestion = f", did you mean {nearest}?" if nearest else ";"
                every = ", ".join(sorted(self._known))
                raise OptionError(f"unknown option {key!r}{suggestion} known options are: {every}")

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {
            name: option.parse(name, self._texts[name])
            for name, option in self._known.items()
            if name in self._texts
        }

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as the option's parser returns it
        return self._values[name] if name in self._values else self._known[name].default_value

    @property
    def paths(self) -> list[str]:
        """All paths that ``load`` was given."""
        return [*filter(None, [self["path"]]), *(self["paths"] or ())]

    def text(self, name: str) -> str | None:
        """Return the text of an option as it was given; None if it was not."""
        return self._texts.get(name)

    def arguments(self, names: Container[str]) -> dict[str, Any]:
        """Return a dict from argument to value, of the given options that stand for these."""
        known = {name: self._known[name].argument for name in self._values}
        return {argument: self[name] for name, argument in known.items() if argument in names}

    def refuse_contradictions(self, *scopes: Scope) -> None:
        """Refuse options that do not go together in any of these scopes.

        Raises:
            OptionError, UnsupportedFeatureError: what :data:`CONTRADICTIONS` says.
        """
        values = self._values  # a value out of its domain is refused first

        def has(name: str, value: object) -> bool:
            return name in values and (value is _GIVEN or values[name] == value)

        for rule in CONTRADICTIONS:
            if not rule.scope.issuperset(scopes):
                continue
            is_lifted = any(has(*item) for item in rule.unless.items())
            if not is_lifted and all(has(*item) for item in rule.options.items()):
                raise rule.error(rule.text)

    def outside(self, scope: Scope) -> list[Option]:
        """Return the given options that have no meaning in a scope."""
        return [option for name in self._texts if scope not in (option := self._known[name]).scope]


class OneOf:
    """Parses one of these words, whatever its case, and returns it as here.

    Attributes:
        words: the words, which an error about another one names.
    """

    def __init__(self, *words: str, refused: tuple[str, ...] = ()) -> None:
        """Take the words.

        Args:
            words: see above.
            refused: words that are known too, and refused with a reason where they are used.
        """
        self.words = words
        self._known = (*words, *refused)

    def __call__(self, name: str, text: str) -> str:
        """Return the word that a text is."""
        for word in self._known:
            if text.lower() == word.lower():
                return word
        raise OptionError(f"{name} {text!r}: must be one of {', '.join(self.words)}")


def boolean(name: str, text: str) -> bool:
    """Return whether a text says true; anything but true and false is refused."""
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name} {text.lower()!r}: must be true or false")
    return text.lower() == "true"


def column_names(_: str, text: str) -> str | tuple[str, ...]:
    """Return the names of columns, which commas separate, or ``kafka``."""
    names = tuple(name.strip() for name in text.split(","))
    return KAFKA if names[0].lower() == KAFKA and len(names) == 1 else names


def count(name: str, text: str) -> int:
    """Return a positive integer."""
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) < 1:
        raise OptionError(f"{name} {text!r}: must be a positive integer")
    return int(text)


def duration(name: str, text: str) -> float:
    """Return a duration in seconds. A number without a unit counts milliseconds, as in Spark."""
    parts = _DURATION.fullmatch(text.strip())
    if not parts:
        raise OptionError(f"{name} {text!r}: must be a duration such as 15m, 30s or 500ms")
    return int(parts[1]) * _SECONDS[parts[2].lower() or "ms"]


def size(name: str, text: str) -> int:
    """Return a size in bytes, which may be given with a unit."""
    parts = _SIZE.fullmatch(text.strip())
    if not parts or not int(parts[1]):
        raise OptionError(
            f"{name} {text!r}: must be a number of bytes, or a size with a unit such as 128m"
        )
    return int(parts[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[parts[2].lower()]


def one_or_many(name: str, text: str) -> str | list[str]:
    """Return a text as it is, or the texts of a JSON list."""
    if not text.startswith("["):
        return text
    return _texts(name, text, 'one text, or a JSON list like ["a","b"]')


def path_list(name: str, text: str) -> list[str]:
    """Return the paths of a JSON list."""
    return _texts(name, text or "[]", "a JSON list of paths")


def _texts(name: str, text: str, what: str) -> list[str]:
    reason = ""
    try:
        values = parse_json(text)
    except ValueError as err:
        values, reason = None, f" ({err})"
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise OptionError(f"{name} {text!r}: must be {what}{reason}")
    return values


def json_object(name: str, text: str) -> dict[str, str]:
    """Return the texts of a JSON object. An error does not show the text, which may be secret."""
    try:
        options = parse_json(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OptionError(f'{name}: must be a JSON object like {{"region": "x"}}, each name once')
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
        if value is not None
    }


BATCH: Final = frozenset[Scope](["batch"])
STREAM: Final = frozenset[Scope](["stream"])
READ: Final = frozenset[Scope](["batch", "stream"])
SOME_VIEWS: Final = frozenset[Scope]()
ANY_READ: Final = frozenset[Scope](["batch", "stream", "view"])
WRITE: Final = frozenset[Scope](["write"])

ANYWHERE: Final = ANY_READ | WRITE

# Spark passes them for what `load` was given; every source has them.
PATH_OPTIONS: Final = (
    Option("path", "", ANYWHERE, "what to read, or where to write"),
    Option("paths", "", ANYWHERE, "several of them, as a JSON list", parse=path_list),
)
STORAGE_OPTIONS: Final = Option(
    "storageOptions", "storage_options", ANYWHERE,
    "how to reach the file system of a URI, or running brokers",
    "a JSON object: [object storage](remote.md), [running brokers](live.md)", "{}", json_object,
    shown="none",
)  # fmt: skip

READ_OPTIONS: Final = (
    Option(
        "brokers", "brokers", ANY_READ, "stores by broker name, in place of `path`",
        "a JSON object, or a `.json` or `.toml` file: [several brokers](#several-brokers)",
    ),
    STORAGE_OPTIONS,
    Option(
        "subscribe", "subscribe", READ, "topics, separated by commas",
        "at most one of this option, `subscribePattern` and `assign`; of none, all user topics",
    ),
    Option(
        "subscribePattern", "subscribe_pattern", READ,
        "a regular expression of names of topics",
    ),
    Option("assign", "assign", READ, "queues by topic", '`{"topic":[0,1]}`'),
    Option(
        "includeSystemTopics", "include_system_topics", READ, "include system topics",
        "if no topics are selected: also retry, dead letter, schedule, light message queue and "
        "other system topics", "false", boolean,
    ),
    Option(
        "startingOffsets", "starting_offsets", READ, "the queue offsets at which to start",
        '`earliest`, `latest`, or JSON `{"topic":{"0":23,"1":-2}}`, also by broker '
        '`{"topic":{"broker":{"0":23}}}`; -2 is earliest, -1 latest; queues that are not named '
        "take the default; `group:NAME` starts at a consumer group's committed offsets",
        shown="earliest; latest in a stream",
    ),
    Option(
        "endingOffsets", "ending_offsets", READ,
        "the queue offsets at which to end, excluded", "as `startingOffsets`", shown="latest",
    ),
    Option(
        "startingTimestamp", "starting_timestamp", READ, "stored at or after this time",
        "the first message of each queue from then on; [how times are written](#times). As in "
        "Spark's Kafka source it takes precedence over times by queue, and these over offsets",
    ),
    Option(
        "endingTimestamp", "ending_timestamp", READ, "stored before this time",
        "up to the first message of each queue from then on; [times that fall](#times-that-fall)",
    ),
    Option(
        "startingOffsetsByTimestamp", "starting_offsets_by_timestamp", READ,
        "times to start at, by queue", "JSON as of `startingOffsets`, with times",
    ),
    Option(
        "endingOffsetsByTimestamp", "ending_offsets_by_timestamp", READ,
        "times to end before, by queue", "the same",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "starting_offsets_by_timestamp_strategy", READ,
        "what happens if a queue has no message at or after its start time",
        "`latest`: it starts at its end; `error`: the read fails",
        shown="latest; error in a stream",
    ),
    Option(
        "tags", "tags", READ, "messages with one of these tags: 'A || B'",
        "compared first by the hash in the queue, then exactly", shown="`*`",
    ),
    Option(
        "columns", "columns", ANY_READ, "columns, separated by commas",
        "or `kafka`: the columns of Spark's Kafka source, for "
        "[jobs that read Kafka](kafka.md#move-a-kafka-job)", None, column_names,
        shown="[all](columns.md) but `offsetMsgId` and `tagsCode`",
    ),
    Option(
        "includeHeaders", "", READ, "with `columns=kafka`: also column `headers`", "",
        "false", boolean,
    ),
    Option(
        "scan", "scan", READ, "the records of queues, or every record of the log in its order",
        "`commitlog` gives every valid record in physical order, also those whose queue is gone or "
        "never was; topics are those that records name. The log is read as it is: if no topic is "
        "selected, system topics are included whatever `includeSystemTopics` says",
        "queue", OneOf("queue", "commitlog"),
    ),
    Option(
        "minPartitions", "", ANY_READ, "the least number of tasks, about",
        "for all stores together; large ranges are cut to reach it", None, count,
    ),
    Option(
        "maxRecordsPerPartition", "", READ, "the most messages of a task", "", None, count,
    ),
    Option(
        "maxBytesPerPartition", "", ANY_READ, "the most bytes of a task, estimated",
        "small queues and small stores share a task, where each store counts for 4 MiB more than "
        "it holds; large ones are cut; the order within a queue is kept inside a task",
        "128m", size,
    ),
    Option(
        "mode", "mode", READ,
        "damaged records: an error, left out, or kept as rows",
        "`FAILFAST` raises an error with path and offset, `DROPMALFORMED` leaves the record out, "
        "`PERMISSIVE` gives a row with the columns that are known and the reason",
        "FAILFAST", OneOf("FAILFAST", "DROPMALFORMED", "PERMISSIVE"),
    ),
    Option(
        "columnNameOfCorruptRecord", "column_name_of_corrupt_record", READ,
        "the column that says what is wrong with a damaged record", "",
        "_corrupt_record",
    ),
    Option(
        "checkCRC", "check_crc", READ, "check the CRC of bodies, and of records that have one",
        "", "true", boolean,
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", READ,
        "fail if requested messages are gone, as retention deletes them",
        "`false` warns and continues with the rest", "true", boolean,
    ),
    Option(
        "brokerName", "broker_name", ANY_READ, "the name of the broker",
        "or JSON from path to name", shown="from the store",
    ),
    Option(
        "storePathCommitLog", "commitlogs", ANY_READ, "files of the log, where not in `path`",
        "several folders are separated by commas. The options `storePath…` have the names of the "
        "broker's own keys", shown="under `path`",
    ),
    Option(
        "storePathConsumeQueue", "consumequeue", ANY_READ, "the queues, where not in `path`",
        shown="under `path`",
    ),
    Option(
        "storePathIndex", "index", ANY_READ, "the index, where not in `path`",
        shown="under `path`",
    ),
    Option(
        "storePathDLedgerCommitLog", "dledger_logs", ANY_READ,
        "files of a DLedger log, where not in `path`", shown="`dledger-*/data`",
    ),
    Option(
        "dLegerSelfId", "dledger_self_id", ANY_READ,
        "the node whose DLedger log to read, if `path` has several dledger-* folders",
        shown="the only one",
    ),
    Option(
        "tiered", "tiered", ANY_READ,
        "the tiered storage with the older messages of `path` (tieredStoreFilePath)",
        "or its folder `<hash>_<cluster>/<broker>`: [tiered storage](#tiered-storage)",
    ),
    Option(
        "conf", "conf", ANY_READ,
        "the broker's properties file, which names folders, sizes and the broker",
        "`path` may be left out then, and other options take precedence; only the driver needs to "
        "see the file",
    ),
    Option(
        "ignoreLogEnd", "ignore_log_end", ANY_READ,
        "also read records after the end of a log that was not closed", "", "false", boolean,
    ),
    Option(
        "timeZone", "time_zone", ANY_READ, "the zone of times that name none",
        "such as `Asia/Shanghai`, `+08:00` or `local`: [times](#times). Spark shows times in the "
        "zone of its session", shown="UTC",
    ),
    Option(
        "view", "view", ANY_READ, "a part of the store as rows, such as queues, groups or files",
        "[views](views.md)",
        "messages",
    ),
)  # fmt: skip

LOOKUP_OPTIONS: Final = (
    Option(
        "msgKey", "msg_key", BATCH, "messages that have this key: UNIQ_KEY or a word of KEYS",
        "several as a JSON list", None, one_or_many,
    ),
    Option(
        "msgId", "msg_id", BATCH, "messages with this id, the client's or the broker's",
        "`msgId` or `offsetMsgId`; several as a JSON list", None, one_or_many,
    ),
    Option(
        "msgTags", "msg_tags", BATCH, "messages with these tags",
        "compared as a whole; several as a JSON list", None, one_or_many,
    ),
    Option(
        "indexOnly", "index_only", BATCH,
        "do not read the parts of the log that the index does not cover", "", "false", boolean,
    ),
    Option(
        "filter", "filter", READ, "SQL92 over properties",
        "as `MessageSelector.bySql` takes it: `price > 5.0 AND region IS NOT NULL`",
    ),
    Option(
        "where", "where", READ, "a condition on columns",
        "such as `queueOffset >= 90`; it leaves [parts of the store](#where-is-pushed-down) unread",
    ),
    Option(
        "includePending", "include_pending", READ, "also pending messages",
        "undecided halves of transactions, and delayed and timed messages that are not due yet; "
        "see below", "false", boolean,
    ),
)  # fmt: skip

STREAM_OPTIONS: Final = (
    Option(
        "maxOffsetsPerTrigger", "", STREAM, "the most messages of a micro-batch",
        "shared out over queues by their backlog", None, count,
    ),
    Option(
        "minOffsetsPerTrigger", "", STREAM, "the least messages that a micro-batch waits for",
        "not under `Trigger.AvailableNow`", None, count,
    ),
    Option(
        "maxTriggerDelay", "", STREAM, "the longest that a micro-batch waits for them", "", "15m",
        duration,
    ),
    Option(
        "maxBytesPerTrigger", "", STREAM, "the most stored bytes of a micro-batch",
        "such as `64m`; but at least one message", None, size,
    ),
)  # fmt: skip

VIEW_OPTIONS: Final = (
    Option(
        "consumerGroup", "consumer_group", SOME_VIEWS, "the consumer group",
        "`deadLetters` and `consumed` leave out all others",
    ),
    Option(
        "clients", "clients", SOME_VIEWS, "the ids of all clients of the group",
        "a comma list or a JSON list", None, one_or_many,
    ),
    Option(
        "strategy", "strategy", SOME_VIEWS, "how the clients share queues",
        "`AVG`, `AVG_BY_CIRCLE`, `CONSISTENT_HASH`, `MACHINE_ROOM` or `MACHINE_ROOM_NEARBY`",
        shown="AVG",
    ),
    Option(
        "rooms", "rooms", SOME_VIEWS,
        "with MACHINE_ROOM: the rooms whose brokers, ROOM@NAME, are consumed", "", None,
        one_or_many,
    ),
)  # fmt: skip

WRITE_OPTIONS: Final = (
    Option(
        "topic", "topic", WRITE, "the topic of all rows, whatever their own topic is",
        "it takes precedence over the column",
    ),
    Option(
        "queueNums", "default_queue_nums", WRITE, "queues of a new topic",
        "entered there, so that a broker serves it", None, count,
        shown="the topic's in `config/topics.json`, else 4",
    ),
    Option(
        "queueSelector", "queue_selector", WRITE,
        "how rows without a queueId are spread over the queues of their topic",
        "`roundRobin`, `hash` of `shardingKey` (rows without one in turn), or `random`. "
        "`machineRoom` is refused: RocketMQ's selector of that name selects no queue",
        "roundRobin", OneOf("roundRobin", "hash", "random", refused=("machineRoom",)),
    ),
    Option(
        "compression", "compression", WRITE,
        "how bodies of 4 KiB and more are compressed, as producers do",
        "`none`, `zlib`, `lz4` or `zstd`", "none",
        OneOf("none", "zlib", "lz4", "zstd"),
    ),
    Option(
        "compressMsgBodyOverHowmuch", "", WRITE, "the bytes from which on bodies are compressed",
        "", "4096", count,
    ),
    Option("storeHost", "", WRITE, "the broker's address in records", "", "127.0.0.1:10911"),
    Option("bornHost", "", WRITE, "the producer's address in records", shown="this host"),
    Option(
        "uniqKey", "make_uniq_key", WRITE,
        "make a new unique key for each message, or keep those that the rows have",
        "`make` gives one to rows that have none; `keep` leaves those without", "make",
        OneOf("make", "keep"),
    ),
    Option(
        "allowSystemTopics", "allow_system_topics", WRITE,
        "also append to topics that belong to the broker",
        "and others that RocketMQ forbids to send to", "false", boolean,
    ),
    *(
        Option(name, "", WRITE, what, "of a store that has no such file yet; a broker must be "
               "configured with the same", shown="RocketMQ's")
        for name, what in (
            ("mappedFileSizeCommitLog", "the bytes of each file of the log"),
            ("mappedFileSizeConsumeQueue", "the bytes of each file of a queue"),
            ("maxHashSlotNum", "the slots of each index file"),
            ("maxIndexNum", "the items of each index file"),
            ("messageIndexEnable", "whether keys are indexed"),
        )
    ),
    Option(
        "conf", "conf", WRITE,
        "the broker's properties file, which names folders, sizes and the broker",
        "also the [delay levels](install.md#settings-of-a-broker); other options take precedence",
    ),
    Option(
        "brokerVersion", "broker_version", WRITE,
        "release of the store's broker, such as 5.3.3; only needed for rows that old brokers "
        "cannot read", "[records that old brokers cannot read](#stores-of-old-brokers) are refused "
        "otherwise", shown="what the store shows",
    ),
    Option(
        "brokerStopped", "broker_stopped", WRITE,
        "no broker runs on a store that was not closed and has no lock file; brokers before 4.2 "
        "make none", "[stores of old brokers](#stores-of-old-brokers)", "false", boolean,
    ),
    Option(
        "txnAppId", "", WRITE, "the application whose versions `txnVersion` counts",
        "as in Delta",
    ),
    Option(
        "txnVersion", "", WRITE, "the version of this write",
        "one that is not above the last one of that application is skipped",
    ),
    STORAGE_OPTIONS,
)  # fmt: skip

_GIVEN: Final = object()  # any value that is given
KAFKA: Final = "kafka"  # option columns: those of Spark's Kafka source
_BY_LOG: Final = {"scan": "commitlog"}
_LOOK_UPS: Final = dict.fromkeys(("msgKey", "msgId", "msgTags"), _GIVEN)
_PENDING: Final = (
    "includePending: only a batch read by queue finds pending messages; "
    "with a stream, a look-up or scan=commitlog, read them in the topics "
    "SCHEDULE_TOPIC_XXXX, RMQ_SYS_TRANS_HALF_TOPIC and rmq_sys_wheel_timer"
)


class Contradiction(NamedTuple):
    """Options that do not go together.

    Attributes:
        options: their values by name, of which all are given.
        text: what is wrong with it.
        unless: values by option; if one of them is given, there is no contradiction.
        scope: where it is one.
        error: the class of the error.
    """

    options: Mapping[str, Any]
    text: str
    unless: Mapping[str, Any] = {}
    scope: frozenset[Scope] = READ
    error: type[RmqStoreError] = OptionError


CONTRADICTIONS: Final = (
    # What a row means must not depend on a column that Kafka's source lacks.
    Contradiction(
        {"columns": KAFKA, "mode": "PERMISSIVE"},
        "columns=kafka: no column says what is damaged; set mode to FAILFAST or DROPMALFORMED",
    ),
    Contradiction(
        {"columns": KAFKA, "includePending": True},
        "columns=kafka: no column says what is pending; leave out includePending",
    ),
    Contradiction(
        {"includeHeaders": _GIVEN},
        "includeHeaders: with columns=kafka only; column properties has them",
        unless={"columns": KAFKA},
    ),
    Contradiction(_BY_LOG | {"maxRecordsPerPartition": _GIVEN},
        "maxRecordsPerPartition: scan=commitlog cannot count records before it reads them; "
        "use maxBytesPerPartition",
    ),
    Contradiction(
        _BY_LOG, "scan=commitlog: a stream follows queues; scan the log in a batch read",
        scope=STREAM, error=UnsupportedFeatureError,
    ),
    Contradiction(
        {"includePending": True}, _PENDING, scope=STREAM, error=UnsupportedFeatureError
    ),
    *(
        Contradiction(
            {"includePending": True, name: value}, _PENDING, error=UnsupportedFeatureError
        )
        for name, value in (_BY_LOG | _LOOK_UPS).items()
    ),
)  # fmt: skip

ALL_READ_OPTIONS: Final = (*READ_OPTIONS, *LOOKUP_OPTIONS, *STREAM_OPTIONS, *VIEW_OPTIONS)
OPTION_OF_ARGUMENT: Final = {
    option.argument: option for option in (*WRITE_OPTIONS, *ALL_READ_OPTIONS) if option.argument
}
