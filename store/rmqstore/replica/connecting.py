"""Connecting: the broker is asked, the copy is opened, and it is found where to compare from.

    begin → on_answered → open_copy (once) → on_opened → connect → plan → on_start_found
          → open_connection → on_connected → request

In controller mode the connection comes before the plan, which needs the epochs of the handshake.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError, RmqStoreError
from rmqstore.replica import events
from rmqstore.replica.agreement import (
    FirstRecord,
    begin_at,
    compared_from,
    consistent_point,
    has_gap,
    request_at,
    served_bounds,
)
from rmqstore.replica.appending import build_if_kinds_known
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Action, Asked, Question
from rmqstore.replica.ha import Handshake
from rmqstore.replica.heartbeats import on_unknown_end
from rmqstore.replica.live_state import LONG_AGO, Cutting, Decision, Phase, ReplicaState
from rmqstore.replica.phases import agree, ask, end_with, lose, pause, stop_with
from rmqstore.replica.state import epochs_within, first_state, require_same_source

_RETRY_SECONDS: Final = 1.0


def on_answered(state: ReplicaState, event: events.Answered, question: Question) -> Decision:
    """Take what the broker reported; before a connection, open the copy or connect."""
    facts, source = event.facts, event.source
    state = state.with_link(
        bounds=facts.bounds,
        bounds_at=facts.reported_at,
        answered_at=state.epoch_ms,
        newest=facts,
        untaken=state.link.untaken or facts,  # one that waits for the copy would wait for ever else
        asked_at=state.now,
        tables_at=state.now,
    )
    if question is not Question.FACTS:
        return build_if_kinds_known(state)
    assert source is not None
    timing = state.settings.timing.adapted(source.heartbeat, source.housekeeping)
    state = state.with_link(known_source=source, timing=timing, untaken=facts, agreed_low=None)
    state = state.in_phase(Phase.CONNECTING)
    if state.copy.noted is not None:
        require_same_source(state.root, state.copy.saved, source)
    if state.copy.is_open:
        return _connect(state)
    return open_copy(state, facts.bounds, is_new=True)


def open_copy(state: ReplicaState, bounds: LogBounds, *, is_new: bool) -> Decision:
    """Open the copy, or make it where there is none.

    Raises:
        RmqStoreError: the broker does not have where a new one is to begin.
    """
    source, saved, settings = state.link.source, state.copy.noted, state.settings
    if saved is None:
        first = begin_at(settings.start, bounds, source.file_size, is_new=is_new)
        saved = first_state(source, state.address, first)
    return state, [events.Open(saved, source, state.address, settings.build_queues)]


def on_opened(state: ReplicaState, event: events.Opened) -> Decision:
    """Take note of what the copy has, and connect."""
    saved, replaces_another = event.saved, state.copy.replaces_another
    state = state.with_copy(
        noted=saved, is_open=True, end=event.end, durable=saved.end, saved_end=saved.end,
        unconfirmed_from=saved.end if saved.end < event.end else None, n_buffered=0,
        built=saved.built, last_time=event.last_time, epochs=event.epochs, replaces_another=False,
    )  # fmt: skip
    state = state.with_work(
        flush_seconds=0.0, synced_at=state.now, written=saved.built, next_build_at=LONG_AGO,
        build_end=0, build_known_at=LONG_AGO, kinds_retry_at=LONG_AGO,
        unknown=frozenset(), plain=frozenset(),
    )  # fmt: skip
    if replaces_another:
        return pause(state, None)
    return _connect(state)


def _connect(state: ReplicaState) -> Decision:
    """Make a connection; in default mode, it is found out before from where on to compare."""
    if state.copy.goal is None and state.settings.once:
        state = state.with_copy(goal=state.link.bounds.high)
    state = state.with_link(is_confirmed=False, is_idle=False)
    if state.link.source.mode == "default":
        state, actions = plan(state, None)
    else:
        state, actions = _open_connection(state)
    return state, [events.ForgetBegun(), *actions]


def _open_connection(state: ReplicaState) -> Decision:
    """Connect to the HA port."""
    link, saved = state.link, state.copy.saved
    saved = replace(saved, n_connections=saved.n_connections + 1)
    learner_id = saved.learner_id if link.source.mode == "controller" else None
    asked = Asked(Question.CONNECTION, link.number)
    state = state.with_link(asking=link.asking | {asked}).with_copy(noted=saved)
    return state, [events.Connect(asked, link.source, link.timing.first_header, learner_id)]


def plan(state: ReplicaState, handshake: Handshake | None) -> Decision:
    """Decide from where on the logs are compared; or end, with an open copy."""
    try:
        return _planned(state, handshake)
    except RmqStoreError as err:
        return end_with(state, err)


def _planned(state: ReplicaState, handshake: Handshake | None) -> Decision:
    """Decide from where on the logs are compared, unless a copy has to begin before.

    Raises:
        StoreStateError: the broker has nothing that the copy could continue with.
    """
    copy = state.copy
    saved = copy.saved
    settings = state.settings
    source = state.link.source
    bounds = state.link.bounds
    if handshake is not None:
        bounds = served_bounds(bounds, handshake.epochs, handshake.end, source.file_size)
    state = state.with_link(served=bounds, handshake=handshake)
    if copy.confirmed_end == saved.begin and not bounds.contains(saved.begin):
        first = begin_at(settings.start, bounds, source.file_size, is_new=False)
        reason = "the broker does not have it"
        cut = Cutting(saved.begin, saved.begin, reason, state.epoch_ms, begins_at=first)
        text = f"{state.root}: the copy has no record yet, and begins at {first} now"
        return state.with_work(change=cut), [events.Log(text)]
    confirmed = LogBounds(saved.begin, copy.confirmed_end)
    if has_gap(state.root, confirmed, bounds, begins_again=settings.on_gap == "restart"):
        return end_with(state, None, sets_aside=bounds)
    is_related = True
    common = confirmed
    if handshake is not None and (own := epochs_within(copy.epochs, saved.begin, copy.end)):
        point = consistent_point(own, copy.end, handshake.epochs, handshake.end)
        is_related = point is not None
        if point is not None:
            common = LogBounds(saved.begin, min(point, confirmed.high))
    n_bytes = max(state.link.overlap, settings.overlap + source.least_overlap)
    near = compared_from(common, bounds, n_bytes)
    state = state.with_link(is_related=is_related, n_compared=n_bytes)
    return state, [events.FindStart(near, saved.begin, bounds.high)]


def on_start_found(state: ReplicaState, event: events.StartFound) -> Decision:
    """Note from where on is compared; a copy without a record compares its first one."""
    copy, (low, high) = state.copy, state.link.served
    state = state.with_link(
        compared_from=event.compared_from, agreed_from=event.agreed_from,
        first_record=FirstRecord(copy.end, b""),
    )  # fmt: skip
    is_empty = copy.saved.begin == copy.end and copy.unconfirmed_from is None
    if is_empty and low <= copy.end < high:
        return ask(state, Question.RECORD, copy.end)
    return _continue(state)


def _continue(state: ReplicaState) -> Decision:
    """Connect, or ask for the log on the connection of controller mode."""
    if state.link.handshake is None:
        return _open_connection(state)
    return _request(state)


def on_record_reported(
    state: ReplicaState, event: events.RecordReported, _question: Question
) -> Decision:
    """Take the record that the first one of the stream has to be."""
    first = state.link.first_record._replace(record=event.record)
    state = state.with_link(first_record=first)
    return _continue(state)


def on_connected(state: ReplicaState, event: events.Connected, _question: Question) -> Decision:
    """Ask for the log; in controller mode, it is found out before from where on to compare."""
    actions: list[Action] = []
    if event.is_public and not state.link.is_public:
        state = state.with_link(is_public=True)
        text = (
            f"{state.link.source.ha_address} is an address of the public internet, and an HA port "
            "has neither login nor encryption: use a tunnel"
        )
        actions = [events.Log(text)]
    handshake = event.handshake
    state, further = _request(state) if handshake is None else plan(state, handshake)
    return state, [*actions, *further]


def _request(state: ReplicaState) -> Decision:
    """Ask for the log, from where the comparison begins."""
    assert state.phase is Phase.CONNECTING
    link, now = state.link, state.now
    position = link.compared_from
    epochs = () if link.handshake is None else tuple(link.handshake.epochs)
    if link.handshake is None:
        position = request_at(position, link.served, link.source.file_size)
    state = state.with_link(
        position=position, received_at=now, data_at=now, rate_due=now, epochs=epochs
    )
    if link.compared_from < state.copy.end:
        return state.in_phase(Phase.COMPARING), [events.Request(position, link.handshake)]
    state = agree(state.in_phase(Phase.APPENDING))  # the copy is empty
    has_zero = position > link.compared_from
    return state, [events.Request(position, link.handshake, has_zero)]


def on_unanswered(state: ReplicaState, event: events.Unanswered, question: Question) -> Decision:
    """Decide what follows if a question is not answered: an end, a pause, or nothing."""
    error, work = event.error, state.work
    is_passing = isinstance(error, BrokerUnreachableError)
    if not is_passing and not isinstance(error, BrokerRefusedError):
        return stop_with(state, error)
    if question is Question.END:
        return on_unknown_end(state, error, is_passing=is_passing)
    if question not in (Question.TABLES, Question.BOUNDS):  # no connection can be made
        if not is_passing or not state.settings.reconnect:
            return end_with(state, error)
        state, actions = pause(state, str(error))
        return state, [events.Disconnect(), *actions]
    if question is not Question.TABLES or not work.unknown:
        return state, []
    state = state.with_work(kinds_retry_at=state.now + _RETRY_SECONDS)
    if work.kinds_retry_at > LONG_AGO:
        return state, []
    topics = ", ".join(sorted(work.unknown))
    return state, [events.Log(f"queues wait for the kind of topic {topics}: {error}")]


def on_lost(state: ReplicaState, event: events.Lost, _question: Any = None) -> Decision:  # noqa: ANN401
    """End a connection that failed, or could not be made."""
    if state.phase is not Phase.CONNECTING and not state.is_streaming:
        return state, []
    return lose(state, event.reason)
