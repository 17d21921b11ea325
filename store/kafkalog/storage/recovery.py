"""The end of a partition's log, as a broker finds it when it starts.

Nothing is changed. The CRC of a batch does not cover its base offset, so only the order shows a
changed byte of it.

A follower cuts its log and writes it again, perhaps with batches of the same sizes, and a copy may
lack a segment for a while. So an end comes with what shows either: the header of the last batch,
and the sizes of the segments before. What a follower writes after a cut comes from another leader,
and the header names the leader's epoch besides the checksum of the records.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.layout import RECORDS_AT
from kafkalog.storage.indexes import read_offset_index
from kafkalog.storage.producer_snapshots import snapshot_offsets
from kafkalog.storage.segments import Segment
from kafkalog.storage.windows import Stop, Window, walk_segment
from rmqstore.storage.files.storage import Storage

logger = logging.getLogger(__name__)

NO_LIMIT = int(np.iinfo(np.int64).max)


class LastBatch(NamedTuple):
    """The last batch of a walk.

    Attributes:
        base_offset: of its segment.
        position: where it begins in that segment.
        header: its first bytes, up to its records.
    """

    base_offset: int
    position: int
    header: bytes


class WalkEnd(NamedTuple):
    """Where a walk through a log ended.

    Attributes:
        base_offset: of the segment in which it ended.
        position: the position in that segment from which a later walk continues.
        offset: the offset after the last batch.
        sizes: of the earlier segments of the walk by base offset, bytes.
        last: the last batch; None if the walk met none.
    """

    base_offset: int
    position: int
    offset: int
    sizes: dict[int, int]
    last: LastBatch | None

    def still_holds(
        self, storage: Storage, segments: Sequence[Segment], sizes: dict[int, int]
    ) -> bool:
        """Return whether the log before the end is what it was when it was walked.

        Args:
            storage: the storage to read from.
            segments: of the log now.
            sizes: what :func:`segment_sizes` gives for the segments that matter now. All of them
                before the end must have been walked; earlier ones do not matter, and may be gone.

        Raises:
            FileNotFoundError: a segment was deleted.
            UnreadableFileError: a segment is not a regular file.
        """
        if sizes.get(self.base_offset, -1) < self.position:
            return False
        first = min(sizes)
        walked = {base: size for base, size in self.sizes.items() if base >= first}
        if walked != sizes_before(sizes, self.base_offset):
            return False
        if self.last is None:
            return True
        paths = {segment.base_offset: segment.path for segment in segments}
        path = paths.get(self.last.base_offset)
        if path is None:
            return False
        header = np.empty(len(self.last.header), np.uint8)
        with storage.open(path) as file:
            n_bytes = file.read_into(header, self.last.position)
        return header[:n_bytes].tobytes() == self.last.header


def segment_sizes(storage: Storage, segments: Sequence[Segment]) -> dict[int, int]:
    """Return the lengths of segments in bytes, by base offset.

    They are to be looked up before a walk: a segment that grows meanwhile then counts as changed.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    return {segment.base_offset: storage.size(segment.path) for segment in segments}


def sizes_before(sizes: dict[int, int], base_offset: int) -> dict[int, int]:
    """Return the sizes of the segments before the one with a base offset."""
    return {base: size for base, size in sizes.items() if base < base_offset}


def last_batch(window: Window, n_batches: int) -> LastBatch | None:
    """Return the last of the first batches of a window; None if there is none.

    Args:
        window: the window.
        n_batches: how many of its batches count.
    """
    if not n_batches:
        return None
    headers = window.headers[n_batches - 1 : n_batches]
    position = int(headers.position[0])
    start = position - window.start
    header = window.data[start : start + min(int(headers.size[0]), RECORDS_AT)]
    return LastBatch(window.segment.base_offset, position, header.tobytes())


