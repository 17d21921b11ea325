"""Messages in the columns of Spark's Kafka source: batches, streams, filters, options."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    IsNotNull,
    LessThan,
)
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
from connector.engine import Engine, Frame, ddl, meets
from connector.sparkreads import GoldenStore, load
from connector.streams import rows_of
from pyspark_rmqstore.options import parse_read_options, parse_stream_options
from pyspark_rmqstore.pushdown import push_filters
from pyspark_rmqstore.schema import MADE_OF, as_kafka, default_schema, request_of
from pyspark_rmqstore.store_options import keep_options, user_options
from reading import Row
from rmqstore.errors import OptionError

# Source: KafkaRecordToRowConverter.scala
KAFKA = StructType(
    [
        StructField("key", BinaryType()), StructField("value", BinaryType()),
        StructField("topic", StringType()), StructField("partition", IntegerType()),
        StructField("offset", LongType()), StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)  # fmt: skip
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
WITH_HEADERS = StructType([*KAFKA, StructField("headers", ArrayType(HEADER))])


def write_orders(root: Path) -> Path:
    with rmqstore.create(root) as writer:
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
    return root


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    return write_orders(tmp_path / "store")


def in_order(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def in_kafkas_columns(frame: Frame) -> list[Row]:
    return in_order(frame.toArrow().to_pylist())


def by_hand(frame: Frame) -> list[Row]:
    """Return the same from the columns of messages."""
    return in_order(
        {
            "key": None if row["keys"] is None else row["keys"].encode(),
            "value": row["body"],
            "topic": row["topic"],
            "partition": row["queueId"],
            "offset": row["queueOffset"],
            "timestamp": row["storeTimestamp"],
            "timestampType": 1,
        }
        for row in frame.toArrow().to_pylist()
    )


def test_a_batch_has_exactly_the_columns_of_kafkas_source(engine: Engine, orders: Path) -> None:
    frame = load(engine, orders, columns="kafka")
    assert frame.schema == KAFKA
    rows = {(row.topic, row.partition, row.offset): row for row in frame.collect()}
    assert [(bytes(row.key or b""), bytes(row.value)) for row in map(rows.get, sorted(rows))] == [
        (b"order-1 customer-2", b"a"), ("größe".encode(), b"\xff\x00"), (b"", b""), (b"k", b"c")
    ]  # fmt: skip
    assert rows["Orders", 1, 0].key is None
    assert {row.timestampType for row in rows.values()} == {1}
    with_headers = load(engine, orders, columns="kafka", includeHeaders="true")
    assert with_headers.schema == WITH_HEADERS
    found = {(row.topic, row.partition, row.offset): row.headers for row in with_headers.collect()}
    assert found == {
        ("Orders", 0, 0): [("color", b"red"), ("sequence", b"1")],
        ("Orders", 1, 0): None,
        ("Orders", 0, 1): None,
        ("Other", 0, 0): [("color", "grün".encode())],
    }
    without = with_headers.select(*KAFKA.fieldNames())
    assert in_kafkas_columns(without) == by_hand(load(engine, orders))


@pytest.mark.parametrize("name", ["live", "batch-cq"])
def test_the_rows_are_those_of_a_read_by_message_columns(
    engine: Engine, golden_store: GoldenStore, name: str
) -> None:
    root = golden_store(name)
    messages = by_hand(load(engine, root))
    frame = load(engine, root, columns="kafka")
    some = frame.toArrow().slice(0, 1).to_pylist()[0]
    conditions: list[tuple[Filter, ...]] = [
        (),
        (EqualTo(("topic",), some["topic"]), EqualTo(("partition",), some["partition"]),
         GreaterThanOrEqual(("offset",), 2)),
        (GreaterThan(("timestamp",), some["timestamp"]), LessThan(("offset",), 9)),
        (IsNotNull(("key",)),),
    ]  # fmt: skip
    for condition in conditions:
        expected = [row for row in messages if all(meets(one, row) for one in condition)]
        assert expected
        assert in_kafkas_columns(frame.where(*condition).pushing()) == expected
    projected = load(engine, root, columns="kafka", schema="offset bigint, topic string")
    assert projected.columns == ["offset", "topic"]
    found = [(row.topic, row.offset) for row in projected.collect()]
    assert sorted(found) == sorted((row["topic"], row["offset"]) for row in messages)
    only_type = load(engine, root, columns="kafka", schema="timestampType int")
    assert only_type.collect() == [(1,)] * len(messages)


def test_a_stream_has_the_same_columns(engine: Engine, orders: Path, tmp_path: Path) -> None:
    source = (
        engine.readStream.format("rmqstore")
        .option("columns", "kafka")
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load(str(orders))
    )
    assert source.schema == WITH_HEADERS
    found = rows_of(source, tmp_path)
    expected = load(engine, orders, columns="kafka", includeHeaders="true")
    assert in_order(found) == in_kafkas_columns(expected)
    assert len(found) == 4


def test_a_job_that_read_kafka_changes_its_format_only(engine: Engine, orders: Path) -> None:
    frame = (
        engine.read.format("rmqstore")
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
    rows = frame.select("partition", "offset", "value").collect()
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in rows) == [
        (0, 1, b"\xff\x00"), (1, 0, b"")
    ]  # fmt: skip


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
    request = request_of(default_schema(options.columns), options)
    pushed = [
        EqualTo(("topic",), "Orders"), EqualTo(("partition",), 1),
        GreaterThanOrEqual(("offset",), 5), IsNotNull(("topic",)),
    ]  # fmt: skip
    left = [EqualTo(("key",), b"k"), GreaterThan(("timestampType",), 0), EqualTo(("value",), b"x")]
    where, rest = push_filters([*pushed, *left], request.schema, MADE_OF)
    assert rest == left
    assert where is not None
    assert str(where.pruning) == "topics Orders; queue_ids 1; queue_offsets 5.."


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


@pytest.mark.parametrize(
    "schema", ["body binary", "key string", "offset int", "key binary NOT NULL", "headers string"]
)
def test_a_schema_of_other_columns_is_refused(schema: str) -> None:
    options = parse_read_options({"path": "/x", "columns": "Kafka"})
    fields = ddl(schema)
    with pytest.raises(OptionError, match=re.escape("not one of the columns of columns=kafka")):
        request_of(fields, options)


def test_a_stream_takes_the_options_of_kafkas_source() -> None:
    options = parse_stream_options(
        {
            "path": "/x", "columns": "kafka", "kafka.group.id": "g", "maxOffsetsPerTrigger": "5",
            "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1m", "subscribePattern": "O.*",
            "startingOffsetsByTimestamp": '{"O": {"0": 1700000000000}}',
        }
    )  # fmt: skip
    assert options.read.columns.is_kafka


def test_a_table_keeps_no_option_of_a_kafka_client() -> None:
    given = {
        "provider": "rmqstore", "option.columns": "kafka", "option.path": "/x",
        "option.kafka.sasl.jaas.config": "secret",
    }  # fmt: skip
    stated = user_options(given)
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
