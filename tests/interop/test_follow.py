"""A real broker under load is followed; both are killed again and again: the copy is exact."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from py4j.protocol import Py4JError

import rmqstore
from interop.background import BackgroundWork
from interop.broker import RealBroker
from interop.conftest import JARS
from interop.rocketmq import RocketMQ, resolve_jars, store_sizes
from ports import free_ports
from rmqstore.inspect.verify import verify
from written import require_valid

SIZES = store_sizes(1 << 20, 20_000, 1000, 4000, haSendHeartbeatInterval=1000)
BATCH = 100  # small messages that are sent by one call, some thousand of them a second
TOPIC = "Load"
FILE_BYTES = SIZES["mappedFileSizeCommitLog"]


class Load(BackgroundWork):
    def __init__(self, namesrv_address: str, real: RocketMQ, dice: random.Random) -> None:
        super().__init__()
        self._real, self._dice, self.is_over = real, dice, False
        self._producer = real.rocketmq.client.producer.DefaultMQProducer("load")
        self._producer.setNamesrvAddr(namesrv_address)
        self._producer.start()
        self._message = real.rocketmq.common.message.Message
        self._batch = real.java.util.ArrayList()
        for number in range(BATCH):
            self._batch.add(self._message(TOPIC, "tag", f"b{number}", dice.randbytes(100)))

    def step(self, number: int) -> None:
        body = self._dice.randbytes(self._dice.choice([1, 100, 1000, 5000, 100_000]))
        try:
            self._producer.send(self._message(TOPIC, "tag", f"k{number}", body))
            self._producer.send(self._batch)
        except Py4JError:
            if not self.is_over:
                raise
            time.sleep(0.1)


class Process:
    def __init__(self, address: str, target: Path, log: Path, *options: str) -> None:
        self._log = log.open("ab")
        command = [sys.executable, "-m", "rmqstore", "follow", address, str(target), *options]
        self._process = subprocess.Popen(
            [*command, "--tables-interval", "1"], stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._log.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(60)

    def stop(self) -> None:
        """End it as systemd does; it has to end by itself."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 128 + signal.SIGTERM
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    """Return what starts a follower of a broker, whose copy is ``copy``."""
    started: list[Process] = []

    def start_one(address: str) -> Process:
        started.append(Process(address, tmp_path / "copy", tmp_path / "follow.log"))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def wait_for(is_so: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


def end_of(target: Path) -> int:
    try:
        state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
    except FileNotFoundError:
        return 0
    return min(int(state["end"]), int(state["built"]))


def topics_of(target: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads((target / "config" / "topics.json").read_bytes())
    except FileNotFoundError:
        return {}
    topics: dict[str, Any] = table["topicConfigTable"]
    return topics


@contextmanager
def broker_of(home: Path, root: Path, ports: list[int]) -> Iterator[tuple[RocketMQ, RealBroker]]:
    """Start a broker in a JVM of its own, which the test may kill."""
    home.mkdir()
    real = RocketMQ("5.3.3", resolve_jars("5.3.3", JARS), home)
    try:
        broker = RealBroker(real, root, SIZES, ports)
        broker.set_queues(TOPIC, 4)
        yield real, broker
    finally:
        real.kill()


def lose_end(root: Path, count: int) -> None:
    """Clear the last bytes of a log, as a power cut may, of the last file that has any."""
    for path in sorted((root / "commitlog").iterdir(), reverse=True):
        data = path.read_bytes()
        written = len(data.rstrip(b"\0"))
        if written:
            with path.open("r+b") as file:
                file.seek(max(written - count, 0))
                file.write(bytes(min(count, written)))
            return


def require_exact(root: Path, target: Path, end: int) -> None:
    """Require that the copy has the bytes of the broker's log, and that all follows from it."""
    for path in sorted((root / "commitlog").iterdir()):
        start = int(path.name)
        if start < end:
            size = min(end - start, FILE_BYTES)
            copied = (target / "commitlog" / path.name).read_bytes()
            assert copied[:size] == path.read_bytes()[:size], path.name
            assert not copied[size:].strip(b"\0")
            assert len(copied) == FILE_BYTES
    require_valid(target)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("n_lives", "n_kills"), [(2, 2), pytest.param(6, 4, marks=pytest.mark.slow)]
)
def test_a_copy_is_exact_whoever_is_killed(
    n_lives: int, n_kills: int, rocketmq: RocketMQ, start: Callable[[str], Process], tmp_path: Path
) -> None:
    dice = random.Random(n_lives)
    root, target, ports = tmp_path / "master", tmp_path / "copy", free_ports(3)
    address = f"127.0.0.1:{ports[1]}"
    follower = start(address)
    for life in range(n_lives):
        with broker_of(tmp_path / f"jvm-{life}", root, ports) as (real, broker):
            # The others end under load.
            is_awaited = life in (0, n_lives - 1)
            with Load(broker.namesrv_address, real, dice) as load:
                for _ in range(n_kills):
                    time.sleep(dice.uniform(0.5, 3))
                    follower.kill()
                    follower = start(address)
                before = end_of(target)
                wait_for(lambda before=before: end_of(target) > before)
                if not is_awaited:
                    load.is_over = True
                    real.kill()
            if is_awaited:
                end = int(broker.controller.getMessageStore().getMaxPhyOffset())
                wait_for(lambda end=end: end_of(target) == end)
            if life == n_lives - 1:
                wait_for(lambda: TOPIC in topics_of(target))
        if life < n_lives - 1:
            lose_end(root, dice.choice([200_000, 700, 0]) if life else 200_000)
    follower.stop()
    state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
    assert state["n_cuts"] >= 1
    require_exact(root, target, end)
    sizes: dict[str, Any] = {
        name: value for name, value in SIZES.items() if name != "haSendHeartbeatInterval"
    }
    with rmqstore.open(target) as store:
        rows = store.scan(subscribe=TOPIC, columns="queueId").read_all()
    with rocketmq.open(target, **sizes) as opened:
        opened.wait()
        assert opened.store.getMaxPhyOffset() == end
        ranges = [opened.queue_range(TOPIC, queue_id) for queue_id in range(4)]
    assert sum(high - low for low, high in ranges) == len(rows) > 10 * BATCH
    assert TOPIC in topics_of(target)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "commitlog").glob("0*"))


