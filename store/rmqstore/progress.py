"""Progress of long work, as a callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # told now and then: bytes of the log done, and all of them


def untold(done: int, total: int) -> None:
    """Take progress that nobody asked for."""
