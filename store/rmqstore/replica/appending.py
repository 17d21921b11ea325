"""Appending: bytes that came are written, come to the disk, and queues and tables follow.

The order is always the same. The log is written (:func:`on_written`) and flushed
(:func:`flush_if_due`), then the state file says so (:func:`write_state`). What the state covers is
reported to the broker (:func:`report_if_due`), its queues are built (:func:`build_if_due`), and
tables that speak of no more are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqstore.errors import BrokerUnreachableError, CorruptRecordError
from rmqstore.replica import events
from rmqstore.replica.broker import TopicKinds
from rmqstore.replica.events import Action, Question
from rmqstore.replica.ha import NEVER
from rmqstore.replica.heartbeats import ask_for_end, take_heartbeat
from rmqstore.replica.live_state import (
    LONG_AGO,
    Change,
    Cutting,
    Decision,
    Ending,
    Phase,
    ReplicaState,
    Retaining,
)
from rmqstore.replica.phases import STALLED, agree, ask, end_with, lose
from rmqstore.replica.state import epochs_within

FAR_BYTES: Final = 64 << 20  # to copy, while which queues are flushed less often
# A flush of many queues takes some time; building rests for as long.
_MOST_REST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 0.2  # after which queues that are written are flushed

Step = Callable[[ReplicaState, Any], Decision]  # of a change


# ---- the bytes that came


def buffer(state: ReplicaState, start: int, stop: int) -> Decision:
    """Take the next bytes of the log, which are written with others."""
    if start == stop:
        return agree(state), []
    n_buffered = state.copy.n_buffered
    if not n_buffered:
        state = state.with_copy(buffered_at=state.now)
    state = state.with_copy(n_buffered=n_buffered + stop - start)
    return agree(state), [events.Buffer(start, stop)]


def on_written(state: ReplicaState, event: events.Written) -> Decision:
    """Note the written bytes, and do what waited for them."""
    state = state.with_copy(end=event.end, last_time=event.last_time, n_buffered=0)
    if event.error is not None:
        return _on_damage(state, event.error)
    if state.phase is not Phase.APPENDING:
        return state, []
    waiting = state.link.waiting
    state = state.with_link(waiting=None)
    if state.has_arrived:
        return end_with(state, None)
    if event.seconds > state.link.timing.stall:
        return lose(state, STALLED)
    if isinstance(waiting, events.Lost):
        return lose(state, waiting.reason)
    actions: list[Action] = []
    if waiting is not None:
        state, actions = take_heartbeat(state, waiting.position)
        if not state.is_streaming:
            return state, actions
    state, further = flush_if_due(state)
    return state, [*actions, *further]


def _on_damage(state: ReplicaState, error: CorruptRecordError) -> Decision:
    """End, because the broker's log is not a chain of records; unless it does not begin here."""
    has_records = state.copy.end > state.copy.saved.begin
    change = state.work.change
    ending = change.then if isinstance(change, Retaining) else change
    if isinstance(ending, Ending):  # these were the last bytes that came
        is_worse = ending.error is None or isinstance(ending.error, BrokerUnreachableError)
        if not is_worse or not has_records:
            return state, []
        return end_with(state, error)
    if not state.is_streaming or isinstance(state.link.waiting, events.Lost) or has_records:
        return end_with(state, error)
    return ask_for_end(state.with_link(pending=error), state.copy.end)


# ---- the log and the state


def flush_if_due(state: ReplicaState) -> Decision:
    """Begin to bring the log to the disk, if it is time and the last flush has ended."""
    copy, work, settings = state.copy, state.work, state.settings
    is_done = copy.confirmed_end == copy.durable
    if work.flushing or is_done or not copy.is_open or state.phase is Phase.COMPARING:
        return state, []
    if state.phase is Phase.APPENDING:
        since = state.now - work.synced_at
        is_due = since >= settings.sync_seconds or (
            state.link.position - copy.durable >= settings.sync_bytes
        )
        is_near = not state.is_behind and state.link.is_drained
        is_due |= state.has_arrived or (is_near and since >= work.sync_rest)
        if not is_due:
            return state, []
    return flush(state)


