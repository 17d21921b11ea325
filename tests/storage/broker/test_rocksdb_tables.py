"""Topics, groups and committed offsets that a broker keeps in RocksDB."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

import rmqstore
from goldens import Golden
from rmqstore.errors import CorruptDatabaseError, UnsupportedFeatureError
from rmqstore.inspect.describe import describe
from rmqstore.inspect.verify import verify
from rmqstore.storage import rocksdb as database
from rmqstore.storage.broker import rocksdb_tables
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import find_store
from rocksdb_index import write_database

TOPICS, GROUPS, OFFSETS = "topics", "subscriptionGroups", "consumerOffsets"


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a store of a real 5.3.3 broker: topic Orders, of which group billing lags by 10."""
    return copied("rdbm")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    return tmp_path / "s"


def version(counter: int) -> bytes:
    return json.dumps({"counter": counter, "stateVersion": 0, "timestamp": 1}).encode()


def separate(config: Path, name: str, items: dict[str, bytes], counter: int = 1) -> None:
    write_database(
        config / name,
        {
            "default": {key.encode(): value for key, value in items.items()},
            "kvDataVersion": {b"kvDataVersionKey": version(counter)},
        },
    )


def config_of(root: Path) -> BrokerConfig:
    return BrokerConfig(find_store(root))


def test_what_the_real_broker_wrote_is_read(root: Path) -> None:
    config = config_of(root)
    assert config.topic_entries()["Orders"]["readQueueNums"] == 4
    assert config.committed_offsets() == {
        "billing": {("Orders", queue_id): 2 + queue_id % 2 for queue_id in range(4)}
    }
    with rmqstore.open(root) as store:
        lag = store.view("groups", columns=["queueId", "lag"]).read_all().to_pydict()
        assert lag == {"queueId": [0, 1, 2, 3], "lag": [3, 2, 3, 2]}
        assert describe([store]).column("groups").to_pylist() == [1]
        assert list(verify(store)) == []


def test_the_shared_database_of_newer_brokers_is_read(bare: Path) -> None:
    write_database(
        bare / "config" / "metadata",
        {
            "topic": {b"T": b'{"readQueueNums":4}'},
            "topicVersion": {b"kvDataVersionKey": version(3)},
            "subscriptionGroup": {b"g": b"{}", b"h": b"{}"},
            "consumerOffset": {b"T@g": b'{"offsetTable":{0:7,1:9}}'},
        },
    )
    config = config_of(bare)
    assert config.topics() == ["T"]
    assert config.subscribed_groups() == ["g", "h"]
    assert config.committed_offsets() == {"g": {("T", 0): 7, ("T", 1): 9}}


def test_the_database_of_the_second_form_is_read(bare: Path) -> None:
    def key(table: int, *names: bytes, end: bytes = b"") -> bytes:
        after = b"\1" if end else b""
        parts = (struct.pack(">H", len(name)) + name + after for name in names)
        return struct.pack(">BhB", 1, table, 2) + b"".join(parts) + end

    write_database(
        bare / "config" / "rdb",
        {
            "default": {
                key(3, b"T"): b'\1{"perm":6}',
                key(4, b"group"): b"\1{}",
                key(1, b"group", b"T", end=struct.pack(">i", 0)): struct.pack(">q", 12),
                key(1, b"group", b"T", end=struct.pack(">i", 258)): struct.pack(">q", 300),
                key(2, b"group", b"T", end=struct.pack(">i", 0)): struct.pack(">q", 99),
                struct.pack(">BhB", 1, 3, 1) + b"data_version": struct.pack(">qqq", 0, 1, 5),
            }
        },
    )
    config = config_of(bare)
    assert config.topic_entries() == {"T": {"perm": 6}}
    assert config.subscribed_groups() == ["group"]
    assert config.committed_offsets() == {"group": {("T", 0): 12, ("T", 258): 300}}


@pytest.mark.parametrize(
    ("counter", "expected"),
    [(None, ["InDatabase"]), (4, ["InDatabase"]), (5, ["InDatabase", "InFile"])],
)
def test_a_json_file_counts_if_it_is_newer(
    bare: Path, counter: int | None, expected: list[str]
) -> None:
    separate(bare / "config", TOPICS, {"InDatabase": b"{}"}, counter=4)
    table = {"topicConfigTable": {"InFile": {}}, "dataVersion": {"counter": counter}}
    (bare / "config" / "topics.json").write_text(json.dumps(table))
    assert config_of(bare).topics() == expected


