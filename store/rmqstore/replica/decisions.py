"""What a replica decides: from its state and an event follow its next state and what it does.

:func:`decide` opens no file and no socket, and reads no clock. The loop in ``follower`` performs
the actions that it returns, whose results are events again. What concerns the disk of the copy only
is in ``maintenance``: flushes, the state, queues, old files, the steps of a cut and of the end.

A master that comes back with a shorter log shows it by bytes that differ, or by a heartbeat before
the end of the copy (:func:`_take_heartbeat`). Both lead to :func:`_on_differed`, which decides that
the copy is cut, that more is compared, or that it is the log of another broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptRecordError,
    RmqStoreError,
    StoreStateError,
)
from rmqstore.replica import events
from rmqstore.replica.agreement import (
    Extent,
    FirstRecord,
    begin_at,
    compared_from,
    consistent_point,
    has_gap,
    request_at,
    served_bounds,
)
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Action, Asked, Happened, Question
from rmqstore.replica.ha import Handshake
from rmqstore.replica.maintenance import (
    BEGIN_AGAIN,
    COMPLETE,
    CUT,
    HANDLERS,
    PERIODIC_TASKS,
    RETAIN,
    RETAIN_UNBUILT,
    Step,
    ask,
    build_if_due,
    end_with,
    flush_if_due,
    pause,
    report_if_due,
    settle_kinds,
    stop_with,
)
from rmqstore.replica.replica_state import (
    LONG_AGO,
    STREAMING,
    Change,
    Comparison,
    Copy,
    Cutting,
    Decision,
    Ending,
    Phase,
    ReplicaState,
    Retaining,
    Stream,
    Work,
    agree,
    has_arrived,
    is_stalled,
    is_write_due,
    learn_epochs,
    patience,
)
from rmqstore.replica.state import epochs_within, first_state, require_same_source

_END_SECONDS: Final = 1.0  # between two questions whether the log of the broker ends
_RETRY_SECONDS: Final = 1.0
_GROWTH: Final = 8  # of what is compared, where nothing of it was the same
_STALLED: Final = "the copy takes too long for what came"


def decide(state: ReplicaState, happened: Happened) -> Decision:
    """Return the next state, and what is done, in this order.

    Raises:
        RmqStoreError: during a change of several steps. The loop makes an event of it.
    """
    at, epoch_ms, event, asked = happened
    state = state._replace(now=at, epoch_ms=epoch_ms)
    try:
        if asked is None:
            state, actions = _HANDLERS[type(event)](state, event)
        else:
            state, actions = _on_answer(state, event, asked)
    except RmqStoreError as err:
        if state.change is not None:  # of which a step may be under way
            raise
        state, actions = end_with(state, err)
    further: list[Action] = []
    while (
        (change := state.change) is not None
        and state.phase is not Phase.ENDED
        and not state.work.is_busy
        and not further
    ):
        step = _steps_of(change, state.copy)[change.step]
        state = state._replace(change=change._replace(step=change.step + 1))
        state, further = step(state, change)
        if state.change == change:  # it waits for something
            break
    return state, [*actions, *further]


# ---- questions and connections


def _on_answer(state: ReplicaState, event: Any, asked: Asked) -> Decision:  # noqa: ANN401 - an answer
    """Take an answer, once, and nothing that was asked for the sake of an earlier connection."""
    broker, question = state.broker, asked.question
    if asked not in broker.asking:
        return state, []
    state = state._replace(broker=broker._replace(asking=broker.asking - {asked}))
    is_late = asked.connection != state.attempts.number or state.phase is Phase.CLOSING
    if is_late and question not in (Question.TABLES, Question.BOUNDS):
        return state, []
    return _ANSWERS[type(event)](state, event, question)


def _begin(state: ReplicaState) -> Decision:
    """Ask the broker for everything, with which each connection begins."""
    attempts = state.attempts._replace(began=state.now, number=state.attempts.number + 1)
    return ask(state._replace(phase=Phase.ASKING, attempts=attempts), Question.FACTS)


def _on_started(state: ReplicaState, _event: events.Started) -> Decision:
    return _begin(state)


def _on_answered(state: ReplicaState, event: events.Answered, question: Question) -> Decision:
    facts, before = event.facts, state.broker
    broker = before._replace(
        bounds=facts.bounds,
        bounds_at=facts.told_at,
        answered_at=state.epoch_ms,
        newest=facts,
        untaken=before.untaken or facts,  # one that waits for the copy would wait for ever else
        asked_at=state.now,
        tables_at=state.now,
    )
    if question is not Question.FACTS:
        return settle_kinds(state._replace(broker=broker))
    source = event.source
    assert source is not None
    timing = state.settings.timing.adapted(source.heartbeat, source.housekeeping)
    broker = broker._replace(known_source=source, timing=timing, untaken=facts, agreed_low=None)
    state = state._replace(broker=broker, phase=Phase.CONNECTING)
    if state.copy.noted is not None:
        require_same_source(state.place.root, state.copy.saved, source)
    return _connect(state) if state.copy.is_open else _open(state, facts.bounds, is_new=True)


def _open(state: ReplicaState, bounds: LogBounds, *, is_new: bool) -> Decision:
    source, saved, start = state.broker.source, state.copy.noted, state.settings.start
    if saved is None:
        begin = begin_at(start, bounds, source.file_size, is_new=is_new)
        saved = first_state(source, state.place.address, begin)
    return state, [events.Open(saved, source, state.place.address, state.settings.build_queues)]


def _on_opened(state: ReplicaState, event: events.Opened) -> Decision:
    saved = event.saved
    doubted_from = saved.end if saved.end < event.end else None
    copy = Copy(
        saved, is_open=True, end=event.end, durable=saved.end, saved_end=saved.end,
        doubted_from=doubted_from, built=saved.built, last_time=event.last_time,
        epochs=event.epochs,
    )  # fmt: skip
    now = state.now
    work = Work(written=saved.built, synced_at=now)
    state = state._replace(copy=copy, work=work)
    if state.attempts.begins_anew:
        return pause(state._replace(attempts=state.attempts._replace(begins_anew=False)), None)
    return _connect(state)


def _connect(state: ReplicaState) -> Decision:
    """Make a connection; in default mode, it is found out before from where on to compare."""
    broker, attempts, source = state.broker, state.attempts, state.broker.source
    goal = attempts.goal
    if goal is None and state.settings.once:
        goal = broker.bounds.high
    attempts = attempts._replace(goal=goal, is_confirmed=False, is_idle=False)
    state = state._replace(attempts=attempts)
    if source.mode == "default":
        state, actions = _plan(state, None)
    else:
        state, actions = _reach(state)
    return state, [events.ForgetBegun(), *actions]


def _reach(state: ReplicaState) -> Decision:
    source, saved = state.broker.source, state.copy.saved
    saved = replace(saved, n_connections=saved.n_connections + 1)
    learner_id = saved.learner_id if source.mode == "controller" else None
    asked, broker = Asked(Question.CONNECTION, state.attempts.number), state.broker
    broker = broker._replace(asking=broker.asking | {asked})
    action = events.Connect(asked, source, broker.timing.first_header, learner_id)
    return state._replace(copy=state.copy._replace(noted=saved), broker=broker), [action]


def _plan(state: ReplicaState, handshake: Handshake | None) -> Decision:
    """Decide from where on the logs are compared; or end, with a copy that is open."""
    try:
        return _planned(state, handshake)
    except RmqStoreError as err:
        return end_with(state, err)


def _planned(state: ReplicaState, handshake: Handshake | None) -> Decision:
    """Decide from where on the logs are compared, unless a copy has to begin before.

    Raises:
        StoreStateError: the broker has nothing that the copy could continue with.
    """
    copy, source, settings, root = state.copy, state.broker.source, state.settings, state.place.root
    saved = copy.saved
    bounds = state.broker.bounds
    if handshake is not None:
        bounds = served_bounds(bounds, handshake.epochs, handshake.end, source.file_size)
    stream = Stream(Comparison(bounds, is_related=True, n_bytes=0), handshake)
    state = state._replace(stream=stream)
    if copy.sure_end == saved.begin and not bounds.reach(saved.begin):
        begin = begin_at(settings.start, bounds, source.file_size, is_new=False)
        reason = "the broker does not have it"
        change = Cutting(saved.begin, saved.begin, reason, state.epoch_ms, begins_at=begin)
        text = f"{root}: the copy has no record yet, and begins at {begin} now"
        return state._replace(change=change), [events.Log(text)]
    extent, sure = Extent(saved.begin, copy.end), Extent(saved.begin, copy.sure_end)
    if has_gap(root, sure, bounds, begins_again=settings.on_gap == "restart"):
        return end_with(state, None, sets_aside=bounds)
    common, is_related = copy.end, True
    if handshake is not None and (own := epochs_within(copy.epochs, *extent)):
        point = consistent_point(own, copy.end, handshake.epochs, handshake.end)
        is_related = point is not None
        common = copy.end if point is None else point
    n_bytes = max(state.attempts.overlap, settings.overlap + source.least_overlap)
    wanted = compared_from(sure._replace(end=min(common, sure.end)), bounds, n_bytes)
    comparison = Comparison(bounds, is_related, n_bytes)
    state = state._replace(stream=stream._replace(comparison=comparison))
    return state, [events.FindPlace(wanted, saved.begin, bounds.high)]


def _on_place_found(state: ReplicaState, event: events.PlaceFound) -> Decision:
    copy, stream = state.copy, state.connection
    comparison = stream.comparison._replace(
        compared=event.compared, agreed_from=event.agreed_from, first=FirstRecord(copy.end, b"")
    )
    state = state._replace(stream=stream._replace(comparison=comparison))
    bounds = comparison.bounds
    is_empty = copy.saved.begin == copy.end and copy.doubted_from is None
    if is_empty and bounds.low <= copy.end < bounds.high:
        return ask(state, Question.RECORD, copy.end)
    return _request(state) if stream.handshake is not None else _reach(state)


def _on_record_reported(
    state: ReplicaState, event: events.RecordReported, _question: Question
) -> Decision:
    stream = state.connection
    first = stream.comparison.first._replace(record=event.record)
    stream = stream._replace(comparison=stream.comparison._replace(first=first))
    state = state._replace(stream=stream)
    return _request(state) if stream.handshake is not None else _reach(state)


def _on_connected(state: ReplicaState, event: events.Connected, _question: Question) -> Decision:
    source, actions = state.broker.source, list[Action]()
    if event.is_public and not state.attempts.is_public:
        state = state._replace(attempts=state.attempts._replace(is_public=True))
        text = (
            f"{source.ha_address} is an address of the public internet, and an HA port has neither "
            "login nor encryption: use a tunnel"
        )
        actions.append(events.Log(text))
    handshake = event.handshake
    state, further = _request(state) if handshake is None else _plan(state, handshake)
    return state, [*actions, *further]


def _request(state: ReplicaState) -> Decision:
    """Ask for the log, from the place on that is compared."""
    copy, stream, source = state.copy, state.connection, state.broker.source
    comparison, handshake = stream.comparison, stream.handshake
    position = compared = comparison.compared
    if handshake is None:
        position = request_at(compared, comparison.bounds, source.file_size)
    is_comparing = compared < copy.end
    stream = stream._replace(
        position=position, received_at=state.now, data_at=state.now,
        epochs=() if handshake is None else tuple(handshake.epochs),
    )  # fmt: skip
    phase = Phase.COMPARING if is_comparing else Phase.APPENDING
    timers = state.timers._replace(rate_due=state.now)
    state = state._replace(stream=stream, phase=phase, timers=timers)
    if not is_comparing:
        state = agree(state)  # the copy is empty
    holds_zero = position > compared and not is_comparing
    return state, [events.Request(position, handshake, holds_zero)]


def _on_unanswered(state: ReplicaState, event: events.Unanswered, question: Question) -> Decision:
    error = event.error
    is_passing = isinstance(error, BrokerUnreachableError)
    if not is_passing and not isinstance(error, BrokerRefusedError):
        return stop_with(state, error)
    if question is Question.END:
        return _on_unknown_end(state, error, is_passing=is_passing)
    if question not in (Question.TABLES, Question.BOUNDS):  # no connection can be made
        if not is_passing or not state.settings.reconnect:
            return end_with(state, error)
        state, actions = pause(state._replace(stream=None), str(error))
        return state, [events.Disconnect(), *actions]
    work = state.work
    if question is not Question.TABLES or not work.unknown:
        return state, []
    order = work.order._replace(retry_at=state.now + _RETRY_SECONDS)
    state = state._replace(work=work._replace(order=order))
    if work.order.retry_at > LONG_AGO:
        return state, []
    topics = ", ".join(sorted(work.unknown))
    return state, [events.Log(f"queues wait for the kind of topic {topics}: {error}")]


def _on_unknown_end(state: ReplicaState, error: BaseException, *, is_passing: bool) -> Decision:
    """Decide what follows if the broker does not say whether its log ends."""
    if state.stream is None or state.is_held_up:
        return state, []
    pending = state.stream.pending
    if isinstance(pending, CorruptRecordError):
        return end_with(state, pending)
    if not is_passing:
        return end_with(state, error)
    if pending is not None or state.phase is Phase.COMPARING:
        return _lose(state, pending or str(error))
    return state, []


def _on_lost(state: ReplicaState, event: events.Lost, _question: Any = None) -> Decision:  # noqa: ANN401
    if state.phase not in (Phase.CONNECTING, *STREAMING):
        return state, []
    return _lose(state, event.reason)


def _lose(state: ReplicaState, reason: str) -> Decision:
    """End the connection, and make another one after a pause, unless what came is all."""
    source, attempts = state.broker.source, state.attempts
    if state.copy.n_held and state.phase is Phase.APPENDING:
        stream = state.connection._replace(waiting=events.Lost(reason))
        return state._replace(stream=stream), [events.Write()]
    if has_arrived(state):
        return end_with(state, None)
    if state.phase in STREAMING:
        attempts = attempts._replace(overlap=state.settings.overlap)
        if state.stream is not None and state.stream.has_begun:
            attempts = attempts._replace(reasons=frozenset())
    reason = f"{source.ha_address}, the HA port: {reason}"
    state, actions = pause(state._replace(attempts=attempts, stream=None), reason)
    return state, [events.Disconnect(), *actions]


# ---- what comes


def _on_received(state: ReplicaState, event: events.Received) -> Decision:
    stream, now = state.stream, state.now
    if stream is None or state.phase not in STREAMING:
        return state, []
    start, stop = event.start, event.stop
    if stop == start:  # a part of a header
        return state._replace(stream=stream._replace(received_at=now)), []
    stream = stream._replace(position=stop, received_at=now, data_at=now, has_begun=True)
    state = state._replace(stream=stream)
    comparison = stream.comparison
    if state.phase is Phase.COMPARING:
        until = min(stop, state.copy.end)
        return state, [events.Compare(start, until, comparison.compared, None)]
    if state.attempts.is_idle:
        state = state._replace(attempts=state.attempts._replace(is_idle=False))
    if not comparison.first.has_come:
        expected = comparison.first.expected(start, stop)
        until = start + len(expected)
        return state, [events.Compare(start, until, comparison.compared, expected)]
    return _hold(state, start, stop)


def _on_epochs_reported(state: ReplicaState, event: events.EpochsReported) -> Decision:
    if state.stream is None or state.phase not in STREAMING:
        return state, []
    stream = state.stream._replace(epochs=event.epochs, confirm_offset=event.confirm_offset)
    state = state._replace(stream=stream)
    return learn_epochs(state) if state.attempts.is_confirmed else state, []


def _on_agreed(state: ReplicaState, event: events.Agreed) -> Decision:
    stream, copy = state.stream, state.copy
    if stream is None or state.phase not in STREAMING:
        return state, []
    if event.seconds > state.broker.timing.stall:
        return _lose(state, _STALLED)
    if state.phase is Phase.COMPARING:
        if event.stop < copy.end:
            return state, []
        copy = copy._replace(doubted_from=None)
        return _hold(state._replace(phase=Phase.APPENDING, copy=copy), copy.end, stream.position)
    comparison = stream.comparison
    first = comparison.first._replace(n_come=event.stop - comparison.first.begin)
    stream = stream._replace(comparison=comparison._replace(first=first))
    return _hold(state._replace(stream=stream), event.start, stream.position)


def _hold(state: ReplicaState, start: int, stop: int) -> Decision:
    """Take the next bytes of the log, which are written with others."""
    copy, n_bytes = state.copy, stop - start
    if n_bytes:
        held_at = copy.held_at if copy.n_held else state.now
        state = state._replace(copy=copy._replace(n_held=copy.n_held + n_bytes, held_at=held_at))
    return agree(state), [events.Hold(start, stop)] if n_bytes else []


def _on_heartbeat(state: ReplicaState, event: events.HeartbeatCame) -> Decision:
    stream = state.stream
    if stream is None or state.phase not in STREAMING or stream.pending is not None:
        return state, []
    stream = stream._replace(received_at=state.now, has_begun=True)
    if state.copy.n_held:
        return state._replace(stream=stream._replace(waiting=event)), [events.Write()]
    return _take_heartbeat(state._replace(stream=stream), event.position)


def _take_heartbeat(state: ReplicaState, position: int) -> Decision:
    """Take a heartbeat. It comes at the end of the log, and wherever the broker is slow."""
    stream, copy = state.connection, state.copy
    # A broker sends heartbeats for ever where it has deleted what would come next. Then no more of
    # the log can come on this connection.
    low, high = state.broker.bounds
    if position < low:
        text = f"the broker continues at {position}, and its log now begins at {low}"
        return _lose(state, text)
    seconds = state.now - stream.data_at
    if position < high and seconds > patience(state):
        text = (
            f"the broker has its log up to {high}, and sent nothing after {position} for "
            f"{seconds:.0f} s"
        )
        # Whether the log has it decides what follows.
        return _ask_for_end(state._replace(stream=stream._replace(pending=text)), position)
    is_comparing = state.phase is Phase.COMPARING
    if not is_comparing:
        state = agree(state)
    if not is_comparing and not (state.settings.once and position == copy.end):
        return state, []
    is_soon = state.now - state.timers.end_asked_at < _END_SECONDS
    if is_soon or _is_end_asked(state):
        return state, []
    return _ask_for_end(state, position)


def _is_end_asked(state: ReplicaState) -> bool:
    """Return whether the broker is being asked whether its log ends where it continues."""
    return Asked(Question.END, state.attempts.number) in state.broker.asking


def _ask_for_end(state: ReplicaState, position: int) -> Decision:
    """Ask whether the log of the broker ends at a position."""
    timers = state.timers._replace(end_asked_at=state.now)
    return ask(state._replace(timers=timers), Question.END, position)


def _on_bounds(state: ReplicaState, event: events.BoundsReported, question: Question) -> Decision:
    bounds, position = event
    broker = state.broker._replace(bounds=bounds, bounds_at=state.now, answered_at=state.epoch_ms)
    state = state._replace(broker=broker)
    stream, copy = state.stream, state.copy
    if question is not Question.END or stream is None or state.is_held_up:
        return state, []
    pending = stream.pending
    if isinstance(pending, CorruptRecordError):
        # The log of a new slave may begin anywhere; for 0 it sends its first file, once it has one.
        # Source: CommitLog.java#getData, MappedFileQueue.java#findMappedFileByOffset.
        if bounds.low <= copy.saved.begin:
            return end_with(state, pending)
        return _lose(state, f"the log of the broker does not begin at {copy.saved.begin}")
    if pending is not None:
        return _lose(state, pending)
    if stream.position != position:  # more has come since
        return state, []
    if not bounds.reach(position):  # the next connection begins with these
        text = (
            f"the broker continues at {position}, and its log is now from {bounds.low} "
            f"to {bounds.high}"
        )
        return _lose(state, text)
    served = stream.comparison.bounds
    comparison = stream.comparison._replace(bounds=served._replace(low=max(served.low, bounds.low)))
    state = state._replace(stream=stream._replace(comparison=comparison))
    if position < bounds.high:
        return state, []
    if state.phase is Phase.COMPARING:
        reason = "the broker's log ends here"
        return state, [events.FindBoundary(position, comparison.compared, reason)]
    return state._replace(attempts=state.attempts._replace(is_idle=True)), []


def _on_differed(state: ReplicaState, event: events.Differed) -> Decision:
    """Decide what follows from a difference.

    Raises:
        StoreStateError: nothing is known to be the same.
    """
    stream, copy, place = state.stream, state.copy, event.place
    if stream is None or state.phase not in STREAMING:
        return state, []
    comparison = stream.comparison
    if state.phase is Phase.APPENDING:
        raise StoreStateError(
            f"the record at {copy.end} is another one at the HA port than at the "
            "listen port, so the two are of different brokers. Nothing was copied"
        )
    if comparison.agreed_from is not None and place >= comparison.agreed_from:
        cut = Cutting(event.boundary, place, event.reason, state.epoch_ms)
        return state._replace(change=cut), []
    first = max(copy.saved.begin, comparison.bounds.low)
    if comparison.is_related and comparison.compared > first:
        n_bytes = comparison.n_bytes
        text = f"the logs differ before the last {n_bytes} bytes; more is compared"
        attempts = state.attempts._replace(overlap=n_bytes * _GROWTH, reasons=frozenset())
        state, actions = pause(state._replace(attempts=attempts), None)
        return state, [events.Log(text, is_warning=False), events.Disconnect(), *actions]
    raise StoreStateError(
        f"the log of the broker and the copy differ at physical offset {place}, and no record from "
        f"{comparison.compared} on is the same: the broker now has another log. Nothing was "
        "changed; follow it into a new folder"
    )


# ---- what is written, and what is due


def _on_written(state: ReplicaState, event: events.Written) -> Decision:
    copy = state.copy._replace(end=event.end, last_time=event.last_time, n_held=0)
    state = state._replace(copy=copy)
    if event.error is not None:
        return _on_damage(state, event.error)
    stream = state.stream
    if stream is None or state.phase is not Phase.APPENDING:
        return state, []
    state, actions = state._replace(stream=stream._replace(waiting=None)), list[Action]()
    if has_arrived(state):
        return end_with(state, None)
    if event.seconds > state.broker.timing.stall:
        return _lose(state, _STALLED)
    if isinstance(stream.waiting, events.Lost):
        return _lose(state, stream.waiting.reason)
    if stream.waiting is not None:
        state, actions = _take_heartbeat(state, stream.waiting.position)
        if state.stream is None:
            return state, actions
    state, further = flush_if_due(state)
    return state, [*actions, *further]


def _on_damage(state: ReplicaState, error: CorruptRecordError) -> Decision:
    """End, because the broker's log is not a chain of records; unless it does not begin here."""
    copy, change = state.copy, state.change
    ending = change.then if isinstance(change, Retaining) else change
    if isinstance(ending, Ending):  # these were the last bytes that came
        is_worse = ending.error is None or isinstance(ending.error, BrokerUnreachableError)
        return end_with(state, error) if is_worse and copy.end > copy.saved.begin else (state, [])
    stream = state.stream
    is_lost = stream is not None and isinstance(stream.waiting, events.Lost)
    if stream is None or is_lost or copy.end > copy.saved.begin:
        return end_with(state, error)
    stream = stream._replace(pending=error)
    return _ask_for_end(state._replace(stream=stream), copy.end)