def batches_in_order(
    window: Window, floor: int, limit: int = NO_LIMIT, following: Window | None = None
) -> NDArray[np.bool_]:
    """Return a mask (n,) of the batches whose offsets rise.

    If some do not, the fewest batches are taken to be wrong. Those whose CRC is wrong as well are
    not in order either, if any are checked: their headers may say anything.

    Args:
        window: the batches.
        floor: lower bound of their offsets.
        limit: the offsets lie before it.
        following: the next batches of the segment, which show whether the last one here is wrong.
    """
    headers = window.headers
    first, last = headers.base_offset, headers.last_offset
    if following is not None:
        first = np.concatenate([first, following.headers.base_offset])
        last = np.concatenate([last, following.headers.last_offset])
    rises = bool((last >= first).all() and (first[1:] > last[:-1]).all())
    if not len(first) or (rises and first[0] >= floor and last[-1] < limit):
        return np.ones(len(headers), np.bool_)
    valid = headers.check_crcs(window.data)
    if following is not None:
        valid = np.concatenate([valid, following.headers.check_crcs(following.data)])
    possible = np.flatnonzero(valid & (first >= floor) & (last >= first) & (last < limit))
    in_order = np.zeros(len(first), np.bool_)
    in_order[possible[_longest_rise(first[possible], last[possible])]] = True
    return in_order[: len(headers)]


def leaves_a_gap(headers: BatchHeaders, next_offset: int) -> bool:
    """Return whether the last batch does not begin right after the one before it.

    Args:
        headers: the batches.
        next_offset: the offset after all batches before them.
    """
    if not len(headers):
        return False
    before = int(headers.last_offset[-2]) + 1 if len(headers) > 1 else next_offset
    return int(headers.base_offset[-1]) != before


def _longest_rise(first: NDArray[np.int64], last: NDArray[np.int64]) -> list[int]:
    """Return the numbers of the most ranges that follow one another, in order."""
    ends: list[int] = []  # by how many ranges follow one another, the least end
    at: list[int] = []  # the last of those ranges
    before: list[int] = []  # each range's predecessor
    for number, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        length = bisect_left(ends, low)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(high)
            at.append(number)
        elif high < ends[length]:
            ends[length], at[length] = high, number
    chosen: list[int] = []
    number = at[-1] if at else -1
    while number >= 0:
        chosen.append(number)
        number = before[number]
    return chosen[::-1]


class Cut(NamedTuple):
    """What a recovery takes from the end of a log.

    Attributes:
        path: of the segment that is cut.
        position: in it, from which on it is cut.
        reason: what is wrong there.
        dropped: paths of the later segments, which a recovery deletes, valid or not.
    """

    path: str
    position: int
    reason: str
    dropped: tuple[str, ...] = ()


class RecoveredEnd(NamedTuple):
    """The end of a log by one recovery, from which the next one continues.

    Attributes:
        end: where it is, and what shows whether the log before it has changed.
        largest_timestamps: as in :class:`LogEnd`.
    """

    end: WalkEnd
    largest_timestamps: dict[int, int]


class LogEnd(NamedTuple):
    """Where a log ends.

    Attributes:
        offset: the next offset to be written (LEO).
        segments: the segments of the log, by base offset.
        position: end of the log in the last segment; what is written later lies after it.
        largest_timestamps: of each recovered segment by its base offset, ms; -1 if it has none.
        cut: what a recovery takes away; None if it takes nothing.
        recovered_end: the end, for a later recovery; None if the log was closed cleanly.
    """

    offset: int
    segments: tuple[Segment, ...]
    position: int
    largest_timestamps: dict[int, int]
    cut: Cut | None = None
    recovered_end: RecoveredEnd | None = None


class _Tail(NamedTuple):
    """The last batch of a segment.

    Attributes:
        offset: the offset after it; that of the segment if it has no batch.
        base_offset: its first offset; None if there is no batch.
        before: the offset after the batch before it; None if that is not known. If the walk began
            with the batch, its first offset by the index.
        is_first: whether the walk began with it.
    """

    offset: int
    base_offset: int | None = None
    before: int | None = None
    is_first: bool = False

    @property
    def n_offsets(self) -> int:
        """How many offsets it has."""
        return 0 if self.base_offset is None else self.offset - self.base_offset


