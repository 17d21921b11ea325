"""Batch reads: `engine.read` returns what the real RocketMQ wrote, as RocketMQ reads it."""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import documented
import goldens
from connector.engine import Engine, Frame
from connector.sparkreads import (
    Golden,
    GoldenStore,
    collect,
    in_log_order,
    in_queue_order,
    is_text,
    load,
    messages,
    offsets,
    read,
)
from reading import LOG_COLUMNS, TOLD_COLUMNS, TOLD_OF_LOG, Row
from rmqstore.format.text import decode_text

COMPARABLE = (
    # no map: those do not sort
    "topic,queueId,queueOffset,body,tags,keys,msgId,storeTimestamp,commitLogOffset"
)


def refused(frame: Frame, *texts: str) -> None:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    for text in texts:
        assert text in str(caught.value)


def same_rows(one: Frame, other: Frame) -> bool:
    same_types = [(field.name, field.dataType) for field in one.schema] == [
        (field.name, field.dataType) for field in (other.schema[name] for name in other.columns)
    ]
    return same_types and sorted(map(repr, one.collect())) == sorted(map(repr, other.collect()))


def queue_rows(name: str, topic: str, queue_id: int) -> list[Row]:
    return goldens.queues(name)[topic, queue_id]


def physical(rows: list[Row]) -> set[int]:
    return {row["physicalOffset"] for row in rows}


# ---- all columns of every plain store


@pytest.mark.parametrize("name", [*goldens.PLAIN, "dledger", "dledger-mixed"])
def test_every_message_by_queue_in_all_columns(golden: Golden, name: str) -> None:
    found = golden.read(
        name, columns=",".join(TOLD_COLUMNS), includeSystemTopics="true", brokerName="b"
    )
    assert in_queue_order(found) == messages(name)


@pytest.mark.parametrize("name", [*goldens.PLAIN, "dledger", "dledger-mixed"])
def test_every_record_by_log_in_all_columns(golden: Golden, name: str) -> None:
    found = in_log_order(
        golden.read(name, scan="commitlog", columns=",".join(TOLD_OF_LOG), brokerName="b")
    )
    expected = goldens.records(name)
    columns = goldens.RECORD_COLUMNS
    assert [[row[column] for column in columns.values()] for row in found] == [
        [row[key] for key in columns] for row in expected
    ]
    assert [row["properties"].get("UNIQ_KEY") for row in found] == [
        row["uniqKey"] for row in expected
    ]
    by_offset = {row["commitLogOffset"]: row for row in found}
    for row in messages(name):
        del row["tagsCode"]
        assert by_offset[row["commitLogOffset"]] == row


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


# ---- which topics and queues


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
@pytest.mark.parametrize(
    ("options", "queues"),
    [
        pytest.param({"subscribe": "TopicB"}, [("TopicB", 0), ("TopicB", 1)], id="subscribe"),
        pytest.param(
            {"subscribe": "t, SCHEDULE_TOPIC_XXXX"},
            [("t", 0), *(("SCHEDULE_TOPIC_XXXX", queue) for queue in (2, 3, 4, 9, 12, 14, 17))],
            id="subscribe to a system topic",
        ),
        pytest.param(
            {"subscribePattern": "Topic[AB]|.*RETRY.*"},
            [
                *(("TopicA", queue) for queue in range(4)), ("TopicB", 0), ("TopicB", 1),
                ("%RETRY%group-1", 0),
            ],
            id="subscribePattern",
        ),
        pytest.param({"subscribePattern": "opic"}, [], id="a pattern matches whole names"),
        pytest.param({"assign": {"TopicA": [3, 1], "order_topic": [7]}},
                     [("TopicA", 1), ("TopicA", 3), ("order_topic", 7)], id="assign"),
    ],
)  # fmt: skip
def test_topics_and_queues_are_chosen(
    golden: Golden, scan: str, options: dict[str, Any], queues: list[tuple[str, int]]
) -> None:
    found = golden.read("basic", scan=scan, columns="commitLogOffset", **options)
    if scan == "queue":
        expected = {
            row["physicalOffset"] for queue in queues for row in queue_rows("basic", *queue)
        }
    else:
        expected = physical(
            [row for row in goldens.records("basic") if (row["topic"], row["queueId"]) in queues]
        )
    assert offsets(found) == expected


