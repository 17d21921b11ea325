"""The log of a partition as of one moment: segments, bounds, batches and their order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from errno import ENOENT
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.storage.indexes import read_offset_index
from kafkalog.storage.log_dirs import PartitionFolder
from kafkalog.storage.recovery import (
    Cut,
    RecoveredEnd,
    batches_in_order,
    begins_valid,
    clean_end,
    leaves_a_gap,
    next_offset,
    recover,
)
from kafkalog.storage.segments import Segment, list_segments
from kafkalog.storage.windows import Stop, Window, walk_segment
from rmqstore.errors import FileDeletedError
from rmqstore.storage.files.storage import Storage

logger = logging.getLogger(__name__)

# Batches that an index proposes after damage, about 50 us each: those of some 64 MiB.
_MOST_PROPOSALS: Final = 16_384
_MAX_LISTINGS: Final = 10  # of a folder whose files vanish while they are listed


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """Segments and bounds of a log, as of the moment when the folder was listed.

    What stands from ``end_offset`` to ``recovered_end`` is a ``LogEnd``.

    Attributes:
        storage: the storage to read from.
        folder: path of the partition folder.
        start_offset: the first offset that consumers get.
        end_offset: the next offset to be written (LEO).
        segments: by base offset; those that a recovery deletes are not among them.
        end_position: end of the log in the last segment; what is written later lies after it.
        largest_timestamps: of each recovered segment by its base offset, ms; -1 if it has none.
        cut: what a recovery takes away; None if it takes nothing.
        recovered_end: the end, from which a later recovery continues; None if there was none.
        ended_at: where the segments end, if that is before the start: a broker deletes them all.
    """

    storage: Storage
    folder: str
    start_offset: int
    end_offset: int
    segments: tuple[Segment, ...] = ()
    end_position: int = 0
    largest_timestamps: dict[int, int] = field(default_factory=dict)
    cut: Cut | None = None
    recovered_end: RecoveredEnd | None = None
    ended_at: int | None = None

    def is_recovered(self, number: int) -> bool:
        """Return whether a recovery walks a segment, and builds its indexes again."""
        return self.segments[number].base_offset in self.largest_timestamps

    def end_of(self, number: int) -> int | None:
        """Return the position at which a segment ends; None if that is the end of the file."""
        return self.end_position if number == len(self.segments) - 1 else None

    def number_at(self, offset: int) -> int:
        """Return the number of the segment that would have an offset; 0 if it lies before all."""
        bases = [segment.base_offset for segment in self.segments]
        return max(int(np.searchsorted(bases, offset, side="right")) - 1, 0)

    def cuts_only_zeros(self) -> bool:
        """Return whether a recovery cuts no more than the zeros of a preallocated file."""
        cut = self.cut
        if cut is None or cut.dropped:
            return False
        with self.storage.open(cut.path) as file:
            return file.written_end(file.size) <= cut.position

    def require_segments(self) -> None:
        """Refuse a log whose segments were compacted into others since it was listed.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        for segment in self.segments:
            if self.storage.status(segment.path) is None:
                raise FileNotFoundError(ENOENT, "deleted", segment.path)

    def bytes_between(self, start_offset: int, end_offset: int) -> float:
        """Return about how many bytes hold a range of offsets, by the sizes of the segments.

        Raises:
            FileNotFoundError: a segment was deleted.
        """
        total = 0.0
        bases = [*(segment.base_offset for segment in self.segments), self.end_offset]
        for number, (base, following) in enumerate(pairwise(bases)):
            within = min(end_offset, following) - max(start_offset, base)
            if within > 0:
                total += self._bytes_of(number) * within / (following - base)
        return total

    def _bytes_of(self, number: int) -> int:
        """Return how many bytes of a segment belong to the log."""
        end = self.end_of(number)
        return self.storage.size(self.segments[number].path) if end is None else end

    def windows(self, start_offset: int) -> Iterator[Window]:
        """Yield the batches of the log from an offset on, a window at a time.

        The first window begins with the batch that holds the offset, or a little before it. Where
        the chain of batches breaks, the window has a stop; the walk continues with the next batch
        that the offset index proposes and whose CRC is right, or else with the next segment.

        Args:
            start_offset: the first offset that is needed.

        Raises:
            FileNotFoundError: a segment was deleted.
            UnreadableFileError: a segment is not a regular file.
        """
        first = self.number_at(start_offset)
        for number in range(first, len(self.segments)):
            position = self.position_of(number, start_offset) if number == first else 0
            yield from self.windows_of(number, position)

    def windows_of(self, number: int, position: int = 0) -> Iterator[Window]:
        """Yield the batches of one segment from a position on; see :meth:`windows`."""
        segment = self.segments[number]
        start: int | None = position
        while start is not None:
            stop = None
            for window in walk_segment(self.storage, segment, start, self.end_of(number)):
                yield window
                stop = window.stop
            start = None if stop is None else self._after_damage(number, stop)

    def position_of(self, number: int, offset: int) -> int:
        """Return the position of a batch of a segment at or before the one that has an offset.

        The offset index proposes it. A batch whose CRC is right must be there, and it must not
        begin after the offset.
        """
        segment = self.segments[number]
        if offset <= segment.base_offset:
            return 0
        position = read_offset_index(self.storage, segment).before(offset)
        if position:
            window = self._window_at(number, position)
            if window is not None and int(window.headers.base_offset[0]) <= offset:
                return position
        return 0

    def _window_at(self, number: int, position: int) -> Window | None:
        """Return the batches at a position of a segment; None if no valid batch begins there."""
        segment = self.segments[number]
        window = next(walk_segment(self.storage, segment, position, self.end_of(number)))
        return window if begins_valid(window, segment) else None

    def _after_damage(self, number: int, stop: Stop) -> int | None:
        """Return the position of the first batch after a broken chain that the index knows."""
        segment = self.segments[number]
        positions = read_offset_index(self.storage, segment).positions
        proposed = positions[(positions > stop.position) & (positions < self._bytes_of(number))]
        if len(proposed) > _MOST_PROPOSALS:
            text = "%s: of %d entries of the index after damage at %d, %d are checked"
            logger.info(text, segment.path, len(proposed), stop.position, _MOST_PROPOSALS)
        for position in proposed[:_MOST_PROPOSALS].tolist():
            if self._window_at(number, position) is not None:
                return int(position)
        return None


