"""How much one trigger reads: its limits are shared among queues in proportion to their backlog.

Pure: no session, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyspark_rmqstore.offsets import Key


class Weight(NamedTuple):
    """The messages between two offsets of a queue."""

    n_bytes: float  # an estimate
    physical_offset: int  # of the first message


K = TypeVar("K", bound=Hashable)

Weigh = Callable[[Key, int, int], Weight]
RowsWithin = Callable[[Key, int, int, int], int]


def limit_rows(starts: Mapping[K, int], ends: Mapping[K, int], max_rows: int) -> dict[K, int]:
    """Return ends that admit at most ``max_rows`` messages after the starts.

    The messages are shared among queues by their backlog.

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
    """Return ends that admit at most ``max_bytes`` stored bytes, but always the oldest message.

    Args:
        starts: the start of every queue in ``ends``.
        ends: how far each queue reaches.
        max_bytes: shared among queues by the estimated bytes of their backlog. What is admitted is
            counted, not estimated.
        weigh: estimates the messages of a queue between two offsets.
        rows_within: counts the messages after an offset of a queue that fit into some bytes.
    """
    keys = [key for key in ends if ends[key] > starts[key]]
    if not keys:
        return dict(ends)
    weights = [weigh(key, starts[key], ends[key]) for key in keys]
    backlog = np.array([weight.n_bytes for weight in weights]) + 1.0
    limited = dict(ends)
    shares = backlog * (max_bytes / backlog.sum())
    for key, share in zip(keys, shares.tolist(), strict=True):
        limited[key] = starts[key] + rows_within(key, starts[key], ends[key], int(share))
    oldest = keys[min(range(len(keys)), key=lambda number: weights[number].physical_offset)]
    limited[oldest] = max(limited[oldest], starts[oldest] + 1)
    return limited


def _share(backlog: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Share a limit among queues by their backlog.

    What rounding down leaves is given out in turn, first to queues that got nothing, so that large
    queues do not starve small ones.

    Returns:
        The shares, int64 (n,). Their sum is the limit, or the whole backlog if that is less.
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
    """Return the queue that a round begins with.

    It changes from trigger to trigger, but is the same if a trigger is planned again.
    """
    return int(backlog.sum()) % len(backlog)
