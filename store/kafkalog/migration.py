"""Chooses records of log directories, and gives them as messages that a store can append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from kafkalog.exchange import RECORDS, as_messages
from kafkalog.opening import LISTED, LogDirs
from kafkalog.partition import optional_millis
from kafkalog.scan import IsolationLevel
from kafkalog.storage.names import is_internal, numbers_by_topic
from rmqstore.errors import IllegalRowError, OptionError
from rmqstore.query.arguments import Time
from rmqstore.query.selection import match_topics, nearest_topics, parse_topics

_RENAMED, _CHOSEN = "`topic`", "`subscribe`"


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
    subscribe: str | Iterable[str] | None = None,
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
        subscribe: names and patterns of topics, as a list or joined by commas; all but Kafka's own
            if there are none.
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
    given = subscribe if isinstance(subscribe, str) else tuple(subscribe or ())
    topics = parse_topics(given) if given else ()
    names = _names_in_store(log_dirs, topics, topic, replace_dots)
    chosen = {key: part for key, part in log_dirs.partitions.items() if key.topic in names}
    start_ms = optional_millis("starting_timestamp", starting_timestamp)
    end_ms = optional_millis("ending_timestamp", ending_timestamp)
    bounds = {key: partition.offsets_between(start_ms, end_ms) for key, partition in chosen.items()}
    scan = log_dirs.scan(
        assign=numbers_by_topic(chosen),
        starting_offsets={key: start for key, (start, _) in bounds.items()},
        ending_offsets={key: end for key, (_, end) in bounds.items()},
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


def _names_in_store(
    log_dirs: LogDirs, topics: tuple[str, ...], target: str | None, replace_dots: str | None
) -> dict[str, str]:
    """Return the topics to migrate, and what they are called in the store."""
    known = log_dirs.topics()
    own = [topic for topic in known if not is_internal(topic)]
    chosen = match_topics(topics, own, include_system_topics=True) if topics else own
    missing = [topic for topic in chosen if topic not in known]
    if missing:
        nearest = nearest_topics(missing, own, listed=LISTED)
        raise OptionError(f"`subscribe`: there is no topic {missing[0]}; {nearest}")
    if target is not None:
        if len(chosen) != 1:
            raise OptionError(
                f"{_RENAMED} renames one topic, but {len(chosen)} are imported: choose one "
                f"with {_CHOSEN}"
            )
        return {chosen[0]: target}
    names = {topic: topic.replace(".", replace_dots or ".") for topic in chosen}
    dotted = [topic for topic in chosen if "." in topic]
    if replace_dots is None and dotted:
        raise OptionError(
            f"topic {dotted[0]}: RocketMQ does not allow dots in names of topics; "
            f"`replace_dots=_` puts another character in their place, {_RENAMED} renames a "
            "topic"
        )
    by_name: dict[str, str] = {}
    for topic, name in names.items():
        other = by_name.setdefault(name, topic)
        if other != topic:
            raise OptionError(f"`replace_dots`: {other} and {topic} would both be {name}")
    return names
