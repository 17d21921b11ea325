"""Write a seeded Apache RocketMQ store for the benchmarks, in RocketMQ's own on-disk format.

It does not use `rmqstore`, so that the reader is judged by bytes that it has no part in. Fields and
files follow the Java sources named beside them. Equal arguments give equal bytes.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Longs = NDArray[np.int64]
Structs = NDArray[np.void]

CHUNK_MESSAGES = 20_000
BODY_SPREAD = 50
BODY_PRINTABLE_SHARE = 0.75
SEGMENT_BYTES = 1 << 30

FIRST_MILLIS = 1_700_000_000_000
# since 1 November 2023 UTC, the base of the clock in UNIQ_KEY
FIRST_MILLIS_IN_MONTH = 1_203_200_000
MESSAGES_PER_MILLI = 8
STORE_DELAY_MILLIS = 6

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20  # MessageSysFlag.java
TOPIC_CHARS_V1 = 127
IPV4_BYTES, IPV6_BYTES = 4, 16
CRC_MASK = 0x7FFFFFFF  # UtilAll.java#crc32

# Source: MessageExtEncoder.java, method encode, up to the body.
# Both addresses are as wide as IPv6; encoding drops the bytes that IPv4 leaves unused.
HEAD = np.dtype(
    [  # first number in comments: offset when both hosts are IPv4
        ("total_size", ">i4"),  # 0; the whole record
        ("magic", ">u4"),  # 4
        ("body_crc", ">i4"),  # 8
        ("queue_id", ">i4"),  # 12
        ("flag", ">i4"),  # 16
        ("queue_offset", ">i8"),  # 20
        ("physical_offset", ">i8"),  # 28
        ("sys_flag", ">i4"),  # 36
        ("born_timestamp", ">i8"),  # 40
        ("born_address", "u1", (IPV6_BYTES,)),  # 48
        ("born_port", ">i4"),  # 52
        ("store_timestamp", ">i8"),  # 56
        ("store_address", "u1", (IPV6_BYTES,)),  # 64
        ("store_port", ">i4"),  # 68
        ("reconsume_times", ">i4"),  # 72
        ("prepared_transaction_offset", ">i8"),  # 76
        ("body_length", ">i4"),  # 84
    ]
)
PROPERTIES_LENGTH = np.dtype(">i2")

# Its size is END_FILE_MIN_BLANK_LENGTH.
# Source: CommitLog.java, DefaultAppendMessageCallback#doAppend.
BLANK = np.dtype([("rest", ">i4"), ("magic", ">u4")])

# Source: ConsumeQueue.java, CQ_STORE_UNIT_SIZE.
QUEUE_UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
UNITS_PER_QUEUE_FILE = 300_000

# Source: StoreCheckpoint.java; one page of the operating system.
CHECKPOINT = np.dtype(
    {
        "names": [
            "physic_timestamp",
            "logics_timestamp",
            "index_timestamp",
            "master_flushed_offset",
            "confirm_offset",
        ],
        "formats": [">i8"] * 5,
        "itemsize": 4096,
    }
)

# Source: MessageClientIDSetter.java, method createUniqIDBuffer.
UNIQUE_ID = np.dtype(
    [
        ("address", "u1", (IPV4_BYTES,)),
        ("pid", ">u2"),
        ("loader", ">u4"),
        ("elapsed", ">u4"),
        ("counter", ">u2"),
    ]
)
UNIQUE_ID_LOADER = 0x5FFD2B27
UNIQUE_ID_FIRST_PID = 25_982

NAME_END, VALUE_END = b"\x01", b"\x02"  # MessageDecoder.java


class Spans(NamedTuple):
    """n byte strings of varied length, one per row, in cells of one width.

    Fields:
        cells: uint8 (n, width).
        keep: bool (n, width); the kept cells of a row, from left to right, are its string.
        lengths: int64 (n,), kept cells a row.
    """

    cells: Bytes
    keep: Mask
    lengths: Longs


def left_aligned(cells: Bytes, lengths: Longs) -> Spans:
    """Return the strings that are the first ``lengths`` cells of each row."""
    return Spans(cells, np.arange(cells.shape[1]) < lengths[:, np.newaxis], lengths)


def fixed(cells: Bytes) -> Spans:
    """Return strings of one length: whole rows."""
    return Spans(cells, np.broadcast_to(np.True_, cells.shape), np.full(len(cells), cells.shape[1]))


def literal(text: bytes, count: int) -> Spans:
    """Return ``text``, ``count`` times."""
    return fixed(np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text))))


def table(texts: Sequence[bytes]) -> Spans:
    """Return the given strings, from which rows are taken."""
    width = max(map(len, texts))
    cells = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8)
    return left_aligned(cells.reshape(len(texts), width), np.array([len(text) for text in texts]))


def take(strings: Spans, rows: Longs) -> Spans:
    """Return the strings at ``rows``."""
    return Spans(strings.cells[rows], strings.keep[rows], strings.lengths[rows])


def join(pieces: Sequence[Spans]) -> Spans:
    """Return the row-wise concatenation of at least one piece."""
    cells = np.concatenate([piece.cells for piece in pieces], axis=1)
    keep = np.concatenate([piece.keep for piece in pieces], axis=1)
    return Spans(cells, keep, sum_lengths(pieces))


def sum_lengths(pieces: Sequence[Spans]) -> Longs:
    """Return the row-wise length of the concatenation."""
    total: Longs = np.sum([piece.lengths for piece in pieces], axis=0, dtype=np.int64)
    return total


def decimal(numbers: Longs, digits: int) -> Spans:
    """Write non-negative ``numbers`` of at most ``digits`` digits, without leading zeros."""
    powers = 10 ** np.arange(digits - 1, -1, -1)
    cells = (numbers[:, np.newaxis] // powers % 10 + ord("0")).astype(np.uint8)
    keep = (numbers[:, np.newaxis] >= powers) | (powers == 1)
    return Spans(cells, keep, np.count_nonzero(keep, axis=1))


def hexadecimal(data: Bytes) -> Bytes:
    """Write uint8 (n, k) as upper-case hex digits, uint8 (n, 2k)."""
    return HEX_PAIRS[data].view(np.uint8).reshape(len(data), -1)


HEX_PAIRS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
PRINTABLE = np.resize(np.arange(ord(" "), ord("~") + 1, dtype=np.uint8), 256)
TAGS = ("TagA", "TagB", "paid", "created", "shipped", "settled", "refund", "cancelled")
TAG_TEXTS = table([tag.encode() for tag in TAGS])
KEY_STEMS = table([b"order-", b"invoice-", b"pay-", b"cart-"])
REGIONS = table([b"eu-west", b"us-east", b"ap-south", b"cn-hangzhou", b"sa-east"])
KEY_DIGITS, USER_DIGITS = 10, 4
TRACE_DIGITS_LEAST, TRACE_DIGITS_MOST = 8, 20


def addresses(texts: Sequence[str]) -> Bytes:
    """Return uint8 (n, 16): the packed addresses, IPv4 left-aligned."""
    packed = [ipaddress.ip_address(text).packed.ljust(IPV6_BYTES, b"\0") for text in texts]
    return np.frombuffer(b"".join(packed), np.uint8).reshape(len(texts), IPV6_BYTES)


BORN_HOSTS = 16
BORN_ADDRESSES = np.stack(  # by is-IPv6, then by host
    [
        addresses([f"192.168.1.{10 + host}" for host in range(BORN_HOSTS)]),
        addresses([f"2001:db8::1:{host:x}" for host in range(BORN_HOSTS)]),
    ]
)
BORN_PORTS = 40_000 + 97 * np.arange(BORN_HOSTS)
STORE_ADDRESSES = addresses(["127.0.0.1", "::1"])  # by is-IPv6
STORE_PORT = 10_911


@dataclass(frozen=True, slots=True)
class Rows:
    """What is chosen of n messages before their bytes. Arrays are (n,), and int64 unless bool.

    ``topic``, ``property_set``, ``host`` and ``tag`` are places in the tables of the kind and of
    this module.
    """

    number: Longs
    topic: Longs
    queue_id: Longs
    queue_offset: Longs
    property_set: Longs
    host: Longs
    tag: Longs
    born_millis: Longs
    store_millis: Longs
    born_v6: Mask
    store_v6: Mask

    def at(self, rows: Longs) -> Rows:
        """Return the given rows only."""
        return Rows(*(getattr(self, name)[rows] for name in self.__slots__))


Value = Callable[[Rows, np.random.Generator], Spans]


def one_key(rows: Rows, rng: np.random.Generator) -> Spans:
    """KEYS: one key, unique in the store."""
    stems = take(KEY_STEMS, rng.integers(len(KEY_STEMS.cells), size=len(rows.number)))
    return join([stems, decimal(rows.number, KEY_DIGITS)])


def two_keys(rows: Rows, rng: np.random.Generator) -> Spans:
    """KEYS: two keys with the space of MessageConst.java#KEY_SEPARATOR between them."""
    count = len(rows.number)
    order = one_key(rows, rng)
    user = decimal(rng.integers(10**USER_DIGITS, size=count), USER_DIGITS)
    return join([order, literal(b" user-", count), user])


