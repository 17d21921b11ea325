"""The CommitLog of a copy: complete records are appended, and an end is cut where it differs.

Files have the length of the source's from the moment they exist, and are zero after the end. The
end is always where a record begins, so a reader never meets a part of one. A blank, which closes a
file, may be long: its head is written last, so that it appears complete as well.

Whoever appends has walked the records, and keeps their starts for the thread of the queues. Where
they are not known, that thread walks the log itself.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError
from rmqstore.format.columns.buffers import gather_words
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.columns.walk import Walk, walk, walk_plainly
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import (
    BLANK_MAGIC,
    FIXED_PART_V4,
    MIN_BLANK_BYTES,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Positions,
)
from rmqstore.read.last_record import LastRecord
from rmqstore.storage.files.disk import Disk, clear
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths, offset_to_name
from rmqstore.storage.log.commitlog import CommitLog, read_frame
from rmqstore.storage.log.walks import Window, walk_forward
from rmqstore.storage.recovery.log_end import LogEnd, last_record_before
from rmqstore.write.truncation import truncate_log

logger = logging.getLogger(__name__)

_MOST: Final = 4 << 20  # records, of 4 bytes each; further ones are walked again
_RUN_COST: Final = 64  # records that take as much memory as a run does beside its own

# The highest byte of the size of a record is then 0, as it has to be in the first record of a log,
# whose byte 0 cannot be asked for.
_MAX_RECORD_BYTES: Final = (16 << 20) - 1
_LARGE_RECORD_BYTES: Final = 4 << 10  # few of these are buffered: one by one is faster
_FRAME_HEAD: Final = struct.Struct(">ii")
_BUFFER_BYTES: Final = 8 << 20  # beside a record that has begun
# By one call. For more at once the system takes larger blocks of memory, which a virtual machine
# often has to get from its host: that costs more than the bytes.
_WRITE_BYTES: Final = 256 << 10
_PHYSICAL_OFFSET_AT: Final = FIXED_PART_V4.fields["physical_offset"][1]  # type: ignore[index]


class _Run(NamedTuple):
    """Records of one file that follow one another."""

    begin: int  # physical offset
    end: int
    starts: NDArray[np.int32]  # (n,), counted from the begin

    @property
    def cost(self) -> int:
        """How much memory it takes, in records."""
        return len(self.starts) + _RUN_COST


class RecordStarts:
    """Where records begin, as far as whoever appended them has kept it."""

    def __init__(self, runs: Iterable[_Run] = ()) -> None:
        self._runs = deque(runs)
        self._cost = 0

    def add(self, begin: int, end: int, starts: Positions) -> None:
        """Add the records in ``[begin, end)``, which follow all before them.

        Args:
            begin: physical offset of the first record.
            end: physical offset after the last one, in the same file.
            starts: (n,), counted from ``begin``.
        """
        run = _Run(begin, end, starts.astype(np.int32))
        if self._cost + run.cost <= _MOST:
            self._runs.append(run)
            self._cost += run.cost

    def until(self, end: int) -> RecordStarts:
        """Return those of the records before a physical offset, which another thread may take."""
        return RecordStarts(takewhile(lambda run: run.begin < end, self._runs))

    def forget_before(self, physical_offset: int) -> None:
        """Forget the records that end at or before a physical offset."""
        while self._runs and self._runs[0].end <= physical_offset:
            self._cost -= self._runs.popleft().cost

    def boundary(self, start: int, limit: int) -> int | None:
        """Return the last known end of a record in ``(start, limit]``, None without one."""
        return max((run.end for run in self._runs if start < run.end <= limit), default=None)

    def windows(self, log: CommitLog, segment: Segment, start: int, end: int) -> Iterator[Window]:
        """Yield the records of one file as ``walk_forward`` does, and forget those before."""
        while start < end:
            while self._runs and self._runs[0].begin < start:
                self._runs.popleft()
            run = self._runs[0] if self._runs else None
            if run is None or run.begin >= end:
                yield from walk_forward(log, segment, start, end)
                return
            if run.begin > start:
                yield from walk_forward(log, segment, start, run.begin)
            n_before = int(np.searchsorted(run.starts, end - run.begin))
            stop = run.begin + int(run.starts[n_before]) if n_before < len(run.starts) else run.end
            first = run.begin - segment.start
            data = log.read_in_place(segment, np.array([first]), np.array([stop - run.begin]))
            starts = run.starts[:n_before] + np.int64(first)
            yield Window(log, segment, data, Walk(starts, StopKind.END, stop - segment.start), end)
            start = stop


class LogFlush(NamedTuple):
    """What one flush brings to the disk, whichever thread does.

    Attributes:
        end: physical offset after the last record.
        number: of the last write.
        paths: the files that were written to.
        folder: their folder if the name of one of these is new, else None.
    """

    end: int
    number: int
    paths: tuple[Path, ...]
    folder: Path | None

    def perform(self, disk: Disk) -> None:
        """Wait until all of it is on the disk.

        Raises:
            OSError: it is not known what is on the disk. A system reports lost bytes once, so a
                flush that failed must not be repeated.
        """
        for path in self.paths:
            disk.flush(path)
        if self.folder is not None:
            disk.flush_folder(self.folder)


class Unflushed:
    """The files of a log that were written to since they were flushed.

    What is written after a flush began waits for the next one.

    Attributes:
        folder: the folder of the files.
        n_removals: how many times files were deleted, or may have been; whoever has files open
            closes them then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.n_removals = 0
        self._number = 0  # of the last write
        self._written: dict[Path, int] = {}  # the number of the last write to each file
        self._created = 0  # the number of the write that made the last new file; 0 without one

    def __contains__(self, path: Path) -> bool:
        """Return whether a file was written to."""
        return path in self._written

    @property
    def has_new_file(self) -> bool:
        """Whether the name of a file is not on the disk."""
        return self._created > 0

    def add(self, path: Path, *, is_new: bool) -> None:
        """Note that a file is about to be written to."""
        self._number += 1
        self._written[path] = self._number
        if is_new:
            self._created = self._number

    def discard(self, path: Path) -> None:
        """Forget a file that was deleted."""
        self._written.pop(path, None)
        self.n_removals += 1

    def clear(self) -> None:
        """Forget all files, which were flushed or deleted."""
        self._written.clear()
        self.n_removals += 1

    def begin(self, end: int) -> LogFlush:
        """Return what a flush is to bring to the disk.

        Args:
            end: physical offset after the last record that was written.
        """
        folder = self.folder if self.has_new_file else None
        return LogFlush(end, self._number, tuple(self._written), folder)

    def forget(self, number: int) -> None:
        """Forget the writes that a flush has brought to the disk."""
        self._written = {path: write for path, write in self._written.items() if write > number}
        if self._created <= number:
            self._created = 0


