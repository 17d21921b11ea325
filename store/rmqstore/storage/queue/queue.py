"""The protocol of a queue, its units, and searches that work for any kind of queue.

Each kind of queue is a class with these methods.

Source: ConsumeQueueInterface.java.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.layout import (
    GAP_TAGS_CODE,
    MAX_FILE_BYTES,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
    Mask,
)
from rmqstore.spans import FOREVER

_UNITS_AT_ONCE = 1 << 19
_SHORT_RANGE = 1024  # units


class Units(NamedTuple):
    """Consecutive units of a queue as columns, native byte order, (n,)."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.void]) -> Units:
        """Return stored units, QUEUE_UNIT or ROCKSDB_UNIT (n,), as columns."""
        return cls(*(units[name].astype(np.int64) for name in QUEUE_UNIT.names or ()))

    @classmethod
    def joined(cls, *parts: Units) -> Units:
        """Return the units of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def may_be_right(self, log_end: int) -> Mask:
        """Return a mask (n,) of the units that can point at a record before the log end."""
        has_record_size: Mask = (self.sizes > 0) & (self.sizes < PRE_BLANK_SIZE)
        return has_record_size & (self.physical_offsets >= 0) & (self.physical_offsets < log_end)


NO_UNITS = Units.of(np.empty(0, QUEUE_UNIT))


class RecoveredUnits(NamedTuple):
    """The end of a queue, taken from the log because the files of the queue lack it or are wrong.

    A BatchConsumeQueue has a unit here for each message of a record.
    """

    start: int  # queue offset of the first unit
    units: NDArray[np.void]  # QUEUE_UNIT (n,), in the order of the log
    is_short: bool = False  # memory should not hold all the units, so none are here
    is_batch: bool = False  # of a BatchConsumeQueue

    @property
    def end(self) -> int:
        """The queue offset after the last unit."""
        return self.start + len(self.units)


def find_first(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """Bisect for the first queue offset in ``[start, end)`` for which a predicate holds.

    The result is ``end`` if there is none.

    Args:
        start: first queue offset.
        end: queue offset after the last.
        holds: the predicate; if it holds for one queue offset, it holds for all later ones.
    """
    return start + bisect_left(range(start, end), x=True, key=holds)


def short_units(queue: Queue, span: tuple[int, int]) -> Units | None:
    """Return the units of a short range; None if it is long, or if files of it are missing.

    To read them at once costs as much as to read one.
    """
    start, end = span
    if 0 < end - start <= _SHORT_RANGE and [*queue.runs(start, end)] == [span]:
        with suppress(OffsetOutOfRangeError):
            return queue.units(start, end)
    return None


def have_units_at(
    queue: Queue,
    named: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> Mask:
    """Return a mask (n,) of the records that have a unit at the queue offset named for each.

    Units that fill a gap are not theirs.

    Args:
        queue: any kind of queue.
        named: any numbers, (n,).
        physical_offsets, sizes: of the records, (n,).
    """
    inside = np.clip(named, queue.begin, max(queue.end() - 1, queue.begin))
    rising, numbers = np.unique(inside, return_inverse=True)
    units = queue.units_of(rising)
    mask: Mask = (units.physical_offsets[numbers] == physical_offsets) & (inside == named)
    mask &= (units.sizes[numbers] == sizes) & (units.tags_codes[numbers] != GAP_TAGS_CODE)
    return mask


def places_of(
    queue: Queue,
    named: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    span: tuple[int, int],
) -> NDArray[np.int64]:
    """Return the queue offsets whose units lead to records, -1 for a record without one, (n,).

    Args:
        queue: any kind of queue.
        named: where the units should stand, (n,). Those of a ConsumeQueue may stand elsewhere.
        physical_offsets, sizes: of the records, in the order of the log, (n,).
        span: the first queue offset to search from there, and the one after the last.
    """
    places = np.where(have_units_at(queue, named, physical_offsets, sizes), named, -1)
    rest = np.flatnonzero(places < 0)
    if not len(rest) or queue.is_batch:
        return places
    wanted = physical_offsets[rest]

    def first_at(physical_offset: int) -> int:
        return find_first(*span, lambda place: queue.unit(place)[0] >= physical_offset)

    start = first_at(int(wanted[0]))
    units = queue.units_of(np.arange(start, first_at(int(wanted[-1]) + 1))[:_UNITS_AT_ONCE])
    rows = np.searchsorted(wanted[:-1], units.physical_offsets)
    is_found = (wanted[rows] == units.physical_offsets) & (sizes[rest[rows]] == units.sizes)
    is_found &= units.tags_codes != GAP_TAGS_CODE
    found = np.flatnonzero(is_found)[::-1]  # the first of several is written last
    places[rest[rows[found]]] = start + found
    return places


def chunks(queue: Queue, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of a range in chunks that fit into memory, because a file may be sparse."""
    for low, high in queue.runs(start, end):
        for first in range(low, high, _UNITS_AT_ONCE):
            yield first, min(first + _UNITS_AT_ONCE, high)


def total_weight(queue: Queue, start: int, end: int) -> int:
    """Return the bytes of the log that the messages in ``[start, end)`` take.

    Messages without a unit count as empty.
    """
    return sum(int(queue.weights(*chunk).sum()) for chunk in chunks(queue, start, end))


def records_end(queue: Queue, end: int) -> int:
    """Return the physical offset after the record of the last unit before ``end``.

    -1 if that unit has no record.

    Source: ConsumeQueueInterface.java#getMaxPhysicOffset.
    """
    physical_offset, size, _ = queue.unit(end - 1)
    return physical_offset + size if 0 < size < PRE_BLANK_SIZE else -1


