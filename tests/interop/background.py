"""Work that goes on in a thread beside a test."""

from __future__ import annotations

import itertools
import threading
from typing import Self


class BackgroundWork(threading.Thread):
    """Repeats a step until its block is left; what a step raises is raised in the block's thread.

    A subclass says what a step does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stop_asked, self._failures = threading.Event(), list[Exception]()

    def step(self, number: int) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop_asked.is_set():
                    return
                self.step(number)
        except Exception as err:  # noqa: BLE001 - handed to the test
            self._failures.append(err)

    def check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join(60)
        self.check()
