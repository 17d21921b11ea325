"""Appends records to the CommitLog so that all of them appear at once, or none.

A scan of the log takes no record whose first 8 bytes, its head, are zero, and it steps over a blank
to the next segment. FORMAT.md has the order of writes and the reasons ("The one-write commit").
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, StoreStateError
from rmqstore.format.columns.buffers import windows
from rmqstore.format.columns.encode import Records
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, MIN_BLANK_BYTES, Bytes, Positions
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, offset_to_name
from rmqstore.storage.files.scratch import can_replace
from rmqstore.storage.log.commitlog import CommitLog

HEAD_BYTES = FRAME_HEAD.itemsize

_LARGE_BYTES = 1 << 20  # from here on, writing is left to a thread and goes round the page cache


@dataclass(frozen=True, slots=True)
class RecordId:
    """The physical offset of a record, its size and the digest of its bytes."""

    physical_offset: int
    size: int
    sha256: str

    @classmethod
    def of(cls, physical_offset: int, record: bytes) -> RecordId:
        """Return the id of a record."""
        return cls(physical_offset, len(record), hashlib.sha256(record).hexdigest())

    def is_in(self, log: CommitLog) -> bool:
        """Return whether the log has this very record at its physical offset."""
        try:
            stored = log.read(*log.locate(self.physical_offset), self.size)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return False
        return RecordId.of(self.physical_offset, stored.tobytes()) == self


class LogFiles(NamedTuple):
    """The segments of a log, which may not exist yet."""

    disk: Disk
    folders: Sequence[Path]  # sorted
    file_size: int

    def first_of(self, physical_offset: int) -> int:
        """Return the physical offset of the first byte of the segment of a physical offset."""
        return physical_offset // self.file_size * self.file_size

    def path(self, physical_offset: int) -> Path:
        """Return the segment of a physical offset, in whichever folder it is."""
        file_offset = self.first_of(physical_offset)
        name = offset_to_name(file_offset)
        # Source: MultiPathMappedFileQueue.java, which fills its folders in turn, file by file, but
        # for those whose disk is full.
        folder = self.folders[file_offset // self.file_size % len(self.folders)]
        if len(self.folders) > 1 and not LOCAL.exists(folder / name):
            folder = next((one for one in self.folders if LOCAL.exists(one / name)), folder)
        return folder / name


class _GuardedCommit:
    """An append after the records of the open segment.

    An empty segment after the open one is its guard: there a broker continues after a cut commit.
    Without it, a broker that recovers the store would write over the first record. If its own
    record then ended where another record of ours begins, the rest of the append would come back.

    Args:
        files: the log.
        start: physical offset of the first record, where the open segment is closed.

    Source: CommitLog.java#recoverAbnormally, which takes a segment after a blank for the end of the
    log, even if the segment is empty.
    """

    def __init__(self, files: LogFiles, start: int) -> None:
        self.files = files
        self.is_done = False
        self._start = start
        self._path = files.path(start)
        self._guard: Path | None = None

    def _blank(self) -> bytes:
        """Return the blank that closes the open segment."""
        n_left = self.files.file_size - self._start % self.files.file_size
        return np.array([(n_left, BLANK_MAGIC)], FRAME_HEAD).tobytes()

    def _close_segment(self) -> None:
        """Make the empty segment, then write the blank; both are on the disk on return.

        Only the blank is waited for: the records are flushed once, together with their headers.
        """
        disk, path = self.files.disk, self.files.path(self._start + self.files.file_size)
        if not LOCAL.exists(path):
            disk.create(path, self.files.file_size)
            self._guard = path
        disk.flush_all([path])
        blank = np.frombuffer(self._blank(), np.uint8)
        disk.write_through(self._path, self._start % self.files.file_size, blank)

    def _remove_guard(self) -> None:
        """Delete the empty segment, if it was made for this append."""
        if self._guard is not None:
            self.files.disk.delete(self._guard)
            self._guard = None

    def _show_first(self, head: bytes) -> None:
        """Write the first head of the append, and wait for it."""
        self.files.disk.write(self._path, self._start % self.files.file_size, head)
        self.is_done = True
        self.files.disk.flush(self._path)
        self._remove_guard()


class WithheldHeads(_GuardedCommit):
    """The headers in the open segment stay zero until all else is written.

    Later segments are written completely, for a recovery stops at the first zero and deletes them.
    The other ways to hide an append have the same attributes and methods.

    Attributes:
        files: where the append is written until it is shown.
        is_done: whether the append can be read.
    """

    def __init__(self, files: LogFiles, start: int) -> None:
        super().__init__(files, start)
        self._first_file = files.first_of(start)
        # Positions in the first file, and the headers that belong there.
        self._positions: list[Positions] = []
        self._headers: list[NDArray[np.void]] = []

    def hide(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Change the headers of records before they are written; they are of one segment.

        Args:
            physical_offsets: where the records will stand, (n,).
            starts: their positions in ``data``, (n,).
            data: the bytes that will be written, changed in place.

        Returns:
            Whether the bytes are final, apart from the first head of the append.
        """
        if physical_offsets[0] >= self._first_file + self.files.file_size:
            return True
        headers = windows(data, HEAD_BYTES)
        self._positions.append(physical_offsets - self._first_file)
        self._headers.append(headers[starts])
        headers[starts] = np.void(b"\0" * HEAD_BYTES)
        return False

    def show(self, touched: Collection[Path]) -> None:
        """Wait until the append is on the disk, then make it readable by one write.

        The headers are written, the first one last.

        Args:
            touched: the files that hold it.
        """
        disk = self.files.disk
        positions = np.concatenate(self._positions)
        headers = np.concatenate(self._headers)
        if len(positions) > 1:
            if len(touched) == 1:
                self._close_segment()
            else:
                # A blank would lead to the later segments, so nothing covers the headers until the
                # commit. What need not be written in that time is written before.
                disk.flush_all(touched)
            disk.scatter(self._path, positions[1:], headers[1:])
            disk.flush_all([self._path])
        else:
            disk.flush_all(touched)
        self._show_first(headers[0].tobytes())

    def undo(self, end: int) -> None:
        """Remove the bytes up to the physical offset ``end``, and those that hide them.

        Zeros are written over the records; segments that the append created are already gone.
        """
        # First, so that none of the records can be committed even if a step below fails.
        self._positions.clear()
        self._headers.clear()
        _clear(self.files, self._start, end)
        self._remove_guard()  # only now that the blank is gone that leads to it


