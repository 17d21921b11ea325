"""A process that copies a store is killed with SIGKILL again and again: the copy is exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
import tiers
from rmqstore.storage.broker.store_config import StoreConfig
from test_copy import contents

pytestmark = pytest.mark.crash

SIZES = StoreConfig(1 << 20, 2000, max_hash_slot_num=100, max_index_num=1000)


def n_files(folder: Path) -> int:
    """Return the number of files below a folder, some of which may be deleted meanwhile."""
    return sum(len(files) for _, _, files in os.walk(folder))


@pytest.mark.parametrize("seed", tiers.split(range(5), 1))
def test_a_copy_that_is_killed_again_and_again_equals_its_source(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    with rmqstore.create(source, config=SIZES) as writer:
        for turn in range(40):
            topics = [f"T{turn * 10 + number % 10}" for number in range(1000)]
            bodies = [dice.randbytes(900) for _ in topics]
            writer.append(pa.RecordBatch.from_pydict({"topic": topics, "body": bodies}))
    n_killed = 0
    while not target.exists():
        command = [sys.executable, "-m", "rmqstore", "copy", str(source), str(target)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        if n_killed < 20:
            partial = target.with_name("target.partial")
            n_before = n_files(partial)
            while process.poll() is None and n_files(partial) == n_before:
                time.sleep(0.01)
            time.sleep(dice.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            n_killed += 1
        _, said = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), said
    assert n_killed
    assert contents(target) == contents(source)
    notes = {path.name for path in (target / ".rmqstore").rglob("*")}
    # the latter two if the last kill came after the new name
    assert notes <= {"commits", "copying", "copying.lock"}