def clean_end(storage: Storage, segments: list[Segment], recovery_point: int = 0) -> LogEnd:
    """Return the end of a log that was closed cleanly: that of its last segment.

    No checksum covers the base offset of a batch, and nothing follows the last one. Where it leaves
    a gap, the recovery point and the producer snapshots are asked: a broker that stops writes both
    at the end of the log. An entry of the offset index for the batch shows the same. See
    :func:`_witnessed_end`.

    Args:
        storage: the storage to read from.
        segments: at least one, by base offset.
        recovery_point: the checkpointed one.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.

    Source: LogSegment.java#readNextOffset, UnifiedLog.java#close.
    """
    last = segments[-1]
    position = storage.size(last.path)
    tail = _tail(storage, last)
    offset = tail.offset
    if tail.before is not None and tail.base_offset is not None and tail.base_offset > tail.before:
        folder = last.stem.rpartition("/")[0]
        least = tail.before + tail.n_offsets
        snapshots = snapshot_offsets(storage, folder)
        offset = _witnessed_end(least, tail.offset, recovery_point, snapshots)
    if offset != tail.offset:
        logger.warning(
            "%s: the last batch names the offsets %d to %d, but the log was closed at %d",
            last.path, tail.base_offset, tail.offset - 1, offset,
        )  # fmt: skip
    return LogEnd(offset, tuple(segments), position, {})


def _witnessed_end(
    least: int, claimed: int, recovery_point: int, snapshots: Collection[int]
) -> int:
    """Return the end of a log behind a gap before its last batch, by other files of its broker.

    The batch is believed unless the recovery point, the newest snapshot or both say that the log
    ended where it would with a lesser base offset, and none of them says something else. A snapshot
    is also taken where a log is cut, which may be in a gap, and stays when the log continues. So
    without a recovery point, only one counts that lies where the batch ends without the gap.

    Args:
        least: the offset after the batch if it began right after the one before it.
        claimed: the offset after it by its own base offset.
        recovery_point: the checkpointed one.
        snapshots: the offsets of the producer snapshots.

    Source: UnifiedLog.java#close, ProducerStateManager.java#takeSnapshot.
    """
    if claimed == recovery_point or claimed in snapshots:
        return claimed
    ends = {end for end in (recovery_point, max(snapshots, default=0)) if end >= least}
    if len(ends) != 1 or max(ends) > claimed:
        return claimed
    (end,) = ends
    if end in (recovery_point, least):
        return end
    return claimed


def next_offset(storage: Storage, segment: Segment) -> int:
    """Return the offset after the last batch of a segment; its base offset if it has no batch.

    Raises as :func:`clean_end` does.
    """
    return _tail(storage, segment).offset


def _tail(storage: Storage, segment: Segment) -> _Tail:
    """Return the last batch of a segment.

    The walk begins where the last entry of the offset index points to, if a valid batch is there.
    """
    index = read_offset_index(storage, segment)
    for position in (*index.positions[-1:].tolist(), 0):
        tail = None
        for window in walk_segment(storage, segment, position):
            if tail is None:
                if position and not begins_valid(window, segment):
                    break
                tail = _Tail(segment.base_offset, before=None if position else segment.base_offset)
            tail = _tail_after(window, tail)
        if tail is not None and position and tail.is_first:
            return tail._replace(before=int(index.offsets[-1]) + 1 - tail.n_offsets)
        if tail is not None:
            return tail
    return _Tail(segment.base_offset)


def _tail_after(window: Window, tail: _Tail) -> _Tail:
    """Return the last batch of a window, in a log that was closed.

    What the header of a damaged batch says counts only if it continues the batch before it.

    Args:
        tail: the last batch before the window.
    """
    headers = window.headers
    if not len(headers):
        return tail
    n_valid = len(headers)
    in_order = batches_in_order(window, window.segment.base_offset)

    def is_valid(row: int) -> bool:
        return bool(in_order[row] and headers[row : row + 1].check_crcs(window.data)[0])

    while n_valid and not is_valid(n_valid - 1):
        n_valid -= 1
    if n_valid:
        row = n_valid - 1
        before = None
        if not row:
            before = tail.offset if tail.base_offset is not None else tail.before
        elif is_valid(row - 1):
            before = int(headers.last_offset[row - 1]) + 1
        is_first = not row and tail.base_offset is None
        tail = _Tail(
            int(headers.last_offset[row]) + 1, int(headers.base_offset[row]), before, is_first
        )
    for row in range(n_valid, len(headers)):
        if headers.base_offset[row] == tail.offset <= headers.last_offset[row]:
            tail = _Tail(int(headers.last_offset[row]) + 1, tail.offset, tail.offset)
    return tail


