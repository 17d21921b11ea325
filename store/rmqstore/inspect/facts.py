"""The numbers of a report about one store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import Finding
from rmqstore.inspect.remedies import CheckedStore
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.store_ends import RecordsAfter

# A lag of less needs nobody's attention.
_LATE_MESSAGES = 1000
_LATE_MILLIS = 10 * 60_000

# How far a group is behind: not at all, a little, so much that one should look, or that much
# without having consumed anything lately.
LagLevel: TypeAlias = Literal["none", "small", "late", "stuck"]


@dataclass(slots=True)
class QueueFacts:
    """One queue. Times are in ms; what is not known is None."""

    topic: str
    is_system: bool  # whether the topic is one of the system
    queue_id: int
    min_offset: int | None
    max_offset: int | None  # excluded
    messages: int | None
    n_bytes: int | None
    first: int | None
    last: int | None
    reason: str | None
    lag: int | None = None  # the largest of any group

    def meet_lag(self, lag: int) -> None:
        """Take the lag of a group on the queue into account."""
        self.lag = max(self.lag or 0, lag)


@dataclass(slots=True)
class TopicFacts:
    """One topic."""

    topic: str
    is_system: bool
    queues: int
    messages: int
    n_bytes: int
    first: int | None
    last: int | None
    skew: float | None  # messages of the fullest queue, divided by the mean of all queues


@dataclass(slots=True)
class GroupFacts:
    """One consumer group on one topic."""

    group: str
    topic: str
    queues: int = 0
    lag: int | None = None  # in messages, over all queues
    lag_millis: int | None = None  # of the worst queue
    consumed: int | None = None  # messages between the broker's last two notes of its offset

    def add_queue(self) -> None:
        """Count a queue, whose lag may not be known."""
        self.queues += 1

    def add_lag(self, lag: int, lag_millis: int | None, consumed: int | None) -> None:
        """Add the counted lag of a queue, and its consumed messages as far as known."""
        self.lag = (self.lag or 0) + lag
        if consumed is not None:
            self.consumed = (self.consumed or 0) + consumed
        if lag_millis is not None:
            self.lag_millis = max(self.lag_millis or 0, lag_millis)

    @property
    def level(self) -> LagLevel:
        """How bad the lag is by its size, in messages and in time, and by the group's progress."""
        lag = self.lag or 0
        if lag <= 0:
            return "none"
        if lag < _LATE_MESSAGES and (self.lag_millis or 0) < _LATE_MILLIS:
            return "small"
        return "stuck" if self.consumed == 0 else "late"


@dataclass(slots=True)
class FileFacts:
    """The files of one kind."""

    kind: str
    files: int
    n_bytes: int
    allocated: int
    states: dict[str, int]


class Rates(NamedTuple):
    """Messages by time, in bins of equal width."""

    starts: NDArray[np.int64]  # where each bin begins, ms (n,)
    width_ms: int
    counts: dict[str, NDArray[np.float64]]  # messages of a topic in each bin, (n,)


@dataclass(slots=True)
class StoreFacts:
    """Everything that a report shows of a store."""

    path: str
    checked: CheckedStore
    broker_name: str
    topics: list[TopicFacts]
    queues: list[QueueFacts]
    groups: list[GroupFacts]
    files: list[FileFacts]
    rates: Rates | None
    state: str  # of the store, one of ``broker_run.STATES``
    log_end: LogEnd | None
    after_end: RecordsAfter
    is_estimated: bool  # whether the bytes of messages are estimates
    groups_unknown: str | None = None  # why the groups are not known, if they are not
    lacks_rocksdb_queues: bool = False  # whether the numbers leave out queues in RocksDB
    findings: list[Finding] | None = None  # None if the store was not checked
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages in all queues."""
        return sum(topic.messages for topic in self.topics)

    @property
    def system_messages(self) -> int:
        """Number of messages of system topics."""
        return sum(topic.messages for topic in self.topics if topic.is_system)

    @property
    def n_bytes(self) -> int:
        """Bytes of the records of all queues."""
        return sum(topic.n_bytes for topic in self.topics)

    @property
    def first(self) -> int | None:
        """Store time of the oldest message, ms."""
        return min((topic.first for topic in self.topics if topic.first is not None), default=None)

    @property
    def last(self) -> int | None:
        """Store time of the newest message, ms."""
        return max((topic.last for topic in self.topics if topic.last is not None), default=None)

    @property
    def worst_group(self) -> GroupFacts | None:
        """The group with the largest lag, None if no lag is known."""
        known = [group for group in self.groups if group.lag is not None]
        return max(known, key=lambda group: group.lag or 0, default=None)
