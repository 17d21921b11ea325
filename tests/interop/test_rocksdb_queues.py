"""Queues in RocksDB that the real store writes: read while it runs, from a copy, and after it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import rmqstore
from connector.streams import delivered, start
from interop.background import BackgroundWork
from interop.rocketmq import RealStore, RocketMQ
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import ReadSpec, scan_schema
from rmqstore.read.reading import read_queues
from rmqstore.source.tail import StoreTail
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueues
from written import require_valid

pytestmark = pytest.mark.interop

SIZES = {
    "mappedFileSizeCommitLog": 65536, "maxHashSlotNum": 50, "maxIndexNum": 400,
    "storeType": "defaultRocksDB",
}  # fmt: skip
N_QUEUES = 3
N_AT_ONCE = 10
COLUMNS = "topic,queueId,queueOffset,body"
SPEC = ReadSpec(scan_schema(COLUMNS, include_pending=False))
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
    with rmqstore.open(root) as store:
        return by_queue(iter(store.scan(columns=COLUMNS)))


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
    require_valid(root)
    assert not list(root.rglob("rocksdict*")), "nothing is written into the store"


def test_a_stream_beside_a_store_that_is_flushed_all_the_time(
    rocketmq_55: RocketMQ, tmp_path: Path, spark: SparkSession
) -> None:
    root, folder = tmp_path / "store", tmp_path / "query"
    with rocketmq_55.open(root, **SIZES) as real:
        with Appender(real, N_AT_ONCE) as appender:
            query = start(spark, root, folder, startingOffsets="earliest")
            n_batches = 0
            while n_batches < 5 or appender.done < 300:
                n_batches = sum(bool(one.numInputRows) for one in query.recentProgress)
                appender.check()
                assert query.isActive, query.exception()
                time.sleep(0.2)
        wait_for(query, messages_of(appender.done), spark, folder)
        query.stop()


class Appender(BackgroundWork):
    """Puts messages into the queues in turn until the block is left.

    Attributes:
        done: how many messages the store has confirmed, and dispatched to their queues.
    """

    def __init__(self, real: RealStore, flush_every: int | None) -> None:
        super().__init__()
        self.done = 0
        self._real, self._flush_every = real, flush_every

    def step(self, number: int) -> None:
        put(self._real, number * N_AT_ONCE, N_AT_ONCE)
        self.done += N_AT_ONCE
        if self._flush_every is not None and self.done % self._flush_every == 0:
            self._real.flush_rocksdb_queues()


def messages_of(n: int) -> Rows:
    """Return the first n messages that :func:`put` puts."""
    found: Rows = {}
    for number in range(n):
        rows = found.setdefault((f"Rocks{number % 2}", number // 2 % N_QUEUES), [])
        rows.append((len(rows), b"%d " % number * (1 + number % 30)))
    return found


@pytest.mark.parametrize(
    "flush_every", [N_AT_ONCE, 60, None], ids=["flushed all the time", "flushed", "never flushed"]
)
def test_readers_beside_a_store_that_is_written_to(
    rocketmq_55: RocketMQ, tmp_path: Path, flush_every: int | None
) -> None:
    """A read by queue has all that the store had confirmed, and a tail gives each message once."""
    root = tmp_path / "store"
    followed: Rows = {}
    n_reads = n_steps = 0
    with rocketmq_55.open(root, **SIZES) as real, rmqstore.open(root) as store:
        tail = StoreTail(store.parts, parse_selection())
        with Appender(real, flush_every) as appender:
            while appender.done < 600 or n_reads < 10:
                appender.check()
                n_confirmed = appender.done
                found = read(root)
                n_reads += 1
                n_found = sum(len(rows) for rows in found.values())
                assert n_found >= n_confirmed
                assert found == messages_of(n_found)
                n_steps += follow(tail, followed)
        assert n_steps > 5
        in_rocksdb = RocksDbQueues.of(find_store(root))
        assert in_rocksdb is not None
        assert bool(in_rocksdb.bounds) == (flush_every is not None)
        follow(tail, followed)
        whole = messages_of(appender.done)
        assert followed == read(root) == whole
    with rmqstore.open(root) as store:
        assert not list(verify(store)), "the store is closed, and its queues are flushed"
        assert read(root) == whole


def follow(tail: StoreTail, followed: Rows) -> bool:
    """Look, and add the messages that are new; return whether there were any."""
    starts = dict(tail.ends)
    tail.poll()
    slices = [
        QueueSlice(*key, starts.get(key, 0), end)
        for key, end in sorted(tail.ends.items())
        if end > starts.get(key, 0)
    ]
    for key, rows in by_queue(read_queues(tail.store, slices, SPEC)).items():
        followed.setdefault(key, []).extend(rows)
    return bool(slices)


def wait_for(query: StreamingQuery, expected: Rows, spark: SparkSession, folder: Path) -> None:
    texts = {
        key: [(queue_offset, body.decode()) for queue_offset, body in rows]
        for key, rows in sorted(expected.items())
    }
    until = time.monotonic() + 60
    while (found := delivered(spark, folder)) != texts:
        assert query.isActive, query.exception()
        assert time.monotonic() < until, {key: len(rows) for key, rows in found.items()}
        time.sleep(0.2)
