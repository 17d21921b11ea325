"""A process that writes into a store until a file named ``stop`` stands beside the store.

Usage: python -m soak.live_writer STORE

It opens the store again and again, appends some jobs each time and deletes the oldest files. It
prints how long each of these took, and at the end how many messages each queue has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore.storage.broker.store_config import StoreConfig
from soak.retention import delete_oldest

TOPICS = ("A", "B", "C", "D")
N_QUEUES = 4
MESSAGES_OF_A_QUEUE = 10  # a job
JOB_SECONDS = 0.1
JOBS_OF_A_WRITER = 50
N_SEGMENTS = 100  # that retention keeps, those of some minute
NUMBER_BYTES = 12
# Sizes that let files of every kind roll over within seconds.
SIZES = {
    "mappedFileSizeCommitLog": "262144", "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000", "maxIndexNum": "4000",
}  # fmt: skip


def job(first: int) -> pa.RecordBatch:
    """Return messages of all queues; each has its queue offset in its body."""
    numbers = np.arange(first, first + MESSAGES_OF_A_QUEUE)
    rows = [
        (topic, queue_id, number)
        for number in numbers.tolist()
        for topic in TOPICS
        for queue_id in range(N_QUEUES)
    ]
    return pa.record_batch(
        {
            "topic": [topic for topic, _, _ in rows],
            "queueId": pa.array([queue_id for _, queue_id, _ in rows], pa.int32()),
            "body": [b"%0*d" % (NUMBER_BYTES, number) + b"." * 100 for _, _, number in rows],
            "keys": [f"{topic}-{queue_id}-{number}" for topic, queue_id, number in rows],
        }
    )


def write(root: Path) -> int:
    """Write until told to stop, or left alone; return the number of messages of each queue."""
    config = StoreConfig().updated(SIZES)
    rmqstore.create(root, config=config).close()
    stop, parent = root.with_name("stop"), os.getppid()
    n_messages = 0
    next_job = time.monotonic()
    while not stop.exists() and os.getppid() == parent:
        with timed("open"):
            writer = rmqstore.open(root, "a", config=config)
        with writer:
            for _ in range(JOBS_OF_A_WRITER):
                with timed("append"):
                    writer.append(job(n_messages))
                    writer.flush()
                n_messages += MESSAGES_OF_A_QUEUE
                delete_oldest(root, N_SEGMENTS)
                now = time.monotonic()
                next_job = max(next_job + JOB_SECONDS, now)
                time.sleep(next_job - now)
    return n_messages


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print how many milliseconds something took, on the clock and of the CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({f"{name}, ms": 1000 * wall, f"{name}, CPU ms": 1000 * cpu}), flush=True)


if __name__ == "__main__":
    print(json.dumps({"messages of a queue": write(Path(sys.argv[1]))}), flush=True)
