"""A group in controller mode is followed through a switch of masters: the copy is the new log.

The stores of two versions are driven as their brokers would, without a controller. Their ordinary
port, whose commands are the same in all versions, is answered for them.
"""

from __future__ import annotations

import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from interop.rocketmq import RealStore, RocketMQ
from interop.test_follow import Process, end_of, require_exact, wait_for
from interop.test_follow_versions import FILE_BYTES, SIZES, TOPIC, Load, OrdinaryPort, started
from ports import free_ports
from rmqstore.replica.ha import NEVER, handshake_request
from rmqstore.replica.state import copy_paths, new_learner_id
from rmqstore.storage.broker.epochs import Epoch, read_epochs


class Replica:
    """A store in controller mode, in a JVM of its own, as its broker drives it."""

    def __init__(self, real: RocketMQ, root: Path, ha_port: int, replica_id: int) -> None:
        self._real, self.id, self.ha_address = real, replica_id, f"127.0.0.1:{ha_port}"
        self.store = real.open(
            root, **SIZES, haListenPort=ha_port, is_controlled=True, allAckInSyncStateSet=True
        )
        self.service = self.store.store.getHaService()
        self.service.setLocalBrokerId(replica_id)

    def lead(self, epoch: int) -> None:
        self.set_in_sync(self.id, self.id)
        assert self.service.changeToMaster(epoch)
        self.set_role("SYNC_MASTER", 0)

    def set_role(self, name: str, broker_id: int) -> None:
        self.store.store.getBrokerConfig().setBrokerId(broker_id)
        role = getattr(self._real.rocketmq.store.config.BrokerRole, name)
        self.store.store.getMessageStoreConfig().setBrokerRole(role)

    def set_in_sync(self, first: int, last: int) -> None:
        """Take the replicas from one id to another for those that are in sync."""
        java = self._real.java.util.stream
        ids = java.LongStream.rangeClosed(first, last).boxed()  # py4j would make Integer of them
        self.service.setSyncStateSet(ids.collect(java.Collectors.toSet()))

    def obey(self, master: Replica, epoch: int) -> None:
        self.set_role("SLAVE", self.id)  # with id 0 it would skip records that came in halves
        assert self.service.changeToSlave("127.0.0.1:1", epoch, self.id)
        self.service.updateHaMasterAddress(master.ha_address)

    @property
    def end(self) -> int:
        return int(self.store.store.getMaxPhyOffset())

    @property
    def epochs(self) -> list[Epoch]:
        return [
            Epoch(each.getEpoch(), each.getStartOffset()) for each in self.service.getEpochEntries()
        ]

    def in_sync(self) -> set[int]:
        return {int(each) for each in self.service.getSyncStateSet()}


class ControlledPort(OrdinaryPort):
    """Answers for the master of the group."""

    def __init__(self, version: str) -> None:
        super().__init__(version, 1, "SYNC_MASTER")
        self.settings["enableControllerMode"] = "true"

    def answer_for(self, replica: Replica | None) -> None:
        if replica is not None:
            self.settings["haListenPort"] = replica.ha_address.partition(":")[2]
        self.store = None if replica is None else replica.store


def kept_files(target: Path) -> list[Path]:
    """Return the files with what was cut: FILE.OFFSET, or FILE where it was cut at its start."""
    return sorted((target / ".rmqstore" / "cut").rglob("000*"))


def require_kept(target: Path, root: Path, start: int, end: int) -> None:
    kept = kept_files(target)
    assert kept
    for path in kept:
        name, _, offset = path.name.partition(".")
        low, data = int(offset or name), (root / "commitlog" / name).read_bytes()
        assert low == max(start, int(name))
        stop = min(end - int(name), FILE_BYTES)
        assert path.read_bytes().rstrip(b"\0") == data[low - int(name) : stop].rstrip(b"\0")
    assert int(kept[-1].name.partition(".")[0]) + FILE_BYTES >= end


def common_end(first: Path, second: Path, common: int) -> int:
    """Return where two logs part that are the same up to a physical offset.

    It is the end of that file if the next message fitted into it in neither of them.
    """
    name = f"{common - common % FILE_BYTES:020d}"
    tails = {
        (root / "commitlog" / name).read_bytes()[common - int(name) :] for root in (first, second)
    }
    return int(name) + FILE_BYTES if len(tails) == 1 else common


