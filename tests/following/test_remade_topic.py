"""A topic that is deleted at the broker and made again: the copy has the queues of the new one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import rmqstore
from following.fake_master import FakeMaster
from following.followers import Following, follow_once, wait_for
from store_builder import Record, Store


def put(log: Store, count: int, mark: str, n_queues: int = 2) -> None:
    for number in range(count):
        log.append(Record(queue_id=number % n_queues, body=f"{mark}{number}".encode()))


def bodies(target: Path) -> list[str]:
    with rmqstore.open(target) as store:
        found = store.scan(columns="queueId,queueOffset,body").read_all().to_pylist()
    for row in found:
        assert int(row["body"][1:]) == row["queueOffset"] * 2 + row["queueId"]
    return sorted(row["body"].decode() for row in found)


def expected(mark: str, count: int) -> list[str]:
    return sorted(f"{mark}{number}" for number in range(count))


@pytest.mark.parametrize("stops", [(), (0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize("count", [2, 25])
def test_the_queues_are_those_of_the_new_topic(
    stops: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    log, target = Store(segment_bytes=1 << 14), tmp_path / "copy"
    with FakeMaster(log) as master:
        put(log, 60, "a")
        for turn, mark in enumerate("bcd"):
            if turn in stops:
                follow_once(master, target)
            log.queues.clear()
            put(log, count, mark)
        follow_once(master, target)
        assert bodies(target) == expected("d", count)
        more_of_it = count + 30
        log.queues.clear()
        put(log, more_of_it, "e")
        follow_once(master, target)
    assert bodies(target) == expected("e", more_of_it)


def test_a_topic_may_be_made_again_while_it_is_followed(tmp_path: Path) -> None:
    log, target = Store(segment_bytes=1 << 14), tmp_path / "copy"
    dice = random.Random(1)
    with FakeMaster(log) as master, Following(master.address, target) as run:
        for mark in "abcdef":
            log.queues.clear()
            count = dice.randrange(2, 40)
            put(log, count, mark)
            if dice.random() < 0.7:
                wait_for(lambda: run.follower.progress().queues_end == log.end)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
    assert bodies(target) == expected("f", count)
