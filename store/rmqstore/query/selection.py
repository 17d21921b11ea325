"""Which messages a read selects: by topic, by the bounds of queues, by keys, ids or tags.

Opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from itertools import chain
from typing import Any, Final, NamedTuple

from rmqstore.errors import OptionError, marked
from rmqstore.format.layout import MAX_PROPERTIES_BYTES
from rmqstore.format.record import parse_message_id
from rmqstore.format.topics import is_system_topic, system_topic_pattern
from rmqstore.json_text import one_value_each, parse_json
from rmqstore.query.times import optional_timestamp, parse_timestamp

_FEW_NAMES: Final = 12
_WILDCARDS: Final = frozenset("*?[")

# Source: KafkaOffsetRangeLimit, whose numbers Spark users know.
LATEST, EARLIEST = -1, -2
GROUP_PREFIX = "group:"
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_BLANKS = "".join(map(chr, range(0x21)))  # the characters that String.trim of Java takes away

BY_LOG: Final = "`scan=commitlog`"

# (broker name or None, topic, queue id)
QueueKey = tuple[str | None, str, int]
KEY_SEPARATOR: Final = " "  # of the keys of one message


def is_pattern(name: str) -> bool:
    """Return whether a name stands for all topics that match it."""
    return not _WILDCARDS.isdisjoint(name)


def match_topics(
    names: Iterable[str], known: Iterable[str], *, include_system_topics: bool
) -> tuple[str, ...]:
    """Return topics by name and by pattern, each once.

    Args:
        names: names, which are returned as they are, and patterns.
        known: the topics that there are.
        include_system_topics: whether system topics match patterns.

    Raises:
        OptionError: no topic matches a pattern.
    """
    known = list(known)
    topics: dict[str, None] = {}
    for name in names:
        if not is_pattern(name):
            topics[name] = None
            continue
        matching = [topic for topic in known if fnmatchcase(topic, name)]
        chosen = [
            topic for topic in matching if include_system_topics or not is_system_topic(topic)
        ]
        if not chosen:
            text = f"`subscribe` {name!r} matches no topic"
            if matching:
                text = (
                    f"`subscribe` {name!r} matches only system topics, which "
                    "`include_system_topics=True` lets it match"
                )
            raise OptionError(text)
        topics |= dict.fromkeys(chosen)
    return tuple(topics)


def nearest_topics(
    missing: Iterable[str], known: Collection[str], what: str = "topics", listed: str = ""
) -> str:
    """Return, in words, the topics that there are: all if they are few, else those nearest.

    Args:
        missing: names that no topic has.
        known: all topics.
        what: what the names are of.
        listed: what lists all of them, in words; by default the view of that name.
    """
    if len(known) <= _FEW_NAMES:
        return f"it has: {', '.join(sorted(known)) or 'none'}"
    near = dict.fromkeys(
        similar for name in missing for similar in get_close_matches(name, known, 5)
    )
    nearest = f"; the nearest: {', '.join(near)}" if near else ""
    listed = listed or f"the view {what.rsplit(maxsplit=1)[-1]}"
    return f"it has {len(known):,} {what}, which {listed} lists{nearest}"


def regular_expression(names: Iterable[str], *, include_system_topics: bool) -> str:
    """Return the regular expression for topics by name and by pattern, as subscribe_pattern.

    Args:
        names: names and patterns.
        include_system_topics: whether system topics match patterns.
    """
    lookahead = "" if include_system_topics else rf"(?!{system_topic_pattern()}\Z)"
    return "|".join(
        lookahead + translate(name) if is_pattern(name) else re.escape(name) for name in names
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """Where queues start, or end.

    The first of timestamp, by_timestamp, group and offsets with a value decides.
    """

    default: int = EARLIEST
    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    group: str | None = None
    timestamp: int | None = None  # ms
    by_timestamp: Mapping[QueueKey, int] = field(default_factory=dict)

    def of(
        self, broker: str, topic: str, queue_id: int, table: Mapping[QueueKey, int]
    ) -> int | None:
        """Return the entry of a table for a queue, with or without the broker's name."""
        return table.get((broker, topic, queue_id), table.get((None, topic, queue_id)))


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by name, by pattern or with queues; at most one of the three.

    Without any, all user topics.
    """

    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: Mapping[str, frozenset[int]] | None = None
    include_system_topics: bool = False
    start: Bound = field(default_factory=Bound)
    end: Bound = field(default_factory=lambda: Bound(LATEST))
    timestamp_strategy: str = "latest"

    def __post_init__(self) -> None:
        """Refuse values that contradict each other."""
        names = self._given
        if len(names) > 1:
            raise OptionError(f"{marked(names)}: give at most one of them")
        if self.timestamp_strategy not in ("latest", "error"):
            raise OptionError(
                f"`starting_offsets_by_timestamp_strategy` {self.timestamp_strategy!r}: "
                "must be latest or error"
            )
        for name, table in self.tables.items() if names else ():
            for _, topic, queue_id in table:
                if not self.chooses(topic, queue_id):
                    text = f"{topic}-{queue_id} is not read, {marked(names)} does not choose it"
                    raise OptionError(f"`{name}`: {text}")

    @property
    def _given(self) -> list[str]:
        """The arguments that choose topics or queues, of which at most one may be given."""
        names = ("subscribe", "subscribe_pattern", "assign")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def is_open(self) -> bool:
        """Whether neither topics nor a pattern are given."""
        return not self._given

    @property
    def named_topics(self) -> set[str]:
        """All topics that are named, whether to be read or in tables of offsets and times."""
        return {*(self.subscribe or ()), *self.named_queues}

    @property
    def named_queues(self) -> dict[str, set[int]]:
        """All queues that are named, whether to be read or in tables of offsets and times."""
        named = {topic: {*queue_ids} for topic, queue_ids in (self.assign or {}).items()}
        for _, topic, queue_id in chain.from_iterable(self.tables.values()):
            named.setdefault(topic, set()).add(queue_id)
        return named

    def chooses(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is chosen, whether or not it exists."""
        is_chosen = bool(choose_topics(self, [topic]))
        return is_chosen and (self.assign is None or queue_id in self.assign[topic])

    def named_brokers(self, topic: str) -> set[str]:
        """Return the brokers that tables of offsets and times name for a topic."""
        keys = chain.from_iterable(self.tables.values())
        return {broker for broker, name, _ in keys if name == topic and broker is not None}

    @property
    def tables(self) -> dict[str, Mapping[QueueKey, int]]:
        """The tables of offsets and times by queue, by the arguments that give them."""
        return {
            "starting_offsets": self.start.offsets,
            "starting_offsets_by_timestamp": self.start.by_timestamp,
            "ending_offsets": self.end.offsets,
            "ending_offsets_by_timestamp": self.end.by_timestamp,
        }

    def require_by_log(self) -> None:
        """Refuse a selection that a scan by the log cannot honour.

        Raises:
            OptionError: bounds are given by queue.
        """
        has_words = self.start.default != EARLIEST or self.end.default != LATEST
        has_group = self.start.group is not None or self.end.group is not None
        if has_words or has_group or any(self.tables.values()):
            raise OptionError(
                f"{BY_LOG} and look-ups know no queue offsets: start and end them by "
                "`starting_timestamp` and `ending_timestamp`"
            )
        if self.timestamp_strategy == "error":
            raise OptionError(
                f"`starting_offsets_by_timestamp_strategy=error`: {BY_LOG} and look-ups do "
                "not look at queues"
            )


