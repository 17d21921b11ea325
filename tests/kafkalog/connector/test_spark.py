"""Kafka's log directories through Spark: what the consumers of a broker got, and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import kafka_logs as golden
from pyspark_rmqstore.kafka_columns import kafka_schema

pytestmark = pytest.mark.spark

TYPES = {name: number for number, name in golden.TIMESTAMP_TYPES.items()}
Unpack = Callable[[str], Path]


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    return cache(lambda name: golden.unpack(name, tmp_path_factory.mktemp(name)))


def load(spark: SparkSession, path: Path | list[Path], **options: object) -> DataFrame:
    reader = spark.read.format("kafkalog")
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load([str(one) for one in path] if isinstance(path, list) else str(path))


def expected(spark: SparkSession, name: str, *, only_committed: bool = False) -> DataFrame:
    """Return the key of a golden store as a frame of Spark's Kafka source."""
    rows = [
        (
            _bytes(row["key"]), _bytes(row["value"]), row["topic"], row["partition"],
            row["offset"], row["timestamp"], TYPES[row["timestampType"]],
            [(header, _bytes(value)) for header, value in row["headers"]] or None,
        )
        for records in golden.records(name).values()
        for row in records
        if row["committed"] or not only_committed
    ]  # fmt: skip
    schema = kafka_schema(include_headers=True)
    as_long = StructType.fromJson(schema.jsonValue())
    as_long["timestamp"].dataType = as_long["offset"].dataType
    frame = spark.createDataFrame(rows, as_long)
    return frame.selectExpr(
        *(
            f"timestamp_millis({field}) AS timestamp" if field == "timestamp" else field
            for field in schema.fieldNames()
        )
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def in_order(frame: DataFrame) -> DataFrame:
    return frame.orderBy("topic", "partition", "offset")


@pytest.mark.parametrize("name", ["plain", "txn", "old", "crash2", "epochs"])
def test_every_record_is_as_a_consumer_got_it(
    spark: SparkSession, unpack: Unpack, name: str
) -> None:
    (first, *_) = golden.log_dirs(name, unpack(name))
    held = load(spark, first, subscribePattern=".*", includeHeaders="true")
    partitions = held.select("topic", "partition").distinct()
    key = expected(spark, name).join(partitions, ["topic", "partition"], "left_semi")
    key = key.select(*held.columns)
    assert_df_equality(in_order(held), in_order(key), ignore_nullable=True)
    assert held.count() > 0


def test_only_committed_records(spark: SparkSession, unpack: Unpack) -> None:
    options = {"subscribe": golden.topics("txn"), "kafka__isolation__level": "read_committed"}
    read = load(spark, unpack("txn"), **options).drop("headers")
    key = expected(spark, "txn", only_committed=True).drop("headers")
    assert_df_equality(in_order(read), in_order(key), ignore_nullable=True)
    assert key.count() < expected(spark, "txn").count()


def test_some_columns_and_many_tasks(spark: SparkSession, unpack: Unpack) -> None:
    read = load(spark, unpack("plain"), subscribe="Plain", minPartitions=9)
    assert read.rdd.getNumPartitions() == 9
    key = expected(spark, "plain").where("topic = 'Plain'")
    for columns in (["offset", "value"], ["topic"], ["partition", "timestamp"]):
        one, other = read.select(*columns), key.select(*columns)
        assert_df_equality(one.orderBy(*columns), other.orderBy(*columns), ignore_nullable=True)
    with_schema = spark.read.format("kafkalog").schema("offset LONG, topic STRING")
    chosen = with_schema.option("subscribe", "Plain").load(str(unpack("plain")))
    assert chosen.columns == ["offset", "topic"]
    assert chosen.count() == key.count()


def test_bounds_by_offset_and_time(spark: SparkSession, unpack: Unpack) -> None:
    records = golden.records("plain")["Plain", 0]
    middle = records[len(records) // 2]
    options = {
        "assign": '{"Plain":[0]}',
        "startingOffsets": f'{{"Plain":{{"0":{middle["offset"]}}}}}',
        "endingOffsets": f'{{"Plain":{{"0":{middle["offset"] + 3}}}}}',
    }
    offsets = [row.offset for row in load(spark, unpack("plain"), **options).collect()]
    assert offsets == [
        row["offset"] for row in records if 0 <= row["offset"] - middle["offset"] < 3
    ]
    queries = golden.bounds("plain")["Plain", 0]["offsetsForTimes"]
    time, offset = next((row[0], row[1]) for row in queries if row[1] is not None and row[1] > 0)
    since = load(spark, unpack("plain"), assign='{"Plain":[0]}', startingTimestamp=time)
    assert since.count() == sum(row["offset"] >= offset for row in records)
    until = load(spark, unpack("plain"), assign='{"Plain":[0]}', endingTimestamp=time)
    assert until.count() == sum(row["offset"] < offset for row in records)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "Plane"}, "has no topic Plane; did you mean Plain?"),
        ({"assign": '{"Plain":[0,77]}'}, "has no partition Plain-77"),
        ({"subscribe": "Plain", "startingOffsets": '{"a":{"0":1}}'}, "a-0, which is not read"),
        ({"subscribe": "Plain", "startingTimestamp": "99999999999999"},
         "startingOffsetsByTimestampStrategy=latest"),
        ({"assign": '{"Plain":[0]}', "startingOffsets": '{"Plain":{"0":9999999}}'},
         "failOnDataLoss=false reads on without it"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(
    spark: SparkSession, unpack: Unpack, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, unpack("plain"), **options).collect()
    assert reason in str(caught.value)


def test_data_loss_that_is_not_to_fail(spark: SparkSession, unpack: Unpack) -> None:
    read = load(
        spark, unpack("plain"), assign='{"Plain":[0,1]}', failOnDataLoss="false",
        startingOffsets='{"Plain":{"0":9999999,"1":-2}}',
    )  # fmt: skip
    assert read.where("partition = 0").count() == 0
    assert read.where("partition = 1").count() == len(golden.records("plain")["Plain", 1])


def test_damage(spark: SparkSession, unpack: Unpack) -> None:
    topics = golden.topics("damaged")
    with pytest.raises(PySparkException, match="position"):
        load(spark, unpack("damaged"), subscribe=topics).collect()
    kept = load(spark, unpack("damaged"), subscribe=topics, mode="DROPMALFORMED")
    n_records = sum(map(len, golden.records("damaged").values()))
    assert kept.count() == n_records
    every = load(spark, unpack("damaged"), subscribe=topics, mode="PERMISSIVE")
    assert every.where("_corrupt_record IS NULL").count() == n_records
    damaged = every.where("_corrupt_record LIKE '%.log, %: %'").collect()
    assert len(damaged) == every.count() - n_records > 0
    assert {(row.value, row.timestamp, row.topic is None) for row in damaged} == {
        (None, None, False)
    }


def test_writing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1).selectExpr("CAST('a' AS BINARY) AS value")
    with pytest.raises(PySparkException, match="kafkalog only reads"):
        frame.write.format("kafkalog").mode("append").save(str(tmp_path))
