"""Compares the Spark sink with a writer that discards its batches, and measures the commit.

Both run in turn and write the same prebuilt batches. The figures are CPU time of tasks, of the JVM
and the Python workers together. The commit is measured by itself: its fsyncs, the rest of its time,
and its highest anonymous memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench_spark import cpu_seconds, prebuild
from measure import report, spark_session
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.batch_writer import RmqStoreWriter
from pyspark_rmqstore.write_options import parse_write_options
from rmqstore.storage.files.disk import Disk

WRITTEN = "topic,queueId,body,tags,keys,msgId,properties,flag,bornTimestamp,bornHost"


class DiscardingWriter(DataSourceArrowWriter):
    """The ceiling: a writer that only takes batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Discarding(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discarding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        del schema, overwrite
        return DiscardingWriter()


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


class MeasuredWriter(RmqStoreWriter):
    """Our writer, which notes the costs of its commit."""

    note: str

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        flushing, peak = [0.0], [0]
        ended = threading.Event()
        before = anonymous_bytes()

        def timed(flush: Any) -> Any:  # noqa: ANN401
            def run(disk: Disk, path: Path) -> None:
                started = time.perf_counter()
                flush(disk, path)
                flushing[0] += time.perf_counter() - started

            return run

        def watch() -> None:
            while not ended.wait(0.005):
                peak[0] = max(peak[0], anonymous_bytes())

        for name in ("flush", "flush_folder", "flush_all"):
            setattr(Disk, name, timed(getattr(Disk, name)))
        watcher = threading.Thread(target=watch)
        watcher.start()
        started, started_cpu = time.perf_counter(), time.process_time()
        super().commit(messages)
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        ended.set()
        watcher.join()
        costs = {
            "wall": wall,
            "cpu": cpu,
            "fsync": flushing[0],
            "peak": peak[0],
            "above": peak[0] - before,
        }
        Path(self.note).write_text(json.dumps(costs))


class Measured(DataSource):
    @classmethod
    def name(cls) -> str:
        return "measured"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        del overwrite
        options = dict(self.options)
        note = options.pop("note")
        writer = MeasuredWriter(schema, parse_write_options(options))
        writer.note = note
        return writer


def main() -> None:
    """Run the cases and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    spark = spark_session()
    import bench_spark
    import bench_spark_write  # by its module name, so that workers can import what is pickled

    for source in (bench_spark.Prebuilt, bench_spark_write.Discarding, bench_spark_write.Measured):
        spark.dataSource.register(source)
    jvm = int(spark.sparkContext._jvm.ProcessHandle.current().pid())  # noqa: SLF001 - no public way to the pid
    with tempfile.TemporaryDirectory(dir=arguments.store.parent) as folder:
        compare(spark, jvm, arguments, Path(folder))
    spark.stop()


def compare(spark: SparkSession, jvm: int, arguments: argparse.Namespace, scratch: Path) -> None:
    """Time our sink and the discarding one, in turn."""
    options = {"checkCRC": "false", "columns": WRITTEN}
    schema = spark.read.format("rmqstore").options(**options).load(str(arguments.store)).schema
    rows = prebuild(arguments.store, options, scratch / "rows")
    frame = spark.read.format("prebuilt").schema(schema).load(str(scratch / "rows"))
    target, note = scratch / "target", scratch / "note.json"
    measured: dict[str, list[float]] = {}
    for number in range(arguments.passes + 1):
        before = cpu_seconds(jvm)
        frame.write.format("discarding").mode("append").save()
        discarding = cpu_seconds(jvm) - before
        shutil.rmtree(target, ignore_errors=True)
        before = cpu_seconds(jvm)
        started = time.perf_counter()
        frame.write.format("measured").option("note", str(note)).mode("append").save(str(target))
        wall = time.perf_counter() - started
        ours = cpu_seconds(jvm) - before
        commit = json.loads(note.read_text())
        tasks = ours - commit["cpu"]
        unflushed = commit["wall"] - commit["fsync"]
        figures = {
            "task CPU": tasks / rows * 1e6,
            "discarding CPU": discarding / rows * 1e6,
            "share": discarding / tasks,
            "wall": wall,
            "commit": commit["wall"],
            "commit CPU": commit["cpu"],
            "fsync": commit["fsync"],
            "commit's share": unflushed / (wall - commit["fsync"]),
            "RssAnon": commit["peak"] / 1e6,
            "above": commit["above"] / 1e6,
        }
        if number:
            for name, figure in figures.items():
                measured.setdefault(name, []).append(figure)
        print(f"pass {number} of {arguments.passes}", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    report(
        "spark write",
        "tasks",
        cpu_us_per_row=medians["task CPU"],
        discarding_cpu_us_per_row=medians["discarding CPU"],
        share_of_discarding=medians["share"],
        goal=0.75,
        rows_per_second=rows / medians["wall"],
    )
    report(
        "spark write",
        "commit",
        seconds=medians["commit"],
        of_which_fsync=medians["fsync"],
        cpu_seconds=medians["commit CPU"],
        share_of_job_without_fsync=medians["commit's share"],
        goal=0.2,
        highest_rss_anon_mb=medians["RssAnon"],
        above_the_bare_process_mb=medians["above"],
        goal_mb=500,
        rows=rows,
    )


if __name__ == "__main__":
    main()
