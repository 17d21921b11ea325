"""The stores of other versions are followed under load, killed and cut: the copies are exact.

Of these versions only the store is published, which has the port for replicas. The ordinary port,
whose commands are the same in all of them, is answered for it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

import rmqstore
from following.fake_master import FakeMaster
from interop.background import BackgroundWork
from interop.conftest import JARS
from interop.rocketmq import RealStore, RocketMQ, resolve_jars, store_sizes
from interop.test_follow import Process, end_of, lose_end, require_exact, wait_for
from ports import free_ports
from rmqstore.replica.ha import NEVER
from store_builder import Store

FILE_BYTES = 1 << 20
SIZES = store_sizes(FILE_BYTES, 2000, 100, 400, haSendHeartbeatInterval=1000)
VERSIONS = ["4.9.8", "5.5.1"]
TOPIC = "Load"


class OrdinaryPort(FakeMaster):
    """Answers for a real store, which serves its replicas itself; not while there is none.

    Attributes:
        store: the store.
    """

    def __init__(self, version: str, ha_port: int, role: str) -> None:
        super().__init__(Store(segment_bytes=FILE_BYTES))
        self.version = "V" + version.replace(".", "_")
        self.settings |= {"haListenPort": str(ha_port), "brokerRole": role}
        self.store: RealStore | None = None

    def _answer_to(self, code: int, fields: dict[str, str]) -> tuple[int, bytes]:
        if self.store is None:
            raise OSError("the broker is down")
        if code != 28:
            return super()._answer_to(code, fields)
        try:
            low, high = (
                getattr(self.store.store, name)() for name in ("getMinPhyOffset", "getMaxPhyOffset")
            )
        except Py4JError as err:
            raise OSError("the broker is down") from err
        bounds = {"commitLogMinOffset": str(low), "commitLogMaxOffset": str(high)}
        return 0, json.dumps({"table": {**bounds, "brokerVersionDesc": self.version}}).encode()


class Load(BackgroundWork):
    """Messages of many sizes, put into the store."""

    def __init__(self, store: RealStore, dice: random.Random) -> None:
        super().__init__()
        self._store, self._dice, self.is_over = store, dice, False

    def step(self, number: int) -> None:
        body = self._dice.randbytes(self._dice.choice([1, 100, 1000, 5000, 100_000]))
        try:
            self._store.put(TOPIC, number % 4, body, tags="tag", keys=f"k{number}")
        except Py4JError:
            if not self.is_over:
                raise
            time.sleep(0.1)


@contextmanager
def started(version: str, home: Path) -> Iterator[RocketMQ]:
    home.mkdir()
    real = RocketMQ(version, resolve_jars(version, JARS), home)
    try:
        yield real
    finally:
        real.kill()


@contextmanager
def serving(
    real: RocketMQ, root: Path, role: str = "ASYNC_MASTER", **settings: Any
) -> Iterator[tuple[OrdinaryPort, RealStore]]:
    """Open a store that serves replicas, and answer at the ordinary port for it."""
    (ha_port,) = free_ports(1)
    with (
        OrdinaryPort(real.version, ha_port, role) as port,
        real.open(root, **SIZES, **settings, brokerRole=role, haListenPort=ha_port) as store,
    ):
        port.store = store
        yield port, store


def acknowledged(version: str, store: RealStore, end: int) -> int:
    """Return the highest offset that the store takes for acknowledged by a replica."""
    service = store.store.getHaService()
    if version >= "5":
        connections = service.getRuntimeInfo(end).getHaConnectionInfo()
        assert [each.getSlaveAckOffset() for each in connections] == [NEVER]
        assert not any(each.isInSync() for each in connections)
    return int(service.getPush2SlaveMaxOffset())


@pytest.mark.interop
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("n_lives", "n_kills"), [(2, 1), pytest.param(6, 4, marks=pytest.mark.slow)]
)
def test_a_copy_of_another_version_is_exact(
    n_lives: int, n_kills: int, version: str, tmp_path: Path
) -> None:
    dice = random.Random(n_lives)
    root, target, log = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    ha_port = free_ports(1)[0]
    end = 0
    with OrdinaryPort(version, ha_port, "ASYNC_MASTER") as port:
        follower = Process(port.address, target, log)
        try:
            for life in range(n_lives):
                is_last = life == n_lives - 1
                is_awaited = is_last or not life  # the others end under load
                with started(version, tmp_path / f"jvm-{life}") as real:
                    store = port.store = real.open(root, **SIZES, haListenPort=ha_port)
                    with Load(store, dice) as load:
                        for _ in range(n_kills):
                            time.sleep(dice.uniform(0.5, 3))
                            follower.kill()
                            follower = Process(port.address, target, log)
                        before = end_of(target)
                        wait_for(lambda before=before: end_of(target) > before)
                        if not is_awaited:
                            load.is_over = True
                            real.kill()
                    if is_awaited:
                        end = int(store.store.getMaxPhyOffset())
                        wait_for(lambda end=end: end_of(target) == end)
                    if is_last:
                        assert acknowledged(version, store, end) < end
                    port.store = None
                if not is_last:
                    lose_end(root, dice.choice([300_000, 700, 0]) if life else 300_000)
            follower.stop()
        finally:
            follower.kill()
    state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
    assert state["n_cuts"] >= 1
    require_exact(root, target, end)
    with rmqstore.open(target) as copied:
        n_rows = copied.scan(subscribe=TOPIC, columns="queueId").read_all().num_rows
    with started(version, tmp_path / "jvm-copy") as real, real.open(target, **SIZES) as own:
        assert own.store.getMaxPhyOffset() == end
        ranges = [own.queue_range(TOPIC, queue_id) for queue_id in range(4)]
        assert sum(high - low for low, high in ranges) == n_rows > 100
        if version >= "5":
            served = sum(1 for queue_id in range(4) for _ in own.records(TOPIC, queue_id))
            assert served == n_rows
