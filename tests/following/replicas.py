"""Replicas without a socket or a file: states in which something can be decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqstore.replica import events
from rmqstore.replica.broker import Facts, Source
from rmqstore.replica.decisions import decide
from rmqstore.replica.events import Question
from rmqstore.replica.remoting import Address, LogBounds, ServedSettings
from rmqstore.replica.replica_state import Place, ReplicaState, first_replica_state
from rmqstore.replica.settings import FollowSettings
from rmqstore.storage.broker.store_config import StoreConfig

SOURCE = Source(
    "C", "b", 1 << 14, Address("127.0.0.1", 2), StoreConfig(), "", 0,
    heartbeat=5.0, housekeeping=20.0, mode="default",
)  # fmt: skip


def streaming(*, now: float = 0.0, **settings: Any) -> ReplicaState:
    """Return a new replica that has asked for an empty log, and will append what comes."""
    place = Place(Path("/copy"), "127.0.0.1:1", reports_all=True)
    state = first_replica_state(FollowSettings(**settings), place, None, now=now, epoch_ms=0)
    facts = Facts(ServedSettings({}, ()), {}, LogBounds(0, 0), now, now)
    state, _ = decide(state, events.Started(now))
    state, actions = decide(state, events.Answered(now, Question.FACTS, facts, SOURCE, 0))
    (opening,) = actions
    state, _ = decide(state, events.Opened(now, opening.saved, 0, 0, ()))
    state, _ = decide(state, events.PlaceFound(now, 0, None))
    state, _ = decide(state, events.Connected(now, None, is_public=False))
    return state
