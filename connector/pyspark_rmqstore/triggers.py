"""The limits of a trigger, and what they admit of a backlog. Pure: no session, no files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rmqstore.errors import OptionError
from rmqstore.query.options import GivenOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from rmqstore.source.stream import Weight
    from rmqstore.source.stream_offset import Key

    Weigh = Callable[[Key, int, int], Weight]
    RowsWithin = Callable[[Key, int, int, int], int]

K = TypeVar("K", bound=Hashable)


def limit_rows(starts: Mapping[K, int], ends: Mapping[K, int], max_rows: int) -> dict[K, int]:
    """Return ends that admit at most ``max_rows`` messages after the starts.

    The messages are shared among queues by their backlog. What rounding down leaves is given out in
    turn, first to queues that got nothing, so that large queues do not starve small ones.

    Args:
        starts: the start of every queue in ``ends``.
        ends: the end of each queue.
        max_rows: number of messages to admit; if there are fewer, all of them are admitted.
    """
    keys = list(ends)
    backlog = np.array([ends[key] - starts[key] for key in keys], np.int64)
    total = int(backlog.sum())
    taken = backlog
    if total > max_rows:
        shares = backlog * (max_rows / total)
        taken = np.minimum(np.floor(shares).astype(np.int64), backlog)
        left = max_rows - int(taken.sum())
        # The queue that the round begins with changes from trigger to trigger, but is the same if a
        # trigger is planned again.
        turn = np.roll(np.arange(len(keys)), -(total % len(keys)))
        waiting = turn[(backlog > taken)[turn]]
        waiting = waiting[np.argsort(taken[waiting] > 0, kind="stable")]
        taken[waiting[: max(left, 0)]] += 1
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
        ends: the end of each queue.
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


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of the triggers of a stream; None where there is none."""

    max_rows: int | None
    min_rows: int | None
    max_delay_seconds: float
    max_bytes: int | None = None

    @classmethod
    def parse(cls, given: GivenOptions, max_bytes: int | None = None) -> TriggerLimits:
        """Return the limits in options that have the names of Spark's Kafka source.

        Raises:
            OptionError: the least number of offsets is above the most.
        """
        most = given["maxOffsetsPerTrigger"]
        least = given["minOffsetsPerTrigger"]
        if most is not None and least is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
        return cls(most, least, given["maxTriggerDelay"], max_bytes)

    def read_limit(self) -> ReadLimit:
        """Return one of the limits that are set.

        Spark passes it back if limits apply, otherwise another one.
        """
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
            ReadMinRows,
        )

        if self.max_rows is not None:
            return ReadMaxRows(self.max_rows)
        if self.max_bytes is not None:
            return ReadMaxBytes(self.max_bytes)
        return ReadAllAvailable() if self.min_rows is None else ReadMinRows(self.min_rows)

    def admitted(
        self, starts: Mapping[K, int], ends: dict[K, int], seconds: float, *, may_wait: bool
    ) -> dict[K, int]:
        """Return the ends up to which a trigger may read by rows: the starts if it waits for more.

        Args:
            starts: the start of every queue in ``ends``.
            ends: the end of each queue; nothing is read of one whose end lies before its start.
            seconds: since the last trigger that read.
            may_wait: whether it may wait for more.
        """
        ahead = {key: max(end, starts[key]) for key, end in ends.items()}
        n_rows = sum(end - starts[key] for key, end in ahead.items())
        if may_wait and n_rows < (self.min_rows or 0) and seconds < self.max_delay_seconds:
            return {key: starts[key] for key in ends}
        return ends if self.max_rows is None else limit_rows(starts, ahead, self.max_rows)
