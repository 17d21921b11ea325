"""What is due as time passes: a write, a flush, a report, a poll of the broker, or old files.

:func:`on_ticked` comes after each wait. Old files are deleted in steps (:data:`RETAIN`), while the
stream continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rmqstore.replica import events
from rmqstore.replica.appending import (
    Step,
    build_if_kinds_known,
    flush_if_due,
    note_again,
    report_if_due,
    write_state,
)
from rmqstore.replica.events import Action, Question
from rmqstore.replica.heartbeats import ask_for_end, is_end_asked
from rmqstore.replica.live_state import Decision, Ending, Phase, ReplicaState, Retaining
from rmqstore.replica.phases import STALLED, ask, begin, end_with, lose

_PROGRESS_SECONDS: Final = 1.0
_STATE_SECONDS: Final = 10.0


def on_ticked(state: ReplicaState, event: events.Ticked) -> Decision:
    """Perform what is due: of the phase first, then the periodic checks."""
    was_stalled = state.is_stalled
    rate = state.settings.max_rate
    if event.is_drained != state.link.is_drained:
        state = state.with_link(is_drained=event.is_drained)
    if rate is not None:  # a rest earns no more than one second's bytes
        earned = max(state.link.rate_due, state.now - 1.0)
        state = state.with_link(rate_due=earned + event.n_bytes / rate)
    if state.is_held_up or state.phase in (Phase.CLOSING, Phase.ENDED):
        return state, []
    if state.work.is_stopping:
        return end_with(state, state.work.stop_error)
    # A disk that hangs ends the connection, and delays the next one.
    is_busy = state.work.flushing or state.work.change is not None
    if state.phase is Phase.PAUSING and state.now >= state.link.next_at and not is_busy:
        state, actions = begin(state)
    elif state.is_streaming:
        state, actions = lose(state, STALLED) if was_stalled else _stream_on(state)
        if state.phase is Phase.CLOSING:
            return state, actions
    else:
        state, actions = flush_if_due(state)
    for task in _PERIODIC_TASKS:
        state, further = task(state)
        actions += further
    return state, actions


def _stream_on(state: ReplicaState) -> Decision:
    """Write, flush and report, if it is time; notice silence, and the end that was asked for."""
    link = state.link
    most = state.patience
    actions = list[Action]()
    if state.has_arrived:
        return end_with(state, None)
    if link.pending is None and state.now - link.received_at > most:
        return lose(state, f"nothing came for {most:.0f} s")
    if link.pending is not None and not is_end_asked(state):  # the answer came during a change
        state, actions = ask_for_end(state, link.position)
    elif state.copy.n_buffered and state.phase is Phase.APPENDING and state.is_write_due:
        actions = [events.Write()]  # then a flush may be due
    else:
        state, actions = flush_if_due(state)
    state, further = report_if_due(state)
    return state, [*actions, *further]


# ---- what is checked after each wait


def _ask_if_due(state: ReplicaState) -> Decision:
    """Update the bounds that the broker reports; the stream notices a lasting failure."""
    link, interval = state.link, state.settings.tables_seconds
    if not state.copy.is_open:
        return state, []
    rest = min(link.timing.bounds, interval or link.timing.bounds)
    is_asked = link.is_asked(Question.FACTS, Question.TABLES, Question.BOUNDS)
    if is_asked or state.now - link.asked_at < rest:
        return state, []
    if interval and state.now - link.tables_at >= interval:
        return ask(state, Question.TABLES)
    return ask(state, Question.BOUNDS, link.bounds.high)


def _write_state_if_due(state: ReplicaState) -> Decision:
    """Write the state now and then, whether or not the log has grown."""
    work = state.work
    is_due = state.now - work.state_at >= _STATE_SECONDS
    if not is_due or not state.copy.is_open or work.flushing or work.change is not None:
        return state, []
    return write_state(state)


def _report_progress(state: ReplicaState) -> Decision:
    """Call back about once a second."""
    if state.now - state.work.progress_at < _PROGRESS_SECONDS:
        return state, []
    return state.with_work(progress_at=state.now), [events.ReportProgress()]


def _retain_if_due(state: ReplicaState) -> Decision:
    """Look for old files now and then, but not while the logs are being compared.

    Nor while an answer is awaited that decides about the connection.
    """
    link = state.link
    work = state.work
    since = state.now - state.work.retained_at
    if state.settings.retention.is_forever or since < link.timing.retention:
        return state, []
    is_appending = state.phase is Phase.APPENDING and link.pending is None
    is_time = is_appending or state.phase is Phase.PAUSING
    if not link.is_confirmed or work.change is not None or not is_time:
        return state, []
    return find_old_files(state)


_PERIODIC_TASKS: Final[tuple[Callable[[ReplicaState], Decision], ...]] = (
    build_if_kinds_known, _ask_if_due, _retain_if_due, _write_state_if_due, _report_progress
)  # fmt: skip


# ---- old files


def find_old_files(state: ReplicaState) -> Decision:
    """Look for files that the retention does not keep."""
    copy = state.copy
    built = min(copy.readable_end, copy.durable)
    action = events.FindOldFiles(copy.saved.broker, built, state.link.agreed_low)
    return state.with_work(retained_at=state.now), [action]


def on_old_files_found(state: ReplicaState, event: events.OldFilesFound) -> Decision:
    """Delete the files that neither the retention keeps nor a stream needs."""
    ending = state.work.change
    file_size = state.copy.saved.file_size
    assert ending is None or isinstance(ending, Ending)
    if event.begin is None:
        return state, []
    begin = min(event.begin, event.needed - event.needed % file_size)
    if begin <= event.first:
        return state, []
    return state.with_work(change=Retaining(event.first, begin, ending)), []


def _note_retention(state: ReplicaState, retaining: Retaining) -> Decision:
    """Write where the log begins, before anything of it is missing.

    Queues that are not built any more and end before the log then begins are deleted as a whole.
    """
    copy = state.copy
    if not copy.saved.builds_queues and copy.built < retaining.begin:
        state = state.with_copy(built=min(copy.built, retaining.first))
    saved = replace(copy.saved, begin=max(copy.saved.begin, retaining.begin))
    return write_state(state.with_copy(noted=saved))


def _delete_queues(state: ReplicaState, retaining: Retaining) -> Decision:
    return state.with_work(changes_queues=True), [events.DeleteOldQueues(retaining.begin)]


def _delete_old_files(state: ReplicaState, retaining: Retaining) -> Decision:
    return state, [events.DeleteOldFiles(retaining.begin)]


def _end_retention(state: ReplicaState, retaining: Retaining) -> Decision:
    return state.with_work(change=retaining.then), []


# Queues that are not built are deleted before the log: none of them must end before it begins.
RETAIN: Final[tuple[Step, ...]] = (
    _note_retention, _delete_old_files, note_again, _delete_queues, _end_retention
)  # fmt: skip
RETAIN_UNBUILT: Final[tuple[Step, ...]] = (
    _note_retention, _delete_queues, _delete_old_files, note_again, _end_retention
)  # fmt: skip