def flush(state: ReplicaState) -> Decision:
    """Bring to the disk all records that are written and confirmed."""
    state = state.with_work(flushing=True, flush_seconds=0.0, ordered_at=state.now)
    return state, [events.Flush(state.copy.confirmed_end)]


def on_flushed(state: ReplicaState, event: events.Flushed) -> Decision:
    """Write the state, now that the log is on the disk as far as it says."""
    state = state.with_copy(durable=event.end).with_work(flush_seconds=event.seconds)
    if isinstance(state.work.change, Cutting):
        return state.with_work(flushing=False), []
    return write_state(state)


def write_state(state: ReplicaState, *, is_closed: bool = False) -> Decision:
    """Write the state as it is on the disk."""
    copy, link = state.copy, state.link
    saved = copy.saved
    epochs = tuple(epochs_within(copy.epochs, saved.begin, copy.durable))
    saved = replace(
        saved,
        end=copy.durable,
        built=min(copy.built, copy.durable),  # a cut may not have come to the queues
        is_closed=is_closed,
        source_end=link.bounds.high,
        source_at=link.answered_at or saved.source_at,
        behind_seconds=state.seconds_behind,
        updated_at=state.epoch_ms,
        epoch=epochs[-1].number if epochs else -1,
    )
    if not state.work.flushing:
        state = state.with_work(flushing=True, flush_seconds=0.0)
    state = state.with_work(ordered_at=state.now, state_at=state.now).with_copy(noted=saved)
    return state, [events.WriteState(saved, epochs)]


def note_again(state: ReplicaState, _change: Change) -> Decision:
    """Write the state again, with the epochs of what is left: a step of a change."""
    return write_state(state)


def on_state_written(state: ReplicaState, event: events.StateWritten) -> Decision:
    """Acknowledge and build what the state on the disk covers."""
    seconds = state.work.flush_seconds + event.seconds
    if event.saved.end > state.copy.saved_end:  # else the log was not flushed before
        state = state.with_work(synced_at=state.now)
    state = state.with_work(flushing=False, flush_seconds=seconds)
    state = state.with_copy(saved_end=event.saved.end)
    if state.is_held_up:
        return state, []
    state, actions = report_if_due(state)
    state, builds = build_if_due(state)
    return state, [*actions, *builds]


def report_if_due(state: ReplicaState) -> Decision:
    """Report: never more than the broker has and the state on the disk covers."""
    link = state.link
    if not state.is_streaming or not link.has_begun:
        return state, []
    end = NEVER
    if state.settings.acknowledge != "never":
        end = min(link.position, state.copy.saved_end)
    # Producers wait 3 seconds for what is acknowledged.
    has_more = link.is_drained and end > link.reported
    if not has_more and state.now - link.reported_at < link.timing.report:
        return state, []
    return state.with_link(reported=end, reported_at=state.now), [events.Report(end)]


# ---- queues, index and tables


def build_if_due(state: ReplicaState) -> Decision:
    """Begin to build what the state on the disk covers, if it is time; then tables may be taken."""
    copy, work, change = state.copy, state.work, state.work.change
    is_ending = isinstance(change, Ending) and not change.gave_up
    if not copy.is_open or work.changes_queues or not (change is None or is_ending):
        return state, []
    state, actions = take_tables_if_due(state)
    if not copy.saved.builds_queues or work.building or work.unknown:
        return state, actions
    idles = _IDLE_SECONDS if work.written >= copy.saved_end else 0.0
    is_due = is_ending or state.now >= work.next_build_at + idles
    if copy.built >= copy.saved_end or not is_due:
        return state, actions
    kinds = TopicKinds() if state.link.newest is None else state.link.newest.kinds
    kinds = kinds._replace(plain=kinds.plain | work.plain)
    is_far = not is_ending and _is_far(state)
    # What was not built to its end is continued to the same end: the broker is asked at most once
    # for topics of it that its table does not have.
    if work.written >= work.build_end:
        state = state.with_work(
            build_end=copy.saved_end, build_known_at=state.now, kinds_retry_at=LONG_AGO
        )
    end = state.work.build_end
    is_far |= copy.saved_end > end  # which is built next
    return state.with_work(building=True), [*actions, events.Build(end, is_far, kinds)]


