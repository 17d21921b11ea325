"""Owners of a cluster's queues among the clients of a consumer group, with the backlog of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rmqstore.query.allocation import Allocation, Sharing
from rmqstore.query.selection import parse_selection
from rmqstore.read.views import assignments
from rmqstore.read.views.assignments import Assignment
from rmqstore.store.message_store import MessageStore


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
        stores: the stores of the brokers of a cluster. Of several stores of one broker the master's
            counts, or the one with the longest log.
        group: the consumer group, whose committed offsets count.
        clients: the ids of all its clients.
        topics: what the group subscribes to; by default the topics that it has offsets of, and its
            retry topic.
        allocation: how queues are shared; averagely by default.

    Raises:
        OptionError: there are no clients or topics, or the strategy lacks what it needs.
        UnsupportedFeatureError: tiered storage is read alone, without the offsets of groups.
    """
    for store in stores:
        store.parts.require("view assignments")
    names = (clients,) if isinstance(clients, str) else tuple(clients)
    sharing = Sharing(group, names, allocation or Allocation())
    selection = parse_selection(subscribe=topics)
    sources = [store.parts for store in stores]
    yield from assignments.assign(sources, sharing, selection)
