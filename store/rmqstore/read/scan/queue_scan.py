"""Messages by topic and queue: the units of any number of queues, merged so that the log is read once and forwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, OffsetOutOfRangeError
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import LMQ_PREFIX, MAX_EXT_ADDRESS, PRE_BLANK_SIZE, SCHEDULE_TOPIC, Mask, Positions
from rmqstore.read.scan.assembler import Assembler
from rmqstore.read.scan.rows import Fault, SingleUnits, UnitRows, expected_columns, lost_rows
from rmqstore.read.scan.shared_records import PlacedAssembler
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.read.scan.tags_codes import OpenExt, keep_resolved, resolve_codes
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue, Units

logger = logging.getLogger(__name__)

_WINDOW_UNITS = 1 << 19  # units held at once, all queues together


class _Window(NamedTuple):
    """Units of several queues in the order of the log, and their physical offsets."""

    units: UnitRows
    physical_offsets: Positions

    def take(self, rows: Positions | Mask | slice) -> _Window:
        return _Window(self.units.take(rows), self.physical_offsets[rows])


class QueueScan:
    """Reads slices of queues.

    Messages come in the order of the CommitLog, so those of one queue come in the order of that queue. Reading queue
    after queue would touch every page of the log once for each queue that has messages in it.
    """

    def __init__(
        self,
        log: CommitLog,
        open_queue: Callable[[str, int], ConsumeQueue],
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

    def single(self, picked: SingleUnits) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units; raises as :meth:`batches` does."""
        for start in range(0, len(picked.physical_offsets), _WINDOW_UNITS):
            yield from self._read(_Window(*picked.take(slice(start, start + _WINDOW_UNITS))))

    def _windows(self, slices: list[QueueSlice]) -> Iterator[_Window]:
        """Yield all units in the order of the log, so many at a time."""
        topics = list(dict.fromkeys(piece.topic for piece in slices))
        readers = [_SliceReader(self._held_units, piece, topics.index(piece.topic)) for piece in slices]
        while readers:
            left = sum(reader.left for reader in readers)
            share = min(1.0, _WINDOW_UNITS / max(left, 1))
            for reader in readers:
                reader.fill(max(1, int(reader.left * share)))
            # Beyond the last unit that any unfinished queue has shown, a unit of that queue may still come first.
            limit = min((reader.horizon for reader in readers if reader.left), default=None)
            parts = [reader.pop(limit) for reader in readers]
            readers = [reader for reader in readers if reader.left or reader.buffered]
            yield _merge(topics, [part for part in parts if len(part.columns.keys)])

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

    def _read(self, window: _Window) -> Iterator[pa.RecordBatch]:
        sizes, offsets = window.units.sizes, window.physical_offsets
        valid = (sizes > 0) & (offsets >= 0) & (sizes != PRE_BLANK_SIZE)
        if not valid.all():
            yield from self._refuse_units(window.take(~valid))
            window = window.take(valid)
        window = self._hashed(self._resolved(window))
        yield from self._read_files(window)

    def _resolved(self, window: _Window) -> _Window:
        """Put tags codes in place of the addresses where they stand, if anybody asks for codes."""
        asks_for_codes = "tagsCode" in self._spec.schema.names
        if self._spec.tags is None and not asks_for_codes:
            return window
        units = window.units._replace(tags_codes=resolve_codes(window.units, self._open_ext))
        kept = keep_resolved(units, self._open_ext, self._spec) if asks_for_codes else None
        window = window._replace(units=units)
        return window if kept is None else window.take(kept)

    def _hashed(self, window: _Window) -> _Window:
        """Keep what the tags ask for, as far as hash codes tell."""
        if self._spec.tags is None:
            return window
        codes = window.units.tags_codes
        wanted = np.array([tags_code(tag) for tag in self._spec.tags], np.int64)
        kept = np.isin(codes, wanted) | (codes <= MAX_EXT_ADDRESS)
        # Codes are of records, not of messages in an inner batch.
        of_records = np.array([topic in self._batch_topics for topic in window.units.topics], np.bool_)
        kept |= of_records[window.units.topic_codes]
        if SCHEDULE_TOPIC in window.units.topics:  # its codes are times of delivery
            kept |= window.units.topic_codes == window.units.topics.index(SCHEDULE_TOPIC)
        return window.take(kept)

    def _read_files(self, window: _Window) -> Iterator[pa.RecordBatch]:
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
                assembler = self._assembler(part.units.topics, segment)
            except OffsetOutOfRangeError as err:
                self._lose(part, str(err))
                continue
            yield from assembler.batches(part.physical_offsets - segment.start, part.units.sizes, part.units)

    def _assembler(self, topics: list[str], segment: Segment) -> Assembler:
        """Return what reads records of these topics."""
        if any(topic in self._batch_topics or topic.startswith(LMQ_PREFIX) for topic in topics):
            return PlacedAssembler(self._spec, self._log, segment, self._batch_topics)
        return Assembler(self._spec, self._log, segment)

    def _refuse_gone(self, part: _Window) -> Iterator[pa.RecordBatch]:
        """Units whose record lies in no file: deleted, if before the end of the log; beyond it the unit is wrong."""
        beyond = part.physical_offsets >= self._log.max_offset
        if not beyond.all():
            self._lose(part.take(~beyond), "their CommitLog files were deleted or are missing")
        if beyond.any():
            reason = f"the unit points behind the CommitLog, which ends at {self._log.max_offset}"
            yield from self._refuse_units(part.take(beyond), reason)

    def _lose(self, part: _Window, reason: str) -> None:
        lost = part.units.expected(0)
        text = (
            f"{len(part.physical_offsets)} messages are gone, the first at queue offset {lost.queue_offset} of "
            f"{lost.topic}-{lost.queue_id} (physical offset {int(part.physical_offsets[0])} in {self._log.folders}): "
            f"{reason}"
        )
        if self._spec.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; fail_on_data_loss=False reads on without them")
        logger.warning("data loss: %s", text)

    def _refuse_units(self, part: _Window, reason: str | None = None) -> Iterator[pa.RecordBatch]:
        """Do with damaged units what the mode says."""
        mode = self._spec.mode
        if mode == DROPMALFORMED:
            first = part.units.expected(0)
            logger.warning(
                "dropped %d damaged queue units, the first at queue offset %d of %s-%d",
                len(part.physical_offsets), first.queue_offset, first.topic, first.queue_id,
            )  # fmt: skip
            return
        faults = []
        for row, physical_offset in enumerate(part.physical_offsets.tolist()):
            expected = part.units.expected(row)
            path, byte = self._open_queue(expected.topic, expected.queue_id).place(expected.queue_offset)
            why = reason or f"no unit: physical offset {physical_offset}, size {expected.size}"
            if mode == FAILFAST:
                raise CorruptQueueError(path, byte, why)
            known = expected_columns(expected) | {"brokerName": self._spec.broker_name}
            del known["storeSize"]  # a damaged unit's size is no size
            known[self._spec.corrupt_column] = f"{path}, {byte}: {why}"
            faults.append(Fault(row, known, why))
        yield lost_rows(self._spec.schema, faults)


