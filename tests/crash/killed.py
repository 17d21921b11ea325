"""A process that is killed at a chosen change to the disk: a system call, or half of a write.

Unlike ``FaultyDisk`` it knows nothing of the code that it kills, and it leaves exactly what
SIGKILL leaves.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.write.writer import StoreWriter

Verb = Callable[[Path, StoreConfig], None]
_CALLS = ("ftruncate", "link", "mkdir", "posix_fallocate", "rename", "replace", "rmdir", "unlink")


def repair(root: Path, config: StoreConfig) -> None:
    """Open a store for writing, cut its log where a broker would, and close it."""
    StoreWriter(find_store(root), config, truncate=True).close()


def rebuild(root: Path, config: StoreConfig) -> None:
    with StoreWriter(find_store(root), config) as writer:
        writer.rebuild()


def append(root: Path, config: StoreConfig) -> None:
    """Append twelve messages to a store and close it."""
    n = 12
    with StoreWriter(find_store(root), config) as writer:
        writer.append(
            pa.record_batch(
                {
                    "topic": ["Fresh"] * n,
                    "body": [b"new %d" % number for number in range(n)],
                    "keys": ["new"] * n,
                }
            )
        )


class Killer:
    """Counts the changes of this process, and ends it after change number ``at``.

    A write counts twice: after its first half and at its end.
    """

    def __init__(self, at: int | None) -> None:
        self._at, self._numbers = at, itertools.count()
        self.done: list[str] = []

    def install(self) -> None:
        """Put this between Python and the system calls."""
        for name in _CALLS:
            setattr(os, name, partial(self._call, name, getattr(os, name)))
        os.pwrite = partial(self._write, os.pwrite)  # type: ignore[assignment]
        Disk.scatter = self._scattering(Disk.scatter)  # type: ignore[method-assign]

    def _step(self, what: str) -> None:
        self.done.append(what)
        if self.is_due(next(self._numbers), what):
            self.kill()

    def is_due(self, number: int, what: str) -> bool:
        """Tell whether the process ends after a change."""
        del what
        return number == self._at

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = call(*args, **options)
        self._step(f"{name} {' '.join(str(arg) for arg in args if isinstance(arg, (str, Path)))}")
        return answer

    def _write(self, call: Callable[..., int], descriptor: int, data: Any, position: int) -> int:
        view = memoryview(data).cast("B")
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        half = call(descriptor, view[: len(view) // 2], position)
        self._step(f"half of a write to {path}")
        written = half + call(descriptor, view[half:], position + half)
        self._step(f"write to {path}")
        return written

    def _scattering(self, scatter: Callable[..., None]) -> Callable[..., None]:
        """Return ``Disk.scatter`` with a step halfway: it writes through a mapping."""

        def scattered(disk: Disk, path: Path, positions: Any, values: Any) -> None:
            scatter(
                disk,
                path,
                positions[: len(positions) // 2 or None],
                values[: len(values) // 2 or None],
            )
            self._step(f"half of a scatter to {path}")
            scatter(disk, path, positions, values)
            self._step(f"scatter to {path}")

        return scattered


def _run(verb: Verb, root: Path, config: StoreConfig, at: int | None, telling: Connection) -> None:
    killer = Killer(at)
    killer.install()
    verb(root, config)
    telling.send(killer.done)


def run(verb: Verb, root: Path, config: StoreConfig, at: int | None = None) -> list[str]:
    """Run a verb in its own process until it ends or is killed; return the changes if it ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    hearing, telling = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(verb, root, config, at, telling))
    process.start()
    telling.close()
    done: list[str] = []
    # before the join: a process that tells of many changes ends once they are read
    with suppress(EOFError):
        done = hearing.recv()
    process.join()
    assert process.exitcode == (0 if at is None else -signal.SIGKILL), (
        f"exit code {process.exitcode}"
    )
    return done
