"""Replicas without a socket or a file: states in which something can be decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqstore.remoting import Address
from rmqstore.replica import dispatch, events
from rmqstore.replica.broker import Facts, Source
from rmqstore.replica.broker_requests import LogBounds, ServedSettings
from rmqstore.replica.events import Asked, Event, Happened, Question, Ticked
from rmqstore.replica.live_state import Decision, ReplicaState, first_replica_state
from rmqstore.replica.settings import FollowSettings
from rmqstore.storage.broker.store_config import StoreConfig

SOURCE = Source(
    "C", "b", 1 << 14, Address("127.0.0.1", 2), StoreConfig(), "", 0,
    heartbeat=5.0, housekeeping=20.0, mode="default",
)  # fmt: skip


def decide(
    state: ReplicaState, now: float, event: Event, question: Question | None = None
) -> Decision:
    """Decide about an event at a time, which answers a question of the present connection."""
    asked = None if question is None else Asked(question, state.link.number)
    return dispatch.decide(state, Happened(now, int(now * 1000), event, asked))


TICK = Ticked(is_drained=True)


def after(state: ReplicaState, now: float, *happened: Event) -> Decision:
    """Decide about events at a time, one after the other; return what the last one leads to."""
    actions: list[Any] = []
    for event in happened:
        state, actions = decide(state, now, event)
    return state, actions


def asking(state: ReplicaState, question: Question) -> ReplicaState:
    """Return a state in which the broker is asked something for the present connection."""
    asked = Asked(question, state.link.number)
    return state.with_link(asking=state.link.asking | {asked})


def streaming(*, now: float = 0.0, **settings: Any) -> ReplicaState:
    """Return a new replica that has asked for an empty log, and will append what comes."""
    state = first_replica_state(
        FollowSettings(**settings), Path("/copy"), "127.0.0.1:1", None, now=now, epoch_ms=0
    )
    facts = Facts(ServedSettings({}, ()), {}, LogBounds(0, 0), now, now)
    state, _ = decide(state, now, events.Started())
    state, actions = decide(state, now, events.Answered(facts, SOURCE), Question.FACTS)
    (opening,) = actions
    state, _ = decide(state, now, events.Opened(opening.saved, 0, 0, ()))
    state, _ = decide(state, now, events.StartFound(0, None))
    connected = events.Connected(None, is_public=False)
    state, _ = decide(state, now, connected, Question.CONNECTION)
    return state
