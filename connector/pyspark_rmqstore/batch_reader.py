"""The batch reader: plans on the driver and reads in tasks. It has no state besides options."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.opened_stores import each_store, open_ref, stores_to_read
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.packing import AnyStoreRead
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.tasks import SplitReader
from rmqstore.query.selection import require_named
from rmqstore.read.planning import newest_record, plan_queues
from rmqstore.read.store_parts import StoreParts

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

logger = logging.getLogger(__name__)

_REQUEST_BYTES = 4 << 20  # that a long read of a remote store fetches by one request


class _StorePlan(NamedTuple):
    """What is to be read of one store."""

    named_queues: dict[str, set[int]]  # by topic; see `StoreParts.named_queues`
    reads: list[AnyStoreRead]


class RmqStoreReader(DataSourceReader):
    """Reads messages of one or several stores."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._splits = SplitReader(schema, options)

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        log_to_spark()
        stores = stores_to_read(self._options.stores)
        known: dict[str, set[int]] = {}
        reads: list[AnyStoreRead] = []
        for plan in each_store(stores, self._plan):
            reads += plan.reads
            for topic, queue_ids in plan.named_queues.items():
                known.setdefault(topic, set()).update(queue_ids)
        if self._is_by_queue:
            paths = ", ".join(ref.path for ref in stores)
            require_named(self._options.selection, known, paths)
        if self._options.msg_key_limit is not None:
            # The newest messages are chosen over all stores.
            reads = []
            matches = [match for rows in each_store(stores, self._stored) for match in rows]
            newest = sorted(matches)[-self._options.msg_key_limit :]
            for ref in stores:
                offsets = sorted(offset for _, path, offset in newest if path == ref.path)
                if not offsets:
                    continue
                with open_ref(ref) as store:
                    reads.append(self._splits.records(ref, store, np.array(offsets, np.int64)))
        tasks = self._splits.tasks(reads)
        logger.info("planned %d tasks over %d stores", len(tasks), len(stores))
        return tasks

    @property
    def _is_by_queue(self) -> bool:
        return self._options.scan == "queue" and not self._options.wanted

    def _plan(self, ref: StoreRef) -> _StorePlan:
        with open_ref(ref) as store:
            name = store.broker_name
            is_read = self._splits.pushed.pruning.keeps_broker(name)
            reads = self._reads(ref, store) if is_read else []
            named = store.ranges.named_queues(self._options.selection) if self._is_by_queue else {}
            requests = store.paths.storage.requests_made()
            if requests is not None:
                n_bytes = sum(read.n_bytes for read in reads)
                logger.info(
                    "%s: planning took %s; reading takes about %d GETs",
                    ref.path, requests, -(-int(n_bytes) // _REQUEST_BYTES),
                )  # fmt: skip
            return _StorePlan(named, reads)

    def _reads(self, ref: StoreRef, store: StoreParts) -> list[AnyStoreRead]:
        splits = self._splits
        if self._options.wanted:
            # The newest messages are planned over all stores at once.
            return [] if self._options.msg_key_limit is not None else splits.lookup(ref, store)
        if self._options.scan == "commitlog":
            store.require_local("scan=commitlog")
            return [splits.log(ref, store)]
        store.warn_without_queues()
        store.warn_of_messages_elsewhere()
        if splits.pushed.conditions:
            pruning = splits.pushed.pruning
            slices = plan_queues(
                store, self._options.selection, splits.spec(store.broker_name), pruning
            )
            reads = splits.pruned(ref, store, slices)
        else:
            planned = splits.planned(store)
            slices = [item.piece for item in planned]
            reads = [splits.queues(ref, store, planned, newest_record(store, slices))]
        reads += splits.lost(ref, store, slices)
        if self._options.include_pending:
            store.require_store("include_pending")
            reads.append(splits.pending(ref, store))
        return reads

    def _stored(self, ref: StoreRef) -> list[tuple[datetime, str, int]]:
        with open_ref(ref) as store:
            store.require_local("msgKeyLimit")
            return self._splits.stored_records(ref, store)

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
        return self._splits.push(filters)


def log_to_spark() -> None:
    """Let the INFO messages of planning into Spark's table of worker logs, if that is switched on.

    Spark plans in a process of its own, whose loggers nobody else can configure.
    """
    own = logging.getLogger(__package__)
    if "PYSPARK_SPARK_SESSION_UUID" in os.environ and own.level == logging.NOTSET:
        own.setLevel(logging.INFO)


def pushes_filters() -> bool:
    """Return whether Spark is about to push filters down, for which its worker has a module."""
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
