"""The batch reader of views: plans on the driver and reads in tasks, without a state of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StoreRef
from pyspark_rmqstore.tasks import BrokerNames, open_ref
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


class RmqStoreViewReader(DataSourceReader):
    """Reads a view of one or several stores."""

    def __init__(self, schema: StructType, options: ViewOptions) -> None:
        self._options = options
        self._spec = options.spec(arrow_view_schema(schema, options))

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        spec, stores = self._spec, self._options.stores
        splits: list[InputPartition] = []
        known: dict[str, set[int]] = {}
        names = BrokerNames()
        for ref in stores:
            with open_ref(ref) as store:
                names.add(store.view_broker_name, ref.path)
                if spec.names_topics:
                    for topic, queue_ids in store.named_queues(spec.selection).items():
                        known.setdefault(topic, set()).update(queue_ids)
                pieces = store.plan_view(spec, self._options.limits)
                splits += [ViewSplit(ref, piece) for piece in pieces]
        if spec.names_topics:
            require_named(spec.selection, known, ", ".join(ref.path for ref in stores))
        logger.info(
            "planned %d tasks of view %s over %d stores", len(splits), spec.view, len(stores)
        )
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Runs in a task; stateless."""
        if not isinstance(partition, ViewSplit):
            return  # Spark reads a partition of its own if there are none
        with option_names(), open_ref(partition.store) as store:
            yield from store.read_view(self._spec, partition.piece)
