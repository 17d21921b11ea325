"""A stream and a sink beside a live writer and retention: nothing grows, and no message is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PATHS = [TESTS, TESTS.parent / "store", TESTS.parent / "connector"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_what_a_stream_holds_stays_level(tmp_path: Path) -> None:
    """Spark runs in a process of its own, whose memory other tests have no part in."""
    seconds = os.environ.get("SOAK_SECONDS", "600")
    done = subprocess.run(
        [sys.executable, "-m", "soak.run", seconds, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
