"""A process that appends is killed with SIGKILL at any moment: exactly what it flushed is there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiers
from crash.test_append import by_log, rows
from goldens import Golden
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.write.writer import StoreWriter
from written import require_valid

pytestmark = pytest.mark.crash

ROWS = 300
# Says the number of each flush that is done; the parent kills it between two of its words.
APPENDER = f"""
import sys
import pyarrow as pa
import rmqstore
n = {ROWS}
with rmqstore.open(sys.argv[1], mode="a") as writer:
    print("open", flush=True)
    for turn in range(1000):
        writer.append(pa.RecordBatch.from_pydict({{
            "topic": [["TopicA", "Fresh"][number % 2] for number in range(n)],
            "body": [b"killed %d %d " % (turn, number) * (number % 20 + 1) for number in range(n)],
            "keys": [f"k{{turn}}-{{number}}" for number in range(n)],
        }}))
        writer.flush()
        print(turn, flush=True)
"""


def append_and_kill(root: Path, seconds: float) -> int:
    """Return how many flushes the process said were done before it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    acknowledged = process.stdout.read().split()
    process.wait()
    return len(acknowledged)


@pytest.mark.parametrize("seed", tiers.split(range(8), 3))
def test_a_killed_writer_leaves_whole_flushes(copied: Golden, seed: int) -> None:
    root = copied("basic")
    before = by_log(root)
    done = append_and_kill(root, random.Random(seed).uniform(0, 0.25))
    assert (root / "abort").exists()
    found = by_log(root)
    n_new = len(found) - len(before)
    assert before <= found
    assert n_new % ROWS == 0
    assert done <= n_new // ROWS <= done + 1
    assert rows(root) == found  # a reader sees in queues what the log has
    StoreWriter(find_store(root), StoreConfig()).close()
    assert by_log(root) == rows(root) == found
    require_valid(root)
