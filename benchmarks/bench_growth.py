"""How time grows with the size of a store, one dimension at a time.

Usage: python benchmarks/bench_growth.py [--large] [--folder DIR] [--dimension NAME]
    [--operation NAME]

Prints one JSON line for each dimension and operation: the median seconds of some passes, on the
clock and of the CPU, and the exponents of the CPU seconds from each size to the next. 0 is no
growth, 1 is proportional. Each pass takes all sizes in turn, so other load affects all alike.
`plot_growth.py` makes the tables and the plot of docs/performance.md of these lines.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from measure import evict
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, InputPartition, LessThan

import rmqstore
from pyspark_rmqstore.batch_reader import FilteringReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.schema import default_schema
from rmqstore.inspect.report import gather, render
from rmqstore.inspect.verify import verify
from rmqstore.query.arguments import ScanOrder
from rmqstore.storage.broker.store_config import StoreConfig

N_MESSAGES = 800_000
MESSAGE_BYTES = 420  # as stored, about
BATCH_ROWS = 10_000  # that share a store time
QUEUES_A_TOPIC = 100
QUEUES_A_GROUP = 8
BODY = b"%0200d"
PASSES = 3
PATIENCE_SECONDS = 20  # after which no further pass begins


class Shape(NamedTuple):
    """The stores of one measurement."""

    messages: int = N_MESSAGES
    queues: int = 80
    segments: int = 80
    index_files: int = 0  # 0 stands for one of RocketMQ's size
    groups: int = 0
    stores: int = 1
    tasks: int = 0  # of a plan; 0 stands for the default, tasks of 128 MiB

    @property
    def folder(self) -> str:
        return "-".join(map(str, self._replace(tasks=0)))

    def config(self) -> StoreConfig:
        """Return sizes of files that give the store as many as the shape says."""
        segment_bytes = max(self.messages * MESSAGE_BYTES // self.segments, 16 << 10)
        sizes = {"mappedFileSizeCommitLog": str(segment_bytes)}
        if self.index_files:
            n_items = self.messages // self.index_files + 1
            sizes |= {"maxIndexNum": str(n_items), "maxHashSlotNum": str(n_items // 4 + 1)}
        return StoreConfig().updated(sizes)


class Stores(NamedTuple):
    """The stores of a shape."""

    shape: Shape
    roots: list[Path]

    def options(self) -> dict[str, str]:
        """Return the options of a Spark job over all of them."""
        options = {"paths": json.dumps(list(map(str, self.roots)))}
        if self.shape.tasks:
            n_bytes = self.shape.messages * MESSAGE_BYTES // self.shape.tasks
            options["maxBytesPerPartition"] = str(n_bytes)
        return options


def make(shape: Shape, folder: Path) -> Stores:
    """Make the stores of a shape, those that the folder does not have yet."""
    roots = [folder / shape.folder / f"broker-{number}" for number in range(shape.stores)]
    for root in roots:
        if (root / "complete").exists():
            continue
        with rmqstore.create(root, config=shape.config()) as writer:
            for first in range(0, shape.messages, BATCH_ROWS):
                writer.append(messages(shape, first, min(first + BATCH_ROWS, shape.messages)))
        (root / "config" / "consumerOffset.json").write_text(json.dumps(progress(shape)))
        (root / "complete").touch()
    return Stores(shape, roots)


def messages(shape: Shape, first: int, stop: int) -> pa.RecordBatch:
    """Return messages of queues that are drawn at random."""
    queues = np.random.default_rng(first).integers(0, shape.queues, stop - first)
    topics = pa.array([topic(number) for number in range(-(-shape.queues // QUEUES_A_TOPIC))])
    return pa.record_batch(
        {
            "topic": topics.take(pa.array(queues // QUEUES_A_TOPIC)),
            "queueId": pa.array(queues % QUEUES_A_TOPIC, pa.int32()),
            "body": [BODY % number for number in range(first, stop)],
            "keys": [key(number) for number in range(first, stop)],
            "tags": ["tag"] * (stop - first),
        }
    )


def progress(shape: Shape) -> dict[str, Any]:
    """Return the content of ``consumerOffset.json``: each group reads some queues of a topic."""
    offsets = {str(queue_id): 1 for queue_id in range(min(QUEUES_A_GROUP, shape.queues))}
    names = [f"{topic(0)}@group-{number:05}" for number in range(shape.groups)]
    return {"offsetTable": dict.fromkeys(names, offsets)}


def topic(number: int) -> str:
    """Return the name of a topic."""
    return f"topic-{number:04}"


def key(number: int) -> str:
    """Return the key of a message; keys of successive messages have nothing in common."""
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016X}"


def scan(stores: Stores, order: ScanOrder = "queue") -> None:
    """Read all messages."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            assert sum(batch.num_rows for batch in store.scan(scan=order)) >= stores.shape.messages


