"""Predicts what a starting broker does with timed messages, and which it never delivers.

All of it was tried with RocketMQ 5.3.3; what it did with broken timer logs and wheels lies in
``tests/golden/broken.json``.

Source: TimerMessageStore.java#load, #recover, #recoverAndRevise, #reviseQueueOffset, #dequeue,
#doEnqueue; TimerWheel.java#checkPhyPos.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError, Finding, RmqStoreError, number_of, rendered
from rmqstore.format.layout import SCHEDULE_TOPIC, TIMER_PRECISIONS_MS, TIMER_UNIT, Mask
from rmqstore.format.topics import TIMER_TOPIC
from rmqstore.inspect.broker_start import misplaced_timers
from rmqstore.inspect.verify_units import named_offsets
from rmqstore.query.damage import DROPMALFORMED
from rmqstore.read.last_record import LastRecord
from rmqstore.read.pending import (
    Waiting,
    are_cancelled,
    delay_levels,
    have_copies,
    integers,
    read_waiting,
)
from rmqstore.read.read_spec import ReadSpec, scan_schema
from rmqstore.storage.broker.broker_run import OPEN, state_of
from rmqstore.storage.broker.config_files import TimerProgress
from rmqstore.storage.broker.store_config import format_levels
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles
from rmqstore.storage.files.paths import has_database
from rmqstore.storage.recovery.delay_levels import find_delay_levels
from rmqstore.storage.recovery.log_end import last_record_before
from rmqstore.storage.timer import LogScan, PendingSlots, find_wheel, read_slots
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_SPEC: Final = ReadSpec(
    scan_schema("topic", include_pending=False), mode=DROPMALFORMED, fail_on_data_loss=False
)
_PHYSICAL_OFFSET: Final = f"{TIMER_TOPIC}-0"
_NONE: Final = np.empty(0, np.int64)
_NO_RECORD: Final = (-1, -1)
_NO_SLOTS: Final = PendingSlots(_NONE, _NONE, _NONE, TIMER_PRECISIONS_MS[-1])


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
            may_have_none = has_database(paths.storage, paths.rocksdb_store)
            text = f"{err.reason}: a broker does not start"
            if may_have_none:
                text = f"{err.reason}: a broker may not start, if its timers are not in RocksDB"
            yield Finding("timer", str(wheel.path), text, stops_broker=not may_have_none)
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
        since = _delivered_until(store, progress)
        start = _foresee(log, slots, flushed, progress, since)
    yield from _undelivered(store, start, slots.precision, progress, since)


def checked_delays(store: MessageStore) -> tuple[int, ...]:
    """Return the delays by which to check times of delivery, ms; warn if no settings give them."""
    levels = find_delay_levels(store.paths, store.parts.log, store.parts.ends.in_rocksdb)
    if not levels.are_known:
        logger.warning(
            "%s: times of delivery in %s follow another messageDelayLevel than RocketMQ's usual "
            "one, by the units themselves %s; they are compared with one another only: the "
            "broker's file says which is right (%s)",
            store.paths.root,
            SCHEDULE_TOPIC,
            format_levels(levels.delays),
            rendered("`conf=`"),
        )
    return levels.delays


def delay_findings(store: MessageStore) -> Iterator[Finding]:
    """Yield the delay levels whose messages wait, and which a broker takes for delivered.

    A table that is older than the log is no finding: a broker delivers at least once.
    """
    try:
        levels = delay_levels(store.parts)
    except CorruptConfigError:  # a finding about tables names it
        return
    starts = {level - 1: offset for level, (offset, end) in levels.items() if offset <= end}
    waiting = read_waiting(store.parts, SCHEDULE_TOPIC, starts, _SPEC)
    are_copied = have_copies(store.parts, waiting, np.ones(waiting.table.num_rows, np.bool_), _SPEC)
    own_levels = waiting.table.column("queueId").to_numpy() + 1
    is_ahead = ~np.isin(own_levels - 1, list(starts)) & np.isin(own_levels, list(levels))
    table = store.paths.config / "delayOffset.json"
    for level, n_waiting in sorted(Counter(own_levels[is_ahead & ~are_copied].tolist()).items()):
        text = (
            "its offset {} lies after the end of its queue, {}: a broker that starts never "
            "delivers {} of which the log has no delivered copy"
        ).format(*levels[level], number_of(n_waiting, "message", "messages"))
        yield Finding("timer", f"{table}, delay level {level}", text, "delay")
    n_again = int(np.count_nonzero(are_copied & ~is_ahead))
    if n_again:
        logger.warning(
            "%s is missing or older than the log: a broker that starts delivers %s again",
            table, number_of(n_again, "delayed message", "delayed messages"),
        )  # fmt: skip


def _delivered_until(store: MessageStore, progress: TimerProgress) -> int:
    """Return the time, ms, before which what was due may have been delivered, by the log.

    A delivery is a record of a later time, so the log has none of what was due after its last
    record. The broker's note may be of a later day than the log: it says which second comes next.
    """
    if state_of(store.paths) == OPEN:  # the note is newer than what was looked at of the log
        return progress.read_time
    log = store.parts.log
    last = LastRecord.at(log, last_record_before(log, store.parts.ends.end_of_records()))
    return progress.read_time if last is None else min(progress.read_time, last.store_timestamp + 1)


def _foresee(
    log: MappedFileQueue, slots: PendingSlots, flushed: int, progress: TimerProgress, since: int
) -> _Start:
    """Return what a broker does with its stored slots and the log.

    Args:
        since: see :func:`_delivered_until`.
    """
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
    came_to = physical_offsets[seconds < since // slots.precision]
    entered_from = scan.entered_from
    is_ahead = slots.lasts > scan.end
    if is_ahead.any() and slots.firsts[is_ahead].min() < scan.end:
        first = int(slots.firsts[is_ahead].min())
        starts = [file.start for file in files if file.start <= first]
        entered_from = min(entered_from, starts[-1] if starts else files[0].start)
    pending = np.flatnonzero(seconds >= read_second)
    rows = pending[np.lexsort((positions[pending], seconds[pending]))]
    previous = units["previous"].astype(np.int64)
    positions, previous, physical_offsets, seconds = (
        column[rows] for column in (positions, previous, physical_offsets, seconds)
    )
    # The last unit of each second where the broker enters units again, else that of the slot.
    is_final = np.append(seconds[1:] != seconds[:-1], True) & (positions >= entered_from)
    of_slot = np.searchsorted(slots.times, seconds)
    known = np.isin(seconds, slots.times) & ~np.isin(seconds, seconds[is_final])
    is_final[known] |= positions[known] == slots.lasts[of_slot[known]]
    reached = _reached(seconds, positions, previous, is_final)
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
    store: MessageStore, start: _Start, precision: int, progress: TimerProgress, since: int
) -> Iterator[Finding]:
    if TIMER_TOPIC not in store.parts.store_queues.topics():
        return
    waiting = _waiting(store, since)
    queue_offsets = waiting.table.column("queueOffset").to_numpy()
    # After that of the last unit's record, or where the broker noted if there is no such record.
    following = progress.queue_offset
    physical_offset, size = start.last
    if physical_offset >= store.parts.log.min_offset:
        with suppress(RmqStoreError):
            fixed = store.parts.log.parts(physical_offset).fixed
            if int(fixed["total_size"]) == size:
                following = int(fixed["queue_offset"]) + 1
    is_entered = queue_offsets < min(following, progress.master_queue_offset)
    is_lost = is_entered & ~np.isin(waiting.physical_offsets, start.delivered)
    is_lost &= ~are_cancelled(waiting, precision)
    # One that is due when the broker comes to it is delivered at once, and gets no slot.
    lost = queue_offsets[is_lost & ~have_copies(store.parts, waiting, is_lost, _SPEC)]
    if len(lost):
        count = number_of(len(lost), "timed message is", "timed messages are")
        text = (
            f"{count} in no slot of the timer wheel any more, or due before the second that "
            f"timercheck says is next: a broker that starts never delivers {named_offsets(lost)}"
        )
        yield Finding("timer", _PHYSICAL_OFFSET, text)
    due = integers(waiting.property("TIMER_OUT_MS")).to_numpy()
    seconds = due[~is_entered] // precision
    in_circle = seconds[np.isin(seconds, start.stale)]
    if len(in_circle):
        millis = int(in_circle.min()) * precision
        first = f"{millis} ms after 1970"  # of a wheel that is damaged
        with suppress(ValueError, OverflowError, OSError):
            first = f"{datetime.fromtimestamp(millis / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        text = (
            f"a broker that starts before {first} reads the timer log in a "
            "circle from then on, until its memory is full, and delivers no timed message any more"
        )
        yield Finding("timer", _PHYSICAL_OFFSET, text)


def _waiting(store: MessageStore, since: int) -> Waiting:
    """Return the messages of the timer topic that are due at a time, ms, or later."""
    scan = store.scan(
        subscribe=[TIMER_TOPIC],
        columns=["topic", "queueId", "queueOffset", "commitLogOffset", "properties"],
        mode="DROPMALFORMED",
        fail_on_data_loss=False,
    )
    parts = []
    for batch in scan:
        due = integers(pc.map_lookup(batch.column("properties"), "TIMER_OUT_MS", "last"))
        parts.append(batch.filter(pc.greater_equal(due, since)))
    return Waiting.of(pa.Table.from_batches(parts, scan.schema))
