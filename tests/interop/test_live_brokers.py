"""Real brokers are read over the network, and take what is sent to them."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import goldens
import rmqstore
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ, store_sizes
from reading import LOG_COLUMNS, by_queue, rows
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.inspect.verify import verify
from rmqstore.live.location import LiveLocation
from rmqstore.live.writer import LiveWriter
from rmqstore.write.messages import WriteSpec

pytestmark = pytest.mark.interop

SCHEDULED = "SCHEDULE_TOPIC_XXXX"
SIZES = store_sizes(1 << 20, 2000, 100, 400)


def write_topics(root: Path, queues: set[tuple[str, int]], batch_topics: set[str]) -> None:
    table = {
        topic: {
            "topicName": topic, "perm": 6, "order": False, "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "attributes": {"queue.type": "BatchCQ"} if topic in batch_topics else {},
            **dict.fromkeys(
                ("readQueueNums", "writeQueueNums"),
                1 + max(queue_id for name, queue_id in queues if name == topic),
            ),
        }
        for topic in {topic for topic, _ in queues}
        if topic != SCHEDULED
    }  # fmt: skip
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table})
    )


@pytest.mark.parametrize(
    "name", ["basic", "edges", "compressed", "ipv6", "expired", "batch-cq", "crash"]
)
def test_a_broker_serves_what_its_store_holds(
    rocketmq: RocketMQ, copied: goldens.Golden, name: str
) -> None:
    root = copied(name)
    judged = goldens.queues(name)
    write_topics(root, set(judged), {key[0] for key in judged if key[0].startswith("Batch")})
    flags = {"true": True, "false": False}
    conf = goldens.summary(name)["conf"]
    sizes = {key: flags[value] if value in flags else int(value) for key, value in conf.items()}
    with RealBroker(rocketmq, root, sizes) as broker:
        for topic in {topic for topic, _ in judged}:
            broker.announce(topic)
        with rmqstore.open_live(f"rocketmq://{broker.namesrv_address}") as cluster:
            scan = cluster.scan(columns=LOG_COLUMNS, include_system_topics=True)
            served = by_queue(rows(scan))
            tags = Counter(row["tags"] for found in served.values() for row in found)
            del tags[None]
            tag = max(tags, key=lambda one: tags[one])
            scan = cluster.scan(columns=LOG_COLUMNS, include_system_topics=True, tags=tag)
            tagged = by_queue(rows(scan))
            ranges = {topic: cluster.queue_ranges(topic)["interop"] for topic, _ in judged}
        for topic, queue_id in judged:
            span = broker.controller.getMessageStore()
            low, high = ranges[topic][queue_id]
            assert low == span.getMinOffsetInQueue(topic, queue_id)
            assert high <= span.getMaxOffsetInQueue(topic, queue_id)
    with rmqstore.open(root, broker_name="interop") as store:
        options: dict[str, Any] = {"columns": LOG_COLUMNS, "include_system_topics": True}
        # Where a broker has cut a torn end off, units of it are left in the files of a queue.
        stored = by_queue(rows(store.scan(**options, mode="DROPMALFORMED")))
    # A broker goes on with what is due meanwhile: the store may hold more.
    assert served == {key: stored[key][: len(found)] for key, found in served.items()}
    for key, found in served.items():
        chosen = [row for row in found if row["tags"] == tag]
        assert tagged.get(key, [])[: len(chosen)] == chosen
    for key, expected in judged.items():
        if name == "batch-cq" and key[0] != "Plain":
            assert len(served[key]) == len(stored[key]) > 0
            continue
        wanted = [goldens.asked(row, "interop") for row in expected]
        found = served.get(key, [])[: len(wanted)]
        assert found == [
            {column: row[column] if column in row else at[column] for column in LOG_COLUMNS}
            for row, at in zip(wanted, found, strict=True)
        ]


def test_consumers_get_what_is_sent(rocketmq: RocketMQ, tmp_path: Path) -> None:
    n = 2000
    given = [
        {
            "body": f"body {number} ".encode() * (number % 40 + 1), "tags": f"T{number % 3}",
            "keys": f"k{number}", "properties": [("n", str(number)), ("Größe", "ß")],
            "delayTimeLevel": 1 if number % 200 == 7 else 0,
        }
        for number in range(n)
    ]  # fmt: skip
    given[11]["properties"] = [("n", "11"), ("Größe", "ß"), ("large", "x" * 32_000)]
    schema = pa.schema(
        {
            "body": pa.binary(), "tags": pa.string(), "keys": pa.string(),
            "properties": pa.map_(pa.string(), pa.string()), "delayTimeLevel": pa.int32(),
        }
    )  # fmt: skip
    root = tmp_path / "s"
    with RealBroker(rocketmq, root, SIZES) as broker:
        broker.set_queues("Orders", 4)
        uri = f"rocketmq://{broker.namesrv_address}"
        spec = WriteSpec(topic="Orders", compression="zlib")
        with LiveWriter(LiveLocation.parse(uri), spec) as writer:
            for start in range(0, n, 500):
                part = pa.RecordBatch.from_pylist(given[start : start + 500], schema)
                writer.append(part, first_row=start + 1)
            writer.flush()
            assert writer.n_sent == n
        found = broker.consume("Orders", "readers", n)
        with rmqstore.open_live(uri) as cluster:
            served = rows(cluster.scan(subscribe="Orders", columns=LOG_COLUMNS))
    assert len(found) == n
    for message in found:
        sent = given[int(message["properties"]["n"])]
        assert message["body"] == sent["body"]
        assert (message["tags"], message["keys"]) == (sent["tags"], sent["keys"])
        assert dict(sent["properties"]).items() <= message["properties"].items()
        assert ("DELAY" in message["properties"]) == (sent["delayTimeLevel"] == 1)
    ids = [message["msgId"] for message in found]
    assert len(set(ids)) == n
    with rmqstore.open(root, broker_name="interop") as store:
        stored = rows(store.scan(subscribe="Orders", columns=LOG_COLUMNS))
        assert list(verify(store)) == []
    assert by_queue(served) == by_queue(stored)
    assert sorted(row["msgId"] for row in stored) == sorted(ids)
    for queue in by_queue(stored).values():
        numbers = [int(row["properties"]["n"]) for row in queue]
        at_once = [number for number in numbers if not given[number]["delayTimeLevel"]]
        assert at_once == sorted(at_once)


def test_messages_that_a_broker_keeps_to_itself_are_told(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    """What it answers of queues that its topic does not have any more, and of deleted files."""
    with RealBroker(
        rocketmq, tmp_path / "s", SIZES | {"mappedFileSizeConsumeQueue": 20_000}
    ) as one:
        uri = f"rocketmq://{one.namesrv_address}"
        for topic, count in (("Orders", 4), ("Many", 1), ("Few", 1), ("Gone", 1)):
            one.set_queues(topic, count)
        with rmqstore.open(uri, "a") as writer:
            # What waits to be sent may overtake messages of other topics.
            def send(topic: str, bodies: list[bytes]) -> None:
                writer.append(pa.table({"topic": [topic] * len(bodies), "body": bodies}))
                writer.flush()

            send("Few", [b"first of the log"])
            send("Gone", [b"x"])
            send("Orders", [b"x"] * 200)
            for number in range(12):
                send("Many", [b"x" * 9] * 1000)
                send("Few", [b"%d" % number] * 3)

        one.set_queues("Orders", 2)
        with rmqstore.open(uri) as cluster:
            until = time.monotonic() + 30
            while len(cluster.queue_ranges("Orders")["interop"]) > 2:
                assert time.monotonic() < until, "the name server does not hear of it"
                topics = one.controller.getTopicConfigManager()
                one.controller.registerSingleTopicAll(topics.selectTopicConfig("Orders"))
                time.sleep(0.5)
            with pytest.raises(OffsetOutOfRangeError, match=r"Orders-2 \(0 to 50\), Orders-3 \(0"):
                cluster.count(subscribe="Orders")
            assert cluster.count(subscribe="Orders", fail_on_data_loss=False) == 100

            # Files of the log are deleted first, and those of queues some seconds later.
            store = one.controller.getMessageStore()
            log = store.getCommitLog()
            while log.deleteExpiredFile(0, 0, 1, True, 1) == 0:
                time.sleep(0.05)
            columns = "queueOffset,storeTimestamp"
            found = {
                topic: cluster.scan(subscribe=topic, columns=columns).to_arrow()
                for topic in ("Few", "Many")
            }
            assert store.getMaxOffsetInQueue("Gone", 0) == 1
            assert cluster.count(subscribe="Gone") == 0
            for topic, table in found.items():
                first = min(table["storeTimestamp"].to_pylist())
                assert cluster.count(subscribe=topic, starting_timestamp=first) == len(table)
            for queues in store.getConsumeQueueTable().values():
                for queue in queues.values():
                    queue.deleteExpiredFile(log.getMinOffset())
            for topic, table in found.items():
                low, high = (
                    span(topic, 0)
                    for span in (store.getMinOffsetInQueue, store.getMaxOffsetInQueue)
                )
                assert low > 0
                assert table["queueOffset"].to_pylist() == [*range(low, high)]
