"""Messages in the columns of Spark's Kafka source: batches, streams, filters, options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, IsNotNull
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import rmqstore
from connector.sparkreads import GoldenStore, load
from pyspark_rmqstore.kafka_columns import as_kafka
from pyspark_rmqstore.options import parse_read_options, parse_stream_options
from pyspark_rmqstore.schema import default_schema
from pyspark_rmqstore.table_options import keep_options, stated_options
from pyspark_rmqstore.tasks import SplitReader
from rmqstore.errors import OptionError

# Source: KafkaRecordToRowConverter.scala
KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
WITH_HEADERS = StructType([*KAFKA, StructField("headers", ArrayType(HEADER))])
HEADERS = """transform(
    map_entries(map_filter(properties, (name, value) -> name IN ('color', 'sequence'))),
    header -> struct(header.key AS key, CAST(header.value AS BINARY) AS value)
)"""
BY_HAND = [
    "CAST(keys AS BINARY) AS key", "body AS value", "topic", "queueId AS partition",
    "queueOffset AS offset", "storeTimestamp AS timestamp", "1 AS timestampType",
]  # fmt: skip
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Return a store with messages that have keys and headers, or do not."""
    with rmqstore.create(tmp_path / "store") as writer:
        writer.append(
            pa.table(
                {
                    "topic": ["Orders", "Orders", "Other", "Orders"],
                    "queueId": pa.array([0, 1, 0, 0], pa.int32()),
                    "body": [b"a", b"", b"c", b"\xff\x00"],
                    "keys": ["order-1 customer-2", None, "k", "größe"],
                    "tags": ["t", None, None, "t"],
                    "properties": pa.array(
                        [
                            [("color", "red"), ("sequence", "1")],
                            [],
                            [("MSG_REGION", "hidden"), ("color", "grün")],
                            [("__BORNHOST", "hidden")],
                        ],
                        pa.map_(pa.string(), pa.string()),
                    ),
                }
            )
        )
    return tmp_path / "store"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def by_hand(spark: SparkSession, path: Path, *, headers: bool = False, **options: Any) -> DataFrame:
    """Return the same from the columns of messages."""
    frame = load(spark, path, **options)
    extra = [f"nullif({HEADERS}, array()) AS headers"] if headers else []
    return frame.selectExpr(*BY_HAND, *extra)


@pytest.mark.spark
def test_a_batch_has_exactly_the_columns_of_kafkas_source(
    spark: SparkSession, orders: Path
) -> None:
    frame = load(spark, orders, columns="kafka")
    assert frame.schema == KAFKA
    rows = {(row.topic, row.partition, row.offset): row for row in frame.collect()}
    assert [(bytes(row.key or b""), bytes(row.value)) for row in map(rows.get, sorted(rows))] == [
        (b"order-1 customer-2", b"a"), ("größe".encode(), b"\xff\x00"), (b"", b""), (b"k", b"c")
    ]  # fmt: skip
    assert rows["Orders", 1, 0].key is None
    assert {row.timestampType for row in rows.values()} == {1}
    with_headers = load(spark, orders, columns="kafka", includeHeaders="true")
    assert with_headers.schema == WITH_HEADERS
    found = {(row.topic, row.partition, row.offset): row.headers for row in with_headers.collect()}
    assert found == {
        ("Orders", 0, 0): [("color", b"red"), ("sequence", b"1")],
        ("Orders", 1, 0): None,
        ("Orders", 0, 1): None,
        ("Other", 0, 0): [("color", "grün".encode())],
    }
    expected = by_hand(spark, orders, headers=True)
    assert_df_equality(with_headers, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["live", "batch-cq"])
def test_the_rows_are_those_of_a_read_by_message_columns(
    pushing: SparkSession, golden_store: GoldenStore, name: str
) -> None:
    root = golden_store(name)
    some = load(pushing, root).first()
    assert some is not None
    for condition in (
        "true",
        f"topic = '{some.topic}' AND partition = {some.queueId} AND offset >= 2",
        f"timestamp > '{some.storeTimestamp}' AND offset < 9",
        "key IS NOT NULL",
        "length(value) > 10",
    ):
        found = load(pushing, root, columns="kafka").where(condition)
        expected = by_hand(pushing, root).where(condition)
        assert expected.take(1)
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
    projected = load(pushing, root, columns="kafka", schema="offset bigint, topic string")
    assert projected.columns == ["offset", "topic"]
    expected = by_hand(pushing, root).select("offset", "topic")
    assert_df_equality(projected, expected, ignore_row_order=True, ignore_nullable=True)
    only_type = load(pushing, root, columns="kafka", schema="timestampType int")
    assert only_type.groupBy("timestampType").count().collect() == [(1, expected.count())]


