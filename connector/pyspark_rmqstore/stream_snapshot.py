"""The followed source of a stream, and the result of one poll."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

from pyspark_rmqstore.offsets import Key, StreamOffset, Weight
from pyspark_rmqstore.tasks import Task
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.last_record import LastRecord
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.tail import Tail
from rmqstore.spans import QueueKey, QueueSlice

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Followed(Protocol):
    """A store or a running broker that a stream follows.

    Attributes:
        tail: what the last poll found, and questions about its queues.
        proves_records: whether it knows of an older record that it still stands.
    """

    @property
    def tail(self) -> Tail: ...
    @property
    def proves_records(self) -> bool: ...

    def holds(self, record: LastRecord, delivered: Mapping[QueueKey, int]) -> bool:
        """Return whether a record still stands, or was deleted as too old.

        Args:
            record: the newest record at some time.
            delivered: the queue offsets up to which queues were delivered then, or lower ones.
        """
        ...

    def withheld(self, delivered: Mapping[QueueKey, int], *, is_once: bool) -> dict[QueueKey, str]:
        """Return what is there and nobody may read, in words, by queue.

        Args:
            delivered: the queue offsets up to which queues were delivered.
            is_once: whether what was returned before is left out.
        """
        ...

    def queue_slices(
        self, key: QueueKey, start: int, stop: int, request: ScanRequest
    ) -> list[QueueSlice]: ...

    def task_of(
        self, slices: list[QueueSlice], limits: Limits, last_record: LastRecord | None
    ) -> Task: ...


@dataclass(frozen=True)
class StreamSnapshot:
    """What one poll of all stores of a stream found; later polls do not change it.

    Attributes:
        brokers: the names of the brokers.
        ends: the end of each queue.
        last_records: the newest record of each store that has one, by broker.
        first_records: the record that the log of each store begins with, if it is known.
    """

    brokers: AbstractSet[str]
    ends: Mapping[Key, int]
    last_records: Mapping[str, LastRecord]
    first_records: Mapping[str, LastRecord]

    @classmethod
    def of(cls, followed: Mapping[str, Followed]) -> Self:
        """Return what the last poll of each store found."""
        ends: dict[Key, int] = {}
        last_records: dict[str, LastRecord] = {}
        first_records: dict[str, LastRecord] = {}
        for broker, store in followed.items():
            tail = store.tail
            ends |= {(broker, *queue): end for queue, end in tail.ends.items()}
            if tail.last_record is not None:
                last_records[broker] = tail.last_record
            if tail.first_record is not None:
                first_records[broker] = tail.first_record
        return cls(frozenset(followed), ends, last_records, first_records)

    @property
    def offset(self) -> StreamOffset:
        """The offset after all that was found."""
        return StreamOffset(self.ends, self.last_records, first_records=self.first_records)


class Loss(NamedTuple):
    """Messages that are lost to a stream."""

    key: Key
    text: str


def report(losses: Iterable[Loss], *, fails: bool) -> None:
    """Raise an error for lost messages, or log a warning if data loss is not to fail.

    Raises:
        OffsetOutOfRangeError: data loss is to fail.
    """
    for (broker, topic, queue_id), what in losses:
        text = f"data loss: {topic}-{queue_id} of broker {broker}: {what}"
        if fails:
            raise OffsetOutOfRangeError(f"{text}; failOnDataLoss=false continues with what is left")
        logger.warning("%s; continuing with what is left", text)


class FollowedSource(Protocol):
    """The stores or the running brokers of a stream.

    Attributes:
        followed: the stores or brokers that are followed now, by broker name.
        forgets_gone: whether a queue that is gone starts over if it comes back.
    """

    forgets_gone: bool

    @property
    def followed(self) -> Mapping[str, Followed]: ...

    def expect(self, brokers: AbstractSet[str]) -> None:
        """Take an only store whose files give no name for that of the only broker of an offset."""
        ...

    def answer(self, ask: Callable[[StreamSnapshot], T]) -> T:
        """Poll, and return the answer to a question about what was found.

        The question may read what is followed, so both are repeated if that changes meanwhile.
        """
        ...

    def initial(self) -> StreamOffset:
        """Return the offset at which the options start."""
        ...

    def poll(self) -> StreamSnapshot:
        """Look for changes in all that is followed."""
        ...

    def last_poll(self) -> StreamSnapshot:
        """Return what the last poll found; the first one if there was none."""
        ...

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets."""
        ...

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes."""
        ...

    def report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers of an offset that are not followed, or log a warning."""
        ...

    def report_gone(self, queues: Mapping[Key, int]) -> None:
        """Raise an error for queues that are not there any more, or log a warning.

        Args:
            queues: the queue offsets up to which they were delivered.
        """
        ...

    def invalidate(self, brokers: Iterable[str]) -> None:
        """Let the next poll cover all of the stores of some brokers."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...
