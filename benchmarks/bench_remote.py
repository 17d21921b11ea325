"""Reads from object storage beside reads from the local disk, with a delay for each request.

Tasks run in processes of their own, as Spark's do, and each opens the store anew. A pass reads the
whole store in every way once, so other load affects all of them alike. Planning is measured apart,
in requests and seconds.

The server is one on this machine (``object_server.py``), which waits before each answer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from measure import report
from object_server import BUCKET, served

from rmqstore.format.schema import MESSAGE
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.read.read_spec import ReadSpec, scan_schema
from rmqstore.read.reading import read_log, read_queues
from rmqstore.read.record_filter import log_filter
from rmqstore.read.split import SampledSpan, join_parts
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import open_for

GOAL_OF_ROWS = 0.7  # of the local read's rows per second
GOAL_OF_CPU = 1.25  # of the local read's CPU time per row
Pieces = list[QueueSlice] | list[LogSlice]


class Store(NamedTuple):
    """How to reach the store: its name, and the options of its storage."""

    path: str
    options: dict[str, str] | None

    def open(self) -> MessageStore:
        """Open the store for reading."""
        return open_for(self.path, broker_name="bench", storage_options=self.options)


class Result(NamedTuple):
    """What one task did."""

    rows: int
    cpu_seconds: float
    peak_bytes: int
    requests: str | None


def run_task(store: Store, columns: str | None, queue_slices: Pieces) -> Result:
    """Read the ranges of one task, in a process that has read before."""
    spec = ReadSpec(schema=scan_schema(columns, include_pending=False), broker_name="bench")
    started = time.process_time()
    rows = 0
    with store.open() as opened:
        session = opened.parts
        session.ends.recovered = {}  # a task of Spark gets this from the plan
        for batch in _batches(session, queue_slices, spec):
            rows += batch.num_rows
        requests = session.paths.storage.requests_made()
    peak = _peak_bytes()
    return Result(rows, time.process_time() - started, peak, requests)


def _batches(session: StoreParts, queue_slices: Pieces, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    slices = [queue_slice for queue_slice in queue_slices if isinstance(queue_slice, QueueSlice)]
    if slices:
        yield from read_queues(session, slices, spec)
    for queue_slice in queue_slices:
        if isinstance(queue_slice, LogSlice):
            yield from read_log(
                session, queue_slice, spec, log_filter(Selection(), spec.schema.names)
            )


def _peak_bytes() -> int:
    """Return the peak of the resident memory since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def plans(store: Store, n_tasks: int) -> dict[str, list[Pieces]]:
    """Return the ranges of each task, by queue and by log."""
    with store.open() as opened:
        session = opened.parts
        slices = [*session.ranges.resolve(parse_selection(), ReadSpec(schema=MESSAGE))]
        by_queue: list[Pieces] = [
            [_share(queue_slice, task, n_tasks) for queue_slice in slices]
            for task in range(n_tasks)
        ]
        parts = session.sampler.log_parts([session.log_slice()], session.sampler.log_headers())
    by_log = [[*group] for group in _shares(parts, n_tasks)]
    return {"by queue": by_queue, "by log": by_log}


