"""Ranges: of the log, of a queue, of time. Half-open wherever nothing else is said."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = (1 << 63) - 1
LATEST_TIME = 1 << 62  # ms; later ones are no times


class Span(NamedTuple):
    """A range of the log by physical offset; ``end`` is excluded."""

    start: int
    end: int


class LogSlice(NamedTuple):
    """A range of the CommitLog that begins at a record's head.

    ``end`` is a head too, or the end of a file or of the log. In a store that was closed the bytes tell where in the
    range the log ends; in one that was not, the recovery scan told, and the range does not reach beyond.
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


class LostStretch(NamedTuple):
    """A part of the log that holds no readable record, by physical offset."""

    path: str
    start: int
    end: int
    reason: str
    is_missing: bool = False  # no file holds it, which is data loss rather than damage
