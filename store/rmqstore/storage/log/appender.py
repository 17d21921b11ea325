"""Appending to the CommitLog so that all of a batch's records appear at once, to us and to a broker, or none.

The order of writes, and why, is in FORMAT.md ("The one-write commit"). In short: records are
written whole but for the first 8 bytes of each record, and of the blank, in the segment that is
open; without them no scan takes any. Then those heads are written but the first, while a blank in
its place closes the segment; then the first one, which is the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import windows
from rmqstore.format.columns.encode import Records
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, MIN_BLANK_BYTES, Positions
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import offset_to_name
from rmqstore.storage.log.record_mark import RecordMark

_HEAD_BYTES = FRAME_HEAD.itemsize


class Placement(NamedTuple):
    """Where records of given sizes go, one after the other over the files."""

    physical_offsets: Positions  # (n,)
    blanks: list[tuple[int, int]]  # physical offset and size of those that close a file on the way
    end: int


def place_records(sizes: NDArray[np.int64], end: int, file_size: int) -> Placement:
    """Place records after ``end``.

    A record that would leave fewer than 8 bytes of a file begins the next one.

    Args:
        sizes: (n,), bytes of the records.
        end: physical offset after the last record.
        file_size: of a CommitLog file.

    Source: CommitLog.java#DefaultAppendMessageCallback.
    """
    ends = np.cumsum(sizes)
    offsets = ends - sizes
    blanks, row, at = [], 0, end
    while row < len(sizes):
        left = file_size - at % file_size
        begun = int(offsets[row])
        stop = int(np.searchsorted(ends, begun + left - MIN_BLANK_BYTES, side="right"))
        offsets[row:stop] += at - begun
        at += (int(ends[stop - 1]) if stop > row else begun) - begun
        row = stop
        if row < len(sizes):
            left = file_size - at % file_size
            blanks.append((at, left))
            at += left
    return Placement(offsets, blanks, at)


class LogAppend:
    """One append: any number of :meth:`write`, then :meth:`commit`, or :meth:`abandon`.

    Args:
        intent: file that says where an append began, until it is complete. What stands after that
            place after a crash was never committed, so it may be cleared without a question; or
            else it was, and readers take topics that nothing else tells of for new ones, not for
            deleted ones.

    Source: CommitLog.java#asyncPutMessage; unlike it, what was written shows only after the commit.
    """

    def __init__(
        self, disk: Disk, folders: Sequence[Path], end: int, file_size: int, intent: Path
    ) -> None:
        # Source: MultiPathMappedFileQueue.java, which sorts its folders.
        self._disk, self._folders, self._file_size, self._intent = (
            disk,
            sorted(folders),
            file_size,
            intent,
        )
        self.start = self.end = end
        self.is_committed = False
        # after the last byte that may have been written, also by a write that failed
        self._touched_end = end
        self._first_file = end // file_size * file_size
        # places in the first file, and their heads
        self._withheld: list[tuple[Positions, NDArray[np.void]]] = []
        self._created: list[Path] = []
        self._guard: Path | None = None
        self._touched: dict[Path, None] = {}
        self._marks: list[RecordMark] = []  # of the first record and the last

    def place(self, sizes: NDArray[np.int64]) -> Placement:
        """Return where the next records will go; see :func:`place_records`."""
        return place_records(sizes, self.end, self._file_size)

    def write(self, records: Records, placement: Placement) -> None:
        """Write records, stamped for where they go; nothing of them shows yet."""
        if not self._marks:
            self._disk.make_folder(self._intent.parent)
            self._disk.replace(self._intent, str(self.start).encode())
        self._mark(records, placement)
        files = placement.physical_offsets // self._file_size
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for low, high in pairwise(cuts):
            if low < high:
                self._write_run(records, low, high, placement.physical_offsets[low:high])
        for blank_at, blank_size in placement.blanks:
            self._write_blank(blank_at, blank_size)
        self.end = placement.end

    def _write_run(
        self, records: Records, low: int, high: int, physical_offsets: Positions
    ) -> None:
        """Write records that go one after the other into one file."""
        begun = int(records.starts[low])
        data = records.data[begun : int(records.starts[high])]
        path, position = self._file(int(physical_offsets[0]))
        self._disk.reserve(path, position, len(data))
        self._touched_end = int(physical_offsets[0]) + len(data)
        if path == self._path(self._first_file):
            view = windows(data, _HEAD_BYTES)
            at = records.starts[low:high] - begun
            self._withheld.append((physical_offsets - self._first_file, view[at]))
            view[at] = np.void(b"\0" * _HEAD_BYTES)
        self._disk.write(path, position, data)

    def _write_blank(self, physical_offset: int, size: int) -> None:
        blank = np.array([(size, BLANK_MAGIC)], FRAME_HEAD)
        path, position = self._file(physical_offset)
        if path == self._path(self._first_file):
            self._disk.reserve(path, position, _HEAD_BYTES)  # scatter must meet no hole
            self._withheld.append((np.array([position]), blank.view(f"V{_HEAD_BYTES}")))
        else:
            self._disk.write(path, position, blank)

    def _path(self, file_offset: int) -> Path:
        # Source: MultiPathMappedFileQueue.java: file n lies in the n-th folder, round and round.
        folder = self._folders[file_offset // self._file_size % len(self._folders)]
        return folder / offset_to_name(file_offset)

    def _file(self, physical_offset: int) -> tuple[Path, int]:
        """Return the file of a physical offset, made if need be, and the position in it."""
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
        """Bring all that was written to the disk, names of new files included."""
        self._disk.flush_all(self._touched)

    def commit(self) -> None:
        """Let all of it show.

        Until the last 8 bytes are written nothing does; from then on all of it does.
        """
        if not self._withheld:
            return
        path = self._path(self._first_file)
        # rising, as they were written
        positions = np.concatenate([places for places, _ in self._withheld])
        heads = np.concatenate([heads for _, heads in self._withheld])
        is_guarded = len(positions) > 1 and self.end <= self._first_file + self._file_size
        if is_guarded:
            self._make_guard()
        self.flush()
        if is_guarded:
            self._close_segment(path, int(positions[0]))
        if len(positions) > 1:
            self._disk.scatter(path, positions[1:], heads[1:])
            self._disk.flush(path)
        self._disk.write(path, int(positions[0]), heads[0].tobytes())
        self.is_committed = True
        self._disk.flush(path)
        self._withheld.clear()
        self._drop_guard()

    def complete(self) -> None:
        """Say that queues and ``topics.json`` have what was committed: readers need the intent no longer."""
        self._disk.delete(self._intent)

    def _make_guard(self) -> None:
        """Make an empty segment after the open one, where a broker goes on if the commit is cut.

        Source: CommitLog.java#recoverAbnormally, which takes a segment after a blank for the end
        even if it is empty.
        """
        path = self._path(self._first_file + self._file_size)
        if not LOCAL.exists(path):
            self._disk.create(path, self._file_size)
        self._guard = path
        self._touched[path] = None

    def _close_segment(self, path: Path, position: int) -> None:
        """Put a blank where the first record will begin, so that no scan comes by the heads that are written next.

        Without it a broker that recovers the store would write over the first record. Where a
        record of the broker's ended at one of those heads, the rest of the append would come back.
        """
        blank = np.array([(self._file_size - position, BLANK_MAGIC)], FRAME_HEAD)
        self._disk.write(path, position, blank)
        self._disk.flush(path)

    def _drop_guard(self) -> None:
        if self._guard is not None:
            self._disk.delete(self._guard)
            self._touched.pop(self._guard, None)
            self._guard = None

    def abandon(self) -> None:
        """Take back what was written and not committed: new files go, the open one is zero again after its end."""
        written = min(self._touched_end, self._first_file + self._file_size) - self.start
        self._withheld.clear()  # whatever happens below: none of it may be committed any more
        self.end = self._touched_end = self.start
        for path in reversed(self._created):
            self._disk.delete(path)
        path = self._path(self._first_file)
        if written and path not in self._created:
            position = self.start - self._first_file
            self._disk.clear(path, position, position + written)
            self._disk.flush(path)
        self._drop_guard()  # after the blank that leads to it
        self._disk.delete(self._intent)
