"""All brokers of a cluster in one process: taken up, moved, lost and halted."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from following.fake_master import FakeMaster, FakeNameServer, log_of, more
from following.followers import TIMING, Following, require_exact, wait_for
from ports import free_ports
from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError, OptionError, StoreStateError
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.broker_requests import registered_brokers
from rmqstore.replica.cluster import ClusterFollower, ClusterProgress
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import follow_cluster_status
from store_builder import Store


class Run(Following):
    def __init__(
        self, address: str, target: Path, options: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.stop = threading.Event()
        self.seen = ClusterProgress({}, {})
        followers = ClusterFollower(
            [Endpoint(Address.parse(address), timeout=5.0)], target,
            FollowSettings(**{"timing": TIMING, **settings}), self.stop, progress=self._see,
            refresh_seconds=0.1, **(options or {}),
        )  # fmt: skip
        self.start(lambda: self._see(followers.run()))

    def _see(self, progress: ClusterProgress) -> None:
        self.seen = progress

    def end_of(self, broker: str) -> int:
        progress = self.seen.copies.get(broker)
        return -1 if progress is None else progress.end


@contextmanager
def masters(**logs: Store) -> Iterator[dict[str, FakeMaster]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(FakeMaster(log, name=name)) for name, log in logs.items()}


def test_each_broker_gets_a_copy_and_new_ones_are_taken_up(tmp_path: Path) -> None:
    logs = {"a": log_of(100), "b": log_of(200), "other": log_of(5)}
    with masters(**logs) as brokers, FakeNameServer() as names:
        names.brokers = {"a": ("C", {0: brokers["a"].address}), "other": ("D", {0: "h:1"})}
        with Run(names.address, tmp_path / "all", {"cluster": "C"}) as run:
            wait_for(lambda: run.end_of("a") == logs["a"].end)
            names.brokers["b"] = ("C", {0: brokers["b"].address, 1: "nobody:1"})
            wait_for(lambda: run.end_of("b") == logs["b"].end)
            more(logs["a"], 50)
            wait_for(lambda: run.end_of("a") == logs["a"].end)
    for name in ("a", "b"):
        require_exact(tmp_path / "all" / name, logs[name])
    assert set(follow_cluster_status(tmp_path / "all")) == {"a", "b"}


def test_once_copies_all_brokers_and_ends(tmp_path: Path) -> None:
    logs = {"a": log_of(100), "b": log_of(200)}
    with masters(**logs) as brokers, FakeNameServer() as names:
        names.brokers = {name: ("C", {0: each.address}) for name, each in brokers.items()}
        namesrv = f"127.0.0.1:{free_ports(1)[0]};{names.address}"
        done = rmqstore.follow_cluster(namesrv, tmp_path / "all", once=True)
    assert [(name, each.end) for name, each in sorted(done.copies.items())] == [
        (name, log.end) for name, log in logs.items()
    ]
    with rmqstore.open_cluster({name: tmp_path / "all" / name for name in logs}) as cluster:
        assert cluster.count() == 300


def test_a_copy_that_cannot_go_on_does_not_stop_the_others(tmp_path: Path) -> None:
    logs = {"a": log_of(100), "b": log_of(200)}
    with masters(**logs) as brokers, FakeNameServer() as names:
        names.brokers = {name: ("C", {0: each.address}) for name, each in brokers.items()}
        brokers["a"].settings["enableDLegerCommitLog"] = "true"
        with Run(names.address, tmp_path / "all") as run:
            wait_for(lambda: "a" in run.seen.errors)
            wait_for(lambda: run.end_of("b") == logs["b"].end)
            more(logs["b"], 50)
            wait_for(lambda: run.end_of("b") == logs["b"].end)
            assert run.is_alive()
            with pytest.raises(StoreStateError, match="1 of 2 copies could not continue; a: "):
                run.end()
            run.error = None
    require_exact(tmp_path / "all" / "b", logs["b"])


def test_a_broker_is_followed_where_it_is_registered_by_now(tmp_path: Path) -> None:
    log = log_of(100)
    with (
        FakeMaster(log, name="a") as first,
        FakeMaster(log, name="a") as second,
        FakeNameServer({"a": ("C", {0: first.address})}) as names,
        Run(names.address, tmp_path / "all") as run,
    ):
        wait_for(lambda: run.end_of("a") == log.end)
        names.brokers["a"] = ("C", {1: first.address})  # the master has gone
        asked = len(names.requests)
        wait_for(lambda: len(names.requests) > asked + 2)
        assert not second.reports
        names.brokers["a"] = ("C", {0: second.address, 1: first.address})
        wait_for(lambda: bool(second.reports))
        more(log, 50)
        wait_for(lambda: run.end_of("a") == log.end)
    require_exact(tmp_path / "all" / "a", log)


def test_a_slave_is_preferred_if_that_is_asked_for_and_kept(tmp_path: Path) -> None:
    log = log_of(100)
    with (
        FakeMaster(log, name="a") as master,
        FakeMaster(log, name="a") as slave,
        FakeNameServer({"a": ("C", {0: master.address, 2: slave.address})}) as names,
        Run(names.address, tmp_path / "all", {"prefers_slave": True}) as run,
    ):
        wait_for(lambda: run.end_of("a") == log.end)
        names.brokers["a"][1][1] = "nobody:1"
        asked = len(names.requests)
        wait_for(lambda: len(names.requests) > asked + 2)
        more(log, 10)
        wait_for(lambda: run.end_of("a") == log.end)
        assert slave.reports
        assert not master.reports


def test_copies_go_on_while_no_name_server_answers(tmp_path: Path) -> None:
    log, target = log_of(100), tmp_path / "all"
    with FakeMaster(log, name="a") as master:
        with FakeNameServer({"a": ("C", {0: master.address})}) as names:
            rmqstore.follow_cluster(names.address, target, once=True)
        more(log, 20)
        (target / "damaged" / ".rmqstore").mkdir(parents=True)
        (target / "damaged" / ".rmqstore" / "follow.json").write_text("{")
        (target / "a file").touch()
        nobody = f"127.0.0.1:{free_ports(1)[0]}"
        with Run(nobody, target) as run:
            wait_for(lambda: run.end_of("a") == log.end)
        with pytest.raises(BrokerUnreachableError):
            rmqstore.follow_cluster(nobody, target, once=True, reconnect=False)
    require_exact(target / "a", log)


def test_a_cluster_without_a_broker_is_refused(tmp_path: Path) -> None:
    with FakeNameServer({"a": ("C", {0: "h:1"})}) as names:
        with pytest.raises(StoreStateError, match="no broker of cluster 'D'; its clusters: C"):
            rmqstore.follow_cluster(names.address, tmp_path / "all", cluster="D")
        names.brokers = {}
        with pytest.raises(StoreStateError, match="knows no broker"):
            rmqstore.follow_cluster(names.address, tmp_path / "all")
    with pytest.raises(StoreStateError, match="holds none"):
        follow_cluster_status(tmp_path / "all")


def test_arguments_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="namesrv"):
        rmqstore.follow_cluster(" ; ", tmp_path)
    with pytest.raises(OptionError, match="one broker only"):
        rmqstore.follow_cluster("h:1", tmp_path, start=4096)


@pytest.mark.parametrize("name", ["../a", ".hidden", "", "a/b"])
def test_a_name_that_is_not_one_of_a_folder_is_left_out(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = {name: ("C", {0: "h:1"}), "a b": ("C", {0: "h:2"}), "no": ("C", {0: "no port"})}
    with FakeNameServer(brokers) as names:
        endpoint = Endpoint(Address.parse(names.address))
        for _ in range(2):
            assert [broker.name for broker in registered_brokers(endpoint)] == ["a b"]
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2
        assert any(f"broker {name!r} is not followed: " in text for text in told)
        names.code = 16
        with pytest.raises(BrokerRefusedError):
            registered_brokers(endpoint)


def test_brokers_may_report_ipv6_without_brackets() -> None:
    with FakeNameServer({"a": ("C", {0: "2001:db8::1:10911", 1: "[2001:db8::2]:7"})}) as names:
        (broker,) = registered_brokers(Endpoint(Address.parse(names.address)))
        assert broker.addresses == {0: Address("2001:db8::1", 10911), 1: Address("2001:db8::2", 7)}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"brokerAddrTable":[1]}'])
def test_an_answer_that_is_not_a_list_of_brokers_is_an_error(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeNameServer() as names:
        monkeypatch.setattr(names, "body", lambda: body)
        endpoint = Endpoint(Address.parse(names.address))
        if not body:
            assert registered_brokers(endpoint) == []
            return
        with pytest.raises(BrokerUnreachableError, match="cannot be read"):
            registered_brokers(endpoint)


def test_a_stop_does_not_wait_for_a_name_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with Run(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path / "all") as run:
            connection, _ = silent.accept()
            began = time.monotonic()
            run.end()
            assert time.monotonic() - began < 3
        connection.close()
