"""Queues are given to consumers and chosen for messages as by RocketMQ's own classes."""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
import pytest

from interop.rocketmq import RocketMQ
from rmqstore.errors import OptionError
from rmqstore.query.allocation import Allocation, MessageQueue, Shares
from rmqstore.write.messages import MessageMaker, WriteSpec

pytestmark = pytest.mark.interop
N_CASES = 2000
NEARBY = "org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby"
ROOMS = ["r1", "r2", "r3", "räume"]


def case(dice: random.Random) -> tuple[list[MessageQueue], list[str]]:
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


N_ROWS = 2000


def queue_ids(selector: str, n_queues: int, keys: list[str]) -> list[int]:
    spec = WriteSpec(topic="T", default_queue_nums=n_queues, queue_selector=selector)
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * len(keys), "shardingKey": keys})
    chosen: list[int] = MessageMaker(spec).make(batch).queue_ids.tolist()
    return chosen


def queues(real: RocketMQ, count: int) -> list[object]:
    queue_class = real.rocketmq.common.message.MessageQueue
    return [queue_class("T", "broker-a", number) for number in range(count)]


@pytest.mark.parametrize("n_queues", [1, 3, 8])
def test_hash_chooses_as_the_real_selector(rocketmq: RocketMQ, n_queues: int) -> None:
    dice = random.Random(n_queues)
    letters = "abcXYZ09_äöü漢字😀"
    keys = ["".join(dice.choices(letters, k=dice.randrange(12))) for _ in range(N_ROWS // 4)]
    keys += ["", "polygenelubricants"]  # the second hashes to the least integer of Java
    selector = rocketmq.rocketmq.client.producer.selector.SelectMessageQueueByHash()
    offered = queues(rocketmq, n_queues)
    expected = [selector.select(offered, None, key).getQueueId() for key in keys]
    assert queue_ids("hash", n_queues, keys) == expected


def test_random_spreads_as_the_real_selector(rocketmq: RocketMQ) -> None:
    selector = rocketmq.rocketmq.client.producer.selector.SelectMessageQueueByRandom()
    offered = queues(rocketmq, 5)
    real = Counter(selector.select(offered, None, None).getQueueId() for _ in range(N_ROWS))
    ours = Counter(queue_ids("random", 5, ["same key"] * N_ROWS))
    for counts in (real, ours):
        assert {*counts} == {*range(5)}
        # each has a variance of 320, so six standard deviations are 107
        assert all(abs(count - N_ROWS / 5) < 110 for count in counts.values())


def test_machine_room_selects_nothing_and_is_refused(rocketmq: RocketMQ) -> None:
    selector = rocketmq.rocketmq.client.producer.selector.SelectMessageQueueByMachineRoom()
    assert selector.select(queues(rocketmq, 4), None, None) is None
    with pytest.raises(OptionError, match="selects no queue"):
        WriteSpec(queue_selector="machineRoom")
