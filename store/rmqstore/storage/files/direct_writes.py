"""Writes of many bytes that go round the page cache, in a thread.

To bring new pages into the page cache can take ten times the processor time of the disk's own
transfer, and they are written to the disk soon after in any case.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.files.regular import open_to_change

# Positions, lengths and addresses of direct writes are multiples of this on all common disks.
BLOCK: Final = 4096
_WINDOW_BYTES = 4 << 20


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Return new bytes whose address is a multiple of :data:`BLOCK`, (size,)."""
    data = np.empty(size + BLOCK, np.uint8)
    first = -data.ctypes.data % BLOCK
    return data[first : first + size]


def write_all(descriptor: int, position: int, parts: Iterable[bytes | NDArray[Any]]) -> None:
    """Write parts one after the other."""
    for data in parts:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # an array is a buffer
        while len(view):
            count = os.pwrite(descriptor, view, position)
            view = view[count:]
            position += count


class DirectWrites:
    """Writes to files in a thread, one write at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "rmqstore-write")
        self._pending: Future[None] | None = None
        self._direct: int | None = None  # the file, opened to go round the page cache
        self._window = aligned_bytes(_WINDOW_BYTES)  # for bytes that do not lie as in the file

    def begin(self, path: Path, descriptor: int, position: int, data: NDArray[np.uint8]) -> None:
        """Wait for the write before, then begin to write; ``data`` must not change meanwhile.

        Args:
            path: the file, which is that of the write before until :meth:`close_file` is called.
            descriptor: the file, open for writing.
            position: of the first byte in the file.
            data: the bytes.

        Raises:
            OSError: the write before failed, or the file cannot be opened.
        """
        self.settle()
        if self._direct is None:
            try:
                self._direct = open_to_change(path, os.O_DIRECT)
            except OSError as err:
                if err.errno != errno.EINVAL:  # the file system has no direct writes
                    raise
        self._pending = self._pool.submit(self._write, descriptor, self._direct, position, data)

    def close_file(self) -> None:
        """Close what was opened for the last write, which has ended."""
        if self._direct is not None:
            direct, self._direct = self._direct, None
            os.close(direct)

    def settle(self) -> None:
        """Wait until the bytes are written.

        Raises:
            OSError: they could not be written. It is raised until :meth:`forget` is called.
        """
        if self._pending is None:
            return
        wait([self._pending])  # it stays pending if this is interrupted
        if self._pending.exception() is None:
            self._pending = None
        else:
            self._pending.result()

    def forget(self) -> None:
        """Wait for the last write, whether or not it succeeds, and forget its error."""
        if self._pending is not None:
            wait([self._pending])
            self._pending = None

    def close(self) -> None:
        """Wait for the last write, whether or not it succeeds, and end the thread."""
        self._pool.shutdown()
        self._pending = None
        self.close_file()

    def _write(
        self, descriptor: int, direct: int | None, position: int, data: NDArray[np.uint8]
    ) -> None:
        first = min(-position % BLOCK, len(data))
        last = len(data) - (len(data) - first) % BLOCK
        if direct is None or first >= last:
            write_all(descriptor, position, [data])
            return
        write_all(descriptor, position, [data[:first]])
        is_aligned = (data.ctypes.data + first) % BLOCK == 0
        for start in range(first, last, _WINDOW_BYTES):
            window = data[start : min(start + _WINDOW_BYTES, last)]
            if not is_aligned:
                copied = self._window[: len(window)]
                copied[:] = window
                window = copied
            try:
                write_all(direct, position + start, [window])
            except OSError as err:
                if err.errno != errno.EINVAL:  # this disk has larger blocks
                    raise
                write_all(descriptor, position + start, [window])
        write_all(descriptor, position + last, [data[last:]])
