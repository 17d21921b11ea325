"""How long the phases of a commit take, measured from outside by wrapping coarse functions.

Where the code has changed and a function is missing, its time counts for the phase around it, and
the name of the function is reported.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Self
from unittest import mock

REST = "the rest of the commit"
# The phase and the function, as module:name. The time of a function inside of another counts for
# the inner one only.
SEAMS = (
    ("open the store", "rmqstore.write.writer:StoreWriter.__init__"),
    ("read staged files", "rmqstore.write.staged:StagedRecords.read"),
    ("give places", "rmqstore.write.writer:StoreWriter.append_staged"),
    ("write the log", "rmqstore.storage.log.appender:LogAppend.write"),
    ("write the log", "rmqstore.storage.log.appender:LogAppend.commit"),
    ("queues", "rmqstore.storage.queue.appender:QueueAppender.append"),
    ("index", "rmqstore.storage.index_appender:IndexAppender.add"),
    ("index", "rmqstore.storage.index_appender:IndexAppender.flush"),
    ("fsync", "rmqstore.storage.files.disk:Disk.flush"),
    ("fsync", "rmqstore.storage.files.disk:Disk.flush_folder"),
    ("fsync", "rmqstore.storage.files.disk:Disk.flush_all"),
    ("the rest of flush and close", "rmqstore.write.writer:StoreWriter.flush"),
    ("the rest of flush and close", "rmqstore.write.writer:StoreWriter.close"),
    ("remove staged files", "pyspark_rmqstore.sink:sweep"),
)


class Phases:
    """While entered, measures how long at least one thread is in each phase.

    Phases of different threads overlap, so their sum may exceed the time of the commit.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.missing: list[str] = []
        self._n_threads: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for phase, target in SEAMS:
            self._wrap(phase, target)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _wrap(self, phase: str, target: str) -> None:
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        try:
            owner = functools.reduce(getattr, owners, import_module(module))
            function = getattr(owner, name)
        except (ImportError, AttributeError):
            self.missing.append(target)
            return
        self._patches.enter_context(mock.patch.object(owner, name, self._timed(phase, function)))

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function has them
            with self.phase(phase):
                result = function(*args, **kwargs)
            return self._each(phase, result) if isinstance(result, Generator) else result

        return run

    def _each(self, phase: str, values: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.phase(phase):
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside for a phase, and not for the one around it."""
        if not hasattr(self._of_thread, "stack"):
            self._of_thread.stack = []
        stack = self._of_thread.stack
        if stack:
            self._leave(stack[-1])
        stack.append(name)
        self._enter(name)
        try:
            yield
        finally:
            self._leave(stack.pop())
            if stack:
                self._enter(stack[-1])

    def _enter(self, name: str) -> None:
        with self._lock:
            if not self._n_threads[name]:
                self._since[name] = time.monotonic()
            self._n_threads[name] += 1

    def _leave(self, name: str) -> None:
        with self._lock:
            self._n_threads[name] -= 1
            if not self._n_threads[name]:
                spent = time.monotonic() - self._since[name]
                self.seconds[name] = self.seconds.get(name, 0.0) + spent
