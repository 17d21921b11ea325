"""Walks a log as :meth:`PartitionLog.windows` does, and says which batches are in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.recovery import batches_in_order, leaves_a_gap
from kafkalog.storage.windows import Window


class Ordered(NamedTuple):
    """A window of a log.

    Attributes:
        window: the window.
        in_order: whether the offsets of each batch follow those before it and lie within its
            segment, bool (n,). A batch whose CRC is wrong may be in order or not.
        before: the offset after the last batch in order before the window.
        reached: the same, after the window.
    """

    window: Window
    in_order: NDArray[np.bool_]
    before: int
    reached: int


def ordered_windows(log: PartitionLog, start_offset: int) -> Iterator[Ordered]:
    """Yield the batches of a log from an offset on, a window at a time.

    Args:
        log: the log of a partition.
        start_offset: the first offset that is needed.

    Raises:
        FileNotFoundError: a segment was deleted, or replaced by a compacted one.
        UnreadableFileError: a segment is not a regular file.
    """
    windows = log.windows(start_offset)
    window = next(windows, None)
    reached = 0
    while window is not None:
        floor = max(window.segment.base_offset, reached)
        following, is_next_read = None, False
        if window.stop is None and leaves_a_gap(window.heads, floor):
            following, is_next_read = next(windows, None), True
        same_segment = following is not None and following.segment == window.segment
        limit = limit_of(log, window)
        in_order = batches_in_order(window, floor, limit, following if same_segment else None)
        if not in_order.all():
            log.require_segments()
        before = reached
        for row in np.flatnonzero(in_order)[::-1].tolist():  # up to the last sound batch in order
            head = window.heads[row : row + 1]
            if head.check_crcs(window.data)[0]:
                reached = max(reached, int(head.last_offset[0]) + 1)
                break
        yield Ordered(window, in_order, before, reached)
        window = following if is_next_read else next(windows, None)


def limit_of(log: PartitionLog, window: Window) -> int:
    """Return the offset before which those of a segment lie."""
    number = log.number_at(window.segment.base_offset)
    if number + 1 < len(log.segments):
        return log.segments[number + 1].base_offset
    return log.end_offset
