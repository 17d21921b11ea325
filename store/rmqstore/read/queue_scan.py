"""Reads messages by topic and queue.

The units of all queues are merged, so that the log is read once and forwards. Records in a remote
storage are announced ahead: a request takes far longer than to decode what it brings, so several
are under way while records are decoded, also over the ends of windows and files.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptQueueError,
    FileDeletedError,
    OffsetOutOfRangeError,
    RmqStoreError,
    UnreadableFileError,
    spelled,
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
from rmqstore.read.assembler import Assembler, Pipeline, plain_pipeline
from rmqstore.read.faults import Fault, expected_columns, lost_rows
from rmqstore.read.joined_files import FileSharing, JoinedFiles
from rmqstore.read.read_spec import DROPMALFORMED, FAILFAST, READS_ON, ReadSpec
from rmqstore.read.record_filter import LogFilter, OpenExt, keep_resolved, resolve_codes
from rmqstore.read.repeated_units import RepeatedUnits
from rmqstore.read.rows import UnitRows
from rmqstore.read.shared_records import shared_pipeline
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, Units

logger = logging.getLogger(__name__)

_AHEAD_BYTES: Final = 24 << 20  # announced, and not read yet
_CHUNK_BYTES: Final = 8 << 20  # announced together
_FAR_BYTES: Final = 64 << 10  # that a record costs which lies far from the one before
_WINDOWS_AHEAD: Final = 4  # made before they are read, where few of their records are wanted

W = TypeVar("W")
Sizes = NDArray[np.int64]

WINDOW_UNITS = 1 << 19  # a window has about as many
_SAMPLES_PER_WINDOW = 64
_MAX_SAMPLES = 1 << 12
_OVERREAD = 1.25  # units read of each slice, per unit of its share of a window: shares differ
_WANTED_UNITS = 1024  # announced by one number
_LEAST_UNITS = 8  # read at once
_SHORT_SLICE = 1024  # units that cost little more to read at once than a few of them
_MAX_WINDOWS_HELD = 4  # where the samples mislead, fewer units go into a window
_LAST = np.iinfo(np.int64).max

ReadUnits = Callable[[QueueSlice, int, int], tuple[int, Units]]
WantUnits = Callable[[QueueSlice, NDArray[np.int64], int], None]
SampleUnit = Callable[[QueueSlice, int], Positions]

_PREPARED_SLICES = 128  # whose files a remote storage opens together


class _Chunk(NamedTuple):
    segment: Segment
    starts: Positions  # in the file
    sizes: Sizes
    end: int  # physical offset
    n_bytes: int


class ReadAhead(Generic[W]):
    """Passes the windows of a read on, and announces their records before they are read.

    The next window is made when the last records of the present one were announced.

    Args:
        log: the log.
        windows: the windows. What making one raises is raised when those before it are read.
        places: returns the physical offsets of a window's records, (n,), and their sizes, (n,).
    """

    def __init__(
        self,
        log: CommitLog,
        windows: Iterator[W],
        places: Callable[[W], tuple[Positions, Sizes]],
    ) -> None:
        self._log, self._source, self._places = log, windows, places
        self._waiting: deque[W] = deque()
        self._error: Exception | None = None
        self._chunks = self._cut()
        self._next: _Chunk | None = None
        self._announced: deque[_Chunk] = deque()
        self._n_bytes = 0

    def windows(self) -> Iterator[W]:
        """Yield the windows."""
        while self._waiting or self._make_window():
            yield self._waiting.popleft()
        if self._error is not None:
            raise self._error

    def _make_window(self) -> bool:
        """Let the next window be made; return whether there is one.

        The records of those before it are already read, announced or not.
        """
        for chunk in self._chunks:
            if self._waiting:
                self._next = chunk
                break
        return bool(self._waiting)

    def reach(self, physical_offset: int) -> None:
        """Note that the read is at a physical offset, and announce what follows."""
        while self._announced and self._announced[0].end <= physical_offset:
            self._n_bytes -= self._announced.popleft().n_bytes
        while self._n_bytes < _AHEAD_BYTES and len(self._waiting) < _WINDOWS_AHEAD:
            chunk, self._next = self._next, None
            if chunk is None:
                try:
                    chunk = next(self._chunks)
                except StopIteration:
                    return
            if chunk is not None and chunk.end > physical_offset:
                with suppress(FileDeletedError, UnreadableFileError):  # said when it is read
                    self._log.file_of(chunk.segment).read_ahead(chunk.starts, chunk.sizes)
                self._announced.append(chunk)
                self._n_bytes += chunk.n_bytes

    def _cut(self) -> Iterator[_Chunk | None]:
        """Yield the records of all windows in the order of the read, some MiB at a time.

        None follows those of each window, which may have none.
        """
        while True:
            try:
                window = next(self._source)
            except StopIteration:
                return
            except RmqStoreError as err:
                self._error = err
                return
            self._waiting.append(window)
            physical_offsets, sizes = self._places(window)
            segments = self._log.segments
            firsts = np.array([segment.start for segment in segments], np.int64)
            numbers = np.searchsorted(firsts, physical_offsets, side="right") - 1
            gaps = np.zeros(len(physical_offsets), np.int64)
            gaps[1:] = physical_offsets[1:] - physical_offsets[:-1] - sizes[:-1]
            n_bytes = sizes + np.clip(gaps, 0, _FAR_BYTES)
            groups = np.cumsum(n_bytes) // _CHUNK_BYTES
            is_first = (np.diff(groups, prepend=-1) != 0) | (np.diff(numbers, prepend=-2) != 0)
            bounds = [*np.flatnonzero(is_first).tolist(), len(physical_offsets)]
            for low, high in pairwise(bounds):
                number = int(numbers[low])
                if number < 0:
                    continue
                segment = segments[number]
                starts = physical_offsets[low:high] - segment.start
                ends = starts + sizes[low:high]
                total = int(n_bytes[low:high].sum())
                first, stop = int(starts.min()), int(ends.max())
                if stop - first <= total:
                    starts, lengths = np.array([first]), np.array([stop - first])
                else:
                    lengths = sizes[low:high]
                yield _Chunk(segment, starts, lengths, segment.start + stop, total)
            yield None


class MergedUnits(NamedTuple):
    """Units of several slices, (n,) each."""

    slices: NDArray[np.int64]  # the number of the slice that each unit is of
    keys: Positions  # what they are merged by
    queue_offsets: NDArray[np.int64]
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    def take(self, rows: Positions | Mask) -> MergedUnits:
        """Return the chosen rows."""
        return MergedUnits(*(column[rows] for column in self))

    def followed_by(self, more: MergedUnits) -> MergedUnits:
        """Return these units and then others."""
        return MergedUnits(
            *(np.concatenate([mine, others]) for mine, others in zip(self, more, strict=True))
        )


_NO_UNITS = MergedUnits(*[np.empty(0, np.int64)] * 6)


class UnitMerge:
    """Yields the units of slices in windows, each of them sorted by physical offset.

    The slices are cut at the same physical offsets, which a sample of all their units gives, so
    that every window has about as many units as the others. A slice is read on only for a window
    that its units may reach into: the cost is that of the units, and a slice with few of them costs
    no visit for the windows of the others.

    A queue's own order stands above the log's. The key of a unit is the highest physical offset up
    to it in its slice, so a damaged unit stays between its neighbours: physical offsets 10, 40, 20,
    50 get the keys 10, 40, 40, 50.

    Args:
        slices: the queue slices to merge; equal keys come in their order.
        read_units: gives units of a slice from a queue offset on, with the queue offset of the
            first of them, which is later than the one asked for if units are gone.
        sample_unit: gives the physical offset of one unit of a slice by its queue offset, (1,), or
            (0,) if it is gone.
        window_units: how many units a window has, about.
        want: if given, called before units are read: with a slice, queue offsets (n,), and how many
            units from each of these on will be read.
    """

    def __init__(
        self,
        slices: Sequence[QueueSlice],
        read_units: ReadUnits,
        sample_unit: SampleUnit,
        window_units: int = WINDOW_UNITS,
        want: WantUnits | None = None,
    ) -> None:
        self._want = want
        self._slices, self._window_units = slices, window_units
        self._read_units, self._sample_unit = read_units, sample_unit
        # The queue offset of each slice to read from.
        self._next = np.array([piece.start for piece in slices], np.int64)
        self._ends = np.array([piece.end for piece in slices], np.int64)
        self._horizons = np.full(len(slices), -1, np.int64)  # the highest key read
        self._held = _NO_UNITS  # read, and not in a window yet

    def windows(self) -> Iterator[MergedUnits]:
        """Yield all units, window by window; raises what ``read_units`` raises."""
        for limit in self._limits():
            is_complete = False
            while not is_complete:
                is_complete = self._read_up_to(limit)
                highest = limit
                if not is_complete:
                    # Up to here all units are held; after it, a slice that is not read to its end
                    # may still have units.
                    highest = int(self._horizons[self._next < self._ends].min(initial=_LAST))
                is_due = self._held.keys <= highest
                if is_due.all():
                    window, self._held = self._held, _NO_UNITS
                else:
                    window, self._held = self._held.take(is_due), self._held.take(~is_due)
                order = np.argsort(window.keys, kind="stable")
                keys = window.keys[order]
                if (keys[1:] == keys[:-1]).any():
                    order = np.lexsort((window.slices, window.keys))
                window = window.take(order)
                del is_due, order, keys  # while the caller reads the window
                if len(window.keys):
                    yield window

    def _limits(self) -> list[int]:
        """Return the highest key of each window, ascending.

        Reads the beginning of every slice and some samples.
        """
        left = self._ends - self._next
        total = int(left.sum())
        share = min(1.0, self._window_units / max(total, 1))
        held_at_most = _MAX_WINDOWS_HELD * self._window_units
        least = max(1, min(_SHORT_SLICE, held_at_most // max(len(left), 1)))
        counts = np.minimum(left, np.maximum((left * share).astype(np.int64), least))
        step = max(self._window_units // _SAMPLES_PER_WINDOW, total // _MAX_SAMPLES, 1)
        # Sampled is every ``step``-th queue offset that is not read here, counted through all
        # slices. With a step of 4, slices that end at 10 and 20 and have 3 and 6 such offsets (7 to
        # 9 and 14 to 19) give none and 14 and 18.
        passed = np.cumsum(left - counts)
        positions = np.arange(step - 1, int(passed[-1]) if len(passed) else 0, step)
        numbers = np.searchsorted(passed, positions, side="right")
        offsets = self._ends[numbers] - (passed[numbers] - positions)
        bounds = np.searchsorted(numbers, np.arange(1, len(left)))
        sampled = [part.tolist() for part in np.split(offsets, bounds)]
        for number, count in enumerate(counts.tolist()):
            self._announce(number, count, sampled[number])
        chunks, samples = [], []
        for number, count in enumerate(counts.tolist()):
            chunks.append(self._read(number, count))
            # The samples are taken now because the files of the queue are open.
            piece = self._slices[number]
            samples += [self._sample_unit(piece, queue_offset) for queue_offset in sampled[number]]
        self._hold(chunks)
        keys = np.concatenate([self._held.keys, *samples])
        weights = np.full(len(keys), step, np.int64)
        weights[: len(self._held.keys)] = 1
        order = np.argsort(keys, kind="stable")
        windows = np.cumsum(weights[order]) // self._window_units
        return [*np.unique(keys[order][np.flatnonzero(np.diff(windows))]).tolist(), _LAST]

    def _read_up_to(self, limit: int) -> bool:
        """Read until every slice is known up to the limit.

        False if too many units would be held at once.
        """
        factor = _OVERREAD
        while True:
            left = self._ends - self._next
            due = np.flatnonzero((left > 0) & (self._horizons <= limit))
            if not len(due):
                return True
            if np.count_nonzero(self._held.keys <= limit) > _MAX_WINDOWS_HELD * self._window_units:
                due = due[[np.argmin(self._horizons[due])]]
                self._hold([self._read(int(due[0]), min(int(left[due[0]]), self._window_units))])
                return False
            share = min(1.0, factor * self._window_units / int(left.sum()))
            least = max(_LEAST_UNITS, self._window_units // len(left))
            counts = np.minimum(left[due], np.maximum((left[due] * share).astype(np.int64), least))
            for number, count in zip(due.tolist(), counts.tolist(), strict=True):
                self._announce(number, count)
            reads = zip(due.tolist(), counts.tolist(), strict=True)
            self._hold([self._read(number, count) for number, count in reads])
            factor *= 2

    def _announce(self, number: int, count: int, sampled: Sequence[int] = ()) -> None:
        """Announce the next units of a slice, and some later ones."""
        if self._want is not None:
            first = int(self._next[number])
            starts = [*range(first, first + count, _WANTED_UNITS), *sampled]
            least = min(count, _WANTED_UNITS)
            self._want(self._slices[number], np.array(starts, np.int64), least)

    def _read(self, number: int, count: int) -> tuple[int, int, Units]:
        """Read units of a slice.

        Returns:
            The number of the slice, the queue offset of the first unit, and the units.
        """
        start, units = self._read_units(self._slices[number], int(self._next[number]), count)
        self._next[number] = start + len(units.sizes)
        return number, start, units

    def _hold(self, chunks: list[tuple[int, int, Units]]) -> None:
        """Add units to those held, with their keys."""
        chunks = [chunk for chunk in chunks if len(chunk[2].sizes)]
        if not chunks:
            return
        counts = np.array([len(units.sizes) for _, _, units in chunks], np.int64)
        numbers = np.array([number for number, _, _ in chunks], np.int64)
        first_rows = np.cumsum(counts) - counts
        starts = np.array([start for _, start, _ in chunks], np.int64)
        offsets = np.repeat(starts - first_rows, counts)
        columns = [
            np.concatenate(column)
            for column in zip(*(units for _, _, units in chunks), strict=True)
        ]
        physical_offsets = columns[0]
        horizons = self._horizons[numbers]
        keys = physical_offsets
        # A key is the highest physical offset up to its unit in the slice, so it differs from the
        # unit's own where these fall.
        falls = np.zeros(len(physical_offsets), np.bool_)
        falls[1:] = physical_offsets[1:] < physical_offsets[:-1]
        falls[first_rows] = physical_offsets[first_rows] < horizons
        if falls.any():
            keys = physical_offsets.copy()
            ends = first_rows + counts
            fallen = np.searchsorted(first_rows, np.flatnonzero(falls), side="right") - 1
            for chunk in np.unique(fallen).tolist():
                rows = slice(int(first_rows[chunk]), int(ends[chunk]))
                keys[rows] = np.maximum(np.maximum.accumulate(keys[rows]), horizons[chunk])
        self._horizons[numbers] = keys[first_rows + counts - 1]
        more = MergedUnits(
            np.repeat(numbers, counts), keys, offsets + np.arange(len(keys)), *columns
        )
        self._held = self._held.followed_by(more) if len(self._held.keys) else more


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
        wanted: LogFilter | None = None,
        *,
        is_sparse: bool = False,
    ) -> None:
        self._log, self._open_queue, self._open_ext, self._spec = log, open_queue, open_ext, spec
        self._wanted, self._is_sparse = wanted, is_sparse
        self._batch_topics = frozenset(batch_topics)
        self._repeated = RepeatedUnits(open_queue)
        self._sharing = FileSharing()
        self._reach: Callable[[int], None] | None = None

    def batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the slices.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
            CorruptQueueError: a unit is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: messages were deleted, and data loss is to fail.
        """
        slices = [piece for piece in slices if piece.start < piece.end]
        windows = self._windows(slices)
        if self._log.is_remote:
            files: set[str] = set()
            for piece in slices[:_PREPARED_SLICES]:
                files.update(self._open_queue(piece.topic, piece.queue_id).end_files or ())
            self._log.storage.prepare(files)
            ahead = ReadAhead(self._log, windows, self._places)
            self._reach, windows = ahead.reach, ahead.windows()
        try:
            for window in windows:
                yield from self._read(window)
        finally:
            self._repeated.warn()

    def single(self, picked: UnitRows) -> Iterator[pa.RecordBatch]:
        """Yield the messages of single units, which are in the order of the log.

        Raises the errors of :meth:`batches`.
        """
        try:
            for start in range(0, len(picked.sizes), WINDOW_UNITS):
                yield from self._read(picked.take(slice(start, start + WINDOW_UNITS)))
        finally:
            self._repeated.warn()

    def _places(self, window: UnitRows) -> tuple[Positions, NDArray[np.int64]]:
        """Return where the records of a window lie, physical offsets and sizes, (n,) each.

        Those that the tags rule out are left out.
        """
        window = window.take(_are_units(window))
        places, sizes = window.physical_offsets, window.sizes
        if self._spec.tags is not None:
            with suppress(RmqStoreError):  # said when the window is read
                mask = self._may_have_tags(window, resolve_codes(window, self._open_ext))
                return places[mask], sizes[mask]
        return places, sizes

    def _windows(self, slices: list[QueueSlice]) -> Iterator[UnitRows]:
        """Yield all units in the order of the log, about ``WINDOW_UNITS`` at a time."""
        topics = list(dict.fromkeys(piece.topic for piece in slices))
        codes = {topic: code for code, topic in enumerate(topics)}
        topic_codes = np.array([codes[piece.topic] for piece in slices], np.int32)
        queue_ids = np.array([piece.queue_id for piece in slices], np.int32)
        want = self._want_units if self._log.is_remote else None
        for units in UnitMerge(slices, self._held_units, self._sampled_unit, want=want).windows():
            yield UnitRows(
                topics,
                topic_codes[units.slices],
                queue_ids[units.slices],
                units.queue_offsets,
                units.physical_offsets,
                units.sizes,
                units.tags_codes,
            )

    def _sampled_unit(self, piece: QueueSlice, queue_offset: int) -> Positions:
        """Return the physical offset of one unit, (1,), or (0,) if the unit is gone.

        Its loss is reported where it is read.
        """
        with suppress(OffsetOutOfRangeError):
            queue = self._open_queue(piece.topic, piece.queue_id)
            return queue.units(queue_offset, queue_offset + 1).physical_offsets
        return np.empty(0, np.int64)

    def _want_units(self, piece: QueueSlice, starts: NDArray[np.int64], count: int) -> None:
        """Announce ``count`` units from each queue offset (n,) on."""
        with suppress(RmqStoreError):  # said when they are read
            self._open_queue(piece.topic, piece.queue_id).want(starts, count)

    def _held_units(self, piece: QueueSlice, start: int, count: int) -> tuple[int, Units]:
        """Return units from ``start`` on, and the queue offset of the first of them.

        It is later than ``start`` if units are gone.
        """
        queue = self._open_queue(piece.topic, piece.queue_id)
        try:
            return start, queue.units(start, start + count)
        except OffsetOutOfRangeError as err:
            queue.refresh()
            low, high = next(queue.runs(start, piece.end), (piece.end, piece.end))
            if low == start:
                raise
            name = f"{piece.topic}-{piece.queue_id}"
            text = f"queue offsets {start} to {low} of {name} are gone: {err}"
            if self._spec.fail_on_data_loss:
                advice = f"{READS_ON} reads on without them"
                raise OffsetOutOfRangeError(f"{text}; {advice}") from err
            logger.warning("data loss: %s", spelled(text))
            return low, queue.units(low, min(low + count, high))

    def _read(self, window: UnitRows) -> Iterator[pa.RecordBatch]:
        is_gap = window.tags_codes == GAP_TAGS_CODE
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
        mask = None
        if self._spec.tags is not None or reads_codes:
            window = window._replace(tags_codes=resolve_codes(window, self._open_ext))
        if reads_codes:
            mask = keep_resolved(window, self._open_ext, self._spec)
        if self._spec.tags is not None:
            may_have_tags = self._may_have_tags(window, window.tags_codes)
            mask = may_have_tags if mask is None else mask & may_have_tags
        if mask is not None:
            window = window.take(mask)
        self._spec.advance(len(valid) - len(window.sizes), 0)
        yield from self._read_files(window)

    def _may_have_tags(self, window: UnitRows, codes: NDArray[np.int64]) -> Mask:
        """Return which units, (n,), may have a chosen tag, as far as hash codes show."""
        chosen_codes = np.array([tags_code(tag) for tag in self._spec.tags or ()], np.int64)
        mask = np.isin(codes, chosen_codes) | (codes <= MAX_EXT_ADDRESS)
        # Codes are of records, not of messages in an inner batch.
        of_records = np.array([topic in self._batch_topics for topic in window.topics], np.bool_)
        mask |= of_records[window.topic_codes]
        if SCHEDULE_TOPIC in window.topics:  # its codes are times of delivery
            mask |= window.topic_codes == window.topics.index(SCHEDULE_TOPIC)
        return mask

    def _read_files(self, window: UnitRows) -> Iterator[pa.RecordBatch]:
        """Read the records, those of small files together."""
        segments = self._log.segments
        bounds = np.array([segment.start for segment in segments], np.int64)
        numbers: NDArray[np.int64] = (
            np.searchsorted(bounds, window.physical_offsets, side="right") - 1
        )
        ends = np.array([segment.end for segment in segments] or [0], np.int64)
        gone = (numbers < 0) | (window.physical_offsets >= ends[numbers])
        numbers[gone] = -1
        shared = [
            topic in self._batch_topics or topic.startswith(LMQ_PREFIX) for topic in window.topics
        ]
        if np.array(shared, np.bool_)[window.topic_codes].any():
            pipeline = shared_pipeline(self._spec, self._batch_topics, self._wanted, self._repeated)
        else:
            pipeline = plain_pipeline(self._spec, self._wanted, self._repeated)
        joined = JoinedFiles(self._log, pipeline)
        for rows, is_joined in self._sharing.shares(numbers, window.sizes):
            units, n_read = window.take(rows), 0
            if is_joined:
                if self._reach is not None:
                    self._reach(int(window.physical_offsets[rows.start]))
                n_read = yield from joined.batches(segments, numbers[rows], units)
                self._spec.advance(n_read, int(units.sizes[:n_read].sum()))
            if n_read == len(units.sizes):
                continue
            left = slice(rows.start + n_read, rows.stop)
            changes = np.flatnonzero(np.diff(numbers[left])) + left.start + 1
            for start, stop in pairwise((left.start, *changes.tolist(), left.stop)):
                number = int(numbers[start])
                segment = segments[number] if number >= 0 else None
                yield from self._read_file(segment, window.take(slice(start, stop)), pipeline)

    def _read_file(
        self, segment: Segment | None, part: UnitRows, pipeline: Pipeline
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
        try:
            assembler = Assembler(self._log, segment, pipeline, self._reach)
        except OffsetOutOfRangeError as err:
            self._lose(part, str(err))
            return
        positions = part.physical_offsets - segment.start
        try:
            yield from assembler.batches(positions, part.sizes, part)
        except FileDeletedError as err:  # in a remote store; a file that is mapped stays
            self._lose(part.take(slice(assembler.n_done, None)), str(err))

    def _lose(self, part: UnitRows, reason: str) -> None:
        lost = part.expected(0)
        physical_offset = int(part.physical_offsets[0])
        text = (
            f"{len(part.physical_offsets)} messages are gone, "
            f"the first at queue offset {lost.queue_offset} of {lost.topic}-{lost.queue_id} "
            f"(physical offset {physical_offset} in {self._log.folders}): {reason}"
        )
        if self._spec.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; {READS_ON} reads on without them")
        logger.warning("data loss: %s", spelled(text))

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
        faults = []
        for row, physical_offset in enumerate(part.physical_offsets.tolist()):
            expected = part.expected(row)
            queue = self._open_queue(expected.topic, expected.queue_id)
            path, byte = queue.place(expected.queue_offset)
            text = reason or f"no unit: physical offset {physical_offset}, size {expected.size}"
            if mode == FAILFAST:
                raise CorruptQueueError(path, byte, text)
            known = expected_columns(expected) | {"brokerName": self._spec.broker_name}
            del known["storeSize"]  # the size in a damaged unit is not to be trusted
            known[self._spec.corrupt_column] = f"{path}, {byte}: {text}"
            faults.append(Fault(row, known, text))
        yield lost_rows(self._spec.schema, faults)


def _are_units(window: UnitRows) -> Mask:
    """Return which units of a window, (n,), say where a record may lie."""
    sizes = window.sizes
    mask: Mask = (sizes > 0) & (window.physical_offsets >= 0) & (sizes != PRE_BLANK_SIZE)
    return mask