def _on_state_written(state: ReplicaState, event: events.StateWritten) -> Decision:
    """Acknowledge and build what the state on the disk covers."""
    copy, seconds = state.copy, state.work.flush_seconds + event.seconds
    work = state.work._replace(flushing=False, flush_seconds=seconds)
    if event.saved.end > copy.saved_end:  # else the log was not flushed before
        work = work._replace(synced_at=state.now)
    state = state._replace(copy=copy._replace(saved_end=event.saved.end), work=work)
    if state.is_held_up:
        return state, []
    state, actions = report_if_due(state)
    state, builds = build_if_due(state)
    return state, [*actions, *builds]


def _on_ticked(state: ReplicaState, event: events.Ticked) -> Decision:
    was_stalled = is_stalled(state)
    timers, rate = state.timers._replace(is_drained=event.is_drained), state.settings.max_rate
    if rate is not None:  # a rest earns no more than one second's bytes
        rate_due = max(timers.rate_due, state.now - 1.0) + event.n_bytes / rate
        timers = timers._replace(rate_due=rate_due)
    state = state._replace(timers=timers)
    if state.is_held_up or state.phase in (Phase.CLOSING, Phase.ENDED):
        return state, []
    if state.attempts.is_stopping:
        return end_with(state, state.attempts.error)
    # A disk that hangs ends the connection, and delays the next one.
    is_busy = state.work.flushing or state.change is not None
    may_begin = state.now >= state.attempts.next_at and not is_busy
    if state.phase is Phase.PAUSING and may_begin:
        state, actions = _begin(state)
    elif state.phase in STREAMING:
        state, actions = _lose(state, _STALLED) if was_stalled else _stream_on(state)
        if state.phase is Phase.CLOSING:
            return state, actions
    else:
        state, actions = flush_if_due(state)
    for task in PERIODIC_TASKS:
        state, further = task(state)
        actions += further
    return state, actions


