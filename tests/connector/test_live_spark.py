"""Spark reads running brokers, follows them and sends to them; most of it asked without Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo
from pyspark.sql.types import BinaryType, StructType

import rmqstore
import store_builder as build
from connector.engine import Engine
from connector.streams import delivered, drain, start
from connector.test_stream_read import EARLIEST, end_offset, failure, rows
from fake_server import Reply, Request
from live.fake_cluster import FakeBroker, FakeCluster, fill, pairs, put_behind_proxy
from live.test_lost_messages import batch_queue
from pyspark_rmqstore.source import RmqStoreDataSource
from reading import Row, plain
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.live import patience, pulls
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.stream import LiveTail
from rmqstore.query.selection import parse_selection
from rmqstore.read.last_record import LastRecord

COLUMNS = ("topic", "queueId", "queueOffset", "brokerName", "body", "tags", "properties")


def numbered(store: build.Store, key: tuple[str, int], start: int, end: int) -> build.Store:
    for number in range(start, end):
        at = build.T0 + len(store.placed)
        body = b"m%d" % number
        store.append(build.Record(topic=key[0], queue_id=key[1], body=body, store_timestamp=at))
    return store


def later(store: build.Store, topic: str, bodies: Iterable[bytes], queue_offset: int = 0) -> None:
    """Append messages to a queue from an offset on, a second after all others."""
    for offset, body in enumerate(bodies, queue_offset):
        at = build.T0 + 1000 + offset
        store.append(build.Record(topic, queue_offset=offset, body=body, store_timestamp=at))


def serve(broker: FakeBroker, store: build.Store) -> None:
    """Serve what a store holds now, in place of what was served before."""
    other = FakeBroker(broker.name, store)
    other.close()
    broker.queues = other.queues


@pytest.fixture
def two() -> Iterator[FakeCluster]:
    stores = {
        name: fill(build.Store(), {("A", 0): 300, ("A", 1): 40, ("B", 2): 7}, random.Random(name))
        for name in ("a", "b")
    }
    with FakeCluster(stores) as fake:
        yield fake


Serving = Callable[[build.Store], FakeCluster]


@pytest.fixture(params=["direct", "behind a proxy"])
def serving(request: pytest.FixtureRequest) -> Serving:
    """Return what serves a store by a broker, which clients reach or a proxy does for them."""

    def made(store: build.Store) -> FakeCluster:
        fake = FakeCluster({"a": store})
        if request.param != "direct":
            put_behind_proxy(fake.brokers["a"])
        return fake

    return made


def ordered(found: list[Row]) -> list[Row]:
    names = ("brokerName", "topic", "queueId", "queueOffset")
    return sorted(map(plain, found), key=lambda row: tuple(row[name] for name in names))


def expected(fake: FakeCluster, **options: Any) -> list[Row]:
    with fake.open() as cluster:
        return ordered(cluster.scan(columns=COLUMNS, **options).read_all().to_pylist())


def read(spark: SparkSession | Engine, fake: FakeCluster, **options: object) -> Any:
    reader: Any = spark.read.format("rmqstore").options(**options)
    return reader.load(fake.uri).select(*COLUMNS)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"minPartitions": "9"}, {}),
        ({"maxRecordsPerPartition": "11", "subscribe": "A"}, {"subscribe": "A"}),
        ({"startingTimestamp": build.T0 + 20}, {"starting_timestamp": build.T0 + 20}),
        ({"tags": "A"}, {"tags": "A"}),
    ],
    ids=str,
)
def test_a_batch_read_gives_every_message_once_however_it_is_cut(
    engine: Engine, two: FakeCluster, options: dict[str, object], arguments: dict[str, Any]
) -> None:
    frame = read(engine, two, **options)
    assert ordered(frame.toArrow().to_pylist()) == expected(two, **arguments)
    if "minPartitions" in options:
        assert len(frame.plan.partitions) >= 9


def test_records_of_several_messages_are_read_whole_wherever_tasks_are_cut(engine: Engine) -> None:
    with FakeCluster({"a": numbered(build.Store(), ("T", 0), 0, 1)}) as fake:
        fake.brokers["a"].queues["T", 0].stored = batch_queue(random.Random(2))
        frame = read(engine, fake, maxRecordsPerPartition="13")
        assert len(frame.plan.partitions) > 20
        assert ordered(frame.toArrow().to_pylist()) == expected(fake)


def test_brokers_and_queues_that_a_filter_leaves_out_are_not_read(
    engine: Engine, two: FakeCluster
) -> None:
    everything = expected(two)
    two.brokers["a"].requests.clear()
    frame = read(engine, two).where(EqualTo(("brokerName",), "b"), EqualTo(("queueId",), 1))
    assert ordered(frame.pushing().toArrow().to_pylist()) == [
        row for row in everything if (row["brokerName"], row["queueId"]) == ("b", 1)
    ]
    assert not two.brokers["a"].requests
    assert {request.key[1] for request in two.brokers["b"].asked(11)[-2:]} == {1}


def test_a_stream_reads_all_once_and_goes_on_after_it_was_stopped(
    engine: Engine, tmp_path: Path, serving: Serving
) -> None:
    store = numbered(numbered(build.Store(), ("A", 0), 0, 30), ("B", 3), 0, 10)
    with serving(store) as fake:
        options = EARLIEST | {"maxOffsetsPerTrigger": "20"}
        found = drain(engine, fake.uri, tmp_path, **options)
        assert [one["numInputRows"] for one in found] == [20, 20]
        assert end_offset(found[0])["queues"] == {
            "A": {"a": {"0": 15}}, "B": {"a": {"0": 0, "1": 0, "2": 0, "3": 5}}
        }  # fmt: skip
        assert not drain(engine, fake.uri, tmp_path, **options)
        serve(fake.brokers["a"], numbered(store, ("A", 0), 30, 45))
        found = drain(engine, fake.uri, tmp_path, **options)
        assert [one["numInputRows"] for one in found] == [15]
    assert delivered(engine, tmp_path) == {("A", 0): rows(0, 45), ("B", 3): rows(0, 10)}


@pytest.mark.parametrize("begins_with_files", [False, True])
def test_a_query_goes_on_from_brokers_to_their_store_and_back(
    engine: Engine, tmp_path: Path, *, begins_with_files: bool
) -> None:
    store = build.Store()
    with FakeCluster({"a": numbered(build.Store(), ("A", 0), 0, 1)}) as fake:
        for number in range(4):
            numbered(store, ("A", 0), 10 * number, 10 * number + 10)
            serve(fake.brokers["a"], store)
            of_files = number % 2 != int(begins_with_files)
            path = str(store.write(tmp_path / f"s{number}")) if of_files else fake.uri
            name = {"brokerName": "a"} if of_files else {}
            found = drain(engine, path, tmp_path / "q", **EARLIEST, **name)
            assert [one["numInputRows"] for one in found] == [10]
    assert delivered(engine, tmp_path / "q") == {("A", 0): rows(0, 40)}


def test_a_log_that_lost_only_what_was_not_read_yet_is_read_on(
    engine: Engine, tmp_path: Path, serving: Serving
) -> None:
    """The newest record of an offset is gone then, though nothing that was delivered is."""

    def log(count: int) -> build.Store:
        store = build.Store()
        for number in range(count):
            late = 1000 if number >= 20 and count < 30 else 0
            time, body = build.T0 + number + late, b"m%d" % number
            store.append(build.Record(topic="A", body=body, store_timestamp=time))
        return store

    options = EARLIEST | {"maxOffsetsPerTrigger": "10"}
    with serving(log(30)) as fake:
        query = start(engine, fake.uri, tmp_path, **options)
        query.trigger()
        serve(fake.brokers["a"], log(20))
        query.trigger()
        serve(fake.brokers["a"], log(25))
        query.processAllAvailable()
        query.stop()
        assert not drain(engine, fake.uri, tmp_path, **options)
    assert delivered(engine, tmp_path) == {("A", 0): rows(0, 25)}


def test_what_replaced_lost_messages_is_delivered_once(
    engine: Engine, tmp_path: Path, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue has its old end again, so that the newest record is in none that has grown."""
    base = numbered(numbered(build.Store(), ("A", 0), 0, 2), ("B", 0), 0, 1)
    other = numbered(numbered(build.Store(), ("A", 0), 0, 2), ("B", 0), 0, 1)
    numbered(base, ("A", 0), 2, 3)
    other.append(
        build.Record(topic="A", queue_offset=2, body=b"new", store_timestamp=build.T0 + 60)
    )
    with serving(base) as fake:
        query = start(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
        query.processAllAvailable()
        serve(fake.brokers["a"], other)
        query.processAllAvailable()
        query.processAllAvailable()
        serve(fake.brokers["a"], numbered(other, ("A", 0), 3, 4))
        query.processAllAvailable()
        query.stop()
    assert delivered(engine, tmp_path)["A", 0] == [*rows(0, 3), (2, "new"), (3, "m3")]
    told = [each for each in caplog.records if "a recovery cut it" in each.getMessage()]
    assert len(told) == 1


def test_the_newest_record_may_be_in_a_queue_that_is_not_followed_any_more(
    engine: Engine, tmp_path: Path, serving: Serving
) -> None:
    store = numbered(numbered(build.Store(), ("A", 0), 0, 10), ("A", 1), 0, 5)
    with serving(store) as fake:
        n_rows = []
        for served in (2, 1, 1, 2):
            fake.names.topics["A"]["a"] = (served, 2, 6)
            found = drain(engine, fake.uri, tmp_path, **EARLIEST, subscribe="A")
            n_rows.append(sum(one["numInputRows"] for one in found))
            if len(n_rows) == 1:
                serve(fake.brokers["a"], numbered(store, ("A", 0), 10, 12))
    assert n_rows == [15, 2, 0, 0]


def test_a_running_stream_sees_new_queues_topics_and_brokers(
    engine: Engine, tmp_path: Path
) -> None:
    store = numbered(build.Store(), ("A", 0), 0, 5)
    with FakeCluster({"a": store}) as fake:
        query = start(engine, fake.uri, tmp_path, **EARLIEST)
        query.processAllAvailable()
        numbered(numbered(store, ("A", 2), 0, 3), ("New", 0), 0, 4)
        serve(fake.brokers["a"], store)
        fake.names.topics["A"]["a"] = (3, 3, 6)
        fake.names.topics["New"] = {"a": (1, 1, 6)}
        query.processAllAvailable()
        fake.brokers["b"] = FakeBroker("b", numbered(build.Store(), ("New", 1), 0, 6))
        fake.names.brokers["b"] = {0: fake.brokers["b"].address}
        fake.names.topics["New"]["b"] = (2, 2, 6)
        query.processAllAvailable()
        query.stop()
    assert delivered(engine, tmp_path) == {
        ("A", 0): rows(0, 5), ("A", 2): rows(0, 3), ("New", 0): rows(0, 4), ("New", 1): rows(0, 6),
    }  # fmt: skip


def test_messages_that_are_gone_stop_a_stream(engine: Engine, tmp_path: Path) -> None:
    store = numbered(build.Store(), ("A", 0), 0, 30)
    with FakeCluster({"a": store}) as fake:
        drain(engine, fake.uri, tmp_path, **EARLIEST)
        serve(fake.brokers["a"], numbered(store, ("A", 0), 30, 60))
        queue = fake.brokers["a"].queues["A", 0]
        queue.stored, queue.first = queue.stored[40:], 40
        text = failure(lambda: drain(engine, fake.uri, tmp_path, **EARLIEST))
        assert "A-0" in text
        assert "failOnDataLoss" in text
        drain(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
    assert delivered(engine, tmp_path) == {("A", 0): rows(0, 30) + rows(40, 60)}


def test_a_log_that_fell_back_and_grew_past_the_end_stops_a_stream(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: Serving
) -> None:
    monkeypatch.setattr(pulls, "_EMPTY_SECONDS", 0.1)
    with serving(numbered(build.Store(), ("A", 0), 0, 30)) as fake:
        drain(engine, fake.uri, tmp_path, **EARLIEST)
        other = numbered(numbered(build.Store(), ("B", 0), 0, 3), ("A", 0), 0, 60)
        serve(fake.brokers["a"], other)
        text = failure(lambda: drain(engine, fake.uri, tmp_path, **EARLIEST))
        assert "failOnDataLoss" in text


def test_the_newest_record_of_another_log_is_looked_for_in_all_queues() -> None:
    """Also in a queue that ends where it did before."""
    store = numbered(numbered(build.Store(), ("A", 0), 0, 3), ("B", 0), 0, 1)
    with FakeCluster({"a": store}) as fake, LiveBrokers(fake.location) as brokers:
        selection = parse_selection()
        (found,) = brokers.spans(selection)
        tail = LiveTail(found.broker, selection)
        tail.take(found)
        other = build.filled([build.Record(topic="B", body=b"another")])
        serve(fake.brokers["a"], numbered(other, ("A", 0), 0, 3))
        tail.take(brokers.spans(selection)[0])
        assert tail.last_record == LastRecord(other.places[-1], build.T0 + 3)
        assert not tail.discovered


@pytest.mark.parametrize("n_new", [1, 10, 20, 30])
@pytest.mark.parametrize("is_old", [False, True], ids=["5", "4"])
def test_a_topic_that_was_made_again_is_read_whole_whatever_its_offsets(
    engine: Engine, tmp_path: Path, n_new: int, *, is_old: bool
) -> None:
    store = numbered(numbered(build.Store(), ("A", 0), 0, 20), ("B", 0), 0, 1)
    with FakeCluster({"a": store}) as fake:
        fake.brokers["a"].is_old = is_old
        query = start(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
        query.processAllAvailable()
        numbered(store, ("B", 0), 1, 2)
        del store.queues["A", 0]
        later(store, "A", (b"m%d" % (100 + number) for number in range(n_new)))
        numbered(store, ("B", 0), 2, 3)
        serve(fake.brokers["a"], store)
        text = failure(lambda: drain(engine, fake.uri, tmp_path, **EARLIEST))
        assert "A-0 of broker a: delivered up to offset 20, but" in text
        query.processAllAvailable()
        query.processAllAvailable()
        query.stop()
    expected = rows(0, 20) + [(number, f"m{100 + number}") for number in range(n_new)]
    assert delivered(engine, tmp_path)["A", 0] == sorted(expected)
    assert delivered(engine, tmp_path)["B", 0] == rows(0, 3)


def test_what_replaces_planned_messages_comes_with_the_next_micro_batch(serving: Serving) -> None:
    """A broker comes back from an older copy after a micro-batch was planned."""
    planned, other = build.Store(), numbered(build.Store(), ("A", 0), 0, 30)
    numbered(planned, ("A", 0), 0, 90)
    later(other, "A", (b"n%d" % number for number in range(30, 90)), 30)
    old, new = ([b"%s%d" % (letter, number) for number in range(90)] for letter in (b"m", b"n"))
    with serving(planned) as fake:
        broker = fake.brokers["a"]

        def reader(*, fails: bool) -> Any:
            options = {"path": fake.uri, "failOnDataLoss": str(fails).lower(), **EARLIEST}
            return RmqStoreDataSource(options).streamReader(StructType().add("body", "binary"))

        def read(source: Any, tasks: Any) -> list[bytes]:
            batches = (batch for task in tasks for batch in source.read(task))
            return [body for batch in batches for body in batch["body"].to_pylist()]

        failing, query = reader(fails=True), reader(fails=False)
        since = query.initialOffset()
        until = query.latestOffset(since, query.getDefaultReadLimit())
        tasks = query.partitions(since, until)
        serve(broker, other)
        with pytest.raises(OffsetOutOfRangeError, match="newer than the plan"):
            read(failing, tasks)
        assert read(query, tasks) == old[:30]
        following = query.latestOffset(until, query.getDefaultReadLimit())
        assert read(query, query.partitions(until, following)) == new[30:]


def test_a_topic_whose_first_messages_had_expired_is_made_again(
    engine: Engine, tmp_path: Path
) -> None:
    store = build.Store()
    store.first_units["A", 0] = 100
    numbered(numbered(store, ("A", 0), 0, 20), ("B", 0), 0, 1)
    with FakeCluster({"a": store}) as fake:
        query = start(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
        query.processAllAvailable()
        del store.queues["A", 0]
        store.first_units.clear()
        serve(fake.brokers["a"], numbered(store, ("A", 0), 100, 130))
        query.processAllAvailable()
        query.stop()
    expected = [(100 + number, f"m{number}") for number in range(20)]
    expected += [(number, f"m{100 + number}") for number in range(30)]
    assert delivered(engine, tmp_path)["A", 0] == sorted(expected)


def test_a_batch_does_not_take_what_replaces_planned_messages_for_them() -> None:
    """A topic is deleted after the plan and made again with as many messages."""
    store = numbered(build.Store(), ("A", 0), 0, 30)
    with FakeCluster({"a": store}) as fake:
        source = RmqStoreDataSource({"path": fake.uri}).reader(StructType().add("body", "binary"))
        tasks = source.partitions()
        del store.queues["A", 0]
        serve(fake.brokers["a"], numbered(store, ("A", 0), 0, 30))
        with pytest.raises(OffsetOutOfRangeError, match="30 messages are newer than the plan"):
            [*source.read(tasks[0])]


def test_a_broker_that_is_gone_is_waited_for(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_PAUSES", (0.01,))
    store = numbered(build.Store(), ("A", 0), 0, 30)
    with FakeCluster({"a": store}) as fake:
        n_asked = 0

        def reply(request: Request) -> Reply | None:
            nonlocal n_asked
            n_asked += request.code == 105
            return Reply(17) if request.code == 105 and 1 < n_asked < 5 else None

        query = start(engine, fake.uri, tmp_path, **EARLIEST)
        query.processAllAvailable()
        serve(fake.brokers["a"], numbered(store, ("A", 0), 30, 40))
        fake.names.replace = reply
        query.processAllAvailable()
        query.stop()
    assert delivered(engine, tmp_path) == {("A", 0): rows(0, 40)}


@pytest.mark.parametrize("gone", [20, 2500])
def test_a_stream_begins_where_retention_left_off(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: int
) -> None:
    """The queue is not corrected yet, nor is that of a topic that appears later."""
    store = numbered(numbered(build.Store(), ("A", 0), 0, 3000), ("New", 0), 0, 3000)
    with FakeCluster({"a": store}) as fake:
        for queue in fake.brokers["a"].queues.values():
            queue.gone = gone
        later = fake.names.topics.pop("New")
        query = start(engine, fake.uri, tmp_path, **EARLIEST)
        query.processAllAvailable()
        fake.names.topics["New"] = later
        fake.brokers["a"].queues["New", 0].gone = 0
        query.processAllAvailable()
        query.stop()
    expected = {("A", 0): rows(gone, 3000), ("New", 0): rows(0, 3000)}
    assert delivered(engine, tmp_path) == expected
    assert "loss" not in caplog.text


@pytest.mark.parametrize(("read", "write"), [(2, 4), (2, 2)])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_stream_tells_of_queues_that_its_topic_does_not_have_any_more(
    engine: Engine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    read: int,
    write: int,
    *,
    is_stopped: bool,
) -> None:
    """They go on where they were when they are served again."""
    store = build.Store()
    for queue_id in range(4):
        numbered(store, ("A", queue_id), 0, 10)
    with FakeCluster({"a": store}) as fake:
        query = start(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
        query.processAllAvailable()
        for queue_id in range(4):
            numbered(store, ("A", queue_id), 10, 20)
        serve(fake.brokers["a"], store)
        fake.set_queues("A", "a", read, write)
        if is_stopped:
            query.stop()
            text = failure(lambda: drain(engine, fake.uri, tmp_path, **EARLIEST))
            assert "A-2 of broker a: the broker lets nobody read offsets 10 to 20" in text
            query = start(engine, fake.uri, tmp_path, **EARLIEST, failOnDataLoss="false")
        for _ in range(3):
            query.processAllAvailable()
        for queue_id in (2, 3):
            told = [one for one in caplog.records if f"A-{queue_id} of broker" in one.getMessage()]
            assert len(told) == 1
        fake.set_queues("A", "a", 4, 4)
        query.processAllAvailable()
        query.stop()
    assert delivered(engine, tmp_path) == {("A", number): rows(0, 20) for number in range(4)}


@pytest.mark.parametrize("where", ["earliest", "latest"])
@pytest.mark.parametrize(("read", "write"), [(2, 4), (2, 2)])
def test_a_new_stream_tells_of_queues_that_its_topic_had_once(
    engine: Engine, tmp_path: Path, where: str, read: int, write: int
) -> None:
    store = build.Store()
    for queue_id in range(4):
        numbered(store, ("A", queue_id), 0, 10)
    with FakeCluster({"a": store}) as fake:
        fake.set_queues("A", "a", read, write)
        if where == "earliest":
            text = failure(lambda: drain(engine, fake.uri, tmp_path, startingOffsets=where))
            assert "A-2 of broker a: the broker lets nobody read offsets 0 to 10" in text
            return
        query = start(engine, fake.uri, tmp_path, startingOffsets=where)
        query.processAllAvailable()
        serve(fake.brokers["a"], numbered(store, ("A", 3), 10, 11))
        with pytest.raises(PySparkException, match=r"A-3.*nobody read offsets 10 to 11"):
            query.processAllAvailable()


def sent(fake: FakeCluster) -> list[bytes]:
    return sorted(
        body
        for broker in fake.brokers.values()
        for stored in broker.batches.values()
        for messages in stored
        for _, body, _ in messages
    )


def test_all_rows_are_sent_with_keys_of_their_own(engine: Engine) -> None:
    with FakeCluster({"a": build.Store()}) as fake:
        fake.names.topics["T"] = {"a": (4, 4, 6)}
        frame = engine.frame(
            {"topic": ["T"] * 90, "body": [f"b{n}" for n in range(90)]}, partitions=3
        )
        frame.write.format("rmqstore").mode("append").save(fake.uri)
        assert sent(fake) == sorted(b"b%d" % n for n in range(90))
        keys = {
            pairs(stored)["UNIQ_KEY"]
            for batches in fake.brokers["a"].batches.values()
            for messages in batches
            for _, _, stored in messages
        }
        assert len(keys) == 90


def test_a_stream_copies_a_store_to_brokers(engine: Engine, tmp_path: Path) -> None:
    root = numbered(build.Store(), ("A", 0), 0, 50).write(tmp_path / "s")
    with FakeCluster({"a": build.Store()}) as fake:
        fake.names.topics["A"] = {"a": (2, 2, 6)}
        stream: Any = engine.readStream.format("rmqstore").options(**EARLIEST).load(str(root))
        writer = stream.writeStream.format("rmqstore").outputMode("append")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        writer.start(fake.uri).awaitTermination()
        assert sent(fake) == sorted(b"m%d" % n for n in range(50))


def test_a_stream_commits_while_brokers_are_started_again(two: FakeCluster) -> None:
    schema = StructType().add("body", BinaryType())
    for broker in two.brokers.values():
        broker.close()
    two.names.topics.clear()
    source = RmqStoreDataSource({"path": two.uri, "topic": "A", "checkpointLocation": "c"})
    writer = source.streamWriter(schema, overwrite=False)
    writer.commit([], batchId=3)


@pytest.mark.parametrize(
    "name", ["msgKey", "msgId", "brokerName", "includePending", "ignoreLogEnd", "tiered"]
)
def test_options_of_files_are_refused_by_name(engine: Engine, two: FakeCluster, name: str) -> None:
    with pytest.raises(PySparkException, match=name):
        read(engine, two, **{name: "true"}).count()


def test_options_of_stores_are_refused_by_a_write(engine: Engine, two: FakeCluster) -> None:
    for name, value in (
        ("txnAppId", "a"),
        ("queueNums", "4"),
        ("mappedFileSizeCommitLog", "65536"),
    ):
        frame = engine.frame({"topic": ["A"], "body": ["x"]})
        with pytest.raises(PySparkException, match=name):
            frame.write.format("rmqstore").option(name, value).mode("append").save(two.uri)
    with pytest.raises(PySparkException, match="unknown region"):
        read(engine, two, storageOptions=json.dumps({"region": "x"})).count()


@pytest.mark.spark
def test_reads_streams_and_writes_in_spark_itself(spark: SparkSession, tmp_path: Path) -> None:
    store = numbered(numbered(build.Store(), ("A", 0), 0, 30), ("B", 3), 0, 10)
    with FakeCluster({"a": store}) as fake:
        assert ordered([row.asDict() for row in read(spark, fake).collect()]) == expected(fake)
        options = EARLIEST | {"maxOffsetsPerTrigger": "20"}
        found = drain(spark, fake.uri, tmp_path / "q", **options)
        assert [one["numInputRows"] for one in found] == [20, 20]
        numbered(store, ("A", 0), 30, 40)
        serve(fake.brokers["a"], store)
        found = drain(spark, fake.uri, tmp_path / "q", **options)
        assert [one["numInputRows"] for one in found] == [10]
        root = numbered(store, ("A", 0), 40, 45).write(tmp_path / "s")
        found = drain(spark, root, tmp_path / "q", **options, brokerName="a")
        assert [one["numInputRows"] for one in found] == [5]
        assert delivered(spark, tmp_path / "q") == {("A", 0): rows(0, 45), ("B", 3): rows(0, 10)}

        fake.names.topics["T"] = {"a": (4, 4, 6)}
        frame = spark.range(100, numPartitions=3).selectExpr("concat('b', id) AS body")
        frame.write.format("rmqstore").option("topic", "T").mode("append").save(fake.uri)
        assert sent(fake) == sorted(b"b%d" % number for number in range(100))
        text = failure(lambda: frame.write.format("rmqstore").mode("overwrite").save(fake.uri))
        assert "append" in text
    with rmqstore.open(root) as one:
        assert one.count() == 55
