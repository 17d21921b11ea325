"""Messages that brokers do not have any more are told, and holes in answers are found."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from fake_server import Reply, Request, on
from live.fake_cluster import FakeBroker, FakeCluster, Stored, offsets, one_queue, told
from reading import rows
from rmqstore.errors import (
    BrokerRefusedError,
    OffsetOutOfRangeError,
    StoreFormatError,
    UnsupportedFeatureError,
)
from rmqstore.live import pulls
from store_builder import Record, inner_message, java_hash, pack, properties

N = 200


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Return a cluster with a queue of 200 messages; answers that say nothing fail soon."""
    monkeypatch.setattr(pulls, "_EMPTY_SECONDS", 0.2)
    with FakeCluster({"a": one_queue(N)}) as cluster:
        yield cluster


def lose(broker: FakeBroker, start: int, end: int, code: int, remark: str) -> None:
    """Answer pulls within a span with a status, as if its messages were gone."""

    def reply(request: Request) -> Reply | None:
        if request.code == 11:
            at = int(request.fields["queueOffset"])
            n_asked = int(request.fields["maxMsgNums"])
            queue = broker.queues[request.key]
            if start <= at < end:
                return told(queue, code, remark, end)
            if at < start < at + n_asked:
                request.fields["maxMsgNums"] = str(start - at)
        return None

    broker.replace = reply


def expire(broker: FakeBroker, first: int) -> None:
    """Delete messages as soon as they are read, after the plan has looked at single ones."""

    def reply(request: Request) -> Reply | None:
        if request.code == 11 and request.fields["maxMsgNums"] != "1":
            queue = broker.queues[request.key]
            queue.stored = [each for each in queue.stored if each.place >= first]
            queue.first = first
        return None

    broker.replace = reply


def cut(broker: FakeBroker, end: int) -> None:
    """Cut the end of the queue off as soon as the first pull comes."""

    def reply(request: Request) -> Reply | None:
        if request.code == 11:
            queue = broker.queues[request.key]
            queue.stored = [each for each in queue.stored if each.place < end]
        return None

    broker.replace = reply


