"""Records in the columns of Spark's Kafka source.

Source: KafkaRecordToRowConverter of Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from kafkalog.read.spec import FAILFAST
from pyspark_kafkalog.options import ReadOptions
from pyspark_kafkalog.ranges import OffsetRange, RangeSplit
from pyspark_kafkalog.schema import require_columns
from pyspark_rmqstore.hosts import naming_this_host
from rmqstore.errors import UnsupportedFeatureError

logger = logging.getLogger(__name__)

_TOPIC, _PARTITION, _TIMESTAMP_TYPE = "topic", "partition", "timestampType"
# Each column with the one of a record that it is made of.
_MADE_OF: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    _TIMESTAMP_TYPE: "timestamp_type",
    "headers": "headers",
}
_PAIR: Final = ["key", "value"]  # of a header
# What Kafka's clients give for a record of format v0, which has no time.
_LAST_TIME: Final = (1 << 63) // 1000 - 1  # ms that microseconds of 64 bits can count
_TOO_FAR: Final = "does not fit into Spark's microseconds"
_NO_TIMESTAMP: Final = pa.scalar(-1, pa.timestamp("ms", "UTC"))


class RowReader:
    """Reads the rows of a task. It has no state besides the options and columns."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        """Check the columns.

        Raises:
            OptionError: a column is unknown, named twice, NOT NULL or of another type.
        """
        require_columns(schema, options.columns)
        self._corrupt = options.columns.corrupt
        self._names, self._log_dirs = schema.fieldNames(), options.log_dirs
        made_of = [_MADE_OF[name] for name in self._names if name in _MADE_OF]
        if "offset" not in made_of:
            made_of.append("offset")  # which errors name
        self._spec = options.spec(tuple(made_of))

    def rows(self, split: RangeSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Runs in a task."""
        with naming_this_host(), self._log_dirs.open() as log_dirs:
            partitions = log_dirs.partitions
            for piece in split.ranges:
                partition = partitions.get(piece.topic_partition)
                if partition is None:
                    self._spec.lose(f"{piece.topic_partition} is gone")
                    continue
                partition.resume(piece.mark)
                batches = partition.read(
                    self._spec, piece.start, piece.end, requires_end=True, follows=piece.follows
                )
                for batch in batches:
                    if batch.num_rows:
                        yield self._row_batch(self._timed(batch, partition.path), piece)

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
            batch = self._told(batch, numbers, is_far, path)
            times = pc.if_else(is_far, None, times)
        return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)

    def _told(
        self, batch: pa.RecordBatch, times: pa.Array, is_far: pa.Array, path: str
    ) -> pa.RecordBatch:
        """Say which times are too far off: by an error, in the rows, or by a warning."""
        row = pc.index(is_far, value=True).as_py()
        text = (
            f"{path}: the timestamp {times[row]} of offset {batch.column('offset')[row]} {_TOO_FAR}"
        )
        if self._spec.mode == FAILFAST:
            raise UnsupportedFeatureError(
                f"{text}; mode=DROPMALFORMED gives null for such a time, and a read without the "
                "column timestamp needs none"
            )
        if not self._spec.is_permissive:
            logger.warning("%s; it is null, as are others of that kind", text)
            return batch
        corrupt = self._spec.corrupt_column
        told = [f"the timestamp {time} {_TOO_FAR}" for time in times.to_pylist()]
        reasons = pc.if_else(is_far, pa.array(told), batch.column(corrupt))
        return batch.set_column(batch.schema.get_field_index(corrupt), corrupt, reasons)

    def _row_batch(self, batch: pa.RecordBatch, piece: OffsetRange) -> pa.RecordBatch:
        arrays = [self._column(batch, name, piece) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def _column(self, batch: pa.RecordBatch, name: str, piece: OffsetRange) -> pa.Array:
        if name == _TOPIC:
            return pa.repeat(pa.scalar(piece.topic, pa.string()), batch.num_rows)
        if name == _PARTITION:
            return pa.repeat(pa.scalar(piece.partition, pa.int32()), batch.num_rows)
        if name == self._corrupt:
            return batch.column(self._spec.corrupt_column)
        column = batch.column(_MADE_OF[name])
        if name == "timestamp":
            return column.cast(pa.timestamp("us", "UTC"))
        return _as_spark(column) if name == "headers" else column


def _as_spark(headers: pa.ListArray) -> pa.Array:
    """Return headers with names that may be null, and null for a record without headers."""
    offsets, values = headers.offsets, headers.values
    pairs = pa.StructArray.from_arrays([values.field("key"), values.field("value")], _PAIR)
    is_empty = pc.equal(offsets[1:], offsets[:-1])
    return pa.ListArray.from_arrays(offsets, pairs, mask=is_empty)
