"""Compares segments with their checksums, offsets and indexes, and lists what disagrees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.records import decode_pieces
from kafkalog.inspect.beside_logs import SegmentFacts, compare_snapshots
from kafkalog.inspect.files import PartitionFile
from kafkalog.read.ordered import ordered_windows
from kafkalog.read.partition import Partition
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.recovery import Cut
from kafkalog.storage.segments import Segment
from kafkalog.storage.windows import Window, lowest_offsets, walk_segment
from rmqstore.errors import FileDeletedError, Finding, MalformedBytesError
from rmqstore.storage.files.storage import Storage

_LOG: Final = "log"
_DECODED: Final = ("offset", "headers")  # walks all fields of records, and makes few columns
_BATCHES: Final = 256  # decoded together


def verify(partitions: Iterable[Partition]) -> Iterator[Finding]:
    """Yield what is wrong in partitions: damage, and what a recovery would take from their ends.

    Every batch is read: its head, its CRC, its records, and that its offsets follow those before
    it. The entries of offset indexes must point to batches of their offsets, those of time indexes
    to batches of their times, and those of transaction indexes to markers, of which each that
    aborted records has one. Producer snapshots must have right CRCs. Where a recovery builds these
    files again, they are not compared.

    Args:
        partitions: the partitions.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.
    """
    for partition in partitions:
        log = partition.log()
        cut = log.cut
        if cut is not None and not _is_preallocated(log, cut):
            text = f"a recovery cuts the log here: {cut.reason}"
            yield Finding(_LOG, f"{cut.path}, {cut.position}", text)
            for path in cut.dropped:
                yield Finding(_LOG, path, "a recovery deletes the segment")
        yield from _verify_log(log, partition.cleaner_offset)
        if partition.is_clean:
            yield from compare_snapshots(log)


def verify_file(storage: Storage, file: PartitionFile) -> Iterator[Finding]:
    """Yield what is wrong in one file of a log: CRCs, records, and where its batches end.

    Args:
        storage: the storage to read from.
        file: the file, of kind ``log``.

    Raises:
        FileDeletedError: there is no such file.
        UnreadableFileError: it cannot be read.
    """
    if not storage.exists(file.path):
        raise FileDeletedError(file.path)
    for window in walk_segment(storage, file.segment):
        in_order = np.ones(len(window.heads), np.bool_)  # which the folder decides
        for position, reason in _unsound(window, in_order, window.heads.check_crcs(window.data)):
            yield Finding(_LOG, f"{file.path}, {position}", reason)
        if window.stop is not None and window.stop.reason != "zeros":
            yield Finding(_LOG, f"{file.path}, {window.stop.position}", window.stop.reason)


def _is_preallocated(log: PartitionLog, cut: Cut) -> bool:
    """Tell whether only zeros of a preallocated file are cut."""
    with log.storage.open(cut.path) as file:
        return not cut.dropped and file.written_end(file.size) <= cut.position


def _verify_log(log: PartitionLog, cleaner_offset: int | None) -> Iterator[Finding]:
    """Yield what is wrong in the segments of a log, in one walk."""
    gaps = _Gaps(cleaner_offset)
    facts = SegmentFacts(log)
    previous: Segment | None = None
    for ordered in ordered_windows(log, log.segments[0].base_offset) if log.segments else ():
        window, segment = ordered.window, ordered.window.segment
        if previous is not None and segment != previous:
            yield from facts.compare(previous)
        previous = segment
        sound = window.heads.check_crcs(window.data)
        for position, reason in _unsound(window, ordered.in_order, sound):
            yield Finding(_LOG, f"{segment.path}, {position}", reason)
        if window.stop is not None:
            yield Finding(_LOG, f"{segment.path}, {window.stop.position}", window.stop.reason)
        facts.add(ordered, sound)
        is_whole = window.stop is None and bool((sound & ordered.in_order).all())
        gaps.add(window, is_whole=is_whole)
    if previous is not None:
        yield from facts.compare(previous)
    yield from gaps.findings


class _Gaps:
    """The gaps between segments of a log that was not compacted.

    Attributes:
        findings: a gap each; none once a window shows that the log was compacted.
    """

    def __init__(self, cleaner_offset: int | None) -> None:
        """Look for gaps from the first offset on that was not compacted yet, if it is known."""
        self.findings: list[Finding] = []
        self._from = cleaner_offset or 0
        self._segment: Segment | None = None
        self._next: int | None = None  # None after damage, up to the next segment
        self._is_compacted = False

    def add(self, window: Window, *, is_whole: bool) -> None:
        """Take the next window; ``is_whole`` tells that nothing is damaged in it."""
        base = window.segment.base_offset
        if window.segment != self._segment:
            if self._next is not None and max(self._next, self._from) < base:
                text = f"offsets {self._next} to {base} are missing before it: a segment is gone"
                if not self._is_compacted:
                    self.findings.append(Finding(_LOG, window.segment.path, text))
            self._segment, self._next = window.segment, base
        if not is_whole:
            self._next = None
        elif self._next is not None:
            if _was_compacted(window.heads, self._next):
                self._is_compacted = True
                self.findings.clear()
            self._next = window.next_offset or self._next


def _was_compacted(heads: BatchHeads, next_offset: int) -> bool:
    """Tell whether offsets are lacking in a window or before it, as after a compaction."""
    if not len(heads):
        return False
    lowest = lowest_offsets(heads)
    expected = np.concatenate([[next_offset], heads.last_offset[:-1] + 1])
    n_offsets = heads.last_offset - heads.base_offset + 1
    is_thinned = (heads.record_count >= 0) & (heads.record_count < n_offsets)
    return bool((lowest > expected).any() or is_thinned.any())


def _unsound(
    window: Window, in_order: NDArray[np.bool_], sound: NDArray[np.bool_]
) -> Iterator[tuple[int, str]]:
    """Yield position and reason of the batches that are damaged.

    Args:
        window: the window.
        in_order: the batches whose offsets follow those before them, (n,).
        sound: the batches whose CRC is right, (n,).
    """
    heads = window.heads
    for row in np.flatnonzero(~sound | ~in_order).tolist():
        reason = f"offset {heads.base_offset[row]} is not in order"
        yield int(heads.position[row]), reason if sound[row] else "the CRC is wrong"
    rows = np.flatnonzero(sound & ~heads.is_control)
    for first in range(0, len(rows), _BATCHES):
        for row, reason in _undecodable(window, rows[first : first + _BATCHES].tolist()):
            yield int(heads.position[row]), reason


def _undecodable(window: Window, rows: list[int]) -> Iterator[tuple[int, str]]:
    """Yield the batches whose records cannot be read, by halving."""
    try:
        heads = window.heads[np.array(rows, np.int64)]
        for _ in decode_pieces(window.data, heads, columns=_DECODED):
            pass  # what is wrong is an error
    except MalformedBytesError as err:
        if len(rows) == 1:
            yield rows[0], err.reason
            return
        half = len(rows) // 2
        yield from _undecodable(window, rows[:half])
        yield from _undecodable(window, rows[half:])
