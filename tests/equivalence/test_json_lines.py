"""JSON Lines that are written and read column by column equal those that go row by row."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import tiers
from json_reference import jsonable
from rmqstore import IllegalMessageError
from rmqstore.exchange import json_input as written
from rmqstore.exchange.json_rows import json_lines, json_values, write_json_lines
from rmqstore.query.times import time_zone

SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary()),
        ("extra", pa.binary()), ("properties", pa.map_(pa.string(), pa.string())),
        ("storeTimestamp", pa.timestamp("us", tz="UTC")), ("isFirst", pa.bool_()),
        ("places", pa.list_(pa.int64())),
    ]
)  # fmt: skip
TEXTS = ["", "a", "é\u2028\U0001f600", 'quo"te\\', "\n\x00\x1f", "x" * 300]


def some(random_: random.Random, choices: list[Any]) -> Any:
    return random_.choice([*choices, None])


def rows(random_: random.Random, count: int) -> list[dict[str, Any]]:
    start = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    bodies = [b"", b"text", "é".encode(), b"\xff\x00", random_.randbytes(40)]
    return [
        {
            "topic": some(random_, TEXTS),
            "queueId": some(random_, [0, -1, 2**31 - 1]),
            "body": some(random_, bodies),
            "extra": some(random_, [b"only", b"text"]),
            "properties": some(
                random_, [[], [("k", "v"), ("é", None)], [(text, text) for text in TEXTS]]
            ),
            "storeTimestamp": some(
                random_, [start + timedelta(microseconds=random_.randrange(1 << 51))]
            ),
            "isFirst": some(random_, [True, False]),
            "places": some(random_, [[], [1, 2]]),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_rows_are_written_alike(seed: int) -> None:
    random_ = random.Random(seed)
    table = pa.Table.from_pylist(rows(random_, 50), schema=SCHEMA)
    batch = table.to_batches()[0].slice(random_.randrange(20), random_.randrange(30))
    lines = json_lines(batch)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert [json.loads(line) for line in lines] == [jsonable(row) for row in batch.to_pylist()]


def test_a_batch_of_bytes_alone_has_all_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"\xff", None, b"a"], pa.binary())})
    expected = [{"bodyBase64": "/w=="}, {"body": None}, {"body": "a"}]
    assert [json.loads(line) for line in json_lines(batch)] == expected


def value(random_: random.Random, name: str) -> Any:
    usual: dict[str, list[Any]] = {
        "topic": TEXTS,
        "queueId": [0, 3],
        "body": TEXTS,
        "bodyBase64": ["", "/w==", "YQ=="],
        "properties": [{}, {"k": "v", "é": ""}],
        "bornTimestamp": ["2026-11-20T08:00:00.123+00:00", "2026-11-20T08:00:00Z"],
        "storeTimestamp": ["2026-11-20T08:00:00Z", 5],
        "reconsumeTimes": [0, 1],
    }
    unusual: dict[str, list[Any]] = {
        "queueId": ["3", 1.5, 2**40, 10**30, True],
        "body": [5, "\ud800"],
        "bodyBase64": ["/w=", 7, "é"],
        "properties": [{"k": 1}, ["k"], "k"],
        "bornTimestamp": [1_700_000_000_000, 5, "soon", "2026-11-20", "0000-01-01T00:00:00Z"],
        "topic": [{}, []],
        "unknown": [1],
        "topicBase64": ["YQ=="],
    }
    if name in unusual and random_.random() < 0.05:
        return random_.choice(unusual[name])
    return random_.choice([*usual.get(name, [1]), None])


@pytest.mark.parametrize("seed", tiers.seeds(200))
def test_lines_are_read_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    names = ["topic", "queueId", "properties", "bornTimestamp", "storeTimestamp", "reconsumeTimes"]
    names += random_.choice([["body"], ["bodyBase64"], ["body", "bodyBase64"]])
    names += random_.choices([[], ["unknown"], ["topicBase64"]], [90, 5, 5])[0]
    lines = []
    for _ in range(random_.randrange(8)):
        chosen = random_.sample(names, random_.randrange(1, len(names) + 1))
        lines.append(json.dumps({name: value(random_, name) for name in chosen}))
        lines += random_.choices([[], [" "], ["{"], ["[]"], ["1,2"]], [94, 3, 1, 1, 1])[0]
    text = "\n".join(lines)
    monkeypatch.setattr(written, "_LINES_AT_ONCE", random_.choice([2, 512]))

    def read() -> list[pa.RecordBatch] | str:
        try:
            return list(written.read_json_lines(io.StringIO(text), "file"))
        except IllegalMessageError as err:
            return str(err)

    fast = read()
    monkeypatch.setattr(written, "_fast_batch", lambda *_: None)
    assert fast == read()


@pytest.mark.parametrize("line", ["[]", '""', '["topic"]', '[]\n{"queueOffset": 1}'])
def test_a_line_that_is_not_an_object_is_refused_where_no_line_has_columns(line: str) -> None:
    with pytest.raises(IllegalMessageError, match="file: line 1 is not a JSON object"):
        list(written.read_json_lines(io.StringIO(line), "file"))


def test_usual_lines_are_read_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_plain_batch", None)
    times = {"bornTimestamp": "2026-11-20T08:00:00.123+00:00", "storeTimestamp": 5}
    line = json.dumps({"topic": "T", "body": "text", "properties": {"k": "v"}} | times)
    (batch,) = written.read_json_lines(io.StringIO(f"{line}\n\n{line}\n"), "file")
    assert len(batch) == 2
    assert batch.schema.names == ["topic", "body", "properties", "bornTimestamp"]


def test_rows_of_many_lines_come_in_few_batches_and_in_order() -> None:
    lines = [json.dumps({"queueId": number, "body": str(number)}) for number in range(20_000)]
    lines[9_000] = json.dumps({"queueId": 9_000, "bodyBase64": "/w=="})
    batches = list(written.read_json_lines(io.StringIO("\n".join(lines)), "file"))
    read = pa.Table.from_batches(batches).to_pydict()
    assert read["queueId"] == [*range(20_000)]
    assert read["body"][8_999:9_002] == [b"8999", b"\xff", b"9001"]
    assert [len(batch) for batch in batches] == [8192, 8192, 3616]


def test_an_error_names_a_line_after_many_others() -> None:
    lines = ['{"queueId": 1}'] * 3_000
    for line, said in (("{", " is not JSON"), ('{"queueId": "x"}', ": queueId must be int32")):
        lines[1_700] = line
        with pytest.raises(IllegalMessageError, match=f"file: line 1701{said}"):
            list(written.read_json_lines(io.StringIO("\n".join(lines)), "file"))


def test_a_long_batch_is_written_whole() -> None:
    table = pa.Table.from_pylist(rows(random.Random(1), 1_500), schema=SCHEMA)
    sink = io.BytesIO()
    write_json_lines(sink, SCHEMA, table.to_batches())
    found = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert found == [jsonable(row) for row in table.to_pylist()]


def test_a_clock_stays_in_the_calendar() -> None:
    last = pa.array([253_402_300_799_000], pa.timestamp("ms", "UTC"))
    with time_zone("+08:00"):
        assert json_values(last) == ["9999-12-31T23:59:59.000+00:00"]