def parse_topics(value: str | Iterable[str]) -> tuple[str, ...]:
    """Parse ``subscribe``: topics as a list, or as a comma list."""
    names = value.split(",") if isinstance(value, str) else value
    topics = [name.strip() for name in names]
    if not topics or not all(topics):
        raise OptionError(f"`subscribe` {value!r}: a comma list of topics, none of them empty")
    return tuple(dict.fromkeys(topics))


def parse_pattern(value: str) -> str:
    """Check ``subscribe_pattern``, which the whole name of a topic must match."""
    try:
        re.compile(value)
    except re.error as err:
        raise OptionError(
            f"`subscribe_pattern` {value!r} is not a regular expression: {err}"
        ) from err
    return value


def parse_assign(value: str | Mapping[str, Iterable[int]]) -> dict[str, frozenset[int]]:
    """Parse ``assign``: ``{"topic": [queue, …]}``."""
    table = json_table("assign", value, '{"topic":[0,1]}')
    queue_ids: dict[str, frozenset[int]] = {}
    for topic, queues in table.items():
        if not isinstance(queues, list | tuple | set | frozenset | range):
            raise OptionError(f"`assign`: {topic!r} needs a list of queue ids, got {queues!r}")
        queue_ids[topic] = frozenset(plain_integer("assign", queue) for queue in queues)
    return queue_ids


