"""Single files of partition folders as rows, as kafka-dump-log shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptBatchError
from kafkalog.format.consumer_offsets import Decode
from kafkalog.inspect.batches import BATCHES, batches_of
from kafkalog.inspect.stored_records import records_in, stored_schema
from kafkalog.storage.indexes import stored_offset_index, stored_time_index
from kafkalog.storage.names import base_offset_of, parse_folder
from kafkalog.storage.producer_snapshots import read_snapshot
from kafkalog.storage.segments import Segment
from kafkalog.storage.transaction_index import read_transaction_index
from kafkalog.storage.windows import Window, walk_segment
from rmqstore.errors import FileDeletedError
from rmqstore.storage.files.storage import Storage

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
_NAME: Final = re.compile(r"(.*)\.(log|index|timeindex|txnindex|snapshot)(\.[a-z]+)?", re.DOTALL)
_SCHEMAS: Final = {
    "index": OFFSET_INDEX, "timeindex": TIME_INDEX, "txnindex": TRANSACTION_INDEX,
    "snapshot": SNAPSHOT,
}  # fmt: skip
_MOST_SEQUENCE: Final = (1 << 31) - 1


class PartitionFile(NamedTuple):
    """A file of a partition folder.

    Attributes:
        path: where it lies.
        kind: log, index, timeindex, txnindex or snapshot.
        segment: the segment that its name names.
    """

    path: str
    kind: str
    segment: Segment


def parse_file(path: str) -> PartitionFile | None:
    """Return the file of a partition folder that a path names; None if it names something else.

    Files of segments that are being replaced or deleted have one more suffix.
    """
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    stem, kind, suffix = match.groups()
    base_offset = base_offset_of(f"{stem.rpartition('/')[2]}.")
    if base_offset is None:
        return None
    return PartitionFile(path, kind, Segment(base_offset, stem, suffix or ""))


def file_schema(kind: str, decode: Decode | None = None, *, deep: bool = False) -> pa.Schema:
    """Return the columns of files of one kind; of a log those of batches, or of records."""
    if kind == "log":
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
    if file.kind == "log":
        yield from _log_rows(storage, file, decode, deep=deep)
        return
    columns = _columns(storage, file)
    columns["path"] = pa.array([file.path] * len(next(iter(columns.values()))))
    schema = _SCHEMAS[file.kind]
    arrays = [columns[field.name].cast(field.type) for field in schema]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _log_rows(
    storage: Storage, file: PartitionFile, decode: Decode | None, *, deep: bool
) -> Iterator[pa.RecordBatch]:
    folder = parse_folder(file.segment.stem.rpartition("/")[0].rpartition("/")[2])
    place = ("", -1) if folder is None else folder.topic_partition
    window: Window | None = None
    for window in walk_segment(storage, file.segment):
        if deep:
            yield from records_in(place, window, window.heads, decode)
        elif len(window.heads):
            yield batches_of(place, window, window.heads)
    if window is not None and window.stop is not None and window.stop.reason != "zeros":
        raise CorruptBatchError(file.path, window.stop.position, window.stop.reason)


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
    if not is_snapshot:
        return {name: pa.array(values) for name, values in native.items()}
    has_batch = native["last_sequence"] >= 0
    first = (native["last_sequence"].astype(np.int64) - native["offset_delta"]) & _MOST_SEQUENCE
    return {
        "producer_id": pa.array(native["producer_id"]),
        "producer_epoch": pa.array(native["epoch"]),
        "coordinator_epoch": pa.array(native["coordinator_epoch"]),
        "transaction_start": pa.array(
            native["transaction_start"], mask=native["transaction_start"] < 0
        ),
        "last_timestamp": pa.array(native["timestamp"]),
        "first_sequence": pa.array(first, mask=~has_batch),
        "last_sequence": pa.array(native["last_sequence"], mask=~has_batch),
        "last_offset": pa.array(native["last_offset"], mask=~has_batch),
        "offset_delta": pa.array(native["offset_delta"], mask=~has_batch),
    }
