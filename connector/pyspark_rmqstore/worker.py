"""What the Python workers of Spark keep from one task to the next."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from functools import cache
from typing import Final

# Source: malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_BLOCK = 32 << 20  # the most that all versions of glibc take
_KEPT_BYTES = 128 << 20


@cache
def tune_worker() -> None:
    """Let this process keep freed memory and loaded modules for its next tasks; once is enough.

    By default the C library returns large blocks to the system, and getting them again costs a page
    fault for every 4 KiB. Other C libraries than glibc are left as they are.

    After each task Spark lets a worker that it uses again collect garbage, which looks at every
    object of every module: 10 to 35 ms. What the process holds now is left out of that. Most of it
    are modules, which stay anyway.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Without the first setting, the second would make large blocks more expensive.
        if mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    if os.environ.get("SPARK_REUSE_WORKER"):  # Source: daemon.py of PySpark
        gc.collect()  # what is garbage now would stay as well
        gc.freeze()
