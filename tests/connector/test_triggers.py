"""What the limits of a trigger take of a backlog."""

from __future__ import annotations

import random

import pytest

from pyspark_rmqstore.triggers import limit_bytes, limit_rows
from rmqstore.source.stream import Weight
from rmqstore.source.stream_offset import Key

Ends = dict[Key, int]


def keys(count: int) -> list[Key]:
    return [("b", f"T{number}", 0) for number in range(count)]


def taken(starts: Ends, ends: Ends) -> list[int]:
    return [ends[key] - starts[key] for key in starts]


def test_each_queue_gets_its_share_of_the_backlog() -> None:
    starts = dict(zip(keys(3), (5, 10, 0), strict=True))
    ends = {
        key: start + backlog
        for (key, start), backlog in zip(starts.items(), (100, 300, 0), strict=True)
    }
    assert taken(starts, limit_rows(starts, ends, 40)) == [10, 30, 0]
    assert limit_rows(starts, ends, 400) == limit_rows(starts, ends, 1 << 40) == ends


@pytest.mark.parametrize("seed", range(20))
def test_just_so_many_rows_are_taken(seed: int) -> None:
    dice = random.Random(seed)
    starts = {key: dice.randrange(1000) for key in keys(dice.randrange(1, 200))}
    ends = {
        key: start + dice.choice((0, 1, 2, dice.randrange(10_000))) for key, start in starts.items()
    }
    total, limit = sum(taken(starts, ends)), dice.randrange(1, 5000)
    limited = limit_rows(starts, ends, limit)
    assert sum(taken(starts, limited)) == min(limit, total)
    assert all(starts[key] <= limited[key] <= ends[key] for key in starts)


def test_small_queues_do_not_starve_beside_large_ones_that_never_empty() -> None:
    names = keys(30)
    delivered = dict.fromkeys(names, 0)
    ends = {key: 1 if number else 10**6 for number, key in enumerate(names)}
    for _ in range(60):
        delivered = limit_rows(delivered, ends, 10)
        ends[names[0]] += 10
    assert all(delivered[key] == 1 for key in names[1:])


def _weigh(sizes: dict[Key, list[int]], places: dict[Key, int] | None = None):  # noqa: ANN202 - two functions
    def weigh(key: Key, start: int, end: int) -> Weight:
        return Weight(float(sum(sizes[key][start:end])), (places or {}).get(key, 0))

    def rows_within(key: Key, start: int, end: int, n_bytes: int) -> int:
        rows = 0
        while start + rows < end and sum(sizes[key][start : start + rows + 1]) <= n_bytes:
            rows += 1
        return rows

    return weigh, rows_within


def test_bytes_are_shared_out_and_counted_message_by_message() -> None:
    first, second = keys(2)
    sizes = {first: [100] * 50, second: [1000] * 5}
    starts, ends = {first: 0, second: 0}, {first: 50, second: 5}
    limited = limit_bytes(starts, ends, 4000, *_weigh(sizes))
    assert limited == {first: 20, second: 2}
    assert limit_bytes(starts, ends, 10_100, *_weigh(sizes)) == ends
    assert limit_bytes(ends, ends, 1, *_weigh(sizes)) == ends


def test_a_message_larger_than_the_limit_comes_alone_and_in_its_turn() -> None:
    first, second = keys(2)
    sizes = {first: [10] * 10_000, second: [5000]}
    places = {first: 1000, second: 10}
    starts, ends = {first: 0, second: 0}, {first: 10_000, second: 1}
    limited = limit_bytes(starts, ends, 200, *_weigh(sizes, places))
    assert limited[second] == 1
    assert limited[first] > 0