def test_a_database_that_is_newer_than_the_shared_one_counts_too(bare: Path) -> None:
    write_database(
        bare / "config" / "metadata",
        {
            "topic": {b"A": b"{}"},
            "topicVersion": {b"kvDataVersionKey": version(3)},
        },
    )
    separate(bare / "config", TOPICS, {"B": b"{}"}, counter=2)
    assert config_of(bare).topics() == ["A"]
    shutil.rmtree(bare / "config" / TOPICS)
    separate(bare / "config", TOPICS, {"B": b"{}"}, counter=4)
    assert config_of(bare).topics() == ["A", "B"]


def test_without_the_library_what_needs_offsets_is_refused_and_messages_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedFeatureError, match="consumerOffsets is a RocksDB database"):
        config_of(root).committed_offsets()
    with rmqstore.open(root) as store:
        assert store.scan(scan="commitlog", subscribe="Orders").read_all().num_rows == 20
        (not_read,) = describe([store]).column("notRead").to_pylist()
    assert any("config/consumerOffsets, which need the extra rocksdb" in text for text in not_read)
    assert "the only topics known are those that have queues" in caplog.text


def test_a_damaged_database_stops_no_read_and_is_a_finding(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (TOPICS, OFFSETS):
        (root / "config" / name / "CURRENT").write_text("MANIFEST-999999\n")
    with rmqstore.open(root) as store:
        assert store.scan(subscribe="Orders").read_all().num_rows == 20
        with pytest.raises(CorruptDatabaseError, match=OFFSETS):
            store.view("groups").read_all()
        found = [one.place.rpartition("/")[2] for one in verify(store) if one.part == "config"]
    assert found == ["topics, 0", "consumerOffsets, 0"]
    assert "the only topics known are those that have queues" in caplog.text


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{", b'{"offsetTable":3}', b'{"offsetTable":{"x":1}}', b"\xff"]
)
def test_offsets_that_are_none_are_damage(bare: Path, value: bytes) -> None:
    separate(bare / "config", OFFSETS, {"T@g": value})
    if value == b"":
        assert config_of(bare).committed_offsets() == {"g": {}}
        return
    with pytest.raises(rmqstore.CorruptConfigError):
        config_of(bare).committed_offsets()


def test_a_table_that_memory_should_not_hold_is_refused(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate(bare / "config", OFFSETS, {f"T@{number}": b"{}" * 50 for number in range(100)})
    monkeypatch.setattr(rocksdb_tables, "_MAX_BYTES", 1000)
    with pytest.raises(CorruptDatabaseError, match="more than 1000 bytes"):
        config_of(bare).committed_offsets()


def test_topics_of_broker_and_cluster_are_system_topics(root: Path) -> None:
    with rmqstore.open(root) as store:
        for view in ("topics", "routes"):
            assert store.view(view, columns=["topic"]).read_all()["topic"].to_pylist() == ["Orders"]
        every = store.view("topics", include_system_topics=True).read_all().to_pylist()
    own = {row["topic"] for row in every if row["isSystem"]}
    assert {"broker-r", "DefaultCluster", "TBW102"} <= own
    assert "Orders" not in own


def test_a_damaged_entry_is_a_finding_that_names_the_database(root: Path) -> None:
    shutil.rmtree(root / "config" / OFFSETS)
    separate(root / "config", OFFSETS, {"Orders@g": b'{"offsetTable":5}'})
    with rmqstore.open(root) as store:
        (found,) = (one for one in verify(store) if one.part == "config")
        assert found.place.endswith("config/consumerOffsets, 0")
        with pytest.raises(rmqstore.CorruptConfigError, match=OFFSETS):
            store.view("groups").read_all()


@pytest.mark.parametrize(
    "stored", [b"[" * 100_000, b"[]", b"{", b"\xff"], ids=["deep", "list", "cut", "no text"]
)
def test_a_damaged_version_is_damage_of_the_database(root: Path, stored: bytes) -> None:
    shutil.rmtree(root / "config" / TOPICS)
    write_database(root / "config" / TOPICS, {"kvDataVersion": {b"kvDataVersionKey": stored}})
    with rmqstore.open(root) as store:
        assert store.scan(subscribe="Orders").read_all().num_rows == 20
        with pytest.raises(CorruptDatabaseError, match="its data version"):
            config_of(root).topic_entries()


def test_a_store_whose_topics_lie_in_rocksdb_is_not_written(bare: Path) -> None:
    separate(bare / "config", TOPICS, {"T": b'{"writeQueueNums":1}'})
    with pytest.raises(UnsupportedFeatureError, match="topics of the broker in RocksDB"):
        rmqstore.open(bare, "a")
