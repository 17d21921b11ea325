"""Reads of running brokers give what a read of their stores gives."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

import rmqstore
from connector.streams import Clock
from fake_server import HangUpError, Reply, Request, on
from live.fake_cluster import (
    FakeBroker,
    FakeCluster,
    FakeNames,
    fill,
    offsets,
    one_queue,
    put_behind_proxy,
)
from reading import LOG_COLUMNS, QueuesOfBrokers, by_queue_of_broker, rows
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    OffsetOutOfRangeError,
    OptionError,
)
from rmqstore.live import cluster as cluster_module, patience, pulls
from rmqstore.live.broker import LiveBroker
from rmqstore.live.live_cluster import LiveCluster
from rmqstore.remoting import Address, RemotingClient
from rmqstore.spans import QueueSlice
from store_builder import T0, Record, Store, java_hash, properties

COUNTS = {
    "a": {("T", 0): 300, ("T", 1): 37, ("T", 2): 1, ("Other", 1): 64},
    "b": {("T", 0): 100, ("T", 1): 33, ("%RETRY%g", 0): 5},
}


@cache
def stores() -> dict[str, Store]:
    made = {}
    for number, (name, counts) in enumerate(COUNTS.items()):
        store = Store(first_units={("T", 1): 40})
        made[name] = fill(store, counts, random.Random(number))
    return made


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stores")
    return {name: store.write(folder / name) for name, store in stores().items()}


def of_files(roots: dict[str, Path], **options: Any) -> QueuesOfBrokers:
    with rmqstore.open_cluster(roots) as store:
        return by_queue_of_broker(rows(store.scan(**{"columns": LOG_COLUMNS, **options})))


def of_brokers(cluster: LiveCluster, **options: Any) -> QueuesOfBrokers:
    return by_queue_of_broker(rows(cluster.scan(**{"columns": LOG_COLUMNS, **options})))


@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("limit", [32, 8])
@pytest.mark.parametrize("seed", [None, 1], ids=["in order", "in any order"])
def test_every_message_comes_once_as_from_the_stores(
    roots: dict[str, Path], limit: int, seed: int | None, *, is_binary: bool
) -> None:
    with FakeCluster(stores()) as fake, fake.open() as cluster:
        for server in fake.servers:
            server.is_binary = is_binary
            server.dice = None if seed is None else random.Random(seed)
        for broker in fake.brokers.values():
            broker.limit = limit
        everything = of_files(roots, include_system_topics=True)
        assert len(everything) == 7
        assert of_brokers(cluster, include_system_topics=True) == everything
        assert cluster.count() == 300 + 37 + 1 + 64 + 100 + 33  # but for the retry topic
        assert cluster.queue_ranges("T") == {
            "a": {0: (0, 300), 1: (40, 77), 2: (0, 1)}, "b": {0: (0, 100), 1: (40, 73)}
        }  # fmt: skip
        assert cluster.topics() == ["%RETRY%g", "Other", "T"]


def test_nothing_is_committed_and_no_group_is_made(roots: dict[str, Path]) -> None:
    with FakeCluster(stores()) as fake, fake.open() as cluster:
        assert of_brokers(cluster) == of_files(roots)
        pulls = [request for broker in fake.brokers.values() for request in broker.asked(11)]
        assert {request.fields["consumerGroup"] for request in pulls} == {"TOOLS_CONSUMER"}
        # a subscription is given, nothing is committed, nothing waits
        assert {request.fields["sysFlag"] for request in pulls} == {"4"}


SELECTIONS: list[dict[str, Any]] = [
    {"subscribe": "Other"},
    {"subscribe_pattern": "O.*"},
    {"assign": {"T": [1]}},
    {"starting_offsets": {"T": {"a": {"0": 17, "1": 50}, "b": {"0": 99}}}},
    {"ending_offsets": {"T": {"a": {"0": 17, "1": 50}}}, "subscribe": "T"},
    {"starting_timestamp": T0 + 30, "ending_timestamp": T0 + 91},
    {"starting_timestamp": T0 + 10_000, "starting_offsets_by_timestamp_strategy": "latest"},
    {"where": "queueOffset >= 45 and queueOffset < 60 and flag = 1"},
    {"where": "queueId = 1 and topic = 'T' and tags = 'A'"},
    {"where": "brokerName = 'b'"},
    {"tags": "A"},
    {"filter": "TAGS = 'B' AND KEYS IS NOT NULL"},
    {"last": 5},
    {"last": 3, "tags": "A", "subscribe": "T"},
]


def refuse_without_get(request: Request) -> Reply | None:
    """Refuse what needs the right GET on the topic, with access control of 5.3."""
    if request.code not in (29, 30, 31, 351):
        return None
    return Reply(16, remark="User:x has no permission to access Topic:T, no matched policies.")


@pytest.mark.parametrize("kind", ["5.3", "4.x", "5.3 with the right SUB only"])
@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_the_same_messages_are_chosen_as_from_the_stores(
    roots: dict[str, Path], options: dict[str, Any], kind: str
) -> None:
    with FakeCluster(stores()) as fake, fake.open() as cluster:
        for broker in fake.brokers.values():
            broker.is_old = kind == "4.x"
            broker.attributes = None if broker.is_old else {}
            if "SUB" in kind:
                broker.replace = refuse_without_get
        assert of_brokers(cluster, **options) == of_files(roots, **options)
        if options.get("where") == "brokerName = 'b'":
            assert not fake.brokers["a"].requests


@pytest.mark.parametrize("options", [{}, {"tags": "A"}], ids=["all", "tags"])
@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_a_broker_before_5_is_not_asked_what_it_would_not_answer(
    roots: dict[str, Path], options: dict[str, Any], *, is_binary: bool
) -> None:
    """RocketMQ 4.7.1 sends no answer to a question that it does not know."""
    with FakeCluster(stores()) as fake, fake.open() as cluster:
        for broker in fake.brokers.values():
            broker.version, broker.is_binary = 355, is_binary
            broker.mangle = lambda request, frame: frame if request.code != 351 else b""
        assert of_brokers(cluster, **options) == of_files(roots, **options)


def test_a_search_by_time_among_messages_of_one_millisecond() -> None:
    """A broker of 4.x finds any of them, or a nearer one before."""
    store = Store()
    for number in range(200):
        later = T0 + (0 if number < 80 else 7 if number < 180 else 100 + number)
        store.append(Record(body=b"%d" % number, store_timestamp=later))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        for fake.brokers["a"].is_old in (False, True):
            firsts = {0: 0, 1: 80, 3: 80, 7: 80, 8: 180, 281: 181, 999: 200}
            for time, first in firsts.items():
                found = offsets(cluster, starting_timestamp=T0 + time)
                assert found == list(range(first, 200)), time


def test_offsets_of_a_group_bound_a_read() -> None:
    with FakeCluster({"a": one_queue(100)}) as fake, fake.open() as cluster:
        fake.brokers["a"].committed["g", "T", 0] = 60
        assert cluster.count(starting_offsets="group:g") == 40
        assert cluster.count(ending_offsets="group:g") == 60
        with pytest.raises(OptionError, match="group 'h' has committed no offsets"):
            cluster.count(starting_offsets="group:h")


def test_a_broker_leaves_out_other_tags_by_their_hash_and_the_rest_are_compared_here() -> None:
    assert java_hash("Aa") == java_hash("BB")
    store = one_queue(3000, tags=["Aa", "BB", *"CDEFGHIJ"])
    for number in range(2000):  # a broker looks through many before it finds the next
        store.append(Record(properties=properties({"TAGS": "C"}), body=b"%d" % number), tags="C")
    store.append(Record(properties=properties({"TAGS": "Aa"}), body=b"last"), tags="Aa")
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        found = cluster.scan(tags="Aa", columns="tags,queueOffset").read_all().to_pylist()
        records = [at.record for at in store.placed]
        expected = [one.queue_offset for one in records if b"TAGS\x01Aa\x02" in one.properties]
        assert [row["queueOffset"] for row in found] == expected
        assert {row["tags"] for row in found} == {"Aa"}
        n_sent = len({request.fields["queueOffset"] for request in fake.brokers["a"].asked(11)})
        assert n_sent < 100, "the broker filters"


def test_a_limit_ends_a_read_early_and_progress_counts_every_message() -> None:
    steps: list[tuple[int, int]] = []
    with FakeCluster({"a": one_queue(3000)}) as fake, fake.open() as cluster:
        assert offsets(cluster, limit=10) == list(range(10))
        scan = cluster.scan(progress=lambda *step: steps.append(step), subscribe="T")
        assert scan.count() == 3000
    assert {total for _, total in steps} == {3000}
    assert steps[-1][0] == 3000
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_answers_grow_with_what_a_broker_gives() -> None:
    with FakeCluster({"a": one_queue(30_000)}) as fake, fake.open() as cluster:
        broker = fake.brokers["a"]
        broker.limit = 100_000
        assert cluster.count() == 30_000
        assert len(broker.asked(11)) < 30_000 // 32 // 2


def test_a_distant_broker_gets_more_requests_at_once_unless_its_answers_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeCluster({"a": one_queue(10_000)}) as fake, fake.open() as cluster:

        def most_at_once() -> int:
            together: list[int] = []

            def come(requests: list[Request]) -> None:
                together.append(sum(request.code == 11 for request in requests))
                sleep(0.02)  # for those that come behind

            fake.brokers["a"].come = come
            assert cluster.count() == 10_000
            return max(together)

        assert most_at_once() <= pulls._LEAST_AT_ONCE
        monkeypatch.setattr(RemotingClient, "round_trip", 0.02)
        assert most_at_once() > pulls._LEAST_AT_ONCE
        monkeypatch.setattr(pulls, "_BYTES_AT_ONCE", 1)
        assert most_at_once() <= pulls._LEAST_AT_ONCE


def test_a_proxy_gets_one_pull_after_the_other() -> None:
    counts = {"a": {("T", 0): 900, ("T", 2): 60}, "b": {("T", 1): 40}}
    stores = {name: fill(Store(), queues, random.Random(3)) for name, queues in counts.items()}
    with FakeCluster(stores) as fake:
        with fake.open() as cluster:
            expected = cluster.scan(subscribe="T").to_arrow()
        dropped = [put_behind_proxy(broker) for broker in fake.brokers.values()]
        with fake.open() as cluster:
            assert cluster.scan(subscribe="T").to_arrow() == expected
            middle = expected.column("storeTimestamp")[len(expected) // 2]
            later = expected.filter(pc.greater_equal(expected.column("storeTimestamp"), middle))
            found = cluster.scan(subscribe="T", starting_timestamp=middle.as_py()).to_arrow()
            assert found == later
        assert not any(dropped)


def test_a_proxy_that_refuses_first_is_recognized_by_a_later_answer() -> None:
    with FakeCluster({"a": one_queue(300)}) as fake, fake.open() as cluster:
        dropped = put_behind_proxy(fake.brokers["a"])
        fake.brokers["a"].replace = refuse_without_get  # not marked, as a refusal of a proxy
        assert cluster.count(subscribe="T") == 300
        assert not dropped


def test_a_proxy_is_asked_for_one_route_after_the_other() -> None:
    topics = [f"T{number:03d}" for number in range(70)]
    store = fill(Store(), {(topic, 0): 1 for topic in topics}, random.Random(2))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        dropped = put_behind_proxy(fake.names) | put_behind_proxy(fake.brokers["a"])
        assert cluster.count(subscribe=topics) == 70
        assert not dropped


def test_a_name_server_is_asked_once_for_a_topic_of_a_plan() -> None:
    with FakeCluster({"a": one_queue(5)}) as fake, fake.open() as cluster:
        with pytest.raises(OptionError, match="no topic X"):
            cluster.count(subscribe=["T", "X"], starting_offsets={"X": {"0": 0}})
        asked = [request.fields["topic"] for request in fake.names.asked(105)]
        assert sorted(asked) == ["T", "X"]


def test_queues_that_a_broker_is_too_busy_for_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "_PAUSES", (0.01, 0.02))
    pauses: list[float] = []
    # Threads of other modules sleep too, so the clock of this module is replaced, not the function.
    clock = SimpleNamespace(monotonic=monotonic, sleep=pauses.append)
    monkeypatch.setattr(patience, "time", clock)
    store = fill(Store(), {("T", number): 1 for number in range(150)}, random.Random(2))
    with FakeCluster({"a": store}) as fake:
        fake.brokers["a"].replace = on(11, Reply(2, remark="[OVERLOAD]"), times=300)
        with LiveBroker("a", Address.parse(fake.brokers["a"].address), fake.location) as broker:
            wanted = [QueueSlice("T", number, 0, 1) for number in range(150)]
            found = pulls.first_records(broker, wanted)
    assert [record and record.served_offset for record in found] == [0] * 150
    assert pauses == [0.01, 0.02]


def test_topics_with_other_rights_are_planned_together() -> None:
    counts = {(topic, number): 5 for topic in ("Granted", "Pulled") for number in range(3)}
    store = fill(Store(), counts, random.Random(2))

    def refuse(request: Request) -> Reply | None:
        return refuse_without_get(request) if request.fields.get("topic") == "Pulled" else None

    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        fake.brokers["a"].replace = refuse
        assert cluster.count() == 30
        fake.brokers["a"].requests.clear()
        assert cluster.queue_ranges("Granted") == {"a": {0: (0, 5), 1: (0, 5), 2: (0, 5)}}
        assert not fake.brokers["a"].asked(11)
        assert cluster.queue_ranges("Pulled") == {"a": {0: (0, 5), 1: (0, 5), 2: (0, 5)}}


def test_many_topics_take_few_round_trips() -> None:
    topics = [f"T{number:03d}" for number in range(400)]
    store = fill(Store(), {(topic, 0): 1 for topic in topics}, random.Random(2))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        rounds: list[int] = []
        for server in (fake.names, fake.brokers["a"]):
            server.waits = 0.01
            server.come = lambda requests: rounds.append(len(requests))  # type: ignore[method-assign]
        assert cluster.count() == 400
        assert len(fake.names.connections) == 2  # the list of topics, and their routes
        assert len(rounds) < 100
        assert sum(rounds) > 4 * 400


def test_little_is_held_while_answers_wait_for_those_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulls, "_BUFFERED_BYTES", 1)
    with FakeCluster(stores()) as fake, fake.open() as cluster:
        for broker in fake.brokers.values():
            broker.dice = random.Random(4)
        found = of_brokers(cluster, columns="brokerName,topic,queueId,queueOffset")
        retry = ("b", "%RETRY%g", 0)
        counts = {(name, *key): n for name in COUNTS for key, n in COUNTS[name].items()}
        assert {key: len(rows) for key, rows in found.items()} | {retry: 5} == counts


def test_brokers_are_reached_where_the_address_map_says() -> None:
    with FakeCluster({"a": one_queue(5)}) as fake:
        reached = fake.brokers["a"].address
        fake.names.brokers["a"] = {0: "192.0.2.1:10911"}
        options = {"address_map": f"[::1]:1=[::1]:2, 192.0.2.1:10911={reached}"}
        with rmqstore.open_live(fake.uri, storage_options=options) as cluster:
            assert cluster.count() == 5
        fake.names.brokers["a"] = {0: "127.0.0.1:1"}
        with fake.open() as cluster, pytest.raises(BrokerUnreachableError, match="address_map"):
            cluster.count()


@pytest.mark.parametrize(("read", "write"), [(2, 4), (2, 2), (2, 3), (1, 2)])
def test_messages_of_queues_that_a_topic_does_not_have_any_more_are_told(
    caplog: pytest.LogCaptureFixture, read: int, write: int
) -> None:
    """A broker says where such queues end, and refuses pulls of them."""
    store = fill(Store(), {("T", number): 50 for number in range(4)}, random.Random(1))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        fake.set_queues("T", "a", read, write)
        named = ", ".join(f"T-{number} (0 to 50)" for number in range(read, 4))
        with pytest.raises(OffsetOutOfRangeError, match=rf"readQueueNums.*{re.escape(named)}, the"):
            cluster.count()
        assert not caplog.records
        assert cluster.count(fail_on_data_loss=False) == 50 * read
        assert named in caplog.text
        assert cluster.queue_ranges("T")["a"] == dict.fromkeys(range(read), (0, 50))
        middle = fake.brokers["a"].queues["T", 3].stored[25]
        with pytest.raises(OffsetOutOfRangeError, match=r"T-3 \(25 to 50\)"):
            cluster.count(starting_timestamp=middle.store_timestamp)
        # What is not asked for is not missed.
        assert cluster.count(assign={"T": [0]}) == 50
        assert cluster.count(where="queueId = 0") == 50
        assert cluster.count(starting_timestamp=T0 + 10**9) == 0
        assert cluster.count(ending_timestamp="ms:1") == 0
        assert not [one for one in fake.brokers["a"].asked(11) if one.key[1] >= read]


def test_queues_that_a_topic_never_had_are_no_loss() -> None:
    store = fill(Store(), {("T", number): 50 for number in range(2)}, random.Random(1))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        fake.set_queues("T", "a", 2, 4)
        assert cluster.count() == 100


def test_it_is_said_which_unserved_queues_may_hold_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(request: Request) -> Reply | None:
        return refuse_without_get(request) if request.fields.get("topic") == "G" else None

    counts = {(topic, number): 2 for topic in "TG" for number in range(3)}
    store = fill(Store(), counts, random.Random(1))
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        fake.names.topics["T"]["a"] = fake.names.topics["G"]["a"] = (2, 4, 6)
        fake.brokers["a"].replace = refuse
        for _ in range(2):
            assert cluster.count(fail_on_data_loss=False) == 8
    told = [each.getMessage() for each in caplog.records if "readQueueNums" in each.getMessage()]
    assert len(told) == 2
    assert "G-2, G-3 may hold messages" in told[0]
    assert "T-2 (0 to 2)" in told[1]


def refuse_topics(*refused: str) -> Callable[[Request], Reply | None]:
    """Refuse pulls of topics, as access control does that grants other ones."""

    def reply(request: Request) -> Reply | None:
        topic = request.fields.get("topic")
        if request.code != 11 or topic not in refused:
            return None
        return Reply(16, remark=f"User:x has no permission to access Topic:{topic} from 127.0.0.1")

    return reply


def test_a_read_of_all_topics_leaves_out_those_that_may_not_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = {(topic, number): 5 for topic in ("Orders", "Made", "Users") for number in range(2)}
    credentials = {"access_key": "x", "secret_key": "y", "timeout": "2"}
    with FakeCluster({"a": fill(Store(), counts, random.Random(1))}) as fake:
        fake.brokers["a"].replace = refuse_topics("Made", "Users")
        with rmqstore.open_live(fake.uri, storage_options=credentials) as cluster:
            for _ in range(2):
                assert cluster.count() == 10
            told = [each.getMessage() for each in caplog.records]
            assert len(told) == 1
            assert "topics are not read: Made, Users: a (" in told[0]
            assert "no permission to access Topic:Made" in told[0]
            assert cluster.count(subscribe_pattern="O.*|U.*") == 10
            for named in ({"subscribe": "Orders,Users"}, {"starting_offsets": {"Users": {"0": 1}}}):
                with pytest.raises(BrokerRefusedError, match="no permission to access Topic:Users"):
                    cluster.count(**named)
            fake.brokers["a"].replace = refuse_topics("Orders", "Made", "Users")
            with pytest.raises(BrokerRefusedError, match="no permission"):
                cluster.count()


ABSENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"orderTopicConf": "a:1;b:4;gone:1"}, {}, "order configuration"),
    ({}, {"starting_offsets": {"T": {"a": {"0": 0}, "gone": {"0": 3}}}}, "selection"),
    ({}, {"ending_offsets_by_timestamp": {"T": {"gone": {"0": T0}}}}, "selection"),
]


@pytest.mark.parametrize(("of_routes", "options", "text"), ABSENT, ids=str)
def test_a_broker_that_is_gone_from_the_name_servers_is_missed_where_it_is_known(
    of_routes: dict[str, Any], options: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeCluster({"a": one_queue(20), "b": one_queue(30)}) as fake, fake.open() as cluster:
        fake.names.of_routes = of_routes
        with pytest.raises(BrokerUnreachableError, match=rf"broker gone: .*{text}.* names it"):
            cluster.count(**options)
        assert cluster.count(**options, fail_on_data_loss=False) == 50
        assert "broker gone: no name server knows" in caplog.text
        assert cluster.count(**options, where="brokerName = 'b'") == 30


def test_the_second_name_server_is_asked_where_the_first_is_gone_which_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeCluster({"a": one_queue(5)}) as fake:
        uri = f"rocketmq://127.0.0.1:1;{fake.names.address}"
        with rmqstore.open(uri) as cluster:
            for _ in range(3):
                assert cluster.count() == 5
    (told,) = [each.getMessage() for each in caplog.records]
    assert told.startswith("topics that only this name server knows are not read: 127.0.0.1:1: ")


def two_names(fake: FakeCluster) -> FakeNames:
    other = FakeNames()
    other.brokers = fake.names.brokers
    other.topics = {name: each for name, each in fake.names.topics.items() if name >= "T15"}
    for name in [*fake.names.topics]:
        if name >= "T17":
            del fake.names.topics[name]
    return other


@pytest.mark.parametrize("code", [1, 2, None])
@pytest.mark.parametrize("lasts", [True, False])
def test_one_answer_that_says_nothing_loses_no_other_route(
    code: int | None, monkeypatch: pytest.MonkeyPatch, *, lasts: bool
) -> None:
    monkeypatch.setattr(cluster_module, "_SPARE_SECONDS", 0.2)
    store = fill(Store(), {(f"T{number:02d}", 0): 10 for number in range(20)}, random.Random(1))
    n_asked = 0

    def reply(request: Request) -> Reply | None:
        nonlocal n_asked
        if request.code != 105 or request.fields["topic"] != "T03":
            return None
        n_asked += 1
        if n_asked > 1 and not lasts:
            return None
        if code is None:
            raise HangUpError
        return Reply(code, remark="system busy")

    with FakeCluster({"a": store}) as fake:
        other = two_names(fake)
        fake.names.replace = reply
        uri = f"{fake.uri};{other.address}"
        with rmqstore.open_live(uri, storage_options={"timeout": "1"}) as cluster:
            if lasts:
                with pytest.raises(BrokerUnreachableError, match=r"no route of .*T03"):
                    cluster.count()
            else:
                assert cluster.count() == 200
            if code is not None or not lasts:
                assert cluster.count(subscribe=["T02", "T19"]) == 20
            if lasts and code is not None:
                with pytest.raises(BrokerUnreachableError, match="no route of T03"):
                    cluster.count(subscribe="T03")


def test_a_master_at_another_address_is_found_by_the_next_read() -> None:
    store = one_queue(50)
    with FakeCluster({"a": store}) as fake, fake.open() as cluster:
        assert cluster.count() == 50
        fake.brokers["a"].close()
        fake.brokers["a"] = FakeBroker("a", store)
        fake.names.brokers["a"] = {0: fake.brokers["a"].address}
        assert cluster.count() == 50


def test_scans_that_are_read_side_by_side_do_not_take_one_anothers_answers() -> None:
    with FakeCluster({"a": one_queue(10_000)}) as fake, fake.open() as cluster:
        columns, later = "queueOffset", {"T": {"0": 3500}}
        scans = cluster.scan(columns=columns), cluster.scan(columns=columns, starting_offsets=later)
        readers = [scan.reader() for scan in scans]
        found: list[list[int]] = [[], []]
        for _ in range(20):
            for reader, places in zip(readers, found, strict=True):
                with suppress(StopIteration):
                    places.extend(reader.read_next_batch().column("queueOffset").to_pylist())
                assert cluster.queue_ranges("T") == {"a": {0: (0, 10_000)}}
        assert found == [list(range(10_000)), list(range(3500, 10_000))]
        pulls = [request.fields for request in fake.brokers["a"].asked(11)]
        asked = [fields["queueOffset"] for fields in pulls if fields["maxMsgNums"] != "1"]
        assert len(asked) == len(set(asked)), "no answer was lost"


@pytest.mark.parametrize("seed", range(3))
def test_messages_come_in_the_same_order_whichever_answers_come_first(seed: int) -> None:
    counts = {("T", 0): 900, ("T", 1): 1500, ("T", 2): 3, ("T", 3): 400}
    with FakeCluster({"a": fill(Store(), counts, random.Random(1))}) as fake, fake.open() as one:
        fake.brokers["a"].dice, fake.brokers["a"].waits = random.Random(seed), 0.01
        found = rows(one.scan(columns="queueId,queueOffset"))
    expected = [(queue_id, at) for (_, queue_id), count in counts.items() for at in range(count)]
    assert [(row["queueId"], row["queueOffset"]) for row in found] == expected


def test_a_long_read_survives_errors_of_a_broker_for_longer_than_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    n_pulls = n_errors = 0

    def reply(request: Request) -> Reply | None:
        nonlocal n_pulls, n_errors
        n_pulls += request.code == 11
        if request.code != 11 or n_pulls % 3:
            return None
        n_errors += 1
        clock.sleep(0.3 * patience.PATIENCE_SECONDS)
        return Reply(1, remark="[BROKER]an error of the store")

    with FakeCluster({"a": one_queue(3000)}) as fake, fake.open() as cluster:
        fake.brokers["a"].replace = reply
        assert cluster.count() == 3000
    assert n_errors > 10
    assert clock.seconds > patience.PATIENCE_SECONDS


def test_after_a_lost_connection_nothing_is_asked_for_twice() -> None:
    """Not what has come, nor what was to be asked for again because an answer gave only a part."""
    n_before = 0

    def mangle(request: Request, frame: bytes) -> bytes:
        nonlocal n_before
        if request.code == 11 and int(request.fields["queueOffset"]) >= 500 and not n_before:
            n_before = len(broker.requests)
            raise HangUpError
        return frame

    with FakeCluster({"a": one_queue(2000)}) as fake, fake.open() as cluster:
        broker = fake.brokers["a"]
        broker.mangle = mangle
        assert cluster.count() == 2000
        assert n_before
        pulled = [each.fields for each in broker.requests[n_before:] if each.code == 11]
    asked = [fields["queueOffset"] for fields in pulled]
    assert len(asked) == len(set(asked))
