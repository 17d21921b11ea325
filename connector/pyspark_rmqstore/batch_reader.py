"""The batch reader: plans on the driver, reads in tasks. Stateless but for options."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.planning import (
    Limits,
    LogSplit,
    QueueSplit,
    SampledSlice,
    plan_log,
    plan_queues,
)
from pyspark_rmqstore.schema import arrow_schema
from rmqstore.errors import OptionError
from rmqstore.selection import require_named
from rmqstore.store import MessageStore, QueueSlice, ReadSpec, log_filter, open_store

logger = logging.getLogger(__name__)

_SAMPLES_PER_TASK = 16
_SMALL_QUEUE = 64  # records; its first and last say enough


class RmqStoreReader(DataSourceReader):
    """Reads messages of one or several stores."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._schema = arrow_schema(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        splits: list[InputPartition] = []
        known, names = dict[str, set[int]](), dict[str, str]()
        for ref in self._options.stores:
            with _open(ref) as store:
                if names.setdefault(store.broker_name, ref.path) != ref.path:
                    raise OptionError(
                        f"{names[store.broker_name]} and {ref.path} are both of broker {store.broker_name}; "
                        "tell them apart with brokerName, JSON from path to name"
                    )
                if self._options.scan == "commitlog":
                    splits += self._plan_log(ref, store)
                    continue
                splits += self._plan_queues(ref, store)
                for topic, queues in store.named_queues(self._options.selection).items():
                    known.setdefault(topic, set()).update(queues)
        if self._options.scan == "queue":
            require_named(self._options.selection, known, ", ".join(ref.path for ref in self._options.stores))
        logger.info("planned %d tasks over %d stores", len(splits), len(self._options.stores))
        return splits

    def _plan_queues(self, ref: StoreRef, store: MessageStore) -> list[QueueSplit]:
        options = self._options
        store.warn_without_queues()
        slices = store.plan_queues(options.selection, self._spec(store))
        limits = self._limits()
        sampled = [SampledSlice(piece, store.sample(piece, self._sample_count(store, piece))) for piece in slices]
        return [QueueSplit(ref, task, store.recovered_in(task)) for task in plan_queues(sampled, limits)]

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

    def _plan_log(self, ref: StoreRef, store: MessageStore) -> list[LogSplit]:
        log_filter(self._options.selection, self._schema.names)  # refuses what contradicts itself before any task runs
        store.warn_unknown_topics(self._options.selection)
        whole = store.log_slice()
        return [LogSplit(ref, piece) for piece in plan_log(whole, store.log_heads(), self._limits())]

    def _limits(self) -> Limits:
        options = self._options
        return Limits(options.max_bytes_per_partition, options.max_records_per_partition, options.min_partitions)

    def _spec(self, store: MessageStore) -> ReadSpec:
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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        if not isinstance(partition, QueueSplit | LogSplit):
            return  # Spark asks for one partition of its own where there is none
        with _open(partition.store) as store:
            spec = self._spec(store)
            if isinstance(partition, QueueSplit):
                store.recovered = partition.recovered
                yield from store.read_queues(partition.slices, spec)
            else:
                wanted = log_filter(self._options.selection, self._schema.names)
                yield from store.read_log(partition.piece, spec, wanted)


def _open(ref: StoreRef) -> MessageStore:
    return open_store(
        ref.path,
        broker_name=ref.broker_name,
        ignore_log_end=ref.ignore_log_end,
        commitlogs=ref.commitlogs,
        consumequeue=ref.consumequeue,
        index=ref.index,
    )
