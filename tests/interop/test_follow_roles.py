"""Masters of other kinds are followed: with queues in RocksDB, and with producers that wait."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rmqstore
from interop.rocketmq import RealStore, RocketMQ
from interop.test_follow import Process, end_of, require_exact, wait_for
from interop.test_follow_versions import FILE_BYTES, SIZES, TOPIC, Load, serving, started
from ports import free_ports
from rmqstore.cli import main
from rmqstore.errors import StoreStateError
from rmqstore.inspect.verify import verify

pytestmark = pytest.mark.interop


def put(real: RocketMQ, store: RealStore, count: int) -> list[str]:
    """Put messages that wait until they are stored; return what became of each."""
    results = []
    for number in range(count):
        inner = real.inner_class()()
        inner.setTopic(TOPIC)
        inner.setQueueId(number % 4)
        inner.setBody(b"%d" % number)
        inner.setPropertiesString("WAIT\x01true\x02")
        inner.setWaitStoreMsgOK(True)
        address = real.java.net.InetSocketAddress("127.0.0.1", 10911)
        inner.setBornHost(address)
        inner.setStoreHost(address)
        result = store.store.putMessage(inner)
        results.append(str(result.getPutMessageStatus().toString()))
    return results


@pytest.mark.parametrize(("version", "settings"), [("5.5.1", {"inSyncReplicas": 2}), ("4.9.8", {})])
def test_producers_wait_for_a_follower_only_if_it_acknowledges(
    version: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    root, log = tmp_path / "master", tmp_path / "follow.log"
    with (
        started(version, tmp_path / "jvm") as real,
        serving(real, root, "SYNC_MASTER", **settings, slaveTimeout=4000) as (port, store),
    ):
        allowed = []
        if version < "5":
            with pytest.raises(StoreStateError, match="a SYNC_MASTER of RocketMQ 4"):
                rmqstore.follow(port.address, tmp_path / "refused", once=True)
            allowed = ["--allow-sync-master"]
        for acknowledge, expected in (("never", "FLUSH_SLAVE_TIMEOUT"), ("synced", "PUT_OK")):
            target = tmp_path / acknowledge

            def is_level(target: Path = target) -> bool:
                return end_of(target) == int(store.store.getMaxPhyOffset())

            with Process(port.address, target, log, "--ack", acknowledge, *allowed) as follower:
                wait_for(lambda: int(store.store.getHaService().getConnectionCount()) == 1)
                wait_for(is_level)
                assert put(real, store, 1) == [expected]
                if expected == "PUT_OK":
                    assert put(real, store, 30) == ["PUT_OK"] * 30
                wait_for(is_level)
                follower.stop()


def test_a_slave_is_followed_as_its_master_is(rocketmq_55: RocketMQ, tmp_path: Path) -> None:
    root, target, log = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    (own_port,) = free_ports(1)
    with (
        rocketmq_55.open(root, **SIZES, haListenPort=own_port) as master,
        serving(rocketmq_55, tmp_path / "slave", "SLAVE") as (port, slave),
    ):
        slave.store.updateHaMasterAddress(f"127.0.0.1:{own_port}")
        with Process(port.address, target, log) as follower:
            with Load(master, random.Random(7)):
                wait_for(lambda: end_of(target) > 3 * FILE_BYTES)
            end = int(master.store.getMaxPhyOffset())
            wait_for(lambda: end_of(target) == end)
            follower.stop()
    # The log of a new slave begins with the file that was its master's last one.
    require_exact(tmp_path / "slave", target, end)
    master_log, copied_log = root / "commitlog", target / "commitlog"
    for path in copied_log.iterdir():
        assert path.read_bytes() == (master_log / path.name).read_bytes()


def test_queues_in_rocksdb_become_files(rocketmq_55: RocketMQ, tmp_path: Path) -> None:
    root, target, log = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    with serving(rocketmq_55, root, storeType="defaultRocksDB") as (port, store):
        port.settings["storeType"] = "defaultRocksDB"
        with Process(port.address, target, log) as follower:
            with Load(store, random.Random(3)):
                wait_for(lambda: end_of(target) > 1 << 20)
            end = int(store.store.getMaxPhyOffset())
            wait_for(lambda: end_of(target) == end)
            told = CliRunner().invoke(main, ["follow", "--status", str(target)]).output
            follower.stop()
        ranges = [store.queue_range(TOPIC, queue_id) for queue_id in range(4)]
    assert "RocksDB" in told
    assert sorted(path.name for path in (target / "consumequeue" / TOPIC).iterdir()) == [*"0123"]
    with rmqstore.open(target) as copied:
        assert list(verify(copied)) == []
        rows = copied.view("queues").read_all().to_pylist()
    assert [(row["minOffset"], row["maxOffset"]) for row in rows if row["topic"] == TOPIC] == ranges
    with rocketmq_55.open(target, **SIZES) as opened:
        assert [opened.queue_range(TOPIC, queue_id) for queue_id in range(4)] == ranges
        assert opened.store.getMaxPhyOffset() == end
