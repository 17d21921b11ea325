"""Batches, records and single files of a partition as rows, as kafka-dump-log shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.consumer_offsets import Decode
from kafkalog.format.layout import KEY_FIELDS, Codec
from kafkalog.format.reference import (
    Record,
    control_type,
    first_control_record,
    parse_marker,
    records_of,
)
from kafkalog.partition import Partition
from kafkalog.storage.indexes import read_transaction_index, stored_offset_index, stored_time_index
from kafkalog.storage.names import METADATA_TOPIC, base_offset_of, parse_folder
from kafkalog.storage.producer_snapshots import read_snapshot
from kafkalog.storage.segments import Segment
from kafkalog.storage.windows import Window, walk_segment
from rmqstore.errors import FileDeletedError, MalformedBytesError
from rmqstore.storage.files.storage import Storage

STORED_RECORDS: Final = pa.schema(
    [
        *KEY_FIELDS,
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

BATCHES: Final = pa.schema(
    [
        *KEY_FIELDS,
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
_CODECS: Final = {int(codec): codec.name.lower() for codec in Codec}

_PATH: Final = pa.field("path", pa.string(), nullable=False)
_TIME: Final = pa.timestamp("ms", "UTC")
OFFSET_INDEX: Final = pa.schema(
    [pa.field("offset", pa.int64()), pa.field("position", pa.int64()), _PATH]
)
TIME_INDEX: Final = pa.schema([pa.field("timestamp", _TIME), pa.field("offset", pa.int64()), _PATH])
TRANSACTION_INDEX: Final = pa.schema(
    [
        pa.field("version", pa.int16()),
        pa.field("producer_id", pa.int64()),
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("last_stable_offset", pa.int64()),
        _PATH,
    ]
)
SNAPSHOT: Final = pa.schema(
    [
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("transaction_start", pa.int64()),
        pa.field("last_timestamp", _TIME),
        pa.field("first_sequence", pa.int32()),
        pa.field("last_sequence", pa.int32()),
        pa.field("last_offset", pa.int64()),
        pa.field("offset_delta", pa.int32()),
        _PATH,
    ]
)
_NAME: Final = re.compile(
    r"(.*)\.(log|index|timeindex|txnindex|snapshot|checkpoint)(\.[a-z]+)?", re.DOTALL
)
# Snapshots of the cluster's metadata by offset and epoch, and the records that a node begins with.
_CHECKPOINT: Final = re.compile(r"(?:.*/)?(?:[0-9]{1,20}-[0-9]{1,10}|bootstrap)", re.DOTALL)
LOGS: Final = ("log", "checkpoint")  # files with batches
_SCHEMAS: Final = {
    "index": OFFSET_INDEX, "timeindex": TIME_INDEX, "txnindex": TRANSACTION_INDEX,
    "snapshot": SNAPSHOT,
}  # fmt: skip
# The fields of a snapshot that a producer without a batch does not have.
_OF_BATCH: Final = ("first_sequence", "last_sequence", "last_offset", "offset_delta")
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
        ``is_valid`` says whether its CRC is right. A batch that cannot be read has one row, with
        the reason. ``crc`` is that of a message of format v0 or v1.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.

    Source: DumpLogSegments.scala.
    """
    key = partition.topic, partition.partition
    for window, headers in _between(partition, start_offset, end_offset):
        yield from records_in(key, window, headers, decode, (start_offset, end_offset))


def _between(
    partition: Partition, start_offset: int, end_offset: int
) -> Iterator[tuple[Window, BatchHeaders]]:
    """Yield the windows of a log with those of their batches that may have records of a range."""
    for window in partition.log().windows(start_offset):
        headers = window.headers
        # A compressed message of format v0 or v1 says only which of those inside is the last.
        names_its_end = (headers.magic < 2) & (headers.codec != 0)
        may_begin_before = (headers.base_offset < end_offset) | names_its_end
        yield window, headers[may_begin_before & (headers.last_offset >= start_offset)]
        if (window.next_offset or 0) >= end_offset:
            return


