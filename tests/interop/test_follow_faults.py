"""A real broker and its follower hang, lose ends and die, and a stream reads the copy meanwhile."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

import rmqstore
from interop.background import BackgroundWork
from interop.broker import RealBroker
from interop.power_cut import Query
from interop.rocketmq import RocketMQ
from interop.test_follow import (
    FILE_BYTES,
    TOPIC,
    Load,
    Process,
    broker_of,
    end_of,
    require_exact,
    start,
    wait_for,
)
from ports import free_ports

pytestmark = pytest.mark.interop

__all__ = ["start"]  # a fixture

LONGER_THAN_HOUSEKEEPING = 25.0  # seconds; a broker closes a connection that is silent for 20


def end_of_broker(broker: RealBroker) -> int:
    return int(broker.controller.getMessageStore().getMaxPhyOffset())


@contextmanager
def hung(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    send(signal.SIGSTOP)
    try:
        time.sleep(LONGER_THAN_HOUSEKEEPING)
        yield
    finally:
        send(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.usefixtures("rocketmq")
def test_either_side_may_hang(start: Callable[[str], Process], tmp_path: Path) -> None:
    root, target, ports = tmp_path / "master", tmp_path / "copy", free_ports(3)
    follower = start(f"127.0.0.1:{ports[1]}")
    with broker_of(tmp_path / "jvm", root, ports) as (real, broker):
        with Load(broker.namesrv_address, real, random.Random(1)) as load:
            wait_for(lambda: end_of(target) > FILE_BYTES)
            with hung(follower.signal):
                pass
            before = end_of_broker(broker)
            wait_for(lambda: end_of(target) > before)
            load.is_over = True  # sends time out
            with hung(real.signal):
                pass
            before = end_of_broker(broker)
            wait_for(lambda: end_of(target) > before)
        end = end_of_broker(broker)
        wait_for(lambda: end_of(target) == end)
        follower.stop()
    require_exact(root, target, end)


def lose(root: Path, count: int) -> int:
    """Take the last bytes of a log away, as a power cut may; return where it ends then at most."""
    files = sorted((root / "commitlog").iterdir())
    written = [path for path in files if path.read_bytes().strip(b"\0")]
    last = written[-1]
    end = int(last.name) + len(last.read_bytes().rstrip(b"\0")) - count
    for path in files:
        first = end - int(path.name)
        if first <= 0:
            path.unlink()
        elif first < FILE_BYTES:
            with path.open("r+b") as file:
                file.seek(first)
                file.write(bytes(FILE_BYTES - first))
    return end


@pytest.mark.slow
@pytest.mark.usefixtures("rocketmq")
def test_a_lost_end_may_be_longer_than_what_is_compared(
    start: Callable[[str], Process], tmp_path: Path
) -> None:
    root, target, ports = tmp_path / "master", tmp_path / "copy", free_ports(3)
    address = f"127.0.0.1:{ports[1]}"
    follower = start(address)
    with broker_of(tmp_path / "jvm-1", root, ports) as (real, broker):
        with Load(broker.namesrv_address, real, random.Random(1)) as load:
            wait_for(lambda: end_of(target) > 20 * FILE_BYTES)
            load.is_over = True
            real.kill()
        follower.kill()
    before = {path.name: path.read_bytes() for path in (target / "commitlog").iterdir()}
    common = lose(root, 12 * FILE_BYTES)
    with broker_of(tmp_path / "jvm-2", root, ports) as (real, broker):
        with Load(broker.namesrv_address, real, random.Random(2)):
            wait_for(lambda: end_of_broker(broker) > common + 15 * FILE_BYTES)
        end = end_of_broker(broker)
        follower = start(address)
        wait_for(lambda: end_of(target) == end)
        follower.stop()
    state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
    assert state["n_cuts"] == 1
    assert state["last_cut_bytes"] > 8 << 20
    assert state["last_cut"] <= common
    require_exact(root, target, end)
    for path in Path(state["last_cut_kept"]).iterdir():
        name, _, offset = path.name.partition(".")
        kept, first = path.read_bytes(), int(offset or name) - int(name)
        assert kept.rstrip(b"\0") == before[name][first:].rstrip(b"\0")


class Numbers(BackgroundWork):
    """Messages that say their number; whether one whose send failed is there is not known."""

    def __init__(self, namesrv_address: str, real: RocketMQ, first: int) -> None:
        super().__init__()
        self.first, self.is_over = first, False
        self._message = real.rocketmq.common.message.Message
        self._producer = real.rocketmq.client.producer.DefaultMQProducer("numbers")
        self._producer.setNamesrvAddr(namesrv_address)
        self._producer.start()
        self.next = first

    def step(self, number: int) -> None:
        self.next = self.first + number + 1
        try:
            self._producer.send(self._message(TOPIC, b"%06d.x" % (self.first + number)))
        except Py4JError:
            if not self.is_over:
                raise
            time.sleep(0.1)


class Reading(BackgroundWork):
    """Micro-batches, some of which die, over a copy."""

    def __init__(self, query: Query) -> None:
        super().__init__()
        self.query = query

    def step(self, number: int) -> None:  # noqa: ARG002
        self.query.trigger(may_die=0.1)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("rocketmq")
@pytest.mark.parametrize("seed", [4, 5])
def test_a_stream_over_the_copy_gets_each_message_once_and_in_order(
    seed: int, start: Callable[[str], Process], tmp_path: Path
) -> None:
    dice = random.Random(seed)
    root, target, ports = tmp_path / "master", tmp_path / "copy", free_ports(3)
    address, first = f"127.0.0.1:{ports[1]}", 0
    follower = start(address)
    with ExitStack() as stack:
        query: Query | None = None
        for life in range(3):
            with broker_of(tmp_path / f"jvm-{life}", root, ports) as (real, broker):
                with Numbers(broker.namesrv_address, real, first) as load:
                    wait_for(lambda: end_of(target) > 0)
                    if query is None:
                        query = Query(target, {"subscribe": TOPIC}, dice)
                        stack.enter_context(Reading(query))
                    for _ in range(3):
                        time.sleep(dice.uniform(0.5, 2))
                        follower.kill()
                        follower = start(address)
                    if life < 2:
                        load.is_over = True
                        real.kill()
                first = load.next
                if life == 2:
                    end = end_of_broker(broker)
                    wait_for(lambda end=end: end_of(target) == end)
    assert query is not None
    follower.stop()
    query.drain(200)
    with rmqstore.open(root, broker_name="b") as store:
        rows = store.scan(subscribe=TOPIC, columns="queueId,body").read_all().to_pylist()
    queue_of = {row["body"].decode()[:6]: row["queueId"] for row in rows}
    assert len(queue_of) == len(rows) > 100
    assert sorted(query.delivered) == sorted(queue_of)
    for queue_id in range(4):
        numbers = [number for number in query.delivered if queue_of[number] == queue_id]
        assert numbers == sorted(numbers)
