"""Streams: every message once, in triggers of the requested size, while the stores change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import rmqstore
from connector.engine import Engine
from connector.sparkreads import Golden
from connector.streams import SIZES, Clock, add, delivered, drain, put, start
from reading import column
from rmqstore.store.opening import create

EARLIEST = {"startingOffsets": "earliest"}


def numbered(start: int, end: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(start, end)]


def rows(start: int, end: int) -> list[tuple[int, str]]:
    return [(number, f"m{number}") for number in range(start, end)]


def end_offset(progress: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = progress["sources"][0]["endOffset"]
    return found


def failure(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def require_what_a_batch_gives(golden: Golden, root: Path, state: Path, **options: Any) -> None:
    found = delivered(golden.engine, state)
    offsets = [(*key, offset) for key, rows in found.items() for offset, _ in rows]
    with rmqstore.open(root) as store:
        batch = store.scan(columns="topic,queueId,queueOffset", **options).read_all().to_pylist()
    assert sorted(offsets) == sorted(tuple(row.values()) for row in batch)


@pytest.mark.parametrize(
    "name",
    [
        "basic", "edges", "live", "expired", "crash", "crash4", "default-sizes", "lmq",
        "dledger-mixed", "dledger-crash",
    ],
)  # fmt: skip
def test_a_stream_to_the_present_gives_what_a_batch_gives(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    root = golden.path(name)
    drain(golden.engine, root, tmp_path, **EARLIEST)
    require_what_a_batch_gives(golden, root, tmp_path)
    assert not drain(golden.engine, root, tmp_path, **EARLIEST)


@pytest.mark.parametrize(
    ("name", "options"),
    [("lmq", {"subscribe": "%LMQ%sub_3,%LMQ%sub_1"}), ("batch-cq", {"subscribe": "BatchA"})],
)
def test_triggers_of_few_messages_lose_none_of_other_kinds_of_queues(
    golden: Golden, tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    """Of an inner batch a trigger may take a part."""
    root = golden.path(name)
    found = drain(golden.engine, root, tmp_path, **EARLIEST, **options, maxOffsetsPerTrigger="31")
    assert {one["numInputRows"] for one in found[:-1]} == {31}
    assert len(found) > 3
    require_what_a_batch_gives(golden, root, tmp_path, **options)


def test_a_running_query_sees_what_is_written_new_queues_and_topics_too(
    engine: Engine, tmp_path: Path
) -> None:
    with create(tmp_path / "s", config=SIZES) as writer:
        put(writer, "A", 0, numbered(0, 10))
        query = start(engine, tmp_path / "s", tmp_path / "q")
        query.trigger()
        put(writer, "A", 0, numbered(10, 500))  # over the ends of several files
        put(writer, "A", 1, numbered(0, 5))
        put(writer, "New", 2, numbered(0, 7))
        query.trigger()
        expected = {("A", 0): rows(10, 500), ("A", 1): rows(0, 5), ("New", 2): rows(0, 7)}
        assert delivered(engine, tmp_path / "q") == expected
        put(writer, "New", 2, numbered(7, 9))
        query.trigger()
        expected["New", 2] = rows(0, 9)
        assert delivered(engine, tmp_path / "q") == expected
        assert not query.trigger()
        query.stop()


def test_triggers_take_so_many_bytes(engine: Engine, tmp_path: Path) -> None:
    add(
        tmp_path / "s", ("A", 0, numbered(0, 100)), ("A", 0, ["x" * 3000]),
        ("A", 0, numbered(0, 100)),
    )  # fmt: skip
    found = drain(engine, tmp_path / "s", tmp_path / "q", **EARLIEST, maxBytesPerTrigger="2k")
    assert len(delivered(engine, tmp_path / "q")["A", 0]) == 201
    sizes = column(tmp_path / "s", "storeSize")
    taken = [one["numInputRows"] for one in found]
    starts = [sum(taken[:number]) for number in range(len(taken))]
    by_trigger = [sum(sizes[at : at + count]) for at, count in zip(starts, taken, strict=True)]
    assert all(
        n_bytes <= 2048 or count == 1 for n_bytes, count in zip(by_trigger, taken, strict=True)
    )
    assert len(taken) < sum(sizes) / 2048 * 1.5


def test_few_messages_wait_for_more_or_for_the_delay(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("pyspark_rmqstore.stream_reader.monotonic", clock.monotonic)
    options = EARLIEST | {"minOffsetsPerTrigger": "100", "maxTriggerDelay": "5s"}
    with create(tmp_path / "s", config=SIZES) as writer:
        put(writer, "A", 0, numbered(0, 10))
        query = start(engine, tmp_path / "s", tmp_path / "q", **options)
        assert query.trigger(), "the first does not wait"
        put(writer, "A", 0, numbered(10, 20))
        clock.sleep(4.9)
        assert not query.trigger()
        clock.sleep(0.2)
        assert query.trigger()
        assert delivered(engine, tmp_path / "q") == {("A", 0): rows(0, 20)}
        put(writer, "A", 0, numbered(20, 200))
        assert query.trigger()
        assert delivered(engine, tmp_path / "q") == {("A", 0): rows(0, 200)}
        put(writer, "A", 0, numbered(200, 299))
        assert not query.trigger()
        query.stop()
    options |= {"minOffsetsPerTrigger": "60", "maxOffsetsPerTrigger": "60"}
    found = drain(engine, tmp_path / "s", tmp_path / "q", **options)
    assert [one["numInputRows"] for one in found] == [60, 39], "no minimum under AvailableNow"
    assert delivered(engine, tmp_path / "q") == {("A", 0): rows(0, 299)}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 20), ({"startingOffsets": "latest"}, 20), ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": {"A": {"0": 7}}}, 7), ({"startingOffsets": {"A": {"0": -2}}}, 0),
        ({"startingOffsets": "group:readers"}, 12), ({"startingTimestamp": "0"}, 0),
    ],
)  # fmt: skip
def test_a_new_query_starts_where_its_options_say(
    engine: Engine, tmp_path: Path, options: dict[str, object], first: int
) -> None:
    with create(tmp_path / "s", config=SIZES) as writer:
        put(writer, "A", 0, numbered(0, 20))
        table = {"offsetTable": {"A@readers": {"0": 12}}}
        (tmp_path / "s" / "config" / "consumerOffset.json").write_text(json.dumps(table))
        query = start(engine, tmp_path / "s", tmp_path / "q", **options)
        query.trigger()
        put(writer, "A", 0, numbered(20, 23))
        query.trigger()
        query.stop()
    assert delivered(engine, tmp_path / "q") == {("A", 0): rows(first, 23)}
