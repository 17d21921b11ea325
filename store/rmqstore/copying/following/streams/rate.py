"""Limits how fast a stream is read."""

from __future__ import annotations


class Rate:
    """Bytes a second, over about a second: a rest earns no more than one second's bytes."""

    def __init__(self, max_rate: int | None, now: float) -> None:
        self._max_rate, self._due = max_rate, now

    def pause(self, count: int, now: float) -> float:
        """Return how long to wait after some bytes; the sender of the broker slows down."""
        if self._max_rate is None:
            return 0.0
        self._due = max(self._due, now - 1.0) + count / self._max_rate
        return max(self._due - now, 0.0)
