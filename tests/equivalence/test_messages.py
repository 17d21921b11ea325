"""Batches of messages of all kinds against one plain message at a time: bytes, units and keys."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import store_builder as build
import tiers
from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.decode import pack_host
from rmqstore.format.columns.dispatch_requests import (
    DispatchRequests,
    PlacedFields,
    QueueUnits,
    delay_ms,
    read_queue_units,
    read_requests,
)
from rmqstore.format.columns.encode import RecordColumns, encode_records, stamp
from rmqstore.format.columns.property_encode import property_maps, property_strings
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.compression import compressor
from rmqstore.format.hashing import java_hash
from rmqstore.format.layout import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from rmqstore.format.schema import WRITE_TYPES
from rmqstore.format.text import parse_properties
from rmqstore.write import messages
from rmqstore.write.messages import MessageMaker, WriteSpec

NOW = 1_790_000_000_000
STORE_HOST, BORN_HOST = "127.0.0.1:10911", "10.1.2.3:0"
TOPICS = ["T", "x" * 127, "%RETRY%" + "z" * 200, "%DLQ%g"]
HOSTS = [None, "10.0.0.1:1", "[2001:db8:0:0:0:0:0:20]:63789"]
TEXTS = ["a", "order-17", "größer", "中文", "😀 smile", "two keys", " a  b ", "", "x" * 300]
VALUES = [text for text in TEXTS if text]  # of properties
NAMES = ["region", "trace", "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "été", "__CRC32#"]
OVERRIDES = {"tags": "TAGS", "keys": "KEYS", "msgId": "UNIQ_KEY", "shardingKey": "__SHARDINGKEY"}


def random_rows(rng: random.Random, n: int) -> list[dict[str, Any]]:
    def text() -> str | None:
        return rng.choice([None, *TEXTS])

    topics = [*TOPICS, SCHEDULE_TOPIC] if rng.random() < 0.2 else TOPICS
    kinds = {
        "topic": lambda: rng.choice(topics),
        "body": lambda: rng.randbytes(rng.choice([0, 1, 7, 200, 5000])),
        "tags": text,
        "keys": text,
        "msgId": text,
        "shardingKey": text,
        "flag": lambda: rng.choice([None, 0, -7]),
        "bornTimestamp": lambda: rng.choice([None, (NOW - rng.randrange(10**9)) * 1000]),
        "bornHost": lambda: rng.choice(HOSTS),
        "reconsumeTimes": lambda: rng.choice([None, 3]),
        "delayTimeLevel": lambda: rng.choice([None, 0, 0, 3, 18, 99]),
        "queueId": lambda: rng.choice([None, 0, 5, 1000]),
    }
    columns = ["topic", "body", *[name for name in [*kinds][2:] if rng.random() < 0.6]]
    rows = [{name: kinds[name]() for name in columns} for _ in range(n)]
    if rng.random() < 0.2:  # no row has a value
        rows = [row | {columns[-1]: None} if len(columns) > 2 else row for row in rows]
    form = rng.choice(["none", "regular", "regular", "irregular"])
    names = rng.sample(NAMES[:7], rng.randrange(4))
    for row in rows:
        if form == "regular":
            row["properties"] = [(name, rng.choice(TEXTS[:6])) for name in names]
        elif form == "irregular":
            names = rng.sample(NAMES, rng.randrange(5))
            entries = [(name, rng.choice(VALUES)) for name in names]
            row["properties"] = rng.choice([None, entries, entries])
    return rows


def plain_properties(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The properties of one message, in the order in which they are stored."""
    entries = [
        (name, value)
        for name, value in row.get("properties") or []
        if name and value and name != "__CRC32#"
    ]
    overrides = {name: row[column] for column, name in OVERRIDES.items() if column in row}
    own = [value for name, value in entries if name == "UNIQ_KEY"]
    if own:
        overrides.setdefault("UNIQ_KEY", own[-1])
    return [
        *[entry for entry in entries if entry[0] not in overrides],
        *[(name, value) for name, value in overrides.items() if value],
    ]


