"""The files of one BatchConsumeQueue, read-only: 46-byte units, each for a record of one or several messages.

To the rest of the package such a queue looks like any other: every queue offset has a unit, those of one inner batch
have the same one. Which message of the record a queue offset means is found in the record.

Nothing guards a unit, and one that is damaged may claim any queue offsets. What its neighbours contradict is no unit;
the queue offsets that no unit tells of, where there should be some, read as units that were never written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, OffsetOutOfRangeError
from rmqstore.format.layout import BATCH_UNIT, MAX_BATCH, MAX_FILE_BYTES, Mask
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, Segment
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.queue.batch_units import NO_BATCHES, Batches, agreeing, trusted, with_unknown
from rmqstore.storage.queue.bounds import find_first
from rmqstore.storage.queue.units import Units

_UNIT = BATCH_UNIT.itemsize
_FILES_AT_ONCE = 4
_PEEKED_UNITS = 64
_MAX_FILE_UNITS = 4_000_000  # of which memory holds all; a broker makes files of 300,000


class _File(NamedTuple):
    """What is known of one file."""

    batches: Batches
    n_written: int  # units that were ever written, whole or not


class _Known(NamedTuple):
    """The files that fit into the queue, in its order, and where each begins."""

    segments: list[Segment]
    begins: list[int]
    lost_tail: bool  # newer files hold units, but none that fits


class BatchConsumeQueue:
    """The files of one queue of a topic with ``queue.type=BatchCQ``. Source: BatchConsumeQueue.java."""

    is_batch = True
    is_recovered = False

    def __init__(self, folder: Path, storage: Storage = LOCAL) -> None:
        self.folder = folder
        self._files = MappedFileQueue([folder], mapped_at_once=2, storage=storage)
        self._cached: OrderedDict[Segment, _File] = OrderedDict()
        self._begins: dict[Segment, int] = {}
        self._known: _Known | None = None

    def refresh(self) -> None:
        """List the files again."""
        self._files.refresh()
        self._cached.clear()
        self._begins.clear()
        self._known = None

    def close(self) -> None:
        """Let go of the mapped files."""
        self._files.close()
        self._cached.clear()

    @property
    def is_present(self) -> bool:
        """Whether there is a file."""
        return bool(self._files.segments)

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of the record that holds a message; zeros where no unit says."""
        segment = self._find(queue_offset)
        if segment is None:
            return 0, 0, 0
        found = self._load(segment).batches
        at = int(np.searchsorted(found.starts, queue_offset, side="right")) - 1
        if at < 0 or queue_offset >= found.ends[at]:
            return 0, 0, 0
        return int(found.physical_offsets[at]), int(found.sizes[at]), int(found.tags_codes[at])

    def units(self, start: int, end: int) -> Units:
        """Return the unit of each message in ``[start, end)``, all of which :meth:`runs` gives.

        Raises:
            OffsetOutOfRangeError: a file was deleted since the store was opened.
        """
        counts, found = self._spread(start, end)
        return Units(*(np.repeat(column, counts) for column in found[3:]))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units of some messages; zeros where none says."""
        known = self._files_known()
        files = np.searchsorted(known.begins, queue_offsets, side="right") - 1
        columns = Units(*(np.zeros(len(queue_offsets), np.int64) for _ in Units._fields))
        for file in np.unique(files[files >= 0]).tolist():
            rows = np.flatnonzero(files == file)
            found = self._load(known.segments[file]).batches
            told_by = np.searchsorted(found.starts, queue_offsets[rows], side="right") - 1
            rows, told_by = rows[told_by >= 0], told_by[told_by >= 0]
            is_told = queue_offsets[rows] < found.ends[told_by]
            for column, values in zip(columns, found[3:], strict=True):
                column[rows[is_told]] = values[told_by[is_told]]
        return columns

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` stands for; see ``Queue``."""
        counts, found = self._spread(start, end)
        starts, lengths = np.repeat(found.starts, counts), np.repeat(found.ends - found.starts, counts)
        sizes, ranks = np.repeat(np.clip(found.sizes, 0, MAX_FILE_BYTES), counts), np.arange(start, end) - starts
        lengths = np.maximum(lengths, 1)
        weights: NDArray[np.int64] = sizes * (ranks + 1) // lengths - sizes * ranks // lengths
        return weights

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are there; a few damaged units do not end a part."""
        run: tuple[int, int] | None = None
        number = 0
        for found in self._fitted(start, end):
            before = np.append(run[1] if run else found.starts[0], found.ends[:-1])
            steps = found.numbers - np.append(number, found.numbers[:-1])
            torn = found.starts - before > MAX_BATCH * np.maximum(steps, 1)
            torn[0] |= run is None
            for first, last in _stretches(torn):
                piece = (int(found.starts[first]), int(found.ends[last]))
                if not torn[first] and run is not None:
                    piece = (run[0], piece[1])
                elif run is not None:
                    yield from _within(run, start, end)
                run = piece
            number = int(found.numbers[-1])
        if run is not None:
            yield from _within(run, start, end)

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file and the byte in it where the unit of a message stands, or should stand."""
        segment = self._find(queue_offset)
        if segment is None:
            return str(self.folder), 0
        found = self._load(segment).batches
        at = int(np.searchsorted(found.starts, queue_offset, side="right")) - 1
        if at < 0:
            return str(segment.path), 0
        number = int(found.numbers[at]) + int(queue_offset >= found.ends[at])
        segment = self._files.find(number * _UNIT) or segment  # a gap may lie where the next file begins
        return str(segment.path), number * _UNIT - segment.start

    def end(self) -> int:
        """Return the queue offset after the last message; one more than is known where the last unit is damaged.

        Source: BatchConsumeQueue.java#getMaxOffsetInQueue.
        """
        known = self._files_known()
        if not known.segments:
            return int(known.lost_tail)
        return int(self._load(known.segments[-1]).batches.ends[-1]) + int(known.lost_tail)

    @property
    def begin(self) -> int:
        """The first queue offset that the files have, whether or not its record is still there; 0 without files."""
        known = self._files_known()
        return known.begins[0] if known.begins else 0

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record is not deleted; ``end`` if all are.

        A damaged unit counts as there.

        Source: BatchConsumeQueue.java#reviseMinOffsetInQueue.
        """
        first = find_first(self.begin, end, lambda at: self.unit(at)[0] >= min_physical_offset)
        for found in self._fitted(self.begin, first):
            offsets = found.physical_offsets
            other = np.flatnonzero((found.sizes <= 0) | (offsets < 0) | (offsets >= min_physical_offset))
            if len(other):
                return min(first, int(found.starts[other[0]]))
        return first

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit that points before the end of the log."""
        kept = find_first(start, end, lambda at: self.unit(at)[0] >= log_end)
        for found in self._fitted(kept, end):
            before = np.flatnonzero(
                (found.physical_offsets >= 0) & (found.physical_offsets < log_end) & (found.sizes > 0)
            )
            if len(before):
                kept = max(kept, min(int(found.ends[before[-1]]), end))
        return kept

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units that tell of ``[start, end)`` point into the log from an offset on."""
        total = 0
        for found in self._fitted(start, end):
            is_inside = (found.ends > start) & (found.starts < end)
            is_counted = is_inside & (found.sizes > 0) & (found.physical_offsets >= min_physical_offset)
            total += int(np.count_nonzero(is_counted))
        return total

    def _spread(self, start: int, end: int) -> tuple[NDArray[np.int64], Batches]:
        """Return units that tell of ``[start, end)``, with zeros for what none tells of, and of how many each tells."""
        end = max(start, end)
        if list(self.runs(start, end)) != [(start, end)] and start < end:
            raise OffsetOutOfRangeError(f"{self.folder}: queue offsets {start} to {end} are not all in its files")
        counts, pieces, at = [np.empty(0, np.int64)], [NO_BATCHES], start
        for found in self._fitted(start, end):
            inside = found.take((found.ends > at) & (found.starts < end))
            if not len(inside.starts):
                continue
            starts, ends = np.maximum(inside.starts, at), np.minimum(inside.ends, end)
            # Every second unit stands for a gap before the next one, mostly of no length.
            gapped = Batches(*(np.zeros(2 * len(starts), np.int64) for _ in inside))
            for column, values in zip(gapped, inside, strict=True):
                column[1::2] = values
            widths = np.empty(2 * len(starts), np.int64)
            widths[0::2], widths[1::2] = starts - np.append(at, ends[:-1]), ends - starts
            counts.append(widths)
            pieces.append(gapped)
            at = int(ends[-1])
        counts.append(np.array([end - at]))
        pieces.append(Batches(*[np.zeros(1, np.int64)] * 6))
        return np.concatenate(counts), Batches(*(np.concatenate(column) for column in zip(*pieces, strict=True)))

    def _fitted(self, start: int, end: int) -> Iterator[Batches]:
        """Yield the units of the files that tell of ``[start, end)`` and of the gaps in it, fitted to one another."""
        known, reached = self._files_known(), -1
        for place in range(max(bisect_right(known.begins, start) - 1, 0), len(known.segments)):
            if known.begins[place] >= end and reached >= end:
                return
            found = self._load(known.segments[place]).batches
            if place + 1 < len(known.segments):
                limit = known.begins[place + 1]
                found = found.take((found.starts >= known.begins[place]) & (found.starts < limit))
                np.minimum(found.ends, limit, out=found.ends)
            else:
                found = found.take(found.starts >= known.begins[place])
                if known.lost_tail and len(found.starts):
                    found = with_unknown(found, int(found.ends[-1]), int(found.numbers[-1]) + 1)
            if len(found.starts):
                reached = int(found.ends[-1])
                yield found

    def _find(self, queue_offset: int) -> Segment | None:
        known = self._files_known()
        place = bisect_right(known.begins, queue_offset) - 1
        return known.segments[place] if place >= 0 else None

    def _files_known(self) -> _Known:
        """Return the files that fit; they are looked at once, those without a unit again and again."""
        if self._known is not None and len(self._begins) == len(self._files.segments):
            return self._known
        for segment in self._files.segments:
            if segment not in self._begins and segment == self._files.segments[0]:
                whole = self._load(segment).batches
                if len(whole.starts):
                    self._begins[segment] = int(whole.starts[0])
            elif segment not in self._begins:
                peeked = self._read_units(segment, 0, _PEEKED_UNITS)
                good = trusted(peeked, segment.start // _UNIT)
                if not len(good.starts) and len(peeked):
                    good = self._load(segment).batches
                if len(good.starts):
                    self._begins[segment] = int(good.starts[0])
        begun = [segment for segment in self._files.segments if segment in self._begins]
        begins = np.array([self._begins[segment] for segment in begun], np.int64)
        widest = max((segment.size // _UNIT for segment in begun), default=0) * MAX_BATCH
        kept = np.flatnonzero(agreeing(begins, begins, widest))
        segments = [begun[place] for place in kept]
        tail = begun[kept[-1] + 1 :] if len(kept) else []
        lost = any(self._load(segment).n_written for segment in tail)
        self._known = _Known(segments, begins[kept].tolist(), lost)
        return self._known

    def _load(self, segment: Segment) -> _File:
        """Return what one file tells; a broker may be writing to it."""
        cached = self._cached.get(segment)
        if cached is not None and not len(self._read_units(segment, cached.n_written, 1)):
            self._cached.move_to_end(segment)
            return cached
        written = self._files.open(segment).written_end(segment.size)
        n_written = -(-written // _UNIT)
        if n_written > _MAX_FILE_UNITS:
            reason = f"{n_written} units in one file, more than memory should hold"
            raise CorruptQueueError(str(segment.path), 0, reason)
        first = segment.start // _UNIT
        found = trusted(self._read_units(segment, 0, n_written), first)
        if n_written and (not len(found.starts) or found.numbers[-1] != first + n_written - 1):
            end = int(found.ends[-1]) if len(found.starts) else self._end_before(segment)
            found = with_unknown(found, end, first + n_written - 1)
        if len(found.starts) and segment == self._files.segments[0] and found.numbers[0] > first and found.starts[0]:
            unknown = with_unknown(NO_BATCHES, int(found.starts[0]) - 1, int(found.numbers[0]) - 1)
            found = Batches(*(np.concatenate(columns) for columns in zip(unknown, found, strict=True)))
        loaded = self._cached[segment] = _File(found, n_written)
        if len(self._cached) > _FILES_AT_ONCE:
            self._cached.popitem(last=False)
        return loaded

    def _end_before(self, segment: Segment) -> int:
        """Return the queue offset after the units of the files before one, 0 without any."""
        for other in reversed(self._files.segments[: self._files.segments.index(segment)]):
            good = trusted(self._read_units(other, 0, other.size // _UNIT), other.start // _UNIT)
            if len(good.starts):
                return int(good.ends[-1])
        return 0

    def _read_units(self, segment: Segment, first: int, count: int) -> NDArray[np.void]:
        """Return whole units of a file from one on, BATCH_UNIT (n,), without the zeros after the last."""
        stored = np.empty(max(min(count, segment.size // _UNIT - first), 0) * _UNIT, np.uint8)
        n_read = self._files.open(segment).read_into(stored, first * _UNIT)
        written = np.flatnonzero(stored[:n_read])
        n_units = -(-(int(written[-1]) + 1) // _UNIT) if len(written) else 0
        return stored[: min(n_units, n_read // _UNIT) * _UNIT].view(BATCH_UNIT)


def _stretches(torn: Mask) -> Iterator[tuple[int, int]]:
    """Yield first and last of the rows from one that is torn from the row before, or the first, up to the next."""
    firsts = np.unique(np.append(0, np.flatnonzero(torn)))
    for first, following in zip(firsts.tolist(), [*firsts[1:].tolist(), len(torn)], strict=True):
        yield first, following - 1


def _within(run: tuple[int, int], start: int, end: int) -> Iterator[tuple[int, int]]:
    low, high = max(run[0], start), min(run[1], end)
    if low < high:
        yield low, high
