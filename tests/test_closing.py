"""Who may use what was opened, and until when: each object with each of its public methods.

The methods are found by their names, so a new one has to say how it is called, or it is not tried.
"""

from __future__ import annotations

import inspect
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_logs
import kafkalog
import rmqstore
from kafkalog.scan import ScanSpec
from live.fake_cluster import FakeCluster
from memory_storage import MemoryStorage
from rmqstore.errors import StoreLockedError, StoreStateError
from rmqstore.query.arrow_rows import ArrowRows
from rmqstore.storage.files.disk import Disk
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter
from rmqstore.write.writer import StoreWriter
from store_builder import Record, filled
from written import require_valid, rows_of

SIZES = rmqstore.StoreConfig(
    mapped_file_size_commit_log=65536,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=400,
)
SPEC = WriteSpec(default_queue_nums=2)
ROWS = pa.record_batch({"topic": ["T"] * 3, "body": [b"1", b"2", b"3"]})
ARGUMENTS: dict[str, dict[str, Any]] = {
    "append": {"rows": ROWS}, "append_staged": {"parts": []}, "done_version": {"app_id": "app"},
    "queue_ids": {"topic": "T"}, "queue_range": {"topic": "T", "queue_id": 0},
    "queues": {"topic": "T"}, "offset_at": {"topic": "T", "queue_id": 0, "timestamp": 0},
    "offsets_at": {"topic": "T", "timestamp": 0}, "get": {"offset_or_id": 0},
    "matched_groups": {"topic": "T", "queue_id": 0, "queue_offset": 0},
    "query": {"topic": "T", "key": "k"}, "view": {"name": "queues"}, "queue_ranges": {"topic": "T"},
    "queues_of": {"topics": ["T"]}, "write": {"columns": MessageMaker(WriteSpec()).make(ROWS)},
    "resume": {"recovered_end": None},
    "partition": {"topic": "t", "partition": 0}, "stable_offset": {"is_strict": False},
    "offset_for_time": {"timestamp": 0}, "offsets_between": {"start": None, "end": None},
    "read": {"spec": ScanSpec()}, "committed_end": {"spec": ScanSpec(), "end": 9},
    "answer": {"ask": lambda log: log},
}  # fmt: skip


class World:
    """A store, a log directory of Kafka and a running broker, each with one message of topic T."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.root, self.new, self.logs = (folder / name for name in ("store", "new", "logs"))
        filled([Record(topic="T")]).write(self.root)
        log_dir = kafka_logs.make_log_dir(self.logs)
        kafka_logs.write_segment(log_dir / "t-0", 0, kafka_logs.batch(0, [b"1"]))
        self._stack = stack

    @cached_property
    def fake(self) -> FakeCluster:
        return self._stack.enter_context(FakeCluster({"a": filled([Record(topic="T")])}))

    def make(self, kind: str) -> tuple[Any, Any]:
        """Return an object, and what it was opened by."""
        if kind in OPENED:
            thing = OPENED[kind](self)
            return thing, thing
        of, make = PARTS[kind]
        opened = OPENED[of](self)
        return make(opened), opened


class RemoteStorage(MemoryStorage):
    def requests_made(self) -> str:
        return "some"


def part_writer(world: World) -> PartWriter:
    world.new.mkdir()
    return PartWriter(Disk(), world.new / "part", 65536)


def remote_store(world: World) -> rmqstore.MessageStore:
    storage = RemoteStorage(world.root)
    return rmqstore.open(storage.root, storage=storage)


OPENED: dict[str, Callable[[World], Any]] = {
    "writer": lambda world: rmqstore.create(world.new, config=SIZES, spec=SPEC),
    "part writer": part_writer,
    "live writer": lambda world: world.fake.writer(),
    "store": lambda world: rmqstore.open(world.root),
    "remote store": remote_store,
    "cluster": lambda world: rmqstore.open([world.root]),
    "live cluster": lambda world: world.fake.open(),
    "log dirs": lambda world: kafkalog.open(world.logs),
}
PARTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "scan": ("store", lambda store: store.scan()),
    "view": ("store", lambda store: store.view("queues")),
    "cluster scan": ("cluster", lambda cluster: cluster.scan()),
    "live scan": ("live cluster", lambda cluster: cluster.scan()),
    "partition": ("log dirs", lambda logs: logs.partition("t", 0)),
    "partition scan": ("log dirs", lambda logs: logs.partition("t", 0).scan()),
    "logs scan": ("log dirs", lambda logs: logs.scan()),
}
WRITERS = ("writer", "part writer", "live writer")
KINDS = [*OPENED, *PARTS]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.fixture
def writer(world: World) -> StoreWriter:
    return OPENED["writer"](world)  # type: ignore[no-any-return]


def uses(thing: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the public methods of an object, with what calls each and reads what it returns."""
    for name, _ in inspect.getmembers(type(thing), inspect.isfunction):
        if not name.startswith("_") and name != "close":
            method = getattr(thing, name)
            arguments = ARGUMENTS.get(name, {})
            if name == "cast":
                arguments = {"target_schema": thing.schema}
            yield name, lambda method=method, given=arguments: read(method(**given))  # type: ignore[misc]
    if hasattr(thing, "close") and not isinstance(thing, ArrowRows):
        yield "with", thing.__enter__