@pytest.mark.spark
def test_a_stream_has_the_same_columns(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    source = (
        spark.readStream.format("rmqstore")
        .option("columns", "kafka")
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load(str(orders))
    )
    assert source.schema == WITH_HEADERS
    query = (
        source.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.schema(WITH_HEADERS).parquet(str(tmp_path / "out"))
    expected = load(spark, orders, columns="kafka", includeHeaders="true")
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.spark
def test_a_job_that_read_kafka_changes_its_format_only(spark: SparkSession, orders: Path) -> None:
    frame = (
        spark.read.format("rmqstore")
        .option("columns", "kafka")
        .option("kafka.bootstrap.servers", "host1:9092")
        .option("kafka.sasl.jaas.config", "secret")
        .option("kafkaConsumer.pollTimeoutMs", "512")
        .option("fetchOffset.numRetries", "3")
        .option("groupIdPrefix", "job")
        .option("subscribe", "Orders")
        .option("startingOffsets", '{"Orders": {"0": 1, "1": -2}}')
        .option("endingOffsets", "latest")
        .option("failOnDataLoss", "false")
        .option("minPartitions", "2")
        .option("maxOffsetsPerTrigger", "1")
        .load(str(orders))
    )
    rows = frame.select("partition", "offset", frame.value.cast("string")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 1), (1, 0)]


def test_options_of_triggers_are_ignored_in_a_batch_as_by_kafka(
    orders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"path": str(orders), "columns": "kafka", "maxTriggerDelay": "1m"}
    parse_read_options({**given, "maxOffsetsPerTrigger": "1"})
    assert "maxOffsetsPerTrigger, maxTriggerDelay: ignored in a batch read" in caplog.text
    with pytest.raises(OptionError, match="maxBytesPerTrigger: for streams only"):
        parse_read_options({**given, "maxBytesPerTrigger": "1"})


def test_filters_on_these_columns_prune(orders: Path) -> None:
    options = parse_read_options({"path": str(orders), "columns": "kafka"})
    reader = SplitReader(default_schema(options), options)
    pushed = [
        EqualTo(("topic",), "Orders"),
        EqualTo(("partition",), 1),
        GreaterThanOrEqual(("offset",), 5),
        IsNotNull(("topic",)),
    ]
    left = [EqualTo(("key",), b"k"), GreaterThan(("timestampType",), 0), EqualTo(("value",), b"x")]
    assert reader.push([*pushed, *left]) == left
    assert str(reader.pushed.pruning) == "topics Orders; queue_ids 1; queue_offsets 5.."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "PERMISSIVE"}, "no column says what is damaged"),
        ({"includePending": "true"}, "no column says what is pending"),
        ({"columns": "topic", "includeHeaders": "true"}, "with columns=kafka only"),
        ({"columns": "topic", "kafka.bootstrap.servers": "x"}, "unknown option"),
        ({"kafkas": "x"}, "unknown option"),
    ],
    ids=str,
)
def test_options_that_do_not_go_with_it_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_read_options({"path": "/x", "columns": "kafka", **options})


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # PySpark parses a schema in the JVM
@pytest.mark.parametrize(
    "schema", ["body binary", "key string", "offset int", "key binary NOT NULL", "headers string"]
)
def test_a_schema_of_other_columns_is_refused(schema: str) -> None:
    options = parse_read_options({"path": "/x", "columns": "Kafka"})
    fields = StructType.fromDDL(schema)
    with pytest.raises(OptionError, match=re.escape("not one of the columns of columns=kafka")):
        SplitReader(fields, options)


def test_a_stream_takes_the_options_of_kafkas_source() -> None:
    options = parse_stream_options(
        {
            "path": "/x", "columns": "kafka", "kafka.group.id": "g", "maxOffsetsPerTrigger": "5",
            "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1m", "subscribePattern": "O.*",
            "startingOffsetsByTimestamp": '{"O": {"0": 1700000000000}}',
        }
    )  # fmt: skip
    assert options.read.is_kafka


def test_a_table_keeps_no_option_of_a_kafka_client() -> None:
    given = {
        "provider": "rmqstore", "option.columns": "kafka", "option.path": "/x",
        "option.kafka.sasl.jaas.config": "secret",
    }  # fmt: skip
    stated = stated_options(given)
    assert stated == {"columns": "kafka", "path": "/x"}
    assert "secret" not in keep_options(KAFKA, stated).json()


def test_slices_of_batches_keep_their_headers() -> None:
    properties = pa.array(
        [[("a", "1"), ("KEYS", "k")], [], [("b", "2")], [("TAGS", "t")], [("c", "3"), ("d", "4")]],
        pa.map_(pa.string(), pa.string()),
    )
    batch = pa.record_batch({"properties": properties})
    expected = [[("a", b"1")], None, [("b", b"2")], None, [("c", b"3"), ("d", b"4")]]
    for start in range(5):
        for stop in range(start, 6):
            rows = as_kafka(batch.slice(start, stop - start), ["headers"]).column(0).to_pylist()
            found = [row and [(header["key"], header["value"]) for header in row] for row in rows]
            assert found == expected[start:stop]
