"""Following a store: where queues end by what is new in the log, equal to what all queues say."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
import rmqstore.source.tail as tail_module
import store_builder as build
from goldens import Golden
from rmqstore.query.selection import parse_selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.log_cursor import LogCursor
from rmqstore.read.store_parts import open_parts
from rmqstore.source.tail import StoreTail
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import create, open_for
from rmqstore.write.writer import StoreWriter

SIZES = StoreConfig(16384, 400, max_hash_slot_num=50, max_index_num=200)


def put(writer: StoreWriter, topic: str, queue_id: int, n: int = 1) -> None:
    queue_ids = pa.array([queue_id] * n, pa.int32())
    writer.append(
        pa.RecordBatch.from_pydict(
            {"topic": [topic] * n, "queueId": queue_ids, "body": [b"x" * 100] * n}
        )
    )
    writer.flush()


def ends(store: MessageStore) -> dict[tuple[str, int], int]:
    return {
        (topic, info.queue_id): info.max_offset
        for topic in store.topics()
        for info in store.queues(topic)
    }


def follow(root: Path, **selection: object) -> StoreTail:
    return StoreTail(open_parts(root), parse_selection(**selection))


def put_back(root: Path, before: Path) -> None:
    """Let a store be as it was, in the same files: as a recovery that cuts it.

    What is written after it has another time.
    """
    for path in [path for path in root.rglob("*") if path.is_file()]:
        copy = before / path.relative_to(root)
        if copy.exists():
            with path.open("r+b") as file:
                file.write(copy.read_bytes())
        else:
            path.unlink()
    time.sleep(0.01)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the queues whose ends were looked up, in order."""
    found: list[str] = []
    plain = tail_module.open_files

    def open_files(paths: StorePaths, topic: str, queue_id: int, **options: Any) -> Queue:
        found.append(f"{topic}-{queue_id}")
        return plain(paths, topic, queue_id, **options)

    monkeypatch.setattr(tail_module, "open_files", open_files)
    return found


@pytest.mark.parametrize(
    "name",
    ["basic", "edges", "live", "one", "empty", "expired", "batch-cq", "crash", "crash2", "crash5"],
)
def test_the_first_look_finds_what_a_batch_read_finds(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name)) as store:
        expected = {key: end for key, end in ends(store).items() if end}
    tail = follow(golden_store(name), include_system_topics=True)
    tail.poll()
    assert {key: end for key, end in tail.ends.items() if end} == expected
    tail.poll()
    assert {key: end for key, end in tail.ends.items() if end} == expected


def test_only_queues_that_new_records_name_are_read(tmp_path: Path, asked: list[str]) -> None:
    with create(tmp_path / "s", config=SIZES) as writer:
        for topic in ("A", "B", "C"):
            for queue_id in range(4):
                put(writer, topic, queue_id)
        tail = follow(tmp_path / "s", subscribe="A,B")
        tail.poll()
        asked.clear()
        tail.poll()
        assert not asked
        put(writer, "B", 2, 200)
        put(writer, "C", 1, 200)
        put(writer, "A", 1)
        asked.clear()
        tail.poll()
        assert sorted(asked) == ["A-1", "B-2"]
        assert (tail.ends["B", 2], tail.ends["A", 1]) == (201, 2)
        asked.clear()
        tail.poll()
        assert not asked


def test_a_unit_that_is_built_while_its_queue_is_read_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build.filled(build.Record(topic="T") for _ in range(10))
    units = store.queues["T", 0]
    store.queues["T", 0] = units[:-1]
    root = store.write(tmp_path / "s", abort=True)
    plain = StoreTail._in_files

    def in_files(tail: StoreTail, queue: Queue, key: tuple[str, int]) -> tuple[int, int]:
        found = plain(tail, queue, key)
        build.write_queue(root / "consumequeue/T/0", units)
        return found

    monkeypatch.setattr(StoreTail, "_in_files", in_files)
    tail = follow(root)
    tail.poll()
    assert tail.ends == {("T", 0): 10}


def test_a_queue_that_is_behind_the_log_is_read_until_it_has_caught_up(
    tmp_path: Path, asked: list[str]
) -> None:
    store = build.filled(build.Record(topic="T") for _ in range(10))
    root = store.write(tmp_path / "s", abort=True)
    tail = follow(root)
    tail.poll()
    written = dict(store.segments)
    for _ in range(5):
        store.append(build.Record(topic="T"))
    assert store.segments.keys() == written.keys(), "one file"
    (root / "commitlog" / f"{0:020d}").write_bytes(store.segments[0])
    for _ in range(2):
        asked.clear()
        tail.poll()
        assert (asked, tail.ends["T", 0]) == (["T-0"], 10)
    build.write_queue(root / "consumequeue/T/0", store.queues["T", 0][:13])
    tail.poll()
    assert tail.ends["T", 0] == 13
    build.write_queue(root / "consumequeue/T/0", store.queues["T", 0])
    tail.poll()
    assert tail.ends["T", 0] == 15
    asked.clear()
    tail.poll()
    assert not asked