@pytest.mark.interop
@pytest.mark.usefixtures("rocketmq")
def test_a_broker_is_found_by_its_name_server_and_its_retention_is_mirrored(tmp_path: Path) -> None:
    root, target, ports = tmp_path / "master", tmp_path / "copies", free_ports(3)
    names_of_all = f"--namesrv=127.0.0.1:1;127.0.0.1:{ports[0]}"  # in place of an address
    options = ["--cluster", "DefaultCluster", "--json", "--retain", "mirror"]
    copy = target / "interop"
    with (
        broker_of(tmp_path / "jvm", root, ports) as (real, broker),
        Process(names_of_all, target, tmp_path / "follow.log", *options) as follower,
    ):
        with Load(broker.namesrv_address, real, random.Random(5)):
            wait_for(lambda: end_of(copy) > 4 << 20)
        store_of_broker = broker.controller.getMessageStore()
        end = int(store_of_broker.getMaxPhyOffset())
        wait_for(lambda: end_of(copy) == end)
        assert names(copy)[0] == f"{0:020d}"
        assert broker.expire(3) == 3
        # The broker may delete more by itself, on a disk that is nearly full.
        wait_for(lambda: int(names(copy)[0]) == int(store_of_broker.getMinPhyOffset()) > 0)
        follower.stop()
    first = names(copy)[0]
    state, is_running = rmqstore.follow_cluster_status(target)["interop"]
    assert (state.begin, state.end, is_running, state.is_closed) == (int(first), end, False, True)
    with rmqstore.open(copy) as store:
        assert list(verify(store)) == []
        assert store.scan(subscribe=TOPIC, columns="queueId").read_all().num_rows > 0
