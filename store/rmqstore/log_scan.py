"""Records in the order of the CommitLog, of every topic, with or without queues that point at them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.assemble import FAILFAST, Assembler, ReadSpec, refuse_stretches
from rmqstore.commitlog import CommitLog
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.files.mapped_file_queue import Segment
from rmqstore.format.frames import StopKind, Walk, find_next_record, total_sizes, walk, walk_plainly
from rmqstore.format.heads import read_heads
from rmqstore.format.layout import Bytes, Positions
from rmqstore.log_filter import LogFilter
from rmqstore.recovery import LostStretch, damage_at

_WINDOW_BYTES = 128 << 20


class LogSlice(NamedTuple):
    """A range of the CommitLog that begins at a record's head.

    ``end`` is a head too, or the end of a file or of the log. In a store that was closed the bytes tell where in the
    range the log ends; in one that was not, the recovery scan told, and the range does not reach beyond.
    """

    start: int
    end: int
    is_closed: bool


class LogScan:
    """Reads slices of the log.

    Args:
        log: of a store.
        queues_end: asks for the physical offset after the last record that queues point at, -1 where they tell none.
        spec: what to make of the records.
        wanted: which of them.
    """

    def __init__(self, log: CommitLog, queues_end: Callable[[], int], spec: ReadSpec, wanted: LogFilter) -> None:
        self._log, self._queues_end = log, queues_end
        self._spec, self._wanted = spec, wanted

    def batches(self, piece: LogSlice) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice.

        Raises:
            CorruptRecordError: bytes are no record, or a damaged one, and the mode is FAILFAST.
            OffsetOutOfRangeError: a file is missing, and data loss is to fail.
        """
        for start, end, segment in self._log.stretches(piece.start, piece.end):
            if segment is None:
                yield from self._lose(start, end, "the files that held it are missing")
                continue
            try:
                data = self._log.data(segment)
            except OffsetOutOfRangeError as err:
                yield from self._lose(start, end, str(err))
                continue
            bounds = (start - segment.start, end - segment.start)
            ended = yield from self._read_file(segment, data, bounds, is_closed=piece.is_closed)
            if ended:
                return

    def _read_file(
        self, segment: Segment, data: Bytes, bounds: tuple[int, int], *, is_closed: bool
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Yield the records of one file; return whether the log ends in it."""
        assembler = Assembler(self._spec, self._log, segment, self._wanted)
        at, end = bounds
        while at < end:
            found = walk(data, at, min(at + _WINDOW_BYTES, end), segment.start)
            if self._spec.mode == FAILFAST:  # the first damage ends the scan: there is nothing to look for behind it
                starts, sizes = found.starts, np.diff(found.starts, append=found.position)
            else:
                starts, sizes = rejoin(data, segment.start, found)
            yield from assembler.batches(starts, sizes, None)
            at = found.position
            if found.kind is StopKind.BLANK:
                return False
            if found.kind is StopKind.END:
                continue
            reason = found.reason
            if is_closed:
                damage = damage_at(self._log, segment, found, self._queues_end())
                if damage is None:
                    return True
                reason = damage
            at = find_next_record(data, found.position + 1, end, segment.start)
            yield from self._refuse(segment, found.position, at, reason or found.kind.value)
        if at > end and end < segment.size:
            yield from self._refuse(segment, at, at, f"a record reaches over the bound {segment.start + end} of a task")
        return False

    def _lose(self, start: int, end: int, reason: str) -> Iterator[pa.RecordBatch]:
        yield from refuse_stretches([LostStretch(self._log.folders, start, end, reason, is_missing=True)], self._spec)

    def _refuse(self, segment: Segment, start: int, end: int, reason: str) -> Iterator[pa.RecordBatch]:
        """Do with a stretch that holds no record what the mode says."""
        stretch = LostStretch(str(segment.path), segment.start + start, segment.start + end, reason)
        yield from refuse_stretches([stretch], self._spec)


def rejoin(data: Bytes, physical_base: int, found: Walk) -> tuple[Positions, NDArray[np.int64]]:
    """Look for records that a damaged total size made a walk step over; return all starts, and sizes."""
    _, whole = read_heads(data, found.starts)
    if whole.all():
        return found.starts, np.diff(found.starts, append=found.position)
    pieces, done = [], 0
    for row in np.flatnonzero(~whole).tolist():
        start = int(found.starts[row])
        limit = int(found.starts[row + 1]) if row + 1 < len(found.starts) else found.position
        pieces.append(found.starts[done : row + 1])
        done = row + 1
        at = find_next_record(data, start + 1, limit, physical_base)
        while at < limit:
            inside = walk_plainly(data, at, limit)
            pieces.append(inside.starts)
            at = limit if inside.position >= limit else find_next_record(
                data, inside.position + 1, limit, physical_base
            )  # fmt: skip
    pieces.append(found.starts[done:])
    starts = np.concatenate(pieces)
    # Records overlap where a size is damaged, so the way to the next one is no size.
    return starts, total_sizes(data, starts)


def cut_log(whole: LogSlice, heads: Sequence[int], goal: int) -> list[LogSlice]:
    """Cut a range of the log into pieces of so many bytes, more where no place is near enough.

    Args:
        whole: the range.
        heads: places where records surely begin, sorted; some may lie outside the range.
        goal: bytes.
    """
    pieces, start, last = [], whole.start, whole.start
    for head in (*(head for head in heads if whole.start < head < whole.end), whole.end):
        if head - start > goal and last > start:
            pieces.append(whole._replace(start=start, end=last))
            start = last
        last = head
    if start < whole.end:
        pieces.append(whole._replace(start=start))
    return pieces
