"""Tasks whose partitions changed since they were planned."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_logs as build
from pyspark_kafkalog.options import parse_read_options
from pyspark_kafkalog.ranges import OffsetRange
from pyspark_kafkalog.rows import RowReader
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import OffsetOutOfRangeError

N = 50


def write(folder: Path, n: int) -> None:
    build.write_segment(folder, 0, *(build.batch(number, [b"x"]) for number in range(n)))


def count(log_dir: Path, *, fails: bool) -> int:
    options = parse_read_options(
        {"path": str(log_dir), "subscribe": "t", "failOnDataLoss": str(fails).lower()}
    )
    ranges = tuple(OffsetRange("t", number, 0, N, 0) for number in range(2))
    reader = RowReader(kafka_schema(include_headers=False), options)
    return sum(batch.num_rows for batch in reader.rows(ranges))


@pytest.mark.parametrize(
    ("n", "text"), [(20, "t-1: was to be read up to 50, ends at 20"), (None, "t-1 is gone")]
)
def test_a_partition_that_was_cut_or_is_gone_is_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n: int | None, text: str
) -> None:
    log_dir = build.make_log_dir(tmp_path / "logs")
    write(log_dir / "t-0", N)
    if n is not None:
        write(log_dir / "t-1", n)
    with pytest.raises(OffsetOutOfRangeError, match=text):
        count(log_dir, fails=True)
    assert count(log_dir, fails=False) == N + (n or 0)
    assert f"data loss: {text}" in caplog.text
