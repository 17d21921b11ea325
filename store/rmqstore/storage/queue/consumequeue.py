"""One ConsumeQueue, read-only: 20-byte units, ordinal to physical offset; and where the queue begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.layout import MAX_FILE_BYTES, PRE_BLANK_SIZE, QUEUE_UNIT, Mask
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, Segment
from rmqstore.storage.files.storage import Storage

_UNIT = QUEUE_UNIT.itemsize
_UNITS_AT_ONCE = 1 << 19
UNITS_AROUND = 64  # of a damaged one, that outvote it


class Units(NamedTuple):
    """Consecutive units of a queue as columns, native byte order, (n,)."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.void]) -> Units:
        """Return stored units, QUEUE_UNIT (n,), as columns."""
        return cls(*(units[name].astype(np.int64) for name in QUEUE_UNIT.names or ()))

    def may_be_right(self, log_end: int) -> Mask:
        """Return which, (n,), can be units of records before the end of the log."""
        found: Mask = (self.sizes > 0) & (self.sizes < PRE_BLANK_SIZE)
        return found & (self.physical_offsets >= 0) & (self.physical_offsets < log_end)


class RecoveredUnits(NamedTuple):
    """The end of a queue as the log has it, where the files of a store that was not closed lack it or are wrong."""

    start: int  # queue offset of the first
    units: NDArray[np.void]  # QUEUE_UNIT (n,)
    is_short: bool = False  # more are missing than memory should hold: such a queue cannot be read
    is_batch: bool = False  # of a BatchConsumeQueue: a unit for each message of a record

    @property
    def end(self) -> int:
        """The queue offset behind the last."""
        return self.start + len(self.units)


_NOTHING_RECOVERED = RecoveredUnits(1 << 63, np.empty(0, QUEUE_UNIT))


