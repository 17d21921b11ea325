"""The micro-batch source: follows stores that are being written to.

Each query has one reader, on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.packing import plan_tasks, rows_of
from pyspark_rmqstore.schema import as_asked, request_of
from pyspark_rmqstore.triggers import limit_bytes
from rmqstore.source.stream_offset import Key, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class RmqStoreStreamReader(DataSourceStreamReader):
    """Reads new messages of one or several stores, or of running brokers.

    Its offsets are ``StreamOffset`` as JSON. Limits are imported where they are used, because
    PySpark 4.0 and 4.1 do not have them; see ``spark_versions``.
    """

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._request = request_of(schema, options.read)
        self._kafka_names = schema.fieldNames() if options.read.columns.is_kafka else None
        self._stream = options.read.source.follow(self._request)
        self._target: Mapping[Key, int] | None = None  # of Trigger.AvailableNow
        # the first trigger does not wait, as in Spark's Kafka source
        self._last_trigger = -float("inf")

    @option_names()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._stream.initial_offset().json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set."""
        return self._options.triggers.read_limit()

    @option_names()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of the queues as the end of the query."""
        self._target = self._stream.answer(lambda polled: polled.queues)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends; ``start`` if there is nothing to read."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return self.next_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    @option_names()
    def next_offset(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return where the next micro-batch ends, within the limits of the options or not."""
        since = StreamOffset.of_json(start)
        admit = self._admitted if is_limited else None
        until = self._stream.next_offset(since, self._target, admit)
        if until is since:
            return start
        self._last_trigger = monotonic()
        return until.json()

    def _admitted(self, starts: Mapping[Key, int], ends: dict[Key, int]) -> dict[Key, int]:
        """Return the ends up to which a trigger may read within the limits of the options."""
        limits = self._options.triggers
        seconds = monotonic() - self._last_trigger
        may_wait = self._target is None  # otherwise the query has to reach its end
        ends = limits.admitted(starts, ends, seconds, may_wait=may_wait)
        if limits.max_bytes is not None:
            stream = self._stream
            ends = limit_bytes(starts, ends, limits.max_bytes, stream.weight, stream.rows_within)
        return ends

    @option_names()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the ends of the queues, for the query's progress.

        The difference to its ``endOffset`` is the lag.
        """
        return self._stream.last_offset().json()

    @option_names()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        limits = self._options.read.limits
        since, until = StreamOffset.of_json(start), StreamOffset.of_json(end)
        return plan_tasks(self._stream.tasks(since, until, limits), limits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        batches = rows_of(partition, lambda task: task.read(self._request))
        return as_asked(self._request, batches, self._kafka_names)

    def stop(self) -> None:
        """Close the stores."""
        self._stream.close()
