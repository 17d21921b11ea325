"""The timer wheel: for each second of two weeks, where its units lie in the timer log.

Source: TimerWheel.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError
from rmqstore.format.layout import TIMER_PRECISIONS_MS, TIMER_SLOT, TIMER_SLOTS
from rmqstore.storage.files.storage import Storage, StoredFile

WHEEL_BYTES = TIMER_SLOTS * TIMER_SLOT.itemsize
_NAME = "timerwheel"
_SLOTS_AT_ONCE = 1 << 16
_SNAPSHOT_DIGITS = 18
_NEAR_MS = 2 * 7 * 24 * 3600 * 1000  # every waiting message is due within the two weeks


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
    numbers = [name.removeprefix(f"{_NAME}.") for name in names if name.startswith(f"{_NAME}.")]
    return max((int(number) for number in numbers if _is_number(number)), default=None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _SNAPSHOT_DIGITS


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
        parts = [part for part in _own_slots(file) if len(part)]
    slots = np.concatenate(parts) if parts else np.empty(0, TIMER_SLOT)
    times = slots["time"].astype(np.int64)
    precision = _precision(times, read_time)
    is_pending = times >= read_time // precision
    slots, times = slots[is_pending], times[is_pending]
    order = np.argsort(times)
    firsts, lasts = (slots[name][order].astype(np.int64) for name in ("first", "last"))
    return PendingSlots(times[order], firsts, lasts, precision)


def _own_slots(file: StoredFile) -> Iterator[NDArray[np.void]]:
    """Yield the slots that hold a second of their own; holes of the file are not read."""
    width = TIMER_SLOT.itemsize
    for low, high in file.data_spans(0, WHEEL_BYTES):
        for number in range(low // width, -(-high // width), _SLOTS_AT_ONCE):
            count = min(_SLOTS_AT_ONCE, -(-high // width) - number)
            window = np.zeros(count * width, np.uint8)
            file.read_into(window, number * width)
            slots = window.view(TIMER_SLOT)
            times = slots["time"].astype(np.int64)
            is_own = (times > 0) & (times % TIMER_SLOTS == np.arange(number, number + count))
            yield slots[is_own & (slots["first"] >= 0) & (slots["last"] >= slots["first"])]


def _precision(times: NDArray[np.int64], read_time: int) -> int:
    """Return the ms that a slot stands for: those with which most slots lie near ``read_time``."""
    default = TIMER_PRECISIONS_MS[-1]
    counts = {
        precision: int((np.abs(times - read_time // precision) <= _NEAR_MS // precision).sum())
        for precision in TIMER_PRECISIONS_MS
    }
    return max(counts, key=lambda precision: (counts[precision], precision == default))
