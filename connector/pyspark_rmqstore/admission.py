"""How much one trigger reads: its limits are shared among queues in proportion to their backlog.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_rmqstore.offsets import Key


class Weight(NamedTuple):
    """The messages between two offsets of a queue: their estimated bytes, and the physical offset of the first one."""

    n_bytes: float
    physical_offset: int


Weigh = Callable[[Key, int, int], Weight]
RowsWithin = Callable[[Key, int, int, int], int]


def limit_rows(starts: Mapping[Key, int], ends: Mapping[Key, int], max_rows: int) -> dict[Key, int]:
    """Return ends that admit at most ``max_rows`` messages after the starts, shared among queues by backlog.

    Args:
        starts: the start of every queue in ``ends``.
        ends: how far each queue reaches.
        max_rows: number of messages to admit; if there are fewer, all of them are admitted.
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
    """Return ends that admit messages of at most ``max_bytes`` stored bytes, but always the oldest message.

    Args:
        starts: the start of every queue in ``ends``.
        ends: how far each queue reaches.
        max_bytes: shared among queues by the estimated bytes of their backlog; what is admitted is
            counted exactly.
        weigh: estimates the messages of a queue between two offsets.
        rows_within: counts the messages of a queue, from one offset up to another, that fit into a
            number of bytes.
    """
    keys = [key for key in ends if ends[key] > starts[key]]
    if not keys:
        return dict(ends)
    weights = [weigh(key, starts[key], ends[key]) for key in keys]
    backlog = np.array([weight.n_bytes for weight in weights]) + 1.0
    limited = dict(ends)
    for key, share in zip(keys, (backlog * (max_bytes / backlog.sum())).tolist(), strict=True):
        limited[key] = starts[key] + rows_within(key, starts[key], ends[key], int(share))
    oldest = keys[min(range(len(keys)), key=lambda number: weights[number].physical_offset)]
    limited[oldest] = max(limited[oldest], starts[oldest] + 1)
    return limited


def _share(backlog: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Share a limit among queues by backlog, int64 (n,); the shares sum up to the limit or to the whole backlog.

    What rounding down leaves is given out in turn, first to queues that got nothing, so that large
    queues do not starve small ones.
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
    """Return the queue that a round begins with: another one each time, but the same if a trigger is planned again."""
    return int(backlog.sum()) % len(backlog)
