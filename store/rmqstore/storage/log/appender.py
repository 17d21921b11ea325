"""Appends records to the CommitLog so that all of them appear at once, or none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError
from rmqstore.format.columns.encode import Records
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, MIN_BLANK_BYTES, Bytes, Positions
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.one_write_commit import (
    ClosedSegment,
    LogFiles,
    NewLog,
    OneWriteCommit,
    WithheldHeads,
)
from rmqstore.storage.log.record_mark import RecordMark

_LARGE_BYTES = 1 << 20  # from here on, writing is left to a thread and goes round the page cache


class Placement(NamedTuple):
    """The physical offsets of records that are appended one after the other."""

    physical_offsets: Positions  # (n,)
    blanks: list[tuple[int, int]]  # physical offset and size of each blank that closes a file
    end: int


def place_records(sizes: NDArray[np.int64], end: int, file_size: int) -> Placement:
    """Place records after ``end``.

    A record that would leave fewer than 8 bytes of a file begins the next one.

    Args:
        sizes: bytes of the records, (n,).
        end: physical offset after the last record of the log.
        file_size: bytes of a CommitLog file.

    Source: CommitLog.java#DefaultAppendMessageCallback.
    """
    ends = np.cumsum(sizes)
    offsets = ends - sizes
    blanks = []
    row = 0
    physical_offset = end
    while row < len(sizes):
        n_left = file_size - physical_offset % file_size
        n_before = int(offsets[row])  # bytes of the records in earlier files
        stop = int(np.searchsorted(ends, n_before + n_left - MIN_BLANK_BYTES, side="right"))
        offsets[row:stop] += physical_offset - n_before
        if stop > row:
            physical_offset += int(ends[stop - 1]) - n_before
        row = stop
        if row < len(sizes):
            n_left = file_size - physical_offset % file_size
            blanks.append((physical_offset, n_left))
            physical_offset += n_left
    return Placement(offsets, blanks, physical_offset)


class LogAppend:
    """One append: any number of :meth:`write`, then :meth:`commit`, or :meth:`abandon`.

    Args:
        disk: the disk to write to.
        paths: the files of the store. The note :attr:`StorePaths.append_intent` holds the start of
            the append until it is complete. If a crash comes before the commit, the bytes after
            that start may be cleared. If it comes after the commit, a topic that is only in the log
            counts as new, not as deleted.
        end: physical offset after the last record.
        file_size: bytes of a CommitLog file.

    Source: CommitLog.java#asyncPutMessage; unlike there, records can be read only after the commit.
    """

    def __init__(self, disk: Disk, paths: StorePaths, end: int, file_size: int) -> None:
        self._disk, self._paths = disk, paths
        self._files = LogFiles(disk, sorted(paths.commitlogs), file_size)
        self.start = self.end = end
        self.n_records = 0  # that were written
        # physical offset after the last byte that may have been written, also by a failed write
        self._touched_end = end
        self._is_known_to_fit = False
        self._expected_end = end
        self._commit: OneWriteCommit | None = None
        self._created: list[Path] = []
        self._touched: dict[Path, None] = {}
        self._marks: list[RecordMark] = []  # of the first record and the last

    @property
    def is_committed(self) -> bool:
        """Whether the records can be read."""
        return self._commit is not None and self._commit.is_done

    def expect(self, n_records: int, n_bytes: int) -> None:
        """Say what all calls of :meth:`write` together will write, before the first of them.

        Nothing else can be written then in the same append.
        """
        n_left = self._files.file_size - self.start % self._files.file_size
        self._is_known_to_fit = n_records > 1 and n_bytes <= n_left - MIN_BLANK_BYTES
        self._expected_end = self.start + n_bytes

    def place(self, sizes: NDArray[np.int64]) -> Placement:
        """Return where the next records will go; see :func:`place_records`."""
        return place_records(sizes, self.end, self._files.file_size)

    def write(self, records: Records, placement: Placement) -> None:
        """Write records, stamped with their physical offsets; none can be read yet.

        Their bytes must not change until the next change of the disk.
        """
        if self._is_known_to_fit and self.end + int(records.starts[-1]) > self._expected_end:
            raise StoreStateError("an append writes more than it said it would")
        if self._commit is None:
            self._disk.make_folder(self._paths.own)
            self._disk.replace(self._paths.append_intent, str(self.start).encode())
            self._commit = self._begin()
        self._mark(records, placement)
        files = placement.physical_offsets // self._files.file_size
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for low, high in pairwise(cuts):
            if low < high:
                first = int(records.starts[low])
                data = records.data[first : int(records.starts[high])]
                starts = records.starts[low:high] - first
                self._write_run(placement.physical_offsets[low:high], starts, data)
        for physical_offset, size in placement.blanks:
            blank = np.array([(size, BLANK_MAGIC)], FRAME_HEAD).view(np.uint8)
            self._write_run(np.array([physical_offset]), np.array([0]), blank)
        self.end = placement.end
        self.n_records += len(placement.physical_offsets)

    def _begin(self) -> OneWriteCommit:
        if self.start == 0 and NewLog.is_possible(self._disk, self._paths):
            return NewLog(self._files, self._paths)
        if self._is_known_to_fit:
            return ClosedSegment(self._files, self.start)
        return WithheldHeads(self._files, self.start)

    def _write_run(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> None:
        """Write records that go one after the other into one file."""
        assert self._commit is not None
        first = int(physical_offsets[0])
        path, position = self._commit.files.path(first), first % self._files.file_size
        if path not in self._touched:
            if not LOCAL.exists(path):
                self._disk.create(path, self._files.file_size)
                self._created.append(path)
            self._touched[path] = None
        self._disk.reserve(path, position, len(data))
        self._touched_end = first + len(data)
        is_final = self._commit.hide(physical_offsets, starts, data)
        if is_final and len(data) >= _LARGE_BYTES:
            self._disk.write_large(path, position, data)
        else:
            self._disk.write(path, position, data)

    def marks(self) -> tuple[RecordMark | None, RecordMark | None]:
        """Return the marks of the first and the last record that were written."""
        return (self._marks[0], self._marks[-1]) if self._marks else (None, None)

    def _mark(self, records: Records, placement: Placement) -> None:
        for row in (0, -1):
            record = records.data[records.starts[:-1][row] : records.starts[1:][row]].tobytes()
            self._marks.append(RecordMark.of(int(placement.physical_offsets[row]), record))
        del self._marks[1:-1]

    def commit(self) -> None:
        """Make all written records readable at once."""
        if self._commit is not None:
            self._commit.show(self._touched)

    def complete(self) -> None:
        """Delete the intent, because queues and ``topics.json`` have all committed messages."""
        self._disk.delete(self._paths.append_intent)

    def abandon(self) -> None:
        """Undo all writes that were not committed.

        New files are deleted, and the open file is zero again after the end of the log.
        """
        self._disk.forget_large_write()
        end, self._touched_end = self._touched_end, self.start
        self.end = self.start
        for path in reversed(self._created):
            self._disk.delete(path)
        if self._commit is not None:
            self._commit.undo(end)
        self._disk.delete(self._paths.append_intent)
