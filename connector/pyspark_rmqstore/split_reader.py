"""From ranges of queues to tasks, and from a task to its rows: what batches and streams have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.planning import Limits, LogSplit, QueueSplit, SampledSlice, plan_log, plan_queues
from pyspark_rmqstore.schema import arrow_schema
from rmqstore.errors import OptionError
from rmqstore.store import MessageStore, QueueSlice, ReadSpec, log_filter, open_store

_SAMPLES_PER_TASK = 16
_SMALL_QUEUE = 64  # records; its first and last say enough


class SplitReader:
    """Plans and reads tasks of some columns. Stateless but for options."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._schema = arrow_schema(schema, options)

    def spec(self, store: MessageStore) -> ReadSpec:
        """Return how messages of a store are read."""
        options = self._options
        return ReadSpec(
            schema=self._schema,
            mode=options.mode,
            corrupt_column=options.corrupt_column,
            check_crc=options.check_crc,
            fail_on_data_loss=options.fail_on_data_loss,
            tags=options.tags,
            broker_name=store.broker_name,
        )

    def sampled(self, store: MessageStore, slices: Iterable[QueueSlice]) -> list[SampledSlice]:
        """Return ranges of queues with what planning has to know of them."""
        return [SampledSlice(piece, store.sample(piece, self._sample_count(store, piece))) for piece in slices]

    def split_queues(self, ref: StoreRef, store: MessageStore, sampled: Sequence[SampledSlice]) -> list[QueueSplit]:
        """Return the tasks that read ranges of queues."""
        return [QueueSplit(ref, task, store.recovered_in(task)) for task in plan_queues(sampled, self._limits())]

    def split_log(self, ref: StoreRef, store: MessageStore) -> list[LogSplit]:
        """Return the tasks that read the whole log."""
        log_filter(self._options.selection, self._schema.names)  # refuses what contradicts itself before any task runs
        store.warn_unknown_topics(self._options.selection)
        whole = store.log_slice()
        return [LogSplit(ref, piece) for piece in plan_log(whole, store.log_heads(), self._limits())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task."""
        if not isinstance(partition, QueueSplit | LogSplit):
            return  # Spark asks for one partition of its own where there is none
        with open_ref(partition.store) as store:
            spec = self.spec(store)
            if isinstance(partition, QueueSplit):
                store.recovered = partition.recovered
                yield from store.read_queues(partition.slices, spec)
            else:
                wanted = log_filter(self._options.selection, self._schema.names)
                yield from store.read_log(partition.piece, spec, wanted)

    def _limits(self) -> Limits:
        options = self._options
        return Limits(options.max_bytes_per_partition, options.max_records_per_partition, options.min_partitions)

    def _sample_count(self, store: MessageStore, piece: QueueSlice) -> int:
        """Return how many samples let a range be cut well: several for each task that it fills."""
        n_records = piece.end - piece.start
        if n_records <= _SMALL_QUEUE:
            return 2
        first = store.sample(piece, 2)[0]
        limits = self._limits()
        goal = limits.max_bytes / _SAMPLES_PER_TASK
        if limits.min_partitions:
            goal = min(goal, n_records * first.mean_bytes / (limits.min_partitions * _SAMPLES_PER_TASK))
        return int(min(2 + n_records * first.mean_bytes / max(goal, 1.0), n_records, 1024))


def open_ref(ref: StoreRef) -> MessageStore:
    """Open a store as the options name it."""
    return open_store(
        ref.path,
        broker_name=ref.broker_name,
        ignore_log_end=ref.ignore_log_end,
        commitlogs=ref.commitlogs,
        consumequeue=ref.consumequeue,
        index=ref.index,
    )


class BrokerNames:
    """The brokers of the stores of one read, no two of one name."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, name: str, path: str) -> None:
        """Take in a store.

        Raises:
            OptionError: another one has its name.
        """
        other = self._paths.setdefault(name, path)
        if other != path:
            raise OptionError(
                f"{other} and {path} are both of broker {name}; tell them apart with brokerName, JSON from path to name"
            )