def _is_far(state: ReplicaState) -> bool:
    """Return whether so much is missing that queues may come to the disk less often."""
    return state.link.bounds.high - state.copy.saved_end > FAR_BYTES


def on_built(state: ReplicaState, event: events.Built) -> Decision:
    """Take note of what was built; then it rests for a while."""
    # More may have come meanwhile, and waits for as long too.
    rests = event.built >= state.work.build_end and not _is_far(state)
    rest = min(event.seconds, _MOST_REST_SECONDS) if rests else 0.0
    state = state.with_copy(built=event.built).with_work(
        building=False, written=event.written, next_build_at=state.now + rest,
        unknown=event.unknown, kinds_retry_at=LONG_AGO,
    )  # fmt: skip
    return build_if_kinds_known(state)


def build_if_kinds_known(state: ReplicaState) -> Decision:
    """Find out of which kind the queues of topics are, then build them.

    The broker is asked if its table is older than a message of the topic may be. A guess would be
    kept: queues of the wrong kind have to be built again.
    """
    work, facts = state.work, state.link.newest
    if not work.unknown:
        return build_if_due(state)
    missing = work.unknown
    if facts is not None:
        missing = missing - facts.kinds.batch - facts.kinds.plain
    if missing and (facts is None or facts.asked_at < work.build_known_at):
        is_asked = state.link.is_asked(Question.FACTS, Question.TABLES)
        if is_asked or state.now < work.kinds_retry_at:
            return state, []
        return ask(state, Question.TABLES)
    plain = work.plain | missing
    return build_if_due(state.with_work(unknown=frozenset(), plain=plain, kinds_retry_at=LONG_AGO))


def take_tables_if_due(state: ReplicaState) -> Decision:
    """Take the tables that the copy may show: it has come as far as the log was after them.

    They may be of another broker that now answers at the address, so the logs have to have agreed
    after they were reported.
    """
    facts, end = state.link.untaken, state.copy.readable_end
    if facts is None or state.work.takes_tables or not facts.tables:
        return state, []
    if facts.bounds.high > end or facts.reported_at > state.link.agreed_at:
        return state, []
    state = state.with_link(untaken=None).with_work(takes_tables=True)
    return state, [events.TakeTables(facts)]


def on_tables_written(state: ReplicaState, _event: events.TablesWritten) -> Decision:
    """Take note of when the tables were taken."""
    saved = replace(state.copy.saved, tables_at=state.epoch_ms)
    return state.with_copy(noted=saved).with_work(takes_tables=False), []


def on_queues_changed(state: ReplicaState, event: events.QueuesChanged) -> Decision:
    """Take note of up to where queues and index are built."""
    state = state.with_copy(built=event.built).with_work(
        changes_queues=False, written=event.built, unknown=frozenset(),
        build_end=0, build_known_at=LONG_AGO, kinds_retry_at=LONG_AGO,
    )  # fmt: skip
    return state, []


# ---- a log that is left as it is


def state_to_leave(state: ReplicaState, end: int) -> tuple[ReplicaState, events.WriteState | None]:
    """Return the state file for a log that is left as it is, and is on the disk.

    Args:
        state: of the replica.
        end: physical offset after the last complete record in its files.
    """
    copy = state.copy
    if not copy.is_open:
        return state, None
    if isinstance(state.work.change, Cutting):
        end = min(end, copy.durable)  # what follows was to be cut
    elif copy.unconfirmed_from is not None:
        end = min(end, copy.unconfirmed_from)
    state, actions = write_state(state.with_copy(durable=end))
    return state, actions[0]
