"""The fast path gives what the reference gives, whatever the batches are."""

from __future__ import annotations

import random
import re
import sys

import pyarrow as pa
import pytest

import tiers
from kafka_batches import CODECS, GZIP, LZ4, TIME, ZSTD, Row, batch, message, record, wrapper
from kafka_comparing import both, decoded, rows_of
from kafkalog.format import records
from kafkalog.format.batch_headers import crc32c, walk_batches
from kafkalog.format.layout import RECORD
from kafkalog.format.records import decode_chunks
from rmqstore.errors import MalformedBytesError, UnsupportedFeatureError, install

_NAMES = (b"", b"n", b"trace", "name-\N{SNOWMAN}".encode(), b"\xff", b"x" * 80)
_LENGTHS = (0, 1, 2, 7, 8, 9, 62, 63, 64, 65, 200, 8191, 8192, 20_000)
_DELTAS = (
    0, 1, -1, 63, 64, -65, 8191, 8192, 1 << 20, -(1 << 33), 1 << 40, 1 << 48, 1 << 55, 1 << 62,
)  # fmt: skip


def content(chooser: random.Random) -> bytes | None:
    return None if chooser.random() < 0.2 else chooser.randbytes(chooser.choice(_LENGTHS))


def rows(chooser: random.Random) -> list[Row]:
    n_rows = chooser.choice((0, 1, 2, 3, 5, 20, 130))
    most_headers = chooser.choice((0, 0, 1, 3, 20))
    made, offset = [], 0
    for _ in range(n_rows):
        headers = [
            (chooser.choice(_NAMES), content(chooser) if chooser.random() < 0.3 else b"v")
            for _ in range(chooser.randint(0, most_headers))
        ]
        time_delta = chooser.choice(_DELTAS) if chooser.random() < 0.3 else chooser.randint(0, 99)
        made.append(Row(content(chooser), content(chooser), headers, offset, time_delta))
        offset += chooser.choice((1, 1, 1, 2, 100, 70_000))
    return made


@pytest.mark.parametrize("seed", tiers.seeds(25))
def test_random_batches(seed: int) -> None:
    chooser = random.Random(seed)
    codecs = chooser.choice(([0], [0], list(CODECS), [GZIP, ZSTD]))
    data = b"".join(
        batch(
            number * 1_000_000, rows(chooser),
            attributes=chooser.choice(codecs) | chooser.choice((0, 8, 16, 64)),
            leader_epoch=chooser.choice((-1, 0, 7)), base_time=chooser.choice((TIME, 0, -1)),
        )
        for number in range(chooser.choice((1, 3, 40)))
    )  # fmt: skip
    assert both(data) is not None


def in_batches(made: list[Row], n: int) -> bytes:
    return b"".join(batch(at, made[at : at + n]) for at in range(0, len(made), n))


@pytest.mark.parametrize("count", [1, 11, 12, 13, 4095, 4096, 4097])
def test_records_with_the_same_headers(count: int) -> None:
    names = ((b"trace", b"abc"), (b"", None), ("\N{SNOWMAN}".encode(), b""))
    made = [Row(b"k", b"v" * (number % 70), names) for number in range(count)]
    found = both(in_batches(made, 100))
    assert found is not None
    assert found[-1]["offset"] == count - 1


@pytest.mark.parametrize("odd", ["none", "name", "value", "length", "null", "count", "long"])
def test_headers_of_the_same_lengths(odd: str) -> None:
    made = [
        Row(b"k", b"v", ((b"trace", b"%04d" % number), ("\N{SNOWMAN}".encode(), b"")))
        for number in range(300)
    ]
    second = ("\N{SNOWMAN}".encode(), b"")
    changed = {
        "none": ((b"trace", b"abcd"), second),
        "name": ((b"track", b"abcd"), second),
        "value": ((b"trace", b"\xff" * 4), second),
        "length": ((b"trace", b"abc"), (second[0], b"d")),
        "null": ((b"trace", b"abcd"), (second[0], None)),
        "count": ((b"trace", b"abcd\x06\xe2\x98\x83\x00"),),
        "long": ((b"trace", b"a" * 9000), second),
    }[odd]
    made[150] = Row(b"k", b"v", changed)
    assert both(in_batches(made, 100)) is not None


