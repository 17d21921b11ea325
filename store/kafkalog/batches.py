"""The records of one partition as Arrow batches, while the folder may change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.records import decode_chunks, salvaged
from kafkalog.scan import ScanSpec
from kafkalog.storage.partition_log import Ordered, PartitionLog, limit_of, ordered_windows
from kafkalog.storage.windows import Window, lowest_offsets
from kafkalog.storage.witnesses import Gaps
from kafkalog.transactions import ABORTED, UNKNOWN, Transactions
from rmqstore.errors import FileDeletedError, MalformedBytesError

logger = logging.getLogger(__name__)

_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 16 << 20  # as stored, if nothing is compressed
_COMPRESSED: Final = 8  # a compressed batch counts for this many times its size
_MAX_LISTINGS: Final = 10  # without a batch in between


class DamagedBatch(NamedTuple):
    """A damaged batch, or a position without a readable batch.

    Attributes:
        error: says where it is, and what is wrong there.
        end_offset: the offset after the valid batches before it.
        limit: offset before which it lies, as it does not reach into the next segment.
        base_offset: the one that its header says, which may be wrong; None if it has no header.
    """

    error: CorruptBatchError
    end_offset: int
    limit: int
    base_offset: int | None = None


class DamagedBatches:
    """Handles the damaged batches of a range.

    Adjacent ranges that are read by themselves meet the same damage. Its row belongs to the range
    that has the base offset of the batch. That is believed if it fits between the valid batches
    around it, so a row is buffered until the next valid batch is read. Otherwise the first offset
    that is missing there decides, or the one before if none is.

    Args:
        spec: how records are read.
        start: first offset of the range.
        end: offset after the last one. If both are the same, all damage is reported.
        follows: whether another read has the range before, so that damage which begins there is
            left to it.
    """

    def __init__(self, spec: ScanSpec, start: int, end: int, *, follows: bool) -> None:
        self._spec = spec
        self._start = start
        self._end = end
        self._follows = follows
        self._pending: list[DamagedBatch] = []

    def clear(self) -> None:
        """Forget the rows that are buffered, because their batches are read again."""
        self._pending.clear()

    def add(self, batch: DamagedBatch) -> None:
        """Handle a batch as the mode says.

        Raises:
            CorruptBatchError: the mode is FAILFAST.
        """
        if self._spec.is_permissive:
            self._pending.append(batch)
        else:
            self._spec.refuse(batch.error)

    def rows(self, following: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were buffered.

        Args:
            following: base offset of the next valid batch; the end of the log if there is none.
        """
        pending, self._pending = self._pending, []
        offset = 0  # after the valid batches before, and at the damaged one before
        for batch in pending:
            offset = max(offset, batch.end_offset)
            limit = min(following, batch.limit)
            decisive = offset if offset < limit else offset - 1
            if batch.base_offset is not None and offset <= batch.base_offset < limit:
                offset = decisive = batch.base_offset
            has_start = not self._follows and limit > self._start
            is_of_range = decisive < self._end and (decisive >= self._start or has_start)
            if is_of_range or self._start == self._end:
                is_inside = offset >= self._start or offset == batch.base_offset
                shown = offset if is_inside else self._start
                yield self._spec.damage_row(batch.error, shown)


