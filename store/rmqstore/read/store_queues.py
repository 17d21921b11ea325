"""The queues of a store, each as parts: what tiered storage has of it, and what its own log has.

A broker uploads each message some time after it has stored it, and deletes its own copy later. So
the two overlap, and agree on queue offsets. A read takes from tiered storage what the local store
no longer has, and all else from the local store, as the broker does.

An example: tiered storage has the queue offsets 0 to 98, and the local store has 74 to 104. Then 0
to 74 are read from tiered storage, and 74 to 104 from the local store.

Source: TieredMessageStore.java, whose default for ``tieredStorageLevel`` is NOT_IN_DISK.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from time import sleep
from typing import Final, NamedTuple

from rmqstore.errors import (
    CorruptQueueError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    StoreFormatError,
    spelled,
)
from rmqstore.format.schema import Message
from rmqstore.read.bounds import first_stored_at
from rmqstore.read.read_spec import READS_ON
from rmqstore.spans import FOREVER, QueueKey, QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue, reach, total_weight
from rmqstore.storage.queue.tiered import TieredQueue, TieredQueues
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds
from rmqstore.storage.recovery.unit_checks import confirmed_end

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
        first_store_timestamp: store time (ms) of the first message; None for an empty queue.
        last_store_timestamp: store time (ms) of the last message; None for an empty queue.
        n_bytes: bytes of all its records.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    n_bytes: int


class QueuePart(NamedTuple):
    """Messages of a queue that lie in one log.

    Attributes:
        log: the log.
        units: the units of the queue that point into it.
        start: queue offset of the first message.
        end: queue offset after the last message.
    """

    log: CommitLog
    units: Queue
    start: int
    end: int

    def stored_at(self, queue_offset: int) -> int:
        """Return the store time of a message, ms."""
        return self.log.store_timestamp(self.units.unit(queue_offset)[0])


def join_parts(tiered: QueuePart, local: QueuePart) -> list[QueuePart]:
    """Return the parts of a queue in the order of their queue offsets, the local one last.

    They do not overlap. The local part is empty where only tiered storage has messages. If it does
    not begin where the other part ends, the messages between the two are gone.
    """
    is_tier_empty = tiered.start >= tiered.end
    if local.start >= local.end:
        if is_tier_empty:
            return [local._replace(start=local.end)]
        last = max(tiered.end, local.end)
        return [tiered, local._replace(start=last, end=last)]
    if is_tier_empty or local.start <= tiered.start:
        return [local]
    return [tiered._replace(end=min(tiered.end, local.start)), local]


class StoreQueues:
    """The queues of one store, wherever their messages are.

    Args:
        config: the configuration of the broker.
        log: the CommitLog of the local store.
        queues: its queues.
        ends: where its log ends.
        tier: the queues in tiered storage, or the compacted ones, if these are read too.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: CommitLog,
        queues: Queues,
        ends: StoreEnds,
        tier: TieredQueues | None = None,
    ) -> None:
        self._config, self._log, self._queues, self._ends = config, log, queues, ends
        self.tier = tier
        self._overtaken: set[QueueKey] = set()  # queues that were warned of

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self._with_tiered(self._queues.topics())

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self._with_tiered([*self._queues.topics(), *self._config.topics()])

    def _with_tiered(self, topics: Iterable[str]) -> list[str]:
        return sorted({*topics, *(() if self.tier is None else self.tier.topics())})

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        if self.tier is None:
            return self._queues.ids(topic)
        return sorted({*self._queues.ids(topic), *self.tier.ids(topic)})

    def local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is in the log, and that after the last one.

        Damaged units between the two count as messages; reading them reports the damage.
        """
        queue = self._queues.open(topic, queue_id)
        end = queue.end()
        log_end = self._ends.of_records()
        first = queue.first(end, self._log.min_offset)
        if log_end is None or queue.is_recovered:
            return first, end
        cut = queue.cut(first, end, log_end)
        end = confirmed_end(self._log, queue, (topic, queue_id), cut, log_end)
        return min(first, end), end

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there, and the one after the last.

        In a compacted queue an offset before the first message may be read, and stands for it.
        """
        if self.tier is None:
            return self.local_range(topic, queue_id)
        parts = self.parts(topic, queue_id)
        if self.tier.is_sparse:
            return self.tier.queue(topic, queue_id).units.begin, parts[-1].end
        return parts[0].start, parts[-1].end

    def boundary(self, topic: str, queue_id: int) -> int:
        """Return the queue offset from which on the local store has the messages of a queue."""
        queue = self._queues.open(topic, queue_id)
        end = queue.end()
        first = queue.first(end, self._log.min_offset)
        return first if first < end else FOREVER

    def parts(self, topic: str, queue_id: int) -> list[QueuePart]:
        """Return the parts of a queue; see :func:`join_parts`."""
        key = (topic, queue_id)
        if self.tier is None:
            return [self._local_part(key, *self.local_range(*key))]
        tiered = self._tiered_part(key, self.tier)
        local = self._local_part(key, *self.local_range(*key))
        is_overtaken = tiered.start < tiered.end and local.start < local.end < tiered.end
        if is_overtaken and key not in self._overtaken:
            self._overtaken.add(key)
            logger.warning(
                "%s: not read: the queue offsets %d to %d (excluded) of %s-%d, which the "
                "local store does not have yet, or has lost",
                self.tier.tier.folder, local.end, tiered.end, topic, queue_id,
            )  # fmt: skip
        return join_parts(tiered, local)

    def with_local(self, key: QueueKey, local: tuple[int, int]) -> list[QueuePart]:
        """Return the parts of a queue whose range in the local store is known."""
        in_log = self._local_part(key, *local)
        if self.tier is None:
            return [in_log]
        return join_parts(self._tiered_part(key, self.tier), in_log)

    def _local_part(self, key: QueueKey, start: int, end: int) -> QueuePart:
        return QueuePart(self._log, self._queues.open(*key), start, end)

    @staticmethod
    def _tiered_part(key: QueueKey, tier: TieredQueues) -> QueuePart:
        queue = tier.queue(*key)
        return QueuePart(queue.log, queue.units, *queue.range())

    def _cut(self, key: QueueKey, start: int, end: int) -> list[QueuePart]:
        """Return what of a range lies in which log."""
        if self.tier is None:
            return [self._local_part(key, start, end)]
        *tiered, local = self.parts(*key)
        cut = [part._replace(start=start, end=min(end, part.end)) for part in tiered]
        cut.append(local._replace(start=max(start, local.start), end=end))
        return [part for part in cut if part.start < part.end]

    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return what of ranges of queues is read from tiered storage, and what of the log.

        Retention may have deleted messages of the local store since the ranges were planned, which
        tiered storage still has.
        """
        if self.tier is None:
            return [], [*slices]
        in_tier: list[QueueSlice] = []
        local: list[QueueSlice] = []
        boundaries: dict[QueueKey, int] = {}
        for piece in slices:
            key = (piece.topic, piece.queue_id)
            if key not in boundaries:
                boundaries[key] = self.boundary(*key)
            cut = min(max(boundaries[key], piece.start), piece.end)
            if piece.start < cut:
                in_tier.append(piece._replace(end=cut))
            if cut < piece.end:
                local.append(piece._replace(start=cut))
        return in_tier, local

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

        Args:
            topic: topic name.
            queue_id: queue id.
            timestamp: the time, in ms.
            span: the queue offsets to search; its end is returned if no message is late enough.
            tolerant: take the time of the next readable message where one is damaged.

        Raises:
            CorruptRecordError: a message whose time is needed is damaged.
            OffsetOutOfRangeError: a message whose time is needed is missing.
        """
        for log, units, start, end in self._cut((topic, queue_id), *span):
            first = first_stored_at(log, units, timestamp, (start, end), tolerant=tolerant)
            if first < end:
                return first
        return span[1]

    def stored_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, ms."""
        for part in self._cut((topic, queue_id), queue_offset, queue_offset + 1):
            return part.stored_at(queue_offset)
        # The message is gone, as its unit in the local store says.
        return self._log.store_timestamp(self._queues.open(topic, queue_id).unit(queue_offset)[0])

    def info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        start, end = self.range(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        # Where the newest messages are gone, the last time is that of the last one that is left.
        parts = self._cut((topic, queue_id), start, end)
        first_time = parts[0].stored_at(start)
        last_time = parts[-1].stored_at(parts[-1].end - 1)
        n_bytes = sum(total_weight(part.units, part.start, part.end) for part in parts)
        return QueueInfo(topic, queue_id, start, end, first_time, last_time, n_bytes)

    def n_messages(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return how many messages a range of a queue has."""
        if self.tier is not None and self.tier.is_sparse:
            return self.tier.queue(topic, queue_id).units.count_units(start, end, 0)
        return end - start

    def n_bytes(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Return the bytes of the records of a range of a queue, as its units say."""
        parts = self._cut((topic, queue_id), start, end)
        return sum(total_weight(part.units, part.start, part.end) for part in parts)

    def n_unit_bytes(self, topic: str, queue_id: int) -> int:
        """Estimate the bytes of the units of a queue without a look into its files."""
        n_bytes = self._queues.open(topic, queue_id).n_full_bytes
        if self.tier is not None:
            n_bytes += self.tier.queue(topic, queue_id).units.n_full_bytes
        return n_bytes

    def end_in_log(self, but: Container[QueueKey] = ()) -> int:
        """Return the physical offset after the last record that a queue points at.

        Without queues it is -1.

        Args:
            but: queues that are left out.
        """
        ends = [-1]
        for key in self.announced(key for key in self._queues.plain() if key not in but):
            queue = self._queues.open(*key)
            ends.append(reach(queue, queue.end()))
        return max(ends)

    def proved_end(self) -> int:
        """Return :meth:`end_in_log`, or -1 if the queues cannot show where the log ends.

        They cannot where their files lack records.
        """
        return -1 if self._queues.lack_records else self.end_in_log()

    def announced(self, keys: Iterable[QueueKey]) -> Iterator[QueueKey]:
        """Yield queues; the ends of some of them are fetched together from a remote storage."""
        left = iter(keys)
        while together := list(islice(left, _QUEUES_TOGETHER)):
            if self._log.is_remote:
                self._queues.want_ends([self._queues.open(*key) for key in together])
            yield from together

    def slices(
        self,
        key: QueueKey,
        start: int,
        end: int,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> list[QueueSlice]:
        """Return the parts of a range that are there. None lies in both tiered storage and the log.

        The local store may have messages after the end that it had when it was opened.

        Raises:
            CorruptQueueError: a file of the queue is missing or cut, and ``tolerant`` is false.
            OffsetOutOfRangeError: messages between tiered storage and the local store are gone,
                and ``fail_on_data_loss`` holds.
        """
        if self.tier is None or start >= self.boundary(*key):
            return slices_of(self._queues.open(*key), key, start, end, tolerant=tolerant)
        parts = self._as_of_now(key, start, end)
        if parts[0].end < min(parts[1].start, end):
            # The local store may have deleted these messages just now, after their upload.
            self.tier.queue(*key).refresh()
            parts = self._as_of_now(key, start, end)
        return self.slices_of_parts(
            key, parts, (start, end), fail_on_data_loss=fail_on_data_loss, tolerant=tolerant
        )

    def _as_of_now(self, key: QueueKey, start: int, end: int) -> list[QueuePart]:
        assert self.tier is not None
        local_start = self.boundary(*key)
        queue = self.tier.queue(*key)
        tiered = QueuePart(queue.log, queue.units, start, min(queue.range()[1], local_start))
        # The local store has the message at its first offset.
        local_end = max(end, min(local_start + 1, FOREVER))
        return [tiered, self._local_part(key, local_start, local_end)]

    def slices_of_parts(
        self,
        key: QueueKey,
        parts: Sequence[QueuePart],
        bounds: tuple[int, int],
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> list[QueueSlice]:
        """Return what is there of a range, for a queue of a store with tiered storage.

        See :meth:`slices`.
        """
        assert self.tier is not None
        start, end = bounds
        local_start = parts[-1].start
        tier_end = parts[0].end if len(parts) > 1 else local_start
        slices: list[QueueSlice] = []
        if start <= local_start:
            self._report_misfits(key, tolerant=tolerant)
        until = min(end, tier_end)
        if start < until:
            queue = self.tier.queue(*key)
            self._require_same_messages(key, queue, parts)
            if queue.is_sparse:
                slices += (QueueSlice(*key, *run) for run in queue.units.runs(start, until))
            else:
                slices += slices_of(queue.units, key, start, until, tolerant=tolerant)
        lost = max(start, tier_end), min(end, local_start)
        if lost[0] < lost[1]:
            text = (
                f"queue offsets {lost[0]} to {lost[1]} (excluded) of {key[0]}-{key[1]} are gone: "
                f"the local store begins after them, and {self.tier.tier.folder} ends before them"
            )
            if fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{text}; {READS_ON} reads on without them")
            logger.warning("data loss: %s", spelled(text))
        start = max(start, local_start)
        if start < end:
            slices += slices_of(self._queues.open(*key), key, start, end, tolerant=tolerant)
        return slices

    def _require_same_messages(
        self, key: QueueKey, queue: TieredQueue, parts: Sequence[QueuePart]
    ) -> None:
        """Compare the first message of the local store with its copy in tiered storage.

        Raises:
            OptionError: the two were stored at different times, so they are of different queues.
        """
        assert self.tier is not None
        queue_offset = parts[-1].start
        if not parts[0].start < queue_offset < min(queue.units.end(), parts[-1].end):
            return
        try:
            place = self._queues.open(*key).unit(queue_offset)[0]
            messages: list[Message] = [
                queue.message(queue_offset),
                self._log.get(place, with_body=False),
            ]
        except (StoreFormatError, OffsetOutOfRangeError, MessageNotFoundError):
            return  # a read of the message reports the damage
        expected = (*key, queue_offset)
        if any((one.topic, one.queueId, one.queueOffset) != expected for one in messages):
            return  # a damaged unit, or a kind of queue in which messages share a record
        copied, stored = (one.storeTimestamp for one in messages)
        if copied != stored:
            raise OptionError(
                f"{self.tier.tier.folder} is not the tiered storage of this store: the message "
                f"of {key[0]}-{key[1]} at queue offset {queue_offset} was stored at {copied} "
                f"there, and at {stored} here"
            )

    def _report_misfits(self, key: QueueKey, *, tolerant: bool) -> None:
        """Report files of a queue that contradict their names or one another.

        Raises:
            CorruptQueueError: there are some, and ``tolerant`` is false.
        """
        assert self.tier is not None
        queue = self.tier.queue(*key)
        if queue.misfits():
            sleep(_PAUSE_SECONDS)
            queue.refresh()
        for misfit in queue.misfits():
            if not tolerant:
                raise CorruptQueueError(*misfit)
            logger.warning("%s, byte %d: %s; continuing with what is left", *misfit)
        if queue.log.segments and not queue.units.is_present:
            # A broker writes the first records of a queue before their units.
            logger.warning("%s: not read: records of %s-%d without units", queue.log.folders, *key)


def slices_of(
    queue: Queue, key: QueueKey, start: int, end: int, *, tolerant: bool
) -> list[QueueSlice]:
    """Return the parts of a range that the files of a queue have.

    Raises:
        CorruptQueueError: some of it is missing, and ``tolerant`` is false.
    """
    runs = list(queue.runs(start, end))
    if start < end and runs != [(start, end)]:
        missing = runs[0][1] if runs and runs[0][0] == start else start
        path, byte = queue.place(missing)
        reason = f"a file is missing or cut: queue offset {missing} should be there"
        if not tolerant:
            raise CorruptQueueError(path, byte, reason)
        logger.warning("%s, byte %d: %s; continuing with what is left", path, byte, reason)
    return [QueueSlice(*key, *run) for run in runs]
