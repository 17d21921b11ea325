"""Views of several stores together: which are replicas of one broker, and what routes they make."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rmqstore
import store_builder as build
from goldens import Golden
from rmqstore.errors import CorruptConfigError, CorruptQueueError, OptionError
from rmqstore.read.views.catalogue import read_cluster_view
from rmqstore.read.views.schema import view_spec
from rmqstore.read.views.stores import Broker, brokers_of
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.identity import BrokerIdentity, read_identity

Rows = list[dict[str, Any]]
Cluster = Callable[..., list[Broker]]


def log_of(count: int, *, other_from: int | None = None) -> build.Store:
    """Return a store of some messages, those from a number on with other bodies."""
    store = build.Store()
    for number in range(count):
        is_other = other_from is not None and number >= other_from
        body = b"other" if is_other else b"hello"
        store.append(build.Record("T", number % 2, body=body, store_timestamp=build.T0 + number))
    return store


def replica(
    root: Path, count: int, identity: str | None = None, *, other_from: int | None = None
) -> Path:
    """Write a store of some messages, which says who its broker is."""
    log_of(count, other_from=other_from).write(root)
    if identity is not None:
        (root / "brokerIdentity").write_text(identity)
    return root


def write_epochs(root: Path, epochs: dict[int, int]) -> None:
    lines = "".join(f"{number}-{start}\n" for number, start in epochs.items())
    (root / "epochFileCheckpoint").write_text(f"{len(epochs)}\n0\n{lines}")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:

        def open_all(*roots: Path, names: Sequence[str] = ()) -> list[Broker]:
            given = [*names, *[None] * len(roots)]
            opened = [
                stack.enter_context(rmqstore.open(root, broker_name=name))
                for root, name in zip(roots, given, strict=False)
            ]
            return brokers_of([store.parts for store in opened])

        yield open_all


def cluster_rows(view: str, *roots: Path, **arguments: Any) -> Rows:
    spec = view_spec(view, **arguments)
    with ExitStack() as stack:
        opened = [stack.enter_context(rmqstore.open(root)) for root in roots]
        sources = [store.parts for store in opened]
        batches = [*read_cluster_view(sources, spec)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_master_is_read_even_if_a_replica_has_a_longer_log(
    tmp_path: Path, cluster: Cluster
) -> None:
    master = replica(tmp_path / "m", 20, "c#broker-a#0")
    slave = replica(tmp_path / "s", 30, "c#broker-a#1")
    for roots in ((master, slave), (slave, master)):
        (broker,) = cluster(*roots)
        assert (broker.name, broker.chosen.path) == ("broker-a", str(master))
        assert broker.faults == ()
        broker.require_valid()
        note = broker.note(broker.replicas[0])
        assert "the master" in note
        assert note.endswith(f"is not, from physical offset {broker.chosen.log_end} on")


def test_without_a_master_the_longest_log_is_read(tmp_path: Path, cluster: Cluster) -> None:
    roots = [replica(tmp_path / str(count), count, "c#b#") for count in (10, 30, 20)]
    (broker,) = cluster(*roots)
    assert broker.chosen.path == str(roots[1])
    assert [one.path for one in broker.replicas] == [str(roots[0]), str(roots[2])]
    assert all(broker.note(one).endswith("is read") for one in broker.replicas)


def test_of_two_logs_of_one_end_the_one_with_older_messages_is_read(
    tmp_path: Path, cluster: Cluster
) -> None:
    roots = [replica(tmp_path / name, 100, "c#b#") for name in ("new", "old")]
    first = min((roots[0] / "commitlog").iterdir())
    first.unlink()
    (broker,) = cluster(*roots)
    assert broker.chosen.path == str(roots[1])
    (roots[0] / "brokerIdentity").write_text("c#b#0")
    (broker,) = cluster(*roots)
    assert broker.chosen.path == str(roots[0])
    assert "has is not, before physical offset 4096" in broker.note(broker.replicas[0])


def test_stores_that_have_parted_are_refused_by_their_names(
    tmp_path: Path, cluster: Cluster
) -> None:
    first = replica(tmp_path / "x", 30, "c#b#0")
    second = replica(tmp_path / "y", 25, "c#b#1", other_from=20)
    (broker,) = cluster(first, second)
    with pytest.raises(OptionError, match="logs differ at physical offset") as caught:
        broker.require_valid()
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    assert "set broker_name" in str(caught.value)


@pytest.mark.parametrize(
    ("identities", "text"),
    [(("c1#b#0", "c2#b#0"), "of the clusters c1 and c2"), (("c#b#0", "c#b#0"), "differ")],
)
def test_other_brokers_of_the_same_name_are_refused(
    tmp_path: Path, cluster: Cluster, identities: tuple[str, str], text: str
) -> None:
    first = replica(tmp_path / "x", 30, identities[0])
    second = replica(tmp_path / "y", 30, identities[1], other_from=0)
    (broker,) = cluster(first, second)
    with pytest.raises(OptionError, match=text):
        broker.require_valid()
    assert len(cluster(first, second, names=["a", "b"])) == 2


def test_logs_without_a_common_part_prove_nothing(tmp_path: Path, cluster: Cluster) -> None:
    long = log_of(100)
    assert len(long.segments) > 2
    new, old = tmp_path / "new", replica(tmp_path / "old", 10, "c#b#1")
    long.write(new)
    (new / "brokerIdentity").write_text("c#b#0")
    for file in sorted((new / "commitlog").iterdir())[:2]:
        file.unlink()
    (broker,) = cluster(new, old)
    with pytest.raises(OptionError, match="no part in common"):
        broker.require_valid()


def test_an_empty_store_is_a_replica_only_if_it_says_whose(
    tmp_path: Path, cluster: Cluster
) -> None:
    for folder, is_named in (("named", True), ("unnamed", False)):
        roots = [tmp_path / folder / place / "store" for place in ("x", "y")]
        for root, count in zip(roots, (10, 0), strict=True):
            root.parent.mkdir(parents=True)
            replica(root, count, "c#b#" if is_named else None)
        (broker,) = cluster(*roots)
        assert bool(broker.faults) is not is_named
        assert broker.chosen.path == str(roots[0])


def test_in_controller_mode_the_newest_epoch_is_read(tmp_path: Path, cluster: Cluster) -> None:
    parted = log_of(20).end
    old = replica(tmp_path / "old", 30, "c#b#1", other_from=20)
    new = replica(tmp_path / "new", 25, "c#b#2")
    write_epochs(old, {1: 0})
    write_epochs(new, {1: 0, 3: parted})
    (broker,) = cluster(old, new)
    assert broker.chosen.path == str(new)
    assert broker.faults == ()
    note = broker.note(broker.replicas[0])
    assert note.endswith(f"has is not, from physical offset {parted} on")
    assert "newest epoch, 3" in note
    write_epochs(old, {2: 0})
    (broker,) = cluster(old, new)
    with pytest.raises(OptionError, match="no epoch in common"):
        broker.require_valid()
    write_epochs(old, {1: 0})
    write_epochs(new, {1: 0})
    (broker,) = cluster(old, new)
    with pytest.raises(OptionError, match="differ"):
        broker.require_valid()


def test_the_view_of_stores_says_which_are_read(tmp_path: Path) -> None:
    master = replica(tmp_path / "m", 20, "c#broker-a#0")
    slave = replica(tmp_path / "s", 10, "c#broker-a#1")
    other = replica(tmp_path / "o", 5, "c#broker-b#0")
    wrong = replica(tmp_path / "w", 5, "c#broker-b#1", other_from=0)
    found = cluster_rows("stores", slave, other, master, wrong)
    shown = [(row["path"], row["brokerName"], row["brokerId"], row["isRead"]) for row in found]
    assert shown == [
        (str(master), "broker-a", 0, True), (str(slave), "broker-a", 1, False),
        (str(other), "broker-b", 0, False), (str(wrong), "broker-b", 1, False),
    ]  # fmt: skip
    assert found[0]["reason"] is None
    assert "a replica of broker broker-a" in found[1]["reason"]
    assert "differ" in found[2]["reason"]
    assert {row["clusterName"] for row in found} == {"c"}
    assert [row["maxOffset"] for row in found[:2]] == [log_of(20).end, log_of(10).end]


def write_topics(root: Path, entries: dict[str, dict[str, object]]) -> None:
    table = {name: {"topicName": name, **entry} for name, entry in entries.items()}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def test_routes_are_those_of_the_master_with_all_addresses(tmp_path: Path) -> None:
    master, slave = (replica(tmp_path / name, 10) for name in ("m", "s"))
    other = replica(tmp_path / "o", 10, other_from=0)
    for root, name, number in ((master, "a", 0), (slave, "a", 1), (other, "b", 0)):
        ip = f"10.0.0.{number + 1}"
        (root / "broker.conf").write_text(
            f"brokerName = {name}\nbrokerClusterName=c1\nbrokerId={number}\nbrokerIP1={ip}\n"
        )
    entry = {"readQueueNums": 8, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 2, "order": True}
    write_topics(master, {"T": entry, "U": {}})
    write_topics(slave, {"T": {"readQueueNums": 1}})
    write_topics(other, {"T": {**entry, "writeQueueNums": 3}, "%RETRY%g": {}})
    found = cluster_rows("routes", slave, other, master)
    assert [(row["brokerName"], row["topic"]) for row in found] == [
        ("a", "T"), ("a", "U"), ("b", "T")
    ]  # fmt: skip
    first, second, third = found
    assert first == {
        "brokerName": "a", "topic": "T", "readQueueNums": 8, "writeQueueNums": 4, "perm": 6,
        "topicSysFlag": 2, "clusterName": "c1",
        "brokerAddrs": [("0", "10.0.0.1:10911"), ("1", "10.0.0.2:10911")],
        "order": True, "orderTopicConf": "a:4;b:3", "reason": None,
    }  # fmt: skip
    # what an entry leaves out has RocketMQ's defaults
    assert (second["readQueueNums"], second["writeQueueNums"], second["perm"]) == (16, 16, 6)
    assert second["orderTopicConf"] is None
    assert third["orderTopicConf"] == "a:4;b:3"
    retry = cluster_rows("routes", other, subscribe="%RETRY%g")
    assert [row["topic"] for row in retry] == ["%RETRY%g"]


def test_what_files_do_not_tell_of_a_route_is_null(tmp_path: Path) -> None:
    root = replica(tmp_path / "s", 10, "c#b#2")
    write_topics(root, {"T": {}})
    (row,) = cluster_rows("routes", root)
    assert row["brokerAddrs"] == [("2", None)]
    write_epochs(root, {1: 0})
    (row,) = cluster_rows("routes", root)
    assert row["brokerAddrs"] is None
    (root / "brokerIdentity").unlink()
    (root / "epochFileCheckpoint").unlink()
    (row,) = cluster_rows("routes", root)
    assert (row["brokerAddrs"], row["clusterName"], row["brokerName"]) == (None, None, "s")


@pytest.mark.parametrize(
    ("settings", "perm"),
    [
        ("brokerPermission=4", 4),
        ("brokerPermission=6", 7),
        ("brokerId=1\nbrokerRole=SLAVE\nenableSlaveActingMaster=true", 5),
        ("brokerId=1\nbrokerRole=SLAVE", 7),
        ("enableSlaveActingMaster=true", 7),
    ],
)
def test_a_broker_takes_permissions_away(tmp_path: Path, settings: str, perm: int) -> None:
    root = replica(tmp_path / "s", 10)
    write_topics(root, {"T": {"perm": 7}})
    (root / "broker.conf").write_text(settings)
    (row,) = cluster_rows("routes", root)
    assert row["perm"] == perm


def test_damage_stops_no_view_of_a_cluster(tmp_path: Path) -> None:
    root = replica(tmp_path / "s", 10, "c#b#0")
    write_topics(root, {"T": {"readQueueNums": "many"}, "U": {}})
    found = cluster_rows("routes", root)
    assert [row["topic"] for row in found] == ["T", "U"]
    assert "'many' is not an integer" in found[0]["reason"]
    (root / "config" / "topics.json").write_text("[")
    (row,) = cluster_rows("routes", root)
    assert (row["brokerName"], row["topic"]) == ("b", None)
    assert "topics.json" in row["reason"]
    (root / "epochFileCheckpoint").write_text("?")
    (row,) = cluster_rows("stores", root)
    assert (row["epoch"], row["isRead"]) == (None, True)


def test_assignments_are_a_view(tmp_path: Path) -> None:
    master = replica(tmp_path / "m", 20, "c#a#0")
    slave = replica(tmp_path / "s", 10, "c#a#1")
    write_topics(master, {"T": {"readQueueNums": 2}})
    build.write_offsets(master, {"T@g": {0: 4}})
    found = cluster_rows(
        "assignments", slave, master, consumer_group="g", clients="c2, c1", strategy="avg"
    )
    assert [(row["clientId"], row["queueId"], row["lag"]) for row in found] == [
        ("c1", 0, 6), ("c2", 1, 10)
    ]  # fmt: skip
    assert found[0]["consumerOffset"] == 4
    assert found[1]["lagBytes"] > 0
    with rmqstore.open(master) as store:
        same = store.view("assignments", consumer_group="g", clients=["c1", "c2"]).read_all()
        assert same.to_pylist() == found
        with pytest.raises(OptionError, match="name the consumer group"):
            store.view("assignments", clients=["c1"])
        with pytest.raises(OptionError, match="at least one client"):
            store.view("assignments", consumer_group="g")
        with pytest.raises(OptionError, match="clients has no meaning with view routes"):
            store.view("routes", clients=["c1"])


def test_a_damaged_queue_stops_no_assignments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CorruptQueueError("/q", 3, "torn")

    root = replica(tmp_path / "m", 20)
    write_topics(root, {"T": {"readQueueNums": 1}})
    monkeypatch.setattr("rmqstore.storage.queue.queue_source.total_weight", refuse)
    (row,) = cluster_rows("assignments", root, consumer_group="g", clients="c", subscribe="T")
    assert (row["lag"], row["clientId"]) == (None, "c")
    assert "torn" in row["reason"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"brokerIdentity": "c#b#3"}, BrokerIdentity("b", "c", 3)),
        ({"brokerIdentity": "c#b#x"}, BrokerIdentity("b", "c", None)),
        ({"brokerIdentity": "nonsense"}, BrokerIdentity()),
        (
            {"broker.conf": "brokerName=b\nbrokerIP1=1.2.3.4\nlistenPort=11\n# brokerId=7"},
            BrokerIdentity("b", None, 0, "1.2.3.4:11"),
        ),
        ({"config/broker.conf": "brokerId=7"}, BrokerIdentity(None, None, 7)),
        (
            {"broker.conf": "brokerName=x\nbrokerIP1=1.2.3.4", "brokerIdentity": "c#b#3"},
            BrokerIdentity("b", "c", 3, "1.2.3.4:10911"),
        ),
        ({"broker.conf": "enableControllerMode=true"}, BrokerIdentity()),
        ({"broker.conf": "brokerId = -1\nenableControllerMode = true"}, BrokerIdentity()),
    ],
)
def test_files_tell_who_a_broker_is(
    tmp_path: Path, files: dict[str, str], expected: BrokerIdentity
) -> None:
    root = replica(tmp_path / "s", 1)
    (root / "config").mkdir()
    for name, text in files.items():
        (root / name).write_text(text)
    assert read_identity(find_store(root), list) == expected


def test_damaged_settings_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = replica(tmp_path / "s", 1)
    (root / "broker.conf").write_text("brokerId=first")
    with pytest.raises(CorruptConfigError, match="brokerId 'first'"):
        read_identity(find_store(root), list)
    with caplog.at_level(logging.WARNING):
        (row,) = cluster_rows("stores", root)
    assert row["brokerName"] == "s"
    assert "brokerId 'first'" in caplog.text


def test_a_copy_of_a_store_is_read_once(
    tmp_path: Path, golden_store: Golden, cluster: Cluster
) -> None:
    for name in ("live", "crash", "dledger", "controller", "rocksdb-cq"):
        first = golden_store(name)
        second = Path(shutil.copytree(first, tmp_path / first.name))
        (broker,) = cluster(first, second, names=["b", "b"])
        assert broker.faults == (), name
