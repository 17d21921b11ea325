"""Queues in RocksDB that the real store writes: read while it runs, from a copy, and after it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from interop.rocketmq import RealStore, RocketMQ
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.read.tail import StoreTail

pytestmark = pytest.mark.interop

SIZES = {
    "mappedFileSizeCommitLog": 65536, "maxHashSlotNum": 50, "maxIndexNum": 400,
    "storeType": "defaultRocksDB",
}  # fmt: skip
N_QUEUES = 3
Rows = dict[tuple[str, int], list[tuple[int, bytes]]]


def put(real: RealStore, start: int, count: int) -> Rows:
    """Put messages of two topics into queues in turn; return what readers are to find."""
    expected: Rows = {}
    for number in range(start, start + count):
        topic, queue_id = f"Rocks{number % 2}", number // 2 % N_QUEUES
        body = b"%d " % number * (1 + number % 30)
        result = real.put(topic, queue_id, body, tags=f"t{number // 7 % 3}", keys=f"k{number}")
        expected.setdefault((topic, queue_id), []).append((result.getLogicsOffset(), body))
    real.wait()
    return expected


def joined(*parts: Rows) -> Rows:
    return {key: [row for part in parts for row in part.get(key, [])] for key in parts[0]}


def by_queue(batches: Iterator[Any]) -> Rows:
    found: Rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = (row["topic"], row["queueId"])
            found.setdefault(key, []).append((row["queueOffset"], row["body"]))
    return found


def read(root: Path) -> Rows:
    columns = "topic,queueId,queueOffset,body"
    with rmqstore.open(root) as store:
        return by_queue(iter(store.scan(columns=columns)))


def test_messages_are_read_before_and_after_their_queues_are_flushed(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with rocketmq.open(root, **SIZES) as real:
        first = put(real, 0, 300)
        assert read(root) == first, "beside the running store, which has flushed nothing"
        copied = Path(shutil.copytree(root, tmp_path / "copied"))
    assert read(root) == first, "after it was closed"
    assert read(copied) == first, "a copy of the running store"
    with rocketmq.open(root, **SIZES) as real:
        second = put(real, 300, 200)
        assert read(root) == joined(first, second), "units from the database and from the log"
        for (topic, queue_id), rows in joined(first, second).items():
            assert real.queue_range(topic, queue_id) == (0, len(rows))
    assert read(root) == joined(first, second)
    with rmqstore.open(root) as store:
        assert not list(verify(store))
    assert not list(root.rglob("rocksdict*")), "nothing is written into the store"


def test_a_tail_follows_queues_that_are_flushed_late(rocketmq: RocketMQ, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with rocketmq.open(root, **SIZES) as real:
        expected = put(real, 0, 20)
        with rmqstore.open(root) as store:
            tail = StoreTail(store.session, parse_selection())
            tail.look()
            for start in range(20, 100, 20):
                assert tail.ends == {key: len(rows) for key, rows in expected.items()}
                more = put(real, start, 20)
                tail.look()
                expected = joined(expected, more)
            assert tail.ends == {key: len(rows) for key, rows in expected.items()}
            from_log = {key: units_of(store, key, len(rows)) for key, rows in expected.items()}
    with rmqstore.open(root) as store:
        flushed = {key: units_of(store, key, len(rows)) for key, rows in expected.items()}
    assert from_log == flushed


def units_of(store: rmqstore.MessageStore, key: tuple[str, int], end: int) -> list[list[int]]:
    return [column.tolist() for column in store.session.queues.open(*key).units(0, end)]
