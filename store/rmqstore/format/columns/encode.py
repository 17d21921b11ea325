"""Columns to records: the bytes of many records, one after the other, by one join of columns.

Where the places of records are not known yet (a task encodes them, the driver appends them),
:func:`stamp` sets them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalRowError
from rmqstore.format.columns.buffers import (
    Part,
    array_bytes,
    codes_of,
    fixed_width,
    interleave,
    join,
    lengths_of,
    numbers,
    windows,
)
from rmqstore.format.columns.decode import Hosts
from rmqstore.format.columns.dispatch_requests import (
    USUAL_RULES,
    DispatchProperties,
    DispatchRules,
    PlacedFields,
    UnplacedRequests,
    unplaced_requests,
)
from rmqstore.format.columns.property_encode import PropertyStrings
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.hashing import body_crc, body_crcs
from rmqstore.format.layout import (
    BATCH_BYTES,
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
    Mask,
    Positions,
    SysFlag,
)

# How many rows are encoded at once: as many as Spark puts into an Arrow batch by default. What the
# encoder and the commit do for each batch would take twice the time if each were cut in two.
_ENCODED_ROWS = 10_000
# The two fields are neighbours, so they are written together.
_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_OFFSETS_AT = FIXED_PART_V4.fields["queue_offset"][1]  # type: ignore[index]
assert FIXED_PART_V4.fields["physical_offset"][1] == _OFFSETS_AT + 8  # type: ignore[index]


class TopicColumn(NamedTuple):
    """The topics of n records."""

    names: list[str]  # distinct
    codes: NDArray[np.int32]  # (n,), the index of each record's topic in names

    @classmethod
    def of(cls, topics: pa.StringArray) -> TopicColumn:
        """Return the topics of a column without nulls."""
        encoded = topics.dictionary_encode()
        return cls(encoded.dictionary.to_pylist(), codes_of(encoded))

    @classmethod
    def constant(cls, name: str, n: int) -> TopicColumn:
        """Return one topic for all records."""
        return cls([name], np.zeros(n, np.int32))

    def take(self, rows: slice) -> TopicColumn:
        """Return consecutive rows."""
        return TopicColumn(self.names, self.codes[rows])

    def where(self, holds: Callable[[str], bool]) -> Mask:
        """Return a mask (n,) of the records for whose topic a predicate holds."""
        return np.array([*map(holds, self.names)], np.bool_)[self.codes]

    def stored(self) -> tuple[NDArray[np.int64], list[bytes]]:
        """Return the magic of records of each distinct topic, and the topic with its length field.

        Source: CommitLog.java#asyncPutMessage: the version is chosen by the number of characters.
        """
        names = [name.encode() for name in self.names]
        magics = [
            MESSAGE_MAGIC_V2 if len(name) > MAX_V1_TOPIC_BYTES else MESSAGE_MAGIC_V1
            for name in names
        ]
        fields = [
            len(name).to_bytes(TOPIC_LENGTH_BYTES[magic]) + name
            for name, magic in zip(names, magics, strict=True)
        ]
        return np.array(magics, np.int64), fields


class Lmqs(NamedTuple):
    """The m light message queues that n records name, in the order of the records."""

    rows: Positions  # (m,), the record of each, never falling
    queues: TopicColumn  # (m,)
    queue_offsets: NDArray[np.int64] | None = None  # (m,), of records that bring them

    @property
    def queue_ids(self) -> NDArray[np.int32]:
        """The queue ids, (m,): light message queues are queues 0."""
        return np.zeros(len(self.rows), np.int32)

    def take(self, rows: slice) -> Lmqs | None:
        """Return those of consecutive records, None if they name none."""
        low, high = np.searchsorted(self.rows, [rows.start, rows.stop]).tolist()
        if low == high:
            return None
        chosen = slice(low, high)
        offsets = None if self.queue_offsets is None else self.queue_offsets[chosen]
        return Lmqs(self.rows[chosen] - rows.start, self.queues.take(chosen), offsets)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns that n records are made of; their other fields follow from these."""

    topics: TopicColumn
    queue_ids: NDArray[np.int32]
    bodies: pa.BinaryArray  # as stored, so after compression
    properties: PropertyStrings
    dispatched: DispatchProperties  # those properties that queues and index need
    flags: NDArray[np.int32]
    sys_flags: NDArray[np.int32]  # the IPv6 bits are set from the hosts
    born_timestamps: NDArray[np.int64]  # ms
    born_hosts: Hosts
    store_hosts: Hosts
    reconsume_times: NDArray[np.int32]
    prepared_transaction_offsets: NDArray[np.int64]
    lmqs: Lmqs | None = None  # None if no row names any

    def __len__(self) -> int:
        return len(self.queue_ids)

    def take(self, rows: slice) -> RecordColumns:
        """Return consecutive rows."""
        return RecordColumns(
            self.topics.take(rows),
            self.queue_ids[rows],
            self.bodies[rows],
            self.properties.take(rows),
            self.dispatched.take(rows),
            self.flags[rows],
            self.sys_flags[rows],
            self.born_timestamps[rows],
            self.born_hosts.take(rows),
            self.store_hosts.take(rows),
            self.reconsume_times[rows],
            self.prepared_transaction_offsets[rows],
            None if self.lmqs is None else self.lmqs.take(rows),
        )

    @property
    def host_bits(self) -> NDArray[np.int32]:
        """The bits of ``sysFlag`` that give the widths of the hosts, (n,)."""
        born = self.born_hosts.is_v6 * np.int32(SysFlag.BORN_HOST_V6)
        return born | self.store_hosts.is_v6 * np.int32(SysFlag.STORE_HOST_V6)

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the records, (n,)."""
        widths = np.zeros(max(FIXED_PART) + 1, np.int64)
        for bits, kind in FIXED_PART.items():
            widths[bits] = kind.itemsize
        topic_lengths = np.array([len(field) for field in self.topics.stored()[1]])
        sizes: NDArray[np.int64] = widths[self.host_bits]
        sizes += lengths_of(self.bodies)
        sizes += topic_lengths[self.topics.codes] + PROPERTIES_LENGTH_BYTES
        sizes += self.properties.lengths
        return sizes

    def requests(self, records: Records, rules: DispatchRules = USUAL_RULES) -> UnplacedRequests:
        """Return the dispatch requests of rows that were encoded to ``records``.

        Args:
            records: the encoded rows.
            rules: those of the broker.
        """
        return unplaced_requests(
            self.topics.names,
            self.topics.codes,
            self.queue_ids,
            np.diff(records.starts).astype(np.int32),
            records.sys_flags,
            self.dispatched,
            rules,
        )


class Records(NamedTuple):
    """The bytes of n records, one after the other."""

    data: Bytes  # may be written to
    starts: Positions  # (n + 1,): where each record begins in data, and the end of the last one
    sys_flags: NDArray[np.int32]  # with the IPv6 bits


def row_batches(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Yield the slices in which records of these sizes are encoded."""
    return cut_batches(sizes, _ENCODED_ROWS, BATCH_BYTES)


