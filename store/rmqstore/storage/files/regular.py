"""Opening files, and listing folders, in a store that may hold anything under any name.

A name in a store may stand for a FIFO, a device, a folder, a link to any of these, or for a sparse
file of terabytes. Only regular files are opened, opening never waits for another process, and no
more is read than a kind of file needs.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from rmqstore import platforms
from rmqstore.errors import NotPermittedError, UnreadableFileError
from rmqstore.storage.files.storage import (
    A_DANGLING_LINK,
    A_FILE,
    A_FOLDER,
    AnyPath,
    Entry,
    Status,
)

_KINDS = {
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
        raise _unreadable(path, err, A_FILE) from err
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


def read_head(path: AnyPath, count: int) -> bytes:
    """Return the first bytes of a file, fewer only if it is shorter.

    Raises as :func:`open_regular` does.
    """
    descriptor, status = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(min(count, status.st_size))


def file_size(path: AnyPath) -> int:
    """Return the length of a regular file in bytes; raises as :func:`open_regular` does."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise _unreadable(path, err, A_FILE) from err
    require_regular(path, status)
    return status.st_size


def file_status(path: AnyPath) -> Status | None:
    """Return kind, size and times of a path, None if it does not exist.

    Raises:
        UnreadableFileError: the operating system refuses to say.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise _unreadable(path, err, "a file or a folder") from err
    if not stat.S_ISLNK(status.st_mode):
        return _status(status)
    try:
        return _status(os.stat(path))
    except OSError:
        return _status(status)._replace(kind=A_DANGLING_LINK)


def _status(status: os.stat_result) -> Status:
    kind = _KINDS[stat.S_IFMT(status.st_mode)]
    allocated = platforms.allocated_bytes(status)
    return Status(kind, status.st_size, allocated, status.st_mtime_ns)


def list_folder(folder: AnyPath) -> list[Entry]:
    """Return the names in a folder, [] if there is no such folder.

    Raises:
        UnreadableFileError: it is not a folder, or it cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return [Entry(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise _unreadable(folder, err, A_FOLDER) from err


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; a dangling link is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def require_regular(path: AnyPath, status: os.stat_result) -> None:
    """Raise UnreadableFileError unless this is the status of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError(str(path), _KINDS[stat.S_IFMT(status.st_mode)], A_FILE)


def _unreadable(path: AnyPath, err: OSError, expected: str) -> UnreadableFileError:
    if isinstance(err, PermissionError):
        return NotPermittedError(str(path), str(err.strerror), expected)
    return UnreadableFileError(str(path), f"not readable ({err.strerror})", expected)