def test_units_of_a_crashed_store_come_from_the_log_until_its_broker_has_built_them(
    tmp_path: Path,
) -> None:
    store = build.filled(build.Record(topic="T") for _ in range(10))
    units = store.queues["T", 0]
    store.queues["T", 0] = units[:6]
    root = store.write(tmp_path / "s", abort=True)
    tail = follow(root)
    tail.poll()
    assert tail.ends["T", 0] == 10
    assert ("T", 0) in tail.store.ends.recovered
    store.queues["T", 0] = units
    store.append(build.Record(topic="T"))
    (root / "commitlog" / f"{0:020d}").write_bytes(store.segments[0])
    build.write_queue(root / "consumequeue/T/0", store.queues["T", 0])
    tail.poll()
    assert tail.ends["T", 0] == 11
    assert ("T", 0) not in tail.store.ends.recovered
    assert tail.store.queue_range("T", 0)[0] == 0


@pytest.fixture
def begun(tmp_path: Path) -> tuple[build.Store, Path, StoreTail]:
    """Return a store of five records that its broker writes, its folder, and who has read them."""
    store = build.filled(build.Record(topic="T", body=b"y" * 50) for _ in range(5))
    root = store.write(tmp_path / "s", abort=True)
    tail = follow(root)
    tail.poll()
    return store, root, tail


@pytest.mark.parametrize("n_bytes", [8, 30, 90, 130, None], ids=str)
def test_a_record_that_is_not_there_whole_is_left_for_the_next_look(
    begun: tuple[build.Store, Path, StoreTail], n_bytes: int | None
) -> None:
    """Its end is missing, or it is an old one in a file that is used again, of another place."""
    store, root, tail = begun
    log = root / "commitlog" / f"{0:020d}"
    at = store.append(build.Record(topic="Other", body=b"y" * 50)).physical_offset
    data = bytearray(store.segments[0])
    if n_bytes is None:
        data[at + 28 : at + 36] = (at + 65536).to_bytes(8)
    else:
        data[at + n_bytes :] = bytes(len(data) - at - n_bytes)
    log.write_bytes(data)
    tail.poll()
    assert tail.ends == {("T", 0): 5}
    log.write_bytes(store.segments[0])
    build.write_queue(root / "consumequeue/Other/0", store.queues["Other", 0])
    tail.poll()
    assert tail.ends == {("T", 0): 5, ("Other", 0): 1}


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("newest", "count"), [(-1, 3), (0, 2), (1, 2)])
def test_a_record_of_an_earlier_run_after_one_of_this_run_was_cut_off(
    tmp_path: Path, newest: int, count: int, steps: int
) -> None:
    """``newest`` is the second record's store time, relative to the start of the broker."""
    store = build.Store()
    times = [build.T0 - 5, build.T0 + newest, build.T0 - 3]
    placed = [store.append(build.Record(topic="T", store_timestamp=time)) for time in times]
    root = store.write(tmp_path / "s")
    path = root / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    if steps == 2:  # the third record is met by itself
        path.write_bytes(whole[: placed[2].physical_offset].ljust(len(whole), b"\0"))
    log = CommitLog([root / "commitlog"])
    cursor = LogCursor.at(log, 0)
    found = sum(len(headers) for _, headers in cursor.step(log, build.T0))
    path.write_bytes(whole)
    found += sum(len(headers) for _, headers in cursor.step(log, build.T0))
    assert found == count


def test_a_log_that_was_cut_and_written_on_is_looked_at_from_the_start(tmp_path: Path) -> None:
    root, before = tmp_path / "s", tmp_path / "before"
    with create(root, config=SIZES) as writer:
        put(writer, "A", 0, 30)
        put(writer, "B", 0, 10)
    shutil.copytree(root, before)
    with rmqstore.open(root, mode="a") as writer:
        put(writer, "A", 0, 20)
        tail = follow(root)
        tail.poll()
    assert tail.ends["A", 0] == 50
    last_record = tail.last_record
    assert last_record is not None
    put_back(root, before)
    with rmqstore.open(root, mode="a") as writer:
        put(writer, "A", 0, 5)
        tail.poll()
        assert (tail.ends["A", 0], tail.ends["B", 0]) == (35, 10)
        assert not last_record.is_in(tail.store.log)
        put(writer, "B", 0, 5)
        tail.poll()
        assert tail.ends["B", 0] == 15