def _shares(parts: list[SampledSpan], n_tasks: int) -> Iterator[tuple[LogSlice, ...]]:
    """Yield parts of the log in groups of about as many bytes."""
    total = sum(part.n_bytes for part in parts)
    done = 0
    groups: dict[int, list[SampledSpan]] = {}
    for part in parts:
        middle = done + part.n_bytes // 2
        groups.setdefault(middle * n_tasks // max(total, 1), []).append(part)
        done += part.n_bytes
    for group in groups.values():
        for joined in join_parts(group, total):
            yield tuple(part.log_slice for part in joined)


def _share(queue_slice: QueueSlice, number: int, total: int) -> QueueSlice:
    count = queue_slice.end - queue_slice.start
    low, high = (queue_slice.start + count * one // total for one in (number, number + 1))
    return queue_slice._replace(start=low, end=high)


def read_beside(
    stores: dict[str, Store], columns: str | None, n_tasks: int, passes: int
) -> dict[tuple[str, str], list[tuple[float, float, int, str]]]:
    """Read by queue and by log from each store.

    Returns:
        By order and store, a tuple for each pass: seconds a row, CPU seconds a row, the peak of a
        task's memory in bytes, and the requests of one task.
    """
    tasks = plans(stores["local"], n_tasks)
    figures: dict[tuple[str, str], list[tuple[float, float, int, str]]] = {}
    with ProcessPoolExecutor(n_tasks, get_context("spawn")) as pool:
        for number in range(passes + 1):
            for order, queue_slices in tasks.items():
                for name, store in stores.items():
                    started = time.perf_counter()
                    futures = [pool.submit(run_task, store, columns, one) for one in queue_slices]
                    results = [future.result() for future in futures]
                    seconds = time.perf_counter() - started
                    rows = sum(one.rows for one in results)
                    if number:
                        figures.setdefault((order, name), []).append(
                            (
                                seconds / rows,
                                sum(one.cpu_seconds for one in results) / rows,
                                max(one.peak_bytes for one in results),
                                results[0].requests or "",
                            )
                        )
            print(f"pass {number} of {passes}", file=sys.stderr)
    return figures


def main() -> None:
    """Read a store from the disk and from the server, and plan reads of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--columns", help="names with commas between them; all by default")
    parser.add_argument("--key", help="a key to look up as well")
    parser.add_argument("--plan-only", action="store_true")
    arguments = parser.parse_args()
    root = arguments.store.resolve()
    with served(root.parent, arguments.delay) as options:
        remote = Store(f"s3://{BUCKET}/{root.name}", options)
        stores = {"local": Store(str(root), None), "remote": remote}
        for case, ask in questions(arguments.key).items():
            started, cpu = time.perf_counter(), time.process_time()
            with remote.open() as opened:
                answer = ask(opened)
                requests = opened.parts.paths.storage.requests_made()
            report(
                "remote",
                case,
                requests=requests,
                seconds=time.perf_counter() - started,
                cpu_seconds=time.process_time() - cpu,
                answer=answer,
            )
        if arguments.plan_only:
            return
        figures = read_beside(stores, arguments.columns, arguments.tasks, arguments.passes)
    for order in ("by queue", "by log"):
        local, far = figures[order, "local"], figures[order, "remote"]
        pairs = list(zip(local, far, strict=True))
        report(
            "remote",
            f"read {order}",
            rows_per_second_of_local=statistics.median(here[0] / there[0] for here, there in pairs),
            goal=GOAL_OF_ROWS,
            cpu_per_row_of_local=statistics.median(there[1] / here[1] for here, there in pairs),
            goal_of_cpu=GOAL_OF_CPU,
            local_rows_per_second=1 / statistics.median(one[0] for one in local),
            local_cpu_us_per_row=1e6 * statistics.median(one[1] for one in local),
            peak_mb_local=max(one[2] for one in local) / 1e6,
            peak_mb=max(one[2] for one in far) / 1e6,
            requests_of_one_task=far[-1][3],
        )


def questions(key: str | None) -> dict[str, Callable[[MessageStore], int]]:
    """Return what is asked of a store that was just opened, with the number that it answers."""

    def by_queue(store: MessageStore) -> int:
        spec = ReadSpec(schema=MESSAGE)
        slices = store.parts.ranges.resolve(parse_selection(), spec)
        return sum(bool(store.parts.sampler.sample(queue_slice, 2)) for queue_slice in slices)

    def by_log(store: MessageStore) -> int:
        sampler = store.parts.sampler
        return len(sampler.log_parts([store.parts.log_slice()], sampler.log_headers()))

    asked = {"plan by queue": by_queue, "plan by log": by_log}
    if key is not None:
        asked["look up a key"] = lambda store: store.scan(msg_key=key).read_all().num_rows
    return asked


if __name__ == "__main__":
    main()
