"""A topic that a real broker deletes and makes again: its queues count from 0 once more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from connector.engine import Engine
from connector.streams import delivered, drain
from connector.test_stream_read import EARLIEST, failure
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ
from interop.test_live_brokers import SIZES

pytestmark = pytest.mark.interop

LENIENT = {**EARLIEST, "failOnDataLoss": "false", "subscribe": "T"}


def bodies(prefix: str, count: int) -> list[bytes]:
    return [b"%s%d" % (prefix.encode(), number) for number in range(count)]


def test_all_of_the_new_topic_is_delivered_by_files_and_over_the_network(
    rocketmq: RocketMQ, tmp_path: Path, engine: Engine
) -> None:
    """The new topic has fewer messages than were delivered, as many, and more."""
    root = tmp_path / "s"
    with RealBroker(rocketmq, root, SIZES) as broker:
        sources = {"files": root, "network": f"rocketmq://{broker.namesrv_address}"}
        options = {"files": {"brokerName": "interop"}, "network": {}}
        broker.set_queues("B", 1)
        sent: list[bytes] = []
        for number, count in enumerate((20, 20, 30, 10)):
            if number:
                broker.delete_topic("T")
                broker.send("B", bodies("b", 5))
            new = bodies(f"{number}-", count)
            sent += new
            broker.set_queues("T", 1)
            broker.send("T", new)
            consumed = broker.consume("T", f"readers-{number}", count)
            assert sorted(message["body"] for message in consumed) == sorted(new)
            for name, source in sources.items():
                drained = partial(drain, engine, source, tmp_path / name, **options[name])
                if number:
                    text = failure(partial(drained, **LENIENT | {"failOnDataLoss": "true"}))
                    assert "T-0 of broker interop: delivered up to offset" in text
                drained(**LENIENT)
                rows = delivered(engine, tmp_path / name)["T", 0]
                assert sorted(body.encode() for _, body in rows) == sorted(sent)
                assert not drained(**LENIENT)
