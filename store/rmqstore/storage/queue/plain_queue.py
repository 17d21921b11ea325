"""What follows from the units of a queue that has one unit for each message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import MAX_FILE_BYTES, PRE_BLANK_SIZE
from rmqstore.storage.queue.bounds import find_first, pieces
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.units import Units


class PlainQueue(ABC, Queue):
    """A queue of one unit for each message, wherever the units are kept."""

    is_batch = False
    is_recovered = False

    @property
    @abstractmethod
    def begin(self) -> int: ...

    @abstractmethod
    def unit(self, queue_offset: int) -> tuple[int, int, int]: ...

    @abstractmethod
    def units(self, start: int, end: int) -> Units: ...

    @abstractmethod
    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]: ...

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        Raises as :meth:`units` does.
        """
        return np.clip(self.units(start, end).sizes, 0, MAX_FILE_BYTES)

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``.

        Pre-blank units, which fill the offsets before the queue's first, do not count. The record
        of a damaged unit counts as existing.

        Source: ConsumeQueue.java#correctMinOffset; unlike it, the search is not limited to the
        first file.
        """
        begin = self.begin
        if begin < end:  # in most files the first message still exists
            physical_offset, size, _ = self.unit(begin)
            if size > 0 and physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE:
                return begin

        def has_record(queue_offset: int) -> bool:
            physical_offset, size, _ = self.unit(queue_offset)
            return physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE

        first = find_first(begin, end, has_record)
        for low, high in pieces(self, begin, first):
            units = self.units(low, high)
            sizes, offsets = units.sizes, units.physical_offsets
            is_filler = (sizes == PRE_BLANK_SIZE) & (offsets == 0)
            is_damaged = (sizes <= 0) | (offsets < 0)
            existing = np.flatnonzero(~is_filler & (is_damaged | (offsets >= min_physical_offset)))
            if len(existing):
                return low + int(existing[0])
        return first

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end."""
        first_after = find_first(start, end, lambda offset: self.unit(offset)[0] >= log_end)
        cut = first_after
        for low, high in pieces(self, first_after, end):
            units = self.units(low, high)
            offsets = units.physical_offsets
            before = np.flatnonzero((offsets >= 0) & (offsets < log_end) & (units.sizes > 0))
            if len(before):
                cut = low + int(before[-1]) + 1
        return cut

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
        total = 0
        for low, high in pieces(self, start, end):
            units = self.units(low, high)
            is_counted = (units.sizes > 0) & (units.sizes != PRE_BLANK_SIZE)
            is_counted &= units.physical_offsets >= min_physical_offset
            total += int(np.count_nonzero(is_counted))
        return total
