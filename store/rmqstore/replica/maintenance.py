"""What a replica decides about its own disk: flushes, states, queues, tables, old files, the end.

What takes several steps is a list of functions, each of which is called when all before are done:
an end that is cut (:data:`CUT`), a copy without a record that begins somewhere else
(:data:`BEGIN_AGAIN`), old files that are deleted (:data:`RETAIN`), and the end (:data:`COMPLETE`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqstore.errors import BrokerUnreachableError, RmqStoreError
from rmqstore.replica import events
from rmqstore.replica.broker import TopicKinds
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Action, Asked, Event, Question
from rmqstore.replica.ha import NEVER
from rmqstore.replica.replica_state import (
    LONG_AGO,
    STREAMING,
    Change,
    Cutting,
    Decision,
    Ending,
    Order,
    Phase,
    ReplicaState,
    Retaining,
    has_arrived,
    is_behind,
    seconds_behind,
)
from rmqstore.replica.state import cut_folder, epochs_within

_MOST_REASONS: Final = 100
FAR_BYTES: Final = 64 << 20  # to copy, while which queues are flushed less often
_PROGRESS_SECONDS: Final = 1.0
_STATE_SECONDS: Final = 10.0
# A flush of many queues takes some time; building rests for as long.
_MOST_REST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 0.2  # after which queues that are written are flushed


# ---- questions


def ask(state: ReplicaState, question: Question, position: int = 0) -> Decision:
    """Ask the broker a question; the answer is an event."""
    asked = Asked(question, state.attempts.number)
    broker = state.broker._replace(asking=state.broker.asking | {asked})
    if question is not Question.END:  # which may be asked again and again
        broker = broker._replace(asked_at=state.now)
    known = broker.newest
    return state._replace(broker=broker), [events.Ask(asked, position, known)]


# ---- the log and the state


def flush_if_due(state: ReplicaState) -> Decision:
    """Begin to bring the log to the disk, if it is time and the last flush has ended."""
    copy, work, settings = state.copy, state.work, state.settings
    is_done = copy.sure_end == copy.durable
    if work.flushing or is_done or not copy.is_open or state.phase is Phase.COMPARING:
        return state, []
    if state.phase is Phase.APPENDING and state.stream is not None:
        since = state.now - work.synced_at
        is_due = since >= settings.sync_seconds or (
            state.stream.position - copy.durable >= settings.sync_bytes
        )
        is_near = not is_behind(state) and state.timers.is_drained
        is_due |= has_arrived(state) or (is_near and since >= work.sync_rest)
        if not is_due:
            return state, []
    return _flush(state)


def _flush(state: ReplicaState) -> Decision:
    work = state.work._replace(flushing=True, flush_seconds=0.0, ordered_at=state.now)
    return state._replace(work=work), [events.Flush(state.copy.sure_end)]


def _on_flushed(state: ReplicaState, event: events.Flushed) -> Decision:
    """Write the state, now that the log is on the disk as far as it says."""
    copy = state.copy._replace(durable=event.end)
    state = state._replace(copy=copy, work=state.work._replace(flush_seconds=event.seconds))
    if isinstance(state.change, Cutting):
        return state._replace(work=state.work._replace(flushing=False)), []
    return _write_state(state)


def _write_state(state: ReplicaState, *, is_closed: bool = False) -> Decision:
    """Write the state as it is on the disk."""
    copy, broker = state.copy, state.broker
    saved = copy.saved
    epochs = tuple(epochs_within(copy.epochs, saved.begin, copy.durable))
    saved = replace(
        saved,
        end=copy.durable,
        built=min(copy.built, copy.durable),  # a cut may not have come to the queues
        is_closed=is_closed,
        source_end=broker.bounds.high,
        source_at=broker.answered_at or saved.source_at,
        behind_seconds=seconds_behind(state),
        updated_at=state.epoch_ms,
        epoch=epochs[-1].number if epochs else -1,
    )
    work = state.work
    if not work.flushing:
        work = work._replace(flushing=True, flush_seconds=0.0)
    work = work._replace(ordered_at=state.now)
    timers = state.timers._replace(state_at=state.now)
    state = state._replace(copy=copy._replace(noted=saved), work=work, timers=timers)
    return state, [events.WriteState(saved, epochs)]


# ---- queues, index and tables


def build_if_due(state: ReplicaState) -> Decision:
    """Begin to build what the state on the disk covers, if it is time; then tables may be taken."""
    copy, work = state.copy, state.work
    change = state.change
    is_ending = isinstance(change, Ending) and not change.gave_up
    if not copy.is_open or work.changes_queues or not (change is None or is_ending):
        return state, []
    state, actions = _take_tables_if_due(state)
    if not copy.saved.builds_queues or work.building or work.unknown:
        return state, actions
    idles = _IDLE_SECONDS if work.written >= copy.saved_end else 0.0
    is_due = is_ending or state.now >= work.next_build_at + idles
    if copy.built >= copy.saved_end or not is_due:
        return state, actions
    facts = state.broker.newest
    kinds = TopicKinds() if facts is None else facts.kinds
    if work.plain:
        kinds = kinds._replace(plain=kinds.plain | work.plain)
    is_far = not is_ending and _is_far(state)
    # What was not built to its end is continued to the same end: the broker is asked at most once
    # for topics of it that its table does not have.
    order = work.order if work.written < work.order.end else Order(copy.saved_end, state.now)
    is_far |= copy.saved_end > order.end  # which is built next
    state = state._replace(work=state.work._replace(building=True, order=order))
    return state, [*actions, events.Build(order.end, is_far, kinds)]


def _is_far(state: ReplicaState) -> bool:
    """Return whether so much is missing that queues may come to the disk less often."""
    return state.broker.bounds.high - state.copy.saved_end > FAR_BYTES


def _on_built(state: ReplicaState, event: events.Built) -> Decision:
    """Take note of what was built; then it rests for a while."""
    copy = state.copy._replace(built=event.built)
    # More may have come meanwhile, and waits for as long too.
    rests = copy.built >= state.work.order.end and not _is_far(state)
    rest = min(event.seconds, _MOST_REST_SECONDS) if rests else 0.0
    work = state.work._replace(
        building=False, written=event.written, next_build_at=state.now + rest,
        unknown=event.unknown, order=state.work.order._replace(retry_at=LONG_AGO),
    )  # fmt: skip
    return settle_kinds(state._replace(copy=copy, work=work))


def settle_kinds(state: ReplicaState) -> Decision:
    """Find out of which kind the queues of topics are, then build them.

    The broker is asked if its table is older than a message of the topic may be. A guess would be
    kept: queues of the wrong kind have to be built again.
    """
    work, facts = state.work, state.broker.newest
    if not work.unknown:
        return build_if_due(state)
    missing = (
        work.unknown if facts is None else work.unknown - facts.kinds.batch - facts.kinds.plain
    )
    if missing and (facts is None or facts.asked_at < work.order.at):
        is_asked = state.broker.is_asked(Question.FACTS, Question.TABLES)
        if is_asked or state.now < work.order.retry_at:
            return state, []
        return ask(state, Question.TABLES)
    work = work._replace(
        unknown=frozenset(),
        plain=work.plain | missing,
        order=work.order._replace(retry_at=LONG_AGO),
    )
    return build_if_due(state._replace(work=work))


def _take_tables_if_due(state: ReplicaState) -> Decision:
    """Take the tables that the copy may show: it has come as far as the log was after them.

    They may be of another broker that now answers at the address, so the logs have to have agreed
    after they were reported.
    """
    facts, copy, work = state.broker.untaken, state.copy, state.work
    end = copy.built if copy.saved.builds_queues else copy.saved_end
    if facts is None or work.takes_tables or not facts.tables:
        return state, []
    if facts.bounds.high > end or facts.told_at > state.broker.agreed_at:
        return state, []
    broker, work = state.broker._replace(untaken=None), work._replace(takes_tables=True)
    return state._replace(broker=broker, work=work), [events.TakeTables(facts)]


def _on_tables_written(state: ReplicaState, _event: events.TablesWritten) -> Decision:
    """Take note of when the tables were taken."""
    copy = state.copy
    saved = replace(copy.saved, tables_at=state.epoch_ms)
    work = state.work._replace(takes_tables=False)
    return state._replace(copy=copy._replace(noted=saved), work=work), []


# ---- what is done now and then


def ask_if_due(state: ReplicaState) -> Decision:
    """Keep up to date what the broker reports; the stream notices a failure that lasts."""
    broker, interval = state.broker, state.settings.tables_seconds
    if not state.copy.is_open:
        return state, []
    pause = broker.timing.bounds
    pause = min(pause, interval) if interval else pause
    is_asked = broker.is_asked(Question.FACTS, Question.TABLES, Question.BOUNDS)
    if is_asked or state.now - broker.asked_at < pause:
        return state, []
    if interval and state.now - broker.tables_at >= interval:
        return ask(state, Question.TABLES)
    return ask(state, Question.BOUNDS, broker.bounds.high)


def write_state_if_due(state: ReplicaState) -> Decision:
    """Write the state now and then, whether or not the log has grown."""
    is_due = state.now - state.timers.state_at >= _STATE_SECONDS
    if not is_due or not state.copy.is_open or state.work.flushing or state.change is not None:
        return state, []
    return _write_state(state)


def report_progress(state: ReplicaState) -> Decision:
    """Call back about once a second."""
    if state.now - state.timers.progress_at < _PROGRESS_SECONDS:
        return state, []
    timers = state.timers._replace(progress_at=state.now)
    return state._replace(timers=timers), [events.ReportProgress()]


def report_if_due(state: ReplicaState) -> Decision:
    """Report: never more than the broker has and the state on the disk covers."""
    stream, settings = state.stream, state.settings
    if stream is None or state.phase not in STREAMING or not stream.has_begun:
        return state, []
    end = NEVER if settings.acknowledge == "never" else min(stream.position, state.copy.saved_end)
    # Producers wait 3 seconds for what is acknowledged.
    has_more = state.timers.is_drained and end > stream.reported
    if not has_more and state.now - stream.reported_at < state.broker.timing.report:
        return state, []
    stream = stream._replace(reported=end, reported_at=state.now)
    return state._replace(stream=stream), [events.Report(end)]


def pause(state: ReplicaState, reason: str | None) -> Decision:
    """Wait before the next connection. Each reason is logged once until there has been one."""
    if reason is not None and (state.attempts.is_stopping or not state.settings.reconnect):
        return end_with(state, BrokerUnreachableError(state.place.address, reason))
    attempts, seconds = state.attempts, state.settings.timing.pause
    # The pause is counted from the request on: a long connection needs none at its end.
    next_at = state.now + max(seconds - (state.now - attempts.began), seconds / 5)
    attempts = attempts._replace(next_at=next_at)
    actions: list[Action] = []
    if reason is not None:
        if reason not in attempts.reasons:
            actions = [events.Log(f"{reason}; connecting again and again")]
        reasons = attempts.reasons if len(attempts.reasons) < _MOST_REASONS else frozenset[str]()
        attempts = attempts._replace(reasons=reasons | {reason})
    return state._replace(attempts=attempts, phase=Phase.PAUSING, stream=None), actions


def retain_if_due(state: ReplicaState) -> Decision:
    """Look for old files now and then, but not while the logs are being compared.

    Nor while an answer is awaited that decides about the connection.
    """
    settings, since = state.settings, state.now - state.timers.retained_at
    if settings.retention.is_forever or since < state.broker.timing.retention:
        return state, []
    if not state.attempts.is_confirmed or state.change is not None:
        return state, []
    is_streaming = state.stream is not None and state.stream.pending is None
    if state.phase is Phase.PAUSING or (state.phase is Phase.APPENDING and is_streaming):
        return _find_old_files(state)
    return state, []


def _find_old_files(state: ReplicaState) -> Decision:
    copy = state.copy
    needed = copy.built if copy.saved.builds_queues else copy.saved_end
    state = state._replace(timers=state.timers._replace(retained_at=state.now))
    built, low = min(needed, copy.durable), state.broker.agreed_low
    return state, [events.FindOldFiles(copy.saved.broker, built, low)]


def _on_old_files_found(state: ReplicaState, event: events.OldFilesFound) -> Decision:
    """Delete whole files that neither the retention keeps nor a stream needs."""
    saved, ending = state.copy.saved, state.change
    assert ending is None or isinstance(ending, Ending)
    if event.begin is None:
        return state, []
    begin = min(event.begin, event.needed - event.needed % saved.file_size)
    if begin <= event.first:
        return state, []
    return state._replace(change=Retaining(event.first, begin, ending)), []


# ---- an end that is cut


def state_to_leave(state: ReplicaState, end: int) -> tuple[ReplicaState, events.WriteState | None]:
    """Return what the state file has to say of a log that is left as it is, and is on the disk.

    Args:
        state: of the replica.
        end: physical offset after the last whole record in its files.
    """
    copy = state.copy
    if not copy.is_open:
        return state, None
    if isinstance(state.change, Cutting):
        end = min(end, copy.durable)  # what follows was to be cut
    elif copy.doubted_from is not None:
        end = min(end, copy.doubted_from)
    state, actions = _write_state(state._replace(copy=copy._replace(durable=end)))
    return state, actions[0]


def _flush_first(state: ReplicaState, _change: Change) -> Decision:
    """Bring to the disk all that is written, before it is cut."""
    return _flush(state)


def _plan_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Find out from where on queues and index will have to be built again."""
    work = state.work._replace(changes_queues=True)
    return state._replace(work=work), [events.PlanCut(cut.end)]