def _stream_on(state: ReplicaState) -> Decision:
    """Write, flush and report, if it is time; notice silence, and the end that was asked for."""
    stream = state.connection
    if has_arrived(state):
        return end_with(state, None)
    most = patience(state)
    if stream.pending is None and state.now - stream.received_at > most:
        return _lose(state, f"nothing came for {most:.0f} s")
    actions: list[Action] = []
    if stream.pending is not None and not _is_end_asked(state):  # the answer came during a change
        state, actions = _ask_for_end(state, stream.position)
    elif state.copy.n_held and state.phase is Phase.APPENDING and is_write_due(state):
        actions = [events.Write()]  # then the flush is looked at again
    else:
        state, actions = flush_if_due(state)
    state, further = report_if_due(state)
    return state, [*actions, *further]


# ---- the last steps of a change


def _end_cut(state: ReplicaState, cut: Cutting) -> Decision:
    """Continue with the bytes of the broker, where the logs part; or make the connection."""
    # The broker may have lost the end that tables wait for.
    broker = state.broker._replace(untaken=state.broker.newest, agreed_low=None)
    # Nothing was read meanwhile.
    stream = state.connection._replace(received_at=state.now)
    state = state._replace(change=None, broker=broker, stream=stream)
    if cut.begins_at is not None:
        return _plan(state, stream.handshake)
    held = state.copy._replace(n_held=cut.place - cut.end, held_at=state.now)
    state = state._replace(phase=Phase.APPENDING, copy=held)
    return _hold(state, cut.place, stream.position)