@pytest.mark.interop
@pytest.mark.parametrize("version", ["5.3.3", "5.5.1"])
def test_a_copy_follows_a_switch_of_masters(version: str, tmp_path: Path) -> None:
    dice = random.Random(5)
    target = tmp_path / "copy"
    ports = free_ports(3)
    with (
        ControlledPort(version) as port,
        started(version, tmp_path / "jvm-1") as first_jvm,
        started(version, tmp_path / "jvm-2") as second_jvm,
    ):
        first = Replica(first_jvm, tmp_path / "first", ports[0], 1)
        second = Replica(second_jvm, tmp_path / "second", ports[1], 2)
        first.lead(1)
        second.obey(first, 1)
        port.answer_for(first)
        with Process(port.address, target, tmp_path / "follow.log") as follower:
            with Load(first.store, dice):
                wait_for(lambda: first.in_sync() == {1, 2})
                first.set_in_sync(1, 2)  # as the controller answers
                wait_for(lambda: end_of(target) > 2 * FILE_BYTES)
            wait_for(lambda: second.end == first.end == end_of(target))
            require_learner(first)
            second.service.getHAClient().shutdown()
            first.set_in_sync(1, 1)
            common = first.end
            with Load(first.store, dice):
                wait_for(lambda: end_of(target) > common + FILE_BYTES)
            lost_end = first.end
            wait_for(lambda: end_of(target) == lost_end)
            require_learner(first)
            assert first.in_sync() == {1}
            assert read_epochs(copy_paths(target)) == first.epochs == [Epoch(1, 0)]

            port.answer_for(None)
            first_jvm.kill()
            assert second.end == common
            second.lead(2)
            port.answer_for(second)
            with Load(second.store, dice):
                wait_for(lambda: common < end_of(target) <= second.end and kept_files(target))
            end = second.end
            wait_for(lambda: end_of(target) == end)
            follower.stop()
        state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
        assert (state["mode"], state["epoch"], state["confirm_offset"]) == ("controller", 2, end)
        cut = common_end(tmp_path / "first", tmp_path / "second", common)
        assert (state["n_cuts"], state["last_cut"]) == (1, cut)
        require_kept(target, tmp_path / "first", cut, lost_end)
        require_exact(tmp_path / "second", target, end)
        require_epochs(second_jvm, target, [Epoch(1, 0), Epoch(2, common)])
        with rmqstore.open(target) as copied:
            n_rows = copied.scan(subscribe=TOPIC, columns="queueId").read_all().num_rows
        take_over(second_jvm, target, second, ports[2], n_rows)


def require_learner(master: Replica) -> None:
    """Require that one connection acknowledges nothing, and is not in sync."""
    connections = master.service.getRuntimeInfo(master.end).getHaConnectionInfo()
    learners = [each for each in connections if each.getSlaveAckOffset() == NEVER]
    assert len(learners) == 1
    assert not learners[0].isInSync()
    assert all(each > 0 for each in master.in_sync())


def require_epochs(real: RocketMQ, target: Path, epochs: list[Epoch]) -> None:
    cache = real.rocketmq.store.ha.autoswitch.EpochFileCache(str(target / "epochFileCheckpoint"))
    assert cache.initCacheFromFile()
    entries = cache.getAllEntries()
    assert [Epoch(each.getEpoch(), each.getStartOffset()) for each in entries] == epochs


def take_over(real: RocketMQ, target: Path, master: Replica, port: int, n_rows: int) -> None:
    """Open the copy as a slave of its source: it goes on where the copy ends."""
    end = master.end
    third = Replica(real, target, port, 3)
    try:
        assert third.end == end
        third.obey(master, 2)
        wait_for(lambda: 3 in master.in_sync())
        assert third.end == master.end == end
        master.store.put(TOPIC, 0, b"after", tags="tag")
        wait_for(lambda: third.end == master.end > end)
        third.store.wait()
        ranges = [third.store.queue_range(TOPIC, queue_id) for queue_id in range(4)]
        assert sum(high - low for low, high in ranges) == n_rows + 1
    finally:
        third.store.store.shutdown()


@pytest.mark.interop
def test_a_handshake_counts_for_nothing_in_default_mode(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """A wrong address of the port for replicas must not make a master believe anything."""
    (ha_port,) = free_ports(1)
    with rocketmq.open(tmp_path / "master", **SIZES, haListenPort=ha_port) as store:
        store.put(TOPIC, 0, b"body", tags="tag")
        service = store.store.getHaService()
        with socket.create_connection(("127.0.0.1", ha_port)) as connection:
            connection.sendall(handshake_request(new_learner_id()))
            wait_for(lambda: connections_of(service, store) != [])
            wait_for(lambda: connections_of(service, store)[0] < 0)
            time.sleep(0.5)
            assert connections_of(service, store)[0] < -(1 << 61)
        assert service.getPush2SlaveMaxOffset() == 0


def connections_of(service: Any, store: RealStore) -> list[int]:
    info = service.getRuntimeInfo(store.store.getMaxPhyOffset())
    return [int(each.getSlaveAckOffset()) for each in info.getHaConnectionInfo()]
