"""What processes cost, from /proc: CPU time, also of processes that ended, and memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple, Self

_TICK = os.sysconf("SC_CLK_TCK")
_STEADY_SECONDS, _MAX_LOOKS = 0.05, 40
_MEMORY_SECONDS = 0.01


class _Process(NamedTuple):
    """One line of /proc/PID/stat; times are ticks, ``ended`` those of children that ended."""

    name: str
    parent: int
    user: int
    system: int
    ended_user: int
    ended_system: int


class Cpu(NamedTuple):
    """CPU seconds of a tree of processes."""

    jvm: float
    python_user: float
    python_system: float

    @property
    def total(self) -> float:
        return sum(self)

    def since(self, earlier: Cpu) -> Cpu:
        return Cpu(*(now - then for now, then in zip(self, earlier, strict=True)))


def _processes() -> dict[int, _Process]:
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        fields = tail.split()
        ticks = [int(field) for field in fields[11:15]]
        processes[int(entry.name)] = _Process(head.partition("(")[2], int(fields[1]), *ticks)
    return processes


def _tree(root: int, others: Iterable[int]) -> dict[int, _Process]:
    """Return a process and its descendants, without ``others`` and theirs."""
    processes = _processes()
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)

    def walk(pid: int) -> Iterator[int]:
        if pid in processes and pid not in others:
            yield pid
            for child in children.get(pid, []):
                yield from walk(child)

    return {pid: processes[pid] for pid in walk(root)}


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and of all its descendants, those that ended included."""
    return sum(sum(process[2:]) for process in _tree(root, ()).values()) / _TICK


class JobCpu:
    """The CPU time of this process and its descendants, those that ended included.

    The time that reading /proc takes is left out.

    Args:
        others: children of this process that do not belong to the job.
    """

    def __init__(self, others: Iterable[int] = ()) -> None:
        self._others = tuple(others)
        self._user = self._system = 0.0  # of reading /proc

    def read(self) -> Cpu:
        """Return the CPU time so far, once no process of the job begins or ends for a moment.

        A process that ends between two looks at /proc could be missed by both or counted twice.
        """
        began = getrusage(RUSAGE_SELF)
        tree = _tree(os.getpid(), self._others)
        for _ in range(_MAX_LOOKS):
            time.sleep(_STEADY_SECONDS)
            before, tree = tree, _tree(os.getpid(), self._others)
            if before.keys() == tree.keys():
                break
        ended = getrusage(RUSAGE_SELF)
        self._user += ended.ru_utime - began.ru_utime
        self._system += ended.ru_stime - began.ru_stime
        jvm = python_user = python_system = 0
        for process in tree.values():
            # what ended below the JVM was Python
            python_user += process.ended_user
            python_system += process.ended_system
            if process.name == "java":
                jvm += process.user + process.system
            else:
                python_user += process.user
                python_system += process.system
        return Cpu(
            jvm / _TICK, python_user / _TICK - self._user, python_system / _TICK - self._system
        )


def busy_seconds() -> float:
    """Return the CPU time that the machine has spent on anything since it started."""
    user, nice, system, _, _, irq, soft, steal = (
        int(field) for field in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / _TICK


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


class PeakMemory:
    """While entered, watches the anonymous memory of this process."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.before = self.peak = anonymous_bytes()

    def _watch(self) -> None:
        while not self._has_ended.wait(_MEMORY_SECONDS):
            self.peak = max(self.peak, anonymous_bytes())

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._watcher.join()
