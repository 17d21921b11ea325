"""The compacted logs of topics are read as the real store serves them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RealStore, RocketMQ
from rmqstore.format.record import split_record

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 1000,
    "compactionMappedFileSize": 1 << 14, "compactionCqMappedFileSize": 46 * 20,
    "compactionScheduleInternal": 1000,
}  # fmt: skip
Rows = list[tuple[int, bytes]]


@pytest.mark.interop
def test_a_compacted_topic_is_read_as_the_real_store_serves_it(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with rocketmq.open(root, compacted_topics=["Prices"], **SIZES) as real:
        for number in range(400):
            body = b"" if number % 17 == 0 else b"%d" % number  # without a body: a key's deletion
            real.put("Prices", number % 2, body, keys=f"k{number % 7}")
        real.put("Prices", 0, b"is not kept", tags="without a key")
        real.put("D", 0, b"of a topic that is not compacted", keys="k")
        real.wait()
        _wait_for_a_compaction(root)
        for number in range(10):
            real.put("Prices", number % 2, b"after", keys=f"k{number % 3}")
        real.wait()
        with rmqstore.open(root / "compaction") as live:
            assert live.topics() == ["Prices"]
            assert [_read(live, queue_id) for queue_id in (0, 1)] == [
                _served(real, queue_id) for queue_id in (0, 1)
            ]
    with (
        rocketmq.open(root, compacted_topics=["Prices"], **SIZES) as real,
        rmqstore.open(root / "compaction") as store,
    ):
        for queue_id in (0, 1):
            served = _served(real, queue_id)
            assert 0 < len(served) < 50
            assert _read(store, queue_id) == served


def _wait_for_a_compaction(root: Path) -> None:
    deadline = time.monotonic() + 30
    while not list(root.glob("compaction/position-checkpoint")):
        assert time.monotonic() < deadline, "the real store does not compact"
        time.sleep(0.05)
    time.sleep(3)  # for both queues


def _served(real: RealStore, queue_id: int) -> Rows:
    rows = real.records("Prices", queue_id)
    return [(offset, bytes(split_record(data, 0).body)) for offset, data in rows]


def _read(store: rmqstore.MessageStore, queue_id: int) -> Rows:
    scan = store.scan(assign={"Prices": [queue_id]}, columns=["queueOffset", "body"])
    return list(zip(*(column.to_pylist() for column in scan.read_all().columns), strict=True))
