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

from pyspark_rmqstore.admission import Weight, limit_bytes, limit_rows
from pyspark_rmqstore.consumer_offsets import write_consumer_offsets
from pyspark_rmqstore.followed_stores import FollowedStores
from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.stream_task import StreamSplit, read_task
from pyspark_rmqstore.tasks import SplitReader
from rmqstore.read.scan.spec import FAILFAST
from rmqstore.spans import QueueSlice

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class RmqStoreStreamReader(DataSourceStreamReader):
    """Reads new messages of one or several stores.

    Its offsets are those of ``offsets.StreamOffset``.

    Limits are imported where they are used, because PySpark 4.0 and 4.1 do not have them; see
    ``stream_apis``.
    """

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._splits = SplitReader(schema, options.read)
        self._stores = FollowedStores(options.read)
        self._target: dict[Key, int] | None = None  # of Trigger.AvailableNow
        # the first trigger does not wait, as in Spark's Kafka source
        self._last_trigger = -float("inf")

    @option_names()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._stores.answer(
            lambda: StreamOffset(self._stores.initial(), self._stores.marks())
        ).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set.

        Spark passes it back if limits apply, otherwise another one.
        """
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
            ReadMinRows,
        )

        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_rows is not None:
            return ReadMinRows(options.min_rows)
        return ReadAllAvailable()

    @option_names()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of the queues as the end of the query."""
        self._stores.answer(self._stores.look)
        self._target = self._stores.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next micro-batch reaches; ``start`` itself if there is nothing to read yet."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return self.next_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    @option_names()
    def next_offset(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return how far the next micro-batch reaches, with or without the limits of the options."""
        return self._stores.answer(lambda: self._next_offset(start, is_limited=is_limited))

    def _next_offset(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        self._stores.look()
        begun, ends = StreamOffset.of_json(start), self._stores.ends()
        if self._target is not None:
            ends = {key: min(ends.get(key, 0), end) for key, end in self._target.items()}
        cut = self._stores.cut(begun)
        starts = self._stores.starts(begun, ends, cut)
        ends = {key: max(end, starts[key]) for key, end in ends.items()}
        if is_limited:
            ends = self._admitted(starts, ends)
        # these may start over
        gone = {key: 0 for key in begun.queues if key[0] in cut and key not in ends}
        queues = {**begun.queues, **gone, **ends}
        if queues == begun.queues and not cut:
            return start
        self._last_trigger = monotonic()
        return StreamOffset(queues, {**begun.marks, **self._stores.marks()}).json()

    def _admitted(self, starts: Mapping[Key, int], ends: dict[Key, int]) -> dict[Key, int]:
        """Return how far a trigger may read within the limits of the options."""
        options, n_rows = self._options, sum(ends[key] - starts[key] for key in ends)
        if (
            self._target is None  # otherwise the query has to reach its end
            and n_rows < (options.min_rows or 0)
            and monotonic() - self._last_trigger < options.max_delay_seconds
        ):
            return {key: starts[key] for key in ends}
        if options.max_rows is not None:
            ends = limit_rows(starts, ends, options.max_rows)
        if options.max_bytes is not None:
            ends = limit_bytes(starts, ends, options.max_bytes, self._weight, self._rows_within)
        return ends

    def _weight(self, key: Key, start: int, end: int) -> Weight:
        samples = self._stores[key[0]].store.sample(QueueSlice(key[1], key[2], start, end), 8)
        if not samples:
            return Weight(0, 0)
        mean = sum(sample.mean_bytes for sample in samples) / len(samples)
        return Weight(mean * (end - start), samples[0].physical_offset)

    def _rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        return self._stores[key[0]].store.rows_within(
            QueueSlice(key[1], key[2], start, end), n_bytes
        )

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the queues reach, for the query's progress: the difference to its ``endOffset`` is the lag."""
        return StreamOffset(self._stores.ends(), self._stores.marks()).json()

    @option_names()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        begun, until = StreamOffset.of_json(start), StreamOffset.of_json(end)
        return self._stores.answer(lambda: self._planned(begun, until))

    def _planned(self, begun: StreamOffset, until: StreamOffset) -> Sequence[InputPartition]:
        slices = self._slices(begun, until)
        if not self._options.read.fail_on_data_loss and not self._stores.look_confirmed(slices):
            slices = self._stores.confirmed(self._slices(begun, until))
        return [
            StreamSplit(split, until.marks.get(broker))
            for broker, pieces in slices.items()
            for one in (self._stores[broker],)
            for split in self._splits.split_queues(
                one.ref, one.store, self._splits.sampled(one.store, pieces)
            )
        ]

    def _slices(self, begun: StreamOffset, until: StreamOffset) -> dict[str, list[QueueSlice]]:
        """Return the ranges of queues between two offsets, by broker."""
        self._stores.look()
        cut = self._stores.cut(begun)
        ends = {
            key: at
            for key, at in until.queues.items()
            if begun.queues.get(key) != at or key[0] in cut
        }
        starts, stops = self._stores.starts(begun, ends, cut), self._stores.stops(until, ends)
        slices: dict[str, list[QueueSlice]] = {}
        for key, at in ends.items():
            start, stop = starts[key], stops[key]
            if stop < at and start < at:
                self._stores.report_loss(
                    key, f"offsets {max(stop, start)} to {at} (excluded) are gone"
                )
            if start < stop:
                found = self._stores[key[0]].store.slices(
                    *key[1:], start, stop, tolerant=self._is_tolerant
                )
                slices.setdefault(key[0], []).extend(found)
        return slices

    @property
    def _is_tolerant(self) -> bool:
        return self._options.read.mode != FAILFAST

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        if not isinstance(partition, StreamSplit):
            return iter(())  # Spark asks for one partition of its own where there is none
        return read_task(
            self._splits, partition, fail_on_data_loss=self._options.read.fail_on_data_loss
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Write the progress to ``consumerOffsetFile``, if that is set: all messages before ``end`` are processed."""
        options = self._options
        if options.consumer_offset_file is not None:
            queues = {
                (topic, queue_id): at
                for (_, topic, queue_id), at in StreamOffset.of_json(end).queues.items()
            }
            write_consumer_offsets(options.consumer_offset_file, options.consumer_group, queues)

    def stop(self) -> None:
        """Close the stores."""
        self._stores.close()
