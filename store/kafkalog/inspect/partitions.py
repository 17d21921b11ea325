"""The partitions of log directories, a row each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from kafkalog.read.partition import Partition

PARTITIONS: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("start_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("last_stable_offset", pa.int64(), nullable=False),
        pa.field("high_watermark", pa.int64()),
        pa.field("segments", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("leader_epoch", pa.int32()),
        pa.field("recovery", pa.string()),
        pa.field("path", pa.string(), nullable=False),
    ]
)


def partition_rows(partitions: Iterable[Partition]) -> pa.RecordBatch:
    """Return a row for each partition.

    Returns:
        A batch with the columns of PARTITIONS. ``high_watermark`` is the checkpointed one, and
        ``leader_epoch`` the newest; both are null if no file has them. ``recovery`` says what a
        broker's recovery would take from the end, null if nothing.

    Raises:
        UnreadableFileError: a partition folder or a segment cannot be read.
    """
    rows = [_row(partition) for partition in partitions]
    return pa.RecordBatch.from_pylist(rows, schema=PARTITIONS)


def _row(partition: Partition) -> dict[str, object]:
    epochs = partition.leader_epochs
    cut = partition.recovery
    recovery = None
    if cut is not None:
        dropped = f" and drops {len(cut.dropped)} segments after it" if cut.dropped else ""
        recovery = f"cuts {cut.path} at {cut.position}{dropped}: {cut.reason}"
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
        "last_stable_offset": partition.last_stable_offset,
        "high_watermark": partition.high_watermark,
        "segments": len(partition.log().segments),
        "bytes": partition.n_bytes,
        "leader_epoch": epochs[-1].epoch if epochs else None,
        "recovery": recovery,
        "path": partition.path,
    }