class _Columns(NamedTuple):
    """Units, ready to be merged, (n,) each."""

    keys: Positions  # what they are merged by
    queue_offsets: NDArray[np.int64]
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: Iterable[_Columns]) -> _Columns:
        """Return the units of all parts, one part behind the other."""
        found = list(parts)
        if len(found) == 1:
            return found[0]
        return cls(*(np.concatenate(column) for column in zip(_NO_UNITS, *found, strict=True)))

    def take(self, rows: slice) -> _Columns:
        return _Columns(*(column[rows] for column in self))


_NO_UNITS = _Columns(*[np.empty(0, np.int64)] * 5)


class _Part(NamedTuple):
    """Units of one slice."""

    topic_code: int
    queue_id: int
    columns: _Columns


class _SliceReader:
    """The units of one slice, read as they are needed."""

    def __init__(
        self, read_units: Callable[[QueueSlice, int, int], tuple[int, Units]], piece: QueueSlice, topic_code: int
    ) -> None:
        self._read_units, self._piece = read_units, piece
        self._topic_code = topic_code
        self._at = piece.start
        self._highest = -1
        self._buffer = _NO_UNITS

    @property
    def left(self) -> int:
        """Units not read yet."""
        return self._piece.end - self._at

    @property
    def buffered(self) -> int:
        """Units read and not handed on."""
        return len(self._buffer.keys)

    @property
    def horizon(self) -> int:
        """The highest merge key seen."""
        return self._highest

    def fill(self, count: int) -> None:
        """Read on until so many units are buffered, or all."""
        count = min(count - self.buffered, self.left)
        if count <= 0:
            return
        start, units = self._read_units(self._piece, self._at, count)
        # A queue's own order stands above the log's: a key is never lower than the ones before it.
        keys = np.maximum(np.maximum.accumulate(units.physical_offsets), self._highest)
        self._highest = int(keys[-1]) if len(keys) else self._highest
        self._at = start + len(keys)
        more = _Columns(keys, np.arange(start, self._at), *units)
        self._buffer = _Columns.joined([self._buffer, more]) if self.buffered else more

    def pop(self, limit: int | None) -> _Part:
        """Hand on the units with keys up to ``limit``, all without one."""
        held = self._buffer
        count = self.buffered if limit is None else int(np.searchsorted(held.keys, limit, side="right"))
        self._buffer = held.take(slice(count, None))
        return _Part(self._topic_code, self._piece.queue_id, held.take(slice(count)))


def _merge(topics: list[str], parts: list[_Part]) -> _Window:
    counts = [len(part.columns.keys) for part in parts]
    columns = _Columns.joined(part.columns for part in parts)
    units = UnitRows(
        topics=topics,
        topic_codes=np.repeat(np.array([part.topic_code for part in parts], np.int32), counts),
        queue_ids=np.repeat(np.array([part.queue_id for part in parts], np.int32), counts),
        queue_offsets=columns.queue_offsets,
        sizes=columns.sizes,
        tags_codes=columns.tags_codes,
    )
    window = _Window(units, columns.physical_offsets)
    return window if len(parts) < 2 else window.take(np.argsort(columns.keys, kind="stable"))