def parse_offsets(name: str, value: str | Mapping[str, Any], default: int) -> Bound:
    """Parse ``starting_offsets`` or ``ending_offsets``.

    Args:
        name: of the option.
        value: earliest, latest, ``group:NAME``, or offsets by topic and queue.
        default: for queues that the offsets do not name.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _WORDS:
            return Bound(_WORDS[word])
        if value.startswith(GROUP_PREFIX):
            without_offset = EARLIEST if name == "starting_offsets" else LATEST
            return Bound(without_offset, group=value.removeprefix(GROUP_PREFIX))

    def parse_offset(value: object) -> int:
        offset = plain_integer(name, value)
        if offset < EARLIEST:
            raise OptionError(
                f"`{name}`: offset {offset}; -2 is earliest, -1 latest, others count from 0"
            )
        return offset

    return Bound(default, offsets=_by_queue(name, value, "offsets", parse_offset))


def parse_timestamps(name: str, value: str | Mapping[str, Any]) -> dict[QueueKey, int]:
    """Parse ``starting_offsets_by_timestamp`` or ``ending_offsets_by_timestamp``."""
    return _by_queue(name, value, "times", lambda time: parse_timestamp(name, time))


def plain_integer(name: str, value: object) -> int:
    """Return the integer that the value of an option is, or spells."""
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}", str(value).strip()):
        raise OptionError(f"`{name}`: {value!r} is not an integer")
    return int(str(value))


def json_table(name: str, value: object, example: str) -> Mapping[str, Any]:
    """Return the table that the value of an option is, or the JSON of one; else say so."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as err:
            text = f"`{name}` {value!r}: neither a known word nor JSON like {example} ({err})"
            raise OptionError(text) from err
    if not isinstance(value, Mapping):
        raise OptionError(f"`{name}`: must be JSON like {example}, got {value!r}")
    return value


def _by_queue(name: str, value: object, what: str, parse: Any) -> dict[QueueKey, int]:  # noqa: ANN401
    """Parse ``{"topic": {"0": value}}``, or with brokers ``{"topic": {"broker": {"0": value}}}``.

    Args:
        name: of the option.
        value: the table, or its JSON.
        what: the values, for errors.
        parse: reads one value.
    """
    table = json_table(name, value, '{"topic":{"0":23,"1":-2}}')
    found: list[tuple[QueueKey, int]] = []
    for topic, queues in table.items():
        if not isinstance(queues, Mapping):
            raise OptionError(
                f"`{name}`: {topic!r} needs a table of queues and {what}, got {queues!r}"
            )
        for key, inner in queues.items():
            if isinstance(inner, Mapping):
                for queue, leaf in inner.items():
                    found.append(((str(key), topic, plain_integer(name, queue)), parse(leaf)))
            else:
                found.append(((None, topic, plain_integer(name, key)), parse(inner)))
    return one_value_each(found, f"`{name}`: ")  # queues "0" and "00" are one


def parse_tags(tags: str | None) -> frozenset[str] | None:
    """Parse a tag expression, ``A || B``; None, empty and ``*`` mean all.

    Source: FilterAPI.java.
    """
    if tags is None or tags.strip(_BLANKS) in ("", "*"):
        return None
    names = frozenset(tag.strip(_BLANKS) for tag in tags.split("||")) - {""}
    if not names:
        raise OptionError(f"`tags` {tags!r}: must be tags separated by ||, or *")
    return names


# Names that people give to what another name means here, without underscores.
_MEANT: Final = {
    "topic": "subscribe",
    "topics": "subscribe",
    "group": "consumergroup",
    "key": "msgkey",
    "keys": "msgkey",
    "tag": "tags",
    "begin": "startingtimestamp",
    "end": "endingtimestamp",
    "offset": "startingoffsets",
}


