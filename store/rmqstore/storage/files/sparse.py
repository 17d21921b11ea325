"""Mapping a sparse file of a tmpfs that has no room for its holes.

In a tmpfs, the first read of a hole through a mapping allocates a page of the file system. If no
page is free, the kernel ends the process with SIGBUS. Other file systems show the hole as zeros and
allocate nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable

import numpy as np

_TMPFS_MAGIC = 0x01021994
_STATFS_BYTES = 256  # more than any Linux writes
_BLOCK_BYTES = 512  # the unit of st_blocks
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip


def lacks_room_for_holes(descriptor: int) -> bool:
    """Tell whether reading all holes of a file through a mapping could exhaust its file system."""
    status = os.fstat(descriptor)
    missing = status.st_size - status.st_blocks * _BLOCK_BYTES
    if missing <= 0 or not _is_in_tmpfs(descriptor):
        return False
    room = os.fstatvfs(descriptor)
    return room.f_bavail * room.f_frsize < missing + mmap.PAGESIZE


def _is_in_tmpfs(descriptor: int) -> bool:
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, status):
        return False
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) == _TMPFS_MAGIC


def map_without_holes(
    descriptor: int, size: int, data_ranges: Iterable[tuple[int, int]]
) -> mmap.mmap:
    """Map a file read-only, with zeros in place of its holes, also if these are filled later.

    Args:
        descriptor: descriptor of the file.
        size: number of bytes to map.
        data_ranges: the parts of the file that are not holes.

    Raises:
        OSError: the kernel refuses one of the mappings.
    """
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    base = int(np.frombuffer(mapped, np.uint8).ctypes.data)
    for start, stop in data_ranges:
        start -= start % mmap.PAGESIZE  # noqa: PLW2901 - the page that holds it
        flags = mmap.MAP_SHARED | _MAP_FIXED
        address = _libc.mmap(base + start, stop - start, mmap.PROT_READ, flags, descriptor, start)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    return mapped
