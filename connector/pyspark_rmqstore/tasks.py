"""Plans tasks from ranges of queues, and reads the rows of a task, for batches and streams.

The store is opened again in the task: a broker may have recovered it since it was planned, or may
be recovering it now. Filters are recognised by the names of their classes, which PySpark 4.0 does
not have.

Source: DataSourceReader.pushFilters of PySpark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.opened_stores import open_in_task
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.packing import AnyStoreRead, Limits, StoreRead, plan_tasks, splits_of
from pyspark_rmqstore.planning import (
    LogSplit,
    LostSplit,
    PendingSplit,
    QueueSplit,
    RecordSplit,
    SampledQueues,
    SampledSlice,
    StoreSplit,
    UnitSplit,
    cut_rows,
    plan_log,
)
from pyspark_rmqstore.schema import MADE_OF, arrow_schema, as_kafka
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.worker import settle_worker
from rmqstore.format.schema import select_columns
from rmqstore.read.faults import refuse_spans
from rmqstore.read.pending import find_pending, read_pending
from rmqstore.read.planning import (
    find_wanted,
    log_heads,
    log_parts,
    newest_record,
    plan_look_up,
    plan_sampled,
    take_samples,
)
from rmqstore.read.pruner import StorePruner
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import find_lost, finder, look_up, read_log, read_queues, read_units
from rmqstore.read.record_filter import LogFilter, log_filter
from rmqstore.read.sampling import Sample
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.recovery.store_ends import PlannedEnds

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark_rmqstore.opened_stores import naming_this_host, paths_of
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.where import (
    PRUNED_COLUMNS,
    Comparison,
    Joined,
    Kind,
    mask_of,
    starting_with,
)
from rmqstore.read.log_mark import LogMark
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import BrokerRun, StoreSigns, folders_of
from rmqstore.storage.files.retry import ChangingStore

logger = logging.getLogger(__name__)

# A store that is opened and closed all the time is not recovered each time.
_MAX_READS = 10

_EQUAL: Final[dict[str, Kind]] = {"EqualTo": "IN", "EqualNullSafe": "IN", "In": "IN"}
_ORDERS: Final[dict[str, Kind]] = {
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
# Columns that look different in a read that gives them other names: bytes for text.
_CHANGED: Final = frozenset({"keys", "properties"})

_SAMPLES_PER_TASK = 16
_REMOTE_SAMPLES_PER_TASK = 2  # each takes a request
_FEWEST_SAMPLES = 2  # of a range: at its first and last record
_MAX_SAMPLES = 1024
# records; a range of at most this many is sampled at its first and last record only
_SMALL_QUEUE = 64
_MANY_RANGES = 1024  # for which some are sampled first
_ESTIMATED_BY = 128  # ranges of each sort that are sampled then


def read_task(
    reader: SplitReader, planned: QueueSplit, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task of a stream."""
    settle_worker()
    task = _StreamTask(reader, planned, fail_on_data_loss=fail_on_data_loss)
    # The signs are taken before the store is opened: a file may be deleted while it is opened.
    changing = ChangingStore(task.signs, task.doubt)
    ends = PlannedEnds(planned.recovered)
    with option_names(), open_in_task(planned.store, ends) as store:
        # Rows that Spark has got cannot be taken back. So only the first batch is read again here;
        # what fails later is left to Spark's own attempts.
        yield from changing.answer(lambda: task.begin(store))


