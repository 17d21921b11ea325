"""The batch reader: plans on the driver and reads in tasks. It has no state besides options."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.options import ReadOptions
from pyspark_kafkalog.ranges import RangeSplit
from pyspark_kafkalog.rows import RowReader
from pyspark_rmqstore.option_names import option_names

logger = logging.getLogger(__name__)


class KafkaLogReader(DataSourceReader):
    """Reads records of the partitions of one broker's log directories."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._rows = RowReader(schema, options)

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        reader = OffsetReader(self._options)
        reader.require_named()
        starts, ends = reader.stable_starts(), reader.ends()
        for key, end in ends.items():
            if end < starts[key]:
                text = "%s ends at %d, before it starts at %d: no row"
                logger.warning(text, key, end, starts[key])
        unreadable = reader.unreadable_ends(starts, ends)
        splits = reader.splits(reader.ranges(starts, ends), unreadable)
        logger.info("planned %d tasks over %d partitions", len(splits), len(starts))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task. Runs in a task; stateless."""
        # Spark reads a partition of its own if there are none.
        if isinstance(partition, RangeSplit):
            with option_names():
                yield from self._rows.rows(partition)
