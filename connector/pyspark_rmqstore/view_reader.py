"""The batch reader of views: plans on the driver and reads in tasks, without a state of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.opened_stores import open_ref
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StoreRef
from pyspark_rmqstore.packing import AnyPortion, Portion, plan_tasks, splits_of
from pyspark_rmqstore.planning import Limits
from pyspark_rmqstore.tasks import BrokerNames, each_store
from pyspark_rmqstore.view_options import ViewOptions
from pyspark_rmqstore.view_schema import arrow_view_schema
from rmqstore.query.selection import require_named
from rmqstore.read.views.source import ViewPiece

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ViewSplit(InputPartition):
    """A task: one part of a view of one store."""

    store: StoreRef
    piece: ViewPiece


class _StorePlan(NamedTuple):
    """What is to be read of one store.

    Attributes:
        broker_name: the broker's name.
        named_queues: topics and queues that the options name, see ``OpenStore.named_queues``.
        portion: its part of the view.
    """

    broker_name: str
    named_queues: Mapping[str, set[int]]
    portion: AnyPortion


class RmqStoreViewReader(DataSourceReader):
    """Reads a view of one or several stores."""

    def __init__(self, schema: StructType, options: ViewOptions) -> None:
        self._options = options
        self._spec = options.spec(arrow_view_schema(schema, options))

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        spec, stores = self._spec, self._options.stores
        known: dict[str, set[int]] = {}
        names = BrokerNames()
        portions: list[AnyPortion] = []
        for ref, plan in zip(stores, each_store(stores, self._plan), strict=True):
            names.add(plan.broker_name, ref.path)
            portions.append(plan.portion)
            for topic, queue_ids in plan.named_queues.items():
                known.setdefault(topic, set()).update(queue_ids)
        if spec.names_topics:
            require_named(spec.selection, known, ", ".join(ref.path for ref in stores))
        max_bytes, min_partitions = self._options.limits
        tasks = plan_tasks(portions, Limits(max_bytes, min_partitions=min_partitions))
        logger.info(
            "planned %d tasks of view %s over %d stores", len(tasks), spec.view, len(stores)
        )
        return tasks

    def _plan(self, ref: StoreRef) -> _StorePlan:
        spec, limits, stores = self._spec, self._options.limits, self._options.stores
        if limits.min_partitions:
            share = -(-limits.min_partitions // len(stores))
            limits = limits._replace(min_partitions=share)
        with open_ref(ref) as store:
            named = store.named_queues(spec.selection) if spec.names_topics else {}
            pieces = store.plan_view(spec, limits)
            splits = [ViewSplit(ref, piece) for piece in pieces]
            n_bytes = float(sum(piece.n_bytes for piece in pieces))
            portion = Portion(ref.path, n_bytes, None, lambda _: splits)
            return _StorePlan(store.view_broker_name, named, portion)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Runs in a task; stateless."""
        for split in splits_of(partition):
            # Spark reads a partition of its own if there are none.
            if isinstance(split, ViewSplit):
                with option_names(), open_ref(split.store) as store:
                    yield from store.read_view(self._spec, split.piece)
