"""Which client of a consumer group would own which queue of a cluster, and with what backlog."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rmqstore.errors import CorruptConfigError, OptionError
from rmqstore.inspect.allocation import Allocation, MessageQueue
from rmqstore.storage.broker.config_files import integer
from rmqstore.storage.queue.bounds import total_weight
from rmqstore.store import MessageStore

_READABLE = 4  # Source: PermName.java#PERM_READ
_MAX_QUEUES = 100_000  # of a topic on one broker
_RETRY_PREFIX = "%RETRY%"


class Assignment(NamedTuple):
    """A queue, the client that would own it, and what the group has not consumed of it.

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
    """

    client_id: str | None
    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int | None
    max_offset: int
    lag: int
    lag_bytes: int


def assign(
    stores: Sequence[MessageStore],
    group: str,
    clients: Collection[str],
    *,
    topics: Iterable[str] | None = None,
    allocation: Allocation | None = None,
) -> Iterator[Assignment]:
    """Yield the queues of each topic, by client, and at last those that no client gets.

    Args:
        stores: the stores of the brokers of a cluster.
        group: the consumer group, whose committed offsets count.
        clients: the ids of all its clients.
        topics: what the group subscribes to; by default the topics that it has offsets of, and its
            retry topic.
        allocation: how queues are shared; averagely by default.

    Raises:
        OptionError: there are no clients or topics, or the strategy lacks what it needs.

    Source: RebalanceImpl.java, which shares the queues of each topic for itself.
    """
    clients = [clients] if isinstance(clients, str) else clients
    topics = [topics] if isinstance(topics, str) else topics
    by_name = {store.session.broker_name: store for store in stores}
    if len(by_name) < len(stores):
        raise OptionError(
            "stores: two of them are of one broker; give one store of each, that of the master"
        )
    offsets = {
        name: store.session.config.consumer_offsets(group) for name, store in by_name.items()
    }
    named = {*topics} if topics is not None else {key[0] for one in offsets.values() for key in one}
    routes = {name: _readable_queues(store) for name, store in by_name.items()}
    known = {topic for counts in routes.values() for topic in counts}
    if topics is None and f"{_RETRY_PREFIX}{group}" in known:
        named.add(f"{_RETRY_PREFIX}{group}")
    unknown = sorted(named - known)
    if topics is not None and unknown:
        raise OptionError(f"no broker serves {', '.join(unknown)} to consumers")
    if not named & known:
        raise OptionError(f"group {group} has no offsets of any topic: name its topics")
    for topic in sorted(named & known):
        queues = [
            MessageQueue(topic, name, queue_id)
            for name, counts in routes.items()
            for queue_id in range(counts.get(topic, 0))
        ]
        existing = {name: {*store.queue_ids(topic)} for name, store in by_name.items()}
        shares = (allocation or Allocation()).shares(queues, clients)
        owned = {queue for share in shares.values() for queue in share}
        of_nobody = [queue for queue in queues if queue not in owned]
        for client, share in [*shares.items(), (None, of_nobody)]:
            for queue in share:
                if queue.broker_name in by_name:
                    committed = offsets[queue.broker_name].get((topic, queue.queue_id))
                    exists = queue.queue_id in existing[queue.broker_name]
                    store = by_name[queue.broker_name] if exists else None
                    yield _backlog(store, queue, client, committed)


def _readable_queues(store: MessageStore) -> dict[str, int]:
    """Return the number of queues that consumers of a topic are told, by topic.

    Source: MQClientInstance.java#topicRouteData2TopicSubscribeInfo.
    """
    counts = {}
    for topic, entry in store.session.config.topic_entries().items():
        try:
            if integer(entry.get("perm", 0), 32) & _READABLE:
                counts[topic] = integer(entry.get("readQueueNums", 0), 32)
        except ValueError as err:
            raise CorruptConfigError(str(store.paths.topics_json), 0, f"{topic}: {err}") from err
        if counts.get(topic, 0) > _MAX_QUEUES:
            raise CorruptConfigError(
                str(store.paths.topics_json), 0, f"topic {topic!r} has {counts[topic]} queues"
            )
    return counts


def _backlog(
    store: MessageStore | None, queue: MessageQueue, client: str | None, committed: int | None
) -> Assignment:
    start = end = n_bytes = 0
    if store is not None:
        start, end = store.session.queue_range(queue.topic, queue.queue_id)
        first = min(max(start, committed or 0), end)
        opened = store.session.queues.open(queue.topic, queue.queue_id)
        n_bytes = total_weight(opened, first, end)
    lag = end - (start if committed is None else committed)
    return Assignment(client, *queue, committed, end, lag, n_bytes)
