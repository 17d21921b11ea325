"""Every golden store, as the restarted broker serves it: bounds, records, times, group offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_logs as golden
import kafkalog
from kafka_reading import read_in_windows
from rmqstore.errors import CorruptRecordError

# Questions to the broker that damage makes unanswerable, and one where the broker believes the time
# index of a segment whose last batch is cut, and does not look into the next one.
UNANSWERED = {("damaged", "Cr", 2, 1700000042402): 93}


@pytest.fixture(scope="module", params=golden.EVERY)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def brokers(name: str, kafka_store: Callable[[str], Path]) -> list[kafkalog.LogDirs]:
    return [kafkalog.open(*dirs) for dirs in golden.log_dirs(name, kafka_store(name))]


@pytest.fixture
def partitions(brokers: list[kafkalog.LogDirs]) -> list[kafkalog.Partition]:
    return [partition for broker in brokers for partition in broker.partitions.values()]


def test_partitions_and_their_bounds(
    name: str, brokers: list[kafkalog.LogDirs], partitions: list[kafkalog.Partition]
) -> None:
    assert {key for broker in brokers for key in broker.partitions} == set(golden.bounds(name))
    assert not any(broker.missing for broker in brokers)
    for partition in partitions:
        key = golden.bounds(name)[partition.topic, partition.partition]
        assert partition.start_offset == key["beginningOffset"], partition
        assert partition.end_offset == key["endOffset"], partition
        assert partition.last_stable_offset == key["lastStableOffset"], partition


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_records(
    name: str, partitions: list[kafkalog.Partition], level: kafkalog.IsolationLevel
) -> None:
    only_committed = level == "read_committed"
    mode: kafkalog.Mode = "DROPMALFORMED" if name == "damaged" else "FAILFAST"
    for partition in partitions:
        place = partition.topic, partition.partition
        rows = golden.as_key(partition.scan(isolation_level=level, mode=mode).to_arrow())
        assert rows == golden.expected(name, place, only_committed=only_committed), partition


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("count", [1, 30])
def test_the_newest_records(
    partitions: list[kafkalog.Partition], level: kafkalog.IsolationLevel, count: int
) -> None:
    for partition in partitions[:6]:
        rows = partition.scan(isolation_level=level, mode="PERMISSIVE").to_arrow()
        newest = partition.scan(isolation_level=level, mode="PERMISSIVE", last=count).to_arrow()
        expected = rows.slice(max(len(rows) - count, 0))
        assert newest.to_pylist() == expected.to_pylist(), partition


def test_the_same_records_in_windows_of_some_bytes(
    name: str, partitions: list[kafkalog.Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_windows(monkeypatch, 40, 700)
    for partition in partitions[:6]:
        partition.refresh()
        place = partition.topic, partition.partition
        scan = partition.scan(mode="DROPMALFORMED")
        assert golden.as_key(scan.to_arrow()) == golden.expected(name, place), partition
        assert partition.end_offset == golden.bounds(name)[place]["endOffset"]


def test_a_scan_from_and_to_any_offset(name: str, partitions: list[kafkalog.Partition]) -> None:
    for partition in partitions[:6]:
        place = partition.topic, partition.partition
        every = [row["offset"] for row in golden.expected(name, place)]
        step = max(1, (partition.end_offset - partition.start_offset) // 9)
        for start in range(partition.start_offset, partition.end_offset + 1, step):
            scan = partition.scan(start, start + 30, columns="offset", mode="DROPMALFORMED")
            offsets = scan.to_arrow().column("offset").to_pylist()
            assert offsets == [number for number in every if start <= number < start + 30]


def test_offsets_for_times(name: str, partitions: list[kafkalog.Partition]) -> None:
    for partition in partitions:
        key = golden.bounds(name)[partition.topic, partition.partition]
        for time, answer, *_ in key["offsetsForTimes"]:
            if isinstance(answer, str):
                with pytest.raises(CorruptRecordError):
                    partition.offset_for_time(time)
                continue
            question = name, partition.topic, partition.partition, time
            given = partition.offset_for_time(time)
            assert given == UNANSWERED.get(question, answer), question


def test_group_offsets(name: str, brokers: list[kafkalog.LogDirs]) -> None:
    rows = [row for broker in brokers for row in broker.consumer_groups().to_pylist()]
    assert {
        (row["group"], row["topic"], row["partition"]): (
            row["offset"], row["leader_epoch"], row["metadata"],
        )
        for row in rows
    } == {
        (group["group"], row["topic"], row["partition"]): (
            row["offset"], row["leaderEpoch"], row["metadata"],
        )
        for group in golden.summary(name)["groups"]
        for row in group["offsets"]
    }  # fmt: skip


def test_a_broker_is_read_partition_by_partition(
    name: str, brokers: list[kafkalog.LogDirs]
) -> None:
    for broker in brokers:
        user_topics = [topic for topic in broker.topics() if not topic.startswith("__")]
        table = broker.scan(columns="partition,offset,topic", mode="DROPMALFORMED").to_arrow()
        assert table.column_names == ["partition", "offset", "topic"]
        assert table.to_pylist() == [
            {"partition": partition, "offset": row["offset"], "topic": topic}
            for topic, partition in broker.partitions
            if topic in user_topics
            for row in golden.expected(name, (topic, partition))
        ]


def test_every_byte_of_the_indexes_may_be_wrong(tmp_path: Path) -> None:
    """Indexes, producer snapshots and transaction indexes propose; the log decides."""
    root = golden.unpack("txn", tmp_path)
    place = ("TxAbortOnly", 0)  # the smallest folder of those with a transaction index
    folder = root / "TxAbortOnly-0"
    key = golden.bounds("txn")[place]
    times = [time for time, answer, *_ in key["offsetsForTimes"]][::9]
    partition = kafkalog.open(root).partition(*place)
    answers = [partition.offset_for_time(time) for time in times]
    for path in sorted(folder.iterdir()):
        if path.suffix == ".log" or path.name == "partition.metadata":
            continue
        content = path.read_bytes()
        for at in range(0, len(content), 1 + len(content) // 200):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            partition = kafkalog.open(root).partition(*place)
            assert partition.end_offset == key["endOffset"], (path, at)
            assert partition.last_stable_offset == key["lastStableOffset"], (path, at)
            middle = (partition.start_offset + partition.end_offset) // 2
            rows = partition.scan(middle, isolation_level="read_committed").to_arrow()
            assert golden.as_key(rows) == [
                row
                for row in golden.expected("txn", place, only_committed=True)
                if row["offset"] >= middle
            ], (path, at)
            assert [partition.offset_for_time(time) for time in times] == answers, (path, at)
        path.write_bytes(content)
