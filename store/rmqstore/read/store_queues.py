"""The queues of a store, each as the parts that its sources have of it."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise
from time import sleep
from typing import Final, NamedTuple

from rmqstore.errors import (
    CorruptQueueError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    StoreFormatError,
)
from rmqstore.format.record import from_millis
from rmqstore.notebook import MAX_ROWS, table
from rmqstore.read.bounds import SearchByTime
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.stored_times import TimeSearch
from rmqstore.spans import FOREVER, QueueKey, QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import records_end
from rmqstore.storage.queue.queue_source import QueuePart, QueueSource, join_parts
from rmqstore.storage.queue.tiered import TieredQueue, TieredQueues
from rmqstore.storage.recovery.queues import Queues

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.1  # in which a broker completes the unit that it is writing
_QUEUES_TOGETHER: Final = 128  # whose ends a remote storage fetches together


class QueueInfo(NamedTuple):
    """One queue.

    Attributes:
        topic: topic name.
        queue_id: queue id.
        min_offset: queue offset of the first message.
        max_offset: queue offset after the last message.
        first_store_timestamp: store time of the first message, in UTC; None for an empty queue.
        last_store_timestamp: store time of the last message, in UTC; None for an empty queue.
        n_bytes: bytes of all its records.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp: datetime | None
    last_store_timestamp: datetime | None
    n_bytes: int

    def _repr_html_(self) -> str:
        """Return the queue as a table, for a notebook."""
        return table(self._fields, [self])


class QueueInfos(list[QueueInfo]):
    """Queues, as a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return a table of the first queues."""
        rows = self[:MAX_ROWS]
        return table(QueueInfo._fields, rows, n_left_out=len(self) - len(rows))