NAMES_A_MISSING_TOPIC = [{"subscribe": "TopicA,Typo"}, {"assign": {"Typo": [0], "TopicA": [0]}}]


@pytest.mark.parametrize("options", NAMES_A_MISSING_TOPIC, ids=str)
def test_a_missing_topic_is_refused_with_those_there_are(
    golden: Golden, options: dict[str, Any]
) -> None:
    topics = sorted({topic for topic, _ in goldens.queues("basic")})
    refused(golden.load("basic", **options), "OptionError: no topic Typo", ", ".join(topics))


@pytest.mark.parametrize("options", NAMES_A_MISSING_TOPIC, ids=str)
def test_by_log_the_records_decide_which_topics_there_are(
    golden: Golden, options: dict[str, Any]
) -> None:
    found = golden.read("basic", scan="commitlog", columns="commitLogOffset", **options)
    queues = range(4) if "subscribe" in options else [0]
    rows = [
        row
        for row in goldens.records("basic")
        if row["topic"] == "TopicA" and row["queueId"] in queues
    ]
    assert offsets(found) == physical(rows)


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


# ---- where queues start and end


def spans(found: list[Row]) -> dict[int, tuple[int, int, int]]:
    """Return the first offset, the end offset and the number of messages of each queue."""
    listed: dict[int, list[int]] = {}
    for row in found:
        listed.setdefault(row["queueId"], []).append(row["queueOffset"])
    return {queue: (min(ats), max(ats) + 1, len(ats)) for queue, ats in listed.items()}


def test_a_read_of_no_message_is_an_empty_frame(golden: Golden) -> None:
    fifth = {"TopicA": {"0": 5, "1": 5}}
    nothing = {"assign": {"TopicA": [0, 1]}, "startingOffsets": fifth, "endingOffsets": fifth}
    assert golden.read("basic", **nothing) == []
    assert golden.load("basic", subscribePattern="no such topic").count() == 0


def test_a_group_starts_from_its_committed_offsets(golden: Golden) -> None:
    """config/consumerOffset.json says LivePlain@CG_part {0:16,1:25,2:16,3:16}."""
    columns = {"subscribe": "LivePlain", "columns": "queueId,queueOffset"}
    found = spans(golden.read("live", startingOffsets="group:CG_part", **columns))
    assert found == {0: (16, 53, 37), 1: (25, 53, 28), 2: (16, 52, 36), 3: (16, 52, 36)}
    refused(golden.load("live", startingOffsets="group:CG_none", **columns), "CG_none", "CG_part")


def test_times_by_queue_bound_only_the_queues_named(golden: Golden) -> None:
    middle = [queue_rows("basic", "TopicA", queue)[50]["storeTimestamp"] for queue in (0, 1)]
    found = spans(
        golden.read(
            "basic", assign={"TopicA": [0, 1]}, columns="queueId,queueOffset",
            startingOffsetsByTimestamp={"TopicA": {"0": middle[0]}},
            endingOffsetsByTimestamp={
                "TopicA": {"1": datetime.fromtimestamp(middle[1] / 1000, UTC).isoformat()}
            },
        )
    )  # fmt: skip
    first = [
        next(
            row["queueOffset"]
            for row in queue_rows("basic", "TopicA", queue)
            if row["storeTimestamp"] >= middle[queue]
        )
        for queue in (0, 1)
    ]
    assert found == {0: (first[0], 193, 193 - first[0]), 1: (0, first[1], first[1])}


