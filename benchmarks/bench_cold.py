"""Cold reads: how much tasks read from disk if the page cache is empty, for two ways to plan them.

Every task runs in its own process and finds the store evicted from memory, as with a store larger
than memory, or with executors on several machines. The connector plans tasks `by log range`; `by
queue` is one task for each queue.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from measure import evict, report

from rmqstore.format.schema import select_columns
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.read.split import Limits, SampledQueues, SampledSlice
from rmqstore.spans import QueueSlice
from rmqstore.store.opening import open_for

_SAMPLES = 256
_TASK_BYTES = 128 << 20
_COLUMNS = ("queueOffset", "tags", "body")


def evict_all(root: Path) -> None:
    """Evict the files of a store from the page cache; no process may have them mapped."""
    for path in root.rglob("*"):
        if path.is_file():
            evict(path)


def read_bytes() -> int:
    """Return the number of bytes that this process has read from disks so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def read_task(root: Path, slices: list[QueueSlice]) -> None:
    """Read one task, and print its rows, the bytes read from disk and the seconds."""
    spec = ReadSpec(schema=select_columns(_COLUMNS), check_crc=False, broker_name="bench")
    before = read_bytes()
    started = time.perf_counter()
    with open_for(root, broker_name="bench") as store:
        rows = sum(batch.num_rows for batch in read_queues(store.parts, slices, spec))
    print(json.dumps([rows, read_bytes() - before, time.perf_counter() - started]))


def plans(root: Path) -> dict[str, list[list[QueueSlice]]]:
    """Return the tasks of a store for each way to plan them."""
    with open_for(root, broker_name="bench") as store:
        spec = ReadSpec(schema=select_columns(_COLUMNS))
        slices = [*store.parts.ranges.resolve(parse_selection(), spec)]
        sampled = [
            SampledSlice(queue_slice, store.parts.sampler.sample(queue_slice, _SAMPLES))
            for queue_slice in slices
        ]
    by_log = SampledQueues(sampled).cut(Limits(_TASK_BYTES))
    return {
        "by log range": [list(task) for task in by_log],
        "by queue": [[queue_slice] for queue_slice in slices],
    }


def main() -> None:
    """Read the store by each plan, one task after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--task", help="JSON of the slices of one task: read it, and print rows, bytes and seconds"
    )
    arguments = parser.parse_args()
    if arguments.task:
        read_task(
            arguments.store,
            [QueueSlice(*queue_slice) for queue_slice in json.loads(arguments.task)],
        )
        return
    log_bytes = sum(
        path.stat().st_blocks * 512 for path in (arguments.store / "commitlog").iterdir()
    )
    for name, tasks in plans(arguments.store).items():
        results: list[list[float]] = []
        for task in tasks:
            evict_all(arguments.store)
            command = [sys.executable, __file__, str(arguments.store), "--task", json.dumps(task)]
            process = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(process.stdout))
        rows, from_disk, seconds = map(sum, zip(*results, strict=True))
        report(
            "cold",
            name,
            tasks=len(tasks),
            rows=rows,
            log_bytes=log_bytes,
            bytes_from_disk=from_disk,
            times_the_log=from_disk / log_bytes,
            seconds=seconds,
        )


if __name__ == "__main__":
    main()
