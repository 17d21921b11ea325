"""Views ``queues`` and ``topics``: the number, the size and the store times of their messages."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from rmqstore.errors import CorruptQueueError, RmqStoreError, UnsupportedFeatureError
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.format.topics import is_system_topic
from rmqstore.query.selection import choose_topics
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.parts import RowsPart, rows_part
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.spans import QueueKey
from rmqstore.storage.broker.topic_table import topic_entry
from rmqstore.storage.files.paths import MAX_QUEUE_ID, can_name_queues

logger = logging.getLogger(__name__)

_QUEUES_A_PART = 512
_OPEN_COST = 256 << 10  # bytes that could be read while the files of a queue are opened

T = TypeVar("T")


class QueueRow(NamedTuple):
    """What is known of a queue.

    Unknown values are None, with a reason. Times in ms, ``max_offset`` excluded.
    """

    min_offset: int | None = None
    max_offset: int | None = None
    n_bytes: int | None = None
    first_store_timestamp: int | None = None
    last_store_timestamp: int | None = None
    reason: str | None = None
    messages: int | None = None


def chosen_topics(source: StoreParts, spec: ViewSpec, *, known: bool = False) -> list[str]:
    """Return the topics of the selection that have queues.

    With ``known`` they include those of ``config/topics.json``.
    """
    topics = set(source.store_queues.topics())
    if known:
        configured = {*source.config.topics()}
        if not spec.selection.include_system_topics:
            named = spec.selection.named_topics
            configured -= broker_topics(source) - topics - named
        topics |= configured
    warn_of_rocksdb(source, spec)
    return choose_topics(spec.selection, sorted(topics))


def broker_topics(source: StoreParts) -> set[str]:
    """Return the topics that a broker makes for itself and for its cluster, named as these are.

    Source: TopicConfigManager.java#init.
    """
    try:
        identity = source.config.identity()
    except RmqStoreError:
        return set()
    return {name for name in (identity.name, identity.cluster) if name}


def warn_of_rocksdb(source: StoreParts, spec: ViewSpec) -> None:
    """Log a warning if queues of the selection lie in RocksDB, and cannot be read."""
    try:
        source.ranges.require_queues(spec.selection, tolerant=True)
    except UnsupportedFeatureError as err:
        logger.warning("%s", err)


def existing_ids(source: StoreParts, topic: str) -> set[int]:
    """Return the ids of the queues of a topic; none if no folder can have the name of the topic."""
    return {*source.store_queues.ids(topic)} if can_name_queues(topic) else set()


def queue_ids(
    source: StoreParts, spec: ViewSpec, topic: str, known: Iterable[int] | None = None
) -> list[int]:
    """Return the queues of a topic that a selection names, sorted.

    Args:
        source: the store of the view.
        spec: the view, with the selection.
        topic: topic name.
        known: the queues that there are; by default those of the store.
    """
    existing = set(source.store_queues.ids(topic) if known is None else known)
    assigned = (spec.selection.assign or {}).get(topic)
    return sorted(
        queue_id
        for queue_id in existing
        if queue_id <= MAX_QUEUE_ID and (assigned is None or queue_id in assigned)
    )


def queue_facts(source: StoreParts, topic: str, queue_id: int, *, with_bytes: bool) -> QueueRow:
    """Return what is known of a queue.

    What cannot be read is left out, with the reason; nothing is raised.

    Args:
        with_bytes: whether to add up the sizes of the records, for which all units are read.
    """
    queues = source.store_queues
    stored: list[int | None] = []
    reason = None
    try:
        start, end = queues.range(topic, queue_id)
        facts = QueueRow(start, end, 0 if with_bytes else None, messages=0)
        if start >= end:
            return facts
        try:
            for part in queues.parts(topic, queue_id):
                part.slices((topic, queue_id), part.start, part.end, tolerant=False)
            facts = facts._replace(messages=queues.n_messages(topic, queue_id, start, end))
            if with_bytes:
                facts = facts._replace(n_bytes=queues.n_bytes(topic, queue_id, start, end))
        except CorruptQueueError as err:  # how many messages were in the missing files is not known
            reason = str(err)
            facts = facts._replace(messages=None, n_bytes=None)
        for queue_offset in (start, end - 1):
            try:
                stored.append(queues.stored_at(topic, queue_id, queue_offset))
            except RmqStoreError as err:
                stored.append(None)
                reason = reason or f"queue offset {queue_offset}: {err}"
    except (RmqStoreError, OSError) as err:
        logger.warning("%s-%d: %s", topic, queue_id, err)
        return QueueRow(reason=str(err))
    return facts._replace(
        first_store_timestamp=stored[0], last_store_timestamp=stored[1], reason=reason
    )


def plan_queue_rows(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[RowsPart]:
    """Return the queues in groups of about equal work."""
    queues = {
        (topic, queue_id): ((topic, queue_id),)
        for topic in chosen_topics(source, spec)
        for queue_id in queue_ids(source, spec, topic)
    }
    groups = _grouped(source, queues, limits)
    return [rows_part(source, queue_rows, keys, keys, len(keys) * _OPEN_COST) for keys in groups]


def plan_topic_rows(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[RowsPart]:
    """Return the topics in groups of about equal work."""
    queues: dict[str, tuple[QueueKey, ...]] = {}
    for topic in chosen_topics(source, spec, known=True):
        queues[topic] = tuple((topic, queue_id) for queue_id in queue_ids(source, spec, topic))
    parts = []
    for topics in _grouped(source, queues, limits):
        keys = [key for topic in topics for key in queues[topic]]
        parts.append(rows_part(source, topic_rows, topics, keys, len(keys) * _OPEN_COST))
    return parts


def _grouped(
    source: StoreParts, queues: Mapping[T, tuple[QueueKey, ...]], limits: Limits
) -> Iterator[list[T]]:
    """Yield groups of neighbours with about equal sizes of queue files, and not too many queues."""
    weights: dict[T, int] = {}
    for name, keys in queues.items():
        # The bytes of the units are estimated without a look into the files.
        weights[name] = len(keys) * QUEUE_UNIT.itemsize
        for key in keys:
            with suppress(RmqStoreError):
                weights[name] += source.store_queues.n_unit_bytes(*key)
    goal = limits.target(sum(weights.values()))
    group: list[T] = []
    n_bytes = n_queues = 0
    for name, keys in queues.items():
        if group and (n_bytes + weights[name] > goal or n_queues + len(keys) > _QUEUES_A_PART):
            yield group
            group = []
            n_bytes = n_queues = 0
        group.append(name)
        n_bytes += weights[name]
        n_queues += len(keys)
    if group:
        yield group


def queue_rows(source: StoreParts, spec: ViewSpec, keys: Sequence[QueueKey]) -> Iterator[Row]:
    """Yield one row for each queue."""
    with_bytes = "bytes" in spec.schema.names
    for topic, queue_id in keys:
        facts = queue_facts(source, topic, queue_id, with_bytes=with_bytes)
        yield {
            "topic": topic,
            "queueId": queue_id,
            "minOffset": facts.min_offset,
            "maxOffset": facts.max_offset,
            "messages": facts.messages,
            "bytes": facts.n_bytes,
            "firstStoreTimestamp": facts.first_store_timestamp,
            "lastStoreTimestamp": facts.last_store_timestamp,
            "reason": facts.reason,
        }


def topic_rows(source: StoreParts, spec: ViewSpec, topics: Sequence[str]) -> Iterator[Row]:
    """Yield one row for each topic."""
    entries: Mapping[str, Mapping[str, Any]] = {}
    fault = None
    try:
        entries = source.config.topic_entries()
    except RmqStoreError as err:
        logger.warning("%s", err)
        fault = str(err)
    own_topics = broker_topics(source)
    for topic in topics:
        row: dict[str, object] = {"reason": fault or "config/topics.json has no entry for it"}
        if topic in entries:
            try:
                entry = topic_entry(entries[topic])
                row = {
                    "readQueueNums": entry.read_queue_nums,
                    "writeQueueNums": entry.write_queue_nums,
                    "perm": entry.perm,
                }
            except ValueError as err:
                row = {"reason": f"its entry in config/topics.json: {err}"}
        yield row | _topic(source, spec, topic, own_topics)


def _topic(
    source: StoreParts,
    spec: ViewSpec,
    topic: str,
    own_topics: Container[str],
) -> dict[str, object]:
    with_bytes = "bytes" in spec.schema.names
    ids = queue_ids(source, spec, topic)
    facts = [queue_facts(source, topic, queue_id, with_bytes=with_bytes) for queue_id in ids]
    reason = next((queue.reason for queue in facts if queue.reason), None)
    firsts = (queue.first_store_timestamp for queue in facts)
    lasts = (queue.last_store_timestamp for queue in facts)
    is_countable = all(queue.messages is not None for queue in facts)
    if source.ends.are_queues_unread:
        reason = "its queues lie in RocksDB"
        is_countable = False
    columns: dict[str, object] = {
        "topic": topic,
        "isSystem": is_system_topic(topic) or (not ids and topic in own_topics),
        "queues": len(facts),
        "firstStoreTimestamp": min((time for time in firsts if time is not None), default=None),
        "lastStoreTimestamp": max((time for time in lasts if time is not None), default=None),
    }
    if is_countable:
        columns["messages"] = sum(queue.messages or 0 for queue in facts)
        columns["bytes"] = sum(queue.n_bytes or 0 for queue in facts)
    return columns if reason is None else columns | {"reason": reason}