def whole_end(queue: Queue, start: int, end: int, log_end: int = FOREVER) -> int:
    """Return the first queue offset in ``[start, end)`` whose unit was never written, else ``end``.

    One that leads behind ``log_end`` counts as such.

    Source: ConsumeQueue.java#recover, which looks at the last three files.
    """
    queue_offset = start
    for low, high in chunks(queue, start, end):
        if low != queue_offset:
            return queue_offset
        units = queue.units(low, high)
        is_whole = (units.sizes > 0) & (units.physical_offsets >= 0)
        holes = np.flatnonzero(~is_whole | (units.physical_offsets >= log_end))
        if len(holes):
            return low + int(holes[0])
        queue_offset = high
    return queue_offset


def valid_end(queue: Queue, start: int, end: int) -> int:
    """Return the queue offset in ``[start, end]`` after the last unit with an offset and a size."""
    for low, high in reversed(list(chunks(queue, start, end))):
        units = queue.units(low, high)
        valid = np.flatnonzero((units.physical_offsets >= 0) & (units.sizes > 0))
        if len(valid):
            return low + int(valid[-1]) + 1
    return start


def weights_of(queue: Queue, start: int, end: int) -> NDArray[np.int64]:
    """Return the bytes that each message of a queue with a unit for each takes, (n,).

    Raises as :meth:`units` does.
    """
    return np.minimum(np.maximum(queue.units(start, end).sizes, 0), MAX_FILE_BYTES)


def first_existing(queue: Queue, end: int, min_physical_offset: int) -> int:
    """Return the first queue offset before ``end`` whose record still exists, else ``end``.

    Pre-blank units, which fill the offsets before the queue's first, do not count. The record
    of a damaged unit counts as existing.

    Source: ConsumeQueue.java#correctMinOffset; unlike it, the search is not limited to the
    first file.
    """
    begin = queue.begin
    if begin < end:  # in most files the first message still exists
        physical_offset, size, _ = queue.unit(begin)
        if size > 0 and physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE:
            return begin

    def has_record(queue_offset: int) -> bool:
        physical_offset, size, _ = queue.unit(queue_offset)
        return physical_offset >= min_physical_offset and size != PRE_BLANK_SIZE

    first = find_first(begin, end, has_record)
    for low, high in chunks(queue, begin, first):
        units = queue.units(low, high)
        sizes, offsets = units.sizes, units.physical_offsets
        is_filler = (sizes == PRE_BLANK_SIZE) & (offsets == 0)
        is_damaged = (sizes <= 0) | (offsets < 0)
        existing = np.flatnonzero(~is_filler & (is_damaged | (offsets >= min_physical_offset)))
        if len(existing):
            return low + int(existing[0])
    return first


def cut_at(queue: Queue, start: int, end: int, log_end: int) -> int:
    """Return the queue offset in ``[start, end]`` after the last unit before the log end."""
    cut = find_first(start, end, lambda offset: queue.unit(offset)[0] >= log_end)
    for low, high in chunks(queue, cut, end):
        units = queue.units(low, high)
        offsets = units.physical_offsets
        before = np.flatnonzero((offsets >= 0) & (offsets < log_end) & (units.sizes > 0))
        if len(before):
            cut = low + int(before[-1]) + 1
    return cut


def count_existing(queue: Queue, start: int, end: int, min_physical_offset: int) -> int:
    """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
    total = 0
    for low, high in chunks(queue, start, end):
        units = queue.units(low, high)
        is_counted = (units.sizes > 0) & (units.sizes != PRE_BLANK_SIZE)
        is_counted &= units.physical_offsets >= min_physical_offset
        is_counted &= units.tags_codes != GAP_TAGS_CODE
        total += int(np.count_nonzero(is_counted))
    return total


class Queue(Protocol):
    """One queue of one topic, read-only.

    A queue offset is the ordinal of a message in its queue, counted from the first one ever stored.
    The unit with this offset leads to the record of the message.
    """

    @property
    def is_batch(self) -> bool:
        """Whether one record can hold several messages of the queue.

        Source: ConsumeQueueInterface.java#getCQType.
        """

    @property
    def is_recovered(self) -> bool:
        """Whether the end of the queue comes from the log, because its files lack it."""

    @property
    def is_present(self) -> bool:
        """Whether it has a file with bytes, or a recovered unit. Source: #isFirstFileExist."""

    @property
    def end_files(self) -> tuple[str, str] | None:
        """The first and the last file, if they show where the queue begins and ends."""

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all its files but the last, which may be nearly empty."""

    @property
    def begin(self) -> int:
        """The first queue offset with a unit, even if its record was deleted; 0 without units."""

    def end(self) -> int:
        """Return the queue offset after the last unit that was ever written.

        Source: #getMaxOffsetInQueue.
        """

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``.

        The record of a damaged unit counts as existing. Source: #correctMinOffset.
        """

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end.

        A unit is before the log end if its physical offset is.

        Source: FileQueueLifeCycle.java#truncateDirtyLogicFiles.
        """

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that have units.

        The units between them were in a missing or truncated file.
        """

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if there is none.

        Source: #get.
        """

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: some are missing, for instance because a file was deleted since
                the store was opened.
        """

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with rising queue offsets; zeros where there is none."""

    def prefetch(self, queue_offsets: NDArray[np.int64], count: int) -> None:
        """Begin to fetch ``count`` units from each queue offset (n,) on, which are read next.

        Only a queue in a remote storage fetches them.
        """

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        Raises as :meth:`units` does.
        """

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``.

        Messages of one record share its unit, which counts once.
        """

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a unit and its position there, to name the unit in an error.

        If the unit is missing, this is where it should stand.
        """

    def refresh(self) -> None:
        """List the files again."""

    def close(self) -> None:
        """Close the files."""
