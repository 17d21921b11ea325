"""The batch reader of views: plans on the driver and reads in tasks, without a state of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.opened_stores import open_in_task, open_ref
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.packing import AnyPortion, Portion, plan_tasks, splits_of
from pyspark_rmqstore.planning import Limits
from pyspark_rmqstore.read_stores import each_store, stores_to_read
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.view_options import ViewOptions
from pyspark_rmqstore.view_schema import arrow_view_schema
from rmqstore.query.selection import require_named
from rmqstore.read.views.catalogue import read_cluster_view
from rmqstore.read.views.schema import OF_CLUSTER
from rmqstore.read.views.source import ViewPiece

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ViewSplit(InputPartition):
    """A task: one part of a view of one store."""

    store: StoreRef
    piece: ViewPiece


@dataclass(frozen=True)
class ClusterSplit(InputPartition):
    """The only task of a view of several stores together."""

    stores: tuple[StoreRef, ...]


class _StorePlan(NamedTuple):
    """What is to be read of one store.

    Attributes:
        named_queues: topics and queues that the options name, see ``OpenStore.named_queues``.
        portions: its part of the view.
    """

    named_queues: Mapping[str, set[int]]
    portions: list[AnyPortion]


class RmqStoreViewReader(DataSourceReader):
    """Reads a view of one or several stores."""

    def __init__(self, schema: StructType, options: ViewOptions) -> None:
        self._options = options
        self._spec = options.spec(arrow_view_schema(schema, options))

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        spec, stores = self._spec, self._options.stores
        if spec.view not in OF_CLUSTER:
            stores = stores_to_read(stores)
        known: dict[str, set[int]] = {}
        portions: list[AnyPortion] = []
        for plan in each_store(stores, lambda ref: self._plan(ref, len(stores))):
            portions += plan.portions
            for topic, queue_ids in plan.named_queues.items():
                known.setdefault(topic, set()).update(queue_ids)
        if spec.names_topics:
            require_named(spec.selection, known, ", ".join(ref.path for ref in stores))
        if spec.view in OF_CLUSTER:
            return [ClusterSplit(stores)]
        max_bytes, min_partitions = self._options.limits
        tasks = plan_tasks(portions, Limits(max_bytes, min_partitions=min_partitions))
        logger.info(
            "planned %d tasks of view %s over %d stores", len(tasks), spec.view, len(stores)
        )
        return tasks

    def _plan(self, ref: StoreRef, n_stores: int) -> _StorePlan:
        spec, limits = self._spec, self._options.limits
        if limits.min_partitions:
            limits = limits._replace(min_partitions=-(-limits.min_partitions // n_stores))
        with open_ref(ref) as store:
            named = store.named_queues(spec.selection) if spec.names_topics else {}
            if spec.view in OF_CLUSTER:
                store.require_view(spec.view)
                return _StorePlan(named, [])
            splits = [ViewSplit(ref, piece) for piece in store.plan_view(spec, limits)]
            n_bytes = float(sum(split.piece.n_bytes for split in splits))
            return _StorePlan(named, [Portion(ref.path, n_bytes, None, lambda _: splits)])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Runs in a task; stateless."""
        if isinstance(partition, ClusterSplit):
            yield from self._read_cluster(partition.stores)
            return
        for split in splits_of(partition):
            # Spark reads a partition of its own if there are none.
            if isinstance(split, ViewSplit):
                with option_names(), open_in_task(split.store) as store:
                    yield from store.read_view(self._spec, split.piece)

    def _read_cluster(self, stores: Sequence[StoreRef]) -> Iterator[pa.RecordBatch]:
        with option_names(), ExitStack() as stack:
            opened = [stack.enter_context(open_in_task(ref)) for ref in stores]
            yield from read_cluster_view([store.view_source for store in opened], self._spec)
