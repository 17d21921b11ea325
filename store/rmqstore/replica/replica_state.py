"""The state of a replica: one value, which every event replaces, and what can be read from it."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptRecordError
from rmqstore.replica import events
from rmqstore.replica.agreement import FirstRecord
from rmqstore.replica.broker import Facts, Source
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Action, Asked, Question
from rmqstore.replica.ha import NEVER, Handshake
from rmqstore.replica.settings import FollowSettings, Timing
from rmqstore.replica.state import FollowProgress, FollowState
from rmqstore.storage.broker.epochs import Epoch

# Bytes that are written together while there is much to copy: many records can be walked at once.
BATCH_BYTES: Final = 8 << 20
# Syncs, which have a thread of their own, take at most about half of its time while there is little
# to copy.
_SYNC_SHARE: Final = 1.0
_SYNC_SECONDS: Final = 0.05
_LINGER_SECONDS: Final = 0.005  # that bytes wait for others, to be written with them
LONG_AGO: Final = float("-inf")


class Phase(Enum):
    """What a replica is about."""

    ASKING = "the broker is asked for its settings, its tables and the bounds of its log"
    CONNECTING = "the follower finds the place to compare from, and connects"
    COMPARING = "bytes that come are compared with the copy"
    APPENDING = "bytes that come are appended"
    PAUSING = "the next connection has to wait"
    CLOSING = "the copy is completed"
    ENDED = "nothing more is done"


STREAMING: Final = (Phase.COMPARING, Phase.APPENDING)


class Place(NamedTuple):
    """Where the copy is, and where its broker."""

    root: Path
    address: str


class Copy(NamedTuple):
    """What the copy has, in memory, in its files and on the disk."""

    noted: FollowState | None  # what the state file has to say; None until a new copy is opened
    is_open: bool = False
    end: int = 0  # physical offset after the last whole record in the files
    durable: int = 0  # the same of what is on the disk, and not in doubt
    saved_end: int = 0  # the same of what the state file covers
    doubted_from: int | None = None  # records from here on have yet to be compared
    n_held: int = 0  # bytes that came since the last write
    held_at: float = LONG_AGO  # when the first of them came
    built: int = 0  # up to where queues and index are on the disk
    last_time: int = 0  # of the last record, epoch ms; 0 if unknown
    epochs: tuple[Epoch, ...] = ()

    @property
    def saved(self) -> FollowState:
        """What the state file has to say."""
        assert self.noted is not None
        return self.noted

    @property
    def sure_end(self) -> int:
        """Physical offset up to which nothing is in doubt."""
        return self.end if self.doubted_from is None else self.doubted_from


class Broker(NamedTuple):
    """What the broker reported, and what it is being asked."""

    bounds: LogBounds = LogBounds(0, 0)
    bounds_at: float = LONG_AGO
    answered_at: int = 0  # epoch ms
    known_source: Source | None = None
    timing: Timing = Timing()
    newest: Facts | None = None
    untaken: Facts | None = None  # whose tables wait for the copy
    agreed_at: float = LONG_AGO  # when its log was last known to be the copy's
    agreed_low: int | None = None  # where it began then; later bounds may be of another broker
    asking: frozenset[Asked] = frozenset()
    asked_at: float = LONG_AGO
    tables_at: float = LONG_AGO

    @property
    def source(self) -> Source:
        """The broker, once it has answered."""
        assert self.known_source is not None
        return self.known_source

    def is_asked(self, *questions: Question) -> bool:
        """Return whether the answer to one of these is awaited, whichever connection it is for."""
        return any(asked.question in questions for asked in self.asking)


class Comparison(NamedTuple):
    """From where on the logs are compared, and what that can show."""

    bounds: LogBounds  # of what the broker serves
    is_related: bool  # whether they may have a common part before
    n_bytes: int
    compared: int = 0
    agreed_from: int | None = None
    first: FirstRecord = FirstRecord(0, b"")


class Stream(NamedTuple):
    """One connection."""

    comparison: Comparison
    handshake: Handshake | None
    position: int = 0  # of the next byte to come
    epochs: tuple[Epoch, ...] = ()
    confirm_offset: int = -1
    received_at: float = LONG_AGO
    data_at: float = LONG_AGO
    reported: int = NEVER
    reported_at: float = LONG_AGO
    has_begun: bool = False  # whether the broker has answered in this protocol
    # What is decided about when what is held is written.
    waiting: events.HeartbeatCame | events.Lost | None = None
    # What follows once the broker has said where its log ends: this ends the connection.
    pending: str | CorruptRecordError | None = None


class Order(NamedTuple):
    """Up to where queues are to be built, and since when that is known."""

    end: int = 0
    at: float = LONG_AGO
    retry_at: float = LONG_AGO  # when the broker is asked again for kinds of its topics


class Work(NamedTuple):
    """What the two threads do, and what they are to do next."""

    flushing: bool = False  # the log or the state is being brought to the disk
    building: bool = False
    takes_tables: bool = False
    changes_queues: bool = False
    ordered_at: float = LONG_AGO  # when the thread that flushes was given its last order
    flush_seconds: float = 0.0  # that the last flush took, with the state after it
    synced_at: float = LONG_AGO
    written: int = 0  # up to where queues are built, which the disk may not have
    next_build_at: float = LONG_AGO
    order: Order = Order()  # the last one to build
    unknown: frozenset[str] = frozenset()  # topics whose kind is asked for
    plain: frozenset[str] = frozenset()  # topics that the broker did not know when it was asked

    @property
    def sync_rest(self) -> float:
        """Seconds after which the log is flushed again while there is little to copy."""
        return max(_SYNC_SECONDS, _SYNC_SHARE * self.flush_seconds)

    @property
    def is_busy(self) -> bool:
        """Whether one of the threads has something to do."""
        return self.flushing or self.building or self.takes_tables or self.changes_queues


class Attempts(NamedTuple):
    """The connections so far, and the end of all of them."""

    number: int = 0  # of the present one
    began: float = LONG_AGO
    next_at: float = LONG_AGO
    overlap: int = 0
    goal: int | None = None  # physical offset at which the copy is complete
    reasons: frozenset[str] = frozenset()  # why there is no connection, as was logged
    is_confirmed: bool = False  # whether the logs have agreed since the last one began
    is_idle: bool = False  # the broker said that it has no more
    is_public: bool = False  # whether it was logged that the other side is in the internet
    is_stopping: bool = False
    error: BaseException | None = None  # why it is
    begins_anew: bool = False  # the copy before was set aside


class Timers(NamedTuple):
    """When something was done last, or is due."""

    progress_at: float = LONG_AGO
    state_at: float = LONG_AGO
    retained_at: float = LONG_AGO
    rate_due: float = LONG_AGO
    end_asked_at: float = LONG_AGO
    is_drained: bool = False


class Cutting(NamedTuple):
    """An end of the log that is cut, and how many steps are done."""

    end: int
    place: int
    reason: str
    epoch_ms: int
    begins_at: int | None = None  # where a copy without a record begins again then
    step: int = 0


class Retaining(NamedTuple):
    """Old files that are deleted, and how many steps are done; the stream continues."""

    first: int  # where the log begins before
    begin: int
    then: Ending | None  # what follows
    step: int = 0


class Ending(NamedTuple):
    """The end, and how many steps are done."""

    error: BaseException | None
    sets_aside: LogBounds | None = None  # what the broker serves when a new copy has to begin
    unknown_since: float | None = None  # the kind of a topic, which the broker is asked for
    gave_up: bool = False  # it has not answered
    step: int = 0


Change = Cutting | Retaining | Ending


class ReplicaState(NamedTuple):
    """All that a replica knows; every event replaces it."""

    settings: FollowSettings
    place: Place
    now: float
    epoch_ms: int
    copy: Copy
    attempts: Attempts
    phase: Phase = Phase.ASKING
    broker: Broker = Broker()
    stream: Stream | None = None
    work: Work = Work()
    timers: Timers = Timers()
    change: Change | None = None

    @property
    def is_held_up(self) -> bool:
        """Whether what comes has to wait: an end is cut, or it is the end."""
        return not (self.change is None or isinstance(self.change, Retaining))

    @property
    def takes_bytes(self) -> bool:
        """Whether it can be decided about the next bytes that came."""
        is_pending = self.stream is not None and self.stream.pending is not None
        return not (self.is_held_up or is_pending)

    @property
    def connection(self) -> Stream:
        """The stream, where there is one."""
        assert self.stream is not None
        return self.stream


Decision = tuple[ReplicaState, list[Action]]


def first_replica_state(
    settings: FollowSettings,
    place: Place,
    saved: FollowState | None,
    *,
    now: float,
    epoch_ms: int,
) -> ReplicaState:
    """Return the state of a replica that begins, of a copy whose state file says something."""
    attempts = Attempts(overlap=settings.overlap, goal=settings.until)
    timers = Timers(progress_at=now, state_at=now)
    return ReplicaState(settings, place, now, epoch_ms, Copy(saved), attempts, timers=timers)


def patience(state: ReplicaState) -> float:
    """Return how many seconds may pass without a byte."""
    timing, stream = state.broker.timing, state.stream
    has_begun = stream is not None and stream.has_begun
    return timing.silence if has_begun else timing.first_header


def is_stalled(state: ReplicaState) -> bool:
    """Return whether a flush takes too long: a broker keeps files for whoever reports.

    The log may take its time to come to the disk while there is much to copy.
    """
    work, stall = state.work, state.broker.timing.stall
    return work.flushing and state.now - work.ordered_at > stall and not is_behind(state)


def is_behind(state: ReplicaState) -> bool:
    """Return whether there is so much to copy that nobody waits for a part of it."""
    return state.stream is not None and (
        state.broker.bounds.high - state.stream.position > BATCH_BYTES
    )


def has_arrived(state: ReplicaState) -> bool:
    """Return whether the copy is as far as was asked for."""
    attempts = state.attempts
    is_far_enough = attempts.goal is not None and state.copy.end >= attempts.goal
    return state.phase is Phase.APPENDING and (
        is_far_enough or (attempts.is_idle and state.settings.once)
    )


def seconds_behind(state: ReplicaState) -> float:
    """Return how old the newest record is, 0 if the broker is not known to have more."""
    last = state.copy.last_time
    if state.copy.durable >= state.broker.bounds.high or not last:
        return 0.0
    return round(max((state.epoch_ms - last) / 1000, 0.0), 3)


def progress_of(state: ReplicaState) -> FollowProgress:
    """Return how far a copy is."""
    copy, saved = state.copy, state.copy.noted
    if saved is None:
        return FollowProgress(0, 0, 0, 0, 0.0, 0, 0, 0)
    if not copy.is_open:  # the broker has not answered yet
        high = max(saved.source_end, saved.end)
        return FollowProgress(
            saved.begin, saved.end, high, high - saved.end, saved.behind_seconds, saved.built,
            0, saved.n_cuts, saved.source_at,
        )  # fmt: skip
    end, high = copy.durable, max(state.broker.bounds.high, copy.end)
    return FollowProgress(
        saved.begin, end, high, high - end, seconds_behind(state), copy.built,
        saved.n_connections, saved.n_cuts, state.broker.answered_at,
        state.stream is not None and state.attempts.is_confirmed,
    )  # fmt: skip


def agree(state: ReplicaState) -> ReplicaState:
    """Take note that the log of the broker is now known to be the copy's, if it is."""
    broker, stream, now = state.broker, state.connection, state.now
    if not stream.comparison.first.has_come:
        return state
    low = broker.bounds.low if broker.bounds_at <= now else broker.agreed_low
    state = state._replace(broker=broker._replace(agreed_at=now, agreed_low=low))
    if state.attempts.is_confirmed:
        return state
    copy = state.copy
    saved = copy.saved.confirmed(broker.source, state.place.address)
    attempts = state.attempts._replace(is_confirmed=True)
    return learn_epochs(state._replace(copy=copy._replace(noted=saved), attempts=attempts))


