"""One file, read-only: mapped as bytes, or read in pieces. Knows no meaning of the bytes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray


class MappedFile:
    """A file whose bytes are read as they are now: what a broker writes later into the same file is seen.

    The mapping ends when the last array over it is gone; :meth:`close` only lets go of ours. A file that another
    process *cuts* under a mapping ends this process with SIGBUS; RocketMQ deletes files, which is harmless.

    Raises:
        OSError: the file cannot be opened; FileNotFoundError where retention was faster.

    Source: DefaultMappedFile.java.
    """

    __slots__ = ("_descriptor", "data", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.data: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping and the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self.data = np.empty(0, np.uint8)

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        """Copy the bytes from ``start`` on into a window; return how many there were, fewer only at the file's end."""
        done = 0
        while done < len(window):
            count = os.preadv(self._descriptor, [window[done:].data], start + done)
            if not count:
                break
            done += count
        return done
