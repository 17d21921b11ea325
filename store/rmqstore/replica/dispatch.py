"""The decisions of a replica: its state and an event give its next state and its actions.

:func:`decide` opens no file and no socket, and reads no clock. The loop in ``follower`` performs
the actions that it returns, whose results are events again. The tables below say which function
decides about each event; its module is named after the phase. A change of several steps (a cut, old
files, the end) is a list of functions, each of which is called when all before are done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rmqstore.errors import RmqStoreError
from rmqstore.replica import (
    appending,
    comparing,
    connecting,
    due,
    ending,
    events,
    heartbeats,
    phases,
)
from rmqstore.replica.appending import Step
from rmqstore.replica.events import Action, Asked, Happened, Question
from rmqstore.replica.live_state import (
    Change,
    Copy,
    Cutting,
    Decision,
    Phase,
    ReplicaState,
    Retaining,
)


def decide(state: ReplicaState, happened: Happened) -> Decision:
    """Return the next state, and what is done, in this order.

    Raises:
        RmqStoreError: during a change of several steps. The loop makes an event of it.
    """
    at, epoch_ms, event, asked = happened
    state = state._replace(now=at, epoch_ms=epoch_ms)
    actions: list[Action] = []
    try:
        if asked is not None:
            state, actions = _on_answer(state, event, asked)
        elif state.is_streaming or not isinstance(event, _OF_STREAM):
            state, actions = HANDLERS[type(event)](state, event)
    except RmqStoreError as err:
        if state.work.change is not None:  # of which a step may be under way
            raise
        state, actions = phases.end_with(state, err)
    further: list[Action] = []
    while (
        (change := state.work.change) is not None
        and state.phase is not Phase.ENDED
        and not state.work.is_busy
        and not further
    ):
        step = _steps_of(change, state.copy)[change.step]
        state, further = step(state.with_work(change=change._replace(step=change.step + 1)), change)
        if state.work.change == change:  # it waits for something
            break
    return state, [*actions, *further]


def _on_answer(state: ReplicaState, event: Any, asked: Asked) -> Decision:  # noqa: ANN401 - an answer
    """Take an answer, once, and nothing that was asked for the sake of an earlier connection."""
    asking, question = state.link.asking, asked.question
    if asked not in asking:
        return state, []
    state = state.with_link(asking=asking - {asked})
    is_late = asked.connection != state.link.number or state.phase is Phase.CLOSING
    if is_late and question not in (Question.TABLES, Question.BOUNDS):
        return state, []
    return ANSWERS[type(event)](state, event, question)


def _steps_of(change: Change, copy: Copy) -> tuple[Step, ...]:
    if isinstance(change, Cutting):
        return comparing.CUT if change.begins_at is None else comparing.BEGIN_AGAIN
    if isinstance(change, Retaining):
        return due.RETAIN if copy.saved.builds_queues else due.RETAIN_UNBUILT
    return ending.COMPLETE


# What comes by a connection; of one that has ended, it says nothing any more.
_OF_STREAM: Final = (
    events.Received, events.Agreed, events.Differed, events.EpochsReported, events.HeartbeatCame,
)  # fmt: skip
HANDLERS: Final[dict[type, Callable[[ReplicaState, Any], Decision]]] = {
    events.Started: lambda state, _: phases.begin(state),
    events.Ticked: due.on_ticked,
    events.StopAsked: lambda state, _: phases.stop_with(state, None),  # when no change is under way
    events.Opened: connecting.on_opened,
    events.StartFound: connecting.on_start_found,
    events.Lost: connecting.on_lost,
    events.Received: comparing.on_received,
    events.Agreed: comparing.on_agreed,
    events.Differed: comparing.on_differed,
    events.EpochsReported: comparing.on_epochs_reported,
    events.HeartbeatCame: heartbeats.on_heartbeat,
    events.Written: appending.on_written,
    events.Flushed: appending.on_flushed,
    events.StateWritten: appending.on_state_written,
    events.Built: appending.on_built,
    events.TablesWritten: appending.on_tables_written,
    events.QueuesChanged: appending.on_queues_changed,
    events.LogCut: comparing.on_log_cut,
    events.OldFilesFound: due.on_old_files_found,
    events.StepDone: lambda state, _: (state, []),  # the next step follows
    events.SetAside: ending.on_set_aside,
    events.Failed: ending.on_failed,
}
ANSWERS: Final[dict[type, Callable[[ReplicaState, Any, Question], Decision]]] = {
    events.Answered: connecting.on_answered,
    events.BoundsReported: heartbeats.on_bounds,
    events.RecordReported: connecting.on_record_reported,
    events.Unanswered: connecting.on_unanswered,
    events.Connected: connecting.on_connected,
    events.Lost: connecting.on_lost,
}
