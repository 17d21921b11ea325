"""Appends units to queues in files.

A ConsumeQueue gets filler if its first queue offset is not 0. A BatchConsumeQueue gets one unit for
each record, which may hold several messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError
from rmqstore.format.columns.dispatch_requests import UNKNOWN_TIME, QueueUnits, unknown_delay
from rmqstore.format.layout import (
    BATCH_UNIT,
    GAP_TAGS_CODE,
    NOT_COMPACTED,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
    SCHEDULE_TOPIC,
    Positions,
)
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import offset_to_name

logger = logging.getLogger(__name__)

_MAX_GAP = 1 << 20  # queue offsets without a record that are filled: 20 MiB of units
_MAX_GAP_BEFORE_ONE = 1000  # the same if a single record at the end of the log follows the gap
_RUNS_AHEAD = 8

_FILLER_UNITS = 1 << 19  # per write: a file may be as large as 2 GiB
# The name of its file still fits, and sums of larger offsets stay inside a Java long.
_MAX_QUEUE_OFFSET = (1 << 58) // QUEUE_UNIT.itemsize


class Fitting(NamedTuple):
    """Rows of a queue's records in the order of the log."""

    taken: Positions  # their queue offsets rise
    refused: Positions
    undecided: Positions  # at the end: what follows may show that they are wrong


class _Run(NamedTuple):
    """Records whose queue offsets are consecutive."""

    row: int
    first: int  # queue offset
    n_records: int


def fit_offsets(queue_offsets: NDArray[np.int64], expected: int | None, *, is_end: bool) -> Fitting:
    """Choose the records that get a unit.

    A record whose queue offset is lower than expected is refused, because an earlier record has
    that offset. One that leaps ahead is refused if the records after it continue from before the
    leap: in 4, 5, 90, 7, 8 the record 90 is refused, and 6 is a gap.

    Args:
        queue_offsets: int64 (n,), none of them negative.
        expected: the next queue offset, None for a queue that has no unit yet.
        is_end: no record of the queue follows.
    """
    starts = np.flatnonzero(np.diff(queue_offsets, prepend=queue_offsets[:1] - 2) != 1)
    counts = np.diff(starts, append=len(queue_offsets))
    firsts = queue_offsets[starts]
    columns = zip(starts.tolist(), firsts.tolist(), counts.tolist(), strict=True)
    runs = [_Run(*run) for run in columns]
    taken: list[NDArray[np.int64]] = []
    refused: list[NDArray[np.int64]] = []
    undecided = np.empty(0, np.int64)
    for number, run in enumerate(runs):
        rows = np.arange(run.row, run.row + run.n_records)
        low = 0 if expected is None else expected
        is_leap = expected is None or run.first > low
        ahead = runs[number + 1 : number + 1 + _RUNS_AHEAD]
        if is_leap and run.n_records == 1 and not ahead and not is_end:
            undecided = rows
        elif is_leap and not _is_right(run, low, ahead, is_first=expected is None):
            refused.append(rows)
        else:
            n_late = min(max(low - run.first, 0), run.n_records)
            refused.append(rows[:n_late])
            taken.append(rows[n_late:])
            expected = max(low, run.first + run.n_records)
    return Fitting(_joined(taken), _joined(refused), undecided)


def begins_again_at(queue_offsets: NDArray[np.int64], expected: int) -> int | None:
    """Return the row from which on a queue begins again, None if it does not.

    The topic was deleted then, and made again: its first record has queue offset 0 once more. A
    record with queue offset 0 from which the later ones do not continue has a wrong one instead.

    Args:
        queue_offsets: int64 (n,), in the order of the log.
        expected: the next queue offset.
    """
    for row in np.flatnonzero(queue_offsets == 0)[: -_RUNS_AHEAD - 1 : -1].tolist():
        has_some_before = expected > 0 or bool((queue_offsets[:row] >= 0).any())
        following = queue_offsets[row + 1 : row + 2]
        if has_some_before and (not len(following) or following[0] == 1):
            return int(row)
    return None


def _is_right(run: _Run, low: int, ahead: list[_Run], *, is_first: bool) -> bool:
    """Return whether the records of a run that leaps ahead have the right queue offsets."""
    if any(low <= other.first < run.first and other.n_records >= run.n_records for other in ahead):
        return False
    if is_first:  # a queue may begin anywhere
        return True
    max_gap = _MAX_GAP if ahead or run.n_records > 1 else _MAX_GAP_BEFORE_ONE
    return run.first - low <= max_gap