class _Begun(NamedTuple):
    """The record or blank that has begun."""

    needed: int = 0  # bytes of a record, as far as they are known
    n_blank: int = 0  # bytes of a blank that came
    head: bytes = b""  # of the blank


class LogCopy:
    """The log of a copy, open to be appended to.

    Args:
        disk: performs all changes.
        paths: the files of the copy.
        file_size: bytes of each file.
        end: physical offset after the last record.
        source: what names the source in errors.

    Attributes:
        log: the files as readers see them.
        end: physical offset after the last complete record that was written.
        last_store_timestamp: of the last record that was appended, epoch ms; 0 before the first,
            unless :meth:`read_last_time` was called.
        is_consistent: whether no change is under way; a change that failed is for ever.
        starts: where the last records begin.
        unflushed: its files, as far as the disk may not have them.
    """

    def __init__(
        self, disk: Disk, paths: StorePaths, file_size: int, end: int, source: str
    ) -> None:
        self._disk = disk
        self._file_size = file_size
        self._source = source
        self.log = CommitLog(paths.commitlogs)
        self.end = end
        self.last_store_timestamp = 0
        self.is_consistent = True
        self.starts = RecordStarts()
        # A record that has begun, and a batch after it. Pages that are not used take no memory.
        self._buffer = np.empty(_MAX_RECORD_BYTES + _BUFFER_BYTES, np.uint8)
        self._n_buffered = 0
        self._begun = _Begun()
        self.unflushed = Unflushed(paths.commitlogs[0])

    def flush_again(self, start: int) -> None:
        """Let the next flush bring the records from a physical offset on to the disk."""
        for _, _, segment in self.log.segment_spans(start, self.end):
            if segment is not None:
                self.unflushed.add(segment.path, is_new=True)

    def forget_begun(self) -> None:
        """Forget the record or blank that has begun, because the connection ended."""
        n_come = self._begun.n_blank
        if n_come:
            path = self._path(self.end)
            first = self.end % self._file_size
            self.is_consistent = False
            if LOCAL.exists(path):
                self.unflushed.add(path, is_new=False)
                clear(self._disk, path, first, first + n_come)
            self.is_consistent = True
        self._n_buffered = 0
        self._begun = _Begun()

    def buffer(self, data: memoryview | bytes) -> None:
        """Buffer the next bytes of the log; raises as :meth:`write_buffer` does.

        Complete records are written at once if the buffer is too small for all of them.
        """
        taken = np.frombuffer(data, np.uint8)
        end = self.end
        while len(taken):
            start = self._n_buffered
            part = taken[: len(self._buffer) - start]
            self._buffer[start : start + len(part)] = part
            self._n_buffered += len(part)
            taken = taken[len(part) :]
            if self._n_buffered == len(self._buffer):
                self.write_buffer()
        if self.end != end:
            self.write_buffer()

    def write_buffer(self) -> None:
        """Write the complete records in the buffer; the rest stays there.

        Raises:
            CorruptRecordError: bytes are not records that belong here.
        """
        if not self._n_buffered:
            return
        self.is_consistent = False
        first = 0
        try:
            while first < self._n_buffered:
                left = self._file_size - (self.end + self._begun.n_blank) % self._file_size
                part = self._buffer[first : min(first + left, self._n_buffered)]
                # A walk is faster over bytes that begin at the boundary of a word.
                done = self._append_in_file(
                    part.copy() if first else part, is_end=len(part) == left
                )
                first += done
                if done < len(part) or not done:
                    break
        except CorruptRecordError:  # of what would come next, of which nothing is written
            self.is_consistent = True
            raise
        finally:
            self._buffer[: self._n_buffered - first] = self._buffer[first : self._n_buffered].copy()
            self._n_buffered -= first
        self.is_consistent = True

    def _append_in_file(self, data: Bytes, *, is_end: bool) -> int:
        """Write the complete records of bytes in one file; return how many bytes were used."""
        begun = self._begun
        if not begun.n_blank:
            if len(data) < begun.needed and not is_end:
                return 0
            used = self._append_records(data)
            if self._begin(data[used:]):
                used = len(data)
            elif is_end and used < len(data):
                raise self._not_a_record("the file ends inside a record")
        else:
            self._write(self.end + begun.n_blank, data)
            self._begun = begun._replace(n_blank=begun.n_blank + len(data))
            used = len(data)
        begun = self._begun
        if is_end and begun.n_blank:
            self._write(self.end, np.frombuffer(begun.head, np.uint8))
            self._begun = _Begun()
            self.end += begun.n_blank
        return used

    def _append_records(self, buf: Bytes) -> int:
        """Write the complete records that a buffer begins with; return how many bytes they have."""
        is_of_large = len(buf) >= 4 and int.from_bytes(buf[:4]) >= _LARGE_RECORD_BYTES
        walked = (walk_plainly if is_of_large else walk)(buf, 0, len(buf), self.end)
        starts, size = walked.starts, int(walked.position)
        if not len(starts):
            return 0
        stored = gather_words(buf, starts + _PHYSICAL_OFFSET_AT).view(">i8")
        wrong = np.flatnonzero(stored != starts + self.end)
        if len(wrong):
            row = int(wrong[0])
            starts, size = starts[:row], int(starts[row])
        if len(starts):
            headers, _ = read_headers(buf, starts[-1:])
            self._write(self.end, buf[:size])
            self.starts.add(self.end, self.end + size, starts)
            self.last_store_timestamp = int(headers.column("store_timestamp")[0])
            self.end += size
        if len(wrong):
            raise self._not_a_record(f"the record says that it is at {int(stored[row])}")
        return size

    def _begin(self, data: Bytes) -> bool:
        """Check the head of what follows the last complete record.

        Returns:
            Whether it is a blank, all of which is written but its head.
        """
        self._begun = _Begun(_FRAME_HEAD.size)
        if len(data) < _FRAME_HEAD.size:
            return False
        head = data[: _FRAME_HEAD.size].tobytes()
        size, magic = _FRAME_HEAD.unpack(head)
        left = self._file_size - self.end % self._file_size
        if magic == BLANK_MAGIC:
            if not MIN_BLANK_BYTES <= size == left:
                raise self._not_a_record(f"a blank of {size} bytes, where {left} are left")
            rest = data[_FRAME_HEAD.size :]
            if len(rest):
                self._write(self.end + _FRAME_HEAD.size, rest)
            self._begun = _Begun(n_blank=len(data), head=head)
            return True
        if magic not in TOPIC_LENGTH_BYTES:
            magic_text = f"magic {magic & 0xFFFFFFFF:#010x}"
            raise self._not_a_record(f"{magic_text} is neither a record's nor a blank's")
        if not MIN_RECORD_BYTES <= size <= min(left, _MAX_RECORD_BYTES):
            raise self._not_a_record(f"a record of {size} bytes, where {left} are left in the file")
        self._begun = _Begun(size)
        return False

    def _not_a_record(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            self._source, self.end, f"{reason}; nothing of the log from here on is copied"
        )

    def _path(self, physical_offset: int) -> Path:
        start = physical_offset - physical_offset % self._file_size
        return self.unflushed.folder / offset_to_name(start)

    def _write(self, physical_offset: int, data: Bytes) -> None:
        """Write bytes into one file of the log."""
        path = self._path(physical_offset)
        is_new = path not in self.unflushed and not LOCAL.exists(path)
        if is_new:
            self._disk.create(path, self._file_size)
        self.unflushed.add(path, is_new=is_new)
        position = physical_offset % self._file_size
        for first in range(0, len(data), _WRITE_BYTES):
            self._disk.write(path, position + first, data[first : first + _WRITE_BYTES])

    def begin_flush(self, end: int) -> LogFlush:
        """Return what brings the records before a physical offset to the disk."""
        if self.unflushed.has_new_file:
            self.log.refresh()
        return self.unflushed.begin(end)

    def read(self, start: int, size: int) -> Bytes:
        """Return bytes of the copy, all of which lie in one file and before the end."""
        return self.log.read(*self.log.locate(start), size)

    def first_difference(self, start: int, data: memoryview) -> int | None:
        """Return the first physical offset at which the copy has other bytes; None without one.

        Args:
            start: physical offset of the first of the bytes.
            data: bytes, all of which lie before the end.
        """
        while data:
            part = data[: self._file_size - start % self._file_size]
            differs = self.read(start, len(part)) != np.frombuffer(part, np.uint8)
            if differs.any():
                return start + int(differs.argmax())
            start += len(part)
            data = data[len(part) :]
        return None

    def read_last_time(self) -> None:
        """Read when the last record before the end was stored; 0 if that is unknown."""
        last = LastRecord.at(self.log, last_record_before(self.log, self.end))
        self.last_store_timestamp = 0 if last is None else last.store_timestamp

    def record_end(self, physical_offset: int) -> int | None:
        """Return the physical offset after the record at one; None if a blank is there."""
        size, magic = read_frame(self.log, self.log.locate(physical_offset))
        return physical_offset + size if magic in TOPIC_LENGTH_BYTES else None

    def cut(self, end: int, reason: str, copies: Path) -> None:
        """Set the end back; what lies after it is kept in a folder, and cleared.

        Args:
            end: where a record begins.
            reason: why, for the log.
            copies: folder for what is cut.
        """
        self.is_consistent = False
        self.end = end
        self._n_buffered = 0
        self._begun = _Begun()
        self.starts = RecordStarts()
        self.log.refresh()
        truncate_log(self._disk, self.log, LogEnd(end, str(self._path(end)), reason, 0), copies)
        self._reopen()
        self.is_consistent = True

    def begin_again(self, begin: int) -> None:
        """Begin a log that has no record at another physical offset."""
        self.is_consistent = False
        self.log.refresh()
        for segment in self.log.segments:  # zeros
            self._disk.delete(segment.path)
        self._reopen()
        self.end = begin
        self.is_consistent = True

    def _reopen(self) -> None:
        """Open the log after files were deleted, those of whose names are made again."""
        self.unflushed.clear()
        self._disk.flush_folder(self.unflushed.folder)
        self.log.close()
        self.log = CommitLog([self.unflushed.folder])

    def delete_before(self, begin: int) -> int:
        """Delete the files that end at or before a physical offset; return how many.

        Each is gone from the disk before the next one goes, so a power cut never leaves a gap.
        """
        self.log.refresh()
        gone = [segment.path for segment in self.log.segments if segment.end <= begin]
        for path in gone:
            self._disk.delete(path)
            self.unflushed.discard(path)
            self._disk.flush_folder(self.unflushed.folder)
        if gone:
            self.log.refresh()
        return len(gone)

    def close(self) -> None:
        """Close the files that were read."""
        self.log.close()
