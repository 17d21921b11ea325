"""Which partitions a query reads, and where each starts and ends: values of options.

Source: ConsumerStrategy, KafkaOffsetRangeLimit and JsonUtils of Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkalog.storage.names import TopicPartition, is_internal
from pyspark_kafkalog.java_pattern import compile_java
from rmqstore.errors import OptionError
from rmqstore.query.selection import EARLIEST, LATEST
from rmqstore.query.times import parse_timestamp

_WORDS: Final = {"latest": LATEST, "earliest": EARLIEST}
_LAST_TIME: Final = (1 << 63) - 1


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
    """Where partitions start, or end. The first of timestamp, times and offsets that holds decides.

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
        """Return the offset that decides for a partition, which may be LATEST or EARLIEST."""
        return self.default if self.offsets is None else self.offsets[key]

    @property
    def named(self) -> set[TopicPartition] | None:
        """The partitions that are named; None if one value is meant for all."""
        if self.timestamp is not None:
            return None
        by_partition = self.offsets if self.times is None else self.times
        return None if by_partition is None else set(by_partition)


def parse_choice(given: Mapping[str, str]) -> Choice:
    """Parse ``assign``, ``subscribe`` or ``subscribePattern``.

    Raises:
        OptionError: none or several of them are given, or one is malformed.
    """
    names = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(names) != 1:
        stated = f"got {' and '.join(names)}" if names else "got none of them"
        raise OptionError(f"give one of assign, subscribe and subscribePattern; {stated}")
    value = given[names[0]]
    if names[0] == "assign":
        return Choice(partitions=_assigned(value))
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


def parse_limit(given: Mapping[str, str], end: str, default: int) -> OffsetLimit:
    """Parse the options of one end of a query.

    Args:
        given: options by their documented spelling.
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
    value = given.get(by_offset, "").strip()
    if value.lower() in ("", *_WORDS):
        return OffsetLimit(_WORDS.get(value.lower(), default))
    return OffsetLimit(
        default, _by_partition(by_offset, value, lambda offset: _offset(by_offset, offset))
    )


def require_span(start: OffsetLimit, end: OffsetLimit) -> None:
    """Refuse words that leave a batch nothing to read, as Spark's Kafka source does.

    Raises:
        OptionError: a batch would start at the latest offset or end at the earliest.
    """
    for name, limit, refused, word in (
        ("startingOffsets", start, LATEST, "latest"),
        ("endingOffsets", end, EARLIEST, "earliest"),
    ):
        if limit.timestamp is None and limit.times is None and limit.default == refused:
            raise OptionError(f"{name} {word}: a batch would have nothing to read")
        if refused in (limit.offsets or {}).values():
            raise OptionError(
                f"{name}: {refused} ({word}) would leave a batch nothing to read of that partition"
            )


def _assigned(value: str) -> frozenset[TopicPartition]:
    table = _table("assign", value, '{"topicA":[0,1],"topicB":[2,4]}')
    keys: set[TopicPartition] = set()
    for topic, numbers in table.items():
        if not isinstance(numbers, list):
            raise OptionError(f"assign: {topic!r} needs a list of partitions, got {numbers!r}")
        keys.update(TopicPartition(topic, _integer("assign", number)) for number in numbers)
    if not keys:
        raise OptionError("assign: names no partition")
    return frozenset(keys)


def _by_partition(
    name: str, value: str, parse: Callable[[object], int]
) -> dict[TopicPartition, int]:
    table = _table(name, value, '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}')
    parsed: dict[TopicPartition, int] = {}
    for topic, numbers in table.items():
        if not isinstance(numbers, dict):
            raise OptionError(
                f"{name}: {topic!r} needs a value for each partition; got {numbers!r}"
            )
        for number, inner in numbers.items():
            parsed[TopicPartition(topic, _integer(name, number))] = parse(inner)
    return parsed


def _table(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        table = json.loads(value)
    except (json.JSONDecodeError, RecursionError) as err:
        raise OptionError(f"{name} {value!r}: must be JSON like {example} ({err})") from err
    if not isinstance(table, dict):
        raise OptionError(f"{name} {value!r}: must be JSON like {example}")
    return table


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}", str(value).strip()):
        raise OptionError(f"{name}: {value!r} is not an integer")
    return int(str(value))


def _offset(name: str, value: object) -> int:
    offset = _integer(name, value)
    if offset < EARLIEST:
        raise OptionError(
            f"{name}: offset {offset}; -2 is the earliest, -1 the latest, others count from 0"
        )
    return offset


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
