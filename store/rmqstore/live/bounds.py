"""Where the bounds of a selection lie in the queues of a running broker.

Brokers search by time in different ways: those before 5.1.4 may return another message of the same
millisecond, or a nearer one before it. So what a broker finds is where the search here begins.

Source: ConsumeQueue.java#getOffsetInQueueByTime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rmqstore.errors import OptionError
from rmqstore.live.broker import LiveBroker
from rmqstore.live.pulls import RecordHeader, first_answers, first_records, record_at
from rmqstore.query.selection import Selection
from rmqstore.read.bounds import BoundResolver, FoundTimes
from rmqstore.read.last_record import LastRecord
from rmqstore.spans import QueueKey, QueueSlice

Spans = Mapping[QueueKey, tuple[int, int]]


def resolver_for(
    broker: LiveBroker, selection: Selection, spans: Spans, *, fail_on_data_loss: bool
) -> BoundResolver:
    """Return what turns the bounds of a selection into offsets of a broker's queues.

    Raises:
        OptionError: the group of a bound has committed no offsets.
    """

    # A record that cannot be read is passed over, whether or not that is tolerated.
    def at_time(topic: str, queue_id: int, timestamp: int, span: tuple[int, int], **_: bool) -> int:
        return first_at(broker, (topic, queue_id), timestamp, span)

    return BoundResolver(
        selection,
        broker.name,
        at_time,
        partial(_committed, broker, spans),
        fail_on_data_loss=fail_on_data_loss,
        tolerant=False,
    )


def _committed(broker: LiveBroker, spans: Spans, group: str) -> Mapping[QueueKey, int]:
    offsets = broker.committed(group, [*spans])
    if not offsets and spans:
        raise OptionError(f"group {group!r} has committed no offsets of these topics at {broker}")
    return offsets


def first_at(broker: LiveBroker, key: QueueKey, timestamp: int, span: tuple[int, int]) -> int:
    """Return the queue offset of the first message at or after a store time, ms."""
    search = _Search(key, *span, timestamp=timestamp)
    _guess(broker, [search])
    _run(broker, [search])
    return search.found


def first_behind(
    broker: LiveBroker, key: QueueKey, physical_offset: int, span: tuple[int, int]
) -> int:
    """Return the queue offset of the first message at or after a physical offset."""
    search = _Search(key, *span, sought=physical_offset)
    _run(broker, [search])
    return search.found


def record_in_queues(broker: LiveBroker, physical_offset: int, spans: Spans) -> RecordHeader | None:
    """Return the record at a physical offset, if it is in one of some queues."""
    searches = [_Search(key, *span, sought=physical_offset) for key, span in spans.items()]
    for search in searches:
        search.begin_at(search.high - 1)  # it is one of the newest as a rule
    _run(broker, searches)
    left = [QueueSlice(*search.key, search.found, spans[search.key][1]) for search in searches]
    for record in first_records(broker, [span for span in left if span.start < span.end]):
        if record is not None and record.physical_offset == physical_offset:
            return record
    return None


def still_has(broker: LiveBroker, spans: Spans, last_record: LastRecord) -> bool | None:
    """Return whether a broker still has a last record, or deleted it as too old.

    None if that is not known: through a proxy a record is looked for in the queues that are
    followed, and it may be in another one.
    """
    if broker.is_behind_proxy:  # which passes on no request for a record by its physical offset
        record = record_in_queues(broker, last_record.physical_offset, spans)
        if record is None:
            return None
    else:
        record = record_at(broker, last_record.physical_offset)
    if record is not None:
        return record.last_record == last_record
    firsts = [QueueSlice(*key, start, end) for key, (start, end) in spans.items() if start < end]
    oldest = [first.physical_offset for first in first_records(broker, firsts) if first is not None]
    return bool(oldest) and last_record.physical_offset < min(oldest)


def search_times(broker: LiveBroker, spans: Spans, resolver: BoundResolver) -> FoundTimes:
    """Return the offsets for all times that a selection names, found side by side."""
    searches = [
        _Search(key, *span, timestamp=timestamp)
        for key, span in spans.items()
        for timestamp in sorted(resolver.times(*key))
    ]
    _guess(broker, searches)
    _run(broker, searches)
    return {(search.key, search.timestamp): search.found for search in searches}


def first_offsets(broker: LiveBroker, spans: Spans) -> dict[QueueKey, int]:
    """Return the first queue offset of each queue whose message is there, its end if none is.

    Retention deletes files of the log first. Until it has corrected a queue, this begins with
    messages that are gone.
    """
    firsts = {key: start for key, (start, _) in spans.items()}
    asked = [QueueSlice(*key, start, end) for key, (start, end) in spans.items() if start < end]
    records, _ = first_answers(broker, asked)
    unclear: dict[QueueKey, RecordHeader | None] = {}
    for queue_slice, record in records.items():
        key = (queue_slice.topic, queue_slice.queue_id)
        if record is None or (record.served_offset == 0 and record.queue_offset):
            unclear[key] = record
        else:
            firsts[key] = min(record.served_offset, queue_slice.end)
    searches = [_Search(key, firsts[key] + 1, spans[key][1]) for key in unclear]
    _run(broker, searches)
    for search, record in zip(searches, unclear.values(), strict=True):
        # For the first record of its log a broker may answer with the first one that is left.
        is_other = record is not None and record.physical_offset == search.physical_offset
        if record is None or is_other or search.found > 1:
            firsts[search.key] = search.found
    return firsts


def bounds_of_withdrawn(
    broker: LiveBroker, selection: Selection, spans: Spans, withdrawn: Spans
) -> dict[QueueKey, tuple[int, int]]:
    """Return the bounds of a selection in queues without permission to read.

    None of their records can be read, so a time is where the broker finds it.

    Args:
        broker: the broker.
        selection: the selection.
        spans: of the other queues, because a group may have committed offsets of these alone.
        withdrawn: of the queues.
    """
    lenient = replace(selection, timestamp_strategy="latest")
    known = {**spans, **withdrawn}
    resolver = resolver_for(broker, lenient, known, fail_on_data_loss=False)
    asked = [(key, time) for key in withdrawn for time in sorted(resolver.times(*key))]
    times: dict[tuple[QueueKey, int], int] = {}
    for (key, time), offset in zip(asked, broker.at_times(asked), strict=True):
        first, end = withdrawn[key]
        times[key, time] = first if offset is None else min(max(offset, first), end)
    return {key: resolver.bounds(*key, span, times) for key, span in withdrawn.items()}


@dataclass
class _Search:
    """A search for the first message that is there at or after a store time or a physical offset.

    A broker that is asked for an offset whose message is deleted answers with the first one that it
    has after it, so what a search learns of an offset holds for the first message from there on.

    Attributes:
        key: the queue.
        low: all messages before this queue offset are earlier, or gone.
        high: the first message from this one on is not earlier, or it is the end of the queue.
        timestamp: the time, ms.
        sought: the physical offset.
        probe: the offset whose record is asked for next, -1 for the middle.
        n_probes: how many were asked for.
        found: where the first message from ``high`` on lies, or the end of the queue.
        physical_offset: that of this message, -1 if there is none.
    """

    key: QueueKey
    low: int
    high: int
    timestamp: int = 0
    sought: int = 0
    probe: int = -1
    n_probes: int = 0
    found: int = field(init=False)
    physical_offset: int = -1

    def __post_init__(self) -> None:
        """Know of no message yet."""
        self.found = self._end = self.high

    def begin_at(self, guess: int) -> None:
        """Probe an offset first, or the nearest one that may be the answer."""
        self.probe = min(max(guess, self.low), self.high - 1)

    def next_probe(self) -> int:
        """Return the offset whose record is probed next."""
        if not self.low <= self.probe < self.high:
            self.probe = (self.low + self.high) // 2
        return self.probe

    def learn(self, record: RecordHeader | None) -> None:
        """Take the first record that is there from the probe on, None if many are gone there."""
        probe = self.probe
        self.n_probes += 1
        if record is None:
            self.low = self.probe = probe + 1
        elif record.store_timestamp < self.timestamp or record.physical_offset < self.sought:
            self.low = self.probe = min(record.served_offset + 1, self.high)
        else:
            self.high = probe
            self.probe = probe - 1
            self.found = min(record.served_offset, self._end)
            self.physical_offset = record.physical_offset
        if self.n_probes > 1:  # the neighbour has not confirmed what the broker found
            self.probe = -1


def _guess(broker: LiveBroker, searches: Sequence[_Search]) -> None:
    """Begin searches by time with what the broker finds, if it lets us ask."""
    open_searches = [search for search in searches if search.low < search.high]
    guesses = broker.at_times([(search.key, search.timestamp) for search in open_searches])
    for search, guess in zip(open_searches, guesses, strict=True):
        if guess is not None:
            search.begin_at(guess)


def _run(broker: LiveBroker, searches: Sequence[_Search]) -> None:
    """Bring searches to their ends, a step of all of them at a time."""
    while unfinished := [search for search in searches if search.low < search.high]:
        asked = [QueueSlice(*search.key, search.next_probe(), search.high) for search in unfinished]
        for search, record in zip(unfinished, first_records(broker, asked), strict=True):
            search.learn(record)
