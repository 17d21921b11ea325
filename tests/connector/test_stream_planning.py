"""Planning of streams, without Spark: stores are cut, recreated, damaged or shortened meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import rmqstore
import store_builder as build
from connector.engine import ddl
from connector.streams import SCHEMA, SIZES, add, put
from connector.test_stream_read import numbered
from pyspark_rmqstore.batch_reader import RmqStoreReader
from pyspark_rmqstore.options import parse_read_options, parse_stream_options
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from rmqstore.errors import FileDeletedError, OffsetOutOfRangeError
from rmqstore.read import sampling
from rmqstore.read.queue_ranges import QueueRanges
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.store.opening import create
from source.test_tail import put_back

Row = tuple[str, int, int, str]
LENIENT = {"failOnDataLoss": "false"}


class Query:
    """A query that starts at the earliest message, trigger by trigger."""

    columns = SCHEMA

    def __init__(
        self, path: Path | list[Path], offset: dict[str, Any] | None = None, **options: object
    ) -> None:
        given = {"startingOffsets": "earliest"}
        given |= {name: str(value) for name, value in options.items()}
        if not isinstance(path, list):
            given["path"] = str(path)
        elif path:
            given["paths"] = json.dumps([str(one) for one in path])
        self.reader = RmqStoreStreamReader(ddl(self.columns), parse_stream_options(given))
        self.offset = offset or self.reader.initialOffset()

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        batches = [
            batch for part in self.reader.partitions(start, end) for batch in self.reader.read(part)
        ]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def trigger(self) -> list[Row]:
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        found = [] if end == self.offset else self.rows(self.offset, end)
        self.offset = end
        return found

    def bodies(self) -> list[str]:
        return [row[3] for row in self.trigger()]


def write_over(root: Path, store: build.Store) -> None:
    for start, data in store.segments.items():
        path = root / "commitlog" / f"{start:020d}"
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
    for (topic, queue_id), units in store.queues.items():
        build.write_queue(root / "consumequeue" / topic / str(queue_id), units)


def grow(
    store: build.Store, n: int, *, topic: str = "A", prefix: str = "m", late: int = 0, pad: int = 0
) -> build.Store:
    """Append messages; ``late`` is when, in ms."""
    for number in range(n):
        body = f"{prefix}{number}".encode() + b"." * pad
        store.append(build.Record(topic=topic, body=body, store_timestamp=build.T0 + late + number))
    return store


@pytest.fixture
def cut(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a store cut at 20 of the 30 messages that a query has, and the query's offset."""
    root = tmp_path / "s"
    add(root, ("A", 0, numbered(0, 20)), ("B", 0, numbered(0, 5)))
    shutil.copytree(root, tmp_path / "before")
    add(root, ("A", 0, numbered(20, 30)))
    query = Query(root)
    assert len(query.trigger()) == 35
    put_back(root, tmp_path / "before")
    return root, query.offset


def test_limits_count_from_where_a_queue_was_cut(cut: tuple[Path, dict[str, Any]]) -> None:
    root, offset = cut
    add(root, ("A", 0, numbered(0, 40, "new")))
    query = Query(root, offset, **LENIENT, maxOffsetsPerTrigger=10)
    query.reader.prepareForTriggerAvailableNow()
    assert [query.bodies() for _ in range(5)] == [
        numbered(at, at + 10, "new") for at in range(0, 40, 10)
    ] + [[]]


def test_a_queue_that_expired_and_began_again_is_read_from_its_start(tmp_path: Path) -> None:
    """Which messages it had after those that were delivered, nothing shows any more."""
    store = grow(grow(build.Store(), 10), 60, topic="B", late=100)
    query = Query(store.write(tmp_path / "s"))
    assert len(query.trigger()) == 70
    del store.queues["A", 0]
    grow(store, 3, prefix="new", late=1000)
    shutil.rmtree(tmp_path / "s")
    root = store.write(tmp_path / "s")
    (root / "commitlog" / f"{0:020d}").unlink()
    for again in (query, Query(root, query.offset)):
        with pytest.raises(OffsetOutOfRangeError, match="begins again at offset 0"):
            again.trigger()
    assert Query(root, query.offset, **LENIENT).bodies() == ["new0", "new1", "new2"]


