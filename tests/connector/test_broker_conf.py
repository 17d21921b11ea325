"""The properties file of a broker in the place of a path, in reads, views and writes of Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

import rmqstore
from connector.sparkreads import GoldenStore

pytestmark = pytest.mark.spark


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
    spark: SparkSession, golden_store: GoldenStore, conf: Path
) -> None:
    def chosen(**options: str) -> object:
        reader = spark.read.format("rmqstore").option("columns", "topic,queueId,queueOffset,body")
        return reader.options(**options).load().orderBy("topic", "queueId", "queueOffset")

    assert_df_equality(chosen(conf=str(conf)), chosen(path=str(golden_store("live"))))
    view = spark.read.format("rmqstore").option("view", "stores").option("conf", str(conf)).load()
    (row,) = view.collect()
    assert (row["brokerName"], row["brokerAddr"]) == ("mine", "10.0.0.1:10911")


def test_a_write_goes_to_the_store_of_the_file(spark: SparkSession, conf: Path) -> None:
    rows = spark.createDataFrame([("New", "x")], "topic string, body string")
    rows.write.format("rmqstore").mode("append").option("conf", str(conf)).save()
    with rmqstore.open(conf=conf) as store:
        assert store.count(subscribe="New") == 1
    assert not (conf.parent / "store" / "commitlog").exists()
