"""Queues of written messages are those that RocketMQ's own selectors choose."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from interop.rocketmq import RocketMQ
from rmqstore.errors import OptionError
from rmqstore.write.messages import MessageMaker, WriteSpec

pytestmark = pytest.mark.interop
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
