"""How ranges of offsets become tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pyspark_kafkalog.ranges import OffsetRange, divide_ranges, pack_ranges
from pyspark_rmqstore.packing import Limits
from rmqstore.errors import OptionError

MEGABYTE = 1 << 20


def piece(partition: int, start: int, end: int, n_bytes: float = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end, n_bytes)


def divide(ranges: list[OffsetRange], **limits: int | None) -> list[OffsetRange]:
    max_bytes = limits.pop("max_bytes", None) or 1 << 40
    return divide_ranges(ranges, Limits(max_bytes, **limits))


def sizes(ranges: list[OffsetRange]) -> list[int]:
    return [part.size for part in ranges]


def require_whole(ranges: list[OffsetRange], parts: list[OffsetRange]) -> None:
    for whole in ranges:
        own = [part for part in parts if part.partition == whole.partition]
        assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in pairwise(own))
        assert sum(part.n_bytes for part in own) == pytest.approx(whole.n_bytes)


def test_each_partition_is_a_task_without_limits() -> None:
    ranges = [piece(0, 0, 10), piece(1, 5, 5), piece(2, 7, 9)]
    assert divide(ranges) == [ranges[0], ranges[2]]


# The answers of KafkaOffsetRangeCalculator for the same ranges.
@pytest.mark.parametrize(
    ("lengths", "least", "expected"),
    [
        ([3], 3, [1, 1, 1]), ([3], 4, [1, 1, 1]), ([1, 2], 3, [1, 1, 1]), ([1, 20], 3, [1, 10, 10]),
        ([100, 100, 1, 1], 6, [50, 50, 50, 50, 1, 1]), ([4, 4], 2, [4, 4]),
        ([10, 1], 4, [3, 3, 4, 1]),
    ],
)  # fmt: skip
def test_the_least_number_of_tasks(lengths: list[int], least: int, expected: list[int]) -> None:
    ranges = [piece(number, 0, length) for number, length in enumerate(lengths)]
    parts = divide(ranges, min_partitions=least)
    assert sizes(parts) == expected
    require_whole(ranges, parts)


@pytest.mark.parametrize(
    "limits", [{"max_records": 1}, {"max_bytes": 1}, {"min_partitions": 1 << 40}]
)
def test_there_is_a_limit_to_tasks(limits: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="tasks would be needed, and there can be 100,000"):
        divide([piece(0, 0, 1 << 50, 1e15), piece(1, 0, 5)], **limits)
    assert len(divide([piece(0, 0, 20, 1e15)], **limits)) == 20


def test_limits_of_records_and_bytes() -> None:
    ranges = [piece(0, 100, 200, 1000.0), piece(1, 0, 3, 10.0)]
    by_records = divide(ranges, max_records=30)
    assert sizes(by_records) == [25, 25, 25, 25, 3]
    by_bytes = divide(ranges, max_bytes=300)
    assert sizes(by_bytes) == [25, 25, 25, 25, 3]
    for parts in (by_records, by_bytes):
        require_whole(ranges, parts)


def test_small_ranges_share_tasks_in_order() -> None:
    small = [piece(number, 0, 10, MEGABYTE) for number in range(14)]
    large = [piece(20, 0, 10, 40 * MEGABYTE)]
    tasks = pack_ranges([*small, *large], Limits(128 * MEGABYTE))
    assert [part for task in tasks for part in task] == [*small, *large]
    assert [len(task) for task in tasks] == [6, 6, 2, 1]
    counted = pack_ranges(small, Limits(128 * MEGABYTE, max_records=30))
    assert [len(task) for task in counted] == [3, 3, 3, 3, 2]
    assert pack_ranges([], Limits(1)) == []


def test_damage_where_parts_of_a_range_meet_is_left_to_the_first_of_them() -> None:
    parts = [*piece(0, 0, 10).divided(3)]
    assert [part.follows for part in parts] == [False, True, True]
    assert [part.follows for part in parts[1].divided(3)] == [True, True, True]
