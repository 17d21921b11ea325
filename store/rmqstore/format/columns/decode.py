"""Records to columns: from a buffer and headers to the requested columns as Arrow arrays.

Compressed bodies take one library call each; everything else works on arrays, without a loop per
record. Few of many hosts are distinct, so each distinct one is parsed once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.buffers import (
    bounded,
    calendar_times,
    codes_of,
    fixed_width,
    gather_spans,
    interleave,
    numbers,
    texts,
    valid_text,
    windows,
)
from rmqstore.format.columns.property_decode import (
    Entries,
    parse_entries,
    property_column,
    property_map,
)
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.layout import (
    FIXED_PART,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)
from rmqstore.format.record import address_text

_KINDS = {wide: FIXED_PART[int(SysFlag.BORN_HOST_V6) * wide]["born_host"] for wide in (False, True)}

_HOST_V6_BYTES = _KINDS[True].itemsize

_FIXED_COLUMNS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "bodyCRC": "body_crc",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "commitLogOffset": "physical_offset",
    "storeSize": "total_size",
}
_TIME_COLUMNS = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}
_PROPERTY_COLUMNS = {"tags": PROPERTY_TAGS, "keys": PROPERTY_KEYS, "msgId": PROPERTY_UNIQ_KEY}


class Host(NamedTuple):
    """One of a record's two hosts."""

    wide: SysFlag  # the bit that makes it an IPv6 host
    field: str  # its field in layout.FIXED_PART


BORN_HOST = Host(SysFlag.BORN_HOST_V6, "born_host")
STORE_HOST = Host(SysFlag.STORE_HOST_V6, "store_host")
_HOST_COLUMNS = {"bornHost": BORN_HOST, "storeHost": STORE_HOST}
DECODED_COLUMNS = frozenset(
    {"topic", "body", "properties", "offsetMsgId"}
    | _FIXED_COLUMNS.keys() | _TIME_COLUMNS.keys() | _PROPERTY_COLUMNS.keys() | _HOST_COLUMNS.keys()
)  # fmt: skip


class Hosts(NamedTuple):
    """n hosts in the width of IPv6; an IPv4 host uses the first bytes of its row."""

    packed: NDArray[np.uint8]  # (n, 20)
    is_v6: Mask

    @classmethod
    def constant(cls, text: str, n: int) -> Hosts:
        """Return one host for all of n records; see :func:`pack_host`."""
        packed, is_v6 = pack_hosts(texts([text]))
        return cls(np.broadcast_to(packed, (n, _HOST_V6_BYTES)), np.broadcast_to(is_v6, n))

    def take(self, rows: Positions | slice) -> Hosts:
        """Return the chosen rows."""
        return Hosts(self.packed[rows], self.is_v6[rows])

    def stored(self, wide: bool) -> NDArray[np.void]:
        """Return hosts of one width, (n,), in the dtype of a record's host field."""
        kind = _KINDS[wide]
        return np.ascontiguousarray(self.packed[:, : kind.itemsize]).view(kind).ravel()


def pack_hosts(hosts: pa.StringArray) -> Hosts:
    """Parse hosts, string (n,) without nulls.

    Raises:
        IllegalMessageError: a host is not ``ip:port``, with an IPv6 address in brackets.
    """
    encoded = hosts.dictionary_encode()
    distinct = [pack_host(text) for text in encoded.dictionary.to_pylist()]
    padded = b"".join(host.ljust(_HOST_V6_BYTES, b"\0") for host in distinct)
    packed = np.frombuffer(padded, np.uint8).reshape(-1, _HOST_V6_BYTES)
    is_v6 = np.array([len(host) == _HOST_V6_BYTES for host in distinct], np.bool_)
    codes = codes_of(encoded)
    return Hosts(packed[codes], is_v6[codes])


@lru_cache(maxsize=65536)
def pack_host(text: str) -> bytes:
    """Return a host as stored: 4 or 16 address bytes and the port.

    Raises:
        IllegalMessageError: the text is not ``ip:port``.
    """
    address, _, port = text.rpartition(":")
    try:
        ip_address = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        return ip_address.packed + int(port).to_bytes(4)
    except (ValueError, OverflowError) as err:
        raise IllegalMessageError(
            f"host {text!r}: must be ip:port, with an IPv6 address in brackets ({err})"
        ) from err


_OFFSET = np.dtype(">i8")

# The two upper-case hex digits of each byte, as one 16-bit value in memory order.
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)


