"""Routes equal those of the class that RocketMQ's name server asks, in random cases."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rmqstore
import store_builder as build
from interop.rocketmq import RocketMQ
from rmqstore.read.views.catalogue import read_cluster_view
from rmqstore.read.views.schema import view_spec

pytestmark = pytest.mark.interop
N_CASES = 120
TOPICS = [f"T{number}" for number in range(6)]
BODIES = "org.apache.rocketmq.remoting.protocol.body"


def routes_of(roots: list[Path], topic: str) -> list[dict[str, Any]]:
    spec = view_spec("routes", include_system_topics=True)
    with ExitStack() as stack:
        opened = [stack.enter_context(rmqstore.open(root)) for root in roots]
        batches = [*read_cluster_view([store.parts for store in opened], spec)]
    return [row for batch in batches for row in batch.to_pylist() if row["topic"] == topic]


def as_answer(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows of one topic as the queue data and the broker data of a TopicRouteData."""
    queue_fields = ("brokerName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
    return {
        "queueDatas": {row["brokerName"]: [row[name] for name in queue_fields] for row in rows},
        "brokerDatas": {
            row["brokerName"]: [row["clusterName"], dict(row["brokerAddrs"])] for row in rows
        },
    }


def answered(data: Any) -> dict[str, Any]:
    """Return a TopicRouteData in the same form; nothing for a topic that is not known."""
    if data is None:
        return {"queueDatas": {}, "brokerDatas": {}}
    return {
        "queueDatas": {
            one.getBrokerName(): [
                one.getBrokerName(), one.getReadQueueNums(), one.getWriteQueueNums(),
                one.getPerm(), one.getTopicSysFlag(),
            ]
            for one in data.getQueueDatas()
        },
        "brokerDatas": {
            one.getBrokerName(): [
                one.getCluster(),
                {str(each.getKey()): each.getValue() for each in one.getBrokerAddrs().entrySet()},
            ]
            for one in data.getBrokerDatas()
        },
    }  # fmt: skip


def entries(dice: random.Random) -> dict[str, dict[str, object]]:
    """Return entries of topics.json, some of which leave fields to their defaults."""
    table = {}
    for topic in dice.sample(TOPICS, dice.randrange(2, len(TOPICS) + 1)):
        entry: dict[str, object] = {
            "readQueueNums": dice.randrange(20), "writeQueueNums": dice.randrange(20),
            "perm": dice.randrange(8), "topicSysFlag": dice.randrange(4),
            "order": dice.random() < 0.5,
        }  # fmt: skip
        kept = {name: value for name, value in entry.items() if dice.random() < 0.8}
        table[topic] = {"topicName": topic, **kept}
    return table


def write_member(root: Path, table: dict[str, Any], settings: dict[str, object]) -> Path:
    store = build.Store()
    store.append(build.Record("T0", body=str(settings["brokerName"]).encode()))
    store.write(root)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    (root / "broker.conf").write_text(lines)
    return root


def register(real: RocketMQ, manager: Any, root: Path, settings: dict[str, Any]) -> None:
    """Register a broker with the topics of its store, as it does when it starts."""
    wrapper_class = real.java.lang.Class.forName(f"{BODIES}.TopicConfigAndMappingSerializeWrapper")
    text = (root / "config" / "topics.json").read_text()
    serializable = real.rocketmq.remoting.protocol.RemotingSerializable
    manager.registerBroker(
        settings["brokerClusterName"], f"{settings['brokerIP1']}:{settings['listenPort']}",
        settings["brokerName"], settings["brokerId"], "", None, None,
        settings["enableSlaveActingMaster"] == "true", serializable.fromJson(text, wrapper_class),
        real.java.util.ArrayList(), None,
    )  # fmt: skip


def test_routes_are_those_of_the_real_class(rocketmq: RocketMQ, tmp_path: Path) -> None:
    dice = random.Random(17)
    n_answers = 0
    for case in range(N_CASES):
        config = rocketmq.rocketmq.common.namesrv.NamesrvConfig()
        manager = rocketmq.rocketmq.namesrv.routeinfo.RouteInfoManager(config, None)
        roots = []
        for number in range(dice.randrange(1, 4)):
            is_acting = str(dice.random() < 0.5).lower()
            members = dice.choice([[0], [0, 1], [0, 1, 2], [1], [1, 2]])
            for broker_id in members:
                settings = {
                    "brokerName": f"broker-{number}", "brokerClusterName": f"c{number % 2}",
                    "brokerId": broker_id, "brokerIP1": f"10.0.{number}.{broker_id}",
                    "listenPort": 10911 + number, "enableSlaveActingMaster": is_acting,
                }  # fmt: skip
                root = tmp_path / f"{case}-{number}-{broker_id}"
                write_member(root, entries(dice), settings)
                register(rocketmq, manager, root, settings)
                roots.append(root)
        dice.shuffle(roots)
        for topic in TOPICS:
            expected = answered(manager.pickupTopicRouteData(topic))
            assert as_answer(routes_of(roots, topic)) == expected, (case, topic)
            n_answers += bool(expected["queueDatas"])
    assert n_answers > 2 * N_CASES
