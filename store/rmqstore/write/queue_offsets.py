"""Which queue offset comes next in each queue: given out row by row, or checked where rows bring theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.dispatch_requests import Groups, group_by_queue
from rmqstore.format.layout import Mask


class QueueOffsets:
    """The next offsets of the queues that a writer comes by. Source: QueueOffsetOperator.java.

    Args:
        next_offset: asks the store for the next offset of a queue, None for a queue that is not there yet.
    """

    def __init__(self, next_offset: Callable[[str, int], int | None]) -> None:
        self._ask = next_offset
        self._next: dict[tuple[str, int], int | None] = {}

    def assign(self, groups: Groups, count: int) -> NDArray[np.int64]:
        """Give out offsets, (count,), to rows that are grouped by queue."""
        offsets = np.zeros(count, np.int64)
        for key, rows in groups:
            start = self._peek(key) or 0
            offsets[rows] = np.arange(start, start + len(rows))
            self._next[key] = start + len(rows)
        return offsets

    def claim(
        self, topics: pa.StringArray, queue_ids: NDArray[np.int32], offsets: NDArray[np.int64], queued: Mask
    ) -> None:
        """Take offsets that rows bring.

        Args:
            queued: (n,), rows that will be in their queue; others count for nothing.

        Raises:
            IllegalMessageError: a row's offset is not the next one of its queue; a new queue may begin anywhere.
        """
        places, claimed = np.flatnonzero(queued), dict[tuple[str, int], int | None]()
        for key, rows in group_by_queue(topics.take(pa.array(places)), queue_ids[places]):
            start = self._peek(key)
            given = offsets[places[rows]]
            expected = np.arange(len(rows)) + (int(given[0]) if start is None else start)
            wrong = np.flatnonzero(given != expected)
            if len(wrong):
                row = int(places[rows[wrong[0]]])
                raise IllegalMessageError(
                    f"row {row}: queue offset {int(offsets[row])} of {key[0]}-{key[1]}, the next one is "
                    f"{int(expected[wrong[0]])}; nothing was written"
                )
            claimed[key] = int(expected[-1]) + 1
        self._next |= claimed

    def forget(self) -> None:
        """Ask the store again from now on."""
        self._next.clear()

    def _peek(self, key: tuple[str, int]) -> int | None:
        if key not in self._next:
            self._next[key] = self._ask(*key)
        return self._next[key]
