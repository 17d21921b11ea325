"""A real name server tells the brokers; the copies keep what the broker keeps."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rmqstore
from interop.test_follow import TOPIC, Load, broker_of, end_of, wait_for
from ports import free_ports
from rmqstore.inspect.verify import verify


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "commitlog").glob("0*"))


@pytest.mark.interop
@pytest.mark.usefixtures("rocketmq")
def test_a_broker_is_found_by_its_name_server_and_its_retention_is_mirrored(tmp_path: Path) -> None:
    root, target, ports = tmp_path / "master", tmp_path / "copies", free_ports(3)
    words = ["--namesrv", f"127.0.0.1:1;127.0.0.1:{ports[0]}", "--cluster", "DefaultCluster"]
    command = [sys.executable, "-m", "rmqstore", "follow", *words, str(target), "--json"]
    follower: subprocess.Popen[bytes] | None = None
    copy = target / "interop"
    try:
        with broker_of(tmp_path / "jvm", root, ports) as (real, broker):
            with Load(broker.namesrv_address, real, random.Random(5)):
                with (tmp_path / "follow.log").open("wb") as log:
                    follower = subprocess.Popen(
                        [*command, "--retain", "mirror", "--tables-interval", "1"],
                        stdout=log,
                        stderr=log,
                    )
                wait_for(lambda: end_of(copy) > 4 << 20)
            store_of_broker = broker.controller.getMessageStore()
            end = int(store_of_broker.getMaxPhyOffset())
            wait_for(lambda: end_of(copy) == end)
            assert names(copy)[0] == f"{0:020d}"
            assert broker.expire(3) == 3
            # The broker may delete more by itself, on a disk that is nearly full.
            wait_for(lambda: int(names(copy)[0]) == int(store_of_broker.getMinPhyOffset()) > 0)
            follower.send_signal(signal.SIGTERM)
            assert follower.wait(60) == 128 + signal.SIGTERM
    finally:
        if follower is not None:
            follower.kill()
            follower.wait()
    first = names(copy)[0]
    state, is_running = rmqstore.follow_cluster_status(target)["interop"]
    assert (state.begin, state.end, is_running, state.is_closed) == (int(first), end, False, True)
    with rmqstore.open(copy) as store:
        assert list(verify(store)) == []
        assert store.scan(subscribe=TOPIC, columns="queueId").read_all().num_rows > 0
