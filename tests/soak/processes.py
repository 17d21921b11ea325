"""What ``/proc`` says of a process and its descendants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    command: str
    anonymous_bytes: int
    n_open_files: int
    n_maps: int
    cpu_seconds: float  # those of children that have ended are counted in


def usages(pid: int) -> list[Usage]:
    """Return the usage of a process and of all its descendants that live."""
    return [usage for one in [pid, *descendants(pid)] if (usage := usage_of(one)) is not None]


def usage_of(pid: int) -> Usage | None:
    """Return the usage of a process, None if it has ended."""
    folder = _PROC / str(pid)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        status = (folder / "status").read_text()
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
        n_open_files = len(list((folder / "fd").iterdir()))
        n_maps = (folder / "maps").read_text().count("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    if not sizes:
        return None  # it is ending
    ticks = sum(map(int, times))
    return Usage(command, int(sizes[0]) << 10, n_open_files, n_maps, ticks / _TICKS_A_SECOND)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    result: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        result += below
        waiting += below
    return result
