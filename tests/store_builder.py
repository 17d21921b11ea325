"""Stores built by hand with struct.pack from the format's description, without our own package."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crcmod.predefined import mkPredefinedCrcFun

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
COMPRESSED, PREPARED, COMMIT, ROLLBACK = 0x1, 0x4, 0x8, 0xC
BORN_V6, STORE_V6 = 0x10, 0x20
LZ4, ZSTD, ZLIB = 0x100, 0x200, 0x300
PRE_BLANK = (0, 0x7FFFFFFF, 0)
NO_UNIT = (0, 0, 0)
UNIT_BYTES = 20
T0 = 1_700_000_000_000

HOST = (b"\x7f\x00\x00\x01", 10911)
HOST_V6 = (bytes.fromhex("20010db8000000000000000000000020"), 63789)


@dataclass(frozen=True, slots=True)
class Record:
    """What a record holds; lengths and checksums follow from it, unless given to be wrong."""

    topic: str | bytes = "T"
    queue_id: int = 0
    queue_offset: int = 0
    body: bytes = b"hello"
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0  # the IPv6 bits follow from the hosts
    born_timestamp: int = T0 - 5
    store_timestamp: int = T0
    born_host: tuple[bytes, int] = HOST
    store_host: tuple[bytes, int] = HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = V1
    body_crc: int | None = None
    total_size: int | None = None
    physical_offset: int | None = None
    prop_crc: bool = False  # enabledAppendPropCRC


def properties(pairs: dict[str, str], *, last_separator: bool = True) -> bytes:
    """Return a property string as brokers write it; 4.9.1 to 5.1.4 leave the last separator out."""
    packed = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    return packed if last_separator else packed[:-1]


# shares no code with zlib and isal, with which the code under test computes
_crc32 = mkPredefinedCrcFun("crc-32")


def body_crc(body: bytes) -> int:
    return _crc32(body) & 0x7FFFFFFF


def pack(record: Record, physical_offset: int) -> bytes:
    wide_born, wide_store = (len(host[0]) == 16 for host in (record.born_host, record.store_host))
    sys_flag = record.sys_flag | (BORN_V6 if wide_born else 0) | (STORE_V6 if wide_store else 0)
    topic = record.topic.encode() if isinstance(record.topic, str) else record.topic
    stored = record.properties
    if record.prop_crc:
        if stored and not stored.endswith(b"\x02"):
            stored += b"\x02"
        stored += b"__CRC32#\x01" + b"0" * 10 + b"\x02"
    place = physical_offset if record.physical_offset is None else record.physical_offset
    crc = body_crc(record.body) if record.body_crc is None else record.body_crc
    packed = b"".join(
        (
            struct.pack(">Iiii", record.magic, crc, record.queue_id, record.flag),
            struct.pack(">qqI", record.queue_offset, place, sys_flag),
            struct.pack(">q", record.born_timestamp),
            record.born_host[0], struct.pack(">i", record.born_host[1]),
            struct.pack(">q", record.store_timestamp),
            record.store_host[0], struct.pack(">i", record.store_host[1]),
            struct.pack(">iq", record.reconsume_times, record.prepared_transaction_offset),
            struct.pack(">i", len(record.body)), record.body,
            struct.pack(">B" if record.magic == V1 else ">H", len(topic)), topic,
            struct.pack(">H", len(stored)), stored,
        )
    )  # fmt: skip
    size = len(packed) + 4 if record.total_size is None else record.total_size
    packed = struct.pack(">i", size) + packed
    if record.prop_crc:
        digits = f"{body_crc(packed[:-20]):010d}"[::-1]  # least significant first
        packed = packed[:-11] + digits.encode() + b"\x02"
    return packed


def host(packed: bytes) -> tuple[bytes, int]:
    """Return address and port of a host as stored."""
    return packed[:-4], int.from_bytes(packed[-4:])


_CRC = b"__CRC32#\x01" + b"0" * 10 + b"\x02"


def packed_as_sent(topic: str, properties: bytes, physical_offset: int, **fields: Any) -> bytes:
    """Return a record in the version that its topic needs, with a CRC if its properties end so."""
    fields["magic"] = V2 if len(topic.encode()) > 127 else V1
    fields["sys_flag"] = fields["sys_flag"] & 0xFFFFFFFF & ~(BORN_V6 | STORE_V6)
    fields["prop_crc"] = properties.endswith(_CRC)
    return pack(
        Record(topic=topic, properties=properties.removesuffix(_CRC), **fields), physical_offset
    )


def pack_blank(size: int) -> bytes:
    return struct.pack(">iI", size, BLANK)


ENTRY_BYTES = 48


def pack_entry(record: bytes, physical_offset: int, number: int, term: int = 0) -> bytes:
    """Return the bytes of the DLedger entry at ``physical_offset`` that holds a record."""
    size = ENTRY_BYTES + len(record)
    head = struct.pack(">iiqqqiiii", 1, size, number, term, physical_offset, 0, 0, 0, len(record))
    return head + record


def pack_entry_blank(size: int) -> bytes:
    return struct.pack(">ii", -1, size)


def pack_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    return struct.pack(">qiq", physical_offset, size, tags_code)


def inner_message(body: bytes, tags: str = "", flag: int = 0) -> bytes:
    """Return a message as it is stored in a record of several."""
    stored = properties({"TAGS": tags}) if tags else b""
    rest = struct.pack(">iiii", 0, 0, flag, len(body)) + body
    rest += struct.pack(">h", len(stored)) + stored
    return struct.pack(">i", len(rest) + 4) + rest


def java_hash(text: str) -> int:
    encoded, code = text.encode("utf-16-be"), 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - (code >> 31 << 32)


@dataclass(slots=True)
class Placed:
    record: Record
    physical_offset: int
    size: int


@dataclass(slots=True)
class Store:
    """A store in the making: append records, bend what a test is about, write it."""

    segment_bytes: int = 4096
    units_per_file: int = 20
    placed: list[Placed] = field(default_factory=list)
    segments: dict[int, bytearray] = field(default_factory=dict)  # by their first offset
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    # number of the first unit in the files
    first_units: dict[tuple[str, int], int] = field(default_factory=dict)
    end: int = 0
    divide: int | None = None  # the start of the first file that holds DLedger entries
    term: int = 0
    n_entries: int = 0

    @property
    def has_entries(self) -> bool:
        """Whether the file at the end of the log holds DLedger entries."""
        return self.divide is not None and self.end >= self.divide

    @property
    def places(self) -> list[int]:
        return [at.physical_offset for at in self.placed]

    def append(self, record: Record, *, queued: bool = True, tags: str | None = None) -> Placed:
        """Append as the broker does: it rolls the file where 8 bytes would not be left."""
        size = len(pack(record, 0))
        frame_bytes = size + (ENTRY_BYTES if self.has_entries else 0)
        assert frame_bytes + 8 <= self.segment_bytes, "a record fits in a file"
        left = self.segment_bytes - self.end % self.segment_bytes
        if self.end % self.segment_bytes == 0 and self.end not in self.segments:
            self.segments[self.end] = bytearray(self.segment_bytes)
            left = self.segment_bytes
        if frame_bytes + 8 > left:
            self.put(self.end, pack_entry_blank(left) if self.has_entries else pack_blank(left))
            self.end += left
            self.segments[self.end] = bytearray(self.segment_bytes)
        frame = self.end
        if self.has_entries:
            self.end += ENTRY_BYTES
        key = (str(record.topic), record.queue_id)
        if queued:
            units = self.queues.setdefault(key, [])
            record = replace(record, queue_offset=self.first_units.get(key, 0) + len(units))
            units.append((self.end, size, java_hash(tags) if tags else 0))
        at = Placed(record, self.end, size)
        packed = pack(record, self.end)
        if frame < self.end:
            packed = pack_entry(packed, frame, self.n_entries, self.term)
            self.n_entries += 1
        self.put(frame, packed)
        self.placed.append(at)
        self.end += size
        return at

    def put(self, physical_offset: int, data: bytes) -> None:
        start = physical_offset - physical_offset % self.segment_bytes
        position = physical_offset - start
        assert position + len(data) <= self.segment_bytes
        self.segments.setdefault(start, bytearray(self.segment_bytes))[
            position : position + len(data)
        ] = data

    def log_file(self, root: Path, start: int) -> Path:
        is_plain = self.divide is None or start < self.divide
        folder = root / ("commitlog" if is_plain else "dledger-n0/data")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{start:020d}"

    def write(self, root: Path, *, abort: bool = False) -> Path:
        (root / "commitlog").mkdir(parents=True)
        (root / "consumequeue").mkdir()
        for start, data in self.segments.items():
            self.log_file(root, start).write_bytes(data)
        for (topic, queue_id), units in self.queues.items():
            write_queue(
                root / "consumequeue" / topic / str(queue_id), units,
                self.first_units.get((topic, queue_id), 0), self.units_per_file,
            )  # fmt: skip
        last = max((at.record.store_timestamp for at in self.placed), default=0)
        (root / "checkpoint").write_bytes(
            struct.pack(">5q", last, last, 0, 0, 0).ljust(4096, b"\0")
        )
        (root / "lock").write_bytes(b"lock")
        if abort:
            (root / "abort").write_bytes(b"4711")
        return root


def filled(records: Iterable[Record], **sizes: int) -> Store:
    store = Store(**sizes)
    for record in records:
        store.append(record)
    return store


def write_queue(
    folder: Path, units: list[tuple[int, int, int]], first: int = 0, units_per_file: int = 20
) -> None:
    """Write a queue's files; its first offset ``first`` is a multiple of ``units_per_file``."""
    assert first % units_per_file == 0
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(units), units_per_file):
        data = b"".join(pack_unit(*unit) for unit in units[at : at + units_per_file])
        name = f"{(first + at) * UNIT_BYTES:020d}"
        (folder / name).write_bytes(data.ljust(units_per_file * UNIT_BYTES, b"\0"))


def write_config(
    root: Path, *, topics: list[str], offsets: dict[str, dict[int, int]] | None = None
) -> None:
    """Write ``config/`` as fastjson does: integer keys without quotes."""
    folder = root / "config"
    folder.mkdir(exist_ok=True)
    table = ",".join(f'"{topic}":{{"topicName":"{topic}","readQueueNums":4}}' for topic in topics)
    (folder / "topics.json").write_text(
        f'{{"dataVersion":{{"counter":1}},"topicConfigTable":{{{table}}}}}'
    )
    write_offsets(root, offsets or {})


def write_offsets(root: Path, offsets: dict[str, dict[int, int]]) -> None:
    """Write ``config/consumerOffset.json``: offsets by ``TOPIC@GROUP`` and queue."""
    (root / "config").mkdir(exist_ok=True)
    groups = ",".join(
        f'"{key}":{{{",".join(f"{queue}:{at}" for queue, at in queues.items())}}}'
        for key, queues in offsets.items()
    )
    (root / "config" / "consumerOffset.json").write_text(
        f'{{"dataVersion":{{"counter":1}},"offsetTable":{{{groups}}}}}'
    )