def plain_record(row: dict[str, Any], queue_id: int, spec: WriteSpec, **place: int) -> bytes:
    entries = plain_properties(row)
    topic = row["topic"]
    level = min(row.get("delayTimeLevel") or 0, len(DELAY_LEVELS_MS))
    if "delayTimeLevel" in row:
        entries = [entry for entry in entries if entry[0] != "DELAY"]
    if level > 0:
        entries += [("DELAY", str(level)), ("REAL_TOPIC", topic), ("REAL_QID", str(queue_id))]
        topic, queue_id = SCHEDULE_TOPIC, level - 1
    body, sys_flag = row["body"], 0
    pack, kind = compressor(spec.compression)
    if pack is not None and len(body) >= spec.compress_over:
        body, sys_flag = pack(body), 1 | kind
    born = row.get("bornTimestamp")
    return build.packed_as_sent(
        topic,
        b"".join(f"{name}\x01{value}\x02".encode() for name, value in entries),
        place.pop("physical_offset"),
        body=body,
        born_host=build.host(pack_host(row.get("bornHost") or BORN_HOST)),
        store_host=build.host(pack_host(STORE_HOST)),
        queue_id=queue_id,
        flag=row.get("flag") or 0,
        sys_flag=sys_flag,
        born_timestamp=NOW if born is None else born // 1000,
        reconsume_times=row.get("reconsumeTimes") or 0,
        **place,
    )


def plain_units(row: dict[str, Any], place: dict[str, int]) -> tuple[int, list[int]]:
    """The tags code of one message, and the hashes of its keys."""
    properties = parse_properties(
        b"".join(f"{name}\x01{value}\x02".encode() for name, value in plain_properties(row))
    )
    delayed = min(row.get("delayTimeLevel") or 0, len(DELAY_LEVELS_MS))
    topic = SCHEDULE_TOPIC if delayed > 0 else row["topic"]
    tags_code = java_hash(properties.get("TAGS", ""))
    if topic == SCHEDULE_TOPIC and "delayTimeLevel" not in row:
        delay = delay_ms(properties.get("DELAY"))
        tags_code = tags_code if delay is None else place["store_timestamp"] + delay
    if delayed > 0:
        tags_code = place["store_timestamp"] + DELAY_LEVELS_MS[delayed - 1]
    keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
    hashes = [abs(java_hash(f"{topic}#{key}")) for key in keys if key]
    return tags_code, [0 if value == 1 << 31 else value for value in hashes]


