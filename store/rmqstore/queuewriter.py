"""Appending units to a ConsumeQueue: files of one length, the filler of a queue that does not begin at 0, the guard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError
from rmqstore.files.disk import Disk
from rmqstore.files.paths import offset_to_name
from rmqstore.format.layout import PRE_BLANK_SIZE, QUEUE_UNIT

_UNIT = QUEUE_UNIT.itemsize
_FILLER_UNITS = 1 << 19  # written at once: files may have been made as large as 2 GiB


class QueueAppender:
    """The end of one queue. Source: ConsumeQueue.java#putMessagePositionInfo.

    Args:
        start: queue offset of the first unit that the files have.
        end: queue offset of the next unit.
        reached: physical offset behind the record of the last unit, -1 for an empty queue.
        is_new: there is no file yet.
    """

    def __init__(
        self, disk: Disk, folder: Path, file_size: int, *, start: int, end: int, reached: int, is_new: bool
    ) -> None:
        self._disk, self._folder, self._file_size = disk, folder, file_size
        self._start, self.end, self.reached, self.is_new = start, end, reached, is_new
        self.touched: dict[Path, None] = {}  # files to flush

    def append(self, queue_offsets: NDArray[np.int64], units: NDArray[np.void]) -> None:
        """Append units, QUEUE_UNIT (n,), in the order of the log; those that are there already are stepped over.

        Raises:
            CorruptQueueError: a record's queue offset is not the next one of the queue.
        """
        ends = units["physical_offset"].astype(np.int64) + units["size"]
        new = ends > self.reached
        if not new.all():
            self._require_there(queue_offsets[~new])
            queue_offsets, units, ends = queue_offsets[new], units[new], ends[new]
        if not len(units):
            return
        first = int(queue_offsets[0])
        if self.is_new:
            self._begin(first)
        expected = np.arange(self.end, self.end + len(units))
        wrong = np.flatnonzero(queue_offsets != expected)
        if len(wrong):
            row = int(wrong[0])
            raise CorruptQueueError(
                str(self._folder),
                int(expected[row]) * _UNIT,
                f"the record at {int(units['physical_offset'][row])} says queue offset {int(queue_offsets[row])}, "
                f"the next one of the queue is {int(expected[row])}",
            )
        self._write(first, units)
        self.end, self.reached = self.end + len(units), int(ends[-1])

    def _require_there(self, queue_offsets: NDArray[np.int64]) -> None:
        """Refuse to take units for built that stood in a file before the first one, which is missing then."""
        lowest = int(queue_offsets.min())
        if lowest < self._start:
            reason = f"queue offset {lowest} is in the log, and the files begin at {self._start}: one is missing"
            raise CorruptQueueError(str(self._folder), lowest * _UNIT, reason)

    def _begin(self, first: int) -> None:
        """Make the queue's first file; what stands in it for offsets before the first is filler.

        Source: ConsumeQueue.java#fillPreBlank.
        """
        self._disk.make_folder(self._folder)
        self.is_new = False
        self._start = self.end = first
        per_file = self._file_size // _UNIT
        missing = first % per_file
        for at in range(first - missing, first, _FILLER_UNITS):
            filler = np.zeros(min(_FILLER_UNITS, first - at), QUEUE_UNIT)
            filler["size"] = PRE_BLANK_SIZE
            self._write(at, filler)

    def _write(self, start: int, units: NDArray[np.void]) -> None:
        per_file, done = self._file_size // _UNIT, 0
        while done < len(units):
            at = start + done
            count = min(len(units) - done, per_file - at % per_file)
            file_offset = at // per_file * self._file_size
            path = self._folder / offset_to_name(file_offset)
            if path not in self.touched and not path.exists():
                self._disk.create(path, self._file_size)
            self.touched[path] = None
            self._disk.write(path, at * _UNIT - file_offset, units[done : done + count])
            done += count
