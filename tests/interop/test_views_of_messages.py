"""A real broker and real clients leave traces and dead letters, which the views must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmqstore
from following.followers import wait_for
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ
from reading import Row, rows

pytestmark = pytest.mark.interop

SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
N_SENT, GROUP = 5, "interop-dead"


def traces(root: Path) -> list[Row]:
    with rmqstore.open(root) as store:
        return rows(store.view("traces"))


@pytest.fixture(scope="module")
def left(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Let a traced producer send, and a consumer send all back; return the store and the ids."""
    root: Path = tmp_path_factory.mktemp("broker") / "store"
    client = rocketmq.rocketmq.client
    with RealBroker(rocketmq, root, SIZES) as broker:
        for topic in ("Traced", "RMQ_SYS_TRACE_TOPIC"):
            broker.set_queues(topic, 1)
        producer = client.producer.DefaultMQProducer("interop-traced", True, None)
        producer.setNamesrvAddr(broker.namesrv_address)
        producer.start()
        message = rocketmq.rocketmq.common.message.Message
        results = [
            producer.send(message("Traced", "TagA", f"key-{number}", b"x" * (number + 1)))
            for number in range(N_SENT)
        ]
        # A producer that is shut down sends the traces that it has, for half a second at most.
        wait_for(lambda: len(traces(root)) == N_SENT)
        producer.shutdown()
        consumer = client.consumer.DefaultMQPullConsumer(GROUP)
        consumer.setNamesrvAddr(broker.namesrv_address)
        consumer.start()
        (queue,) = consumer.fetchSubscribeMessageQueues("Traced")
        for one in consumer.pull(queue, "*", 0, 32).getMsgFoundList():
            consumer.sendMessageBack(one, -1)  # no retry: a dead letter at once
        consumer.shutdown()
        return {
            "root": root,
            "ids": [result.getMsgId() for result in results],
            "offset_ids": [result.getOffsetMsgId() for result in results],
        }


def test_traces_are_those_of_the_sends(left: dict[str, Any]) -> None:
    found = traces(left["root"])
    assert [row["msgId"] for row in found] == left["ids"]
    assert [row["offsetMsgId"] for row in found] == left["offset_ids"]
    for number, row in enumerate(found):
        assert row["reason"] is None
        assert (row["traceType"], row["topic"], row["groupName"]) == (
            "Pub", "Traced", "interop-traced",
        )  # fmt: skip
        assert (row["tags"], row["keys"]) == ("TagA", f"key-{number}")
        assert (row["bodySize"], row["isSuccess"], row["msgType"]) == (
            number + 1, True, "Normal_Msg",
        )  # fmt: skip
        assert row["costMillis"] >= 0
        assert row["timestamp"].timestamp() * 1000 <= row["storeTimestamp"]


def test_dead_letters_lead_to_what_was_sent(left: dict[str, Any]) -> None:
    with rmqstore.open(left["root"]) as store:
        found = rows(store.view("deadLetters"))
    assert [row["msgId"] for row in found] == left["ids"]
    assert [row["originMsgId"] for row in found] == left["offset_ids"]
    assert {(row["consumerGroup"], row["kind"], row["originTopic"]) for row in found} == {
        (GROUP, "deadLetter", "Traced")
    }
    assert {row["reconsumeTimes"] for row in found} == {1}
