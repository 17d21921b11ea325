"""Three ways to keep an append out of sight until one write shows all of it.

A scan of the log takes no record whose first 8 bytes, its head, are zero, and it steps over a blank
to the next segment. FORMAT.md has the order of writes and the reasons ("The one-write commit").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import windows
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, MIN_BLANK_BYTES, Bytes, Positions
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, offset_to_name
from rmqstore.storage.files.scratch import can_replace

HEAD_BYTES = FRAME_HEAD.itemsize


class LogFiles(NamedTuple):
    """The segments of a log, which may not exist yet."""

    disk: Disk
    folders: Sequence[Path]  # sorted
    file_size: int

    def first_of(self, physical_offset: int) -> int:
        """Return the physical offset of the first byte of the segment of a physical offset."""
        return physical_offset // self.file_size * self.file_size

    def path(self, physical_offset: int) -> Path:
        """Return the segment of a physical offset."""
        file_offset = self.first_of(physical_offset)
        # Source: MultiPathMappedFileQueue.java, which fills its folders in turn, file by file.
        folder = self.folders[file_offset // self.file_size % len(self.folders)]
        return folder / offset_to_name(file_offset)


class OneWriteCommit(Protocol):
    """How an append is hidden, and then shown.

    Attributes:
        files: where the append is written until it is shown.
        is_done: whether the append can be read.
    """

    files: LogFiles
    is_done: bool

    def hide(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Change the heads of records before they are written; they are of one segment.

        Args:
            physical_offsets: where the records will stand, (n,).
            starts: their positions in ``data``, (n,).
            data: the bytes that will be written, changed in place.

        Returns:
            Whether the bytes are final, apart from the first head of the append.
        """
        ...

    def show(self, touched: Collection[Path]) -> None:
        """Wait until the append is on the disk, then make it readable by one write.

        Args:
            touched: the files that hold it.
        """
        ...

    def undo(self, end: int) -> None:
        """Remove what was written up to the physical offset ``end``, and what hides it."""
        ...


