"""What a store is: one row, whatever its kind and its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import command_line
import goldens
import rmqstore
from goldens import Golden
from memory_storage import MemoryStorage
from rmqstore.errors import UnsupportedFeatureError
from rmqstore.inspect.describe import DESCRIPTION, describe
from rmqstore.storage.files.lock import StoreLock


def row_of(root: Path, **how: Any) -> dict[str, Any]:
    with rmqstore.open(root, **how) as store:
        (row,) = describe([store]).to_pylist()
    return row


@pytest.mark.parametrize(
    "name", [*goldens.EVERY, *goldens.OF_GROUPS, *goldens.OF_GROUPS_CRASHED, *goldens.NEWEST]
)
def test_every_golden_store_is_described(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    row = row_of(root)
    if row["groups"] is None:
        assert row["reason"].endswith("what consumer groups have committed is not known")
        assert not [*root.glob("config/*onsumerOffset*")]
    else:
        assert row["reason"] is None
    with rmqstore.open(root) as store:
        stored = store.view("stores").read_all().to_pylist()[0]
        queues = store.view("queues", include_system_topics=True, columns="topic,queueId")
        kind = store.parts.kind()
        n_queues = queues.read_all().num_rows
        times = store.scan(
            scan="commitlog", columns="storeTimestamp", include_system_topics=True,
            mode="DROPMALFORMED",
        ).read_all()["storeTimestamp"].to_pylist()  # fmt: skip
    for column in ("brokerName", "clusterName", "brokerId", "minOffset", "maxOffset"):
        assert row[column] == stored[column], column
    assert (row["log"], row["queuesIn"], row["version"]) == (
        kind.log, kind.queues, f"{kind.version} or later",
    )  # fmt: skip
    if name not in goldens.CRASHED:  # which lack queues that a recovery makes
        assert row["queues"] == n_queues
    if times:
        assert row["firstStoreTimestamp"] == times[0]
        assert row["lastStoreTimestamp"] == times[-1]
    else:
        assert row["lastStoreTimestamp"] is None
    conf = goldens.summary(name).get("conf") or {}
    for key in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxIndexNum"):
        if key in conf and row[key] is not None:
            assert row[key] == int(conf[key]), key


def test_a_store_is_closed_open_or_neither(copied: Golden) -> None:
    root = copied("live")
    assert row_of(root)["state"] == "closed"
    (root / "abort").touch()
    assert row_of(root)["state"] == "not closed"
    lock = StoreLock(root / "lock")
    try:
        assert row_of(root)["state"] == "open"
    finally:
        lock.release()


def test_queues_that_are_not_built_are_counted(golden_store: Golden) -> None:
    row = row_of(golden_store("crash4"))  # has neither queues nor tables
    topics = {topic for topic, _ in goldens.queues("crash4")}
    assert (row["topics"], row["queues"]) == (len(topics), len(goldens.queues("crash4"))) == (2, 6)


def test_parts_and_configuration_are_named(golden_store: Golden, tmp_path: Path) -> None:
    row = row_of(golden_store("controller"))
    assert row["parts"] == ["epochs of controller mode"]
    assert row["configFiles"] == ["brokerIdentity", "checkpoint"]
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=mine\nbrokerIP1=10.0.0.1\n")
    row = row_of(golden_store("live"), conf=conf)
    assert row["configFiles"][0] == str(conf)
    assert (row["brokerName"], row["brokerAddr"]) == ("mine", "10.0.0.1:10911")
    assert "config/topics.json" in row["configFiles"]
    assert "timed messages" in row["parts"]
    (text,) = row_of(golden_store("tiered"))["notRead"]
    assert "messages in tiered storage" in text


@pytest.mark.parametrize("state", ["missing", "empty", "damaged"])
def test_groups_are_not_counted_without_their_offsets(copied: Golden, state: str) -> None:
    root = copied("live")
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
        if state != "missing":
            path.write_text("{" if state == "damaged" else "")
    row = row_of(root)
    assert row["groups"] is None
    said = "consumerOffset.json" if state == "damaged" else f"consumerOffset.json is {state}"
    assert said in row["reason"]
    assert (row["topics"] > 0, row["queues"]) == (True, 44)


def test_topics_are_not_counted_if_a_damaged_database_has_them(copied: Golden) -> None:
    pytest.importorskip("rocksdict")
    root = copied("v55-rocksdb-cq")
    (root / "consumequeue" / "CURRENT").write_text("xx\n")
    row = row_of(root)
    assert (row["topics"], row["systemTopics"], row["queues"]) == (None, None, None)
    assert "CURRENT" in row["reason"]


def test_another_storage_is_described_as_well(live: Path) -> None:
    storage = MemoryStorage(live)
    row = row_of(storage.root, storage=storage)
    assert {**row, "path": ""} == {**row_of(live), "path": ""}


def test_tiered_storage_alone_is_refused(golden_store: Golden) -> None:
    with (
        rmqstore.open(golden_store("tiered") / "tieredstore") as store,
        pytest.raises(UnsupportedFeatureError, match="describe is not supported with tiered"),
    ):
        describe([store])


def test_the_verb_gives_a_row_for_each_store_or_a_column_in_a_table(golden_store: Golden) -> None:
    roots = [str(golden_store("live")), str(golden_store("crash"))]
    found = command_line.rows("describe", *roots)
    states = [(row["path"], row["state"]) for row in found]
    assert states == [(roots[0], "closed"), (roots[1], "not closed")]
    assert list(found[0]) == DESCRIPTION.names
    table = command_line.run("describe", *roots, "--columns", "state,maxOffset").stdout
    cells = [line.strip("│┃ ").split("│") for line in table.splitlines() if line[0] == "│"]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["state", "closed", "not closed"], ["maxOffset", "232925", "254104"],
    ]  # fmt: skip
    refused = command_line.run("describe", roots[0], "--columns", "x")
    assert "error: --columns: unknown x; a description has path, brokerName" in refused.output
