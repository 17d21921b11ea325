"""Messages as users give them: in any form of Arrow; what becomes of columns, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
from rmqstore.errors import IllegalMessageError, IllegalRowError, OptionError
from rmqstore.format.schema import WRITE_TYPES
from rmqstore.format.text import parse_properties
from rmqstore.format.topics import topic_fault
from rmqstore.write.messages import MessageMaker, WriteSpec

TYPES = WRITE_TYPES | {
    "storeHost": pa.string(),
    "commitLogOffset": pa.int64(),
    "offsetMsgId": pa.string(),
}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.RecordBatch.from_pylist([*rows], pa.schema([(name, TYPES[name]) for name in names]))


def properties(spec: WriteSpec, *rows: dict[str, Any]) -> list[dict[str, str]]:
    made = MessageMaker(spec).make(batch(*({"topic": "T", "body": b"x"} | row for row in rows)))
    return [parse_properties(stored) for stored in made.properties.joined().to_pylist()]


KEEP = WriteSpec(make_uniq_key=False)


def test_columns_stand_over_properties_and_null_removes() -> None:
    given = [("TAGS", "old"), ("KEYS", "old"), ("a", "2")]
    found = properties(
        KEEP, {"properties": given, "tags": "new", "keys": None}, {"properties": None, "tags": None}
    )
    assert found == [{"a": "2", "TAGS": "new"}, {}]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([("a", ""), ("b", "1")], "the value of property 'a' is null or empty"),
        ([("b", "1"), ("a", None)], "the value of property 'a' is null or empty"),
        ([("b", "1"), ("", "x")], "a property has no name"),
        ([("TAGS", "")], "the value of property 'TAGS' is null or empty"),
        ([("a", "1"), ("a", "2")], "property 'a' is there twice"),
    ],
)
@pytest.mark.parametrize("others", [[("b", "1")], None, [("b", "1"), ("c", "2")]])
def test_a_property_that_would_be_lost_is_refused_with_its_row(
    given: list[tuple[str, str | None]], reason: str, others: list[tuple[str, str]] | None
) -> None:
    """Message.putUserProperty of the client 5.3.3 refuses each of these."""
    rows = [{"properties": others}, {"properties": others}, {"properties": given}]
    with pytest.raises(IllegalRowError, match=rf"row 3, .*MESSAGE_ILLEGAL: {reason}"):
        properties(KEEP, *rows)


def test_rows_without_properties_tags_or_keys_are_no_fault() -> None:
    row = {"properties": [("a", " ")], "tags": "", "keys": ""}
    found = properties(KEEP, {"properties": [], "tags": None, "keys": None}, row)
    assert found == [{}, {"a": " "}]
    assert properties(KEEP, {"properties": None}, {"properties": None}) == [{}, {}]


def test_a_column_that_is_there_twice_is_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["body", "body"])
    with pytest.raises(IllegalMessageError, match="two columns body"):
        MessageMaker(KEEP).make(rows)


def test_property_strings_end_as_5x_ends_them() -> None:
    row = {"topic": "T", "body": b"x", "properties": [("a", "1")], "tags": "t"}
    made = MessageMaker(KEEP).make(batch(row))
    assert made.properties.joined().to_pylist() == [b"a\x011\x02TAGS\x01t\x02"]


def test_an_id_that_names_a_place_is_not_a_key() -> None:
    place = {"storeHost": "127.0.0.1:10911", "commitLogOffset": 257}
    rows = [
        {"msgId": "7F00000100002A9F0000000000000101", **place},
        {"msgId": "7F00000100002A9F0000000000000102", **place},
        {"msgId": "own", "storeHost": None, "commitLogOffset": None},
    ]
    assert properties(KEEP, *rows) == [{}, {"UNIQ_KEY": rows[1]["msgId"]}, {"UNIQ_KEY": "own"}]
    told = [{"msgId": "A", "offsetMsgId": "A"}, {"msgId": "A", "offsetMsgId": "B"}]
    assert properties(KEEP, *told) == [{}, {"UNIQ_KEY": "A"}]
    place = {"storeHost": "[2001:db8:0:0:0:0:0:2]:10911", "commitLogOffset": 4096}
    row = {"msgId": "20010DB800000000000000000000000200002A9F0000000000001000", **place}
    assert properties(KEEP, row) == [{}]


def test_the_key_among_the_properties_is_kept_where_no_column_speaks() -> None:
    (found,) = properties(WriteSpec(), {"properties": [("UNIQ_KEY", "mine")]})
    assert found == {"UNIQ_KEY": "mine"}
    (made,) = properties(WriteSpec(), {"properties": [("a", "1")]})
    assert len(made["UNIQ_KEY"]) == 32


@pytest.mark.parametrize(
    "topic",
    [
        "", "a/b", "..", "a b", "ü", "x" * 128, "%RETRY%" + "x" * 249, "%LMQ%a",
        "RMQ_SYS_TRANS_HALF_TOPIC",
    ],
)  # fmt: skip
def test_topics_that_are_refused(topic: str) -> None:
    assert topic_fault(topic, allow_system=False)
    with pytest.raises(IllegalMessageError, match="MESSAGE_ILLEGAL"):
        MessageMaker(WriteSpec()).make(batch({"topic": topic, "body": b"x"}))


@pytest.mark.parametrize("topic", ["a", "A-b_1%|", "x" * 127, "%RETRY%" + "x" * 248, "%DLQ%g"])
def test_topics_that_are_allowed(topic: str) -> None:
    assert topic_fault(topic, allow_system=False) is None


def test_round_robin_goes_on_over_batches() -> None:
    maker = MessageMaker(WriteSpec(queue_nums={"T": 3}), turn=1)
    rows = batch(*[{"topic": "T", "body": b"x"}] * 4)
    assert [maker.make(rows).queue_ids.tolist() for _ in range(2)] == [[1, 2, 0, 1], [2, 0, 1, 2]]


def test_a_sharding_key_chooses_the_queue_as_javas_remainder_does() -> None:
    spec = WriteSpec(queue_nums={"T": 6}, queue_selector="hash")
    keys = ["a", "order-1", "order-17", "polygenelubricants"]
    hashes = [build.java_hash(key) for key in keys]
    assert min(hashes) < 0
    rows = [{"topic": "T", "body": b"x", "shardingKey": key} for key in keys]
    chosen = MessageMaker(spec).make(batch(*rows)).queue_ids.tolist()
    assert chosen == [abs(number) % 6 for number in hashes]


def test_bodies_from_a_length_on_are_compressed() -> None:
    spec = WriteSpec(topic="T", compression="zlib", compress_over=100)
    rows = [{"body": b"x" * length} for length in (99, 100)]
    assert (MessageMaker(spec).make(batch(*rows)).sys_flags > 0).tolist() == [False, True]


def test_what_was_delayed_once_keeps_where_it_came_from() -> None:
    given = [("REAL_TOPIC", "A"), ("REAL_QID", "3")]
    rows = [{"properties": given, "delayTimeLevel": level} for level in (0, 1)]
    kept, delayed = properties(KEEP, *rows)
    assert (kept["REAL_TOPIC"], kept["REAL_QID"]) == ("A", "3")
    assert (delayed["REAL_TOPIC"], delayed["REAL_QID"]) == ("T", "1")


def test_random_queues_are_those_of_the_topic_and_a_given_one_wins() -> None:
    spec = WriteSpec(topic="T", queue_nums={"T": 3}, queue_selector="random")
    rows = [{"body": b"x", "queueId": 7 if number % 10 == 0 else None} for number in range(500)]
    chosen = MessageMaker(spec).make(batch(*rows)).queue_ids.tolist()
    assert set(chosen[::10]) == {7}
    others = [queue_id for row, queue_id in enumerate(chosen) if row % 10]
    assert set(others) == {0, 1, 2}
    assert others != sorted(others)


@pytest.mark.parametrize("millis", [-62_135_596_800_001, 253_402_300_800_000])
def test_times_that_no_reader_could_show_are_refused(millis: int) -> None:
    inside = millis + (1 if millis < 0 else -1)
    row = {"topic": "T", "body": b"x"}
    made = MessageMaker(KEEP).make(batch(row | {"bornTimestamp": inside * 1000}))
    assert made.born_timestamps.tolist() == [inside]
    with pytest.raises(
        IllegalMessageError, match=f"row 2, .*bornTimestamp {millis} ms is not in the years 1 to"
    ):
        MessageMaker(KEEP).make(batch(row, row | {"bornTimestamp": millis * 1000}))


def test_a_selector_without_a_meaning_is_refused_with_the_reason() -> None:
    with pytest.raises(OptionError, match="selects no queue"):
        WriteSpec(queue_selector="machineRoom")
    with pytest.raises(OptionError, match="must be one of roundRobin, hash, random"):
        WriteSpec(queue_selector="first")


COLUMNS: dict[str, Any] = {
    "topic": ["A", "A", "B"],
    "body": [b"1", b"2", b"3"],
    "tags": ["x", None, "y"],
}


def _forms() -> dict[str, Any]:
    table = pa.table(COLUMNS)
    return {
        "batch": pa.record_batch(COLUMNS),
        "table": table,
        "chunks": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        "reader": pa.RecordBatchReader.from_batches(
            table.schema, table.to_batches(max_chunksize=1)
        ),
        "pandas": pd.DataFrame(COLUMNS | {"tags": pd.Categorical(COLUMNS["tags"])}),
    }


@pytest.mark.parametrize("form", _forms())
def test_rows_of_every_form_are_appended(tmp_path: Path, form: str) -> None:
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(_forms()[form])
    with rmqstore.open(tmp_path / "s") as store:
        rows = store.scan(columns="topic,body,tags").read_all().to_pylist()
    assert sorted(rows, key=lambda row: row["body"]) == pa.table(COLUMNS).to_pylist()


@pytest.mark.parametrize("rows", [[{"topic": "A"}], {"topic": ["A"]}, None, b"bytes"])
def test_what_is_not_arrow_data_is_refused_by_name(tmp_path: Path, rows: Any) -> None:
    with (
        rmqstore.create(tmp_path / "s") as writer,
        pytest.raises(TypeError, match=f"got {type(rows).__name__}"),
    ):
        writer.append(rows)


def test_an_error_in_a_later_batch_names_its_row_and_leaving_takes_all_back(tmp_path: Path) -> None:
    table = pa.table({"topic": ["A", "A", "bad topic"], "body": [b"1", b"2", b"3"]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
    with (
        pytest.raises(rmqstore.IllegalMessageError, match="row 3,"),
        rmqstore.create(tmp_path / "s") as writer,
    ):
        writer.append(reader)
    with rmqstore.open(tmp_path / "s") as store:
        assert store.count() == 0
