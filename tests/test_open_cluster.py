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
from rmqstore.errors import NotAStoreError, OptionError

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
        assert counted(cluster.scan(where="topic = 'T'", scan="commitlog")) == {
            ("a", "T"): 5, ("b", "T"): 2
        }  # fmt: skip
        assert cluster.scan(limit=9).read_all().num_rows == 9
        assert counted(cluster.scan(assign={"V": [0, 1]}, limit=1)) == {("b", "V"): 1}
        with pytest.raises(OptionError, match="no topic W in brokers a, b"):
            cluster.scan(subscribe="W")
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
    with pytest.raises(OptionError, match="at least one store"):
        rmqstore.open_cluster([])
    with rmqstore.open_cluster([first, second]) as cluster:
        assert [*cluster.stores] == ["x", "y"]
