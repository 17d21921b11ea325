"""Queues that differ from the log that they are of, which we read as the real store serves them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import rmqstore
import store_builder as build
from interop.rocketmq import RealStore, RocketMQ
from rmqstore.format.record import split_record
from rmqstore.inspect.verify import verify

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
            assert [_read(live, "Prices", queue_id) for queue_id in (0, 1)] == [
                _served(real, queue_id) for queue_id in (0, 1)
            ]
    with (
        rocketmq.open(root, compacted_topics=["Prices"], **SIZES) as real,
        rmqstore.open(root / "compaction") as store,
    ):
        for queue_id in (0, 1):
            served = _served(real, queue_id)
            assert 0 < len(served) < 50
            assert _read(store, "Prices", queue_id) == served


def _wait_for_a_compaction(root: Path) -> None:
    deadline = time.monotonic() + 30
    while not list(root.glob("compaction/position-checkpoint")):
        assert time.monotonic() < deadline, "the real store does not compact"
        time.sleep(0.05)
    time.sleep(3)  # for both queues


def _served(real: RealStore, queue_id: int) -> Rows:
    rows = real.records("Prices", queue_id)
    return [(offset, bytes(split_record(data, 0).body)) for offset, data in rows]


def _read(store: rmqstore.MessageStore, topic: str, queue_id: int) -> Rows:
    scan = store.scan(assign={topic: [queue_id]}, columns=["queueOffset", "body"])
    return list(zip(*(column.to_pylist() for column in scan.read_all().columns), strict=True))


SMALL_QUEUES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 100}


@pytest.mark.interop
def test_a_shifted_queue_is_read_as_the_real_store_serves_it(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with rocketmq.open(root, **SMALL_QUEUES) as real:
        for number in range(4):
            real.put("T", 0, b"before %d" % number, keys="k")
        # The properties of the batch come after those of its messages: together they are too long
        # for the two bytes of their length.
        real.put_batch("T", 0, [b"lost"], b"k\1" + b"v" * 32_700 + b"\2", {"p": "w" * 200})
        real.wait()  # it skips all that it has read at once after such a record
        for number in range(7):
            real.put("T", 0, b"after %d" % number, keys="k")
        real.wait()
        served = [(at, split_record(data, 0)) for at, data in real.records("T", 0)]
        assert [at for at, _ in served] == list(range(11))
        assert int(served[-1][1].fixed["queue_offset"]) == 11  # in the record
        with rmqstore.open(root) as live:
            assert _read(live, "T", 0) == [(at, parts.body) for at, parts in served]
    with rmqstore.open(root) as store:
        assert _read(store, "T", 0) == [(at, parts.body) for at, parts in served]
        parts = [(one.part, one.text) for one in verify(store)]
    (end, cut, _log) = (text for part, text in parts if part != "index")
    assert end.startswith("7 records")
    assert cut.startswith("a broker that starts cuts off queue offsets 4 to 10;")
    assert cut.endswith("a broker that starts gives out queue offsets from 4 on again")
    with rocketmq.open(root, **SMALL_QUEUES) as real:  # its recovery ends the log at that record
        assert real.put("T", 0, b"restarted", keys="k").getLogicsOffset() == 4
        real.wait()
        served = [(at, split_record(data, 0)) for at, data in real.records("T", 0)]
        with rmqstore.open(root) as live:
            assert _read(live, "T", 0) == [(at, parts.body) for at, parts in served]


N = 12
LEAST = -(1 << 63)
NAMED = {
    "twice": [*range(6), *range(3, 9)],
    "leaps": [*range(5), *range(8, 15)],
    "leaps over files": [*range(5), *range(300, 307)],
    "leaps far": [*range(5), *range(1 << 40, (1 << 40) + 7)],
    "begins later": [*range(7, 19)],
    "one least": [*range(5), LEAST, *range(6, 12)],
    "first least": [LEAST, *range(1, 12)],
    "last most": [*range(11), (1 << 63) - 1],
    "first negative": [-5, *range(1, 12)],
    "one 0": [*range(5), 0, *range(6, 12)],
}


@pytest.mark.interop
@pytest.mark.parametrize("has_abort", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_a_queue_whose_records_name_other_offsets_is_that_of_the_real_store(
    rocketmq: RocketMQ, tmp_path: Path, name: str, *, has_abort: bool
) -> None:
    """Its units are there, or it is taken from the log, or built again from it."""
    store = build.Store(1 << 20, 100)
    for number, queue_offset in enumerate(NAMED[name]):
        placed = store.append(
            build.Record(body=b"m%02d" % number, queue_offset=queue_offset), queued=False
        )
        store.queues.setdefault(("T", 0), []).append((placed.physical_offset, placed.size, 0))
    whole = store.write(tmp_path / "whole", abort=has_abort)
    (whole / "lock").write_text("lock")
    sizes = rmqstore.StoreConfig().updated({key: str(size) for key, size in SMALL_QUEUES.items()})
    for queues in ("there", "gone"):
        root, ours = tmp_path / queues, tmp_path / f"ours-{queues}"
        shutil.copytree(whole, root)
        if queues == "gone":
            shutil.rmtree(root / "consumequeue")
        shutil.copytree(root, ours)
        found = []
        with rmqstore.open(ours) as read:
            found += [_read(read, "T", 0)]
            assert [one for one in verify(read) if one.kind in ("unit", "lost", "gone")] == []
        if queues == "gone":
            with rmqstore.open(ours, mode="a", config=sizes) as writer:
                writer.rebuild()
            with rmqstore.open(ours) as read:
                found += [_read(read, "T", 0)]
        with rocketmq.open(root, **SMALL_QUEUES) as real:
            real.wait()
            served = [(at, split_record(data, 0).body) for at, data in real.records("T", 0)]
        assert found == [served] * len(found), queues