class PartitionReader:
    """Reads a range of one partition.

    Args:
        name: of the partition, for errors.
        log: lists the log again, with the end of the given one unless that is None.
        spec: how records are read.
        transactions: those of the range, if only committed records are read.
        gaps: finds the segments that are gone from the middle of the log.
    """

    def __init__(
        self,
        name: str,
        log: Callable[[PartitionLog | None], PartitionLog],
        spec: ScanSpec,
        transactions: Transactions | None,
        gaps: Gaps,
    ) -> None:
        self._name = name
        self._log = log
        self._gaps = gaps
        self._spec = spec
        self._transactions = transactions
        self._next = 0
        self._damage = DamagedBatches(spec, 0, 0, follows=False)

    def read(
        self, log: PartitionLog, start: int, end: int, *, follows: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records with offsets from ``start`` up to, but not including, ``end``.

        Segments that were compacted meanwhile are read from their new files. What retention has
        deleted, or what was cut from the end, is data loss.

        Args:
            log: the log as it was when the bounds were decided.
            start: first offset.
            end: offset after the last one.
            follows: whether damage that begins before the range is left to another read.

        Raises:
            CorruptBatchError: a batch is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: records are gone, and data loss is to fail.
        """
        self._next = start
        self._damage = DamagedBatches(self._spec, start, end, follows=follows)
        n_listings = 0
        is_tail = start == end == log.end_offset  # damage there may hide records
        while self._next < end or is_tail:
            before = self._next
            known: PartitionLog | None = log
            try:
                yield from self._pass(log, end)
                if self._next >= end or not log.segments:
                    return
                last = log.segments[-1].path
                if log.storage.size(last) >= log.end_position:
                    return  # the segment is not shorter than it was when it was listed
                gone = last
                known = None
            except FileNotFoundError as err:
                logger.info("%s was deleted; listing the segments again", err.filename or err)
                gone = str(err.filename or err)
                if self._next >= end:
                    yield from self._damage.rows(log.end_offset)
                    return
            n_listings = 0 if self._next > before else n_listings + 1
            if n_listings > _MAX_LISTINGS:
                raise FileDeletedError(gone)
            log = self._log(known)
            # What the log lacks that was listed again is lost.
            if log.start_offset > self._next:
                lost = min(log.start_offset, end)
                text = f"{self._name}: offsets {self._next} to {lost} are gone (retention)"
                self._spec.report_loss(text)
                self._next = lost
            if log.end_offset < end:
                lost = max(log.end_offset, self._next)
                self._spec.report_loss(
                    f"{self._name}: offsets {lost} to {end} are gone (the log was cut)"
                )
                self._next = self._next if lost < end and self._next < log.end_offset else end

    def _pass(self, log: PartitionLog, end: int) -> Iterator[pa.RecordBatch]:
        self._damage.clear()
        span = self._next, end
        # Damage right after the last record has its row there if no offset is missing.
        proven = end + 1 if self._spec.is_permissive else end
        for ordered in ordered_windows(log, self._next):
            window = ordered.window
            is_valid = window.stop is None and bool(ordered.in_order.all())
            gap = self._gaps.before(window, is_valid=is_valid)
            if gap is not None and gap.start < end and gap.end > span[0]:
                logger.warning("data loss: %s: %s", gap.path, gap)
            yield from self._window(log, ordered, span)
            if max(self._next, ordered.end_offset) >= proven and end < log.end_offset:
                break  # damage after the last record counts only if all of the log is read
            if window.stop is not None:
                error = window.error(*window.stop)
                end_offset = self._end_before(ordered, len(window.headers))
                self._damage.add(DamagedBatch(error, end_offset, limit_of(log, window)))
        yield from self._damage.rows(log.end_offset)

    def _window(
        self, log: PartitionLog, ordered: Ordered, span: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        window = ordered.window
        end = span[1]
        rows = self._rows_within(ordered, span, reads_tail=end >= log.end_offset)
        headers, in_order = window.headers[rows], ordered.in_order[rows]
        valid, unknown = np.ones(len(headers), np.bool_), np.zeros(len(headers), np.bool_)
        if self._spec.check_crc:
            valid = headers.check_crcs(window.data)
        good = valid & in_order
        chosen = ~headers.is_control & (headers.record_count != 0)
        if self._transactions is not None:
            outcomes = self._transactions.outcomes(headers)
            chosen &= outcomes != ABORTED
            unknown = good & chosen & (outcomes == UNKNOWN)
            good &= ~unknown
        end_offset: int | None = None  # after the last valid batch
        for first, after in _chunks(headers, good):
            chunk = slice(first, after)
            base_offset = int(headers.base_offset[first])
            if good[first] or unknown[first]:
                yield from self._damage.rows(base_offset)
                if good[first]:
                    yield from self._decode(window, headers[chunk][chosen[chunk]], end)
                else:
                    text = (
                        f"the records {base_offset} to {headers.last_offset[first]} of producer"
                        f" {headers.producer_id[first]} may be committed or aborted: what may be"
                        " their marker is damaged"
                    )
                    yield from self._refuse(window, headers, first, text)
                end_offset = int(headers.last_offset[after - 1]) + 1
                self._next = max(self._next, end_offset)
                continue
            reason = "the CRC is wrong"
            if valid[first]:
                reason = f"offset {base_offset} is not in order"
            if end_offset is None:
                end_offset = self._end_before(ordered, rows.start + first)
            error = window.error(int(headers.position[first]), reason)
            self._damage.add(DamagedBatch(error, end_offset, limit_of(log, window), base_offset))
        if rows.stop < len(window.headers):
            yield from self._damage.rows(int(window.headers.base_offset[rows.stop]))

    def _refuse(
        self, window: Window, headers: BatchHeaders, row: int, reason: str
    ) -> Iterator[pa.RecordBatch]:
        """Handle a batch of whose header nothing is wrong."""
        error = window.error(int(headers.position[row]), reason)
        base = int(headers.base_offset[row])
        after = int(headers.last_offset[row]) + 1
        self._damage.add(DamagedBatch(error, base, after, base))
        yield from self._damage.rows(after)

    def _end_before(self, ordered: Ordered, row: int) -> int:
        """Return the offset after the valid batches before one of a window."""
        while row and self._is_damaged(ordered, row - 1):
            row -= 1
        if row:
            return int(ordered.window.headers.last_offset[row - 1]) + 1
        return max(ordered.before, ordered.window.segment.base_offset)

    def _rows_within(self, ordered: Ordered, span: tuple[int, int], *, reads_tail: bool) -> slice:
        """Return the batches of a window that may have records of the range.

        Offsets of damaged batches say nothing, so a batch is left out only if a valid one beside
        it proves that it lies outside of the range.

        Args:
            span: where the range begins and ends. How far the range has been read says nothing: a
                batch that is not in order may lie between any two others.
            reads_tail: whether the range ends with the log.
        """
        window, in_order = ordered.window, ordered.in_order
        headers = window.headers
        start, end = span
        before = np.flatnonzero(in_order & (headers.last_offset < start))
        first = int(before[-1]) + 1 if len(before) else 0
        lowest = lowest_offsets(headers)
        following = first + np.flatnonzero(in_order[first:])[:1]
        is_permissive = self._spec.is_permissive  # then DamagedBatches leaves out what lies before
        if len(following) and lowest[following[0]] <= start and not is_permissive:
            first = int(following[0])
        begins_later = first == len(headers) or lowest[first] > start
        if begins_later or self._is_damaged(ordered, first):
            while first and self._is_damaged(ordered, first - 1):
                first -= 1
        if reads_tail:
            return slice(first, len(headers))
        last = end if is_permissive else end - 1
        for row in np.flatnonzero((lowest >= end) | (headers.last_offset >= last)).tolist():
            if row >= first and not self._is_damaged(ordered, row):
                return slice(first, row if lowest[row] >= end else row + 1)
        return slice(first, len(headers))

    def _is_damaged(self, ordered: Ordered, row: int) -> bool:
        """Return whether a batch is not in order, or its CRC is wrong and counts."""
        if not ordered.in_order[row]:
            return True
        window = ordered.window
        return self._spec.check_crc and not window.headers[row : row + 1].check_crcs(window.data)[0]

    def _decode(self, window: Window, headers: BatchHeaders, end: int) -> Iterator[pa.RecordBatch]:
        def read(some: BatchHeaders) -> Iterator[tuple[int, pa.RecordBatch]]:
            return decode_chunks(window.data, some, self._spec.columns, self._next, end)

        for found in salvaged(headers, read):
            if isinstance(found, MalformedBytesError):
                row = int(np.searchsorted(headers.position, found.position))
                yield from self._refuse(window, headers, row, found.reason)
            elif found.num_rows:
                yield self._spec.complete(found)


def _chunks(headers: BatchHeaders, valid: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield ranges of batches to be decoded together; a damaged batch is alone."""
    rows = np.maximum(headers.record_count, 1).tolist()
    n_bytes = np.where(headers.codec != 0, headers.size * _COMPRESSED, headers.size).tolist()
    first = n_rows = total = 0
    for row, is_valid in enumerate(valid.tolist()):
        is_full = n_rows + rows[row] > _BATCH_ROWS or total + n_bytes[row] > _BATCH_BYTES
        if row > first and (is_full or not is_valid or not valid[first]):
            yield first, row
            first, n_rows, total = row, 0, 0
        n_rows += rows[row]
        total += n_bytes[row]
    if first < len(valid):
        yield first, len(valid)
