"""Batch reads: `engine.read` returns what the real RocketMQ wrote, as RocketMQ reads it."""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import documented
import goldens
from connector.engine import Engine, Frame
from connector.sparkreads import (
    Golden,
    GoldenStore,
    collect,
    in_queue_order,
    load,
    messages,
    offsets,
    read,
)
from connector.test_batch_write import refused
from mutations import overwrite
from reading import TOLD_COLUMNS, Row

COMPARABLE = (
    # no map: those do not sort
    "topic,queueId,queueOffset,body,tags,keys,msgId,storeTimestamp,commitLogOffset"
)


def physical(rows: list[Row]) -> set[int]:
    return {row["physicalOffset"] for row in rows}


@pytest.mark.parametrize("name", [*goldens.PLAIN, "dledger", "dledger-mixed"])
def test_every_message_by_queue_in_all_columns(golden: Golden, name: str) -> None:
    found = golden.read(
        name, columns=",".join(TOLD_COLUMNS), includeSystemTopics="true", brokerName="b"
    )
    assert in_queue_order(found) == messages(name)


def test_without_options_the_documented_columns_of_user_topics_come(golden: Golden) -> None:
    frame = golden.load("live")
    assert frame.columns == documented.DEFAULT
    found = collect(frame)
    user = ("LiveAutoCreated", "LiveBatch", "LiveDelay", "LiveOrder", "LivePlain", "LivePop",
            "LiveRetry", "LiveTimer", "LiveTx")  # fmt: skip
    assert offsets(found) == physical(
        [row for row in goldens.lines("live", "expected") if row["topic"] in user]
    )
    assert {row["brokerName"] for row in found} == {"broker-a"}


@pytest.mark.parametrize(
    "options", [{"subscribe": "TopicA"}, {"subscribePattern": "Topic[A]"}], ids=str
)
def test_by_log_a_topic_is_read_whose_queues_and_entry_are_gone(
    golden: Golden, tmp_path: Path, options: dict[str, Any]
) -> None:
    root = golden.copy("basic", tmp_path / "s")
    shutil.rmtree(root / "consumequeue" / "TopicA")
    found = golden.read(
        root, scan="commitlog", columns="commitLogOffset", brokerName="b", **options
    )
    assert offsets(found) == physical(
        [row for row in goldens.records("basic") if row["topic"] == "TopicA"]
    )


def test_a_read_of_no_message_is_an_empty_frame(golden: Golden) -> None:
    fifth = {"TopicA": {"0": 5, "1": 5}}
    nothing = {"assign": {"TopicA": [0, 1]}, "startingOffsets": fifth, "endingOffsets": fifth}
    assert golden.read("basic", **nothing) == []
    assert golden.load("basic", subscribePattern="no such topic").count() == 0


def test_a_schema_may_have_a_map_without_nulls(golden: Golden) -> None:
    from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

    values = MapType(StringType(), StringType(), valueContainsNull=False)
    schema = StructType(
        [StructField("commitLogOffset", LongType()), StructField("properties", values)]
    )
    frame = golden.load("one", schema=schema)
    assert frame.schema == schema
    assert [row["properties"] for row in collect(frame)] == [
        row["properties"] for row in messages("one")
    ]


@pytest.fixture
def brokers(golden_store: GoldenStore, tmp_path: Path) -> Path:
    """Return a folder with stores broker-1 (`one`) and broker-2 (`expired`)."""
    for number, name in enumerate(("one", "expired"), 1):
        shutil.copytree(golden_store(name), tmp_path / f"broker-{number}")
    return tmp_path


def _by_broker(found: list[Row]) -> dict[str, set[int]]:
    return {
        broker: offsets(row for row in found if row["brokerName"] == broker)
        for broker in {row["brokerName"] for row in found}
    }


