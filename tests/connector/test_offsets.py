"""Offsets of streams: what checkpoints hold, and what of a backlog the limits of a trigger take."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from pyspark_rmqstore.offsets import Key, StreamOffset, Weight, limit_bytes, limit_rows
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.selection import parse_selection
from rmqstore.read.last_record import LastRecord

# Never to be changed: checkpoints of users hold it.
VERSION_1 = (
    '{"version": 1, "queues": {'
    '"TopicA": {"broker-a": {"0": 23, "2": 5, "10": 7}, "broker-b": {"0": 1}}, '
    '"TopicB": {"broker-a": {"0": 0}}}, '
    '"log": {"broker-a": {"physicalOffset": 4711, "storeTimestamp": 1700000000000}}}'
)
OFFSET = StreamOffset(
    {
        ("broker-b", "TopicA", 0): 1, ("broker-a", "TopicA", 10): 7, ("broker-a", "TopicA", 2): 5,
        ("broker-a", "TopicB", 0): 0, ("broker-a", "TopicA", 0): 23,
    },
    {"broker-a": LastRecord(4711, 1_700_000_000_000)},
)  # fmt: skip


def test_offsets_are_written_and_read_as_version_1_and_may_be_starting_offsets() -> None:
    assert json.dumps(OFFSET.json()) == VERSION_1
    assert StreamOffset.of_json(json.loads(VERSION_1)) == OFFSET
    selection = parse_selection(starting_offsets=json.dumps(json.loads(VERSION_1)["queues"]))
    assert selection.start.offsets == OFFSET.queues


def test_queues_that_are_not_followed_keep_their_marks() -> None:
    offset = dataclasses.replace(OFFSET, left={("broker-a", "TopicA", 10): LastRecord(23, 1_700)})
    stored = json.loads(json.dumps(offset.json()))
    assert stored["left"] == {
        "TopicA": {"broker-a": {"10": {"physicalOffset": 23, "storeTimestamp": 1_700}}}
    }
    assert StreamOffset.of_json(stored) == offset


def test_what_is_not_an_offset_of_ours_or_of_a_newer_release_is_refused() -> None:
    for stored in (
        {},
        {"version": 1},
        {"topic": {"0": 3}},
        {**json.loads(VERSION_1), "queues": []},
    ):
        with pytest.raises(OptionError, match="checkpointLocation"):
            StreamOffset.of_json(stored)
    with pytest.raises(UnsupportedFeatureError, match=r"version 2.*knows version 1"):
        StreamOffset.of_json({"version": 2, "queues": {}})


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