def learn_epochs(state: ReplicaState) -> ReplicaState:
    """Take the epochs of the broker, whose log was found to be the copy's.

    The copy may have older ones, which the broker forgets together with its files.
    """
    stream, copy = state.connection, state.copy
    if stream.handshake is None:
        return state
    first = stream.epochs[0]
    older = [
        epoch
        for epoch in copy.epochs
        if epoch.number < first.number and epoch.start_offset <= first.start_offset
    ]
    saved = replace(copy.saved, confirm_offset=stream.confirm_offset)
    return state._replace(copy=copy._replace(epochs=(*older, *stream.epochs), noted=saved))


def linger(state: ReplicaState) -> float:
    """Return how long bytes wait for others; producers wait for what is acknowledged."""
    return _LINGER_SECONDS if state.settings.acknowledge == "never" else 0.0


def wait_of(state: ReplicaState) -> events.Wait:
    """Return how the loop waits when there is nothing else to do."""
    timing, stream = state.broker.timing, state.stream
    if stream is None or state.phase not in STREAMING or state.is_held_up:
        return events.Wait(timing.poll, reads=False)
    rest = state.timers.rate_due - state.now
    if rest > 0 or stream.pending is not None:
        return events.Wait(min(max(rest, 0.01), timing.report / 4, timing.poll), reads=False)
    is_soon = bool(state.copy.n_held) and not is_behind(state)
    seconds = linger(state) if is_soon else timing.poll
    return events.Wait(max(min(seconds, _next_due(state) - state.now), 0.0), reads=True)


def _next_due(state: ReplicaState) -> float:
    """Return when a thread may do something that is there to do, as far as that is near."""
    copy, work, due = state.copy, state.work, float("inf")
    # Others are flushed with what comes next: nobody waits for them.
    waits = state.settings.acknowledge == "synced"
    if waits and not work.flushing and copy.sure_end > copy.durable and not is_behind(state):
        due = work.synced_at + work.sync_rest
    if not work.building and copy.built < copy.saved_end and work.written < copy.saved_end:
        due = min(due, work.next_build_at)
    return due if due > state.now else float("inf")


def is_write_due(state: ReplicaState) -> bool:
    """Return whether what is held is written: together with what comes within a moment."""
    copy, stream, goal = state.copy, state.connection, state.attempts.goal
    waited = state.now - copy.held_at
    is_enough = goal is not None and stream.position >= goal
    if is_enough or waited >= state.settings.sync_seconds or copy.n_held >= BATCH_BYTES:
        return True
    # While much is missing, more comes soon: each write costs some time of its own.
    return state.timers.is_drained and waited >= linger(state) and not is_behind(state)
