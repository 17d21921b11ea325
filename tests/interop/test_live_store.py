"""Reading a store that the real RocketMQ has open, appends to and deletes from meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from interop.background import BackgroundWork
from interop.rocketmq import RealStore, RocketMQ, store_sizes
from rmqstore.errors import OffsetOutOfRangeError

pytestmark = pytest.mark.interop

SIZES = store_sizes(16384, 20 * 20, 50, 400)
TOPIC, N_QUEUES = "Live", 3


def body_of(queue_id: int, queue_offset: int) -> bytes:
    return f"{queue_id}/{queue_offset} ".encode() * (1 + queue_offset % 40)


class Appender(BackgroundWork):
    """Appends to the queues in turn until the block is left; ``last`` counts their messages."""

    def __init__(self, real: RealStore, *, expire_every: int = 0) -> None:
        super().__init__()
        self.last = [0] * N_QUEUES
        self._real, self._expire_every = real, expire_every

    def step(self, number: int) -> None:
        queue_id = number % N_QUEUES
        body = body_of(queue_id, self.last[queue_id])
        self._real.put(TOPIC, queue_id, body, tags=f"t{queue_id}", keys=f"k{number}")
        self._real.wait()
        self.last[queue_id] += 1
        if self._expire_every and number % self._expire_every == self._expire_every - 1:
            self._real.expire(1)

    def until(self, n_messages: int) -> None:
        while min(self.last) < n_messages:
            self.check()
            time.sleep(0.01)


def judge(rows: list[dict[str, Any]], floor: list[int]) -> list[int]:
    """Check that queues have no gap, their own bodies and reach ``floor``; return their ends."""
    ends = []
    for queue_id in range(N_QUEUES):
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
        assert (
            offsets == list(range(offsets[0], offsets[0] + len(offsets)))
            if offsets
            else not floor[queue_id]
        )
        ends.append(offsets[-1] + 1 if offsets else 0)
        assert ends[-1] >= floor[queue_id]
    assert all(row["body"] == body_of(row["queueId"], row["queueOffset"]) for row in rows)
    return ends


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_a_store_is_read_while_its_broker_appends(
    rocketmq: RocketMQ, tmp_path: Path, scan: str
) -> None:
    grown = set()
    with rocketmq.open(tmp_path / "s", **SIZES) as real:
        with Appender(real) as appender:
            appender.until(3)
            while len(grown) < 15 or min(appender.last) < 100:
                appender.check()
                floor = list(appender.last)
                with rmqstore.open(tmp_path / "s", broker_name="b") as store:
                    grown.add(sum(judge(store.scan(scan=scan).read_all().to_pylist(), floor)))
        last = appender.last
        assert [real.queue_range(TOPIC, queue_id) for queue_id in range(N_QUEUES)] == [
            (0, end) for end in last
        ]
    with rmqstore.open(tmp_path / "s", broker_name="b") as store:
        assert judge(store.scan(scan=scan).read_all().to_pylist(), last) == last


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_a_store_is_read_while_its_broker_deletes(
    rocketmq: RocketMQ, tmp_path: Path, scan: str
) -> None:
    """Files that are deleted under a read are reported or skipped; all rows that come are right."""
    n_lost = n_read = 0
    with (
        rocketmq.open(tmp_path / "s", **SIZES) as real,
        Appender(real, expire_every=60) as appender,
    ):
        appender.until(60)
        while n_read < 25 or min(appender.last) < 150:
            appender.check()
            with rmqstore.open(tmp_path / "s", broker_name="b") as store:
                n_read += 1
                try:
                    judge(store.scan(scan=scan).read_all().to_pylist(), [0] * N_QUEUES)
                except OffsetOutOfRangeError:
                    n_lost += 1
                rows = store.scan(scan=scan, fail_on_data_loss=False).read_all().to_pylist()
            assert all(row["body"] == body_of(row["queueId"], row["queueOffset"]) for row in rows)
        assert n_lost < n_read, "every read met a deletion"
        assert real.commitlog.getMinOffset() > 0


def test_max_offsets_are_those_of_the_running_store(rocketmq: RocketMQ, tmp_path: Path) -> None:
    with rocketmq.open(tmp_path / "s", **SIZES) as real:
        for number in range(100):
            real.put(TOPIC, number % N_QUEUES, b"x" * (number * 7 % 300), tags="t")
        real.wait()
        real.expire(1)
        with rmqstore.open(tmp_path / "s", broker_name="b") as store:
            found = [store.queue_range(TOPIC, queue_id) for queue_id in range(N_QUEUES)]
        assert found == [real.queue_range(TOPIC, queue_id) for queue_id in range(N_QUEUES)]
        assert all(start > 0 for start, _ in found)
        served = [len(list(real.messages(TOPIC, queue_id))) for queue_id in range(N_QUEUES)]
        assert served == [end - start for start, end in found]
