"""Walks of the log that all readers and writers share: forward, and back to the last records.

Arguments and results are physical offsets of frames, which are the records themselves in a plain
log; only the positions inside a
:class:`~rmqstore.format.columns.walk.Walk` are positions in the file. A window reads the bytes of
its own records, so a store that is not on a local disk is fetched window by window. The caller
decides what to do with damage: it gets each window before the search for the next record begins, so
a walk that ends at the damage does not pay for the search.

A window costs some hundred microseconds however few records it has. So small files that follow one
another are copied into one buffer, and their chains of records are followed side by side. Only
files whose chain is valid to the end go into a joined window; all others are walked one by one,
which shows what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, UnreadableFileError
from rmqstore.format.columns.buffers import GATHER_SLACK
from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.record_headers import RecordHeaders, read_headers
from rmqstore.format.columns.search import find_frames, search_blocks
from rmqstore.format.columns.walk import (
    Walk,
    cut_batches,
    have_true_sizes,
    rejoin,
    total_sizes,
    walk,
    walk_each,
)
from rmqstore.format.framing import FrameNumbers, Framing, StopKind
from rmqstore.format.layout import BATCH_BYTES, BATCH_ROWS, FIXED_PART_V4, Bytes, Mask, Positions
from rmqstore.lazy import cached_property
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog, SegmentSpan

_SMALL_BYTES: Final = 1 << 20  # to walk in one file, at most
_WINDOW_BYTES: Final = 8 << 20  # small enough for the cache

WINDOW_BYTES: Final = 128 << 20  # walked at once: the starts of all its records are in memory
NEWEST_BYTES: Final = 1 << 16  # searched first for the last record
_GROWTH: Final = 8
_LONG_HOLE: Final = 1 << 20  # bytes; shorter ones may be parts of records that hold zeros
_HOLE_BYTES: Final = 1 << 12  # of a hole, enough to see that no record follows
_OVERHANG_BYTES: Final = 1 << 16  # read after a window, where its last record may end
_WINDOWS_AHEAD: Final = 3  # that a remote storage fetches while one is walked


@dataclass(frozen=True)
class JoinedWindow:
    """All records of consecutive files whose chains are valid to the end."""

    spans: Sequence[SegmentSpan]
    data: Bytes  # uint8 (nbytes,)
    starts: Positions  # (n,), positions in the data
    sizes: NDArray[np.int64]  # (n,)
    bases: Positions  # (n,), the difference between physical offset and position of each

    @property
    def end(self) -> int:
        """Physical offset after the last of the files."""
        return self.spans[-1].end

    def has_true_sizes(self) -> bool:
        """Return whether every record is whole and has the physical offset where it lies.

        If so, no total size led the walk over another record.
        """
        return all(is_valid.all() for _, _, is_valid in self.headers())

    def cut(self) -> Iterator[JoinedWindow]:
        """Yield the records batch by batch."""
        for rows in cut_batches(self.sizes, BATCH_ROWS, BATCH_BYTES):
            columns = self.starts[rows], self.sizes[rows], self.bases[rows]
            yield JoinedWindow(self.spans, self.data, *columns)

    def headers(self) -> Iterator[tuple[Positions, RecordHeaders, Mask]]:
        """Yield the records in batches: physical offsets, headers, mask of the valid ones.

        A valid record is whole, and has the physical offset where it lies.
        """
        for part in self.cut():
            headers, whole = read_headers(part.data, part.starts)
            physical_offsets = part.starts + part.bases
            whole &= headers.column("physical_offset") == physical_offsets
            yield physical_offsets, headers, whole


def join_spans(log: CommitLog, start: int, end: int) -> Iterator[SegmentSpan | JoinedWindow]:
    """Yield a range of the log as :meth:`CommitLog.segment_spans` does, small files in windows.

    The first window is small, for callers that need few records.
    """
    waiting: list[SegmentSpan] = []
    sizes: list[int] = []
    n_bytes = 0
    window_bytes = _SMALL_BYTES
    for span in log.segment_spans(start, end):
        size = _walked_bytes(log, span)
        is_framed_alike = not waiting or _framing(log, waiting[-1]) is _framing(log, span)
        if size is None or n_bytes + size > window_bytes or not is_framed_alike:
            if waiting:
                yield from _join(log, waiting, sizes)
                window_bytes = min(2 * window_bytes, _WINDOW_BYTES)
            waiting, sizes = [], []
            n_bytes = 0
        if size is None:
            yield span
        else:
            waiting.append(span)
            sizes.append(size)
            n_bytes += size
    yield from _join(log, waiting, sizes)


def _framing(log: CommitLog, span: SegmentSpan) -> Framing | None:
    return None if span.segment is None else log.framing(span.segment)


def _walked_bytes(log: CommitLog, span: SegmentSpan) -> int | None:
    """Return how many bytes a walk over a span has to see; None if these are too many."""
    start, end, segment = span
    if segment is None:
        return None
    if end - start <= _SMALL_BYTES:
        return end - start
    first = start - segment.start
    stop = end - segment.start
    if not log.is_remote:  # one request finds all holes of a remote file
        stop = min(first + 2 * _SMALL_BYTES, stop)
    try:
        size = next_hole(log, segment, first, stop) - first
    except (FileDeletedError, UnreadableFileError):
        return None
    return size if size <= _SMALL_BYTES else None


def _join(
    log: CommitLog, spans: Sequence[SegmentSpan], sizes: Sequence[int]
) -> Iterator[SegmentSpan | JoinedWindow]:
    """Yield spans, with those whose chain is valid in windows."""
    if len(spans) < 2:
        yield from spans
        return
    ends: Positions = np.cumsum(np.array(sizes, np.int64))
    firsts: Positions = ends - np.array(sizes, np.int64)
    data = np.empty(int(ends[-1]) + GATHER_SLACK, np.uint8)
    data[-GATHER_SLACK:] = 0
    is_read = np.zeros(len(spans), np.bool_)  # whether the file is long enough
    for row, span in enumerate(spans):
        segment = span.segment
        assert segment is not None
        window = data[int(firsts[row]) : int(ends[row])]
        try:
            n_read = len(log.read_into(segment, window, span.start - segment.start))
        except (FileDeletedError, UnreadableFileError):
            n_read = 0
        window[n_read:] = 0
        is_read[row] = n_read == len(window)
    file_starts = np.array([span.start for span in spans], np.int64)
    bases = file_starts - firsts
    left = np.array([span.end for span in spans], np.int64) - bases
    framing = _framing(log, spans[0])
    assert framing is not None
    walks = walk_each(data, firsts, ends, left, bases, framing)
    is_valid = walks.is_valid & is_read
    row_bounds = np.concatenate(([0], np.cumsum(walks.counts)))
    changes = np.flatnonzero(np.diff(is_valid)) + 1
    for run in np.split(np.arange(len(spans)), changes):
        low, high = int(run[0]), int(run[-1]) + 1
        if not is_valid[low]:
            yield from spans[low:high]
            continue
        rows = slice(int(row_bounds[low]), int(row_bounds[high]))
        own_bases = np.repeat(bases[low:high], walks.counts[low:high])
        yield JoinedWindow(spans[low:high], data, walks.starts[rows], walks.sizes[rows], own_bases)


@dataclass(frozen=True)
class Window:
    """Consecutive records of one file, and the reason for the end of the walk."""

    log: CommitLog
    segment: Segment
    # uint8 (nbytes,), as long as the file; only the records are filled in, and what ended the walk
    data: Bytes
    records: Walk
    end: int  # physical offset where the whole walk ends, of which the window may be a part

    @property
    def stopped(self) -> int:
        """Physical offset where the walk ended."""
        return self.segment.start + self.records.position

    @property
    def damage(self) -> str | None:
        """Why no record begins where the walk ended; None if the window or the file ends there."""
        if self.records.kind in (StopKind.END, StopKind.BLANK):
            return None
        return self.records.reason or self.records.kind.value

    @cached_property
    def resumed(self) -> int:
        """Physical offset where the walk continues.

        After damage this is the next whole record, or the end of the walk. The search for it may
        read the rest of the file, so it runs on first use.
        """
        if self.damage is None:
            return self.stopped
        return next_record(self.log, self.segment, self.stopped + 1, self.end)

    def headers(
        self, topic: bytes | None = None, max_rows: int = BATCH_ROWS
    ) -> Iterator[tuple[Positions, RecordHeaders, Mask]]:
        """Yield the records in batches: positions in the file, headers, mask of the whole ones.

        Args:
            topic: the topic that all records should have, a hint that saves time if it is right.
            max_rows: of a batch.
        """
        for rows in cut_batches(self.records.sizes(), max_rows, BATCH_BYTES):
            starts = self.records.starts[rows]
            yield starts, *read_headers(self.data, starts, topic)

    def chain(self) -> tuple[Positions, NDArray[np.int64]]:
        """Return the positions of the records, and the bytes of each up to the next frame."""
        return self.records.starts, self.records.sizes()

    def without_torn(self, data: Bytes, headers: RecordHeaders, whole: Mask) -> Mask:
        """Return the mask (n,) of whole records without those that a broker puts into no queue.

        A DLedger log keeps a record whose body is torn. Source: DLedgerCommitLog.java.

        Args:
            data: the bytes that ``record_headers`` was read from.
            headers: n records.
            whole: (n,), which of them are whole.
        """
        if not self.log.framing(self.segment).keeps_torn_records:
            return whole
        whole_headers = headers.take(whole)
        valid = whole.copy()
        valid[whole] = valid_crcs(data, whole_headers, stored_bodies(data, whole_headers))
        return valid

    def rejoined(self) -> tuple[Bytes, Positions, NDArray[np.int64]]:
        """Return all records, also those that the walk stepped over because of a wrong total size.

        The last of these may end after the window, so the file is then read to its end.

        Returns:
            The bytes that hold the records; their positions; their sizes.
        """
        starts = self.records.starts
        if have_true_sizes(self.data, self.segment.start, starts).all():
            return self.data, *self.chain()
        data = _read(self.log, self.segment, int(starts[0]), len(self.data) - int(starts[0]))
        return data, *rejoin(data, self.segment.start, self.records, self.log.framing(self.segment))


def whole_records(log: CommitLog, start: int, end: int) -> Iterator[tuple[Window, RecordHeaders]]:
    """Yield the whole records of a range of the log in batches, each with its window.

    Damage and missing files are passed over.

    Raises:
        FileDeletedError: a file was deleted since it was listed.
    """
    for low, high, segment in log.segment_spans(start, end):
        for window in () if segment is None else walk_forward(log, segment, low, high):
            for _, headers, whole in window.headers():
                yield window, headers.take(whole)


def window_at(
    log: CommitLog,
    segment: Segment,
    start: int,
    end: int,
    size: int | None = None,
    after: FrameNumbers | None = None,
) -> Window:
    """Return one walk over the records whose frames begin in ``[start, end)``.

    Args:
        log: the log of the store.
        segment: the file to walk.
        start: where a frame begins.
        end: where the whole walk ends.
        size: if given, only records that begin in the first ``size`` bytes are in the window, and
            not much after the first long hole of a sparse file.
        after: the numbers of the frame before ``start``, None if they are not known.

    Raises:
        FileDeletedError: the file was deleted since it was listed.
    """
    base = segment.start
    first = start - base
    limit = end - base
    if size is not None:
        limit = next_hole(log, segment, first, min(first + size, limit))
    data = _read(log, segment, first, limit - first + _OVERHANG_BYTES)
    records = walk(data, first, limit, base, log.framing(segment), after)
    if records.position > limit + _OVERHANG_BYTES:
        data = _read(log, segment, first, records.position - first)
    return Window(log, segment, data, records, end)


def next_hole(log: CommitLog, segment: Segment, start: int, end: int) -> int:
    """Return the position where a walk from ``start`` stops before a long hole.

    A walk looks for records in many places at once, and the rest of a sparse file may be long.
    """
    position = start
    for low, high in log.file_of(segment).data_spans(start, end, is_appended=True):
        if low - position >= _LONG_HOLE:
            break
        position = high
    return min(position + _HOLE_BYTES, end) if end - position >= _LONG_HOLE else end


def _read(log: CommitLog, segment: Segment, position: int, size: int) -> Bytes:
    """Return an array as long as the file, in which the bytes from a position on are filled."""
    return log.read_in_place(segment, np.array([position]), np.array([size]))


def walk_forward(
    log: CommitLog,
    segment: Segment,
    start: int,
    end: int,
    after: FrameNumbers | None = None,
    *,
    is_scan: bool = False,
) -> Iterator[Window]:
    """Yield the records of one file whose frames begin in ``[start, end)``, window by window.

    The walk ends at the blank that closes the file. A window with :attr:`Window.damage` ends where
    no record follows; the next one begins at :attr:`Window.resumed`.

    Args:
        log: the log of the store.
        segment: the file to walk.
        start: where a frame begins.
        end: at most the end of the file; the last record may end after it.
        after: the numbers of the frame before ``start``, None if they are not known.
        is_scan: whether most callers read on to the end, so that the second window of a remote file
            is fetched with the first.

    Raises:
        FileDeletedError: the file was deleted since it was listed.
    """
    size = min(WINDOW_BYTES, log.storage.window_bytes)
    prefetched = 0  # position in the file up to which bytes were prefetched
    n_windows = 0
    if log.is_remote and is_scan:
        n_windows, first = 2, start - segment.start
        prefetched = _read_ahead(log, segment, first, min(first + 2 * size, end - segment.start))
    while start < end:
        window = window_at(log, segment, start, end, size, after)
        if log.is_remote and window.damage is None and window.records.kind is not StopKind.BLANK:
            # A caller that looks at few records only ends the walk soon.
            n_windows = min(n_windows + 1, _WINDOWS_AHEAD)
            position = window.records.position
            stop = min(position + n_windows * size, end - segment.start)
            prefetched = _read_ahead(log, segment, max(position, prefetched), stop)
        yield window
        if window.records.kind is StopKind.BLANK:
            return
        start = window.resumed
        after = window.records.last if window.damage is None else None


def _read_ahead(log: CommitLog, segment: Segment, start: int, stop: int) -> int:
    """Begin to fetch the written bytes of a range of positions; return their end."""
    for low, high in log.file_of(segment).data_spans(start, stop, is_appended=True):
        n_bytes = high - low + _OVERHANG_BYTES
        log.file_of(segment).read_ahead(np.array([low], np.int64), np.array([n_bytes], np.int64))
        start = low + n_bytes
    return start


def walk_back(log: CommitLog, segment: Segment, end: int) -> Iterator[Window]:
    """Yield walks over the last records of a file before ``end``, each from further back.

    Damage ends a walk, so the one over what follows the damage comes before it. The last walk
    begins at the start of the file. A walk without a record is left out.

    Raises:
        FileDeletedError: the file was deleted since it was listed.
    """
    size = NEWEST_BYTES
    low = end
    while low > segment.start:
        low = max(segment.start, end - size)
        first = next_record(log, segment, low, end) if low > segment.start else low
        windows: list[Window] = []
        while first < end and not (windows and windows[-1].records.kind is StopKind.BLANK):
            windows.append(window_at(log, segment, first, end))
            first = windows[-1].resumed
        yield from (window for window in reversed(windows) if len(window.records.starts))
        size *= _GROWTH


def newest_windows(log: CommitLog) -> Iterator[Window]:
    """Yield the walks back from the last byte of each file, the newest file first."""
    for segment in reversed(log.segments):
        yield from walk_back(log, segment, log.written_end(segment))


def next_record(log: CommitLog, segment: Segment, start: int, end: int) -> int:
    """Return where the frame of the first whole record in ``[start, end)`` begins, else ``end``.

    Raises:
        FileDeletedError: the file was deleted since it was listed.
    """
    base = segment.start
    framing = log.framing(segment)
    spans = log.file_of(segment).data_spans(start - base, end - base, is_appended=True)
    for low, high in (block for span in spans for block in search_blocks(*span)):
        header_bytes = framing.head_bytes + FIXED_PART_V4.itemsize
        data = _read(log, segment, low, high - low + header_bytes)
        frames = find_frames(data, low, high, base, framing)
        if len(frames):
            headers = frames + framing.head_bytes
            data = log.read_in_place(segment, headers, total_sizes(data, headers))
            records = frames[read_headers(data, headers)[1]]
            if len(records):
                return base + int(records[0])
    return end
