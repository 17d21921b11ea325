"""Makes batches of records from many files of the log that hold few of them each.

A batch takes some time however few rows it has, so small files share one. Their bytes are copied
into one buffer, and each row has its own base, as :class:`~rmqstore.read.stages.LogBytes`
says. Only valid records of whole files are read so: all others are read file by file, by
:class:`~rmqstore.read.assembler.Assembler`, which reports what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import OffsetOutOfRangeError, UnreadableFileError
from rmqstore.format.columns.buffers import GATHER_SLACK
from rmqstore.format.layout import BATCH_BYTES, BATCH_ROWS, Bytes, Positions
from rmqstore.read.assembler import Pipeline
from rmqstore.read.read_ahead import Sizes
from rmqstore.read.rows import UnitRows
from rmqstore.read.stages import LogBytes
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog

_SMALL_BYTES = 1 << 20  # of records in one file; copying them takes as long as a batch
_NEAR_BYTES = 128 << 10  # are read faster than a file is mapped
_MAX_FILES = BATCH_ROWS


class Share(NamedTuple):
    """Rows that follow one another, and whether they are to be read together."""

    rows: slice
    is_joined: bool


class FileSharing:
    """Decides which rows of a read share a batch although they lie in several files.

    The first batch has rows of one file, and each of the following has those of twice as many, so
    that a look at the first few rows opens few files.
    """

    def __init__(self) -> None:
        self._n_files = 1

    def shares(self, numbers: NDArray[np.int64], sizes: Sizes) -> Iterator[Share]:
        """Yield shares that cover all rows in order.

        Args:
            numbers: the number of the file that each row lies in, (n,), -1 for none.
            sizes: bytes of the records, (n,), positive.
        """
        if not len(numbers):
            return
        firsts = np.flatnonzero(np.diff(numbers, prepend=-2))
        ends = np.append(firsts[1:], len(numbers))
        is_small = np.add.reduceat(sizes, firsts) <= _SMALL_BYTES
        is_small &= numbers[firsts] >= 0
        changes = np.flatnonzero(np.diff(is_small)) + 1
        for parts in np.split(np.arange(len(firsts)), changes):
            rows = slice(int(firsts[parts[0]]), int(ends[parts[-1]]))
            if len(parts) == 1 or not is_small[parts[0]]:
                yield Share(rows, is_joined=False)
                continue
            part_ends = ends[parts]
            ends_of_bytes = np.cumsum(sizes[rows])
            row = rows.start
            while row < rows.stop:  # each share is one batch
                file = int(np.searchsorted(part_ends, row, side="right"))
                stop = int(part_ends[min(file + self._n_files, len(part_ends)) - 1])
                done = int(ends_of_bytes[row - rows.start - 1]) if row > rows.start else 0
                in_bytes = int(np.searchsorted(ends_of_bytes, done + BATCH_BYTES, side="right"))
                stop = min(stop, row + BATCH_ROWS, rows.start + max(in_bytes, row - rows.start + 1))
                yield Share(slice(row, stop), is_joined=stop > part_ends[file])
                self._n_files = min(2 * self._n_files, _MAX_FILES)
                row = stop


class JoinedFiles:
    """Makes RecordBatches from records of several files together."""

    def __init__(self, log: CommitLog, pipeline: Pipeline) -> None:
        self._log = log
        self._pipeline = pipeline
        self._buffer = np.empty(0, np.uint8)
        self._scratch = np.empty(_NEAR_BYTES, np.uint8)

    def batches(
        self, segments: Sequence[Segment], numbers: NDArray[np.int64], units: UnitRows
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield the first of some records as batches, as far as all is well.

        Args:
            segments: the files of the log.
            numbers: the number of the file that each record lies in, (n,).
            units: what queues say of the records.

        Returns:
            How many of the n records were read. The next of them may be damaged, or its file gone.
        """
        source: LogBytes | None = None
        with suppress(OffsetOutOfRangeError, UnreadableFileError):
            source = self._bring_together(segments, numbers, units)
        if source is None:
            return 0
        starts = units.physical_offsets - source.base
        return (yield from self._pipeline.batches(source, starts, units))

    def _bring_together(
        self, segments: Sequence[Segment], numbers: NDArray[np.int64], units: UnitRows
    ) -> LogBytes | None:
        """Copy records into one buffer; None if some do not lie in their files.

        Raises:
            FileDeletedError: a file was deleted since it was listed.
            UnreadableFileError: a file is longer than RocketMQ can make it.
        """
        sizes = units.sizes
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.append(firsts[1:], len(numbers))
        counts = ends - firsts
        files = [segments[number] for number in numbers[firsts].tolist()]
        bases = np.array([segment.start for segment in files], np.int64)
        starts = units.physical_offsets - np.repeat(bases, counts)
        lows = np.minimum.reduceat(starts, firsts)
        highs = np.maximum.reduceat(starts + sizes, firsts)
        totals = np.add.reduceat(sizes, firsts)
        is_dense = highs - lows <= 2 * totals
        lengths = np.where(is_dense, highs - lows, totals)
        copy_starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if len(self._buffer) < total + GATHER_SLACK:
            self._buffer = np.empty(total * 5 // 4 + GATHER_SLACK, np.uint8)
        for part, segment in enumerate(files):
            low, high = int(lows[part]), int(highs[part])
            copy_start = int(copy_starts[part])
            window = self._buffer[copy_start : copy_start + int(lengths[part])]
            if high > segment.size:
                return None
            if is_dense[part]:
                if len(self._log.read_into(segment, window, low)) < len(window):
                    return None
                continue
            rows = slice(int(firsts[part]), int(ends[part]))
            if not self._copy_each(segment, window, starts[rows], sizes[rows]):
                return None
        sizes_before = np.cumsum(sizes) - sizes
        apart = sizes_before - np.repeat(sizes_before[firsts], counts)
        together = starts - np.repeat(lows, counts)
        positions = np.repeat(copy_starts, counts)
        positions += np.where(np.repeat(is_dense, counts), together, apart)
        return LogBytes(self._buffer[: total + GATHER_SLACK], units.physical_offsets - positions)

    def _copy_each(self, segment: Segment, window: Bytes, starts: Positions, sizes: Sizes) -> bool:
        """Copy records that lie far apart; return whether the file is long enough."""
        low, high = int(starts.min()), int((starts + sizes).max())
        if high - low <= len(self._scratch):
            data = self._log.read_into(segment, self._scratch[: high - low], low)
            starts, high = starts - low, high - low
        else:
            data = self._log.read_in_place(segment, starts, sizes)
        if high > len(data):
            return False
        spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        np.concatenate([data[start:end] for start, end in spans], out=window)
        return True
