"""Writes from executors that are processes of their own: all rows once, whatever fails or dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmqstore
import tiers
from connector.clusters import SESSION, environment
from connector.test_stream_write import by_queue, copy, source_store
from reading import column
from rmqstore.inspect.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.crash, pytest.mark.thorough]

TESTS = Path(__file__).parents[1]
PARTITIONS, ROWS = 6, 3000

# Writes two jobs into one store. In the first one, attempts of tasks fail after some rows, and one
# is so slow that Spark starts another. In the second one, an attempt that Spark believes lost goes
# on in a process that nobody can kill: it makes its files, and writes on after the commit.
WRITE = f"""{SESSION}
import os, signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark_rmqstore.sink import RmqStoreWriter
from pyspark_rmqstore.write_options import parse_write_options

root, folder = Path(sys.argv[1]), Path(sys.argv[2])
spark = session(
    str(folder / "work"), task_maxFailures="4", sql_execution_arrow_maxRecordsPerBatch="50",
    speculation="true", speculation_interval="100ms", speculation_quantile="0.5",
    speculation_multiplier="1.1",
)

def rows(partitions):
    return spark.range({ROWS}, numPartitions=partitions).select(
        F.lit("T").alias("topic"), F.col("id").cast("string").alias("body"),
        F.concat(F.lit("k"), "id").alias("keys"),
    )

def trouble(batches):
    context = TaskContext.get()
    partition, attempt = context.partitionId(), context.attemptNumber()
    (folder / f"attempt-{{partition}}-{{attempt}}").touch()
    for number, batch in enumerate(batches):
        if partition == {PARTITIONS} - 1 and attempt == 0 and number > 2:
            time.sleep(2)
        if partition < 3 and attempt <= partition and number == 3 + partition:
            raise OSError("this attempt fails")
        yield batch

frame = rows({PARTITIONS})
frame.mapInArrow(trouble, frame.schema).write.format("rmqstore").mode("append").save(str(root))
(folder / "staged").write_text(str((root / ".rmqstore" / "staging").exists()))

class Zombie(RmqStoreWriter):
    def write(self, batches):
        context = TaskContext.get()
        if context.partitionId() != 1 or context.attemptNumber() != 0:
            return super().write(batches)
        batches = list(batches)
        if os.fork() == 0:
            self.go_on(batches)
        while not list((root / ".rmqstore" / "staging").glob("*/part-1-*.side")):
            time.sleep(0.05)
        raise RuntimeError("this executor is lost")

    def go_on(self, batches):
        os.setsid()
        os.closerange(3, 256)  # its connection to Spark, too
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            super().write(self.slowly(batches))
            ended = "wrote its part"
        except BaseException as err:
            ended = repr(err)
        (folder / "zombie.tmp").write_text(ended)
        (folder / "zombie.tmp").rename(folder / "zombie")
        os._exit(0)

    def slowly(self, batches):
        half = len(batches) // 2
        yield from batches[:half]
        until = time.monotonic() + 120
        while not (folder / "committed").exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield from batches[half:]

class ZombieSource(DataSource):
    @classmethod
    def name(cls):
        return "zombie"

    def writer(self, schema, overwrite):
        return Zombie(schema, parse_write_options(dict(self.options)))

spark.dataSource.register(ZombieSource)
rows(2).write.format("zombie").mode("append").save(str(root))
(folder / "committed").touch()
until = time.monotonic() + 60
while not (folder / "zombie").exists() and time.monotonic() < until:
    time.sleep(0.05)
spark.stop()
"""


def require_valid(root: Path) -> None:
    with rmqstore.open(root) as store:
        assert not list(verify(store))
    assert not (root / ".rmqstore" / "staging").exists()


@pytest.mark.usefixtures("java")
def test_attempts_that_fail_are_repeated_or_live_on_write_no_row_twice(tmp_path: Path) -> None:
    root, folder = tmp_path / "s", tmp_path / "notes"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(root), str(folder)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    attempts = sorted(path.name for path in folder.glob("attempt-*"))
    assert {f"attempt-{partition}-{partition + 1}" for partition in range(3)} < set(attempts)
    assert f"attempt-{PARTITIONS - 1}-1" in attempts, "no attempt was speculative"
    assert (folder / "staged").read_text() == "False"
    assert (folder / "zombie").read_text() == "wrote its part"
    numbers = [int(body) for body in column(root, "body", scan="commitlog")]
    assert numbers == [*range(ROWS), *range(ROWS)], "partitions come in order, and rows in each"
    queues = [list(map(int, bodies)) for bodies in by_queue(root).values()]
    assert [len(bodies) for bodies in queues] == [2 * ROWS // 4] * 4
    for bodies in queues:
        assert sorted(bodies[: ROWS // 4]) == bodies[: ROWS // 4]
        assert sorted(bodies[ROWS // 4 :]) == bodies[ROWS // 4 :]
    require_valid(root)


# Copies a store by micro-batches; in the commit of the third one, at the first change to a file
# with a chosen text, the driver, its JVM and the process that commits are killed. The executors are
# not.
COPY = f"""{SESSION}
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from pyspark.sql.datasource import DataSource
from pyspark_rmqstore.sink import RmqStoreStreamWriter
from pyspark_rmqstore.write_options import parse_stream_write_options

source, sink, checkpoint, place, pids = sys.argv[1:]
spark = session(str(Path(pids).with_name("work")))
jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
Path(pids).write_text(json.dumps([jvm, os.getpid()]))

def killer():
    sys.path.insert(0, {str(TESTS)!r})
    from crash.killed import Killer

    class DriverKiller(Killer):
        def is_due(self, number, what):
            return place in what

        def kill(self):
            for pid in [*json.loads(Path(pids).read_text()), os.getpid()]:
                os.kill(pid, signal.SIGKILL)

    return DriverKiller(None)

class Killing(DataSource):
    @classmethod
    def name(cls):
        return "killing"

    def streamWriter(self, schema, overwrite):
        class Writer(RmqStoreStreamWriter):
            def commit(self, messages, batchId):
                if batchId == 2:
                    killer().install()
                super().commit(messages, batchId)

        return Writer(schema, parse_stream_write_options(dict(self.options)))

spark.dataSource.register(Killing)
frame = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
frame = frame.option("maxOffsetsPerTrigger", "100").load(source)
query = frame.writeStream.format("killing").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start(sink).awaitTermination()
"""
PLACES = {  # the first change to a file with this in its path, and whether the batch shows then
    "write to units": ("/consumequeue/", True),
    "intent": ("/ledger/", False),
    "records": ("write to /", False),
    "staged records": ("unlink", False),
    "checkpoint": ("checkpoint", False),
    "index": ("/index/", True),
}


@pytest.mark.parametrize("place", tiers.split(PLACES, 1))
def test_a_driver_killed_in_a_commit_whose_executors_live_on_is_followed_by_another(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    source, sink, checkpoint = source_store(tmp_path / "a", 100), tmp_path / "b", tmp_path / "c"
    text, shows = PLACES[place]
    killed = subprocess.run(
        [sys.executable, "-c", COPY, source, sink, checkpoint, text, tmp_path / "pids"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
    assert json.loads((tmp_path / "pids").read_text())
    assert {path.name for path in (checkpoint / "commits").glob("[0-9]*")} == {"0", "1"}
    assert sum(map(len, by_queue(sink).values())) == (300 if shows else 200)
    copy(spark, source, sink, checkpoint)
    assert by_queue(sink) == by_queue(source)
    require_valid(sink)