@pytest.mark.parametrize(("number", "time"), [(5, 100), (40, 5)], ids=["by place", "by time"])
def test_what_replaced_a_cut_record_lies_behind_it_or_was_stored_later(
    tmp_path: Path, number: int, time: int
) -> None:
    """The clock may be set back while the broker is down, and the new log may be shorter."""
    store = build.filled(build.Record(store_timestamp=build.T0 + at) for at in range(10))
    tail = follow(store.write(tmp_path / "s"))
    tail.poll()
    cut = LastRecord(store.places[1] * number, build.T0 + time - 1)
    assert tail.first_after(("T", 0), cut) == 5


def test_a_mark_stands_for_just_one_record(tmp_path: Path) -> None:
    times = [build.T0 + number for number in range(60)]
    store = build.filled(build.Record(topic="T", store_timestamp=time) for time in times)
    root = store.write(tmp_path / "s")
    last_record = LastRecord(store.places[-1], times[-1])
    with open_for(root) as opened:
        assert last_record.is_in(opened.parts.log)
        for other in (
            LastRecord(last_record.physical_offset, times[-1] + 1),
            LastRecord(last_record.physical_offset + 1, times[-1]),
            LastRecord(1 << 40, times[-1]),
        ):
            assert not other.is_in(opened.parts.log)
    (root / "commitlog" / f"{0:020d}").unlink()
    with open_for(root) as opened:
        assert LastRecord(0, 7).is_in(opened.parts.log), "what retention deleted was not cut off"


def test_retention_deletes_under_it(tmp_path: Path) -> None:
    with create(tmp_path / "s", config=SIZES) as writer:
        put(writer, "A", 0, 10)
        put(writer, "B", 0, 500)
        tail = follow(tmp_path / "s")
        tail.poll()
        assert (tail.first(("A", 0)), tail.first(("B", 0))) == (0, 0)
        logs = sorted((tmp_path / "s" / "commitlog").iterdir())
        for log in logs[:-1]:
            log.unlink()
        tail.poll()
        with rmqstore.open(tmp_path / "s") as store:
            assert tail.first(("B", 0)) == store.queue_range("B", 0)[0] > 0
        assert tail.first(("A", 0)) == 10
        shutil.rmtree(tmp_path / "s" / "consumequeue" / "A")
        put(writer, "B", 0, 3)
        tail.poll()
        assert ("A", 0) not in tail.ends
        # As a broker removes a queue whose last message has expired: all of it was there to read.
        assert tail.gone({("A", 0): 10}) == set()
        assert tail.gone({("A", 0): 9}) == {("A", 0)}
        assert tail.ends["B", 0] == 503


def test_rows_within_bytes_are_counted_by_units(golden_store: Golden) -> None:
    with open_for(golden_store("basic")) as store:
        topic = next(topic for topic in store.topics() if store.queues(topic)[0].n_bytes)
        info = store.queues(topic)[0]
        sizes = (
            store.scan(assign={topic: [info.queue_id]}, columns="storeSize")
            .read_all()["storeSize"]
            .to_pylist()
        )
        piece = rmqstore.spans.QueueSlice(topic, info.queue_id, info.min_offset, info.max_offset)
        for n_rows in (0, 1, len(sizes) // 2, len(sizes)):
            assert store.parts.sampler.rows_within(piece, sum(sizes[:n_rows])) == n_rows
            assert store.parts.sampler.rows_within(piece, sum(sizes[:n_rows]) + 1) == n_rows
        assert store.parts.sampler.rows_within(piece, sum(sizes) - 1) == len(sizes) - 1


def test_a_blank_before_an_empty_segment_may_still_become_a_record(tmp_path: Path) -> None:
    """As in a commit: the blank is there for a moment, even in a log without a record before it."""
    root = build.Store().write(tmp_path / "s")
    first, following = (root / "commitlog" / f"{at:020d}" for at in (0, 4096))
    first.write_bytes(build.pack_blank(4096).ljust(4096, b"\0"))
    following.write_bytes(bytes(4096))
    log = CommitLog([root / "commitlog"])
    cursor = LogCursor.at(log, 0)
    assert not list(cursor.step(log, 0))
    first.write_bytes(build.pack(build.Record(), 0).ljust(4096, b"\0"))
    log.refresh()
    assert cursor.is_good(log)
    assert [len(headers) for _, headers in cursor.step(log, 0)] == [1]
