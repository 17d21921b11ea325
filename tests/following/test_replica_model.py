"""All orders of up to six events, in a model: what a replica decides is right in each of them.

What happens is the master, the disk, the two threads and the answers of the broker, all of which
may fail or be late; random orders of many events come after these. The copy is always a part of
some log that the master had, and nothing is acknowledged that is not on the disk. No byte is thrown
away without being kept, and the state is never ahead of the disk. Something is always awaited that
can come, so there is always progress, or an end by name. Each of the defects below is found.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tiers
from following.replica_model import (
    RECORD,
    ControlledWorld,
    Decide,
    ViolatedError,
    World,
    decide_as_it_is,
)
from rmqstore.replica import comparing, due, ending, events
from rmqstore.replica.events import Question
from rmqstore.replica.live_state import Phase, ReplicaState

# What may happen, each at most once, in all orders.
SCENARIOS: dict[str, tuple[type[World], tuple[str, ...]]] = {
    "switch": (ControlledWorld, ("switch", "flush", "append", "kill", "build", "wait")),
    "epochs": (
        ControlledWorld,
        ("switch", "begin_epoch", "fork", "lose_power", "flush", "restart"),
    ),
    "shorter": (World, ("append", "flush", "build", "lose", "kill", "wait")),
    "other": (World, ("append", "flush", "fork", "build", "lose_power", "restart")),
    "twice": (World, ("fork", "lose", "flush", "append", "kill", "lose_power")),
    "slow": (World, ("fall_silent", "restart", "append", "flush", "wait", "fork")),
    "old": (World, ("append", "delete", "commit", "flush", "wait", "fork")),
    "ends": (World, ("append", "stop", "flush", "build", "fail:flush", "fork")),
    # What the performer may meet.
    "full": (World, ("append", "fail:write", "fail:state", "flush", "fork", "stop")),
    "failing": (World, ("append", "fork", "fail:flush", "fail:cut", "fail:queues", "flush")),
    "interrupted": (World, ("append", "fork", "fail:interrupt", "fail:order", "flush", "build")),
    "late": (World, ("be_late", "fork", "flush", "build", "stop", "repeat")),
    "unanswered": (World, ("fail:answer", "be_late", "fork", "wait", "restart", "fail:another")),
    "refused": (World, ("fail:refused", "be_late", "fork", "repeat", "kill", "append")),
    "hanging": (World, ("append", "wait", "fork", "restart", "flush", "fail:state")),
    "old and late": (World, ("be_late", "commit", "delete", "fail:delete", "flush", "wait")),
    "unbuilt": (World, ("without_queues", "commit", "delete", "kill", "build", "wait")),
    "topics": (World, ("new_topic", "fail:answer", "be_late", "build", "flush", "stop")),
    "pieces": (World, ("fall_to_pieces", "append", "fork", "restart", "flush", "stop")),
    "closing": (World, ("close", "flood", "append", "wait", "flush", "stop")),
    "damaged": (World, ("fail:damage", "append", "stop", "flush", "fork", "kill")),
    "handshakes": (
        ControlledWorld,
        ("switch", "be_late", "repeat", "fail:answer", "stop", "flush"),
    ),
}
FAST = 3  # of six events
ALL_NAMES = sorted({name for kind, names in SCENARIOS.values() if kind is World for name in names})


def explore(world: World, names: tuple[str, ...], depth: int, before: tuple[str, ...] = ()) -> int:
    """Let all orders of some events happen, and the world settle after each; return how many."""
    try:
        world.copy().settle()
    except AssertionError as err:
        raise ViolatedError(f"{err}, after {', '.join(before) or 'nothing'}") from err
    count = 1
    for name in names if depth else ():
        then = world.copy()
        try:
            then.happen(name)
        except AssertionError as err:
            raise ViolatedError(f"{err}, after {', '.join((*before, name))}") from err
        rest = tuple(each for each in names if each != name)
        count += explore(then, rest, depth - 1, (*before, name))
    return count


def begin(kind: type[World], decide: Decide, *, is_complete: bool, **settings: Any) -> World:
    """Return a world whose copy has begun, or is complete and of several files."""
    world = kind(decide, n_records=12 if is_complete else 4, **settings)
    world.run()
    if is_complete:
        world.settle()
    return world


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("depth", [FAST, pytest.param(6, marks=pytest.mark.slow)])
def test_every_order_of_events_leaves_a_valid_copy(
    depth: int, scenario: str, is_complete: bool
) -> None:
    kind, names = SCENARIOS[scenario]
    count = explore(begin(kind, decide_as_it_is, is_complete=is_complete), names, depth)
    assert count == {3: 157, 6: 1957}[depth]


@pytest.mark.parametrize("kind", [World, ControlledWorld])
@pytest.mark.parametrize("n_orders", tiers.sampled(150, 4000))
def test_random_orders_of_all_events_leave_a_valid_copy(n_orders: int, kind: type[World]) -> None:
    names = (
        sorted({*ALL_NAMES, "switch", "begin_epoch"} - {"fork"})
        if kind is ControlledWorld
        else ALL_NAMES
    )
    for seed in tiers.seeds(n_orders):
        dice = random.Random(seed)
        settings: dict[str, Any] = {
            "on_gap": dice.choice(["fail", "restart"]), "once": dice.random() < 0.3,
            "until": dice.choice([None, None, 60]), "reconnect": dice.random() < 0.85,
            "build_queues": dice.random() < 0.8, "tables_seconds": dice.choice([0, 5.0]),
        }  # fmt: skip
        world = kind(decide_as_it_is, n_records=dice.choice([0, 1, 4, 12]), **settings)
        before: list[str] = []
        try:
            world.run()
            for _ in range(dice.randrange(25)):
                is_work = dice.random() < 0.4
                before.append(dice.choice(["flush", "build"] if is_work else names))
                world.happen(before[-1])
            world.settle()
        except AssertionError as err:
            raise ViolatedError(f"{err}, after {', '.join(before)}, seed {seed}") from err


@pytest.mark.parametrize("on_gap", ["fail", "restart"])
@pytest.mark.parametrize("event", ["restart", "kill"])
def test_a_gap_begins_a_new_copy_or_ends_by_name(event: str, on_gap: str) -> None:
    world = begin(World, decide_as_it_is, is_complete=True, on_gap=on_gap)
    for _ in range(4):
        world.append(4)
        world.delete()
    world.happen(event)
    world.settle()
    assert world.is_over == (on_gap == "fail")


def on_action(kind: type, change: Callable[..., Any]) -> Callable[[Decide], Decide]:
    """Return what replaces some actions by others; ``change`` gets the state and the action."""

    def mutant(decide: Decide) -> Decide:
        def decide_wrongly(state: Any, event: Any) -> Any:
            state, actions = decide(state, event)
            changed = [change(state, each) if isinstance(each, kind) else each for each in actions]
            return state, [each for each in changed if each is not None]

        return decide_wrongly

    return mutant


def on_event(kind: type, change: Callable[..., Any]) -> Callable[[Decide], Decide]:
    def mutant(decide: Decide) -> Decide:
        def decide_wrongly(state: Any, found: Any) -> Any:
            if isinstance(found.event, kind):
                found = found._replace(event=change(state, found.event))
            return (state, []) if found.event is None else decide(state, found)

        return decide_wrongly

    return mutant


def tables_at_once(decide: Decide) -> Decide:
    def decide_wrongly(state: Any, found: Any) -> Any:
        state, actions = decide(state, found)
        facts, work = state.link.untaken, state.work
        may_take = state.copy.is_open and work.change is None and not work.takes_tables
        if isinstance(found.event, events.Answered) and facts and may_take:
            state = state.with_link(untaken=None).with_work(takes_tables=True)
            actions = [*actions, events.TakeTables(facts)]
        return state, actions

    return decide_wrongly


def swapped(steps: tuple[Any, ...], first: Any, second: Any) -> tuple[Any, ...]:
    exchanged = {first: second, second: first}
    return tuple(exchanged.get(step, step) for step in steps)


def state_of_all(state: Any, action: Any) -> Any:
    if state.work.change is not None:
        return action
    return action._replace(saved=replace(action.saved, end=state.copy.end))


def late_answers_taken(decide: Decide) -> Decide:
    def decide_wrongly(state: Any, found: Any) -> Any:
        if found.asked is not None and found.asked not in state.link.asking:
            found = found._replace(asked=found.asked._replace(connection=state.link.number))
            asking = state.link.asking | {found.asked}
            state = state.with_link(asking=asking)
        return decide(state, found)

    return decide_wrongly


# Each with the scenario that finds it; any other one may find it too.
DEFECTS: dict[str, tuple[str, Callable[[Decide], Decide]]] = {
    "acknowledge before flush": ("shorter", on_action(
        events.Report, lambda state, it: it._replace(offset=max(it.offset, state.copy.end))
    )),
    "cut without keeping": ("other", on_action(
        events.Cut, lambda _, it: it._replace(kept_in=None)
    )),
    "epoch ignored": ("epochs", on_event(events.EpochsReported, lambda *_: None)),
    "epochs of the handshake ignored": ("switch", on_event(
        events.Connected,
        lambda _, it: it._replace(handshake=it.handshake and it.handshake._replace(
            epochs=it.handshake.epochs[:1]
        )),
    )),
    "state before log": ("shorter", on_action(events.WriteState, state_of_all)),
    "tables before log": ("shorter", tables_at_once),
    "retention past a checkpoint": ("old", on_event(
        events.OldFilesFound, lambda _, it: it._replace(needed=1 << 40)
    )),
    "append without comparing": ("other", on_event(
        events.StartFound,
        lambda state, it: it._replace(compared_from=state.copy.end, agreed_from=None),
    )),
    "cut inside a record": ("other", on_event(
        events.Differed, lambda _, it: it._replace(boundary=it.differs_at)
    )),
    "queues before state": ("shorter", on_action(
        events.Build, lambda state, it: it._replace(end=state.copy.end)
    )),
    "connects only once": ("twice", on_action(
        events.Ask,
        lambda state, it: (
            None if it.asked.question is Question.FACTS and state.copy.is_open else it
        ),
    )),
    "late answers taken": ("late", late_answers_taken),
    "errors of questions ignored": ("unanswered", on_event(events.Unanswered, lambda *_: None)),
    "errors of threads ignored": ("failing", on_event(events.Failed, lambda *_: None)),
    "damage ignored": ("damaged", on_event(
        events.Written, lambda _, it: it._replace(error=None)
    )),
    "heartbeat taken for the end": ("slow", on_event(
        events.BoundsReported,
        lambda _, it: it._replace(bounds=it.bounds._replace(high=it.position)),
    )),
}  # fmt: skip
# The same by an exchange of steps, which no wrapper can make.
EXCHANGED = {
    "log cut before state": ("other", comparing, "CUT", comparing._note_cut, comparing._cut_log),
    "files deleted before state": (
        "old", due, "RETAIN", due._note_retention, due._delete_old_files
    ),
    "closed before the state says so": (
        "ends", ending, "COMPLETE", ending._close_state, ending._mark_closed
    ),
}  # fmt: skip


def is_found(scenario: str, decide: Decide) -> bool:
    kind, names = SCENARIOS[scenario]
    for is_complete in (False, True):
        try:
            explore(begin(kind, decide, is_complete=is_complete), names, FAST)
        except ViolatedError:
            return True
    return False


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_model_finds_a_defect(defect: str) -> None:
    scenario, mutant = DEFECTS[defect]
    assert is_found(scenario, mutant(decide_as_it_is))


@pytest.mark.parametrize("defect", EXCHANGED)
def test_the_model_finds_steps_in_another_order(
    defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, module, name, first, second = EXCHANGED[defect]
    monkeypatch.setattr(module, name, swapped(getattr(module, name), first, second))
    assert is_found(scenario, decide_as_it_is)


def state_taken_for_a_flush(decide: Decide) -> Decide:
    def decide_wrongly(state: Any, found: Any) -> Any:
        state, actions = decide(state, found)
        if isinstance(found.event, events.StateWritten):
            state = state.with_work(synced_at=state.now)
        return state, actions

    return decide_wrongly


def goal_looked_at_by_time(decide: Decide) -> Decide:
    def decide_wrongly(state: Any, found: Any) -> Any:
        goal = state.copy.goal
        if isinstance(found.event, (events.Written, events.Lost)):
            state = state.with_copy(goal=None)
        state, actions = decide(state, found)
        return state.with_copy(goal=goal), actions

    return decide_wrongly


class HalfWritten(World):
    """What is written because the buffer is full leaves a record, of which nobody knows."""

    def _on_Buffer(self, action: Any) -> Any:  # noqa: N802
        stop = max(action.start, action.stop - RECORD)
        event = super()._on_Buffer(action._replace(stop=stop))
        self.held += action.stop - stop
        return event


def happen_all(world: World, names: list[str]) -> None:
    for name in names:
        world.happen(name)
    world.settle()


TIMES = ["flood", *["append", "wait", "flush", "flush"] * 8]


def test_the_model_finds_a_log_that_is_not_flushed_by_time() -> None:
    happen_all(World(decide_as_it_is, sync_seconds=17.0), TIMES)
    with pytest.raises(ViolatedError, match="a flush is too late"):
        happen_all(World(state_taken_for_a_flush(decide_as_it_is), sync_seconds=17.0), TIMES)


def test_the_model_finds_a_record_that_nobody_writes() -> None:
    happen_all(World(decide_as_it_is, n_records=12), [])
    with pytest.raises(ViolatedError, match="no progress"):
        happen_all(HalfWritten(decide_as_it_is, n_records=12), [])


def test_the_model_finds_an_error_of_a_copy_that_is_complete() -> None:
    settings: dict[str, Any] = {"n_records": 3, "until": 30, "reconnect": False}
    happen_all(World(decide_as_it_is, **settings), ["close"])
    with pytest.raises(ViolatedError, match="a copy that is complete"):
        happen_all(World(goal_looked_at_by_time(decide_as_it_is), **settings), ["close"])


def test_the_model_finds_a_stream_that_waits_for_old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, names = SCENARIOS["old"]
    is_changed = property(lambda state: state.work.change is not None)
    monkeypatch.setattr(ReplicaState, "is_held_up", is_changed)
    with pytest.raises(ViolatedError, match="nobody reads"):
        explore(begin(kind, decide_as_it_is, is_complete=True), names, FAST)


def test_a_copy_is_followed_on() -> None:
    assert begin(World, decide_as_it_is, is_complete=True).state.phase is Phase.APPENDING
