"""The stream of new messages of running brokers: what a poll of their queues finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from rmqstore.errors import BrokerUnreachableError
from rmqstore.live.bounds import (
    bounds_of_withdrawn,
    first_at,
    first_behind,
    first_offsets,
    resolver_for,
    search_times,
    still_has,
)
from rmqstore.live.broker import LiveBroker
from rmqstore.live.cluster import BrokerSpans, LiveBrokers
from rmqstore.live.location import LiveLocation
from rmqstore.live.parts import sampled_part
from rmqstore.live.patience import Patience
from rmqstore.live.pulls import first_records
from rmqstore.live.tasks import BrokerTask
from rmqstore.query.damage import READS_ON
from rmqstore.query.selection import Selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.source.continuation import Loss, Tail
from rmqstore.source.stream import Stream
from rmqstore.source.stream_offset import Key, StreamOffset
from rmqstore.spans import QueueKey, QueueSlice

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LiveTail(Tail):
    """The ends of the queues of one broker, and the newest record that was seen.

    Attributes:
        broker: the broker.
        spans: where the queues began and ended at the last poll. A queue that is not corrected yet
            by retention may begin with messages that are gone.
        withdrawn: where other queues began and ended that hold messages, and that the broker lets
            nobody read.
    """

    def __init__(self, broker: LiveBroker, selection: Selection) -> None:
        super().__init__()
        self.broker = broker
        self._selection = selection
        self.spans: Mapping[QueueKey, tuple[int, int]] = {}
        self.withdrawn: Mapping[QueueKey, tuple[int, int]] = {}
        self._warned_ends: dict[QueueKey, int] = {}  # of these
        self._firsts: dict[QueueKey, int] = {}  # messages that were there when queues were new
        self._has_polled = False

    @property
    def ends(self) -> dict[QueueKey, int]:
        return {key: end for key, (_, end) in self.spans.items()}

    def take(self, found: BrokerSpans) -> None:
        """Take what a poll found; nothing of it if the broker does not answer any more."""
        broker, spans, withdrawn = found
        last_record = self.last_record
        if last_record is not None and not still_has(broker, spans, last_record):
            last_record = None  # the next one is of all queues
        known = {} if last_record is None else self.ends
        grown = [
            QueueSlice(*key, end - 1, end)
            for key, (start, end) in spans.items()
            if start < end != known.get(key)
        ]
        last_records = [
            record.last_record for record in first_records(broker, grown) if record is not None
        ]
        if last_record is not None:
            last_records.append(last_record)
        new = spans.keys() - self.spans.keys()
        # A queue that begins or ends earlier than before was deleted with its topic and made again.
        remade = {
            key
            for key, (start, _) in self.spans.items()
            if key in spans
            and (spans[key][0] < start or spans[key][1] < self._firsts.get(key, start))
        }
        self._firsts |= first_offsets(broker, {key: spans[key] for key in new | remade})
        if self._has_polled:
            self.discovered |= new
        self.broker = broker
        self.spans = spans
        self.withdrawn = withdrawn
        self._has_polled = True
        self.last_record = max(last_records, default=None)

    def unread(self, delivered: Mapping[QueueKey, int]) -> dict[QueueKey, tuple[int, int]]:
        """Return the undelivered messages that the broker lets nobody read.

        Args:
            delivered: the queue offsets up to which queues were delivered. The broker is asked for
                those among them that their topics do not have any more.
        """
        topics = {topic for topic, _ in self.spans}
        others = [
            key
            for key in delivered
            if key not in self.spans
            and key not in self.withdrawn
            and key[0] in topics
            and self._selection.chooses(*key)
        ]
        spans = {**self.withdrawn, **self.broker.granted_spans(others)}
        left = {key: (max(at, delivered.get(key, at)), end) for key, (at, end) in spans.items()}
        return {key: (at, end) for key, (at, end) in left.items() if at < end}

    def note_warning(self, key: QueueKey, end: int) -> bool:
        """Note a warning of a queue up to its end, and return whether there was one before."""
        before = self._warned_ends.get(key)
        self._warned_ends[key] = end
        return before == end

    def first(self, key: QueueKey) -> int:
        return max(self.spans.get(key, (0, 0))[0], self._firsts.get(key, 0))

    def first_after(self, key: QueueKey, last_record: LastRecord) -> int:
        """Return the queue offset of the first message that was stored after a record."""
        span = self.spans.get(key, (0, 0))
        by_time = first_at(self.broker, key, last_record.store_timestamp + 1, span)
        return min(by_time, first_behind(self.broker, key, last_record.physical_offset, span))

    def first_behind(self, key: QueueKey, last_record: LastRecord) -> int:
        span = self.spans.get(key, (0, 0))
        return first_behind(self.broker, key, last_record.physical_offset + 1, span)

    def replaced(self, reached: Mapping[QueueKey, int], last_record: LastRecord) -> set[QueueKey]:
        """Return the queues without the message before a reached offset."""
        spans = {key: self.spans.get(key, (0, 0)) for key in reached}
        found = {key for key, (_, end) in spans.items() if reached[key] > end}
        asked = [
            key for key, (start, _) in spans.items() if key not in found and start < reached[key]
        ]
        # Of a queue that has nothing new the broker says without its messages whether it has one
        # that was stored after the last record.
        idle = [key for key in asked if reached[key] == spans[key][1]]
        times = self.broker.at_times([(key, last_record.store_timestamp + 1) for key in idle])
        unchanged = {key for key, first in zip(idle, times, strict=True) if first == spans[key][1]}
        asked = [key for key in asked if key not in unchanged]
        last = [QueueSlice(*key, reached[key] - 1, reached[key]) for key in asked]
        records = first_records(self.broker, last)
        return found | {
            key
            for key, record in zip(asked, records, strict=True)
            if record is not None
            and record.served_offset == reached[key] - 1
            and record.physical_offset > last_record.physical_offset
        }

    def gone(self, reached: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Return the chosen queues whose topics no name server knows any more."""
        topics = {topic for topic, _ in self.spans}
        return {
            key
            for key, offset in reached.items()
            if offset and key[0] not in topics and self._selection.chooses(*key)
        }

    @property
    def proves_records(self) -> bool:
        """Whether it knows of an older record that it still stands; through a proxy it does not."""
        return not self.broker.is_behind_proxy

    def holds(self, record: LastRecord, delivered: Mapping[QueueKey, int]) -> bool:
        if record == self.last_record:  # which the poll has just found
            return True
        broker, spans = self.broker, self.spans
        is_there = still_has(broker, spans, record)
        if is_there is not None:
            return is_there
        # The record may be in a queue that is not followed any more, so that it is not found proves
        # nothing. But a message that was delivered and is newer has replaced another one.
        last = [
            QueueSlice(*key, end - 1, end)
            for key, end in delivered.items()
            if key in spans and spans[key][0] < end <= spans[key][1]
        ]
        return not any(
            other.physical_offset > record.physical_offset
            or other.store_timestamp > record.store_timestamp
            for other in first_records(broker, last)
            if other is not None
        )


