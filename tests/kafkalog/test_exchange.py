"""Records of Kafka as messages, and back: nothing is lost, and what can be text is text."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_logs
import kafkalog
import rmqstore
import tiers
from kafkalog.exchange import NOTE, RECORDS, as_messages, as_records
from kafkalog.format.layout import RECORD
from rmqstore.errors import IllegalRowError
from rmqstore.inspect.verify import verify

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
Record = dict[str, Any]


def record(**others: Any) -> Record:
    plain = {"topic": "T", "partition": 0, "key": b"k", "value": b"v", "timestamp": TIME}
    return plain | {"headers": []} | others


def batch(*records: Record) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), schema=RECORDS)


def header(name: str, value: bytes | None) -> Record:
    return {"key": name, "value": value}


def message(**others: Any) -> Record:
    (row,) = as_messages(batch(record(**others))).to_pylist()
    return row | {"properties": dict(row["properties"])}


def test_a_plain_record_needs_no_note() -> None:
    headers = [header("trace", b"1"), header("zone", "ö".encode())]
    assert message(partition=3, key=b"order 17", headers=headers) == {
        "topic": "T", "queueId": 3, "body": b"v", "keys": "order 17",
        "properties": {"trace": "1", "zone": "ö"}, "bornTimestamp": TIME,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("others", "note"),
    [
        ({"key": None}, None),
        ({"key": b""}, '{"key":""}'),
        ({"key": b"\xff"}, '{"key":"/w=="}'),
        ({"key": b"a\x01"}, '{"key":"YQE="}'),
        ({"value": None}, '{"value":null}'),
        ({"value": b""}, None),
        ({"timestamp": None}, '{"timestamp":null}'),
        ({"value": None, "timestamp": None}, '{"value":null,"timestamp":null}'),
        ({"headers": [header("KEYS", b"x")]}, '{"headers":[["KEYS","eA=="]]}'),
        ({"headers": [header("a", None)]}, '{"headers":[["a",null]]}'),
        ({"headers": [header("a", b"")]}, '{"headers":[["a",""]]}'),
        ({"headers": [header("a", b"\xc3")]}, '{"headers":[["a","ww=="]]}'),
        ({"headers": [header("a", b"\x02")]}, '{"headers":[["a","Ag=="]]}'),
        ({"headers": [header("", b"x")]}, '{"headers":[["","eA=="]]}'),
        ({"headers": [header("a\x01", b"x")]}, '{"headers":[["a\\u0001","eA=="]]}'),
        ({"headers": [header(NOTE, b"x")]}, '{"headers":[["KAFKA_RECORD","eA=="]]}'),
    ],
)
def test_what_a_message_has_no_place_for_stands_in_a_note(others: Record, note: str | None) -> None:
    assert message(**others)["properties"] == ({} if note is None else {NOTE: note})


def test_headers_that_are_text_are_properties_beside_a_note() -> None:
    headers = [header("a", b"1"), header("b", None), header("a", b"2"), header("c", b"3")]
    note = '{"headers":[["a","MQ=="],["b",null],["a","Mg=="],["c","Mw=="]]}'
    assert message(headers=headers)["properties"] == {"a": "2", "c": "3", NOTE: note}


_MS = timedelta(milliseconds=1)
_TEXTS = (b"", b"plain", b"two words", "ö".encode(), b"\xff", b"a\x01", b"\x02", None)
_NAMES = ("a", "b", "a", "ö", "", "KEYS", "UNIQ_KEY", "DELAY", "INNER_NUM", NOTE, "n\x02")


def random_record(chance: random.Random) -> Record:
    headers = [
        header(chance.choice(_NAMES[: chance.choice((2, len(_NAMES)))]), chance.choice(_TEXTS))
        for _ in range(chance.randrange(4))
    ]
    time = chance.choice((TIME, None, TIME + _MS * chance.randrange(10**9)))
    return record(
        key=chance.choice(_TEXTS), value=chance.choice(_TEXTS), timestamp=time, headers=headers
    )


@pytest.mark.parametrize("seed", tiers.seeds(200))
def test_messages_become_the_same_records(seed: int) -> None:
    chance = random.Random(seed)
    rows = batch(*(random_record(chance) for _ in range(chance.randrange(1, 12))))
    part = rows.slice(chance.randrange(len(rows)))
    assert as_records(as_messages(part)).to_pylist() == part.to_pylist()
    first = len(rows) - len(part)
    assert as_records(as_messages(rows).slice(first)).to_pylist() == part.to_pylist()


def test_golden_records_of_every_sort_come_back(kafka_store: kafka_logs.Golden) -> None:
    with kafkalog.open(kafka_store("plain")) as logs:
        for rows in logs.scan(columns=RECORDS.names):
            assert as_records(as_messages(rows)).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("name", ["old", "txn"])
def test_golden_records_come_back_from_a_store(
    name: str, kafka_store: kafka_logs.Golden, tmp_path: Path
) -> None:
    (first, *_) = kafka_logs.log_dirs(name, kafka_store(name))
    with kafkalog.open(*first) as logs:
        scan = logs.scan(columns=RECORDS.names)
        records = [rows for rows in scan if rows.num_rows]
    with rmqstore.create(tmp_path / "store") as writer:
        for rows in records:
            messages = as_messages(rows)
            names = pa.array([topic.replace(".", "_") for topic in rows["topic"].to_pylist()])
            writer.append(messages.set_column(0, "topic", names))
    with rmqstore.open(tmp_path / "store") as store:
        found = [row for rows in store.scan().reader() for row in as_records(rows).to_pylist()]
        assert not list(verify(store))
    known = [row for rows in records for row in rows.to_pylist()]
    assert [row | {"topic": row["topic"].replace(".", "_")} for row in known] == found
    assert len(known) > 10


@pytest.mark.parametrize("time", [1_700_000_000_000_000, 1_700_000_000_000_000_000, -(10**15)])
def test_times_that_no_reader_could_show_are_refused(folder: Path, time: int) -> None:
    """Kafka before 3.6 stored what producers set, also microseconds."""
    valid, odd = kafka_logs.batch(0, [b"v"] * 3), kafka_logs.batch(3, [b"v", b"v"], time=time)
    kafka_logs.write_segment(folder, 0, valid, odd)
    with kafkalog.open(folder.parent) as opened:
        (rows,) = (rows for rows in opened.scan().reader() if len(rows))
    said = f"row 4, counted from 1: timestamp {time} ms is not in the years 1 to 9999"
    with pytest.raises(IllegalRowError, match=said):
        as_messages(rows)


def test_times_before_1970_are_kept(tmp_path: Path, folder: Path) -> None:
    kafka_logs.write_segment(folder, 0, kafka_logs.batch(0, [b"v"], time=-5))
    with kafkalog.open(folder.parent) as opened, rmqstore.create(tmp_path / "s") as writer:
        for rows in opened.scan():
            writer.append(as_messages(rows))
    with rmqstore.open(tmp_path / "s") as store:
        (row,) = store.scan(columns="bornTimestamp").read_all().to_pylist()
        assert row["bornTimestamp"].timestamp() == -0.005


def test_rows_of_spark_are_taken() -> None:
    """Spark's Kafka source gives null in place of no headers, and -1 ms for no timestamp."""
    headers = pa.list_(RECORD.field("headers").type.value_type)
    kinds = {"timestamp": pa.timestamp("us", "Europe/Berlin"), "headers": headers}
    schema = pa.schema([(field.name, kinds.get(field.name, field.type)) for field in RECORDS])
    early = datetime.fromtimestamp(0, UTC) - _MS
    rows = [record(headers=None), record(timestamp=early), record(headers=[header("a", b"1")])]
    found = as_messages(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pylist()
    assert [row["bornTimestamp"] for row in found] == [TIME, None, TIME]
    assert [dict(row["properties"]) for row in found] == [
        {}, {NOTE: '{"timestamp":null}'}, {"a": "1"},
    ]  # fmt: skip
