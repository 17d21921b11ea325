"""Where the bounds of a selection lie in the queues of a running broker.

Brokers search by time in different ways: those before 5.1.4 may return another message of the same
millisecond, or a nearer one before it. So what a broker finds is where the search here begins.

Source: ConsumeQueue.java#getOffsetInQueueByTime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rmqstore.errors import OptionError
from rmqstore.live.broker import LiveBroker
from rmqstore.live.pulls import first_records
from rmqstore.query.selection import Selection
from rmqstore.read.bounds import BoundResolver
from rmqstore.read.time_search import FoundTimes
from rmqstore.spans import QueueKey, QueueSlice

Spans = Mapping[QueueKey, tuple[int, int]]


def resolver_for(
    broker: LiveBroker, selection: Selection, spans: Spans, *, fail_on_data_loss: bool
) -> BoundResolver:
    """Return what turns the bounds of a selection into offsets of a broker's queues.

    Raises:
        OptionError: the group of a bound has committed no offsets.
    """
    return BoundResolver(
        selection,
        broker.name,
        partial(_at_time, broker),
        partial(_committed, broker, spans),
        fail_on_data_loss=fail_on_data_loss,
        tolerant=False,
    )


def _committed(broker: LiveBroker, spans: Spans, group: str) -> Mapping[QueueKey, int]:
    offsets = {}
    for topic in dict.fromkeys(topic for topic, _ in spans):
        queue_ids = [queue_id for name, queue_id in spans if name == topic]
        for queue_id, offset in broker.committed(group, topic, queue_ids).items():
            offsets[topic, queue_id] = offset
    if not offsets and spans:
        raise OptionError(f"group {group!r} has committed no offsets of these topics at {broker}")
    return offsets


def _at_time(
    broker: LiveBroker,
    topic: str,
    queue_id: int,
    timestamp: int,
    span: tuple[int, int],
    *,
    tolerant: bool,  # noqa: ARG001 - a broker returns nothing that is damaged so far
) -> int:
    key = (topic, queue_id)
    return _search(broker, [_Search(key, timestamp, *span)])[key, timestamp]


def search_times(broker: LiveBroker, spans: Spans, resolver: BoundResolver) -> FoundTimes:
    """Return the offsets for all times that a selection names, found side by side."""
    searches = [
        _Search(key, timestamp, *span)
        for key, span in spans.items()
        for timestamp in sorted(resolver.times(*key))
    ]
    return _search(broker, searches)


@dataclass
class _Search:
    """A search for the first message at or after a time.

    Attributes:
        key: the queue.
        timestamp: the time, ms.
        low: all messages before this queue offset are earlier.
        high: the message at this one is not, or it is the end of the queue.
        probe: the offset whose store time is asked for next.
        n_probes: how many were asked for.
    """

    key: QueueKey
    timestamp: int
    low: int
    high: int
    probe: int = 0
    n_probes: int = 0

    def learn(self, store_time: int | None) -> None:
        """Take the store time of the message at the probe, None if it was deleted meanwhile."""
        self.n_probes += 1
        if store_time is None or store_time < self.timestamp:
            self.low = neighbour = self.probe + 1
        else:
            self.high = self.probe
            neighbour = self.probe - 1
        # The neighbour shows whether the broker was right. If it was not, this is a bisection.
        self.probe = neighbour if self.n_probes == 1 else (self.low + self.high) // 2


def _search(broker: LiveBroker, searches: Sequence[_Search]) -> dict[tuple[QueueKey, int], int]:
    unfinished = [each for each in searches if each.low < each.high]
    for topic in dict.fromkeys(each.key[0] for each in unfinished):
        mine = [each for each in unfinished if each.key[0] == topic]
        guesses = broker.at_times(topic, [(each.key[1], each.timestamp) for each in mine])
        for each, guess in zip(mine, guesses, strict=True):
            each.probe = min(max(guess, each.low), each.high - 1)
    while unfinished:
        asked = [QueueSlice(*each.key, each.probe, each.probe + 1) for each in unfinished]
        for each, record in zip(unfinished, first_records(broker, asked), strict=True):
            each.learn(None if record is None else record.store_timestamp)
        unfinished = [each for each in unfinished if each.low < each.high]
    return {(each.key, each.timestamp): each.low for each in searches}