class ClosedSegment(_GuardedCommit):
    """A blank in place of the first head closes the segment before anything is written after it.

    So records are written with their headers, once and for all. Their sizes must be known before: a
    blank would lead to records in a later segment.
    """

    _first_head = b""

    def hide(self, _physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Keep the blank in place of the first head."""
        if not self._first_head:
            self._close_segment()
            head = data[starts[0] :][:HEAD_BYTES]
            self._first_head = head.tobytes()
            head[:] = np.frombuffer(self._blank(), np.uint8)
        return True

    def show(self, touched: Collection[Path]) -> None:
        """Write the first head over the blank."""
        self.files.disk.flush_all(touched)
        self._show_first(self._first_head)

    def undo(self, end: int) -> None:
        """Write zeros over the records, and over the blank last."""
        _clear(self.files, self._start, max(end, self._start + MIN_BLANK_BYTES))
        self._remove_guard()


class NewLog:
    """The first append to an empty store: its folder gets the name ``commitlog`` once it is whole.

    Args:
        files: the log.
        paths: the files of the store.
    """

    def __init__(self, files: LogFiles, paths: StorePaths) -> None:
        self._paths = paths
        self.files = files._replace(folders=[paths.own.new_log])
        self.is_done = False
        files.disk.make_folder(paths.own.new_log, like=paths.commitlogs[0])

    @staticmethod
    def is_possible(disk: Disk, paths: StorePaths) -> bool:
        """Return whether the store is empty and its log an ordinary folder that can be replaced."""
        usual = (paths.root / "commitlog",)
        if paths.commitlogs != usual:
            return False
        disk.delete_tree(paths.own.new_log)
        return can_replace(usual[0], paths.own.new_log)

    def hide(self, _physical_offsets: Positions, _starts: Positions, _data: Bytes) -> bool:
        """Change nothing: the whole folder is out of sight."""
        return True

    def show(self, touched: Collection[Path]) -> None:
        """Rename the folder over the empty one."""
        disk = self.files.disk
        disk.flush_all(touched)
        disk.rename(self._paths.own.new_log, self._paths.commitlogs[0])
        self.is_done = True
        disk.flush_folder(self._paths.root)

    def undo(self, _end: int) -> None:
        """Delete the folder."""
        self.files.disk.delete_tree(self._paths.own.new_log)


# How an append is hidden, and then shown.
OneWriteCommit: TypeAlias = WithheldHeads | ClosedSegment | NewLog


def _clear(files: LogFiles, start: int, end: int) -> None:
    """Write zeros after the log end, in its segment if that still exists."""
    path, first_file = files.path(start), files.first_of(start)
    n_written = min(end, first_file + files.file_size) - start
    if n_written > 0 and LOCAL.exists(path):
        position = start - first_file
        files.disk.clear_append(path, position, position + n_written)


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
        self._disk = disk
        self._paths = paths
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
        self._ids: list[RecordId] = []  # of the first record and the last

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
            self._disk.make_folder(self._paths.own.folder)
            self._disk.replace(self._paths.own.append_intent, str(self.start).encode())
            if self.start == 0 and NewLog.is_possible(self._disk, self._paths):
                self._commit = NewLog(self._files, self._paths)
            elif self._is_known_to_fit:
                self._commit = ClosedSegment(self._files, self.start)
            else:
                self._commit = WithheldHeads(self._files, self.start)
        for row in (0, -1):
            record = records.data[records.starts[:-1][row] : records.starts[1:][row]].tobytes()
            self._ids.append(RecordId.of(int(placement.physical_offsets[row]), record))
        del self._ids[1:-1]
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

    def first_and_last(self) -> tuple[RecordId | None, RecordId | None]:
        """Return the ids of the first and the last record that were written."""
        return (self._ids[0], self._ids[-1]) if self._ids else (None, None)

    def commit(self) -> None:
        """Make all written records readable at once."""
        if self._commit is not None:
            self._commit.show(self._touched)

    def complete(self) -> None:
        """Delete the intent, because queues and ``topics.json`` have all committed messages."""
        self._disk.delete(self._paths.own.append_intent)

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
        self._disk.delete(self._paths.own.append_intent)
