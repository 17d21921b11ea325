"""A stream from a live store into another store, watched for what grows.

Usage: python -m soak.run SECONDS FOLDER

It prints the median of each quarter of the time, and fails if the last quarter is above the second,
or if a message is lost or comes twice.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import rmqstore
from rmqstore.inspect.verify import verify
from soak.copied import CopiedMessages
from soak.live_writer import N_SEGMENTS, SIZES

SAMPLE_SECONDS = 2
SAMPLES_A_CHECK = 5
MB = 1 << 20
_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# The parts of a command by which a process of Spark is known, the first that fits.
PROCESSES = {
    "python_streaming_source_runner": "source", "python_streaming_sink_runner": "sink, commits",
    "write_into_data_source": "sink, plans", "pyspark.worker": "tasks",
    "pyspark.daemon": "other workers", "java": "JVM",
}  # fmt: skip


class Slack(NamedTuple):
    """How much larger the last quarter may be than the second."""

    factor: float
    more: float


# By the unit that ends the name of a quantity. Others are only printed: time on the clock and the
# size of a trigger follow whatever else the machine does.
SLACKS = {
    "anonymous MB": Slack(1.1, 8), "heap MB": Slack(1.1, 8), "files": Slack(1.05, 6),
    "maps": Slack(1.1, 20), "KB": Slack(1.1, 16), "CPU ms": Slack(1.5, 5),
}  # fmt: skip


class Usage(NamedTuple):
    """What ``/proc`` says of a process."""

    command: str
    anonymous_bytes: int
    n_open_files: int
    n_maps: int
    cpu_seconds: float  # those of children that have ended are counted in


def usages(pid: int) -> list[Usage]:
    """Return the usage of a process and of all its descendants that live."""
    return [usage for one in [pid, *descendants(pid)] if (usage := usage_of(one)) is not None]


def usage_of(pid: int) -> Usage | None:
    folder = _PROC / str(pid)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        status = (folder / "status").read_text()
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
        n_open_files = len(list((folder / "fd").iterdir()))
        n_maps = (folder / "maps").read_text().count("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    if not sizes:
        return None  # it is ending
    ticks = sum(map(int, times))
    return Usage(command, int(sizes[0]) << 10, n_open_files, n_maps, ticks / _TICKS_A_SECOND)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


class Soak:
    """What was seen, by quantity and second."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.seen: dict[str, list[tuple[float, float]]] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def add(self, quantity: str, value: float) -> None:
        self.seen.setdefault(quantity, []).append((self.seconds, value))

    def quarters(self, quantity: str) -> list[float]:
        """Return the median of each quarter of the time, nan where nothing was seen."""
        total = self.seconds
        parts: list[list[float]] = [[], [], [], []]
        for second, value in self.seen[quantity]:
            parts[min(int(second / total * 4), 3)].append(value)
        return [statistics.median(part) if part else float("nan") for part in parts]

    def report(self) -> list[str]:
        grown = []
        print(f"{'median of each quarter':<42}{'1':>10}{'2':>10}{'3':>10}{'4':>10}")
        for quantity in sorted(self.seen):
            quarters = self.quarters(quantity)
            slacks = [slack for unit, slack in SLACKS.items() if quantity.endswith(unit)]
            has_grown = any(quarters[3] > quarters[1] * factor + more for factor, more in slacks)
            cells = "".join(f"{value:>10.1f}" for value in quarters)
            print(f"{quantity:<42}{cells}{'  grows' if has_grown else ''}")
            if has_grown:
                grown.append(quantity)
        return grown


@contextmanager
def live_writer(root: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "soak.live_writer", str(root)]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            yield process
        finally:
            root.with_name("stop").touch()


