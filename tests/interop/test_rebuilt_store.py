"""The real RocketMQ serves a queue that was rebuilt around a record with a wrong queue id."""

from __future__ import annotations

import pytest

import goldens
import rmqstore
from interop.rocketmq import RocketMQ
from write.test_rebuild_damaged import QUEUE_ID, change, middle_of


@pytest.mark.interop
def test_the_real_store_serves_every_other_message_of_a_queue_with_a_gap(
    rocketmq: RocketMQ, copied: goldens.Golden
) -> None:
    root = copied("basic")
    sizes = goldens.sizes("basic")
    row = middle_of("basic", "TopicB")
    change(root, row["physicalOffset"], QUEUE_ID, (90).to_bytes(4))
    with rmqstore.open(root, mode="a") as writer:
        assert len(writer.rebuild()) == 1
    expected = [one["queueOffset"] for one in goldens.queues("basic")["TopicB", row["queueId"]]]
    gap = expected.index(row["queueOffset"])
    with rocketmq.open(root, **sizes) as real:
        served = [message["queueOffset"] for message in real.messages("TopicB", row["queueId"])]
        assert served == [*expected[:gap], expected[gap + 1], *expected[gap + 1 :]]
        assert real.queue_range("TopicB", 90)[1] == row["queueOffset"] + 1
        assert real.put("TopicB", row["queueId"], b"next", keys="k").getLogicsOffset() == len(
            expected
        )
