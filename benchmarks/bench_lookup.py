"""Look-ups by key, and reads of a narrow range of time.

Usage: python benchmarks/bench_lookup.py STORE [--entries N] [--passes N]

One key is looked up in an index of 20 million keys, and a thousand keys in one Spark job. STORE is
read for the narrow range of time. The store with the index is made beside it by this package, and
kept.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from measure import evict, report, spark_session
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

import rmqstore
from pyspark_rmqstore.batch_reader import FilteringReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.schema import default_schema
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.spans import QueueSlice

CHUNK, TOPIC, N_KEYS = 200_000, "bench", 1000
PAGE = mmap.PAGESIZE


def main() -> None:
    """Run all benchmarks and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--entries", type=int, default=20_000_000 - 2)
    parser.add_argument("--passes", type=int, default=7)
    arguments = parser.parse_args()
    root = arguments.store.parent / f"indexed-{arguments.entries}"
    if not (root / "complete").exists():
        make_store(root, arguments.entries // 2)
    core(root, arguments.entries // 2, arguments.passes)
    narrow_time(arguments.store)
    jobs(root, arguments.entries // 2, arguments.passes)


def make_store(root: Path, n_messages: int) -> None:
    """Make a store whose messages have two keys each, UNIQ_KEY and KEYS."""
    with rmqstore.create(root) as writer:
        for start in range(0, n_messages, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, n_messages))
            keys = [f"order-{number}" for number in numbers.tolist()]
            ids = [f"{number:032X}" for number in numbers.tolist()]
            n = len(numbers)
            columns = {
                "topic": pa.array([TOPIC]).take(pa.array(np.zeros(n, np.int64))),
                "queueId": pa.array((numbers % 8).astype(np.int32)),
                "body": pa.array([b"x" * 60]).take(pa.array(np.zeros(n, np.int64))),
                "keys": pa.array(keys),
                "msgId": pa.array(ids),
            }
            writer.append(pa.RecordBatch.from_pydict(columns))
    (root / "complete").touch()


def resident_pages(path: Path) -> int:
    """Return the number of pages of a file in the page cache."""
    size = path.stat().st_size
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    count = -(-size // PAGE)
    flags = (ctypes.c_ubyte * count)()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags):
        raise OSError(ctypes.get_errno(), "mincore")
    return int((np.frombuffer(flags, np.uint8) & 1).sum())


def warm(root: Path) -> None:
    """Load all files of a store into the page cache, so that the disk does not affect figures."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(64 << 20):
                    pass


def core(root: Path, n_messages: int, passes: int) -> None:
    """Time look-ups of one key with a warm cache, and count the pages that cold ones read."""
    rng = np.random.default_rng(7)
    index = next((root / "index").iterdir())
    numbers = rng.integers(0, n_messages, 200).tolist()
    times = []
    warm(root)
    with rmqstore.open(root) as store:
        for number in numbers * passes:
            started = time.perf_counter()
            matches = store.query(TOPIC, f"order-{number}")
            times.append(time.perf_counter() - started)
            assert len(matches) == 1
            assert matches.is_complete
    pages = []
    for number in numbers[:20]:
        evict(index)
        before = resident_pages(index)
        with rmqstore.open(root) as store:
            assert len(store.query(TOPIC, f"order-{number}")) == 1
        pages.append(resident_pages(index) - before)
    late = 1e3 * float(np.quantile(times, 0.99))
    report(
        "lookup",
        "one key, warm",
        entries=2 * n_messages,
        ms=1e3 * statistics.median(times),
        ms_p99=late,
    )
    report("lookup", "one key, cold", index_pages=statistics.median(pages), most=max(pages))


def narrow_time(path: Path) -> None:
    """Count how much a read plans for a WHERE over one hundredth of a store's time."""
    with rmqstore.open(path) as store:
        queues = [queue for topic in store.topics() for queue in store.queues(topic)]
        first = min(queue.first_store_timestamp for queue in queues if queue.n_bytes)
        last = max(queue.last_store_timestamp for queue in queues if queue.n_bytes)
        parts = store.parts
        points = parts.sampler.log_points(parts.log_slice(), parts.sampler.log_headers)
        n_points = len(points.physical_offsets)
    low = first + (last - first) * 2 // 5
    high = low + (last - first) // 100
    filters = [
        GreaterThanOrEqual(("storeTimestamp",), low),
        LessThan(("storeTimestamp",), high),
    ]
    figures = {}
    for name, pushed in (("all", []), ("pushed", filters)):
        options = parse_read_options({"path": str(path)})
        reader = FilteringReader(default_schema(options.columns), options)
        assert not list(reader.pushFilters(pushed))
        started = time.perf_counter()
        splits = [split for task in reader.partitions() for split in task.tasks]
        figures[f"{name}_seconds"] = time.perf_counter() - started
        queue_slices = [
            queue_slice for split in splits for queue_slice in getattr(split.part, "slices", ())
        ]
        figures[f"{name}_messages"] = sum(
            queue_slice.end - queue_slice.start for queue_slice in queue_slices
        )
        with rmqstore.open(path) as store:
            n_bytes = int(sum(slice_bytes(store, queue_slice) for queue_slice in queue_slices))
        figures[f"{name}_bytes"] = n_bytes + QUEUE_UNIT.itemsize * figures[f"{name}_messages"]
    # at most one page of a queue and one of the log for each point
    figures["sampling_bytes"] = n_points * 2 * PAGE
    figures["share"] = (figures["pushed_bytes"] + figures["sampling_bytes"]) / figures["all_bytes"]
    report("lookup", "one hundredth of the time", **figures)


def slice_bytes(store: rmqstore.MessageStore, queue_slice: QueueSlice) -> float:
    """Return an estimate of the bytes that the messages of a range take in the log."""
    means = [sample.mean_bytes for sample in store.parts.sampler.sample(queue_slice, 64)]
    return (queue_slice.end - queue_slice.start) * statistics.mean(means)


def jobs(root: Path, n_messages: int, passes: int) -> None:
    """Compare the time of a Spark job for a thousand keys with that of a job for one key."""
    spark = spark_session()
    rng = np.random.default_rng(11)
    seconds: dict[str, list[float]] = {}
    for number in range(passes + 1):
        warm(root)
        for name, count in (("one", 1), ("thousand", N_KEYS)):
            orders = rng.choice(n_messages, count, replace=False).tolist()
            keys = [f"order-{order}" for order in orders]
            for way in ("option", "where"):
                reader = spark.read.format("rmqstore")
                started = time.perf_counter()
                if way == "option":
                    frame = reader.option("msgKey", str(keys).replace("'", '"')).load(str(root))
                else:
                    quoted = ", ".join(f"'{key}'" for key in keys)
                    frame = reader.option("where", f"keys IN ({quoted})").load(str(root))
                assert len(frame.collect()) == count
                if number:
                    taken = time.perf_counter() - started
                    seconds.setdefault(f"{way}_{name}", []).append(taken)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for way in ("option", "where"):
        medians[f"{way}_ratio"] = medians[f"{way}_thousand"] / medians[f"{way}_one"]
    report("lookup", "a job for a thousand keys beside one key, seconds", **medians)
    spark.stop()


if __name__ == "__main__":
    main()
