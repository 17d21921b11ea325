"""Prefetches the records of a long read of remote files before they are read.

A request takes far longer than to decode what it brings, so several are under way while records are
decoded, also over the ends of windows and files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, RmqStoreError, UnreadableFileError
from rmqstore.format.layout import Positions
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog

_AHEAD_BYTES: Final = 24 << 20  # prefetched, and not read yet
_CHUNK_BYTES: Final = 8 << 20  # prefetched together
_FAR_BYTES: Final = 64 << 10  # that a record costs which lies far from the one before
_WINDOWS_AHEAD: Final = 4  # made before they are read, where few of their records are chosen

W = TypeVar("W")
Sizes = NDArray[np.int64]
# Called with the physical offset where each batch of a read begins, before it is read.
Prefetch = Callable[[int], None]


def prefetch_nothing(_physical_offset: int) -> None:
    """Do nothing; for reads whose records are not prefetched."""


class _Chunk(NamedTuple):
    segment: Segment
    starts: Positions  # in the file
    sizes: Sizes
    end: int  # physical offset
    n_bytes: int


class ReadAhead(Generic[W]):
    """Passes the windows of a read on, and prefetches their records before they are read.

    The next window is made when the last records of the present one were prefetched.

    Args:
        log: the log.
        windows: the windows. What making one raises is raised when those before it are read.
        physical_offsets: returns those of a window's records, (n,), and their sizes, (n,).
    """

    def __init__(
        self,
        log: CommitLog,
        windows: Iterator[W],
        physical_offsets: Callable[[W], tuple[Positions, Sizes]],
    ) -> None:
        self._log = log
        self._source = windows
        self._physical_offsets = physical_offsets
        self._waiting: deque[W] = deque()
        self._error: Exception | None = None
        self._chunks = self._cut()
        self._next: _Chunk | None = None
        self._prefetched: deque[_Chunk] = deque()
        self._n_bytes = 0

    def windows(self) -> Iterator[W]:
        """Yield the windows."""
        while self._waiting or self._make_window():
            yield self._waiting.popleft()
        if self._error is not None:
            raise self._error

    def _make_window(self) -> bool:
        """Let the next window be made; return whether there is one.

        The records of those before it are already read, prefetched or not.
        """
        for chunk in self._chunks:
            if self._waiting:
                self._next = chunk
                break
        return bool(self._waiting)

    def prefetch_after(self, physical_offset: int) -> None:
        """Note the physical offset of the read, and prefetch the bytes after it."""
        while self._prefetched and self._prefetched[0].end <= physical_offset:
            self._n_bytes -= self._prefetched.popleft().n_bytes
        while self._n_bytes < _AHEAD_BYTES and len(self._waiting) < _WINDOWS_AHEAD:
            chunk, self._next = self._next, None
            if chunk is None:
                try:
                    chunk = next(self._chunks)
                except StopIteration:
                    return
            if chunk is not None and chunk.end > physical_offset:
                with suppress(FileDeletedError, UnreadableFileError):  # said when it is read
                    self._log.file_of(chunk.segment).read_ahead(chunk.starts, chunk.sizes)
                self._prefetched.append(chunk)
                self._n_bytes += chunk.n_bytes

    def _cut(self) -> Iterator[_Chunk | None]:
        """Yield the records of all windows in the order of the read, some MiB at a time.

        None follows those of each window, which may have none.
        """
        while True:
            try:
                window = next(self._source)
            except StopIteration:
                return
            except RmqStoreError as err:
                self._error = err
                return
            self._waiting.append(window)
            physical_offsets, sizes = self._physical_offsets(window)
            segments = self._log.segments
            firsts = np.array([segment.start for segment in segments], np.int64)
            numbers = np.searchsorted(firsts, physical_offsets, side="right") - 1
            gaps = np.zeros(len(physical_offsets), np.int64)
            gaps[1:] = physical_offsets[1:] - physical_offsets[:-1] - sizes[:-1]
            n_bytes = sizes + np.clip(gaps, 0, _FAR_BYTES)
            groups = np.cumsum(n_bytes) // _CHUNK_BYTES
            is_first = (np.diff(groups, prepend=-1) != 0) | (np.diff(numbers, prepend=-2) != 0)
            bounds = [*np.flatnonzero(is_first).tolist(), len(physical_offsets)]
            for low, high in pairwise(bounds):
                number = int(numbers[low])
                if number < 0:
                    continue
                segment = segments[number]
                starts = physical_offsets[low:high] - segment.start
                ends = starts + sizes[low:high]
                total = int(n_bytes[low:high].sum())
                first, stop = int(starts.min()), int(ends.max())
                if stop - first <= total:
                    starts, lengths = np.array([first]), np.array([stop - first])
                else:
                    lengths = sizes[low:high]
                yield _Chunk(segment, starts, lengths, segment.start + stop, total)
            yield None
