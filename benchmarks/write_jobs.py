"""The jobs of bench_spark_write.py, and how one run of a job is measured."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from kafka_broker import KafkaBroker
from processes import Cpu, JobCpu, busy_seconds, cpu_seconds
from pyspark.sql import DataFrame, SparkSession, functions as sf

import rmqstore

N_QUEUES = 8
Run = Callable[[], object]


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Job:
    """A job that is measured; what ``prepare`` does before it and ``check`` after it is not."""

    run: Run
    prepare: Run = nothing
    check: Run = nothing


@dataclass(frozen=True)
class Cost:
    """What one run of a job cost."""

    started: float
    wall: float
    cpu: Cpu
    broker: float  # CPU seconds of the Kafka broker
    others: float  # the share of the machine that other processes took
    note: dict[str, Any] | None  # what the job itself measured


class Bench:
    """One Spark session, the folder in which its jobs write, and the broker if there is one."""

    def __init__(
        self, spark: SparkSession, scratch: Path, job_cpu: JobCpu, broker: KafkaBroker | None
    ) -> None:
        self.spark, self.scratch, self.broker = spark, scratch, broker
        self._job_cpu = job_cpu
        self._note = scratch / "note.json"

    def measure(self, job: Job) -> Cost:
        job.prepare()
        self._note.unlink(missing_ok=True)
        os.sync()
        brokers = [] if self.broker is None else [self.broker.pid]
        cpu, broker = self._job_cpu.read(), sum(map(cpu_seconds, brokers))
        busy, started = busy_seconds(), time.monotonic()
        job.run()
        wall = time.monotonic() - started
        cpu, broker = self._job_cpu.read().since(cpu), sum(map(cpu_seconds, brokers)) - broker
        available = (time.monotonic() - started) * (os.cpu_count() or 1)
        foreign = max(0.0, busy_seconds() - busy - cpu.total - broker)
        note = json.loads(self._note.read_text()) if self._note.exists() else None
        job.check()
        return Cost(started, wall, cpu, broker, foreign / available, note)

    def passes(self, jobs: dict[str, Job], count: int) -> dict[str, list[Cost]]:
        """Run all jobs in turn, ``count`` times after once to warm up."""
        costs: dict[str, list[Cost]] = {name: [] for name in jobs}
        for number in range(count + 1):
            for name, job in jobs.items():
                cost = self.measure(job)
                if number:
                    costs[name].append(cost)
                print(
                    f"pass {number} of {count}: {name} {cost.wall:.2f} s, "
                    f"CPU {cost.cpu.total:.2f} s, others {cost.others:.0%}",
                    file=sys.stderr,
                )
        return costs

    def into_store(
        self, frame: DataFrame, n_rows: int, name: str, base: Callable[[Path], int] | None = None
    ) -> Job:
        """Return the job of our sink, into a new store or into the one that ``base`` makes."""
        target = self.scratch / name
        n_before = 0

        def prepare() -> None:
            nonlocal n_before
            shutil.rmtree(target, ignore_errors=True)
            n_before = base(target) if base else 0

        def run() -> None:
            writer = frame.write.format("measured").mode("append").option("note", str(self._note))
            writer.option("queueNums", str(N_QUEUES)).save(str(target))

        def check() -> None:
            assert count_messages(target) == n_before + n_rows, "the store has not all rows"
            shutil.rmtree(target)

        return Job(run, prepare, check)

    def stream_into(self, sink: str, rows: DataFrame, n_rows: int, n_batches: int) -> Job:
        """Return the job of a stream that ends with the last of its micro-batches."""
        target, state = self.scratch / "streamed", self.scratch / "checkpoint"

        def remove() -> None:
            for path in (target, state):
                shutil.rmtree(path, ignore_errors=True)

        def run() -> None:
            writer = rows.writeStream.format(sink).option("queueNums", str(N_QUEUES))
            places = {"path": str(target), "checkpointLocation": str(state)}
            query = writer.options(**places).trigger(availableNow=True).start()
            query.awaitTermination()
            entries = [entry for entry in query.recentProgress if entry.numInputRows]
            triggers = [entry.durationMs["triggerExecution"] / 1000 for entry in entries]
            self._note.write_text(json.dumps({"triggers": triggers}))
            assert len(triggers) == n_batches, f"there were {len(triggers)} micro-batches"

        def check() -> None:
            if sink == "rmqstore":
                assert count_messages(target) == n_rows, "the store has not all rows"
            remove()

        return Job(run, remove, check)

    def into_parquet(self, frame: DataFrame) -> Job:
        """Return the job of Spark's Parquet sink."""
        target = self.scratch / "parquet"

        def remove() -> None:
            shutil.rmtree(target, ignore_errors=True)

        def run() -> None:
            frame.write.mode("append").option("compression", "snappy").parquet(str(target))

        return Job(run, remove, remove)

    def into_kafka(self, frame: DataFrame) -> Job:
        """Return the job of Spark's Kafka sink; headers hold the tags and properties."""
        assert self.broker is not None, "there is a broker if this arm is chosen"
        tag = "array(struct('TAGS' AS key, CAST(tags AS BINARY) AS value))"
        of_entry = "struct(e.key AS key, CAST(e.value AS BINARY) AS value)"
        rows = frame.select(
            "topic",
            sf.expr("CAST(keys AS BINARY)").alias("key"),
            sf.col("body").alias("value"),
            sf.expr(f"concat({tag}, transform(map_entries(properties), e -> {of_entry}))").alias(
                "headers"
            ),
        )
        options = {
            "bootstrap.servers": self.broker.address,
            "linger.ms": "20",
            "batch.size": "524288",
            "acks": "1",
        }
        writer = rows.write.format("kafka").options(
            **{f"kafka.{name}": value for name, value in options.items()}
        )
        return Job(writer.save)


def count_messages(store: Path) -> int:
    """Return the number of messages in a store."""
    with rmqstore.open(store) as reader:
        queues = [queue for topic in reader.topics() for queue in reader.queues(topic)]
    return sum(queue.max_offset - queue.min_offset for queue in queues)


def begun_store(rows: Path) -> Callable[[Path], int]:
    """Return what makes a store with the rows of the first file of ``rows``, by the core."""
    table = pq.read_table(min(rows.iterdir()))

    def make(target: Path) -> int:
        with rmqstore.create(target) as writer:
            writer.append(table)
        return len(table)

    return make
