"""The numbers of a report, from views and samples of a store.

Only queue units are read completely.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import Finding, RmqStoreError
from rmqstore.format.schema import TIMESTAMP
from rmqstore.format.topics import is_system_topic
from rmqstore.inspect.verify import verify
from rmqstore.progress import Progress, ignore_progress
from rmqstore.read.plan.light_queues import describe_light_queues
from rmqstore.read.views.schema import VIEWS
from rmqstore.spans import QueueSlice
from rmqstore.storage.queue.bounds import total_weight
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.rocksdb.queue_tables import are_queues_unreadable
from rmqstore.store import MessageStore

logger = logging.getLogger(__name__)

# with more messages their bytes are estimated, because counting would read each unit
_EXACT_UNITS = 20_000_000
_TIME_SAMPLES = 40_000  # records that are read for their store time, over all queues
_MIN_TIME_SAMPLES, _MAX_TIME_SAMPLES = 4, 256  # for one queue
_SMALL_QUEUE = 16  # messages; with at most this many, the time of each is read
_SIZE_SAMPLES = 16
_MAX_BINS = 120
_SHOWN_TOPICS = 8
OTHER_TOPICS = "other topics"

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_WIDTHS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 30, 90, 365)),
)  # fmt: skip


@dataclass(slots=True)
class QueueFacts:
    """One queue. Times are in ms; what is not known is None."""

    topic: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None  # excluded
    messages: int | None
    n_bytes: int | None
    first: int | None
    last: int | None
    reason: str | None
    lag: int | None = None  # the largest of any group


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
    queues: int
    lag: int | None  # in messages, over all queues
    lag_millis: int | None  # of the worst queue


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
    broker_name: str
    topics: list[TopicFacts]
    queues: list[QueueFacts]
    groups: list[GroupFacts]
    files: list[FileFacts]
    rates: Rates | None
    log_end: LogEnd | None
    is_estimated: bool  # whether the bytes of messages are estimates
    lacks_rocksdb_queues: bool = False  # whether the numbers leave out queues in RocksDB
    findings: list[Finding] | None = None  # None if the store was not checked
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages in all queues."""
        return sum(topic.messages for topic in self.topics)

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


def gather(
    store: MessageStore, *, with_verify: bool = True, progress: Progress = ignore_progress
) -> StoreFacts:
    """Gather the numbers of a report.

    Args:
        store: the store, opened for reading.
        with_verify: also check the store, which reads all of its log.
        progress: called with the progress of the check.
    """
    store.session.require_local("a report")
    notes = store.session.kind().lines()
    if apart := store.session.light_messages_apart:
        text = f"{describe_light_queues(Counter(apart), apart)} lie in RocksDB alone"
        notes.append(f"{text}: the numbers lack them")
    queues, is_estimated = _queues(store)
    groups = _groups(store, queues, notes)
    facts = StoreFacts(
        path=str(store.paths.storage.full_path(store.paths.root)),
        broker_name=store.session.view_broker_name,
        topics=_topics(queues),
        queues=queues,
        groups=groups,
        files=_files(store),
        rates=None,
        log_end=store.log_end,
        is_estimated=is_estimated,
        lacks_rocksdb_queues=are_queues_unreadable(store.paths),
        notes=notes,
    )
    facts.rates = _rates(store, facts)
    notes += [f"{queue.topic}-{queue.queue_id}: {queue.reason}" for queue in queues if queue.reason]
    if with_verify:
        facts.findings = _findings(store, progress)
    return facts


def _queues(store: MessageStore) -> tuple[list[QueueFacts], bool]:
    """Return all queues, and whether their bytes are estimates."""
    names = [name for name in VIEWS["queues"].names if name != "bytes"]
    rows = _rows(store.view("queues", columns=names, include_system_topics=True))
    is_estimated = sum(row["messages"] or 0 for row in rows) > _EXACT_UNITS
    sizes = {
        (row["topic"], row["queueId"]): _n_bytes(store, row, is_estimated=is_estimated)
        for row in rows
    }
    queues = [
        QueueFacts(
            topic=row["topic"],
            queue_id=row["queueId"],
            min_offset=row["minOffset"],
            max_offset=row["maxOffset"],
            messages=row["messages"],
            n_bytes=sizes.get((row["topic"], row["queueId"])),
            first=row["firstStoreTimestamp"],
            last=row["lastStoreTimestamp"],
            reason=row["reason"],
        )
        for row in rows
    ]
    return queues, is_estimated


def _n_bytes(store: MessageStore, row: dict[str, Any], *, is_estimated: bool) -> int | None:
    """Return the bytes of the records of a queue, None if they are not known."""
    if not row["messages"]:
        return None if row["messages"] is None else 0
    whole = QueueSlice(row["topic"], row["queueId"], row["minOffset"], row["maxOffset"])
    try:
        if is_estimated:
            sizes = [sample.mean_bytes for sample in store.session.sample(whole, _SIZE_SAMPLES)]
            return int(row["messages"] * np.mean(sizes)) if sizes else None
        return total_weight(store.session.queues.open(*whole[:2]), whole.start, whole.end)
    except (RmqStoreError, OSError) as err:
        logger.info("%s-%d: %s", *whole[:2], err)
        return None


