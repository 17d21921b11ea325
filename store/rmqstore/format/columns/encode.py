"""Columns to records: the bytes of many records, one after the other, without a loop per record.

The plain form is ``record.encode_record``. The offsets of a record are often not known yet when it
is encoded (a task encodes it, the driver appends it): :func:`stamp` sets them later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.buffers import array_bytes, windows
from rmqstore.format.columns.hosts import Hosts
from rmqstore.format.hashing import body_crc, body_crcs
from rmqstore.format.layout import (
    BATCH_ROWS,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_DIGITS,
    CRC_PROPERTY_HEAD,
    FIXED_PART,
    FIXED_PART_V4,
    MAX_V1_TOPIC_BYTES,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MIN_BLANK_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_SEPARATOR,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Positions,
    SysFlag,
)

_WIDEST = FIXED_PART[int(SysFlag.HOSTS_V6)].itemsize
# The two fields are neighbours, so they are written together.
_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_OFFSETS_AT = FIXED_PART_V4.fields["queue_offset"][1]  # type: ignore[index]
assert FIXED_PART_V4.fields["physical_offset"][1] == _OFFSETS_AT + 8  # type: ignore[index]
_SYS_FLAG_LOW_BYTE = FIXED_PART_V4.fields["sys_flag"][1] + 3  # type: ignore[index]


class RecordColumns(NamedTuple):
    """The columns that n records are made of; their other fields follow from these."""

    topics: pa.StringArray
    queue_ids: NDArray[np.int32]
    bodies: pa.BinaryArray  # as stored, so after compression
    properties: pa.BinaryArray  # property strings as stored
    flags: NDArray[np.int32]
    sys_flags: NDArray[np.int32]  # the IPv6 bits are set from the hosts
    born_timestamps: NDArray[np.int64]  # ms
    born_hosts: Hosts
    store_hosts: Hosts
    reconsume_times: NDArray[np.int32]
    prepared_transaction_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.queue_ids)

    def take(self, rows: slice) -> RecordColumns:
        """Return consecutive rows."""
        return RecordColumns(
            self.topics[rows],
            self.queue_ids[rows],
            self.bodies[rows],
            self.properties[rows],
            self.flags[rows],
            self.sys_flags[rows],
            self.born_timestamps[rows],
            self.born_hosts.take(rows),
            self.store_hosts.take(rows),
            self.reconsume_times[rows],
            self.prepared_transaction_offsets[rows],
        )


class Records(NamedTuple):
    """The bytes of n records, one after the other."""

    data: Bytes  # may be written to
    starts: Positions  # (n + 1,): where each record begins in data, and the end of the last one
    sys_flags: NDArray[np.int32]  # with the IPv6 bits


def row_batches(count: int, at_most: int = BATCH_ROWS) -> list[slice]:
    """Return the slices, of at most ``at_most`` rows each, in which ``count`` rows are encoded."""
    return [slice(start, min(start + at_most, count)) for start in range(0, count, at_most)]


def encode_batches(columns: RecordColumns) -> Iterator[Records]:
    """Yield the records of many rows, one batch at a time; see :func:`encode_records`."""
    for rows in row_batches(len(columns)):
        yield encode_records(columns.take(rows))


def encode_records(columns: RecordColumns) -> Records:
    """Encode records whose queue offset, physical offset and store time are still 0.

    Returns:
        The records. A ``__CRC32#`` property at the end of their properties is not valid until
        :func:`stamp` sets it.

    Source: MessageExtEncoder.java#encode.
    """
    n = len(columns)
    topic_fields, codes, is_v2 = _topic_fields(columns.topics)
    host_bits = columns.born_hosts.is_v6 * np.int32(SysFlag.BORN_HOST_V6)
    host_bits = host_bits | columns.store_hosts.is_v6 * np.int32(SysFlag.STORE_HOST_V6)
    sys_flags = (columns.sys_flags & ~np.int32(SysFlag.HOSTS_V6)) | host_bits
    body_lengths = _lengths(columns.bodies)
    property_lengths = _lengths(columns.properties)
    topic_lengths = _lengths(topic_fields)[codes]
    fixed_widths = np.full(n, FIXED_PART_V4.itemsize, np.int64)
    for bits, kind in FIXED_PART.items():
        if bits:
            fixed_widths[host_bits == bits] = kind.itemsize
    sizes = fixed_widths + body_lengths + topic_lengths + PROPERTIES_LENGTH_BYTES + property_lengths
    starts = np.concatenate(([0], np.cumsum(sizes)))

    heads = np.zeros((n, _WIDEST), np.uint8)
    crcs = body_crcs(columns.bodies.to_pylist())
    for bits, kind in FIXED_PART.items():
        rows = np.flatnonzero(host_bits == bits)
        if not len(rows):
            continue
        fixed = np.zeros(len(rows), kind)
        fixed["total_size"] = sizes[rows]
        fixed["magic"] = np.where(is_v2[codes[rows]], MESSAGE_MAGIC_V2, MESSAGE_MAGIC_V1)
        fixed["body_crc"] = crcs[rows]
        fixed["queue_id"] = columns.queue_ids[rows]
        fixed["flag"] = columns.flags[rows]
        fixed["sys_flag"] = sys_flags[rows]
        fixed["born_timestamp"] = columns.born_timestamps[rows]
        born_hosts = columns.born_hosts.take(rows)
        store_hosts = columns.store_hosts.take(rows)
        fixed["born_host"] = born_hosts.stored(bool(bits & SysFlag.BORN_HOST_V6))
        fixed["store_host"] = store_hosts.stored(bool(bits & SysFlag.STORE_HOST_V6))
        fixed["reconsume_times"] = columns.reconsume_times[rows]
        fixed["prepared_transaction_offset"] = columns.prepared_transaction_offsets[rows]
        fixed["body_length"] = body_lengths[rows]
        heads[rows, : kind.itemsize] = fixed.view(np.uint8).reshape(len(rows), -1)
    head_starts = np.concatenate(([0], np.cumsum(fixed_widths)))
    all_widest = (fixed_widths == _WIDEST).all()
    head_bytes = heads.ravel() if all_widest else _left_parts(heads, fixed_widths)
    length_starts = np.arange(n + 1) * PROPERTIES_LENGTH_BYTES
    length_bytes = property_lengths.astype(">i2").view(np.uint8)
    sources = [
        _binary(head_bytes, head_starts),
        columns.bodies,
        topic_fields,
        _binary(length_bytes, length_starts),
        columns.properties,
    ]
    firsts = np.concatenate(([0], np.cumsum([len(source) for source in sources[:-1]])))
    order = np.arange(n)[:, None] + firsts
    order[:, 2] = firsts[2] + codes
    joined = pa.concat_arrays(sources).take(pa.array(order.ravel().astype(np.int32)))
    data, _ = array_bytes(joined)
    return Records(data[: starts[-1]].copy(), starts, sys_flags)


def _topic_fields(
    topics: pa.StringArray,
) -> tuple[pa.BinaryArray, NDArray[np.int32], NDArray[np.bool_]]:
    """Return the distinct topics with their length fields.

    Returns:
        The fields; the index of each row's topic, (n,); a mask of the topics that need V2.

    Source: CommitLog.java#asyncPutMessage: the version is chosen by the number of characters.
    """
    encoded = topics.dictionary_encode()
    names = [name.encode() for name in encoded.dictionary.to_pylist()]
    is_v2 = np.array([len(name) > MAX_V1_TOPIC_BYTES for name in names], np.bool_)
    widths = [TOPIC_LENGTH_BYTES[MESSAGE_MAGIC_V2 if wide else MESSAGE_MAGIC_V1] for wide in is_v2]
    fields = [len(name).to_bytes(width) + name for name, width in zip(names, widths, strict=True)]
    return pa.array(fields, pa.binary()), encoded.indices.to_numpy(), is_v2


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    return np.diff(array_bytes(column)[1])


def _binary(data: Bytes, offsets: Positions) -> pa.BinaryArray:
    bounds = pa.py_buffer(offsets.astype(np.int32))
    stored = pa.py_buffer(np.ascontiguousarray(data))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, bounds, stored])


def _left_parts(rows: NDArray[np.uint8], widths: NDArray[np.int64]) -> Bytes:
    """Return the first ``widths[i]`` bytes of each row ``i`` of a matrix, row after row."""
    width = int(widths[0])
    if (widths == width).all():
        return np.ascontiguousarray(rows[:, :width]).ravel()
    left: Bytes = rows[np.arange(rows.shape[1]) < widths[:, None]]
    return left


def stamp(
    records: Records,
    queue_offsets: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    store_timestamps: NDArray[np.int64],
) -> None:
    """Set the offsets and store times of records, then the CRCs that cover whole records.

    Args:
        records: n records, which are changed in place.
        queue_offsets, physical_offsets: (n,).
        store_timestamps: (n,), ms.

    Source: CommitLog.java#DefaultAppendMessageCallback.
    """
    starts = records.starts[:-1]
    if not len(starts):
        return
    offsets = np.empty(len(starts), _OFFSETS)
    offsets["queue_offset"] = queue_offsets
    offsets["physical_offset"] = physical_offsets
    _scatter(records.data, starts + _OFFSETS_AT, offsets)
    times = store_timestamps.astype(">i8")
    born_bits = records.sys_flags & np.int32(SysFlag.BORN_HOST_V6)
    for bits in (0, int(SysFlag.BORN_HOST_V6)):
        rows = np.flatnonzero(born_bits == bits)
        if len(rows):
            field_offset = FIXED_PART[bits].fields["store_timestamp"][1]  # type: ignore[index]
            _scatter(records.data, starts[rows] + field_offset, times[rows])
    _seal(records)


def _scatter(data: Bytes, positions: Positions, values: NDArray[np.generic]) -> None:
    width = values.dtype.itemsize
    windows(data, width)[positions] = values.view((np.void, width))


def _seal(records: Records) -> None:
    """Recompute the CRC of the records whose properties end with one.

    Source: MessageDecoder.java#createCrc32.
    """
    ends = records.starts[1:]
    tails = windows(records.data, CRC_PROPERTY_BYTES)[ends - CRC_PROPERTY_BYTES]
    stored = tails.view(np.uint8).reshape(len(ends), -1)
    head = np.frombuffer(CRC_PROPERTY_HEAD, np.uint8)
    has_crc = (stored[:, : len(head)] == head).all(axis=1) & (stored[:, -1] == PROPERTY_SEPARATOR)
    for row in np.flatnonzero(has_crc).tolist():
        start = int(records.starts[row])
        end = int(ends[row]) - CRC_PROPERTY_BYTES
        crc = body_crc(records.data[start:end].data)
        digits = f"{crc:0{CRC_PROPERTY_DIGITS}d}"[::-1].encode()
        digits_start = end + len(CRC_PROPERTY_HEAD)
        digits_end = digits_start + CRC_PROPERTY_DIGITS
        records.data[digits_start:digits_end] = np.frombuffer(digits, np.uint8)


def require_room(sizes: NDArray[np.int64], file_size: int, first_row: int = 0) -> None:
    """Refuse a record that is too large for a CommitLog file.

    Args:
        sizes: (n,), sizes of the records in bytes.
        file_size: size of a CommitLog file in bytes.
        first_row: number of the first record, for the error.

    Raises:
        IllegalMessageError: a record is too large; the text names its row.
    """
    largest = file_size - MIN_BLANK_BYTES
    if len(sizes) and int(sizes.max()) > largest:
        row = int(sizes.argmax())
        raise IllegalMessageError(
            f"row {first_row + row}: MESSAGE_ILLEGAL: a record of {int(sizes[row])} bytes, "
            f"a CommitLog file holds {largest}; nothing was written"
        )
