"""The streaming sink: each micro-batch once, whatever is cut or killed when."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import rmqstore
import tiers
from connector.engine import Engine, task
from connector.streams import SIZES, SMALL, Clock, add, put
from connector.test_stream_read import failure, numbered
from crash.faults import Cut, FaultyDisk
from pyspark_rmqstore.sink import RmqStoreStreamWriter, StagedOfQuery, StoreSink
from pyspark_rmqstore.write_options import parse_stream_write_options, parse_write_options
from reading import column
from rmqstore.errors import StoreLockedError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.log.writer_notes import read_commits
from rmqstore.store.opening import create
from rmqstore.write.writer import StoreWriter
from written import require_valid

TESTS = Path(__file__).parents[1]


def copy(
    spark: SparkSession | Engine,
    source: Path,
    sink: Path,
    checkpoint: Path,
    *,
    per_trigger: int = 100,
    **options: str,
) -> int:
    """Copy what is there from store to store by a stream; return how many triggers had rows."""
    reader: Any = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", per_trigger).load(str(source))
    writer = frame.writeStream.format("rmqstore").options(**(SMALL | options)).outputMode("append")
    query = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(sink))
    )
    query.awaitTermination()
    return sum(bool(one.numInputRows) for one in query.recentProgress)


def by_queue(root: Path) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    with rmqstore.open(root) as store:
        for row in store.scan(columns="topic,queueId,body").read_all().to_pylist():
            found.setdefault((row["topic"], row["queueId"]), []).append(row["body"])
    return found


def source_store(root: Path, n: int) -> Path:
    with create(root, config=SIZES) as writer:
        for queue_id in range(3):
            put(writer, "A", queue_id, numbered(0, n))
        put(writer, "B", 0, numbered(0, n // 2))
    return root


def test_a_stream_copies_store_to_store_in_the_order_of_each_queue(
    engine: Engine, tmp_path: Path
) -> None:
    source = source_store(tmp_path / "a", 300)
    assert copy(engine, source, tmp_path / "b", tmp_path / "checkpoint") == 11
    assert by_queue(tmp_path / "b") == by_queue(source)
    add(source, ("A", 1, numbered(300, 320)))
    assert copy(engine, source, tmp_path / "b", tmp_path / "checkpoint") == 1
    assert copy(engine, source, tmp_path / "b", tmp_path / "checkpoint") == 0
    assert by_queue(tmp_path / "b") == by_queue(source)
    require_valid(tmp_path / "b")
    with rmqstore.open(tmp_path / "b") as store:
        commits = read_commits(find_store(tmp_path / "b"))
        assert [each.version for each in commits] == [*range(12)]
        assert len({each.app_id for each in commits}) == 1
        assert sum(each.n_records for each in commits) == store.count()
        assert str(commits[0].app_id).startswith("query:")
    assert not (tmp_path / "b" / ".rmqstore" / "staging").exists()


def test_a_new_checkpoint_is_another_query(engine: Engine, tmp_path: Path) -> None:
    source = source_store(tmp_path / "a", 20)
    for number in range(2):
        copy(engine, source, tmp_path / "b", tmp_path / f"checkpoint{number}", queryName="same")
    assert {key: len(rows) for key, rows in by_queue(tmp_path / "b").items()} == {
        ("A", 0): 40, ("A", 1): 40, ("A", 2): 40, ("B", 0): 20,
    }  # fmt: skip


def test_a_batch_that_fails_leaves_nothing_and_comes_again(engine: Engine, tmp_path: Path) -> None:
    source, sink = source_store(tmp_path / "a", 30), tmp_path / "b"
    create(sink, config=SIZES).close()
    assert "MESSAGE_ILLEGAL" in failure(
        lambda: copy(engine, source, sink, tmp_path / "checkpoint", topic="no topic")
    )
    assert not by_queue(sink)
    copy(engine, source, sink, tmp_path / "checkpoint")
    assert by_queue(sink) == by_queue(source)
    assert not (sink / ".rmqstore" / "staging").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"txnAppId": "a", "txnVersion": "1"}, "foreachBatch"), ({"colour": "red"}, "colour")],
)
def test_options_are_refused_by_name(
    engine: Engine, tmp_path: Path, options: dict[str, str], named: str
) -> None:
    source = source_store(tmp_path / "a", 3)
    assert named in failure(
        lambda: copy(engine, source, tmp_path / "b", tmp_path / "checkpoint", **options)
    )


N_ROWS = 16  # of a task; of three batches, the files are nearly full
FILES = SMALL | {"mappedFileSizeCommitLog": "16384", "maxIndexNum": "100"}


class Driver:
    """Runs micro-batches as Spark does: one writer for the tasks and another one to commit.

    It counts the attempts of tasks.
    """

    def __init__(self, root: Path) -> None:
        self._options = parse_stream_write_options({"path": str(root), **FILES})
        self._schema = (
            StructType().add("topic", "string").add("queueId", "integer").add("body", "string")
        )
        self._attempts = 0

    def stage(self, batch_id: int) -> list[StagedOfQuery]:
        writer = self.writer()
        return [self.stage_one(batch_id, partition, writer) for partition in range(2)]

    def stage_one(
        self, batch_id: int, partition: int, writer: RmqStoreStreamWriter | None = None
    ) -> StagedOfQuery:
        self._attempts += 1
        with self.attempt(batch_id, partition, self._attempts):
            return self.write(iter([self.rows(batch_id, partition)]), writer)

    @staticmethod
    def attempt(batch_id: int, partition: int, attempt: int) -> AbstractContextManager[None]:
        properties = {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(batch_id)}
        return task(partition, attempt, properties)

    def write(
        self, batches: Iterator[pa.RecordBatch], writer: RmqStoreStreamWriter | None = None
    ) -> StagedOfQuery:
        staged = (writer or self.writer()).write(batches)
        assert isinstance(staged, StagedOfQuery)
        return staged

    def rows(self, batch_id: int, partition: int) -> pa.RecordBatch:
        bodies = [f"{batch_id}/{partition}/{number}" for number in range(N_ROWS)]
        queue_ids = pa.array([partition] * len(bodies), pa.int32())
        return pa.RecordBatch.from_pydict(
            {"topic": ["T"] * len(bodies), "queueId": queue_ids, "body": bodies}
        )

    def writer(self) -> RmqStoreStreamWriter:
        return RmqStoreStreamWriter(self._schema, self._options)

    def commit(
        self, staged: list[StagedOfQuery], batch_id: int, writer: RmqStoreStreamWriter | None = None
    ) -> None:
        """Commit a batch, or abort it if that fails, as Spark does."""
        writer = writer or self.writer()
        try:
            writer.commit(staged, batch_id)
        except Exception:
            writer.abort(staged, batch_id)
            raise

    def run(self, batch_id: int, disk: FaultyDisk | None = None) -> None:
        """Run a batch of two tasks; the changes of its commit go through ``disk``."""
        staged = self.stage(batch_id)
        if disk is None:
            self.commit(staged, batch_id)
            return
        committing = self.writer()
        with pytest.MonkeyPatch.context() as patch:

            def open_faulty(path: str, _: str, **given: Any) -> StoreWriter:
                return StoreWriter(find_store(path), given["config"], disk, spec=given["spec"])

            patch.setattr("pyspark_rmqstore.sink.open_for", open_faulty)
            try:
                committing.commit(staged, batch_id)
            except Cut:
                return  # the whole driver is gone: nobody aborts


def expected(n_batches: int) -> dict[tuple[str, int], list[bytes]]:
    return {
        ("T", partition): [
            f"{batch}/{partition}/{number}".encode()
            for batch in range(n_batches)
            for number in range(N_ROWS)
        ]
        for partition in range(2)
    }


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a store with three batches in it; number 3 rolls over the ends of all files."""
    driver = Driver(tmp_path / "begun")
    for batch_id in range(3):
        driver.run(batch_id)
    return tmp_path / "begun"


