"""How much of what is there one trigger takes: limits shared out over queues by their backlog. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_rmqstore.offsets import Key


class Weight(NamedTuple):
    """The messages between two offsets of a queue: their bytes, as an estimate, and where the first one lies."""

    n_bytes: float
    physical_offset: int


Weigh = Callable[[Key, int, int], Weight]
RowsWithin = Callable[[Key, int, int, int], int]


def limit_rows(starts: Mapping[Key, int], ends: Mapping[Key, int], max_rows: int) -> dict[Key, int]:
    """Return ends that leave at most so many messages behind the starts, each queue its share of the backlog.

    Args:
        starts: of every queue in ``ends``.
        ends: how far each queue reaches.
        max_rows: exactly so many are left, or all if there are fewer.
    """
    keys = list(ends)
    backlog = np.array([ends[key] - starts[key] for key in keys], np.int64)
    taken = _share(backlog, max_rows)
    return {key: starts[key] + int(rows) for key, rows in zip(keys, taken, strict=True)}


def limit_bytes(
    starts: Mapping[Key, int],
    ends: Mapping[Key, int],
    max_bytes: int,
    weigh: Weigh,
    rows_within: RowsWithin,
) -> dict[Key, int]:
    """Return ends that leave messages of at most so many stored bytes; the oldest message comes in any case.

    Args:
        starts: of every queue in ``ends``.
        ends: how far each queue reaches.
        max_bytes: shared out by the estimated bytes of each queue's backlog; what is taken is counted exactly.
        weigh: looks at the messages of a queue between two offsets.
        rows_within: counts the messages of a queue, between two offsets, that fit into some bytes.
    """
    keys = [key for key in ends if ends[key] > starts[key]]
    if not keys:
        return dict(ends)
    weights = [weigh(key, starts[key], ends[key]) for key in keys]
    backlog = np.array([weight.n_bytes for weight in weights]) + 1.0
    limited = dict(ends)
    for key, share in zip(keys, (backlog * (max_bytes / backlog.sum())).tolist(), strict=True):
        limited[key] = starts[key] + rows_within(key, starts[key], ends[key], int(share))
    oldest = keys[min(range(len(keys)), key=lambda place: weights[place].physical_offset)]
    limited[oldest] = max(limited[oldest], starts[oldest] + 1)
    return limited


def _share(backlog: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Share a limit out by backlog, int64 (n,), summing up to it; where there is less backlog, all of it.

    What rounding down leaves goes round: first to queues that got nothing, so that none starves beside large ones.
    """
    total = int(backlog.sum())
    if total <= limit:
        return backlog
    shares = backlog * (limit / total)
    taken = np.minimum(np.floor(shares).astype(np.int64), backlog)
    left = limit - int(taken.sum())
    turn = np.roll(np.arange(len(backlog)), -_turn(backlog))
    waiting = turn[(backlog > taken)[turn]]
    waiting = waiting[np.argsort(taken[waiting] > 0, kind="stable")]
    taken[waiting[: max(left, 0)]] += 1
    return taken


def _turn(backlog: NDArray[np.int64]) -> int:
    """Return with whom a round begins: another queue each time, the same one when a trigger is planned again."""
    return int(backlog.sum()) % len(backlog)