class BrokerStream(Stream[LiveTail]):
    """New messages of running brokers. A broker that is gone for a while is waited for."""

    forgets_gone = False

    def __init__(self, location: LiveLocation, request: ScanRequest) -> None:
        super().__init__(request)
        self._brokers = LiveBrokers(location)
        self._tails: dict[str, LiveTail] = {}

    def _initial_offset(self) -> StreamOffset:
        """Return the offset at which the request starts, as asked once."""
        request = self.request
        self.poll(ask_for_removed=True)
        withdrawn = {
            (name, *key): start
            for name, tail in self._tails.items()
            if tail.withdrawn
            for key, (start, _) in bounds_of_withdrawn(
                tail.broker, request.selection, tail.spans, tail.withdrawn
            ).items()
        }
        resolvers = {
            name: resolver_for(
                tail.broker,
                request.selection,
                tail.spans,
                fail_on_data_loss=request.fail_on_data_loss,
            )
            for name, tail in self._tails.items()
        }
        # A running consumer may commit messages that were only just written, so queues are polled
        # after the offsets of groups were read.
        self.poll()
        initial: dict[Key, int] = withdrawn
        for name, resolver in resolvers.items():
            tail = self._tails[name]
            times = search_times(tail.broker, tail.spans, resolver)
            for key, span in tail.spans.items():
                there = (min(tail.first(key), span[1]), span[1])
                initial[name, *key] = resolver.start(*key, there, times)
        return replace(self.found(), queues=initial)

    def poll(self, *, ask_for_removed: bool = False) -> None:
        """Look at all queues of all brokers.

        Args:
            ask_for_removed: whether to look for queues that topics do not have any more.

        Raises:
            BrokerUnreachableError: a broker does not answer, or no name server knows a broker or
                a topic of it any more, and data loss is to fail.
        """
        self._brokers.refresh()
        selection = self.request.selection
        found = self._brokers.spans(
            selection,
            must_exist=False,
            ask_for_removed=ask_for_removed,
            fail_on_data_loss=self.request.fail_on_data_loss,
        )
        present = {(spans.broker.name, topic) for spans in found for topic, _ in spans.spans}
        known = {(name, topic) for name, tail in self._tails.items() for topic, _ in tail.spans}
        if missing := known - present:
            names = ", ".join(f"{topic} of {name}" for name, topic in sorted(missing))
            if self.request.fail_on_data_loss:
                reason = "no name server knows it at the moment"
                raise BrokerUnreachableError(names, f"{reason}; {READS_ON} continues without it")
            self._brokers.warn(f"{names}: no name server knows it; continuing without it")
        for spans in found:
            tail = self._tails.setdefault(spans.broker.name, LiveTail(spans.broker, selection))
            tail.take(spans)
        if unknown := selection.named_topics - {topic for _, topic in present}:
            names = ", ".join(sorted(unknown))
            self._brokers.warn(f"no broker has {names}; they are followed once they appear")

    @property
    def tails(self) -> Mapping[str, LiveTail]:
        """The brokers that were found until now."""
        return self._tails

    def _withheld(self, since: StreamOffset) -> list[Loss]:
        """Return the messages of queues that their topics do not have any more.

        Those that there was a warning of are left out.
        """
        return [
            Loss(
                (broker, *queue),
                f"the broker lets nobody read offsets {start} to {end} (excluded), "
                "because its topic has fewer queues to read now (readQueueNums); let it "
                "have them again (mqadmin updateTopic), or read the broker's files",
            )
            for broker, tail in self._tails.items()
            for queue, (start, end) in tail.unread(since.by_broker.get(broker, {})).items()
            if not tail.note_warning(queue, end) or self.request.fail_on_data_loss
        ]

    def _task(
        self, broker: str, slices: list[QueueSlice], _: Limits, last_record: LastRecord | None
    ) -> BrokerTask:
        """Return what is read of ranges of a broker's queues, up to a record."""
        asked = self._tails[broker].broker
        return BrokerTask.of(asked, sampled_part(asked, slices, last_record))

    def _report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers that no name server knows now, or log a warning.

        Raises:
            BrokerUnreachableError: data loss is to fail. They may come back.
        """
        names = ", ".join(sorted(brokers))
        text = "the query has read messages of it, and no name server knows it at the moment"
        if self.request.fail_on_data_loss:
            reason = f"{text}; {READS_ON} continues without it"
            raise BrokerUnreachableError(names, reason)
        logger.warning("%s: %s; continuing without it", names, text)

    def _report_gone(self, queues: Mapping[Key, int]) -> None:
        """Warn of queues that no name server knows now; they may come back."""
        for (broker, topic, queue_id), delivered in sorted(queues.items()):
            logger.warning(
                "%s-%d of %s: messages up to offset %d were delivered, and no name server knows "
                "the queue at the moment; it continues there once it is served again",
                topic, queue_id, broker, delivered,
            )  # fmt: skip

    def close(self) -> None:
        """Close all connections."""
        self._brokers.close()

    def _again(self, ask: Callable[[], T]) -> T:
        """Return an answer of the brokers, and wait for those that do not answer.

        Raises:
            BrokerUnreachableError: this has lasted too long.
        """
        patience = Patience()
        while True:
            try:
                return ask()
            except BrokerUnreachableError as err:
                patience.pause(err)