def delete_topic(root: Path, topic: str) -> None:
    """Delete a topic, as a broker does: its queues and its entry, and no message of the log."""
    shutil.rmtree(root / "consumequeue" / topic)
    file = root / "config" / "topics.json"
    table = json.loads(file.read_text())
    del table["topicConfigTable"][topic]
    file.write_text(json.dumps(table))


@pytest.fixture
def read_up(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a store whose topic T was deleted, and the offset of a query that has read it."""
    root = tmp_path / "s"
    add(root, ("T", 0, numbered(0, 20)), ("T", 1, numbered(0, 5)), ("B", 0, ["b"]))
    query = Query(root)
    assert len(query.trigger()) == 26
    delete_topic(root, "T")
    return root, query.offset


@pytest.mark.parametrize("n_new", [1, 10, 20, 30])
@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": 7}], ids=["all", "limited"])
def test_a_topic_that_was_made_again_is_read_whole_whatever_its_offsets(
    read_up: tuple[Path, dict[str, Any]], n_new: int, limits: dict[str, Any]
) -> None:
    root, offset = read_up
    running, failing = Query(root, offset, **LENIENT, **limits), Query(root, offset)
    running.trigger()
    new = numbered(0, n_new, "new")
    with rmqstore.open(root, mode="a") as writer:
        put(writer, "B", 0, ["b2"])  # after which all is newer than what the offset knows
        put(writer, "T", 0, new)
        put(writer, "T", 2, ["other"])
        put(writer, "B", 0, ["b3"])
    with pytest.raises(OffsetOutOfRangeError, match=r"T-0 .* begins again at offset 0"):
        failing.trigger()
    for query in (running, Query(root, offset, **LENIENT, **limits)):
        found = [row for _ in range(10) for row in query.trigger()]
        assert [row[3] for row in found if row[:2] == ("T", 0)] == new
        assert sorted(row[3] for row in found if row[:2] != ("T", 0)) == ["b2", "b3", "other"]
        put_more = numbered(0, 2, "more")
        add(root, ("T", 0, put_more))
        assert query.bodies() == put_more
        new += put_more


def test_a_topic_that_is_made_again_after_the_plan_comes_with_the_next_micro_batch(
    tmp_path: Path,
) -> None:
    root = tmp_path / "s"
    add(root, ("T", 0, numbered(0, 20)), ("B", 0, ["b"]))
    query = Query(root, **LENIENT, subscribe="T")
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    planned = query.reader.partitions(query.offset, end)
    delete_topic(root, "T")
    add(root, ("T", 0, numbered(0, 30, "new")))
    assert not [batch for part in planned for batch in query.reader.read(part)]
    again = Query(root, query.offset, **LENIENT, subscribe="T")
    assert again.rows(again.offset, end) == []
    for following in (Query(root, end, **LENIENT, subscribe="T"), query):
        following.offset = end
        assert following.bodies() == numbered(0, 30, "new")
    failing = Query(root, query.offset, subscribe="T")
    with pytest.raises(OffsetOutOfRangeError):
        [*failing.reader.read(planned[0])]


def test_a_topic_that_was_deleted_is_said_and_its_offsets_are_kept(
    read_up: tuple[Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    root, offset = read_up
    with pytest.raises(OffsetOutOfRangeError, match=r"T-0 .* is deleted; whether it had messages"):
        Query(root, offset).trigger()
    query = Query(root, offset, **LENIENT)
    for _ in range(2):
        assert query.trigger() == []
    assert query.offset["queues"]["T"] == {"s": {"0": 0, "1": 0}}  # it may be made again
    told = [record.message for record in caplog.records if "T-0" in record.message]
    assert len(told) == 1
    assert Query(root, offset, subscribe="B").trigger() == []  # T is not asked for any more
    assert Query(root, query.offset).trigger() == []  # nor told again


def test_what_is_followed_may_change_between_runs(tmp_path: Path) -> None:
    """The newest record of the queues that are followed goes back then."""
    root = tmp_path / "s"
    add(root, ("B", 0, ["b"]), ("T", 0, ["t"]))
    offset = None
    for topics, expected in (("T", ["t"]), ("B", ["b"]), ("T,B", [])):
        query = Query(root, offset, subscribe=topics)
        assert query.bodies() == expected
        offset = query.offset


def test_a_topic_that_was_made_again_while_others_were_followed_is_read_whole(
    read_up: tuple[Path, dict[str, Any]],
) -> None:
    """The newest record that the offset knows moves on without the topic."""
    root, offset = read_up
    new = numbered(0, 20, "new")
    add(root, ("T", 0, new), ("B", 0, ["b2"]))
    others = Query(root, offset, subscribe="B")
    assert others.bodies() == ["b2"]
    add(root, ("B", 0, ["b3"]))
    others = Query(root, others.offset, subscribe="B")
    assert others.bodies() == ["b3"]
    with pytest.raises(OffsetOutOfRangeError, match=r"T-0 .* begins again at offset 0"):
        Query(root, others.offset).trigger()
    query = Query(root, others.offset, **LENIENT)
    start = query.offset
    assert sorted(query.bodies()) == sorted(new)
    assert Query(root, start, **LENIENT).rows(start, query.offset) == query.rows(
        start, query.offset
    )
    assert query.trigger() == []


def test_messages_that_came_while_others_were_followed_are_read(tmp_path: Path) -> None:
    root = tmp_path / "s"
    add(root, ("T", 0, ["t"]), ("B", 0, ["b"]))
    offset = Query(root).offset
    for topics, expected in (("T,B", ["b", "t"]), ("B", ["b2"]), ("T,B", ["t2"])):
        query = Query(root, offset, subscribe=topics)
        assert sorted(query.bodies()) == expected
        offset = query.offset
        if "left" not in offset:
            add(root, ("T", 0, ["t2"]), ("B", 0, ["b2"]))
    assert "left" not in offset


@pytest.mark.parametrize("lists_topics", [False, True])
def test_a_queue_whose_messages_have_expired_is_no_loss(
    tmp_path: Path, *, lists_topics: bool
) -> None:
    store = grow(build.Store(), 10, topic="T")
    root = store.write(tmp_path / "s", abort=True)
    if lists_topics:
        (root / "config").mkdir(exist_ok=True)
        table = {"topicConfigTable": {"T": {"topicName": "T"}, "B": {"topicName": "B"}}}
        (root / "config/topics.json").write_text(json.dumps(table))
    query = Query(root, subscribe="T")
    assert len(query.trigger()) == 10
    write_over(root, grow(store, 60, topic="B", late=100))
    query.trigger()
    min((root / "commitlog").iterdir()).unlink()
    shutil.rmtree(root / "consumequeue" / "T")
    for again in (query, Query(root, query.offset, subscribe="T")):
        assert again.trigger() == []


def test_new_messages_before_a_damaged_one_are_delivered_after_a_restart(tmp_path: Path) -> None:
    store = grow(build.Store(segment_bytes=65536), 10)
    root = store.write(tmp_path / "s")
    query = Query(root, mode="PERMISSIVE")
    assert len(query.trigger()) == 10
    grow(store, 10, prefix="new", late=100)
    store.put(store.placed[-1].physical_offset + 4, b"\xff" * 4)
    write_over(root, store)
    found = Query(root, query.offset, mode="PERMISSIVE").trigger()
    assert [row[3] for row in found][:9] == numbered(0, 9, "new")


@pytest.mark.parametrize("n_new", [10, 15, 20])
def test_a_closed_store_that_falls_back_after_a_plan_is_data_loss_and_gives_no_message_twice(
    tmp_path: Path, n_new: int
) -> None:
    root = tmp_path / "s"
    add(root, ("A", 0, numbered(0, 20)))
    shutil.copytree(root, tmp_path / "before")
    add(root, ("A", 0, numbered(20, 30)))
    schema = StructType().add("queueOffset", "long").add("body", "string")

    def planned(**options: str) -> tuple[RmqStoreReader, list[InputPartition]]:
        reader = RmqStoreReader(schema, parse_read_options({"path": str(root), **options}))
        return reader, [*reader.partitions()]

    def bodies(reader: Any, parts: Iterable[InputPartition]) -> list[str]:
        return [row for part in parts for b in reader.read(part) for row in b["body"].to_pylist()]

    failing, lenient, query = planned(), planned(**LENIENT), Query(root, **LENIENT)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    parts = query.reader.partitions(query.offset, end)
    assert bodies(*failing) == numbered(0, 30)
    put_back(root, tmp_path / "before")
    new = numbered(0, n_new, "new")
    add(root, ("A", 0, new))
    with pytest.raises(OffsetOutOfRangeError):
        bodies(*failing)
    assert bodies(*lenient) == bodies(query.reader, parts) == numbered(0, 20)
    query.offset = end
    assert query.bodies() == new


def test_a_file_deleted_while_it_is_looked_at_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "s", config=SIZES) as writer:
        for topic in "ABCD":
            put(writer, topic, 0, numbered(0, 5))
        plain, is_new = ConsumeQueue.end, [True]

        def end(queue: ConsumeQueue) -> int:
            if queue.folder.parent.name == "B" and is_new.pop():
                is_new.append(False)
                raise FileDeletedError(str(queue.folder))
            is_new.append(False)
            return plain(queue)

        monkeypatch.setattr(ConsumeQueue, "end", end)
        query = Query(tmp_path / "s")
        monkeypatch.setattr(ConsumeQueue, "end", plain)
        assert query.offset["queues"].keys() == set("ABCD")
        assert len(query.trigger()) == 20
        put(writer, "A", 0, numbered(5, 8))
        put(writer, "B", 0, numbered(5, 900))
        read, n_deleted = CommitLog.read_in_place, [0]

        def read_in_place(log: CommitLog, segment: Any, *spans: Any) -> Any:
            if segment.start and not n_deleted[0]:
                n_deleted[0] += 1
                raise FileDeletedError(str(segment.path))
            return read(log, segment, *spans)

        monkeypatch.setattr(CommitLog, "read_in_place", read_in_place)
        assert len(query.trigger()) == 898
        assert n_deleted[0]


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("listed_at", [0, 2000])
def test_a_file_that_was_shorter_when_it_was_listed_is_read_on(
    tmp_path: Path, listed_at: int, *, abort: bool
) -> None:
    store = grow(build.Store(), 10)
    root = store.write(tmp_path / "s", abort=abort)
    (root / "commitlog" / f"{4096:020d}").write_bytes(bytes(listed_at))
    query = Query(root)
    assert len(query.trigger()) == 10
    write_over(root, grow(store, 60, late=100))
    assert [len(query.trigger()) for _ in range(2)] == [60, 0]


def test_a_recreated_file_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    root = grow(grow(build.Store(), 30), 40, prefix="old", late=1000).write(
        tmp_path / "s", abort=True
    )
    query = Query(root, **LENIENT)
    assert len(query.trigger()) == 70
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    shutil.rmtree(root / "consumequeue")
    write_over(root, grow(grow(build.Store(), 30), 35, prefix="new", late=5000, pad=7))
    assert query.bodies() == [f"new{number}......." for number in range(35)]


@pytest.mark.parametrize("n_chosen", [0, 1])
def test_a_cut_after_the_newest_chosen_record_is_noticed(tmp_path: Path, n_chosen: int) -> None:
    def made(n: int, pad: int, n_new: int) -> build.Store:
        store = grow(grow(build.Store(segment_bytes=65536), n_chosen, topic="T"), 5, topic="Other")
        return grow(
            grow(store, n, topic="Other", late=100, pad=pad), n_new, topic="T", prefix="t",
            late=1000,
        )  # fmt: skip

    root = made(5, 50, 0).write(tmp_path / "s", abort=True)
    query = Query(root, subscribe="T")
    assert len(query.trigger()) == n_chosen
    write_over(root, made(4, 77, 6))
    assert query.bodies() == numbered(0, 6, "t")


def test_stale_records_after_the_end_of_a_log_are_written_over(tmp_path: Path) -> None:
    stale, store = grow(build.Store(), 40), grow(build.Store(), 20)
    torn = stale.placed[20]
    stale.put(torn.physical_offset + 80, bytes(torn.size - 80))
    root = store.write(tmp_path / "s")
    (root / "commitlog" / f"{0:020d}").write_bytes(stale.segments[0])
    query = Query(root)
    assert len(query.trigger()) == 20
    (root / "abort").touch()
    end, log, delivered = store.end, bytearray(stale.segments[0]), []
    for count in (1, 4, 6):
        grow(store, count, prefix=f"new{count}-", late=1000, pad=30)
        log[end : store.end] = store.segments[0][end : store.end]
        (root / "commitlog" / f"{0:020d}").write_bytes(log)
        build.write_queue(root / "consumequeue/A/0", store.queues["A", 0])
        delivered += [*query.trigger(), *query.trigger()]
    assert [row[2] for row in delivered] == list(range(20, 31))


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"../x", b"a/b", b"", b"%LMQ%x"])
@pytest.mark.parametrize("options", [{}, {"subscribe": "T"}])
def test_a_record_of_an_illegal_topic_does_not_end_a_query(
    tmp_path: Path, topic: bytes, options: dict[str, str]
) -> None:
    store = grow(build.Store(), 5, topic="T")
    root = store.write(tmp_path / "s", abort=True)
    query = Query(root, **options)
    assert len(query.trigger()) == 5
    store.append(build.Record(topic=topic), queued=False)
    write_over(root, grow(store, 1, topic="T", prefix="last"))
    assert query.bodies() == ["last0"]
    assert Query(root, **options).offset["queues"]["T"]


def test_retention_between_planning_and_reading_is_data_loss(tmp_path: Path) -> None:
    add(tmp_path / "s", ("A", 0, numbered(0, 2000)))
    queries = [Query(tmp_path / "s", **LENIENT), Query(tmp_path / "s")]
    ends = [query.reader.latestOffset(query.offset, ReadAllAvailable()) for query in queries]
    for log in sorted((tmp_path / "s" / "commitlog").iterdir())[:2]:
        log.unlink()
    with rmqstore.open(tmp_path / "s") as store:
        first = store.queue_range("A", 0)[0]
    for file in (tmp_path / "s" / "consumequeue/A/0").iterdir():
        if (int(file.name) + 600) // 20 <= first:
            file.unlink()
    assert len(queries[0].rows(queries[0].offset, ends[0])) == 2000 - first
    with pytest.raises(OffsetOutOfRangeError, match=f"offsets 0 to {first}"):
        queries[1].rows(queries[1].offset, ends[1])


def test_a_blank_that_a_recovery_cut_off_is_noticed(tmp_path: Path) -> None:
    def filled() -> build.Store:
        store = build.Store()
        while not store.placed or 4096 - store.end > 500:
            grow(store, 1, late=len(store.placed))
        return store

    store, whole = filled(), filled()
    whole.put(whole.end, build.pack_blank(4096 - whole.end))
    whole.segments[4096] = bytearray(4096)
    root = whole.write(tmp_path / "s", abort=True)
    query = Query(root)
    query.trigger()
    grow(grow(grow(store, 1, topic="B", late=900), 1, late=1000, pad=200), 3, late=1001, pad=300)
    assert len(store.segments) == 2
    write_over(root, store)
    assert [row[0] for row in query.trigger()] == ["A"] * 4 + ["B"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_store_that_took_the_place_of_another_is_delivered_whole(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    """Its messages are older and lie before the last one that was delivered."""
    root, other = tmp_path / "s", tmp_path / "other"
    grow(build.Store(), 30, prefix="old").write(other)
    grow(build.Store(), 20, late=1000, pad=300).write(root)
    queries = [Query(root), Query(root, failOnDataLoss=False)]
    for query in queries:
        assert len(query.trigger()) == 20
    root.rename(tmp_path / "before")
    other.rename(root)
    if is_restarted:
        offset = json.loads(json.dumps(queries[0].offset))
        queries = [Query(root, offset), Query(root, offset, failOnDataLoss=False)]
    with pytest.raises(OffsetOutOfRangeError, match="another store has taken the place of this"):
        queries[0].trigger()
    assert queries[1].bodies() == [f"old{number}" for number in range(30)]
    assert queries[1].trigger() == []


def test_an_offset_stays_the_same_while_retention_deletes(tmp_path: Path) -> None:
    """The log then begins with another record, which alone makes no micro-batch."""
    root = grow(build.Store(segment_bytes=4096), 60, pad=300).write(tmp_path / "s")
    query = Query(root)
    assert len(query.trigger()) == 60
    before = query.offset
    (root / "commitlog" / f"{0:020d}").unlink()
    assert query.trigger() == []
    assert query.offset == before
    assert Query(root, before).trigger() == []


def test_a_broker_that_is_missing_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path / "a", ("T", 0, numbered(0, 5)))
    query = Query(tmp_path / "a", **LENIENT)
    for broker in "bbcb":
        query.offset["queues"].setdefault("T", {})[broker] = {"0": 3}
        query.trigger()
    texts = [record.message for record in caplog.records if "data loss" in record.message]
    assert texts == [
        f"data loss: the query has read messages of broker {broker}, but its stores are of a; "
        "continuing without it"
        for broker in "bc"
    ]


def test_a_planned_batch_of_a_store_that_is_not_named_any_more(tmp_path: Path) -> None:
    for broker in "ab":
        add(tmp_path / broker, ("T", 0, numbered(0, 5)))
    both = Query([tmp_path / "a", tmp_path / "b"])
    add(tmp_path / "b", ("T", 1, numbered(0, 5)))
    end = both.reader.latestOffset(both.offset, ReadAllAvailable())
    assert len(both.rows(both.offset, end)) == 15
    with pytest.raises(OffsetOutOfRangeError, match="messages of broker b, but"):
        Query(tmp_path / "a").rows(both.offset, end)
    assert len(Query(tmp_path / "a", **LENIENT).rows(both.offset, end)) == 5


def test_offsets_that_a_group_committed_meanwhile_are_not_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    with create(root, config=SIZES) as writer:
        put(writer, "A", 0, numbered(0, 10))
        plain: Callable[..., Any] = QueueRanges.starts

        def starts(ranges: QueueRanges, *given: Any, **named: Any) -> Any:
            put(writer, "A", 0, numbered(10, 20))
            table = {"offsetTable": {"A@readers": {"0": 18}}}
            (root / "config" / "consumerOffset.json").write_text(json.dumps(table))
            return plain(ranges, *given, **named)

        monkeypatch.setattr(QueueRanges, "starts", starts)
        query = Query(root, startingOffsets="group:readers")
        assert query.bodies() == ["m18", "m19"]


def test_a_stream_plans_and_reads_without_importing_pandas(tmp_path: Path) -> None:
    """Spark starts a process for the source and one for its tasks; pandas would dominate both."""
    add(tmp_path / "store", ("A", 0, ["a", "b"]))
    script = (
        "import sys; from pyspark_rmqstore import DefaultSource\n"
        "source = DefaultSource({'path': sys.argv[1], 'startingOffsets': 'earliest'})\n"
        "reader = source.streamReader(source.schema()); start = reader.initialOffset()\n"
        "reader.prepareForTriggerAvailableNow()\n"
        "end = reader.latestOffset(start, reader.getDefaultReadLimit())\n"
        "parts = reader.partitions(start, end)\n"
        "rows = sum(batch.num_rows for part in parts for batch in reader.read(part))\n"
        "print(rows, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["2", "False"]


def test_a_trigger_over_several_small_stores_is_one_task(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("a", "b", "c")]
    for root in roots:
        add(root, ("T", 0, [f"{root.name}-{number}" for number in range(5)]))
    query = Query(roots)
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    (task,) = query.reader.partitions(query.offset, end)
    bodies = [body for batch in query.reader.read(task) for body in batch["body"].to_pylist()]
    assert bodies == [f"{root.name}-{number}" for root in roots for number in range(5)]


@pytest.mark.parametrize("options", [{}, {"maxBytesPerPartition": "2k"}], ids=str)
def test_a_trigger_over_many_queues_reads_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setattr(sampling, "_MANY_RANGES", 8)
    monkeypatch.setattr(sampling, "_ESTIMATED_BY", 2)
    with create(tmp_path / "s", config=SIZES) as writer:
        for queue_id in range(20):
            put(writer, "T", queue_id, [f"{queue_id}-{number}" for number in range(queue_id + 1)])
    query = Query(tmp_path / "s", **options)
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    assert (len(query.reader.partitions(query.offset, end)) == 1) == (not options)
    expected = [f"{queue_id}-{number}" for queue_id in range(20) for number in range(queue_id + 1)]
    assert sorted(query.bodies()) == sorted(expected)