class StoreQueues:
    """The queues of one store, wherever their messages are.

    Args:
        config: the configuration of the broker.
        log: the CommitLog of the local store.
        queues: its queues.
        tiers: those in tiered storage, or the compacted ones, if these are read too; one at most.

    Attributes:
        sources: all of these queues, those of the local store last.
    """

    def __init__(
        self, config: BrokerConfig, log: CommitLog, queues: Queues, *tiers: TieredQueues
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self.tiers = tiers
        self.sources: tuple[QueueSource, ...] = (*tiers, queues)
        self._overtaken: set[QueueKey] = set()  # queues that were warned of
        self._times_fall = False  # whether it was warned of times that fall

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return sorted({topic for source in self.sources for topic in source.topics()})

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return sorted({*self.topics(), *self._config.topics()})

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return sorted({queue_id for source in self.sources for queue_id in source.ids(topic)})

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there, and the one after the last.

        In a compacted queue an offset before the first message may be read, and stands for it.
        """
        parts = self.parts(topic, queue_id)
        return parts[0].first, parts[-1].end

    def parts(self, topic: str, queue_id: int) -> list[QueuePart]:
        """Return the parts of a queue; see :func:`join_parts`."""
        if not self.tiers:
            return [self._queues.part(topic, queue_id)]
        parts = [source.part(topic, queue_id) for source in self.sources]
        local = parts[-1]
        for part in parts[:-1]:
            is_overtaken = part.start < part.end and local.start < local.end < part.end
            if is_overtaken and (topic, queue_id) not in self._overtaken:
                self._overtaken.add((topic, queue_id))
                logger.warning(
                    "%s: not read: the queue offsets %d to %d (excluded) of %s-%d, which the "
                    "local store does not have yet, or has lost",
                    part.folder, local.end, part.end, topic, queue_id,
                )  # fmt: skip
        return join_parts(parts)

    def with_local(self, key: QueueKey, local: tuple[int, int]) -> list[QueuePart]:
        """Return the parts of a queue whose range in the local store is known."""
        parts = [tier.part(*key) for tier in self.tiers]
        return join_parts([*parts, self._queues.part_of(key, *local)])

    def _cut(self, key: QueueKey, start: int, end: int) -> list[QueuePart]:
        """Return the parts of a range by the log that holds them."""
        if not self.tiers:
            return [self._queues.part_of(key, start, end)]
        *tiered, local = self.parts(*key)
        cut = [part._replace(start=start, end=min(end, part.end)) for part in tiered]
        cut.append(local._replace(start=max(start, local.start), end=end))
        return [part for part in cut if part.start < part.end]

    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return the parts of ranges that are read from the tier, and those of the local store.

        Retention may have deleted messages of the local store since the ranges were planned, which
        tiered storage still has.
        """
        if not self.tiers:
            return [], [*slices]
        in_tier: list[QueueSlice] = []
        local: list[QueueSlice] = []
        firsts: dict[QueueKey, int] = {}
        for queue_slice in slices:
            key = (queue_slice.topic, queue_slice.queue_id)
            if key not in firsts:
                firsts[key] = self._queues.first(*key)
            cut = min(max(firsts[key], queue_slice.start), queue_slice.end)
            if queue_slice.start < cut:
                in_tier.append(queue_slice._replace(end=cut))
            if cut < queue_slice.end:
                local.append(queue_slice._replace(start=cut))
        return in_tier, local

    def time_search(self) -> SearchByTime:
        """Return what searches queues for store times; each search shortens the next ones."""
        search = TimeSearch(self._warn_of_falling_times)

        def at_time(
            topic: str, queue_id: int, timestamp: int, span: tuple[int, int], *, tolerant: bool
        ) -> int:
            for part in self._cut((topic, queue_id), *span):
                first = search.first((topic, queue_id), part, timestamp, tolerant=tolerant)
                if first < part.end:
                    return first
            return span[1]

        return at_time

    def _warn_of_falling_times(self, key: QueueKey) -> None:
        """Warn once that the store times of a queue fall around a bound that is looked for."""
        if not self._times_fall:
            self._times_fall = True
            logger.warning(
                "%s: messages of %s-%d were stored before messages that stand in front of them: "
                "the clock of the broker was set back, or another master took over. A bound by "
                "time is the first message stored at or after it; a condition on storeTimestamp "
                "compares each message", self._log.folders, *key,
            )  # fmt: skip

    def stored_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, ms."""
        for part in self._cut((topic, queue_id), queue_offset, queue_offset + 1):
            return part.stored_at(queue_offset)
        # The message is gone, as its unit in the local store says.
        return self._queues.part_of((topic, queue_id), 0, 0).stored_at(queue_offset)

    def info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        start, end = self.range(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        # Where the newest messages are gone, the last time is that of the last one that is left.
        parts = self._cut((topic, queue_id), start, end)
        first_time = from_millis(parts[0].stored_at(start))
        last_time = from_millis(parts[-1].stored_at(parts[-1].end - 1))
        n_bytes = sum(part.n_bytes for part in parts)
        return QueueInfo(topic, queue_id, start, end, first_time, last_time, n_bytes)

    def n_messages(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return how many messages a range of a queue has."""
        for tier in self.tiers:
            queue = tier.queue(topic, queue_id)
            if queue.is_sparse:
                return queue.units.count_units(start, end, 0)
        return end - start

    def n_bytes(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return the bytes of the records of a range of a queue, as its units say."""
        return sum(part.n_bytes for part in self._cut((topic, queue_id), start, end))

    def n_unit_bytes(self, topic: str, queue_id: int) -> int:
        """Estimate the bytes of the units of a queue without a look into its files."""
        return sum(source.open(topic, queue_id).n_full_bytes for source in self.sources)

    def end_in_log(self, but: Container[QueueKey] = ()) -> int:
        """Return the physical offset after the last record that a queue points at.

        Without queues it is -1.

        Args:
            but: queues that are left out.
        """
        ends = [-1]
        for key in self.prefetched(key for key in self._queues.plain() if key not in but):
            queue = self._queues.open(*key)
            ends.append(records_end(queue, queue.end()))
        return max(ends)

    def proved_end(self) -> int:
        """Return :meth:`end_in_log`, or -1 if the queues cannot show where the log ends.

        They cannot where their files lack records, or are damaged.
        """
        try:
            return -1 if self._queues.lack_records else self.end_in_log()
        except RmqStoreError as err:
            logger.warning("%s: no queue shows where the log ends: %s", self._log.folders, err)
            return -1

    def prefetched(self, keys: Iterable[QueueKey]) -> Iterator[QueueKey]:
        """Yield queues; the ends of some of them are fetched together from a remote storage."""
        left = iter(keys)
        while together := list(islice(left, _QUEUES_TOGETHER)):
            if self._log.is_remote:
                self._queues.prefetch_ends([self._queues.open(*key) for key in together])
            yield from together

    def slices(self, key: QueueKey, start: int, end: int, spec: ReadSpec) -> list[QueueSlice]:
        """Return the parts of a range that are there. None lies in both tiered storage and the log.

        The local store may have messages after the end that it had when it was opened.

        Raises:
            CorruptQueueError: a file of the queue is missing or cut, in mode FAILFAST.
            OffsetOutOfRangeError: messages between tiered storage and the local store are gone,
                and data loss is to fail.
        """
        if not self.tiers or start >= self._queues.first(*key):
            local = self._queues.part_of(key, start, end)
            return local.slices(key, start, end, tolerant=spec.is_tolerant)
        parts = self._as_of_now(key, start, end)
        if any(part.end < min(following.start, end) for part, following in pairwise(parts)):
            # The local store may have deleted these messages just now, after their upload.
            for tier in self.tiers:
                tier.queue(*key).refresh()
            parts = self._as_of_now(key, start, end)
        return self.slices_of_parts(key, parts, (start, end), spec)

    def _as_of_now(self, key: QueueKey, start: int, end: int) -> list[QueuePart]:
        """Return the parts of a queue that a range may lie in, also those without a message."""
        local_start = self._queues.first(*key)
        # The local store has the message at its first offset.
        local_end = max(end, min(local_start + 1, FOREVER))
        parts = [tier.part(*key) for tier in self.tiers]
        in_tiers = [part._replace(start=start, end=min(part.end, local_start)) for part in parts]
        return [*in_tiers, self._queues.part_of(key, local_start, local_end)]

    def slices_of_parts(
        self, key: QueueKey, parts: Sequence[QueuePart], bounds: tuple[int, int], spec: ReadSpec
    ) -> list[QueueSlice]:
        """Return the existing slices of a range in the parts of a queue; see :meth:`slices`."""
        start, end = bounds
        tolerant = spec.is_tolerant
        slices: list[QueueSlice] = []
        if start <= parts[-1].start:
            for tier in self.tiers:
                _report_mismatches(key, tier.queue(*key), tolerant=tolerant)
        for part, following in pairwise(parts):
            until = min(end, part.end)
            if start < until:
                _require_same_messages(key, part, following)
                slices += part.slices(key, start, until, tolerant=tolerant)
            lost = max(start, part.end), min(end, following.start)
            if lost[0] < lost[1]:
                text = (
                    f"queue offsets {lost[0]} to {lost[1]} (excluded) of {key[0]}-{key[1]} are "
                    f"gone: the local store begins after them, and {part.folder} ends before them"
                )
                spec.report_loss(text)
            start = max(start, following.start)
        if start < end:
            slices += parts[-1].slices(key, start, end, tolerant=tolerant)
        return slices


def _require_same_messages(key: QueueKey, part: QueuePart, following: QueuePart) -> None:
    """Compare the first message of a part with its copy in the part before.

    Raises:
        OptionError: the two were stored at different times, so they are of different queues.
    """
    queue_offset = following.start
    if not part.start < queue_offset < min(part.units.end(), following.end):
        return
    try:
        messages = [
            side.log.get(side.units.unit(queue_offset)[0], with_body=False)
            for side in (part, following)
        ]
    except (StoreFormatError, OffsetOutOfRangeError, MessageNotFoundError):
        return  # a read of the message reports the damage
    expected = (*key, queue_offset)
    if any(
        (message.topic, message.queueId, message.queueOffset) != expected for message in messages
    ):
        return  # a damaged unit, or a kind of queue in which messages share a record
    copied, stored = (message.storeTimestamp for message in messages)
    if copied != stored:
        raise OptionError(
            f"{part.folder} is not the tiered storage of this store: the message "
            f"of {key[0]}-{key[1]} at queue offset {queue_offset} was stored at {copied} "
            f"there, and at {stored} here"
        )


def _report_mismatches(key: QueueKey, queue: TieredQueue, *, tolerant: bool) -> None:
    """Report files of a queue that contradict their names or one another.

    Raises:
        CorruptQueueError: there are some, and ``tolerant`` is false.
    """
    if queue.mismatches():
        sleep(_PAUSE_SECONDS)
        queue.refresh()
    for mismatch in queue.mismatches():
        if not tolerant:
            raise CorruptQueueError(*mismatch)
        logger.warning("%s, byte %d: %s; continuing with what is left", *mismatch)
    if queue.log.segments and not queue.units.is_present:
        # A broker writes the first records of a queue before their units.
        logger.warning("%s: not read: records of %s-%d without units", queue.log.folders, *key)
