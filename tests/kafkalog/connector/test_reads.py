"""Batch reads by the steps that Spark takes: what consumers got, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import kafka_logs as golden
from connector.engine import Engine, Frame

Row = dict[str, Any]


def load(
    engine: Engine, path: Path | list[Path], *, schema: str | None = None, **options: object
) -> Frame:
    reader = engine.read.format("kafkalog")
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load([str(one) for one in path] if isinstance(path, list) else str(path))


def place(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"]


def expected(name: str, *, only_committed: bool = False) -> list[Row]:
    return sorted(golden.source_rows(name, only_committed=only_committed), key=place)


def in_order(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=place)


def chosen(rows: list[Row], columns: list[str]) -> list[Row]:
    return [{name: row[name] for name in columns} for row in rows]


@pytest.mark.parametrize("name", ["plain", "txn", "old", "crash2", "epochs"])
def test_every_record_is_as_a_consumer_got_it(
    engine: Engine, kafka_store: golden.Golden, name: str
) -> None:
    (first, *_) = golden.log_dirs(name, kafka_store(name))
    found = load(engine, first, subscribePattern=".*", includeHeaders="true").toArrow()
    folders = {folder.name for log_dir in first for folder in log_dir.iterdir()}
    assert in_order(found) == [
        row
        for row in expected(name)
        if f"{row['topic']}-{row['partition']}" in folders and not row["topic"].startswith("__")
    ]
    assert found.num_rows > 0


def test_columns_have_the_types_of_sparks_kafka_source(
    engine: Engine, kafka_store: golden.Golden
) -> None:
    read = load(engine, kafka_store("txn"), subscribe="Tx", includeHeaders="true")
    assert read.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in load(engine, kafka_store("txn"), subscribe="Tx").columns


def test_only_committed_records(engine: Engine, kafka_store: golden.Golden) -> None:
    options = {"subscribe": golden.topics("txn"), "kafka__isolation__level": "read_committed"}
    found = in_order(load(engine, kafka_store("txn"), includeHeaders="true", **options).toArrow())
    assert found == expected("txn", only_committed=True)
    assert len(found) < len(expected("txn"))


def test_some_columns_and_many_tasks(engine: Engine, kafka_store: golden.Golden) -> None:
    read = load(engine, kafka_store("plain"), subscribe="Plain", minPartitions=9)
    assert len(read.tasks()) == 9
    key = [row for row in expected("plain") if row["topic"] == "Plain"]
    columns_of = ("offset LONG, value BINARY", "topic STRING", "partition INT, timestamp TIMESTAMP")
    for schema in columns_of:
        columns = [column.split()[0] for column in schema.split(", ")]
        wanted = sorted(chosen(key, columns), key=repr)
        assert sorted(read.select(*columns).toArrow().to_pylist(), key=repr) == wanted
        narrow = load(engine, kafka_store("plain"), schema=schema, subscribe="Plain")
        assert narrow.columns == columns
        assert sorted(narrow.toArrow().to_pylist(), key=repr) == wanted


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "Plane"}, "has no topic Plane; did you mean Plain?"),
        ({"assign": '{"Plain":[0,77]}'}, "has no partition Plain-77"),
        ({"subscribe": "Plain", "startingOffsets": '{"a":{"0":1}}'}, "a-0, which is not read"),
        ({"subscribe": "Plain", "startingTimestamp": "99999999999999"},
         "startingOffsetsByTimestampStrategy=latest"),
        ({"assign": '{"Plain":[0]}', "startingOffsets": '{"Plain":{"0":9999999}}'},
         "failOnDataLoss=false reads on"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(
    engine: Engine, kafka_store: golden.Golden, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(engine, kafka_store("plain"), **options).collect()
    assert reason in str(caught.value)


def test_data_loss_that_is_not_to_fail(engine: Engine, kafka_store: golden.Golden) -> None:
    read = load(
        engine, kafka_store("plain"), assign='{"Plain":[0,1]}', failOnDataLoss="false",
        startingOffsets='{"Plain":{"0":9999999,"1":-2}}',
    )  # fmt: skip
    partitions = read.toArrow().column("partition").to_pylist()
    assert partitions == [1] * len(golden.records("plain")["Plain", 1])


def test_damage(engine: Engine, kafka_store: golden.Golden) -> None:
    topics = golden.topics("damaged")
    with pytest.raises(PySparkException, match="position"):
        load(engine, kafka_store("damaged"), subscribe=topics).collect()
    kept = load(engine, kafka_store("damaged"), subscribe=topics, mode="DROPMALFORMED")
    n_records = sum(map(len, golden.records("damaged").values()))
    assert kept.count() == n_records
    every = load(engine, kafka_store("damaged"), subscribe=topics, mode="PERMISSIVE").collect()
    assert sum(row["_corrupt_record"] is None for row in every) == n_records
    damaged = [row for row in every if row["_corrupt_record"] is not None]
    assert damaged
    for row in damaged:
        assert re.search(r"\.log, .+: ", row["_corrupt_record"])
    known = {(row.value, row.timestamp, row.topic is None) for row in damaged}
    assert known == {(None, None, False)}
