"""Differences of operating systems: calls that some lack, each with a slower substitute.

This package was made for Linux, where each function here makes the one call that it is named for.
macOS reads, and appends by plain writes. Windows reads. No other module asks which system this is,
or uses a name that one of them lacks: ``tests/test_layering.py`` has the list.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, TextIO

from rmqstore.errors import UnsupportedFeatureError

LINUX: Final = "Linux"
MACOS: Final = "macOS"
WINDOWS: Final = "Windows"
NAME: Final[str] = {"linux": LINUX, "darwin": MACOS, "win32": WINDOWS}.get(
    sys.platform, sys.platform
)
CAN_WRITE: Final = NAME != WINDOWS
CAN_READ_ROCKSDB: Final = NAME != WINDOWS


def require_writes() -> None:
    """Refuse to change files on a system with unknown locks and unknown effects of a power cut.

    Raises:
        UnsupportedFeatureError: this is Windows.
    """
    if not CAN_WRITE:
        raise UnsupportedFeatureError(
            f"stores are read but not written on {NAME}: use Linux or macOS for it, such as the "
            "Windows Subsystem for Linux (docs/install.md)"
        )


def require_linux(what: str) -> None:
    """Refuse what was made for Linux only.

    Raises:
        UnsupportedFeatureError: this is another system.
    """
    if NAME != LINUX:
        raise UnsupportedFeatureError(f"{what} needs Linux, and this is {NAME} (docs/install.md)")


# Opening files.


def _flags(*names: str) -> int:
    """Return the flags of ``os.open`` that this system has, together."""
    return reduce(or_, (getattr(os, name, 0) for name in names))


# Without O_BINARY Windows would translate the ends of lines.
_ALWAYS: Final = _flags("O_CLOEXEC", "O_NOINHERIT", "O_BINARY")
_NO_WAIT: Final = _flags("O_NONBLOCK", "O_NOCTTY")
TO_READ: Final = os.O_RDONLY | _NO_WAIT | _ALWAYS
TO_CHANGE: Final = os.O_RDWR | _flags("O_NOFOLLOW") | _NO_WAIT | _ALWAYS
TO_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | _ALWAYS
TO_FLUSH: Final = os.O_RDWR | _ALWAYS
TO_FLUSH_FOLDER: Final = os.O_RDONLY | _flags("O_DIRECTORY") | _ALWAYS
DIRECT: Final = _flags("O_DIRECT")  # round the page cache; 0 where that is not possible

_UNNAMED: Final = _flags("O_TMPFILE")
# Errors of a file system that has no unnamed files.
_WITHOUT_UNNAMED_FILES: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
# Descriptors by their numbers, as links that lead to the open files, even to deleted ones. Those in
# /dev/fd of macOS share their position with the open file.
OPEN_FILES: Final = Path("/proc/self/fd") if NAME == LINUX else None


def open_unnamed(folder: Path) -> int | None:
    """Open a new file that has no name yet; None if system or file system have none of these."""
    if not _UNNAMED:
        return None
    try:
        return os.open(folder, os.O_RDWR | _UNNAMED | _ALWAYS, 0o644)
    except OSError as err:
        if err.errno not in _WITHOUT_UNNAMED_FILES:
            raise
    return None


def name_unnamed(descriptor: int, path: Path) -> None:
    """Give a name to a file that :func:`open_unnamed` opened.

    Raises:
        FileExistsError: the name is taken.
    """
    # os.link follows the link in /proc only with a folder, despite the absolute path.
    os.link(f"{OPEN_FILES}/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


# Reading files.


def keep_over_forks(lock: Any) -> None:  # noqa: ANN401 - an RLock is no class
    """Let a process fork only while no other thread holds a lock, so that a child can take it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


_HAS_PREADV: Final = hasattr(os, "preadv")
_HAS_PREAD: Final = hasattr(os, "pread")
_position: Final = Lock()  # of a descriptor, which reads in threads would move


def read_at(descriptor: int, window: memoryview, position: int) -> int:
    """Read into a window of bytes, and return how many were read, as ``os.preadv`` does."""
    if _HAS_PREADV:
        return os.preadv(descriptor, [window], position)
    if _HAS_PREAD:
        data = os.pread(descriptor, len(window), position)
    else:
        with _position:
            os.lseek(descriptor, position, os.SEEK_SET)
            data = os.read(descriptor, len(window))
    window[: len(data)] = data
    return len(data)


CAN_ADVISE: Final = hasattr(os, "posix_fadvise")
_SECTOR_BYTES: Final = 512  # the unit of st_blocks


def will_read(descriptor: int, position: int, size: int) -> None:
    """Let the system begin to read bytes; elsewhere they are read when they are asked for."""
    if CAN_ADVISE:
        os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_WILLNEED)


