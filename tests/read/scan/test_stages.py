"""The steps from units and records to a batch, one by one, on what is built by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import store_builder as build
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.format.record import Expected
from rmqstore.format.schema import MESSAGE, select_columns
from rmqstore.read import stages
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.rows import UnitRows
from rmqstore.read.stages import (
    LogBytes,
    Rows,
    check,
    decode,
    inflate,
)
from rmqstore.storage.queue.queue import Units

BASE = 7_000
COMPRESSED = 1
BODY = select_columns(["queueOffset", "body"])
SPEC = ReadSpec(pa.schema(BODY), broker_name="b")


def _source(records: list[build.Record]) -> tuple[LogBytes, np.ndarray, UnitRows]:
    """Return records one after the other, where each begins, and the units that fit them."""
    data, starts, sizes = b"", [], []
    for record in records:
        packed = build.pack(record, BASE + len(data))
        starts.append(len(data))
        sizes.append(len(packed))
        data += packed
    n = len(records)
    offsets = np.array([record.queue_offset for record in records], np.int64)
    units = UnitRows(
        topics=["T"],
        topic_codes=np.zeros(n, np.int32),
        queue_ids=np.zeros(n, np.int32),
        queue_offsets=offsets,
        physical_offsets=BASE + np.array(starts, np.int64),
        sizes=np.array(sizes, np.int64),
        tags_codes=np.zeros(n, np.int64),
    )
    return (
        LogBytes(np.frombuffer(data.ljust(len(data) + 64, b"\0"), np.uint8), BASE),
        np.array(starts),
        units,
    )


def _records(n: int = 5, **fields: object) -> list[build.Record]:
    return [build.Record(body=b"%d" % row * 9, queue_offset=row, **fields) for row in range(n)]  # type: ignore[arg-type]


def _queue_offsets(rows: Rows) -> list[int]:
    return rows.headers.column("queue_offset").tolist()


def test_the_place_of_a_unit_is_the_queue_offset_of_its_message() -> None:
    source, starts, units = _source(_records())
    shifted = units._replace(queue_offsets=units.queue_offsets - np.array([0, 0, 1, 1, -9]))
    rows = check(source, starts, shifted)
    assert (rows.valid.all(), _queue_offsets(rows)) == (True, [0, 1, 1, 2, 13])
    in_compacted = check(source, starts, shifted, is_sparse=True)  # whose units say their offsets
    assert in_compacted.valid.tolist() == [True, True, False, False, False]


def test_a_record_of_another_size_than_its_unit_says_is_damaged() -> None:
    source, starts, units = _source(_records())
    rows = check(source, starts, units._replace(sizes=units.sizes + np.array([0, 0, 1, 0, 0])))
    assert rows.valid.tolist() == [True, True, False, True, True]
    assert _queue_offsets(rows) == [0, 1, 3, 4]


def test_a_step_changes_neither_its_input_nor_what_other_rows_share_with_it() -> None:
    source, starts, units = _source(_records())
    rows = check(source, starts, units).with_column("mark", pa.array(range(5)))
    dropped = rows.drop_damaged(np.array([True, False, True, True, True]), {1: "because"})
    narrowed = dropped.narrow(np.array([1, 3]))
    ended = dropped.end_after(2)
    assert (rows.valid.all(), rows.reasons, _queue_offsets(rows), len(rows.columns["mark"])) == (
        True, {}, [0, 1, 2, 3, 4], 5,
    )  # fmt: skip
    assert (dropped.reasons, dropped.all_row_numbers().tolist()) == ({1: "because"}, [0, 2, 3, 4])
    assert narrowed.all_row_numbers().tolist() == [2, 4]
    assert narrowed.columns["mark"].to_pylist() == [2, 4]
    assert narrowed.valid is dropped.valid
    assert ended.all_row_numbers().tolist() == [0, 2]
    assert len(ended.valid) == 3
    assert len(dropped.valid) == 5


def test_reasons_are_named_by_the_requested_row() -> None:
    source, starts, units = _source(_records())
    rows = check(source, starts, units).narrow(np.array([1, 3, 4]))
    rows = rows.drop_damaged(np.array([True, False, True]), {1: "third"})
    rows = rows.drop_damaged(np.array([True, False]), {1: "fourth"})
    assert rows.reasons == {3: "third", 4: "fourth"}
    assert np.flatnonzero(~rows.valid).tolist() == [3, 4]


def test_bodies_that_are_not_compressed_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "inflate_bodies", None)
    source, starts, units = _source(_records())
    rows = check(source, starts, units)
    assert inflate(rows) is rows


def test_columns_come_in_the_order_of_the_schema() -> None:
    source, starts, units = _source(_records())
    spec = ReadSpec(pa.schema([*reversed(MESSAGE)]), broker_name="b")
    decoded = pa.schema(
        [field for field in spec.schema if field.name not in ("brokerName", "tagsCode")]
    )
    batch = decode(check(source, starts, units), spec, decoded)
    assert batch.schema == spec.schema
    assert batch.column("brokerName").to_pylist() == ["b"] * 5
    assert batch.column("body").to_pylist() == [b"%d" % row * 9 for row in range(5)]


def _rows(topic: str, queue_id: int, first: int, count: int) -> UnitRows:
    units = np.array([(100 * at, at + 1, -at) for at in range(first, first + count)], QUEUE_UNIT)
    return UnitRows.of_queue(topic, queue_id, np.arange(first, first + count), Units.of(units))


def test_joined_rows_keep_their_queues() -> None:
    mixed = UnitRows.joined([_rows("B", 1, 5, 2), _rows("A", 0, 7, 0), _rows("A", 3, 9, 1)])
    every = UnitRows.joined([_rows("A", 4, 2, 1), mixed, _rows("B", 0, 1, 1)])
    expected = [("A", 4, 2), ("B", 1, 5), ("B", 1, 6), ("A", 3, 9), ("B", 0, 1)]
    assert [every.expected(row) for row in range(5)] == [
        Expected(*key, key[2] + 1) for key in expected
    ]
    assert every.physical_offsets.tolist() == [200, 500, 600, 900, 100]
    assert every.tags_codes.tolist() == [-2, -5, -6, -9, -1]
    turned = every.take(np.array([4, 0]))
    assert [turned.expected(row)[:3] for row in range(2)] == [("B", 0, 1), ("A", 4, 2)]
