"""What processes cost, from /proc: CPU time, also of processes that ended, and memory."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import NamedTuple, Self

_TICK = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS, _MEMORY_SECONDS = 0.2, 0.01


class _Process(NamedTuple):
    """A line of /proc/PID/stat; times are ticks, ``ended`` those of children it waited for."""

    name: str
    parent: int
    start: int
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
        name, parent, start = head.partition("(")[2], int(fields[1]), int(fields[19])
        processes[int(entry.name)] = _Process(name, parent, start, *ticks)
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
    """Return the CPU time of a process and its descendants, also of those that were waited for."""
    return sum(sum(process[3:]) for process in _tree(root, ()).values()) / _TICK


class _Watch(ABC):
    """While entered, looks at something now and then, in a thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    @abstractmethod
    def _look(self) -> None: ...

    def _watch(self) -> None:
        while not self._has_ended.wait(self._seconds):
            self._look()

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._watcher.join()


class JobCpu(_Watch):
    """While entered, adds up the CPU time of this process and its descendants.

    The workers of PySpark end without a parent that waits for them, so the kernel adds their times
    to none. A thread looks at all processes now and then, and what a process had used at the last
    look counts on after its end. The time that looking takes is left out.

    Args:
        others: children of this process that do not belong to the job.
    """

    def __init__(self, others: Iterable[int] = ()) -> None:
        super().__init__(_LOOK_SECONDS)
        self._others = tuple(others)
        self._last: dict[tuple[int, int], _Process] = {}  # by pid and start
        self._user = self._system = 0.0  # of looking
        self._lock = threading.Lock()

    def _look(self) -> None:
        with self._lock:
            began = getrusage(RUSAGE_THREAD)
            for pid, process in _tree(os.getpid(), self._others).items():
                self._last[pid, process.start] = process
            ended = getrusage(RUSAGE_THREAD)
            self._user += ended.ru_utime - began.ru_utime
            self._system += ended.ru_stime - began.ru_stime

    def read(self) -> Cpu:
        """Return the CPU time so far."""
        self._look()
        jvm = python_user = python_system = 0
        with self._lock:
            for process in self._last.values():
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


class PeakMemory(_Watch):
    """While entered, watches the anonymous memory of this process.

    Attributes:
        before: bytes before.
        peak: the most bytes so far.
        user, system: CPU seconds that looking took.
    """

    def __init__(self) -> None:
        super().__init__(_MEMORY_SECONDS)
        self.before = self.peak = anonymous_bytes()
        self.user = self.system = 0.0

    def _look(self) -> None:
        self.peak = max(self.peak, anonymous_bytes())
        used = getrusage(RUSAGE_THREAD)
        self.user, self.system = used.ru_utime, used.ru_stime