class ConsumeQueue:
    """The files of one queue of one topic. Source: ConsumeQueue.java.

    Numbers of units are queue offsets: the ordinal of a message in its queue, from the first there ever was.

    Args:
        recovered: units that are read instead of those that the files have from there on.
        storage: what the files are read from.
    """

    def __init__(self, folder: Path, recovered: RecoveredUnits | None = None, storage: Storage = LOCAL) -> None:
        self.folder = folder
        self._files = MappedFileQueue([folder], mapped_at_once=2, storage=storage)
        self.is_recovered = recovered is not None
        self._recovered = recovered or _NOTHING_RECOVERED

    def refresh(self) -> None:
        """List the files anew."""
        self._files.refresh()

    @property
    def segments(self) -> list[Segment]:
        """The files, by byte offset."""
        return self._files.segments

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros where no file has it."""
        if self._recovered.start <= queue_offset < self._recovered.end:
            found: tuple[int, int, int] = self._recovered.units[queue_offset - self._recovered.start].item()
            return found
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return 0, 0, 0
        units = self._read(segment, queue_offset, queue_offset + 1)
        return units[0].item() if len(units) else (0, 0, 0)

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, all of which the files hold: see :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: a file was deleted since the store was opened.
        """
        pieces, at = [], start
        while at < min(end, self._recovered.start):
            segment = self._files.find(at * _UNIT)
            piece = None if segment is None else self._read(segment, at, min(end, self._recovered.start))
            if piece is None or not len(piece):
                raise OffsetOutOfRangeError(f"{self.folder}: queue offset {at} is in none of the queue's files")
            pieces.append(piece)
            at += len(piece)
        if at < end:
            begun = at - self._recovered.start
            pieces.append(self._recovered.units[begun : begun + end - at])
        return Units.of(pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, QUEUE_UNIT), *pieces]))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with some queue offsets, which rise; zeros where no file has one."""
        found = np.zeros(len(queue_offsets), QUEUE_UNIT)
        for segment in self.segments:
            first, stop = segment.start // _UNIT, (segment.start + segment.size) // _UNIT
            rows = np.flatnonzero((queue_offsets >= first) & (queue_offsets < min(stop, self._recovered.start)))
            if len(rows):
                file, places = self._files.open(segment), (queue_offsets[rows] - first) * _UNIT
                whole = places <= file.size - _UNIT
                file.want(places[whole], _UNIT)
                found[rows[whole]] = file.read_each(places[whole], _UNIT).view(QUEUE_UNIT)
        if self.is_recovered:
            rows = np.flatnonzero((queue_offsets >= self._recovered.start) & (queue_offsets < self._recovered.end))
            found[rows] = self._recovered.units[queue_offsets[rows] - self._recovered.start]
        return Units.of(found)

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` stands for, (n,); see :meth:`units`."""
        return np.clip(self.units(start, end).sizes, 0, MAX_FILE_BYTES)

    def n_bytes(self, start: int, end: int) -> int:
        """Return the bytes of the log that the messages in ``[start, end)`` stand for; what no file holds is none."""
        return sum(int(self.weights(*piece).sum()) for piece in self._pieces(start, end))

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that the files hold; what lies between is in a missing or cut file."""
        begun = reached = start
        for first, stop in self._spans():
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

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield the queue offsets that each file has, then those recovered."""
        for segment in self.segments:
            first, stop = segment.start // _UNIT, (segment.start + segment.size) // _UNIT
            yield first, min(stop, self._recovered.start)
        yield self._recovered.start, self._recovered.end

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file and the byte in it where a unit stands, to name it in an error."""
        segment = self._files.find(queue_offset * _UNIT)
        if segment is None:
            return str(self.folder), queue_offset * _UNIT
        return str(segment.path), queue_offset * _UNIT - segment.start

    def end(self) -> int:
        """Return the queue offset behind the last unit, whole or not, that was ever written.

        It is found from behind, by the last byte that is not zero: a search for the first unit that was not written
        would stop at a damaged one and hide all that follow.

        Source: ConsumeQueue.java#recover.
        """
        if self.is_recovered:
            return self._recovered.end
        for segment in reversed(self.segments):
            written = self._files.open(segment).written_end(segment.size)
            if written:
                return segment.start // _UNIT + -(-written // _UNIT)
        return self.begin

    @property
    def begin(self) -> int:
        """The first queue offset that the files have, whether or not its record is still there; 0 without files."""
        if self.segments:
            return min(self.segments[0].start // _UNIT, self._recovered.start)
        return self._recovered.start if self.is_recovered else 0

    def reach(self, end: int) -> int:
        """Return the physical offset behind the record of the last unit before ``end``, -1 where that is no unit."""
        physical_offset, size, _ = self.unit(end - 1)
        return physical_offset + size if 0 < size < PRE_BLANK_SIZE else -1

    def place_about(self, queue_offset: int, start: int, end: int, log_end: int) -> int | None:
        """Return about where a message of the range lies in the log, as most units around say: some may be damaged.

        It is the place of one that is at most ``UNITS_AROUND`` away; None where all of these units are damaged.
        """
        low, high = max(queue_offset - UNITS_AROUND, start), min(queue_offset + UNITS_AROUND + 1, end)
        units = self._held(low, high)
        right = np.sort(units.physical_offsets[units.may_be_right(log_end)])
        return int(right[len(right) // 2]) if len(right) else None

    def _held(self, start: int, end: int) -> Units:
        """Return those units of a range that the files hold: mostly all."""
        with suppress(OffsetOutOfRangeError):
            return self.units(start, end)
        found = [Units.of(np.empty(0, QUEUE_UNIT)), *(self.units(*run) for run in self.runs(start, end))]
        return Units(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def trimmed(self, start: int, end: int, places: tuple[int, int], log_end: int) -> tuple[int, int]:
        """Return a range without those messages at its ends that lie outside of a part of the log; a few are asked."""
        most = 2 * UNITS_AROUND
        for low, high in self.runs(start, min(start + most, end)):
            if low == start:
                units = self.units(low, high)
                outside = units.may_be_right(log_end) & (units.physical_offsets < places[0])
                start += len(outside) if outside.all() else int(np.argmin(outside))
        for low, high in self.runs(max(end - most, start), end):
            if high == end:
                units = self.units(low, high)
                outside = (units.may_be_right(log_end) & (units.physical_offsets >= places[1]))[::-1]
                end -= len(outside) if outside.all() else int(np.argmin(outside))
        return start, end

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record is not deleted; ``end`` if all are.

        Pre-blank units, which stand for offsets before the queue's first, are none. A damaged unit counts as there.

        Source: ConsumeQueue.java#correctMinOffset; unlike it, the search is not limited to the first file.
        """
        begin = self.begin
        if begin < end:  # mostly the files begin with a message that is there
            physical_offset, size, _ = self.unit(begin)
            if size > 0 and physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE:
                return begin

        def is_there(at: int) -> bool:
            physical_offset, size, _ = self.unit(begin + at)
            return physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE

        found = begin + _search(end - begin, is_there)
        for low, high in self._pieces(begin, found):
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
        for low, high in self._pieces(found, end):
            units = self.units(low, high)
            offsets = units.physical_offsets
            before = np.flatnonzero((offsets >= 0) & (offsets < log_end) & (units.sizes > 0))
            if len(before):
                kept = low + int(before[-1]) + 1
        return kept

    def whole_end(self, start: int, end: int) -> int:
        """Return the queue offset in ``[start, end]`` behind the last unit before the first that was never written.

        Source: ConsumeQueue.java#recover, which looks at the last three files.
        """
        at = start
        for low, high in self.runs(start, end):
            if low != at:
                return at
            for begin in range(low, high, _UNITS_AT_ONCE):
                units = self.units(begin, min(begin + _UNITS_AT_ONCE, high))
                holes = np.flatnonzero((units.sizes <= 0) | (units.physical_offsets < 0))
                if len(holes):
                    return begin + int(holes[0])
            at = high
        return at

    def sound_end(self, start: int, end: int) -> int:
        """Return the queue offset in ``[start, end]`` behind the last unit that has an offset and a size."""
        for low, high in reversed(list(self._pieces(start, end))):
            units = self.units(low, high)
            sound = np.flatnonzero((units.physical_offsets >= 0) & (units.sizes > 0))
            if len(sound):
                return low + int(sound[-1]) + 1
        return start

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield :meth:`runs` in pieces of which memory holds one: a file may be sparse and huge."""
        for low, high in self.runs(start, end):
            for at in range(low, high, _UNITS_AT_ONCE):
                yield at, min(at + _UNITS_AT_ONCE, high)

    def search(self, start: int, end: int, found: Callable[[int], bool]) -> int:
        """Return the first queue offset in ``[start, end)`` where ``found`` holds, ``end`` if none; by bisection."""
        return start + _search(end - start, lambda at: found(start + at))

    def close(self) -> None:
        """Let go of the mapped files."""
        self._files.close()

    def _read(self, segment: Segment, start: int, end: int) -> NDArray[np.void]:
        """Return the whole units ``[start, end)`` of the queue that this file holds, QUEUE_UNIT (n,)."""
        first = segment.start // _UNIT
        stop = min(end, first + segment.size // _UNIT)
        stored = np.empty(max(stop - start, 0) * _UNIT, np.uint8)
        count = self._files.open(segment).read_into(stored, (start - first) * _UNIT)
        return stored[: count // _UNIT * _UNIT].view(QUEUE_UNIT)


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
