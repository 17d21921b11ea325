"""Appends units to queues in files.

A ConsumeQueue gets filler if its first queue offset is not 0. A BatchConsumeQueue gets one unit for
each record, which may hold several messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, number_of
from rmqstore.format.columns.dispatch_requests import UNKNOWN_TIME, QueueUnits, unknown_delay
from rmqstore.format.layout import (
    BATCH_UNIT,
    GAP_TAGS_CODE,
    NOT_COMPACTED,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
    SCHEDULE_TOPIC,
)
from rmqstore.spans import Span
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import offset_to_name
from rmqstore.storage.queue.placing import begins_again_at, lost_between, place_records

logger = logging.getLogger(__name__)

_MAX_GAP = 1 << 20  # queue offsets without a record that are filled: 20 MiB of units

_FILLER_UNITS = 1 << 19  # per write: a file may be as large as 2 GiB


class FoundQueue(NamedTuple):
    """What the files of a queue hold before something is appended; by default there are none.

    Attributes:
        records_start: physical offset of the record of the first unit, if other files may have been
            before the first one; -1 if not.
        end: queue offset of the next message.
        records_end: physical offset after the record of the last unit, -1 for an empty queue.
        n_units: number of the next unit, counted from the first one ever written.
        is_new: there is no file of a ConsumeQueue yet, or no unit of a BatchConsumeQueue.
    """

    records_start: int = -1
    end: int = 0
    records_end: int = -1
    n_units: int = 0
    is_new: bool = True


class QueueAppender:
    """The end of one queue. Source: ConsumeQueue.java#putMessagePositionInfo.

    It puts units where a broker does, see ``placing``, but for one thing: where the log has lost
    the records before one that leaps ahead, that record keeps its queue offset.

    Records may show that the topic was deleted and made again. The units of the earlier one are
    removed then, as the broker removes them.
    """

    unit_type = QUEUE_UNIT

    def __init__(self, disk: Disk, folder: Path, file_size: int, found: FoundQueue) -> None:
        self._disk = disk
        self._folder = folder
        self._file_size = file_size
        self._records_start = found.records_start
        self._n_units = found.n_units
        self.end = found.end
        self.records_end = found.records_end
        self.is_new = found.is_new
        self.misplaced: list[str] = []  # records without a unit, and filled gaps
        self.touched: dict[Path, None] = {}  # files to flush

    def stored(self, units: QueueUnits, rows: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the units of some rows, ``unit_type`` (n,)."""
        return units.units[rows]

    def append(
        self,
        queue_offsets: NDArray[np.int64],
        units: NDArray[np.void],
        lost: Sequence[Span] = (),
    ) -> None:
        """Append units, ``unit_type`` (n,), in the order of the log; skip those in the files.

        Args:
            queue_offsets: those in the records, (n,).
            units: their units.
            lost: the parts of the log in which no record was found, rising.

        Raises:
            CorruptQueueError: the files do not fit the log.
        """
        physical_offsets = units["physical_offset"].astype(np.int64)
        is_new = physical_offsets + units["size"] > self.records_end
        if not is_new.all():
            if physical_offsets[0] < self._records_start:
                reason = (
                    f"the log has a record of the queue at {int(physical_offsets[0])}, and the "
                    f"files begin with the one at {self._records_start}: one is missing"
                )
                raise CorruptQueueError(str(self._folder), 0, reason)
            queue_offsets, units = queue_offsets[is_new], units[is_new]
        row = begins_again_at(queue_offsets, self.end)
        if row is not None:
            self._begin_again(int(units["physical_offset"][row]))
            queue_offsets, units = queue_offsets[row:], units[row:]

        def keeps_gap(row: int, n_missing: int) -> bool:
            stop = int(units["physical_offset"][row])
            return self._keeps_gap(lost, stop, n_missing)

        for run in place_records(queue_offsets, None if self.is_new else self.end, keeps_gap):
            self._pass_over(queue_offsets[run.passed], units[run.passed])
            taken = units[run.taken]
            if not len(taken):
                continue
            if self.is_new:
                self._begin(run.place, taken[:1])
            elif run.place > self.end:
                self._fill(run.place, taken[:1])
            self._extend(run.place, taken)

    def _keeps_gap(self, lost: Sequence[Span], stop: int, n_missing: int) -> bool:
        """Return whether lost records had the queue offsets before that of a record."""
        return n_missing <= _MAX_GAP and bool(lost_between(lost, self.records_end, stop, n_missing))

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
        self.is_new = True
        self._records_start = -1
        self._n_units = 0
        self.end = 0

    def _pass_over(self, queue_offsets: NDArray[np.int64], units: NDArray[np.void]) -> None:
        if len(units):
            first = int(units["physical_offset"][0])
            count = number_of(len(units), "record is", "records are")
            text = (
                f"{count} in no queue, the first at {first}: it says queue offset "
                f"{int(queue_offsets[0])}, and the next one of the queue is {self.end}"
            )
            self.misplaced.append(text)

    def _fill(self, stop: int, following: NDArray[np.void]) -> None:
        """Fill the queue offsets that no record has with the unit of the next record.

        A broker then serves that record more than once, but for consumers that choose tags. A unit
        that leads to no record would be worse: the broker would skip all further units of records
        in the same file of the log. These units have a tags code of their own, by which reads pass
        over them; those of delayed messages keep their time of delivery.
        """
        text = (
            f"no record has the queue offsets from {self.end} to {stop - 1}; "
            "their units lead to the next record"
        )
        self.misplaced.append(text)
        filler = np.repeat(following, stop - self.end)
        if self._folder.parent.name != SCHEDULE_TOPIC:
            filler["tags_code"] = GAP_TAGS_CODE
        self._write(self.end, filler)

    def _extend(self, first: int, units: NDArray[np.void]) -> None:
        if (units["tags_code"] == UNKNOWN_TIME).any():
            raise unknown_delay()
        self._write(first, units)
        self.end = first + len(units)
        self.records_end = int(units["physical_offset"][-1]) + int(units["size"][-1])

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
        self.end = first
        n_missing = first % self._per_file
        if n_missing:
            path = self._path(first)
            self._disk.create(path, self._file_size, chain(_filler(n_missing), [unit]))
            self.touched[path] = None

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
    """

    unit_type = BATCH_UNIT

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

    def _keeps_gap(self, lost: Sequence[Span], stop: int, n_missing: int) -> bool:  # noqa: ARG002
        return True

    def _begin(self, first: int, unit: NDArray[np.void]) -> None:  # noqa: ARG002
        self._disk.make_folder(self._folder, is_flushed=False)
        self.is_new = False
        self.end = first

    def _fill(self, stop: int, following: NDArray[np.void]) -> None:  # noqa: ARG002
        text = f"no record has the queue offsets from {self.end} to {stop - 1}"
        self.misplaced.append(text)

    def _write(self, start: int, units: NDArray[np.void]) -> None:
        """Write one unit for each record, from that of the queue offset ``start`` on."""
        is_first = np.diff(units["physical_offset"].astype(np.int64), prepend=-1) != 0
        starts = np.flatnonzero(is_first)
        of_records = units[starts]
        of_records["base_offset"] = start + starts
        of_records["batch_size"] = np.diff(starts, append=len(units))
        super()._write(self._n_units, of_records)
        self._n_units += len(of_records)


def _filler(count: int) -> Iterator[NDArray[np.void]]:
    """Yield blocks of pre-blank units, for the queue offsets before the first of a queue."""
    for done in range(0, count, _FILLER_UNITS):
        filler = np.zeros(min(_FILLER_UNITS, count - done), QUEUE_UNIT)
        filler["size"] = PRE_BLANK_SIZE
        yield filler
