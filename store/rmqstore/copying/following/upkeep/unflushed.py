"""Which files of a log have bytes that may not be on the disk yet."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from rmqstore.storage.files.disk import Disk


class Flush(NamedTuple):
    """What one flush brings to the disk.

    Attributes:
        end: physical offset after the last record.
        number: of the last write.
        paths: the files that were written to.
        has_new_file: whether the name of one of these is new.
    """

    end: int
    number: int
    paths: tuple[Path, ...]
    has_new_file: bool


class Unflushed:
    """The files of a log that were written to since they were flushed.

    One thread writes, and another one may flush meanwhile: what is written after a flush began
    waits for the next one.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._number = 0  # of the last write
        self._written: dict[Path, int] = {}  # the number of the last write to each file
        self._created = 0  # the number of the write that made the last new file; 0 without one
        self._error: OSError | None = None

    def __contains__(self, path: Path) -> bool:
        """Tell whether a file was written to."""
        return path in self._written

    @property
    def has_new_file(self) -> bool:
        """Whether the name of a file is not on the disk."""
        return self._created > 0

    def add(self, path: Path, *, is_new: bool) -> None:
        """Note that a file is about to be written to."""
        with self._guard:
            self._number += 1
            self._written[path] = self._number
            if is_new:
                self._created = self._number

    def discard(self, path: Path) -> None:
        """Forget a file that was deleted."""
        with self._guard:
            self._written.pop(path, None)

    def clear(self) -> None:
        """Forget all files, which were flushed or deleted."""
        with self._guard:
            self._written.clear()

    def begin(self, end: int) -> Flush:
        """Return what a flush is to bring to the disk.

        Args:
            end: physical offset after the last record that was written.
        """
        with self._guard:
            return Flush(end, self._number, tuple(self._written), self.has_new_file)

    def flush(self, flush: Flush, disk: Disk) -> None:
        """Wait until all of it is on the disk.

        Raises:
            OSError: it cannot be told what is on the disk, now or at an earlier call. A system
                reports lost bytes once, and a second flush succeeds without them.
        """
        if self._error is not None:
            raise self._error
        try:
            for path in flush.paths:
                disk.flush(path)
            if flush.has_new_file:
                disk.flush_folder(self._folder)
        except OSError as err:
            self._error = err
            raise
        with self._guard:
            self._written = {
                path: number for path, number in self._written.items() if number > flush.number
            }
            if self._created <= flush.number:
                self._created = 0
