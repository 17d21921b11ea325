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

from pyspark_rmqstore.continuation import Continuation
from pyspark_rmqstore.offsets import Key, StreamOffset, limit_bytes, limit_rows
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.packing import plan_tasks, splits_of
from pyspark_rmqstore.schema import as_asked, request_of
from pyspark_rmqstore.stream_snapshot import Loss, StreamSnapshot, report
from pyspark_rmqstore.tasks import Task
from pyspark_rmqstore.worker import tune_worker
from rmqstore.spans import QueueSlice

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class RmqStoreStreamReader(DataSourceStreamReader):
    """Reads new messages of one or several stores.

    Its offsets are ``offsets.StreamOffset``. Limits are imported where they are used, because
    PySpark 4.0 and 4.1 do not have them; see ``spark_versions``.
    """

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._request = request_of(schema, options.read)
        self._kafka_names = schema.fieldNames() if options.read.columns.is_kafka else None
        self._stores = options.read.source.follow(self._request)
        self._target: dict[Key, int] | None = None  # of Trigger.AvailableNow
        self._reported: set[str] = set()  # missing brokers that there was a warning of
        self._gone: set[Key] = set()  # deleted queues that there was a warning of
        # the first trigger does not wait, as in Spark's Kafka source
        self._last_trigger = -float("inf")

    @option_names()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._stores.initial().json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set."""
        return self._options.triggers.read_limit()

    @option_names()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of the queues as the end of the query."""
        self._target = self._stores.answer(lambda snapshot: dict(snapshot.ends))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends; ``start`` if there is nothing to read."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return self.next_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    @option_names()
    def next_offset(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return where the next micro-batch ends, within the limits of the options or not."""
        self._stores.expect(StreamOffset.of_json(start).brokers)
        return self._stores.answer(
            lambda snapshot: self._next_offset(snapshot, start, is_limited=is_limited)
        )

    def _next_offset(
        self, snapshot: StreamSnapshot, start: dict[str, Any], *, is_limited: bool
    ) -> dict[str, Any]:
        since = StreamOffset.of_json(start)
        self._require_brokers(snapshot, since)
        ends = snapshot.ends
        if self._target is not None:
            ends = {key: min(ends.get(key, 0), end) for key, end in self._target.items()}
        after = self._continue(snapshot, since)
        starts, losses = after.starts(ends)
        gone = after.gone()
        self._stores.report_gone({key: since.queues[key] for key in gone - self._gone})
        self._gone = gone
        if self._request.fail_on_data_loss:  # else it is said when the micro-batch is planned
            report(losses, fails=True)
        ends = {key: max(end, starts[key]) for key, end in ends.items()}
        if is_limited:
            ends = self._admitted(starts, ends)
        # queues that a recovery removed, or that were deleted; they start over if they come back
        removed = {key: 0 for key in since.queues if key[0] in after.cut and key not in ends}
        if self._stores.forgets_gone:
            removed |= dict.fromkeys(gone, 0)
        queues = {**since.queues, **removed, **ends}
        if queues == since.queues and not after.cut and not after.replaced:
            return start
        self._last_trigger = monotonic()
        return after.offset(queues).json()

    def _continue(self, snapshot: StreamSnapshot, since: StreamOffset) -> Continuation:
        """Return how queues continue after an offset, and report what nobody may read.

        A queue of such messages stays where it is in the offset, and continues from there when it
        is served again.

        Raises:
            OffsetOutOfRangeError: there are such messages, and ``failOnDataLoss`` is true.
        """
        after = Continuation(self._stores.followed, snapshot, since)
        fails = self._request.fail_on_data_loss
        report(after.withheld(is_once=not fails), fails=fails)
        return after

    def _require_brokers(self, snapshot: StreamSnapshot, offset: StreamOffset) -> None:
        """Refuse brokers that an offset has messages of and the options do not name.

        If ``failOnDataLoss`` is false, there is one warning of each.

        Raises:
            OffsetOutOfRangeError: there is one, and ``failOnDataLoss`` is true.
        """
        missing = offset.brokers - snapshot.brokers - self._reported
        if missing:
            self._stores.report_missing(missing)
            self._reported |= missing

    def _admitted(self, starts: Mapping[Key, int], ends: dict[Key, int]) -> dict[Key, int]:
        """Return the ends up to which a trigger may read within the limits of the options."""
        limits = self._options.triggers
        n_rows = sum(ends[key] - starts[key] for key in ends)
        may_wait = self._target is None  # otherwise the query has to reach its end
        if may_wait and limits.is_too_little(n_rows, monotonic() - self._last_trigger):
            return {key: starts[key] for key in ends}
        if limits.max_rows is not None:
            ends = limit_rows(starts, ends, limits.max_rows)
        if limits.max_bytes is not None:
            stores = self._stores
            ends = limit_bytes(starts, ends, limits.max_bytes, stores.weight, stores.rows_within)
        return ends

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the ends of the queues, for the query's progress.

        The difference to its ``endOffset`` is the lag.
        """
        return self._stores.last_poll().offset.json()

    @option_names()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        since = StreamOffset.of_json(start)
        until = StreamOffset.of_json(end)
        self._stores.expect(since.brokers)
        return self._stores.answer(lambda snapshot: self._plan(snapshot, since, until))

    def _plan(
        self, snapshot: StreamSnapshot, since: StreamOffset, until: StreamOffset
    ) -> Sequence[InputPartition]:
        slices, losses = self._slices(snapshot, since, until)
        fails = self._request.fail_on_data_loss
        followed = self._stores.followed
        unconfirmed: set[str] = set()
        if not fails:
            unconfirmed = {
                broker
                for broker, queue_slices in slices.items()
                if not followed[broker].tail.are_confirmed(queue_slices)
            }
        if unconfirmed:
            self._stores.invalidate(unconfirmed)
            slices, losses = self._slices(self._stores.poll(), since, until)
            slices = {
                broker: followed[broker].tail.confirmed(queue_slices)
                for broker, queue_slices in slices.items()
            }
        report(losses, fails=fails)
        limits = self._options.read.limits
        tasks = [
            followed[broker].task_of(queue_slices, limits, until.last_records.get(broker))
            for broker, queue_slices in slices.items()
        ]
        return plan_tasks(tasks, limits)

    def _slices(
        self, snapshot: StreamSnapshot, since: StreamOffset, until: StreamOffset
    ) -> tuple[dict[str, list[QueueSlice]], list[Loss]]:
        """Return the ranges of queues between two offsets, by broker, and what was lost of them."""
        self._require_brokers(snapshot, until)
        after = self._continue(snapshot, since)
        ends = {
            key: end
            for key, end in until.queues.items()
            if since.queues.get(key) != end or key in after.replaced
        }
        starts, losses = after.starts(ends)
        followed = self._stores.followed
        changed = StreamOffset(ends, until.last_records, until.left, until.first_records)
        stops = Continuation(followed, snapshot, changed).stops(ends)
        slices: dict[str, list[QueueSlice]] = {}
        for key, end in ends.items():
            start = starts[key]
            stop = stops[key]
            if stop < end and start < end:
                text = f"offsets {max(stop, start)} to {end} (excluded) are gone"
                losses.append(Loss(key, text))
            if start < stop:
                broker = key[0]
                queue_slices = followed[broker].queue_slices(key[1:], start, stop, self._request)
                slices.setdefault(broker, []).extend(queue_slices)
        return slices, losses

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        tune_worker()
        for task in splits_of(partition, Task):  # type: ignore[type-abstract]  # not called
            with option_names():
                batches = task.read_planned(self._request)
                yield from as_asked(self._request, batches, self._kafka_names)

    def stop(self) -> None:
        """Close the stores."""
        self._stores.close()
