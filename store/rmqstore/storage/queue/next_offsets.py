"""The next queue offset of each queue: assigned to rows, or compared with the rows' own offsets.

The queues are kept as arrays, so that rows in many queues cost no step for each queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.dispatch_requests import order_by_queue
from rmqstore.format.columns.encode import TopicColumn
from rmqstore.format.layout import Mask
from rmqstore.spans import QueueSlice

_NEW = -1  # the next offset of a queue that is not there yet


class NextOffsets:
    """The next offsets of the queues that a writer appends to. Source: QueueOffsetOperator.java.

    Args:
        next_offset: returns the next offset of a queue from the store, None for a new queue.
    """

    def __init__(self, next_offset: Callable[[str, int], int | None]) -> None:
        self._ask = next_offset
        self.forget()

    def forget(self) -> None:
        """Forget all offsets, so that they are read from the store again."""
        self._numbers: dict[str, int] = {}  # of topics, in the order of their first record
        self._queues = np.empty(0, np.int64)  # topic number and queue id in one, rising
        self._first = np.empty(0, np.int64)  # of each queue, when it was met
        self._next = np.empty(0, np.int64)  # of each queue
        self._saved = np.empty(0, np.int64)  # the same at the mark, or when the queue was met

    def assign(self, topics: TopicColumn, queue_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the next offsets of n rows, (n,), which are not negative."""
        order, starts, indices = self._group(topics, queue_ids)
        counts = np.diff(starts, append=len(order))
        firsts = np.maximum(self._next[indices], 0)
        offsets = np.empty(len(order), np.int64)
        offsets[order] = np.arange(len(order)) + np.repeat(firsts - starts, counts)
        self._next[indices] = firsts + counts
        return offsets

    def claim(
        self,
        topics: TopicColumn,
        queue_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        queued: Mask,
        rows_of: NDArray[np.int64] | None = None,
    ) -> None:
        """Accept the offsets that rows bring.

        Args:
            topics, queue_ids, offsets: (n,).
            queued: (n,), rows that get a unit in their queue; the others are ignored.
            rows_of: (n,), the numbers of the rows in an error; by default 0, 1, ….

        Raises:
            IllegalMessageError: a row's offset is not the next one of its queue. A new queue may
                begin at any offset.
        """
        rows = np.flatnonzero(queued)
        if not len(rows):
            return
        chosen = TopicColumn(topics.names, topics.codes[rows])
        order, starts, indices = self._group(chosen, queue_ids[rows])
        counts = np.diff(starts, append=len(order))
        given = offsets[rows[order]]
        known = self._next[indices]
        is_new = known == _NEW
        firsts = np.where(is_new, given[starts], known)
        expected = np.arange(len(order)) + np.repeat(firsts - starts, counts)
        wrong = np.flatnonzero(given != expected)
        if len(wrong):
            row = int(rows[order[wrong[0]]])
            topic, queue_id = topics.names[int(topics.codes[row])], int(queue_ids[row])
            number = row if rows_of is None else int(rows_of[row])
            raise IllegalMessageError(
                f"row {number}: queue offset {int(offsets[row])} of {topic}-{queue_id}, "
                f"the next one is {int(expected[wrong[0]])}; nothing was written"
            )
        self._first[indices[is_new]] = firsts[is_new]
        self._next[indices] = firsts + counts

    def _group(
        self, topics: TopicColumn, queue_ids: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Group rows by queue, and ask the store for the next offsets of queues that are new.

        Returns:
            The rows ordered by queue, (n,); where each of k queues begins among them, (k,); the
            index of each queue in :attr:`_queues`, (k,).
        """
        order, starts = order_by_queue(topics.codes, queue_ids)
        first_rows = order[starts]
        names = [self._numbers.setdefault(name, len(self._numbers)) for name in topics.names]
        queues = np.array(names, np.int64)[topics.codes[first_rows]] << 32
        queues |= queue_ids[first_rows].astype(np.int64) & 0xFFFFFFFF
        indices = np.searchsorted(self._queues, queues)
        is_known = np.append(self._queues, _NEW)[indices] == queues
        if not is_known.all():
            new = queues[~is_known]
            rows = first_rows[~is_known]
            columns = zip(topics.codes[rows].tolist(), queue_ids[rows].tolist(), strict=True)
            found = [self._ask(topics.names[code], queue_id) for code, queue_id in columns]
            offsets = np.array([_NEW if offset is None else offset for offset in found], np.int64)
            by_queue = np.argsort(new)
            indices = np.searchsorted(self._queues, new[by_queue])
            self._queues = np.insert(self._queues, indices, new[by_queue])
            self._first = np.insert(self._first, indices, np.maximum(offsets[by_queue], 0))
            self._next = np.insert(self._next, indices, offsets[by_queue])
            self._saved = np.insert(self._saved, indices, offsets[by_queue])
            indices = np.searchsorted(self._queues, queues)
        return order, starts, indices

    def taken(self) -> list[QueueSlice]:
        """Return the offsets that rows took in each queue, by topic and queue."""
        names = [*self._numbers]
        indices = np.flatnonzero(self._next > self._first)
        columns = (self._queues >> 32, self._queues & 0xFFFFFFFF, self._first, self._next)
        slices = zip(*(column[indices].tolist() for column in columns), strict=True)
        return sorted(QueueSlice(names[number], *rest) for number, *rest in slices)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Take back what was assigned and claimed if the block raises an error."""
        self.save()
        try:
            yield
        except BaseException:  # an interrupt, too, must not leave offsets claimed
            self.rewind()
            raise

    def save(self) -> None:
        """Remember the next offsets, for :meth:`rewound`."""
        self._saved = self._next.copy()

    def rewound(self) -> NextOffsets:
        """Return the same queues at the saved offsets; those met since are as they were met."""
        offsets = copy(self)
        offsets.rewind()
        return offsets

    def rewind(self) -> None:
        """Go back to the saved offsets."""
        self._next = self._saved.copy()