def make(spec: WriteSpec, rows: list[dict[str, Any]]) -> RecordColumns:
    names = list(rows[0])
    schema = pa.schema([(name, WRITE_TYPES[name]) for name in names])
    arrays = [
        pa.array([row[name] for row in rows], pa.int64()).cast(schema.field(name).type)
        if name == "bornTimestamp"
        else pa.array([row[name] for row in rows], schema.field(name).type)
        for name in names
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    padded = pa.concat_batches([batch.slice(0, 1), batch])  # rows that do not begin their buffers
    with mock.patch.object(messages, "now_ms", return_value=NOW):
        return MessageMaker(spec).make(padded.slice(1))


@pytest.mark.parametrize("seed", tiers.seeds(120))
def test_a_batch_equals_its_messages_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    spec = WriteSpec(
        make_uniq_key=False,
        store_host=STORE_HOST,
        born_host=BORN_HOST,
        compression=rng.choice(["none", "none", "zlib"]),
        compress_over=100,
        allow_system_topics=True,
    )
    rows = random_rows(rng, rng.choice([1, 2, 30, 200]))
    columns = make(spec, rows)
    n = len(rows)
    places = PlacedFields(*(np.array([rng.randrange(1 << 42) for _ in range(n)]) for _ in range(3)))
    records = encode_records(columns, places)
    starts = records.starts.tolist()
    assert np.diff(starts).tolist() == columns.sizes().tolist()

    chosen = make(spec, [row | {"delayTimeLevel": 0} for row in rows]).queue_ids.tolist()
    requests = columns.requests(records).placed(places)
    keys: dict[int, list[int]] = {}
    for row, value in zip(requests.key_rows.tolist(), requests.key_hashes.tolist(), strict=True):
        keys.setdefault(row, []).append(value)
    for number, row in enumerate(rows):
        place = {
            "queue_offset": int(places.queue_offsets[number]),
            "physical_offset": int(places.physical_offsets[number]),
            "store_timestamp": int(places.store_timestamps[number]),
        }
        expected = plain_record(row, chosen[number], spec, **place)
        stored = records.data[starts[number] : starts[number + 1]].tobytes()
        assert stored == expected, (number, row)
        tags_code, hashes = plain_units(row, place)
        unit = requests.units.units[number]
        assert unit["physical_offset"] == place["physical_offset"]
        assert unit["size"] == len(stored)
        assert unit["tags_code"] == tags_code
        assert keys.get(number, []) == hashes, row

    later = encode_records(columns)
    stamp(later, places)
    assert later.data.tobytes() == records.data.tobytes(), "places that are set later"
    headers, whole = read_headers(records.data, records.starts[:-1])
    assert whole.all()
    assert_same(requests, read_requests(records.data, headers))
    assert_same_units(read_queue_units(records.data, headers), requests.units)


def assert_same(found: DispatchRequests, expected: DispatchRequests) -> None:
    """Compare requests; topics may be numbered in another order."""
    for name in ("has_unit", "key_rows", "key_hashes"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.may_name_lmqs >= expected.may_name_lmqs
    assert_same_units(found.units, expected.units)


def assert_same_units(found: QueueUnits, expected: QueueUnits) -> None:
    """Compare units; topics may be numbered in another order."""
    named = [[units.topics[code] for code in units.topic_codes] for units in (found, expected)]
    assert named[0] == named[1]
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("form", ["regular", "irregular", "column", "partial column", "name"])
def test_a_separator_in_a_property_is_refused_with_its_row(form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "T", "body": b"", "tags": "t", "properties": [("a", "1")]} for _ in range(4)
    ]
    if form == "irregular":
        rows[0]["properties"] = [("b", "1"), ("c", "2")]
    if form == "partial column":
        rows[0]["tags"] = None
    if form.endswith("column"):
        rows[2]["tags"] = "a\x02b"
    elif form == "name":
        rows[2]["properties"] = [("a\x01b", "1")]
    else:
        rows[2]["properties"] = [("a", "\x01")]
    with pytest.raises(
        IllegalMessageError, match="row 3, counted from 1: MESSAGE_ILLEGAL: the name or value"
    ):
        make(WriteSpec(), rows)


def test_text_that_is_not_utf8_is_stored_as_it_is() -> None:
    """As Spark's cast of binary to string makes it."""
    text = pa.array([b"ab\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["T"]), pa.array([b""], pa.binary()), text, text],
        names=["topic", "body", "tags", "keys"],
    )
    columns = MessageMaker(WriteSpec(make_uniq_key=False)).make(batch)
    places = PlacedFields(*(np.zeros(1, np.int64) for _ in range(3)))
    records = encode_records(columns, places)
    headers, _ = read_headers(records.data, records.starts[:-1])
    found = columns.requests(records).placed(places)
    assert_same(found, read_requests(records.data, headers))
    assert b"TAGS\x01ab\xff\x02" in records.data.tobytes()


@pytest.mark.parametrize(
    ("names", "skipped", "bounds", "validity", "expected"),
    [
        ("abcde", 2, [0, 1, 3], None, [b"c\x012\x02", b"d\x013\x02e\x014\x02"]),
        ("aa", 0, [0, 1, 2], b"\2", [b"", b"a\x011\x02"]),  # a map that is null hides an entry
    ],
    ids=["a part of the entries", "a null map"],
)
def test_only_the_entries_of_valid_maps_are_stored(
    names: str, skipped: int, bounds: list[int], validity: bytes | None, expected: list[bytes]
) -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array([*names]), pa.array([str(number) for number in range(len(names))])],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    )
    buffers = [validity and pa.py_buffer(validity), pa.py_buffer(np.array(bounds, np.int32))]
    children = [entries.slice(skipped)]
    maps = pa.Array.from_buffers(WRITE_TYPES["properties"], 2, buffers, children=children)
    assert property_strings(property_maps(maps, 2), {}).joined().to_pylist() == expected


def test_no_rows_make_no_records() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": pa.array([], pa.string()), "body": []})
    assert len(MessageMaker(WriteSpec()).make(batch)) == 0
