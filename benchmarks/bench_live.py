"""Reads and sends of a running broker, beside RocketMQ's own clients in Java.

The broker, the clients and this package share the machine. Each pass of this package is followed by
one of a client that keeps running, so all but the first of its passes are warm; its first pass is
reported apart.

``--case producer`` measures how long a Java producer waits that sends one message after the other,
alone, beside reads of this package and beside those of the Java client, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from measure import report

import rmqstore

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from interop.broker import RealBroker  # noqa: E402 - found by the path above
from interop.rocketmq import RocketMQ, resolve_jars  # noqa: E402 - likewise

_SIZES = {"mappedFileSizeCommitLog": 1 << 30, "diskMaxUsedSpaceRatio": 99}
_QUEUES = 8

Pass = tuple[int, float, float]  # rows, seconds, seconds of CPU


def batches(rows: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield messages to send."""
    size = 8192
    for start in range(0, rows, size):
        n = min(size, rows - start)
        bodies = [b"%012d" % (start + row) + b"x" * (body_bytes - 12) for row in range(n)]
        columns = {"topic": ["Bench"] * n, "body": bodies, "tags": ["tag"] * n}
        yield pa.record_batch(columns)


def timed(work: Callable[[], int]) -> Pass:
    """Return what some work took."""
    cpu, start = time.process_time(), time.perf_counter()
    rows = work()
    return rows, time.perf_counter() - start, time.process_time() - cpu


def java_command(jars: Path, name: str, arguments: list[str]) -> list[str]:
    """Return how a client in Java is run."""
    return ["java", "-cp", f"{jars}/*", str(Path(__file__).with_name(f"{name}.java")), *arguments]


def java(jars: Path, name: str, arguments: list[str]) -> list[Pass]:
    """Return the passes of a client."""
    command = java_command(jars, name, arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("pass ")]
    return [(int(rows), float(seconds), float(cpu)) for _, rows, _, seconds, cpu in lines]


def show(name: str, passes: list[Pass]) -> None:
    """Report the medians of some passes."""
    rates = [rows / seconds for rows, seconds, _ in passes]
    costs = [cpu / rows * 1e6 for rows, _, cpu in passes]
    report(
        "live",
        name,
        rows_per_second=round(statistics.median(rates)),
        cpu_us_per_row=round(statistics.median(costs), 2),
    )


def clients(jars: Path, namesrv: str, send: Callable[[], int], sizes: tuple[int, int, int]) -> None:
    """Report sends and reads beside those of Java clients; sizes are rows, bytes and passes."""
    rows, body, passes = sizes
    ours = [timed(send) for _ in range(passes)]
    sent = [namesrv, "Bench", str(rows), "100", str(body), str(passes)]
    theirs = java(jars, "RocketSend", sent)
    show("send", ours)
    show("send by a Java producer in batches of 100, first pass", theirs[:1])
    show("send by a Java producer in batches of 100, warm", theirs[1:])
    time.sleep(3)  # queues show what was sent last
    with rmqstore.open_live(f"rocketmq://{namesrv}") as cluster:
        for columns in (None, "queueOffset,tags,body"):
            scan = cluster.scan(subscribe="Bench", columns=columns)
            show(f"read {columns or 'all columns'}", [timed(scan.count) for _ in range(passes)])
    pulled = java(jars, "RocketPull", [namesrv, "Bench", str(passes)])
    show("read by a Java pull consumer, a thread a queue, first pass", pulled[:1])
    show("read by a Java pull consumer, a thread a queue, warm", pulled[1:])


def producer(jars: Path, namesrv: str, rows: int, passes: int) -> None:
    """Report the waits of a producer beside nobody, beside us and beside a Java consumer."""
    read = (
        "import rmqstore, sys\n"
        "while True:\n"
        "    with rmqstore.open('rocketmq://' + sys.argv[1]) as cluster:\n"
        "        cluster.scan(subscribe='Bench').count()\n"
    )
    beside: dict[str, list[str] | None] = {
        "nobody": None,
        "reads of this package": [sys.executable, "-c", read, namesrv],
        "a Java pull consumer": java_command(jars, "RocketPull", [namesrv, "Bench", "1000000"]),
    }
    waits: dict[str, dict[str, list[float]]] = {name: {} for name in beside}
    for _ in range(passes):
        for name, command in beside.items():
            reader = None
            if command is not None:
                reader = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                time.sleep(5)
            sent = java_command(jars, "RocketSendOne", [namesrv, "One", "200", "20"])
            done = subprocess.run(sent, capture_output=True, text=True, check=True)
            if reader is not None:
                reader.kill()
                reader.wait()
            for line in done.stdout.splitlines():
                quantile, _, milliseconds = line.partition(" ")
                if milliseconds and quantile.startswith("0."):
                    waits[name].setdefault(quantile, []).append(float(milliseconds))
    for name, found in waits.items():
        quantiles = {f"ms_{each}": statistics.median(times) for each, times in found.items()}
        report("live", f"a producer beside {name}", rows_read=rows, **quantiles)


def main() -> None:
    """Send and read a topic of eight queues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=["clients", "producer"], default="clients")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--body", type=int, default=400)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    rows, body, passes = arguments.rows, arguments.body, arguments.passes
    jars = resolve_jars("5.3.3", ROOT / ".rocketmq")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        real = RocketMQ("5.3.3", jars, home)
        with RealBroker(real, Path(scratch) / "store", _SIZES) as broker:
            broker.set_queues("Bench", _QUEUES)
            address = f"rocketmq://{broker.namesrv_address}"
            made = list(batches(rows, body))

            def send() -> int:
                with rmqstore.open(address, "a") as writer:
                    for batch in made:
                        writer.append(batch)
                    writer.flush()
                    return writer.n_sent

            if arguments.case == "producer":
                broker.set_queues("One", _QUEUES)
                send()
                producer(jars, broker.namesrv_address, rows, passes)
            else:
                clients(jars, broker.namesrv_address, send, (rows, body, passes))
        real.close()


if __name__ == "__main__":
    main()