def nearest_name(name: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known name that an unknown one may have been meant to be, None if none is near.

    Args:
        name: the unknown name.
        known: the names that there are.
        alike: how alike two names must be, of 1.
    """
    by_letters = {other.replace("_", "").lower(): other for other in known}
    letters = name.replace("_", "").lower()
    meant = _MEANT.get(letters)
    near = [meant] if meant in by_letters else get_close_matches(letters, by_letters, 1, alike)
    return by_letters[near[0]] if near else None


def require_arguments(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown names of arguments, such as ``msgKey`` for ``msg_key``.

    Raises:
        OptionError: a name is unknown; the error suggests the one that may have been meant.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            nearest = nearest_name(name, known)
            hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(known)}"
            raise OptionError(f"unknown argument {name}: {hint}")


def parse_selection(
    *,
    subscribe: str | Iterable[str] | None = None,
    subscribe_pattern: str | None = None,
    assign: str | Mapping[str, Iterable[int]] | None = None,
    include_system_topics: bool = False,
    starting_offsets: str | Mapping[str, Any] | None = None,
    ending_offsets: str | Mapping[str, Any] = "latest",
    starting_timestamp: int | str | datetime | None = None,
    ending_timestamp: int | str | datetime | None = None,
    starting_offsets_by_timestamp: str | Mapping[str, Any] | None = None,
    ending_offsets_by_timestamp: str | Mapping[str, Any] | None = None,
    starting_offsets_by_timestamp_strategy: str | None = None,
    streaming: bool = False,
) -> Selection:
    """Parse the options that choose topics and bounds, given as text or as plain Python values.

    Args:
        streaming: whether this is for a stream. By default a stream starts at the latest messages,
            and a start time after them is an error, as in Spark's Kafka source. A stream has no
            end.

    Raises:
        OptionError: a value is out of its domain, or two contradict each other.
    """
    default = LATEST if streaming else EARLIEST
    start = Bound(default)
    if starting_offsets is not None:
        start = parse_offsets("starting_offsets", starting_offsets, default)
    end = parse_offsets("ending_offsets", ending_offsets, LATEST)
    if not streaming:
        _require_span(start, end)
    elif (
        end != Bound(LATEST)
        or ending_timestamp is not None
        or ending_offsets_by_timestamp is not None
    ):
        raise OptionError(
            "`ending_offsets` and `ending_timestamp` and `ending_offsets_by_timestamp`: a "
            "stream has no end"
        )
    start_time = optional_timestamp("starting_timestamp", starting_timestamp)
    end_time = optional_timestamp("ending_timestamp", ending_timestamp)
    by_start = parse_timestamps(
        "starting_offsets_by_timestamp", starting_offsets_by_timestamp or {}
    )
    by_end = parse_timestamps("ending_offsets_by_timestamp", ending_offsets_by_timestamp or {})
    strategy = starting_offsets_by_timestamp_strategy or ("error" if streaming else "latest")
    return Selection(
        subscribe=None if subscribe is None else parse_topics(subscribe),
        subscribe_pattern=None if subscribe_pattern is None else parse_pattern(subscribe_pattern),
        assign=None if assign is None else parse_assign(assign),
        include_system_topics=include_system_topics,
        start=replace(start, timestamp=start_time, by_timestamp=by_start),
        end=replace(end, timestamp=end_time, by_timestamp=by_end),
        timestamp_strategy=strategy.lower(),
    )


def _require_span(start: Bound, end: Bound) -> None:
    """Refuse bounds that leave a batch nothing to read."""
    of_nothing = (
        ("starting_offsets", start, LATEST, "latest"),
        ("ending_offsets", end, EARLIEST, "earliest"),
    )
    for name, bound, offset, word in of_nothing:
        if bound.default == offset:
            raise OptionError(
                f"`{name}={word}`: a batch read would have nothing to read; name offsets or a time"
            )
        if offset in bound.offsets.values():
            raise OptionError(
                f"`{name}`: {offset} ({word}) would leave a batch read nothing of that queue"
            )


def require_named(
    selection: Selection,
    known_of_each: Iterable[Mapping[str, set[int]]],
    where: str,
    listed: str = "",
) -> None:
    """Refuse a selection of topics or queues that no store has.

    Args:
        selection: the selection to check.
        known_of_each: of each store, the queues of each existing topic.
        where: name of the store or stores, for the error.
        listed: what lists all topics; see :func:`nearest_topics`.

    Raises:
        OptionError: a topic or queue does not exist; the error names those that do.
    """
    known: dict[str, set[int]] = {}
    for of_store in known_of_each:
        for topic, queue_ids in of_store.items():
            known.setdefault(topic, set()).update(queue_ids)
    missing = sorted(selection.named_topics - set(known))
    if missing:
        existing = nearest_topics(missing, known, listed=listed)
        raise OptionError(f"no topic {', '.join(missing)} in {where}; {existing}")
    for topic, queues in selection.named_queues.items():
        missing_ids = sorted(queues - known[topic])
        if missing_ids:
            existing_ids = sorted(known[topic])
            raise OptionError(
                f"topic {topic} has no queue {missing_ids} in {where}; it has {existing_ids}"
            )


def concerns(named: Selection | None, topics: Mapping[str, object]) -> bool:
    """Return whether a store with these topics has one that is named; True if none is named."""
    return named is None or bool(named.named_topics & topics.keys())


def choose_topics(selection: Selection, known: list[str]) -> list[str]:
    """Return the known topics that a selection chooses, in the given order."""
    named = selection.assign if selection.subscribe is None else selection.subscribe
    if named is not None:
        return [topic for topic in known if topic in named]
    if selection.subscribe_pattern is not None:
        pattern = re.compile(selection.subscribe_pattern)
        return [topic for topic in known if pattern.fullmatch(topic)]
    return [
        topic for topic in known if selection.include_system_topics or not is_system_topic(topic)
    ]


class LookupKeys(NamedTuple):
    """What a look-up searches for: messages with one of the keys, of the ids or of the tags."""

    keys: frozenset[str] = frozenset()  # whole UNIQ_KEYs, or words of KEYS
    msg_ids: frozenset[str] = frozenset()  # as columns msgId or offsetMsgId have them
    tags: frozenset[str] = frozenset()  # as column tags has them

    def __bool__(self) -> bool:
        return bool(self.keys or self.msg_ids or self.tags)


NO_LOOKUP_KEYS: Final = LookupKeys()


def parse_lookup_keys(
    msg_key: str | Sequence[str] | None = None,
    msg_id: str | Sequence[str] | None = None,
    msg_tags: str | Sequence[str] | None = None,
) -> LookupKeys:
    """Check the keys, the ids or the tags of a look-up, one or several.

    Raises:
        OptionError: two kinds are given, or one that no message can have.
    """
    given = {"msg_key": msg_key, "msg_id": msg_id, "msg_tags": msg_tags}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise OptionError(f"{marked(named)}: give one of them")
    keys, ids, tags = (
        (value,) if isinstance(value, str) else tuple(value or ()) for value in given.values()
    )
    if named and not (keys or ids or tags):
        raise OptionError(f"`{named[0]}`: name at least one")
    for key in keys:
        if not key or KEY_SEPARATOR in key:
            raise OptionError(
                f"`msg_key` {key!r}: a key must not be empty or hold a blank; give each key "
                "by itself"
            )
    for name, texts, what in (("msg_id", ids, "an id"), ("msg_tags", tags, "tags")):
        if not all(texts):
            raise OptionError(f"`{name}`: {what} must not be empty")
    for text in (*keys, *ids, *tags):
        _require_storable(named[0], text)
    # RocketMQ writes these in upper case.
    offset_ids = (message_id.upper() for message_id in ids if is_offset_id(message_id))
    return LookupKeys(frozenset(keys), frozenset((*ids, *offset_ids)), frozenset(tags))


def _require_storable(name: str, text: str) -> None:
    """Refuse a key or an id that no record can hold.

    Raises:
        OptionError: it is too long or cannot be encoded.
    """
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise OptionError(f"`{name}` {text!r} cannot be encoded in UTF-8") from err
    if n_bytes > MAX_PROPERTIES_BYTES:
        raise OptionError(
            f"`{name}`: {len(text)} characters; the properties of a message take "
            f"{MAX_PROPERTIES_BYTES}"
        )


def is_offset_id(text: str) -> bool:
    """Return whether an id has the form of an offset message id."""
    try:
        parse_message_id(text)
    except OptionError:
        return False
    return True
