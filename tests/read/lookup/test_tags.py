"""Look-ups by tags: all records with the tags, whether or not the index has them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
from goldens import Golden
from reading import column, offsets, read
from rmqstore.errors import OptionError
from rmqstore.storage.broker.folders import find_store

ROLLBACK = 12


def tagged(name: str) -> dict[tuple[str, str], list[int]]:
    """Return the physical offsets of what queues hold, by the topic and tags of the records."""
    places: dict[tuple[str, str], list[int]] = {}
    for row in goldens.lines(name, "expected"):
        if row["tags"]:
            places.setdefault((row["recordTopic"], row["tags"]), []).append(row["physicalOffset"])
    return {key: sorted(set(of_key)) for key, of_key in places.items()}


PLAIN = [
    "basic", "v49", "cq-ext", "lmq", "live", "expired2", "v55-edges", "v55-live-lite", "crash5",
    "rocksdb-cq",
]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_every_message_of_a_queue_is_found_by_its_tags(name: str, golden_store: Golden) -> None:
    records = {row["physicalOffset"] for row in goldens.records(name)}
    with rmqstore.open(golden_store(name)) as store:
        by_tags = {
            (row["topic"], row["tags"], row["commitLogOffset"])
            for row in read(store, scan="commitlog", columns="topic,tags,sysFlag,commitLogOffset")
            if row["sysFlag"] & ROLLBACK != ROLLBACK
        }
        for (topic, tags), places in tagged(name).items():
            answer = store.query(topic, tags=tags)
            found = [message.commitLogOffset for message in answer]
            assert found == sorted(found)
            assert {*places} & records <= {*found}
            assert {(topic, tags, place) for place in found} <= by_tags
            assert answer.is_complete
            assert store.query(topic, tags=tags, limit=2).messages == answer[-2:]
        topics = {topic for topic, _ in tagged(name)}
        every = {tags for _, tags in tagged(name)}
        found = column(store, "commitLogOffset", msg_tags=sorted(every), subscribe=sorted(topics))
        assert {place for of_key in tagged(name).values() for place in of_key} & records <= {*found}


@pytest.mark.parametrize("name", ["v55-edges", "v55-preblank"])
def test_the_index_has_records_that_are_in_no_queue(name: str, golden_store: Golden) -> None:
    """Prepared records of transactions are indexed, and have no unit."""
    with rmqstore.open(golden_store(name)) as store:
        columns = "topic,tags,sysFlag,commitLogOffset"
        rows = read(store, scan="commitlog", columns=columns)
        wanted = [row for row in rows if row["tags"] and row["sysFlag"] & ROLLBACK != ROLLBACK]
        for topic, tags in {(row["topic"], row["tags"]) for row in wanted}:
            expected = [
                row["commitLogOffset"]
                for row in wanted
                if (row["topic"], row["tags"]) == (topic, tags)
            ]
            answer = store.query(topic, tags=tags)
            assert [message.commitLogOffset for message in answer] == expected


def test_times_and_limit_hold(golden_store: Golden) -> None:
    rows = [row for row in goldens.lines("basic", "expected") if row["tags"] == "TagA"]
    topic = rows[0]["topic"]
    own = sorted(
        (row for row in rows if row["topic"] == topic), key=lambda row: row["physicalOffset"]
    )
    times = [row["storeTimestamp"] for row in own]
    begin, end = times[len(times) // 3], times[2 * len(times) // 3]
    with rmqstore.open(golden_store("basic")) as store:
        found = store.query(topic, begin=begin, end=end, tags="TagA")
        assert [message.commitLogOffset for message in found] == [
            row["physicalOffset"] for row in own if begin <= row["storeTimestamp"] <= end
        ]


@pytest.mark.parametrize("beyond", [10**20, -(10**20)])
def test_what_is_not_a_time_is_refused_as_by_a_scan(golden_store: Golden, beyond: int) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        with pytest.raises(OptionError, match=r"begin .*: epoch milliseconds go from"):
            store.query("TopicA", begin=beyond, tags="TagA")
        with pytest.raises(OptionError, match=r"end .*: epoch milliseconds go from"):
            store.query("TopicA", end=beyond, tags="TagA")
        with pytest.raises(OptionError, match=r"ending_timestamp .*: epoch milliseconds go from"):
            store.scan(ending_timestamp=beyond)


def test_without_the_library_for_rocksdb_the_log_is_read_on_request(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    (topic, tags), places = max(tagged("rocksdb-cq").items(), key=lambda item: len(item[1]))
    with rmqstore.open(golden_store("rocksdb-cq")) as store:
        answer = store.query(topic, tags=tags)
        assert not answer.is_complete
        scanned = store.query(topic, tags=tags, scan_uncovered=True)
        assert {*places} <= {message.commitLogOffset for message in scanned}
        assert scanned.is_complete
        look_up = {"msg_tags": tags, "subscribe": topic, "columns": "commitLogOffset"}
        assert {*places} <= {*offsets(read(store, **look_up))}
        assert offsets(read(store, **look_up, index_only=True)) == []


def test_lost_queues_are_taken_from_the_log(copied: Golden) -> None:
    root = copied("v55-edges")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with rmqstore.open(root) as store:
        for (topic, tags), places in tagged("v55-edges").items():
            assert [found.commitLogOffset for found in store.query(topic, tags=tags)] == places


def test_messages_that_we_wrote_are_found(tmp_path: Path) -> None:
    rows = [{"topic": "T", "body": b"x", "tags": tags} for tags in ("Aa", "BB", None, "Aa")]
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(pa.RecordBatch.from_pylist(rows))
    with rmqstore.open(tmp_path / "s") as store:
        found = store.query("T", tags="Aa")
        assert [message.tags for message in found] == ["Aa", "Aa"], "BB has the same hash"
        assert not store.query("T", tags="B")
        rows = store.scan(msg_tags=["Aa", "BB"], columns="tags").read_all()["tags"].to_pylist()
        assert rows == ["Aa", "BB", "Aa"]
    assert find_store(tmp_path / "s").queue_folders.topics() == ["T"]


def test_a_lost_extension_unit_loses_no_message(copied: Golden) -> None:
    root = copied("cq-ext")
    (topic, tags), places = max(tagged("cq-ext").items(), key=lambda item: len(item[1]))
    shutil.rmtree(root / "consumequeue_ext")
    with rmqstore.open(root) as store:
        assert {*places} <= {message.commitLogOffset for message in store.query(topic, tags=tags)}


def test_a_query_is_of_a_key_or_of_tags(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("one")) as store:
        with pytest.raises(OptionError, match="give a key or tags"):
            store.query("T")
        with pytest.raises(OptionError, match="give one of them"):
            store.query("T", "k", tags="t")