def test_offsets_that_retention_deleted_are_data_loss(golden: Golden) -> None:
    """Of `expired` ExpA-0 holds 82 to 129, ExpA-1 93 to 127."""
    options = {"subscribe": "ExpA", "columns": "queueId,queueOffset"}
    gone = {"startingOffsets": {"ExpA": {"0": 7}}}
    refused(
        golden.load("expired", **options, **gone), "OffsetOutOfRangeError", "ExpA-0",
        "failOnDataLoss",
    )  # fmt: skip
    found = spans(golden.read("expired", **options, **gone, failOnDataLoss="false"))
    assert found == {0: (82, 129, 47), 1: (93, 127, 34), 2: (100, 139, 39)}
    beyond = {"endingOffsets": {"ExpA": {"1": 500}}}
    refused(golden.load("expired", **options, **beyond), "OffsetOutOfRangeError", "ExpA-1")
    assert spans(golden.read("expired", **options, **beyond, failOnDataLoss="false")) == found


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_a_commitlog_file_gone_from_between_is_data_loss(
    golden: Golden, tmp_path: Path, scan: str
) -> None:
    root = golden.copy("basic", tmp_path / "basic")
    lost = range(131072, 2 * 131072)
    (root / "commitlog" / f"{lost.start:020d}").unlink()
    options = {"columns": "commitLogOffset", "includeSystemTopics": "true", "scan": scan}
    refused(golden.load(root, **options), "OffsetOutOfRangeError", "failOnDataLoss")
    rows = goldens.lines("basic", "expected") if scan == "queue" else goldens.records("basic")
    assert offsets(golden.read(root, **options, failOnDataLoss="false")) == {
        at for at in physical(rows) if at not in lost
    }


# ---- tags, columns, schemas


def test_columns_are_those_of_the_full_read(golden: Golden) -> None:
    names = ["commitLogOffset", "tags", "body", "queueId", "topic"]
    found = golden.load("basic", columns=", ".join(names))
    assert found.schema.fieldNames() == names
    assert same_rows(found, golden.load("basic").select(*names))


def test_a_schema_of_the_user_widens_and_turns_bytes_to_text(golden: Golden) -> None:
    schema = (
        "body string, queueId bigint, commitLogOffset bigint, storeSize bigint, "
        "topic string NOT NULL, keys string"
    )
    found = golden.load("v49", schema=schema)
    columns = "body,queueId,commitLogOffset,storeSize,topic,keys"
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        ("body", "string"), ("queueId", "bigint"), ("commitLogOffset", "bigint"),
        ("storeSize", "bigint"), ("topic", "string"), ("keys", "string"),
    ]  # fmt: skip
    plain = golden.read("v49", columns=columns)
    own = {row["commitLogOffset"]: row for row in plain}
    text = {at for at, row in own.items() if is_text(row["body"])}
    assert len(text) > 100
    for row in collect(found):
        if row["commitLogOffset"] in text:
            stored = own[row["commitLogOffset"]]
            assert row == stored | {"body": stored["body"].decode()}


def test_bodies_that_are_not_text_do_not_fail_when_read_as_string(golden: Golden) -> None:
    found = golden.read("edges", schema="commitLogOffset long, body string")
    bodies = {row["commitLogOffset"]: row["body"] for row in messages("edges")}
    assert any(not is_text(body) for body in bodies.values())
    for row in found:
        assert row["body"] == decode_text(bodies[row["commitLogOffset"]])
    assert offsets(found) == set(bodies)


def test_properties_as_string_are_the_stored_text(golden: Golden) -> None:
    found = golden.read(
        "live", schema="properties string, commitLogOffset long", includeSystemTopics="true"
    )
    expected = {
        row["physicalOffset"]: row["propertiesRaw"] for row in goldens.lines("live", "expected")
    }
    assert {row["commitLogOffset"]: row["properties"] for row in found} == expected


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


