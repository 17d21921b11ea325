"""Followers of a broker: what they cost, beside a replica in Java, and what producers notice.

``--case catching-up`` copies whole logs from a master that costs little (``log_master.py``): by
`rmqstore follow`, and by the store of RocketMQ 5.3.3 as a slave, in turn, on the same disk. Both
are timed from the first bytes in their files until their files have the whole log, all queues and
the whole index; what comes to the disk later is flushed in the background. ``flushed`` and
``closed`` say how long the follower took from its start until all that was on the disk, and until
the copy was a store that was closed.

``--case delay`` measures from the moment at which a master has a message until the copy has it in
its log, on its disk and in its queues.

``--case producers`` sends to a real broker, in turn without and with a follower.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from generate import generate
from log_master import LogMaster, serving
from measure import report
from numpy.typing import NDArray
from processes import PeakMemory, cpu_seconds

import rmqstore
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.follower import Follower
from rmqstore.replica.settings import FollowSettings
from rmqstore.storage.files.disk import Disk

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from interop.broker import RealBroker  # noqa: E402 - found by the path above
from interop.rocketmq import RocketMQ, resolve_jars  # noqa: E402 - likewise
from ports import free_ports  # noqa: E402 - likewise

_SEGMENT_BYTES = 256 << 20
_POLL_SECONDS = 0.005
_QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_INDEX_SIZES = {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}


def catching_up(folder: Path, total_bytes: int, passes: int) -> None:
    """Copy logs with messages of several sizes, by both."""
    for body_bytes in (200, 1000, 4000):
        store = folder / f"bodies-{body_bytes}"
        generate(
            store, total_bytes // (body_bytes + 190), segment_bytes=_SEGMENT_BYTES,
            body_bytes=body_bytes,
        )  # fmt: skip
        runs: dict[str, list[dict[str, float]]] = {"rmqstore": [], "java": []}
        with started_rocketmq(folder / "jvm") as real:
            for number in range(passes + 1):
                turn = follow_alone(store, folder), slave(real, store, folder)
                print(f"pass {number} of {passes}: {turn}", file=sys.stderr)
                if number:  # the JVM has compiled its code by then
                    for each, run in zip(runs.values(), turn, strict=True):
                        each.append(run)
        for name, all_of in runs.items():
            figures = {key: statistics.median(run[key] for run in all_of) for key in all_of[0]}
            report("bench_follow", f"catching up, {name}", body_bytes=body_bytes, **figures)
        shutil.rmtree(store)


def follow_alone(store: Path, folder: Path) -> dict[str, float]:
    """Copy a log in a process of its own; return what it cost."""
    with serving(store) as address:
        command = [sys.executable, __file__, "--copy", address, str(folder / "copy")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def copy(address: str, target: Path) -> None:
    """Copy a log, and print what it cost beyond imports."""
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / "store"
        generate(small, 2000, segment_bytes=2 << 20)
        with serving(small) as other:  # imports everything
            rmqstore.follow(other, Path(scratch) / "copy", once=True)
    with PeakMemory() as memory:
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        disks = Times(target)
        endpoint = Endpoint(Address.parse(address))
        settings = FollowSettings(once=True)
        follower = Follower(endpoint, target, settings, threading.Event(), make_disk=disks.disk)
        end = follower.run().end
        closed, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    user = after.ru_utime - before.ru_utime - memory.user
    system = after.ru_stime - before.ru_stime - memory.system
    shutil.rmtree(target)
    figures = _costs(end, end - disks.first_bytes, disks.written - disks.first, user + system)
    figures |= {
        "flushed_mb_per_s": end / (disks.flushed - began) / 1e6,
        "closed_mb_per_s": end / (closed - began) / 1e6,
        "user_us_per_kib": user / end * 1024e6,
        "memory_mb": (memory.peak - memory.before) / 1e6,
    }
    print(json.dumps(figures))


class Times:
    """When a store was written to: its log, its queues and its index; the rest is not looked at.

    Attributes:
        first: monotonic time of the first bytes of the log.
        first_bytes: how many these were.
        written: time of the last bytes.
        flushed: time when the last of them were on the disk.
    """

    def __init__(self, root: Path) -> None:
        self._folders = [root / name for name in ("commitlog", "consumequeue", "index")]
        self.first = self.written = self.flushed = 0.0
        self.first_bytes = 0

    def disk(self) -> Disk:
        """Return a disk that notes its times here."""
        return _TimedDisk(self)

    def note_written(self, path: Path, n_bytes: int) -> None:
        """Take note that bytes are in a file."""
        if not any(path.is_relative_to(folder) for folder in self._folders):
            return
        self.written = time.monotonic()
        if not self.first:
            self.first, self.first_bytes = self.written, n_bytes

    def note_flushed(self, paths: Collection[Path]) -> None:
        """Take note that files are on the disk."""
        if any(path.is_relative_to(folder) for path in paths for folder in self._folders):
            self.flushed = time.monotonic()


class _TimedDisk(Disk):
    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times

    def write(self, path: Path, position: int, data: bytes | NDArray[Any]) -> None:
        super().write(path, position, data)
        self._times.note_written(path, memoryview(data).nbytes)

    def scatter(self, path: Path, positions: NDArray[np.int64], values: NDArray[np.void]) -> None:
        super().scatter(path, positions, values)
        self._times.note_written(path, values.nbytes)

    def flush(self, path: Path) -> None:
        super().flush(path)
        self._times.note_flushed([path])

    def flush_folder(self, path: Path) -> None:
        super().flush_folder(path)
        self._times.note_flushed([path])

    def flush_all(self, paths: Collection[Path]) -> None:
        super().flush_all(paths)
        self._times.note_flushed(paths)


def _costs(end: int, n_timed: int, seconds: float, cpu: float) -> dict[str, float]:
    return {
        "mb_per_s": n_timed / seconds / 1e6,
        "seconds": seconds,
        "cpu_us_per_kib": cpu / end * 1024e6,
    }


@contextmanager
def started_rocketmq(home: Path) -> Iterator[RocketMQ]:
    """Start a JVM with RocketMQ 5.3.3."""
    home.mkdir(parents=True)
    real = RocketMQ("5.3.3", resolve_jars("5.3.3", ROOT / ".rocketmq"), home)
    try:
        yield real
    finally:
        real.kill()
        shutil.rmtree(home)


def slave(real: RocketMQ, store: Path, folder: Path) -> dict[str, float]:
    """Copy a log as a slave of RocketMQ, until its queues have all messages."""
    target = folder / "slave"
    master = LogMaster(store)
    with (
        serving(store) as address,
        real.open(
            target, mappedFileSizeCommitLog=_SEGMENT_BYTES, brokerRole="SLAVE", **_INDEX_SIZES
        ) as opened,
    ):
        replicas = ha_address(address)
        process = real._process.pid  # noqa: SLF001 - of our own tests
        opened.store.updateHaMasterAddress(replicas)
        while not (first_bytes := opened.store.getMaxPhyOffset()):  # it connects after some seconds
            time.sleep(0.002)
        cpu, began = cpu_seconds(process), time.monotonic()
        while opened.store.getMaxPhyOffset() < master.end or opened.store.dispatchBehindBytes() > 0:
            time.sleep(0.01)
        seconds = time.monotonic() - began
        cpu = cpu_seconds(process) - cpu
    shutil.rmtree(target)
    return _costs(master.end, master.end - first_bytes, seconds, cpu)


def ha_address(address: str) -> str:
    """Return the port for replicas of a master."""
    from rmqstore.replica.broker import ListenPort

    settings = ListenPort(Endpoint(Address.parse(address))).ask(with_tables=False).settings
    return f"127.0.0.1:{settings.number('haListenPort')}"


def delay(folder: Path, rates: list[int], seconds: float) -> None:
    """Measure how long messages take until they are in a copy."""
    store = folder / "store"
    generate(store, int(max(rates) * seconds * 1.5), body_bytes=1000)
    for rate in rates:
        master = LogMaster(store, rate)
        master.start()
        endpoint = Endpoint(Address.parse(master.address))
        stop = threading.Event()
        follower = Follower(endpoint, folder / "copy", FollowSettings(), stop)
        thread = threading.Thread(target=follower.run)
        before = resource.getrusage(resource.RUSAGE_SELF)
        thread.start()
        seen: list[tuple[float, int, int]] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            progress = follower._now()  # noqa: SLF001 - no more often than once a second else
            seen.append((time.monotonic(), progress.end, progress.queues_end))
            time.sleep(_POLL_SECONDS)
        stop.set()
        thread.join()
        after = resource.getrusage(resource.RUSAGE_SELF)
        stored = [row for row in master.stored_at() if row[1] < until - 2][rate:]
        for column, name in ((1, "on the disk"), (2, "in the queues")):
            ends = [look[column] for look in seen]
            waits = sorted(seen[bisect_left(ends, end)][0] - at for end, at in stored)
            report("bench_follow", f"delay until {name}", rate=rate, **in_ms(waits))
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        report("bench_follow", "CPU of a follower and a master", rate=rate, share=cpu / seconds)
        shutil.rmtree(folder / "copy")


def in_ms(waits: list[float]) -> dict[str, float]:
    """Return quantiles in milliseconds."""
    ordered = sorted(waits)
    return {name: ordered[int(len(ordered) * q)] * 1e3 for name, q in _QUANTILES.items()}


def producers(folder: Path, count: int, passes: int) -> None:
    """Send to brokers of both roles, in turn without and with a follower."""
    for role in ("ASYNC_MASTER", "SYNC_MASTER"):
        with started_rocketmq(folder / f"jvm-{role}") as real:
            sizes: dict[str, Any] = {"brokerRole": role, "mappedFileSizeCommitLog": 64 << 20}
            broker = RealBroker(real, folder / f"broker-{role}", sizes, free_ports(3))
            broker.set_queues("Bench", 4)
            waits: dict[str, list[float]] = {"without": [], "with": []}
            results: dict[str, Counter[str]] = {"without": Counter(), "with": Counter()}
            for number in range(passes + 1):
                for name in waits:
                    with followed(broker, folder / f"copy-{role}", is_on=name == "with"):
                        times = send(real, broker, count, results[name])
                    if number:
                        waits[name] += times
            for name, times in waits.items():
                report(
                    "bench_follow", f"sends to {role} {name} a follower",
                    **in_ms(times), results=dict(results[name]),
                )  # fmt: skip


@contextmanager
def followed(broker: RealBroker, target: Path, *, is_on: bool) -> Iterator[None]:
    """Follow a broker in another process, if asked to, once the copy has all of its log."""
    if not is_on:
        yield
        return
    rmqstore.follow(broker.address, target, once=True)
    command = [sys.executable, "-m", "rmqstore", "follow", broker.address, str(target)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        time.sleep(3)
        yield
        process.terminate()


def send(real: RocketMQ, broker: RealBroker, count: int, results: Counter[str]) -> list[float]:
    """Send messages one after the other; return how long each took, in seconds."""
    producer = real.rocketmq.client.producer.DefaultMQProducer("bench")
    producer.setNamesrvAddr(broker.namesrv_address)
    producer.start()
    message = real.rocketmq.common.message.Message("Bench", "tag", "key", bytes(1000))
    times = []
    for _ in range(count):
        began = time.perf_counter()
        result = producer.send(message)
        times.append(time.perf_counter() - began)
        results[result.getSendStatus().toString()] += 1
    producer.shutdown()
    return times


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    cases = ["catching-up", "delay", "producers"]
    parser.add_argument("--case", choices=cases, action="append")
    parser.add_argument("--megabytes", type=int, default=500, help="of each log that is copied")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--copy", nargs=2, metavar=("ADDRESS", "TARGET"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the copies are made")
    arguments = parser.parse_args()
    if arguments.copy:
        copy(arguments.copy[0], Path(arguments.copy[1]))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        for case in arguments.case or cases:
            folder = Path(scratch) / case
            if case == "catching-up":
                catching_up(folder, arguments.megabytes * 1_000_000, arguments.passes)
            elif case == "delay":
                delay(folder, [1000, 5000], 15)
            else:
                producers(folder, 2000, arguments.passes)


if __name__ == "__main__":
    main()
