"""What is kept back for bad moments: space for the state, and bytes that it did not vouch for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore.format.layout import Bytes
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL

_SPARE_BYTES: Final = 256 << 10
_BLOCK_BYTES: Final = 8 << 20

Read = Callable[[int, int], Bytes]


class SpareSpace:
    """Space that is freed when the disk is full, so that the state can still be written.

    A state that lags behind the log would make the next follower move sound bytes aside, for
    which a full disk has no space either.

    Args:
        path: the file that takes the space.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def reserve(self, disk: Disk) -> None:
        """Take the space; raises OSError if there is none."""
        if not LOCAL.exists(self._path):
            disk.create(self._path, 0)
            disk.reserve(self._path, 0, _SPARE_BYTES)

    def free(self, disk: Disk) -> None:
        """Give the space back."""
        disk.delete(self._path)


class Unvouched:
    """Bytes after the end of a state, which were moved aside when a copy was opened again.

    The broker nearly always sends the same bytes again. Then they need not be kept twice.

    Args:
        folder: where they are, in files named ``FILE`` or ``FILE.OFFSET``; None without any.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where they are."""
        assert self._folder is not None
        return self._folder

    def drop_if_fetched(self, disk: Disk, extent: tuple[int, int], read: Read) -> None:
        """Delete the bytes once the log of the copy has all of them again.

        If the broker has sent others, they stay.

        Args:
            disk: deletes them.
            extent: where the log of the copy begins, and up to where it is on the disk.
            read: returns bytes of the log, given a physical offset and how many.
        """
        if self._folder is None:
            return
        is_fetched = self._is_fetched(self._folder, extent, read)
        if is_fetched:
            disk.delete_tree(self._folder)
        if is_fetched is not None:
            self._folder = None

    def _is_fetched(self, folder: Path, extent: tuple[int, int], read: Read) -> bool | None:
        """Tell whether the log has the same bytes; None if it has not come as far."""
        begin, end = extent
        for entry in LOCAL.list_folder(folder):
            with LOCAL.open(folder / entry.name) as file:
                name, _, offset = entry.name.partition(".")
                start, size = int(offset or name), file.written_end(file.size)
                if start < begin:
                    return False
                if start + size > end:
                    return None
                for done in range(0, size, _BLOCK_BYTES):
                    block = np.empty(min(_BLOCK_BYTES, size - done), np.uint8)
                    file.read_into(block, done)
                    if not np.array_equal(block, read(start + done, len(block))):
                        return False
        return True