# ---- several stores


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


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
@pytest.mark.parametrize("how", ["list", "glob", "uri"])
def test_several_stores_are_read_at_once(
    engine: Engine, brokers: Path, how: str, scan: str
) -> None:
    path: Any = {
        "list": [brokers / "broker-1", brokers / "broker-2"],
        "glob": f"{brokers}/broker-*",
        "uri": f"file://{brokers}/broker-[12]",
    }[how]
    found = _by_broker(read(engine, path, columns="brokerName,commitLogOffset", scan=scan))
    assert found == {
        "broker-1": physical(goldens.lines("one", "expected")),
        "broker-2": physical(goldens.lines("expired", "expected")),
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
    refused(
        load(engine, f"{brokers}/*", subscribe="Two"), "no topic Two", "ExpA, ExpB, OldOnly, One"
    )


def test_folders_that_lie_apart_are_named_by_options(golden: Golden, tmp_path: Path) -> None:
    root = golden.copy("basic", tmp_path / "basic")
    logs = [tmp_path / "disk-1", tmp_path / "disk-2"]
    for log in logs:
        log.mkdir()
    for number, file in enumerate(sorted((root / "commitlog").iterdir())):
        file.rename(logs[number % 2] / file.name)
    (root / "commitlog").rmdir()
    (root / "consumequeue").rename(tmp_path / "queues")
    refused(golden.load(root), "NotAStoreError", "storePathCommitLog")
    found = golden.read(root, includeSystemTopics="true", columns="commitLogOffset",
        storePathCommitLog=", ".join(map(str, logs)),
        storePathConsumeQueue=str(tmp_path / "queues"),
    )  # fmt: skip
    assert offsets(found) == physical(goldens.lines("basic", "expected"))


@pytest.mark.parametrize("path", ["not/there", "."])
def test_what_is_not_a_store_is_refused(engine: Engine, tmp_path: Path, path: str) -> None:
    refused(load(engine, tmp_path / path), "NotAStoreError", str(tmp_path))


# ---- damage


@pytest.fixture(scope="module")
def damaged(
    golden_store: GoldenStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Row]:
    """Return a copy of `basic` with a flipped body byte, and the message's answer-key row."""
    root = Path(
        shutil.copytree(golden_store("basic"), tmp_path_factory.mktemp("damaged") / "basic")
    )
    victim = next(row for row in queue_rows("basic", "TopicA", 1)[60:] if row["bodyBase64"])
    file = root / "commitlog" / f"{victim['physicalOffset'] // 131072 * 131072:020d}"
    data = bytearray(file.read_bytes())
    # 84 bytes of fixed fields with IPv4 hosts, 4 of the body's length
    data[victim["physicalOffset"] % 131072 + 88] ^= 0x20
    file.write_bytes(data)
    return root, victim


@pytest.fixture(params=["queue", "commitlog"])
def damaged_scan(
    request: pytest.FixtureRequest, damaged: tuple[Path, Row]
) -> tuple[Path, Row, dict[str, str]]:
    return *damaged, {"scan": request.param, "includeSystemTopics": "true", "brokerName": "b"}


def _undamaged(scan: str) -> set[int]:
    return physical(
        goldens.lines("basic", "expected") if scan == "queue" else goldens.records("basic")
    )


def test_a_damaged_record_is_named_or_left_out_alone_or_returned_as_it_is(
    engine: Engine, damaged_scan: tuple[Path, Row, dict[str, str]]
) -> None:
    root, victim, options = damaged_scan
    place = victim["physicalOffset"]
    path = root / "commitlog" / f"{place // 131072 * 131072:020d}"
    refused(load(engine, root, **options), "CorruptRecordError", f"{path}, physical offset {place}")
    found = read(engine, root, mode="dropmalformed", columns="commitLogOffset", **options)
    assert offsets(found) == _undamaged(options["scan"]) - {place}
    unchecked = read(engine, root, checkCRC="false", **options)
    assert offsets(unchecked) == _undamaged(options["scan"])
    (own,) = [row["body"] for row in messages("basic") if row["commitLogOffset"] == place]
    (body,) = [row["body"] for row in unchecked if row["commitLogOffset"] == place]
    assert body == bytes([own[0] ^ 0x20]) + own[1:]


def test_permissive_gives_a_row_with_the_reason_for_the_damaged_record(
    engine: Engine, damaged_scan: tuple[Path, Row, dict[str, str]]
) -> None:
    root, victim, options = damaged_scan
    frame = load(engine, root, mode="PERMISSIVE", **options)
    assert frame.columns[-1] == "_corrupt_record"
    found = collect(frame)
    assert offsets(found) == _undamaged(options["scan"])
    (broken,) = [row for row in found if row["_corrupt_record"] is not None]
    assert "CRC" in broken["_corrupt_record"]
    assert str(victim["physicalOffset"]) in broken["_corrupt_record"]
    assert (broken["commitLogOffset"], broken["brokerName"]) == (victim["physicalOffset"], "b")
    for name in ("topic", "queueId", "queueOffset", "storeSize"):
        # The queue confirms these values; a scan by log has only the damaged record for them.
        is_unknown = options["scan"] == "commitlog" and broken[name] is None
        assert broken[name] == victim[name] or is_unknown
    valid = {row["commitLogOffset"]: row for row in found if row["_corrupt_record"] is None}
    for row in messages("basic"):
        if row["commitLogOffset"] != victim["physicalOffset"]:
            expected = {name: row[name] for name in row.keys() - {"offsetMsgId", "tagsCode"}}
            same = valid[row["commitLogOffset"]]
            assert {name: same[name] for name in expected} == expected


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


# ---- crashed stores


@pytest.mark.parametrize("name", goldens.CRASHED)
def test_the_queues_of_a_crashed_store_give_every_record_of_its_log(
    golden: Golden, name: str
) -> None:
    options = {"brokerName": "b", "includeSystemTopics": "true", "columns": ",".join(LOG_COLUMNS)}
    by_log = golden.read(name, scan="commitlog", **options)
    found = golden.read(name, maxBytesPerPartition="20k", **options)
    assert in_queue_order(found) == in_queue_order(by_log)
    served = [row["physicalOffset"] for row in goldens.lines(name, "expected")]
    assert {*served} <= {row["commitLogOffset"] for row in found}


def test_the_log_of_one_node_of_several_is_read_in_many_tasks(
    golden: Golden, tmp_path: Path
) -> None:
    root = golden.copy("dledger-mixed", tmp_path / "s")
    shutil.copytree(root / "dledger-n0", root / "dledger-n1")
    with pytest.raises(Exception, match="choose one of them with dLegerSelfId"):
        golden.read(root, scan="commitlog")
    options = {"dLegerSelfId": "n1", "columns": "commitLogOffset", "maxBytesPerPartition": "10k"}
    for order in ("queue", "commitlog"):
        frame = golden.engine.read.format("rmqstore").options(scan=order, **options).load(str(root))
        assert len(frame.tasks()) > 10
        found = [row.commitLogOffset for row in frame.collect()]
        assert sorted(found) == sorted(physical(goldens.records("dledger-mixed")))
    epochs = golden.load("controller", view="epochs")
    assert [row.epoch for row in epochs.collect()] == [1, 2, 5]


# ---- partitions


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


@pytest.mark.parametrize(
    "options", [{"minPartitions": "9"}, {"maxRecordsPerPartition": "100"}], ids=str
)
def test_splitting_changes_no_row(golden: Golden, options: dict[str, str]) -> None:
    whole = golden.load("live", columns=COMPARABLE)
    assert same_rows(golden.load("live", columns=COMPARABLE, **options), whole)


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


def test_damage_of_a_log_whose_queues_are_gone_is_not_a_silent_end(
    golden: Golden, tmp_path: Path
) -> None:
    root = golden.copy("crash4", tmp_path / "s")
    records = goldens.records("crash4")
    victim = records[-1]["physicalOffset"]  # of which no later record of its queue tells
    file = root / "commitlog" / f"{victim - victim % 65536:020d}"
    data = bytearray(file.read_bytes())
    data[victim % 65536 : victim % 65536 + 8] = b"\xff" * 8
    file.write_bytes(data)
    options = {"columns": "commitLogOffset", "includeSystemTopics": "true"}
    refused(golden.load(root, **options), "CorruptRecordError", str(file), str(victim))
    assert offsets(golden.read(root, mode="DROPMALFORMED", **options)) == physical(records[:-1])
    rows = golden.read(root, mode="PERMISSIVE", **options)
    assert [row["commitLogOffset"] for row in rows if row["_corrupt_record"]] == [victim]


# ---- queues of other kinds


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


def test_an_offset_inside_an_inner_batch_starts_there(golden: Golden) -> None:
    batch = next(row for row in goldens.lines("batch-cq", "expected") if row.get("batchNum", 0) > 3)
    topic, queue_id, start = batch["topic"], batch["queueId"], batch["queueOffset"] + 2
    options = {
        "assign": {topic: [queue_id]},
        "startingOffsets": {topic: {str(queue_id): start}},
        "endingOffsets": {topic: {str(queue_id): start + 1}},
    }
    (row,) = golden.load("batch-cq", columns="queueOffset,body", **options).collect()
    assert (row[0], bytes(row[1])) == (
        start,
        base64.b64decode(batch["innerMessages"][2]["bodyBase64"]),
    )
