"""Timed messages that are not delivered yet.

The timer wheel and its log tell them exactly; a record that the broker has not entered into the
wheel yet waits too. Without a wheel, the records of the timer topic tell them.

Source: TimerMessageStore.java.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.layout import TIMER_PRECISIONS_MS, Mask
from rmqstore.format.topics import TIMER_TOPIC
from rmqstore.read.lookup.waiting import (
    NOTHING_PENDING,
    PendingRows,
    PendingSource,
    Waiting,
    are_newest,
    have_copies,
    integers,
    read_waiting,
    read_waiting_at,
)
from rmqstore.read.scan.spec import ReadSpec
from rmqstore.storage.broker.config_files import TimerProgress
from rmqstore.storage.timer import TimerUnits, pending_units

_DELETED = "TIMER_DEL_UNIQKEY"


def timed(store: PendingSource, spec: ReadSpec) -> PendingRows:
    """Return the messages that wait for the second that they are due in.

    With timerRocksDBEnable a broker keeps no timer log. Then the timer topic tells what waits,
    though the database ``rocksdbstore`` has it as well.
    """
    progress = store.config.timer_progress()
    units = pending_units(store.paths, progress)
    if units is None:
        return _timed_by_topic(store, progress.read_time, spec)
    following = _following_offset(store, units, progress, spec)
    entered = read_waiting_at(store, TIMER_TOPIC, units.places, spec)
    # a second entry of a record that is in the wheel would be the same message
    waiting = _without(read_waiting(store, TIMER_TOPIC, {0: following}, spec), units)
    parts = [_Timed.entered(entered, units), _Timed.waiting(waiting, units.precision)]
    rows = [_pending(store, part, parts) for part in parts if part is not None]
    return PendingRows.joined(rows) if rows else NOTHING_PENDING


class _Timed(NamedTuple):
    """Messages of the timer topic, cancellations among them, (n,) each."""

    messages: Waiting
    due: pa.Array  # int64, ms
    finals: pa.Array  # int64, the seconds that they are due in, in units of the precision
    seconds: pa.Array  # int64, the seconds of their slots: an earlier one if they are due far ahead
    are_entered: bool  # whether they are in the wheel

    @classmethod
    def entered(cls, messages: Waiting | None, units: TimerUnits) -> _Timed | None:
        """Return the messages of units."""
        if messages is None:
            return None
        due = integers(messages.property("TIMER_OUT_MS"))
        rows = np.searchsorted(units.places, messages.places)
        seconds = pa.array(units.seconds[rows])
        are_final = pa.array(~units.are_rolled[rows])
        finals = pc.if_else(are_final, seconds, _seconds_of(due, units.precision))
        return cls(messages, due, finals, seconds, are_entered=True)

    @classmethod
    def waiting(cls, messages: Waiting | None, precision: int) -> _Timed | None:
        """Return messages that are in no slot yet."""
        if messages is None:
            return None
        due = integers(messages.property("TIMER_OUT_MS"))
        seconds = _seconds_of(due, precision)
        return cls(messages, due, seconds, seconds, are_entered=False)

    @property
    def deletes(self) -> pa.Array:
        """What each message cancels: a UNIQ_KEY, after "topic+" in some versions; else null."""
        return self.messages.property(_DELETED)


def _seconds_of(due: pa.Array, precision: int) -> pa.Array:
    return pc.divide(due, precision)


def _following_offset(
    store: PendingSource, units: TimerUnits, progress: TimerProgress, spec: ReadSpec
) -> int:
    """Return the queue offset of the record that a broker enters next when it starts.

    Source: TimerMessageStore.java#recover, #reviseQueueOffset.
    """
    last = read_waiting_at(store, TIMER_TOPIC, np.array([units.last_place]), spec)
    if last is None:
        return progress.queue_offset
    return int(last.table.column("queueOffset")[0].as_py()) + 1


def _without(messages: Waiting | None, units: TimerUnits) -> Waiting | None:
    """Leave out messages that have a pending unit."""
    if messages is None:
        return None
    return Waiting.of(messages.table.filter(pa.array(~np.isin(messages.places, units.places))))


def _pending(store: PendingSource, part: _Timed, parts: list[_Timed | None]) -> PendingRows:
    is_pending = ~_are_cancelled(part, [other for other in parts if other is not None])
    if not part.are_entered or store.paths.has_abort:
        # Of a store that was not closed, the wheel may be older than what was delivered.
        is_pending &= are_newest(part.messages)
        is_pending &= ~have_copies(store, part.messages, is_pending)
    return part.messages.rows(is_pending, "timer", part.due)


def _are_cancelled(part: _Timed, others: list[_Timed]) -> Mask:
    """Return a mask (n,) of the messages that are cancelled, and of what cancels them.

    A cancellation holds for messages of its own slot alone. Slots of messages that are due far
    ahead are in between: such a message meets all those of the same final second in the end.

    Args:
        part: the messages.
        others: all messages that may cancel them.

    Source: TimerMessageStore.java#dequeue, #TimerDequeueGetMessageService.
    """
    cancelled = part.deletes.is_valid()
    topics, uniq_keys = part.messages.topics, part.messages.uniq_keys
    names = (uniq_keys, pc.binary_join_element_wise(topics, uniq_keys, "+"))
    for other in others:
        in_last_slot = pc.equal(other.seconds, other.finals)
        in_slot = pc.if_else(in_last_slot, other.seconds, None)
        for own, of_other in ((part.finals, other.finals), (part.seconds, in_slot)):
            targets = _joined(other.deletes, of_other).drop_null()
            for name in names:
                found = pc.is_in(_joined(name, own), value_set=targets, skip_nulls=True)
                cancelled = pc.or_(cancelled, found)
    mask: Mask = cancelled.to_numpy(zero_copy_only=False)
    return mask


def _joined(names: pa.Array, seconds: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(seconds.cast(pa.string()), names, "@")


def _timed_by_topic(store: PendingSource, read_time: int, spec: ReadSpec) -> PendingRows:
    """Return the timed messages of a store without a timer wheel, by the timer topic alone."""
    messages = read_waiting(store, TIMER_TOPIC, {}, spec)
    part = _Timed.waiting(messages, TIMER_PRECISIONS_MS[-1])
    if part is None:
        return NOTHING_PENDING
    late = pc.less(part.due, read_time).fill_null(False)  # noqa: FBT003 - Arrow's name for a value
    is_pending = are_newest(part.messages) & ~late.to_numpy(zero_copy_only=False)
    is_pending &= ~_are_cancelled(part, [part])
    is_pending &= ~have_copies(store, part.messages, is_pending)
    return part.messages.rows(is_pending, "timer", part.due)
