"""The files of one BatchConsumeQueue, read-only: a 46-byte unit for each record.

A record holds one message or several. To the rest of the package such a queue looks like any other:
every queue offset has a unit, and the messages of one inner batch share theirs. The record shows
which of its messages has which queue offset.

Units have no checksum, so a damaged one may claim any queue offsets. A unit that its neighbours
contradict is trusted only if its record confirms it. Queue offsets that no trusted unit covers read
as never written. But where one unit stands right after another, and leaps ahead, no unit was there:
the log had lost the records in between when the queue was built.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.layout import (
    BATCH_UNIT,
    GAP_TAGS_CODE,
    MAX_BATCH,
    MAX_FILE_BYTES,
    Mask,
    Positions,
)
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles, Segment
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.storage import StoredFile
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import recovered_files
from rmqstore.storage.queue.queue import Units, find_first

MAX_QUEUE_OFFSET = 1 << 60  # sums stay far from the limit of an int64

_UNIT = BATCH_UNIT.itemsize
FILES_AT_ONCE = 4  # whose units are kept
_PEEKED_UNITS = 64
_MAX_CONFIRMED = 1 << 12  # units of a file whose records are read
_MAX_FILE_UNITS = 4_000_000  # held in memory; a broker's files have 300,000


class Batches(NamedTuple):
    """Units as columns, (n,) each; their queue offsets rise and do not overlap."""

    numbers: Positions  # ordinal of the unit in the queue, 0 for the first one ever written
    starts: Positions  # queue offset of its first message
    ends: Positions
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    def take(self, rows: slice | Mask | Positions) -> Batches:
        """Return the chosen units."""
        return Batches(*(column[rows] for column in self))


NO_BATCHES: Final = Batches(*[np.empty(0, np.int64)] * 6)


def trusted(
    units: NDArray[np.void], first: int, confirms: Callable[[int, int, int], bool] | None = None
) -> Batches:
    """Return the units whose queue offsets agree with those of the units around them.

    Two units are linked if they stand side by side and the messages of the second begin where those
    of the first end. A unit without a link is dropped if a unit beside it has one, and its record
    does not confirm it. Of the others :func:`agreeing` chooses, and each ends where the next one
    begins at the latest.

    An example with a unit whose queue offset is damaged, and one whose number of messages is::

        numbers     0    1       2     3      4      5      6
        messages  0-3  3-7  99-101  9-11  11-19  15-16  16-18   # first and end, which is excluded
        linked    yes  yes      no   yes    yes    yes    yes
        returned  0-3  3-7          9-11  11-15  15-16  16-18   # no unit covers 7 and 8

    Args:
        units: BATCH_UNIT (n,).
        first: number of the first unit.
        confirms: returns whether the record with a physical offset and a size names a queue offset.
    """
    bases, counts = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
    valid = np.flatnonzero((bases >= 0) & (bases < MAX_QUEUE_OFFSET) & (counts > 0))
    units, bases, counts = units[valid], bases[valid], counts[valid]
    batches = Batches(
        valid + first,
        bases,
        bases + counts,
        units["physical_offset"].astype(np.int64),
        units["size"].astype(np.int64),
        units["tags_code"].astype(np.int64),
    )
    is_contiguous = batches.starts[1:] == batches.ends[:-1]
    if is_contiguous.all():  # as in nearly all files
        return batches
    is_adjacent = batches.numbers[1:] == batches.numbers[:-1] + 1
    is_link = is_adjacent & is_contiguous  # between a unit and the next one
    is_linked = np.append(False, is_link) | np.append(is_link, False)
    is_after_linked = np.append(False, is_adjacent & is_linked[:-1])
    is_before_linked = np.append(is_adjacent & is_linked[1:], False)
    is_kept = is_linked | ~(is_after_linked | is_before_linked)
    if confirms is not None:
        for row in np.flatnonzero(~is_kept)[:_MAX_CONFIRMED].tolist():
            physical_offset, size = batches.physical_offsets[row], batches.sizes[row]
            is_kept[row] = confirms(int(physical_offset), int(size), int(batches.starts[row]))
    batches = batches.take(is_kept)
    batches = batches.take(agreeing(batches.starts, batches.ends, MAX_BATCH))
    np.minimum(batches.ends[:-1], batches.starts[1:], out=batches.ends[:-1])
    return batches


def agreeing(starts: Positions, ends: Positions, widest: int) -> Mask:
    """Return a mask (n,) of the rising ranges that continue a neighbour or are continued by one.

    A neighbour is one or two steps away. The gap between the two is not negative, and no more than
    ``widest`` for each step. If no two ranges agree, the mask has all ranges that rise.

    An example with ranges that are up to 10 wide::

        starts      0     3   500     8    12
        ends        3     8   502    12    15
        one step      0   492  -494     0        # gaps: the first and the last agree
        two steps       497     0  -490          # the one in the middle does
        votes       1     2     0     2     1
        mask      yes   yes    no   yes   yes
    """
    votes = np.zeros(len(starts), np.int64)
    for step in (1, 2):
        gaps = starts[step:] - ends[:-step]
        agree = (gaps >= 0) & (gaps <= widest * step) & (starts[step:] > starts[:-step])
        votes[step:] += agree
        votes[: len(agree)] += agree
    elected = np.flatnonzero(votes > 0) if votes.any() else np.arange(len(starts))
    highest = np.maximum.accumulate(starts[elected])
    rises = np.ones(len(elected), np.bool_)
    rises[1:] = starts[elected[1:]] > highest[:-1]
    mask = np.zeros(len(starts), np.bool_)
    mask[elected[rises]] = True
    return mask


def with_gaps(batches: Batches) -> Batches:
    """Return units with one more for each gap before a unit that stands right after another.

    It leads to the record before the gap, which a broker serves there. The tags code says that this
    is no message of that record.
    """
    widths = batches.starts[1:] - batches.ends[:-1]
    is_gap = (np.diff(batches.numbers) == 1) & (widths > 0) & (widths <= MAX_BATCH)
    rows = np.flatnonzero(is_gap)
    gaps = batches.take(rows)._replace(
        starts=batches.ends[rows],
        ends=batches.starts[rows + 1],
        tags_codes=np.full(len(rows), GAP_TAGS_CODE),
    )
    columns = zip(batches, gaps, strict=True)
    return Batches(*(np.insert(column, rows + 1, values) for column, values in columns))


def with_unknown(batches: Batches, start: int, number: int) -> Batches:
    """Append a unit for one message of which only the queue offset is known."""
    unknown = (number, start, start + 1, 0, 0, 0)
    columns = zip(batches, unknown, strict=True)
    return Batches(*(np.append(column, value) for column, value in columns))


def count_written(file: StoredFile, segment: Segment) -> int:
    """Return how many units of BATCH_UNIT were ever written to a file; the end of a unit is zeros.

    Raises:
        CorruptQueueError: there are more than memory should hold.
    """
    n_units = -(-file.written_end(segment.size) // _UNIT)
    if n_units > _MAX_FILE_UNITS:
        reason = f"{n_units} units in one file, more than memory should hold"
        raise CorruptQueueError(segment.file, 0, reason)
    return n_units


class _File(NamedTuple):
    """The trusted units of one file."""

    batches: Batches
    n_written: int  # units that were ever written, including damaged ones


class _Known(NamedTuple):
    """The files that fit into the queue, in order, with their first queue offsets."""

    segments: list[Segment]
    begins: list[int]
    lost_tail: bool  # newer files hold units, but none of them fits


class BatchConsumeQueue:
    """The files of one queue of a topic with ``queue.type=BatchCQ``.

    Source: BatchConsumeQueue.java.
    """

    is_batch = True
    is_recovered = False
    end_files = None  # which show where the queue begins and ends

    def __init__(
        self, folder: Path, files: OpenFiles | None = None, log: CommitLog | None = None
    ) -> None:
        self.folder = folder
        self._log = log  # whose records confirm units
        self._files = MappedFileQueue([folder], files or OpenFiles())
        self._forget()

    def _forget(self) -> None:
        self._cached: Recent[Segment, _File] = Recent(FILES_AT_ONCE)
        # the queue offset and the number of the first trusted unit
        self._begins: dict[Segment, tuple[int, int]] = {}
        self._known: _Known | None = None

    def refresh(self) -> None:
        """List the files again."""
        self._files.refresh()
        self._forget()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    @property
    def is_present(self) -> bool:
        """Whether there is a file."""
        return bool(self._files.segments)

    @property
    def segments(self) -> list[Segment]:
        """The files, by byte offset."""
        return self._files.segments

    def position(self, queue_offset: int) -> int:
        """Return where the unit of a message stands, or should, in the address space of files."""
        segment = self._find(queue_offset)
        if segment is None:
            return self._files.min_offset
        batches = self._load(segment).batches
        row = int(np.searchsorted(batches.starts, queue_offset, side="right")) - 1
        if row < 0:
            return segment.start
        return (int(batches.numbers[row]) + int(queue_offset >= batches.ends[row])) * _UNIT

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all files but the last."""
        return sum(segment.size for segment in self._files.segments[:-1])

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of a message's unit; zeros without one."""
        physical_offset, size, tags_code = self.units_of(np.array([queue_offset]))
        return int(physical_offset[0]), int(size[0]), int(tags_code[0])

    def units(self, start: int, end: int) -> Units:
        """Return the unit of each message in ``[start, end)``, a part of one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: a file was deleted since the store was opened.
        """
        counts, batches = self._spread(start, end)
        return Units(*(np.repeat(column, counts) for column in batches[3:]))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units of some messages; zeros where no unit covers one."""
        known = self._files_known()
        files = np.searchsorted(known.begins, queue_offsets, side="right") - 1
        columns = Units(*(np.zeros(len(queue_offsets), np.int64) for _ in Units._fields))
        for file in np.unique(files[files >= 0]).tolist():
            rows = np.flatnonzero(files == file)
            batches = self._load(known.segments[file]).batches
            unit_rows = np.searchsorted(batches.starts, queue_offsets[rows], side="right") - 1
            rows, unit_rows = rows[unit_rows >= 0], unit_rows[unit_rows >= 0]
            is_covered = queue_offsets[rows] < batches.ends[unit_rows]
            for column, values in zip(columns, batches[3:], strict=True):
                column[rows[is_covered]] = values[unit_rows[is_covered]]
        return columns

    def prefetch(self, _queue_offsets: NDArray[np.int64], _count: int) -> None:
        """Do nothing: the units are read a file at a time."""

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        The messages of a record share its bytes evenly. Raises as :meth:`units` does.
        """
        counts, batches = self._spread(start, end)
        ranks = np.arange(start, end) - np.repeat(batches.starts, counts)
        lengths = np.maximum(np.repeat(batches.ends - batches.starts, counts), 1)
        is_gap = batches.tags_codes == GAP_TAGS_CODE
        sizes = np.repeat(np.where(is_gap, 0, np.clip(batches.sizes, 0, MAX_FILE_BYTES)), counts)
        return sizes * (ranks + 1) // lengths - sizes * ranks // lengths

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that have units; a few damaged ones end no part."""
        run: tuple[int, int] | None = None
        number = 0
        for batches in self._fitted(start, end):
            previous_ends = np.append(run[1] if run else batches.starts[0], batches.ends[:-1])
            steps = batches.numbers - np.append(number, batches.numbers[:-1])
            # A gap that the units in between cannot cover: the queue is torn there.
            is_torn = batches.starts - previous_ends > MAX_BATCH * np.maximum(steps, 1)
            is_torn[0] |= run is None
            # A new span begins at every torn row.
            firsts = np.unique(np.append(0, np.flatnonzero(is_torn)))
            lasts = np.append(firsts[1:], len(is_torn)) - 1
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                span = (int(batches.starts[first]), int(batches.ends[last]))
                if not is_torn[first] and run is not None:
                    span = (run[0], span[1])
                elif run is not None:
                    yield from _within(run, start, end)
                run = span
            number = int(batches.numbers[-1])
        if run is not None:
            yield from _within(run, start, end)

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a message's unit and its position there, or where it should stand."""
        segment = self._find(queue_offset)
        if segment is None:
            return str(self.folder), 0
        position = self.position(queue_offset)
        # The next file may begin in a gap.
        segment = self._files.find(position) or segment
        return str(segment.path), position - segment.start

    def end(self) -> int:
        """Return the queue offset after the last message; a damaged last unit counts as one.

        Source: BatchConsumeQueue.java#getMaxOffsetInQueue.
        """
        known = self._files_known()
        if not known.segments:
            return int(known.lost_tail)
        return int(self._load(known.segments[-1]).batches.ends[-1]) + int(known.lost_tail)

    @property
    def begin(self) -> int:
        """The first queue offset with a unit, even if its record was deleted; 0 without files."""
        known = self._files_known()
        return known.begins[0] if known.begins else 0

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``.

        The record of a damaged unit counts as existing.

        Source: BatchConsumeQueue.java#reviseMinOffsetInQueue.
        """
        first = find_first(
            self.begin, end, lambda offset: self.unit(offset)[0] >= min_physical_offset
        )
        for batches in self._fitted(self.begin, first):
            offsets = batches.physical_offsets
            is_damaged = (batches.sizes <= 0) | (offsets < 0)
            existing = np.flatnonzero(is_damaged | (offsets >= min_physical_offset))
            if len(existing):
                return min(first, int(batches.starts[existing[0]]))
        return first

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end."""
        cut = find_first(start, end, lambda offset: self.unit(offset)[0] >= log_end)
        last = self.unit(cut - 1)
        if last[-1] == GAP_TAGS_CODE:
            cut = find_first(start, cut, lambda offset: self.unit(offset) == last)
        for batches in self._fitted(cut, end):
            offsets = batches.physical_offsets
            is_before = (offsets >= 0) & (offsets < log_end) & (batches.sizes > 0)
            before = np.flatnonzero(is_before & (batches.tags_codes != GAP_TAGS_CODE))
            if len(before):
                cut = max(cut, min(int(batches.ends[before[-1]]), end))
        return cut

    def kept_end(self, log_end: int, *, is_cut: bool) -> int:
        """Return the queue offset after the last unit that a starting broker keeps.

        See :func:`consumequeue.kept_end`. A last file whose first unit was never written, but is
        kept, lets the queue begin again at 0.

        Source: BatchConsumeQueue.java#recover, #truncateDirtyLogicFiles, #reviseMaxOffsetInQueue.
        """
        segments = recovered_files(self.segments)
        end = self._end_before(segments[0]) if segments else 0
        kept: list[tuple[Segment, NDArray[np.void]]] = []
        for segment in segments:
            units = self._read_units(segment, 0, segment.size // _UNIT)
            is_whole = (units["size"] > 0) & (units["base_offset"] >= 0) & (units["batch_size"] > 0)
            is_whole &= units["physical_offset"] >= 0
            n_kept = int(np.argmin(np.append(is_whole, False)))
            if n_kept:
                kept.append((segment, units[:n_kept]))
                end = _end_of(units[n_kept - 1])
            elif is_cut and not units[:1].tobytes().strip(b"\0"):
                return 0
            if n_kept < segment.size // _UNIT:
                break
        for segment, units in reversed(kept) if is_cut else ():
            is_behind = units["physical_offset"] >= log_end
            n_before = int(np.argmax(np.append(is_behind, True)))
            if n_before:
                end = _end_of(units[n_before - 1])
                break
            end = self._end_before(segment)
        cut = self.cut(min(self.begin, end), end, log_end)
        return cut if cut > self.begin else 0

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
        total = 0
        for batches in self._fitted(start, end):
            is_counted = (batches.ends > start) & (batches.starts < end) & (batches.sizes > 0)
            is_counted &= batches.physical_offsets >= min_physical_offset
            is_counted &= batches.tags_codes != GAP_TAGS_CODE
            total += int(np.count_nonzero(is_counted))
        return total

    def _spread(self, start: int, end: int) -> tuple[NDArray[np.int64], Batches]:
        """Return how many messages of ``[start, end)`` each unit covers, (m,), and the units.

        Units of zeros cover the gaps.
        """
        end = max(start, end)
        if list(self.runs(start, end)) != [(start, end)] and start < end:
            raise OffsetOutOfRangeError(
                f"{self.folder}: queue offsets {start} to {end} are not all in its files"
            )
        counts = [np.empty(0, np.int64)]
        parts = [NO_BATCHES]
        covered_end = start
        for batches in self._fitted(start, end):
            inside = batches.take((batches.ends > covered_end) & (batches.starts < end))
            if not len(inside.starts):
                continue
            starts = np.maximum(inside.starts, covered_end)
            ends = np.minimum(inside.ends, end)
            # Every second unit stands for the gap before the next one; most gaps are empty.
            gapped = Batches(*(np.zeros(2 * len(starts), np.int64) for _ in inside))
            for column, values in zip(gapped, inside, strict=True):
                column[1::2] = values
            widths = np.empty(2 * len(starts), np.int64)
            widths[0::2] = starts - np.append(covered_end, ends[:-1])
            widths[1::2] = ends - starts
            counts.append(widths)
            parts.append(gapped)
            covered_end = int(ends[-1])
        counts.append(np.array([end - covered_end]))
        parts.append(Batches(*[np.zeros(1, np.int64)] * 6))
        units = Batches(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return np.concatenate(counts), units

    def _fitted(self, start: int, end: int) -> Iterator[Batches]:
        """Yield the units of the files with messages of ``[start, end)``.

        A message that two files claim belongs to the second.
        """
        known = self._files_known()
        covered_end = -1
        for number in range(max(bisect_right(known.begins, start) - 1, 0), len(known.segments)):
            begin = known.begins[number]
            if begin >= end and covered_end >= end:
                return
            batches = self._load(known.segments[number]).batches
            if number + 1 < len(known.segments):
                limit = known.begins[number + 1]
                batches = batches.take((batches.starts >= begin) & (batches.starts < limit))
                np.minimum(batches.ends, limit, out=batches.ends)
            else:
                batches = batches.take(batches.starts >= begin)
                if known.lost_tail and len(batches.starts):
                    lost_number = int(batches.numbers[-1]) + 1
                    batches = with_unknown(batches, int(batches.ends[-1]), lost_number)
            if len(batches.starts):
                covered_end = int(batches.ends[-1])
                yield batches

    def _find(self, queue_offset: int) -> Segment | None:
        known = self._files_known()
        number = bisect_right(known.begins, queue_offset) - 1
        return known.segments[number] if number >= 0 else None

    def _files_known(self) -> _Known:
        """Return the files whose queue offsets fit the queue.

        Cached, except for files that hold no unit yet.
        """
        # Another thread may list the files again meanwhile.
        known, by_file, listed = self._known, self._begins, self._files.segments
        if known is not None and len(by_file) == len(listed):
            return known
        for segment in reversed(listed):  # where a file begins shows whether a gap is before it
            if segment in by_file:
                continue
            batches = NO_BATCHES
            if segment != listed[0]:
                units = self._read_units(segment, 0, _PEEKED_UNITS)
                batches = trusted(units, segment.start // _UNIT, self._confirms)
            if not len(batches.starts):
                batches = self._load(segment).batches
            if len(batches.starts):
                by_file[segment] = int(batches.starts[0]), int(batches.numbers[0])
        written = [segment for segment in listed if segment in by_file]
        begins = np.array([by_file[segment][0] for segment in written], np.int64)
        widest = max((segment.size // _UNIT for segment in written), default=0) * MAX_BATCH
        fitting = np.flatnonzero(agreeing(begins, begins, widest))
        segments = [written[row] for row in fitting]
        tail = written[fitting[-1] + 1 :] if len(fitting) else []
        has_lost_tail = any(self._load(segment).n_written for segment in tail)
        known = self._known = _Known(segments, begins[fitting].tolist(), has_lost_tail)
        return known

    def _load(self, segment: Segment) -> _File:
        """Return the trusted units of one file, to which a broker may still be writing."""
        kept = self._cached
        cached = kept.get(segment)
        if cached is not None and not len(self._read_units(segment, cached.n_written, 1)):
            return cached
        n_written = count_written(self._files.file_of(segment), segment)
        first = segment.start // _UNIT
        last = first + n_written - 1
        batches = trusted(self._read_units(segment, 0, n_written), first, self._confirms)
        if n_written and (not len(batches.starts) or batches.numbers[-1] != last):
            end = int(batches.ends[-1]) if len(batches.starts) else self._end_before(segment)
            batches = with_unknown(batches, end, last)
        if len(batches.starts) and [segment] == self._files.segments[:1]:
            start, number = int(batches.starts[0]), int(batches.numbers[0])
            if number > first and start:
                unknown = with_unknown(NO_BATCHES, start - 1, number - 1)
                columns = zip(unknown, batches, strict=True)
                batches = Batches(*(np.concatenate(pair) for pair in columns))
        next_file = self._files.find(segment.end)
        # Units that another file's place covers are not read, and do not stand for a gap.
        is_whole = self._files.file_of(segment).size <= segment.size
        if next_file in self._begins and len(batches.starts) and is_whole:
            batches = with_gaps(with_unknown(batches, *self._begins[next_file])).take(slice(-1))
        return kept.put(segment, _File(with_gaps(batches), n_written))

    def _confirms(self, physical_offset: int, size: int, queue_offset: int) -> bool:
        """Return whether the record of a unit has its size and names its queue offset."""
        if self._log is None:
            return False
        with suppress(CorruptRecordError, OffsetOutOfRangeError):
            fixed = self._log.parts(physical_offset).fixed
            return bool(fixed["total_size"] == size and fixed["queue_offset"] == queue_offset)
        return False

    def _end_before(self, segment: Segment) -> int:
        """Return the queue offset after the last unit in the files before one, 0 without units."""
        for other in reversed(self._files.segments):
            if other.start >= segment.start:
                continue
            units = self._read_units(other, 0, other.size // _UNIT)
            batches = trusted(units, other.start // _UNIT)
            if len(batches.starts):
                return int(batches.ends[-1])
        return 0

    def _read_units(self, segment: Segment, first: int, count: int) -> NDArray[np.void]:
        """Return whole units of a file, BATCH_UNIT (n,), without the zeros after the last one."""
        stored = np.empty(max(min(count, segment.size // _UNIT - first), 0) * _UNIT, np.uint8)
        n_read = self._files.file_of(segment).read_into(stored, first * _UNIT)
        written = np.flatnonzero(stored[:n_read])
        n_units = -(-(int(written[-1]) + 1) // _UNIT) if len(written) else 0
        return stored[: min(n_units, n_read // _UNIT) * _UNIT].view(BATCH_UNIT)


def _within(run: tuple[int, int], start: int, end: int) -> Iterator[tuple[int, int]]:
    low, high = max(run[0], start), min(run[1], end)
    if low < high:
        yield low, high


def _end_of(unit: np.void) -> int:
    """Return the queue offset after the messages of a unit."""
    return int(unit["base_offset"]) + int(unit["batch_size"])
