"""Predicts what a starting broker does with timed messages, and which it never delivers.

All of it was tried with RocketMQ 5.3.3; what it did with broken timer logs and wheels lies in
``tests/golden/broken.json``.

Source: TimerMessageStore.java#load, #recover, #recoverAndRevise, #reviseQueueOffset, #dequeue,
#doEnqueue; TimerWheel.java#checkPhyPos.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError, Finding, RmqStoreError, number_of
from rmqstore.format.layout import TIMER_PRECISIONS_MS, TIMER_UNIT, Mask
from rmqstore.format.topics import TIMER_TOPIC
from rmqstore.inspect.broker_start import misplaced_timers
from rmqstore.inspect.verify_units import named_offsets
from rmqstore.read.pending import have_copies, integers, read_waiting_at
from rmqstore.read.read_spec import DROPMALFORMED, ReadSpec, scan_schema
from rmqstore.storage.broker.config_files import TimerProgress
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles
from rmqstore.storage.timer import LogScan, PendingSlots, find_wheel, read_slots
from rmqstore.store.message_store import MessageStore

_PHYSICAL_OFFSET: Final = f"{TIMER_TOPIC}-0"
_NONE: Final = np.empty(0, np.int64)
_NO_RECORD: Final = (-1, -1)
_NO_SLOTS: Final = PendingSlots(_NONE, _NONE, _NONE, TIMER_PRECISIONS_MS[-1])


class _Messages(NamedTuple):
    """Timed messages that are due at the read time of the broker or later, (n,) each, rising."""

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    due: NDArray[np.int64]  # ms


class _Start(NamedTuple):
    """What a starting broker does with the wheel and its log."""

    delivered: NDArray[np.int64]  # physical offsets that it comes to, or came to before
    stale: NDArray[np.int64]  # seconds whose slot leads behind the end of the log
    last: tuple[int, int]  # physical offset and size of the record of the last unit, or -1


def timer_findings(store: MessageStore) -> Iterator[Finding]:
    """Yield what keeps a broker from starting, or from delivering messages when they are due.

    Of a timer log with files of a wrong name or length nothing else is said: what a broker reads of
    it is as chance has it.
    """
    paths = store.paths
    progress = store.parts.config.timer_progress()
    wheel = find_wheel(paths.storage, paths.root)
    slots = _NO_SLOTS
    if wheel is not None and (wheel.flushed is not None or paths.storage.size(wheel.path)):
        try:
            slots = read_slots(paths.storage, wheel.path, progress.read_time)
        except CorruptConfigError as err:
            text = f"{err.reason}: a broker does not start"
            yield Finding("timer", str(wheel.path), text)
            return
    if progress.read_time <= 0:
        return  # no timer ever ran
    misplaced = list(misplaced_timers(paths))
    yield from misplaced
    if misplaced:
        return
    flushed = progress.log_flushed
    if wheel is not None and wheel.flushed is not None:
        flushed = wheel.flushed
    with OpenFiles(paths.storage) as files:
        log = MappedFileQueue([paths.timer_log], files)
        start = _foresee(log, slots, flushed, progress)
    yield from _undelivered(store, start, slots.precision, progress)


def _foresee(
    log: MappedFileQueue, slots: PendingSlots, flushed: int, progress: TimerProgress
) -> _Start:
    """Return what a broker does with its stored slots and the log."""
    read_second = progress.read_time // slots.precision
    # A broker deletes an empty file at the end.
    files = [segment for segment in log.segments if segment.size]
    if not files:
        return _Start(_NONE, slots.times, _NO_RECORD)
    scan = LogScan(log, slots, flushed, progress.read_time)
    parts = [(_NONE, np.empty(0, TIMER_UNIT))]
    parts += scan.valid_units(files[0].start)
    positions, units = (np.concatenate(column) for column in zip(*parts, strict=True))
    is_there = positions < scan.end
    positions = positions[is_there]
    units = units[is_there]
    physical_offsets = units["physical_offset"].astype(np.int64)
    seconds = (units["write_time"].astype(np.int64) + units["delay"]) // slots.precision
    # The last unit counts if the log ends right after it.
    is_last = len(positions) > 0 and int(positions[-1]) + TIMER_UNIT.itemsize == scan.end
    last = (int(physical_offsets[-1]), int(units["record_size"][-1])) if is_last else _NO_RECORD
    is_pending = seconds >= read_second
    came_to = physical_offsets[~is_pending]
    positions, units, physical_offsets, seconds = (
        column[is_pending] for column in (positions, units, physical_offsets, seconds)
    )
    entered_from = scan.entered_from
    is_ahead = slots.lasts > scan.end
    if is_ahead.any() and slots.firsts[is_ahead].min() < scan.end:
        first = int(slots.firsts[is_ahead].min())
        starts = [file.start for file in files if file.start <= first]
        entered_from = min(entered_from, starts[-1] if starts else files[0].start)
    order = np.lexsort((positions, seconds))
    positions, units, physical_offsets, seconds = (
        column[order] for column in (positions, units, physical_offsets, seconds)
    )
    # The last unit of each second where the broker enters units again, else that of the slot.
    is_final = np.append(seconds[1:] != seconds[:-1], True) & (positions >= entered_from)
    of_slot = np.searchsorted(slots.times, seconds)
    known = np.isin(seconds, slots.times) & ~np.isin(seconds, seconds[is_final])
    is_final[known] |= positions[known] == slots.lasts[of_slot[known]]
    reached = _reached(seconds, positions, units["previous"].astype(np.int64), is_final)
    is_stale = (slots.lasts >= scan.end) & ~np.isin(slots.times, seconds[is_final])
    delivered = np.concatenate([came_to, physical_offsets[reached]])
    return _Start(delivered, slots.times[is_stale], last)


def _reached(
    seconds: NDArray[np.int64],
    positions: NDArray[np.int64],
    previous: NDArray[np.int64],
    is_final: Mask,
) -> Mask:
    """Return which units (n,), by second and position, a walk back from the final ones meets."""
    is_linked = (seconds[1:] == seconds[:-1]) & (previous[1:] == positions[:-1])
    runs = np.concatenate([np.zeros(min(len(seconds), 1), np.int64), np.cumsum(~is_linked)])
    finals = np.full(int(runs[-1]) + 1 if len(runs) else 0, -1)
    rows = np.flatnonzero(is_final)
    np.maximum.at(finals, runs[rows], rows)
    mask: Mask = np.arange(len(seconds)) <= finals[runs]
    return mask


def _undelivered(
    store: MessageStore, start: _Start, precision: int, progress: TimerProgress
) -> Iterator[Finding]:
    waiting = _waiting(store, progress)
    # After that of the last unit's record, or where the broker noted if there is no such record.
    following = progress.queue_offset
    physical_offset, size = start.last
    if physical_offset >= store.parts.log.min_offset:
        with suppress(RmqStoreError):
            fixed = store.parts.log.parts(physical_offset).fixed
            if int(fixed["total_size"]) == size:
                following = int(fixed["queue_offset"]) + 1
    is_entered = waiting.queue_offsets < following
    rows = np.flatnonzero(is_entered & ~np.isin(waiting.physical_offsets, start.delivered))
    lost = waiting.queue_offsets[rows[~_have_copies(store, waiting.physical_offsets[rows])]]
    if len(lost):
        count = number_of(len(lost), "timed message is", "timed messages are")
        text = (
            f"{count} in no slot of the timer wheel any more: a broker that starts never delivers "
            f"{named_offsets(lost)}"
        )
        yield Finding("timer", _PHYSICAL_OFFSET, text)
    seconds = waiting.due[~is_entered] // precision
    in_circle = seconds[np.isin(seconds, start.stale)]
    if len(in_circle):
        millis = int(in_circle.min()) * precision
        due = f"{millis} ms after 1970"  # of a wheel that is damaged
        with suppress(ValueError, OverflowError, OSError):
            due = f"{datetime.fromtimestamp(millis / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        text = (
            f"a broker that starts before {due} reads the timer log in a "
            "circle from then on, until its memory is full, and delivers no timed message any more"
        )
        yield Finding("timer", _PHYSICAL_OFFSET, text)


def _have_copies(store: MessageStore, physical_offsets: NDArray[np.int64]) -> Mask:
    """Return which timed messages (n,) lie in their real topic already.

    A message that is due when the broker comes to it is delivered at once, and gets no slot.

    Source: TimerMessageStore.java#putMessageToTimerWheel.
    """
    mask: Mask = np.zeros(len(physical_offsets), np.bool_)
    schema = scan_schema("topic", include_pending=False)
    spec = ReadSpec(schema, DROPMALFORMED, fail_on_data_loss=False)
    found = None
    if len(physical_offsets):
        found = read_waiting_at(store.parts, TIMER_TOPIC, np.sort(physical_offsets), spec)
    if found is not None:
        are_copied = have_copies(store.parts, found, np.ones(len(found.physical_offsets), np.bool_))
        mask = np.isin(physical_offsets, found.physical_offsets[are_copied])
    return mask


def _waiting(store: MessageStore, progress: TimerProgress) -> _Messages:
    """Return the messages of the timer topic that are not due yet, by the broker's read time."""
    parts = [_Messages(_NONE, _NONE, _NONE)]
    if TIMER_TOPIC in store.parts.store_queues.topics():
        scan = store.scan(
            subscribe=[TIMER_TOPIC],
            columns=["queueOffset", "commitLogOffset", "properties"],
            mode="DROPMALFORMED",
            fail_on_data_loss=False,
        )
        for batch in scan:
            due = integers(pc.map_lookup(batch.column("properties"), "TIMER_OUT_MS", "last"))
            chosen = batch.filter(pc.greater_equal(due, progress.read_time))
            times = due.filter(pc.greater_equal(due, progress.read_time))
            columns = (chosen.column("queueOffset"), chosen.column("commitLogOffset"), times)
            parts.append(_Messages(*(column.to_numpy() for column in columns)))
    return _Messages(*(np.concatenate(column) for column in zip(*parts, strict=True)))
