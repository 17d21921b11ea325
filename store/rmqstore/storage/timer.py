"""The timer log: a unit for each timed message that was entered into the wheel.

Source: TimerLog.java, TimerMessageStore.java#recover, #recoverAndRevise.

Source: TimerWheel.java.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError, FileDeletedError, UnreadableFileError
from rmqstore.format.layout import (
    TIMER_BLANK_MAGIC,
    TIMER_PRECISIONS_MS,
    TIMER_SLOT,
    TIMER_SLOTS,
    TIMER_UNIT,
    Mask,
    Positions,
)
from rmqstore.storage.broker.config_files import TimerProgress
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles, Segment
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage

logger = logging.getLogger(__name__)

WHEEL_BYTES = TIMER_SLOTS * TIMER_SLOT.itemsize
_NAME = "timerwheel"
_SLOTS_AT_ONCE = 1 << 16
_SNAPSHOT = re.compile(rf"{_NAME}\.([0-9]{{1,18}})")
_NEAR_MS = 2 * 7 * 24 * 3600 * 1000  # every waiting message is due within the two weeks

_UNIT_BYTES = TIMER_UNIT.itemsize
_UNITS_AT_ONCE = 1 << 16
_KNOWN_MAGIC = 0xF  # Source: TimerMessageStore.java#isMagicOK
ROLL = 1 << 1  # Source: TimerMessageStore.java#MAGIC_ROLL


class Wheel(NamedTuple):
    """The file that holds the wheel."""

    path: Path
    flushed: int | None  # position in the timer log that a snapshot covers; None without snapshots


class PendingSlots(NamedTuple):
    """The seconds that were not delivered yet, (n,) each, rising."""

    times: NDArray[np.int64]  # in units of the precision
    firsts: NDArray[np.int64]  # position of the first unit in the timer log
    lasts: NDArray[np.int64]  # position of the last unit
    precision: int  # ms


def find_wheel(storage: Storage, root: Path) -> Wheel | None:
    """Return the newest snapshot of the wheel, or the wheel itself; None if the store has none.

    With timerWheelSnapshotFlush a broker writes snapshots and leaves the wheel as it was.

    Raises:
        UnreadableFileError: the folder cannot be listed.
    """
    names = [entry.name for entry in storage.list_folder(root) if not entry.is_folder]
    newest = newest_snapshot(names)
    if newest is not None:
        return Wheel(root / f"{_NAME}.{newest}", newest)
    return Wheel(root / _NAME, None) if _NAME in names else None


def newest_snapshot(names: Iterable[str]) -> int | None:
    """Return the largest number that a snapshot of the wheel has, None without snapshots.

    Source: TimerWheel.java#getMaxSnapshotFlag.
    """
    matches = map(_SNAPSHOT.fullmatch, names)
    return max((int(match[1]) for match in matches if match is not None), default=None)


def read_slots(storage: Storage, path: Path, read_time: int) -> PendingSlots:
    """Read the slots of the seconds from ``read_time`` (ms) on.

    A slot keeps its content after its second was delivered, until another second takes it. A slot
    that is not in the place of its own second belongs to none.

    Raises:
        CorruptConfigError: the file has another length than a wheel.
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file.

    Source: TimerWheel.java#getSlot, TimerMessageStore.java#dequeue.
    """
    with storage.open(path) as file:
        if file.size != WHEEL_BYTES:
            reason = f"{file.size} bytes, a timer wheel has {WHEEL_BYTES}"
            raise CorruptConfigError(str(path), 0, reason)
        parts = []
        width = TIMER_SLOT.itemsize
        for low, high in file.data_spans(0, WHEEL_BYTES):  # holes of the file are not read
            for number in range(low // width, -(-high // width), _SLOTS_AT_ONCE):
                count = min(_SLOTS_AT_ONCE, -(-high // width) - number)
                window = np.zeros(count * width, np.uint8)
                file.read_into(window, number * width)
                stored = window.view(TIMER_SLOT)
                seconds = stored["time"].astype(np.int64)
                is_own = seconds % TIMER_SLOTS == np.arange(number, number + count)
                is_own &= (seconds > 0) & (stored["first"] >= 0)
                parts.append(stored[is_own & (stored["last"] >= stored["first"])])
    slots = np.concatenate(parts) if parts else np.empty(0, TIMER_SLOT)
    times = slots["time"].astype(np.int64)
    # A slot stands for the ms with which most slots lie near the read time.
    default = TIMER_PRECISIONS_MS[-1]
    counts = {
        precision: int((np.abs(times - read_time // precision) <= _NEAR_MS // precision).sum())
        for precision in TIMER_PRECISIONS_MS
    }
    precision = max(counts, key=lambda precision: (counts[precision], precision == default))
    is_pending = times >= read_time // precision
    slots, times = slots[is_pending], times[is_pending]
    order = np.argsort(times)
    firsts, lasts = (slots[name][order].astype(np.int64) for name in ("first", "last"))
    return PendingSlots(times[order], firsts, lasts, precision)


class TimerUnits(NamedTuple):
    """The units that wait for their second, (n,) each, in the order of their records.

    Each physical offset is there once.
    """

    physical_offsets: Positions  # of the records in the timer topic
    seconds: NDArray[np.int64]  # of their slots, in units of the precision
    are_rolled: Mask  # those whose second is not yet the one that they are due in
    precision: int  # ms
    last_physical_offset: int  # of the record of the last unit of the log, -1 without units


def pending_units(paths: StorePaths, progress: TimerProgress) -> TimerUnits | None:
    """Return the units of the seconds that were not delivered yet, as a broker's start finds them.

    It enters the newest units of the timer log into the wheel again, because the log may have been
    flushed later than the wheel. Of older units, those count that the slot of their second covers.

    Returns:
        None if the broker keeps no timer wheel, or if its wheel cannot be read.
    """
    if progress.read_time <= 0:
        return None
    try:
        wheel = find_wheel(paths.storage, paths.root)
        if wheel is None:
            return None
        with OpenFiles(paths.storage) as files:
            log = MappedFileQueue([paths.timer_log], files)
            if not log.segments:
                return None
            slots = read_slots(paths.storage, wheel.path, progress.read_time)
            flushed = progress.log_flushed if wheel.flushed is None else wheel.flushed
            return LogScan(log, slots, flushed, progress.read_time).units()
    except (CorruptConfigError, UnreadableFileError, FileNotFoundError, FileDeletedError) as err:
        logger.warning("%s; the timer topic alone says which messages are timed", err)
        return None


class LogScan:
    """One pass over the timer log.

    Attributes:
        entered_from: from here on a broker that starts enters units into the wheel again.
        end: the position at which the log ends for it, once the units were read; 0 before.
    """

    def __init__(
        self, log: MappedFileQueue, slots: PendingSlots, flushed: int, read_time: int
    ) -> None:
        self._files = log
        self._segments = [segment for segment in log.segments if segment.size]
        self._slots = slots
        self._read_time = read_time
        # A broker deletes an empty file at the end.
        again_from = flushed - (self._segments[-1].size if self._segments else 0)
        starts = [segment.start for segment in self._segments if segment.start <= again_from]
        self.entered_from = starts[-1] if starts else log.segments[0].start
        self.end = 0

    def units(self) -> TimerUnits:
        """Return the pending units, from the first one that may be."""
        slots = self._slots
        start = min(self.entered_from, int(slots.firsts.min(initial=self.entered_from)))
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))]
        last_physical_offset = -1
        for positions, units in self.valid_units(start):
            seconds = (units["write_time"].astype(np.int64) + units["delay"]) // slots.precision
            is_pending = seconds >= self._read_time // slots.precision
            is_covered = positions >= self.entered_from
            if len(slots.times):
                rows = np.minimum(np.searchsorted(slots.times, seconds), len(slots.times) - 1)
                is_covered |= (
                    (slots.times[rows] == seconds)
                    & (positions >= slots.firsts[rows])
                    & (positions <= slots.lasts[rows])
                )
            physical_offsets = units["physical_offset"].astype(np.int64)
            chosen = is_pending & is_covered & (physical_offsets >= 0)
            is_rolled = (units["magic"][chosen] & ROLL) != 0
            parts.append((physical_offsets[chosen], seconds[chosen], is_rolled))
            last_physical_offset = int(units["physical_offset"][-1])
        physical_offsets, seconds, are_rolled = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        physical_offsets, rows = np.unique(physical_offsets, return_index=True)
        return TimerUnits(
            physical_offsets, seconds[rows], are_rolled[rows], slots.precision, last_physical_offset
        )

    def valid_units(self, start: int) -> Iterator[tuple[Positions, NDArray[np.void]]]:
        """Yield positions and units from a position on, TIMER_UNIT (n,), never none.

        Among the units that the broker enters again, the first one that is not valid ends the log.
        """
        for segment in self._segments:
            if segment.end <= start:
                continue
            is_checked = segment.start >= self.entered_from
            for position, units in self._windows(segment, max(start - segment.start, 0)):
                is_valid = (units["size"] == _UNIT_BYTES) & (
                    (units["magic"] | _KNOWN_MAGIC) == _KNOWN_MAGIC
                )
                is_end = units["magic"] == TIMER_BLANK_MAGIC
                if is_checked:
                    is_end |= ~is_valid
                count = int(is_end.argmax()) if is_end.any() else len(units)
                rows = np.flatnonzero(is_valid[:count])
                if is_checked:
                    self.end = segment.start + position + count * _UNIT_BYTES
                if len(rows):
                    yield segment.start + position + rows * _UNIT_BYTES, units[rows]
                if count < len(units):
                    if is_checked and units["magic"][count] != TIMER_BLANK_MAGIC:
                        return
                    break

    def _windows(self, segment: Segment, position: int) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield the units of a file in windows, each with its position in the file."""
        file = self._files.file_of(segment)
        number = position // _UNIT_BYTES
        n_units = file.size // _UNIT_BYTES
        window = np.empty(min(_UNITS_AT_ONCE, max(n_units - number, 0)) * _UNIT_BYTES, np.uint8)
        while number < n_units:
            count = min(len(window) // _UNIT_BYTES, n_units - number)
            n_read = file.read_into(window[: count * _UNIT_BYTES], number * _UNIT_BYTES)
            units = window[: n_read // _UNIT_BYTES * _UNIT_BYTES].view(TIMER_UNIT)
            if not len(units):
                return
            yield number * _UNIT_BYTES, units
            number += len(units)
