"""Runs all benchmarks: makes the stores that they need, and prints one JSON line per result.

Usage: python benchmarks/run.py [--messages N] [--passes N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from generate import generate

HERE = Path(__file__).parent


def main() -> None:
    """Make a uniform and a mixed store, then run the core's and Spark's benchmarks on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="folder in which the stores are kept for the next run"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        stores = {}
        for kind, messages in (("uniform", arguments.messages), ("mixed", arguments.messages // 3)):
            stores[kind] = folder / f"{kind}-{messages}"
            if not stores[kind].exists():
                generate(stores[kind], messages, kind)
        passes = ["--passes", str(arguments.passes)]
        run("bench_kafka.py", *passes)
        run("bench_core.py", str(stores["uniform"]), "--mixed", str(stores["mixed"]), *passes)
        run("bench_spark.py", str(stores["uniform"]), *passes)
        run("bench_stream.py", str(stores["uniform"]), *passes)
        run(
            "bench_lookup.py",
            str(stores["uniform"]),
            "--entries",
            str(arguments.messages * 6),
            *passes,
        )
        run("bench_write.py", str(stores["uniform"]), *passes)
        run(
            "bench_spark_write.py",
            *("--rows", str(arguments.messages), "--folder", str(folder)),
            *("--one-row", "--micro-batches", "5", *passes),
        )
        run("bench_real.py", str(stores["uniform"]), *passes)
        run("bench_cold.py", str(stores["uniform"]))
        run("bench_remote.py", str(stores["uniform"]), *passes)
        run("bench_follow.py", "--folder", str(folder), *passes)


def run(script: str, *arguments: str) -> None:
    """Run one benchmark in its own process."""
    subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)


if __name__ == "__main__":
    main()
