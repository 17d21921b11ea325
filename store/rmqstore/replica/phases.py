"""How a replica goes from one phase to another: it asks, loses its connection, pauses or ends.

Every phase may lead to these, so they are below the modules of the phases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmqstore.errors import BrokerUnreachableError
from rmqstore.replica import events
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Action, Asked, Question
from rmqstore.replica.live_state import Decision, Ending, Phase, ReplicaState, Retaining

STALLED: Final = "the copy takes too long for what came"
_MOST_REASONS: Final = 100


def ask(state: ReplicaState, question: Question, position: int = 0) -> Decision:
    """Ask the broker a question; the answer is an event."""
    asked = Asked(question, state.link.number)
    state = state.with_link(asking=state.link.asking | {asked})
    if question is not Question.END:  # which may be asked again and again
        state = state.with_link(asked_at=state.now)
    return state, [events.Ask(asked, position, state.link.newest)]


def begin(state: ReplicaState) -> Decision:
    """Ask the broker for everything, with which each connection begins."""
    state = state.with_link(began=state.now, number=state.link.number + 1)
    return ask(state.in_phase(Phase.ASKING), Question.FACTS)


def agree(state: ReplicaState) -> ReplicaState:
    """Take note that the log of the broker is now known to be the copy's, if it is."""
    link, now = state.link, state.now
    if not link.first_record.has_come:
        return state
    low = link.bounds.low if link.bounds_at <= now else link.agreed_low
    state = state.with_link(agreed_at=now, agreed_low=low, is_confirmed=True)
    if link.is_confirmed:
        return state
    saved = state.copy.saved.confirmed(link.source, state.address)
    return learn_epochs(state.with_copy(noted=saved))


def learn_epochs(state: ReplicaState) -> ReplicaState:
    """Take the epochs of the broker, whose log was found to be the copy's.

    The copy may have older ones, which the broker forgets together with its files.
    """
    link, copy = state.link, state.copy
    if link.handshake is None:
        return state
    first = link.epochs[0]
    older = [
        epoch
        for epoch in copy.epochs
        if epoch.number < first.number and epoch.start_offset <= first.start_offset
    ]
    saved = replace(copy.saved, confirm_offset=link.confirm_offset)
    return state.with_copy(epochs=(*older, *link.epochs), noted=saved)


def lose(state: ReplicaState, reason: str) -> Decision:
    """End the connection, and make another one after a pause, unless what came is all."""
    if state.copy.n_buffered and state.phase is Phase.APPENDING:
        return state.with_link(waiting=events.Lost(reason)), [events.Write()]
    if state.has_arrived:
        return end_with(state, None)
    if state.is_streaming:
        state = state.with_link(overlap=state.settings.overlap)
    if state.link.has_begun:
        state = state.with_link(reasons=frozenset())
    state, actions = pause(state, f"{state.link.source.ha_address}, the HA port: {reason}")
    return state, [events.Disconnect(), *actions]


def pause(state: ReplicaState, reason: str | None) -> Decision:
    """Wait before the next connection. Each reason is logged once until there has been one."""
    if reason is not None and (state.work.is_stopping or not state.settings.reconnect):
        return end_with(state, BrokerUnreachableError(state.address, reason))
    link = state.link
    seconds = state.settings.timing.pause
    actions = list[Action]()
    # The pause is counted from the request on: a long connection needs none at its end.
    next_at = state.now + max(seconds - (state.now - link.began), seconds / 5)
    reasons = link.reasons
    if reason is not None:
        if reason not in reasons:
            actions = [events.Log(f"{reason}; connecting again and again")]
        reasons = (reasons if len(reasons) < _MOST_REASONS else frozenset()) | {reason}
    link = link.disconnected()._replace(next_at=next_at, reasons=reasons)
    return state._replace(link=link, phase=Phase.PAUSING), actions


def end_with(
    state: ReplicaState, error: BaseException | None, *, sets_aside: LogBounds | None = None
) -> Decision:
    """Complete the copy, and end with an error or without, or begin a new copy.

    A connection that ends after the stop is no error.
    """
    if state.work.is_stopping and isinstance(error, BrokerUnreachableError):
        error = state.work.stop_error
    actions: list[Action] = []
    if state.copy.n_buffered and state.phase is Phase.APPENDING:
        actions = [events.Write()]  # which the first step waits for
    else:
        state = state.with_copy(n_buffered=0)
    actions.append(events.Disconnect())
    if state.copy.is_open:
        actions.append(events.ForgetBegun())
    change = state.work.change
    ending = Ending(error, sets_aside)
    state = state._replace(link=state.link.disconnected(), phase=Phase.CLOSING)
    if isinstance(change, Retaining):  # which is done before
        return state.with_work(change=change._replace(then=ending)), actions
    return state.with_work(change=ending), actions


def stop_with(state: ReplicaState, error: BaseException | None) -> Decision:
    """End when no change is under way; the first reason counts."""
    if state.work.is_stopping:
        return state, []
    return state.with_work(is_stopping=True, stop_error=error), []
