"""Reads that need Spark itself: its types, SQL, push-down, tasks and refusals, a case for each.

What the sources do under all options and on all stores is asked in this process: see `engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - its usual name
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import documented
import goldens
from connector.sparkreads import (
    GoldenStore,
    collect,
    in_log_order,
    in_queue_order,
    is_text,
    load,
    messages,
)
from connector.test_kafka_columns import KAFKA, WITH_HEADERS, write_orders
from connector.test_lookup import Condition, conditions
from reading import EVERY_COLUMN, TOLD_COLUMNS, Row, rows

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COMPARED = {
    "includeSystemTopics": "true",
    "columns": "topic,queueId,queueOffset,body,tags,keys,msgId,properties,storeTimestamp,"
    "commitLogOffset,brokerName",
}
TYPES = {name: column.sql.lower() for name, column in documented.COLUMNS.items()}


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def test_every_column_by_queue_comes_as_arrow(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    options = {"columns": ",".join(EVERY_COLUMN), "includeSystemTopics": "true"}
    frame = load(spark, golden_store("live"), **options)
    assert _types(frame.schema) == TYPES
    table = frame.toArrow()
    assert table.schema.types == to_arrow_schema(frame.schema, timezone="UTC").types
    assert in_queue_order(rows(table.select(TOLD_COLUMNS).to_batches())) == messages(
        "live", "broker-a"
    )


def test_a_schema_of_the_user_converts_as_spark_does(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    schema = (
        "body string, queueId bigint, commitLogOffset bigint, storeSize bigint, "
        "topic string NOT NULL, keys string"
    )
    found = load(spark, golden_store("v49"), schema=schema)
    columns = "body,queueId,commitLogOffset,storeSize,topic,keys"
    own = load(spark, golden_store("v49"), columns=columns)
    text = {row["commitLogOffset"] for row in messages("v49") if is_text(row["body"])}
    assert len(text) > 100
    has_text = F.col("commitLogOffset").isin(*text)
    converted = own.where(has_text).select(
        F.decode("body", "UTF-8").alias("body"), F.col("queueId").cast("bigint"), "commitLogOffset",
        F.col("storeSize").cast("bigint"), "topic", "keys",
    )  # fmt: skip
    assert_df_equality(found.where(has_text), converted, ignore_nullable=True)


def test_the_tasks_of_spark_keep_the_order_of_each_queue(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    frame = load(
        spark, golden_store("basic"), minPartitions="6",
        columns="topic,queueId,queueOffset", includeSystemTopics="true",
    )  # fmt: skip
    found = frame.select(F.spark_partition_id().alias("task"), "*").collect()
    assert len({row.task for row in found}) == frame.rdd.getNumPartitions() > 5
    assert [row.task for row in found] == sorted(row.task for row in found)
    queues: dict[tuple[str, int], list[int]] = {}
    for row in found:
        queues.setdefault((row.topic, row.queueId), []).append(row.queueOffset)
    assert queues == {
        queue: [row["queueOffset"] for row in expected]
        for queue, expected in goldens.queues("basic").items()
        if expected
    }


@contextmanager
def switched_on(spark: SparkSession, setting: str) -> Iterator[None]:
    spark.conf.set(setting, "true")
    try:
        yield
    finally:
        spark.conf.unset(setting)


def whole_by_condition(
    spark: SparkSession, path: Path, some: list[Condition]
) -> dict[int, list[Row]]:
    """Return the rows that meet each condition, none of which is pushed."""
    columns = [f"{one.where} AS condition{number}" for number, one in enumerate(some)]
    frame = load(spark, path, **COMPARED).selectExpr("*", *columns)
    found: dict[int, list[Row]] = {number: [] for number in range(len(some))}
    for row in in_log_order(collect(frame)):
        is_met = [row.pop(f"condition{number}") for number in range(len(some))]
        for number, rows_of_one in found.items():
            if is_met[number]:
                rows_of_one.append(row)
    return found


def each_where(spark: SparkSession, path: Path, some: list[Condition]) -> DataFrame:
    """Return the rows that meet each condition, by queue and by log in turn, in one frame."""
    frames = [
        load(spark, path, **COMPARED, scan=("queue", "commitlog")[number % 2])
        .where(one.where)
        .selectExpr(f"{number} AS condition", "*")
        for number, one in enumerate(some)
    ]
    return reduce(DataFrame.unionAll, frames)


def test_filters_that_spark_pushes_change_no_row(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    path, some = golden_store("live"), conditions("live")
    expected, frame = whole_by_condition(spark, path, some), each_where(spark, path, some)
    found: dict[int, list[Row]] = {number: [] for number in range(len(some))}
    with switched_on(spark, PUSHDOWN):
        for row in in_log_order(collect(frame)):
            found[row.pop("condition")].append(row)
    assert found == expected
    assert sum(map(len, found.values())) > 100, "the conditions must find rows"


def test_spark_gives_a_query_the_filters_of_the_one_before_but_not_with_option_where(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    """Where Spark gives all rows, it is mended: the manual and `pushFilters` warn of it."""
    path = golden_store("basic")
    n_all, n_met = len(messages("basic")), sum(row["queueId"] == 0 for row in messages("basic"))
    with switched_on(spark, PUSHDOWN):
        frame = load(spark, path, includeSystemTopics="true")
        assert (frame.where("queueId = 0").count(), frame.count()) == (n_met, n_met) < (n_all,)
        frame = load(spark, path, includeSystemTopics="true", where="queueId = 0")
        assert (frame.where("queueOffset < 0").count(), frame.count()) == (0, n_met)


def test_worker_logs_of_planning_say_how_much_is_left(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    with switched_on(spark, "spark.sql.pyspark.worker.logging.enabled"):
        load(spark, golden_store("basic"), where="topic = 'TopicA'").count()
        logged = [row["msg"] for row in spark.tvf.python_worker_logs().collect()]
    assert any(
        "the condition leaves 721 of 721" in text and text.endswith("topics TopicA")
        for text in logged
    ), logged


# ---- columns of Kafka

HEADERS = """transform(
    map_entries(map_filter(properties, (name, value) -> name IN ('color', 'sequence'))),
    header -> struct(header.key AS key, CAST(header.value AS BINARY) AS value)
)"""
BY_HAND = [
    "CAST(keys AS BINARY) AS key", "body AS value", "topic", "queueId AS partition",
    "queueOffset AS offset", "storeTimestamp AS timestamp", "1 AS timestampType",
    f"nullif({HEADERS}, array()) AS headers",
]  # fmt: skip


def test_the_columns_of_kafka_are_what_sql_makes_of_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = write_orders(tmp_path / "store")
    assert load(spark, root, columns="kafka").schema == KAFKA
    found = load(spark, root, columns="kafka", includeHeaders="true")
    assert found.schema == WITH_HEADERS
    expected = load(spark, root).selectExpr(*BY_HAND)
    assert_df_equality(found, expected, ignore_nullable=True)
    assert expected.count() == 4
    condition = (
        "topic = 'Orders' AND partition = 0 AND offset >= 0 AND key IS NOT NULL "
        "AND timestamp > '2020-01-01' AND length(value) > 1"
    )
    (row,) = load(spark, root, columns="kafka").where(condition).selectExpr("string(key)").collect()
    assert row.key == "größe"
