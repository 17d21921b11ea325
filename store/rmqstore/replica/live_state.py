"""The state of a replica: one value in three groups, with properties.

:class:`Link` is about the broker and the connection to it, :class:`Copy` is about the copy, and
:class:`Work` is about what the two threads do, what is due, and the change that is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

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
    CONNECTING = "the follower finds the offset to compare from, and connects"
    COMPARING = "bytes that come are compared with the copy"
    APPENDING = "bytes that come are appended"
    PAUSING = "the next connection has to wait"
    CLOSING = "the copy is completed"
    ENDED = "nothing more is done"


class Link(NamedTuple):
    """The broker, the connections to it, and the present one."""

    # What the broker reported.
    known_source: Source | None = None
    timing: Timing = Timing()
    bounds: LogBounds = LogBounds(0, 0)
    bounds_at: float = LONG_AGO
    answered_at: int = 0  # epoch ms
    newest: Facts | None = None
    untaken: Facts | None = None  # whose tables wait for the copy
    agreed_at: float = LONG_AGO  # when its log was last known to be the copy's
    agreed_low: int | None = None  # where it began then; later bounds may be of another broker
    # What it is asked.
    asking: frozenset[Asked] = frozenset()
    asked_at: float = LONG_AGO
    tables_at: float = LONG_AGO
    end_asked_at: float = LONG_AGO
    # The connections so far.
    number: int = 0  # of the present one
    began: float = LONG_AGO
    next_at: float = LONG_AGO
    overlap: int = 0  # bytes before the end of the copy that the next one compares
    reasons: frozenset[str] = frozenset()  # why there is no connection, as was logged
    is_confirmed: bool = False  # whether the logs have agreed since the last one began
    is_idle: bool = False  # the broker said that it has no more
    is_public: bool = False  # whether it was logged that the other side is in the internet
    # From where on the logs are compared in the present one, and what that can show.
    served: LogBounds = LogBounds(0, 0)  # what the broker has
    is_related: bool = True  # whether the logs may have a common part before
    n_compared: int = 0  # bytes that are to be compared
    compared_from: int = 0
    agreed_from: int | None = None
    first_record: FirstRecord = FirstRecord(0, b"")
    # The stream, from ``COMPARING`` on.
    handshake: Handshake | None = None
    position: int = 0  # of the next byte to come
    epochs: tuple[Epoch, ...] = ()
    confirm_offset: int = -1
    received_at: float = LONG_AGO
    data_at: float = LONG_AGO
    is_drained: bool = False  # whether no more bytes could be read at once, the last time
    rate_due: float = LONG_AGO  # until when nothing is read, so that not too many bytes come
    reported: int = NEVER
    reported_at: float = LONG_AGO
    has_begun: bool = False  # whether the broker has answered in this protocol
    # What is decided about when the bytes in the buffer are written.
    waiting: events.HeartbeatCame | events.Lost | None = None
    # What follows once the broker has said where its log ends: this ends the connection.
    pending: str | CorruptRecordError | None = None

    @property
    def source(self) -> Source:
        """The broker, once it has answered."""
        assert self.known_source is not None
        return self.known_source

    def is_asked(self, *questions: Question) -> bool:
        """Return whether the answer to one of these is awaited, whichever connection it is for."""
        return any(asked.question in questions for asked in self.asking)

    def disconnected(self) -> Link:
        """Return the link without a connection, ready for the next one."""
        return self._replace(
            handshake=None, confirm_offset=-1, reported=NEVER, reported_at=LONG_AGO,
            has_begun=False, waiting=None, pending=None,
        )  # fmt: skip


class Copy(NamedTuple):
    """What the copy has, in memory, in its files and on the disk."""

    noted: FollowState | None  # what the state file has to say; None until a new copy is opened
    goal: int | None = None  # physical offset at which it is complete
    is_open: bool = False
    end: int = 0  # physical offset after the last complete record in the files
    durable: int = 0  # the same of what is on the disk, and confirmed
    saved_end: int = 0  # the same of what the state file covers
    unconfirmed_from: int | None = None  # records from here on have yet to be compared
    n_buffered: int = 0  # bytes that came since the last write
    buffered_at: float = LONG_AGO  # when the first of them came
    built: int = 0  # up to where queues and index are on the disk
    last_time: int = 0  # of the last record, epoch ms; 0 if unknown
    epochs: tuple[Epoch, ...] = ()
    replaces_another: bool = False  # which was set aside

    @property
    def saved(self) -> FollowState:
        """What the state file has to say."""
        assert self.noted is not None
        return self.noted

    @property
    def confirmed_end(self) -> int:
        """Physical offset up to which everything was compared, or came from the broker."""
        return self.end if self.unconfirmed_from is None else self.unconfirmed_from

    @property
    def readable_end(self) -> int:
        """Physical offset up to which the state on the disk and the queues cover the log."""
        return self.built if self.saved.builds_queues else self.saved_end


class Cutting(NamedTuple):
    """An end of the log that is cut, and how many steps are done."""

    end: int
    differs_at: int  # bytes of the record before it agree, and stay
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


class Work(NamedTuple):
    """The work of the two threads, current and next, and when something is due."""

    flushing: bool = False  # the log or the state is being brought to the disk
    building: bool = False
    takes_tables: bool = False
    changes_queues: bool = False
    change: Change | None = None
    is_stopping: bool = False
    stop_error: BaseException | None = None  # why it is
    ordered_at: float = LONG_AGO  # when the thread that flushes was given its last action
    flush_seconds: float = 0.0  # that the last flush took, with the state after it
    synced_at: float = LONG_AGO
    written: int = 0  # up to where queues are built, which the disk may not have
    next_build_at: float = LONG_AGO
    build_end: int = 0  # up to where queues are to be built
    build_known_at: float = LONG_AGO  # since when that is known
    kinds_retry_at: float = LONG_AGO  # when the broker is asked again for kinds of its topics
    unknown: frozenset[str] = frozenset()  # topics whose kind is asked for
    plain: frozenset[str] = frozenset()  # topics that the broker did not know when it was asked
    progress_at: float = LONG_AGO
    state_at: float = LONG_AGO
    retained_at: float = LONG_AGO

    @property
    def sync_rest(self) -> float:
        """Seconds after which the log is flushed again while there is little to copy."""
        return max(_SYNC_SECONDS, _SYNC_SHARE * self.flush_seconds)

    @property
    def is_busy(self) -> bool:
        """Whether one of the threads has something to do."""
        return self.flushing or self.building or self.takes_tables or self.changes_queues


_Group = TypeVar("_Group")
_Fields = ParamSpec("_Fields")


def _with(
    name: str, replaced: Callable[Concatenate[_Group, _Fields], _Group]
) -> Callable[Concatenate[ReplicaState, _Fields], ReplicaState]:
    """Return a method that replaces fields of a group; each keeps its type."""

    def updated(
        state: ReplicaState, /, *args: _Fields.args, **fields: _Fields.kwargs
    ) -> ReplicaState:
        group: dict[str, Any] = {name: replaced(getattr(state, name), *args, **fields)}
        return state._replace(**group)

    return updated


class _Groups(NamedTuple):
    """The fields of a state."""

    settings: FollowSettings
    root: Path  # the folder of the copy
    address: str  # of the broker
    now: float
    epoch_ms: int
    copy: Copy
    link: Link
    work: Work
    phase: Phase = Phase.ASKING


class ReplicaState(_Groups):
    """All that a replica knows; every event replaces it."""

    __slots__ = ()

    with_link = _with("link", Link._replace)
    with_copy = _with("copy", Copy._replace)
    with_work = _with("work", Work._replace)

    def in_phase(self, phase: Phase) -> ReplicaState:
        """Return the state in another phase."""
        return self._replace(phase=phase)

    @property
    def is_streaming(self) -> bool:
        """Whether bytes of the log come."""
        return self.phase in (Phase.COMPARING, Phase.APPENDING)

    @property
    def is_held_up(self) -> bool:
        """Whether what comes has to wait: an end is cut, or it is the end."""
        return isinstance(self.work.change, (Cutting, Ending))

    @property
    def takes_bytes(self) -> bool:
        """Whether it can be decided about the next bytes that came."""
        return not self.is_held_up and self.link.pending is None

    @property
    def patience(self) -> float:
        """Seconds that may pass without a byte."""
        timing = self.link.timing
        return timing.silence if self.link.has_begun else timing.first_header

    @property
    def is_stalled(self) -> bool:
        """Whether a flush takes too long: a broker keeps files for whoever reports.

        The log may take its time to come to the disk while there is much to copy.
        """
        work, stall = self.work, self.link.timing.stall
        return work.flushing and self.now - work.ordered_at > stall and not self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether there is so much to copy that nobody waits for a part of it."""
        return self.is_streaming and self.link.bounds.high - self.link.position > BATCH_BYTES

    @property
    def has_arrived(self) -> bool:
        """Whether the copy is as far as was asked for."""
        copy = self.copy
        is_idle = self.link.is_idle and self.settings.once
        is_far_enough = copy.goal is not None and copy.end >= copy.goal
        return self.phase is Phase.APPENDING and (is_far_enough or is_idle)

    @property
    def seconds_behind(self) -> float:
        """How old the newest record is, 0 if the broker is not known to have more."""
        last = self.copy.last_time
        if self.copy.durable >= self.link.bounds.high or not last:
            return 0.0
        return round(max((self.epoch_ms - last) / 1000, 0.0), 3)

    @property
    def linger(self) -> float:
        """How long bytes wait for others; producers wait for what is acknowledged."""
        return _LINGER_SECONDS if self.settings.acknowledge == "never" else 0.0

    @property
    def is_write_due(self) -> bool:
        """Whether the buffer is written: together with what comes within a moment."""
        copy, link = self.copy, self.link
        waited = self.now - copy.buffered_at
        is_enough = copy.goal is not None and link.position >= copy.goal
        if is_enough or waited >= self.settings.sync_seconds or copy.n_buffered >= BATCH_BYTES:
            return True
        # While much is missing, more comes soon: each write costs some time of its own.
        return link.is_drained and waited >= self.linger and not self.is_behind


