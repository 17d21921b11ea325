"""Progress of long work, as a callback."""

from __future__ import annotations

from collections.abc import Callable

# called now and then with the bytes of the log that are done, and their total
Progress = Callable[[int, int], None]


def ignore_progress(done: int, total: int) -> None:
    """Do nothing; the default progress callback."""