def stat(stores: Stores) -> None:
    """Find the facts of all queues, as ``rmqstore stat`` prints them."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            assert sum(len(store.queues(name)) for name in store.topics()) == stores.shape.queues


def view(stores: Stores, name: str) -> None:
    """Read a view."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            store.view(name).read_all()


def check(stores: Stores) -> None:
    """Verify the stores."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            assert not list(verify(store))


def rebuild(stores: Stores) -> None:
    """Build queues and index from the log."""
    for root in stores.roots:
        with rmqstore.open(root, "a", config=stores.shape.config()) as writer:
            assert not writer.rebuild()


def make_report(stores: Stores) -> None:
    """Make the page about a store, without the verification."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            assert render([gather(store, with_verify=False)], datetime.now(UTC))


def look_up(stores: Stores) -> None:
    """Find a message by its key, which the oldest file of the index has."""
    for root in stores.roots:
        with rmqstore.open(root) as store:
            number = stores.shape.messages // 1000
            first, row = number // BATCH_ROWS * BATCH_ROWS, number % BATCH_ROWS
            queues = np.random.default_rng(first).integers(0, stores.shape.queues, BATCH_ROWS)
            name = topic(int(queues[row]) // QUEUES_A_TOPIC)
            assert len(store.query(name, key(number))) == 1


def append(stores: Stores) -> None:
    """Open the store for writing and append a message."""
    for root in stores.roots:
        with rmqstore.open(root, "a", config=stores.shape.config()) as writer:
            writer.append(pa.record_batch({"topic": [topic(0)], "body": [b"one more"]}))


def plan(stores: Stores, *filters: Filter, order: str = "queue") -> list[InputPartition]:
    """Plan the tasks of a Spark job over all stores."""
    options = parse_read_options(stores.options() | {"scan": order})
    reader = FilteringReader(default_schema(options.columns), options)
    assert not list(reader.pushFilters(list(filters)))
    return list(reader.partitions())


def plan_time_window(stores: Stores) -> list[InputPartition]:
    """Plan a Spark job over one hundredth of the time."""
    with rmqstore.open(stores.roots[0]) as store:
        (info,) = (info for info in store.queues(topic(0)) if info.queue_id == 0)
    first, last = info.first_store_timestamp, info.last_store_timestamp
    assert first is not None
    assert last is not None
    low = first + (last - first) * 2 // 5
    bounds = [low, low + (last - first) // 99]
    window = (
        GreaterThanOrEqual(("storeTimestamp",), bounds[0]),
        LessThan(("storeTimestamp",), bounds[1]),
    )
    return plan(stores, *window)


def one_row(stores: Stores) -> None:
    """Plan and read a Spark job over one message of each store, without the JVM."""
    options = parse_read_options(stores.options())
    reader = FilteringReader(default_schema(options.columns), options)
    filters = {"topic": topic(0), "queueId": 0, "queueOffset": 1}
    assert not list(
        reader.pushFilters([EqualTo((name,), value) for name, value in filters.items()])
    )
    rows = [batch.num_rows for task in reader.partitions() for batch in reader.read(task)]
    assert sum(rows) == len(stores.roots)


Operation = Callable[[Stores], object]
OPERATIONS: dict[str, Operation] = {
    "scan by queue": scan,
    "scan by log": partial(scan, order="commitlog"),
    "Spark plan": plan,
    "Spark plan by log": partial(plan, order="commitlog"),
    "Spark plan, time window": plan_time_window,
    "Spark job of one row": one_row,
    "stat": stat,
    "view queues": partial(view, name="queues"),
    "view groups": partial(view, name="groups"),
    "verify": check,
    "report": make_report,
    "look-up of a key": look_up,
    "rebuild": rebuild,
    "append of one message": append,
}


class Dimension(NamedTuple):
    """What grows, and the operations whose cost could grow with it."""

    field: str  # of a shape
    sizes: list[int]
    operations: list[str]
    shape: Shape = Shape()


MOST = [name for name in OPERATIONS if name != "view groups"]
PLANS = ["Spark plan", "Spark plan by log"]
READS = ["scan by queue", "scan by log", *PLANS, "Spark plan, time window", "Spark job of one row"]
DIMENSIONS = {
    "tasks": Dimension("tasks", [10, 100, 1_000, 10_000], PLANS),
    "tasks-many-queues": Dimension("tasks", [10, 100, 1_000], PLANS, Shape(queues=4_000)),
    "queues": Dimension("queues", [80, 512, 4_000, 16_000], MOST),
    "segments": Dimension(
        "segments",
        [10, 100, 3_000],
        [*READS, "stat", "verify", "look-up of a key", "rebuild", "append of one message"],
    ),
    "index-files": Dimension(
        "index_files",
        [1, 10, 100],
        ["look-up of a key", "verify", "rebuild", "append of one message"],
    ),
    "groups": Dimension("groups", [10, 10_000], ["view groups", "report", "Spark plan"]),
    "stores": Dimension(
        "stores",
        [1, 10, 100],
        [*READS, "look-up of a key", "append of one message"],
        Shape(2_000, queues=8, segments=1),
    ),
    "messages": Dimension("messages", [300_000, 3_000_000], MOST),
}
LARGE = {"messages": [30_000_000]}


class Cost(NamedTuple):
    """Seconds of one pass."""

    wall: float
    cpu: float


def cost(operation: Operation, stores: Stores) -> Cost:
    """Run an operation once."""
    wall, cpu = time.perf_counter(), time.process_time()
    operation(stores)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def measure(operation: Operation, sizes: list[Stores]) -> list[Cost]:
    """Return the median costs for each size, after a run with the smallest to warm up."""
    operation(sizes[0])
    passes: list[list[Cost]] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while not passes or (len(passes) < PASSES and time.monotonic() < until):
        passes.append([cost(operation, stores) for stores in sizes])
    return [
        Cost(*map(statistics.median, zip(*costs, strict=True)))
        for costs in zip(*passes, strict=True)
    ]


def exponents(sizes: list[int], seconds: list[float]) -> list[float]:
    """Return the exponent of a curve from each size to the next."""
    curve = zip(sizes, seconds, strict=True)
    return [
        round(math.log(after[1] / before[1]) / math.log(after[0] / before[0]), 2) + 0.0
        for before, after in pairwise(curve)
    ]


def plan_facts(stores: Stores) -> dict[str, int]:
    """Return what a plan reads of a cold disk, how many tasks it has, and the memory it takes."""
    for root in stores.roots:
        for path in root.rglob("*"):
            if path.is_file():
                evict(path)
    before = read_bytes()
    plan(stores)
    cold_bytes = read_bytes() - before
    tracemalloc.start()
    tasks = plan(stores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sizes = [len(pickle.dumps(task)) for task in tasks]
    return {
        "tasks": len(tasks),
        "cold_bytes": cold_bytes,
        "peak_bytes": peak,
        "pickled_bytes": sum(sizes),
    }


def read_bytes() -> int:
    """Return how many bytes this process has read from disks."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"])


def results(
    name: str, folder: Path, more_sizes: list[int], chosen: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one dimension, for all of its operations or those that are chosen."""
    dimension = DIMENSIONS[name]
    sizes = dimension.sizes + more_sizes
    stores = [make(dimension.shape._replace(**{dimension.field: size}), folder) for size in sizes]
    operations = [one for one in dimension.operations if not chosen or one in chosen]
    for operation in operations:
        costs = measure(OPERATIONS[operation], stores)
        yield {
            "dimension": name,
            "operation": operation,
            "sizes": sizes,
            "wall": [round(each.wall, 4) for each in costs],
            "cpu": [round(each.cpu, 4) for each in costs],
            "exponents": exponents(sizes, [each.cpu for each in costs]),
        }
    if "Spark plan" not in operations:
        return
    facts = [plan_facts(one) for one in stores]
    yield {
        "dimension": name,
        "operation": "Spark plan, facts",
        "sizes": sizes,
        **{fact: [each[fact] for each in facts] for fact in facts[0]},
    }


def main() -> None:
    """Measure all dimensions, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder in which the stores are kept")
    parser.add_argument("--dimension", choices=DIMENSIONS, action="append")
    parser.add_argument("--operation", choices=OPERATIONS, action="append", default=[])
    parser.add_argument("--large", action="store_true", help="also 30 million messages, 14 GB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        started = time.monotonic()
        for name in arguments.dimension or DIMENSIONS:
            more_sizes = LARGE.get(name, []) if arguments.large else []
            for result in results(name, folder, more_sizes, arguments.operation):
                print(json.dumps(result), flush=True)
            load = os.getloadavg()[0]
            seconds = time.monotonic() - started
            print(f"{name}: done after {seconds:.0f} s, load {load:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
