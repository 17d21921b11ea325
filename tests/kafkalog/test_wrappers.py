"""Compressed messages of format v1 with the offset 0, as some versions of librdkafka write them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafka_batches import GZIP, LZ4, message, wrapper

TIMES = [build.TIME + number for number in range(5)]


def inside(*offsets: int) -> list[bytes]:
    return [message(offset, b"k", b"v", time=TIMES[offset]) for offset in offsets]


def opened(tmp_path: Path, *batches: bytes, is_clean: bool = True) -> kafkalog.Partition:
    folder = build.make_log_dir(tmp_path / "logs", is_clean=is_clean) / "t-0"
    build.write_segment(folder, 0, *batches)
    return kafkalog.open(folder.parent).partition("t", 0)


def offsets(partition: kafkalog.Partition, start: int, end: int) -> list[int]:
    found: list[int] = partition.scan(start, end, columns="offset").to_arrow()["offset"].to_pylist()
    return found


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_a_wrapper_with_the_offset_0_is_read_from_any_offset_in_it(
    tmp_path: Path, codec: int, *, is_clean: bool
) -> None:
    first = wrapper(0, codec, *inside(0, 1, 2), time=TIMES[2])
    partition = opened(tmp_path, first, *inside(3, 4), is_clean=is_clean)
    assert (partition.start_offset, partition.end_offset) == (0, 5)
    for start, end in combinations(range(6), 2):
        assert offsets(partition, start, end) == list(range(start, end))
    assert [partition.offset_for_time(time) for time in TIMES] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_may_end_with_it(tmp_path: Path, *, is_clean: bool) -> None:
    partition = opened(tmp_path, wrapper(0, GZIP, *inside(0, 2, 3)), is_clean=is_clean)
    assert partition.end_offset == 4
    assert offsets(partition, 0, 4) == [0, 2, 3]
    assert offsets(partition, 1, 4) == [2, 3]
    assert offsets(partition, 3, 4) == [3]


def test_one_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    valid = wrapper(0, GZIP, *inside(0, 1, 2))
    for odd in (wrapper(0, GZIP), message(0, None, b"no gzip", attributes=GZIP), valid[:-1] + b"x"):
        partition = opened(tmp_path, odd, *inside(3))
        with pytest.raises(kafkalog.CorruptBatchError, match="position 0"):
            offsets(partition, 0, 4)
        assert offsets(partition, 3, 4) == [3]
