"""The files that a broker has of itself: tables with a backup, and what tells who it is."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
from goldens import Golden
from reading import read
from rmqstore.errors import CorruptConfigError
from rmqstore.inspect.remedies import kind_of
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.config_files import (
    OFFSETS,
    BrokerConfig,
    load_table,
    why_unknown,
)
from rmqstore.storage.broker.identity import BrokerIdentity
from rmqstore.storage.files.local import LOCAL
from written import require_valid

DAMAGE = {
    "zeros": bytes(200),
    "cut": b'{"topicConfigTable":{"T":{"perm":6',
    "garbage": b"\xfe\x80\x01 not JSON",
    "list": b"[1,2]",
    "other types": b'{"topicConfigTable":[],"offsetTable":[]}',
}


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a store whose tables each have a valid backup."""
    root = copied("live")
    for path in [*(root / "config").glob("*.json")]:
        shutil.copy(path, path.with_name(path.name + ".bak"))
    return root


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_is_read_from_its_backup_with_one_warning(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(root) as store:
        topics, rows = store.topics(), store.count()
        groups = store.view("groups").read_all().to_pylist()
    for name in ("topics.json", "consumerOffset.json"):
        (root / "config" / name).write_bytes(DAMAGE[damage])
    with rmqstore.open(root) as store:
        assert (store.topics(), store.count()) == (topics, rows)
        assert store.view("groups").read_all().to_pylist() == groups
        findings = list(verify(store))
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert all("is read instead, as a broker does" in text for text in warned)
    assert [(found.part, Path(found.place.split(",")[0]).name) for found in findings] == [
        ("config", "topics.json"), ("config", "consumerOffset.json"),
    ]  # fmt: skip


@pytest.mark.parametrize("backup", [None, b"", b"{"])
def test_without_a_valid_backup_the_table_itself_is_damaged(
    tmp_path: Path, backup: bytes | None
) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(bytes(20))
    if backup is not None:
        path.with_name("topics.json.bak").write_bytes(backup)
    with pytest.raises(CorruptConfigError) as caught:
        load_table(LOCAL, path)
    assert caught.value.path == str(path)


# Source: ConfigManager.java#load, #loadBak; tried with 5.3.3.
@pytest.mark.parametrize(
    ("table", "backup", "kind"),
    [
        (b"{", b"{", "tables"),
        (b"[1]", bytes(9), "tables"),
        (b"", b"{", "tables"),
        (None, b"{", "tables"),
        (b"{", b"", "config"),
        (b"{", None, "config"),
        (b"{", b"{}", "config"),
        (b"", b"", "config"),
        (b"", None, "config"),
        (b"", b"{}", None),
        (b"{}", b"{", None),
        (None, b"", None),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["topics", "topicQueueMapping", "consumerOrderInfo"])
def test_a_broker_does_not_start_without_a_valid_file_of_a_table(
    copied: Golden, name: str, table: bytes | None, backup: bytes | None, kind: str | None
) -> None:
    root = copied("one")
    (root / "config").mkdir(exist_ok=True)
    path = root / "config" / f"{name}.json"
    for file, content in ((path, table), (path.with_name(f"{name}.json.bak"), backup)):
        if content is not None:
            file.write_bytes(content)
    with rmqstore.open(root) as store:
        found = list(verify(store))
    assert [kind_of(one) for one in found] == [kind] * (kind is not None)
    assert all(("does not start" in one.text) == (kind == "tables") for one in found)


# Tried with 5.3.3, in a file and its backup.
@pytest.mark.parametrize(
    ("name", "content", "starts"),
    [
        ("delayOffset.json", '{"offsetTable":{1:"x"}}', False),
        ("delayOffset.json", '{"offsetTable":{"a":5}}', False),
        ("delayOffset.json", '\ufeff{"offsetTable":{1:-5,99:"7"}}', True),
        ("consumerOffset.json", '{"offsetTable":{"T@G":5}}', False),
        ("consumerOffset.json", '{"offsetTable":{"T":{0:-3}}}', True),
        ("topics.json", '{"topicConfigTable":{"T":null}}', False),
        ("subscriptionGroup.json", '{"dataVersion":5}', False),
        ("timermetrics", '{"timingCount":{"T":5}}', False),
        ("topicQueueMapping.json", "[]", True),
        ("consumerFilter.json", "null", True),
    ],
    ids=str,
)
def test_a_table_is_valid_if_a_broker_takes_its_entries(
    copied: Golden, name: str, content: str, starts: bool
) -> None:
    root = copied("one")
    (root / "config").mkdir(exist_ok=True)
    for file in (name, f"{name}.bak"):
        (root / "config" / file).write_text(content)
    with rmqstore.open(root) as store:
        assert [kind_of(one) for one in verify(store)] == [] if starts else ["tables"]


def test_verify_warns_of_what_tables_say_of_no_queue(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ 5.3.3 was tried: it starts, and the messages stay."""
    root = copied("live")
    with rmqstore.open(root) as store:
        topics = store.parts.config.topic_entries()
    del topics["LiveTx"]
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    offsets = {"LivePlain@G": {"0": 54, "1": 0, "77": 5}, "Gone@G": {"0": 5}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    with rmqstore.open(root) as store:
        assert list(verify(store)) == []
        store.view("commitlog", subscribe="LiveTy").read_all()
    assert "lacks topics that have queues, 1: LiveTx." in caplog.text
    ahead = "G in LivePlain-0 (54, the end is 53), G in LivePlain-77 (5, the end is 0)."
    assert f"offsets after the end of a queue, 2: {ahead}" in caplog.text
    assert "knows LiveTy" in caplog.text


def test_the_offsets_of_light_message_queues_are_known_offsets(copied: Golden) -> None:
    root = copied("one")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").touch()
    (root / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{"T@G":{"0":3}}}')
    with rmqstore.open(root) as store:
        assert why_unknown(store.paths, OFFSETS) is None
        assert store.parts.config.groups() == ["G"]


def test_a_table_without_entries_is_not_replaced_by_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    backup = path.with_name("topics.json.bak")
    backup.write_text('{"a":1}')
    assert load_table(LOCAL, path) == {"a": 1}
    path.touch()
    assert load_table(LOCAL, path) == {"a": 1}
    path.write_text("{}")
    assert load_table(LOCAL, path) == {}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_writer_does_not_put_damage_in_the_place_of_a_valid_backup(
    root: Path, damage: str
) -> None:
    path = root / "config" / "topics.json"
    backup = path.with_name("topics.json.bak")
    valid = backup.read_bytes()
    path.write_bytes(DAMAGE[damage])
    with rmqstore.open(root, "a") as store:
        store.append(pa.table({"topic": ["NewTopic"], "body": [b"x"]}))
    assert backup.read_bytes() == valid
    table = load_table(LOCAL, path)["topicConfigTable"]
    assert table.keys() == {*load_table(LOCAL, backup)["topicConfigTable"], "NewTopic"}
    require_valid(root)


SYSTEM_TOPICS = ["A", "rmq_sys_SYNC_BROKER_MEMBER_of-topic", "rmq_sys_REVIVE_LOG_cluster-of-topic"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a store of one message."""
    store = build.filled([build.Record()])
    return store.write(tmp_path / "folder")


def identity(small: Path) -> BrokerIdentity:
    with rmqstore.open(small) as store:
        found = BrokerConfig(store.paths).identity()
        assert store.broker_name == (found.name or small.name), "of which less is read"
    return found


def test_settings_come_before_topics_and_metadata_before_both(small: Path) -> None:
    build.write_config(small, topics=["c_REPLY_TOPIC"])
    assert identity(small) == BrokerIdentity(None, "c")
    build.write_config(small, topics=SYSTEM_TOPICS)
    assert identity(small) == BrokerIdentity("of-topic", "cluster-of-topic")
    settings = "brokerName=of-settings\nbrokerId=2\nbrokerIP1=10.0.0.1\nbrokerPermission=4\n"
    (small / "config" / "broker.conf").write_text(settings)
    expected = BrokerIdentity("of-settings", "cluster-of-topic", 2, "10.0.0.1:10911", 4)
    assert identity(small) == expected
    (small / "brokerIdentity").write_text("of-metadata#name#7")
    expected = expected._replace(name="name", cluster="of-metadata", broker_id=7)
    assert identity(small) == expected


@pytest.mark.parametrize("line", ["brokerId=one", "brokerPermission=", "brokerId=9" + 30 * "9"])
def test_a_number_that_is_none_is_named_where_it_is_asked_for(small: Path, line: str) -> None:
    (small / "broker.conf").write_text(f"brokerName=b\n{line}\n")
    with rmqstore.open(small) as store:
        assert store.broker_name == "b"
        with pytest.raises(CorruptConfigError, match=f"broker.conf.*{line.partition('=')[0]}"):
            BrokerConfig(store.paths).identity()


def test_half_a_character_in_a_name_is_replaced(small: Path) -> None:
    (small / "broker.conf").write_text("brokerName=a\\ud800\n")
    with rmqstore.open(small) as store:
        assert read(store, columns="brokerName") == [{"brokerName": "a?"}]
