"""View ``assignments``: the client of a group that would own each queue, and the backlog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rmqstore.errors import CorruptConfigError, OptionError, RmqStoreError
from rmqstore.format.topics import RETRY_PREFIX
from rmqstore.query.allocation import MessageQueue, Sharing
from rmqstore.query.selection import Selection, choose_topics, nearest_topics
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.queues import existing_ids
from rmqstore.read.views.routes import READABLE
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.stores import brokers_of
from rmqstore.storage.broker.config_files import OFFSETS, TOPICS, warn_if_unknown, why_unknown
from rmqstore.storage.broker.topic_table import topic_entry

_MAX_QUEUES: Final = 100_000  # of a topic on one broker


class Assignment(NamedTuple):
    """A queue, the client that would own it, and the group's backlog in it.

    Attributes:
        client_id: the client; None if the strategy gives the queue to nobody.
        topic: the topic.
        broker_name: the broker that has the queue.
        queue_id: the id of the queue.
        consumer_offset: the offset that the group has committed; None if there is none.
        max_offset: the queue offset after the last message.
        lag: the messages from the committed offset on, from the first one without it; negative if
            the group is ahead of the queue.
        lag_bytes: their bytes.
        reason: why the backlog is not known, if it is not.
    """

    client_id: str | None
    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int | None
    max_offset: int | None
    lag: int | None
    lag_bytes: int | None
    reason: str | None = None


def assignment_rows(sources: Sequence[StoreParts], spec: ViewSpec) -> Iterator[Row]:
    """Return a row for each queue; see :func:`assign`."""
    sharing = spec.sharing
    assert sharing is not None, "the view has its arguments"
    return (
        {
            "brokerName": row.broker_name,
            "consumerGroup": sharing.group,
            "clientId": row.client_id,
            "topic": row.topic,
            "queueId": row.queue_id,
            "consumerOffset": row.consumer_offset,
            "brokerOffset": row.max_offset,
            "lag": row.lag,
            "lagBytes": row.lag_bytes,
            "reason": row.reason,
        }
        for row in assign(sources, sharing, spec.selection)
    )


def assign(
    sources: Sequence[StoreParts], sharing: Sharing, selection: Selection
) -> Iterator[Assignment]:
    """Yield the queues of each topic, by client, and at last those that no client gets.

    Args:
        sources: the stores of the brokers of a cluster.
        sharing: the group, its clients and their strategy.
        selection: what the group subscribes to; if it names no topics, these are the topics that
            the group has offsets of, and its retry topic.

    Raises:
        OptionError: no broker serves a topic, or the stores of one broker are not its replicas.
        CorruptConfigError: the offsets or the topics of a broker cannot be read.

    Source: RebalanceImpl.java, which shares the queues of each topic for itself.
    """
    brokers = brokers_of(sources)
    for broker in brokers:
        broker.require_valid()
    by_name = {broker.name: broker.chosen.source for broker in brokers}
    offsets = {
        name: store.config.consumer_offsets(sharing.group) for name, store in by_name.items()
    }
    counts = {name: _readable_queues(source) for name, source in by_name.items()}
    known = sorted({topic for numbers in counts.values() for topic in numbers})
    consumed = {topic for committed in offsets.values() for topic, _ in committed}
    groups = {group for store in by_name.values() for group in store.config.groups()}
    without_offsets = {name: why_unknown(store.paths, OFFSETS) for name, store in by_name.items()}
    without_topics = [warn_if_unknown(store.paths, TOPICS) for store in by_name.values()]
    unknown = [reason for reason in (*without_topics, *without_offsets.values()) if reason]
    for topic in _subscribed(sharing.group, selection, known, consumed, groups, unknown):
        queues = [
            MessageQueue(topic, name, queue_id)
            for name, numbers in counts.items()
            for queue_id in range(numbers.get(topic, 0))
        ]
        existing = {name: existing_ids(source, topic) for name, source in by_name.items()}
        shares = sharing.allocation.shares(queues, sharing.clients)
        owned = {queue for share in shares.values() for queue in share}
        of_nobody = [queue for queue in queues if queue not in owned]
        for client, share in [*shares.items(), (None, of_nobody)]:
            for queue in share:
                # CONFIG gives a client all of its queues, whichever topic is shared.
                if queue.topic == topic and queue.broker_name in by_name:
                    committed = offsets[queue.broker_name].get((topic, queue.queue_id))
                    exists = queue.queue_id in existing[queue.broker_name]
                    source = by_name[queue.broker_name] if exists else None
                    backlog = _backlog(source, queue, client, committed)
                    reason = without_offsets[queue.broker_name]
                    if reason is not None:
                        reason = backlog.reason or reason
                        backlog = backlog._replace(lag=None, lag_bytes=None, reason=reason)
                    yield backlog


def _subscribed(
    group: str,
    selection: Selection,
    known: Sequence[str],
    consumed: Collection[str],
    groups: Collection[str],
    unknown: Sequence[str],
) -> list[str]:
    """Return the served topics that a group subscribes to; ``unknown`` goes into its errors."""
    reasons = "".join(f"; {reason}" for reason in unknown)
    if selection.subscribe is None and selection.subscribe_pattern is None:
        topics = {topic for topic in known if topic in consumed}
        topics |= {f"{RETRY_PREFIX}{group}"} & {*known}
        if not topics:
            near = nearest_topics([group], groups, "groups")
            raise OptionError(
                f"group {group} has no offsets of any topic: name its topics, or another group "
                f"of consumerOffset.json: {near}{reasons}"
            )
        return sorted(topics)
    unserved = sorted({*(selection.subscribe or ())} - {*known})
    if unserved:
        raise OptionError(f"no broker serves {', '.join(unserved)} to consumers{reasons}")
    return choose_topics(selection, [*known])


def _readable_queues(source: StoreParts) -> Mapping[str, int]:
    """Return the number of queues that consumers of a topic learn of, by topic.

    Source: MQClientInstance.java#topicRouteData2TopicSubscribeInfo.
    """
    counts = {}
    path = str(source.paths.topics_json)
    for topic, stored in source.config.topic_entries().items():
        try:
            entry = topic_entry(stored)
        except ValueError as err:
            raise CorruptConfigError(path, 0, f"{topic}: {err}") from err
        if entry.perm & READABLE:
            counts[topic] = entry.read_queue_nums
        if counts.get(topic, 0) > _MAX_QUEUES:
            raise CorruptConfigError(path, 0, f"topic {topic!r} has {counts[topic]} queues")
    return counts


def _backlog(
    source: StoreParts | None, queue: MessageQueue, client: str | None, committed: int | None
) -> Assignment:
    if source is None:
        return Assignment(client, *queue, committed, 0, -(committed or 0), 0)
    try:
        start, end = source.store_queues.range(queue.topic, queue.queue_id)
        first = min(max(start, committed or 0), end)
        n_bytes = source.store_queues.n_bytes(queue.topic, queue.queue_id, first, end)
    except (RmqStoreError, OSError) as err:
        return Assignment(client, *queue, committed, None, None, None, str(err))
    lag = end - (start if committed is None else committed)
    return Assignment(client, *queue, committed, end, lag, n_bytes)
