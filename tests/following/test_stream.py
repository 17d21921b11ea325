"""A stream reads a copy while a follower appends to it, is stopped, and cuts it."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path

import pytest

from following.fake_master import FakeMaster
from following.followers import Following, copied, follow_once, wait_for
from interop.power_cut import Query
from store_builder import Record, Store


def number(log: Store, count: int, numbers: list[int], at: int) -> None:
    for _ in range(count):
        numbers.append(len(numbers))
        body = b"%06d.x" % numbers[-1]
        log.append(Record(queue_id=len(numbers) % 3, body=body, store_timestamp=at + len(numbers)))


def drained(query: Query) -> None:
    query.drain(200)


def test_a_stream_gets_each_message_once_while_a_follower_is_stopped_and_started(
    tmp_path: Path,
) -> None:
    target, log, numbers = tmp_path / "copy", Store(segment_bytes=1 << 14), list[int]()
    now = 1_700_000_000_000
    number(log, 100, numbers, now)
    with FakeMaster(log) as master:
        follow_once(master, target)
        query = Query(target, {}, random.Random(1))
        for _ in range(3):
            with Following(master.address, target) as run:
                for _ in range(4):
                    number(log, 60, numbers, now)
                    query.trigger()
                wait_for(lambda run=run: run.follower.progress().queues_end == log.end)
                query.trigger()
            query.trigger()
    drained(query)
    assert query.failures == []
    assert Counter(query.delivered) == Counter(f"{each:06}" for each in numbers)


@pytest.mark.parametrize("n_more", [0, 10, 300])
def test_a_stream_sees_a_cut_as_what_it_is(n_more: int, tmp_path: Path) -> None:
    target, common, numbers = tmp_path / "copy", Store(segment_bytes=1 << 14), list[int]()
    number(common, 200, numbers, 1_700_000_000_000)
    longer, other = copy.deepcopy(common), copy.deepcopy(common)
    number(longer, 50, numbers, 1_700_000_000_000)
    lost = {f"{each:06}" for each in numbers[200:]}
    number(other, n_more, numbers, 1_700_000_100_000)
    copied(longer, target)
    query = Query(target, {}, random.Random(1))
    drained(query)
    assert set(query.delivered) >= lost
    with FakeMaster(other) as master, Following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().queues_end == other.end)
        query.trigger()
        drained(query)
    drained(query)
    assert Counter(query.delivered) == Counter(f"{each:06}" for each in numbers)