@pytest.mark.parametrize(
    ("case", "lost", "text"),
    [
        ("removing", (50, 90), "their files are deleted"), ("unreadable", (60, 100), "unreadable"),
        ("expired", (0, 120), "the queue begins at 120 now"),
        ("cut", (70, N), "the queue ends at 70 now"),
        ("everything", (0, N), "the queue ends at 0 now"),
        ("hole", (41, 43), "the broker passes over them"), ("holes", (0, N), ""),
    ],
)  # fmt: skip
def test_messages_that_are_gone_fail_a_read_or_are_left_out(
    fake: FakeCluster, case: str, lost: tuple[int, int], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = fake.brokers["a"]
    queue = broker.queues["T", 0]
    missing = set(range(*lost))
    if case == "removing":
        lose(broker, *lost, 20, "MESSAGE_WAS_REMOVING")
    elif case == "unreadable":
        lose(broker, *lost, 19, "OFFSET_FOUND_NULL")
    elif case == "expired":
        expire(broker, lost[1])
    elif case in ("cut", "everything"):
        cut(broker, lost[0])
    else:
        if case == "holes":
            missing = {0, 31, 32, 64, 100, 101, N - 2}
            text = "the broker passes over them"
        queue.stored = [each for each in queue.stored if each.place not in missing]
    with fake.open() as cluster:
        left = [number for number in range(N) if number not in missing]
        if case not in ("expired", "cut", "everything"):
            with pytest.raises(OffsetOutOfRangeError, match=text) as caught:
                offsets(cluster)
            assert "fail_on_data_loss" in str(caught.value)
            assert broker.address in str(caught.value)
        assert offsets(cluster, fail_on_data_loss=False) == left
    assert "data loss" in caplog.text
    assert text in caplog.text


@pytest.mark.parametrize(("case", "text"), [("expired", "begins at 120"), ("cut", "ends at 120")])
def test_a_queue_that_changes_under_a_read_fails_it(
    fake: FakeCluster, case: str, text: str
) -> None:
    (expire if case == "expired" else cut)(fake.brokers["a"], 120)
    with fake.open() as cluster, pytest.raises(OffsetOutOfRangeError, match=text):
        offsets(cluster)


def test_a_long_end_that_is_cut_off_is_not_asked_for_piece_by_piece(fake: FakeCluster) -> None:
    broker = fake.brokers["a"]
    broker.replace = lambda request: (
        Reply(fields={"offset": str(10**12)})
        if request.code == 30 and request.key == ("T", 0)
        else None
    )
    with fake.open() as cluster:
        assert offsets(cluster, fail_on_data_loss=False) == list(range(N))
        n_pulls = len(broker.asked(11))
        with pytest.raises(OffsetOutOfRangeError, match=f"{N} to {10**12}.*ends at {N} now"):
            offsets(cluster)
    assert n_pulls < 500


def test_bounds_outside_of_a_queue_fail_a_read(fake: FakeCluster) -> None:
    queue = fake.brokers["a"].queues["T", 0]
    queue.first, queue.stored = 50, queue.stored[50:]
    with fake.open() as cluster:
        with pytest.raises(OffsetOutOfRangeError, match="the queue holds 50 to 200"):
            offsets(cluster, starting_offsets={"T": {"0": 10}})
        found = offsets(cluster, starting_offsets={"T": {"0": 10}}, fail_on_data_loss=False)
        assert found == list(range(50, N))


def test_an_end_that_a_broker_finds_again_after_its_start_is_no_loss(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "_EMPTY_SECONDS", 20.0)  # a busy machine may need some of them
    fields = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    empty = Reply(19, fields, remark="NO_MESSAGE_IN_QUEUE")
    fake.brokers["a"].replace = on(11, empty, times=3)
    with fake.open() as cluster:
        assert offsets(cluster) == list(range(N))


@pytest.mark.parametrize(("code", "remark"), [(20, "NO_MATCHED_MESSAGE"), (0, "FOUND")])
def test_answers_that_never_get_on_fail_a_read(fake: FakeCluster, code: int, remark: str) -> None:
    broker = fake.brokers["a"]
    broker.replace = lambda request: (
        told(broker.queues["T", 0], code, remark, int(request.fields["queueOffset"]))
        if request.code == 11
        else None
    )
    with fake.open() as cluster, pytest.raises(BrokerRefusedError, match=rf"{remark}.*T-0 from"):
        offsets(cluster)


def test_a_shifted_queue_is_numbered_by_place(fake: FakeCluster) -> None:
    """After a record that a broker could not dispatch, records count one more than places."""
    for each in fake.brokers["a"].queues["T", 0].stored[80:]:
        packed = bytearray(each.record)
        packed[20:28] = struct.pack(">q", each.place + 1)
        each.record = bytes(packed)
    with fake.open() as cluster:
        assert offsets(cluster) == list(range(N))


def test_records_that_say_no_possible_places_are_an_error(fake: FakeCluster) -> None:
    stored = fake.brokers["a"].queues["T", 0].stored
    del stored[10]
    stored[12].record, stored[14].record = stored[14].record, stored[12].record
    with fake.open() as cluster, pytest.raises(StoreFormatError, match=r"T-0.* is not known"):
        offsets(cluster)


def inner(number: int) -> bytes:
    return inner_message(b"inner %d" % number, f"t{number}", number)


def batch_queue(dice: random.Random) -> list[Stored]:
    """Return records of a batch queue, each of several messages or of one."""
    found, place, physical_offset = [], 0, 0
    for _ in range(60):
        count = dice.choice([1, 1, 2, 7, 40])
        if count > 1:
            given = {"INNER_NUM": str(count), "INNER_BASE": str(place)}
            record = Record(
                body=b"".join(map(inner, range(place, place + count))),
                queue_offset=place, properties=properties(given), sys_flag=0xC0,
            )  # fmt: skip
        else:
            record = Record(body=b"inner %d" % place, queue_offset=place)
        packed = pack(record, physical_offset)
        found.append(Stored(place, packed, physical_offset, 1, java_hash(""), count))
        place, physical_offset = place + count, physical_offset + len(packed)
    return found


@pytest.mark.parametrize("limit", [1, 8, 32])
def test_records_of_several_messages_give_each_once(limit: int) -> None:
    with FakeCluster({"a": one_queue(1)}) as fake, fake.open() as cluster:
        broker = fake.brokers["a"]
        broker.queues["T", 0].stored = batch_queue(random.Random(limit))
        broker.limit, broker.dice = limit, random.Random(limit)
        end = broker.queues["T", 0].end
        found = rows(cluster.scan(columns="queueOffset,body"))
        assert found == [{"queueOffset": n, "body": b"inner %d" % n} for n in range(end)]
        for start, stop in ((3, 50), (end // 2, end // 2 + 1)):
            bounds = {"starting_offsets": {"T": {"0": start}}, "ending_offsets": {"T": {"0": stop}}}
            assert offsets(cluster, **bounds) == list(range(start, stop))


def test_tags_of_messages_within_records_are_compared_here() -> None:
    """A broker knows the tag of a record only."""
    with FakeCluster({"a": one_queue(1)}) as fake, fake.open() as cluster:
        broker = fake.brokers["a"]
        broker.queues["T", 0].stored = batch_queue(random.Random(1))
        broker.attributes = {"T": {"queue.type": "BatchCQ"}}
        within = next(each.place for each in broker.queues["T", 0].stored if each.count > 3)
        chosen = [within + 1, within + 3]
        tags = " || ".join(f"t{number}" for number in chosen)
        assert offsets(cluster, tags=tags) == chosen
        with pytest.raises(UnsupportedFeatureError, match="T: a record holds several messages"):
            cluster.scan(verbatim=True).read_all()


def test_tags_of_delayed_messages_are_compared_here() -> None:
    """In place of the hash of a tag their units have the time at which they are due."""
    topic = "SCHEDULE_TOPIC_XXXX"
    with FakeCluster({"a": one_queue(100, topic=topic)}) as fake, fake.open() as cluster:
        tagged = cluster.scan(subscribe=topic, columns="queueOffset,tags").read_all().to_pylist()
        for number, each in enumerate(fake.brokers["a"].queues[topic, 0].stored):
            each.tags_code = 1_700_000_000_000 + number
        expected = [row["queueOffset"] for row in tagged if row["tags"] == "A"]
        assert offsets(cluster, subscribe=topic, tags="A") == expected


# Of how many messages a broker looks at the units at once decides which of them it passes over, and
# from which places on it says nothing but that messages are removed.
@pytest.mark.parametrize("gone", [1, 20, 775, 3775, 4999])
def test_a_read_from_the_earliest_message_begins_where_retention_left_off(gone: int) -> None:
    """As RocketMQ 5.3.3 answers after it has deleted files of the log, and not those of queues."""
    with FakeCluster({"a": one_queue(5000)}) as fake, fake.open() as cluster:
        queue = fake.brokers["a"].queues["T", 0]
        queue.gone = gone
        times = [each.store_timestamp for each in queue.stored]
        assert offsets(cluster) == list(range(gone, 5000))
        middle = times[(gone + 5000) // 2]
        at = max(times.index(middle), gone)
        assert offsets(cluster, starting_timestamp=middle) == list(range(at, 5000))
        assert offsets(cluster, ending_timestamp=middle) == list(range(gone, at))
        assert offsets(cluster, starting_timestamp=times[gone // 2]) == list(range(gone, 5000))
        begins = {"starting_offsets": {"T": {"0": gone - 1}}}
        with pytest.raises(OffsetOutOfRangeError, match=rf"is {gone - 1}, the queue holds {gone}"):
            offsets(cluster, **begins)
        assert offsets(cluster, **begins, fail_on_data_loss=False) == list(range(gone, 5000))


@pytest.mark.parametrize("gone", [1, 20, 2000])
@pytest.mark.parametrize("is_cut", [False, True])
def test_the_first_record_of_a_log_is_not_taken_for_another_one(gone: int, *, is_cut: bool) -> None:
    """Once it is deleted, a broker answers with what its first file begins with now."""
    with FakeCluster({"a": one_queue(3000)}) as fake, fake.open() as cluster:
        queue = fake.brokers["a"].queues["T", 0]
        queue.gone = gone
        first = queue.stored[gone].record
        fake.brokers["a"].replace = lambda request: (
            told(queue, 0, "FOUND", 1, first[:-1] if is_cut else first)
            if request.code == 11 and request.fields["queueOffset"] == "0"
            else None
        )
        assert offsets(cluster) == list(range(gone, 3000))


def test_all_messages_may_be_gone_before_a_queue_is_corrected() -> None:
    with FakeCluster({"a": one_queue(3000)}) as fake, fake.open() as cluster:
        fake.brokers["a"].queues["T", 0].gone = 3000
        assert offsets(cluster) == []
