"""The stores of several brokers in Python: scanned and viewed as one, replicas once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.errors import NotAStoreError, OptionError, RmqStoreError

Make = Callable[[str, dict[str, int]], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a store with some messages of each topic."""

    def write(name: str, counts: dict[str, int]) -> Path:
        with rmqstore.create(tmp_path / name) as writer:
            for topic, count in counts.items():
                bodies = [f"{name}{number}".encode() for number in range(count)]
                writer.append(pa.table({"topic": [topic] * count, "body": bodies}))
        return tmp_path / name

    return write


def counted(rows: pa.RecordBatchReader) -> Counter[Any]:
    return Counter((row["brokerName"], row["topic"]) for row in rows.read_all().to_pylist())


def test_the_messages_of_all_brokers_come_one_broker_after_the_other(
    make: Make, tmp_path: Path
) -> None:
    first, second = make("x", {"T": 5, "U": 3}), make("y", {"T": 2, "V": 4})
    replica = Path(shutil.copytree(first, tmp_path / "replica"))
    named = {"a": [replica, first], "b": second}
    with rmqstore.open_cluster(named) as cluster:
        assert [*cluster.stores] == ["a", "b"]
        rows = cluster.scan(columns="brokerName,topic").read_all()
        assert rows["brokerName"].to_pylist() == ["a"] * 8 + ["b"] * 6
        assert counted(cluster.scan(subscribe="T")) == {("a", "T"): 5, ("b", "T"): 2}
        assert counted(cluster.scan(subscribe=["U", "V"])) == {("a", "U"): 3, ("b", "V"): 4}
        of_b = cluster.scan(subscribe=["U", "V"], where="brokerName = 'b'")
        assert counted(of_b) == {("b", "V"): 4}
        assert counted(cluster.scan(subscribe="V", scan="commitlog")) == {("b", "V"): 4}
        assert counted(cluster.scan(where="topic = 'T'", scan="commitlog")) == {
            ("a", "T"): 5, ("b", "T"): 2
        }  # fmt: skip
        assert cluster.scan(limit=9).read_all().num_rows == 9
        assert counted(cluster.scan(assign={"V": [0, 1]}, limit=1)) == {("b", "V"): 1}
        with pytest.raises(OptionError, match="no topic W in brokers a, b"):
            cluster.scan(subscribe="W")
        with pytest.raises(OptionError, match="no topic W in brokers a, b"):
            cluster.scan(subscribe="W", where="brokerName = 'c'")
        with pytest.raises(OptionError, match=r"no queue \[9\]"):
            cluster.scan(assign={"V": [9]})


def test_views_of_a_cluster(make: Make, tmp_path: Path) -> None:
    first, second = make("x", {"T": 5}), make("y", {"T": 2, "V": 4})
    replica = Path(shutil.copytree(first, tmp_path / "replica"))
    file = tmp_path / "brokers.json"
    file.write_text(json.dumps({"a": [str(first), str(replica)], "b": str(second)}))
    with rmqstore.open_cluster(file) as cluster:
        stores = cluster.view("stores", columns="path,isRead").read_all().to_pylist()
        assert stores == [
            {"path": str(first), "isRead": True}, {"path": str(replica), "isRead": False},
            {"path": str(second), "isRead": True},
        ]  # fmt: skip
        assert counted(cluster.view("routes")) == {("a", "T"): 1, ("b", "T"): 1, ("b", "V"): 1}
        assert counted(cluster.view("topics", subscribe="V")) == {("b", "V"): 1}
        assert counted(cluster.view("queues", columns="brokerName,topic")) == {
            ("a", "T"): 4, ("b", "T"): 2, ("b", "V"): 4
        }  # fmt: skip
        shares = cluster.view("assignments", consumer_group="g", clients="c", subscribe="T")
        assert counted(shares) == {("a", "T"): 4, ("b", "T"): 4}


def test_stores_that_cannot_be_one_cluster_are_refused(make: Make, tmp_path: Path) -> None:
    first, second = make("x", {"T": 5}), make("y", {"T": 5})
    with pytest.raises(OptionError, match="both of broker a"):
        rmqstore.open_cluster({"a": [first, second]})
    with pytest.raises(NotAStoreError):
        rmqstore.open_cluster([first, tmp_path / "nowhere"])


def test_open_takes_a_list_patterns_and_a_table_of_stores(make: Make, tmp_path: Path) -> None:
    first, second = make("b-1", {"T": 5}), make("b-2", {"T": 2, "V": 4})
    make(".b-3", {"T": 1})  # hidden, as a shell has it
    (tmp_path / "b-file").touch()
    for paths in (
        [first, second],
        [str(first), str(second)],
        (first, str(second)),
        [f"{tmp_path}/b-*"],
        [f"{tmp_path}/b-[12]"],
        [first, f"{tmp_path}/?-2"],
        {"b-1": first, "b-2": [f"{tmp_path}/*2"]},
    ):
        with rmqstore.open(paths) as cluster:
            assert isinstance(cluster, rmqstore.StoreCluster)
            assert counted(cluster.scan()) == {("b-1", "T"): 5, ("b-2", "T"): 2, ("b-2", "V"): 4}
            assert cluster.topics() == ["T", "V"]
            assert cluster.count(subscribe="T") == 7
            assert repr(cluster) == f"StoreCluster of b-1 ({first}), b-2 ({second})"
            assert cluster._repr_html_().count("<table>") == 2
    with rmqstore.open([f"{tmp_path}/b-1"]) as one:
        assert [*one.stores] == ["b-1"]


def test_a_cluster_has_what_was_written_meanwhile(make: Make) -> None:
    first, second = make("x", {"T": 5}), make("y", {"T": 2})
    with rmqstore.open([first, second]) as cluster:
        scan = cluster.scan()
        assert scan.count() == 7
        with rmqstore.open(second, mode="a") as writer:
            writer.append(pa.table({"topic": ["T"], "body": [b"new"]}))
        cluster.refresh()
        assert scan.count() == 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"path": ["{}/b-*"], "mode": "a"}, "mode 'a': several stores can only be read together"),
        ({"path": ["{}/b-*"], "broker_name": "b"}, "broker_name: for one store only"),
        ({"path": ["{}/b-*"], "tiered": "/t", "index": "/i"}, "tiered, index: for one store only"),
        ({"path": ["{}/c-*"]}, "c-.*does not match any folder"),
        ({"path": {"a": "{}/b-1", "b": "{}/b-*"}}, "a path of b is named twice"),
        ({"path": "{}/b-*"}, "b-.* is not a store but a pattern: in a list"),
        ({"path": []}, "at least one store"),
    ],
    ids=str,
)
def test_what_several_stores_are_not_opened_with(
    make: Make, tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    make("b-1", {"T": 5})
    given = json.loads(json.dumps(arguments).replace("{}", str(tmp_path)))
    with pytest.raises(RmqStoreError, match=text):
        rmqstore.open(**given)


@pytest.mark.parametrize("path", [7, ["/x", 7], {"b": 7}, {"b": ["/x", 7]}], ids=str)
def test_what_is_not_a_path_is_refused(path: Any) -> None:
    with pytest.raises(OptionError, match="7: must be a path"):
        rmqstore.open(path)
