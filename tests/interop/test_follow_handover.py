"""A real broker takes over on the copy of another: its consumers and producers go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ, store_sizes
from ports import free_ports

SIZES = store_sizes(1 << 16, 2000, 100, 400, haSendHeartbeatInterval=500)
TOPIC, KNOWN, NEW = "Orders", "known-group", "new-group"


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number * 50 for number in range(first, first + count)]


@contextmanager
def broker_on(real: RocketMQ, root: Path) -> Iterator[RealBroker]:
    """Start a broker that gets the name server's answers for the topic."""
    with RealBroker(real, root, SIZES, free_ports(3)) as broker:
        broker.set_queues(TOPIC, 4)
        yield broker


def received(broker: RealBroker, group: str, count: int) -> list[bytes]:
    return sorted(message["body"] for message in broker.consume(TOPIC, group, count))


def copy_of(broker: RealBroker, target: Path, **options: Any) -> None:
    """Copy a broker until all of its log is there."""
    end = int(broker.controller.getMessageStore().getMaxPhyOffset())
    for _ in range(20):  # it goes on where it ended
        if rmqstore.follow(broker.address, target, once=True, **options).end == end:
            return
        time.sleep(1)
    raise AssertionError("the copy does not reach the end")


@pytest.mark.interop
@pytest.mark.parametrize("build_queues", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_broker_on_the_copy_goes_on(
    build_queues: bool, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    first, second, third = bodies(0, 600), bodies(600, 50), bodies(650, 25)
    with broker_on(rocketmq, tmp_path / "master") as broker:
        broker.send(TOPIC, first)
        assert received(broker, KNOWN, len(first)) == first
        broker.controller.getConsumerOffsetManager().persist()
        broker.send(TOPIC, second)
        copy_of(broker, tmp_path / "copy", build_queues=build_queues)
    with broker_on(rocketmq, tmp_path / "copy") as broker:
        broker.send(TOPIC, third)
        assert received(broker, KNOWN, len(second + third)) == second + third
        assert received(broker, NEW, len(first + second + third)) == first + second + third
    with rmqstore.open(tmp_path / "copy") as store:
        rows = store.scan(subscribe=TOPIC, columns="body").read_all()
        assert sorted(rows.column(0).to_pylist()) == first + second + third
