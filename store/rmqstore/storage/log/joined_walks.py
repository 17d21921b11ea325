"""Walks of small files of the log, many of them in one window.

A window costs some hundred microseconds however few records it has. So small files that follow one
another are copied into one buffer, and their chains of records are followed side by side. Only
files whose chain is sound to the end go into a joined window; all others are left to
:mod:`~rmqstore.storage.log.walks`, which tells what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, UnreadableFileError
from rmqstore.format.columns.buffers import GATHER_SLACK
from rmqstore.format.columns.heads import Heads, read_heads
from rmqstore.format.columns.joined_walk import walk_each
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.framing import Framing
from rmqstore.format.layout import BATCH_BYTES, BATCH_ROWS, Bytes, Mask, Positions
from rmqstore.storage.log.commitlog import CommitLog, Stretch
from rmqstore.storage.log.walks import next_hole

_SMALL_BYTES: Final = 1 << 20  # to walk in one file, at most
_WINDOW_BYTES: Final = 8 << 20  # small enough for the cache


@dataclass(frozen=True)
class JoinedWindow:
    """All records of some files that follow one another, whose chains are sound to the end."""

    stretches: Sequence[Stretch]
    data: Bytes  # uint8 (nbytes,)
    starts: Positions  # (n,), positions in the data
    sizes: NDArray[np.int64]  # (n,)
    bases: Positions  # (n,), the difference between physical offset and position of each

    @property
    def end(self) -> int:
        """Physical offset after the last of the files."""
        return self.stretches[-1].end

    def has_true_sizes(self) -> bool:
        """Tell whether every record is whole and has the physical offset where it lies.

        If so, no total size led the walk over another record.
        """
        return all(is_sound.all() for _, _, is_sound in self.heads())

    def cut(self) -> Iterator[JoinedWindow]:
        """Yield the records batch by batch."""
        for rows in cut_batches(self.sizes, BATCH_ROWS, BATCH_BYTES):
            columns = self.starts[rows], self.sizes[rows], self.bases[rows]
            yield JoinedWindow(self.stretches, self.data, *columns)

    def heads(self) -> Iterator[tuple[Positions, Heads, Mask]]:
        """Yield the records in batches: physical offsets, heads, mask of the sound ones.

        A sound record is whole, and has the physical offset where it lies.
        """
        for part in self.cut():
            heads, whole = read_heads(part.data, part.starts)
            places = part.starts + part.bases
            yield places, heads, whole & (heads.column("physical_offset") == places)


def join_stretches(log: CommitLog, start: int, end: int) -> Iterator[Stretch | JoinedWindow]:
    """Yield a range of the log as :meth:`CommitLog.stretches` does, with small files in windows.

    The first window is small, for callers that need few records.
    """
    waiting: list[Stretch] = []
    sizes: list[int] = []
    n_bytes = 0
    window_bytes = _SMALL_BYTES
    for stretch in log.stretches(start, end):
        size = _walked_bytes(log, stretch)
        is_framed_alike = not waiting or _framing(log, waiting[-1]) is _framing(log, stretch)
        if size is None or n_bytes + size > window_bytes or not is_framed_alike:
            if waiting:
                yield from _join(log, waiting, sizes)
                window_bytes = min(2 * window_bytes, _WINDOW_BYTES)
            waiting, sizes = [], []
            n_bytes = 0
        if size is None:
            yield stretch
        else:
            waiting.append(stretch)
            sizes.append(size)
            n_bytes += size
    yield from _join(log, waiting, sizes)


def _framing(log: CommitLog, stretch: Stretch) -> Framing | None:
    return None if stretch.segment is None else log.framing(stretch.segment)


def _walked_bytes(log: CommitLog, stretch: Stretch) -> int | None:
    """Return how many bytes a walk over a stretch has to see; None if these are too many."""
    start, end, segment = stretch
    if segment is None:
        return None
    if end - start <= _SMALL_BYTES:
        return end - start
    first = start - segment.start
    stop = end - segment.start
    if not log.is_remote:  # one request tells all about the holes of a remote file
        stop = min(first + 2 * _SMALL_BYTES, stop)
    try:
        size = next_hole(log, segment, first, stop) - first
    except (FileDeletedError, UnreadableFileError):
        return None
    return size if size <= _SMALL_BYTES else None


def _join(
    log: CommitLog, stretches: Sequence[Stretch], sizes: Sequence[int]
) -> Iterator[Stretch | JoinedWindow]:
    """Yield stretches, with those whose chain is sound in windows."""
    if len(stretches) < 2:
        yield from stretches
        return
    ends: Positions = np.cumsum(np.array(sizes, np.int64))
    firsts: Positions = ends - np.array(sizes, np.int64)
    data = np.empty(int(ends[-1]) + GATHER_SLACK, np.uint8)
    data[-GATHER_SLACK:] = 0
    is_read = np.array(
        [
            _copy(log, stretch, data[low:high])
            for stretch, low, high in zip(stretches, firsts.tolist(), ends.tolist(), strict=True)
        ],
        np.bool_,
    )
    file_starts = np.array([stretch.start for stretch in stretches], np.int64)
    bases = file_starts - firsts
    left = np.array([stretch.end for stretch in stretches], np.int64) - bases
    framing = _framing(log, stretches[0])
    assert framing is not None
    walks = walk_each(data, firsts, ends, left, bases, framing)
    is_sound = walks.is_sound & is_read
    row_bounds = np.concatenate(([0], np.cumsum(walks.counts)))
    changes = np.flatnonzero(np.diff(is_sound)) + 1
    for run in np.split(np.arange(len(stretches)), changes):
        low, high = int(run[0]), int(run[-1]) + 1
        if not is_sound[low]:
            yield from stretches[low:high]
            continue
        rows = slice(int(row_bounds[low]), int(row_bounds[high]))
        own_bases = np.repeat(bases[low:high], walks.counts[low:high])
        yield JoinedWindow(
            stretches[low:high], data, walks.starts[rows], walks.sizes[rows], own_bases
        )


def _copy(log: CommitLog, stretch: Stretch, window: Bytes) -> bool:
    """Copy the beginning of a stretch into a window; return whether the file is long enough."""
    segment = stretch.segment
    assert segment is not None
    try:
        n_read = len(log.read_into(segment, window, stretch.start - segment.start))
    except (FileDeletedError, UnreadableFileError):
        n_read = 0
    window[n_read:] = 0
    return n_read == len(window)
