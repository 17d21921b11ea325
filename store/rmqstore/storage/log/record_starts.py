"""Where the records begin that were appended last, so that they are walked once.

The thread that writes the log has walked its records. The one that builds queues takes their starts
from here; where they are not known, it walks the log itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.walk import Walk
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import Positions
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, walk_forward

_MOST: Final = 4 << 20  # records, of 4 bytes each; further ones are walked again
_RUN_COST: Final = 64  # records that take as much memory as a run does beside its own


class _Run(NamedTuple):
    """Records of one file that follow one another."""

    begin: int  # physical offset
    end: int
    starts: NDArray[np.int32]  # (n,), counted from the begin

    @property
    def cost(self) -> int:
        """How much memory it takes, in records."""
        return len(self.starts) + _RUN_COST


class RecordStarts:
    """The starts of records, from the thread that appends them to the one that builds queues."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: deque[_Run] = deque()
        self._cost = 0

    def add(self, begin: int, end: int, starts: Positions) -> None:
        """Add the records in ``[begin, end)``, which follow all before them.

        Args:
            begin: physical offset of the first record.
            end: physical offset after the last one, in the same file.
            starts: (n,), counted from ``begin``.
        """
        run = _Run(begin, end, starts.astype(np.int32))
        with self._guard:
            if self._cost + run.cost <= _MOST:
                self._runs.append(run)
                self._cost += run.cost

    def clear(self) -> None:
        """Forget all records, before some of them are removed."""
        with self._guard:
            self._runs.clear()
            self._cost = 0

    def boundary(self, start: int, limit: int) -> int | None:
        """Return the last known end of a record in ``(start, limit]``, None without one."""
        with self._guard:
            ends = [run.end for run in self._runs if start < run.end <= limit]
        return max(ends, default=None)

    def windows(self, log: CommitLog, segment: Segment, start: int, end: int) -> Iterator[Window]:
        """Yield the records of one file as ``walk_forward`` does, and forget those before."""
        while start < end:
            run = self._take(start)
            if run is None or run.begin >= end:
                yield from walk_forward(log, segment, start, end)
                return
            if run.begin > start:
                yield from walk_forward(log, segment, start, run.begin)
            n_before = int(np.searchsorted(run.starts, end - run.begin))
            stop = run.begin + int(run.starts[n_before]) if n_before < len(run.starts) else run.end
            first = run.begin - segment.start
            data = log.read_in_place(segment, np.array([first]), np.array([stop - run.begin]))
            starts = run.starts[:n_before] + np.int64(first)
            yield Window(log, segment, data, Walk(starts, StopKind.END, stop - segment.start), end)
            start = stop

    def _take(self, start: int) -> _Run | None:
        """Return the first run from a physical offset on, and forget those before it."""
        with self._guard:
            while self._runs and self._runs[0].begin < start:
                self._cost -= self._runs.popleft().cost
            return self._runs[0] if self._runs else None