@pytest.mark.crash
@pytest.mark.parametrize("step", tiers.sampled(3, 1))
@pytest.mark.parametrize("power", [False, True])
def test_a_batch_that_is_cut_anywhere_comes_once(
    begun: Path, tmp_path: Path, step: int, *, power: bool
) -> None:
    counted = Path(shutil.copytree(begun, tmp_path / "count"))
    counting = FaultyDisk()
    Driver(counted).run(3, counting)
    n_changes = counting.n_changes
    assert n_changes > 20
    for folder in ("commitlog", "consumequeue/T/0", "index"):
        files = [len(list((root / folder).iterdir())) for root in (begun, counted)]
        assert files[0] < files[1], folder
    step = 3 * step if power else step
    for at in range(tiers.FIRST_SEED % step, n_changes, step):
        root = Path(shutil.copytree(begun, tmp_path / f"s{at}"))
        driver = Driver(root)
        driver.run(3, FaultyDisk(at, random.Random(at) if power else None))
        bodies = column(root, "body", scan="commitlog")
        assert len(bodies) in (6 * N_ROWS, 8 * N_ROWS), f"cut {at}: a part of the batch shows"
        driver.run(3)
        driver.run(4)
        require(root, 5, f"cut {at}")
        shutil.rmtree(root)


def require(root: Path, n_batches: int, where: str = "") -> None:
    assert by_queue(root) == expected(n_batches), where
    require_valid(root, where)
    assert not (root / ".rmqstore" / "staging").exists()


def test_an_attempt_that_outlives_its_batch_changes_nothing(begun: Path) -> None:
    """Its batch is committed while it writes; in between, it made its files."""
    driver = Driver(begun)
    rows = driver.rows(3, 0)

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 8)
        driver.run(3)
        yield rows.slice(8)

    with driver.attempt(3, 0, attempt=99):
        driver.write(slow_rows())
    require(begun, 4)
    driver.run(4)
    require(begun, 5)


