"""Batches to records, one after the other: the plain path that the fast one is compared with."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from kafkalog.format.batch_headers import BatchHeaders, Data, view_of
from kafkalog.format.compression import inflate
from kafkalog.format.layout import (
    CREATE_TIME,
    LEAST_LENGTH,
    LEAST_LENGTH_V1,
    LEAST_RECORD,
    LEGACY_CRC_FROM,
    LEGACY_TIMESTAMP_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_INFLATED_BYTES,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    RECORDS_AT,
    Attribute,
    Codec,
)
from kafkalog.format.varints import read_varint, read_varlong
from rmqstore.errors import MalformedBytesError
from rmqstore.format.text import decode_text


class Record(NamedTuple):
    """One record.

    Attributes:
        offset: its offset in the partition.
        timestamp: ms since the epoch; -1 if there is none.
        timestamp_type: one of the three types of ``layout``.
        key: None is not the same as empty.
        value: the same.
        headers: names and values, in order; a name may be there several times.
        leader_epoch: None if unknown.
        is_control: whether it is a control record, which consumers never get.
        crc: that of a message of format v0 or v1; records of v2 have none of their own.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    leader_epoch: int | None
    is_control: bool
    crc: int | None = None


def records_of(
    data: Data, batch_headers: BatchHeaders, limit: int = MAX_INFLATED_BYTES
) -> Iterator[Record]:
    """Yield the records of batches, control records as well.

    Args:
        data: the data that was walked.
        headers: some of its headers.
        limit: the most bytes that a batch may inflate to.

    Raises:
        MalformedBytesError: a batch contradicts the format. The position is that of the batch in
            the segment.
    """
    view = view_of(data)
    for row in range(len(batch_headers)):
        position = int(batch_headers.position[row])
        start = position - batch_headers.base_position
        stored = view[start : start + int(batch_headers.size[row])]
        header = batch_headers[row : row + 1]
        try:
            if batch_headers.magic[row] >= 2:
                yield from _batch_records(stored, header, limit)
            else:
                yield from _legacy_records(stored, limit)
        except MalformedBytesError as err:
            raise MalformedBytesError(position, err.reason) from err
        except ValueError as err:
            raise MalformedBytesError(position, str(err)) from err


def _batch_records(stored: memoryview, header: BatchHeaders, limit: int) -> Iterator[Record]:
    count = int(header.record_count[0])
    codec = int(header.codec[0])
    data: bytes | memoryview = stored[RECORDS_AT:]
    if count < 0:
        raise ValueError(f"the number of records is {count}")
    if count == 0:
        return
    if codec != Codec.NONE:
        data = inflate(memoryview(data), codec, 2, limit)
    if count * LEAST_RECORD > len(data):
        raise ValueError(f"{count} records do not fit into {len(data)} bytes")
    position = 0
    for _ in range(count):
        length, position = read_varint(data, position)
        if not 0 <= length <= len(data) - position:
            raise ValueError(f"a record has {length} bytes")
        yield _record(data[position : position + length], header)
        position += length
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes follow the last record")


