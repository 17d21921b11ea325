"""The reference decoder: one record, read field by field.

Every columnar path must equal it.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from rmqstore.errors import MalformedBytesError, OptionError
from rmqstore.format.compression import decompress
from rmqstore.format.hashing import body_crc
from rmqstore.format.layout import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_DIGITS,
    CRC_PROPERTY_HEAD,
    FIRST_TIMESTAMP,
    FIXED_PART,
    FIXED_PART_V4,
    LAST_TIMESTAMP,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TOPIC_LENGTH_BYTES,
    SysFlag,
)
from rmqstore.format.schema import Message
from rmqstore.format.text import decode_text, parse_properties

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Offset message ids: host bytes, port, physical offset.
# Source: MessageDecoder.java#createMessageId.
_ID_PORT_BYTES, _ID_OFFSET_BYTES = 4, 8


class Expected(NamedTuple):
    """The topic, queue and size that a unit of a ConsumeQueue gives its record."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int


class SplitRecord(NamedTuple):
    """The parts of a record: the fixed part by field name, and the variable parts as stored."""

    fixed: np.void
    body: bytes
    topic: bytes
    properties: bytes


def split_record(buf: bytes | memoryview, position: int) -> SplitRecord:
    """Split the record at ``position`` into its parts, and check every length.

    Raises:
        MalformedBytesError: there is not a whole V1 or V2 record at ``position``.

    Source: CommitLog.java#checkMessageAndReturnSize.
    """

    def refuse(reason: str) -> MalformedBytesError:
        return MalformedBytesError(position, reason)

    left = len(buf) - position
    if position < 0 or left < MIN_RECORD_BYTES:
        raise refuse(
            f"a record needs at least {MIN_RECORD_BYTES} bytes, the file has {max(left, 0)} left"
        )
    fixed = np.frombuffer(buf, FIXED_PART_V4, 1, position)[0]
    total_size = int(fixed["total_size"])
    magic = int(fixed["magic"])
    if magic not in TOPIC_LENGTH_BYTES:
        raise refuse(f"magic {magic & 0xFFFFFFFF:#010x} is not that of a record")
    if not MIN_RECORD_BYTES <= total_size <= left:
        raise refuse(
            f"total size {total_size} is not between {MIN_RECORD_BYTES} and the {left} bytes left"
        )
    kind = FIXED_PART[int(fixed["sys_flag"]) & SysFlag.HOSTS_V6]
    topic_width = TOPIC_LENGTH_BYTES[magic]
    longest_body = total_size - kind.itemsize - topic_width - PROPERTIES_LENGTH_BYTES
    if longest_body < 0:
        raise refuse(f"total size {total_size} is too small for its IPv6 hosts")
    fixed = np.frombuffer(buf, kind, 1, position)[0]
    view = memoryview(buf)[position : position + total_size]
    parts = []
    done = kind.itemsize  # bytes of the record that are parsed
    body_length = int(fixed["body_length"])
    if not 0 <= body_length <= longest_body:
        raise refuse(f"body length {body_length} does not fit the total size {total_size}")
    parts.append(bytes(view[done : done + body_length]))
    done += body_length
    for name, width in (("topic", topic_width), ("properties", PROPERTIES_LENGTH_BYTES)):
        length = int.from_bytes(view[done : done + width], signed=True)
        done += width
        rest = total_size - done - (PROPERTIES_LENGTH_BYTES if name == "topic" else 0)
        if not 0 <= length <= rest:
            raise refuse(f"{name} length {length} does not fit the total size {total_size}")
        parts.append(bytes(view[done : done + length]))
        done += length
    if done != total_size:
        raise refuse(f"the parts take {done} bytes, the total size is {total_size}")
    return SplitRecord(fixed, *parts)


def check_record(
    buf: bytes | memoryview,
    position: int,
    physical_offset: int,
    *,
    check_crc: bool = True,
    check_record_crc: bool = True,
    expected: Expected | None = None,
) -> None:
    """Check everything that can show damage of the record at ``position``.

    Args:
        buf: the bytes of one CommitLog file.
        position: where the record begins in ``buf``.
        physical_offset: where the record begins in the CommitLog.
        check_crc: whether to compare the body CRC, and the record CRC if the properties hold one.
        check_record_crc: whether the record CRC is among these.
        expected: what the queue unit that points to the record says. The place of the unit is the
            message's queue offset, whatever the record names.

    Raises:
        MalformedBytesError: the record is damaged; the error names the first fault.
    """

    def require(actual: object, right: object, what: str) -> None:
        if actual != right:
            raise MalformedBytesError(position, f"{what} is {actual}, not {right}")

    parts = split_record(buf, position)
    fixed = parts.fixed
    require(int(fixed["physical_offset"]), physical_offset, "physical offset")
    stored = int(fixed["store_timestamp"])
    if not FIRST_TIMESTAMP <= stored <= LAST_TIMESTAMP:
        raise MalformedBytesError(position, time_reason(stored))
    if expected is not None:
        require(int(fixed["total_size"]), expected.size, "total size")
        require(int(fixed["queue_id"]), expected.queue_id, "queue id")
        require(parts.topic, expected.topic.encode(), "topic")
    if check_crc:
        if parts.body:  # RocketMQ compares none of an empty body
            require(body_crc(parts.body), int(fixed["body_crc"]), "CRC of the body")
        recorded = recorded_crc(parts.properties)
        if recorded is not None and check_record_crc:
            end = position + int(fixed["total_size"]) - CRC_PROPERTY_BYTES
            require(body_crc(bytes(buf[position:end])), recorded, "CRC of the record")