@pytest.mark.parametrize("kind", ["short", "equal", "both"])
def test_values_of_some_lengths(kind: str) -> None:
    chooser = random.Random(3)
    lengths = {"short": range(13), "equal": [30], "both": range(40)}[kind]
    made = [
        Row(chooser.randbytes(20 + number % 9), chooser.randbytes(chooser.choice(lengths)))
        for number in range(400)
    ]
    made[7] = Row(None, b"v")
    assert both(in_batches(made, 20)) is not None


def legacy(codec: int, magic: int, base: int) -> bytes:
    """Return messages alone and wrapped; those inside of v1 have gaps."""
    inside = [0, 1, 3, 7] if magic else [base, base + 1, base + 3, base + 7]
    inner = [
        message(at, b"k" if at % 2 else None, b"x" * at, magic=magic, time=TIME + at)
        for at in inside
    ]
    return (
        message(base - 2, None, None, magic=magic)
        + wrapper(base + 7, codec, *inner, magic=magic)
        + message(base + 8, b"", b"", magic=magic)
    )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [1, 2, 3])
def test_legacy_messages(codec: int, magic: int) -> None:
    found = both(legacy(codec, magic, 100) + legacy(codec, magic, 200))
    assert found is not None
    assert [row["offset"] for row in found[:6]] == [98, 100, 101, 103, 107, 108]
    assert {row["timestamp_type"] for row in found} == {-1 if magic == 0 else 0}
    assert found[3]["timestamp"] == (None if magic == 0 else TIME + 3)


def test_the_wrapper_of_v1_decides_about_append_times() -> None:
    inner = [message(0, None, b"a", time=5), message(1, None, b"b", time=6, attributes=8)]
    found = both(wrapper(9, LZ4, *inner, attributes=8, time=77) + wrapper(11, LZ4, *inner, time=78))
    assert found is not None
    assert [(row["timestamp"], row["timestamp_type"]) for row in found] == [
        (77, 1), (77, 1), (5, 0), (6, 0),
    ]  # fmt: skip


def test_formats_may_follow_one_another() -> None:
    data = (
        batch(0, [Row(b"a", b"1")])
        + message(1, b"b", b"2", magic=0)
        + legacy(LZ4, 1, 10)
        + batch(30, [Row(b"c", b"3")] * 3, attributes=ZSTD)
        + batch(40, [Row(b"d", b"4")])
    )
    found = both(data)
    assert found is not None
    assert [row["offset"] for row in found] == [0, 1, 8, 10, 11, 13, 17, 18, 30, 31, 32, 40]


@pytest.mark.parametrize("codec", CODECS)
def test_the_offsets_from_one_on(codec: int) -> None:
    made = [Row(b"k", b"v%d" % at, [(b"n", b"%d" % at)]) for at in range(10)]
    data = b"".join(batch(start, made, attributes=codec) for start in range(0, 100, 10))
    batch_headers = walk_batches(data)
    every = rows_of(decoded(data, batch_headers))
    for start in (None, 0, 15, 33, 200):
        assert rows_of(decoded(data, batch_headers, start_offset=start)) == every[start or 0 :]


