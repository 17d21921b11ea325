"""The micro-batch source: follows log directories that a broker writes to, or that are copied.

Each query has one reader, on the driver. Source: KafkaMicroBatchStream,
KafkaSourceOffset and JsonUtils of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.options import StreamOptions
from pyspark_kafkalog.rows import RowReader
from pyspark_rmqstore.offsets import flattened, limit_rows, nested
from pyspark_rmqstore.option_names import option_names
from rmqstore.errors import OptionError

Offsets = dict[TopicPartition, int]


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as ``{"topic": {"0": 23}}``; equal offsets give equal text."""
    return nested((*key, offset) for key, offset in offsets.items())


def of_json(stored: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the offsets that a checkpoint holds.

    Raises:
        OptionError: it does not hold offsets of this data source.
    """
    try:
        return {
            TopicPartition(topic, partition): offset
            for topic, partition, offset in flattened(stored, 1)
        }
    except (AttributeError, TypeError, ValueError) as err:
        raise OptionError(
            f"the checkpoint does not hold offsets of kafkalog but {stored!r}: "
            "use a checkpoint of its own for each query"
        ) from err


class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new records of the chosen partitions; partitions that appear later are taken up."""

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._rows = RowReader(schema, options.read)
        self._reader: OffsetReader | None = None
        self._latest: Offsets = {}
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        # the first trigger does not wait, as in Spark's Kafka source
        self._last_trigger = -float("inf")

    @option_names()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        reader = self._look()
        reader.require_named()
        reader.require_readable()
        return to_json(reader.stable_starts())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    @option_names()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of the partitions as the end of the query."""
        self._target = self._look().latest_offsets()

    @option_names()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next micro-batch reaches; ``start`` if there is nothing to read."""
        reader = self._look()
        since = of_json(start)
        self._latest = reader.latest_offsets()
        ends = dict(self._latest)
        if self._target is not None:
            ends = {
                key: min(end, self._target[key]) for key, end in ends.items() if key in self._target
            }
        self._report_gone(reader, since)
        starts = self._starts(reader, since, ends)
        if not isinstance(limit, ReadAllAvailable):
            options = self._options
            n_new = sum(max(ends[key] - starts[key], 0) for key in ends)
            may_wait = self._target is None  # otherwise the query has to reach its end
            is_early = monotonic() - self._last_trigger < options.max_delay_seconds
            if may_wait and is_early and n_new < (options.min_offsets or 0):
                ends = {key: starts[key] for key in ends}
            elif options.max_offsets is not None:
                ahead = {key: max(end, starts[key]) for key, end in ends.items()}
                ends = limit_rows(starts, ahead, options.max_offsets)
        if ends == since:
            return start
        if any(ends[key] > starts[key] for key in ends):
            self._last_trigger = monotonic()
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the partitions reach, for the query's progress."""
        return to_json(self._latest)

    @option_names()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        reader = self._look()
        since, until = of_json(start), of_json(end)
        self._report_gone(reader, until)
        ends = {key: offset for key, offset in until.items() if key in reader.partitions}
        starts = self._starts(reader, since, ends)
        for key, offset in ends.items():
            if offset < since.get(key, 0):
                reader.lose(f"{key} ended at {since[key]} and now ends at {offset}")
            elif offset > (last := reader.latest(key)):
                reader.lose(f"{key} was to be read up to {offset} but now ends at {last}")
                ends[key] = last
        named = self._options.read.start.offsets
        ranges = []
        for piece in reader.ranges(starts, ends):
            key = piece.topic_partition
            is_first = named is not None and named.get(key) == piece.start  # of the query
            is_next = since.get(key) == piece.start
            # Whether an earlier micro-batch had the offsets right before the range.
            follows = is_next and not is_first and piece.start > reader.earliest(key)
            ranges.append(piece._replace(follows=follows))
        return reader.splits(ranges)

    def _starts(self, reader: OffsetReader, since: Offsets, ends: Offsets) -> Offsets:
        """Return where a micro-batch starts: a partition that is new, at its first record."""
        starts = {}
        for key in ends:
            first = reader.earliest(key)
            known = since.get(key)
            if first > (known or 0) and (known is not None or first > 0):
                reader.lose(f"{key} now begins at {first}, and offset {known or 0} was next")
            starts[key] = max(first, known or 0)
        return starts

    def _report_gone(self, reader: OffsetReader, offsets: Offsets) -> None:
        present = set(reader.partitions)
        gone = sorted(key for key in offsets if key not in present)
        if gone:
            reader.lose(f"partitions are gone: {', '.join(map(str, gone))}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task. Runs in a task; stateless."""
        return self._rows.read(partition)

    def _look(self) -> OffsetReader:
        if self._reader is None:
            self._reader = OffsetReader(self._options.read)
        else:
            self._reader.look()
        return self._reader
