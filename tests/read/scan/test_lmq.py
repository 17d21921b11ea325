"""Light message queues: units that point at records of other topics, intact, lost and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from reading import by_queue, column, read
from rmqstore.errors import CorruptRecordError
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.read.store_parts import open_parts
from rmqstore.source.tail import StoreTail
from rmqstore.storage.broker.store_config import StoreConfig

NAME, LMQ = "lmq", "%LMQ%sub_3"
CONFIG = StoreConfig().updated(goldens.summary("lmq")["conf"])
EVERYTHING = goldens.by_queue(NAME, "b")


@pytest.fixture
def copied(golden_store: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_store(NAME), tmp_path / "s"))


def test_messages_are_at_the_requested_queue_offset(golden_store: Golden) -> None:
    with rmqstore.open(golden_store(NAME), broker_name="b") as store:
        assert by_queue(read(store)) == EVERYTHING
        assert by_queue(read(store, subscribe=LMQ)) == {(LMQ, 0): EVERYTHING[LMQ, 0]}
        within = read(
            store,
            assign={LMQ: [0]},
            starting_offsets={LMQ: {"0": 5}},
            ending_offsets={LMQ: {"0": 19}},
        )
        assert within == EVERYTHING[LMQ, 0][5:19]


def test_without_a_selection_they_come_with_the_system_topics_only(golden_store: Golden) -> None:
    assert {*column(golden_store(NAME), "topic", include_system_topics=False)} == {"Parent"}


@pytest.mark.parametrize("columns", ["topic", "queueOffset,queueId", "tags", "body", "properties"])
def test_some_columns_equal_those_among_all(golden_store: Golden, columns: str) -> None:
    names = columns.split(",")
    with rmqstore.open(golden_store(NAME)) as store:
        found = read(store, columns=columns, subscribe=LMQ)
        tag = "TagB"
        tagged = read(store, columns=columns, subscribe=LMQ, tags=tag)
    expected = EVERYTHING[LMQ, 0]
    assert found == [{name: row[name] for name in names} for row in expected]
    assert tagged == [{name: row[name] for name in names} for row in expected if row["tags"] == tag]
    assert tagged


def test_missing_units_are_named(copied: Path) -> None:
    units = copied / "consumequeue" / LMQ / "0"
    newest = max(units.iterdir())
    n_units = len(EVERYTHING[LMQ, 0]) - int(newest.name) // 20
    newest.unlink()
    with rmqstore.open(copied) as store:
        (found,) = verify(store)
    assert (found.part, found.place) == ("queue", f"{LMQ}-0")
    assert (n_units, found.text.partition(",")[0]) == (1, "1 record has no unit")


@pytest.mark.parametrize("lost", [[LMQ], [LMQ, "%LMQ%sub_0", "Parent"], []])
def test_units_that_a_crash_lost_are_taken_from_the_log(copied: Path, lost: list[str]) -> None:
    """Those of the newest files of some topics, or all of a store that was closed."""
    for topic in lost:
        for queue in (copied / "consumequeue" / topic).iterdir():
            max(queue.iterdir()).unlink()
    if lost:
        (copied / "abort").touch()
    else:
        shutil.rmtree(copied / "consumequeue")
    with rmqstore.open(copied, broker_name="b") as store:
        assert by_queue(read(store)) == EVERYTHING
        assert store.queue_range(LMQ, 0) == (0, len(EVERYTHING[LMQ, 0]))


def test_a_stream_follows_them(golden_store: Golden, tmp_path: Path) -> None:
    """The log and the queues are given back step by step: a queue shows what its files have."""
    whole, root = golden_store(NAME), tmp_path / "s"
    shutil.copytree(whole, root)
    units = sorted((root / "consumequeue" / LMQ / "0").iterdir())
    log = sorted((root / "commitlog").iterdir())
    assert len(units) > 2
    assert len(log) > 1
    cut = next(
        row for row in goldens.records(NAME) if row["physicalOffset"] > int(log[-1].name) + 1000
    )
    data = log[-1].read_bytes()
    at = cut["physicalOffset"] - int(log[-1].name)
    log[-1].write_bytes(data[:at] + bytes(len(data) - at))
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            held = path.read_bytes()
            kept = b"".join(
                held[one : one + 20]
                for one in range(0, len(held), 20)
                if int.from_bytes(held[one : one + 8]) < cut["physicalOffset"]
            )
            path.write_bytes(kept.ljust(len(held), b"\0"))
    tail = StoreTail(open_parts(root), parse_selection(subscribe=LMQ))
    tail.poll()
    before = sum(row["commitLogOffset"] < cut["physicalOffset"] for row in EVERYTHING[LMQ, 0])
    assert tail.ends == {(LMQ, 0): before}
    for path in (root / "consumequeue" / LMQ / "0").iterdir():
        with path.open("r+b") as file:
            file.write((whole / path.relative_to(root)).read_bytes())
    with log[-1].open("r+b") as file:
        file.write(data)
    tail.poll()
    assert before < len(EVERYTHING[LMQ, 0])
    assert tail.ends == {(LMQ, 0): len(EVERYTHING[LMQ, 0])}


def _store(names: str, numbers: str, **change: object) -> build.Store:
    """Return a store of one parent record, whose one light message queue has the unit number 0."""
    store = build.Store()
    pairs = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": numbers}
    placed = store.append(build.Record("Parent", 2, properties=build.properties(pairs), **change))  # type: ignore[arg-type]
    store.queues["%LMQ%a", 0] = [(placed.physical_offset, placed.size, 0)]
    return store


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ("%LMQ%a", "0"), ("%LMQ%b,%LMQ%a", "7,0"), ("other,%LMQ%a,%LMQ%a", "1,5,0"),
        ("%LMQ%a,", "0"), ("%LMQ%b,%LMQ%a,,", "7,0"), ("%LMQ%a", "1"),
    ],
)  # fmt: skip
def test_a_record_that_names_the_queue_is_its_message(
    tmp_path: Path, names: str, numbers: str
) -> None:
    root = _store(names, numbers).write(tmp_path / "s")
    (row,) = read(root, subscribe="%LMQ%a", columns="topic,queueId,queueOffset")
    assert row == {"topic": "%LMQ%a", "queueId": 0, "queueOffset": 0}


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ("%LMQ%b", "0"), ("%LMQ%a,%LMQ%b", "0"), ("%LMQ%a", "0,0"),
        ("%LMQ%a", "x"), ("%LMQ%ab", "0"), ("%LMQ%a", "9" * 30), (",%LMQ%a", "0,"),
        ("%LMQ%a", "-0"), ("%LMQ%a,other", "0,"), (",%LMQ%a", "0"), (",", "0"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_is_damage(tmp_path: Path, names: str, numbers: str) -> None:
    root = _store(names, numbers).write(tmp_path / "s")
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptRecordError, match="the record does not name %LMQ%a"):
            read(store, subscribe="%LMQ%a")
        assert read(store, subscribe="%LMQ%a", mode="DROPMALFORMED") == []
        (row,) = read(store, subscribe="%LMQ%a", mode="PERMISSIVE")
        assert (row["topic"], row["queueOffset"], row["body"]) == ("%LMQ%a", 0, None)
        assert len(read(store, subscribe="Parent")) == 1


def test_copies_in_retry_and_schedule_topics_are_not_dispatched(tmp_path: Path) -> None:
    """They have the properties of a message that is in the queue already."""
    store = _store("%LMQ%a", "0")
    pairs = build.properties({"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"})
    for topic in ("%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        store.append(build.Record(topic, 0, properties=pairs))
    root = store.write(tmp_path / "s")
    shutil.rmtree(root / "consumequeue")
    with rmqstore.open(root) as opened:
        assert opened.queue_range("%LMQ%a", 0) == (0, 1)
        assert len(read(opened, subscribe="%LMQ%a")) == 1
    (root / "abort").touch()
    assert len(read(root, subscribe="%LMQ%a")) == 1


def test_records_of_batch_topics_are_not_dispatched(tmp_path: Path) -> None:
    """A broker counts their offsets in light message queues, and puts no unit there."""
    store = _store("%LMQ%a", "0")
    pairs = build.properties({"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "1"})
    store.append(build.Record("Batch", 0, properties=pairs), queued=False)
    root = store.write(tmp_path / "s", abort=True)
    build.write_config(root, topics=["Parent"])
    batch = {"topicName": "Batch", "attributes": {"queue.type": "BatchCQ"}}
    table = {"topicConfigTable": {"Parent": {"topicName": "Parent"}, "Batch": batch}}
    (root / "config" / "topics.json").write_text(json.dumps(table))
    with rmqstore.open(root) as opened:
        assert opened.queue_range("Batch", 0) == (0, 1)
        assert opened.queue_range("%LMQ%a", 0) == (0, 1)
        assert len(read(opened, subscribe="%LMQ%a")) == 1
    with rmqstore.open(root, "a", config=CONFIG):
        pass
    with rmqstore.open(root) as opened:
        assert list(verify(opened)) == []
        tail = StoreTail(opened.parts, parse_selection(subscribe=["%LMQ%a", "Batch"]))
        tail.poll()
        assert tail.ends == {("Batch", 0): 1, ("%LMQ%a", 0): 1}
