"""Limits of the parts that a read is cut into, and cuts of the log and of single records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.read.sampling import SampledSpan, join_parts
from rmqstore.spans import LogSlice


class Limits(NamedTuple):
    """The largest size of a part of a read, and the least number of parts."""

    max_bytes: int
    max_records: int | None = None
    min_partitions: int | None = None

    def share(self, n_bytes: float, total: float) -> Limits:
        """Return the limits for a share of a read, which follows its bytes."""
        if self.min_partitions is None or n_bytes >= total:
            return self
        return self._replace(min_partitions=math.ceil(self.min_partitions * n_bytes / total) or 1)


def cut_log(parts: Sequence[SampledSpan], limits: Limits) -> list[tuple[LogSlice, ...]]:
    """Join parts of the log, in their order, into tasks.

    Args:
        parts: the parts; each of them is in one task.
        limits: ``max_bytes`` is exceeded by parts that are larger.
    """
    goal = limits.max_bytes
    if limits.min_partitions:
        n_bytes = sum(part.n_bytes for part in parts)
        goal = max(1, min(goal, n_bytes // limits.min_partitions))
    return join_parts(parts, goal)


def cut_rows(sizes: NDArray[np.number], limits: Limits) -> list[slice]:
    """Cut n single records, in the order of the log, into tasks.

    Args:
        sizes: bytes of each record, (n,).
        limits: as for :meth:`~rmqstore.read.sampled_queues.SampledQueues.cut`.
    """
    n_rows = len(sizes)
    if not n_rows:
        return []
    goal = limits.max_bytes
    if limits.min_partitions:
        goal = min(goal, int(sizes.sum()) // limits.min_partitions)
    tasks = np.cumsum(sizes) // max(goal, 1)
    bounds = np.append(np.flatnonzero(np.diff(tasks, prepend=-1)), n_rows)
    most = min(limits.max_records or n_rows, max(1, n_rows // (limits.min_partitions or 1)))
    return [
        slice(start, min(start + most, high))
        for low, high in pairwise(bounds.tolist())
        for start in range(low, high, most)
    ]