def read(result: object) -> object:
    return list(result) if isinstance(result, (Iterator, pa.RecordBatchReader)) else result


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files but the lock: to close it would release it for this process."""
    return {str(path): path.read_bytes() for path in folder.rglob("[!l]*") if path.is_file()}


def require_refused(world: World, thing: Any, text: str) -> None:
    before = contents(world.root.parent)
    for name, call in uses(thing):
        said = "it answers"
        try:
            call()
        except StoreStateError as err:
            said = str(err)
        assert text in said, name
    assert contents(world.root.parent) == before


def in_child(work: Callable[[], object]) -> str:
    """Return what the work of a forked child gives, or the error, as text."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        try:
            said = str(work())
        except BaseException as err:  # noqa: BLE001 - whatever it is, the parent shows it
            said = f"{type(err).__name__}: {err}"
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_closed_refuses_each_use(world: World, kind: str) -> None:
    thing, opened = world.make(kind)
    opened.close()
    require_refused(world, thing, "was closed: ")
    opened.close()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_that_an_error_ended_refuses_each_use(world: World, kind: str) -> None:
    thing, _ = world.make(kind)
    with pytest.raises(ZeroDivisionError), thing:
        raise ZeroDivisionError
    require_refused(world, thing, "was closed: ")


def test_a_closed_writer_leaves_the_store_to_the_next_one(
    world: World, writer: StoreWriter
) -> None:
    with writer:
        writer.append(ROWS)
    with rmqstore.open(world.new, mode="a") as second:
        second.append(ROWS)
        require_refused(world, writer, "was closed: open the store again with mode='a'")
        writer.close()
        assert (world.new / "abort").exists()
        with pytest.raises(StoreLockedError):
            rmqstore.open(world.new, mode="a")
    require_valid(world.new)
    assert len(rows_of(world.new)) == 6


@pytest.mark.parametrize("kind", [*WRITERS, "live cluster", "remote store", "live scan"])
def test_a_child_process_is_refused_and_changes_nothing(world: World, kind: str) -> None:
    thing, opened = world.make(kind)
    calls = dict(uses(thing))
    calls.get("append", calls.get("write", lambda: None))()

    def work() -> str:
        require_refused(world, thing, "was opened by another process")
        opened.__exit__(ZeroDivisionError, None, None)
        opened.close()
        if kind == "writer":
            with pytest.raises(StoreLockedError, match="a running broker or another writer"):
                rmqstore.open(world.new, mode="a")
        return "refused"

    before = contents(world.root.parent)
    assert in_child(work) == "refused"
    assert contents(world.root.parent) == before
    for call in calls.values():
        call()
    opened.close()
    if kind == "writer":
        assert len(rows_of(world.new)) == 3, "what abandon left, and the append before it"


