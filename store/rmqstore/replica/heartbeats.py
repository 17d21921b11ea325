"""Heartbeats: they come at the end of the broker's log, and wherever the broker is slow.

So a heartbeat alone says nothing. The broker is asked whether its log ends where it continues
(:func:`ask_for_end`), and :func:`on_bounds` decides what follows.
"""

from __future__ import annotations

from typing import Final

from rmqstore.errors import CorruptRecordError
from rmqstore.replica import events
from rmqstore.replica.events import Asked, Question
from rmqstore.replica.live_state import Decision, Phase, ReplicaState
from rmqstore.replica.phases import agree, ask, end_with, lose

_END_SECONDS: Final = 1.0  # between two questions whether the log of the broker ends


def on_heartbeat(state: ReplicaState, event: events.HeartbeatCame) -> Decision:
    """Take a heartbeat, once everything that came before it is written."""
    if state.link.pending is not None:
        return state, []
    state = state.with_link(received_at=state.now, has_begun=True)
    if state.copy.n_buffered:
        return state.with_link(waiting=event), [events.Write()]
    return take_heartbeat(state, event.position)


def take_heartbeat(state: ReplicaState, position: int) -> Decision:
    """Decide whether the broker is asked for its end, or has nothing more for this connection."""
    # A broker sends heartbeats for ever where it has deleted what would come next. Then no more of
    # the log can come on this connection.
    low, high = state.link.bounds
    if position < low:
        return lose(state, f"the broker continues at {position}, and its log now begins at {low}")
    seconds = state.now - state.link.data_at
    if position < high and seconds > state.patience:
        text = (
            f"the broker has its log up to {high}, and sent nothing after {position} for "
            f"{seconds:.0f} s"
        )
        # Whether the log has it decides what follows.
        return ask_for_end(state.with_link(pending=text), position)
    if state.phase is Phase.APPENDING:
        state = agree(state)
        if not state.settings.once or position != state.copy.end:
            return state, []
    is_soon = state.now - state.link.end_asked_at < _END_SECONDS
    if is_soon or is_end_asked(state):
        return state, []
    return ask_for_end(state, position)


def is_end_asked(state: ReplicaState) -> bool:
    """Return whether the broker is being asked whether its log ends where it continues."""
    return Asked(Question.END, state.link.number) in state.link.asking


def ask_for_end(state: ReplicaState, position: int) -> Decision:
    """Ask whether the log of the broker ends at a position."""
    return ask(state.with_link(end_asked_at=state.now), Question.END, position)


def on_bounds(state: ReplicaState, event: events.BoundsReported, question: Question) -> Decision:
    """Note the bounds of the broker's log, and decide about its end."""
    bounds, position = event
    state = state.with_link(bounds=bounds, bounds_at=state.now, answered_at=state.epoch_ms)
    if question is not Question.END or not state.is_streaming or state.is_held_up:
        return state, []
    link, begin = state.link, state.copy.saved.begin
    if isinstance(link.pending, CorruptRecordError):
        # The log of a new slave may begin anywhere; for 0 it sends its first file, once it has one.
        # Source: CommitLog.java#getData, MappedFileQueue.java#findMappedFileByOffset.
        if bounds.low <= begin:
            return end_with(state, link.pending)
        return lose(state, f"the log of the broker does not begin at {begin}")
    if link.pending is not None:
        return lose(state, link.pending)
    if link.position != position:  # more has come since
        return state, []
    if not bounds.contains(position):  # the next connection begins with these
        text = (
            f"the broker continues at {position}, and its log is now from {bounds.low} "
            f"to {bounds.high}"
        )
        return lose(state, text)
    state = state.with_link(served=link.served._replace(low=max(link.served.low, bounds.low)))
    if position < bounds.high:
        return state, []
    if state.phase is Phase.COMPARING:
        reason = "the broker's log ends here"
        return state, [events.FindBoundary(position, link.compared_from, reason)]
    return state.with_link(is_idle=True), []


def on_unknown_end(state: ReplicaState, error: BaseException, *, is_passing: bool) -> Decision:
    """Decide what follows if the broker does not say whether its log ends."""
    if not state.is_streaming or state.is_held_up:
        return state, []
    pending = state.link.pending
    if isinstance(pending, CorruptRecordError):
        return end_with(state, pending)
    if not is_passing:
        return end_with(state, error)
    if pending is not None or state.phase is Phase.COMPARING:
        return lose(state, pending or str(error))
    return state, []