def read_partition_log(
    storage: Storage,
    folder: PartitionFolder,
    known: PartitionLog | None = None,
    recovered_end: RecoveredEnd | None = None,
) -> PartitionLog:
    """Return the log of a partition, as a broker would find it that starts now.

    Args:
        storage: the storage to read from.
        folder: the partition folder.
        known: the log as it was. If its last segment is still there, the log ends where it did, and
            only the segments before are looked up again: some may be deleted or compacted.
        recovered_end: an earlier end of the log, from which a recovery continues.

    Raises:
        FileDeletedError: files vanish again and again while they are listed.
        UnreadableFileError: the folder or a segment cannot be read.
    """
    for _ in range(_MAX_LISTINGS):
        try:
            return _read(storage, folder, known, recovered_end)
        except FileNotFoundError as err:
            vanished = str(err.filename or err)
            logger.info("%s was deleted; listing the segments again", vanished)
    raise FileDeletedError(vanished)


def _read(
    storage: Storage,
    folder: PartitionFolder,
    known: PartitionLog | None,
    recovered_end: RecoveredEnd | None,
) -> PartitionLog:
    start = folder.log_start_offset
    segments = list_segments(storage, folder.path, lambda swap: next_offset(storage, swap))
    if not segments:
        return PartitionLog(storage, folder.path, start or 0, start or 0)
    if known is not None and known.segments and known.segments[-1] in segments:
        kept = tuple(segments[: segments.index(known.segments[-1]) + 1])
        start = max(start or 0, known.start_offset, kept[0].base_offset)
        return replace(known, segments=kept, start_offset=min(start, known.end_offset))
    if folder.is_clean:
        end = clean_end(storage, segments, folder.recovery_point)
    else:
        end = recover(storage, segments, folder.recovery_point, recovered_end)
    start = max(start or 0, segments[0].base_offset)
    if end.offset < start:  # the broker then deletes all segments and begins at the start
        logger.warning("%s ends at %d, before its start at %d", folder.path, end.offset, start)
        ended_at = end.offset
        return PartitionLog(storage, folder.path, start, start, cut=end.cut, ended_at=ended_at)
    return PartitionLog(storage, folder.path, start, *end)


class Ordered(NamedTuple):
    """A window of a log.

    Attributes:
        window: the window.
        in_order: whether the offsets of each batch follow those before it and lie within its
            segment, bool (n,). A batch whose CRC is wrong may be in order or not.
        before: the offset after the last batch in order before the window.
        end_offset: the same, after the window.
    """

    window: Window
    in_order: NDArray[np.bool_]
    before: int
    end_offset: int


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
    end_offset = 0
    while window is not None:
        floor = max(window.segment.base_offset, end_offset)
        following = None
        is_next_read = window.stop is None and leaves_a_gap(window.headers, floor)
        if is_next_read:
            following = next(windows, None)
        same_segment = following is not None and following.segment == window.segment
        limit = limit_of(log, window)
        in_order = batches_in_order(window, floor, limit, following if same_segment else None)
        if not in_order.all():
            log.require_segments()
        before = end_offset
        for row in np.flatnonzero(in_order)[::-1].tolist():  # up to the last valid batch in order
            header = window.headers[row : row + 1]
            if header.check_crcs(window.data)[0]:
                end_offset = max(end_offset, int(header.last_offset[0]) + 1)
                break
        yield Ordered(window, in_order, before, end_offset)
        window = following if is_next_read else next(windows, None)


def limit_of(log: PartitionLog, window: Window) -> int:
    """Return the offset before which those of a segment lie."""
    number = log.number_at(window.segment.base_offset)
    if number + 1 < len(log.segments):
        return log.segments[number + 1].base_offset
    return log.end_offset
