"""The continuation of a stream after an offset, and the losses before it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rmqstore.read.last_record import LastRecord
from rmqstore.read.request import ScanRequest
from rmqstore.source.stream_offset import Key, StreamOffset
from rmqstore.spans import QueueKey, QueueSlice

logger = logging.getLogger(__name__)

STORE_REPLACED: Final = (
    "another store has taken the place of this one: its log does not begin with the same record"
)


class Tail(ABC):
    """What the last poll of a store or a running broker found, and questions about its queues.

    A queue offset is no identity: a topic that is deleted and made again counts from 0. All that
    was read of a queue lies at or before the newest record that was known then. So the questions
    are about how far queues were read, and about that record.

    Attributes:
        last_record: the newest record of a chosen queue, by which the log is recognized; None
            without one. It lies at or after all records that ``ends`` covers.
        discovered: queues that were not there at the first poll.
    """

    def __init__(self) -> None:
        self.last_record: LastRecord | None = None
        self.discovered: set[QueueKey] = set()

    @property
    @abstractmethod
    def ends(self) -> Mapping[QueueKey, int]:
        """By queue, the queue offset after the last message."""

    @property
    def first_record(self) -> LastRecord | None:
        """The record that the log begins with; None if there is none, or it is not asked for."""
        return None

    @property
    def proves_records(self) -> bool:
        """Whether it knows of an older record that it still stands."""
        return True

    @abstractmethod
    def holds(self, record: LastRecord, delivered: Mapping[QueueKey, int]) -> bool:
        """Return whether a record still stands, or was deleted because of its age.

        Args:
            record: the newest record at some time.
            delivered: the queue offsets up to which queues were delivered then, or lower ones.
        """

    @abstractmethod
    def first(self, key: QueueKey) -> int:
        """Return the first queue offset whose message is still there, or the queue's end."""

    @abstractmethod
    def first_after(self, key: QueueKey, last_record: LastRecord) -> int:
        """Return the first queue offset whose message may have replaced a cut record."""

    @abstractmethod
    def first_behind(self, key: QueueKey, last_record: LastRecord) -> int:
        """Return the first queue offset whose message lies after a record, or the queue's end."""

    @abstractmethod
    def replaced(
        self, next_offsets: Mapping[QueueKey, int], last_record: LastRecord
    ) -> set[QueueKey]:
        """Return the queues that do not hold the message before a next offset.

        They are shorter, or have another message there, which lies after the newest record that
        was known. A queue whose message is deleted is not among them.

        Args:
            next_offsets: queue offsets above 0, by queue, before which messages were read.
            last_record: the newest record that was known then.
        """

    @abstractmethod
    def gone(self, next_offsets: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Return the chosen queues that were deleted, and may have had unread messages.

        Args:
            next_offsets: the queue offset after what was read, by queue.
        """

    def slices(
        self, key: QueueKey, start: int, stop: int, _request: ScanRequest
    ) -> list[QueueSlice]:
        """Return the parts of a range of a queue that are there."""
        return [QueueSlice(*key, start, stop)]

    def are_confirmed(self, _slices: Iterable[QueueSlice]) -> bool:
        """Return whether the log confirms the units of ranges; a broker serves no others."""
        return True

    def confirmed(self, slices: Iterable[QueueSlice]) -> list[QueueSlice]:
        """Return the parts of ranges that the log confirms."""
        return [*slices]


class Loss(NamedTuple):
    """Messages that are lost to a stream."""

    key: Key
    text: str


class Continuation:
    """How the stores or brokers of a stream continue after one of its offsets.

    Its questions read the stores as they are now, and not only what the last poll found. So they
    are asked within ``Stream.answer``, which asks again if a store has changed since its poll.

    Attributes:
        cut: the brokers whose log was cut by a recovery since the offset was made.
        others: those of them whose log begins with another record: other stores.
        replaced: where other messages begin in queues that lost messages before the offset.
    """

    def __init__(
        self, tails: Mapping[str, Tail], polled: StreamOffset, since: StreamOffset
    ) -> None:
        """Compare what was delivered with what is there.

        Args:
            tails: the stores or brokers that are followed, by broker name.
            polled: the offset after all that the last poll found.
            since: the offset after what was delivered.
        """
        self._tails = tails
        self._polled = polled
        self._since = since
        self.cut = {
            broker
            for broker, record in since.last_records.items()
            if broker in tails and not tails[broker].holds(record, since.by_broker.get(broker, {}))
        }
        self.others = {
            broker
            for broker in self.cut & since.first_records.keys()
            if not tails[broker].holds(since.first_records[broker], {})
        }
        self.replaced: dict[Key, int] = {}
        for broker in since.by_broker.keys() & tails.keys():
            delivered = {**since.by_broker[broker]}
            # Queues that are followed again: their messages lie at or before older records.
            left = {
                key[1:]: record
                for key, record in since.left.items()
                if key[0] == broker and key in polled.queues and key in since.queues
            }
            for queue, record in left.items():
                alone = {queue: delivered.pop(queue)}
                is_cut = not tails[broker].holds(record, alone)
                self._replace(broker, alone, record, is_cut=is_cut)
            is_cut = broker in self.cut
            self._replace(broker, delivered, since.last_records.get(broker), is_cut=is_cut)

    def _replace(
        self,
        broker: str,
        delivered: Mapping[QueueKey, int],
        last_record: LastRecord | None,
        *,
        is_cut: bool,
    ) -> None:
        """Note where other messages begin in queues that no longer hold what was delivered.

        Args:
            broker: the broker.
            delivered: the queue offset after what was delivered, by queue.
            last_record: the newest record that was known then; None if there was none.
            is_cut: whether a recovery has cut that record off.
        """
        tail = self._tails[broker]
        ends = tail.ends
        present = {key: offset for key, offset in delivered.items() if offset and key in ends}
        if broker in self.others:
            begins = {key: tail.first(key) for key in present}
        elif last_record is None:
            begins = {key: ends[key] for key, offset in present.items() if offset > ends[key]}
        elif is_cut:
            after = {key: tail.first_after(key, last_record) for key in present}
            begins = {key: begin for key, begin in after.items() if begin < present[key]}
        else:
            replaced = tail.replaced(present, last_record)
            begins = {key: tail.first_behind(key, last_record) for key in replaced}
        self.replaced |= {(broker, *queue): begin for queue, begin in begins.items()}

    def gone(self) -> set[Key]:
        """Return the queues before the offset that were deleted."""
        return {
            (broker, *queue)
            for broker, delivered in self._since.by_broker.items()
            if broker in self._tails
            for queue in self._tails[broker].gone(delivered)
        }

    def starts(self, ends: Mapping[Key, int]) -> tuple[dict[Key, int], list[Loss]]:
        """Return the offset at which each queue continues, and the losses before it.

        This is after what was delivered, unless that was cut off or deleted; delivered messages are
        not delivered again. Queues that the offset does not have start at their first message.

        Args:
            ends: the end of each queue.
        """
        starts: dict[Key, int] = {}
        losses: list[Loss] = []
        for key, end in ends.items():
            delivered = self._since.queues.get(key)
            starts[key] = delivered or 0
            if key[0] not in self._tails or (delivered == end and key not in self.replaced):
                continue
            starts[key], lost = self._start(key, delivered, end)
            losses += (Loss(key, text) for text in lost)
            if delivered is None and starts[key] and not lost:
                logger.info(
                    "%s-%d of broker %s is new, from offset %d", *key[1:], key[0], starts[key]
                )
        return starts, losses

    def _start(self, key: Key, delivered: int | None, end: int) -> tuple[int, list[str]]:
        """Return the offset at which a queue continues, and in words what was lost before it.

        Args:
            key: the queue.
            delivered: the queue offset after what was delivered; None for a queue that is new.
            end: the queue offset up to which the queue is to be read.
        """
        broker, queue = key[0], key[1:]
        tail = self._tails[broker]
        start, first = delivered or 0, tail.first(queue)
        losses = []
        if delivered is not None and key in self.replaced:
            start = self.replaced[key]
            text = f"a recovery cut it at {start} since"
            if broker in self.others:
                text = STORE_REPLACED
            elif start <= first and broker not in self.cut:
                text = "the queue was deleted, as with its topic"
                if start < tail.ends.get(queue, 0):
                    text = (
                        f"its messages are all newer than those: {text}, and begins again at "
                        f"offset {start}"
                    )
            losses.append(f"delivered up to offset {delivered}, but {text}")
        if delivered is not None and start >= end:
            return start, losses
        if start < first and (delivered is not None or queue in tail.discovered):
            losses.append(f"offsets {start} to {first} (excluded) were deleted unread")
        return max(start, first), losses

    def stops(self, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return where the messages before the offset end in each queue.

        Only messages that the store still has count. If a recovery has cut the log since the
        offset was made, or a topic was made again, other messages may have replaced some of them.
        These belong after the offset.
        """
        present = self._polled.queues
        return {
            key: min(end, present.get(key, 0), self.replaced.get(key, end))
            for key, end in ends.items()
        }

    def offset(self, queues: Mapping[Key, int]) -> StreamOffset:
        """Return a later offset with these queue offsets, and the newest record of each broker.

        A query may have followed other queues before, whose messages are newer. A store whose
        newest record cannot be read has none: an older one would lie before its messages.
        """
        since, polled = self._since, self._polled
        left: dict[Key, LastRecord] = {}  # the last records of queues that are not followed
        for key in queues.keys() - polled.queues.keys():
            record = since.left.get(key, since.last_records.get(key[0]))
            is_left = key in since.left or key[0] in self._tails
            if queues[key] and record is not None and is_left:
                left[key] = record
        records = {**since.last_records}
        with_messages = {broker for (broker, *_), end in polled.queues.items() if end}
        for broker in with_messages - polled.last_records.keys():
            records.pop(broker, None)
        for broker, record in polled.last_records.items():
            proves = broker not in self.cut and self._tails[broker].proves_records
            records[broker] = max(records.get(broker, record), record) if proves else record
        # Where the last record stays, the first one stays too: equal offsets give equal text.
        old, new = since.first_records, polled.first_records
        kept = {key for key, record in records.items() if record == since.last_records.get(key)}
        first_records = {broker: old[broker] for broker in kept & old.keys()}
        first_records |= {broker: new[broker] for broker in (records.keys() - kept) & new.keys()}
        return StreamOffset(queues, records, left, first_records)
