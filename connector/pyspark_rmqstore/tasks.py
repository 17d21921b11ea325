"""Plans tasks from ranges of queues, and reads the rows of a task, for batches and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.planning import (
    Limits,
    LogSplit,
    LostSplit,
    PendingSplit,
    QueueSplit,
    RecordSplit,
    SampledSlice,
    UnitSplit,
    cut_rows,
    plan_log,
    plan_queues,
)
from pyspark_rmqstore.pushdown import PushedFilters
from pyspark_rmqstore.schema import arrow_schema
from rmqstore.errors import OptionError
from rmqstore.format.schema import select_columns
from rmqstore.read.lookup.pending import find_pending, read_pending
from rmqstore.read.plan.sampling import Sample
from rmqstore.read.pruner import StorePruner
from rmqstore.read.scan.record_filter import LogFilter, log_filter
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import ReadSpec
from rmqstore.read.session import StoreSession, open_session
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.files.paths import StorePaths, find_store

logger = logging.getLogger(__name__)

_SAMPLES_PER_TASK = 16
_FEWEST_SAMPLES = 2  # of a range: at its first and last record
_MAX_SAMPLES = 1024
# records; a range of at most this many is sampled at its first and last record only
_SMALL_QUEUE = 64


class SplitReader:
    """Plans and reads the tasks of a read. It has no state besides options."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self.schema = arrow_schema(schema, options)
        self.pushed = PushedFilters()

    def spec(self, store: StoreSession) -> ReadSpec:
        """Return the specification by which messages of a store are read."""
        options = self._options
        return ReadSpec(
            schema=self.schema,
            mode=options.mode,
            corrupt_column=options.corrupt_column,
            check_crc=options.check_crc,
            fail_on_data_loss=options.fail_on_data_loss,
            tags=self.pushed.pruning.tagged(options.tags),
            filter=options.filter,
            broker_name=store.broker_name,
        )

    def sampled(self, store: StoreSession, slices: Iterable[QueueSlice]) -> list[SampledSlice]:
        """Return ranges of queues with the samples that planning needs."""
        sampled = []
        for piece in slices:
            samples = store.sample(piece, _FEWEST_SAMPLES)
            count = self._sample_count(piece, samples)
            if count > _FEWEST_SAMPLES:
                samples = store.sample(piece, count)
            sampled.append(SampledSlice(piece, samples))
        return sampled

    def split_queues(
        self, ref: StoreRef, store: StoreSession, sampled: Sequence[SampledSlice]
    ) -> list[QueueSplit]:
        """Return the tasks that read ranges of queues."""
        return [
            QueueSplit(ref, task, store.ends.recovered_in(task))
            for task in plan_queues(sampled, self._limits())
        ]

    def split_lost(
        self, ref: StoreRef, store: StoreSession, slices: Sequence[QueueSlice]
    ) -> list[LostSplit]:
        """Return the task for damage of the log that reads of these ranges would not notice."""
        lost = store.lost(() if self.pushed.conditions else slices, self.spec(store))
        return [LostSplit(ref, tuple(lost))] if lost else []

    def split_pruned(
        self, ref: StoreRef, store: StoreSession, slices: Sequence[QueueSlice]
    ) -> list[InputPartition]:
        """Return the tasks that read what pushed filters leave of ranges of queues."""
        pruned = StorePruner(store, self.pushed.pruning).queues(slices)
        n_single = 0 if pruned.single is None else len(pruned.single.physical_offsets)
        logger.info(
            "%s: pushed filters leave %d of %d messages in %d of %d ranges of queues, "
            "and %d that the index gives: %s",
            ref.path,
            _total_length(pruned.slices),
            _total_length(slices),
            len(pruned.slices),
            len(slices),
            n_single,
            self.pushed.pruning,
        )
        single = [] if pruned.single is None else self.split_units(ref, pruned.single)
        return [*self.split_queues(ref, store, self.sampled(store, pruned.slices)), *single]

    def split_log(self, ref: StoreRef, store: StoreSession) -> list[LogSplit]:
        """Return the tasks that read the log, all of it or what pushed filters leave."""
        # refuses what contradicts itself before any task runs
        log_filter(self._options.selection, self.schema.names)
        store.warn_unknown_topics(self._options.selection)
        whole = store.log_slice()
        pruner = StorePruner(store, self.pushed.pruning)
        limits, measure = self._limits(), store.log.data_lengths
        if not self.pushed.conditions:
            return [LogSplit(ref, part) for part in plan_log(whole, pruner.heads, limits, measure)]
        pieces = pruner.log(whole)
        logger.info(
            "%s: pushed filters leave %d of %d bytes of the log: %s",
            ref.path,
            _total_length(pieces),
            _total_length([whole]),
            self.pushed.pruning,
        )
        return [
            LogSplit(ref, part)
            for piece in pieces
            for part in plan_log(piece, pruner.heads, limits, measure)
        ]

    def split_lookup(self, ref: StoreRef, store: StoreSession) -> list[InputPartition]:
        """Return the tasks of a look-up.

        They read the records that the index names, and the parts of the log that it does not cover.
        """
        options = self._options
        log_filter(options.selection, self.schema.names, options.wanted)
        store.warn_unknown_topics(options.selection)
        candidates = store.find(options.wanted, options.selection)
        uncovered = [] if options.index_only else store.finder.uncovered(candidates)
        offsets = candidates.places_outside(uncovered)
        logger.info(
            "%s: the index names %d records and does not cover %d bytes of the log",
            ref.path,
            len(candidates.places),
            candidates.n_uncovered_bytes,
        )
        heads = store.log_heads() if uncovered else []
        parts = [part for piece in uncovered for part in plan_log(piece, heads, self._limits())]
        return [*self.split_records(ref, store, offsets), *(LogSplit(ref, part) for part in parts)]

    def split_records(
        self, ref: StoreRef, store: StoreSession, offsets: NDArray[np.int64]
    ) -> list[RecordSplit]:
        """Return the tasks that read single records of the log, by physical offset."""
        return [RecordSplit(ref, offsets[rows]) for rows in self._cut_offsets(store, offsets)]

    def split_units(self, ref: StoreRef, picked: UnitRows) -> list[UnitSplit]:
        """Return the tasks that read single units of queues."""
        return [
            UnitSplit(ref, picked.take(rows)) for rows in cut_rows(picked.sizes, self._limits())
        ]

    def split_pending(self, ref: StoreRef, store: StoreSession) -> list[PendingSplit]:
        """Return the tasks that read pending messages."""
        rows = find_pending(store, self._options.selection, self.spec(store))
        parts = self._cut_offsets(store, rows.places)
        return [PendingSplit(ref, rows.take(np.arange(part.start, part.stop))) for part in parts]

    def _cut_offsets(self, store: StoreSession, offsets: NDArray[np.int64]) -> list[slice]:
        sizes = np.full(len(offsets), store.finder.mean_size(offsets))
        return cut_rows(sizes, self._limits())

    def stored_records(self, ref: StoreRef, store: StoreSession) -> list[tuple[datetime, str, int]]:
        """Return the messages that a look-up finds.

        Pushed filters do not apply, because the newest messages are chosen before they do.

        Returns:
            For each message its store time, the path of its store and its physical offset.
        """
        options = self._options
        schema = select_columns(["storeTimestamp", "commitLogOffset"])
        # A damaged message has no store time, so it cannot be chosen.
        mode = options.mode if options.mode == "FAILFAST" else "DROPMALFORMED"
        spec = replace(self.spec(store), schema=schema, mode=mode, tags=options.tags)
        rows = (
            row
            for split in self.split_lookup(ref, store)
            for batch in self._read_split(store, split, spec)
            for row in batch.to_pylist()
        )
        return [(row["storeTimestamp"], ref.path, row["commitLogOffset"]) for row in rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task."""
        if not isinstance(
            partition, QueueSplit | LostSplit | LogSplit | UnitSplit | RecordSplit | PendingSplit
        ):
            return  # Spark reads a partition of its own if there are none
        with option_names(), open_ref(partition.store) as store:
            yield from self.rows(store, partition)

    def rows(self, store: StoreSession, split: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task from its store."""
        for batch in self._read_split(store, split, self.spec(store)):
            matches = self.pushed.keep(batch)
            if matches.num_rows:
                yield matches

    def _read_split(
        self, store: StoreSession, split: InputPartition, spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]:
        match split:
            case QueueSplit():
                store.ends.recovered = split.recovered
                yield from store.read_queues(split.slices, spec)
            case LostSplit():
                yield from store.read_lost(split.stretches, spec)
            case UnitSplit():
                store.ends.recovered = {}
                yield from store.read_units(split.picked, spec)
            case PendingSplit():
                yield from read_pending(store, split.rows, spec, self._options.selection)
            case RecordSplit():
                offsets = split.physical_offsets
                yield from store.finder.read_places(offsets, spec, self._log_filter(spec))
            case LogSplit():
                yield from store.read_log(split.piece, spec, self._log_filter(spec))

    def _log_filter(self, spec: ReadSpec) -> LogFilter:
        """Return the filter of records by topic, time, key and id, for a read of these columns."""
        return log_filter(self._options.selection, spec.schema.names, self._options.wanted)

    def _limits(self) -> Limits:
        options = self._options
        return Limits(
            options.max_bytes_per_partition,
            options.max_records_per_partition,
            options.min_partitions,
        )

    def _sample_count(self, piece: QueueSlice, samples: Sequence[Sample]) -> int:
        """Return how many samples a range needs to be cut evenly, given its first ones."""
        n_records = piece.end - piece.start
        if n_records <= _SMALL_QUEUE or not samples:
            return _FEWEST_SAMPLES
        n_bytes = n_records * samples[0].mean_bytes
        limits = self._limits()
        task_bytes = float(limits.max_bytes)
        if limits.min_partitions:
            task_bytes = min(task_bytes, n_bytes / limits.min_partitions)
        step = max(task_bytes / _SAMPLES_PER_TASK, 1.0)
        return int(min(_FEWEST_SAMPLES + n_bytes / step, n_records, _MAX_SAMPLES))


def _total_length(pieces: Iterable[QueueSlice | LogSlice]) -> int:
    return sum(piece.end - piece.start for piece in pieces)


def open_ref(ref: StoreRef) -> StoreSession:
    """Open a store as the options name it."""
    return open_session(
        ref.path, broker_name=ref.broker_name, ignore_log_end=ref.ignore_log_end, **ref.folders
    )


def paths_of(ref: StoreRef) -> StorePaths:
    """Return where the parts of a store lie; raises as :func:`open_ref` does."""
    return find_store(ref.path, **ref.folders)


class BrokerNames:
    """The broker names of the stores of one read, which must all differ."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, name: str, path: str) -> None:
        """Add a store.

        Raises:
            OptionError: another store has the same broker name.
        """
        other = self._paths.setdefault(name, path)
        if other != path:
            raise OptionError(
                f"{other} and {path} are both of broker {name}; "
                "set brokerName to a JSON object of names by path"
            )
