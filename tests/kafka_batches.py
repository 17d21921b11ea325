"""Writes batches of Kafka's formats, valid ones and hostile ones, without a library of Kafka."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import crc32c
import lz4.frame
import pyarrow as pa
import zstandard

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
TIME = 1_700_000_000_000

Header = tuple[bytes, bytes | None]


class Row(NamedTuple):
    key: bytes | None = None
    value: bytes | None = b""
    headers: Sequence[Header] = ()
    offset_delta: int | None = None  # None: its number in the batch
    time_delta: int = 0


def varint(number: int) -> bytes:
    return unsigned((number << 1) ^ (number >> 63))


def unsigned(rest: int) -> bytes:
    coded = bytearray()
    while rest > 0x7F:
        coded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*coded, rest])


def counted(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(number: int, row: Row) -> bytes:
    delta = number if row.offset_delta is None else row.offset_delta
    body = b"\0" + varint(row.time_delta) + varint(delta) + counted(row.key) + counted(row.value)
    body += varint(len(row.headers))
    body += b"".join(counted(name) + counted(value) for name, value in row.headers)
    return varint(len(body)) + body


def raw_snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True) if data else b"\0"


def xerial(data: bytes, block: int = 32 << 10) -> bytes:
    blocks = [raw_snappy(data[at : at + block]) for at in range(0, len(data), block)]
    header = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(part)) + part for part in blocks)


CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    GZIP: gzip.compress,
    SNAPPY: xerial,
    LZ4: lambda data: lz4.frame.compress(data, block_linked=False),
    ZSTD: lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
}


def batch(
    base_offset: int,
    rows: Sequence[Row],
    *,
    attributes: int = 0,
    count: int | None = None,
    records: bytes | None = None,
    compress: Callable[[bytes], bytes] | None = None,
    base_time: int = TIME,
    max_time: int = TIME + 9,
    leader_epoch: int = 5,
    producer: tuple[int, int, int] = (-1, -1, -1),
    last_delta: int | None = None,
) -> bytes:
    """Return a batch of format v2; ``records``, ``count`` and ``last_delta`` may lie."""
    stored = b"".join(record(number, row) for number, row in enumerate(rows))
    stored = stored if records is None else records
    stored = (compress or CODECS[attributes & 7])(stored) if rows or records else b""
    deltas = [row.offset_delta for row in rows if row.offset_delta is not None]
    last = max([len(rows) - 1, 0, *deltas]) if last_delta is None else last_delta
    n_rows = len(rows) if count is None else count
    checked = struct.pack(">hiqqqhii", attributes, last, base_time, max_time, *producer, n_rows)
    checked += stored
    header = struct.pack(">qiib", base_offset, 9 + len(checked), leader_epoch, 2)
    return header + struct.pack(">I", crc32c.crc32c(checked)) + checked


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    attributes: int = 0,
    time: int = TIME,
) -> bytes:
    checked = struct.pack(">bB", magic, attributes)
    checked += struct.pack(">q", time) if magic == 1 else b""
    for content in (key, value):
        length = -1 if content is None else len(content)
        checked += struct.pack(">i", length) + (content or b"")
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def wrapper(
    offset: int, codec: int, *inner: bytes, magic: int = 1, attributes: int = 0, time: int = TIME
) -> bytes:
    """Return a compressed message with others inside."""
    stored = CODECS[codec](b"".join(inner))
    return message(offset, None, stored, magic=magic, attributes=attributes | codec, time=time)


def resealed(data: bytes) -> bytes:
    """Return a batch of format v2 with the right checksum, after a change."""
    return data[:17] + struct.pack(">I", crc32c.crc32c(data[21:])) + data[21:]
