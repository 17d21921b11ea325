"""Who a broker is, as its files tell."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
import store_builder as build
from reading import read
from rmqstore.errors import CorruptConfigError
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.identity import BrokerIdentity

SYSTEM_TOPICS = ["A", "rmq_sys_SYNC_BROKER_MEMBER_of-topic", "rmq_sys_REVIVE_LOG_cluster-of-topic"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store of one message."""
    store = build.filled([build.Record()])
    return store.write(tmp_path / "folder")


def identity(root: Path) -> BrokerIdentity:
    with rmqstore.open(root) as store:
        found = BrokerConfig(store.paths).identity()
        assert store.broker_name == (found.name or root.name), "of which less is read"
    return found


def test_settings_come_before_topics_and_metadata_before_both(root: Path) -> None:
    build.write_config(root, topics=["c_REPLY_TOPIC"])
    assert identity(root) == BrokerIdentity(None, "c")
    build.write_config(root, topics=SYSTEM_TOPICS)
    assert identity(root) == BrokerIdentity("of-topic", "cluster-of-topic")
    settings = "brokerName=of-settings\nbrokerId=2\nbrokerIP1=10.0.0.1\nbrokerPermission=4\n"
    (root / "config" / "broker.conf").write_text(settings)
    expected = BrokerIdentity("of-settings", "cluster-of-topic", 2, "10.0.0.1:10911", 4)
    assert identity(root) == expected
    (root / "brokerIdentity").write_text("of-metadata#name#7")
    expected = expected._replace(name="name", cluster="of-metadata", broker_id=7)
    assert identity(root) == expected


def test_the_settings_of_a_broker_in_controller_mode_say_no_id(root: Path) -> None:
    # Source: distribution/conf/controller/quick-start/broker-n0.conf
    settings = "brokerName = broker-a\nbrokerId = -1\nenableControllerMode = true\n"
    (root / "broker.conf").write_text(settings)
    with rmqstore.open(root) as store:
        assert store.broker_name == "broker-a"
    assert identity(root).broker_id is None


@pytest.mark.parametrize("line", ["brokerId=one", "brokerPermission=", "brokerId=9" + 30 * "9"])
def test_a_number_that_is_none_is_named_where_it_is_asked_for(root: Path, line: str) -> None:
    (root / "broker.conf").write_text(f"brokerName=b\n{line}\n")
    with rmqstore.open(root) as store:
        assert store.broker_name == "b"
        with pytest.raises(CorruptConfigError, match=f"broker.conf.*{line.partition('=')[0]}"):
            BrokerConfig(store.paths).identity()


def test_half_a_character_in_a_name_is_replaced(root: Path) -> None:
    (root / "broker.conf").write_text("brokerName=a\\ud800\n")
    with rmqstore.open(root) as store:
        assert read(store, columns="brokerName") == [{"brokerName": "a?"}]