def test_a_child_process_opens_what_its_parent_has_closed(
    world: World, writer: StoreWriter
) -> None:
    is_closed = os.pipe()

    def work() -> int:
        os.read(is_closed[0], 1)
        with rmqstore.open(world.new, mode="a") as other:
            other.append(ROWS)
        return len(rows_of(world.new))

    def close() -> None:
        writer.close()
        os.write(is_closed[1], b"!")

    threading.Timer(0.05, close).start()
    assert in_child(work) == "3"


@pytest.mark.parametrize("kind", ["store", "cluster", "log dirs", "partition"])
def test_a_child_process_reads_local_files(world: World, kind: str) -> None:
    thing, _ = world.make(kind)
    assert thing.scan().count() == 1
    assert in_child(lambda: thing.scan().to_arrow().num_rows) == "1"
    assert thing.scan().count() == 1


def test_threads_append_one_after_the_other(world: World, writer: StoreWriter) -> None:
    def append(_: int) -> None:
        for _ in range(20):
            writer.append(ROWS)
            writer.flush()

    with writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    require_valid(world.new)
    rows = rows_of(world.new)
    for queue_id in (0, 1):
        of_queue = sorted(row["queueOffset"] for row in rows if row["queueId"] == queue_id)
        assert of_queue == list(range(120))


def test_closing_waits_for_a_call_of_another_thread(world: World, writer: StoreWriter) -> None:
    begun = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS
        begun.set()
        time.sleep(0.05)  # for close() to come to where it waits
        yield ROWS

    def close() -> None:
        assert begun.wait(10)
        writer.close()

    with ThreadPoolExecutor(2) as pool:
        closed = [pool.submit(close) for _ in range(2)]
        writer.append(pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
        assert [each.result() for each in closed] == [None, None]
    assert len(rows_of(world.new)) == 6


@pytest.mark.parametrize("within", [StoreWriter.close, StoreWriter.flush, StoreWriter.abandon])
def test_a_writer_is_not_used_within_a_call_of_its_own(
    world: World, writer: StoreWriter, within: Callable[[StoreWriter], None]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS
        within(writer)
        yield ROWS

    with writer:
        with pytest.raises(pa.ArrowInvalid, match="has not returned"):  # as Arrow passes it on
            writer.append(pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
        writer.append(ROWS)
    require_valid(world.new)
    assert len(rows_of(world.new)) == 6


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_process_has_one_writer_of_a_store(
    world: World, writer: StoreWriter, *, is_flushed: bool
) -> None:
    link = world.new.with_name("link")
    link.symlink_to(world.new)
    with writer:
        writer.append(ROWS)
        if is_flushed:
            writer.flush()
        for path in (world.new, link):
            with pytest.raises(StoreLockedError, match="this process has the store already"):
                rmqstore.open(path, mode="a")
            with pytest.raises(StoreStateError, match=r"is a store already|this process has the"):
                rmqstore.create(path)
    require_valid(world.new)
    assert len(rows_of(world.new)) == 3


def test_threads_share_running_brokers(world: World) -> None:
    cluster = world.fake.open()
    asked = [cluster.topics, lambda: cluster.queue_ranges("T"), lambda: cluster.scan().count()]
    expected = [str(ask()) for ask in asked]
    scan = cluster.scan()  # whose first reading is planned already
    with cluster, ThreadPoolExecutor(6) as pool:
        found = [pool.submit(ask) for _ in range(10) for ask in asked]
        tables = [pool.submit(scan.to_arrow) for _ in range(6)]
        assert [str(each.result()) for each in found] == expected * 10
        assert [each.result().num_rows for each in tables] == [1] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_pickled_is_read_elsewhere_or_says_what_to_do(world: World, kind: str) -> None:
    thing, _ = world.make(kind)
    if kind in ("log dirs", "partition"):
        assert pickle.loads(pickle.dumps(thing)).scan().count() == 1
    else:
        with pytest.raises(TypeError, match="cannot be pickled: pass on the path"):
            pickle.dumps(thing)
