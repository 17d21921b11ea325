"""Events and actions of a replica: values between the decisions and the loop.

What all events have, such as their time, is in the envelope :class:`Happened`. The tables in
``docs/follow-states.md`` are the first lines of the docstrings, which a test compares.
"""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from rmqstore.errors import CorruptRecordError
from rmqstore.replica.broker import Facts, Source, TopicKinds
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.ha import Handshake
from rmqstore.replica.state import FollowState
from rmqstore.storage.broker.epochs import Epoch


class Question(Enum):
    """Questions to a broker, each in a thread of its own that a stop does not wait for."""

    FACTS = "everything, before a connection is made"
    TABLES = "everything, while the copy grows"
    BOUNDS = "where its log begins and ends"
    END = "whether its log ends where it says by a heartbeat that it continues"
    RECORD = "the first record of a new copy"
    CONNECTION = "for a connection to its HA port, in controller mode also for the handshake"


class Asked(NamedTuple):
    """An unanswered question, and the number of its connection."""

    question: Question
    connection: int


class Happened(NamedTuple):
    """An event, with what all events have.

    Attributes:
        at: monotonic time; of what a thread has done, when the loop took note of it, which may
            have been held up.
        epoch_ms: the time of the clock.
        event: what happened.
        asked: what it answers; None if it is not the answer to a question.
    """

    at: float
    epoch_ms: int
    event: Event
    asked: Asked | None = None


def happened(event: Event, asked: Asked | None = None) -> Happened:
    """Return an event that happens now."""
    return Happened(time.monotonic(), int(time.time() * 1000), event, asked)


# ---- events


class Started(NamedTuple):
    """The follower begins."""


class Ticked(NamedTuple):
    """Time has passed; this comes after each wait, with what came meanwhile before it."""

    is_drained: bool  # whether no more bytes could be read at once, the last time
    n_bytes: int = 0  # that were read, headers and heartbeats included


class StopAsked(NamedTuple):
    """A signal or the caller asks for the end."""


class Answered(NamedTuple):
    """The broker reported everything: its settings, its tables, and the bounds of its log."""

    facts: Facts
    source: Source | None  # None while the copy grows


class BoundsReported(NamedTuple):
    """The broker reported where its log begins and ends."""

    bounds: LogBounds
    position: int  # where a heartbeat said that it continues


class RecordReported(NamedTuple):
    """The listen port returned the first record of a new copy, or nothing."""

    record: bytes


class Unanswered(NamedTuple):
    """The broker did not answer a question, refused it, or cannot be followed any more."""

    error: BaseException


class Connected(NamedTuple):
    """The HA port of the master accepted a connection, in controller mode also the handshake."""

    handshake: Handshake | None
    is_public: bool


class Lost(NamedTuple):
    """The connection failed, was closed, or sent an offset, a size or a state out of order."""

    reason: str


class Received(NamedTuple):
    """Bytes of the log came."""

    start: int
    stop: int


class HeartbeatCame(NamedTuple):
    """The broker says where it would continue: at the end of its log, or wherever it is slow."""

    position: int


class EpochsReported(NamedTuple):
    """The stream has another epoch, or another confirm offset."""

    epochs: tuple[Epoch, ...]
    confirm_offset: int


class Opened(NamedTuple):
    """The copy is open; records that the state does not cover were found in its log, or none."""

    saved: FollowState
    end: int
    last_time: int
    epochs: tuple[Epoch, ...]


class StartFound(NamedTuple):
    """A record of the copy begins here; the comparison begins with it."""

    compared_from: int
    agreed_from: int | None  # where the record ends; None if a blank is there


class Agreed(NamedTuple):
    """The bytes that came are those of the copy."""

    start: int
    stop: int
    seconds: float = 0.0


class Differed(NamedTuple):
    """The broker has other bytes than the copy, or none: its log fell back, or is another one."""

    differs_at: int  # the first byte that differs
    boundary: int  # the last offset up to there where a record begins
    reason: str


class Written(NamedTuple):
    """Complete records are in the files of the log; what follows them may be no record."""

    end: int
    last_time: int
    error: CorruptRecordError | None = None  # says that it is none
    seconds: float = 0.0


class Flushed(NamedTuple):
    """The log is on the disk up to here."""

    end: int
    number: int  # of the last write that it covers
    seconds: float = 0.0


class StateWritten(NamedTuple):
    """The state is on the disk, and the epochs before it."""

    saved: FollowState
    seconds: float = 0.0


class Built(NamedTuple):
    """A part of the queues and of the index is built."""

    built: int  # on the disk
    written: int
    unknown: frozenset[str]  # topics of the next record whose kind has to be asked for
    seconds: float


class TablesWritten(NamedTuple):
    """The tables of the broker can be read in the copy."""


class QueuesChanged(NamedTuple):
    """Queues and index were cut or will be, or their oldest files were deleted."""

    built: int