def test_what_an_attempt_begun_after_its_batch_leaves_is_removed_with_the_next_batch(
    begun: Path,
) -> None:
    driver = Driver(begun)
    driver.stage_one(2, 0)
    driver.stage_one(1, 1)
    folders = {path.name for path in (begun / ".rmqstore" / "staging").iterdir()}
    assert folders == {"query-1", "query-2"}
    other = begun / ".rmqstore" / "staging" / "query-of-another-1"
    other.mkdir()
    driver.run(3)
    assert list(other.parent.iterdir()) == [other]
    other.rmdir()
    other.parent.rmdir()
    require(begun, 4)


def test_attempts_of_a_dead_driver_share_no_file_with_those_of_the_next(begun: Path) -> None:
    """A new driver counts its attempts from the start, while executors of the old one may live."""
    dead = Driver(begun)
    rows = dead.rows(3, 0)
    staged = list[StagedOfQuery]()

    def slow_rows() -> Iterator[pa.RecordBatch]:
        driver = Driver(begun)
        staged.extend(driver.stage(3))
        yield rows.slice(0, 8)

    with dead.attempt(3, 0, attempt=1):
        zombie = dead.write(slow_rows())
    assert zombie.part.path not in [one.part.path for one in staged]
    dead.commit(staged, 3)
    require(begun, 4)


def test_a_commit_that_outlives_its_driver_is_not_repeated(begun: Path) -> None:
    """The new driver has staged the same batch, whose files the old commit removes."""
    old, new = Driver(begun), Driver(begun)
    of_old = old.stage(3)
    of_new = new.stage(3)
    old.commit(of_old, 3)
    new.commit(of_new, 3)
    require(begun, 4)
    late = old.stage(2)
    old.commit(late, 2)
    require(begun, 4)


def test_a_job_waits_for_the_commit_of_another_and_not_for_a_broker(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_write_options({"path": str(begun)})
    schema = StructType().add("topic", "string").add("body", "string")
    clock = Clock()
    monkeypatch.setattr("pyspark_rmqstore.sink.monotonic", clock.monotonic)
    monkeypatch.setattr("pyspark_rmqstore.sink.sleep", clock.sleep)
    lock = StoreLock(begun / "lock")
    with pytest.raises(StoreLockedError, match="has the store"):
        StoreSink(schema, options, patience=0.1)
    assert clock.seconds < 1
    lock.release()
    other = rmqstore.open(begun, mode="a")

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds > 10 and (begun / "abort").exists():
            (begun / "abort").unlink()  # as a writer that closes does before it releases the lock
        elif clock.seconds > 10:
            other.close()

    monkeypatch.setattr("pyspark_rmqstore.sink.sleep", sleep)
    StoreSink(schema, options, patience=0.1)
    assert clock.seconds > 10
    require(begun, 3)


def test_a_commit_does_not_wait_for_ever_for_another_writer(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(begun)
    staged = driver.stage(3)
    monkeypatch.setattr("pyspark_rmqstore.sink.COMMIT_SECONDS", 0.1)
    writer = driver.writer()
    with rmqstore.open(begun, mode="a"), pytest.raises(StoreLockedError, match="has the store"):
        driver.commit(staged, 3, writer)
    require(begun, 3)
    driver.run(3)
    require(begun, 4)


# Copies a store by small micro-batches, in its own process, until it is done or killed.
COPY = """
import sys
tests, source, sink, checkpoint = sys.argv[1:]
sys.path.insert(0, tests)
from connector.engine import Engine
frame = Engine().readStream.format("rmqstore").option("startingOffsets", "earliest")
frame = frame.option("maxOffsetsPerTrigger", "50").load(source)
query = frame.writeStream.format("rmqstore").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start(sink).awaitTermination()
"""


@pytest.mark.crash
def test_a_query_whose_process_is_killed_goes_on_where_it_was(
    engine: Engine, tmp_path: Path
) -> None:
    """Killed for real, driver, tasks and all, three times at random, then run to its end."""
    source, sink, checkpoint = (
        source_store(tmp_path / "a", 1000), tmp_path / "b", tmp_path / "checkpoint",
    )  # fmt: skip
    create(sink, config=SIZES).close()
    commits, said = checkpoint / "commits", tmp_path / "said"

    def n_commits() -> int:
        return len(list(commits.iterdir())) if commits.exists() else 0

    dice, sizes = random.Random(11), list[int]()
    for _ in range(3):
        command = [sys.executable, "-c", COPY, TESTS, source, sink, checkpoint]
        with said.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        done, until = n_commits(), time.monotonic() + 90
        while n_commits() < done + 3:
            assert time.monotonic() < until, "no batch was committed"
            assert process.poll() is None, f"the query ended by itself: {said.read_text()[-2000:]}"
            time.sleep(0.01)
        time.sleep(dice.random() / 4)
        process.kill()
        process.wait()
        sizes.append(sum(map(len, by_queue(sink).values())))
    assert 0 < sizes[0] < sizes[2] < 3500
    copy(engine, source, sink, checkpoint, per_trigger=5000)
    assert by_queue(sink) == by_queue(source)
    require_valid(sink)
