"""Opening the regular files of a store, which may hold anything under any name.

A name in a store may stand for a FIFO, a device, a folder, or a link to any of these. Only regular
files are opened, and opening never waits for another process.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from rmqstore import platforms
from rmqstore.errors import NotPermittedError, UnreadableFileError
from rmqstore.storage.files.storage import A_FILE, A_FOLDER, AnyPath

KINDS = {
    stat.S_IFREG: A_FILE,
    stat.S_IFDIR: A_FOLDER,
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}


def open_regular(path: AnyPath) -> tuple[int, os.stat_result]:
    """Open a regular file, or a link to one; return its descriptor and its status.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or it cannot be opened.
    """
    try:
        # Checked first, because opening a device can have an effect.
        require_regular(path, os.stat(path))
        descriptor = os.open(path, platforms.TO_READ)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise unreadable(path, err, A_FILE) from err
    return descriptor, keep_regular(path, descriptor)


def open_to_change(path: Path, flags: int = 0) -> int:
    """Open a regular file for writing and return its descriptor; a link is not followed.

    Args:
        path: the file to open.
        flags: further flags for ``os.open``.

    Raises:
        OSError: the file cannot be opened.
        UnreadableFileError: the name belongs to something that is not a regular file.
    """
    with suppress(FileNotFoundError):
        require_regular(path, path.lstat())
    descriptor = os.open(path, platforms.TO_CHANGE | flags, 0o644)
    keep_regular(path, descriptor)
    return descriptor


def open_new(path: Path) -> tuple[int, bool]:
    """Open a new, empty file; return its descriptor, and whether it has its name already.

    It has its name if there are no unnamed files here.
    """
    descriptor = platforms.open_unnamed(path.parent)
    if descriptor is not None:
        return descriptor, False
    return os.open(path, platforms.TO_MAKE, 0o644), True


def keep_regular(path: AnyPath, descriptor: int) -> os.stat_result:
    """Return the status of a newly opened file if the file is regular; else close it.

    Raises:
        UnreadableFileError: it is not a regular file.
    """
    try:
        status = os.fstat(descriptor)
        require_regular(path, status)
    except UnreadableFileError:
        os.close(descriptor)
        raise
    return status


def require_regular(path: AnyPath, status: os.stat_result) -> None:
    """Raise UnreadableFileError unless this is the status of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError(str(path), KINDS[stat.S_IFMT(status.st_mode)], A_FILE)


def unreadable(path: AnyPath, err: OSError, expected: str) -> UnreadableFileError:
    """Return the error of a path that the operating system refuses.

    Args:
        path: the path.
        err: why it is refused.
        expected: what was to be read, in words.
    """
    if isinstance(err, PermissionError):
        return NotPermittedError(str(path), str(err.strerror), expected)
    return UnreadableFileError(str(path), f"not readable ({err.strerror})", expected)
