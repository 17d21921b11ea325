"""The owner of each queue among the clients of a consumer group, by RocketMQ's strategies.

Every client computes its own share of the queues, from the same sorted lists of queues and clients.
Here the shares of all clients are computed together.

Source: AllocateMessageQueueStrategy.java and its implementations, RebalanceImpl.java.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rmqstore.errors import OptionError

_VIRTUAL_NODES = 10  # of a client on the ring of hashes
_PARTS_OF_A_NAME = 2


class MessageQueue(NamedTuple):
    """A queue of a cluster. Its order is that of RocketMQ. Source: MessageQueue.java#compareTo."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return the queue as Java prints it, for its hash."""
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )


Shares = dict[str, list[MessageQueue]]


def averagely(queues: Sequence[MessageQueue], clients: Sequence[str]) -> Shares:
    """Give each client a run of queues; the first clients get one more if there is a rest.

    Source: AllocateMessageQueueAveragely.java.
    """
    size, rest = divmod(len(queues), len(clients))
    shares, start = {}, 0
    for number, client in enumerate(clients):
        end = start + size + (number < rest)
        shares[client] = [*queues[start:end]]
        start = end
    return shares


def averagely_by_circle(queues: Sequence[MessageQueue], clients: Sequence[str]) -> Shares:
    """Deal the queues out one by one. Source: AllocateMessageQueueAveragelyByCircle.java."""
    n_clients = len(clients)
    return {client: [*queues[number::n_clients]] for number, client in enumerate(clients)}


def consistent_hash(queues: Sequence[MessageQueue], clients: Sequence[str]) -> Shares:
    """Give each queue to the client that follows it on a ring of hashes.

    Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java.
    """
    owners: dict[int, str] = {}
    for client in clients:
        for number in range(_VIRTUAL_NODES):
            owners[_hash(f"{client}-{number}")] = client
    ring = sorted(owners)
    shares: Shares = {client: [] for client in clients}
    for queue in queues:
        position = bisect_left(ring, _hash(str(queue)))
        shares[owners[ring[position % len(ring)]]].append(queue)
    return shares


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def by_machine_room(
    queues: Sequence[MessageQueue], clients: Sequence[str], rooms: Collection[str]
) -> Shares:
    """Give each client a part of the queues of brokers named ``ROOM@NAME``, of some rooms only.

    Source: AllocateMessageQueueByMachineRoom.java.
    """
    chosen = [queue for queue in queues if _room_of_broker(queue.broker_name) in rooms]
    size, rest = divmod(len(chosen), len(clients))
    shares = {}
    for number, client in enumerate(clients):
        share = chosen[size * number : size * (number + 1)]
        shares[client] = share + chosen[size * len(clients) :][number : number + (number < rest)]
    return shares


def _room_of_broker(broker_name: str) -> str | None:
    """Return a broker's room by its name, None if the name has none.

    Source: Java's String.split, which leaves out empty parts at the end.
    """
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == _PARTS_OF_A_NAME else None


def machine_room_nearby(queues: Sequence[MessageQueue], clients: Sequence[str]) -> Shares:
    """Give queues to clients in the same room as their broker, or to all if no client is there.

    The queues of each room are shared averagely.

    Source: AllocateMachineRoomNearby.java.
    """
    queues_of: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        queues_of.setdefault(_room(queue.broker_name), []).append(queue)
    clients_of: dict[str, list[str]] = {}
    for client in clients:
        clients_of.setdefault(_room(client), []).append(client)
    shares: Shares = {client: [] for client in clients}
    near = sorted(queues_of, key=lambda room: (room not in clients_of, _utf16(room)))
    for room in near:
        for client, share in averagely(queues_of[room], clients_of.get(room, clients)).items():
            shares[client] += share
    return shares


def _utf16(text: str) -> bytes:
    """Return what Java compares texts by."""
    return text.encode("utf-16-be", "surrogatepass")


STRATEGIES: Final = (
    "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY"
)  # fmt: skip


class Allocation(NamedTuple):
    """How the queues of a group are shared.

    Attributes:
        strategy: the name of a strategy, as RocketMQ's ``getName`` has it.
        rooms: for MACHINE_ROOM: those whose brokers' queues are consumed; a broker is named
            ``ROOM@NAME``.
        configured: for CONFIG: the queues of each client.

    With MACHINE_ROOM_NEARBY, the part of a name before the first ``@`` is where that broker or
    client stands.
    """

    strategy: str = "AVG"
    rooms: frozenset[str] = frozenset()
    configured: Mapping[str, Sequence[MessageQueue]] | None = None

    def shares(self, queues: Collection[MessageQueue], clients: Collection[str]) -> Shares:
        """Return the queues of each client.

        Raises:
            OptionError: there are no clients, or the strategy lacks what it needs.
        """
        if not clients:
            raise OptionError("`clients`: name at least one client of the group")
        in_order = sorted(queues, key=lambda queue: (_utf16(queue[0]), _utf16(queue[1]), queue[2]))
        names = sorted(set(clients), key=_utf16)
        match self.strategy:
            case "AVG":
                return averagely(in_order, names)
            case "AVG_BY_CIRCLE":
                return averagely_by_circle(in_order, names)
            case "CONSISTENT_HASH":
                return consistent_hash(in_order, names)
            case "CONFIG":
                if self.configured is None:
                    raise OptionError("`strategy` CONFIG: give the queues of each client")
                return {name: [*self.configured.get(name, ())] for name in names}
            case "MACHINE_ROOM":
                if not self.rooms:
                    raise OptionError(
                        "`strategy=MACHINE_ROOM`: name those that are consumed, with `rooms`"
                    )
                return by_machine_room(in_order, names, self.rooms)
            case "MACHINE_ROOM_NEARBY":
                return machine_room_nearby(in_order, names)
        raise OptionError(f"`strategy` {self.strategy!r}: must be one of {', '.join(STRATEGIES)}")


def _room(name: str) -> str:
    room, separator, _ = name.partition("@")
    if not separator or not room:
        raise OptionError(
            f"`strategy` MACHINE_ROOM_NEARBY: {name!r} does not name its room, as ROOM@NAME does"
        )
    return room


class Sharing(NamedTuple):
    """A consumer group whose queues are shared.

    Attributes:
        group: the consumer group.
        clients: the ids of all its clients.
        allocation: how queues are shared.
    """

    group: str
    clients: tuple[str, ...]
    allocation: Allocation = Allocation()


def parse_sharing(
    group: str,
    clients: str | Iterable[str],
    strategy: str = "AVG",
    rooms: str | Iterable[str] | None = None,
) -> Sharing:
    """Return how the queues of a group are to be shared.

    Args:
        group: the consumer group.
        clients: the ids of all its clients, as a list or separated by commas.
        strategy: the name of a strategy, in any case.
        rooms: for MACHINE_ROOM: those whose brokers' queues are consumed.

    Raises:
        OptionError: there are no clients, or the strategy is unknown or lacks what it needs.
    """
    if not group:
        raise OptionError("`consumer_group`: name the consumer group")
    named = _names(clients)
    allocation = Allocation(strategy.upper(), frozenset(_names(rooms or ())))
    allocation.shares((), named)  # refuses what it lacks
    return Sharing(group, named, allocation)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names if name.strip())
