"""Shares of queues among clients, with the backlog that each gets."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
from rmqstore.errors import CorruptConfigError, OptionError
from rmqstore.inspect.assignments import assign
from rmqstore.query.allocation import Allocation, MessageQueue
from rmqstore.store.message_store import MessageStore

QUEUES = [MessageQueue("T", f"{room}@b", number) for room in ("r1", "r2") for number in range(3)]


def test_each_strategy_shares_in_its_own_way() -> None:
    clients = ["r1@c2", "r1@c1"]
    averagely = Allocation().shares(QUEUES, clients)
    assert averagely == {"r1@c1": QUEUES[:3], "r1@c2": QUEUES[3:]}
    circle = Allocation("AVG_BY_CIRCLE").shares(QUEUES, clients)
    assert circle == {"r1@c1": QUEUES[::2], "r1@c2": QUEUES[1::2]}
    rooms = Allocation("MACHINE_ROOM", frozenset({"r2"})).shares(QUEUES, clients)
    assert rooms == {"r1@c1": [QUEUES[3], QUEUES[5]], "r1@c2": [QUEUES[4]]}
    nearby = Allocation("MACHINE_ROOM_NEARBY").shares(QUEUES, [*clients, "r2@c3"])
    assert nearby == {"r1@c1": QUEUES[:2], "r1@c2": QUEUES[2:3], "r2@c3": QUEUES[3:]}
    hashed = Allocation("CONSISTENT_HASH").shares(QUEUES, clients)
    assert sorted(hashed["r1@c1"] + hashed["r1@c2"]) == QUEUES
    configured = Allocation("CONFIG", configured={"r1@c1": QUEUES[:1]}).shares(QUEUES, clients)
    assert configured == {"r1@c1": QUEUES[:1], "r1@c2": []}


@pytest.mark.parametrize(
    ("allocation", "clients", "text"),
    [
        (Allocation(), [], "at least one client"),
        (Allocation("NONE"), ["c"], "must be one of AVG"),
        (Allocation("CONFIG"), ["c"], "give the queues"),
        (Allocation("MACHINE_ROOM"), ["c"], "name those"),
        (Allocation("MACHINE_ROOM_NEARBY"), ["c"], "'c' does not name its room"),
    ],
)
def test_what_a_strategy_lacks_is_named(
    allocation: Allocation, clients: list[str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        allocation.shares(QUEUES, clients)


def store(root: Path, name: str, n_messages: int, committed: dict[str, int]) -> MessageStore:
    with rmqstore.create(root) as writer:
        for queue_id in range(4):
            queue_ids = pa.array([queue_id] * n_messages, pa.int32())
            given = {"topic": ["T"] * n_messages, "queueId": queue_ids, "body": [b"x"] * n_messages}
            writer.append(pa.RecordBatch.from_pydict(given))
    offsets = {"offsetTable": {"T@group": committed}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return rmqstore.open(root, broker_name=name)


def test_the_backlog_of_a_cluster(tmp_path: Path) -> None:
    first = store(tmp_path / "a", "broker-a", 10, {"0": 4, "1": 10, "2": 0})
    second = store(tmp_path / "b", "broker-b", 5, {"0": 5})
    with first, second:
        rows = [*assign([second, first], "group", ["c2", "c1", "c3"])]
        named = [*assign([first], "other", ["c"], topics=["T"])]
        with pytest.raises(OptionError, match="no broker serves U to consumers"):
            [*assign([first], "group", ["c"], topics=["U"])]
        with pytest.raises(OptionError, match="group other has no offsets"):
            [*assign([first], "other", ["c"])]
        twice = [*assign([second, first, first], "group", ["c2", "c1", "c3"])]
        with (
            rmqstore.open(tmp_path / "b", broker_name="broker-a") as other,
            pytest.raises(OptionError, match="both of broker broker-a"),
        ):
            [*assign([first, other], "group", ["c"])]
    assert twice == rows
    shown = [(row.client_id, row.broker_name, row.queue_id, row.lag) for row in rows]
    assert shown == [
        ("c1", "broker-a", 0, 6), ("c1", "broker-a", 1, 0), ("c1", "broker-a", 2, 10),
        ("c2", "broker-a", 3, 10), ("c2", "broker-b", 0, 0), ("c2", "broker-b", 1, 5),
        ("c3", "broker-b", 2, 5), ("c3", "broker-b", 3, 5),
    ]  # fmt: skip
    assert rows[3].consumer_offset is None
    size = rows[2].lag_bytes // 10
    assert [row.lag_bytes for row in rows] == [row.lag * size for row in rows]
    assert [(row.lag, row.max_offset) for row in named] == [(10, 10)] * 4


@pytest.mark.parametrize("count", ["x", 3_000_000])
def test_a_damaged_number_of_queues_is_named(tmp_path: Path, count: object) -> None:
    with store(tmp_path / "a", "broker-a", 1, {}) as only:
        path = tmp_path / "a" / "config" / "topics.json"
        table = json.loads(path.read_text())
        table["topicConfigTable"]["T"]["readQueueNums"] = count
        path.write_text(json.dumps(table))
        with pytest.raises(CorruptConfigError, match="T"):
            [*assign([only], "g", "c", topics="T")]


def test_without_its_tables_a_broker_is_not_said_to_serve_nothing(tmp_path: Path) -> None:
    with store(tmp_path / "a", "broker-a", 3, {"0": 1}) as only:
        config = tmp_path / "a" / "config"
        (config / "consumerOffset.json").write_bytes(b"")
        rows = [*assign([only], "group", ["c"], topics=["T"])]
        assert {(row.max_offset, row.lag, row.lag_bytes) for row in rows} == {(3, None, None)}
        assert all("consumerOffset.json is empty" in (row.reason or "") for row in rows)
        with pytest.raises(OptionError, match=r"consumerOffset\.json is empty"):
            [*assign([only], "group", ["c"])]
        for path in config.glob("topics.json*"):
            path.unlink()
        with pytest.raises(OptionError, match=r"serves T to consumers; .*topics\.json is missing"):
            [*assign([only], "group", ["c"], topics=["T"])]


def test_queues_that_nobody_gets_are_named(tmp_path: Path) -> None:
    with store(tmp_path / "a", "r1@a", 1, {}) as only:
        allocation = Allocation("MACHINE_ROOM", frozenset({"r2"}))
        rows = [*assign([only], "g", ["c"], topics=["T"], allocation=allocation)]
    assert [row.client_id for row in rows] == [None] * 4


def test_configured_queues_of_several_topics_come_once(tmp_path: Path) -> None:
    """CONFIG gives a client the same queues whenever the queues of a topic are shared."""
    with rmqstore.create(tmp_path / "a") as writer:
        for topic, n_messages in (("T", 3), ("U", 5)):
            queue_ids = pa.array([0] * n_messages, pa.int32())
            given = {
                "topic": [topic] * n_messages,
                "queueId": queue_ids,
                "body": [b"x"] * n_messages,
            }
            writer.append(pa.RecordBatch.from_pydict(given))
    build.write_offsets(tmp_path / "a", {})
    queues = [MessageQueue(topic, "b", 0) for topic in ("T", "U")]
    allocation = Allocation("CONFIG", configured={"c": queues})
    with rmqstore.open(tmp_path / "a", broker_name="b") as only:
        rows = [*assign([only], "g", ["c"], topics=["T", "U"], allocation=allocation)]
    owned = [(row.topic, row.queue_id, row.lag) for row in rows if row.client_id == "c"]
    assert owned == [("T", 0, 3), ("U", 0, 5)]
