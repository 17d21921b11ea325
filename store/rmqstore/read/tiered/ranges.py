"""Where queues begin and end that are in tiered storage, in the local store, or in both.

A broker uploads each message some time after it has stored it, and deletes its own copy later. So
the two overlap, and agree on queue offsets. A read takes from tiered storage what the local store
no longer has, and all else from the local store, as the broker does.

An example: tiered storage has the queue offsets 0 to 98, and the local store has 74 to 104. Then 0
to 74 are read from tiered storage, and 74 to 104 from the local store.

Source: TieredMessageStore.java, whose default for ``tieredStorageLevel`` is NOT_IN_DISK.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from time import sleep
from typing import NamedTuple

from rmqstore.errors import (
    CorruptQueueError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    StoreFormatError,
    Text,
)
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.selection import Selection
from rmqstore.read.queue_ranges import BoundResolver, QueueRanges, choose_queues, slices_of
from rmqstore.read.scan.spec import READS_ON
from rmqstore.read.time_search import first_stored_at
from rmqstore.spans import FOREVER, QueueKey, QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.queue.tiered import TieredQueues

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1  # in which a broker completes the unit that it is writing


class JoinedRange(NamedTuple):
    """Where a queue begins and ends, and where which part of it lies.

    Attributes:
        start: the first queue offset whose message is there.
        tier_end: tiered storage has the messages from ``start`` to here.
        local_start: the local store has those from here on. If this is not ``tier_end``, the
            messages between the two are gone.
        end: the queue offset after the last message.
    """

    start: int
    tier_end: int
    local_start: int
    end: int


class JoinedRanges:
    """The queues of a store together with those in its tiered storage.

    Args:
        local: the queues of the local store.
        tiered: those in tiered storage.
    """

    def __init__(self, local: QueueRanges, tiered: TieredQueues) -> None:
        self._local, self._tiered = local, tiered
        self._overtaken: set[tuple[str, int]] = set()  # queues that were warned of

    def joined(self, topic: str, queue_id: int) -> JoinedRange:
        """Return where a queue begins and ends, and where its parts lie."""
        tier_start, tier_end = self._tiered.queue(topic, queue_id).range()
        start, end = self._local.range(topic, queue_id)
        if start < end < tier_end and tier_start < tier_end:
            self._warn_of_overtaken(topic, queue_id, end, tier_end)
        return _joined((tier_start, tier_end), (start, end))

    def with_local(self, key: QueueKey, local: tuple[int, int]) -> JoinedRange:
        """Return where a queue begins and ends whose range in the local store is known."""
        return _joined(self._tiered.queue(*key).range(), local)

    def _warn_of_overtaken(self, topic: str, queue_id: int, end: int, tier_end: int) -> None:
        if (topic, queue_id) not in self._overtaken:
            self._overtaken.add((topic, queue_id))
            logger.warning(
                "%s: not read: the queue offsets %d to %d (excluded) of %s-%d, which the local "
                "store does not have yet, or has lost",
                self._tiered.tier.folder, end, tier_end, topic, queue_id,
            )  # fmt: skip

    def boundary(self, topic: str, queue_id: int) -> int:
        """Return the queue offset from which on the local store has the messages of a queue."""
        oldest = self._local.oldest(topic, queue_id)
        return FOREVER if oldest is None else oldest

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there, and the one after the last."""
        joined = self.joined(topic, queue_id)
        return joined.start, joined.end

    def at_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        span: tuple[int, int],
        *,
        tolerant: bool = False,
    ) -> int:
        """Return the first queue offset in ``span`` whose message was stored at or after a time.

        See ``QueueRanges.at_time``.
        """
        joined = self.joined(topic, queue_id)
        start, end = span
        tier_end = min(end, joined.tier_end)
        if start < tier_end:
            queue = self._tiered.queue(topic, queue_id)
            in_tier = (start, tier_end)
            first = first_stored_at(queue.log, queue.units, timestamp, in_tier, tolerant=tolerant)
            if first < tier_end:
                return first
        start = max(start, joined.local_start)
        if start >= end:
            return end
        return self._local.at_time(topic, queue_id, timestamp, (start, end), tolerant=tolerant)

    def topics(self, local_topics: list[str]) -> list[str]:
        """Return those topics, and every topic with a queue in tiered storage, sorted."""
        return sorted({*local_topics, *self._tiered.topics()})

    def choose(
        self,
        selection: Selection,
        config: BrokerConfig,
        pruning: Pruning = NO_PRUNING,
    ) -> dict[str, list[int]]:
        """Return the chosen topics and their queues; see ``QueueRanges.choose``."""
        self._local.require_plain_queues(selection)
        known = self.topics(self._local.known_topics(config))
        return choose_queues(selection, known, self.queue_ids, pruning)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return sorted({*self._local.queue_ids(topic), *self._tiered.ids(topic)})

    def slices(
        self,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
        pruning: Pruning = NO_PRUNING,
    ) -> Iterator[QueueSlice]:
        """Yield the non-empty ranges that a selection names; see ``QueueRanges.resolve``.

        No range lies in both tiered storage and the local store.
        """
        resolver = BoundResolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=tolerant
        )
        for topic, queue_ids in self.choose(selection, config, pruning).items():
            for queue_id in queue_ids:
                if not pruning.keeps(topic, queue_id):
                    continue
                joined = self.joined(topic, queue_id)
                span = (joined.start, joined.end)
                bounds = resolver.bounds(topic, queue_id, span, {})
                yield from self._parts(
                    (topic, queue_id),
                    joined,
                    bounds,
                    fail_on_data_loss=fail_on_data_loss,
                    tolerant=tolerant,
                )

    def parts(
        self, key: QueueKey, bounds: tuple[int, int], *, fail_on_data_loss: bool, tolerant: bool
    ) -> Iterator[QueueSlice]:
        """Yield the parts of a range of a queue that are there; see :meth:`slices`.

        The local store may have messages after the end that it had when it was opened.
        """
        if bounds[0] >= self.boundary(*key):
            yield from self._local.slices(*key, *bounds, tolerant=tolerant)
            return
        joined = self._within(key, bounds)
        if joined.tier_end < min(joined.local_start, bounds[1]):
            # The local store may have deleted these messages just now, after their upload.
            self._tiered.queue(*key).refresh()
            joined = self._within(key, bounds)
        yield from self._parts(
            key, joined, bounds, fail_on_data_loss=fail_on_data_loss, tolerant=tolerant
        )

    def _within(self, key: QueueKey, bounds: tuple[int, int]) -> JoinedRange:
        local_start = self.boundary(*key)
        tier_end = self._tiered.queue(*key).range()[1]
        end = max(bounds[1], min(local_start + 1, FOREVER))  # the local store has that message
        return JoinedRange(bounds[0], min(tier_end, local_start), local_start, end)

    def _parts(
        self,
        key: QueueKey,
        joined: JoinedRange,
        bounds: tuple[int, int],
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> Iterator[QueueSlice]:
        topic, queue_id = key
        start, end = bounds
        if start <= joined.local_start:
            self._report_misfits(topic, queue_id, tolerant=tolerant)
        tier_end = min(end, joined.tier_end)
        if start < tier_end:
            self._require_same_messages(topic, queue_id, joined)
            queue = self._tiered.queue(topic, queue_id)
            if queue.is_sparse:
                runs = queue.units.runs(start, tier_end)
                yield from (QueueSlice(*key, *run) for run in runs)
            else:
                yield from slices_of(queue.units, key, start, tier_end, tolerant=tolerant)
        lost = max(start, joined.tier_end), min(end, joined.local_start)
        if lost[0] < lost[1]:
            self._report_loss(topic, queue_id, lost, fails=fail_on_data_loss)
        start = max(start, joined.local_start)
        if start < end:
            yield from self._local.slices(topic, queue_id, start, end, tolerant=tolerant)

    def starts(
        self,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
        *,
        fail_on_data_loss: bool,
    ) -> dict[QueueKey, int]:
        """Return where a selection starts in each queue; see ``QueueRanges.starts``."""
        resolver = BoundResolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=False
        )
        return {key: resolver.start(*key, span, {}) for key, span in spans().items()}

    def _require_same_messages(self, topic: str, queue_id: int, joined: JoinedRange) -> None:
        """Compare the first message of the local store with its copy in tiered storage.

        Raises:
            OptionError: the two were stored at different times, so they are of different queues.
        """
        queue_offset = joined.local_start
        queue = self._tiered.queue(topic, queue_id)
        if not joined.start < queue_offset < min(queue.units.end(), joined.end):
            return
        try:
            messages = [
                queue.message(queue_offset),
                self._local.message(topic, queue_id, queue_offset),
            ]
        except (StoreFormatError, OffsetOutOfRangeError, MessageNotFoundError):
            return  # a read of the message reports the damage
        expected = (topic, queue_id, queue_offset)
        if any((one.topic, one.queueId, one.queueOffset) != expected for one in messages):
            return  # a damaged unit, or a kind of queue in which messages share a record
        copied, stored = (one.storeTimestamp for one in messages)
        if copied != stored:
            raise OptionError(
                f"{self._tiered.tier.folder} is not the tiered storage of this store: the message "
                f"of {topic}-{queue_id} at queue offset {queue_offset} was stored at {copied} "
                f"there, and at {stored} here"
            )

    def _report_misfits(self, topic: str, queue_id: int, *, tolerant: bool) -> None:
        """Report files of a queue that contradict their names or one another.

        Raises:
            CorruptQueueError: there are some, and ``tolerant`` is false.
        """
        queue = self._tiered.queue(topic, queue_id)
        if queue.misfits():
            sleep(_PAUSE_SECONDS)
            queue.refresh()
        for misfit in queue.misfits():
            if not tolerant:
                raise CorruptQueueError(*misfit)
            logger.warning("%s, byte %d: %s; going on with what is left", *misfit)
        if queue.log.segments and not queue.units.is_present:
            # A broker writes the first records of a queue before their units.
            logger.warning(
                "%s: not read: records of %s-%d without units",
                queue.log.folders, topic, queue_id,
            )  # fmt: skip

    def _report_loss(
        self, topic: str, queue_id: int, lost: tuple[int, int], *, fails: bool
    ) -> None:
        text = (
            f"queue offsets {lost[0]} to {lost[1]} (excluded) of {topic}-{queue_id} are gone: the "
            f"local store begins after them, and {self._tiered.tier.folder} ends before them"
        )
        if fails:
            raise OffsetOutOfRangeError(Text(text, "; ", READS_ON, " reads on without them"))
        logger.warning("data loss: %s", text)


def _joined(in_tier: tuple[int, int], local: tuple[int, int]) -> JoinedRange:
    (tier_start, tier_end), (start, end) = in_tier, local
    if start >= end:  # the local store has no message of the queue
        last = max(tier_end, end)
        if tier_start >= tier_end:
            return JoinedRange(end, end, end, end)
        return JoinedRange(tier_start, tier_end, last, last)
    if tier_start >= tier_end or start <= tier_start:
        return JoinedRange(start, start, start, end)
    return JoinedRange(tier_start, min(tier_end, start), start, end)
