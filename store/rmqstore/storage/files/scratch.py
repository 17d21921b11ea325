"""Files of our own between two steps of a write: appended to by one process, read by another.

They are not flushed: after a power cut nobody asks for them. Unlike a file of RocketMQ, one may be
longer than 2 GiB.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore import platforms
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.regular import open_regular
from rmqstore.storage.files.storage import Closing

logger = logging.getLogger(__name__)

_RESERVED_BYTES = 16 << 20


class ScratchWriter:
    """A new file that bytes are appended to. The first bytes make it, in place of an older one."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.size = self._reserved = 0

    def append(self, data: bytes | NDArray[np.uint8]) -> None:
        """Append bytes."""
        if not self.size:
            self._disk.delete(self._path)
            self._disk.create(self._path, 0)
        end = self.size + len(data)
        if end > self._reserved:
            # Space is reserved in large blocks, which is much cheaper than page by page.
            more = max(end - self._reserved, min(end, _RESERVED_BYTES))
            try:
                self._disk.reserve(self._path, self._reserved, more)
            except OSError as err:
                if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                more = end - self._reserved  # the write itself shows whether the bytes fit
            self._reserved += more
        self._disk.write(self._path, self.size, data)
        self.size = end

    def end(self) -> None:
        """Give back the space that was reserved for more bytes."""
        if self._reserved > self.size:
            self._disk.shorten(self._path, self.size)
            self._reserved = self.size


class ScratchFile(Closing):
    """A file to read, which may be longer than its appended bytes until its writer ends.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or it cannot be opened.
    """

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor, status = open_regular(path)
        self.size = status.st_size

    def read_into(self, window: NDArray[np.uint8], position: int) -> None:
        """Fill a window with the bytes from ``position`` on.

        Raises:
            OSError: the file ends before.
        """
        count = platforms.read_at(self._descriptor, window.data, position)
        if count < len(window):
            raise OSError(f"{self.path} ends at {position + count}: the file was cut")

    def map(self) -> mmap.mmap | bytes:
        """Return the bytes of the file, mapped."""
        if not self.size:
            return b""
        return mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Close the file; a mapping stays valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def can_replace(folder: Path, source: Path) -> bool:
    """Return whether a folder can be renamed over another one, and looks like it then.

    It is tried with an empty folder, because a mount point of the same disk looks like any other
    folder.

    Args:
        folder: the folder that is to be replaced. It has to be empty.
        source: the folder that would replace it. It must not exist yet.
    """
    if folder.is_symlink() or any(folder.iterdir()):
        return False
    before = folder.stat()
    try:
        source.mkdir()
        source.chmod(stat.S_IMODE(before.st_mode))
        after = source.stat()
        looks_alike = (before.st_uid, before.st_gid) == (after.st_uid, after.st_gid)
        attributes = platforms.extended_attributes
        if not looks_alike or attributes(folder) != attributes(source):
            return False
        source.rename(folder)
    except OSError as err:
        logger.info("%s cannot be replaced: %s", folder, err)
        return False
    else:
        return True
    finally:
        with suppress(OSError):
            source.rmdir()
