"""The batch reader of running brokers: plans on the driver and reads in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.batch_reader import log_to_spark
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.packing import AnyStoreRead, Limits, StoreRead, splits_of
from pyspark_rmqstore.planning import SampledQueues, SampledSlice
from pyspark_rmqstore.tasks import SplitReader
from pyspark_rmqstore.worker import settle_worker
from rmqstore.live.broker import LiveBroker
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation, require_served
from rmqstore.live.pulls import first_records
from rmqstore.live.reading import LiveScan
from rmqstore.read.log_mark import LogMark
from rmqstore.read.sampling import Sample
from rmqstore.remoting import Address
from rmqstore.spans import QueueSlice

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveSplit(InputPartition):
    """A task that reads ranges of queues of one running broker."""

    location: LiveLocation
    broker: str
    address: Address
    slices: tuple[QueueSlice, ...]
    mark: LogMark | None = None  # the newest record that may be read


class LiveSplitReader(SplitReader):
    """Plans and reads tasks of running brokers. It has no state besides options."""

    @option_names()
    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        super().__init__(schema, options)
        require_served(columns=self.schema.names)

    def read_of(
        self, broker: LiveBroker, slices: Sequence[QueueSlice], mark: LogMark | None = None
    ) -> AnyStoreRead:
        """Return the read of ranges of a broker's queues; two messages of each are looked at.

        A mark is the newest record that may be read; without one it is the newest of these.
        """
        ends = [piece._replace(start=at) for piece in slices for at in (piece.start, piece.end - 1)]
        found = first_records(broker, ends)
        if mark is None:
            mark = max((record.mark for record in found if record is not None), default=None)
        records = iter(zip(ends, found, strict=True))
        sampled = []
        for piece in slices:
            samples = [
                Sample(one.start, record.physical_offset, float(record.size))
                for one, record in (next(records), next(records))
                if record is not None
            ]
            sampled.append(SampledSlice(piece, samples[: piece.end - piece.start]))
        queues = SampledQueues(sampled)

        def cut(limits: Limits) -> list[LiveSplit]:
            return [
                LiveSplit(broker.location, broker.name, broker.address, task, mark)
                for task in queues.cut(limits)
            ]

        return StoreRead(str(broker), queues.n_bytes, queues.n_records, cut)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task."""
        settle_worker()
        for split in splits_of(partition, LiveSplit):
            with (
                option_names(),
                LiveBroker(split.broker, split.address, split.location) as broker,
            ):
                scan = LiveScan(broker, replace(self.spec(split.broker), mark=split.mark))
                yield from self._matching(scan.batches(split.slices))


class LiveReader(DataSourceReader):
    """Reads messages of running brokers."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._splits = LiveSplitReader(schema, options)

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        log_to_spark()
        options = self._options
        assert options.live is not None, "the options name running brokers"
        with LiveBrokers(options.live) as brokers:
            ranges: Mapping[str, Sequence[QueueSlice]] = brokers.ranges(
                options.selection,
                self._splits.pushed.pruning,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            reads = [
                self._splits.read_of(brokers.opened(name), slices)
                for name, slices in ranges.items()
                if slices
            ]
        tasks = self._splits.tasks(reads)
        logger.info("planned %d tasks over %d brokers", len(tasks), len(reads))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        return self._splits.read(partition)


class FilteringLiveReader(LiveReader):
    """A reader that takes filters from Spark; see ``batch_reader.FilteringReader``."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept the filters that prune, and return the others."""
        return self._splits.push(filters)
