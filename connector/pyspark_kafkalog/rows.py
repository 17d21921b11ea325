"""Records in the columns of Spark's Kafka source, and the reader of a batch.

Source: KafkaRecordToRowConverter of Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from kafkalog.partition import began_again, identity_of
from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.options import ColumnOptions, ReadOptions
from pyspark_kafkalog.ranges import OffsetRange
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.packing import rows_of
from pyspark_rmqstore.schema import header_lists, kafka_schema, require_kafka_columns
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.damage import FAILFAST

logger = logging.getLogger(__name__)

# Each column with the one of a record that it is made of.
_MADE_OF: Final = {
    **{name: name for name in ("key", "value", "offset", "timestamp", "headers")},
    "timestampType": "timestamp_type",
}
# What Kafka's clients give for a record of format v0, which has no time.
_LAST_TIME: Final = (1 << 63) // 1000 - 1  # ms that microseconds of 64 bits can count
_TOO_FAR: Final = "does not fit into Spark's microseconds"
_NO_TIMESTAMP: Final = pa.scalar(-1, pa.timestamp("ms", "UTC"))


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
        starts = reader.stable_starts()
        ends = reader.ends()
        reader.warn_of_losses(starts, ends)
        for key, end in ends.items():
            if end < starts[key]:
                text = "%s ends at %d, before it starts at %d: no row"
                logger.warning(text, key, end, starts[key])
        unreadable = reader.unreadable_ends(starts, ends)
        partitions = reader.partitions
        ranges = [
            part._replace(
                identity=identity_of(partitions[part.topic_partition], part.end),
                noted_at=part.end,
            )
            for part in reader.ranges(starts, ends)
        ]
        splits = reader.splits(ranges, unreadable)
        logger.info("planned %d tasks over %d partitions", len(splits), len(starts))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task. Runs in a task; stateless."""
        return rows_of(partition, self._rows.rows)


def default_schema(columns: ColumnOptions) -> StructType:
    """Return the columns of a read that names none."""
    schema = kafka_schema(include_headers=columns.include_headers)
    if columns.corrupt is None:
        return schema
    return schema.add(columns.corrupt, StringType())


def require_columns(schema: StructType, columns: ColumnOptions) -> None:
    """Refuse a schema whose columns are not among those of a read.

    Raises:
        OptionError: a column is unknown, named twice, NOT NULL or of another type.
    """
    expected = None if columns.corrupt is None else StructField(columns.corrupt, StringType())
    others = [field for field in schema.fields if field != expected]
    if len(others) < len(schema.fields) - 1:
        raise OptionError(f"schema: name {columns.corrupt} only once")
    if any(field.name == columns.corrupt for field in others):
        raise OptionError(f"schema: {columns.corrupt} is a string, which may be null")
    if others or not schema.fields:
        require_kafka_columns(
            StructType(others), "kafkalog", include_headers=columns.include_headers
        )


class RowReader:
    """Reads the rows of a task. It has no state besides the options and columns."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        """Check the columns.

        Raises:
            OptionError: a column is unknown, named twice, NOT NULL or of another type.
        """
        require_columns(schema, options.columns)
        self._corrupt = options.columns.corrupt
        self._names = schema.fieldNames()
        self._log_dirs = options.log_dirs
        made_of = [_MADE_OF[name] for name in self._names if name in _MADE_OF]
        if "offset" not in made_of:
            made_of.append("offset")  # which errors name
        self._spec = replace(options.spec, columns=tuple(made_of))

    def rows(self, ranges: Iterable[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges, one after the other. Runs in a task."""
        with self._log_dirs.open() as log_dirs:
            partitions = log_dirs.partitions
            for offset_range in ranges:
                partition = partitions.get(offset_range.topic_partition)
                if partition is None:
                    self._spec.report_loss(f"{offset_range.topic_partition} is gone")
                    continue
                partition.resume(offset_range.recovered_end)
                if began_again(partition, offset_range.identity, offset_range.noted_at):
                    self._spec.report_loss(
                        f"{offset_range.topic_partition} is another log than the one that was "
                        f"planned to be read up to {offset_range.noted_at}: its topic was deleted "
                        "and made again"
                    )
                    continue
                batches = partition.read(
                    self._spec,
                    offset_range.start,
                    offset_range.end,
                    requires_end=True,
                    follows=offset_range.follows,
                )
                for batch in batches:
                    if batch.num_rows:
                        timed = self._timed(batch, partition.path)
                        arrays = [self._column(timed, name, offset_range) for name in self._names]
                        yield pa.RecordBatch.from_arrays(arrays, self._names)

    def _timed(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """Return rows with the times that Spark can count in microseconds, and null for others.

        Raises:
            UnsupportedFeatureError: there are others, and the mode is FAILFAST.
        """
        if "timestamp" not in self._spec.columns:
            return batch
        stored = batch.column("timestamp")
        times = stored.fill_null(_NO_TIMESTAMP)
        if self._spec.is_permissive:
            times = pc.if_else(batch.column(self._spec.corrupt_column).is_null(), times, stored)
        numbers = stored.cast(pa.int64()).fill_null(-1)
        is_far = pc.or_(pc.greater(numbers, _LAST_TIME), pc.less(numbers, -_LAST_TIME))
        if pc.any(is_far).as_py():
            row = pc.index(is_far, value=True).as_py()
            offset = batch.column("offset")[row]
            text = f"{path}: the timestamp {numbers[row]} of offset {offset} {_TOO_FAR}"
            if self._spec.mode == FAILFAST:
                raise UnsupportedFeatureError(
                    f"{text}; mode=DROPMALFORMED gives null for such a time, and a read without "
                    "the column timestamp needs none"
                )
            if self._spec.is_permissive:
                corrupt = self._spec.corrupt_column
                texts = [f"the timestamp {time} {_TOO_FAR}" for time in numbers.to_pylist()]
                reasons = pc.if_else(is_far, pa.array(texts), batch.column(corrupt))
                batch = batch.set_column(batch.schema.get_field_index(corrupt), corrupt, reasons)
            else:
                logger.warning("%s; it is null, as are others of that kind", text)
            times = pc.if_else(is_far, None, times)
        return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)

    def _column(self, batch: pa.RecordBatch, name: str, offset_range: OffsetRange) -> pa.Array:
        if name == "topic":
            return pa.repeat(pa.scalar(offset_range.topic, pa.string()), batch.num_rows)
        if name == "partition":
            return pa.repeat(pa.scalar(offset_range.partition, pa.int32()), batch.num_rows)
        if name == self._corrupt:
            return batch.column(self._spec.corrupt_column)
        column = batch.column(_MADE_OF[name])
        if name == "timestamp":
            return column.cast(pa.timestamp("us", "UTC"))
        if name != "headers":
            return column
        pairs = column.values
        return header_lists(column.offsets, pairs.field("key"), pairs.field("value"))