def _rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the rows of a view, with times in ms."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        columns = [_in_millis(column) for column in batch.columns]
        rows += pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _in_millis(column: pa.Array) -> pa.Array:
    if column.type != TIMESTAMP:
        return column
    return column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())


def _topics(queues: Sequence[QueueFacts]) -> list[TopicFacts]:
    """Return the topics of queues, the largest first."""
    by_topic: dict[str, list[QueueFacts]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    topics = []
    for topic, parts in by_topic.items():
        counts = [queue.messages or 0 for queue in parts]
        firsts = [queue.first for queue in parts if queue.first is not None]
        lasts = [queue.last for queue in parts if queue.last is not None]
        topics.append(
            TopicFacts(
                topic=topic,
                is_system=is_system_topic(topic),
                queues=len(parts),
                messages=sum(counts),
                n_bytes=sum(queue.n_bytes or 0 for queue in parts),
                first=min(firsts, default=None),
                last=max(lasts, default=None),
                skew=max(counts) * len(counts) / sum(counts) if sum(counts) else None,
            )
        )
    return sorted(topics, key=lambda topic: (-topic.n_bytes, -topic.messages, topic.topic))


def _groups(
    store: MessageStore, queues: Sequence[QueueFacts], notes: list[str]
) -> list[GroupFacts]:
    """Return the groups, those with the largest lag first, and set the lag of each queue."""
    try:
        rows = _rows(store.view("groups"))
    except RmqStoreError as err:
        notes.append(f"consumer groups: {err}")
        return []
    by_queue = {(queue.topic, queue.queue_id): queue for queue in queues}
    groups: dict[tuple[str, str], GroupFacts] = {}
    for row in rows:
        group = groups.setdefault(
            (row["consumerGroup"], row["topic"]),
            GroupFacts(row["consumerGroup"], row["topic"], 0, None, None),
        )
        group.queues += 1
        if row["lag"] is None:
            continue
        group.lag = (group.lag or 0) + row["lag"]
        if row["lagMillis"] is not None:
            group.lag_millis = max(group.lag_millis or 0, row["lagMillis"])
        queue = by_queue.get((row["topic"], row["queueId"]))
        if queue is not None:
            queue.lag = max(queue.lag or 0, row["lag"])
    return sorted(groups.values(), key=lambda group: (-(group.lag or 0), group.group, group.topic))


def _files(store: MessageStore) -> list[FileFacts]:
    kinds: dict[str, FileFacts] = {}
    states: dict[str, Counter[str]] = {}
    for row in _rows(store.view("files", columns=["kind", "size", "allocated", "state"])):
        kind = kinds.setdefault(row["kind"], FileFacts(row["kind"], 0, 0, 0, {}))
        kind.files += 1
        kind.n_bytes += row["size"]
        kind.allocated += row["allocated"]
        states.setdefault(row["kind"], Counter())[row["state"]] += 1
    for name, counts in states.items():
        kinds[name].states = dict(sorted(counts.items()))
    return sorted(kinds.values(), key=lambda kind: -kind.n_bytes)


def _rates(store: MessageStore, facts: StoreFacts) -> Rates | None:
    """Estimate how many messages were stored when.

    The store times of some messages are read; between them the estimate is interpolated.
    """
    first, last = facts.first, facts.last
    if first is None or last is None:
        return None
    first, last = min(first, last), max(first, last)  # a damaged time may reverse them
    width = next(
        (width for width in _WIDTHS_MS if (last - first) // width < _MAX_BINS),
        (last - first) // _MAX_BINS + 1,
    )
    begin = first // width * width
    edges = np.arange(begin, last + width + 1, width, dtype=np.int64)
    by_messages = sorted(facts.topics, key=lambda topic: -topic.messages)
    shown = {topic.topic for topic in by_messages[:_SHOWN_TOPICS]}
    counts: dict[str, NDArray[np.float64]] = {
        topic.topic: np.zeros(len(edges) - 1)
        for topic in by_messages[:_SHOWN_TOPICS]
        if topic.messages
    }
    share = _TIME_SAMPLES // max(len(facts.queues), 1)
    # Of very many queues, the times of the first message and the last one have to do.
    n_samples = min(share, _MAX_TIME_SAMPLES) if share >= _MIN_TIME_SAMPLES else 0
    for queue in facts.queues:
        if queue.messages:
            name = queue.topic if queue.topic in shown else OTHER_TOPICS
            of_topic = counts.setdefault(name, np.zeros(len(edges) - 1))
            of_topic += np.diff(_stored_before(store, queue, edges, n_samples))
    return Rates(edges[:-1], width, counts)


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


def _findings(store: MessageStore, progress: Progress) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(verify(store, progress))
    except (RmqStoreError, OSError) as err:
        findings.append(Finding("check", str(store.paths.root), f"could not be finished: {err}"))
    return findings
