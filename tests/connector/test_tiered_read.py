"""Reads and streams of tiered storage, alone and before the local store that it continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan, LessThanOrEqual

import goldens
import rmqstore
from connector.engine import Engine
from connector.sparkreads import Golden, GoldenStore, in_queue_order, messages
from connector.streams import delivered, drain
from pyspark_rmqstore.options import parse_stream_options
from reading import TOLD_COLUMNS, by_queue, read as read_core
from tier_builder import KEYS, TieringBroker

ALL = {"columns": ",".join(TOLD_COLUMNS), "brokerName": "b"}


@pytest.mark.parametrize("name", goldens.IN_TIER)
def test_every_message_in_many_tasks(golden: Golden, name: str) -> None:
    root = golden.path(name)
    tier = root / "tieredstore"
    assert in_queue_order(golden.read(tier, **ALL)) == messages(name)
    frame = golden.load(root, tiered=str(tier), maxBytesPerPartition="10k", **ALL)
    assert len(frame.tasks()) > 10
    with rmqstore.open(root, tiered=tier, broker_name="b") as store:
        expected = by_queue(read_core(store))
    found = in_queue_order(
        golden.read(root, tiered=str(tier), maxBytesPerPartition="10k", minPartitions="30", **ALL)
    )
    assert by_queue(found) == expected
    some = frame.where(
        EqualTo(("topic",), "TierA"), GreaterThanOrEqual(("queueOffset",), 60),
        LessThanOrEqual(("queueOffset",), 99), LessThan(("queueId",), 2),
    )  # fmt: skip
    for one in (some, some.pushing()):
        offsets = [(row.queueId, row.queueOffset) for row in one.collect()]
        assert sorted(offsets) == [(queue, offset) for queue in (0, 1) for offset in range(60, 100)]
    keys = next(row["keys"] for row in expected["TierB", 0] if row["keys"])
    keyed = [row for rows in expected.values() for row in rows if row["keys"] == keys]
    assert frame.where(EqualTo(("keys",), keys)).pushing().count() == len(keyed)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "not closed"])
def test_a_stream_gives_each_message_once_while_it_moves(
    engine: Engine, tmp_path: Path, is_open: bool
) -> None:
    broker = TieringBroker(tmp_path)
    folder, options = tmp_path / "query", {"startingOffsets": "earliest"}
    tiered = options | {"tiered": str(broker.tier)}
    for _ in range(3):
        for key in KEYS:
            broker.put(key, 20)
    broker.expire()
    n_triggers = len(drain(engine, broker.root, folder, maxOffsetsPerTrigger="50", **tiered))
    assert n_triggers == 4
    for _ in range(2):
        for key in KEYS:
            broker.put(key, 20)
        broker.expire()  # of messages that the stream has not read too
        broker.put(KEYS[0], 5)
        if is_open:
            (broker.root / "abort").touch()
            (broker.root / "lock").write_bytes(b"lock")
        drain(engine, broker.root, folder, maxBytesPerTrigger="4k", **tiered)
    assert delivered(engine, folder) == broker.numbered()
    alone = tmp_path / "alone"
    drain(engine, broker.tier, alone, **options)
    broker.expire()
    drain(engine, broker.tier, alone, **options)
    assert delivered(engine, alone) == broker.numbered()
    with rmqstore.open(broker.root) as store:
        assert store.count() < sum(map(len, broker.numbered().values())) / 2


@pytest.mark.parametrize("name", goldens.IN_TIER)
def test_a_stream_of_a_real_tier(golden: Golden, tmp_path: Path, name: str) -> None:
    root = golden.path(name)
    tiered = {"tiered": str(root / "tieredstore"), "startingOffsets": "earliest"}
    drain(golden.engine, root, tmp_path / "q", maxOffsetsPerTrigger="100", **tiered)
    with rmqstore.open(root, tiered=root / "tieredstore") as store:
        expected = by_queue(read_core(store, columns="topic,queueId,queueOffset"))
    found = delivered(golden.engine, tmp_path / "q")
    assert {key: [offset for offset, _ in rows] for key, rows in found.items()} == {
        key: [row["queueOffset"] for row in rows] for key, rows in expected.items()
    }


def test_a_stream_without_the_tier_names_the_option(
    golden_store: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("tiered")
    for others, is_warned in (({}, True), ({"tiered": str(root / "tieredstore")}, False)):
        caplog.clear()
        read = parse_stream_options({"path": str(root), **others}).read
        stream = read.source.follow(read.request)
        stream.found()
        stream.close()
        assert ("tiered= with the broker's tieredStoreFilePath" in caplog.text) == is_warned