class LogCut(NamedTuple):
    """The log ends, or begins, somewhere else now."""

    end: int
    last_time: int


class OldFilesFound(NamedTuple):
    """Files that the retention does not keep are found, and the files that streams still need."""

    first: int  # physical offset of the first file
    begin: int | None  # where the log begins without them; None if all stay
    needed: int  # physical offset from which on a stream needs everything


class StepDone(NamedTuple):
    """A step of a change is done that has no other result."""


class SetAside(NamedTuple):
    """The folder of the copy has another name now."""

    path: Path


class Failed(NamedTuple):
    """The disk is full or fails, or another error came that nobody expects."""

    error: BaseException
    is_consistent: bool  # whether the copy can be completed all the same
    end: int = 0  # of the records that are written
    last_time: int = 0  # of the last of them


# ---- actions


class Ask(NamedTuple):
    """Ask the broker, in a thread of its own."""

    asked: Asked
    position: int = 0
    known: Facts | None = None  # tables that did not change are kept once


class Open(NamedTuple):
    """Open the copy, or make it, and set aside what follows its last complete record."""

    saved: FollowState
    source: Source
    address: str  # names the source in errors
    builds_queues: bool


class Connect(NamedTuple):
    """Connect to the HA port, in a thread of its own; shake hands in controller mode."""

    asked: Asked
    source: Source
    seconds: float
    learner_id: int | None


class FindStart(NamedTuple):
    """Find where a record of the copy begins, at a physical offset or near it."""

    physical_offset: int
    begin: int
    high: int


class Request(NamedTuple):
    """Ask for the log from a physical offset on."""

    position: int
    handshake: Handshake | None
    has_zero: bool = False  # whether byte 0 comes before, which is 0 and cannot be asked for


class Report(NamedTuple):
    """Report to the broker, so that it keeps the connection."""

    offset: int


class Compare(NamedTuple):
    """Compare bytes that came with the log of the copy, or with the record of the listen port."""

    start: int
    stop: int
    compared_from: int
    expected: bytes | None = None


class FindBoundary(NamedTuple):
    """Find the record of the copy that the end of the broker's log lies in."""

    position: int
    compared_from: int
    reason: str


class Buffer(NamedTuple):
    """Append bytes that came, in memory; once the buffer is full, complete records are written."""

    start: int
    stop: int


class Write(NamedTuple):
    """Write the complete records in the buffer."""


class ForgetBegun(NamedTuple):
    """Forget the record that has begun, because its connection ended."""


class Flush(NamedTuple):
    """Bring the log to the disk, by the thread that flushes."""

    end: int


class WriteState(NamedTuple):
    """Write the epochs, then the state, by the thread that flushes."""

    saved: FollowState
    epochs: tuple[Epoch, ...]


class Build(NamedTuple):
    """Build queues and index up to a physical offset, by the thread that builds."""

    end: int
    is_far: bool
    kinds: TopicKinds


class TakeTables(NamedTuple):
    """Write the tables of the broker, by the thread that builds."""

    facts: Facts


class PlanCut(NamedTuple):
    """Find from where on queues and index have to be built again, by that thread."""

    end: int


class Cut(NamedTuple):
    """Keep the end of the log aside, then cut it; bytes of a record that agree stay buffered."""

    end: int
    differs_at: int
    reason: str
    kept_in: Path
    begins_at: int | None  # where the log, which has no record then, begins again


class CutQueues(NamedTuple):
    """Cut queues and index as the log was cut, by the thread that builds."""

    end: int
    is_new: bool


class FindOldFiles(NamedTuple):
    """Find the files that the retention does not keep, and what streams have not read."""

    broker: str
    built: int
    source_begin: int | None


class DeleteOldFiles(NamedTuple):
    """Delete the oldest files of the log."""

    begin: int


class DeleteOldQueues(NamedTuple):
    """Delete the files of queues and index before it, by the thread that builds."""

    begin: int


class Complete(NamedTuple):
    """Note the confirm offset for a broker, and give back the space that is kept for the state."""

    confirm_offset: int | None


class MarkClosed(NamedTuple):
    """Mark the copy as a store that was closed."""

    end: int
    last_time: int


class MoveAside(NamedTuple):
    """Give the folder of the copy another name; a new copy begins in its place."""

    end: int


class Disconnect(NamedTuple):
    """Close the connection."""


class Log(NamedTuple):
    """Log a message."""

    text: str
    is_warning: bool = True


class ReportProgress(NamedTuple):
    """Call back with how far the copy is."""


class Wait(NamedTuple):
    """Wait for bytes, an answer, one of the threads, or some time to pass."""

    seconds: float
    reads: bool  # whether bytes of the log are awaited


class End(NamedTuple):
    """End, with an error or without; after some errors, bring to the disk what is valid before."""

    error: BaseException | None
    is_complete: bool = True  # whether nothing is left to be done to the copy


Event = Any  # one of the events above
Action = Any  # one of the actions above
