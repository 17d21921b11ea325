"""Appends records to the CommitLog so that all of them appear at once, or none.

FORMAT.md gives the order of writes and the reasons for it ("The one-write commit"). In short, the
first 8 bytes of each record and blank in the open segment are held back, because no scan takes a
record without its head. Then a blank in place of the first head closes the segment, and the other
heads are written. The first head is written last: this is the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import windows
from rmqstore.format.encoding.records import Records
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, MIN_BLANK_BYTES, Positions
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import offset_to_name
from rmqstore.storage.log.record_mark import RecordMark

_HEAD_BYTES = FRAME_HEAD.itemsize


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
        folders: the folders of the log.
        end: physical offset after the last record.
        file_size: bytes of a CommitLog file.
        intent: the file that holds the start of the append until it is complete. If a crash comes
            before the commit, the bytes after that start may be cleared. If it comes after the
            commit, a topic that is only in the log counts as new, not as deleted.

    Source: CommitLog.java#asyncPutMessage; unlike there, records can be read only after the commit.
    """

    def __init__(
        self, disk: Disk, folders: Sequence[Path], end: int, file_size: int, intent: Path
    ) -> None:
        self._disk = disk
        self._folders = sorted(folders)  # Source: MultiPathMappedFileQueue.java sorts them, too
        self._file_size = file_size
        self._intent = intent
        self.start = self.end = end
        self.is_committed = False
        # physical offset after the last byte that may have been written, also by a failed write
        self._touched_end = end
        self._first_file = end // file_size * file_size
        # positions in the first file, and the heads that the commit writes there
        self._withheld_heads: list[tuple[Positions, NDArray[np.void]]] = []
        self._created: list[Path] = []
        self._guard: Path | None = None
        self._touched: dict[Path, None] = {}
        self._marks: list[RecordMark] = []  # of the first record and the last

    def place(self, sizes: NDArray[np.int64]) -> Placement:
        """Return where the next records will go; see :func:`place_records`."""
        return place_records(sizes, self.end, self._file_size)

    def write(self, records: Records, placement: Placement) -> None:
        """Write records, stamped with their physical offsets; none can be read yet."""
        if not self._marks:
            self._disk.make_folder(self._intent.parent)
            self._disk.replace(self._intent, str(self.start).encode())
        self._mark(records, placement)
        files = placement.physical_offsets // self._file_size
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for low, high in pairwise(cuts):
            if low < high:
                self._write_run(records, low, high, placement.physical_offsets[low:high])
        for physical_offset, size in placement.blanks:
            self._write_blank(physical_offset, size)
        self.end = placement.end

    def _write_run(
        self, records: Records, low: int, high: int, physical_offsets: Positions
    ) -> None:
        """Write records that go one after the other into one file."""
        first = int(records.starts[low])
        data = records.data[first : int(records.starts[high])]
        path, position = self._file(int(physical_offsets[0]))
        self._disk.reserve(path, position, len(data))
        self._touched_end = int(physical_offsets[0]) + len(data)
        if path == self._path(self._first_file):
            heads = windows(data, _HEAD_BYTES)
            starts = records.starts[low:high] - first
            self._withheld_heads.append((physical_offsets - self._first_file, heads[starts]))
            heads[starts] = np.void(b"\0" * _HEAD_BYTES)
        self._disk.write(path, position, data)

    def _write_blank(self, physical_offset: int, size: int) -> None:
        blank = np.array([(size, BLANK_MAGIC)], FRAME_HEAD)
        path, position = self._file(physical_offset)
        if path == self._path(self._first_file):
            self._disk.reserve(path, position, _HEAD_BYTES)  # scatter must not write into a hole
            self._withheld_heads.append((np.array([position]), blank.view(f"V{_HEAD_BYTES}")))
        else:
            self._disk.write(path, position, blank)

    def _path(self, file_offset: int) -> Path:
        # Source: MultiPathMappedFileQueue.java, which fills its folders in turn, file by file.
        folder = self._folders[file_offset // self._file_size % len(self._folders)]
        return folder / offset_to_name(file_offset)

    def _file(self, physical_offset: int) -> tuple[Path, int]:
        """Return the file of a physical offset, created if missing, and the position in it."""
        file_offset = physical_offset // self._file_size * self._file_size
        path = self._path(file_offset)
        if path not in self._touched:
            if not LOCAL.exists(path):
                self._disk.create(path, self._file_size)
                self._created.append(path)
            self._touched[path] = None
        return path, physical_offset - file_offset

    def marks(self) -> tuple[RecordMark | None, RecordMark | None]:
        """Return the marks of the first and the last record that were written."""
        return (self._marks[0], self._marks[-1]) if self._marks else (None, None)

    def _mark(self, records: Records, placement: Placement) -> None:
        for row in (0, -1):
            record = records.data[records.starts[:-1][row] : records.starts[1:][row]].tobytes()
            self._marks.append(RecordMark.of(int(placement.physical_offsets[row]), record))
        del self._marks[1:-1]

    def flush(self) -> None:
        """Wait until all written bytes, and the names of new files, are on the disk."""
        self._disk.flush_all(self._touched)

    def commit(self) -> None:
        """Make all written records readable.

        None can be read until the last 8 bytes are written; then all can.
        """
        if not self._withheld_heads:
            return
        path = self._path(self._first_file)
        positions = np.concatenate([positions for positions, _ in self._withheld_heads])  # rising
        heads = np.concatenate([heads for _, heads in self._withheld_heads])
        if len(positions) > 1:
            if self.end <= self._first_file + self._file_size:
                self._make_guard()
                self._close_segment(path, int(positions[0]))
            else:
                self.flush()  # so that the heads below are uncovered for a short time only
            self._disk.scatter(path, positions[1:], heads[1:])
        self.flush()
        self._disk.write(path, int(positions[0]), heads[0].tobytes())
        self.is_committed = True
        self._disk.flush(path)
        self._withheld_heads.clear()
        self._drop_guard()

    def complete(self) -> None:
        """Delete the intent, because queues and ``topics.json`` have all committed messages."""
        self._disk.delete(self._intent)

    def _make_guard(self) -> None:
        """Create an empty segment after the open one, where a broker goes on after a cut commit.

        Source: CommitLog.java#recoverAbnormally, which takes a segment after a blank for the end
        of the log, even if the segment is empty.
        """
        path = self._path(self._first_file + self._file_size)
        if not LOCAL.exists(path):
            self._disk.create(path, self._file_size)
        self._guard = path
        self._disk.flush_all([path])

    def _close_segment(self, path: Path, position: int) -> None:
        """Write a blank where the first record will begin: no scan meets the heads written next.

        Without the blank, a broker that recovers the store would write over the first record. If
        its own record then ended at one of those heads, the rest of the append would come back.
        Only the blank is waited for: the records are flushed once, together with their heads.
        """
        blank = np.array([(self._file_size - position, BLANK_MAGIC)], FRAME_HEAD)
        self._disk.write_through(path, position, blank)

    def _drop_guard(self) -> None:
        if self._guard is not None:
            self._disk.delete(self._guard)
            self._guard = None

    def abandon(self) -> None:
        """Undo all writes that were not committed.

        New files are deleted, and the open file is zero again after the end of the log.
        """
        n_written = min(self._touched_end, self._first_file + self._file_size) - self.start
        # First, so that none of the records can be committed even if a step below fails.
        self._withheld_heads.clear()
        self.end = self._touched_end = self.start
        for path in reversed(self._created):
            self._disk.delete(path)
        path = self._path(self._first_file)
        if n_written and path not in self._created:
            position = self.start - self._first_file
            self._disk.clear(path, position, position + n_written)
            self._disk.flush(path)
        self._drop_guard()  # only now that the blank is gone that leads to it
        self._disk.delete(self._intent)
