"""A model of a master and of a copy, which performs what a replica decides and checks each step.

Every record has 10 bytes and every file 5 records. A record is a number that no other one has, and
its epoch. A master may append, lose its end, go on differently, delete its first file, fall silent,
restart and switch; a follower may be killed, with or without the power, or stopped.

The performer is modelled too. Orders for the two threads are performed only when the explorer says
so, and their answers may come later than that. Questions are answered at the next wait, late, not
at all, or twice. Each action and each change of the disk may fail, and an interrupt may come before
any action: then both threads end what they do, and no answer is taken any more. What is abandoned
is flushed, and its state is written, unless a flush has failed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from following.replicas import SOURCE
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptRecordError,
    RmqStoreError,
    StoreStateError,
)
from rmqstore.replica import dispatch, events
from rmqstore.replica.appending import state_to_leave
from rmqstore.replica.broker import Facts, TopicKinds
from rmqstore.replica.broker_requests import LogBounds, ServedSettings
from rmqstore.replica.events import Action, Asked, Event, Happened, Question
from rmqstore.replica.ha import NEVER, Handshake
from rmqstore.replica.live_state import (
    Cutting,
    Ending,
    Phase,
    ReplicaState,
    first_replica_state,
    wait_of,
)
from rmqstore.replica.retention import Retention
from rmqstore.replica.settings import FollowSettings, Timing
from rmqstore.replica.state import FollowState, epochs_within
from rmqstore.storage.broker.epochs import Epoch

RECORD = 10
FILE = 50
ROOT = Path("/copy")
BUFFER = 40  # bytes that can be held
_MOST_TURNS = 40

# What an order for one of the threads is, and which one.
_FLUSHES = (events.Flush, events.WriteState)
_FLUSHED = (events.Flushed, events.StateWritten)
_BUILT = (events.Built, events.TablesWritten, events.QueuesChanged)
_BUILDS = (
    events.Build, events.TakeTables, events.PlanCut, events.CutQueues, events.DeleteOldQueues,
    events.Complete,
)  # fmt: skip

# How a question may end without an answer.
UNANSWERED = {
    "answer": BrokerUnreachableError("b", "gone"),
    "refused": BrokerRefusedError("b", 1, "no"),
    "another": StoreStateError("it is no broker"),
}

Decide = Callable[[ReplicaState, Happened], tuple[ReplicaState, list[Action]]]
Mutant = Callable[[Decide], Decide]


class Record(NamedTuple):
    number: int
    epoch: int


class Connection(NamedTuple):
    """A connection: what was asked for, what comes next, and the epochs that were announced."""

    request: int
    position: int
    n_epochs: int


class ViolatedError(AssertionError):
    """What must never be."""


class FaultError(Exception):
    """What the loop met instead of the result of an action.

    Attributes:
        error: the error.
        is_consistent: whether no change of the log was under way.
    """

    def __init__(self, error: BaseException, *, is_consistent: bool) -> None:
        super().__init__(error)
        self.error, self.is_consistent = error, is_consistent


def require(is_so: object, text: str) -> None:
    if not is_so:
        raise ViolatedError(text)


class World:
    """A master, a copy on a disk, and the replica between them."""

    def __init__(self, decide: Decide, *, n_records: int = 4, **settings: Any) -> None:
        self.decide = decide
        timing = Timing(tables=0.0, retention=1.0)
        given = {
            "acknowledge": "synced", "tables_seconds": 5.0, "timing": timing, "overlap": 20,
            "retention": Retention(is_mirror=True), "sync_seconds": 0.5,
        } | settings  # fmt: skip
        self.settings = FollowSettings(**given)
        self.now = 1000.0
        # The master.
        self.log: tuple[Record, ...] = ()
        self.low = 0
        self.epochs: tuple[Epoch, ...] = (Epoch(1, 0),)
        self.histories: tuple[tuple[Record, ...], ...] = ()
        self.n_made = 0
        self.is_slow = False
        self.portion = 1 << 20  # bytes that come at once
        self.is_closing = False  # whether the connection ends with the log
        self.is_drained = True  # whether a read returns all that there is
        self.flushed_at = self.now  # or since when there is something to flush
        self.needed = 0  # of the log, by a stream
        # The disk.
        self.begin = 0
        self.files: tuple[Record, ...] = ()  # from the begin on
        self.durable = 0  # physical offset
        self.saved: FollowState | None = None
        self.noted_epochs: tuple[Epoch, ...] = ()
        self.built = 0
        self.tables = -1  # the end of the log that they were reported with
        self.kept: frozenset[Record] = frozenset()
        self.is_closed = False
        # The follower.
        self.connection: Connection | None = None
        self.sent: tuple[Record, ...] = ()  # the log that the last bytes are of
        self.held, self.held_of = 0, self.sent
        self.flushes: tuple[tuple[Action, int], ...] = ()  # and the end when each was given
        self.builds: tuple[Action, ...] = ()
        self.mail: tuple[Happened, ...] = ()  # of the threads, which the loop has not taken
        self.asked: tuple[events.Ask | events.Connect, ...] = ()
        self.answers: tuple[Happened, ...] = ()  # the last ones
        self.todo: tuple[Happened, ...] = ()
        self.reads: tuple[Event, ...] = ()
        self.backlog: tuple[Happened, ...] = ()  # what was read and has not been decided about
        self.error: BaseException | None = None
        self.faults: frozenset[str] = frozenset()
        self.is_late = False  # whether neither the broker nor a thread is heard
        self.is_lost = False  # whether a flush has failed
        self.is_new_topic = False
        self.n_greeted = 0  # epochs that the last handshake told
        self.append(n_records)
        self.start()

    def copy(self) -> World:
        """Return the same world, which goes its own way from here on."""
        return copy.copy(self)

    @property
    def end(self) -> int:
        """Physical offset of the end of the copy's files."""
        return self.begin + RECORD * len(self.files)

    @property
    def high(self) -> int:
        """Physical offset of the end of the master's log."""
        return RECORD * len(self.log)

    # ---- what may happen

    def append(self, count: int = 2) -> None:
        for _ in range(count):
            self.n_made += 1
            self.log += (Record(self.n_made, self.epochs[-1].number),)
        self.histories += (self.log,)

    def lose(self, count: int = 2) -> None:
        self.log = self.log[: max(len(self.log) - count, self.low // RECORD, 1)]
        self.epochs = self.epochs[:1] + tuple(
            e for e in self.epochs[1:] if e.start_offset < self.high
        )
        self.histories += (self.log,)
        self.restart()

    def fork(self) -> None:
        """The master loses its end, and writes on."""
        self.lose()
        self.append(3)

    def switch(self) -> None:
        """Another master takes over, without the last record."""
        self.lose(1)
        self.epochs += (Epoch(self.epochs[-1].number + 1, self.high),)
        self.append(2)

    def begin_epoch(self) -> None:
        self.epochs += (Epoch(self.epochs[-1].number + 1, self.high),)
        self.append(1)

    def commit(self) -> None:
        self.needed = 1 << 40

    def delete(self) -> None:
        """The master deletes its first file, if it is not the last one."""
        if self.low + FILE < self.high:
            self.low += FILE

    def fall_silent(self) -> None:
        """The master sends one record more on each connection, and heartbeats only."""
        self.is_slow = not self.is_slow

    def fall_to_pieces(self) -> None:
        """Each read is of some bytes only, which end inside of a record."""
        self.portion = RECORD - 3

    def close(self) -> None:
        """Each connection ends as soon as the log does; or it does not."""
        self.is_closing = not self.is_closing

    def flood(self) -> None:
        """There is always more to read; or there is not."""
        self.is_drained = not self.is_drained

    def restart(self) -> None:
        if self.connection is not None:
            self.connection = None
            self.reads = (*self.reads, events.Lost("closed"))

    def kill(self) -> None:
        self.start()

    def lose_power(self) -> None:
        """The computer of the follower loses its power: what was not flushed is gone."""
        self.files = self.files[: max(self.durable - self.begin, 0) // RECORD]
        self.start()

    def stop(self) -> None:
        self.todo += (self._happened(events.StopAsked()),)

    def without_queues(self) -> None:
        """The follower is killed, and started again so that it builds no queues."""
        self.settings = replace(self.settings, build_queues=False)
        self.start()

    def flush(self) -> None:
        if self.flushes and not self.is_failed:
            given, self.flushes = self.flushes[0], self.flushes[1:]
            self._send_mail(self._flushed, given)

    def build(self) -> None:
        if self.builds and not self.is_failed:
            order, self.builds = self.builds[0], self.builds[1:]
            self._send_mail(self._changed, order)

    def _send_mail(self, perform: Callable[[Any], Event], order: Any) -> None:
        try:
            event = perform(order)
        except FaultError as fault:
            event = events.Failed(fault.error, is_consistent=False, end=0)
            self.is_failed = True
        self.mail += (self._happened(event),)

    def be_late(self) -> None:
        """From here on the loop hears nothing of the threads and of the broker; or it does."""
        self.is_late = not self.is_late

    def repeat(self) -> None:
        self.todo += self.answers

    def new_topic(self) -> None:
        """The next records are of a topic that no table has."""
        self.is_new_topic = True
        self.append(1)

    def wait(self) -> None:
        self.now += 6.0

    # ---- how it goes on

    is_over = is_failed = is_abandoned = False

    def start(self) -> None:
        """Start a follower on what the disk has."""
        if self.saved is not None:
            require(self.saved.end <= self.end, "the state is ahead of the log")
            self._check_queues(self.saved)
        self.connection, self.held, self.error = None, 0, None
        self.flushes = self.builds = self.reads = self.backlog = ()
        self.mail = self.asked = self.answers = ()
        self.is_late = self.is_lost = self.is_failed = self.is_closed = False
        self.is_over = self.is_abandoned = False
        self.faults = frozenset()
        self.durable = min(self.durable, self.end)
        self.state = first_replica_state(
            self.settings, ROOT, "127.0.0.1:1", self.saved, now=self.now, epoch_ms=self.epoch_ms
        )
        self.todo = (self._happened(events.Started()),)

    def _happened(self, event: Event, asked: Asked | None = None) -> Happened:
        return Happened(self.now, self.epoch_ms, event, asked)

    @property
    def epoch_ms(self) -> int:
        return int(self.now * 1000)

    def happen(self, name: str) -> None:
        """Let one thing happen, and the replica do what follows until it waits.

        A name that begins with ``fail:`` lets the next action of some kind fail.
        """
        if self.is_over and name not in ("kill", "lose_power"):
            return
        kind, _, fault = name.partition(":")
        if kind == "fail":
            self.faults |= {fault}
        else:
            getattr(self, name)()
        self.run()

    def run(self) -> None:
        for turn in range(_MOST_TURNS):
            self._decide()
            if self.is_over or (not self._send() and turn):
                return
        raise ViolatedError("the replica never waits")

    def _decide(self) -> None:
        while not self.is_over:
            if not self.todo and self.state.takes_bytes:
                self.todo, self.backlog = self.backlog[:1], self.backlog[1:]
            if not self.todo:
                return
            found, self.todo = self.todo[0], self.todo[1:]
            if isinstance(found.event, events.Failed) and self.is_failed:
                found = self._failure(found.event.error, is_consistent=False)
            self.now += 0.001
            found = found._replace(at=self.now, epoch_ms=self.epoch_ms)
            event = found.event
            if (
                isinstance(event, events.StateWritten)
                and event.saved.end > self.state.copy.saved_end
            ):
                self.flushed_at = self.now
            self.state, actions = self.decide(self.state, found)
            self.is_over = self.state.phase is Phase.ENDED
            results: tuple[Happened, ...] = ()
            try:
                for action in actions:
                    results += tuple(map(self._happened, self._perform(action)))
            except FaultError as fault:
                if self.is_over:  # an interrupt of the end itself
                    self.error, self.is_abandoned = fault.error, True
                elif isinstance(found.event, events.Failed):  # or of what an error leads to
                    self._failure(fault.error, is_consistent=False)
                    self.is_over = True
                    self._on_End(events.End(fault.error, is_complete=False))
                self.todo = (self._failure(fault.error, is_consistent=fault.is_consistent),)
            else:
                self.todo = results + self.todo

    def _failure(self, error: BaseException, *, is_consistent: bool) -> Happened:
        """Let both threads end what they do, and forget what they and the broker have answered."""
        for perform, orders in ((self._flushed, self.flushes), (self._changed, self.builds)):
            for order in orders:
                if not self.is_failed:
                    self._send_mail(perform, order)
        self.flushes = self.builds = self.mail = self.reads = self.backlog = ()
        is_consistent, self.is_failed = is_consistent and not self.is_failed, False
        return self._happened(events.Failed(error, is_consistent, self.end))

    def _meet(self, fault: str, error: BaseException, *, is_consistent: bool = False) -> None:
        if fault in self.faults:
            self.faults -= {fault}
            raise FaultError(error, is_consistent=is_consistent)

    def _send(self) -> bool:
        """Let the master send what it has, and some time pass; return whether anything came."""
        self._require_that_something_is_awaited()
        wait = wait_of(self.state)
        come: list[Event] = []
        has_come = False
        if not self.is_late:
            has_come = bool(self.mail or self.asked)
            self.todo, self.mail = self.todo + self.mail, ()
            self._answer_all()
        if wait.reads:
            come, self.reads = list(self.reads), ()
        if wait.reads and self.connection is not None and not come:
            request, position, n_epochs = self.connection
            stop = min(request + RECORD, self.high) if self.is_slow else self.high
            stop = min(stop, position + self.portion)
            if n_epochs != len(self.epochs):
                come.append(events.EpochsReported(self.epochs, position))
            if self.low <= position < stop:
                self.sent = self.log
                come.append(events.Received(position, stop))
            else:
                stop = position
                come.append(events.HeartbeatCame(position))
            self.connection = Connection(request, stop, len(self.epochs))
            if self.is_closing and stop == self.high:
                self.restart()
        has_come |= any(not isinstance(each, events.HeartbeatCame) for each in come)
        self.now += 0.1
        ticked = events.Ticked(self.is_drained)
        found = tuple(map(self._happened, (*come, ticked)))
        if wait.reads:
            self.backlog += found
        else:
            self.todo += found
        return has_come

    def _answer_all(self) -> None:
        if self.asked:
            self.answers = tuple(
                self._happened(self._answer(each), each.asked) for each in self.asked
            )
            self.todo, self.asked = self.todo + self.answers, ()

    def _require_that_something_is_awaited(self) -> None:
        """Require that the replica waits for what will come, and that nothing will come twice."""
        state, work = self.state, self.state.work
        asked = {each.asked for each in self.asked}
        require(state.link.asking <= asked, "an answer is awaited that cannot come")
        has_mail = [found.event for found in self.mail]
        is_flushing = bool(self.flushes) or any(isinstance(each, _FLUSHED) for each in has_mail)
        is_building = bool(self.builds) or any(isinstance(each, _BUILT) for each in has_mail)
        is_failed = any(isinstance(each, events.Failed) for each in has_mail)
        builds = work.building or work.takes_tables or work.changes_queues
        require(work.flushing == is_flushing or is_failed, "a flush is awaited that is not ordered")
        require(builds == is_building or is_failed, "queues are awaited that are not ordered")
        if state.is_streaming and not isinstance(state.work.change, Cutting):
            require(self.connection is not None or self.reads, "a stream without a connection")
            is_read = wait_of(state).reads or state.link.pending is not None
            require(is_read or state.link.rate_due > state.now, "a stream that nobody reads")
            is_ordered = bool(self.flushes or self.mail) or state.phase is Phase.COMPARING
            is_late = state.now - self.flushed_at > self.settings.sync_seconds + 1
            require(self.end <= self.durable or is_ordered or not is_late, "a flush is too late")
        if state.work.change is not None:
            is_asked = isinstance(state.work.change, Ending) and bool(work.unknown)
            require(work.is_busy or is_asked, "a change waits for nothing")
        elif state.phase in (Phase.ASKING, Phase.CONNECTING):
            present = {each for each in asked if each.connection == state.link.number}
            kinds = {each.question for each in present} - {Question.TABLES, Question.BOUNDS}
            require(kinds or state.work.is_stopping, f"{state.phase} waits for nothing")

    def settle(self) -> None:
        """Let nothing else happen: the copy has to become the master's log, or to end by name.

        After an error of the disk, or an interrupt, the follower is started once more.
        """
        self.is_slow = self.is_late = self.is_closing = False
        self.is_drained = True
        self.portion = 1 << 20
        self.faults = frozenset()
        self.run()
        for _ in range(_MOST_TURNS):
            if self.is_over:
                if not self._may_continue():
                    return
                self.start()
            for name in ("flush", "build", "flush", "build", "wait"):
                self.happen(name)
            if self._is_exact() and self.state.work.change is None:
                return
        raise ViolatedError(f"no progress: {self.state.phase}, {self.state.work.change}")

    def _may_continue(self) -> bool:
        """Return whether the same call continues a copy, which has to have ended by name."""
        error, state = self.error, self.state
        is_ours = error is None or isinstance(error, RmqStoreError)
        require(is_ours or isinstance(error, (OSError, KeyboardInterrupt)), f"it ends: {error!r}")
        is_left = self.is_abandoned or state.copy.unconfirmed_from is not None or self.is_new_topic
        require(self.is_closed or is_left or self.saved is None, "it ends, and is not closed")
        require(not (self.connection and self.is_closed), "a connection is left open")
        return self.is_abandoned

    def _is_exact(self) -> bool:
        own = self.log[self.begin // RECORD :]
        saved = self.saved
        if saved is None or self.files != own or saved.end != self.end:
            return False
        return saved.built == saved.end or not saved.builds_queues

    # ---- what is performed, and what must hold then

    def _check_log(self) -> None:
        first = self.begin // RECORD
        are_same = any(log[first : first + len(self.files)] == self.files for log in self.histories)
        require(are_same, "the copy is a part of no log that the master had")

    def _perform(self, action: Action) -> list[Event]:
        name = type(action).__name__
        if not isinstance(action, events.End):
            self._meet("interrupt", KeyboardInterrupt(), is_consistent=True)
        perform = getattr(self, f"_on_{name}", None)
        if perform is not None:
            event = perform(action)
            return [] if event is None else [event]
        if isinstance(action, (*_FLUSHES, *_BUILDS)):
            self._meet("order", KeyboardInterrupt(), is_consistent=True)
        if isinstance(action, _FLUSHES):
            require(not self.flushes, "an order while another one is performed")
            self.flushes += ((action, self.end),)
        elif isinstance(action, _BUILDS):
            self.builds += (action,)
        elif name in ("Ask", "Connect"):
            self.asked += (action,)
        else:
            require(name in ("Log", "ReportProgress"), f"{name} is not known")
        return []

    def _flushed(self, given: tuple[Action, int]) -> Event:
        order, end = given
        if isinstance(order, events.Flush):
            if "flush" in self.faults:
                self.is_lost = True
            self._meet("flush", OSError(5, "Input/output error"))
            require(order.end <= self.end, "a flush of more than there is")
            self.durable = end  # of all that was written, also of what is not confirmed
            return events.Flushed(order.end, 0)
        self._meet("state", OSError(28, "No space left on device"))
        self._write_state(order)
        return events.StateWritten(order.saved)

    def _write_state(self, order: events.WriteState) -> None:
        saved, epochs = order.saved, order.epochs
        require(saved.end <= self.durable, "the state is ahead of the disk")
        self._check_queues(saved)
        require(saved.begin <= saved.end, "the state has no log")
        if self.is_controlled:
            self._check_epochs(saved, epochs)
        self.saved, self.noted_epochs = saved, epochs

    def _check_queues(self, saved: FollowState) -> None:
        is_empty = saved.begin == saved.end  # so no queue has anything
        require(is_empty or saved.built <= self.built, "the state is ahead of the queues")

    is_controlled = False

    def _check_epochs(self, saved: FollowState, epochs: tuple[Epoch, ...]) -> None:
        first = (saved.begin - self.begin) // RECORD
        records = self.files[max(first, 0) : (saved.end - self.begin) // RECORD]
        numbers = {record.epoch for record in records}
        noted = {epoch.number for epoch in epochs}
        is_empty = saved.begin == saved.end  # and its next record may be of the epoch
        require(noted <= numbers or is_empty, "an epoch is noted that no record has")
        # What was only found when the copy was opened has its epochs once it is compared.
        is_sure = self.state.link.is_confirmed and self.state.work.change is None
        require(noted == numbers or not is_sure, "an epoch is not noted")

    def _changed(self, order: Action) -> Event:
        self._meet("queues", OSError(28, "No space left on device"))
        saved = self.saved
        assert saved is not None
        if isinstance(order, events.Build):
            require(order.end <= saved.end, "queues of what the state does not cover")
            unknown = {"N"} - order.kinds.plain if self.is_new_topic else set()
            if not unknown:
                self.is_new_topic = False
                self.built = max(self.built, order.end)
            return events.Built(self.built, self.built, frozenset(unknown), 0.0)
        if isinstance(order, events.TakeTables):
            high = order.facts.bounds.high
            end = self.built if saved.builds_queues else saved.end
            require(high <= end, "tables that speak of more than the copy has")
            self.tables = high
            return events.TablesWritten()
        if isinstance(order, events.PlanCut):
            return events.QueuesChanged(min(self.built, order.end))
        if isinstance(order, events.CutQueues):
            require(saved.built <= order.end, "queues are cut before the state says so")
            self.built = order.end if order.is_new else min(self.built, order.end)
        if isinstance(order, events.DeleteOldQueues) and self.built < order.begin:
            require(saved.built <= self.begin, "queues are deleted before the state says so")
            self.built = self.begin
        return events.QueuesChanged(self.built)

    def _answer(self, action: Any) -> Event:
        question = action.asked.question
        for fault in self.faults & UNANSWERED.keys():
            self.faults -= {fault}
            error = UNANSWERED[fault]
            is_lost = question is Question.CONNECTION and isinstance(error, BrokerUnreachableError)
            return events.Lost("nobody") if is_lost else events.Unanswered(error)
        if question is Question.CONNECTION:
            self.n_greeted = len(self.epochs)
            if not self.is_controlled:
                return events.Connected(None, is_public=False)
            require(action.learner_id, "no handshake")
            return events.Connected(Handshake(self.high, list(self.epochs)), is_public=False)
        bounds = LogBounds(self.low, self.high)
        if question in (Question.FACTS, Question.TABLES):
            tables: Any = {"topics.json": self.n_made}
            kinds = TopicKinds(frozenset(), frozenset({"T"}))
            facts = Facts(ServedSettings({}, ()), tables, bounds, self.now, self.now, kinds)
            mode = "controller" if self.is_controlled else "default"
            source = SOURCE._replace(file_size=FILE, mode=mode)  # type: ignore[arg-type]
            return events.Answered(facts, source)
        if question is Question.RECORD:
            return events.RecordReported(b"")
        return events.BoundsReported(bounds, action.position)

    def _on_Open(self, action: events.Open) -> Event:  # noqa: N802
        builds, self.flushed_at = action.builds_queues, self.now
        begin = max(action.saved.begin, self.begin) if self.files else action.saved.begin
        saved = action.saved.opened(begin, builds_queues=builds)
        if self.saved is None:
            self.begin = self.durable = self.built = saved.begin
        end = saved.end if saved.end == saved.last_cut else self.end
        self._cut_files(end, is_kept=True)
        self.built = min(saved.built, saved.end)
        self.saved = saved
        epochs = tuple(epochs_within(self.noted_epochs, saved.begin, saved.end))
        return events.Opened(saved, self.end, 0, epochs)

    def _cut_files(self, end: int, *, is_kept: bool) -> None:
        left = (end - self.begin) // RECORD
        gone = self.files[left:]
        if is_kept:
            self.kept |= {*gone}
        self.files = self.files[:left]
        require(self.kept >= {*gone}, "bytes are thrown away")

    def _on_FindStart(self, action: events.FindStart) -> Event:  # noqa: N802
        wanted, begin, _ = action
        compared = max(min(wanted - -wanted % -RECORD, self.end), begin)
        is_record = compared < self.end
        return events.StartFound(compared, compared + RECORD if is_record else None)

    def _on_Request(self, action: events.Request) -> None:  # noqa: N802
        self.connection = Connection(action.position, action.position, self.n_greeted)
        if action.has_zero:
            self.held += 1

    def _on_Report(self, action: events.Report) -> None:  # noqa: N802
        if action.offset == NEVER:
            return
        require(self.saved is not None and action.offset <= self.saved.end, "more is acknowledged")
        require(action.offset <= self.durable, "what is acknowledged is not on the disk")

    def _on_Disconnect(self, _: events.Disconnect) -> None:  # noqa: N802
        self.connection, self.reads, self.backlog = None, (), ()

    def _on_ForgetBegun(self, _: events.ForgetBegun) -> None:  # noqa: N802
        self.held = 0

    def _on_Compare(self, action: events.Compare) -> Event:  # noqa: N802
        start, stop, _, expected = action
        if expected is None:
            for place in range(start - start % RECORD, stop, RECORD):
                own, inside = self.files[(place - self.begin) // RECORD], place + RECORD // 2
                if start <= inside < stop and self.sent[place // RECORD] != own:
                    return events.Differed(inside, place, "other bytes")
        return events.Agreed(start, stop)

    def _on_FindBoundary(self, action: events.FindBoundary) -> Event:  # noqa: N802
        position = action.position
        return events.Differed(position, position - position % RECORD, action.reason)

    def _on_Buffer(self, action: events.Buffer) -> Event | None:  # noqa: N802
        require(action.start == self.end + self.held, "other bytes than those that follow")
        self.held, self.held_of = self.held + action.stop - action.start, self.sent
        return self._on_Write(events.Write()) if self.held >= BUFFER else None

    def _on_Write(self, _: events.Write) -> Event:  # noqa: N802
        self._meet("write", OSError(28, "No space left on device"))
        if "damage" in self.faults:
            self.faults -= {"damage"}
            self.held = 0
            return events.Written(self.end, 0, CorruptRecordError("log", self.end, "no record"))
        count, self.held = divmod(self.held, RECORD)
        if self.durable >= self.end:
            self.flushed_at = self.now
        first = self.end // RECORD
        self.files += self.held_of[first : first + count]
        self._check_log()
        return events.Written(self.end, 0)

    def _on_Cut(self, action: events.Cut) -> Event:  # noqa: N802
        assert self.saved is not None
        require(self.saved.end <= action.end, "the log is cut before the state says so")
        require(action.end % RECORD == 0, "a record is cut in two")
        first = action.end // RECORD
        if action.begins_at is None and len(self.log) > first:
            is_other = self.log[first] != self.files[(action.end - self.begin) // RECORD]
            require(is_other, "a record is cut that the master has")
        self._meet("cut", OSError(5, "Input/output error"))
        self._cut_files(action.end, is_kept=action.kept_in is not None)
        self.durable, self.held = min(self.durable, self.end), action.differs_at - action.end
        if action.begins_at is not None:
            require(not self.files, "a log with records begins again")
            self.begin = self.durable = action.begins_at
        return events.LogCut(self.end, 0)

    def _on_FindOldFiles(self, action: events.FindOldFiles) -> Event:  # noqa: N802
        low = min(action.source_begin or 0, action.built)
        begin = min(low - low % FILE, self.end - self.end % FILE)
        found = begin if begin > self.begin else None
        return events.OldFilesFound(self.begin, found, min(self.needed, action.built))

    def _on_DeleteOldFiles(self, action: events.DeleteOldFiles) -> Event:  # noqa: N802
        assert self.saved is not None
        require(self.saved.begin >= action.begin, "files go before the state says so")
        is_built = action.begin <= self.saved.built or not self.saved.builds_queues
        require(is_built, "files go whose queues are not built")
        is_over = not self.begin < self.built < action.begin
        require(is_over, "files go after which the queues have a gap")
        self._meet("delete", OSError(5, "Input/output error"))
        require(action.begin <= self.needed, "files go that a stream needs")
        self.files = self.files[(action.begin - self.begin) // RECORD :]
        self.begin = action.begin
        return events.StepDone()

    def _on_MarkClosed(self, action: events.MarkClosed) -> Event:  # noqa: N802
        saved = self.saved
        assert saved is not None
        is_built = saved.built == saved.end or not saved.builds_queues
        is_right = saved.is_closed and saved.end == action.end == self.end and is_built
        require(is_right, "a store is marked as closed that is not complete")
        self.is_closed = True
        return events.StepDone()

    def _on_MoveAside(self, _: events.MoveAside) -> Event:  # noqa: N802
        self._meet("rename", OSError(5, "Input/output error"))
        self.kept |= {*self.files}
        self.files, self.saved, self.noted_epochs = (), None, ()
        return events.SetAside(ROOT.with_name("aside"))

    def _on_End(self, action: events.End) -> None:  # noqa: N802
        self.error, self.is_abandoned = action.error, not action.is_complete
        goal = self.state.copy.goal
        is_complete = goal is not None and self.end >= goal
        is_unreachable = isinstance(self.error, BrokerUnreachableError)
        is_wrong = is_complete and is_unreachable and self.state.link.is_confirmed
        require(not is_wrong, "an error of a copy that is complete")
        if self.is_abandoned and self.state.copy.is_open and not self.is_lost:
            self.durable = self.end
            _, order = state_to_leave(self.state, self.end)
            assert order is not None
            self._write_state(order)


class ControlledWorld(World):
    """The master is one of a group in controller mode."""

    is_controlled = True

    def __init__(self, decide: Decide, **settings: Any) -> None:
        super().__init__(decide, **{"acknowledge": "never", **settings})


def decide_as_it_is(state: ReplicaState, found: Happened) -> tuple[ReplicaState, list[Action]]:
    """Decide, also after a step was exchanged for another one."""
    return dispatch.decide(state, found)
