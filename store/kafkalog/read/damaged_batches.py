"""Rows for damaged batches: one for each, whatever ranges a partition is read in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from kafkalog.read.spec import ScanSpec


class DamagedBatch(NamedTuple):
    """A batch that is damaged, or a place where no batch is readable.

    Attributes:
        path: of the segment.
        position: in the segment.
        reason: what is wrong there.
        reached: the offset after the sound batches before it.
        limit: offset before which it lies, as it does not reach into the next segment.
        base_offset: the one that its head says, which may be wrong; None if it has no head.
    """

    path: str
    position: int
    reason: str
    reached: int
    limit: int
    base_offset: int | None = None


class DamagedBatches:
    """Handles the damaged batches of a range.

    Adjacent ranges that are read by themselves meet the same damage. Its row belongs to the range
    that has the base offset of the batch. That is believed if it fits between the sound batches
    around it, so a row is held back until the next sound batch is read. Otherwise the first offset
    that is missing there decides, or the one before if none is.

    Args:
        spec: how records are read.
        start: first offset of the range.
        end: offset after the last one. If both are the same, all damage is reported.
        follows: whether another read has the range before, so that damage which begins there is
            left to it.
    """

    def __init__(self, spec: ScanSpec, start: int, end: int, *, follows: bool) -> None:
        self._spec, self._start, self._end, self._follows = spec, start, end, follows
        self._pending: list[DamagedBatch] = []

    def clear(self) -> None:
        """Forget the rows that are held back, because their batches are read again."""
        self._pending.clear()

    def add(self, batch: DamagedBatch) -> None:
        """Handle a batch as the mode says.

        Raises:
            CorruptBatchError: the mode is FAILFAST.
        """
        if self._spec.is_permissive:
            self._pending.append(batch)
        else:
            self._spec.refuse(batch.path, batch.position, batch.reason)

    def rows(self, following: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were held back.

        Args:
            following: base offset of the next sound batch; the end of the log if there is none.
        """
        pending, self._pending = self._pending, []
        reached = 0  # after the sound batches before, and at the damaged one before
        for batch in pending:
            reached = max(reached, batch.reached)
            limit = min(following, batch.limit)
            is_missing = reached < limit
            if batch.base_offset is not None and reached <= batch.base_offset < limit:
                reached = batch.base_offset
            if self._has(reached if is_missing else reached - 1, limit):
                is_inside = reached >= self._start or reached == batch.base_offset
                offset = reached if is_inside else self._start
                yield self._spec.damage_row(batch.path, batch.position, batch.reason, offset)

    def _has(self, place: int, limit: int) -> bool:
        """Tell whether the row of a batch that ends before a limit belongs to the range."""
        if self._start == self._end:
            return True
        reaches_start = not self._follows and limit > self._start
        return place < self._end and (place >= self._start or reaches_start)