def will_read_few(mapped: mmap.mmap) -> None:
    """Let the system read no more of a mapping than what is looked at."""
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)


def allocated_bytes(status: os.stat_result) -> int:
    """Return the bytes of the disk that a file takes; its length if they are unknown."""
    return status.st_size if NAME == WINDOWS else status.st_blocks * _SECTOR_BYTES


def next_data(descriptor: int, position: int) -> int:
    """Return the start of the next bytes outside the holes of a sparse file.

    macOS is not asked: APFS can report a hole where bytes were written that are not on the disk
    yet, and messages would be passed over.

    Raises:
        OSError: ENXIO if only a hole follows; another one if system or file system do not know.
    """
    if NAME != LINUX:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return os.lseek(descriptor, position, os.SEEK_DATA)


def next_hole(descriptor: int, position: int) -> int:
    """Return where the next hole begins, asked after :func:`next_data`.

    Raises:
        OSError: the file was cut.
    """
    return os.lseek(descriptor, position, os.SEEK_HOLE)


# Memory.

_TMPFS_MAGIC: Final = 0x01021994
_STATFS_BYTES: Final = 256  # more than any Linux writes
_MAP_FIXED: Final = 0x10
_FAILED: Final = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _mmap() -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(
        ctypes.c_void_p,  # what it returns
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        use_errno=True,
    )(("mmap", _libc()))  # fmt: skip


def fills_memory(descriptor: int, size: int) -> bool:
    """Return whether a file is in a tmpfs that has no room for these bytes of its holes.

    Only Linux has a file system where reading a hole takes space.
    """
    if NAME != LINUX:
        return False
    system = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc().fstatfs(descriptor, system):
        return False
    kind = int.from_bytes(system.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    if kind != _TMPFS_MAGIC:
        return False
    room = os.fstatvfs(descriptor)
    return room.f_bavail * room.f_frsize < size + mmap.PAGESIZE


def pages_to_map_over(size: int) -> mmap.mmap:
    """Return pages of zeros that cannot be written to, for :func:`map_over` on Linux."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)


def map_over(address: int, size: int, descriptor: int, start: int) -> None:
    """Map a part of a file, read-only, in place of pages that are mapped already.

    Raises:
        OSError: the kernel refuses it.
    """
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _mmap()(address, size, mmap.PROT_READ, flags, descriptor, start) == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def empty_pages(size: int, *, in_large_pages: bool = False) -> mmap.mmap:
    """Return zeros, whose pages take memory only once they are written to."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if in_large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel was built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


# Writing files.

_CAN_RESERVE: Final = hasattr(os, "posix_fallocate")
_CAN_WRITE_THROUGH: Final = hasattr(os, "pwritev") and hasattr(os, "RWF_DSYNC")
# Errors of a system that cannot wait for the bytes of one write.
_WITHOUT_WRITE_THROUGH: Final = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
_BLOCK_BYTES: Final = 4096
_BLOCKS_AT_ONCE: Final = 256
_ZEROS: Final = bytes(_BLOCK_BYTES * _BLOCKS_AT_ONCE)


def reserve(descriptor: int, position: int, size: int) -> None:
    """Take space on the disk for bytes that will be written, as ``posix_fallocate`` does.

    Elsewhere zeros are written where the file has nothing else.

    Raises:
        OSError: the disk is full.
    """
    if _CAN_RESERVE:
        os.posix_fallocate(descriptor, position, size)
        return
    end = position + size
    if os.fstat(descriptor).st_size < end:
        os.ftruncate(descriptor, end)
    for window in range(position - position % _BLOCK_BYTES, end, len(_ZEROS)):
        first, last = max(window, position), min(window + len(_ZEROS), end)
        held = os.pread(descriptor, last - first, first)
        if held.count(0) == len(held):
            _write_zeros(descriptor, first, last)
            continue
        for block in range(window, last, _BLOCK_BYTES):
            start, stop = max(block, first), min(block + _BLOCK_BYTES, last)
            part = held[start - first : stop - first]
            if part.count(0) == len(part):
                _write_zeros(descriptor, start, stop)


def _write_zeros(descriptor: int, start: int, stop: int) -> None:
    while start < stop:
        start += os.pwrite(descriptor, _ZEROS[: stop - start], start)


def write_through(descriptor: int, data: memoryview, position: int) -> bool:
    """Write a few bytes, and wait until they are on the disk; return False if that cannot be."""
    if not _CAN_WRITE_THROUGH:
        return False
    try:
        os.pwritev(descriptor, [data], position, os.RWF_DSYNC)
    except OSError as err:
        if err.errno not in _WITHOUT_WRITE_THROUGH:
            raise
        return False
    return True


# F_FULLFSYNC, the request of macOS that flushes the memory of a disk too; None elsewhere.
_FULL_FLUSH: Final = 51 if NAME == MACOS else None
# Errors of a file system that has no such request, as those of a network.
_WITHOUT_FULL_FLUSH: Final = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}


