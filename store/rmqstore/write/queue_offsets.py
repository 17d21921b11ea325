"""The next queue offset of each queue: assigned to rows, or compared with the rows' own offsets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.dispatch_requests import Groups, group_by_queue
from rmqstore.format.layout import Mask


class QueueOffsets:
    """The next offsets of the queues that a writer appends to. Source: QueueOffsetOperator.java.

    Args:
        next_offset: returns the next offset of a queue from the store, None for a new queue.
    """

    def __init__(self, next_offset: Callable[[str, int], int | None]) -> None:
        self._ask = next_offset
        self._next: dict[tuple[str, int], int | None] = {}

    def assign(self, groups: Groups, count: int) -> NDArray[np.int64]:
        """Return the offsets of ``count`` rows, (count,), which are grouped by queue."""
        offsets = np.zeros(count, np.int64)
        for key, rows in groups:
            start = self._peek(key) or 0
            offsets[rows] = np.arange(start, start + len(rows))
            self._next[key] = start + len(rows)
        return offsets

    def claim(
        self,
        topics: pa.StringArray,
        queue_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        queued: Mask,
    ) -> None:
        """Accept the offsets that rows bring.

        Args:
            topics, queue_ids, offsets: (n,).
            queued: (n,), rows that get a unit in their queue; the others are ignored.

        Raises:
            IllegalMessageError: a row's offset is not the next one of its queue. A new queue may
                begin at any offset.
        """
        claimed: dict[tuple[str, int], int | None] = {}
        queued_rows = np.flatnonzero(queued)
        groups = group_by_queue(topics.take(pa.array(queued_rows)), queue_ids[queued_rows])
        for key, group_rows in groups:
            start = self._peek(key)
            rows = queued_rows[group_rows]
            given = offsets[rows]
            expected = np.arange(len(rows)) + (int(given[0]) if start is None else start)
            wrong = np.flatnonzero(given != expected)
            if len(wrong):
                row = int(rows[wrong[0]])
                raise IllegalMessageError(
                    f"row {row}: queue offset {int(offsets[row])} of {key[0]}-{key[1]}, "
                    f"the next one is {int(expected[wrong[0]])}; nothing was written"
                )
            claimed[key] = int(expected[-1]) + 1
        self._next |= claimed

    def forget(self) -> None:
        """Forget all offsets, so that they are read from the store again."""
        self._next.clear()

    def _peek(self, key: tuple[str, int]) -> int | None:
        if key not in self._next:
            self._next[key] = self._ask(*key)
        return self._next[key]
