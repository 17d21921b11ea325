"""Ranges of the log, of queues and of time. They are half-open unless a comment says so."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = (1 << 63) - 1
LATEST_TIME = 1 << 62  # ms; larger numbers are not times


class Span(NamedTuple):
    """A range of the log by physical offset; ``end`` is excluded."""

    start: int
    end: int


class LogSlice(NamedTuple):
    """A range of the CommitLog that begins at a record's head.

    ``end`` is a head too, or the end of a file or of the log. In a closed store the bytes show
    where in the range the log ends. In a store that was not closed the recovery scan has found the
    log end, and the range stops there.
    """

    start: int
    end: int
    is_closed: bool


class QueueSlice(NamedTuple):
    """A range of one queue, by queue offset; ``end`` is excluded."""

    topic: str
    queue_id: int
    start: int
    end: int


QueueKey = tuple[str, int]


class LostSpan(NamedTuple):
    """A part of the log without readable records, by physical offset."""

    path: str
    start: int
    end: int
    reason: str
    is_missing: bool = False  # whether no file holds it, which is data loss rather than damage
