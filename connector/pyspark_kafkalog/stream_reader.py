"""The micro-batch source: follows log directories while a broker, or a copy, writes them.

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
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kafkalog.partition import began_again, identity_of
from kafkalog.storage.identity import LogIdentity
from kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.offsets import Offsets, StreamOffset
from pyspark_kafkalog.options import StreamOptions
from pyspark_kafkalog.rows import RowReader
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.packing import rows_of


class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new records of the chosen partitions; partitions that appear later are taken up."""

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._rows = RowReader(schema, options.read)
        self._reader: OffsetReader | None = None
        self._latest: Offsets = {}
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._warned: set[str] = set()  # losses that this trigger warned of
        # the first trigger does not wait, as in Spark's Kafka source
        self._last_trigger = -float("inf")

    @option_names()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        reader = self._poll()
        reader.require_named()
        reader.require_readable()
        return self._noted(reader, reader.stable_starts(), {}).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set."""
        return self._options.triggers.read_limit()

    @option_names()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of the partitions as the end of the query."""
        self._target = self._poll().latest_offsets()

    @option_names()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next micro-batch reaches; ``start`` if there is nothing to read."""
        reader = self._poll()
        since = StreamOffset.of_json(start)
        self._warned.clear()
        is_first = not self._latest
        self._latest = reader.latest_offsets()
        if is_first:
            starts = {key: since.offsets.get(key, 0) for key in self._latest}
            reader.warn_of_losses(starts, self._latest)
        again = self._began_again(reader, since)
        ends = dict(self._latest)
        if self._target is not None:
            self._target |= {key: ends[key] for key in again & self._target.keys()}
            ends = {
                key: min(end, self._target[key]) for key, end in ends.items() if key in self._target
            }
        self._report_gone(reader, since.offsets)
        starts = self._starts(reader, since, ends, again)
        if not isinstance(limit, ReadAllAvailable):
            seconds = monotonic() - self._last_trigger
            may_wait = self._target is None  # otherwise the query has to reach its end
            ends = self._options.triggers.admitted(starts, ends, seconds, may_wait=may_wait)
        if ends == since.offsets and not again:
            return start
        if any(ends[key] > starts[key] for key in ends):
            self._last_trigger = monotonic()
        kept = {
            key: identity
            for key, identity in since.identities.items()
            if key not in again and ends.get(key) == since.offsets.get(key)
        }
        return self._noted(reader, ends, kept).json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the partitions reach, for the query's progress."""
        return StreamOffset(self._latest).json()

    @option_names()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        reader = self._poll()
        since = StreamOffset.of_json(start)
        until = StreamOffset.of_json(end)
        self._report_gone(reader, until.offsets)
        ends = self._planned_ends(reader, until)
        again = self._began_again(reader, since)
        starts = self._starts(reader, since, ends, again)
        for key, offset in ends.items():
            if offset < since.offsets.get(key, 0) and key not in again:
                self._lose(f"{key} ended at {since.offsets[key]} and now ends at {offset}")
            elif offset > (last := reader.latest(key)):
                self._lose(f"{key} was to be read up to {offset} but now ends at {last}")
                ends[key] = last
        named = self._options.read.start.offsets
        ranges = []
        for offset_range in reader.ranges(starts, ends):
            key = offset_range.topic_partition
            is_first = named is not None and named.get(key) == offset_range.start  # of the query
            is_next = since.offsets.get(key) == offset_range.start
            # Whether an earlier micro-batch had the offsets right before the range.
            follows = is_next and not is_first and offset_range.start > reader.earliest(key)
            identity = until.identities.get(key, LogIdentity())
            noted_at = until.offsets[key]
            ranges.append(
                offset_range._replace(follows=follows, identity=identity, noted_at=noted_at)
            )
        return reader.splits(ranges)

    def _planned_ends(self, reader: OffsetReader, until: StreamOffset) -> Offsets:
        """Return the end of a micro-batch, without partitions that were made again since then."""
        present = reader.partitions
        ends = {key: offset for key, offset in until.offsets.items() if key in present}
        for key in self._began_again(reader, until):
            self._lose(
                f"{key} was to be read up to {ends.pop(key)}, but its topic was deleted and made"
                " again since; what it has now is read by the next micro-batch"
            )
        return ends

    def _began_again(self, reader: OffsetReader, noted: StreamOffset) -> set[TopicPartition]:
        """Return the partitions whose logs are not the noted ones."""
        return {
            key
            for key, partition in reader.partitions.items()
            if key in noted.offsets
            and key in noted.identities
            and began_again(partition, noted.identities[key], noted.offsets[key])
        }

    def _noted(
        self, reader: OffsetReader, offsets: Offsets, kept: Mapping[TopicPartition, LogIdentity]
    ) -> StreamOffset:
        """Return offsets with the identities of their logs; those that are kept are not asked."""
        partitions = reader.partitions
        found = {
            key: identity_of(partitions[key], offset)
            for key, offset in offsets.items()
            if key not in kept
        }
        return StreamOffset(offsets, {**kept, **found})

    def _starts(
        self, reader: OffsetReader, since: StreamOffset, ends: Offsets, again: set[TopicPartition]
    ) -> Offsets:
        """Return the start of a micro-batch; a new partition starts at its first record."""
        starts = {}
        for key in ends:
            first = reader.earliest(key)
            known = since.offsets.get(key)
            if key in again:
                self._lose(
                    f"{key} began again after it was read up to {known}: its topic was deleted and"
                    f" made again; what it has now is read from its first offset, {first}"
                )
                known = None
            elif first > (known or 0) and (known is not None or first > 0):
                self._lose(f"{key} now begins at {first}, and offset {known or 0} was next")
            starts[key] = max(first, known or 0)
        return starts

    def _lose(self, text: str) -> None:
        """Report records that are gone, once in a trigger."""
        if text not in self._warned:
            self._options.read.spec.report_loss(text)
            self._warned.add(text)

    def _report_gone(self, reader: OffsetReader, offsets: Mapping[TopicPartition, int]) -> None:
        gone = sorted(offsets.keys() - reader.partitions.keys())
        if gone:
            self._lose(f"partitions are gone: {', '.join(map(str, gone))}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task. Runs in a task; stateless."""
        return rows_of(partition, self._rows.rows)

    def _poll(self) -> OffsetReader:
        if self._reader is None:
            self._reader = OffsetReader(self._options.read)
        else:
            self._reader.poll()
        return self._reader