Decision = tuple[ReplicaState, list[Action]]


def first_replica_state(
    settings: FollowSettings,
    root: Path,
    address: str,
    saved: FollowState | None,
    *,
    now: float,
    epoch_ms: int,
) -> ReplicaState:
    """Return the first state of a replica, given the state file of its copy."""
    copy, link = Copy(saved, settings.until), Link(overlap=settings.overlap)
    work = Work(progress_at=now, state_at=now)
    return ReplicaState(settings, root, address, now, epoch_ms, copy, link, work)


def progress_of(state: ReplicaState) -> FollowProgress:
    """Return how far a copy is."""
    copy, link, saved = state.copy, state.link, state.copy.noted
    if saved is None:
        return FollowProgress(0, 0, 0, 0, 0.0, 0, 0, 0)
    if not copy.is_open:  # the broker has not answered yet
        high = max(saved.source_end, saved.end)
        return FollowProgress(
            saved.begin, saved.end, high, high - saved.end, saved.behind_seconds, saved.built,
            0, saved.n_cuts, saved.source_at,
        )  # fmt: skip
    end, high = copy.durable, max(link.bounds.high, copy.end)
    return FollowProgress(
        saved.begin, end, high, high - end, state.seconds_behind, copy.built,
        saved.n_connections, saved.n_cuts, link.answered_at,
        state.is_streaming and link.is_confirmed,
    )  # fmt: skip


def wait_of(state: ReplicaState) -> events.Wait:
    """Return how the loop waits when there is nothing else to do."""
    timing = state.link.timing
    if not state.is_streaming or state.is_held_up:
        return events.Wait(timing.poll, reads=False)
    rest = state.link.rate_due - state.now
    if rest > 0 or state.link.pending is not None:
        return events.Wait(min(max(rest, 0.01), timing.report / 4, timing.poll), reads=False)
    copy = state.copy
    work = state.work
    seconds = timing.poll
    if copy.n_buffered and not state.is_behind:
        seconds = state.linger
    due = float("inf")  # when a thread may do something that is there to do
    # Others are flushed with what comes next: nobody waits for them.
    is_awaited = state.settings.acknowledge == "synced" and copy.confirmed_end > copy.durable
    if is_awaited and not work.flushing and not state.is_behind:
        due = work.synced_at + work.sync_rest
    if not work.building and max(copy.built, work.written) < copy.saved_end:
        due = min(due, work.next_build_at)
    if due > state.now:
        seconds = min(seconds, due - state.now)
    return events.Wait(max(seconds, 0.0), reads=True)
