"""Messages by topic and queue: the units of any number of queues, merged so that the log is read once and forwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.errors import CorruptQueueError, OffsetOutOfRangeError
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import LMQ_PREFIX, MAX_EXT_ADDRESS, PRE_BLANK_SIZE, SCHEDULE_TOPIC, Positions
from rmqstore.read.scan.assembler import Assembler, plain_pipeline
from rmqstore.read.scan.rows import Fault, UnitRows, expected_columns, lost_rows
from rmqstore.read.scan.shared_records import shared_pipeline
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.read.scan.tags_codes import OpenExt, keep_resolved, resolve_codes
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.units import NO_UNITS, Units

logger = logging.getLogger(__name__)

_WINDOW_UNITS = 1 << 19  # units held at once, all queues together


class QueueScan:
    """Reads slices of queues.

    Messages come in the order of the CommitLog, so those of one queue come in the order of that queue. Reading queue
    after queue would touch every page of the log once for each queue that has messages in it.
    """

    def __init__(
        self,
        log: CommitLog,
        open_queue: Callable[[str, int], Queue],
        open_ext: OpenExt,
        spec: ReadSpec,
        batch_topics: Collection[str] = (),
    ) -> None:
        self._log, self._open_queue, self._open_ext, self._spec = log, open_queue, open_ext, spec
        self._batch_topics = frozenset(batch_topics)

    def batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the slices.

        Raises:
            CorruptRecordError, CorruptQueueError: a record or unit is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: messages were deleted, and data loss is to fail.
        """
        for window in self._windows([piece for piece in slices if piece.start < piece.end]):
            yield from self._read(window)

    def single(self, picked: UnitRows) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units, which are in the order of the log; raises as :meth:`batches` does."""
        for start in range(0, len(picked.sizes), _WINDOW_UNITS):
            yield from self._read(picked.take(slice(start, start + _WINDOW_UNITS)))

    def _windows(self, slices: list[QueueSlice]) -> Iterator[UnitRows]:
        """Yield all units in the order of the log, about ``_WINDOW_UNITS`` at a time."""
        readers = [_SliceReader(self._held_units, piece) for piece in slices]
        while readers:
            left = sum(reader.left for reader in readers)
            share = min(1.0, _WINDOW_UNITS / max(left, 1))
            for reader in readers:
                reader.fill(max(1, int(reader.left * share)))
            # Beyond the last unit that any unfinished queue has shown, a unit of that queue may still come first.
            limit = min((reader.horizon for reader in readers if reader.left), default=None)
            parts = [part for part in (reader.pop(limit) for reader in readers) if len(part.merge_keys)]
            readers = [reader for reader in readers if reader.left or reader.buffered]
            if parts:
                yield _merge(parts)

    def _held_units(self, piece: QueueSlice, start: int, count: int) -> tuple[int, Units]:
        """Return units from ``start`` on and the queue offset of the first; later than asked for if some are gone."""
        queue = self._open_queue(piece.topic, piece.queue_id)
        try:
            return start, queue.units(start, start + count)
        except OffsetOutOfRangeError as err:
            queue.refresh()
            low, high = next(queue.runs(start, piece.end), (piece.end, piece.end))
            if low == start:
                raise
            text = f"queue offsets {start} to {low} of {piece.topic}-{piece.queue_id} are gone: {err}"
            if self._spec.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{text}; fail_on_data_loss=False reads on without them") from err
            logger.warning("data loss: %s", text)
            return low, queue.units(low, min(low + count, high))

    def _read(self, window: UnitRows) -> Iterator[pa.RecordBatch]:
        sizes, offsets = window.sizes, window.physical_offsets
        valid = (sizes > 0) & (offsets >= 0) & (sizes != PRE_BLANK_SIZE)
        if not valid.all():
            yield from self._refuse_units(window.take(~valid))
            window = window.take(valid)
        window = self._hashed(self._resolved(window))
        yield from self._read_files(window)

    def _resolved(self, window: UnitRows) -> UnitRows:
        """Put tags codes in place of the addresses where they stand, if anybody asks for codes."""
        asks_for_codes = "tagsCode" in self._spec.schema.names
        if self._spec.tags is None and not asks_for_codes:
            return window
        window = window._replace(tags_codes=resolve_codes(window, self._open_ext))
        kept = keep_resolved(window, self._open_ext, self._spec) if asks_for_codes else None
        return window if kept is None else window.take(kept)

    def _hashed(self, window: UnitRows) -> UnitRows:
        """Keep what the tags ask for, as far as hash codes tell."""
        if self._spec.tags is None:
            return window
        codes = window.tags_codes
        wanted = np.array([tags_code(tag) for tag in self._spec.tags], np.int64)
        kept = np.isin(codes, wanted) | (codes <= MAX_EXT_ADDRESS)
        # Codes are of records, not of messages in an inner batch.
        of_records = np.array([topic in self._batch_topics for topic in window.topics], np.bool_)
        kept |= of_records[window.topic_codes]
        if SCHEDULE_TOPIC in window.topics:  # its codes are times of delivery
            kept |= window.topic_codes == window.topics.index(SCHEDULE_TOPIC)
        return window.take(kept)

    def _read_files(self, window: UnitRows) -> Iterator[pa.RecordBatch]:
        """Read the records file by file of the CommitLog."""
        segments = self._log.segments
        bounds = np.array([segment.start for segment in segments], np.int64)
        places = np.searchsorted(bounds, window.physical_offsets, side="right") - 1
        ends = np.array([segment.end for segment in segments] or [0], np.int64)
        gone = (places < 0) | (window.physical_offsets >= ends[places])
        places[gone] = -1
        changes = np.flatnonzero(np.diff(places)) + 1
        for rows in np.split(np.arange(len(places)), changes):
            if not len(rows):
                continue
            part = window.take(slice(int(rows[0]), int(rows[-1]) + 1))
            place = int(places[rows[0]])
            if place < 0:
                yield from self._refuse_gone(part)
                continue
            segment = segments[place]
            try:
                assembler = self._assembler(part.topics, segment)
            except OffsetOutOfRangeError as err:
                self._lose(part, str(err))
                continue
            yield from assembler.batches(part.physical_offsets - segment.start, part.sizes, part)

    def _assembler(self, topics: list[str], segment: Segment) -> Assembler:
        """Return what reads records of these topics."""
        if any(topic in self._batch_topics or topic.startswith(LMQ_PREFIX) for topic in topics):
            return Assembler(self._spec, self._log, segment, shared_pipeline(self._spec, self._batch_topics))
        return Assembler(self._spec, self._log, segment, plain_pipeline(self._spec))

    def _refuse_gone(self, part: UnitRows) -> Iterator[pa.RecordBatch]:
        """Units whose record lies in no file: deleted, if before the end of the log; beyond it the unit is wrong."""
        beyond = part.physical_offsets >= self._log.max_offset
        if not beyond.all():
            self._lose(part.take(~beyond), "their CommitLog files were deleted or are missing")
        if beyond.any():
            reason = f"the unit points behind the CommitLog, which ends at {self._log.max_offset}"
            yield from self._refuse_units(part.take(beyond), reason)

    def _lose(self, part: UnitRows, reason: str) -> None:
        lost = part.expected(0)
        text = (
            f"{len(part.physical_offsets)} messages are gone, the first at queue offset {lost.queue_offset} of "
            f"{lost.topic}-{lost.queue_id} (physical offset {int(part.physical_offsets[0])} in {self._log.folders}): "
            f"{reason}"
        )
        if self._spec.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; fail_on_data_loss=False reads on without them")
        logger.warning("data loss: %s", text)

    def _refuse_units(self, part: UnitRows, reason: str | None = None) -> Iterator[pa.RecordBatch]:
        """Do with damaged units what the mode says."""
        mode = self._spec.mode
        if mode == DROPMALFORMED:
            first = part.expected(0)
            logger.warning(
                "dropped %d damaged queue units, the first at queue offset %d of %s-%d",
                len(part.physical_offsets), first.queue_offset, first.topic, first.queue_id,
            )  # fmt: skip
            return
        faults = []
        for row, physical_offset in enumerate(part.physical_offsets.tolist()):
            expected = part.expected(row)
            path, byte = self._open_queue(expected.topic, expected.queue_id).place(expected.queue_offset)
            why = reason or f"no unit: physical offset {physical_offset}, size {expected.size}"
            if mode == FAILFAST:
                raise CorruptQueueError(path, byte, why)
            known = expected_columns(expected) | {"brokerName": self._spec.broker_name}
            del known["storeSize"]  # the size in a damaged unit is not to be trusted
            known[self._spec.corrupt_column] = f"{path}, {byte}: {why}"
            faults.append(Fault(row, known, why))
        yield lost_rows(self._spec.schema, faults)


class _Part(NamedTuple):
    """Units of one slice, in the order of their queue, and the keys that they are merged by."""

    merge_keys: Positions
    rows: UnitRows

    def take(self, rows: slice) -> _Part:
        return _Part(self.merge_keys[rows], self.rows.take(rows))


class _SliceReader:
    """The units of one slice, read as they are needed."""

    def __init__(self, read_units: Callable[[QueueSlice, int, int], tuple[int, Units]], piece: QueueSlice) -> None:
        self._read_units, self._piece = read_units, piece
        self._at = piece.start
        self._highest = -1
        self._buffer = self._part(piece.start, NO_UNITS)

    def _part(self, start: int, units: Units) -> _Part:
        """Return units whose first has this queue offset. A queue's own order stands above that of the log.

        So a key is never lower than the ones before it: physical offsets 10, 40, 20, 50 get the keys 10, 40, 40, 50.
        """
        keys = np.maximum(np.maximum.accumulate(units.physical_offsets), self._highest)
        queue_offsets = np.arange(start, start + len(keys))
        return _Part(keys, UnitRows.of_queue(self._piece.topic, self._piece.queue_id, queue_offsets, units))

    @property
    def left(self) -> int:
        """Units not read yet."""
        return self._piece.end - self._at

    @property
    def buffered(self) -> int:
        """Units read and not handed on."""
        return len(self._buffer.merge_keys)

    @property
    def horizon(self) -> int:
        """The highest merge key seen."""
        return self._highest

    def fill(self, count: int) -> None:
        """Read on until ``count`` units are buffered, or all."""
        count = min(count - self.buffered, self.left)
        if count <= 0:
            return
        start, units = self._read_units(self._piece, self._at, count)
        more = self._part(start, units)
        self._at = start + len(more.merge_keys)
        self._highest = int(more.merge_keys[-1]) if len(more.merge_keys) else self._highest
        self._buffer = _joined([self._buffer, more]) if self.buffered else more

    def pop(self, limit: int | None) -> _Part:
        """Hand on the units with keys up to ``limit``, all without one."""
        held = self._buffer
        count = self.buffered if limit is None else int(np.searchsorted(held.merge_keys, limit, side="right"))
        self._buffer = held.take(slice(count, None))
        return held.take(slice(count))


def _joined(parts: Sequence[_Part]) -> _Part:
    return _Part(np.concatenate([part.merge_keys for part in parts]), UnitRows.joined([part.rows for part in parts]))


def _merge(parts: Sequence[_Part]) -> UnitRows:
    """Return the units of several queues in the order of the log."""
    if len(parts) == 1:
        return parts[0].rows
    every = _joined(parts)
    return every.rows.take(np.argsort(every.merge_keys, kind="stable"))
