"""What is sent to running brokers is stored, in order, at least once, and told apart from doubt."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from fake_server import HangUpError, Reply, Request, on
from live.fake_cluster import FakeBroker, FakeCluster, decoded, pairs
from live.test_hostile_servers import flood
from reading import rows
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    IllegalMessageError,
    OptionError,
    StoreStateError,
)
from rmqstore.live import patience, sending, writer
from rmqstore.live.writer import LiveWriter, RepeatableKeys
from rmqstore.write.messages import WriteSpec
from store_builder import Store

SCHEMA = pa.schema(
    {
        "topic": pa.string(), "queueId": pa.int32(), "body": pa.binary(), "tags": pa.string(),
        "keys": pa.string(), "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int32(),
        "shardingKey": pa.string(), "delayTimeLevel": pa.int32(), "msgId": pa.string(),
    }
)  # fmt: skip


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_PAUSES", (0.01,))
    monkeypatch.setattr(sending, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "_VISIBLE_SECONDS", 0.02)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Return a broker with a topic of four queues, in which nothing is yet."""
    with FakeCluster({"a": Store()}) as cluster:
        cluster.names.topics["T"] = {"a": (4, 4, 6)}
        yield cluster


@pytest.fixture
def broker(fake: FakeCluster) -> FakeBroker:
    return fake.brokers["a"]


def table(given: list[dict[str, Any]]) -> pa.RecordBatch:
    names = {name for row in given for name in row}
    schema = pa.schema([field for field in SCHEMA if field.name in names])
    return pa.RecordBatch.from_pylist(given, schema)


def numbered(count: int, n_queues: int = 4) -> list[dict[str, Any]]:
    return [
        {"topic": "T", "queueId": number % n_queues, "body": b"%d" % number}
        for number in range(count)
    ]


def send(fake: FakeCluster, given: list[dict[str, Any]], *args: Any, **options: Any) -> LiveWriter:
    with fake.writer(*args, **options) as one:
        one.append(table(given))
        one.flush()
    return one


def bodies(broker: FakeBroker, topic: str = "T") -> dict[int, list[bytes]]:
    return {
        queue_id: [body for messages in stored for _, body, _ in messages]
        for (name, queue_id), stored in sorted(broker.batches.items())
        if name == topic
    }


def test_what_is_sent_is_what_a_read_gives(fake: FakeCluster) -> None:
    dice = random.Random(5)
    given = [
        {
            "topic": "T", "queueId": number % 4, "body": dice.randbytes(number % 50),
            "tags": f"t{number % 3}", "keys": f"k{number} k", "flag": number % 5,
            "properties": [("name", f"värde {number}"), ("other", "x")],
        }
        for number in range(500)
    ]  # fmt: skip
    for compression in ("none", "zlib", "lz4"):
        assert send(fake, given, WriteSpec(compression=compression)).n_sent == 500
    with fake.open() as cluster:
        columns = "topic,queueId,queueOffset,body,tags,keys,flag,properties,msgId,brokerName"
        found = rows(cluster.scan(columns=columns))
    assert len({row["msgId"] for row in found}) == 1500
    for queue_id in range(4):
        mine = [row for row in found if row["queueId"] == queue_id]
        expected = [row for row in given if row["queueId"] == queue_id] * 3
        assert [row["queueOffset"] for row in mine] == list(range(375))
        for row, sent in zip(mine, expected, strict=True):
            for name in ("topic", "body", "tags", "keys", "flag"):
                assert row[name] == sent[name]
            assert dict(sent["properties"]).items() <= row["properties"].items()
            assert row["brokerName"] == "a"


def test_tables_and_streams_are_sent_as_they_are(fake: FakeCluster, broker: FakeBroker) -> None:
    bodies = pa.chunked_array([[b"0"], [b"1", b"2"]])
    table = pa.table({"topic": pa.chunked_array([["T"], ["T", "T"]]), "body": bodies})
    with fake.writer() as sink:
        sink.append(table)
        sink.append(table.to_reader())
        with pytest.raises(TypeError, match="got list"):
            sink.append([{"topic": "T", "body": b"3"}])
        with pytest.raises(IllegalMessageError, match="row 3, "):
            sink.append(table.set_column(1, "body", [[b"0", b"1", None]]))
    batches = [batch for stored in broker.batches.values() for batch in stored]
    sent = sorted(body for batch in batches for _, body, _ in batch)
    assert sent == sorted([b"0", b"1", b"2"] * 2 + [b"0"]), "the batch before the refused row"


