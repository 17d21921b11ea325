"""One ConsumeQueue, read-only: 20-byte units, ordinal to physical offset; and where the queue begins and ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, OffsetOutOfRangeError
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
        """Return the units ``[start, end)``.

        Raises:
            CorruptQueueError: a file between them is missing or too short.
            OffsetOutOfRangeError: their files were deleted.
        """
        pieces, at = [], start
        while at < end:
            segment = self._files.find(at * _UNIT)
            piece = self._view(segment)[at - segment.start // _UNIT :][: end - at] if segment else None
            if piece is None or not len(piece):
                raise self._missing(at)
            pieces.append(piece)
            at += len(piece)
        return _to_columns(np.concatenate(pieces) if len(pieces) != 1 else pieces[0])

    def _missing(self, queue_offset: int) -> OffsetOutOfRangeError | CorruptQueueError:
        first = self.segments[0].start // _UNIT if self.segments else 0
        if queue_offset < first or not self.segments:
            return OffsetOutOfRangeError(
                f"{self.folder}: queue offset {queue_offset} was deleted (retention), the queue files begin at {first}"
            )
        reason = f"the file is missing or too short: queue offset {queue_offset} should stand there"
        before = [segment for segment in self.segments if segment.start <= queue_offset * _UNIT]
        return CorruptQueueError(str(before[-1].path), queue_offset * _UNIT - before[-1].start, reason)

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file and the byte in it where a unit stands, to name it in an error."""
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return str(self.folder), queue_offset * _UNIT
        return str(segment.path), queue_offset * _UNIT - segment.start

    def end(self) -> int:
        """Return the queue offset behind the last unit written.

        Raises:
            CorruptQueueError: units stand behind one that was never written or is damaged.

        Source: ConsumeQueue.java#recover, which stops at the first unit without a size.
        """
        for segment in reversed(self.segments):
            units = self._view(segment)
            if not len(units):
                continue
            n_written = _count_written(units)
            self._check_rest(segment, n_written)
            if n_written:
                return segment.start // _UNIT + n_written
        return self.segments[0].start // _UNIT if self.segments else 0

    def _check_rest(self, segment: Segment, n_written: int) -> None:
        """Prove that nothing stands behind the last unit: the search for it assumed so.

        A queue file is sparse, so only the parts that hold data are looked at.
        """
        data = self._files.open(segment).data
        for start, stop in _data_ranges(segment.path, n_written * _UNIT, len(data)):
            rest = np.flatnonzero(data[start:stop])
            if not len(rest):
                continue
            if _is_written(self._view(segment)[n_written]):
                return  # a broker appended meanwhile; the end that was found is an end that was
            reason = f"no unit, though more bytes follow (the first at byte {start + int(rest[0])})"
            raise CorruptQueueError(str(segment.path), n_written * _UNIT, reason)

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record is not deleted; ``end`` if all are.

        Pre-blank units, which stand for offsets before the queue's first, are none.

        Source: ConsumeQueue.java#correctMinOffset; unlike it, the search is not limited to the first file.
        """
        begin = self.segments[0].start // _UNIT if self.segments else 0

        def is_there(at: int) -> bool:
            physical_offset, size, _ = self.unit(begin + at)
            return physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE

        return begin + _search(end - begin, is_there)

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
        return whole_units(data)


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
