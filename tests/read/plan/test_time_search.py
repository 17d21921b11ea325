"""Queues that are searched for times together give what a search of each alone gives."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from rmqstore.errors import CorruptRecordError
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.inspect.counts import count_by_time
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.store_parts import StoreParts, open_parts
from rmqstore.spans import QueueSlice

N_QUEUES = 12
N_MESSAGES = 400
HOSTS = [("store_host", "born_host"), ("store_host",), ("born_host",)]  # that are of IPv6


def write_store(root: Path, seed: int, damaged: range = range(0)) -> Path:
    """Write a store whose clock is set back now and then, with IPv4 and IPv6 hosts."""
    rng = random.Random(seed)
    store = build.Store(segment_bytes=8192)
    time = build.T0
    for number in range(N_MESSAGES):
        time += rng.choice([0, 1, 1, 5, -20 if seed % 2 else 3])
        record = build.Record(f"T{rng.randrange(3)}", rng.randrange(4), store_timestamp=time)
        if rng.random() < 0.3:
            hosts = HOSTS[number % len(HOSTS)]
            record = replace(record, **dict.fromkeys(hosts, build.HOST_V6))
        placed = store.append(record)
        if number in damaged:
            store.put(placed.physical_offset + 4, b"\0\0\0\0")
    return store.write(root)


def alone(store: StoreParts, times: tuple[int, int], *, tolerant: bool) -> list[QueueSlice]:
    """Return the ranges between two times as a search of each queue alone finds them."""
    slices = []
    for topic in store.store_queues.topics():
        for queue_id in store.store_queues.ids(topic):
            span = store.store_queues.range(topic, queue_id)
            start, end = (
                store.store_queues.time_search()(topic, queue_id, time, span, tolerant=tolerant)
                for time in times
            )
            if start < end:
                slices.append(QueueSlice(topic, queue_id, start, end))
    return slices


def together(store: StoreParts, times: tuple[int, int], *, tolerant: bool) -> list[QueueSlice]:
    selection = parse_selection(starting_timestamp=times[0], ending_timestamp=times[1])
    mode = "DROPMALFORMED" if tolerant else "FAILFAST"
    return [*store.ranges.resolve(selection, ReadSpec(ALL_COLUMNS, mode=mode))]


def some_times(seed: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    spread = [rng.randrange(build.T0 - 100, build.T0 + 3 * N_MESSAGES) for _ in range(40)]
    return list(zip(spread[::2], spread[1::2], strict=True))


@pytest.mark.parametrize("seed", tiers.seeds(6))
@pytest.mark.parametrize("n_queues", [1, 3, 40])
def test_the_first_message_at_a_time_begins_a_range_also_where_times_fall(
    tmp_path: Path, seed: int, n_queues: int
) -> None:
    """Of 40 queues the first ones show where to look in the others."""
    rng = random.Random(seed)
    store, time, times = (
        build.Store(segment_bytes=1 << 16),
        build.T0,
        defaultdict[int, list[int]](list),
    )
    falls = rng.sample(range(1500), seed % 4)
    for number in range(1500):
        time += int(rng.expovariate(1 / 1000))
        if number in falls:
            time -= rng.choice([5_000, 60_000, 600_000])
        queue_id = rng.randrange(n_queues)
        times[queue_id].append(time)
        store.append(build.Record(queue_id=queue_id, store_timestamp=time))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        for at in rng.sample(range(build.T0 - 10_000, build.T0 + 1_600_000), 8):
            firsts = {
                queue_id: next((row for row, late in enumerate(own) if late >= at), len(own))
                for queue_id, own in times.items()
            }
            assert opened.offsets_at("T", at) == firsts
            scan = opened.scan(starting_timestamp=at)
            assert scan.count() == 1500 - sum(firsts.values())
        hours = Counter(time // 3_600_000 for own in times.values() for time in own)
        counted = count_by_time([opened], "hour", {}).column("messages").to_pylist()
        assert counted == [hours[hour] for hour in sorted(hours)]


def test_a_bound_where_times_fall_names_the_clock_and_a_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = [*range(70), *range(10, 80)]
    made = build.filled([build.Record(store_timestamp=build.T0 + time) for time in times])
    with rmqstore.open(made.write(tmp_path / "s")) as opened:
        start = build.T0 + 12
        assert opened.scan(starting_timestamp=start).count() == 128
        assert opened.scan(ending_timestamp=start).count() == 12
        own = opened.scan(starting_timestamp=start, scan="commitlog").count()
        assert own == opened.scan(where=f"storeTimestamp >= {start}").count() == 126
    assert caplog.text.count("the clock of the broker was set back") == 1
    assert "T-0" in caplog.text


@pytest.mark.parametrize("seed", range(3))  # each of them meets damage
def test_a_damaged_record_on_the_way_is_refused_or_passed_over_as_before(
    tmp_path: Path, seed: int
) -> None:
    n_refused = 0
    with open_parts(write_store(tmp_path / "s", seed, damaged=range(0, N_MESSAGES, 40))) as store:
        for times in some_times(seed):
            assert together(store, times, tolerant=True) == alone(store, times, tolerant=True)
            try:
                expected = alone(store, times, tolerant=False)
            except CorruptRecordError:
                n_refused += 1
                with pytest.raises(CorruptRecordError):
                    together(store, times, tolerant=False)
            else:
                assert together(store, times, tolerant=False) == expected
    assert n_refused


@pytest.mark.parametrize("seed", tiers.seeds(3))
def test_times_of_many_records_are_those_of_each(tmp_path: Path, seed: int) -> None:
    root = write_store(tmp_path / "s", seed, damaged=range(7, 8))
    with open_parts(root) as store:
        end = store.log.max_offset
        places = [*random.Random(seed).choices(range(-50, end + 50), k=200)]
        for topic in store.store_queues.topics():
            for queue_id in store.store_queues.ids(topic):
                span = store.store_queues.range(topic, queue_id)
                units = store.queues.open(topic, queue_id).units(*span)
                places += units.physical_offsets.tolist()
        random.Random(seed).shuffle(places)
        times, are_right = store.log.store_timestamps(np.array(places, np.int64))
        right = {place for place, is_right in zip(places, are_right, strict=True) if is_right}
        assert len(right) == N_MESSAGES - 1
        for place, time, is_right in zip(places, times.tolist(), are_right, strict=True):
            if is_right:
                assert store.log.store_timestamp(place) == time


@pytest.mark.parametrize("name", ["ipv6", "dledger"])
def test_bounds_in_time_hold_for_hosts_of_all_kinds(golden_store: Golden, name: str) -> None:
    """A producer of IPv4 and a broker of IPv6 is a mix that occurs, as is the other way round."""
    with rmqstore.open(golden_store(name)) as store:
        table = store.scan(columns="storeTimestamp,sysFlag").to_arrow()
        assert {flag & 0x30 for flag in table["sysFlag"].to_pylist()} == {0, 0x10, 0x20, 0x30}
        times = table["storeTimestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        for begin in np.unique(times)[::5].tolist():
            assert store.scan(starting_timestamp=begin).count() == (times >= begin).sum()
            assert store.scan(ending_timestamp=begin).count() == (times < begin).sum()
