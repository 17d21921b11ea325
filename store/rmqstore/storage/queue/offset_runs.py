"""Chooses the records of a queue that get a unit: no checksum covers their queue offsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import Positions

_MAX_GAP = 1 << 20  # queue offsets without a record that are filled: 20 MiB of units
_MAX_GAP_BEFORE_ONE = 1000  # the same if a single record at the end of the log follows the gap
_RUNS_AHEAD = 8


class Fitting(NamedTuple):
    """Rows of a queue's records in the order of the log."""

    taken: Positions  # their queue offsets rise
    refused: Positions
    undecided: Positions  # at the end: what follows may show that they are wrong


class _Run(NamedTuple):
    """Records whose queue offsets are consecutive."""

    row: int
    first: int  # queue offset
    n_records: int


def fit_offsets(queue_offsets: NDArray[np.int64], expected: int | None, *, is_end: bool) -> Fitting:
    """Choose the records that get a unit.

    A record whose queue offset is lower than expected is refused, because an earlier record has
    that offset. One that leaps ahead is refused if the records after it go on from before the leap:
    in 4, 5, 90, 7, 8 the record 90 is refused, and 6 is a gap.

    Args:
        queue_offsets: int64 (n,), none of them negative.
        expected: the next queue offset, None for a queue that has no unit yet.
        is_end: no record of the queue follows.
    """
    runs = _runs(queue_offsets)
    taken: list[NDArray[np.int64]] = []
    refused: list[NDArray[np.int64]] = []
    undecided = np.empty(0, np.int64)
    for number, run in enumerate(runs):
        rows = np.arange(run.row, run.row + run.n_records)
        low = 0 if expected is None else expected
        is_leap = expected is None or run.first > low
        ahead = runs[number + 1 : number + 1 + _RUNS_AHEAD]
        if is_leap and run.n_records == 1 and not ahead and not is_end:
            undecided = rows
        elif is_leap and not _is_right(run, low, ahead, is_first=expected is None):
            refused.append(rows)
        else:
            n_late = min(max(low - run.first, 0), run.n_records)
            refused.append(rows[:n_late])
            taken.append(rows[n_late:])
            expected = max(low, run.first + run.n_records)
    return Fitting(_joined(taken), _joined(refused), undecided)


def begins_again_at(queue_offsets: NDArray[np.int64], expected: int) -> int | None:
    """Return the row from which on a queue begins again, None if it does not.

    The topic was deleted then, and made again: its first record has queue offset 0 once more. A
    record with queue offset 0 after which others do not go on from there has a wrong one instead.

    Args:
        queue_offsets: int64 (n,), in the order of the log.
        expected: the next queue offset.
    """
    for row in np.flatnonzero(queue_offsets == 0)[: -_RUNS_AHEAD - 1 : -1].tolist():
        has_some_before = expected > 0 or bool((queue_offsets[:row] >= 0).any())
        following = queue_offsets[row + 1 : row + 2]
        if has_some_before and (not len(following) or following[0] == 1):
            return int(row)
    return None


def _runs(queue_offsets: NDArray[np.int64]) -> list[_Run]:
    starts = np.flatnonzero(np.diff(queue_offsets, prepend=queue_offsets[:1] - 2) != 1)
    counts = np.diff(starts, append=len(queue_offsets))
    firsts = queue_offsets[starts]
    runs = zip(starts.tolist(), firsts.tolist(), counts.tolist(), strict=True)
    return [_Run(*run) for run in runs]


def _is_right(run: _Run, low: int, ahead: list[_Run], *, is_first: bool) -> bool:
    """Tell whether the records of a run that leaps ahead have the right queue offsets."""
    if any(low <= other.first < run.first and other.n_records >= run.n_records for other in ahead):
        return False
    if is_first:  # a queue may begin anywhere
        return True
    max_gap = _MAX_GAP if ahead or run.n_records > 1 else _MAX_GAP_BEFORE_ONE
    return run.first - low <= max_gap


def _joined(rows: list[NDArray[np.int64]]) -> Positions:
    return np.concatenate(rows) if rows else np.empty(0, np.int64)
