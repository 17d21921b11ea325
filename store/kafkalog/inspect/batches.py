"""The batches of partitions, a row each, as kafka-dump-log shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.control import Marker, markers
from kafkalog.format.layout import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, Codec
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
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("base_timestamp", pa.timestamp("ms", "UTC")),
        pa.field("max_timestamp", pa.timestamp("ms", "UTC")),
        pa.field("delete_horizon", pa.timestamp("ms", "UTC")),
        pa.field("magic", pa.int8(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("crc", pa.int64(), nullable=False),
        pa.field("is_valid", pa.bool_(), nullable=False),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("last_sequence", pa.int32()),
        pa.field("is_transactional", pa.bool_(), nullable=False),
        pa.field("is_control", pa.bool_(), nullable=False),
        pa.field("marker", pa.string()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
    ]
)
_MOST_SEQUENCE: Final = (1 << 31) - 1
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
        is COMMIT or ABORT in a batch that ends a transaction. ``delete_horizon`` is when a
        compaction may drop its tombstones; there is no base timestamp then.

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
                yield batches_of((partition.topic, partition.partition), window, heads[rows])
            if end_offset is not None and (window.next_offset or 0) >= end_offset:
                break


def batches_of(place: tuple[str, int], window: Window, heads: BatchHeads) -> pa.RecordBatch:
    """Return a row for each of some batches of a window; ``place`` is topic and partition."""
    count = len(heads)
    found = [
        _marker(window, heads[row : row + 1]) if is_control else None
        for row, is_control in enumerate(heads.is_control.tolist())
    ]
    base_timestamp = np.where(heads.has_delete_horizon, -1, heads.base_timestamp)
    delete_horizon = np.where(heads.has_delete_horizon, heads.base_timestamp, -1)
    columns = {
        "topic": [place[0]] * count,
        "partition": [place[1]] * count,
        "base_offset": heads.base_offset,
        "last_offset": heads.last_offset,
        "count": _known(heads.record_count),
        "timestamp_type": timestamp_types(heads),
        "base_timestamp": _known(base_timestamp),
        "max_timestamp": _known(heads.max_timestamp),
        "delete_horizon": _known(delete_horizon),
        "magic": heads.magic,
        "codec": [_CODECS.get(codec, f"{codec}") for codec in heads.codec.tolist()],
        "size": heads.size,
        "crc": heads.crc,
        "is_valid": heads.check_crcs(window.data),
        "producer_id": _known(heads.producer_id),
        "producer_epoch": _known(heads.producer_epoch),
        "base_sequence": _known(heads.base_sequence),
        "last_sequence": _known(_last_sequences(heads)),
        "is_transactional": heads.is_transactional,
        "is_control": heads.is_control,
        "marker": [marker and ("COMMIT" if marker.is_commit else "ABORT") for marker in found],
        "coordinator_epoch": [marker and marker.coordinator_epoch for marker in found],
        "leader_epoch": _known(heads.leader_epoch),
        "position": heads.position,
        "path": [window.segment.path] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in BATCHES]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)


def timestamp_types(heads: BatchHeads) -> NDArray[np.int8]:
    """Return the types of the timestamps of batches, as in ``layout``, int8 (n,)."""
    types = np.where(heads.is_log_append_time, LOG_APPEND_TIME, CREATE_TIME)
    return np.where(heads.magic == 0, NO_TIMESTAMP_TYPE, types).astype(np.int8)


def _last_sequences(heads: BatchHeads) -> NDArray[np.int64]:
    """Return the sequence numbers of the last offsets of batches; they begin again after 2^31-1."""
    last = (heads.base_sequence + heads.last_offset - heads.base_offset) & _MOST_SEQUENCE
    return np.where(heads.base_sequence < 0, -1, last)


def _known(values: NDArray[np.int64] | NDArray[np.int32]) -> list[int | None]:
    """Return numbers of which negative ones mean that there is none."""
    return [None if value < 0 else value for value in values.tolist()]


def _marker(window: Window, head: BatchHeads) -> Marker | None:
    """Return the marker that one batch is; None if it is none, or cannot be read."""
    try:
        found = markers(window.data, head)
    except MalformedBytesError:
        return None
    return found[0] if found else None
