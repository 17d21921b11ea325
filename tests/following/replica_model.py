"""A model of a master and of a copy, which performs what a replica decides and checks each step.

Every record has 10 bytes and every file 5 records. A record is a number that no other one has, and
its epoch. A master may append, lose its end, go on differently, delete its first file, fall silent,
restart and switch; a follower may be killed, with or without the power, or stopped. Orders for the
two threads are performed only when the explorer says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from following.replicas import SOURCE
from rmqstore.errors import RmqStoreError
from rmqstore.replica import decisions, events
from rmqstore.replica.broker import Facts, TopicKinds
from rmqstore.replica.events import Action, Event, Question
from rmqstore.replica.ha import NEVER, Greeting
from rmqstore.replica.remoting import LogBounds, ServedSettings
from rmqstore.replica.replica_state import Phase, Place, ReplicaState, first_replica_state, wait_of
from rmqstore.replica.retention import Retention
from rmqstore.replica.settings import FollowSettings, Timing
from rmqstore.replica.state import FollowState, epochs_within
from rmqstore.storage.broker.epochs import Epoch

RECORD = 10
FILE = 50
ROOT = Path("/copy")
_MOST_TURNS = 40

Decide = Callable[[ReplicaState, Event], tuple[ReplicaState, list[Action]]]
Mutant = Callable[[Decide], Decide]


class Record(NamedTuple):
    """A record."""

    number: int
    epoch: int


class Connection(NamedTuple):
    """A connection: what was asked for, what comes next, and the epochs that were announced."""

    request: int
    position: int
    n_epochs: int


class ViolatedError(AssertionError):
    """What must never be."""


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
        self.todo: tuple[Event, ...] = ()
        self.reads: tuple[Event, ...] = ()
        self.error: BaseException | None = None
        self.fails_next = False
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

    @property
    def is_over(self) -> bool:
        return self.state.phase is Phase.ENDED

    # ---- what may happen

    def append(self, count: int = 2) -> None:
        for _ in range(count):
            self.n_made += 1
            self.log += (Record(self.n_made, self.epochs[-1].number),)
        self.histories += (self.log,)

    def lose(self, count: int = 2) -> None:
        """The master loses its end, and restarts."""
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
        """An epoch begins without another master."""
        self.epochs += (Epoch(self.epochs[-1].number + 1, self.high),)
        self.append(1)

    def commit(self) -> None:
        """A stream has read everything."""
        self.needed = 1 << 40

    def delete(self) -> None:
        """The master deletes its first file, if it is not the last one."""
        if self.low + FILE < self.high:
            self.low += FILE

    def fall_silent(self) -> None:
        """The master sends one record more on each connection, and heartbeats only."""
        self.is_slow = not self.is_slow

    def restart(self) -> None:
        """The connection ends."""
        if self.connection is not None:
            self.connection = None
            self.reads = (*self.reads, events.Lost(self.now, "closed"))

    def kill(self) -> None:
        """The follower is killed, and started again."""
        self.start()

    def lose_power(self) -> None:
        """The computer of the follower loses its power: what was not flushed is gone."""
        self.files = self.files[: max(self.durable - self.begin, 0) // RECORD]
        self.start()

    def stop(self) -> None:
        """Somebody asks for the end."""
        self.todo += (events.StopAsked(self.now),)

    def fail(self) -> None:
        """The next flush fails, as on a full disk."""
        self.fails_next = True

    def flush(self) -> None:
        """The thread that flushes performs an order."""
        if self.flushes:
            given, self.flushes = self.flushes[0], self.flushes[1:]
            self.todo += (self._flushed(*given),)

    def build(self) -> None:
        """The thread that builds performs an order."""
        if self.builds:
            order, self.builds = self.builds[0], self.builds[1:]
            self.todo += (self._changed(order),)

    def wait(self) -> None:
        """Some time passes."""
        self.now += 6.0

    # ---- how it goes on

    def start(self) -> None:
        """Start a follower on what the disk has."""
        if self.saved is not None:
            require(self.saved.end <= self.end, "the state is ahead of the log")
            require(self.saved.built <= self.built, "the state is ahead of the queues")
        self.connection, self.held, self.error = None, 0, None
        self.flushes = self.builds = self.reads = ()
        self.fails_next = self.is_closed = False
        self.durable = min(self.durable, self.end)
        place = Place(ROOT, "127.0.0.1:1", reports_all=True)
        self.state = first_replica_state(
            self.settings, place, self.saved, now=self.now, epoch_ms=self.epoch_ms
        )
        self.todo = (events.Started(self.now),)

    @property
    def epoch_ms(self) -> int:
        return int(self.now * 1000)

    def happen(self, name: str) -> None:
        """Let one thing happen, and the replica do what follows until it waits."""
        if not self.is_over:
            getattr(self, name)()
            self.run()

    def run(self) -> None:
        for turn in range(_MOST_TURNS):
            self._decide()
            if self.is_over or (not self._send() and turn):
                return
        raise ViolatedError("the replica never waits")

    def _decide(self) -> None:
        while self.todo and not self.is_over:
            event, self.todo = self.todo[0], self.todo[1:]
            self.now += 0.001
            self.state, actions = self.decide(self.state, event._replace(at=self.now))
            found: tuple[Event, ...] = ()
            for action in actions:
                found += tuple(self._perform(action))
            self.todo = found + self.todo

    def _send(self) -> bool:
        """Let the master send what it has, and some time pass; return whether anything came."""
        wait = wait_of(self.state)
        come: list[Event] = []
        if wait.reads:
            come, self.reads = list(self.reads), ()
        if wait.reads and self.connection is not None and not come:
            request, position, n_epochs = self.connection
            stop = min(request + RECORD, self.high) if self.is_slow else self.high
            if n_epochs != len(self.epochs):
                come.append(events.EpochsReported(self.now, self.epochs, position))
            if self.low <= position < stop:
                self.sent = self.log
                come.append(events.Received(self.now, position, stop))
            else:
                stop = position
                come.append(events.HeartbeatCame(self.now, position))
            self.connection = Connection(request, stop, len(self.epochs))
        has_come = any(not isinstance(each, events.HeartbeatCame) for each in come)
        self.now += 0.1
        self.todo += (*come, events.Ticked(self.now, self.epoch_ms, is_drained=True))
        return has_come

    def settle(self) -> None:
        """Let nothing else happen: the copy has to become the master's log, or to end by name."""
        self.is_slow = False
        for _ in range(_MOST_TURNS):
            if self.is_over:
                is_named = self.error is None or isinstance(self.error, (RmqStoreError, OSError))
                require(is_named, f"it ends with {self.error!r}")
                is_left = (
                    isinstance(self.error, OSError) or self.state.copy.doubted_from is not None
                )
                require(self.is_closed or is_left, "it ends, and the copy is not closed")
                return
            for name in ("flush", "build", "flush", "build", "wait"):
                self.happen(name)
            if self._is_exact() and self.state.change is None:
                return
        raise ViolatedError(f"no progress: {self.state.phase}, {self.state.change}")

    def _is_exact(self) -> bool:
        own = self.log[self.begin // RECORD :]
        saved = self.saved
        return saved is not None and self.files == own and saved.end == saved.built == self.end

    # ---- what is performed, and what must hold then

    def _check_log(self) -> None:
        first = self.begin // RECORD
        are_same = any(log[first : first + len(self.files)] == self.files for log in self.histories)
        require(are_same, "the copy is a part of no log that the master had")

    def _perform(self, action: Action) -> list[Event]:
        name = type(action).__name__
        perform = getattr(self, f"_on_{name}", None)
        if perform is not None:
            event = perform(action)
            return [] if event is None else [event]
        if name in ("Flush", "WriteState"):
            self.flushes += ((action, self.end),)
        elif name in ("Build", "TakeTables", "PlanCut", "CutQueues", "DeleteOldQueues", "Complete"):
            self.builds += (action,)
        else:
            require(name in ("Log", "ReportProgress", "DropFetched"), f"{name} is not known")
        return []

    def _flushed(self, order: Action, end: int) -> Event:
        if self.fails_next:
            self.flushes = ()
            error = OSError(28, "No space left on device")
            return events.Failed(self.now, error, is_whole=False, end=self.end)
        if isinstance(order, events.Flush):
            require(order.end <= self.end, "a flush of more than there is")
            self.durable = end  # of all that was written, also of what is in doubt
            return events.Flushed(self.now, order.end, 0)
        saved, epochs = order.saved, order.epochs
        require(saved.end <= self.durable, "the state is ahead of the disk")
        require(saved.built <= self.built, "the state is ahead of the queues")
        require(saved.begin <= saved.end, "the state has no log")
        if self.is_controlled:
            self._check_epochs(saved, epochs)
        self.saved, self.noted_epochs = saved, epochs
        return events.StateWritten(self.now, saved, order.drops_fetched)

    is_controlled = False

    def _check_epochs(self, saved: FollowState, epochs: tuple[Epoch, ...]) -> None:
        first = (saved.begin - self.begin) // RECORD
        records = self.files[max(first, 0) : (saved.end - self.begin) // RECORD]
        numbers = {record.epoch for record in records}
        noted = {epoch.number for epoch in epochs}
        require(noted <= numbers, "an epoch is noted that no record has")
        # What was only found when the copy was opened has its epochs once it is compared.
        is_sure = self.state.attempts.is_confirmed and self.state.change is None
        require(noted == numbers or not is_sure, "an epoch is not noted")

    def _changed(self, order: Action) -> Event:
        if isinstance(order, events.Build):
            assert self.saved is not None
            require(order.end <= self.saved.end, "queues of what the state does not cover")
            self.built = order.end
            return events.Built(self.now, self.built, self.built, frozenset(), 0.0)
        if isinstance(order, events.TakeTables):
            high = order.facts.bounds.high
            require(high <= self.built, "tables that speak of more than the copy has")
            self.tables = high
            return events.TablesWritten(self.now, self.epoch_ms)
        if isinstance(order, events.PlanCut):
            return events.CutPlanned(self.now, min(self.built, order.end))
        if isinstance(order, events.CutQueues):
            assert self.saved is not None
            require(self.saved.built <= order.end, "queues are cut before the state says so")
            self.built = order.end if order.is_new else min(self.built, order.end)
        return events.QueuesChanged(self.now, self.built)

    def _on_Ask(self, action: events.Ask) -> Event:  # noqa: N802 - by the name of the action
        question, position, _ = action
        bounds = LogBounds(self.low, self.high)
        if question in (Question.FACTS, Question.TABLES):
            tables: Any = {"topics.json": self.n_made}
            kinds = TopicKinds(frozenset(), frozenset({"T"}))
            facts = Facts(ServedSettings({}, ()), tables, bounds, self.now, self.now, kinds)
            mode = "controller" if self.is_controlled else "default"
            source = SOURCE._replace(file_size=FILE, mode=mode)  # type: ignore[arg-type]
            return events.Answered(self.now, question, facts, source, self.epoch_ms)
        if question is Question.RECORD:
            return events.RecordReported(self.now, b"")
        if question is Question.MASTER:
            return events.MasterConfirmed(self.now)
        return events.BoundsReported(self.now, question, bounds, position, self.epoch_ms)

    def _on_Open(self, action: events.Open) -> Event:  # noqa: N802
        saved = action.saved.opened(action.saved.begin, builds_queues=True)
        if self.saved is None:
            self.begin = self.durable = self.built = saved.begin
        end = saved.end if saved.end == saved.last_cut else self.end
        self._cut_files(end, is_kept=True)
        self.built = min(saved.built, saved.end)
        saved = self.saved = saved.opened(saved.begin, builds_queues=True)
        epochs = tuple(epochs_within(self.noted_epochs, saved.begin, saved.end))
        return events.Opened(self.now, saved, self.end, 0, epochs)

    def _cut_files(self, end: int, *, is_kept: bool) -> None:
        left = (end - self.begin) // RECORD
        gone = self.files[left:]
        if is_kept:
            self.kept |= {*gone}
        self.files = self.files[:left]
        require(self.kept >= {*gone}, "bytes are thrown away")

    def _on_FindPlace(self, action: events.FindPlace) -> Event:  # noqa: N802
        wanted, begin, _ = action
        compared = max(min(wanted - -wanted % -RECORD, self.end), begin)
        is_record = compared < self.end
        return events.PlaceFound(self.now, compared, compared + RECORD if is_record else None)

    def _on_Connect(self, action: events.Connect) -> Event:  # noqa: N802
        greeting = None
        if self.is_controlled:
            require(action.learner_id, "no handshake")
            greeting = Greeting(self.high, list(self.epochs))
        return events.Connected(self.now, greeting, is_public=False)

    def _on_Request(self, action: events.Request) -> None:  # noqa: N802
        require(self.low <= action.position <= self.high, "a request for what the master has not")
        self.connection = Connection(action.position, action.position, len(self.epochs))
        if action.holds_zero:
            self.held += 1

    def _on_Report(self, action: events.Report) -> None:  # noqa: N802
        if action.offset == NEVER:
            return
        require(self.saved is not None and action.offset <= self.saved.end, "more is acknowledged")
        require(action.offset <= self.durable, "what is acknowledged is not on the disk")

    def _on_Disconnect(self, _: events.Disconnect) -> None:  # noqa: N802
        self.connection, self.reads = None, ()

    def _on_ForgetBegun(self, _: events.ForgetBegun) -> None:  # noqa: N802
        self.held = 0

    def _on_Compare(self, action: events.Compare) -> Event:  # noqa: N802
        start, stop, _, expected = action
        if expected is None:
            for place in range(start - start % RECORD, stop, RECORD):
                own = self.files[(place - self.begin) // RECORD]
                if self.sent[place // RECORD] != own:
                    inside = max(place + RECORD // 2, start)
                    reason = "other bytes"
                    return events.Differed(self.now, inside, place, reason, self.epoch_ms)
        return events.Agreed(self.now, start, stop)

    def _on_FindBoundary(self, action: events.FindBoundary) -> Event:  # noqa: N802
        place = action.place
        boundary = place - place % RECORD
        return events.Differed(self.now, place, boundary, action.reason, self.epoch_ms)

    def _on_Hold(self, action: events.Hold) -> None:  # noqa: N802
        require(action.start == self.end + self.held, "other bytes than those that follow")
        self.held, self.held_of = self.held + action.stop - action.start, self.sent

    def _on_Write(self, _: events.Write) -> Event:  # noqa: N802
        count, self.held = divmod(self.held, RECORD)
        first = self.end // RECORD
        self.files += self.held_of[first : first + count]
        self._check_log()
        return events.Written(self.now, self.end, 0)

    def _on_Cut(self, action: events.Cut) -> Event:  # noqa: N802
        assert self.saved is not None
        require(self.saved.end <= action.end, "the log is cut before the state says so")
        require(action.end % RECORD == 0, "a record is cut in two")
        first = action.end // RECORD
        if action.is_lost and len(self.log) > first:
            is_other = self.log[first] != self.files[(action.end - self.begin) // RECORD]
            require(is_other, "a record is cut that the master has")
        self._cut_files(action.end, is_kept=action.kept_in is not None)
        self.durable, self.held = min(self.durable, self.end), action.place - action.end
        return events.LogCut(self.now, self.end, 0)

    def _on_BeginAgain(self, action: events.BeginAgain) -> Event:  # noqa: N802
        require(not self.files, "a log with records begins again")
        self.begin = self.durable = action.begin
        return events.LogCut(self.now, action.begin, 0)

    def _on_FindOldFiles(self, action: events.FindOldFiles) -> Event:  # noqa: N802
        low = min(action.source_begin or 0, action.built)
        begin = min(low - low % FILE, self.end - self.end % FILE)
        found = begin if begin > self.begin else None
        return events.OldFilesFound(self.now, self.begin, found, min(self.needed, action.built))

    def _on_DeleteOldFiles(self, action: events.DeleteOldFiles) -> Event:  # noqa: N802
        assert self.saved is not None
        require(self.saved.begin >= action.begin, "files go before the state says so")
        require(action.begin <= self.saved.built, "files go whose queues are not built")
        require(action.begin <= self.needed, "files go that a stream needs")
        self.files = self.files[(action.begin - self.begin) // RECORD :]
        self.begin = action.begin
        return events.OldFilesDeleted(self.now)

    def _on_MarkClosed(self, action: events.MarkClosed) -> Event:  # noqa: N802
        saved = self.saved
        assert saved is not None
        is_right = saved.is_closed and saved.end == saved.built == action.end == self.end
        require(is_right, "a store is marked as closed that is not complete")
        self.is_closed = True
        return events.MarkedClosed(self.now)

    def _on_MoveAside(self, _: events.MoveAside) -> Event:  # noqa: N802
        self.kept |= {*self.files}
        self.files, self.saved, self.noted_epochs = (), None, ()
        return events.SetAside(self.now, ROOT.with_name("aside"))

    def _on_End(self, action: events.End) -> None:  # noqa: N802
        self.error = action.error

    def _on_Abandon(self, action: events.Abandon) -> None:  # noqa: N802
        self.error = action.error


class ControlledWorld(World):
    """The master is one of a group in controller mode."""

    is_controlled = True

    def __init__(self, decide: Decide, **settings: Any) -> None:
        super().__init__(decide, **{"acknowledge": "never", **settings})


def decide_as_it_is(state: ReplicaState, event: Event) -> tuple[ReplicaState, list[Action]]:
    """Decide, also after a step was exchanged for another one."""
    return decisions.decide(state, event)
