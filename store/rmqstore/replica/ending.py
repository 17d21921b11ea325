"""Ending: the copy is completed in the steps of :data:`COMPLETE`, or left as it is.

The same steps complete a copy that is set aside, in whose place a new one begins.
"""

from __future__ import annotations

from typing import Final

from rmqstore.errors import RmqStoreError
from rmqstore.replica import events
from rmqstore.replica.appending import (
    Step,
    build_if_kinds_known,
    flush,
    take_tables_if_due,
    write_state,
)
from rmqstore.replica.connecting import open_copy
from rmqstore.replica.due import find_old_files
from rmqstore.replica.live_state import Copy, Cutting, Decision, Ending, Phase, ReplicaState
from rmqstore.replica.phases import end_with
from rmqstore.replica.state import epochs_within


def on_failed(state: ReplicaState, event: events.Failed) -> Decision:
    """Complete the copy after an error of ours; after any other one, keep what is valid."""
    error = event.error
    is_ours = isinstance(error, (RmqStoreError, KeyboardInterrupt))
    is_consistent = event.is_consistent and not isinstance(state.work.change, Cutting)
    if not is_ours or not is_consistent or state.phase is Phase.CLOSING:
        # The change stays: what the state file has to say depends on it.
        end = events.End(error, is_complete=False)
        return state.in_phase(Phase.ENDED), [events.Disconnect(), end]
    if state.copy.is_open:
        state = state.with_copy(end=event.end, last_time=event.last_time, n_buffered=0)
    # The threads have ended what they did, which may not have been noted.
    state = state.with_work(
        flushing=False, building=False, takes_tables=False, changes_queues=False, change=None
    )
    state = state.with_link(asking=frozenset())  # some may not have been asked
    return end_with(state, error)


def _flush_at_end(state: ReplicaState, ending: Ending) -> Decision:
    if not state.copy.is_open:
        return _leave(state, ending._replace(sets_aside=None))
    if state.copy.n_buffered:  # it is being written
        return state.with_work(change=ending), []
    return flush(state)


def _build_at_end(state: ReplicaState, ending: Ending) -> Decision:
    """Build what is missing, and take the tables; a broker may be asked, but not for long."""
    copy = state.copy
    if ending.gave_up:
        return state, []
    since = None
    if state.work.unknown:
        since = ending.unknown_since
        if since is None:
            since = state.now
        if state.now - since > state.link.timing.last_answer:
            return state.with_work(unknown=frozenset(), change=ending._replace(gave_up=True)), []
    # This step is asked for again.
    waits = state.with_work(change=ending._replace(unknown_since=since))
    if copy.saved.builds_queues and copy.built < copy.saved_end:
        return build_if_kinds_known(waits)
    taken, actions = take_tables_if_due(waits)
    if actions:
        return taken, actions
    return state, []


def _retain_at_end(state: ReplicaState, ending: Ending) -> Decision:
    """Delete old files; or leave a store that is not closed, if something is missing."""
    if ending.gave_up or state.copy.unconfirmed_from is not None:
        what = "built into their queues" if ending.gave_up else "compared"
        text = f"{state.root} is not closed: the last messages were not {what}"
        state, actions = write_state(state)
        last = ending._replace(step=len(COMPLETE) - 1)
        return state.with_work(change=last), [events.Log(text), *actions]
    is_forever = state.settings.retention.is_forever
    if is_forever or not state.link.is_confirmed or ending.sets_aside is not None:
        return state, []
    return find_old_files(state)


def _complete(state: ReplicaState, _ending: Ending) -> Decision:
    """Complete the files that a broker needs to start on the copy."""
    copy = state.copy
    confirm_offset = None
    if epochs_within(copy.epochs, copy.saved.begin, copy.durable):
        confirm_offset = max(min(copy.saved.confirm_offset, copy.end), 0)
    return state.with_work(changes_queues=True), [events.Complete(confirm_offset)]


def _close_state(state: ReplicaState, _ending: Ending) -> Decision:
    return write_state(state, is_closed=True)


def _mark_closed(state: ReplicaState, _ending: Ending) -> Decision:
    return state, [events.MarkClosed(state.copy.end, state.copy.last_time)]


def _leave(state: ReplicaState, ending: Ending) -> Decision:
    if ending.sets_aside is not None:
        return state, [events.MoveAside(state.copy.durable)]
    return state.in_phase(Phase.ENDED).with_work(change=None), [events.End(ending.error)]


def on_set_aside(state: ReplicaState, event: events.SetAside) -> Decision:
    """Begin a new copy, where the other one was."""
    copy = state.copy
    ending = state.work.change
    assert isinstance(ending, Ending)
    assert ending.sets_aside is not None
    bounds = ending.sets_aside
    text = (
        f"{state.root} ends at {copy.end}, and the broker has nothing to serve before "
        f"{bounds.low}: it is now {event.path}, and a new copy begins"
    )
    new = Copy(None, copy.goal, replaces_another=True)
    state = state.with_work(change=None)._replace(copy=new, phase=Phase.CONNECTING)
    try:
        state, actions = open_copy(state, bounds, is_new=False)
    except RmqStoreError as err:  # there is no copy now
        state, actions = end_with(state, err)
    return state, [events.Log(text), *actions]


COMPLETE: Final[tuple[Step, ...]] = (
    _flush_at_end, _build_at_end, _retain_at_end, _complete, _close_state, _mark_closed, _leave
)  # fmt: skip
