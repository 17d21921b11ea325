"""Shares of queues equal those of RocketMQ's own strategies, in random cases."""

from __future__ import annotations

import json
import random

import pytest

from interop.rocketmq import RocketMQ
from rmqstore.query.allocation import Allocation, MessageQueue, Shares

pytestmark = pytest.mark.interop
N_CASES = 2000
NEARBY = "org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby"
ROOMS = ["r1", "r2", "r3", "räume"]


def case(dice: random.Random) -> tuple[list[MessageQueue], list[str]]:
    """Return queues and clients, whose names have a room; sorted as Java sorts them."""
    brokers = dice.sample([f"{room}@b{number}" for room in ROOMS for number in range(3)], 3)
    queues = [
        MessageQueue("Topic", broker, queue_id)
        for broker in brokers
        for queue_id in range(dice.randrange(9))
    ] or [MessageQueue("Topic", brokers[0], 0)]
    names = [f"{dice.choice(ROOMS)}@10.0.0.{number}#{dice.random()}" for number in range(12)]
    return queues, sorted(dice.sample(names, dice.randrange(1, 12)))


class Java:
    def __init__(self, real: RocketMQ) -> None:
        self.real = real
        self.package = real.rocketmq.client.consumer.rebalance
        self._queue_class = real.java.lang.Class.forName(
            "org.apache.rocketmq.common.message.MessageQueue"
        )

    def shares(self, strategy: object, queues: list[MessageQueue], clients: list[str]) -> Shares:
        json_class, sort = self.real.json_class(), self.real.java.util.Collections.sort
        as_json = [
            {"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id}
            for one in queues
        ]
        every = json_class.parseArray(json.dumps(as_json), self._queue_class)
        names = json_class.parseArray(json.dumps(clients))
        sort(every)
        sort(names)
        shares = self.real.java.util.ArrayList()
        for client in clients:
            shares.add(strategy.allocate("group", client, every, names))  # type: ignore[attr-defined]
        found = json.loads(json_class.toJSONString(shares))
        return {
            client: [MessageQueue(one["topic"], one["brokerName"], one["queueId"]) for one in share]
            for client, share in zip(clients, found, strict=True)
        }


@pytest.fixture
def java(rocketmq: RocketMQ) -> Java:
    return Java(rocketmq)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("AVG", "AllocateMessageQueueAveragely"),
        ("AVG_BY_CIRCLE", "AllocateMessageQueueAveragelyByCircle"),
        ("CONSISTENT_HASH", "AllocateMessageQueueConsistentHash"),
        ("MACHINE_ROOM", "AllocateMessageQueueByMachineRoom"),
    ],
)
def test_shares_are_those_of_the_real_strategy(java: Java, strategy: str, name: str) -> None:
    real = getattr(java.package, name)()
    rooms = frozenset[str]()
    if strategy == "MACHINE_ROOM":
        rooms = frozenset({"r1", "räume"})
        real.setConsumeridcs(set(rooms))
    assert real.getName() == strategy
    dice = random.Random(strategy)
    for _ in range(N_CASES):
        queues, clients = case(dice)
        ours = Allocation(strategy, rooms).shares(queues, clients)
        assert ours == java.shares(real, queues, clients)


class Resolver:
    """A MachineRoomResolver, which Java calls."""

    def brokerDeployIn(self, queue: object) -> str:  # noqa: N802
        return queue.getBrokerName().partition("@")[0]  # type: ignore[attr-defined,no-any-return]

    def consumerDeployIn(self, client: str) -> str:  # noqa: N802
        return client.partition("@")[0]

    class Java:
        implements = (NEARBY + "$MachineRoomResolver",)


def test_queues_go_to_clients_in_the_room_of_their_broker(java: Java) -> None:
    with java.real.callbacks():
        real = java.package.AllocateMachineRoomNearby(
            java.package.AllocateMessageQueueAveragely(), Resolver()
        )
        assert real.getName() == "MACHINE_ROOM_NEARBY-AVG"
        dice = random.Random(5)
        for _ in range(N_CASES // 4):
            queues, clients = case(dice)
            ours = Allocation("MACHINE_ROOM_NEARBY").shares(queues, clients)
            assert ours == java.shares(real, queues, clients)