def test_brokers_are_named_by_path_and_have_offsets_of_their_own(
    golden: Golden, tmp_path: Path
) -> None:
    roots = [golden.path("expired"), golden.copy("expired", tmp_path / "expired")]
    names = dict(zip(map(str, roots), ("left", "right"), strict=True))
    starts = {"ExpA": {"left": {"0": 100}, "right": {"0": 120}}}
    options = {"assign": {"ExpA": [0]}, "startingOffsets": starts, "columns": "brokerName"}
    found = golden.read(roots, brokerName=names, **options)
    counts = Counter(row["brokerName"] for row in found)
    assert counts == {"left": 29, "right": 9}


def test_a_topic_of_one_store_only_is_read_from_that_one(engine: Engine, brokers: Path) -> None:
    found = _by_broker(
        read(engine, f"{brokers}/*", subscribe="One", columns="brokerName,commitLogOffset")
    )
    assert found == {"broker-1": physical(goldens.lines("one", "expected"))}
    frame = load(engine, f"{brokers}/*", subscribe="Two")
    refused(frame.collect, "no topic Two", "ExpA, ExpB, OldOnly, One")


def test_folders_that_lie_apart_are_named_by_options(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks run in folders of their own, so paths are those of the driver."""
    root = golden.copy("basic", tmp_path / "basic")
    logs = [tmp_path / "disk-1", tmp_path / "disk-2"]
    for log in logs:
        log.mkdir()
    for number, file in enumerate(sorted((root / "commitlog").iterdir())):
        file.rename(logs[number % 2] / file.name)
    (root / "commitlog").rmdir()
    (root / "consumequeue").rename(tmp_path / "queues")
    (root / "index").rename(tmp_path / "keys")
    refused(golden.load(root).collect, "NotAStoreError", "storePathCommitLog")
    settings = {
        "storePathCommitLog": "disk-1, ./disk-2", "storePathConsumeQueue": "~/queues",
        "storePathIndex": f"file://{tmp_path}/keys",
    }  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathCommitLog=disk-1,disk-2\nstorePathConsumeQueue=queues\n")
    everything = {"includeSystemTopics": "true"}
    for options in (settings, {"conf": "broker.conf"}):
        monkeypatch.chdir(tmp_path)
        frame = load(golden.engine, "basic", columns="commitLogOffset", **everything, **options)
        assert frame.plan.partitions
        monkeypatch.chdir("/")
        assert offsets(collect(frame)) == physical(goldens.lines("basic", "expected"))


@pytest.fixture(scope="module")
def damaged(
    golden_store: GoldenStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Row]:
    """Return a copy of `basic` with a flipped body byte, and the message's answer-key row."""
    folder = tmp_path_factory.mktemp("damaged") / "basic"
    root = Path(shutil.copytree(golden_store("basic"), folder))
    victim = next(row for row in goldens.queues("basic")["TopicA", 1][60:] if row["bodyBase64"])
    start = victim["physicalOffset"] // 131072 * 131072
    # 84 bytes of fixed fields with IPv4 hosts, 4 of the body's length
    at = victim["physicalOffset"] - start + 88
    overwrite(root / "commitlog" / f"{start:020d}", at, b"\xff")
    return root, victim


def test_the_column_of_the_reason_may_have_another_name_and_place(
    engine: Engine, damaged: tuple[Path, Row]
) -> None:
    root, victim = damaged
    found = read(
        engine, root, schema="why string, commitLogOffset long", mode="PERMISSIVE",
        columnNameOfCorruptRecord="why", subscribe="TopicA",
    )  # fmt: skip
    assert len(found) == 721
    assert [row["commitLogOffset"] for row in found if row["why"]] == [victim["physicalOffset"]]


def _tasks(frame: Frame) -> list[list[tuple[str, int, int, int]]]:
    """Return each partition's rows in reading order: topic, queue, queue offset, log offset."""
    names = ("topic", "queueId", "queueOffset", "commitLogOffset")
    return [
        [tuple(row[name] for name in names) for row in task.to_pylist()] for task in frame.tasks()
    ]


@pytest.mark.parametrize("name", ["basic", "live"])
@pytest.mark.parametrize(
    ("options", "at_least", "at_most"),
    [
        pytest.param({}, 1, 1, id="none"),
        pytest.param({"minPartitions": "7"}, 7, 9, id="minPartitions"),
        pytest.param({"maxRecordsPerPartition": "100"}, 6, 40, id="maxRecordsPerPartition"),
        pytest.param({"maxBytesPerPartition": "40k"}, 4, 24, id="maxBytesPerPartition"),
    ],
)
def test_partitions_split_a_read_and_keep_the_order_of_each_queue(
    golden: Golden, name: str, options: dict[str, str], at_least: int, at_most: int
) -> None:
    tasks = _tasks(golden.load(name, includeSystemTopics="true", columns=COMPARABLE, **options))
    assert at_least <= len(tasks) <= at_most
    assert all(tasks), "a task without a message"
    if "maxRecordsPerPartition" in options:
        assert max(map(len, tasks)) <= 100
    queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for task in tasks:
        for topic, queue_id, queue_offset, place in task:
            queues.setdefault((topic, queue_id), []).append((queue_offset, place))
    # Also from task to task: a queue goes on where the task before has left it.
    assert queues == {
        key: [(row["queueOffset"], row["physicalOffset"]) for row in rows]
        for key, rows in goldens.queues(name).items()
    }


@pytest.mark.parametrize(
    "options", [{"minPartitions": "5"}, {"maxBytesPerPartition": "50k"}], ids=str
)
def test_partitions_of_a_scan_by_log_keep_its_order(
    golden: Golden, options: dict[str, str]
) -> None:
    tasks = _tasks(golden.load("basic", scan="commitlog", columns=COMPARABLE, **options))
    assert len(tasks) >= 5
    assert [row[3] for task in tasks for row in task] == [
        row["physicalOffset"] for row in goldens.records("basic")
    ]


def test_damage_in_one_of_many_tasks_is_still_found(
    engine: Engine, damaged: tuple[Path, Row]
) -> None:
    root, victim = damaged
    for options in (
        {"maxRecordsPerPartition": "150"},
        {"scan": "commitlog", "maxBytesPerPartition": "100k"},
    ):
        given = {"mode": "PERMISSIVE", "columns": "commitLogOffset", "subscribe": "TopicA"}
        found = read(engine, root, **given, **options)
        assert [row["commitLogOffset"] for row in found if row["_corrupt_record"]] == [
            victim["physicalOffset"]
        ]


@pytest.mark.parametrize("name", ["lmq", "cq-ext", "v55-rocksdb-lmq"])
def test_units_that_say_more_than_their_records_are_read(golden: Golden, name: str) -> None:
    expected = sorted(
        (row["topic"], row["queueId"], row["queueOffset"], row["tagsCode"])
        for row in (goldens.asked(row, "b") for row in goldens.lines(name, "expected"))
    )
    columns = "topic,queueId,queueOffset,tagsCode"
    frame = golden.load(
        name, includeSystemTopics="true", columns=columns, maxRecordsPerPartition="37"
    )
    assert sorted(tuple(row) for row in frame.collect()) == expected


@pytest.mark.parametrize("size", [None, 1, 7, 50])
def test_inner_batches_are_read_whole_wherever_tasks_are_cut(
    golden: Golden, size: int | None
) -> None:
    expected = sorted(
        (row["topic"], row["queueId"], row["queueOffset"] + at, base64.b64decode(one["bodyBase64"]))
        for row in goldens.lines("batch-cq", "expected")
        if row["topic"] == "BatchB" or size != 1
        for at, one in enumerate(row.get("innerMessages") or [row])
    )
    options = {"maxRecordsPerPartition": str(size)} if size else {"minPartitions": "5"}
    if size == 1:
        options |= {"subscribe": "BatchB"}
    frame = golden.load("batch-cq", columns="topic,queueId,queueOffset,body", **options)
    assert len(frame.tasks()) > 4
    assert sorted((*row[:3], bytes(row[3])) for row in frame.collect()) == expected
