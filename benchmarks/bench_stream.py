"""Streams compared with a batch read of all messages, and a trigger over 16,000 queues.

Usage: python benchmarks/bench_stream.py STORE [--passes N]

A run is timed from start() until the query has ended; ``trigger`` is its only micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import report, spark_session
from pyspark.sql.streaming.datasource import ReadAllAvailable

import rmqstore
from pyspark_rmqstore.source import RmqStoreDataSource

N_TOPICS, N_QUEUES, N_EACH = 2000, 8, 10


def main() -> None:
    """Run both benchmarks and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.store.parent) as scratch:
        plan_many(Path(scratch) / "many", arguments.passes)
        run_to_the_present(arguments.store, Path(scratch), arguments.passes)


def many_queues(root: Path) -> None:
    """Make a store with 16,000 queues."""
    n = N_TOPICS * N_QUEUES * N_EACH
    numbers = np.arange(n)
    config = rmqstore.StoreConfig().updated({"mappedFileSizeConsumeQueue": 2000})
    names = pa.array([f"topic{number:04}" for number in range(N_TOPICS)])
    topics = names.take(pa.array(numbers % N_TOPICS))
    queue_ids = pa.array((numbers // N_TOPICS % N_QUEUES).astype(np.int32))
    bodies = pa.array([b"x" * 900]).take(pa.array(np.zeros(n, np.int64)))
    batch = pa.RecordBatch.from_arrays([topics, queue_ids, bodies], ["topic", "queueId", "body"])
    with rmqstore.create(root, config=config) as writer:
        writer.append(batch)


def plan_many(root: Path, passes: int) -> None:
    """Time the calls that a trigger makes to a source that follows 16,000 queues."""
    many_queues(root)
    seconds_by_call: dict[str, list[float]] = {}
    for _ in range(passes):
        plan_once(root, seconds_by_call)
    for name, seconds in seconds_by_call.items():
        report("stream planning, 16,000 queues", name, seconds=statistics.median(seconds))


def plan_once(root: Path, seconds_by_call: dict[str, list[float]]) -> None:
    """Make the calls that Spark makes to one source, first for all queues, then for a few."""

    def timed(name: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the call returns
        started = time.perf_counter()
        answer = call()
        seconds_by_call.setdefault(name, []).append(time.perf_counter() - started)
        return answer

    source = RmqStoreDataSource({"path": str(root), "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    limit = ReadAllAvailable()
    start = timed("first look", reader.initialOffset)
    end = timed("trigger, all queues have messages", lambda: reader.latestOffset(start, limit))
    timed("tasks, all queues have messages", lambda: reader.partitions(start, end))
    assert timed("idle trigger", lambda: reader.latestOffset(end, limit)) == end
    new = pa.RecordBatch.from_pydict({"topic": ["topic0001"] * 100, "body": [b"new"] * 100})
    with rmqstore.open(root, mode="a") as writer:
        writer.append(new)
        writer.flush()
        last = timed("trigger, 4 queues have messages", lambda: reader.latestOffset(end, limit))
        timed("tasks, 4 queues have messages", lambda: reader.partitions(end, last))
    reader.stop()


def run_to_the_present(store: Path, scratch: Path, passes: int) -> None:
    """Time a batch read and a stream, one after the other in each pass."""
    spark = spark_session()
    batch_seconds: list[float] = []
    run_seconds: list[float] = []
    trigger_seconds: list[float] = []
    n_rows = 0
    for number in range(passes + 1):
        started = time.perf_counter()
        spark.read.format("rmqstore").load(str(store)).write.format("noop").mode("overwrite").save()
        between = time.perf_counter()
        frame = (
            spark.readStream.format("rmqstore")
            .option("startingOffsets", "earliest")
            .load(str(store))
        )
        checkpoint = str(scratch / f"checkpoint{number}")
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        ended = time.perf_counter()
        if number:  # the first pass warms up
            (progress,) = (entry for entry in query.recentProgress if entry.numInputRows)
            n_rows = progress.numInputRows
            batch_seconds.append(between - started)
            run_seconds.append(ended - between)
            trigger_seconds.append(progress.durationMs["triggerExecution"] / 1000)
        print(f"pass {number} of {passes}", file=sys.stderr)
    spark.stop()
    report(
        "stream",
        "AvailableNow, noop",
        rows_per_second=n_rows / statistics.median(run_seconds),
        batch_rows_per_second=n_rows / statistics.median(batch_seconds),
        goal_ratio=0.8,
        ratio=median_ratio(batch_seconds, run_seconds),
        ratio_of_trigger=median_ratio(batch_seconds, trigger_seconds),
    )


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the median over passes of the ratio of two times."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


if __name__ == "__main__":
    main()