def flush(descriptor: int) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk.

    On macOS ``fsync`` waits only until the disk has them in its memory, which a power cut clears.

    Source: fsync(2) and fcntl(2) of macOS.
    """
    if _FULL_FLUSH is not None:
        import fcntl

        try:
            fcntl.fcntl(descriptor, _FULL_FLUSH)
        except OSError as err:
            if err.errno not in _WITHOUT_FULL_FLUSH:
                raise
        else:
            return
    os.fsync(descriptor)


def end_mapped_writes(mapped: mmap.mmap) -> None:
    """Hand the changes of a mapping over to its file, where a flush of the file does not."""
    if NAME != LINUX:
        mapped.flush()


def extended_attributes(folder: Path) -> list[str]:
    """Return the names of the extended attributes of a folder; none where Python cannot ask."""
    return os.listxattr(folder) if hasattr(os, "listxattr") else []


# Locks.


class _Flock(NamedTuple):
    """The ``struct flock`` of a system."""

    layout: struct.Struct
    first_byte: tuple[int, ...]  # the fields that mean the first byte of a file, without the type
    type_at: int


_LINUX_FLOCK: Final = _Flock(struct.Struct("hhqqi4x"), (0, os.SEEK_SET, 0, 1, 0), 0)
_MACOS_FLOCK: Final = _Flock(struct.Struct("qqihh"), (0, 1, 0, 0, os.SEEK_SET), 3)
_FLOCK: _Flock = _MACOS_FLOCK if NAME == MACOS else _LINUX_FLOCK


def lock_first_byte(descriptor: int) -> None:
    """Take the lock that a broker takes.

    Raises:
        OSError: another process has it.
    """
    import fcntl

    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def is_first_byte_locked(descriptor: int) -> bool:
    """Return whether another process has the lock that a broker takes, without taking it.

    On Windows a locked byte cannot be read by others. Elsewhere it can, and the system is asked.

    Raises:
        OSError: the file system has no locks.
    """
    if NAME == WINDOWS:
        try:
            read_at(descriptor, memoryview(bytearray(1)), 0)
        except PermissionError:
            return True
        return False
    import fcntl

    fields = list(_FLOCK.first_byte)
    fields[_FLOCK.type_at] = fcntl.F_WRLCK
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.layout.pack(*fields))
    return bool(_FLOCK.layout.unpack(answer)[_FLOCK.type_at] != fcntl.F_UNLCK)


# Names.

_NOT_IN_NAMES: Final = frozenset("/\0") | frozenset('\\:*?"<>|' if NAME == WINDOWS else "")


def can_name_file(name: str) -> bool:
    """Return whether a text from a record can be the name of a file or a folder, and of no other.

    Windows leaves out dots and spaces at the end of a name.
    """
    if name in {"", ".", ".."} or not _NOT_IN_NAMES.isdisjoint(name):
        return False
    return not (NAME == WINDOWS and name.endswith((".", " ")))


def with_slashes(path: str) -> str:
    """Return a local path with ``/`` between its names, as Windows takes it too."""
    return path.replace("\\", "/") if NAME == WINDOWS else path


def path_of_uri(path: str) -> str:
    r"""Return the path of a ``file:`` URI as the system names it: ``C:/x`` of ``/C:/x``."""
    if NAME == WINDOWS and path[2:3] == ":":
        return path.removeprefix("/")
    return path


# Networks and streams.

_TCP_INFO_BYTES: Final = 152  # of struct tcp_info
_MIN_RTT_AT: Final = 148


def least_round_trip(connection: socket.socket) -> float:
    """Return the seconds of the quickest way there and back so far; 0 if the system cannot say.

    Source: struct tcp_info of Linux.
    """
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    with suppress(OSError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
        return float(microseconds / 1e6)
    return 0.0


def watch_of_pipe(descriptor: int) -> Callable[[], bool]:
    """Return a function that says whether nobody reads a pipe any more.

    It says False where only the next write shows that. macOS takes every terminal for closed.
    """
    if not hasattr(select, "poll"):
        return lambda: False
    poll = select.poll()
    poll.register(descriptor, 0)
    closed = select.POLLERR | select.POLLHUP
    if NAME == LINUX:
        closed |= select.POLLNVAL
    return lambda: any(events & closed for _, events in poll.poll(0))


def write_alike(*streams: TextIO | Any) -> None:  # noqa: ANN401 - tests have other streams
    r"""Let streams write UTF-8 and ``\n`` on Windows too, so that output is the same everywhere."""
    if NAME == WINDOWS:
        for stream in streams:
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", newline="\n")