def _note_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Write the lower end before the log is cut, so that the state is never ahead of it."""
    copy = state.copy
    kept_in = cut_folder(state.place.root, cut.epoch_ms)
    saved = copy.saved.with_cut(cut.end, copy.end - cut.end, cut.epoch_ms, kept_in)
    copy = copy._replace(noted=saved, durable=min(copy.durable, cut.end))
    return _write_state(state._replace(copy=copy))


def _cut_log(state: ReplicaState, cut: Cutting) -> Decision:
    """Keep the end of the log aside, and cut it."""
    folder = cut_folder(state.place.root, cut.epoch_ms)
    return state, [events.Cut(cut.end, cut.place, cut.reason, folder, cut.begins_at)]


def _on_log_cut(state: ReplicaState, event: events.LogCut) -> Decision:
    """Take note of where the log ends, or begins."""
    copy = state.copy
    saved = copy.saved
    if isinstance(state.change, Cutting) and state.change.begins_at is not None:
        saved = replace(saved, begin=event.end)
        copy = copy._replace(epochs=(), built=event.end)
    epochs = tuple(epochs_within(copy.epochs, saved.begin, event.end))
    copy = copy._replace(
        noted=saved, end=event.end, durable=event.end, doubted_from=None, n_held=0,
        last_time=event.last_time, epochs=epochs,
    )  # fmt: skip
    return state._replace(copy=copy), []


def _note_again(state: ReplicaState, _change: Change) -> Decision:
    """Write the state again, with the epochs of what is left."""
    return _write_state(state)


def _cut_queues(state: ReplicaState, cut: Cutting) -> Decision:
    """Cut queues and index after the log."""
    is_new = cut.begins_at is not None
    end = cut.end if cut.begins_at is None else cut.begins_at
    work = state.work._replace(changes_queues=True)
    return state._replace(work=work), [events.CutQueues(end, is_new)]


def _on_queues_changed(state: ReplicaState, event: events.QueuesChanged) -> Decision:
    """Take note of up to where queues and index are built."""
    copy = state.copy._replace(built=event.built)
    work = state.work._replace(
        changes_queues=False, written=event.built, unknown=frozenset(), order=Order()
    )
    return state._replace(copy=copy, work=work), []


# ---- old files


def _note_retention(state: ReplicaState, retaining: Retaining) -> Decision:
    """Write where the log begins, before anything of it is missing.

    Queues that are not built any more and end before the log then begins are deleted as a whole.
    """
    copy = state.copy
    if not copy.saved.builds_queues and copy.built < retaining.begin:
        copy = copy._replace(built=min(copy.built, retaining.first))
    saved = replace(copy.saved, begin=max(copy.saved.begin, retaining.begin))
    return _write_state(state._replace(copy=copy._replace(noted=saved)))


def _delete_queues(state: ReplicaState, retaining: Retaining) -> Decision:
    work = state.work._replace(changes_queues=True)
    return state._replace(work=work), [events.DeleteOldQueues(retaining.begin)]


def _delete_old_files(state: ReplicaState, retaining: Retaining) -> Decision:
    return state, [events.DeleteOldFiles(retaining.begin)]


def _end_retention(state: ReplicaState, retaining: Retaining) -> Decision:
    return state._replace(change=retaining.then), []


# ---- the end


def end_with(
    state: ReplicaState, error: BaseException | None, *, sets_aside: LogBounds | None = None
) -> Decision:
    """Complete the copy, and end with an error or without, or begin a new copy.

    A connection that ends after the stop is no error.
    """
    if state.attempts.is_stopping and isinstance(error, BrokerUnreachableError):
        error = state.attempts.error
    actions: list[Action] = []
    if state.copy.n_held and state.phase is Phase.APPENDING:
        actions = [events.Write()]  # which the first step waits for
    else:
        state = state._replace(copy=state.copy._replace(n_held=0))
    actions.append(events.Disconnect())
    if state.copy.is_open:
        actions.append(events.ForgetBegun())
    change, ending = state.change, Ending(error, sets_aside)
    state = state._replace(phase=Phase.CLOSING, stream=None)
    if isinstance(change, Retaining):  # which is done before
        return state._replace(change=change._replace(then=ending)), actions
    return state._replace(change=ending), actions


def _flush_at_end(state: ReplicaState, ending: Ending) -> Decision:
    if not state.copy.is_open:
        state = state._replace(phase=Phase.ENDED, change=None)
        return state, [events.End(ending.error)]
    if state.copy.n_held:  # it is being written
        return state._replace(change=ending), []
    return _flush(state)


def _build_at_end(state: ReplicaState, ending: Ending) -> Decision:
    """Build what is missing, and take the tables; a broker may be asked, but not for long."""
    copy = state.copy
    if ending.gave_up:
        return state, []
    since = None
    if state.work.unknown:
        since = state.now if ending.unknown_since is None else ending.unknown_since
        if state.now - since > state.broker.timing.last_answer:
            work = state.work._replace(unknown=frozenset())
            return state._replace(work=work, change=ending._replace(gave_up=True)), []
    # This step is asked for again.
    waits = state._replace(change=ending._replace(unknown_since=since))
    if copy.saved.builds_queues and copy.built < copy.saved_end:
        return settle_kinds(waits)
    taken, actions = _take_tables_if_due(waits)
    return (taken, actions) if actions else (state, [])


def _retain_at_end(state: ReplicaState, ending: Ending) -> Decision:
    """Delete old files; or leave a store that is not closed, if something is missing."""
    copy, settings = state.copy, state.settings
    if ending.gave_up or copy.doubted_from is not None:
        what = "built into their queues" if ending.gave_up else "compared"
        text = f"{state.place.root} is not closed: the last messages were not {what}"
        state, actions = _write_state(state)
        last = ending._replace(step=len(COMPLETE) - 1)
        return state._replace(change=last), [events.Log(text), *actions]
    is_forever = settings.retention.is_forever
    if is_forever or not state.attempts.is_confirmed or ending.sets_aside is not None:
        return state, []
    return _find_old_files(state)


def _complete(state: ReplicaState, _ending: Ending) -> Decision:
    copy, confirm_offset = state.copy, None
    if epochs_within(copy.epochs, copy.saved.begin, copy.durable):
        confirm_offset = max(min(copy.saved.confirm_offset, copy.end), 0)
    work = state.work._replace(changes_queues=True)
    return state._replace(work=work), [events.Complete(confirm_offset)]


def _close_state(state: ReplicaState, _ending: Ending) -> Decision:
    return _write_state(state, is_closed=True)


def _mark_closed(state: ReplicaState, _ending: Ending) -> Decision:
    return state, [events.MarkClosed(state.copy.end, state.copy.last_time)]


def _leave(state: ReplicaState, ending: Ending) -> Decision:
    if ending.sets_aside is not None:
        return state, [events.MoveAside(state.copy.durable)]
    return state._replace(phase=Phase.ENDED, change=None), [events.End(ending.error)]


def _go_ahead(state: ReplicaState, _event: Event) -> Decision:
    """Continue with the next step of a change."""
    return state, []


def _on_stop_asked(state: ReplicaState, _event: events.StopAsked) -> Decision:
    """End when no change is under way."""
    return stop_with(state, None)


def stop_with(state: ReplicaState, error: BaseException | None) -> Decision:
    """End when no change is under way; the first reason counts."""
    attempts = state.attempts
    if not attempts.is_stopping:
        attempts = attempts._replace(is_stopping=True, error=error)
    return state._replace(attempts=attempts), []


def _on_failed(state: ReplicaState, event: events.Failed) -> Decision:
    """Complete the copy after an error of ours; after any other one, keep what is whole."""
    error = event.error
    is_ours = isinstance(error, (RmqStoreError, KeyboardInterrupt))
    is_whole = event.is_whole and not isinstance(state.change, Cutting)
    if not is_ours or not is_whole or state.phase is Phase.CLOSING:
        # The change stays: what the state file has to say depends on it.
        state = state._replace(phase=Phase.ENDED)
        return state, [events.Disconnect(), events.End(error, is_whole=False)]
    copy = state.copy
    if copy.is_open:
        copy = copy._replace(end=event.end, last_time=event.last_time, n_held=0)
    # The threads have ended what they did, which may not have been noted.
    work = state.work._replace(
        flushing=False, building=False, takes_tables=False, changes_queues=False
    )
    broker = state.broker._replace(asking=frozenset())  # some may not have been asked
    return end_with(state._replace(copy=copy, work=work, broker=broker, change=None), error)


Step = Callable[[ReplicaState, Any], Decision]


# Queues that are not built are deleted before the log: none of them must end before it begins.
RETAIN: Final[tuple[Step, ...]] = (
    _note_retention, _delete_old_files, _note_again, _delete_queues, _end_retention
)  # fmt: skip
RETAIN_UNBUILT: Final[tuple[Step, ...]] = (
    _note_retention, _delete_queues, _delete_old_files, _note_again, _end_retention
)  # fmt: skip
COMPLETE: Final[tuple[Step, ...]] = (
    _flush_at_end, _build_at_end, _retain_at_end, _complete, _close_state, _mark_closed, _leave
)  # fmt: skip
CUT: Final[tuple[Step, ...]] = (
    _flush_first, _plan_cut, _note_cut, _cut_log, _note_again, _cut_queues
)  # fmt: skip
BEGIN_AGAIN: Final[tuple[Step, ...]] = (
    _plan_cut, _cut_log, _note_again, _cut_queues
)  # fmt: skip
# What is looked at after each wait.
PERIODIC_TASKS: Final[tuple[Callable[[ReplicaState], Decision], ...]] = (
    settle_kinds,
    ask_if_due,
    retain_if_due,
    write_state_if_due,
    report_progress,
)
HANDLERS: Final[dict[type, Callable[[ReplicaState, Any], Decision]]] = {
    events.Flushed: _on_flushed,
    events.Built: _on_built,
    events.TablesWritten: _on_tables_written,
    events.LogCut: _on_log_cut,
    events.QueuesChanged: _on_queues_changed,
    events.OldFilesFound: _on_old_files_found,
    events.StepDone: _go_ahead,
    events.StopAsked: _on_stop_asked,
    events.Failed: _on_failed,
}
