"""Two brokers, and a controller that changes the master: the copy follows the master."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from interop.rocketmq import RocketMQ
from interop.test_follow import SIZES, TOPIC, Load, end_of, require_exact, wait_for
from interop.test_follow_versions import started
from ports import free_ports
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.cluster import ClusterFollower
from rmqstore.replica.ha import NEVER
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import copy_paths, follow_status
from rmqstore.storage.broker.epochs import Epoch, read_epochs

NAME = "group"


class Control:
    """A name server and a controller, which together decide who is the master."""

    def __init__(self, real: RocketMQ, root: Path) -> None:
        rocketmq = real.rocketmq
        name_port, port = free_ports(2)
        self.namesrv_address, self.address = f"127.0.0.1:{name_port}", f"127.0.0.1:{port}"
        self.name_server = real.start_name_server(name_port)
        config = rocketmq.common.ControllerConfig()
        config.setControllerDLegerGroup("controllers")
        config.setControllerDLegerPeers(f"n0-{self.address}")
        config.setControllerDLegerSelfId("n0")
        config.setControllerStorePath(str(root))
        config.setMappedFileSize(1 << 20)
        config.setScanNotActiveBrokerInterval(1000)
        client_config = rocketmq.remoting.netty.NettyClientConfig()
        manager = rocketmq.controller.ControllerManager
        self.controller = manager(config, real.server_config(port), client_config)
        assert self.controller.initialize()
        self.controller.start()
        wait_for(lambda: self.controller.getController().isLeaderState(), 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.shutdown()
        self.name_server.shutdown()


class Member:
    def __init__(self, real: RocketMQ, control: Control, root: Path) -> None:
        self.real, (port, ha_port) = real, free_ports(2)
        config = real.rocketmq.common.BrokerConfig()
        config.setBrokerName(NAME)
        config.setBrokerIP2("127.0.0.1")
        config.setBrokerId(-1)
        config.setNamesrvAddr(control.namesrv_address)
        config.setControllerAddr(control.address)
        config.setEnableControllerMode(True)
        config.setControllerHeartBeatTimeoutMills(4000)
        config.setSyncBrokerMetadataPeriod(1000)
        config.setCheckSyncStateSetPeriod(1000)
        settings = {"fileReservedTime": 1_000_000, "allAckInSyncStateSet": True, **SIZES}
        store_config = real.store_config(root, haListenPort=ha_port, **settings)
        self.controller = real.start_broker(config, port, store_config)

    @property
    def is_master(self) -> bool:
        return bool(self.controller.getBrokerConfig().getBrokerId() == 0)

    @property
    def store(self) -> Any:
        return self.controller.getMessageStore()

    @property
    def end(self) -> int:
        return int(self.store.getMaxPhyOffset())

    @property
    def epochs(self) -> list[Epoch]:
        entries = self.store.getHaService().getEpochEntries()
        return [Epoch(each.getEpoch(), each.getStartOffset()) for each in entries]

    def in_sync(self) -> set[int]:
        return {int(each) for each in self.store.getHaService().getSyncStateSet()}

    def add_topic(self) -> None:
        topic = self.real.rocketmq.common.TopicConfig(TOPIC, 4, 4)
        self.controller.getTopicConfigManager().updateTopicConfig(topic)
        self.controller.registerBrokerAll(True, False, True)

    def announce(self, control: Control) -> None:
        config = self.controller.getTopicConfigManager().selectTopicConfig(TOPIC)

        def is_known() -> bool:
            self.controller.registerSingleTopicAll(config)
            routes = control.name_server.getRouteInfoManager()
            return routes.pickupTopicRouteData(TOPIC) is not None

        wait_for(is_known)

    def acknowledged(self) -> list[int]:
        info = self.store.getHaService().getRuntimeInfo(self.end)
        return [int(each.getSlaveAckOffset()) for each in info.getHaConnectionInfo()]


@contextmanager
def followed(control: Control, target: Path) -> Iterator[None]:
    stop = threading.Event()
    run = ClusterFollower(
        [Endpoint(Address.parse(control.namesrv_address))], target,
        FollowSettings(tables_seconds=1.0), stop, refresh_seconds=1.0,
    )  # fmt: skip
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.interop
def test_the_copy_follows_the_master_that_a_controller_elects(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    target = tmp_path / "copies" / NAME
    with (
        Control(rocketmq, tmp_path / "controller") as control,
        started("5.3.3", tmp_path / "jvm-1") as first_jvm,
        started("5.3.3", tmp_path / "jvm-2") as second_jvm,
    ):
        first = Member(first_jvm, control, tmp_path / "first")
        wait_for(lambda: first.is_master)
        second = Member(second_jvm, control, tmp_path / "second")
        for member in (first, second):
            member.add_topic()
        first.announce(control)
        wait_for(lambda: len(first.in_sync()) == 2)
        with followed(control, tmp_path / "copies"):
            with Load(control.namesrv_address, rocketmq, random.Random(3)) as load:
                wait_for(lambda: end_of(target) > 1 << 20)
                assert min(first.acknowledged()) == NEVER
                assert first.in_sync() == {1, 2}
                load.is_over = True  # sends fail while there is no master
                first_jvm.kill()
                wait_for(lambda: second.is_master)
                before = second.end
                wait_for(lambda: end_of(target) > before + (1 << 20))
            end = second.end
            wait_for(lambda: end_of(target) == end)
        state, _ = follow_status(target)
        assert state.address == f"127.0.0.1:{second.controller.getBrokerConfig().getListenPort()}"
        assert [epoch.number for epoch in second.epochs] == [1, 2]
        assert read_epochs(copy_paths(target)) == second.epochs
        assert (state.mode, state.epoch) == ("controller", 2)
        require_exact(tmp_path / "second", target, end)