def test_control_records_are_left_out_and_columns_come_in_order() -> None:
    data = batch(0, [Row(b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=48) + batch(1, [Row(b"k")])
    found = decoded(data, walk_batches(data), columns=["offset", "key"])
    assert found.schema.names == ["offset", "key"]
    assert found.to_pylist() == [{"offset": 1, "key": b"k"}]


def test_nothing_decodes_to_no_rows() -> None:
    data = batch(3, [])
    batch_headers = walk_batches(data)
    for some in (batch_headers, batch_headers[:0], walk_batches(b"")):
        found = decoded(data, some)
        assert found.num_rows == 0
        assert found.schema == RECORD


def test_large_reads_come_in_pieces() -> None:
    part = batch(0, [Row(b"k", bytes(1 << 20)) for _ in range(40)], attributes=LZ4)
    data = part * 4
    batch_headers = walk_batches(data)
    pieces = [piece.num_rows for _, piece in decode_chunks(data, batch_headers, ["value"])]
    assert pieces == [40] * 4
    assert decoded(data, batch_headers, columns=["value"]).num_rows == 160


def test_one_huge_batch_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CHUNK_ROWS", 100)
    counts = (60, 30, 40, 350, 7)
    parts, offset = [], 0
    for count in counts:
        parts.append(batch(offset, [Row(b"k%d" % at) for at in range(count)], attributes=ZSTD))
        offset += count
    data = b"".join(parts)
    batch_headers = walk_batches(data)
    pieces = [piece for _, piece in decode_chunks(data, batch_headers, ["offset", "key"], 5)]
    assert [piece.num_rows for piece in pieces] == [85, 40, 100, 100, 100, 50, 7]
    whole = decoded(data, batch_headers, columns=["offset", "key"]).to_pylist()
    assert pa.Table.from_batches(pieces).to_pylist() == whole[5:]


def inner(count: int, magic: int, *, longest: int = 3) -> list[bytes]:
    return [
        message(at, None, bytes(at % longest), magic=magic, time=TIME + at) for at in range(count)
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("longest", [1, 3, 500])
def test_compressed_messages_come_in_pieces(
    magic: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They inflate to as much as a batch, and the least message has few bytes."""
    parts, offset = [message(0, b"k", b"v", magic=magic)], 1
    for count in (1, 700, 3, 99):
        last = offset + count - 1
        offsets = range(count) if magic else range(offset, offset + count)
        messages = inner(count, magic, longest=longest)
        moved = [at.to_bytes(8, "big") + one[8:] for at, one in zip(offsets, messages, strict=True)]
        parts.append(wrapper(last, GZIP, *moved, magic=magic))
        offset += count
    data = b"".join(parts)
    batch_headers = walk_batches(data)
    whole = decoded(data, batch_headers, columns=["offset", "value", "timestamp"])
    assert whole.column("offset").to_pylist() == list(range(offset))
    monkeypatch.setattr(records, "_CHUNK_ROWS", 100)
    columns = ["offset", "value", "timestamp"]
    pieces = [piece for _, piece in decode_chunks(data, batch_headers, columns)]
    assert pa.Table.from_batches(pieces).to_pylist() == whole.to_pylist()
    assert max(piece.num_rows for piece in pieces) <= 101


RECORDS = b"".join(record(at, Row()) for at in range(250))
*MESSAGES, LAST = inner(500, 1)


@pytest.mark.parametrize(
    "huge",
    [
        *(batch(1, [], records=stored, count=250)
          for stored in (RECORDS + b"\0", RECORDS[:-1] + b"\1", RECORDS[:-7])),
        *(wrapper(500, GZIP, *MESSAGES, last)
          for last in (LAST[:-1] + b"x", LAST[:-1], bytes(40), LAST + b"1")),
    ],
    ids=lambda huge: f"v{huge[16]}, {len(huge)} bytes",
)  # fmt: skip
def test_a_huge_batch_gives_nothing_if_its_last_record_is_damaged(
    monkeypatch: pytest.MonkeyPatch, huge: bytes
) -> None:
    monkeypatch.setattr(records, "_CHUNK_ROWS", 100)
    valid = batch(0, [Row()])
    data = valid + huge + valid
    given: list[pa.RecordBatch] = []
    chunks = decode_chunks(data, walk_batches(data), ["offset", "headers"])
    with pytest.raises(MalformedBytesError) as raised:
        given.extend(piece for _, piece in chunks)
    assert raised.value.position == len(valid)
    assert sum(piece.num_rows for piece in given) in (0, 1)


def test_a_window_may_begin_anywhere() -> None:
    parts = [batch(number, [Row(b"k%d" % number)]) for number in range(3)]
    data = b"x" * 5 + b"".join(parts)
    batch_headers = walk_batches(data, 5, 700)
    assert batch_headers.position.tolist() == [705, 705 + len(parts[0]), 705 + 2 * len(parts[0])]
    assert batch_headers.check_crcs(data).all()
    found = decoded(data, batch_headers[1:], columns=["key", "offset"])
    assert found.to_pylist() == [{"key": b"k1", "offset": 1}, {"key": b"k2", "offset": 2}]


def test_checksums_name_the_library_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_headers = walk_batches(batch(0, [Row()]))
    crc32c.cache_clear()
    monkeypatch.setitem(sys.modules, "crc32c", None)
    with pytest.raises(UnsupportedFeatureError, match=re.escape(install("kafka"))):
        batch_headers.check_crcs(batch(0, [Row()]))
    old = message(0, b"k", b"v")
    assert walk_batches(old).check_crcs(old).all()
    monkeypatch.undo()
    assert batch_headers.check_crcs(batch(0, [Row()])).all()
