"""Interleaved timing: each pass runs every case once, so other load affects all cases alike."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Case = Callable[[], int]  # does the work once and returns the number of rows


def spark_session(settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Return the Spark session of all benchmarks, whose workers can import from this folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def evict(path: Path) -> None:
    """Evict a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(cases: Mapping[str, Case], passes: int = 5) -> dict[str, list[float]]:
    """Return the CPU nanoseconds per row of each case, pass by pass, after one pass to warm up."""
    costs: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(passes + 1):
        for name, case in cases.items():
            started = time.process_time()
            rows = case()
            if number:
                costs[name].append((time.process_time() - started) / rows * 1e9)
        print(f"pass {number} of {passes}", file=sys.stderr)
    return costs


def ratio(costs: Mapping[str, list[float]], name: str, unit: str) -> float:
    """Return the median over passes of the cost of a case in units of another case."""
    return statistics.median(a / b for a, b in zip(costs[name], costs[unit], strict=True))


def report(benchmark: str, case: str, **figures: Any) -> None:  # noqa: ANN401 - figures are numbers or texts
    """Print one result as a line of JSON."""
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    rounded = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(
        json.dumps({"benchmark": benchmark, "case": case, **rounded, "machine": machine}),
        flush=True,
    )
