"""The sink of streams for running brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.live.sink import LiveSink, SendOptions, log_stored, parse_send_options
from pyspark_rmqstore.sink import micro_batch
from pyspark_rmqstore.spark_versions import HAS_ARROW_STREAM_WRITERS


class RmqLiveStreamWriter:
    """Sends the rows of micro-batches to running brokers; a repeated one is sent again."""

    def __init__(self, schema: StructType, options: SendOptions) -> None:
        self._sink = LiveSink(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Runs in a task; stateless."""
        return self._sink.send(iterator, ":".join(micro_batch()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what is not sent, once. Runs on the driver."""
        if batchId == 0:
            self._sink.warn_ignored()
        log_stored(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Log how many messages are stored. Runs on the driver."""
        log_stored(messages)


if TYPE_CHECKING or HAS_ARROW_STREAM_WRITERS:

    class ArrowLiveStreamWriter(RmqLiveStreamWriter, datasource.DataSourceStreamArrowWriter):
        """A stream writer to running brokers that takes Arrow batches."""


class OlderLiveStreamWriter(  # type: ignore[misc]
    RmqLiveStreamWriter, datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter
):
    """The same for PySpark 4.0; see ``OlderStreamWriter``."""


def live_stream_writer(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamWriter:
    """Return a writer of micro-batches that takes Arrow batches; raises as the parser does."""
    kind = ArrowLiveStreamWriter if HAS_ARROW_STREAM_WRITERS else OlderLiveStreamWriter
    return kind(schema, parse_send_options(options))