def spark_session() -> SparkSession:
    """Return a session that forgets old jobs early, so that Spark's own tables fill early."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "20",
        "spark.sql.ui.retainedExecutions": "20",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(spark: SparkSession, source: Path, sink: Path, checkpoint: Path) -> StreamingQuery:
    frame = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    writer = frame.load(str(source)).writeStream.format("rmqstore").options(**SIZES)
    return writer.option("checkpointLocation", str(checkpoint)).start(str(sink))


def add_process(soak: Soak, name: str, pid: int) -> None:
    usage = usage_of(pid)
    if usage is not None:
        add_largest(soak, name, [usage])


def add_largest(soak: Soak, name: str, group: list[Usage]) -> None:
    soak.add(f"{name}, anonymous MB", max(usage.anonymous_bytes for usage in group) / MB)
    soak.add(f"{name}, open files", max(usage.n_open_files for usage in group))
    soak.add(f"{name}, maps", max(usage.n_maps for usage in group))


def add_spark(soak: Soak, pid: int) -> float:
    """Note what Spark's processes hold; return the CPU seconds that they have used."""
    groups: dict[str, list[Usage]] = {}
    seen = usages(pid)
    for usage in seen:
        for part, name in PROCESSES.items():
            if part in usage.command:
                groups.setdefault(name, []).append(usage)
                break
    for name, group in groups.items():
        add_largest(soak, name, group)
    return sum(usage.cpu_seconds for usage in seen)


def add_folders(soak: Soak, folder: Path) -> None:
    for name, path in {
        "checkpoint": folder / "checkpoint",
        "sink's own folder": folder / "sink" / ".rmqstore",
        "ledger": folder / "sink" / ".rmqstore" / "ledger",
        "source's store": folder / "source",
        "sink's store": folder / "sink",
    }.items():
        sizes = []
        for file in path.rglob("*"):
            try:
                if file.is_file():
                    sizes.append(file.stat().st_size)
            except FileNotFoundError:
                continue
        soak.add(f"{name}, files", len(sizes))
        soak.add(f"{name}, KB", sum(sizes) / 1024)


class Triggers:
    """The triggers of a query that had messages, as its progress names them."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._newest = -1
        self._cpu_seconds = 0.0
        self.n = 0

    def add(self, soak: Soak, cpu_seconds: float) -> None:
        new = [
            progress
            for progress in self._query.recentProgress
            if progress.batchId > self._newest and progress.numInputRows
        ]
        for progress in new:
            soak.add("trigger, ms", progress.durationMs["triggerExecution"])
            soak.add("trigger, messages", progress.numInputRows)
            self._newest = progress.batchId
        if new:
            soak.add("trigger, CPU ms", 1000 * (cpu_seconds - self._cpu_seconds) / len(new))
            self._cpu_seconds = cpu_seconds
            self.n += len(new)


def heap_bytes(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    used: int = runtime.totalMemory() - runtime.freeMemory()
    return used


def run(seconds: float, folder: Path) -> list[str]:
    source, sink, output = folder / "source", folder / "sink", folder / "writer.log"
    spark = spark_session()
    copied = CopiedMessages(sink, N_SEGMENTS // 2)
    with live_writer(source, output) as writer:
        while not output.read_bytes():
            time.sleep(0.1)
        query = start(spark, source, sink, folder / "checkpoint")
        soak, triggers = Soak(), Triggers(query)
        jvm_pid = spark_pid(spark)
        n_samples = 0
        read = 0
        while soak.seconds < seconds:
            time.sleep(SAMPLE_SECONDS)
            assert query.isActive, query.exception()
            assert writer.poll() is None, "the writer has ended"
            add_process(soak, "writer", writer.pid)
            cpu_seconds = add_spark(soak, jvm_pid)
            triggers.add(soak, cpu_seconds)
            n_samples += 1
            if n_samples % SAMPLES_A_CHECK == 0:
                soak.add("JVM, heap MB", heap_bytes(spark) / MB)
                copied.check()
                add_process(soak, "checker", os.getpid())
                add_folders(soak, folder)
            with output.open("rb") as file:
                file.seek(read)
                for line in file:
                    if line.endswith(b"\n"):
                        read += len(line)
                        for name, value in json.loads(line).items():
                            soak.add(f"writer, {name}", value)
    query.processAllAvailable()
    query.stop()
    copied.check()
    n_written = json.loads(output.read_text().splitlines()[-1])["messages of a queue"]
    n_copied = {offset for offsets in copied.next_offsets.values() for offset in offsets.values()}
    assert n_copied == {n_written}, (n_copied, n_written)
    for root in (source, sink):
        with rmqstore.open(root) as store:
            assert not list(verify(store))
    print(f"{soak.seconds:.0f} s, {triggers.n} triggers, {16 * n_written:,} messages")
    spark.stop()
    return soak.report()


def spark_pid(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid: int = jvm.java.lang.ProcessHandle.current().pid()
    return pid


if __name__ == "__main__":
    grown = run(float(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(f"these grow: {', '.join(grown)}" if grown else 0)
