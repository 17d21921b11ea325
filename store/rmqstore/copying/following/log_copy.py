"""The CommitLog of a copy: whole records are appended, and an end is cut where it differs.

Files have the length of the source's from the moment they exist, and are zero after the end. The
end is always where a record begins, so a reader never meets a part of one. A blank, which closes a
file, may be long: its head is written last, so that it appears whole as well.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore.errors import CorruptRecordError
from rmqstore.format.columns.heads import read_heads
from rmqstore.format.columns.walk import walk, walk_plainly
from rmqstore.format.layout import (
    BLANK_MAGIC,
    MIN_BLANK_BYTES,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
)
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, offset_to_name
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import next_record, walk_forward
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.write.repair.truncation import truncate_log

logger = logging.getLogger(__name__)

# The highest byte of the size of a record is then 0, as it has to be in the first record of a log,
# whose byte 0 cannot be asked for.
_MAX_RECORD_BYTES: Final = (16 << 20) - 1
_LARGE_RECORD_BYTES: Final = 4 << 10  # few of these are in a read: one by one is faster
_FRAME_HEAD: Final = struct.Struct(">ii")


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
        end: physical offset after the last whole record that was written.
        durable_end: the same of what is on the disk.
        last_store_timestamp: of the last record that was appended, epoch ms; 0 before the first.
        is_whole: whether no change is under way; a change that failed is for ever.
    """

    def __init__(
        self, disk: Disk, paths: StorePaths, file_size: int, end: int, source: str
    ) -> None:
        self._disk, self._paths, self._file_size = disk, paths, file_size
        self._folder, self._source = paths.commitlogs[0], source
        self.log = CommitLog(paths.commitlogs)
        self.end = self.durable_end = end
        self.last_store_timestamp = 0
        self.is_whole = True
        self._flush_error: OSError | None = None
        self._pending = bytearray()  # the beginning of a record
        self._needed = 0  # bytes of the record that has begun, as far as is known
        self._blank: tuple[int, bytes] | None = None  # bytes of it that came, and its head
        self._touched: dict[Path, None] = {}
        self._has_new_file = False

    @property
    def position(self) -> int:
        """Physical offset of the next byte to come."""
        in_blank = 0 if self._blank is None else self._blank[0]
        return self.end + len(self._pending) + in_blank

    @property
    def unsynced(self) -> int:
        """How many bytes were written since the last :meth:`sync`, about."""
        return self.position - self.durable_end

    def forget_begun(self) -> None:
        """Forget the record or blank that has begun, because the connection ended."""
        if self._blank is not None:
            n_come = self._blank[0]
            path, first = self._path(self.end), self.end % self._file_size
            self.is_whole = False
            if LOCAL.exists(path):
                self._disk.clear(path, first, first + n_come)
            self.is_whole = True
        self._pending.clear()
        self._needed, self._blank = 0, None

    def append(self, data: memoryview | bytes) -> None:
        """Append the next bytes of the log.

        Raises:
            CorruptRecordError: they are not records that belong here.
        """
        self.is_whole = False
        try:
            done = 0
            while done < len(data):
                left = self._file_size - self.position % self._file_size
                part = data[done : done + left]
                self._append_in_file(part, is_end=len(part) == left)
                done += len(part)
        except CorruptRecordError:  # of what would come next, of which nothing is written
            self.is_whole = True
            raise
        self.is_whole = True

    def _append_in_file(self, data: memoryview | bytes, *, is_end: bool) -> None:
        if self._blank is None:
            self._pending += data
            if len(self._pending) < self._needed and not is_end:
                return
            buf = np.frombuffer(bytes(self._pending), np.uint8)
            whole = self._whole_records(buf)
            if whole:
                self._write(self.end, buf[:whole])
                self.end += whole
                del self._pending[:whole]
            self._begin(self.end % self._file_size)
            if is_end and self._pending:
                raise self._not_a_record("the file ends inside a record")
        else:
            n_come, head = self._blank
            self._write(self.end + n_come, np.frombuffer(data, np.uint8))
            self._blank = n_come + len(data), head
        if is_end and self._blank is not None:
            n_come, head = self._blank
            self._write(self.end, np.frombuffer(head, np.uint8))
            self._blank = None
            self.end += n_come

    def _whole_records(self, buf: Bytes) -> int:
        """Return how many bytes of the buffer, which begins with a record, are whole records."""
        is_of_large = len(buf) >= 4 and int.from_bytes(buf[:4]) >= _LARGE_RECORD_BYTES
        walked = (walk_plainly if is_of_large else walk)(buf, 0, len(buf), self.end)
        if not len(walked.starts):
            return 0
        heads, _ = read_heads(buf, walked.starts)
        wrong = np.flatnonzero(heads.column("physical_offset") != walked.starts + self.end)
        if len(wrong):
            row = int(wrong[0])
            claimed = int(heads.column("physical_offset")[row])
            place = self.end + int(walked.starts[row])
            reason = f"the record says that it is at {claimed}"
            raise CorruptRecordError(self._source, place, reason)
        self.last_store_timestamp = int(heads.column("store_timestamp")[-1])
        return int(walked.position)

    def _begin(self, position: int) -> None:
        """Look at the head of what follows the last whole record.

        Args:
            position: where in its file it begins.
        """
        self._needed = _FRAME_HEAD.size
        if len(self._pending) < _FRAME_HEAD.size:
            return
        size, magic = _FRAME_HEAD.unpack_from(self._pending)
        left = self._file_size - position
        if magic == BLANK_MAGIC and MIN_BLANK_BYTES <= size <= left:
            head = bytes(self._pending[: _FRAME_HEAD.size])
            rest = np.frombuffer(bytes(self._pending[_FRAME_HEAD.size :]), np.uint8)
            if len(rest):
                self._write(self.end + _FRAME_HEAD.size, rest)
            self._blank = len(self._pending), head
            self._pending.clear()
            self._needed = 0
        elif magic not in TOPIC_LENGTH_BYTES:
            magic_text = f"magic {magic & 0xFFFFFFFF:#010x}"
            raise self._not_a_record(f"{magic_text} is neither a record's nor a blank's")
        elif not MIN_RECORD_BYTES <= size <= min(left, _MAX_RECORD_BYTES):
            raise self._not_a_record(f"a record of {size} bytes, where {left} are left in the file")
        else:
            self._needed = size

    def _not_a_record(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            self._source, self.end, f"{reason}; nothing of the log from here on is copied"
        )

    def _path(self, physical_offset: int) -> Path:
        start = physical_offset - physical_offset % self._file_size
        return self._folder / offset_to_name(start)

    def _write(self, physical_offset: int, data: Bytes) -> None:
        """Write bytes into one file of the log."""
        path = self._path(physical_offset)
        if path not in self._touched:
            if not LOCAL.exists(path):
                self._disk.create(path, self._file_size)
                self._has_new_file = True
            self._touched[path] = None
        self._disk.write(path, physical_offset % self._file_size, data)

    def sync(self) -> None:
        """Wait until all whole records are on the disk.

        Raises:
            OSError: it cannot be told what is on the disk, now or at an earlier call. A system
                reports lost bytes once, and a second flush succeeds without them.
        """
        if self._flush_error is not None:
            raise self._flush_error
        end = self.end
        try:
            for path in self._touched:
                self._disk.flush(path)
            if self._has_new_file:
                self._disk.flush_folder(self._folder)
        except OSError as err:
            self._flush_error = err
            raise
        if self._has_new_file:
            self._has_new_file = False
            self.log.refresh()
        self._touched.clear()
        self.durable_end = end

    def read(self, start: int, size: int) -> Bytes:
        """Return bytes of the copy, all of which lie in one file and before the end."""
        place = self.log.locate(start)
        return self.log.read(*place, size)

    def boundary_from(self, physical_offset: int) -> int:
        """Return where a record begins: at a physical offset, or soon after it.

        If its file has none after it, this is the start of the file.
        """
        segment = self.log.find(physical_offset)
        if segment is None or physical_offset == segment.start:
            return physical_offset
        stop = min(segment.end, self.end)
        first = next_record(self.log, segment, physical_offset, stop)
        return first if first < stop else segment.start

    def record_end(self, physical_offset: int) -> int | None:
        """Return the physical offset after the record at one; None if a blank is there."""
        size, magic = self.log.frame(self.log.locate(physical_offset))
        return physical_offset + size if magic in TOPIC_LENGTH_BYTES else None

    def boundary_before(self, start: int, physical_offset: int) -> int:
        """Return the last place up to a physical offset where a record begins or would begin.

        Args:
            start: where a record of the copy begins.
            physical_offset: at or after ``start``.
        """
        segment = self.log.find(physical_offset)
        if segment is None or physical_offset <= max(start, segment.start):
            return physical_offset
        boundary = max(start, segment.start)
        for window in walk_forward(self.log, segment, boundary, physical_offset):
            starts = window.records.starts
            if len(starts):
                boundary = segment.start + int(starts[-1])
            if window.stopped <= physical_offset:
                boundary = window.stopped
            if window.damage is not None:
                break
        return boundary

    def cut(self, end: int, reason: str, copies: Path) -> None:
        """Set the end back; what lies after it is kept in a folder, and cleared.

        Args:
            end: where a record begins.
            reason: why, for the log.
            copies: folder for what is cut.
        """
        self.is_whole = False
        self.end, self.durable_end = end, min(self.durable_end, end)
        self._pending.clear()
        self._needed, self._blank = 0, None
        self.log.refresh()
        truncate_log(self._disk, self.log, LogEnd(end, str(self._path(end)), reason, 0), copies)
        self._touched.clear()
        self._disk.flush_folder(self._folder)
        self.log.close()
        self.log = CommitLog(self._paths.commitlogs)  # files of the same names are made again
        self.durable_end = end
        self.is_whole = True

    def begin_again(self, begin: int) -> None:
        """Begin a log that has no record at another physical offset."""
        self.is_whole = False
        self.log.refresh()
        for segment in self.log.segments:  # zeros
            self._disk.delete(segment.path)
        self._touched.clear()
        self._disk.flush_folder(self._folder)
        self.log.close()
        self.log = CommitLog(self._paths.commitlogs)
        self.end = self.durable_end = begin
        self.is_whole = True

    def close(self) -> None:
        """Close the files that were read."""
        self.log.close()
