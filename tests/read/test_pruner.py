"""What pruning leaves: never less than the rows that meet the conditions, and little more."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import goldens
import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from mutations import overwrite
from reading import read, rows
from rmqstore.format.schema import MESSAGE
from rmqstore.query.conditions import Between, LogSpans, Pruning, StoreTimes, parts_stored_within
from rmqstore.query.selection import parse_selection
from rmqstore.read.pruner import StorePruner
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import Span


def log_points(parts: StoreParts) -> StoreTimes:
    return parts.sampler.log_points(parts.ends.log_slice(), parts.sampler.log_headers)


@pytest.mark.parametrize(
    ("garbage", "n_units", "first"),
    tiers.spread(
        5,
        [b"", b"\0" * 8, b"\0" * 12, b"\xff" * 8, b"\0\0\0\0\0\0\x20\0", b"\0" * 20],
        [1, 2, 40],
        [0, 3, 60, 97, 194, 199],
    ),
)
def test_damaged_units_cost_no_others(
    tmp_path: Path, garbage: bytes, n_units: int, first: int
) -> None:
    store = build.Store()
    for number in range(200):
        store.append(build.Record(body=b"%d" % number, store_timestamp=build.T0 + 10_000 * number))
    units = store.queues["T", 0]
    root = store.write(tmp_path / "s")
    for at in range(first, min(first + n_units, 200)):
        overwrite(root / f"consumequeue/T/0/{at // 20 * 400:020d}", at % 20 * 20, garbage)
    spec = ReadSpec(MESSAGE, mode="DROPMALFORMED", broker_name="b")
    with rmqstore.open(root) as opened:
        slices = [*opened.parts.ranges.resolve(parse_selection(), spec)]
        every = rows(read_queues(opened.parts, slices, spec))
        for low, high in [(0, 5), (3, 3), (20, 60), (60, 150), (90, 199), (199, 199)]:
            places = Between(units[low][0], units[high][0])
            times = Between(build.T0 + 10_000 * low, build.T0 + 10_000 * high)
            for column, span, pruning in (
                ("commitLogOffset", places, Pruning(physical_offsets=places)),
                ("storeTimestamp", times, Pruning(store_timestamps=times)),
            ):
                pieces = StorePruner(opened.parts, pruning).queues(slices).slices
                found = rows(read_queues(opened.parts, pieces, spec))
                met, expected = (
                    [row for row in some if span.low <= row[column] <= span.high]
                    for some in (found, every)
                )
                assert met == expected, pruning
                if not garbage:
                    assert len(found) == high - low + 1


def test_conditions_are_named_in_a_line() -> None:
    assert str(Pruning()) == "no conditions that leave anything out"
    several = Pruning(
        topics=frozenset("ba"), keys=frozenset(map(str, range(100))), queue_offsets=Between(3)
    )
    assert str(several) == "topics a, b; queue_offsets 3..; keys 100 of them"


def test_one_key_reads_its_messages_and_nothing_else(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        spec = ReadSpec(MESSAGE, broker_name="b")
        slices = [*store.parts.ranges.resolve(parse_selection(include_system_topics=True), spec)]
        for keyed in goldens.lines("live", "keys")[::20]:
            pruned = StorePruner(store.parts, Pruning(msg_ids=frozenset([keyed["key"]]))).queues(
                slices
            )
            assert pruned.slices == []
            if pruned.single is not None:
                assert (
                    len(pruned.single.physical_offsets)
                    <= len(read(store, msg_key=keyed["key"], columns="msgId")) * 5
                )


def test_a_narrow_time_leaves_little_of_the_log(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        whole = store.parts.ends.log_slice()
        times = log_points(store.parts).store_timestamps.tolist()
        assert times == sorted(times)
        middle = times[len(times) // 2]
        pieces = StorePruner(store.parts, Pruning(store_timestamps=Between(middle, middle))).log(
            whole
        )
        assert sum(piece.end - piece.start for piece in pieces) < (whole.end - whole.start) / 20


WHOLE, NOWHERE = Span(0, 1000), np.empty(0, np.int64)


def steady(n: int, step: int = 1000) -> StoreTimes:
    return StoreTimes(1000 // n * np.arange(n), 5_000_000 + step * np.arange(n))


@pytest.mark.parametrize(
    ("times", "spans"),
    [
        pytest.param(Between(23_000, 23_500), [(200, 500)], id="as written"),
        pytest.param(Between(16_000, 16_000), [(0, 500)], id="highest of the first part"),
        pytest.param(Between(16_001, 16_001), [(100, 500)], id="after the first part"),
        pytest.param(Between(22_001, 22_001), [(200, 500)], id="after the second part"),
        pytest.param(Between(25_001, 25_001), [(300, 500)], id="after the third part"),
        pytest.param(Between(30_001, 30_001), [(400, 500)], id="after all points"),
        pytest.param(Between(high=9_999), [(0, 400)], id="before the last part"),
        pytest.param(Between(high=4_999), [(0, 300)], id="before the fourth part"),
        pytest.param(Between(high=1_999), [(0, 200)], id="before the third part"),
        pytest.param(Between(high=-1), [(0, 100)], id="before all points"),
    ],
)
def test_the_worked_example_of_parts_stored_within(
    times: Between, spans: list[tuple[int, int]]
) -> None:
    points = StoreTimes(np.array([100, 200, 300, 400]), np.array([10_000, 12_000, 15_000, 20_000]))
    assert parts_stored_within(points, Span(0, 500), times).spans == tuple(
        Span(*span) for span in spans
    )


def test_parts_of_a_steady_clock_are_those_around_the_times() -> None:
    points = steady(100)
    found = parts_stored_within(points, WHOLE, Between(5_050_500, 5_050_600))
    assert len(found.spans) == 1
    start, end = found.spans[0]
    assert start <= 500
    assert end >= 510
    assert sum(span.end - span.start for span in found.spans) <= 80


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_a_clock_that_was_set_back_loses_nothing(seed: int) -> None:
    chance = random.Random(seed)
    stored, now = [], 1_000_000
    for _ in range(5000):
        now += chance.randint(0, 40)
        if chance.random() < 0.002:
            now -= chance.choice([5, 500, 5_000, 60_000])
        stored.append(now)
    points = StoreTimes(np.arange(0, 5000, 50), np.array(stored[::50]))
    for _ in range(50):
        low = chance.choice(stored)
        times = Between(low, low + chance.choice([0, 100, 3000]))
        parts = parts_stored_within(points, Span(0, 5000), times)
        for place, at in enumerate(stored):
            inside = any(span.start <= place < span.end for span in parts.spans)
            assert inside or not times.low <= at <= times.high, (place, times)


def test_times_before_and_after_all_points_leave_the_ends() -> None:
    points = steady(10)
    assert parts_stored_within(points, WHOLE, Between(high=0)).spans == ()
    assert parts_stored_within(points, WHOLE, Between(low=9_000_000)).spans[-1].end == 1000
    assert parts_stored_within(StoreTimes(NOWHERE, NOWHERE), WHOLE, Between(0, 0)).spans == (WHOLE,)
    hostile = StoreTimes(np.array([0, 500]), np.array([-(1 << 63), (1 << 63) - 1]))
    assert parts_stored_within(hostile, WHOLE, Between(0, 0)).spans == (WHOLE,)


@pytest.mark.parametrize("seed", tiers.seeds(10))
def test_where_all_records_are_known_a_clock_may_go_astray(seed: int) -> None:
    chance = np.random.default_rng(seed)
    whole, places = Span(7, 1_000_000), np.unique(chance.integers(7, 1_000_000, 5000))
    points = StoreTimes(places, chance.integers(0, 1 << 40, len(places)), are_all=True)
    for low in chance.integers(0, 1 << 40, 20).tolist():
        times = Between(low, low + int(chance.choice([0, 1 << 30, 1 << 38])))
        met = places[
            (points.store_timestamps >= times.low) & (points.store_timestamps <= times.high)
        ]
        spans = parts_stored_within(points, whole, times).spans
        bounds = np.array([bound for span in spans for bound in span], np.int64)
        assert (np.searchsorted(bounds, met, side="right") % 2 == 1).all()
        assert len(spans) <= min(len(met), 1024)
    assert (
        parts_stored_within(StoreTimes(NOWHERE, NOWHERE, are_all=True), whole, Between(0, 0)).spans
        == ()
    )


@pytest.mark.parametrize("damage", [False, True])
def test_a_short_log_may_have_any_times(tmp_path: Path, damage: bool) -> None:
    chance, store = random.Random(5), build.Store()
    times = [build.T0 + 10 * number - chance.choice([0, 0, 0, 3_600_000]) for number in range(300)]
    for at in times:
        store.append(build.Record(store_timestamp=at))
    root = store.write(tmp_path / "s")
    if damage:
        overwrite(sorted((root / "commitlog").iterdir())[1], 4, b"\0\0\0\0")
    with rmqstore.open(root) as opened:
        points = log_points(opened.parts)
        assert points.are_all is not damage
        if not damage:
            assert points.store_timestamps.tolist() == times
            assert points.physical_offsets.tolist() == [unit[0] for unit in store.queues["T", 0]]


def test_parts_meet_and_join() -> None:
    mine = LogSpans.of([Span(0, 10), Span(10, 20), Span(30, 40), Span(50, 50)])
    assert mine.spans == (Span(0, 20), Span(30, 40))
    assert mine.met(LogSpans.of([Span(15, 35)])).spans == (Span(15, 20), Span(30, 35))
