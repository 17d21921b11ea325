"""Opening files for reading, and listing folders, in a store that may hold anything under any name.

A name of a store may stand for a FIFO, a device, a folder, a link to any of these, or for a sparse file of terabytes.
Only regular files are opened, without waiting for another process, and no more of a file is read than its kind needs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rmqstore.errors import UnreadableFileError

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}
_A_FILE, _A_FOLDER = "a regular file", "a folder"


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to one, and return its descriptor.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: something else has the name, or it cannot be opened.
    """
    try:
        require_regular(path, path.stat())  # opening a device may already do something to it
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise _unreadable(path, err, _A_FILE) from err
    return keep_regular(path, descriptor)


def keep_regular(path: Path, descriptor: int) -> int:
    """Return the descriptor of a file that was just opened; what is not a regular file is closed and refused.

    Raises:
        UnreadableFileError: something else has the name.
    """
    try:
        require_regular(path, os.fstat(descriptor))
    except UnreadableFileError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a small file.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or it is longer than files of its kind can be.
    """
    content = read_head(path, max_bytes + 1)
    if len(content) > max_bytes:
        raise UnreadableFileError(str(path), f"longer than {max_bytes} bytes", "a file of at most that length")
    return content


def read_head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, fewer only where it is shorter; raises as :func:`open_regular` does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(min(count, os.fstat(file.fileno()).st_size))


def file_size(path: Path) -> int:
    """Return the length of a regular file in bytes; raises as :func:`open_regular` does."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except OSError as err:
        raise _unreadable(path, err, _A_FILE) from err
    require_regular(path, status)
    return status.st_size


def list_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, [] where there is no such folder.

    Raises:
        UnreadableFileError: something else has the name, or it cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise _unreadable(folder, err, _A_FOLDER) from err


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder or a link to one; a link that leads nowhere is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def require_regular(path: Path, status: os.stat_result) -> None:
    """Raise UnreadableFileError unless this is the status of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError(str(path), _KINDS[stat.S_IFMT(status.st_mode)], _A_FILE)


def _unreadable(path: Path, err: OSError, wanted: str) -> UnreadableFileError:
    return UnreadableFileError(str(path), f"not readable ({err.strerror})", wanted)
