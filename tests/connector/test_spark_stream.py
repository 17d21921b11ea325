"""Streams that need Spark itself: its triggers, checkpoints and threads, a case for each.

What the source and the sink do under all options is asked in this process: see `engine.py`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmqstore
from connector.streams import add, delivered, drain
from connector.test_stream_read import EARLIEST, end_offset, failure, numbered, rows
from connector.test_stream_write import by_queue, copy, source_store
from reading import column
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.log.writer_notes import read_commits
from written import require_valid

pytestmark = pytest.mark.spark


def test_triggers_are_limited_and_a_query_that_is_started_again_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    add(tmp_path / "s", ("A", 0, numbered(0, 30)), ("B", 3, numbered(0, 10)))
    options = EARLIEST | {"brokerName": "b", "maxOffsetsPerTrigger": "20"}
    found = drain(spark, tmp_path / "s", tmp_path / "q", **options)
    assert [one["numInputRows"] for one in found] == [20, 20]
    assert end_offset(found[0])["queues"] == {"A": {"b": {"0": 15}}, "B": {"b": {"3": 5}}}
    assert found[0]["sources"][0]["latestOffset"]["queues"] == {
        "A": {"b": {"0": 30}},
        "B": {"b": {"3": 10}},
    }
    add(tmp_path / "s", ("A", 0, numbered(30, 35)))
    (found,) = drain(spark, tmp_path / "s", tmp_path / "q", **options)
    assert found["numInputRows"] == 5
    assert delivered(spark, tmp_path / "q") == {("A", 0): rows(0, 35), ("B", 3): rows(0, 10)}


def test_a_stream_copies_store_to_store_in_the_order_of_each_queue_and_each_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, sink, checkpoint = (
        source_store(tmp_path / "a", 40), tmp_path / "b", tmp_path / "checkpoint",
    )  # fmt: skip
    assert copy(spark, source, sink, checkpoint) == 2
    assert by_queue(sink) == by_queue(source)
    add(source, ("A", 1, numbered(40, 60)))
    assert copy(spark, source, sink, checkpoint) == 1
    # killed between the sink's commit and Spark's own note of it: Spark runs the batch again
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    assert copy(spark, source, sink, checkpoint) == 1
    assert by_queue(sink) == by_queue(source)
    require_valid(sink)
    with rmqstore.open(sink) as store:
        commits = read_commits(find_store(sink))
        assert [each.version for each in commits] == [0, 1, 2]
        assert len({each.app_id for each in commits}) == 1
        assert sum(each.n_records for each in commits) == store.count()
        assert str(commits[0].app_id).startswith("query:")
    assert not (sink / ".rmqstore" / "staging").exists()


def test_output_modes_but_append_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("rate").load().selectExpr("'T' AS topic", "string(value) AS body")
    )
    counts = frame.groupBy("topic").agg({"body": "max"}).withColumnRenamed("max(body)", "body")
    writer = counts.writeStream.format("rmqstore").outputMode("complete").trigger(availableNow=True)
    started = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert "can only be appended to" in failure(
        lambda: started.start(str(tmp_path / "b")).awaitTermination()
    )


def test_the_stores_checkpoint_and_ledgers_of_0_1_0_are_continued(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Release 0.1.0 appended ten rows to `source` with txnVersion 1 and copied them to `target`.
    with tarfile.open(Path(__file__).with_name("made-by-0.1.0.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    source, target = tmp_path / "source", tmp_path / "target"

    def append(version: int) -> None:
        rows = [("T0", bytearray(b"version %d, %d" % (version, row)), "tag") for row in range(10)]
        frame = spark.createDataFrame(rows, "topic string, body binary, tags string")
        transaction = {"txnAppId": "upgrade", "txnVersion": str(version)}
        frame.write.format("rmqstore").mode("append").options(**transaction).save(str(source))

    def bodies(root: Path) -> list[bytes]:
        return sorted(column(root, "body"))

    def copy_on() -> None:
        stream = spark.readStream.format("rmqstore").options(**EARLIEST).load(str(source))
        writer = stream.selectExpr("topic", "body", "tags").writeStream.format("rmqstore")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(target)).awaitTermination()

    append(1)  # is in the ledger already
    copy_on()
    assert bodies(target) == bodies(source) == [b"first %d" % row for row in range(10)]
    append(2)
    copy_on()
    assert len(bodies(target)) == 20
    assert bodies(target) == bodies(source)
    for root in (source, target):
        require_valid(root)