class _StreamTask:
    def __init__(
        self, reader: SplitReader, planned: QueueSplit, *, fail_on_data_loss: bool
    ) -> None:
        self._reader = reader
        self._planned, self._mark = planned, planned.mark
        self._fail_on_data_loss = fail_on_data_loss
        self._is_in_doubt = False

    def signs(self) -> StoreSigns:
        with naming_this_host():
            paths = paths_of(self._planned.store)
        queues = {(piece.topic, piece.queue_id) for piece in self._planned.slices}
        return StoreSigns.of(paths, folders_of(paths, queues))

    def doubt(self) -> None:
        self._is_in_doubt = True

    def begin(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        """Return the batches, the first of which is read already.

        A broker that starts after the plan was checked and before it is read may cut the log and
        write other records in the place of those that were planned. The first batch is dropped
        then, and everything is checked and read again.
        """
        for _ in range(_MAX_READS):
            run = BrokerRun.of(store.paths)
            split = self._planned if self._stands(store) else self._plan_again(store)
            batches = self._reader.rows(store, split)
            first = next(batches, None)
            if BrokerRun.of(store.paths) == run:
                break
            self._is_in_doubt = True
        return batches if first is None else chain([first], batches)

    def _stands(self, store: StoreParts) -> bool:
        """Return whether the store holds what was planned; of a closed one the mark shows it."""
        if self._is_in_doubt or not self._has_mark(store):
            return False
        return not store.paths.has_abort or all(
            store.ranges.stands(piece) for piece in self._planned.slices
        )

    def _has_mark(self, store: StoreParts) -> bool:
        return self._mark is None or self._mark.stands_in(store.log)

    def _plan_again(self, store: StoreParts) -> QueueSplit:
        """Take from the log what queues now lack.

        What a recovery cut off is left out if ``failOnDataLoss`` is false.
        """
        store.forget()
        slices = self._planned.slices
        if not self._fail_on_data_loss:
            # Messages that took the place of those that were cut off were stored later than the
            # mark, and come with the next micro-batch.
            until = LATEST_TIME
            if self._mark is not None and not self._has_mark(store):
                until = self._mark.store_timestamp
            confirmed = (
                store.ranges.confirmed(piece, store.log.max_offset, until) for piece in slices
            )
            slices = tuple(part for parts in confirmed for part in parts)
        return replace(self._planned, slices=slices, recovered=store.ends.recovered)


@dataclass(frozen=True)
class PushedFilters:
    """The accepted filters of one read."""

    conditions: tuple[Comparison, ...] = ()
    pruning: Pruning = NO_PRUNING

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet all conditions."""
        if not self.conditions or not batch.num_rows:
            return batch
        return batch.filter(mask_of(Joined("AND", self.conditions), batch))


def push_filters(
    filters: Iterable[Filter], schema: pa.Schema, names: Mapping[str, str] | None = None
) -> tuple[PushedFilters, list[Filter]]:
    """Return the accepted filters, and those that are left to Spark.

    Args:
        filters: filters that rows must all meet.
        schema: the Arrow schema of the read.
        names: the column of the read for each column that a filter may name, if they differ.
    """
    conditions: list[Comparison] = []
    rest: list[Filter] = []
    for pushed in filters:
        condition = _condition(pushed, schema, names)
        if condition is None:
            rest.append(pushed)
        else:
            conditions.append(condition)
    pruning = reduce(Pruning.met, (condition.pruning() for condition in conditions), NO_PRUNING)
    return PushedFilters(tuple(conditions), pruning), rest


def _condition(
    pushed: Filter, schema: pa.Schema, names: Mapping[str, str] | None
) -> Comparison | None:
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return None
    name = attribute[0] if names is None else names.get(attribute[0], "")
    if name in _CHANGED and names is not None:
        return None
    if name not in schema.names or name not in PRUNED_COLUMNS:
        return None
    kind = type(pushed).__name__
    if kind == "IsNotNull":
        return Comparison(name, "IS NOT NULL")
    if kind == "StringStartsWith":
        return starting_with(name, pushed.value) if name == "topic" else None  # type: ignore[attr-defined]
    column = schema.field(name).type
    known = _EQUAL if pa.types.is_string(column) else _EQUAL | _ORDERS
    if kind not in known:
        return None
    value = pushed.value  # type: ignore[attr-defined]
    given = tuple(value) if kind == "In" else (value,)
    try:
        values = tuple(pa.array([one for one in given if one is not None], column).to_pylist())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return None  # only Spark knows what they mean in a comparison with the column
    if kind != "In" and not values:
        return None
    return Comparison(name, known[kind], values)


class SplitReader:
    """Plans and reads the tasks of a read. It has no state besides options."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self.schema = arrow_schema(schema, options)
        self._names = schema.fieldNames()
        self.pushed = PushedFilters()

    def spec(self, broker_name: str) -> ReadSpec:
        """Return the specification by which messages of a broker are read."""
        options = self._options
        return ReadSpec(
            schema=self.schema,
            mode=options.mode,
            corrupt_column=options.corrupt_column,
            check_crc=options.check_crc,
            fail_on_data_loss=options.fail_on_data_loss,
            tags=self.pushed.pruning.tagged(options.tags),
            filter=options.filter,
            broker_name=broker_name,
        )

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Accept the filters that prune, and return the others."""
        names = MADE_OF if self._options.is_kafka else None
        self.pushed, rest = push_filters(filters, self.schema, names)
        return rest

    def planned(self, store: StoreParts) -> list[SampledSlice]:
        """Return the ranges of queues that the options name, with samples at their two ends."""
        planned = plan_sampled(store, self._options.selection, self.spec(store.broker_name))
        return [SampledSlice(*item) for item in planned]

    def sampled(self, store: StoreParts, slices: Sequence[QueueSlice]) -> list[SampledSlice]:
        """Return ranges of queues with samples at their two ends.

        If samples of some of many ranges show that all are one task, the others get an estimate.
        """
        mean_bytes = self._mean_if_one_task(store, slices)
        if mean_bytes is not None:
            return [SampledSlice(piece, [Sample(piece.start, 0, mean_bytes)]) for piece in slices]
        return [
            SampledSlice(piece, take_samples(store, piece, _FEWEST_SAMPLES)) for piece in slices
        ]

    def _mean_if_one_task(self, store: StoreParts, slices: Sequence[QueueSlice]) -> float | None:
        """Return the mean size of the messages in many ranges, None if one task cannot hold them.

        The longest ranges are sampled, and some others.
        """
        options = self._options
        lengths = np.array([piece.end - piece.start for piece in slices], np.int64)
        n_records = int(lengths.sum())
        is_limited = n_records > (options.max_records_per_partition or n_records)
        if len(slices) < _MANY_RANGES or is_limited or (options.min_partitions or 1) > 1:
            return None
        longest = np.argsort(-lengths, kind="stable")[:_ESTIMATED_BY]
        others = np.linspace(0, len(slices) - 1, _ESTIMATED_BY).astype(np.int64)
        n_bytes = [
            sum(
                SampledSlice(slices[row], take_samples(store, slices[row], _FEWEST_SAMPLES)).n_bytes
                for row in rows.tolist()
            )
            for rows in (longest, others)
        ]
        # The longest are known by themselves; all the rest is like the others.
        n_rest = n_records - int(lengths[longest].sum())
        estimate = n_bytes[0] + n_bytes[1] / int(lengths[others].sum()) * n_rest
        return estimate / n_records if 2 * estimate < options.max_bytes_per_partition else None

    def _sampled_evenly(
        self, store: StoreParts, sampled: Iterable[SampledSlice]
    ) -> Iterator[SampledSlice]:
        """Yield ranges of queues with as many samples as they need to be cut evenly."""
        sampled = list(sampled)
        options = self._options
        n_bytes = sum(item.n_bytes for item in sampled)
        task_bytes = min(options.max_bytes_per_partition, n_bytes / (options.min_partitions or 1))
        # The bytes of a queue after which it needs another sample.
        step = max(task_bytes / _SAMPLES_PER_TASK, 1.0)
        if store.log.is_remote:
            step *= _SAMPLES_PER_TASK / _REMOTE_SAMPLES_PER_TASK
        for item in sampled:
            n_records = item.piece.end - item.piece.start
            if n_records > _SMALL_QUEUE and item.n_bytes >= step:
                count = int(min(_FEWEST_SAMPLES + item.n_bytes / step, n_records, _MAX_SAMPLES))
                yield item._replace(samples=take_samples(store, item.piece, count))
            else:
                yield item

    def queues(
        self,
        ref: StoreRef,
        store: StoreParts,
        sampled: Iterable[SampledSlice],
        mark: LogMark | None,
    ) -> StoreRead[QueueSplit]:
        """Return the read of ranges of queues, sampled at their two ends.

        A mark is the newest record that may be read.
        """
        queues, ends = SampledQueues(self._sampled_evenly(store, sampled)), store.ends

        def cut(limits: Limits) -> list[QueueSplit]:
            return [
                QueueSplit(ref, task, ends.recovered_in(task), mark) for task in queues.cut(limits)
            ]

        return StoreRead(ref.path, queues.n_bytes, queues.n_records, cut)

    def lost(
        self, ref: StoreRef, store: StoreParts, slices: Sequence[QueueSlice]
    ) -> list[AnyStoreRead]:
        """Return the read for damage of the log that reads of these ranges would not notice."""
        lost = find_lost(
            store, () if self.pushed.conditions else slices, self.spec(store.broker_name)
        )
        if not lost:
            return []
        split = LostSplit(ref, tuple(lost))
        return [StoreRead(ref.path, 0.0, len(lost), lambda _: [split])]

    def pruned(
        self, ref: StoreRef, store: StoreParts, slices: Sequence[QueueSlice]
    ) -> list[AnyStoreRead]:
        """Return the reads of what pushed filters leave of ranges of queues."""
        pruned = StorePruner(store, self.pushed.pruning).queues(slices)
        n_single = 0 if pruned.single is None else len(pruned.single.physical_offsets)
        logger.info(
            "%s: of the queues that they allow, pushed filters leave %d of %d messages "
            "in %d of %d ranges, and %d that the index gives: %s",
            ref.path, _total_length(pruned.every), _total_length(slices),
            len(pruned.every), len(slices), n_single, self.pushed.pruning,
        )  # fmt: skip
        mark = newest_record(store, pruned.every)
        reads: list[AnyStoreRead] = [
            self.queues(ref, store, self.sampled(store, pruned.every), mark)
        ]
        if pruned.single is not None:
            single = pruned.single
            reads.append(_rows(ref, single.sizes, lambda rows: UnitSplit(ref, single.take(rows))))
        return reads

    def log(self, ref: StoreRef, store: StoreParts) -> AnyStoreRead:
        """Return the read of the log, all of it or what pushed filters leave."""
        # refuses what contradicts itself before any task runs
        log_filter(self._options.selection, self.schema.names)
        store.ranges.warn_unknown_topics(self._options.selection)
        whole = store.log_slice()
        pruner = StorePruner(store, self.pushed.pruning)
        slices = [whole]
        if self.pushed.conditions:
            slices = pruner.log(whole)
            logger.info(
                "%s: pushed filters leave %d of %d bytes of the log: %s",
                ref.path,
                _total_length(slices),
                _total_length([whole]),
                self.pushed.pruning,
            )
        return self._log(ref, store, slices, pruner.heads)

    def lookup(self, ref: StoreRef, store: StoreParts) -> list[AnyStoreRead]:
        """Return the reads of a look-up.

        They read the records that the index names, and the parts of the log that it does not cover.
        """
        options = self._options
        log_filter(options.selection, self.schema.names, options.wanted)
        store.ranges.warn_unknown_topics(options.selection)
        spec, candidates = (
            self.spec(store.broker_name),
            find_wanted(store, options.wanted, options.selection),
        )
        uncovered = [] if options.index_only else finder(store).uncovered(candidates)
        offsets = candidates.places_outside(uncovered)
        logger.info(
            "%s: the index names %d records and does not cover %d bytes of the log",
            ref.path, len(candidates.places), candidates.n_uncovered_bytes,
        )  # fmt: skip
        reads = [self.records(ref, store, offsets)]
        in_tier = [] if options.index_only else plan_look_up(store, options.selection, spec)
        if in_tier:
            reads.append(self.queues(ref, store, self.sampled(store, in_tier), None))
        if uncovered:
            reads.append(self._log(ref, store, uncovered, log_heads(store)))
        return reads

    def records(self, ref: StoreRef, store: StoreParts, offsets: NDArray[np.int64]) -> AnyStoreRead:
        """Return the read of single records of the log, by physical offset."""
        return _rows(ref, _mean_sizes(store, offsets), lambda rows: RecordSplit(ref, offsets[rows]))

    def pending(self, ref: StoreRef, store: StoreParts) -> AnyStoreRead:
        """Return the read of pending messages."""
        rows = find_pending(store, self._options.selection, self.spec(store.broker_name))
        numbers = np.arange(len(rows.places))
        return _rows(
            ref,
            _mean_sizes(store, rows.places),
            lambda part: PendingSplit(ref, rows.take(numbers[part])),
        )

    def _log(
        self, ref: StoreRef, store: StoreParts, slices: Sequence[LogSlice], heads: Sequence[int]
    ) -> AnyStoreRead:
        """Return the read of ranges of the log, which may be cut at heads."""
        parts = log_parts(store, slices, heads)

        def cut(limits: Limits) -> list[LogSplit]:
            return [LogSplit(ref, task) for task in plan_log(parts, limits)]

        return StoreRead(ref.path, sum(part.n_bytes for part in parts), None, cut)

    def tasks(self, reads: Sequence[AnyStoreRead]) -> list[InputPartition]:
        """Return the tasks that read some reads of stores, within the limits of the options."""
        options = self._options
        limits = Limits(
            options.max_bytes_per_partition,
            options.max_records_per_partition,
            options.min_partitions,
        )
        return plan_tasks(reads, limits)

    def stored_records(self, ref: StoreRef, store: StoreParts) -> list[tuple[datetime, str, int]]:
        """Return the messages that a look-up finds.

        Pushed filters do not apply, because the newest messages are chosen before they do.

        Returns:
            For each message its store time, the path of its store and its physical offset.
        """
        options = self._options
        schema = select_columns(["storeTimestamp", "commitLogOffset"])
        # A damaged message has no store time, so it cannot be chosen.
        mode = options.mode if options.mode == "FAILFAST" else "DROPMALFORMED"
        spec = replace(self.spec(store.broker_name), schema=schema, mode=mode, tags=options.tags)
        rows = (
            row
            for task in self.tasks(self.lookup(ref, store))
            for split in splits_of(task, StoreSplit)
            for batch in self._read_split(store, split, spec)
            for row in batch.to_pylist()
        )
        return [(row["storeTimestamp"], ref.path, row["commitLogOffset"]) for row in rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task."""
        settle_worker()
        for split in splits_of(partition, StoreSplit):
            ends = None  # the task looks for itself
            if isinstance(split, QueueSplit) and not self._options.wanted:
                ends = PlannedEnds(split.recovered)
            elif isinstance(split, UnitSplit):
                ends = PlannedEnds({})
            with option_names(), open_in_task(split.store, ends) as store:
                yield from self.rows(store, split)

    def rows(self, store: StoreParts, split: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task from its store."""
        return self._matching(self._read_split(store, split, self.spec(store.broker_name)))

    def _matching(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that meet the pushed filters, with the columns that Spark asks for."""
        for batch in batches:
            matches = self.pushed.keep(batch)
            if matches.num_rows:
                yield as_kafka(matches, self._names) if self._options.is_kafka else matches

    def _read_split(
        self, store: StoreParts, split: InputPartition, spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]:
        match split:
            case QueueSplit() if self._options.wanted:
                yield from look_up(store, split.slices, spec, self._log_filter(spec))
            case QueueSplit():
                mark = split.mark
                is_cut = mark is not None and not mark.stands_in(store.log)
                planned = replace(spec, mark=mark, is_cut=is_cut)
                yield from read_queues(store, split.slices, planned)
            case LostSplit():
                yield from refuse_spans(split.spans, spec)
            case UnitSplit():
                yield from read_units(store, split.picked, spec)
            case PendingSplit():
                yield from read_pending(store, split.rows, spec, self._options.selection)
            case RecordSplit():
                offsets = split.physical_offsets
                yield from finder(store).read_places(offsets, spec, self._log_filter(spec))
            case LogSplit():
                for piece in split.slices:
                    yield from read_log(store, piece, spec, self._log_filter(spec))

    def _log_filter(self, spec: ReadSpec) -> LogFilter:
        """Return the filter of records by topic, time, key and id, for a read of these columns."""
        return log_filter(self._options.selection, spec.schema.names, self._options.wanted)


def _rows(
    ref: StoreRef, sizes: NDArray[np.number], split: Callable[[slice], InputPartition]
) -> AnyStoreRead:
    """Return a read of single records, in the order of the log.

    Args:
        ref: the store.
        sizes: bytes of the records, (n,).
        split: makes a task of some of them.
    """

    def cut(limits: Limits) -> list[InputPartition]:
        return [split(rows) for rows in cut_rows(sizes, limits)]

    return StoreRead(ref.path, float(sizes.sum()), len(sizes), cut)


def _mean_sizes(store: StoreParts, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.full(len(offsets), finder(store).mean_size(offsets), np.float64)


def _total_length(pieces: Iterable[QueueSlice | LogSlice]) -> int:
    return sum(piece.end - piece.start for piece in pieces)
