"""Records in the columns of Spark's Kafka source, without Spark's session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import kafka_logs as build
from pyspark_kafkalog.options import parse_read_options
from pyspark_kafkalog.ranges import OffsetRange
from pyspark_kafkalog.rows import RowReader, default_schema
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import UnsupportedFeatureError


@pytest.mark.parametrize("time", [9_223_372_036_854_776, 2**63 - 1, -(2**62)])
def test_a_time_that_spark_cannot_count(
    folder: Path, caplog: pytest.LogCaptureFixture, time: int
) -> None:
    far = build.batch(1, [b"far"], time=time)
    build.write_segment(folder, 0, build.batch(0, [b"a"]), far, build.batch(2, [b"b"]))
    ranges = (OffsetRange("t", 0, 0, 3, 0.0),)
    schema = kafka_schema(include_headers=False)

    def values(mode: str, *names: str) -> list[object]:
        options = parse_read_options({"path": str(folder.parent), "mode": mode, "subscribe": "t"})
        chosen = [schema[name] for name in names]
        reader = RowReader(type(schema)(chosen), options)
        return [row for batch in reader.rows(ranges) for row in batch.column(0).to_pylist()]

    with pytest.raises(UnsupportedFeatureError, match=f"t-0: the timestamp {time} of offset 1 "):
        values("FAILFAST", "offset", "timestamp")
    assert values("DROPMALFORMED", "offset", "timestamp") == [0, 1, 2]
    times = values("DROPMALFORMED", "timestamp")
    assert [time is None for time in times] == [False, True, False]
    assert f"timestamp {time} of offset 1" in caplog.text
    assert values("FAILFAST", "offset") == [0, 1, 2]


@pytest.mark.parametrize("headers", [False, True])
def test_what_is_damaged_is_a_row_with_the_reason(folder: Path, *, headers: bool) -> None:
    valid, far = build.batch(0, [b"a"]), build.batch(1, [b"far"], time=2**62)
    wrong = build.batch(2, [b"b"])[:-1] + b"\x55"
    path = build.write_segment(folder, 0, valid, far, wrong, build.batch(3, [b"c"]))
    given = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "why", "subscribe": "t"}
    given |= {"path": str(folder.parent), "includeHeaders": str(headers).lower()}
    options = parse_read_options(given)
    schema = default_schema(options.columns)
    ranges = (OffsetRange("t", 0, 0, 4, 0.0),)
    batches = list(RowReader(schema, options).rows(ranges))
    assert all(batch.schema.names == schema.fieldNames() for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in rows] == [
        (0, b"a"), (1, b"far"), (2, None), (3, b"c"),
    ]  # fmt: skip
    assert [row["why"] for row in rows] == [
        None,
        f"the timestamp {2**62} does not fit into Spark's microseconds",
        f"{path}, {len(valid + far)}: the CRC is wrong",
        None,
    ]
    assert [row["timestamp"] is None for row in rows] == [False, True, True, False]
    assert [row["timestampType"] for row in rows] == [0, 0, None, 0]
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 0)}


def test_the_reasons_alone(folder: Path) -> None:
    build.write_segment(folder, 0, build.batch(0, [b"a"]), build.batch(1, [b"b"])[:-3])
    options = parse_read_options(
        {"path": str(folder.parent), "mode": "PERMISSIVE", "subscribe": "t"}
    )
    schema = StructType([StructField("_corrupt_record", StringType())])
    ranges = (OffsetRange("t", 0, 0, 1, 0.0),)
    (valid, damaged) = RowReader(schema, options).rows(ranges)
    assert valid.to_pydict() == {"_corrupt_record": [None]}
    assert "left of a batch" in damaged.column(0)[0].as_py()
