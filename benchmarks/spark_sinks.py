"""The sinks of bench_spark_write.py, in a module of their own because workers import them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from commit_phases import REST, Phases
from processes import PeakMemory
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_rmqstore.sink import RmqStoreWriter
from pyspark_rmqstore.write_options import parse_write_options


class DiscardingWriter(DataSourceArrowWriter):
    """The least that Spark's Python API costs: a writer that only takes batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardingStreamWriter(DataSourceStreamArrowWriter):
    """The same for micro-batches."""

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

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        del schema, overwrite
        return DiscardingStreamWriter()


@dataclass
class TimedMessage(WriterCommitMessage):
    """The message of a task, with its times on the clock that all processes share."""

    message: WriterCommitMessage
    started: float
    ended: float
    cpu: float


class MeasuredWriter(RmqStoreWriter):
    """Our writer, which notes when its tasks ran and what its commit cost."""

    note: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        started, cpu = time.monotonic(), time.process_time()
        message = super().write(iterator)
        return TimedMessage(message, started, time.monotonic(), time.process_time() - cpu)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        timed = [message for message in messages if isinstance(message, TimedMessage)]
        phases = Phases()
        started, cpu = time.monotonic(), time.process_time()
        with PeakMemory() as memory, phases, phases.phase(REST):
            super().commit([message.message for message in timed])
        note = {
            "tasks_started": min(message.started for message in timed),
            "tasks_ended": max(message.ended for message in timed),
            "tasks_cpu": sum(message.cpu for message in timed),
            "commit_started": started,
            "commit_ended": time.monotonic(),
            "commit_cpu": time.process_time() - cpu,
            "phases": phases.seconds,
            "missing": phases.missing,
            "peak": memory.peak,
            "above": memory.peak - memory.before,
        }
        Path(self.note).write_text(json.dumps(note))


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
