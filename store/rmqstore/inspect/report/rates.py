"""How many messages were stored when, estimated from samples."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import RmqStoreError
from rmqstore.inspect.report.facts import QueueFacts, Rates, StoreFacts
from rmqstore.spans import QueueSlice
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_TIME_SAMPLES = 40_000  # records that are read for their store time, over all queues
_MIN_TIME_SAMPLES, _MAX_TIME_SAMPLES = 4, 256  # for one queue
_SMALL_QUEUE = 16  # messages; with at most this many, the time of each is read
_MAX_BINS = 120
_SHOWN_TOPICS = 8
OTHER_TOPICS: Final = "other topics"
SYSTEM_TOPICS: Final = "system topics"

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
WIDTHS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 30, 90, 365)),
)


def estimate_rates(store: MessageStore, facts: StoreFacts) -> Rates | None:
    """Estimate how many messages were stored when; None if there is none with a time.

    The store times of some messages are read; between them the estimate is interpolated. The
    largest topics come apart, the others together, and those of the system together.
    """
    first, last = facts.first, facts.last
    if first is None or last is None:
        return None
    first, last = min(first, last), max(first, last)  # a damaged time may reverse them
    width = next(
        (width for width in WIDTHS_MS if (last - first) // width < _MAX_BINS),
        (last - first) // _MAX_BINS + 1,
    )
    begin = first // width * width
    edges = np.arange(begin, last + width + 1, width, dtype=np.int64)
    of_users = [topic for topic in facts.topics if topic.messages and not topic.is_system]
    of_users.sort(key=lambda topic: -topic.messages)
    names = [topic.topic for topic in of_users[:_SHOWN_TOPICS]]
    counts = {name: np.zeros(len(edges) - 1) for name in [*names, OTHER_TOPICS, SYSTEM_TOPICS]}
    share = _TIME_SAMPLES // max(len(facts.queues), 1)
    # Of very many queues, the times of the first message and the last one have to do.
    n_samples = min(share, _MAX_TIME_SAMPLES) if share >= _MIN_TIME_SAMPLES else 0
    for queue in facts.queues:
        if queue.messages:
            other = SYSTEM_TOPICS if queue.is_system else OTHER_TOPICS
            name = queue.topic if queue.topic in names else other
            counts[name] += np.diff(_stored_before(store, queue, edges, n_samples))
    shown = {name: of_topic for name, of_topic in counts.items() if of_topic.any()}
    return Rates(edges[:-1], width, shown)


def _stored_before(
    store: MessageStore, queue: QueueFacts, edges: NDArray[np.int64], n_samples: int
) -> NDArray[np.float64]:
    """Return the number of messages of a queue that were stored before each time, (n,)."""
    assert queue.min_offset is not None
    assert queue.max_offset is not None
    whole = QueueSlice(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
    known = {whole.start: queue.first, whole.end - 1: queue.last}
    slices = [whole]
    if not n_samples:
        slices = []
    elif whole.end - whole.start <= _SMALL_QUEUE:
        # A sample of several messages would not give the time of each.
        slices = [
            whole._replace(start=offset, end=offset + 1) for offset in range(whole.start, whole.end)
        ]
    for piece in slices:
        # a damaged record; the times of the others suffice
        with suppress(RmqStoreError, OSError):
            for sample in store.session.sample(piece, n_samples):
                known[sample.queue_offset] = _time_of(store, sample.physical_offset)
    points = [
        (time, offset - whole.start) for offset, time in sorted(known.items()) if time is not None
    ]
    if not points:
        return np.zeros(len(edges))
    times = np.maximum.accumulate(np.array([time for time, _ in points], np.int64))
    before = np.array([count for _, count in points], np.float64)
    # A sampled message was stored at its time, not gradually before it. So two points that are a
    # millisecond apart stand for it.
    _, oldest = np.unique(times, return_index=True)
    newest = np.append(oldest[1:], len(times)) - 1
    times = np.stack((times[oldest] - 1, times[oldest]), axis=1).ravel()
    counts = np.stack((before[oldest], before[newest] + 1), axis=1).ravel()
    at_edges: NDArray[np.float64] = np.interp(
        edges - 1, times, counts, left=0.0, right=float(counts[-1])
    )
    return at_edges


def _time_of(store: MessageStore, physical_offset: int) -> int | None:
    try:
        return store.session.log.store_timestamp(physical_offset)
    except (RmqStoreError, OSError) as err:
        logger.info("%s", err)
        return None
