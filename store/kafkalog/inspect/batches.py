"""The batches of partitions, a row each, as kafka-dump-log shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.control import markers
from kafkalog.format.layout import Codec
from kafkalog.read.partition import Partition
from kafkalog.storage.windows import Window
from rmqstore.errors import MalformedBytesError

BATCHES: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("base_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),
        pa.field("count", pa.int32()),
        pa.field("max_timestamp", pa.timestamp("ms", "UTC")),
        pa.field("magic", pa.int8(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("is_valid", pa.bool_(), nullable=False),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("is_transactional", pa.bool_(), nullable=False),
        pa.field("marker", pa.string()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
    ]
)
_CODECS: Final = {int(codec): codec.name.lower() for codec in Codec}


def batch_rows(
    partitions: Iterable[Partition], start_offset: int | None = None, end_offset: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each batch, damaged ones as well; nothing is inflated.

    Args:
        partitions: the partitions.
        start_offset: leave out batches that end before it.
        end_offset: leave out batches that begin at or after it.

    Returns:
        Batches with the columns of BATCHES. ``is_valid`` tells whether the CRC is right; ``count``
        is null in formats v0 and v1, whose messages wrap others if they are compressed. ``marker``
        is COMMIT or ABORT in a batch that ends a transaction.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.

    Source: DumpLogSegments.scala.
    """
    for partition in partitions:
        log = partition.log()
        first = log.start_offset if start_offset is None else start_offset
        for window in log.windows(first):
            heads = window.heads
            rows = heads.last_offset >= first
            if end_offset is not None:
                rows &= heads.base_offset < end_offset
            if rows.any():
                yield _rows(partition, window, heads[rows])
            if end_offset is not None and (window.next_offset or 0) >= end_offset:
                break


def _rows(partition: Partition, window: Window, heads: BatchHeads) -> pa.RecordBatch:
    count = len(heads)
    columns = {
        "topic": [partition.topic] * count,
        "partition": [partition.partition] * count,
        "base_offset": heads.base_offset,
        "last_offset": heads.last_offset,
        "count": _known(heads.record_count),
        "max_timestamp": _known(heads.max_timestamp),
        "magic": heads.magic,
        "codec": [_CODECS.get(codec, f"{codec}") for codec in heads.codec.tolist()],
        "size": heads.size,
        "is_valid": heads.check_crcs(window.data),
        "producer_id": _known(heads.producer_id),
        "producer_epoch": _known(heads.producer_epoch),
        "base_sequence": _known(heads.base_sequence),
        "is_transactional": heads.is_transactional,
        "marker": _markers(window, heads),
        "leader_epoch": _known(heads.leader_epoch),
        "position": heads.position,
        "path": [window.segment.path] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in BATCHES]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)


def _known(values: NDArray[np.int64] | NDArray[np.int32]) -> list[int | None]:
    """Return numbers of which negative ones mean that there is none."""
    return [None if value < 0 else value for value in values.tolist()]


def _markers(window: Window, heads: BatchHeads) -> list[str | None]:
    names: list[str | None] = [None] * len(heads)
    for row in np.flatnonzero(heads.is_control).tolist():
        try:
            found = markers(window.data, heads[row : row + 1])
        except MalformedBytesError:
            continue
        if found:
            names[row] = "COMMIT" if found[0].is_commit else "ABORT"
    return names