def encode_records(columns: RecordColumns, stored: PlacedFields | None = None) -> Records:
    """Encode records.

    Args:
        columns: n rows, whose records have less than 2 GiB together.
        stored: where and when the records will be stored. Without it their queue offset, physical
            offset and store time are 0, and a ``__CRC32#`` property at the end of their properties
            is not valid, until :func:`stamp` sets them.

    Source: MessageExtEncoder.java#encode.
    """
    n = len(columns)
    sizes = columns.sizes()
    starts = np.concatenate(([0], np.cumsum(sizes)))
    host_bits = columns.host_bits
    sys_flags = (columns.sys_flags & ~np.int32(SysFlag.HOSTS_V6)) | host_bits
    magics, topic_fields = columns.topics.stored()
    if len(topic_fields) == 1:
        topic_part: Part = topic_fields[0]
    else:
        topic_part = pa.array(topic_fields, pa.binary()).take(numbers(columns.topics.codes))
    property_lengths = columns.properties.lengths.astype(">i2").view(np.uint8)
    joined = join(
        [
            _headers(columns, sizes, magics[columns.topics.codes], sys_flags, stored),
            columns.bodies,
            topic_part,
            fixed_width(property_lengths.reshape(n, PROPERTIES_LENGTH_BYTES)),
            *columns.properties.parts,
        ],
        n,
    )
    data, _ = array_bytes(joined)
    records = Records(data[: starts[-1]], starts, sys_flags)
    if stored is not None:
        _seal(records)
    return records


