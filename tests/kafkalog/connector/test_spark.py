"""Kafka's log directories through Spark itself: what needs its JVM, on a store or two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

import kafka_logs as golden
from pyspark_rmqstore.schema import kafka_schema

pytestmark = pytest.mark.spark


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("kafkalog")
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load(str(path))


def test_every_record_is_as_a_consumer_got_it(
    spark: SparkSession, kafka_store: golden.Golden
) -> None:
    rows = [row for row in golden.source_rows("txn") if not row["topic"].startswith("__")]
    key = spark.createDataFrame(rows, kafka_schema(include_headers=True))
    key = key.coalesce(1).sortWithinPartitions("topic", "partition", "offset")
    read = load(spark, kafka_store("txn"), subscribePattern=".*", includeHeaders="true")
    found = read.coalesce(1).sortWithinPartitions("topic", "partition", "offset")
    assert_df_equality(found, key)


def test_a_stream_gives_each_record_once_and_takes_up_new_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    log_dir = golden.make_log_dir(tmp_path / "logs", is_clean=False)
    checkpoint = tmp_path / "checkpoint"

    def run() -> list[bytes]:
        options = {"subscribePattern": ".*", "startingOffsets": "earliest"}
        found: list[bytes] = []
        query = (
            spark.readStream.format("kafkalog")
            .options(**options)
            .load(str(log_dir))
            .writeStream.foreachBatch(
                lambda batch, _: found.extend(bytes(row.value) for row in batch.collect())
            )
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    golden.write_segment(log_dir / "a-0", 0, golden.batch(0, [b"a 0", b"a 1"]))
    assert run() == [b"a 0", b"a 1"]
    golden.write_segment(log_dir / "a-0", 2, golden.batch(2, [b"a 2"]))
    golden.write_segment(log_dir / "b-3", 0, golden.batch(0, [b"b 0"]))
    assert run() == [b"a 2", b"b 0"]
    offsets = (checkpoint / "offsets" / "1").read_text().splitlines()[-1]
    assert {"a": {"0": 3}, "b": {"3": 1}}.items() <= json.loads(offsets).items()