def hex_rows(rows: NDArray[np.uint8]) -> pa.StringArray:
    """Return the rows of a matrix of bytes in upper-case hex, string (n,)."""
    digits = np.ascontiguousarray(_HEX[rows])
    return fixed_width(digits.view(np.uint8)).view(pa.string())


def offset_ids(hosts: Hosts, physical_offsets: NDArray[np.int64]) -> pa.StringArray:
    """Return offset message ids, store host and physical offset in hex, string (n,).

    Source: MessageDecoder.java#createMessageId.
    """
    offset_bytes = physical_offsets.astype(_OFFSET).view(np.uint8)
    offsets = offset_bytes.reshape(len(physical_offsets), _OFFSET.itemsize)
    parts: list[pa.StringArray] = []
    rows_of_parts: list[Positions] = []
    for wide, kind in _KINDS.items():
        rows = np.flatnonzero(hosts.is_v6 == wide)
        if len(rows):
            parts.append(hex_rows(np.hstack((hosts.packed[rows, : kind.itemsize], offsets[rows]))))
            rows_of_parts.append(rows)
    return interleave(parts, rows_of_parts) if parts else pa.array([], pa.string())


def decode_columns(
    buf: Bytes,
    headers: RecordHeaders,
    schema: pa.Schema,
    known: Mapping[str, pa.Array] = MappingProxyType({}),
) -> list[pa.Array]:
    """Decode whole records into columns.

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: n whole records.
        schema: fields named in DECODED_COLUMNS, in their own type or in one that ``schema.ALSO_AS``
            lists.
        known: columns, in their own type, that the caller has already. If some bodies are
            compressed, ``body`` must be one of them; otherwise bodies are taken as stored.

    Returns:
        One array (n,) per field, which holds no reference to ``buf``.

    Source: MessageDecoder.java#decode.
    """
    columns: list[pa.Array] = []
    entries: Entries | None = None
    for field in schema:
        if field.name in _PROPERTY_COLUMNS or pa.types.is_map(field.type):
            entries = entries or parse_entries(
                buf, headers.property_starts, headers.property_lengths
            )
            column = _property_column(buf, headers, entries, field.name)
        elif field.name == "topic" and field.name in known:
            column = known[field.name]
        elif field.name == "body":
            column = known["body"] if "body" in known else stored_bodies(buf, headers)
            if field.type == pa.string():
                column = valid_text(column.view(pa.string()))
        else:
            column = _plain_column(buf, headers, field)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return columns


def property_values(
    buf: Bytes, headers: RecordHeaders, names: Iterable[str]
) -> dict[str, pa.Array]:
    """Return properties by name, each a string array (n,), null where a record lacks it.

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: n whole records.
        names: any names, as RocketMQ's parser gives them.
    """
    entries = parse_entries(buf, headers.property_starts, headers.property_lengths)
    return {name: property_column(entries, name) for name in names}


def _plain_column(buf: Bytes, headers: RecordHeaders, field: pa.Field) -> pa.Array:
    name = field.name
    if name in _FIXED_COLUMNS:
        return numbers(headers.column(_FIXED_COLUMNS[name]))
    if name in _TIME_COLUMNS:
        return calendar_times(headers.column(_TIME_COLUMNS[name]))
    if name == "topic":
        return valid_text(topics(buf, headers))
    if name == "properties":
        stored = gather_spans(buf, headers.property_starts, headers.property_lengths, field.type)
        return stored if pa.types.is_binary(field.type) else valid_text(stored)
    if name in _HOST_COLUMNS:
        return host_column(buf, headers, _HOST_COLUMNS[name])
    assert name == "offsetMsgId", name
    return offset_message_ids(buf, headers)


def _property_column(buf: Bytes, headers: RecordHeaders, entries: Entries, name: str) -> pa.Array:
    if name == "properties":
        return property_map(entries)
    column = property_column(entries, _PROPERTY_COLUMNS[name])
    if name == "msgId" and column.null_count:
        if column.null_count == len(column):
            return offset_message_ids(buf, headers)
        is_missing = column.is_null()
        without_id = headers.take(np.flatnonzero(is_missing.to_numpy(zero_copy_only=False)))
        return pc.replace_with_mask(column, is_missing, offset_message_ids(buf, without_id))
    return column


def topics(buf: Bytes, headers: RecordHeaders) -> pa.Array:
    """Return the topics as stored, string (n,), not validated as UTF-8."""
    if headers.common_topic is not None:
        return repeat_bytes(headers.common_topic, len(headers))
    return gather_spans(buf, headers.topic_starts, headers.topic_lengths, pa.string())