def _on_set_aside(state: ReplicaState, event: events.SetAside) -> Decision:
    """Begin a new copy, where the other one was."""
    ending, end = state.change, state.copy.end
    assert isinstance(ending, Ending)
    assert ending.sets_aside is not None
    bounds = ending.sets_aside
    text = (
        f"{state.place.root} ends at {end}, and the broker has nothing to serve before "
        f"{bounds.low}: it is now {event.path}, and a new copy begins"
    )
    attempts = state.attempts._replace(begins_anew=True)
    state = state._replace(
        copy=Copy(None), attempts=attempts, change=None, phase=Phase.CONNECTING, work=Work()
    )
    try:
        state, actions = _open(state, bounds, is_new=False)
    except RmqStoreError as err:  # there is no copy now
        state, actions = end_with(state, err)
    return state, [events.Log(text), *actions]


def _steps_of(change: Change, copy: Copy) -> tuple[Step, ...]:
    if isinstance(change, Cutting):
        return (*(CUT if change.begins_at is None else BEGIN_AGAIN), _end_cut)
    if isinstance(change, Retaining):
        return RETAIN if copy.saved.builds_queues else RETAIN_UNBUILT
    return COMPLETE


_HANDLERS: Final[dict[type, Callable[[ReplicaState, Any], Decision]]] = {
    **HANDLERS,
    events.Started: _on_started,
    events.Ticked: _on_ticked,
    events.Lost: _on_lost,
    events.Received: _on_received,
    events.HeartbeatCame: _on_heartbeat,
    events.EpochsReported: _on_epochs_reported,
    events.Opened: _on_opened,
    events.PlaceFound: _on_place_found,
    events.Agreed: _on_agreed,
    events.Differed: _on_differed,
    events.Written: _on_written,
    events.StateWritten: _on_state_written,
    events.SetAside: _on_set_aside,
}
_ANSWERS: Final[dict[type, Callable[[ReplicaState, Any, Question], Decision]]] = {
    events.Answered: _on_answered,
    events.BoundsReported: _on_bounds,
    events.RecordReported: _on_record_reported,
    events.Unanswered: _on_unanswered,
    events.Connected: _on_connected,
    events.Lost: _on_lost,
}
