"""The batch reader: plans on the driver, reads in tasks. Stateless but for options."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.planning import QueueSplit
from pyspark_rmqstore.split_reader import BrokerNames, SplitReader, open_ref
from rmqstore.selection import require_named
from rmqstore.store import MessageStore

logger = logging.getLogger(__name__)


class RmqStoreReader(DataSourceReader):
    """Reads messages of one or several stores."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._splits = SplitReader(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        selection, by_queue = self._options.selection, self._options.scan == "queue"
        splits: list[InputPartition] = []
        known, names = dict[str, set[int]](), BrokerNames()
        for ref in self._options.stores:
            with open_ref(ref) as store:
                names.add(store.broker_name, ref.path)
                splits += self._plan_queues(ref, store) if by_queue else self._splits.split_log(ref, store)
                for topic, queues in store.named_queues(selection).items() if by_queue else ():
                    known.setdefault(topic, set()).update(queues)
        if by_queue:
            require_named(selection, known, ", ".join(ref.path for ref in self._options.stores))
        logger.info("planned %d tasks over %d stores", len(splits), len(self._options.stores))
        return splits

    def _plan_queues(self, ref: StoreRef, store: MessageStore) -> list[QueueSplit]:
        store.warn_without_queues()
        slices = store.plan_queues(self._options.selection, self._splits.spec(store))
        return self._splits.split_queues(ref, store, self._splits.sampled(store, slices))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        return self._splits.read(partition)