class WithheldHeads:
    """The heads in the open segment stay zero until all else is written.

    Later segments are written completely, for a recovery stops at the first zero and deletes them.

    Args:
        files: the log.
        start: physical offset of the first record.
    """

    def __init__(self, files: LogFiles, start: int) -> None:
        self.files = files
        self.is_done = False
        self._start = start
        self._first_file = files.first_of(start)
        self._positions: list[Positions] = []  # in the first file, and the heads that belong there
        self._heads: list[NDArray[np.void]] = []
        self._guard = Guard(files, start)

    def hide(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Withhold the heads of records in the open segment."""
        if physical_offsets[0] >= self._first_file + self.files.file_size:
            return True
        heads = windows(data, HEAD_BYTES)
        self._positions.append(physical_offsets - self._first_file)
        self._heads.append(heads[starts])
        heads[starts] = np.void(b"\0" * HEAD_BYTES)
        return False

    def show(self, touched: Collection[Path]) -> None:
        """Write the heads, the first one last."""
        disk, path = self.files.disk, self.files.path(self._start)
        positions, heads = np.concatenate(self._positions), np.concatenate(self._heads)
        if len(positions) > 1:
            if len(touched) == 1:
                self._guard.close_segment()
            else:
                # A blank would lead to the later segments, so nothing covers the heads until the
                # commit. What need not be written in that time is written before.
                disk.flush_all(touched)
            disk.scatter(path, positions[1:], heads[1:])
            disk.flush_all([path])
        else:
            disk.flush_all(touched)
        disk.write(path, int(positions[0]), heads[0].tobytes())
        self.is_done = True
        disk.flush(path)
        self._guard.remove()

    def undo(self, end: int) -> None:
        """Write zeros over the records; segments that the append created are gone by now."""
        # First, so that none of the records can be committed even if a step below fails.
        self._positions.clear()
        self._heads.clear()
        _clear(self.files, self._start, end)
        self._guard.remove()  # only now that the blank is gone that leads to it


class ClosedSegment:
    """A blank in place of the first head closes the segment before anything is written after it.

    So records are written with their heads, once and for all. Their sizes must be known before: a
    blank would lead to records in a later segment.

    Args:
        files: the log.
        start: physical offset of the first record.
    """

    def __init__(self, files: LogFiles, start: int) -> None:
        self.files = files
        self.is_done = False
        self._start = start
        self._first_head = b""
        self._guard = Guard(files, start)

    def hide(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Keep the blank in place of the first head."""
        del physical_offsets
        if not self._first_head:
            self._guard.close_segment()
            head = data[starts[0] :][:HEAD_BYTES]
            self._first_head = head.tobytes()
            head[:] = np.frombuffer(self._guard.blank(), np.uint8)
        return True

    def show(self, touched: Collection[Path]) -> None:
        """Write the first head over the blank."""
        disk, path = self.files.disk, self.files.path(self._start)
        disk.flush_all(touched)
        disk.write(path, self._start % self.files.file_size, self._first_head)
        self.is_done = True
        disk.flush(path)
        self._guard.remove()

    def undo(self, end: int) -> None:
        """Write zeros over the records, and over the blank last."""
        _clear(self.files, self._start, max(end, self._start + MIN_BLANK_BYTES))
        self._guard.remove()


class NewLog:
    """The first append to an empty store: its folder gets the name ``commitlog`` once it is whole.

    Args:
        files: the log.
        paths: the files of the store.
    """

    def __init__(self, files: LogFiles, paths: StorePaths) -> None:
        self._paths = paths
        self.files = files._replace(folders=[paths.new_log])
        self.is_done = False
        files.disk.make_folder(paths.new_log, like=paths.commitlogs[0])

    @staticmethod
    def is_possible(disk: Disk, paths: StorePaths) -> bool:
        """Tell whether the store is empty and its log an ordinary folder that can be replaced."""
        usual = (paths.root / "commitlog",)
        if paths.commitlogs != usual:
            return False
        disk.delete_tree(paths.new_log)
        return can_replace(usual[0], paths.new_log)

    def hide(self, physical_offsets: Positions, starts: Positions, data: Bytes) -> bool:
        """Change nothing: the whole folder is out of sight."""
        del physical_offsets, starts, data
        return True

    def show(self, touched: Collection[Path]) -> None:
        """Rename the folder over the empty one."""
        disk = self.files.disk
        disk.flush_all(touched)
        disk.rename(self._paths.new_log, self._paths.commitlogs[0])
        self.is_done = True
        disk.flush_folder(self._paths.root)

    def undo(self, end: int) -> None:
        """Delete the folder."""
        del end
        self.files.disk.delete_tree(self._paths.new_log)


class Guard:
    """An empty segment after the open one, where a broker goes on after a cut commit.

    Without it, a broker that recovers the store would write over the first record. If its own
    record then ended where another record of ours begins, the rest of the append would come back.

    Args:
        files: the log.
        start: physical offset of the first record, where the open segment is closed.

    Source: CommitLog.java#recoverAbnormally, which takes a segment after a blank for the end of the
    log, even if the segment is empty.
    """

    def __init__(self, files: LogFiles, start: int) -> None:
        self._files, self._start = files, start
        self._path: Path | None = None

    def blank(self) -> bytes:
        """Return the blank that closes the open segment."""
        position = self._start % self._files.file_size
        return np.array([(self._files.file_size - position, BLANK_MAGIC)], FRAME_HEAD).tobytes()

    def close_segment(self) -> None:
        """Make the empty segment, then write the blank; both are on the disk on return.

        Only the blank is waited for: the records are flushed once, together with their heads.
        """
        disk, path = self._files.disk, self._files.path(self._start + self._files.file_size)
        if not LOCAL.exists(path):
            disk.create(path, self._files.file_size)
            self._path = path
        disk.flush_all([path])
        open_segment, position = self._files.path(self._start), self._start % self._files.file_size
        blank = np.frombuffer(self.blank(), np.uint8)
        disk.write_through(open_segment, position, blank)

    def remove(self) -> None:
        """Delete the empty segment, if it was made for this append."""
        if self._path is not None:
            self._files.disk.delete(self._path)
            self._path = None


def _clear(files: LogFiles, start: int, end: int) -> None:
    """Write zeros after the log end, in its segment if that still exists."""
    path, first_file = files.path(start), files.first_of(start)
    n_written = min(end, first_file + files.file_size) - start
    if n_written > 0 and LOCAL.exists(path):
        position = start - first_file
        files.disk.clear_append(path, position, position + n_written)
