"""Every example runs as its first lines say, on a store that a real broker wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_example_without_spark_shows_queues_and_a_message(golden_store: Callable[[str], Path]) -> None:
    shown = run("02_without_spark.py", golden_store("live"), "LivePlain")
    assert "LivePlain-0: 0 to 53" in shown
    assert "{'tags': 'TagA', 'queueOffset_count': 67}" in shown


@pytest.mark.spark
def test_example_migrates_a_topic_once(golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    for _ in range(2):
        shown = run("03_migrate_topic.py", golden_store("live"), tmp_path / "target", "LivePlain")
        assert f"210 messages of LivePlain in {tmp_path / 'target'}, 210 in" in shown


@pytest.mark.spark
def test_example_reads_a_topic(golden_store: Callable[[str], Path]) -> None:
    shown = run("01_read_topic.py", golden_store("live"), "LivePlain")
    assert "210 messages in LivePlain" in shown
    assert "51 messages in queue 0 from offset 2 on" in shown
    assert "0 damaged records" in shown


@pytest.mark.spark
def test_demo_shows_topics_messages_and_counts(golden_store: Callable[[str], Path]) -> None:
    shown = run("demo.py", golden_store("live"))
    assert "|LivePlain      |210     |106965|" in shown
    assert "|LiveTx         |1      |3    |" in shown
