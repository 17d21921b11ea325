"""The batch reader: plans on the driver and reads in tasks. It has no state besides options."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.pushdown import push_filters
from pyspark_rmqstore.tasks import BrokerNames, SplitReader, open_ref
from rmqstore.query.selection import require_named
from rmqstore.read.session import StoreSession

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

logger = logging.getLogger(__name__)


class RmqStoreReader(DataSourceReader):
    """Reads messages of one or several stores."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._splits = SplitReader(schema, options)

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        log_to_spark()
        selection = self._options.selection
        by_queue = self._options.scan == "queue" and not self._options.wanted
        splits: list[InputPartition] = []
        known: dict[str, set[int]] = {}
        names = BrokerNames()
        for ref in self._options.stores:
            with open_ref(ref) as store:
                names.add(store.broker_name, ref.path)
                if self._splits.pushed.pruning.keeps_broker(store.broker_name):
                    splits += self._plan(ref, store)
                if by_queue:
                    for topic, queue_ids in store.named_queues(selection).items():
                        known.setdefault(topic, set()).update(queue_ids)
        if by_queue:
            require_named(selection, known, ", ".join(ref.path for ref in self._options.stores))
        if self._options.msg_key_limit is not None:
            splits = self._newest(self._options.msg_key_limit)
        logger.info("planned %d tasks over %d stores", len(splits), len(self._options.stores))
        return splits

    def _plan(self, ref: StoreRef, store: StoreSession) -> Sequence[InputPartition]:
        if self._options.wanted:
            if self._options.msg_key_limit is not None:
                return []  # planned over all stores at once
            return self._splits.split_lookup(ref, store)
        if self._options.scan == "commitlog":
            return self._splits.split_log(ref, store)
        store.warn_without_queues()
        slices = store.plan_queues(self._options.selection, self._splits.spec(store))
        others: list[InputPartition] = [*self._splits.split_lost(ref, store, slices)]
        if self._options.include_pending:
            others += self._splits.split_pending(ref, store)
        if self._splits.pushed.conditions:
            return [*self._splits.split_pruned(ref, store, slices), *others]
        sampled = self._splits.sampled(store, slices)
        return [*self._splits.split_queues(ref, store, sampled), *others]

    def _newest(self, limit: int) -> list[InputPartition]:
        """Return the tasks that read the newest messages of a look-up over all stores."""
        matches = []
        for ref in self._options.stores:
            with open_ref(ref) as store:
                matches += self._splits.stored_records(ref, store)
        newest = sorted(matches)[-limit:]
        splits: list[InputPartition] = []
        for ref in self._options.stores:
            offsets = sorted(offset for _, path, offset in newest if path == ref.path)
            with open_ref(ref) as store:
                splits += self._splits.split_records(ref, store, np.array(offsets, np.int64))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        return self._splits.read(partition)


class FilteringReader(RmqStoreReader):
    """A reader that takes filters from Spark.

    Spark refuses such a reader if filter push-down is switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept the filters that prune, and return the others.

        Runs in a worker, before :meth:`partitions`.
        """
        self._splits.pushed, rest = push_filters(filters, self._splits.schema)
        return rest


def log_to_spark() -> None:
    """Let the INFO messages of planning into Spark's table of worker logs, if that is switched on.

    Spark plans in a process of its own, whose loggers nobody else can configure.
    """
    own = logging.getLogger(__package__)
    if "PYSPARK_SPARK_SESSION_UUID" in os.environ and own.level == logging.NOTSET:
        own.setLevel(logging.INFO)


def pushes_filters() -> bool:
    """Tell whether Spark is about to push filters down, for which its worker has a module."""
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
