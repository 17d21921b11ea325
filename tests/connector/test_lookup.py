"""Look-ups and pushed filters through Spark: the same rows as without them, from fewer bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import goldens
import store_builder as build
from connector.sparkreads import GoldenStore, collect, in_log_order, load, offsets
from pyspark_rmqstore.batch_reader import FilteringReader, RmqStoreReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.packing import splits_of
from pyspark_rmqstore.planning import LogSplit, QueueSplit, RecordSplit, UnitSplit
from pyspark_rmqstore.schema import default_schema
from pyspark_rmqstore.source import RmqStoreDataSource

pytestmark = pytest.mark.spark
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
STORES = ["basic", "crash", "expired", "live"]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session that pushes filters down."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def conditions(name: str) -> list[str]:
    """Return WHERE clauses that some rows of a store meet."""
    some = goldens.lines(name, "expected")
    one, other = some[len(some) // 3], some[len(some) // 2]
    keyed = next(row for row in some if row["keys"] and " " in row["keys"])
    times = sorted((one["storeTimestamp"], other["storeTimestamp"]))
    low, high = sorted((one["physicalOffset"], other["physicalOffset"]))
    ids = [row["properties"]["UNIQ_KEY"] for row in some[::40] if "UNIQ_KEY" in row["properties"]]
    return [
        f"topic = '{one['topic']}' AND queueId = {one['queueId']}",
        f"topic IN ('{one['topic']}', 'absent') AND queueOffset BETWEEN 3 AND 11",
        f"topic LIKE '{one['topic'][:3]}%' AND NOT queueId = 0",
        f"commitLogOffset > {low} AND commitLogOffset <= {high}",
        f"storeTimestamp BETWEEN timestamp_millis({times[0]}) AND timestamp_millis({times[1]})",
        f"storeTimestamp < timestamp_millis({times[0]}) AND tags IS NOT NULL",
        f"storeTimestamp IN (timestamp_millis({times[0]}), timestamp_millis({times[1]}))",
        "tags = 'TagA'", "tags IN ('TagA', 'TagB') AND queueOffset < 5", "tags IS NULL",
        "tags <> 'TagA'", f"keys = '{keyed['keys']}'", f"keys IN ('{keyed['keys']}', 'none', null)",
        "keys = 'none'", "keys = ''", f"msgId = '{ids[0]}'",
        f"msgId IN ({', '.join(repr(one) for one in ids)})", f"msgId = '{one['msgId']}'",
        f"msgId = '{ids[0]}' AND storeTimestamp > timestamp_millis({times[0]})",
        "queueOffset = 1 OR queueOffset = 4", "queueOffset > 9 AND queueOffset < 3", "topic > 'T'",
        "queueId <=> 1", "brokerName = 'nobody'", "body IS NOT NULL AND queueOffset >= 2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_the_rows_are_the_same_with_filters_pushed_and_not(
    name: str, spark: SparkSession, golden_store: GoldenStore
) -> None:
    path, n_rows = golden_store(name), 0
    for scan in ("queue", "commitlog"):
        for where in conditions(name):
            answers = []
            for pushed in ("true", "false"):
                spark.conf.set(PUSHDOWN, pushed)
                frame = load(spark, path, scan=scan, includeSystemTopics="true").where(where)
                answers.append(in_log_order(collect(frame)))
            assert answers[0] == answers[1], where
            n_rows += len(answers[0])
    spark.conf.unset(PUSHDOWN)
    assert n_rows > 100, "the clauses must find rows"


def test_explain_names_what_was_pushed(pushing: SparkSession, golden_store: GoldenStore) -> None:
    frame = load(pushing, golden_store("basic")).where(
        "topic = 'TopicA' AND tags = 'TagA' AND body IS NOT NULL"
    )
    mode = pushing._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    plan = frame._jdf.queryExecution().explainString(mode)
    pushed = next(line for line in plan.splitlines() if line.startswith("PushedFilters"))
    assert "EqualTo(topic,TopicA)" in pushed
    assert "EqualTo(tags,TagA)" in pushed
    assert "body" not in pushed


def test_worker_logs_say_how_much_is_left(pushing: SparkSession, golden_store: GoldenStore) -> None:
    pushing.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        assert load(pushing, golden_store("basic")).where("topic = 'TopicA'").count()
        messages = [row["msg"] for row in pushing.tvf.python_worker_logs().collect()]
    finally:
        pushing.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert any(
        "pushed filters leave 721 of 721" in text and text.endswith("topics TopicA")
        for text in messages
    ), messages


def reader(path: object, *filters: Filter, **options: str) -> tuple[FilteringReader, list[Filter]]:
    """Return a reader that was given filters, and those that it left to Spark."""
    parsed = parse_read_options({"path": str(path), **options})
    found = FilteringReader(default_schema(parsed), parsed)
    return found, list(found.pushFilters(list(filters)))


def n_messages(found: FilteringReader) -> int:
    splits = [split for task in found.partitions() for split in splits_of(task)]
    assert all(isinstance(split, QueueSplit | UnitSplit) for split in splits)
    ranges = [piece for split in splits if isinstance(split, QueueSplit) for piece in split.slices]
    single = [split for split in splits if isinstance(split, UnitSplit)]
    return sum(piece.end - piece.start for piece in ranges) + sum(
        len(one.picked.physical_offsets) for one in single
    )


def test_each_filter_leaves_less_to_be_planned(golden_store: GoldenStore) -> None:
    path = golden_store("live")
    rows = goldens.lines("live", "expected")
    one = next(
        row for row in rows if row["topic"] == "LivePlain" or row["topic"].startswith("Live")
    )
    whole = n_messages(reader(path)[0])
    key = one["properties"]["UNIQ_KEY"]
    for filters, most in [
        ([EqualTo(("topic",), one["topic"])], sum(row["topic"] == one["topic"] for row in rows)),
        ([In(("topic",), (one["topic"],)), EqualTo(("queueId",), 0)], whole // 2),
        ([StringStartsWith(("topic",), one["topic"][:5])], whole - 1),
        ([LessThanOrEqual(("queueOffset",), 0)], len(goldens.queues("live"))),
        ([LessThanOrEqual(("commitLogOffset",), rows[0]["physicalOffset"])], whole - 1),
        ([EqualTo(("msgId",), key)], 8), ([In(("msgId",), (key, "none"))], 8),
        ([EqualTo(("keys",), "none")], 0),
    ]:  # fmt: skip
        found, left = reader(path, *filters)
        assert left == []
        assert n_messages(found) <= most, filters


def test_what_cannot_be_answered_is_left_to_spark(golden_store: GoldenStore) -> None:
    filters = [
        EqualTo(("body",), b""), Not(EqualTo(("topic",), "T")), GreaterThan(("topic",), "T"),
        EqualTo(("queueId",), "text"), EqualTo(("properties", "a"), "b"),
        EqualTo(("queueOffset",), 1 << 70), StringStartsWith(("keys",), "k"),
        EqualTo(("absent",), 1),
    ]  # fmt: skip
    found, left = reader(golden_store("basic"), *filters)
    assert left == filters
    assert n_messages(found) == n_messages(reader(golden_store("basic"))[0])


def test_a_reader_takes_filters_exactly_when_spark_pushes_them(
    golden_store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RmqStoreDataSource({"path": str(golden_store("one"))})
    plain = source.reader(source.schema())
    assert type(plain) is RmqStoreReader
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", object())
    assert type(source.reader(source.schema())) is FilteringReader


@pytest.mark.parametrize("name", ["basic", "live", "crash3"])
def test_a_look_up_by_keys_is_one_pass_over_what_the_index_gives(
    name: str, spark: SparkSession, golden_store: GoldenStore
) -> None:
    records = [row for row in goldens.records(name) if row["sysFlag"] & 12 != 12]
    keys = sorted({row["key"] for row in goldens.lines(name, "keys")})[::6]
    right = {
        row["physicalOffset"] for row in records
        if row["uniqKey"] in keys or set((row["keys"] or "").split(" ")) & set(keys)
    }  # fmt: skip
    found = collect(
        load(spark, golden_store(name), msgKey=json.dumps(keys), includeSystemTopics="true")
    )
    assert offsets(found) == right
    options = {
        "path": str(golden_store(name)),
        "msgKey": json.dumps(keys),
        "includeSystemTopics": "true",
    }
    parsed = parse_read_options(options)
    tasks = RmqStoreReader(default_schema(parsed), parsed).partitions()
    splits = [split for task in tasks for split in splits_of(task)]
    assert sum(isinstance(split, RecordSplit) for split in splits) == (name != "crash3")
    assert any(isinstance(split, LogSplit) for split in splits) or name == "live"
    only = collect(load(spark, golden_store(name), msgKey=json.dumps(keys),
                        includeSystemTopics="true", indexOnly="true"))  # fmt: skip
    assert offsets(only) <= right
    assert bool(only) == (name != "crash3")


def test_ids_limits_columns_and_tasks_go_together(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    path = golden_store("basic")
    records = goldens.records("basic")
    every = [
        row["physicalOffset"]
        for row in records
        if "order-25" in (row["keys"] or "").split(" ")
        and row["topic"] == "TopicA"
        and row["sysFlag"] & 12 != 12
    ]
    query: dict[str, Any] = {
        "msgKey": "order-25",
        "subscribe": "TopicA",
        "columns": "commitLogOffset",
    }
    assert offsets(collect(load(spark, path, **query))) == set(every)
    assert offsets(collect(load(spark, path, **query, msgKeyLimit="2"))) == set(every[-2:])
    cut = load(spark, path, **query, maxRecordsPerPartition="1")
    assert cut.rdd.getNumPartitions() >= len(every)
    assert offsets(collect(cut)) == set(every)
    with_tags = [
        row["physicalOffset"]
        for row in goldens.lines("basic", "expected")
        if (row["topic"], row["tags"]) == ("TopicA", "TagA")
    ]
    by_tags = {"msgTags": "TagA", "subscribe": "TopicA", "columns": "commitLogOffset"}
    assert with_tags
    assert offsets(collect(load(spark, path, **by_tags))) == set(with_tags)
    newest = offsets(collect(load(spark, path, **by_tags, msgKeyLimit="1")))
    assert newest == {max(with_tags)}
    some = goldens.lines("basic", "expected")[::97]
    ids = [row["msgId"] for row in some]
    found = collect(load(spark, path, msgId=json.dumps(ids), includeSystemTopics="true"))
    assert {row["commitLogOffset"] for row in found} == {row["physicalOffset"] for row in some}


def test_filters_meet_a_look_up(pushing: SparkSession, golden_store: GoldenStore) -> None:
    frame = load(pushing, golden_store("basic"), msgKey="order-25", includeSystemTopics="true")
    every = in_log_order(collect(frame))
    assert in_log_order(collect(frame.where("topic = 'TopicA' AND queueId > 0"))) == [
        row for row in every if row["topic"] == "TopicA" and row["queueId"] > 0
    ]


def test_a_limit_counts_before_conditions_and_stops_at_damage_as_the_mode_says(
    pushing: SparkSession, tmp_path: Path
) -> None:
    store = build.Store()
    for number, tag in enumerate(["TagA", "TagA", "TagB", "TagB"]):
        properties = build.properties({"KEYS": "K", "TAGS": tag})
        record = build.Record(
            body_crc=None, store_timestamp=build.T0 + number, properties=properties
        )
        store.append(record, tags=tag)
    root = store.write(tmp_path / "s")
    newest = load(pushing, root, msgKey="K", msgKeyLimit="2")
    assert newest.where("tags = 'TagB'").count() == 2
    assert newest.where("tags = 'TagA'").count() == 0
    store.append(
        build.Record(
            body_crc=1, store_timestamp=build.T0 + 9, properties=build.properties({"KEYS": "K"})
        )
    )
    root = store.write(tmp_path / "damaged")
    with pytest.raises(PySparkException, match="CRC"):
        load(pushing, root, msgKey="K", msgKeyLimit="1").collect()
    assert load(pushing, root, msgKey="K", msgKeyLimit="1", mode="DROPMALFORMED").count() == 1


def test_a_look_up_that_cannot_be_is_refused(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    for options, named in [
        ({"msgKey": "a b"}, "blank"), ({"msgKey": "[1]"}, "JSON list of texts"),
        ({"msgKeyLimit": "3"}, "msgKey"),
        ({"msgKey": "a", "startingOffsets": '{"TopicA":{"0":1}}'}, "startingTimestamp"),
    ]:  # fmt: skip
        with pytest.raises(PySparkException, match=named):
            load(spark, golden_store("basic"), **options).collect()


def test_an_sql92_filter_keeps_what_the_broker_would_deliver(
    spark: SparkSession, golden_store: GoldenStore
) -> None:
    rows = [row for row in goldens.lines("basic", "expected") if row["topic"] == "TopicA"]
    right = {
        row["physicalOffset"]
        for row in rows
        if row["properties"].get("TAGS") == "TagA" and "KEYS" in row["properties"]
    }
    assert 0 < len(right) < len(rows)
    sql92 = "TAGS = 'TagA' AND KEYS IS NOT NULL"
    for scan in ("queue", "commitlog"):
        frame = load(spark, golden_store("basic"), subscribe="TopicA", filter=sql92, scan=scan)
        assert right <= offsets(collect(frame))
        if scan == "queue":
            assert offsets(collect(frame)) == right
    with pytest.raises(PySparkException, match="filter"):
        load(spark, golden_store("basic"), filter="a = ").collect()


def test_pending_messages_come_with_their_real_topic_and_queue(
    pushing: SparkSession, golden_store: GoldenStore
) -> None:
    frame = load(pushing, golden_store("live"), includePending="true")
    assert frame.columns[-2:] == ["pending", "dueTimestamp"]
    found = {
        (row.keys, row.topic, row.queueId, row.queueOffset)
        for row in frame.where("pending = 'transaction'").collect()
    }
    assert found == {(f"tx-{number}", "LiveTx", 1 - number % 2, None) for number in range(2, 18, 3)}
    assert frame.where("topic = 'LiveDelay' AND pending IS NOT NULL").count() == 15
    plain = load(pushing, golden_store("live")).count()
    assert frame.where("pending IS NULL").count() == plain
    with pytest.raises(PySparkException, match="includePending"):
        load(pushing, golden_store("live"), includePending="true", scan="commitlog").collect()
