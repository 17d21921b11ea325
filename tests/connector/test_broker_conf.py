"""The properties file of a broker in the place of a path, in reads, views and writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rmqstore
from connector.engine import Engine
from connector.sparkreads import GoldenStore


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


def test_a_write_goes_to_the_store_of_the_file(engine: Engine, conf: Path) -> None:
    rows = engine.frame({"topic": ["New"], "body": ["x"]})
    rows.write.format("rmqstore").mode("append").option("conf", str(conf)).save()
    with rmqstore.open(conf=conf) as store:
        assert store.count(subscribe="New") == 1
    assert not (conf.parent / "store" / "commitlog").exists()