def _record(data: bytes | memoryview, header: BatchHeaders) -> Record:
    """Return one record; ``data`` is what follows its length."""
    time_delta, position = read_varlong(data, 1)
    offset_delta, position = read_varint(data, position)
    key, position = _take(data, position)
    value, position = _take(data, position)
    n_headers, position = read_varint(data, position)
    if not 0 <= n_headers <= len(data) - position:
        raise ValueError(f"a record has {n_headers} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(n_headers):
        name, position = _take(data, position)
        content, position = _take(data, position)
        if name is None:
            raise ValueError("a header has no name")
        headers.append((decode_text(name), content))
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes follow the fields of a record")
    is_append_time = bool(header.is_log_append_time[0])
    timestamp = int(header.max_timestamp[0])
    if not is_append_time:
        timestamp = wrapped(int(header.base_timestamp[0]) + time_delta)
    epoch = int(header.leader_epoch[0])
    return Record(
        offset=wrapped(int(header.base_offset[0]) + offset_delta),
        timestamp=timestamp,
        timestamp_type=LOG_APPEND_TIME if is_append_time else CREATE_TIME,
        key=key,
        value=value,
        headers=headers,
        leader_epoch=epoch if epoch >= 0 else None,
        is_control=bool(header.is_control[0]),
    )


def wrapped(number: int) -> int:
    """Return a number as 64 bits hold it, for sums of hostile terms."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _take(data: bytes | memoryview, position: int) -> tuple[bytes | None, int]:
    """Return bytes after their length, None if that is negative, and the position after them."""
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if length > len(data) - position:
        raise ValueError(f"a field has {length} bytes")
    return bytes(data[position : position + length]), position + length


class Message(NamedTuple):
    """One message of format v0 or v1, as stored; an inner one has a relative offset in v1."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    crc: int


def _legacy_records(stored: memoryview, limit: int) -> Iterator[Record]:
    outer = parse_message(stored)
    if not outer.attributes & Attribute.CODEC:
        yield _legacy_record(outer, outer, 0)
        return
    inner = list(_inner_messages(inside_of(outer, limit)))
    if not inner:
        raise ValueError("a compressed message is empty")
    shift = 0
    if outer.magic == 1 and outer.offset:
        shift = outer.offset - inner[-1].offset
        if shift < 0:
            raise ValueError("the offset of a compressed message is less than those inside")
    for message in inner:
        if message.attributes & Attribute.CODEC:
            raise ValueError("a message inside a compressed one is compressed")
        yield _legacy_record(message, outer, shift)


def _legacy_record(message: Message, outer: Message, shift: int) -> Record:
    timestamp, kind = message.timestamp, CREATE_TIME
    if outer.magic == 0:
        timestamp, kind = NO_TIMESTAMP, NO_TIMESTAMP_TYPE
    elif outer.attributes & Attribute.LOG_APPEND_TIME:
        timestamp, kind = outer.timestamp, LOG_APPEND_TIME
    return Record(
        wrapped(message.offset + shift), timestamp, kind, message.key, message.value, [], None,
        is_control=False, crc=message.crc,
    )  # fmt: skip


def _inner_messages(data: bytes) -> Iterator[Message]:
    view = memoryview(data)
    while view:
        if len(view) < LOG_OVERHEAD + LEAST_LENGTH:
            raise ValueError("the data ends within a message inside a compressed one")
        (length,) = struct.unpack_from(">i", view, 8)
        if not LEAST_LENGTH <= length <= len(view) - LOG_OVERHEAD:
            raise ValueError(f"a message inside a compressed one has the length {length}")
        stored = view[: LOG_OVERHEAD + length]
        (crc,) = struct.unpack_from(">I", stored, 12)
        if zlib.crc32(stored[LEGACY_CRC_FROM:]) != crc:
            raise ValueError("the CRC of a message inside a compressed one is wrong")
        yield parse_message(stored)
        view = view[len(stored) :]


def parse_message(stored: memoryview) -> Message:
    """Return the fields of a message of format v0 or v1.

    Raises:
        ValueError: they contradict the format.

    Source: LegacyRecord.java.
    """
    offset, length, crc, magic, attributes = struct.unpack_from(">qiIbB", stored)
    if magic not in (0, 1):
        raise ValueError(f"the format v{magic} is unknown")
    if length < (LEAST_LENGTH_V1 if magic else LEAST_LENGTH):
        raise ValueError(f"a message has the length {length}")
    position, timestamp = LEGACY_TIMESTAMP_AT, NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", stored, position)
        position += 8
    key, position = _take_legacy(stored, position)
    value, position = _take_legacy(stored, position)
    if position != len(stored):
        raise ValueError(f"{len(stored) - position} bytes follow the value of a message")
    return Message(offset, magic, attributes, timestamp, key, value, crc)


def inside_of(message: Message, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Return the messages inside a compressed one.

    Raises:
        ValueError: it has no value, or that does not inflate, or to more than ``limit``.
    """
    if message.value is None:
        raise ValueError("a compressed message has no value")
    codec = message.attributes & int(Attribute.CODEC)
    return inflate(memoryview(message.value), codec, message.magic, limit)


def _take_legacy(stored: memoryview, position: int) -> tuple[bytes | None, int]:
    if position + 4 > len(stored):
        raise ValueError("a message ends within a length")
    (length,) = struct.unpack_from(">i", stored, position)
    position += 4
    if length < 0:
        return None, position
    if length > len(stored) - position:
        raise ValueError(f"a field has {length} bytes")
    return bytes(stored[position : position + length]), position + length


_MAX_INFLATED_BYTES: Final = 64 << 10  # a marker has some 20 bytes, and is not compressed


class ControlType(IntEnum):
    """What a control record is. Only ABORT and COMMIT occur outside of the cluster's metadata.

    Source: ControlRecordType.java.
    """

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_TYPES: Final = frozenset(ControlType)


class Marker(NamedTuple):
    """The end of a transaction of a producer, which the header of its batch names."""

    offset: int
    is_commit: bool
    coordinator_epoch: int  # -1 if the record does not say


def marker_in(data: Data, header: BatchHeaders) -> Marker | None:
    """Return the marker in a control batch; None if it has another control record, or none.

    The first record of a batch is its marker. A coordinator writes one record a batch, and
    consumers look at no other.

    Args:
        data: the data that was walked.
        header: that of the batch; None is returned for none.

    Raises:
        MalformedBytesError: the batch contradicts the format, or inflates to far more than a
            marker.

    Source: RecordBatch.java, CompletedFetch.java#containsAbortMarker.
    """
    first = first_control_record(data, header)
    return None if first is None else parse_marker(first)


def control_type(record: Record) -> ControlType:
    """Return what a control record is; UNKNOWN as well if its key is too short.

    Source: ControlRecordType.java#parse.
    """
    if record.key is None or len(record.key) < 4:
        return ControlType.UNKNOWN
    version, kind = struct.unpack_from(">hh", record.key)
    if version >= 0 and kind in _CONTROL_TYPES:
        return ControlType(kind)
    return ControlType.UNKNOWN


def first_control_record(data: Data, header: BatchHeaders) -> Record | None:
    """Return the first record of one control batch, None without one; raises as records_of."""
    return next(records_of(data, header, _MAX_INFLATED_BYTES), None)


def parse_marker(record: Record) -> Marker | None:
    """Return the marker that a control record is; None if it is something else.

    Source: EndTransactionMarker.java.
    """
    kind = control_type(record)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    epoch = -1
    if record.value is not None and len(record.value) >= 6:
        (epoch,) = struct.unpack_from(">i", record.value, 2)
    return Marker(record.offset, kind == ControlType.COMMIT, epoch)