def _joined(rows: list[NDArray[np.int64]]) -> Positions:
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


class Misplaced(NamedTuple):
    """A record without a unit, or a filled gap, and the reason."""

    physical_offset: int  # of the record, or of the one after the gap
    text: str


class QueueAppender:
    """The end of one queue. Source: ConsumeQueue.java#putMessagePositionInfo.

    Unlike in RocketMQ, every record keeps its queue offset, and a record whose offset cannot be
    right gets no unit. RocketMQ would give that record and all later ones other queue offsets.

    Records may show that the topic was deleted and made again. The units of the earlier one are
    removed then, as the broker removes them.

    Args:
        start: queue offset of the first unit that the files have.
        end: queue offset of the next unit.
        records_end: physical offset after the record of the last unit, -1 for an empty queue.
        is_new: there is no file yet. Then the log alone decides what the queue holds; else its
            files must fit the log.
    """

    unit_type = QUEUE_UNIT

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_size: int,
        *,
        start: int,
        end: int,
        records_end: int,
        is_new: bool,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._file_size = file_size
        self._start = start
        self.end = end
        self.records_end = records_end
        self.is_new = is_new
        self._follows_log = is_new
        self._undecided = self._no_units()
        self.misplaced: list[Misplaced] = []
        self.touched: dict[Path, None] = {}  # files to flush

    def stored(self, units: QueueUnits, rows: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the units of some rows, ``unit_type`` (n,)."""
        return units.units[rows]

    def _no_units(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        return np.empty(0, np.int64), np.empty(0, self.unit_type)

    def append(self, queue_offsets: NDArray[np.int64], units: NDArray[np.void]) -> None:
        """Append units, ``unit_type`` (n,), in the order of the log; skip those in the files.

        Raises:
            CorruptQueueError: the files do not fit the log.
        """
        ends = units["physical_offset"].astype(np.int64) + units["size"]
        is_new = ends > self.records_end
        if not is_new.all():
            lowest = int(queue_offsets[~is_new].min())
            if lowest < self._start:  # the unit belongs into a file before the first one
                reason = (
                    f"queue offset {lowest} is in the log, and the files begin at {self._start}: "
                    "one is missing"
                )
                raise CorruptQueueError(str(self._folder), self._position(lowest), reason)
            queue_offsets, units = queue_offsets[is_new], units[is_new]
        expected = int(self._undecided[0].max(initial=self.end - 1)) + 1
        row = begins_again_at(queue_offsets, expected)
        if row is not None:
            self._begin_again(int(units["physical_offset"][row]))
            queue_offsets, units = queue_offsets[row:], units[row:]
        if self._follows_log and not self._go_on(queue_offsets):
            self._append_what_fits(queue_offsets, units, is_end=False)
        elif len(units):
            if not self._follows_log:
                next_offsets = np.arange(self.end, self.end + len(units))
                wrong = np.flatnonzero(queue_offsets != next_offsets)
                if len(wrong):
                    row = int(wrong[0])
                    following = int(next_offsets[row])
                    reason = (
                        f"the record at {int(units['physical_offset'][row])} says "
                        f"queue offset {int(queue_offsets[row])}, "
                        f"the next one of the queue is {following}"
                    )
                    raise CorruptQueueError(str(self._folder), self._position(following), reason)
            self._extend(self.end, units)

    def _begin_again(self, physical_offset: int) -> None:
        """Remove all units; the last file goes first, so that a crash leaves no gap."""
        logger.warning(
            "%s: the topic was deleted and made again before physical offset %d; messages of the "
            "earlier one are in no queue",
            self._folder, physical_offset,
        )  # fmt: skip
        for entry in sorted(LOCAL.list_folder(self._folder), reverse=True):
            self._disk.delete(self._folder / entry.name)
        self.touched.clear()
        self._undecided = self._no_units()
        self.is_new = self._follows_log = True
        self._start = self.end = 0

    def _go_on(self, queue_offsets: NDArray[np.int64]) -> bool:
        """Return whether queue offsets continue from the last unit without a gap; nearly all do."""
        if self.is_new or len(self._undecided[0]):
            return False
        if not len(queue_offsets) or queue_offsets[0] != self.end:
            return False
        if self.end + len(queue_offsets) > _MAX_QUEUE_OFFSET:
            return False
        return bool((np.diff(queue_offsets) == 1).all())

    def finish(self) -> None:
        """Choose the last records that get a unit, as no others follow."""
        if len(self._undecided[0]):
            self._append_what_fits(*self._no_units(), is_end=True)

    def _append_what_fits(
        self, queue_offsets: NDArray[np.int64], units: NDArray[np.void], *, is_end: bool
    ) -> None:
        undecided_offsets, undecided_units = self._undecided
        self._undecided = self._no_units()
        queue_offsets = np.concatenate((undecided_offsets, queue_offsets))
        # numpy joins records in native byte order.
        units = np.concatenate((undecided_units, units)).astype(self.unit_type)
        possible = (queue_offsets >= 0) & (queue_offsets < _MAX_QUEUE_OFFSET)
        if not possible.all():
            self._refuse(queue_offsets[~possible], units[~possible])
            queue_offsets, units = queue_offsets[possible], units[possible]
        if not len(units):
            return
        fitting = fit_offsets(queue_offsets, None if self.is_new else self.end, is_end=is_end)
        if len(fitting.refused):
            self._refuse(queue_offsets[fitting.refused], units[fitting.refused])
        self._undecided = queue_offsets[fitting.undecided], units[fitting.undecided]
        queue_offsets, units = queue_offsets[fitting.taken], units[fitting.taken]
        if not len(units):
            return
        if self.is_new:
            self._begin(int(queue_offsets[0]), units[:1])
        cuts = (np.flatnonzero(np.diff(queue_offsets) != 1) + 1).tolist()
        for low, high in pairwise([0, *cuts, len(units)]):
            first = int(queue_offsets[low])
            if first > self.end:
                self._fill(first, units[low : low + 1])
            self._extend(first, units[low:high])

    def _refuse(self, queue_offsets: NDArray[np.int64], units: NDArray[np.void]) -> None:
        physical_offsets = units["physical_offset"].tolist()
        records = zip(queue_offsets.tolist(), physical_offsets, strict=True)
        for queue_offset, physical_offset in records:
            text = (
                f"the record at {physical_offset} says queue offset {queue_offset}, "
                "which does not fit the records before and after it; it has no unit"
            )
            self.misplaced.append(Misplaced(physical_offset, text))

    def _fill(self, stop: int, following: NDArray[np.void]) -> None:
        """Fill the queue offsets that no record has with the unit of the next record.

        A broker then serves that record more than once, but for consumers that choose tags. A unit
        that leads to no record would be worse: the broker would skip all further units of records
        in the same file of the log. These units have a tags code of their own, by which reads pass
        over them; those of delayed messages keep their time of delivery.
        """
        physical_offset = int(following["physical_offset"][0])
        text = (
            f"no record has the queue offsets from {self.end} to {stop - 1}; "
            "their units lead to the next record"
        )
        self.misplaced.append(Misplaced(physical_offset, text))
        filler = np.repeat(following, stop - self.end)
        if self._folder.parent.name != SCHEDULE_TOPIC:
            filler["tags_code"] = GAP_TAGS_CODE
        self._write(self.end, filler)

    def _extend(self, first: int, units: NDArray[np.void]) -> None:
        if (units["tags_code"] == UNKNOWN_TIME).any():
            raise unknown_delay("the units of delayed messages need")
        self._put(first, units)
        self.end = first + len(units)
        self.records_end = int(units["physical_offset"][-1]) + int(units["size"][-1])

    def _put(self, first: int, units: NDArray[np.void]) -> None:
        """Write units with consecutive queue offsets."""
        self._write(first, units)

    def _begin(self, first: int, unit: NDArray[np.void]) -> None:
        """Create the queue's first file, with filler for the offsets before the first unit.

        Filler and unit are in the file before it gets its name. If a broker found only a part of
        the filler, it would append after that part, at other queue offsets than the records have.
        If it found filler and no unit, it would take the queue for complete up to physical offset
        2 GiB, where the filler points, and build no unit of the records before.

        Source: ConsumeQueue.java#fillPreBlank.
        """
        self._disk.make_folder(self._folder, is_flushed=False)
        self.is_new = False
        self._start = self.end = first
        n_missing = first % self._per_file
        if n_missing:
            path = self._path(first)
            self._disk.create(path, self._file_size, chain(_filler(n_missing), [unit]))
            self.touched[path] = None

    def _position(self, queue_offset: int) -> int:
        """Return the byte of a queue offset in the address space of the files, for errors."""
        return queue_offset * self.unit_type.itemsize

    @property
    def _per_file(self) -> int:
        return self._file_size // self.unit_type.itemsize

    def _path(self, number: int) -> Path:
        """Return the file that holds the unit with a number, counted from the first one ever."""
        return self._folder / offset_to_name(number // self._per_file * self._file_size)

    def _write(self, start: int, units: NDArray[np.void]) -> None:
        """Write units that follow one another, from the one with number ``start`` on."""
        done = 0
        while done < len(units):
            number = start + done
            ordinal = number % self._per_file
            count = min(len(units) - done, self._per_file - ordinal)
            path = self._path(number)
            if path not in self.touched and not LOCAL.exists(path):
                self._disk.create(path, self._file_size)
            self.touched[path] = None
            self._disk.write(path, ordinal * self.unit_type.itemsize, units[done : done + count])
            done += count


class BatchQueueAppender(QueueAppender):
    """The end of one BatchConsumeQueue. Source: BatchConsumeQueue.java#putBatchMessagePositionInfo.

    It is given a row for each message, as readers are: those of one record follow one another, and
    become one unit. Queue offsets that no record has need no unit, because each unit says which
    ones its record has.

    Args:
        start: queue offset of the first message that the files have.
        end: queue offset of the next message.
        records_end: physical offset after the record of the last unit, -1 for an empty queue.
        n_units: number of the next unit, counted from the first one ever written.
        is_new: there is no unit yet.
    """

    unit_type = BATCH_UNIT

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_size: int,
        *,
        start: int,
        end: int,
        records_end: int,
        n_units: int,
        is_new: bool,
    ) -> None:
        super().__init__(
            disk, folder, file_size, start=start, end=end, records_end=records_end, is_new=is_new
        )
        self._n_units = n_units

    def stored(self, units: QueueUnits, rows: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the units of some messages, BATCH_UNIT (n,)."""
        stored = np.zeros(len(rows), BATCH_UNIT)
        chosen = units.units[rows]
        for name in ("physical_offset", "size", "tags_code"):
            stored[name] = chosen[name]
        stored["store_timestamp"] = units.store_timestamps[rows]
        stored["base_offset"] = units.queue_offsets[rows]
        stored["batch_size"] = 1
        stored["compacted"] = NOT_COMPACTED
        return stored

    def _begin_again(self, physical_offset: int) -> None:
        super()._begin_again(physical_offset)
        self._n_units = 0

    def _begin(self, first: int, unit: NDArray[np.void]) -> None:  # noqa: ARG002
        self._disk.make_folder(self._folder, is_flushed=False)
        self.is_new = False
        self._start = self.end = first

    def _fill(self, stop: int, following: NDArray[np.void]) -> None:
        text = f"no record has the queue offsets from {self.end} to {stop - 1}"
        self.misplaced.append(Misplaced(int(following["physical_offset"][0]), text))

    def _put(self, first: int, units: NDArray[np.void]) -> None:
        is_first = np.diff(units["physical_offset"].astype(np.int64), prepend=-1) != 0
        starts = np.flatnonzero(is_first)
        of_records = units[starts]
        of_records["base_offset"] = first + starts
        of_records["batch_size"] = np.diff(starts, append=len(units))
        self._write(self._n_units, of_records)
        self._n_units += len(of_records)

    def _position(self, queue_offset: int) -> int:  # noqa: ARG002
        return self._n_units * self.unit_type.itemsize


def _filler(count: int) -> Iterator[NDArray[np.void]]:
    """Yield blocks of pre-blank units, for the queue offsets before the first of a queue."""
    for done in range(0, count, _FILLER_UNITS):
        filler = np.zeros(min(_FILLER_UNITS, count - done), QUEUE_UNIT)
        filler["size"] = PRE_BLANK_SIZE
        yield filler
