"""Bytes that no broker writes are refused, or mean what the format says."""

from __future__ import annotations

import random
import struct

import lz4.frame
import pytest

import kafka_batches
import tiers
from kafka_batches import (
    CODECS,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    Row,
    batch,
    message,
    record,
    varint,
    wrapper,
)  # fmt: skip
from kafka_comparing import both, decoded
from kafkalog.format.batch_headers import walk_batches
from kafkalog.format.compression import inflate, mend_frame_head, xxhash32
from kafkalog.format.consumer_offsets import parse_offset_key, parse_offset_value
from kafkalog.format.reference import marker_in, records_of
from rmqstore.errors import MalformedBytesError

ROWS = [Row(b"key", b"value-%d" % number, [(b"n", b"x"), (b"m", None)]) for number in range(3)]


def refused(data: bytes, reason: str = ".") -> None:
    batch_headers = walk_batches(data, base_position=50)
    with pytest.raises(MalformedBytesError, match=reason) as caught:
        decoded(data, batch_headers)
    assert caught.value.position in batch_headers.position
    with pytest.raises(MalformedBytesError):
        list(records_of(data, batch_headers))


@pytest.mark.parametrize("n_batches", [1, 14])
@pytest.mark.parametrize("codec", [0, ZSTD])
def test_every_changed_byte_is_seen_by_the_checksum_or_means_the_same_to_both(
    codec: int, n_batches: int
) -> None:
    part = batch(7, ROWS[:2], attributes=codec)
    data = bytearray(part * n_batches)
    start = len(part) * (n_batches // 2)
    for at in range(start, start + len(part)):
        for change in (0x01, 0x80, 0xFF):
            data[at] ^= change
            both(bytes(data))
            if at - start >= 17:  # what the CRC covers, and the CRC
                assert not walk_batches(data).check_crcs(data).all()
            data[at] ^= change


@pytest.mark.parametrize("magic", [0, 1])
def test_every_changed_byte_of_legacy_messages(magic: int) -> None:
    inner = [message(number, b"k", b"v", magic=magic) for number in range(2)]
    data = bytearray(message(3, b"k", b"v", magic=magic) + wrapper(5, LZ4, *inner, magic=magic))
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            data[at] ^= change
            both(bytes(data))
            data[at] ^= change


@pytest.mark.parametrize("seed", tiers.seeds(40))
def test_random_bytes_for_records(seed: int) -> None:
    chooser = random.Random(seed)
    parts = []
    for number in range(chooser.choice((1, 20))):
        stored = bytearray(b"".join(record(at, row) for at, row in enumerate(ROWS)))
        for _ in range(chooser.randint(0, 2)):
            stored[chooser.randrange(len(stored))] = chooser.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        parts.append(batch(number, ROWS, records=bytes(stored)))
    batch_headers = walk_batches(b"".join(parts))
    for row in range(len(batch_headers)):
        both(b"".join(parts), batch_headers[row : row + 1])
    both(b"".join(parts))


def test_numbers_of_records_that_lie() -> None:
    refused(batch(0, ROWS, count=-1), "number of records is -1")
    refused(batch(0, ROWS, count=2), "bytes follow the last record")
    refused(batch(0, ROWS, count=4))
    refused(batch(0, ROWS, count=(1 << 31) - 1), "do not fit")
    refused(batch(0, ROWS, count=2, attributes=GZIP), "bytes follow the last record")
    assert both(batch(0, ROWS, count=0)) == []


def test_lengths_that_lie() -> None:
    fields = b"\0\0\0" + varint(-1) + varint(-1) + varint(0)
    for body, reason in (
        (b"\0\0\0" + varint(100) + b"x" * 8, "does not fit"),
        (b"\0\0\0" + varint((1 << 31) - 1) + b"x" * 8, "does not fit"),
        (fields + b"x", "bytes follow the fields"),
        (b"\0\0\0\1\1" + varint(1 << 30), "headers do not fit"),
        (b"\0\0\0\1\1" + varint(-1), "headers do not fit"),
        (b"\0\0\0\1\1" + varint(1) + varint(-1) + b"\1", "no name"),
        (b"\0\0\0\1\1" + varint(1) + varint(0) + b"\1x", "bytes follow the headers"),
        (b"\0" + b"\xff" * 12, "longer than 10 bytes"),
        (b"\0\0" + b"\xff" * 12, "cut off"),
        (b"\0\0\0" + b"\x80" * 5 + b"\0\0\0", "cut off"),
    ):
        stored = varint(len(body)) + body
        refused(batch(0, [Row()], records=stored), reason)
        valid = batch(1, [Row(b"k", b"v" * 9, [(b"a", b"b")])])
        refused(valid * 20 + batch(0, [Row()], records=stored), reason)
    refused(batch(0, [Row()], records=varint(1 << 30) + fields), "bytes")
    refused(batch(0, [Row()], records=varint(-9) + fields), "bytes")
    refused(batch(0, [Row()], records=b"\x80" * 7))


def test_longer_codings_than_necessary_are_accepted_and_bits_above_32_dropped() -> None:
    body = b"\0" + b"\x82\x80\x80\0" + b"\x84\x80\x80\x80\x70" + b"\x81\0" + b"\x81\x80\0" + b"\0"
    for count in (1, 20):
        found = both(batch(10, [Row()], records=varint(len(body)) + body) * count)
        assert found is not None
        assert found[0]["offset"] == 12
        assert found[0]["key"] is None


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_bombs_are_refused_before_they_fill_the_memory(codec: int) -> None:
    stored = memoryview(CODECS[codec](bytes(8 << 20)))
    assert len(inflate(stored, codec, 2)) == 8 << 20
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        inflate(stored, codec, 2, 1_000_000)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_does_not_inflate_is_refused(codec: int) -> None:
    valid = CODECS[codec](random.Random(1).randbytes(5000))
    for stored in (b"", b"\0", b"x" * 100, valid[:9], valid[:-9], b"\xff" * 30):
        refused(batch(0, ROWS, records=b"?", compress=lambda _, s=stored: s, attributes=codec))


def test_unknown_codecs_are_refused() -> None:
    for codec in (5, 6, 7):
        refused(batch(0, ROWS, attributes=codec, compress=bytes), f"compression type {codec}")
    refused(message(0, None, CODECS[ZSTD](message(0, None, b"")), attributes=ZSTD), "type 4")


def test_several_members_and_frames_are_one_stream() -> None:
    one, two = b"a" * 1000, b"b" * 70_000
    for codec in (GZIP, SNAPPY, ZSTD):
        assert inflate(memoryview(CODECS[codec](one) + CODECS[codec](two)), codec, 2) == one + two
    assert inflate(memoryview(kafka_batches.raw_snappy(two)), SNAPPY, 2) == two
    after_end = lz4.frame.compress(one) + b"after the end mark"
    assert inflate(memoryview(after_end), LZ4, 2) == one


@pytest.mark.parametrize("with_size", [False, True])
def test_the_check_byte_of_lz4_frames_is_ignored_in_v0_only(with_size: bool) -> None:
    frame = bytearray(lz4.frame.compress(b"abc" * 99, store_size=with_size))
    at = 14 if with_size else 6
    assert mend_frame_head(memoryview(bytes(frame))) == frame
    frame[at] ^= 0x55
    assert inflate(memoryview(frame), LZ4, 0) == b"abc" * 99
    with pytest.raises(ValueError, match="lz4 does not inflate"):
        inflate(memoryview(frame), LZ4, 1)


def test_the_hash_of_frame_heads() -> None:
    assert xxhash32(b"") == 0x02CC5D05
    assert xxhash32(b"a") == 0x550D7456
    assert xxhash32(b"abc") == 0x32D153FF


def test_snappy_blocks_that_lie() -> None:
    header = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for stored in (
        header + struct.pack(">i", -5),
        header + struct.pack(">i", 1 << 30) + b"x",
        header + b"\0\0",
        kafka_batches.unsigned(200 << 20) + b"x" * 20,
        b"\xff" * 9,
    ):
        with pytest.raises(ValueError, match="snappy"):
            inflate(memoryview(stored), SNAPPY, 2)


def test_legacy_messages_that_lie() -> None:
    inner = message(0, None, b"v")
    refused(message(0, None, None, attributes=GZIP), "no value")
    refused(wrapper(5, GZIP), "nothing|empty")
    refused(wrapper(5, GZIP, inner, inner[:-1]), "inside")
    refused(wrapper(5, GZIP, inner[:-1] + b"?"), "CRC of a message inside")
    refused(wrapper(5, GZIP, wrapper(0, GZIP, inner)), "is compressed")
    refused(wrapper(5, GZIP, message(9, None, b"v")), "less than those inside")
    valid = message(0, b"k", b"v")
    for place, length in ((26, 100), (26, (1 << 31) - 1), (31, 100), (31, 0), (26, -1)):
        changed = bytearray(valid)
        struct.pack_into(">i", changed, place, length)
        refused(bytes(changed))


def test_where_a_walk_stops() -> None:
    valid = batch(0, ROWS)
    for tail, reason in (
        (b"", None),
        (bytes(5), "zeros"),
        (bytes(500), "zeros"),
        (valid[:-1], "cut off"),
        (valid[:20], "too few"),
        (b"\xff" * 100, "length -1"),
        (struct.pack(">qiib", 0, 48, 0, 2) + bytes(100), "length 48"),
        (struct.pack(">qiib", 0, 21, 0, 1) + bytes(100), "length 21"),
        (struct.pack(">qiib", 0, 13, 0, 0) + bytes(100), "length 13"),
    ):
        batch_headers = walk_batches(valid * 2 + tail)
        assert len(batch_headers) == 2
        assert (reason or "None") in str(batch_headers.reason)


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_a_walk_through_random_bytes_raises_nothing(seed: int) -> None:
    chooser = random.Random(seed)
    data = bytearray(batch(0, ROWS) * 3 + message(9, b"k", b"v"))
    for _ in range(chooser.randint(1, 30)):
        data[chooser.randrange(len(data))] = chooser.randrange(256)
    batch_headers = walk_batches(bytes(data))
    batch_headers.check_crcs(bytes(data))
    assert len(batch_headers[batch_headers.codec == 0]) <= len(batch_headers)


def test_a_magic_above_2_is_read_as_2() -> None:
    data = bytearray(batch(0, ROWS))
    data[16] = 9
    assert walk_batches(data).check_crcs(data).all()
    assert len(both(bytes(data)) or []) == 3


def test_a_changed_number_under_a_right_checksum() -> None:
    data = bytearray(batch(0, ROWS))
    data[61] ^= 2
    sealed = kafka_batches.resealed(bytes(data))
    assert walk_batches(sealed).check_crcs(sealed).all()
    refused(sealed)


def test_offsets_that_overflow_wrap_as_in_java() -> None:
    found = both(batch((1 << 63) - 1, ROWS))
    assert found is not None
    assert found[1]["offset"] == -(1 << 63)


def test_committed_offsets_that_lie() -> None:
    assert parse_offset_key(struct.pack(">h", 2) + b"x") is None
    for key in (b"", b"\0", b"\0\1", b"\0\1\0\5abc", b"\0\1\xff\xff", b"\0\1\0\1g\0\1t\0\0"):
        with pytest.raises(MalformedBytesError):
            parse_offset_key(key)
    old = struct.pack(">hq", 0, 5) + b"\0\2md" + struct.pack(">q", 9)
    assert parse_offset_value(old)[:4] == (5, -1, "md", 9)
    flexible = struct.pack(">hqi", 4, 5, 3) + b"\3md" + struct.pack(">q", 9) + b"\0"
    assert parse_offset_value(flexible)[:4] == (5, 3, "md", 9)
    for value in (b"", struct.pack(">h", 5) + bytes(50), struct.pack(">hq", 3, 5), flexible[:-6]):
        with pytest.raises(MalformedBytesError):
            parse_offset_value(value)


def test_a_control_batch_is_read_up_to_its_marker_and_may_not_inflate_to_much() -> None:
    commit = Row(b"\0\0\0\1", b"\0\0\0\0\0\7")
    data = batch(9, [commit, *[Row(b"\0\0\0\0", b"")] * 1000], attributes=48, producer=(5, 0, -1))
    found = marker_in(data, walk_batches(data))
    assert found == (9, True, 7)
    data = batch(9, [Row()] * 20_000, attributes=48 | ZSTD)
    with pytest.raises(MalformedBytesError, match="more than"):
        marker_in(data, walk_batches(data))
