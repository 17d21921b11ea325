"""The columnar decoder gives what the reference codec gives, record by record."""

from __future__ import annotations

import random
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import store_builder as build
import tiers
from equivalence.random_logs import random_log, random_properties, uniform_properties
from reading import plain
from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.checks import inflate_bodies, valid_crcs, valid_topics
from rmqstore.format.columns.decode import DECODED_COLUMNS, decode_columns, stored_bodies
from rmqstore.format.columns.property_decode import parse_entries, property_column, property_map
from rmqstore.format.columns.record_headers import check_headers, read_headers
from rmqstore.format.record import Expected, check_record, decode_record, split_record
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.format.text import parse_properties

SCHEMA = pa.schema([field for field in ALL_COLUMNS if field.name in DECODED_COLUMNS])
BASE = 1 << 33


def as_array(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("seed", tiers.seeds(60))
def test_decoded_columns_equal_the_reference_codec(seed: int) -> None:
    data, starts = random_log(seed, 40, BASE)
    headers, whole = read_headers(as_array(data), np.array(starts, np.int64))
    assert whole.all()
    columns = decode_columns(as_array(data), headers, SCHEMA)
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    batch.validate(full=True)
    expected = [plain(decode_record(data, at)._asdict()) for at in starts]
    found = [plain(row) for row in batch.to_pylist()]
    assert found == [{name: row[name] for name in SCHEMA.names} for row in expected]


@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_each_column_decodes_alone_and_of_records_in_any_order(seed: int) -> None:
    data, starts = random_log(seed, 25, BASE)
    order = random.Random(seed).choices(starts, k=30)
    headers, _ = read_headers(as_array(data), np.array(order, np.int64))
    expected = [plain(decode_record(data, at)._asdict()) for at in order]
    for field in SCHEMA:
        column = decode_columns(as_array(data), headers, pa.schema([field]))[0]
        found = [plain({field.name: value})[field.name] for value in column.to_pylist()]
        assert found == [row[field.name] for row in expected], field.name


@pytest.mark.parametrize("n_records", [0, 1, 2])
def test_few_records_decode(n_records: int) -> None:
    data, starts = random_log(5, n_records)
    headers, _ = read_headers(as_array(data), np.array(starts, np.int64))
    for column in decode_columns(as_array(data), headers, SCHEMA):
        column.validate(full=True)
        assert len(column) == n_records


def test_wider_types_are_honoured() -> None:
    record = build.Record(body=b"ab\xff", properties=b"k\x01v\x02k\x01\xff", queue_id=3)
    data = build.pack(record, 0)
    headers, _ = read_headers(as_array(data), np.array([0]))
    schema = pa.schema(
        [("queueId", pa.int64()), ("body", pa.string()), ("properties", pa.string())]
    )
    columns = decode_columns(as_array(data), headers, schema)
    assert [column.type for column in columns] == schema.types
    assert [column.to_pylist() for column in columns] == [[3], ["ab�"], ["k\x01v\x02k\x01�"]]


def _verdicts(
    data: bytes, starts: list[int], expected: list[Expected] | None, *, check_crc: bool
) -> list[bool]:
    def is_accepted(at: int, said: Expected | None) -> bool:
        with suppress(MalformedBytesError):
            check_record(data, at, at + BASE, check_crc=check_crc, expected=said)
            return True
        return False

    return [*map(is_accepted, starts, expected or [None] * len(starts))]


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("seed", tiers.seeds(120))
def test_masks_are_false_exactly_where_the_reference_refuses(seed: int, *, check_crc: bool) -> None:
    """Damage anywhere, in fixed parts (lengths!) or by a cut; and positions without a record."""
    data, starts = random_log(seed, 25, BASE)
    rng = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(rng.choice((0, 3, 30, 200))):
        damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
    for at in rng.sample(starts, 8):
        damaged[at + rng.randrange(90)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.4:
        del damaged[rng.randrange(len(damaged)) :]
    places = [
        *starts, *(rng.randrange(-5, len(data) + 5) for _ in range(20)), -1, len(damaged),
        len(damaged) - 91,
    ]  # fmt: skip
    damaged = bytes(damaged)
    buf = as_array(damaged)
    headers, whole = read_headers(buf, np.array(places, np.int64))
    valid = whole & check_headers(headers, BASE)
    if check_crc:
        valid &= valid_crcs(buf, headers, stored_bodies(buf, headers))
    assert valid.tolist() == _verdicts(damaged, places, None, check_crc=check_crc)


@pytest.mark.parametrize("seed", tiers.seeds(60))
def test_masks_agree_with_the_reference_on_what_queue_units_say(seed: int) -> None:
    data, starts = random_log(seed, 25, BASE)
    rng = random.Random(seed)
    parts = [split_record(data, at) for at in starts]
    names = ["TopicA", "t", "Тема", "", "u"]
    codes, expected = [], []
    for part in parts:
        name = next((name for name in names if name.encode() == part.topic), "u")
        name = rng.choice(names) if rng.random() < 0.2 else name
        fields = [int(part.fixed[column]) for column in ("queue_id", "total_size")]
        if rng.random() < 0.3:
            fields[rng.randrange(2)] += rng.choice((-1, 1, 1 << 20))
        codes.append(names.index(name))
        place = int(part.fixed["queue_offset"]) + rng.choice((0, 0, 0, -1, 1))
        expected.append(Expected(name, fields[0], place, fields[1]))
    buf = as_array(data)
    headers, valid = read_headers(buf, np.array(starts, np.int64))
    valid &= check_headers(headers, BASE)
    _, queue_ids, _, sizes = (np.array(column) for column in zip(*expected, strict=True))
    valid &= headers.column("queue_id") == queue_ids
    valid &= headers.column("total_size") == sizes
    valid &= valid_topics(buf, headers, names, np.array(codes))[0]
    verdicts = _verdicts(data, starts, expected, check_crc=False)
    assert valid.tolist() == verdicts
    assert len(set(verdicts)) == 2


@pytest.mark.parametrize("seed", tiers.seeds(200))
def test_property_columns_equal_the_plain_parser(seed: int) -> None:
    rng = random.Random(seed)
    template = rng.sample(["TAGS", "KEYS", "a", "b", "größe"], rng.randrange(1, 5))
    strings = [
        random_properties(rng) if seed % 2 else uniform_properties(rng, template)
        for _ in range(rng.choice((1, 2, 40)))
    ]
    if seed % 4 == 2:  # nearly uniform: the template must give way
        place = rng.randrange(len(strings))
        strings[place] = random_properties(rng)
    if seed % 5 == 0:
        strings = [text[:-1] if text.endswith(b"\x02") else text for text in strings]
    data = b"??".join([b"", *strings])
    ends = np.cumsum([len(text) + 2 for text in strings])
    lengths = np.array([len(text) for text in strings])
    entries = parse_entries(as_array(data), ends - lengths, lengths)
    expected = [parse_properties(text) for text in strings]
    maps = property_map(entries).to_pylist()
    assert [list(pairs) for pairs in maps] == [list(row.items()) for row in expected]
    for name in ("TAGS", "KEYS", "a", "größe", "�", "nowhere"):
        assert property_column(entries, name).to_pylist() == [row.get(name) for row in expected]


def test_uniform_names_take_the_template_way() -> None:
    """So that the comparison above proves it, not only the general way."""
    rng = random.Random(1)
    strings = [uniform_properties(rng, ["TAGS", "KEYS"]) for _ in range(9)]
    data, lengths = b"".join(strings), np.array([len(text) for text in strings])
    entries = parse_entries(as_array(data), np.cumsum(lengths) - lengths, lengths)
    assert entries.codes is None


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_inflated_bodies_are_those_of_the_reference_and_broken_ones_are_reported(seed: int) -> None:
    rng = random.Random(seed)
    lz4_frame = pytest.importorskip("lz4.frame")
    zstandard = pytest.importorskip("zstandard")
    codecs = {
        build.ZLIB: zlib.compress,
        0: zlib.compress,
        build.LZ4: lz4_frame.compress,
        build.ZSTD: zstandard.ZstdCompressor().compress,
    }
    packed, starts, bodies, hurt = bytearray(), [], [], set()
    for row in range(20):
        body = rng.randbytes(10) * rng.randrange(30)
        kind = rng.choice(list(codecs))
        stored, flag = body, 0
        if rng.random() < 0.8:
            stored, flag = codecs[kind](body), kind | build.COMPRESSED
        if flag and rng.random() < 0.3:
            stored, body = stored[: len(stored) // 2], b""
            hurt.add(row)
        starts.append(len(packed))
        bodies.append(body)
        packed += build.pack(build.Record(body=stored, sys_flag=flag), len(packed))
    data = bytes(packed)
    headers, _ = read_headers(as_array(data), np.array(starts))
    found, count, broken = inflate_bodies(
        stored_bodies(as_array(data), headers), headers.column("sys_flag")
    )
    assert (found.to_pylist(), count, set(broken)) == (bodies, 20, hurt)
    for row, at in enumerate(starts):
        if row in hurt:
            with pytest.raises(MalformedBytesError):
                decode_record(data, at)
        else:
            assert decode_record(data, at).body == bodies[row]


def test_reference_modules_are_not_the_columnar_ones() -> None:
    """The reference must not lean on what it judges."""
    import rmqstore.format.record as reference

    assert "rmqstore.format.columns" not in Path(reference.__file__).read_text()
