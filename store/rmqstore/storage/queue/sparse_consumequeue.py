"""The files of one SparseConsumeQueue, read-only: a 46-byte unit for each message that is left.

The units lead into the compacted log of one queue. A compaction removes messages, and so there are
gaps between the queue offsets. To the rest of the package every queue offset has a unit: that of an
offset in a gap has the size 0 and leads to the next message, which the broker serves in its place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, UnreadableFileError
from rmqstore.format.layout import BATCH_UNIT, MAX_BATCH, Mask, Positions
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles, Segment
from rmqstore.storage.files.paths import name_to_offset
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.queue.batch_consumequeue import (
    FILES_AT_ONCE,
    MAX_QUEUE_OFFSET,
    count_written,
)
from rmqstore.storage.queue.queue import NO_UNITS, Units, cut_at, find_first, weights_of

_UNIT: Final = BATCH_UNIT.itemsize
_WIDEST_GAP: Final = 1 << 10  # queue offsets; a wider gap ends a run
_DAMAGED: Final = -1  # the physical offset of a unit that cannot be right


class _File(NamedTuple):
    """The units of one file, (n,) each; their queue offsets rise."""

    queue_offsets: Positions
    numbers: Positions  # the ordinal of each unit in the file
    units: Units


_NO_FILE: Final = _File(np.empty(0, np.int64), np.empty(0, np.int64), NO_UNITS)


class SparseConsumeQueue:
    """The units of one queue of a topic with ``cleanup.policy=COMPACTION``.

    Source: SparseConsumeQueue.java.
    """

    is_batch = False
    is_recovered = False
    end_files = None  # which show where the queue begins and ends

    def __init__(self, folder: Path, files: OpenFiles) -> None:
        self.folder = folder
        self._files = MappedFileQueue([folder], files, _in_a_row)
        self._forget()

    def _forget(self) -> None:
        self._cached: Recent[Segment, _File] = Recent(FILES_AT_ONCE)
        self._spans: list[tuple[Segment, int, int]] | None = None

    def refresh(self) -> None:
        """List the files again: a compaction replaces them."""
        self._files.refresh()
        self._forget()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    @property
    def is_present(self) -> bool:
        """Whether there is a file."""
        return bool(self._files.segments)

    def files(self) -> dict[str, str]:
        """Return the paths of the files by their names, which are those of the log's files."""
        return {segment.path.name: segment.file for segment in self._files.segments}

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all files but the last."""
        return sum(segment.size for segment in self._files.segments[:-1])

    @property
    def begin(self) -> int:
        """The queue offset of the first message that is left; 0 without one."""
        return next((start for _, start, end in self._known_spans() if start < end), 0)

    def end(self) -> int:
        """Return the queue offset after the last message.

        Source: BatchConsumeQueue.java#getMaxOffsetInQueue.
        """
        return max((end for _, _, end in self._known_spans()), default=0)

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``."""
        return find_first(
            self.begin, end, lambda offset: self.unit(offset)[0] >= min_physical_offset
        )

    cut = cut_at

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` from a message to a message, without wide gaps."""
        run: tuple[int, int] | None = None
        for file in self._files_of(start, end):
            offsets = file.queue_offsets
            breaks = np.flatnonzero(np.diff(offsets) > _WIDEST_GAP) + 1
            for rows in np.split(offsets, breaks):
                first, stop = int(rows[0]), int(rows[-1]) + 1
                if run is not None and first - run[1] < _WIDEST_GAP:
                    run = (run[0], stop)
                    continue
                if run is not None:
                    yield run
                run = (first, stop)
        if run is not None:
            yield run

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of a message's unit; zeros after the last.

        In a gap the physical offset is that of the next message, and the size 0.
        """
        for file in self._files_of(queue_offset, self.end()):
            physical_offset, size, code = (int(column[0]) for column in file.units)
            if file.queue_offsets[0] == queue_offset:
                return physical_offset, size, code
            return max(physical_offset, 0), 0, 0
        return 0, 0, 0

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, with those of the gaps; see :meth:`unit`."""
        return self.units_of(np.arange(start, end))

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units of some queue offsets, which rise; see :meth:`unit`."""
        if not len(queue_offsets):
            return NO_UNITS
        start, end = int(queue_offsets[0]), int(queue_offsets[-1]) + 1
        files = [*self._files_of(start, end)]
        offsets = np.concatenate([_NO_FILE.queue_offsets, *(file.queue_offsets for file in files)])
        known = Units.joined(NO_UNITS, *(file.units for file in files))
        rows = np.searchsorted(offsets, queue_offsets)
        after = max(self.unit(end)[0], 0)
        following = np.append(np.maximum(known.physical_offsets, 0), after)[rows]
        is_there = np.append(offsets, -1)[rows] == queue_offsets
        found = Units(*(np.zeros(len(rows), np.int64) for _ in Units._fields))
        for column, values in zip(found, known, strict=True):
            column[is_there] = values[rows[is_there]]
        return found._replace(
            physical_offsets=np.where(is_there, found.physical_offsets, following)
        )

    def prefetch(self, _queue_offsets: NDArray[np.int64], _count: int) -> None:
        """Do nothing: the units are read a file at a time."""

    weights = weights_of

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
        return sum(
            int(np.count_nonzero(file.units.physical_offsets >= min_physical_offset))
            for file in self._files_of(start, end)
        )

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a message's unit and its position there, or where it should stand."""
        for segment, _, end in self._known_spans():
            if queue_offset < end:
                file = self._load(segment)
                row = min(bisect_left(file.queue_offsets, queue_offset), len(file.numbers) - 1)
                return segment.file, int(file.numbers[row]) * _UNIT
        return str(self.folder), 0

    def overlaps(self) -> Iterator[tuple[str, str]]:
        """Yield each file whose messages do not all follow those of the file before it, and why."""
        before = 0
        for segment, start, end in self._known_spans():
            if start < min(before, end):
                reason = f"its messages begin at {start}, and those before end at {before}"
                yield segment.file, reason
            before = max(before, end)

    def _known_spans(self) -> list[tuple[Segment, int, int]]:
        """Return each file with its first queue offset, and the one after its last."""
        spans = self._spans
        if spans is None:
            spans = []
            for segment in self._files.segments:
                offsets = self._load(segment).queue_offsets
                span = (int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else (0, 0)
                spans.append((segment, *span))
            self._spans = spans
        return spans

    def _files_of(self, start: int, end: int) -> Iterator[_File]:
        """Yield the units of ``[start, end)`` by file; a message is in the first that has it."""
        at = start
        for segment, first, last_end in self._known_spans():
            if last_end <= at or first >= end:
                continue
            file = self._load(segment)
            low, high = np.searchsorted(file.queue_offsets, (at, end)).tolist()
            if low < high:
                rows = slice(low, high)
                yield _File(
                    file.queue_offsets[rows],
                    file.numbers[rows],
                    Units(*(column[rows] for column in file.units)),
                )
            at = last_end

    def _load(self, segment: Segment) -> _File:
        """Return the units of one file as it was at the first look since :meth:`refresh`.

        The file is read up to its last unit that can be right, as the broker does.
        """
        kept = self._cached
        cached = kept.get(segment)
        if cached is not None:
            return cached
        opened = self._files.file_of(segment)
        stored = np.empty(count_written(opened, segment) * _UNIT, np.uint8)
        n_read = opened.read_into(stored, 0)
        units = stored[: n_read // _UNIT * _UNIT].view(BATCH_UNIT)
        return kept.put(segment, _in_order(units))


def _in_a_row(folders: Sequence[str], storage: Storage) -> list[Segment]:
    """Return the files of some folders one after the other: their names are offsets in the log."""
    segments: list[Segment] = []
    start = 0
    for folder in folders:
        for entry in sorted(storage.list_folder(folder), key=lambda entry: entry.name):
            if name_to_offset(entry.name) is None:
                continue
            file = f"{folder}/{entry.name}"
            try:
                segments.append(Segment(start, storage.size(file), file))
            except FileNotFoundError:
                continue  # a compaction deleted the file during the listing
            except UnreadableFileError as err:
                raise CorruptQueueError(
                    file, 0, f"the path is {err.found}; {err.expected} is expected"
                ) from err
            start = segments[-1].end
    return segments


def _in_order(units: NDArray[np.void]) -> _File:
    """Return units by queue offset. Where one between them cannot be right, its offset is guessed.

    Source: SparseConsumeQueue.java#getMaxMsgOffset.
    """
    bases = units["base_offset"].astype(np.int64)
    counts = units["batch_size"].astype(np.int64)
    is_right = (units["physical_offset"] >= 0) & (units["size"] > 0)
    is_right &= (bases >= 0) & (bases < MAX_QUEUE_OFFSET) & (counts > 0) & (counts <= MAX_BATCH)
    numbers = np.flatnonzero(is_right)
    if not len(numbers):
        return _NO_FILE
    numbers = numbers[_longest_rise(bases[numbers])]
    rows = np.arange(numbers[-1] + 1)
    is_kept = np.zeros(len(rows), np.bool_)
    is_kept[numbers] = True
    # The place of a damaged unit is one after that of the unit before it, if there is room.
    rank = np.maximum.accumulate(np.where(is_kept, rows, -1))
    offsets = np.where(rank >= 0, bases[rank] + rows - rank, _DAMAGED)
    next_kept = numbers[np.searchsorted(numbers, rows)]
    is_kept |= (rank >= 0) & (offsets < bases[next_kept])
    is_valid = is_right[rows] & np.isin(rows, numbers)
    columns = Units(
        np.where(is_valid, units["physical_offset"][rows], _DAMAGED).astype(np.int64),
        np.where(is_valid, units["size"][rows], 0).astype(np.int64),
        np.where(is_valid, units["tags_code"][rows], 0).astype(np.int64),
    )
    return _File(offsets[is_kept], rows[is_kept], Units(*(part[is_kept] for part in columns)))


def _longest_rise(values: Positions) -> Mask:
    """Return a mask (n,) of a longest strictly rising part of some values."""
    if (np.diff(values) > 0).all():
        return np.ones(len(values), np.bool_)
    tails: list[int] = []  # the lowest value that ends a rise of each length
    rows: list[int] = []
    previous = np.full(len(values), -1, np.int64)
    for row, value in enumerate(values.tolist()):
        length = bisect_left(tails, value)
        tails[length : length + 1] = [value]
        rows[length : length + 1] = [row]
        previous[row] = rows[length - 1] if length else -1
    mask = np.zeros(len(values), np.bool_)
    row = rows[-1]
    while row >= 0:
        mask[row] = True
        row = int(previous[row])
    return mask