def begins_valid(window: Window, segment: Segment) -> bool:
    """Return whether a window begins with a batch of the segment, its CRC included."""
    headers = window.headers[:1]
    if not len(headers) or not headers.check_crcs(window.data).all():
        return False
    return bool(segment.base_offset <= headers.base_offset[0] <= headers.last_offset[0])


def recover(
    storage: Storage,
    segments: list[Segment],
    recovery_point: int,
    recovered_end: RecoveredEnd | None = None,
) -> LogEnd:
    """Return the end of a log whose broker was not stopped, or is running.

    Segments are walked from the one that holds the recovery point on. The first batch that is
    damaged or cut ends the log, and all later segments with it. Earlier segments are trusted.

    Args:
        storage: the storage to read from.
        segments: at least one, by base offset.
        recovery_point: the first offset that may not have been flushed.
        recovered_end: an earlier end of the log. What lies before it is not walked again, unless
            the log was cut before it and written again, or its segments were other ones.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.

    Source: LogLoader.java#recoverLog, LogSegment.java#recover.
    """
    bases = [segment.base_offset for segment in segments]
    first = max(int(np.searchsorted(bases, recovery_point, side="right")) - 1, 0)
    sizes = segment_sizes(storage, segments[first:])
    end = WalkEnd(bases[first], 0, bases[first], {}, None)
    largest: dict[int, int] = {}
    if recovered_end is not None and recovered_end.end.still_holds(storage, segments, sizes):
        end = recovered_end.end
        largest = {
            base: time for base, time in recovered_end.largest_timestamps.items() if base in sizes
        }
        first = bases.index(end.base_offset)
    cut = None
    for number, segment in enumerate(segments[first:], first):
        base = segment.base_offset
        if number > first:
            end = end._replace(base_offset=base, position=0, offset=base)
        is_rising = True
        for window in walk_segment(storage, segment, end.position):
            headers, stop = window.headers, window.stop
            valid = headers.check_crcs(window.data)
            n_valid = len(valid) if valid.all() else int(valid.argmin())
            latest = int(headers.max_timestamp[:n_valid].max(initial=-1))
            largest[base] = max(largest.get(base, -1), latest)
            last_offsets = np.insert(headers.last_offset[:n_valid], 0, end.offset - 1)
            is_rising = is_rising and bool((np.diff(last_offsets) > 0).all())
            if n_valid < len(valid):
                stop = Stop(int(headers.position[n_valid]), "the CRC is wrong")
            end = end._replace(
                position=window.end_of_batches if stop is None else stop.position,
                offset=int(headers.last_offset[n_valid - 1]) + 1 if n_valid else end.offset,
                last=last_batch(window, n_valid) or end.last,
            )
            if stop is not None:
                dropped = tuple(later.path for later in segments[number + 1 :])
                logger.log(
                    logging.WARNING if dropped else logging.INFO,
                    "%s: a recovery would cut it at %d (%s) and drop %d later segments",
                    segment.path, stop.position, stop.reason, len(dropped),
                )  # fmt: skip
                reason = stop.reason
                if not is_rising:
                    reason += "; its offsets fall, for which a broker may empty the segment"
                cut = Cut(segment.path, stop.position, reason, dropped)
                break
        if cut is not None:
            break
    kept = tuple(segments[: number + 1])
    recovered_end = RecoveredEnd(
        end._replace(sizes=sizes_before(sizes, end.base_offset)), dict(largest)
    )
    return LogEnd(end.offset, kept, end.position, largest, cut, recovered_end)