def time_reason(stored: int) -> str:
    """Return the fault of a record whose store time, in ms, is in no calendar."""
    return f"store_timestamp {stored} is not in the years 1 to 9999"


def recorded_crc(properties: bytes) -> int | None:
    """Return the record's CRC from its last property.

    None if the last property is another one, -1 if it is not a number.

    Source: MessageDecoder.java#createCrc32.
    """
    tail = properties[-CRC_PROPERTY_BYTES:]
    if len(tail) < CRC_PROPERTY_BYTES or not tail.startswith(CRC_PROPERTY_HEAD):
        return None
    if tail[-1] != PROPERTY_SEPARATOR:
        return None
    digits = tail[len(CRC_PROPERTY_HEAD) :][:CRC_PROPERTY_DIGITS]
    return int(digits[::-1]) if digits.isdigit() else -1


def decode_record(
    buf: bytes | memoryview,
    position: int,
    broker_name: str | None = None,
    *,
    inflate: bool = True,
) -> Message:
    """Decode the record at ``position``.

    Only lengths are checked; see :func:`check_record` for the rest. Without ``inflate`` a
    compressed body is given as stored.

    Raises:
        MalformedBytesError: there is not a whole record, or its body does not inflate.

    Source: MessageDecoder.java#decode.
    """
    fixed, body, topic, stored_properties = split_record(buf, position)
    properties = parse_properties(stored_properties)
    sys_flag = int(fixed["sys_flag"])
    if inflate and sys_flag & SysFlag.COMPRESSED:
        try:
            body = decompress(body, sys_flag)
        except ValueError as err:
            raise MalformedBytesError(position, str(err)) from err
    offset_id = message_id(fixed["store_host"], int(fixed["physical_offset"]))
    born = int(fixed["born_timestamp"])  # its client may have given no time of the calendar
    return Message(
        topic=decode_text(topic),
        queueId=int(fixed["queue_id"]),
        queueOffset=int(fixed["queue_offset"]),
        body=body,
        tags=properties.get(PROPERTY_TAGS),
        keys=properties.get(PROPERTY_KEYS),
        msgId=properties.get(PROPERTY_UNIQ_KEY, offset_id),
        properties=properties,
        bornTimestamp=from_millis(born) if FIRST_TIMESTAMP <= born <= LAST_TIMESTAMP else None,
        storeTimestamp=from_millis(int(fixed["store_timestamp"])),
        bornHost=host_text(fixed["born_host"]),
        storeHost=host_text(fixed["store_host"]),
        flag=int(fixed["flag"]),
        sysFlag=sys_flag,
        reconsumeTimes=int(fixed["reconsume_times"]),
        bodyCRC=int(fixed["body_crc"]),
        preparedTransactionOffset=int(fixed["prepared_transaction_offset"]),
        commitLogOffset=int(fixed["physical_offset"]),
        storeSize=int(fixed["total_size"]),
        brokerName=broker_name,
        offsetMsgId=offset_id,
    )


def from_millis(timestamp: int) -> datetime:
    """Return the UTC time of epoch milliseconds."""
    return _EPOCH + timedelta(milliseconds=timestamp)


def host_text(host: np.void) -> str:
    """Return ``ip:port`` of a stored host.

    IPv6 is in brackets and unabbreviated, as Java's getHostAddress gives it.
    """
    return address_text(host["address"].tobytes(), int(host["port"]))


def address_text(address: bytes, port: int) -> str:
    """Return ``ip:port`` of 4 or 16 address bytes."""
    if len(address) == ipaddress.IPV4LENGTH // 8:
        return f"{ipaddress.IPv4Address(address)}:{port}"
    groups = np.frombuffer(address, ">u2").tolist()
    return f"[{':'.join(f'{group:x}' for group in groups)}]:{port}"


def message_id(store_host: np.void, physical_offset: int) -> str:
    """Return the offset message id: store host and physical offset in hex, 32 or 56 digits.

    Source: MessageDecoder.java#createMessageId.
    """
    offset = physical_offset.to_bytes(_ID_OFFSET_BYTES, signed=True)
    return (store_host.tobytes() + offset).hex().upper()


def parse_message_id(text: str) -> tuple[str, int]:
    """Return the store host (``ip:port``) and the physical offset that an offset message id holds.

    Raises:
        OptionError: it is not 32 or 56 hex digits.

    Source: MessageDecoder.java#decodeMessageId.
    """
    widths = {2 * (bits // 8 + _ID_PORT_BYTES + _ID_OFFSET_BYTES) for bits in (32, 128)}
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b""
    if len(text) not in widths or 2 * len(packed) != len(text):
        raise OptionError(f"message id {text!r}: an offset message id has 32 or 56 hex digits")
    host = packed[:-_ID_OFFSET_BYTES]
    port = int.from_bytes(host[-_ID_PORT_BYTES:], signed=True)
    physical_offset = int.from_bytes(packed[-_ID_OFFSET_BYTES:], signed=True)
    return address_text(host[:-_ID_PORT_BYTES], port), physical_offset
