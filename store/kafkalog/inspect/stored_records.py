"""The records of partitions as they are stored, a row each, as kafka-dump-log shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.consumer_offsets import Decode
from kafkalog.format.control import parse_marker
from kafkalog.format.reference import Record, records_of
from kafkalog.read.partition import Partition
from kafkalog.storage.windows import Window
from rmqstore.errors import MalformedBytesError

STORED_RECORDS: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestamp_type", pa.int8()),
        pa.field("key_size", pa.int32()),
        pa.field("value_size", pa.int32()),
        pa.field("sequence", pa.int32()),
        pa.field("header_keys", pa.list_(pa.string())),
        pa.field("marker", pa.string()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("crc", pa.int64()),
        pa.field("is_valid", pa.bool_(), nullable=False),
        pa.field("leader_epoch", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
DECODED: Final = (pa.field("decoded_key", pa.string()), pa.field("decoded_value", pa.string()))

_MOST_SEQUENCE: Final = (1 << 31) - 1


def stored_schema(decode: Decode | None) -> pa.Schema:
    """Return the columns of stored records: two more if they are decoded."""
    return pa.schema([*STORED_RECORDS, *(DECODED if decode is not None else ())])


def stored_rows(
    partition: Partition, start_offset: int, end_offset: int, decode: Decode | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as they are stored: markers and aborted ones as well.

    Args:
        partition: the partition.
        start_offset: the first offset.
        end_offset: the offset after the last one.
        decode: shows keys and values of one of Kafka's own topics.

    Returns:
        Batches with the columns of :func:`stored_schema`. ``position`` is that of the batch, and
        ``is_valid`` tells whether its CRC is right. A batch that cannot be read has one row, with
        the reason. ``crc`` is that of a message of format v0 or v1.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.

    Source: DumpLogSegments.scala.
    """
    place = partition.topic, partition.partition
    for window in partition.log().windows(start_offset):
        heads = window.heads
        reach = (heads.last_offset >= start_offset) & (heads.base_offset < end_offset)
        reach |= (heads.magic < 2) & (heads.codec != 0) & (heads.last_offset >= start_offset)
        yield from records_in(place, window, heads[reach], decode, (start_offset, end_offset))
        if (window.next_offset or 0) >= end_offset:
            return


def records_in(
    place: tuple[str, int],
    window: Window,
    heads: BatchHeads,
    decode: Decode | None = None,
    within: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of some batches of a window, those of each batch together.

    Args:
        place: topic and partition.
        window: has the batches.
        heads: the batches.
        decode: as for :func:`stored_rows`.
        within: first offset, and the offset after the last one, that are given; by default all.
    """
    schema = stored_schema(decode)
    sound = heads.check_crcs(window.data).tolist()
    for row, is_valid in enumerate(sound):
        head = heads[row : row + 1]
        common = {
            "topic": place[0],
            "partition": place[1],
            "is_valid": is_valid,
            "position": int(head.position[0]),
            "path": window.segment.path,
        }
        try:
            records = list(records_of(window.data, head))
            rows = [common | _row(record, head, decode) for record in records]
        except MalformedBytesError as err:
            rows = [common | {"offset": int(head.base_offset[0]), "reason": err.reason}]
        if within is not None:
            rows = [row for row in rows if within[0] <= row["offset"] < within[1]]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _row(record: Record, head: BatchHeads, decode: Decode | None) -> dict[str, Any]:
    marker = parse_marker(record) if record.is_control else None
    base_sequence = int(head.base_sequence[0])
    sequence = (base_sequence + record.offset - int(head.base_offset[0])) & _MOST_SEQUENCE
    row = {
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp != -1 else None,
        "timestamp_type": record.timestamp_type,
        "key_size": None if record.key is None else len(record.key),
        "value_size": None if record.value is None else len(record.value),
        "sequence": sequence if base_sequence >= 0 else None,
        "header_keys": [name for name, _ in record.headers],
        "marker": marker and ("COMMIT" if marker.is_commit else "ABORT"),
        "coordinator_epoch": marker and marker.coordinator_epoch,
        "crc": record.crc,
        "leader_epoch": record.leader_epoch,
        "key": record.key,
        "value": record.value,
    }
    if decode is None or record.is_control:
        return row
    key, value, reason = decode(record.key, record.value)
    return row | {"decoded_key": _json(key), "decoded_value": _json(value), "reason": reason}


def _json(content: dict[str, Any] | None) -> str | None:
    if content is None:
        return None
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
