"""Stores of which this version cannot read a part: every read refuses, or says what it lacks."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from reading import by_queue, offsets, read
from rmqstore import UnsupportedFeatureError
from rmqstore.inspect.report import gather
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.source.tail import StoreTail

IN_BOTH = ("v55-combine-cq", "v55-combine-lmq", "v55-cq-separate")
LMQS_APART = ("v55-combine-lmq", "v55-cq-separate")
LMQ_PREFIX = "%LMQ%"


@pytest.fixture
def without_rocksdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as without the extra ``rocksdb``."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)


def lmq_counts(name: str) -> dict[str, int]:
    return Counter(
        row["topic"]
        for row in goldens.lines(name, "expected")
        if row["topic"].startswith(LMQ_PREFIX)
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("without_rocksdb")
@pytest.mark.parametrize("name", IN_BOTH)
def test_queues_in_files_are_read_where_others_lie_in_rocksdb(
    golden_store: Golden, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        rmqstore.open(golden_store(name), broker_name="b") as store,
        caplog.at_level(logging.WARNING),
    ):
        assert by_queue(read(store, include_system_topics=False)) == {
            queue: rows
            for queue, rows in goldens.by_queue(name, "b").items()
            if not queue[0].startswith(LMQ_PREFIX)
        }
        assert not warnings(caplog)
        assert offsets(read(store, scan="commitlog")) == [
            row["physicalOffset"] for row in goldens.records(name)
        ]


@pytest.mark.usefixtures("without_rocksdb")
@pytest.mark.parametrize("name", LMQS_APART)
def test_lmqs_that_are_only_in_rocksdb_are_reported_with_numbers(
    golden_store: Golden, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts = lmq_counts(name)
    n_messages = sum(counts.values())
    assert n_messages
    ways: list[Callable[[rmqstore.MessageStore], Any]] = [
        read,
        lambda store: read(store, subscribe_pattern=".*"),
        lambda store: store.view("queues", include_system_topics=True).read_all(),
        lambda store: store.view("topics", include_system_topics=True).read_all(),
        lambda store: store.view("consumequeue", include_system_topics=True).read_all(),
        lambda store: StoreTail(store.parts, parse_selection(include_system_topics=True)).poll(),
    ]
    for way in ways:
        caplog.clear()
        with rmqstore.open(golden_store(name)) as store, caplog.at_level(logging.WARNING):
            way(store)
        about_rocksdb = [text for text in warnings(caplog) if "RocksDB" in text]
        assert len(about_rocksdb) == 1
        assert about_rocksdb[0].startswith(f"{n_messages} messages of light message queues ")
        assert min(counts) in about_rocksdb[0]
    with rmqstore.open(golden_store(name)) as store:
        topic = min(counts)
        for selection in ({"subscribe": [topic]}, {"assign": {topic: [0]}}):
            with pytest.raises(
                UnsupportedFeatureError, match=f"^{counts[topic]} messages.*RocksDB"
            ):
                read(store, **selection)
            with pytest.raises(UnsupportedFeatureError, match="RocksDB"):
                StoreTail(store.parts, parse_selection(**selection)).poll()
        assert any(str(n_messages) in note for note in gather(store, with_verify=False).notes)


@pytest.mark.usefixtures("without_rocksdb")
@pytest.mark.parametrize("name", IN_BOTH)
def test_verify_leaves_out_what_is_in_rocksdb_and_says_so(
    golden_store: Golden, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(golden_store(name)) as store, caplog.at_level(logging.WARNING):
        assert list(verify(store)) == []
    assert any("not compared" in text for text in warnings(caplog))


@pytest.mark.parametrize("name", [*IN_BOTH, *goldens.IN_ROCKSDB])
def test_all_queues_are_read_and_compared_with_the_log(
    golden_store: Golden, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = goldens.by_queue(name, "b")
    with (
        rmqstore.open(golden_store(name), broker_name="b") as store,
        caplog.at_level(logging.WARNING),
    ):
        assert by_queue(read(store)) == expected
        assert list(verify(store)) == []
        facts = store.view("queues", include_system_topics=True).read_all().to_pylist()
        assert {(row["topic"], row["queueId"]): row["messages"] for row in facts} == {
            queue: len(rows) for queue, rows in expected.items()
        }
        units = store.view("consumequeue", include_system_topics=True).read_all()
        assert units.num_rows == sum(map(len, expected.values()))
        assert all(units.column("isValid").to_pylist())
        gather(store)
    # A store without a broker around it has no table of offsets.
    known = "consumerOffset.json is missing", "is not foretold for queues in RocksDB"
    assert [text for text in warnings(caplog) if not any(one in text for one in known)] == []


@pytest.mark.parametrize("name", [*IN_BOTH, "rocksdb-cq"])
def test_a_store_with_queues_in_rocksdb_is_not_written_to(copied: Golden, name: str) -> None:
    root = copied(name)
    with pytest.raises(UnsupportedFeatureError, match="RocksDB"):
        rmqstore.open(root, mode="a")


@pytest.mark.usefixtures("without_rocksdb")
@pytest.mark.parametrize("step", tiers.sampled(9, 1))
@pytest.mark.parametrize("name", IN_BOTH)
def test_look_ups_find_every_key_beside_rocksdb(golden_store: Golden, name: str, step: int) -> None:
    with rmqstore.open(golden_store(name)) as store:
        for keyed in goldens.lines(name, "keys")[::step]:
            found = {
                message.commitLogOffset for message in store.query(keyed["topic"], keyed["key"])
            }
            assert found <= set(keyed["physicalOffsets"])
            assert found or not keyed["physicalOffsets"]


@pytest.mark.usefixtures("without_rocksdb")
def test_a_look_up_without_topics_is_refused_where_only_rocksdb_knows_them(
    golden_store: Golden,
) -> None:
    record = goldens.records("rocksdb-cq")[0]
    key = record["uniqKey"] or record["keys"].split(" ")[0]
    with rmqstore.open(golden_store("rocksdb-cq")) as store:
        with pytest.raises(UnsupportedFeatureError, match=r"RocksDB.*subscribe"):
            store.scan(msg_key=key).read_all()
        assert store.scan(msg_key=key, subscribe=record["topic"]).read_all().num_rows
