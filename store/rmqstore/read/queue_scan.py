"""Reads messages by topic and queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptQueueError,
    FileDeletedError,
    OffsetOutOfRangeError,
    RmqStoreError,
)
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import (
    GAP_TAGS_CODE,
    LMQ_PREFIX,
    MAX_EXT_ADDRESS,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
    Mask,
    Positions,
)
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.read.assembler import Assembler, Pipeline, plain_pipeline
from rmqstore.read.faults import expected_columns, lost_rows
from rmqstore.read.joined_files import FileSharing, JoinedFiles
from rmqstore.read.read_ahead import Prefetch, ReadAhead, prefetch_nothing
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.record_filter import (
    ALL_RECORDS,
    LogFilter,
    OpenExt,
    keep_resolved,
    resolve_codes,
)
from rmqstore.read.repeated_units import RepeatedUnits
from rmqstore.read.rows import UnitRows
from rmqstore.read.shared_records import shared_pipeline
from rmqstore.read.unit_merge import WINDOW_UNITS, UnitMerge
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, Units

logger = logging.getLogger(__name__)

_PREPARED_SLICES = 128  # whose files a remote storage opens together


class QueueScan:
    """Reads slices of queues.

    Messages come in the order of the CommitLog, so those of one queue come in the order of that
    queue. Reading queue after queue would touch every page of the log once for each queue that has
    messages in it.
    """

    def __init__(
        self,
        log: CommitLog,
        open_queue: Callable[[str, int], Queue],
        open_ext: OpenExt,
        spec: ReadSpec,
        batch_topics: Collection[str] = (),
        chosen: LogFilter = ALL_RECORDS,
        *,
        is_sparse: bool = False,
    ) -> None:
        self._log = log
        self._open_queue = open_queue
        self._open_ext = open_ext
        self._spec = spec
        self._batch_topics = frozenset(batch_topics)
        self._chosen = chosen
        self._is_sparse = is_sparse
        self._repeated = RepeatedUnits(open_queue)
        self._sharing = FileSharing()

    def batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the slices.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
            CorruptQueueError: a unit is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: messages were deleted, and data loss is to fail.
        """
        filled = [queue_slice for queue_slice in slices if queue_slice.start < queue_slice.end]
        windows = self._merge(filled)
        prefetch: Prefetch = prefetch_nothing
        if self._log.is_remote:
            files: set[str] = set()
            for queue_slice in filled[:_PREPARED_SLICES]:
                queue = self._open_queue(queue_slice.topic, queue_slice.queue_id)
                files.update(queue.end_files or ())
            self._log.storage.prepare(files)
            ahead = ReadAhead(self._log, windows, self._records_of)
            windows = ahead.windows()
            prefetch = ahead.prefetch_after
        try:
            for window in windows:
                yield from self._read(window, prefetch)
        finally:
            self._repeated.warn()

    def single(self, picked: UnitRows) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units, which are in the order of the log.

        Raises the errors of :meth:`batches`.
        """
        try:
            for start in range(0, len(picked.sizes), WINDOW_UNITS):
                window = picked.take(slice(start, start + WINDOW_UNITS))
                yield from self._read(window, prefetch_nothing)
        finally:
            self._repeated.warn()

    def _records_of(self, window: UnitRows) -> tuple[Positions, NDArray[np.int64]]:
        """Return where the records of a window lie, physical offsets and sizes, (n,) each.

        Those that the tags rule out are left out.
        """
        window = window.take(_are_units(window))
        physical_offsets, sizes = window.physical_offsets, window.sizes
        if self._spec.tags is not None:
            with suppress(RmqStoreError):  # said when the window is read
                mask = self._may_have_tags(window, resolve_codes(window, self._open_ext))
                return physical_offsets[mask], sizes[mask]
        return physical_offsets, sizes

    def _merge(self, slices: list[QueueSlice]) -> Iterator[UnitRows]:
        """Yield all units in the order of the log, about ``WINDOW_UNITS`` at a time."""
        topics = list(dict.fromkeys(queue_slice.topic for queue_slice in slices))
        codes = {topic: code for code, topic in enumerate(topics)}
        topic_codes = np.array([codes[queue_slice.topic] for queue_slice in slices], np.int32)
        queue_ids = np.array([queue_slice.queue_id for queue_slice in slices], np.int32)
        prefetch = self._prefetch_units if self._log.is_remote else None
        merge = UnitMerge(slices, self._existing_units, self._sampled_unit, prefetch=prefetch)
        for units in merge.windows():
            yield UnitRows(
                topics,
                topic_codes[units.slices],
                queue_ids[units.slices],
                units.queue_offsets,
                units.physical_offsets,
                units.sizes,
                units.tags_codes,
            )

    def _sampled_unit(self, queue_slice: QueueSlice, queue_offset: int) -> Positions:
        """Return the physical offset of one unit, (1,), or (0,) if the unit is gone.

        Its loss is reported where it is read.
        """
        with suppress(OffsetOutOfRangeError):
            queue = self._open_queue(queue_slice.topic, queue_slice.queue_id)
            return queue.units(queue_offset, queue_offset + 1).physical_offsets
        return np.empty(0, np.int64)

    def _prefetch_units(
        self, queue_slice: QueueSlice, starts: NDArray[np.int64], count: int
    ) -> None:
        """Prefetch ``count`` units from each queue offset (n,) on."""
        with suppress(RmqStoreError):  # said when they are read
            self._open_queue(queue_slice.topic, queue_slice.queue_id).prefetch(starts, count)

    def _existing_units(self, queue_slice: QueueSlice, start: int, count: int) -> tuple[int, Units]:
        """Return units from ``start`` on, and the queue offset of the first of them.

        It is later than ``start`` if units are gone.
        """
        queue = self._open_queue(queue_slice.topic, queue_slice.queue_id)
        try:
            return start, queue.units(start, start + count)
        except OffsetOutOfRangeError as err:
            queue.refresh()
            low, high = next(queue.runs(start, queue_slice.end), (queue_slice.end, queue_slice.end))
            if low == start:
                raise
            name = f"{queue_slice.topic}-{queue_slice.queue_id}"
            self._spec.report_loss(f"queue offsets {start} to {low} of {name} are gone: {err}")
            return low, queue.units(low, min(low + count, high))

    def _read(self, window: UnitRows, prefetch: Prefetch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the units in a window."""
        # Those of batches lead to a record that shows whether it holds the message.
        is_gap = (window.tags_codes == GAP_TAGS_CODE) & ~window.are_of(self._batch_topics)
        if self._is_sparse:
            is_gap |= (window.sizes == 0) & (window.physical_offsets >= 0)
        if is_gap.any():
            self._spec.advance(int(np.count_nonzero(is_gap)), 0)
            window = window.take(~is_gap)
        valid = _are_units(window)
        if not valid.all():
            yield from self._refuse_units(window.take(~valid))
            window = window.take(valid)
        # Addresses in consumequeue_ext are replaced by tags codes only if the read needs these.
        reads_codes = "tagsCode" in self._spec.schema.names
        if self._spec.tags is not None or reads_codes:
            window = window._replace(tags_codes=resolve_codes(window, self._open_ext))
        if reads_codes:
            window = keep_resolved(window, self._open_ext, self._spec)
        if self._spec.tags is not None:
            may_have_tags = self._may_have_tags(window, window.tags_codes)
            window = window if may_have_tags.all() else window.take(may_have_tags)
        self._spec.advance(len(valid) - len(window.sizes), 0)
        yield from self._read_files(window, prefetch)

    def _may_have_tags(self, window: UnitRows, codes: NDArray[np.int64]) -> Mask:
        """Return which units, (n,), may have a chosen tag, as far as hash codes show."""
        chosen_codes = np.array([tags_code(tag) for tag in self._spec.tags or ()], np.int64)
        mask = np.isin(codes, chosen_codes) | (codes <= MAX_EXT_ADDRESS)
        # Codes are of records, not of messages in an inner batch; or they are times of delivery.
        return mask | window.are_of({*self._batch_topics, SCHEDULE_TOPIC})

    def _read_files(self, window: UnitRows, prefetch: Prefetch) -> Iterator[pa.RecordBatch]:
        """Read the records, those of small files together."""
        segments = self._log.segments
        bounds = np.array([segment.start for segment in segments], np.int64)
        numbers: NDArray[np.int64] = (
            np.searchsorted(bounds, window.physical_offsets, side="right") - 1
        )
        ends = np.array([segment.end for segment in segments] or [0], np.int64)
        gone = (numbers < 0) | (window.physical_offsets >= ends[numbers])
        numbers[gone] = -1
        lmqs = {topic for topic in window.topics if topic.startswith(LMQ_PREFIX)}
        if window.are_of(lmqs | self._batch_topics).any():
            pipeline = shared_pipeline(self._spec, self._batch_topics, self._chosen, self._repeated)
        else:
            pipeline = plain_pipeline(
                self._spec, self._chosen, self._repeated, is_sparse=self._is_sparse
            )
        joined = JoinedFiles(self._log, pipeline)
        for rows, is_joined in self._sharing.shares(numbers, window.sizes):
            first = rows.start
            if is_joined:
                prefetch(int(window.physical_offsets[first]))
                units = window.take(rows)
                n_read = yield from joined.batches(segments, numbers[rows], units)
                self._spec.advance(n_read, int(units.sizes[:n_read].sum()))
                first += n_read
            if first == rows.stop:
                continue
            changes = np.flatnonzero(np.diff(numbers[first : rows.stop])) + first + 1
            for start, stop in pairwise((first, *changes.tolist(), rows.stop)):
                number = int(numbers[start])
                segment = segments[number] if number >= 0 else None
                part = window.take(slice(start, stop))
                yield from self._read_file(segment, part, pipeline, prefetch)

    def _read_file(
        self, segment: Segment | None, part: UnitRows, pipeline: Pipeline, prefetch: Prefetch
    ) -> Iterator[pa.RecordBatch]:
        """Read records of one file, or handle units whose record lies in no file."""
        if segment is None:
            # A record was deleted if it lies before the end of the log; else the unit is wrong.
            beyond = part.physical_offsets >= self._log.max_offset
            if not beyond.all():
                self._lose(part.take(~beyond), "their CommitLog files were deleted or are missing")
            if beyond.any():
                reason = f"the unit points past the end of the CommitLog at {self._log.max_offset}"
                yield from self._refuse_units(part.take(beyond), reason)
            return
        assembler = Assembler(self._log, segment, pipeline, prefetch)
        positions = part.physical_offsets - segment.start
        try:
            yield from assembler.batches(positions, part.sizes, part)
        except FileDeletedError as err:
            self._lose(part.take(slice(assembler.n_done, None)), str(err))

    def _lose(self, part: UnitRows, reason: str) -> None:
        lost = part.expected(0)
        physical_offset = int(part.physical_offsets[0])
        text = (
            f"{len(part.physical_offsets)} messages are gone, "
            f"the first at queue offset {lost.queue_offset} of {lost.topic}-{lost.queue_id} "
            f"(physical offset {physical_offset} in {self._log.folders}): {reason}"
        )
        self._spec.report_loss(text)

    def _refuse_units(self, part: UnitRows, reason: str | None = None) -> Iterator[pa.RecordBatch]:
        """Handle damaged units as the mode says."""
        mode = self._spec.mode
        if mode == DROPMALFORMED:
            first = part.expected(0)
            logger.warning(
                "dropped %d damaged queue units, the first at queue offset %d of %s-%d",
                len(part.physical_offsets), first.queue_offset, first.topic, first.queue_id,
            )  # fmt: skip
            return
        rows = []
        for row, physical_offset in enumerate(part.physical_offsets.tolist()):
            expected = part.expected(row)
            queue = self._open_queue(expected.topic, expected.queue_id)
            path, byte = queue.location(expected.queue_offset)
            text = reason or f"no unit: physical offset {physical_offset}, size {expected.size}"
            if mode == FAILFAST:
                raise CorruptQueueError(path, byte, text)
            known = expected_columns(expected) | {"brokerName": self._spec.broker_name}
            del known["storeSize"]  # the size in a damaged unit is not to be trusted
            known[self._spec.corrupt_column] = f"{path}, {byte}: {text}"
            rows.append(known)
        yield lost_rows(self._spec.schema, rows)


def _are_units(window: UnitRows) -> Mask:
    """Return a mask (n,) of a window's units that may point at a record."""
    sizes = window.sizes
    mask: Mask = (sizes > 0) & (window.physical_offsets >= 0) & (sizes != PRE_BLANK_SIZE)
    return mask