def test_rows_without_a_queue_are_shared_out_and_each_queue_keeps_their_order(
    fake: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.waits = 0.01
    monkeypatch.setattr(writer, "_BUFFERED_BYTES", 1000)  # most is sent before the end
    with fake.writer() as one:
        for start in range(0, 3000, 250):
            numbers = range(start, start + 250)
            one.append(table([{"topic": "T", "body": b"%d" % number} for number in numbers]))
        one.flush()
    stored = bodies(broker)
    assert [len(each) for each in stored.values()] == [750] * 4
    for each in stored.values():
        assert each == sorted(each, key=int)
    assert sorted(int(body) for each in stored.values() for body in each) == list(range(3000))
    assert broker.together == 1, "a queue has one request on its way"
    assert len(broker.asked(320)) > 4


def test_rows_of_one_key_go_to_one_queue_of_several_brokers() -> None:
    with FakeCluster({"a": Store(), "b": Store()}) as fake:
        fake.names.topics["T"] = {"a": (4, 4, 6), "b": (2, 2, 6)}
        given = [
            {"topic": "T", "body": b"%d" % number, "shardingKey": f"key{number % 7}"}
            for number in range(700)
        ]
        send(fake, given, WriteSpec(queue_selector="hash"))
        queues = [each for one in fake.brokers.values() for each in bodies(one).values()]
        assert sum(map(len, queues)) == 700
        keys = [{int(body) % 7 for body in each} for each in queues]
        assert sum(map(len, keys)) == 7
        assert all(each == sorted(each, key=int) for each in queues)
        assert all(bodies(one) for one in fake.brokers.values())
        with fake.writer() as one:
            for _ in range(2):
                one.append(table(given[:1]))
                with pytest.raises(IllegalMessageError, match="queueId: several"):
                    one.append(table(numbered(1)))


def test_batches_stay_within_limits_and_keep_their_order(
    fake: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_BATCH_MESSAGES", 40)
    monkeypatch.setattr(writer, "_BATCH_BYTES", 5000)
    dice = random.Random(3)
    given = numbered(600, 2)
    for row in given:
        row["body"] += b" " + b"x" * dice.choice([0, 10, 1000, 4900])
        row["properties"] = [("p", "y" * dice.choice([1, 1, 1, 32_000]))]
        row["delayTimeLevel"] = dice.choice([0] * 20 + [3])
    send(fake, given)
    for queue_id, each in bodies(broker).items():
        assert each == [row["body"] for row in given if row["queueId"] == queue_id]
    for request in broker.sent:
        is_batch = request.code == 320
        assert request.fields["m"] == str(is_batch).lower()
        assert request.fields["c"] == "", "it names no topic to make another one from"
        messages = decoded(request)
        assert len(messages) <= 40 if is_batch else len(messages) == 1
        assert len(request.body) <= 5000
        for _, _, stored in messages:
            assert "DELAY" not in pairs(stored) or not is_batch
            assert len(stored) < 32_000 or not is_batch


def test_what_brokers_handle_themselves_is_not_sent(fake: FakeCluster, broker: FakeBroker) -> None:
    dropped = {
        "DELAY": "3", "RETRY_TOPIC": "R", "REAL_TOPIC": "X", "REAL_QID": "1", "TRAN_MSG": "true",
        "INNER_NUM": "2", "INNER_MULTI_DISPATCH": "%LMQ%a", "CLUSTER": "C", "MSG_REGION": "R",
    }  # fmt: skip
    kept = {"mine": "1", "WAIT": "false", "BUYER_ID": "b", "KEYS": "k", "TAGS": "t"}
    given = [{"topic": "T", "body": b"x", "properties": [*{**dropped, **kept}.items()]}]
    send(fake, [*given, {"topic": "T", "body": b"y", "properties": [("mine", "2")]}])
    found = [pairs(stored) for each in broker.batches.values() for ((_, _, stored),) in each]
    assert [set(each) - {"UNIQ_KEY"} for each in found] == [set(kept), {"mine"}]
    assert all(len(each["UNIQ_KEY"]) == 32 for each in found)


def test_a_message_that_was_read_is_sent_with_its_id(fake: FakeCluster) -> None:
    given = numbered(8)
    send(fake, given)
    with fake.open() as cluster:
        read = cluster.scan().read_all()
    with fake.writer() as one:
        one.append(read)
        one.flush()
    with fake.open() as cluster:
        ids = cluster.scan(columns="msgId").read_all().column("msgId").to_pylist()
    assert len(ids) == 16
    assert len(set(ids)) == 8


@pytest.mark.parametrize("code", [2, 14, 1500])
def test_requests_that_a_broker_did_not_take_are_sent_again(
    fake: FakeCluster, broker: FakeBroker, code: int
) -> None:
    busy = Reply(code, remark="[PCBUSY_CLEAN_QUEUE]broker busy")
    broker.replace = on(320, busy, times=6)
    assert send(fake, numbered(400)).n_sent == 400
    expected = {n: [b"%d" % i for i in range(n, 400, 4)] for n in range(4)}
    assert bodies(broker) == expected


def test_a_half_of_a_batch_whose_answer_is_lost_is_looked_for(
    fake: FakeCluster, broker: FakeBroker
) -> None:
    n_sent = 0

    def reply(request: Request) -> Reply | None:
        nonlocal n_sent
        n_sent += request.code == 320
        if request.code == 320 and n_sent == 1:
            return Reply(1, remark="message body size exceeded")
        if request.code == 320 and n_sent == 2:
            broker.answer(request)
            raise HangUpError
        return None

    broker.replace = reply
    send(fake, [{"topic": "T", "queueId": 0, "body": b"%d" % number} for number in range(5)])
    assert bodies(broker) == {0: [b"%d" % number for number in range(5)]}


def test_a_topic_that_may_only_be_written_to_is_asked_for_once(
    fake: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.replace = lambda request: (
        Reply(16, remark="no permission") if request.code in (11, 30, 31) else None
    )
    assert send(fake, numbered(40)).n_sent == 40
    assert len(broker.asked(11)) == 1
    assert "does not let us ask where queues of T end" in caplog.text


def test_answers_never_asked_for_hold_no_write_up(fake: FakeCluster, broker: FakeBroker) -> None:
    broker.mangle = lambda request, frame: flood(request, frame) if request.code == 320 else frame
    with LiveWriter(fake.location.parse(fake.uri, {"timeout": 0.2})) as one:
        one.append(table(numbered(8)))
        one.flush()
        assert one.n_sent == 8
    assert bodies(broker) == {n: [b"%d" % n, b"%d" % (n + 4)] for n in range(4)}


@pytest.mark.parametrize("code", [10, 11, 12])
def test_requests_that_are_stored_but_not_yet_safe_count_as_stored(
    fake: FakeCluster, broker: FakeBroker, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.send_code = code
    assert send(fake, numbered(400)).n_sent == 400
    assert sum(map(len, bodies(broker).values())) == 400
    assert "stored, but" in caplog.text


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("kind", ["hang up", "silence", "error"])
def test_a_request_without_an_answer_is_looked_for_before_it_is_sent_again(
    fake: FakeCluster, broker: FakeBroker, kind: str, *, is_stored: bool
) -> None:
    given = numbered(4000)
    n_sends = 0

    def lose(request: Request) -> Reply | None:
        nonlocal n_sends
        if request.code != 320:
            return None
        n_sends += 1
        if n_sends % 3 or n_sends > 9:
            return None
        if is_stored:
            broker.answer(request)
        if kind == "hang up":
            raise HangUpError
        return Reply(1, remark="UNKNOWN_ERROR" if kind == "error" else "silence")

    broker.replace = lose
    broker.mangle = lambda _request, frame: b"" if b'"silence"' in frame else frame
    with LiveWriter(fake.location.parse(fake.uri, {"timeout": 0.3})) as one:
        for start in range(0, 4000, 500):
            one.append(table(given[start : start + 500]))
            one.flush()
        assert one.n_sent == 4000
    assert n_sends > 9
    expected = {n: [b"%d" % i for i in range(n, 4000, 4)] for n in range(4)}
    assert bodies(broker) == expected


@pytest.mark.parametrize("given_id", [None, "A" * 32])
def test_a_batch_of_which_a_killed_broker_has_stored_a_part_is_sent_again(
    fake: FakeCluster, broker: FakeBroker, given_id: str | None
) -> None:
    is_cut = True

    def cut(request: Request) -> Reply | None:
        nonlocal is_cut
        if request.code != 320 or not is_cut:
            return None
        is_cut = False
        (size,) = struct.unpack_from(">i", request.body)
        broker.answer(replace(request, body=request.body[: 7 * size]))
        raise HangUpError

    broker.replace = cut
    given = [
        {"topic": "T", "queueId": 1, "body": b"%04d" % number, "msgId": given_id}
        for number in range(100)
    ]
    assert send(fake, given).n_sent == 100
    expected = [b"%04d" % number for number in range(100)]
    assert bodies(broker) == {1: expected[:7] + expected}
    sends = broker.batches["T", 1]
    keys = [pairs(stored)["UNIQ_KEY"] for messages in sends for _, _, stored in messages]
    assert keys[:7] == keys[7:14]


def test_a_broker_that_comes_back_at_another_address_is_found(fake: FakeCluster) -> None:
    before = fake.brokers["a"]
    with fake.writer() as one:
        one.append(table(numbered(40)))
        one.flush()
        after = fake.brokers["a"] = FakeBroker("a")
        after.queues, after.batches = before.queues, before.batches
        before.close()
        fake.names.brokers["a"] = {0: after.address}
        one.append(table(numbered(80)[40:]))
        one.flush()
    assert bodies(after) == {n: [b"%d" % i for i in range(n, 80, 4)] for n in range(4)}


def test_a_broker_that_stays_away_fails_a_write(
    fake: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.1)
    one = fake.writer()
    one.append(table(numbered(4)))
    broker.close()
    with pytest.raises(BrokerUnreachableError, match=broker.address):
        one.flush()
    with pytest.raises(StoreStateError, match="what follows it was not sent"):
        one.append(table(numbered(1)))
    one.close()


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (13, "the message is illegal", BrokerRefusedError),
        (16, "no permission", BrokerRefusedError),
        (1, "message body size exceeded", IllegalMessageError),
        (17, "topic[T] not exist", OptionError),
    ],
)
def test_requests_that_a_broker_refuses_are_an_error_and_sent_once(
    fake: FakeCluster, broker: FakeBroker, code: int, remark: str, kind: type[Exception]
) -> None:
    broker.replace = on(320, Reply(code, remark=remark))
    with pytest.raises(kind, match=re.escape(remark)):
        send(fake, numbered(1))
    assert len(broker.asked(320)) == 1


def test_a_batch_that_is_too_large_for_a_broker_is_sent_in_parts(
    fake: FakeCluster, broker: FakeBroker
) -> None:
    too_large = Reply(1, remark="message body size exceeded, msg body size 501, maxMessageSize")
    refused = on(320, too_large)
    broker.replace = lambda request: refused(request) if len(request.body) > 500 else None
    send(fake, numbered(100))
    assert bodies(broker) == {n: [b"%d" % i for i in range(n, 100, 4)] for n in range(4)}


ROWS: list[tuple[dict[str, Any], str]] = [
    ({"body": None}, "row 1.*body is null"),
    ({"topic": "a/b"}, "row 1"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "row 1.*SCHEDULE"),
    ({"queueId": 4}, "row 1: queueId 4, but T has 4 queues"),
    ({"queueId": -1}, "row 1"),
    ({"body": b"x" * ((4 << 20) + 1)}, "row 1.*maxMessageSize"),
    ({"keys": "a\x01b"}, "row 1"),
    ({"body": b"", "delayTimeLevel": 3}, "row 1: body is empty"),
    ({"properties": [("a", "x" * 32_767)]}, "row 1.*properties"),
    ({"properties": [("a", "")]}, "row 1.*value of property 'a' is null or empty"),
    ({"properties": [("", "x")]}, "row 1.*a property has no name"),
]


@pytest.mark.parametrize(("given", "text"), ROWS, ids=range(len(ROWS)))
def test_rows_that_cannot_be_sent_are_named(
    fake: FakeCluster, broker: FakeBroker, given: dict[str, Any], text: str
) -> None:
    fake.names.topics["SCHEDULE_TOPIC_XXXX"] = fake.names.topics["a/b"] = {"a": (4, 4, 6)}
    with fake.writer() as one, pytest.raises(IllegalMessageError, match=text):
        one.append(table([{"topic": "T", "body": b"x"} | given]))
    assert not broker.sent


def test_a_refused_row_says_that_others_may_be_sent(fake: FakeCluster, broker: FakeBroker) -> None:
    with fake.writer() as one:
        one.append(table(numbered(8)))
        with pytest.raises(IllegalMessageError, match=r"row 10,.*nothing was sent"):
            one.append(table([*numbered(1), {"topic": "T", "body": None}]), first_row=9)
        one.flush()
    assert sum(map(len, bodies(broker).values())) == 8


def test_topics_that_cannot_be_written_to_are_named(fake: FakeCluster) -> None:
    with fake.writer() as one:
        with pytest.raises(OptionError, match=r"no topic X in rocketmq://.*updateTopic"):
            one.append(table([{"topic": "X", "body": b"x"}]))
        fake.names.topics["R"] = {"a": (4, 4, 4)}
        with pytest.raises(OptionError, match="R: no broker allows writes to it"):
            one.append(table([{"topic": "R", "body": b"x"}]))


def test_a_topic_that_is_made_while_a_task_waits_is_written_to(
    fake: FakeCluster, broker: FakeBroker
) -> None:
    fake.names.replace = on(105, Reply(17), times=2)
    assert send(fake, numbered(4), waits=True).n_sent == 4
    assert sum(map(len, bodies(broker).values())) == 4


def test_a_repeated_task_sends_the_same_keys(fake: FakeCluster, broker: FakeBroker) -> None:
    for size in (100, 7):
        with fake.writer(keys=RepeatableKeys(b"task 1..")) as one:
            for start in range(0, 100, size):
                one.append(table(numbered(100)[start : start + size]))
            one.flush()
    send(fake, numbered(100), keys=RepeatableKeys(b"task 2.."))
    found: dict[str, list[bytes]] = {}
    for each in broker.batches.values():
        for _, body, stored in (message for messages in each for message in messages):
            found.setdefault(pairs(stored)["UNIQ_KEY"], []).append(body)
    twice = [stored for stored in found.values() if len(stored) == 2]
    assert len(twice) == 100
    assert all(first == second for first, second in twice)
    assert len(found) == 200


def test_what_is_flushed_can_be_read(fake: FakeCluster, broker: FakeBroker) -> None:
    def behind(request: Request) -> Reply | None:
        """Show the ends of queues as they were before what is sent, a few times."""
        if request.code != 30 or not broker.sent or len(broker.asked(30)) > 12:
            return None
        return Reply(fields={"offset": "0"})

    broker.replace = behind
    with fake.writer() as one:
        one.append(table(numbered(100)))
        one.flush()
        assert len(broker.asked(30)) > 12
        n_asked = len(broker.asked(30))
        one.flush()
    assert len(broker.asked(30)) == n_asked  # nothing more was sent


def test_open_makes_a_writer(fake: FakeCluster, broker: FakeBroker) -> None:
    with rmqstore.open(fake.uri, "a", spec=WriteSpec(topic="T")) as one:
        one.append(pa.RecordBatch.from_pydict({"body": ["text"]}))
        one.flush()
    assert bodies(broker) == {0: [b"text"]}
    with pytest.raises(OptionError, match="truncate and check_log"):
        rmqstore.open(fake.uri, "a", truncate=True, check_log=True)
