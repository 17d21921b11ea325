"""How a process that runs tasks of a write keeps its memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

# Source: malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_BLOCK = 32 << 20  # the most that all versions of glibc take
_KEPT_BYTES = 128 << 20


@cache
def keep_freed_memory() -> None:
    """Let the C library keep the memory that one batch frees for the next batch.

    By default it returns large blocks to the system, and getting them again costs a page fault for
    every 4 KiB: about a fifth of the time that a task spends on its records. Other C libraries
    than glibc are left as they are.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Without the first setting, the second would make large blocks more expensive.
        if mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
