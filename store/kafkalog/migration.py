"""Chooses records of log directories, and gives them as messages that a store can append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from kafkalog.exchange import RECORDS, as_messages
from kafkalog.opening import LogDirs
from kafkalog.read.scan import IsolationLevel
from kafkalog.storage.names import is_internal
from rmqstore.errors import Argument, IllegalRowError, OptionError, Text, about
from rmqstore.query.selection import match_topics, nearest_topics
from rmqstore.query.times import parse_timestamp

Time = str | float | datetime
_RENAMED, _CHOSEN = Argument("topic"), Argument("topics")


@dataclass(frozen=True, slots=True)
class MigratedRecords:
    """Records of log directories as messages.

    Attributes:
        queue_nums: the number of queues by topic, one for each partition.
        count: of offsets, which are as many as records, or more.
        batches: the messages, partition by partition.
    """

    queue_nums: dict[str, int]
    count: int
    batches: Iterator[pa.RecordBatch]


def migrate(
    log_dirs: LogDirs,
    topics: Iterable[str] = (),
    *,
    topic: str | None = None,
    replace_dots: str | None = None,
    isolation_level: IsolationLevel = "read_committed",
    starting_timestamp: Time | None = None,
    ending_timestamp: Time | None = None,
    note: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> MigratedRecords:
    """Return records of log directories as messages.

    Args:
        log_dirs: of one broker.
        topics: names and patterns; all but Kafka's own if there are none.
        topic: the name of the only topic in the store; None keeps names.
        replace_dots: what stands for a dot in names of topics.
        isolation_level: as of ``LogDirs.scan``.
        starting_timestamp: the time to start at, as of ``rmqstore.open(path).scan``: epoch ms,
            ISO-8601, an age such as ``-1h``, or a datetime.
        ending_timestamp: the time to end at.
        note: called with the records of a batch, of one partition, before their messages are given.

    The batches raise IllegalRowError where a time is not in the years 1 to 9999; rows are counted
    over all of them.

    Raises:
        OptionError: a topic does not exist, two would get the same name, RocketMQ does not allow a
            name, or a time is not one.
        CorruptBatchError: the batch that a time leads to is damaged.
    """
    names = _names_in_store(log_dirs, tuple(topics), topic, replace_dots)
    chosen = {key: part for key, part in log_dirs.partitions.items() if key.topic in names}
    start_ms = _millis("starting_timestamp", starting_timestamp)
    end_ms = _millis("ending_timestamp", ending_timestamp)
    bounds = {key: partition.offsets_between(start_ms, end_ms) for key, partition in chosen.items()}
    scan = log_dirs.scan(
        list(names),
        start_offsets={key: start for key, (start, _) in bounds.items()},
        end_offsets={key: end for key, (_, end) in bounds.items()},
        columns=[*RECORDS.names, "offset"],
        isolation_level=isolation_level,
    )
    return MigratedRecords(
        {
            name: max(key.partition for key in chosen if key.topic == each) + 1
            for each, name in names.items()
        },
        sum(max(end - start, 0) for start, end in bounds.values()),
        _messages(scan, names, note),
    )


def _messages(
    batches: Iterable[pa.RecordBatch],
    names: dict[str, str],
    note: Callable[[pa.RecordBatch], None],
) -> Iterator[pa.RecordBatch]:
    n_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        note(batch)
        try:
            messages = as_messages(batch.select(RECORDS.names))
        except IllegalRowError as err:
            raise IllegalRowError(n_rows + err.row, err.reason) from err
        n_rows += len(messages)
        topic = messages.column("topic")  # the same in all rows
        name = pa.scalar(names[topic[0].as_py()], topic.type)
        at = messages.schema.get_field_index("topic")
        yield messages.set_column(at, "topic", pa.repeat(name, len(messages)))


def _millis(name: str, time: Time | None) -> int | None:
    return None if time is None else parse_timestamp(name, time)


def _names_in_store(
    log_dirs: LogDirs, topics: tuple[str, ...], target: str | None, replace_dots: str | None
) -> dict[str, str]:
    """Return the topics to migrate, and what they are called in the store."""
    own = [topic for topic in log_dirs.topics if not is_internal(topic)]
    chosen = match_topics(topics, own, include_system_topics=True) if topics else own
    missing = [topic for topic in chosen if topic not in log_dirs.topics]
    if missing:
        text = f": there is no topic {missing[0]}; {nearest_topics(missing, own)}"
        raise OptionError(about("topics", text))
    if target is not None:
        if len(chosen) != 1:
            raise OptionError(
                Text(
                    _RENAMED,
                    f" renames one topic, but {len(chosen)} are imported: choose one with ",
                    _CHOSEN,
                )
            )
        return {chosen[0]: target}
    names = {topic: topic.replace(".", replace_dots or ".") for topic in chosen}
    dotted = [topic for topic in chosen if "." in topic]
    if replace_dots is None and dotted:
        raise OptionError(
            Text(
                f"topic {dotted[0]}: RocketMQ does not allow dots in names of topics; ",
                Argument("replace_dots", "_"),
                " puts another character in their place, ",
                _RENAMED,
                " renames a topic",
            )
        )
    by_name: dict[str, str] = {}
    for topic, name in names.items():
        other = by_name.setdefault(name, topic)
        if other != topic:
            raise OptionError(about("replace_dots", f": {other} and {topic} would both be {name}"))
    return names
