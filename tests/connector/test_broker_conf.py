"""The properties file of a broker in the place of the path of a write."""

from __future__ import annotations

import shutil
from pathlib import Path

import rmqstore
from connector.engine import Engine
from connector.sparkreads import GoldenStore


def test_a_write_goes_to_the_store_of_the_file(
    engine: Engine, golden_store: GoldenStore, tmp_path: Path
) -> None:
    root = shutil.copytree(golden_store("live"), tmp_path / "store")
    (root / "commitlog").rename(tmp_path / "log")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={root}\nstorePathCommitLog={tmp_path / 'log'}\n")
    rows = engine.frame({"topic": ["New"], "body": ["x"]})
    rows.write.format("rmqstore").mode("append").option("conf", str(conf)).save()
    with rmqstore.open(conf=conf) as store:
        assert store.count(subscribe="New") == 1
    assert not (root / "commitlog").exists()
