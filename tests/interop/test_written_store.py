"""The real RocketMQ opens what we wrote, serves all of it and appends; then we append again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
from interop.rocketmq import RealStore, RocketMQ, store_sizes
from reading import Row, by_queue
from rmqstore.format.hashing import java_hash
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.write.writer import StoreWriter
from write.test_rebuild_damaged import QUEUE_ID, change, middle_of
from written import files_of, rows_of

pytestmark = pytest.mark.interop

SIZES = store_sizes(65536, 20 * 30, 100, 400)
CONFIG = StoreConfig().updated({name: str(value) for name, value in SIZES.items()})
N = 600
TOPICS = ["Orders", "Payments", "x" * 127]


def messages(n: int, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + n)
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": TOPICS[number % 3],
                "body": f"body {number} ".encode() * (number % 30),
                "tags": [None, "TagA", "标签"][number % 3],
                "keys": f"k{number} all" if number % 2 else None,
                "properties": [("colour", "blue"), ("n", str(number))],
                "flag": number,
                "bornTimestamp": 1_700_000_000_000_000 + number * 1000,
                "bornHost": "10.1.2.3:4567" if number % 5 else "[2001:db8:0:0:0:0:0:1]:99",
                "reconsumeTimes": number % 3,
            }
            for number in numbers
        ],
        pa.schema(
            {
                "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string(),
                "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int32(),
                "bornTimestamp": pa.timestamp("us", tz="UTC"), "bornHost": pa.string(),
                "reconsumeTimes": pa.int32(),
            }
        ),
    )  # fmt: skip


def judge(real: RealStore, rows: list[Row]) -> None:
    """The real store serves just these rows, and finds each by each of its keys."""
    for (topic, queue_id), expected in by_queue(rows).items():
        found = list(real.messages(topic, queue_id))
        assert [row["queueOffset"] for row in found] == [row["queueOffset"] for row in expected]
        for message, row in zip(found, expected, strict=True):
            assert message["body"] == row["body"]
            assert message["properties"] == dict(row["properties"])
            assert message["bornTimestamp"] == row["bornTimestamp"].timestamp() * 1000
            assert (message["flag"], message["reconsumeTimes"]) == (
                row["flag"],
                row["reconsumeTimes"],
            )
            assert message["commitLogOffset"] == row["commitLogOffset"]
            assert message["bornHost"] == row["bornHost"]
    for row in rows[:: max(1, len(rows) // 150)]:
        for key in [
            *filter(None, [dict(row["properties"]).get("UNIQ_KEY")]),
            *(row["keys"] or "").split()[:1],
        ]:
            assert row["commitLogOffset"] in real.query(row["topic"], key), (row["topic"], key)


@pytest.mark.parametrize(
    "version", ["rocketmq", "rocketmq_4", "rocketmq_55"], ids=["5.3.3", "4.9.8", "5.5.1"]
)
def test_the_real_store_serves_what_we_wrote_and_goes_on(real_mq: RocketMQ, tmp_path: Path) -> None:
    root = tmp_path / "s"
    with rmqstore.create(root, config=CONFIG) as writer:
        writer.append(messages(N))
    before = rows_of(root)
    assert len(before) == N
    with real_mq.open(root, **SIZES) as real:
        judge(real, before)
        result = real.put("Orders", 0, b"from java", tags="J", keys="jk")
        real.wait()
        assert result.getLogicsOffset() == sum(
            row["topic"] == "Orders" and row["queueId"] == 0 for row in before
        )
        judge(real, rows_of(root))
    after = rows_of(root)
    assert after[:N] == before
    assert after[N]["body"] == b"from java"
    with StoreWriter(find_store(root), StoreConfig()) as writer:
        writer.append(messages(50, first=N))
    assert len(rows_of(root)) == N + 51
    with real_mq.open(root, **SIZES) as real:
        judge(real, rows_of(root))


def test_a_writer_goes_on_after_a_broker_that_deleted_a_topic(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with rmqstore.create(root, config=CONFIG) as writer:
        writer.append(messages(N))
    with rocketmq.open(root, **SIZES) as real:
        real.store.getBrokerConfig().setAutoDeleteUnusedStats(False)
        assert real.store.deleteTopics({"Payments"}) == 1
    # The broker's table of topics is not the store's: AdminBrokerProcessor.java#deleteTopic
    # changes both.
    table = root / "config" / "topics.json"
    topics = json.loads(table.read_bytes())
    del topics["topicConfigTable"]["Payments"]
    table.write_text(json.dumps(topics))
    assert find_store(root).own.clean_end.exists()
    with rmqstore.open(root, "a") as writer:
        writer.append(messages(90, first=N))
    rows = rows_of(root)
    of_topic = [row["queueOffset"] for row in rows if row["topic"] == "Payments"]
    assert sorted(set(of_topic)) == list(range(max(of_topic) + 1)), "its queues begin again"
    assert len(of_topic) == 30
    assert len(rows) == N - N // 3 + 90
    with rocketmq.open(root, **SIZES) as real:
        judge(real, rows)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *(("rocketmq", name) for name in ("crash", "crash3", "crash4", "crash5")),
        *(("rocketmq_55", name) for name in ("crash3", "v55-crash4")),
    ],
)
def test_the_real_store_finds_nothing_to_recover_in_what_we_repaired(
    real_mq: RocketMQ, copied: goldens.Golden, name: str
) -> None:
    root = copied(name)
    sizes = goldens.sizes(name)
    StoreWriter(find_store(root), StoreConfig().updated(goldens.summary(name)["conf"])).close()
    before = files_of(root, "commitlog")
    rows = rows_of(root)
    with real_mq.open(root, **sizes) as real:
        judge(real, rows)
        for answer in goldens.lines(name, "keys"):
            found = real.query(answer["topic"], answer["key"])
            assert set(answer["physicalOffsets"]) <= set(found)
    assert files_of(root, "commitlog") == before


def find_by_tags(real: RealStore) -> None:
    """The real store finds just the records with tags by these, and those of a hash twin."""
    places: dict[tuple[str, int], list[int]] = {}
    asked = set()
    with rmqstore.open(real.root) as store:
        columns = ["topic", "tags", "sysFlag", "commitLogOffset"]
        for row in store.scan(scan="commitlog", columns=columns).read_all().to_pylist():
            if row["tags"] and row["sysFlag"] & 12 != 12:  # not a rollback
                asked.add((row["topic"], row["tags"]))
                by_hash = places.setdefault((row["topic"], java_hash(row["tags"])), [])
                by_hash.append(row["commitLogOffset"])
    assert asked
    for topic, tags in asked:
        found = real.query_tags(topic, tags, count=10_000)
        assert sorted(found) == places[topic, java_hash(tags)]


@pytest.mark.parametrize("name", ["v55-edges", "v55-preblank"])
def test_the_real_store_finds_what_we_appended_and_rebuilt_by_its_tags(
    rocketmq_55: RocketMQ, copied: goldens.Golden, name: str
) -> None:
    root = copied(name)
    sizes = goldens.sizes(name)
    with rmqstore.open(root, "a") as writer:
        writer.append(messages(100))
    with rocketmq_55.open(root, maxMsgsNumBatch=10_000, **sizes) as real:
        find_by_tags(real)
        real.put("Orders", 0, b"from java", tags="TagA", keys="jk")
        real.wait()
    with rmqstore.open(root, "a") as writer:
        assert writer.rebuild() == []
        writer.append(messages(100, first=100))
    log = files_of(root, "commitlog")
    with rocketmq_55.open(root, maxMsgsNumBatch=10_000, **sizes) as real:
        find_by_tags(real)
        judge(real, [row for row in rows_of(root) if row["topic"] in TOPICS])
    assert files_of(root, "commitlog") == log


def test_a_new_store_gets_tags_once_a_broker_that_indexes_them_opened_it(
    rocketmq_55: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with rmqstore.create(root, config=CONFIG) as writer:
        writer.append(messages(N))
    with rocketmq_55.open(root, **SIZES) as real:
        assert real.query_tags("Payments", "TagA") == []
    with rmqstore.open(root, "a") as writer:
        writer.rebuild()
    with rocketmq_55.open(root, maxMsgsNumBatch=10_000, **SIZES) as real:
        find_by_tags(real)


def test_the_real_store_serves_a_log_that_lies_in_several_folders(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root, logs = tmp_path / "s", [tmp_path / disk / "commitlog" for disk in ("disk1", "disk2")]
    for folder in (*logs, root / "consumequeue", root / "config"):
        folder.mkdir(parents=True)
    paths = [str(log) for log in reversed(logs)]
    for first in (0, N):
        with rmqstore.open(root, mode="a", config=CONFIG, commitlogs=paths) as writer:
            writer.append(messages(N, first))
    assert all(len(list(log.iterdir())) > 1 for log in logs)
    with rmqstore.open(root, broker_name="b", commitlogs=paths) as store:
        rows = store.scan(include_system_topics=True).read_all().to_pylist()
    assert len(rows) == 2 * N
    with rocketmq.open(root, storePathCommitLog=",".join(map(str, logs)), **SIZES) as real:
        judge(real, rows)


def test_the_real_store_serves_every_other_message_of_a_queue_with_a_gap(
    rocketmq: RocketMQ, copied: goldens.Golden
) -> None:
    root = copied("basic")
    sizes = goldens.sizes("basic")
    row = middle_of("basic", "TopicB")
    change(root, row["physicalOffset"], QUEUE_ID, (90).to_bytes(4))
    with rmqstore.open(root, mode="a") as writer:
        assert not writer.rebuild()
    expected = [one["queueOffset"] for one in goldens.queues("basic")["TopicB", row["queueId"]]]
    gap = expected.index(row["queueOffset"])
    with rocketmq.open(root, **sizes) as real:
        served = [message["queueOffset"] for message in real.messages("TopicB", row["queueId"])]
        assert served == [*expected[:gap], *expected[gap + 1 :]]
        assert real.queue_range("TopicB", 90)[1] == row["queueOffset"] + 1
        added = real.put("TopicB", row["queueId"], b"next", keys="k")
        assert added.getLogicsOffset() == len(expected) - 1