def _headers(
    columns: RecordColumns,
    sizes: NDArray[np.int64],
    magics: NDArray[np.int64],
    sys_flags: NDArray[np.int32],
    stored: PlacedFields | None,
) -> pa.BinaryArray:
    """Return the fixed parts of records, from total_size to body_length, binary (n,)."""
    crcs = body_crcs(columns.bodies.to_pylist())
    host_bits = sys_flags & np.int32(SysFlag.HOSTS_V6)
    parts: list[pa.BinaryArray] = []
    rows_of_parts: list[Positions] = []
    for bits, kind in FIXED_PART.items():
        rows = np.flatnonzero(host_bits == bits)
        if not len(rows):
            continue
        chosen: Positions | slice = slice(None) if len(rows) == len(columns) else rows
        fixed = np.zeros(len(rows), kind)
        fixed["total_size"] = sizes[chosen]
        fixed["magic"] = magics[chosen]
        fixed["body_crc"] = crcs[chosen]
        fixed["queue_id"] = columns.queue_ids[chosen]
        fixed["flag"] = columns.flags[chosen]
        fixed["sys_flag"] = sys_flags[chosen]
        fixed["born_timestamp"] = columns.born_timestamps[chosen]
        born_hosts, store_hosts = columns.born_hosts.take(chosen), columns.store_hosts.take(chosen)
        fixed["born_host"] = born_hosts.stored(bool(bits & SysFlag.BORN_HOST_V6))
        fixed["store_host"] = store_hosts.stored(bool(bits & SysFlag.STORE_HOST_V6))
        fixed["reconsume_times"] = columns.reconsume_times[chosen]
        fixed["prepared_transaction_offset"] = columns.prepared_transaction_offsets[chosen]
        fixed["body_length"] = lengths_of(columns.bodies)[chosen]
        if stored is not None:
            fixed["queue_offset"] = stored.queue_offsets[chosen]
            fixed["physical_offset"] = stored.physical_offsets[chosen]
            fixed["store_timestamp"] = stored.store_timestamps[chosen]
        parts.append(fixed_width(fixed.view(np.uint8).reshape(len(rows), kind.itemsize)))
        rows_of_parts.append(rows)
    return interleave(parts, rows_of_parts)


def stamp(records: Records, stored: PlacedFields) -> None:
    """Set the offsets and store times of records, then the CRCs that cover whole records.

    Args:
        records: n records, which are changed in place.
        stored: where and when they are stored.

    Source: CommitLog.java#DefaultAppendMessageCallback.
    """
    starts = records.starts[:-1]
    if not len(starts):
        return
    offsets = np.empty(len(starts), _OFFSETS)
    offsets["queue_offset"] = stored.queue_offsets
    offsets["physical_offset"] = stored.physical_offsets
    scatter(records.data, starts + _OFFSETS_AT, offsets)
    times = stored.store_timestamps.astype(">i8")
    born_bits = records.sys_flags & np.int32(SysFlag.BORN_HOST_V6)
    for bits in (0, int(SysFlag.BORN_HOST_V6)):
        rows = np.flatnonzero(born_bits == bits)
        if len(rows):
            field_offset = FIXED_PART[bits].fields["store_timestamp"][1]  # type: ignore[index]
            scatter(records.data, starts[rows] + field_offset, times[rows])
    _seal(records)


def scatter(data: Bytes, positions: Positions, values: NDArray[np.generic]) -> None:
    """Write values (n,) over the bytes at positions (n,)."""
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


def require_room(sizes: NDArray[np.integer[Any]], file_size: int, first_row: int = 1) -> None:
    """Refuse a record that is too large for a CommitLog file.

    Args:
        sizes: (n,), sizes of the records in bytes.
        file_size: size of a CommitLog file in bytes.
        first_row: number of the first record, for the error.

    Raises:
        IllegalRowError: a record is too large.
    """
    largest = file_size - MIN_BLANK_BYTES
    if len(sizes) and int(sizes.max()) > largest:
        row = int(sizes.argmax())
        raise IllegalRowError(
            first_row + row,
            f"MESSAGE_ILLEGAL: a record of {int(sizes[row])} bytes, "
            f"a CommitLog file holds {largest}; nothing was written",
        )
