"""Comparing: what the broker sends is compared with the copy before anything is appended.

What happens when a master comes back with a shorter log, for example after a power cut:

1. The connection is lost (:func:`rmqstore.replica.phases.lose`). After a pause, ``connecting`` asks
   the broker for everything, and plans to compare the last 8 MiB that both logs have.
2. Bytes come (:func:`on_received`) and are compared; as long as they are the same, nothing else
   happens (:func:`on_agreed`).
3. If the master has written on, other bytes come. If not, its heartbeat comes before the end of the
   copy: ``heartbeats`` asks whether its log ends there, and lets the loop find the record of the
   copy that lies there. Both lead to :func:`on_differed`.
4. If a complete record was the same before, the copy is cut in the steps of :data:`CUT`. All is
   flushed; the state is written with the lower end, so that it is never ahead of the log
   (:func:`_note_cut`); then the end of the log is kept aside and cut (:func:`_cut_log`), and queues
   and index follow. If nothing was the same, more is compared on another connection; where nothing
   is left to compare, the broker has another log, and the follower ends with an error.
5. :func:`_end_cut` appends the bytes that came, on the same connection.

A follower that is killed meanwhile comes back to the same offset by the same comparison.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmqstore.errors import StoreStateError
from rmqstore.replica import events
from rmqstore.replica.appending import Step, buffer, flush, note_again, write_state
from rmqstore.replica.connecting import plan
from rmqstore.replica.live_state import Change, Cutting, Decision, Phase, ReplicaState
from rmqstore.replica.phases import STALLED, learn_epochs, lose, pause
from rmqstore.replica.state import cut_folder, epochs_within

_GROWTH: Final = 8  # of what is compared, where nothing of it was the same


def on_received(state: ReplicaState, event: events.Received) -> Decision:
    """Compare received bytes, or append them once nothing is left to compare."""
    start, stop = event
    if stop == start:  # a part of a header
        return state.with_link(received_at=state.now), []
    state = state.with_link(
        position=stop, received_at=state.now, data_at=state.now, has_begun=True, is_idle=False
    )
    link = state.link
    if state.phase is Phase.COMPARING:
        until = min(stop, state.copy.end)
        return state, [events.Compare(start, until, link.compared_from)]
    if link.first_record.has_come:
        return buffer(state, start, stop)
    expected = link.first_record.expected(start, stop)
    return state, [events.Compare(start, start + len(expected), link.compared_from, expected)]


def on_agreed(state: ReplicaState, event: events.Agreed) -> Decision:
    """Continue with the next bytes, or append from the end of the copy on."""
    link, copy = state.link, state.copy
    if event.seconds > link.timing.stall:
        return lose(state, STALLED)
    if state.phase is Phase.COMPARING:
        if event.stop < copy.end:
            return state, []
        state = state.with_copy(unconfirmed_from=None).in_phase(Phase.APPENDING)
        return buffer(state, copy.end, link.position)
    first = link.first_record
    first = first._replace(n_come=event.stop - first.begin)
    return buffer(state.with_link(first_record=first), event.start, link.position)


def on_epochs_reported(state: ReplicaState, event: events.EpochsReported) -> Decision:
    """Take the epochs of the stream, once the log is known to be the copy's."""
    state = state.with_link(epochs=event.epochs, confirm_offset=event.confirm_offset)
    return learn_epochs(state) if state.link.is_confirmed else state, []


def on_differed(state: ReplicaState, event: events.Differed) -> Decision:
    """Decide what follows from a difference: a cut, a longer comparison, or an error.

    Raises:
        StoreStateError: nothing is known to be the same.
    """
    link, copy, differs_at = state.link, state.copy, event.differs_at
    if state.phase is Phase.APPENDING:
        raise StoreStateError(
            f"the record at {copy.end} is another one at the HA port than at the "
            "listen port, so the two are of different brokers. Nothing was copied"
        )
    if link.agreed_from is not None and differs_at >= link.agreed_from:
        cut = Cutting(event.boundary, differs_at, event.reason, state.epoch_ms)
        return state.with_work(change=cut), []
    if link.is_related and link.compared_from > max(copy.saved.begin, link.served.low):
        n_bytes = link.n_compared
        text = f"the logs differ before the last {n_bytes} bytes; more is compared"
        state = state.with_link(overlap=n_bytes * _GROWTH, reasons=frozenset())
        state, actions = pause(state, None)
        return state, [events.Log(text, is_warning=False), events.Disconnect(), *actions]
    raise StoreStateError(
        f"the log of the broker and the copy differ at physical offset {differs_at}, and no record "
        f"from {link.compared_from} on is the same: the broker now has another log. Nothing was "
        "changed; follow it into a new folder"
    )


# ---- an end that is cut, or a copy without a record that begins somewhere else


def _flush_first(state: ReplicaState, _change: Change) -> Decision:
    """Bring to the disk all that is written, before it is cut."""
    return flush(state)


def _plan_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Find out from where on queues and index will have to be built again."""
    return state.with_work(changes_queues=True), [events.PlanCut(cut.end)]


def _note_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Write the lower end before the log is cut, so that the state is never ahead of it."""
    copy = state.copy
    kept_in = cut_folder(state.root, cut.epoch_ms)
    saved = copy.saved.with_cut(cut.end, copy.end - cut.end, cut.epoch_ms, kept_in)
    return write_state(state.with_copy(noted=saved, durable=min(copy.durable, cut.end)))


def _cut_log(state: ReplicaState, cut: Cutting) -> Decision:
    """Keep the end of the log aside, and cut it."""
    folder = cut_folder(state.root, cut.epoch_ms)
    return state, [events.Cut(cut.end, cut.differs_at, cut.reason, folder, cut.begins_at)]


def on_log_cut(state: ReplicaState, event: events.LogCut) -> Decision:
    """Take note of where the log ends, or begins."""
    cut, saved = state.work.change, state.copy.saved
    if isinstance(cut, Cutting) and cut.begins_at is not None:
        saved = replace(saved, begin=event.end)
        state = state.with_copy(epochs=(), built=event.end)
    epochs = tuple(epochs_within(state.copy.epochs, saved.begin, event.end))
    state = state.with_copy(
        noted=saved, end=event.end, durable=event.end, unconfirmed_from=None, n_buffered=0,
        last_time=event.last_time, epochs=epochs,
    )  # fmt: skip
    return state, []


def _cut_queues(state: ReplicaState, cut: Cutting) -> Decision:
    """Cut queues and index after the log."""
    action = events.CutQueues(cut.end, is_new=False)
    if cut.begins_at is not None:
        action = events.CutQueues(cut.begins_at, is_new=True)
    return state.with_work(changes_queues=True), [action]


def _end_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Continue with the bytes of the broker, where the logs part; or make the connection."""
    # The broker may have lost the end that tables wait for. Nothing was read meanwhile.
    link = state.link
    state = state.with_link(untaken=link.newest, agreed_low=None, received_at=state.now)
    state = state.with_work(change=None)
    if cut.begins_at is not None:
        return plan(state, link.handshake)
    n_kept = cut.differs_at - cut.end
    state = state.with_copy(n_buffered=n_kept, buffered_at=state.now).in_phase(Phase.APPENDING)
    return buffer(state, cut.differs_at, link.position)


CUT: Final[tuple[Step, ...]] = (
    _flush_first, _plan_cut, _note_cut, _cut_log, note_again, _cut_queues, _end_cut
)  # fmt: skip
BEGIN_AGAIN: Final[tuple[Step, ...]] = (
    _plan_cut, _cut_log, note_again, _cut_queues, _end_cut
)  # fmt: skip