def first_topic(buf: Bytes, headers: RecordHeaders) -> bytes:
    """Return the topic of the first record as stored."""
    start = int(headers.topic_starts[0])
    return buf[start : start + int(headers.topic_lengths[0])].tobytes()


def stored_bodies(buf: Bytes, headers: RecordHeaders) -> pa.Array:
    """Return the bodies as stored, binary (n,); some may be compressed."""
    return gather_spans(buf, headers.body_starts, headers.body_lengths, pa.binary())


def host_column(buf: Bytes, headers: RecordHeaders, host: Host) -> pa.Array:
    """Return one of the two hosts as ``ip:port``, string (n,).

    Few hosts are distinct, so each is formatted once.
    """
    hosts_v4 = headers.hosts_v4(host.field)
    bits = headers.column("sys_flag") & np.int32(SysFlag.HOSTS_V6)
    wide = np.flatnonzero(bits & np.int32(host.wide))
    if not len(wide):
        return _format_hosts(hosts_v4)
    hosts_v6 = np.empty(len(wide), f"V{_HOST_V6_BYTES}")
    for flags in FIXED_PART:
        same = np.flatnonzero(bits[wide] == flags)
        if len(same):
            hosts_v6[same] = _host_bytes(buf, headers.starts[wide[same]], flags, host)
    # The IPv4 fields of the others hold other bytes, which would only add distinct values.
    hosts_v4[wide] = hosts_v4[0]
    distinct, codes = _distinct_hosts(hosts_v4)
    distinct_v6, codes_v6 = _distinct_hosts(hosts_v6)
    codes[wide] = codes_v6 + len(distinct)
    return texts(distinct + distinct_v6).take(numbers(codes))


def _host_bytes(buf: Bytes, starts: Positions, flags: int, host: Host) -> NDArray[np.void]:
    kind, field_offset = FIXED_PART[flags].fields[host.field][:2]  # type: ignore[index]
    return windows(buf, kind.itemsize)[starts + field_offset]


def _format_hosts(hosts: NDArray[Any]) -> pa.Array:
    n = len(hosts)
    packed = hosts.tobytes()
    first = packed[: hosts.dtype.itemsize]
    if packed == first * n:
        return repeat_text(_format_host(first), n)
    distinct, codes = _distinct_hosts(hosts)
    return texts(distinct).take(numbers(codes))


def _distinct_hosts(hosts: NDArray[Any]) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct hosts as text, and the index of each row's host among them."""
    width = hosts.dtype.itemsize
    # Hosts as wide as an integer are taken for integers, which hash faster.
    kind = pa.int64() if width == np.dtype(np.int64).itemsize else pa.binary(width)
    data = pa.py_buffer(hosts.tobytes())
    encoded = pa.Array.from_buffers(kind, len(hosts), [None, data]).dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], hosts.dtype, len(encoded.dictionary))
    codes = codes_of(encoded).copy()  # the caller writes into it
    return [_format_host(host.tobytes()) for host in distinct], codes


@lru_cache(maxsize=65536)
def _format_host(host: bytes) -> str:
    port_bytes = 4
    return address_text(host[:-port_bytes], int.from_bytes(host[-port_bytes:], signed=True))


def repeat_text(text: str, times: int) -> pa.Array:
    """Return a text repeated, string (times,)."""
    return repeat_bytes(text.encode(), times)


def repeat_bytes(stored: bytes, times: int) -> pa.Array:
    """Return a text in UTF-8 repeated, string (times,)."""
    bounds = np.arange(times + 1, dtype=np.int32) * np.int32(len(stored))
    return bounded(pa.string(), bounds, stored * times)


def offset_message_ids(buf: Bytes, headers: RecordHeaders) -> pa.Array:
    """Return the offset message ids: store host and physical offset in hex, string (n,).

    Source: MessageDecoder.java#createMessageId.
    """
    bits = headers.column("sys_flag") & np.int32(SysFlag.HOSTS_V6)
    packed = np.zeros((len(headers), _HOST_V6_BYTES), np.uint8)
    for flags in FIXED_PART:
        rows = np.flatnonzero(bits == flags)
        if len(rows):
            stored = _host_bytes(buf, headers.starts[rows], flags, STORE_HOST)
            packed[rows, : stored.dtype.itemsize] = stored.view(np.uint8).reshape(len(rows), -1)
    hosts = Hosts(packed, (bits & np.int32(SysFlag.STORE_HOST_V6)) != 0)
    return offset_ids(hosts, headers.column("physical_offset"))
