"""Streams in tests: stores that grow, queries run to their end, and what they gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import rmqstore
from connector.engine import Engine, LocalFrame, StreamFrame
from reading import Row
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.store.opening import create
from rmqstore.write.writer import StoreWriter

SCHEMA = "topic string, queueId int, queueOffset long, body string"
# Sizes that let a few messages roll over files of every kind.
SMALL = {
    "mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "600",
    "maxHashSlotNum": "100", "maxIndexNum": "400",
}  # fmt: skip
SIZES = StoreConfig().updated({name: int(size) for name, size in SMALL.items()})


def put(writer: StoreWriter, topic: str, queue_id: int, bodies: list[str]) -> None:
    n = len(bodies)
    queue_ids = pa.array([queue_id] * n, pa.int32())
    writer.append(
        pa.RecordBatch.from_pydict({"topic": [topic] * n, "queueId": queue_ids, "body": bodies})
    )
    writer.flush()


def add(root: Path, *appended: tuple[str, int, list[str]]) -> Path:
    """Append messages of queues to a store, which is made first if it is not there."""
    with rmqstore.open(root, mode="a") if root.exists() else create(root, config=SIZES) as writer:
        for topic, queue_id, bodies in appended:
            put(writer, topic, queue_id, bodies)
    return root


class Clock:
    """A clock that stands, but for sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def drain(
    spark: SparkSession | Engine, path: Path | list[Path], folder: Path, **options: object
) -> list[dict[str, Any]]:
    """Run a query over what is there now; return the progress of its triggers that had rows.

    ``folder`` holds the state of the query.
    """
    query = start(spark, path, folder, once=True, **options)
    query.awaitTermination()
    return [json.loads(one.json) for one in query.recentProgress if one.numInputRows]


def start(
    spark: SparkSession | Engine,
    path: Path | list[Path],
    folder: Path,
    *,
    once: bool = False,
    **options: object,
) -> Any:
    """Return a running query of Spark or the engine; options that are not text become JSON."""
    reader: Any = spark.readStream.format("rmqstore").schema(SCHEMA)
    if isinstance(path, list):
        options["paths"] = [str(root) for root in path]
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
    stream = reader.load() if isinstance(path, list) else reader.load(str(path))
    writer = stream.writeStream.format("json")
    writer = writer.option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime="200 milliseconds")
    ).start()


def rows_of(frame: StreamFrame, folder: Path) -> list[Row]:
    """Run a query over what is there now, whose state is in ``folder``; return its rows."""
    found: list[Row] = []

    def keep(batch: LocalFrame, _: int) -> None:
        found.extend(batch.toArrow().to_pylist())

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()
    return found


def delivered(
    spark: SparkSession | Engine, folder: Path
) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Return the offsets and bodies that queries wrote, by queue and sorted, with duplicates."""
    found: dict[tuple[str, int], list[tuple[int, str]]] = {}
    if (folder / "rows").exists():
        reader: Any = spark.read.schema(SCHEMA)
        for row in reader.json(str(folder / "rows")).collect():
            found.setdefault((row.topic, row.queueId), []).append((row.queueOffset, row.body))
    return {key: sorted(rows) for key, rows in sorted(found.items())}
