"""One ConsumeQueue, read-only: 20-byte units, ordinal to physical offset; and where the queue begins and ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.files.mapped_file_queue import MappedFileQueue, Segment
from rmqstore.format.layout import PRE_BLANK_SIZE, QUEUE_UNIT, Bytes

_UNIT = QUEUE_UNIT.itemsize


class Units(NamedTuple):
    """Consecutive units of a queue as columns, native byte order, (n,)."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]


class ConsumeQueue:
    """The files of one queue of one topic. Source: ConsumeQueue.java.

    Numbers of units are queue offsets: the ordinal of a message in its queue, from the first there ever was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = MappedFileQueue([folder], mapped_at_once=2)

    @property
    def segments(self) -> list[Segment]:
        """The files, by byte offset."""
        return self._files.segments

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros where no file has it."""
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return 0, 0, 0
        units = self._view(segment)
        at = queue_offset - segment.start // _UNIT
        return units[at].item() if at < len(units) else (0, 0, 0)

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, all of which the files hold: see :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: a file was deleted since the store was opened.
        """
        pieces, at = [], start
        while at < end:
            segment = self._files.find(at * _UNIT)
            piece = None if segment is None else self._view(segment)[at - segment.start // _UNIT :][: end - at]
            if piece is None or not len(piece):
                raise OffsetOutOfRangeError(f"{self.folder}: queue offset {at} is in none of the queue's files")
            pieces.append(piece)
            at += len(piece)
        return _to_columns(np.concatenate(pieces) if len(pieces) != 1 else pieces[0])

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that the files hold; what lies between is in a missing or cut file."""
        begun = reached = start
        for segment in self.segments:
            first, stop = segment.start // _UNIT, (segment.start + segment.size) // _UNIT
            low, high = max(first, start), min(stop, end)
            if low >= high:
                continue
            if low > reached:
                if reached > begun:
                    yield begun, reached
                begun = low
            reached = high
        if reached > begun:
            yield begun, reached

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file and the byte in it where a unit stands, to name it in an error."""
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return str(self.folder), queue_offset * _UNIT
        return str(segment.path), queue_offset * _UNIT - segment.start

    def end(self) -> int:
        """Return the queue offset behind the last unit, whole or not, that was ever written.

        Units are found by bisection; that nothing stands behind the last one is then looked up, for one damaged unit
        where the search came by would else hide all that follow it.

        Source: ConsumeQueue.java#recover.
        """
        for segment in reversed(self.segments):
            units = self._view(segment)
            n_written = self._behind_last(segment, _count_written(units))
            if n_written:
                return segment.start // _UNIT + n_written
        return self.segments[0].start // _UNIT if self.segments else 0

    def _behind_last(self, segment: Segment, n_written: int) -> int:
        """Return how many units reach up to the last byte that is not zero, of which so many are known.

        A queue file is sparse, so only the parts that hold data are looked at.
        """
        data = self._files.open(segment).data[: segment.size]
        for start, stop in _data_ranges(segment.path, n_written * _UNIT, len(data)):
            rest = np.flatnonzero(data[start:stop])
            if len(rest):
                n_written = max(n_written, (start + int(rest[-1])) // _UNIT + 1)
        return n_written

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record is not deleted; ``end`` if all are.

        Pre-blank units, which stand for offsets before the queue's first, are none. A damaged unit counts as there.

        Source: ConsumeQueue.java#correctMinOffset; unlike it, the search is not limited to the first file.
        """
        begin = self.segments[0].start // _UNIT if self.segments else 0

        def is_there(at: int) -> bool:
            physical_offset, size, _ = self.unit(begin + at)
            return physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE

        found = begin + _search(end - begin, is_there)
        for low, high in self.runs(begin, found):
            units = self.units(low, high)
            sizes, offsets = units.sizes, units.physical_offsets
            filler = (sizes == PRE_BLANK_SIZE) & (offsets == 0)
            other = np.flatnonzero(~filler & ((sizes <= 0) | (offsets < 0) | (offsets >= min_physical_offset)))
            if len(other):
                return low + int(other[0])
        return found

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` behind the last unit that points before the end of the log."""
        found = start + _search(end - start, lambda at: self.unit(start + at)[0] >= log_end)
        kept = found
        for low, high in self.runs(found, end):
            offsets = self.units(low, high).physical_offsets
            before = np.flatnonzero((offsets >= 0) & (offsets < log_end) & (self.units(low, high).sizes > 0))
            if len(before):
                kept = low + int(before[-1]) + 1
        return kept

    def search(self, start: int, end: int, found: Callable[[int], bool]) -> int:
        """Return the first queue offset in ``[start, end)`` where ``found`` holds, ``end`` if none; by bisection."""
        return start + _search(end - start, lambda at: found(start + at))

    def close(self) -> None:
        """Let go of the mapped files."""
        self._files.close()

    def _view(self, segment: Segment) -> NDArray[np.void]:
        try:
            data = self._files.open(segment).data
        except FileNotFoundError as err:
            raise OffsetOutOfRangeError(f"{segment.path} was deleted while it was read (retention)") from err
        return whole_units(data[: segment.size])


def whole_units(data: Bytes) -> NDArray[np.void]:
    """Return the units in the bytes of a queue file, QUEUE_UNIT (n,); bytes behind the last whole one are left out."""
    return data[: len(data) // _UNIT * _UNIT].view(QUEUE_UNIT)


def _to_columns(units: NDArray[np.void]) -> Units:
    return Units(*(units[name].astype(np.int64) for name in QUEUE_UNIT.names or ()))


def _is_written(unit: np.void) -> bool:
    return bool(unit["size"] > 0 and unit["physical_offset"] >= 0)


def _count_written(units: NDArray[np.void]) -> int:
    return _search(len(units), lambda at: not _is_written(units[at]))


def _search(count: int, found: Callable[[int], bool]) -> int:
    """Return the first of ``range(count)`` for which ``found`` holds, ``count`` if none; it holds for all behind it."""
    low, high = 0, max(count, 0)
    while low < high:
        middle = (low + high) // 2
        if found(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _data_ranges(path: Path, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a sparse file that hold data, in bounded pieces."""
    piece = 1 << 20
    with path.open("rb", buffering=0) as file:
        while start < end:
            try:
                start = max(start, os.lseek(file.fileno(), start, os.SEEK_DATA))
                stop = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), end, start + piece)
            except OSError:  # ENXIO: no data behind
                return
            if start >= end:
                return
            yield start, stop
            start = stop