def unique_key(rows: Rows, _rng: np.random.Generator) -> Spans:
    """UNIQ_KEY: 32 upper-case hex digits."""
    ids = np.zeros(len(rows.number), UNIQUE_ID)
    ids["address"] = BORN_ADDRESSES[0, rows.host, :IPV4_BYTES]
    ids["pid"] = UNIQUE_ID_FIRST_PID + rows.host
    ids["loader"] = UNIQUE_ID_LOADER
    ids["elapsed"] = FIRST_MILLIS_IN_MONTH + rows.born_millis - FIRST_MILLIS
    ids["counter"] = rows.number % (1 << 16)
    return fixed(hexadecimal(as_bytes(ids)))


def tag(rows: Rows, _rng: np.random.Generator) -> Spans:
    """TAGS: the tag that the queue unit hashes."""
    return take(TAG_TEXTS, rows.tag)


def region(rows: Rows, rng: np.random.Generator) -> Spans:
    """Return one of a few region names."""
    return take(REGIONS, rng.integers(len(REGIONS.cells), size=len(rows.number)))


def trace_id(rows: Rows, rng: np.random.Generator) -> Spans:
    """Return random hex digits of varied length."""
    count = len(rows.number)
    digits = hexadecimal(rng.integers(256, size=(count, TRACE_DIGITS_MOST // 2), dtype=np.uint8))
    return left_aligned(digits, rng.integers(TRACE_DIGITS_LEAST, TRACE_DIGITS_MOST + 1, size=count))


def always(text: bytes) -> Value:
    """Return the value maker of a constant."""
    return lambda rows, _rng: literal(text, len(rows.number))


class PropertySet(NamedTuple):
    """Names and values in their order in the bytes."""

    share: float
    entries: tuple[tuple[str, Value], ...]
    closed: bool = True  # the last value ends with 0x02 too


class Topic(NamedTuple):
    """A topic, its queues and its share of the messages."""

    name: str
    queues: int
    share: float


class Kind(NamedTuple):
    """The content of a store; shares of a tuple add up to one."""

    topics: tuple[Topic, ...]
    property_sets: tuple[PropertySet, ...]
    born_v6_share: float
    store_v6_share: float


def stretched(stem: str, chars: int) -> str:
    """Return a topic name of exactly ``chars`` characters that begins with ``stem``."""
    return (stem + "-with-a-long-name" * chars)[:chars]


KEYS, UNIQ_KEY, TAG = ("KEYS", one_key), ("UNIQ_KEY", unique_key), ("TAGS", tag)
REGION, TRACE_ID = ("region", region), ("traceId", trace_id)
WAIT, TRACE_ON = ("WAIT", always(b"true")), ("TRACE_ON", always(b"true"))
CLUSTER = ("CLUSTER", always(b"DefaultCluster"))
MSG_REGION = ("MSG_REGION", always(b"DefaultRegion"))
EMPTY_VALUE = ("note", always(b""))  # Java drops such an entry

KINDS = {
    "uniform": Kind(
        topics=(Topic("bench", queues=8, share=1.0),),
        property_sets=(PropertySet(1.0, (KEYS, UNIQ_KEY, TAG, REGION, TRACE_ID)),),
        born_v6_share=0.0,
        store_v6_share=0.0,
    ),
    "mixed": Kind(
        topics=(
            Topic("bench", queues=8, share=0.45),
            Topic("orders-eu-west", queues=4, share=0.20),
            Topic(stretched("payments", 31), queues=4, share=0.15),
            Topic(stretched("inventory", 64), queues=2, share=0.10),
            Topic(stretched("audit", 100), queues=2, share=0.07),
            Topic(stretched("%RETRY%settlement", 140), queues=1, share=0.03),
        ),
        property_sets=(
            PropertySet(0.34, (KEYS, UNIQ_KEY, TAG, REGION, TRACE_ID)),
            PropertySet(0.12, (TAG, UNIQ_KEY, KEYS, WAIT, CLUSTER, MSG_REGION, TRACE_ON, TRACE_ID)),
            PropertySet(0.14, (UNIQ_KEY, KEYS, WAIT, CLUSTER, REGION)),
            PropertySet(0.12, (UNIQ_KEY, TAG, CLUSTER, TRACE_ID)),
            PropertySet(0.10, (("KEYS", two_keys), EMPTY_VALUE, UNIQ_KEY, TAG, REGION, TRACE_ID)),
            PropertySet(0.10, (UNIQ_KEY, WAIT, TAG, KEYS, MSG_REGION, TRACE_ON), closed=False),
            PropertySet(0.04, (TAG,)),
            PropertySet(0.04, ()),
        ),
        born_v6_share=0.10,
        store_v6_share=0.02,
    ),
}


class RowSource:
    """Decides topics, offsets, times and hosts, chunk after chunk."""

    def __init__(self, kind: Kind, rng: np.random.Generator) -> None:
        """Begin at message 0, queue offsets 0 and the first millisecond."""
        self._kind, self._rng = kind, rng
        self._number = 0
        self._topic_counts = [0] * len(kind.topics)
        self._born_millis = self._store_millis = FIRST_MILLIS

    def draw(self, count: int) -> Rows:
        """Return the next ``count`` messages."""
        kind, rng = self._kind, self._rng
        topic = rng.choice(len(kind.topics), count, p=[topic.share for topic in kind.topics])
        queue_id, queue_offset = self._round_robin(topic)
        born_millis, store_millis = self._clocks(count)
        self._number += count
        return Rows(
            number=np.arange(self._number - count, self._number),
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            property_set=rng.choice(
                len(kind.property_sets), count, p=[each.share for each in kind.property_sets]
            ),
            host=rng.integers(BORN_HOSTS, size=count),
            tag=rng.integers(len(TAGS), size=count),
            born_millis=born_millis,
            store_millis=store_millis,
            born_v6=rng.random(count) < kind.born_v6_share,
            store_v6=rng.random(count) < kind.store_v6_share,
        )

    def _round_robin(self, topic: Longs) -> tuple[Longs, Longs]:
        queue_id, queue_offset = np.zeros_like(topic), np.zeros_like(topic)
        for place, (_, queues, _) in enumerate(self._kind.topics):
            rows = np.flatnonzero(topic == place)
            nth = self._topic_counts[place] + np.arange(len(rows))
            queue_offset[rows], queue_id[rows] = np.divmod(nth, queues)
            self._topic_counts[place] += len(rows)
        return queue_id, queue_offset

    def _clocks(self, count: int) -> tuple[Longs, Longs]:
        ticks = self._rng.random(count) < 1 / MESSAGES_PER_MILLI
        born = self._born_millis + np.cumsum(ticks)
        delayed = born + self._rng.integers(STORE_DELAY_MILLIS, size=count)
        store = np.maximum(np.maximum.accumulate(delayed), self._store_millis)
        self._born_millis, self._store_millis = int(born[-1]), int(store[-1])
        return born, store


def as_bytes(structs: Structs) -> Bytes:
    """Return packed structs (n,) as uint8 (n, itemsize), without a copy."""
    return structs.view(np.uint8).reshape(len(structs), structs.dtype.itemsize)


def draw_bodies(rng: np.random.Generator, count: int, mean: int) -> Spans:
    """Return bodies around ``mean`` bytes: most of them printable, the others of any bytes."""
    least, most = max(mean - BODY_SPREAD, 0), mean + BODY_SPREAD - 1
    cells = np.frombuffer(rng.bytes(count * most), np.uint8).reshape(count, most)
    printable = rng.random((count, 1)) < BODY_PRINTABLE_SHARE
    lengths = rng.integers(least, most + 1, size=count)
    return left_aligned(np.where(printable, PRINTABLE[cells], cells), lengths)


def body_crcs(bodies: Spans) -> Longs:
    """Return CRC-32 without its top bit, as RocketMQ stores it."""
    data = bodies.cells.tobytes()
    width = bodies.cells.shape[1]
    spans = zip(range(0, len(data), width), bodies.lengths.tolist(), strict=True)
    crcs = [zlib.crc32(data[start : start + length]) for start, length in spans]
    return np.array(crcs, np.int64) & CRC_MASK


def property_strings(chosen: PropertySet, rows: Rows, rng: np.random.Generator) -> Spans:
    """Return the property blocks of rows that have one set of names."""
    count = len(rows.number)
    pieces = [literal(b"", count)]
    for name, value in chosen.entries:
        pieces += [
            literal(name.encode() + NAME_END, count),
            value(rows, rng),
            literal(VALUE_END, count),
        ]
    return join(pieces if chosen.closed else pieces[:-1])


def draw_properties(kind: Kind, rows: Rows, rng: np.random.Generator) -> Spans:
    """Return the property blocks of all rows, each in the cells of the widest."""
    if len(kind.property_sets) == 1:
        return property_strings(kind.property_sets[0], rows, rng)
    by_set = [
        np.flatnonzero(rows.property_set == number) for number in range(len(kind.property_sets))
    ]
    groups = [
        property_strings(chosen, rows.at(numbers), rng)
        for chosen, numbers in zip(kind.property_sets, by_set, strict=True)
    ]
    count = len(rows.number)
    shape = count, max(group.cells.shape[1] for group in groups)
    lengths = np.zeros(count, np.int64)
    mixed = Spans(np.zeros(shape, np.uint8), np.zeros(shape, np.bool_), lengths)
    for numbers, group in zip(by_set, groups, strict=True):
        width = group.cells.shape[1]
        mixed.cells[numbers, :width], mixed.keep[numbers, :width], mixed.lengths[numbers] = group
    return mixed


def topic_field(topic: Topic) -> bytes:
    """Return the topic after its length, which has two bytes in the record's second version."""
    name = topic.name.encode()
    return len(name).to_bytes(2 if is_v2(topic) else 1, "big") + name


def is_v2(topic: Topic) -> bool:
    """Tell whether records of the topic are of the second version.

    Source: CommitLog.java#asyncPutMessage.
    """
    return len(topic.name) > TOPIC_CHARS_V1


def record_headers(kind: Kind, rows: Rows, bodies: Spans) -> Structs:
    """Return HEAD (n,) with all but the total size and the physical offset."""
    born_v6, store_v6 = rows.born_v6.astype(np.int64), rows.store_v6.astype(np.int64)
    headers = np.zeros(len(rows.number), HEAD)
    magics = np.array([MAGIC_V2 if is_v2(topic) else MAGIC_V1 for topic in kind.topics])
    headers["magic"] = magics[rows.topic]
    headers["body_crc"] = body_crcs(bodies)
    headers["queue_id"] = rows.queue_id
    headers["queue_offset"] = rows.queue_offset
    headers["sys_flag"] = BORN_HOST_V6 * born_v6 + STORE_HOST_V6 * store_v6
    headers["born_timestamp"] = rows.born_millis
    headers["born_address"] = BORN_ADDRESSES[born_v6, rows.host]
    headers["born_port"] = BORN_PORTS[rows.host]
    headers["store_timestamp"] = rows.store_millis
    headers["store_address"] = STORE_ADDRESSES[store_v6]
    headers["store_port"] = STORE_PORT
    headers["body_length"] = bodies.lengths
    return headers


def head_spans(headers: Structs, rows: Rows) -> Spans:
    """Return views of the headers in which IPv4 addresses have four bytes."""
    fields = [(name, "?", (HEAD[name].itemsize,)) for name in HEAD.names or ()]
    keep = np.zeros(len(headers), np.dtype(fields))
    cells = as_bytes(keep).view(np.bool_)
    cells[:] = True
    keep["born_address"][:, IPV4_BYTES:] = rows.born_v6[:, np.newaxis]
    keep["store_address"][:, IPV4_BYTES:] = rows.store_v6[:, np.newaxis]
    dropped = (IPV6_BYTES - IPV4_BYTES) * (2 - rows.born_v6.astype(np.int64) - rows.store_v6)
    return Spans(as_bytes(headers), cells, HEAD.itemsize - dropped)


class CommitLog:
    """The CommitLog files of one store, appended to at ``end``."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        """Begin at physical offset 0; the first file is made with the first record."""
        folder.mkdir(parents=True)
        self._folder, self._segment_bytes = folder, segment_bytes
        self._file: IO[bytes] | None = None
        self._segment = -1
        self._end = 0

    def place(self, sizes: Longs) -> Longs:
        """Return the physical offsets that records of the given sizes get next.

        Raises:
            ValueError: a record and the blank after it do not fit a segment.
        """
        needed = int(sizes.max()) + BLANK.itemsize
        if needed > self._segment_bytes:
            raise ValueError(
                "A segment must hold a record and a blank: "
                f"{needed} bytes, got {self._segment_bytes}."
            )
        offsets = self._end + np.cumsum(sizes) - sizes
        fit = 0
        while fit < len(sizes):
            # Source: CommitLog.java, DefaultAppendMessageCallback#doAppend.
            segment_end = (int(offsets[fit]) // self._segment_bytes + 1) * self._segment_bytes
            fit = int(np.searchsorted(offsets + sizes, segment_end - BLANK.itemsize, side="right"))
            offsets[fit:] += segment_end - offsets[fit : fit + 1]
        return offsets

    def append(self, offsets: Longs, sizes: Longs, data: Bytes) -> None:
        """Write the records, joined in ``data``, at the offsets that `place` gave them."""
        segments = offsets // self._segment_bytes
        starts = np.cumsum(sizes) - sizes
        first_rows = np.flatnonzero(np.diff(segments, prepend=-1)).tolist()
        for row, part in zip(first_rows, np.split(data, starts[first_rows[1:]]), strict=True):
            self._file_of(int(segments[row])).write(part.data)
        self._end = int(offsets[-1] + sizes[-1])

    def close(self) -> None:
        """Close the last file; its unused tail stays zero."""
        if self._file is not None:
            self._file.close()

    def _file_of(self, segment: int) -> IO[bytes]:
        if self._file is not None and segment == self._segment:
            return self._file
        if self._file is not None:
            rest = self._segment_bytes - self._file.tell()
            self._file.write(np.array([(rest, MAGIC_BLANK)], BLANK).tobytes())
            self._file.close()
        self._segment = segment
        self._file = (self._folder / f"{segment * self._segment_bytes:020d}").open("wb")
        self._file.truncate(self._segment_bytes)
        return self._file


def java_hash(text: str) -> int:
    """Return String.hashCode of text within the basic plane."""
    code = 0
    for char in text:
        code = (31 * code + ord(char)) % (1 << 32)
    return code - (code >> 31 << 32)


def tags_codes(kind: Kind, rows: Rows) -> Longs:
    """Return the hash of the TAGS property, or 0 if there is none."""
    has_tag = np.array([TAG in chosen.entries for chosen in kind.property_sets])
    codes = np.array([java_hash(tag) for tag in TAGS])
    return np.where(has_tag[rows.property_set], codes[rows.tag], 0)


def append_units(folder: Path, first: int, units: Structs) -> None:
    """Write units into the files of one queue, from queue offset ``first`` on."""
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    while done < len(units):
        file_number, unit = divmod(first + done, UNITS_PER_QUEUE_FILE)
        part = units[done : done + UNITS_PER_QUEUE_FILE - unit]
        path = folder / f"{file_number * UNITS_PER_QUEUE_FILE * QUEUE_UNIT.itemsize:020d}"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(UNITS_PER_QUEUE_FILE * QUEUE_UNIT.itemsize)
            file.seek(unit * QUEUE_UNIT.itemsize)
            file.write(part.tobytes())
        done += len(part)


def append_queues(folder: Path, kind: Kind, rows: Rows, units: Structs) -> None:
    """Write one unit per row, in physical order, into the queue of the row."""
    for place, topic in enumerate(kind.topics):
        for queue_id in range(topic.queues):
            of_queue = np.flatnonzero((rows.topic == place) & (rows.queue_id == queue_id))
            if len(of_queue):
                first = int(rows.queue_offset[of_queue[0]])
                append_units(folder / topic.name / str(queue_id), first, units[of_queue])


def topic_config(topic: Topic) -> dict[str, object]:
    """Return the entry of a topic in the broker's table. Source: TopicConfig.java."""
    return {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": topic.queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.queues,
    }


def write_small_files(path: Path, kind: Kind, last_store_millis: int) -> None:
    """Write what a broker leaves after a clean stop beside log and queues, without the index."""
    topics = {
        "dataVersion": {"counter": len(kind.topics), "stateVersion": 0, "timestamp": FIRST_MILLIS},
        "topicConfigTable": {topic.name: topic_config(topic) for topic in kind.topics},
    }
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text(json.dumps(topics, indent="\t"), encoding="utf-8")
    checkpoint = np.zeros(1, CHECKPOINT)
    checkpoint["physic_timestamp"] = checkpoint["logics_timestamp"] = last_store_millis
    (path / "checkpoint").write_bytes(checkpoint.tobytes())
    (path / "lock").write_bytes(b"lock")


def encode(
    kind: Kind, rows: Rows, rng: np.random.Generator, log: CommitLog, body_bytes: int
) -> Structs:
    """Append the records of the rows to the log and return their queue units."""
    bodies = draw_bodies(rng, len(rows.number), body_bytes)
    properties = draw_properties(kind, rows, rng)
    topics = take(table([topic_field(topic) for topic in kind.topics]), rows.topic)
    lengths = fixed(as_bytes(properties.lengths.astype(PROPERTIES_LENGTH)))
    headers = record_headers(kind, rows, bodies)
    pieces = [head_spans(headers, rows), bodies, topics, lengths, properties]
    sizes = sum_lengths(pieces)
    offsets = log.place(sizes)
    headers["total_size"], headers["physical_offset"] = sizes, offsets
    records = join(pieces)
    log.append(offsets, sizes, records.cells[records.keep])
    units = np.zeros(len(sizes), QUEUE_UNIT)
    units["physical_offset"], units["size"] = offsets, sizes
    units["tags_code"] = tags_codes(kind, rows)
    return units


def generate(  # one argument an option of the command line
    path: str | Path,
    messages: int = 3_000_000,
    kind: str = "uniform",
    seed: int = 1,
    segment_bytes: int = SEGMENT_BYTES,
    *,
    body_bytes: int = 200,
) -> None:
    """Write a store that was closed: log, queues, checkpoint, topic table and lock file.

    It has no index.

    Args:
        path: the store's root; created, and not yet a store.
        messages: at least 1.
        kind: "uniform" (one topic, one sequence of property names, IPv4) or "mixed" (several of
            each, IPv6 too, both versions of the record).
        seed: of all that is drawn; equal arguments give equal bytes.
        segment_bytes: length of a CommitLog file.
        body_bytes: bodies have from 50 fewer to 49 more bytes.

    Raises:
        FileExistsError: there is a CommitLog at ``path`` already.
        ValueError: no messages, or a record does not fit a segment.
    """
    if messages < 1:
        message = f"A store needs at least one message, got {messages}."
        raise ValueError(message)
    root = Path(path)
    content = KINDS[kind]
    rng = np.random.default_rng(seed)
    source = RowSource(content, rng)
    log = CommitLog(root / "commitlog", segment_bytes)
    for done in range(0, messages, CHUNK_MESSAGES):
        rows = source.draw(min(CHUNK_MESSAGES, messages - done))
        units = encode(content, rows, rng, log, body_bytes)
        append_queues(root / "consumequeue", content, rows, units)
        sys.stderr.write(f"\r{root}: {done + len(units):,} of {messages:,} messages")
    log.close()
    write_small_files(root, content, int(rows.store_millis[-1]))
    sys.stderr.write("\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description="Write a seeded RocketMQ store for the benchmarks."
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--kind", choices=sorted(KINDS), default="uniform")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES)
    parser.add_argument("--body-bytes", type=int, default=200, help="mean length of a body")
    generate(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
