"""Servers that are busy, or fail at a request, are waited for wherever they are asked."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from connector.engine import Engine
from connector.streams import drain
from fake_server import Reply, on
from live.fake_cluster import FakeCluster, one_queue
from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError
from rmqstore.live import patience, sending

PULL, COMMITTED, AT_TIME, MAX_OFFSET, MIN_OFFSET, ROUTE, TOPICS, SEND = (
    11, 14, 29, 30, 31, 105, 206, 320,
)  # fmt: skip
CODES = {1: "store getMessage return null", 2: "[OVERLOAD]busy", 14: "not running", 1500: "go away"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_PAUSES", (0.001,))
    monkeypatch.setattr(sending, "_VISIBLE_SECONDS", 0.001)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("asked", [PULL, AT_TIME, MAX_OFFSET, MIN_OFFSET, ROUTE, TOPICS])
def test_a_read_waits(code: int, asked: int) -> None:
    with FakeCluster({"a": one_queue(300)}) as fake, fake.open() as cluster:
        server = fake.names if asked in (ROUTE, TOPICS) else fake.brokers["a"]
        server.replace = on(asked, Reply(code, remark=CODES[code]), times=20)
        assert cluster.count(starting_timestamp="ms:1") == 300


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("asked", [PULL, MAX_OFFSET, ROUTE])
def test_a_stream_waits(engine: Engine, tmp_path: Path, code: int, asked: int) -> None:
    with FakeCluster({"a": one_queue(30)}) as fake:
        server = fake.names if asked == ROUTE else fake.brokers["a"]
        server.replace = on(asked, Reply(code, remark=CODES[code]), times=20)
        found = drain(engine, fake.uri, tmp_path, startingOffsets="earliest")
        assert [one["numInputRows"] for one in found] == [30]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("asked", [SEND, ROUTE, MAX_OFFSET])
def test_a_write_waits(code: int, asked: int) -> None:
    with FakeCluster({"a": one_queue(1)}) as fake:
        server = fake.names if asked == ROUTE else fake.brokers["a"]
        server.replace = on(asked, Reply(code, remark=CODES[code]), times=20)
        with fake.writer(waits=True) as writer:
            writer.append(pa.table({"topic": ["T"] * 3, "body": [b"0", b"1", b"2"]}))
        sent = fake.brokers["a"].batches["T", 0]
    assert [body for batch in sent for _, body, _ in batch] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("code", CODES)
def test_it_is_said_why_a_server_does_nothing_in_the_end(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.05)
    kinds = (BrokerRefusedError, BrokerUnreachableError)
    for asked in (PULL, MAX_OFFSET, ROUTE, SEND):
        with FakeCluster({"a": one_queue(3)}) as fake, fake.open() as cluster:
            server = fake.names if asked == ROUTE else fake.brokers["a"]
            server.replace = on(asked, Reply(code, remark=CODES[code]))
            with pytest.raises(kinds, match=re.escape(CODES[code])):  # noqa: PT012
                if asked == SEND:
                    with fake.writer() as writer:
                        writer.append(pa.table({"topic": ["T"], "body": [b"0"]}))
                else:
                    cluster.count(subscribe="T")


@pytest.mark.parametrize(
    "remark",
    [
        "org.apache.rocketmq.acl.common.AclException: No default permission for T",
        "queueId[0] is illegal, topic:[T] topicConfig.readQueueNums:[0]",
    ],
)
def test_what_brokers_of_4_refuse_is_not_asked_again(remark: str) -> None:
    with FakeCluster({"a": one_queue(3)}) as fake, fake.open() as cluster:
        fake.brokers["a"].replace = on(PULL, Reply(1, remark=remark))
        with pytest.raises(BrokerRefusedError, match=re.escape(remark)):
            cluster.count()
        assert len(fake.brokers["a"].asked(PULL)) == 1
