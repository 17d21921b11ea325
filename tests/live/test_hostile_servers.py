"""Whatever a server answers: a clear error that names it, or the rows, within the time-out."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

import rmqstore
from fake_server import FakeServer, HangUpError, Reply, Request, on
from live.fake_cluster import FakeCluster, fill, offsets, one_queue
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    OffsetOutOfRangeError,
    RmqStoreError,
)
from rmqstore.live import patience, pulls
from rmqstore.live.live_cluster import LiveCluster
from rmqstore.live.location import LiveLocation
from store_builder import Store

N = 500


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(patience, "_PAUSES", (0.01,))
    monkeypatch.setattr(pulls, "_EMPTY_SECONDS", 0.1)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster({"a": stored()}) as cluster:
        yield cluster


@cache
def stored() -> Store:
    return one_queue(N)


def opened(fake: FakeCluster, timeout: float = 0.3) -> LiveCluster:
    return LiveCluster(LiveLocation.parse(fake.uri, {"timeout": timeout}))


def half(_request: Request, frame: bytes) -> bytes:
    raise HangUpError(frame[: len(frame) // 2])


def garbage(request: Request, frame: bytes) -> bytes:
    return random.Random(request.opaque).randbytes(len(frame))


def of_others(request: Request, _frame: bytes) -> bytes:
    server = FakeServer.__new__(FakeServer)
    server.is_binary = False
    other = Request(request.code, request.opaque + 1_000_000, request.fields, b"")
    return server.frame(other, Reply(fields={"offset": "7"}))


def flood(request: Request, frame: bytes) -> Iterator[bytes]:
    while True:
        yield of_others(request, frame)
        time.sleep(0.01)


FAULTS: dict[str, Callable[[Request, bytes], Any]] = {
    "flood": flood,
    "silent": lambda _request, _frame: b"",
    "half": half,
    "half_and_silent": lambda _request, frame: frame[: len(frame) // 2],
    "garbage": garbage,
    "huge": lambda _request, _frame: struct.pack(">ii", (1 << 31) - 1, 10) + b"x" * 1000,
    "negative": lambda _request, _frame: struct.pack(">i", -5),
    "no_json": lambda _request, _frame: struct.pack(">ii", 8, 4) + b"{[}]",
    "cut_binary": lambda _request, _frame: struct.pack(">ii", 10, 1 << 24 | 6) + b"\0\0\0\0\1\0",
    "of_others": of_others,
}


ASKED = {
    105: "GET_ROUTEINFO_BY_TOPIC", 30: "GET_MAX_OFFSET", 31: "GET_MIN_OFFSET", 11: "PULL_MESSAGE",
}  # fmt: skip


@pytest.mark.parametrize("code", ASKED)
@pytest.mark.parametrize("name", FAULTS)
def test_answers_that_are_none_are_an_error_that_names_the_server(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, code: int, name: str
) -> None:
    server, fault = fake.names if code == 105 else fake.brokers["a"], FAULTS[name]
    server.mangle = lambda request, frame: fault(request, frame) if request.code == code else frame
    with opened(fake) as cluster:
        with pytest.raises(BrokerUnreachableError, match=server.address) as caught:
            cluster.count(subscribe="T")
        if name == "silent":
            text = f"no answer to {ASKED[code]}: timed out after 0.3 s"
            assert str(caught.value).endswith(text)
        server.mangle = lambda _request, frame: frame
        monkeypatch.setattr(patience, "PATIENCE_SECONDS", 60)
        assert offsets(cluster) == list(range(N)), "a later read is as any other"


@pytest.mark.parametrize("fault", ["half", "garbage", "cut_binary", "huge"])
@pytest.mark.parametrize("every", [5, 13])
def test_a_read_goes_on_after_broken_answers_without_loss_or_repetition(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, fault: str, every: int
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 60)
    n_answers = n_broken = 0

    def mangle(request: Request, frame: bytes) -> bytes:
        nonlocal n_answers, n_broken
        n_answers += request.code == 11
        if n_answers % every == every - 1 and n_broken < 3:
            n_broken += 1
            return FAULTS[fault](request, frame)
        return frame

    fake.brokers["a"].mangle = mangle
    fake.brokers["a"].dice = random.Random(every)
    with opened(fake) as cluster:
        assert offsets(cluster) == list(range(N))
    assert n_broken > 0


def test_an_answer_that_comes_twice_counts_once_also_after_a_broker_closed_an_idle_connection(
    fake: FakeCluster,
) -> None:
    fake.brokers["a"].mangle = lambda request, frame: frame * (1 + (request.code == 11))
    with opened(fake) as cluster:
        for _ in range(3):
            assert offsets(cluster) == list(range(N))
            fake.brokers["a"].cut_connections()


FIELDS: list[tuple[int, dict[str, str]]] = [
    (30, {}), (30, {"offset": "many"}), (31, {"offset": str(1 << 70)}),
    (11, {}), (11, {"nextBeginOffset": "32", "minOffset": "0"}),
    (11, {"nextBeginOffset": "x", "minOffset": "0", "maxOffset": "1000"}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "fields"), FIELDS, ids=str)
def test_fields_that_are_missing_or_no_numbers_are_an_error(
    fake: FakeCluster, code: int, fields: dict[str, str]
) -> None:
    fake.brokers["a"].replace = on(code, Reply(fields=fields, body=b"x"))
    with opened(fake) as cluster:
        with pytest.raises(BrokerUnreachableError, match=r"field \w+ of the answer") as caught:
            offsets(cluster)
        assert fake.brokers["a"].address in str(caught.value)


ROUTES: list[Any] = [
    b"", b"{}", b"[]", b"{", b'{"queueDatas":7}', b'{"brokerDatas":[{}]}',
    b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","readQueueNums":-1,"writeQueueNums":1,"perm":6}]}',
    b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","readQueueNums":999999999,"writeQueueNums":1,"perm":6}]}',
    b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"nowhere"}}],"queueDatas":[]}',
    b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","readQueueNums":1,"writeQueueNums":1,"perm":6}]}',
    b'{"queueDatas":' + b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("body", ROUTES, ids=range(len(ROUTES)))
def test_routes_that_are_none_are_an_error_that_names_the_name_server(
    fake: FakeCluster, body: bytes
) -> None:
    fake.names.replace = on(105, Reply(body=body))
    with opened(fake) as cluster, pytest.raises(RmqStoreError, match=fake.names.address):
        cluster.count(subscribe="T")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"topicList":[7]}', b'{"topicList":"T"}'])
def test_lists_of_topics_that_are_none_are_an_error(fake: FakeCluster, body: bytes) -> None:
    fake.names.replace = on(206, Reply(body=body))
    with opened(fake) as cluster, pytest.raises(BrokerUnreachableError, match=fake.names.address):
        cluster.count()


def test_queues_without_end_are_not_looked_for_for_ever(fake: FakeCluster) -> None:
    fake.brokers["a"].replace = on(30, Reply(fields={"offset": str(N)}))
    lost = pytest.raises(OffsetOutOfRangeError, match=r", \d+ more, the latter")
    with opened(fake, 5) as cluster, lost:
        cluster.count()


def test_what_servers_refuse_is_said_as_they_say_it_and_a_terminal_obeys_none(
    fake: FakeCluster,
) -> None:
    remark = "no \x1b[2J\x1b]0;x\x07permission\x9b31m\r\nSee \u202ehttps"
    shown = r"no \x1b[2J\x1b]0;x\x07permission\x9b31m  See \u202ehttps"
    for code, server in ((105, fake.names), (206, fake.names), (11, fake.brokers["a"])):
        server.replace = on(code, Reply(16, remark=remark))
        with opened(fake) as cluster, pytest.raises(BrokerRefusedError) as caught:
            offsets(cluster)
        assert shown in str(caught.value)
        assert server.address in str(caught.value)
        server.replace = lambda _request: None
    for topics in ({"T\x1b[2J": {"a": (1, 1, 6)}}, {"T": {"b\x1b": (1, 1, 6)}}):
        fake.names.topics, fake.names.brokers = topics, {"b\x1b": {0: "127.0.0.1:1"}}
        with opened(fake) as cluster, pytest.raises(BrokerUnreachableError) as caught:
            cluster.count()
        assert str(caught.value).isprintable()


def test_a_broker_in_place_of_a_name_server_is_named(fake: FakeCluster) -> None:
    uri = f"rocketmq://{fake.brokers['a'].address}"
    for arguments in ({}, {"subscribe": "T"}):
        with rmqstore.open(uri) as cluster, pytest.raises(BrokerRefusedError) as caught:
            cluster.count(**arguments)
        assert "not a name server" in str(caught.value)


def test_a_broker_that_is_gone_fails_a_read_and_shrinks_none() -> None:
    store = fill(Store(), {("T", 0): 5}, random.Random(1))
    with FakeCluster({"a": store, "b": store}) as both:
        address = both.brokers["b"].address
        both.brokers["b"].close()
        with opened(both) as cluster, pytest.raises(BrokerUnreachableError, match=address):
            offsets(cluster)
        both.names.brokers["b"] = {1: "127.0.0.1:1"}
        with opened(both) as cluster, pytest.raises(BrokerUnreachableError, match="no master"):
            offsets(cluster)
    with opened(both) as cluster, pytest.raises(BrokerUnreachableError, match=both.names.address):
        offsets(cluster)