def records_in(
    key: tuple[str, int],
    window: Window,
    headers: BatchHeaders,
    decode: Decode | None = None,
    within: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of some batches of a window, those of each batch together.

    Args:
        key: topic and partition.
        window: has the batches.
        headers: the batches.
        decode: as for :func:`stored_rows`.
        within: first offset, and the offset after the last one, that are given; by default all.
    """
    schema = stored_schema(decode)
    valid = headers.check_crcs(window.data).tolist()
    for row, is_valid in enumerate(valid):
        header = headers[row : row + 1]
        common = {
            "topic": key[0],
            "partition": key[1],
            "is_valid": is_valid,
            "position": int(header.position[0]),
            "path": window.segment.path,
        }
        try:
            records = list(records_of(window.data, header))
            rows = [common | _row(record, header, decode) for record in records]
        except MalformedBytesError as err:
            rows = [common | {"offset": int(header.base_offset[0]), "reason": err.reason}]
        if within is not None:
            rows = [row for row in rows if within[0] <= row["offset"] < within[1]]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _row(record: Record, header: BatchHeaders, decode: Decode | None) -> dict[str, Any]:
    marker = None
    marker_name = None
    if record.is_control:
        marker = parse_marker(record)
        marker_name = control_type(record).name
    base_sequence = int(header.base_sequence[0])
    sequence = (base_sequence + record.offset - int(header.base_offset[0])) & _MOST_SEQUENCE
    row = {
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp != -1 else None,
        "timestamp_type": record.timestamp_type,
        "key_size": None if record.key is None else len(record.key),
        "value_size": None if record.value is None else len(record.value),
        "sequence": sequence if base_sequence >= 0 else None,
        "header_keys": [name for name, _ in record.headers],
        "marker": marker_name,
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


def batch_rows(
    partition: Partition, start_offset: int, end_offset: int
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each batch, damaged ones as well; nothing is inflated.

    Args:
        partition: the partition.
        start_offset: leave out batches that end before it.
        end_offset: leave out batches that begin at or after it, if they say where they begin.

    Returns:
        Batches with the columns of BATCHES. ``is_valid`` says whether the CRC is right; ``count``
        is null in formats v0 and v1, whose messages wrap others if they are compressed. ``marker``
        says what a control batch is, such as COMMIT or ABORT where a transaction ends.
        ``delete_horizon`` is when a compaction may drop its tombstones; there is no base timestamp
        then.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.

    Source: DumpLogSegments.scala.
    """
    for window, headers in _between(partition, start_offset, end_offset):
        if len(headers):
            yield batches_of((partition.topic, partition.partition), window, headers)


def batches_of(key: tuple[str, int], window: Window, headers: BatchHeaders) -> pa.RecordBatch:
    """Return a row for each of some batches of a window; ``key`` is topic and partition."""
    count = len(headers)
    found: list[Record | None] = [None] * count
    for row in np.flatnonzero(headers.is_control).tolist():
        with suppress(MalformedBytesError):  # a batch that cannot be read is no marker
            found[row] = first_control_record(window.data, headers[row : row + 1])
    ends = [None if record is None else parse_marker(record) for record in found]
    base_timestamp = np.where(headers.has_delete_horizon, -1, headers.base_timestamp)
    delete_horizon = np.where(headers.has_delete_horizon, headers.base_timestamp, -1)
    # Sequence numbers begin again after 2^31-1.
    sequence = (headers.base_sequence + headers.last_offset - headers.base_offset) & _MOST_SEQUENCE
    last_sequence = np.where(headers.base_sequence < 0, -1, sequence)
    columns: dict[str, Any] = {
        "topic": [key[0]] * count,
        "partition": [key[1]] * count,
        "count": _known(headers.record_count),
        "base_timestamp": _known(base_timestamp),
        "delete_horizon": _known(delete_horizon),
        "codec": [_CODECS.get(codec, f"{codec}") for codec in headers.codec.tolist()],
        "is_valid": headers.check_crcs(window.data),
        "last_sequence": _known(last_sequence),
        "marker": [None if record is None else control_type(record).name for record in found],
        "coordinator_epoch": [marker and marker.coordinator_epoch for marker in ends],
        "path": [window.segment.path] * count,
    }
    for field in BATCHES:  # the others are what the headers say by the same names
        if field.name not in columns:
            values = getattr(headers, field.name)
            columns[field.name] = _known(values) if field.nullable else values
    return pa.RecordBatch.from_pydict(columns, schema=BATCHES)


def _known(values: NDArray[np.int64] | NDArray[np.int32]) -> list[int | None]:
    """Return numbers, None in place of negative ones."""
    return [None if value < 0 else value for value in values.tolist()]


class PartitionFile(NamedTuple):
    """A file of a partition folder.

    Attributes:
        path: where it lies.
        kind: log, checkpoint, index, timeindex, txnindex or snapshot.
        segment: the segment that its name names.
    """

    path: str
    kind: str
    segment: Segment

    @property
    def topic_partition(self) -> tuple[str, int]:
        """Topic and partition; an empty text and -1 if the folder does not name them."""
        if self.kind == "checkpoint":
            return METADATA_TOPIC, 0
        folder = parse_folder(self.segment.stem.rpartition("/")[0].rpartition("/")[2])
        return ("", -1) if folder is None else folder.topic_partition


def parse_file(path: str) -> PartitionFile | None:
    """Return the file of a partition folder that a path names; None if it names something else.

    Files of segments that are being replaced or deleted have one more suffix. A snapshot of the
    cluster's metadata (``.checkpoint``) has batches as a log has, whose offsets begin at 0.
    """
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    stem, kind, suffix = match.groups()
    if kind == "checkpoint":
        if _CHECKPOINT.fullmatch(stem) is None:
            return None
        return PartitionFile(path, kind, Segment(0, stem, suffix or "", f".{kind}"))
    base_offset = base_offset_of(f"{stem.rpartition('/')[2]}.")
    if base_offset is None:
        return None
    return PartitionFile(path, kind, Segment(base_offset, stem, suffix or ""))


def file_schema(kind: str, decode: Decode | None = None, *, deep: bool = False) -> pa.Schema:
    """Return the columns of files of one kind; of a log those of batches, or of records."""
    if kind in LOGS:
        return stored_schema(decode) if deep else BATCHES
    return _SCHEMAS[kind]


def file_rows(
    storage: Storage, file: PartitionFile, decode: Decode | None = None, *, deep: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield what a file holds, with the columns of :func:`file_schema`.

    Args:
        storage: the storage to read from.
        file: the file.
        decode: shows keys and values of records of one of Kafka's own topics.
        deep: whether a log gives its records and not its batches.

    Raises:
        FileDeletedError: there is no such file.
        UnreadableFileError: it cannot be read.
        CorruptBatchError: a snapshot or a transaction index is damaged, or the chain of batches of
            a log breaks. What comes before that is given.

    Source: DumpLogSegments.scala.
    """
    if not storage.exists(file.path):
        raise FileDeletedError(file.path)
    if file.kind in LOGS:
        key = file.topic_partition
        window: Window | None = None
        for window in walk_segment(storage, file.segment):
            if deep:
                yield from records_in(key, window, window.headers, decode)
            elif len(window.headers):
                yield batches_of(key, window, window.headers)
        if window is not None and window.stop is not None and window.stop.reason != "zeros":
            raise window.error(*window.stop)
        return
    columns = _columns(storage, file)
    columns["path"] = pa.array([file.path] * len(next(iter(columns.values()))))
    schema = _SCHEMAS[file.kind]
    arrays = [columns[field.name].cast(field.type) for field in schema]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(storage: Storage, file: PartitionFile) -> dict[str, pa.Array]:
    """Return the entries of an index or a snapshot as columns."""
    if file.kind == "index":
        offsets, positions = stored_offset_index(storage, file.segment)
        return {"offset": pa.array(offsets), "position": pa.array(positions)}
    if file.kind == "timeindex":
        timestamps, offsets = stored_time_index(storage, file.segment)
        return {"timestamp": pa.array(timestamps), "offset": pa.array(offsets)}
    is_snapshot = file.kind == "snapshot"
    entries = (read_snapshot if is_snapshot else read_transaction_index)(storage, file.path)
    fields = entries.dtype.names or ()
    native = {name: entries[name].astype(entries.dtype[name].newbyteorder("=")) for name in fields}
    is_null: dict[str, NDArray[np.bool_]] = {}
    if is_snapshot:
        last = native["last_sequence"]
        native["first_sequence"] = (last.astype(np.int64) - native["offset_delta"]) & _MOST_SEQUENCE
        is_null = dict.fromkeys(_OF_BATCH, last < 0)
        is_null["transaction_start"] = native["transaction_start"] < 0
    return {name: pa.array(values, mask=is_null.get(name)) for name, values in native.items()}
