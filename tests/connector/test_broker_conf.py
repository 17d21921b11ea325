"""The properties file of a broker in the place of a path, in reads, views and writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rmqstore
from connector.engine import Engine
from connector.sparkreads import GoldenStore, Row, collect, in_queue_order


@pytest.fixture
def conf(golden_store: GoldenStore, tmp_path: Path) -> Path:
    """Return the file of a broker whose log lies outside of its root."""
    root = shutil.copytree(golden_store("live"), tmp_path / "store")
    (root / "commitlog").rename(tmp_path / "log")
    file = tmp_path / "broker.conf"
    file.write_text(
        f"storePathRootDir={root}\nstorePathCommitLog={tmp_path / 'log'}\n"
        "brokerName=mine\nbrokerIP1=10.0.0.1\n"
    )
    return file


def test_a_read_takes_all_from_the_file(
    engine: Engine, golden_store: GoldenStore, conf: Path
) -> None:
    def chosen(**options: str) -> list[Row]:
        reader = engine.read.format("rmqstore").option("columns", "topic,queueId,queueOffset,body")
        return in_queue_order(collect(reader.options(**options).load()))

    found = chosen(conf=str(conf))
    assert found == chosen(path=str(golden_store("live")))
    assert found
    view = engine.read.format("rmqstore").option("view", "stores").option("conf", str(conf)).load()
    (row,) = view.collect()
    assert (row["brokerName"], row["brokerAddr"]) == ("mine", "10.0.0.1:10911")


def test_a_write_goes_to_the_store_of_the_file(engine: Engine, conf: Path) -> None:
    rows = engine.frame({"topic": ["New"], "body": ["x"]})
    rows.write.format("rmqstore").mode("append").option("conf", str(conf)).save()
    with rmqstore.open(conf=conf) as store:
        assert store.count(subscribe="New") == 1
    assert not (conf.parent / "store" / "commitlog").exists()
