"""How time grows with the size of a store, one dimension at a time.

Usage: python benchmarks/bench_growth.py [--folder DIR] [--dimension NAME]. Prints one JSON line for
each store and operation, and the exponent of each curve: 0 is no growth, 1 is proportional.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig

N_MESSAGES = 1_600_000
BATCH_ROWS = 100_000
QUEUES_A_TOPIC = 100
PASSES = 3


class Shape(NamedTuple):
    """The size of the stores of one measurement."""

    messages: int = N_MESSAGES
    queues: int = 80
    segment_bytes: int = 8 << 20
    stores: int = 1

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


DIMENSIONS = {
    "queues": [Shape(queues=queues) for queues in (80, 512, 4_000, 16_000)],
    "segments": [Shape(segment_bytes=N_MESSAGES * 400 // files) for files in (10, 100, 1_000)],
    "messages": [Shape(messages) for messages in (300_000, 3_000_000)],
    "stores": [Shape(2_000, 8, stores=stores) for stores in (1, 10, 100)],
}


def make(shape: Shape, folder: Path) -> list[Path]:
    """Make the stores of a shape, those that the folder does not have yet."""
    config = StoreConfig().updated(
        {
            "mappedFileSizeCommitLog": str(shape.segment_bytes // 4 * 4),
            "messageIndexEnable": "false",
        }
    )
    roots = [folder / shape.name / str(number) for number in range(shape.stores)]
    for root in roots:
        if root.exists():
            continue
        root.parent.mkdir(parents=True, exist_ok=True)
        with rmqstore.create(root, config=config) as writer:
            for first in range(0, shape.messages, BATCH_ROWS):
                writer.append(messages(shape, first, min(first + BATCH_ROWS, shape.messages)))
    return roots


def messages(shape: Shape, first: int, stop: int) -> pa.RecordBatch:
    """Return messages whose queues are drawn at random, with bodies of 200 bytes."""
    queues = np.random.default_rng(first).integers(0, shape.queues, stop - first)
    topics = pa.array([f"topic-{queue // QUEUES_A_TOPIC:04}" for queue in queues.tolist()])
    return pa.record_batch(
        {
            "topic": topics,
            "queueId": pa.array(queues % QUEUES_A_TOPIC, pa.int32()),
            "body": [b"%0200d" % number for number in range(first, stop)],
            "tags": ["tag"] * (stop - first),
        }
    )


def scan(root: Path) -> None:
    """Read everything by queue."""
    with rmqstore.open(root) as store:
        assert sum(batch.num_rows for batch in store.scan())


def scan_log(root: Path) -> None:
    """Read everything by log."""
    with rmqstore.open(root) as store:
        assert sum(batch.num_rows for batch in store.scan(scan="commitlog"))


def view_queues(root: Path) -> None:
    """Read view ``queues``."""
    with rmqstore.open(root) as store:
        assert store.view("queues").read_all().num_rows


def check(root: Path) -> None:
    """Verify the store."""
    with rmqstore.open(root) as store:
        assert not list(verify(store))


def append(root: Path) -> None:
    """Open the store for writing and append a message."""
    with rmqstore.open(root, "a") as writer:
        writer.append(pa.record_batch({"topic": ["topic-0000"], "body": [b"one more"]}))


OPERATIONS: dict[str, Callable[[Path], None]] = {
    "scan": scan,
    "scan=commitlog": scan_log,
    "view queues": view_queues,
    "verify": check,
    "append one message": append,
}


def measure(shapes: list[Shape], folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the seconds that each operation takes for each shape, the median of some passes."""
    stores = [make(shape, folder) for shape in shapes]
    for name, operation in OPERATIONS.items():
        passes = []
        for _ in range(PASSES):
            seconds = []
            for roots in stores:
                started = time.perf_counter()
                for root in roots:
                    operation(root)
                seconds.append(time.perf_counter() - started)
            passes.append(seconds)
        yield name, np.median(np.array(passes), axis=0).tolist()


def main() -> None:
    """Measure all dimensions, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder in which the stores are kept")
    parser.add_argument("--dimension", choices=DIMENSIONS)
    arguments = parser.parse_args()
    chosen = [arguments.dimension] if arguments.dimension else list(DIMENSIONS)
    with tempfile.TemporaryDirectory() as scratch:
        for dimension in chosen:
            shapes = DIMENSIONS[dimension]
            sizes = [sizes_of(shape)[dimension] for shape in shapes]
            for name, seconds in measure(shapes, arguments.folder or Path(scratch)):
                curve = list(zip(sizes, seconds, strict=True))
                exponents = [
                    round(math.log(after[1] / before[1]) / math.log(after[0] / before[0]), 2)
                    for before, after in pairwise(curve)
                ]
                rounded = {size: round(second, 3) for size, second in curve}
                result = {dimension: rounded, "operation": name, "exponents": exponents}
                print(json.dumps(result), flush=True)


def sizes_of(shape: Shape) -> dict[str, int]:
    """Return the size of a shape in each dimension."""
    return {
        "queues": shape.queues,
        "segments": shape.messages * 400 // shape.segment_bytes,
        "messages": shape.messages,
        "stores": shape.stores,
    }


if __name__ == "__main__":
    main()
