"""Records in the order of the CommitLog, of every topic, with or without queues that point at them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np
import pyarrow as pa

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.columns.walk import StopKind, find_next_record, rejoin, walk
from rmqstore.format.layout import Bytes
from rmqstore.read.scan.assembler import Assembler, refuse_stretches
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.spans import LogSlice, LostStretch
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import damage_at

_WINDOW_BYTES = 128 << 20


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
