"""Where queues begin and end, and which ranges of them a selection names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from rmqstore.errors import Argument, CorruptQueueError, Text, UnsupportedFeatureError
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.format.schema import Message
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.read.plan.bound_resolver import BoundResolver
from rmqstore.read.plan.light_queues import count_light_messages, describe_light_queues
from rmqstore.read.plan.slices_within import slices_within
from rmqstore.read.plan.time_search import first_stored_at, search_together
from rmqstore.spans import LATEST_TIME, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths, can_name_queues
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import reach
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.recovery.unit_checks import confirmed_end, confirmed_runs, look_confirmed
from rmqstore.storage.rocksdb.database import INSTALL_ROCKSDB
from rmqstore.storage.rocksdb.queue_tables import are_queues_unreadable, has_unreadable_queues

logger = logging.getLogger(__name__)

_QUEUES_TOGETHER = 128  # whose ends a remote storage fetches together


class QueueRanges:
    """The queues of one store.

    Args:
        log_end: returns the physical offset where the log ends if the store was not closed, None if
            it was closed.
    """

    def __init__(
        self, paths: StorePaths, log: CommitLog, queues: Queues, log_end: Callable[[], int | None]
    ) -> None:
        self._paths, self._log, self._queues, self._log_end = paths, log, queues, log_end
        self._has_warned_of_light_queues = False

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there, and the one after the last.

        Damaged units between the two count as messages; reading them reports the damage.
        """
        queue = self._queues.open(topic, queue_id)
        end = queue.end()
        log_end = self._log_end()
        first = queue.first(end, self._log.min_offset)
        if log_end is None or queue.is_recovered:
            return first, end
        cut = queue.cut(first, end, log_end)
        end = confirmed_end(self._log, queue, (topic, queue_id), cut, log_end)
        return min(first, end), end

    def first(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, or the end if none is.

        None for a queue without files.
        """
        queue = self._queues.open(topic, queue_id)
        if not queue.is_present:
            return None
        return queue.first(queue.end(), self._log.min_offset)

    def oldest(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, None if none is."""
        queue = self._queues.open(topic, queue_id)
        end = queue.end()
        first = queue.first(end, self._log.min_offset)
        return first if first < end else None

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
        queue = self._queues.open(topic, queue_id)
        return first_stored_at(self._log, queue, timestamp, span, tolerant=tolerant)

    def message(self, topic: str, queue_id: int, queue_offset: int) -> Message:
        """Return the message that a unit points at; raises as ``CommitLog.get`` does."""
        place = self._queues.open(topic, queue_id).unit(queue_offset)[0]
        return self._log.get(place, check_crc=False)

    def require_plain_queues(self, selection: Selection | None = None) -> None:
        """Refuse a store whose queues this version cannot read.

        Where only light message queues lie in RocksDB, a selection that names one of them is
        refused, and a selection that would include them without naming them causes a warning.

        Raises:
            UnsupportedFeatureError: the queues lie in RocksDB.
        """
        if not has_unreadable_queues(self._paths):
            return
        if are_queues_unreadable(self._paths):
            raise UnsupportedFeatureError(
                Text(
                    f"{self._paths.rocksdb_queues} holds RocksDB queues (storeType=defaultRocksDB);"
                    f" {INSTALL_ROCKSDB}, or read the messages by log with ",
                    Argument("scan", "commitlog"),
                )
            )
        if selection is not None and may_choose_light_queues(selection):
            self._report_light_queues(selection)

    def _report_light_queues(self, selection: Selection) -> None:
        counts = self.light_messages_apart
        chosen = choose_topics(selection, sorted(counts))
        if not chosen:
            return
        text = Text(
            f"{describe_light_queues(counts, chosen)} lie in {self._paths.rocksdb_queues} alone, "
            f"a RocksDB database; {INSTALL_ROCKSDB}; ",
            Argument("scan", "commitlog"),
            " has their records, under the topic that they were sent to",
        )
        if selection.named_topics:
            raise UnsupportedFeatureError(text)
        if not self._has_warned_of_light_queues:
            logger.warning("%s", text)
            self._has_warned_of_light_queues = True

    @cached_property
    def light_messages_apart(self) -> Counter[str]:
        """The number of messages in each light message queue that only RocksDB holds.

        Reads the whole log once.
        """
        if not has_unreadable_queues(self._paths) or are_queues_unreadable(self._paths):
            return Counter()
        end = self._log_end()
        end = self._log.max_offset if end is None else end
        counts = count_light_messages(self._log, end, self._queues.batch_topics())
        in_files = set(self._queues.topics())
        return Counter({topic: count for topic, count in counts.items() if topic not in in_files})

    def choose(
        self, selection: Selection, config: BrokerConfig, pruning: Pruning = NO_PRUNING
    ) -> dict[str, list[int]]:
        """Return the chosen topics and their queues, without topics that pruning rules out.

        A topic that only another store of the same read has is not an error here; see
        ``known_topics``.

        Raises:
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        self.require_plain_queues(selection)
        return choose_queues(selection, self.known_topics(config), self._queues.ids, pruning)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._queues.ids(topic)

    def known_topics(self, config: BrokerConfig) -> list[str]:
        """Return every topic with a queue folder or an entry in ``config/topics.json``, sorted."""
        return sorted({*self._queues.topics(), *config.topics()})

    def end_in_log(self, but: Container[QueueKey] = ()) -> int:
        """Return the physical offset after the last record that a queue points at.

        Without queues it is -1.

        Args:
            but: queues that are left out.
        """
        ends = [-1]
        for key in self._announced(key for key in self._queues.plain() if key not in but):
            queue = self._queues.open(*key)
            ends.append(reach(queue, queue.end()))
        return max(ends)

    def vouched_end(self) -> int:
        """Return :meth:`end_in_log`, or -1 if the queues cannot show where the log ends.

        They cannot where their files lack records.
        """
        return -1 if self._queues.lack_records else self.end_in_log()

    def resolve(
        self,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
        pruning: Pruning = NO_PRUNING,
    ) -> Iterator[QueueSlice]:
        """Yield the non-empty ranges that a selection names.

        No file of a queue is opened whose topic and id cannot meet the conditions of ``pruning``.

        Args:
            selection: topics, queues and bounds.
            config: configuration of the store's broker, which has the committed offsets of groups.
            broker: name of the broker.
            fail_on_data_loss: whether a bound outside of the messages that are left is an error.
            tolerant: whether to warn and go on where a file of a queue is missing or cut.
            pruning: conditions on topics and queue ids; it may have others.

        Raises:
            CorruptQueueError: a file of a queue is missing or cut, and ``tolerant`` is false.
            OffsetOutOfRangeError: offsets of the selection are gone and ``fail_on_data_loss``
                holds, or no message was stored at or after a start time and the strategy is
                ``error``.
            OptionError: the group has no offsets.
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        resolver = BoundResolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=tolerant
        )
        keys = (
            (topic, queue_id)
            for topic, queue_ids in self.choose(selection, config, pruning).items()
            for queue_id in queue_ids
            if pruning.keeps(topic, queue_id)
        )
        queues = ((key, self.range(*key)) for key in self._announced(keys))
        for key, span, found in search_together(
            self._log, self._queues.open, queues, resolver.times
        ):
            start, end = resolver.bounds(*key, span, found)
            yield from self.slices(*key, start, end, tolerant=tolerant)

    def _announced(self, keys: Iterable[QueueKey]) -> Iterator[QueueKey]:
        """Yield queues; the ends of some of them are fetched together from a remote storage."""
        left = iter(keys)
        while together := list(islice(left, _QUEUES_TOGETHER)):
            if self._log.is_remote:
                self._queues.want_ends([self._queues.open(*key) for key in together])
            yield from together

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Tell whether a selection names a queue, whether or not the queue exists."""
        if not choose_topics(selection, [topic]):
            return False
        if not can_name_queues(topic):
            logger.warning(
                "%s: a record is of topic %r, which can have no queues", self._paths.root, topic
            )
            return False
        return selection.assign is None or queue_id in selection.assign[topic]

    def starts(
        self,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
        *,
        fail_on_data_loss: bool,
    ) -> dict[QueueKey, int]:
        """Return the queue offset where a selection starts in each queue.

        Raises the errors of :meth:`resolve`.

        Args:
            spans: returns the queues and where each begins and ends. Called after the committed
                offsets of a group were read, because a running consumer may commit messages that
                were only just written.
        """
        resolver = BoundResolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=False
        )
        return {
            key: resolver.start(*key, span, found)
            for key, span, found in search_together(
                self._log, self._queues.open, spans().items(), resolver.times
            )
        }

    def slices(
        self, topic: str, queue_id: int, start: int, end: int, *, tolerant: bool
    ) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have.

        Raises the errors of :meth:`resolve`.
        """
        queue = self._queues.open(topic, queue_id)
        return slices_of(queue, (topic, queue_id), start, end, tolerant=tolerant)

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms a range's units; see ``unit_checks.look_confirmed``."""
        key = (piece.topic, piece.queue_id)
        queue = self._queues.open(*key)
        return look_confirmed(self._log, queue, key, piece.start, piece.end, log_end)

    def stands(self, piece: QueueSlice) -> bool:
        """Tell whether the queue files and the last record of a planned range still exist."""
        key = (piece.topic, piece.queue_id)
        queue = self._queues.open(*key)
        if [*queue.runs(piece.start, piece.end)] != [(piece.start, piece.end)]:
            return False
        log_end = self._log.max_offset
        return confirmed_end(self._log, queue, key, piece.end, log_end) == piece.end

    def confirmed(
        self, piece: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range whose units the log confirms.

        A warning names the parts that are left out.

        Args:
            piece: the range.
            log_end: the physical offset where the log ends.
            stored_until: the latest store time (ms) of a record that confirms a unit.
        """
        key = (piece.topic, piece.queue_id)
        queue = self._queues.open(*key)
        runs = list(
            confirmed_runs(self._log, queue, key, piece.start, piece.end, log_end, stored_until)
        )
        gap_bounds = [piece.start, *(bound for run in runs for bound in run), piece.end]
        for start, end in zip(gap_bounds[::2], gap_bounds[1::2], strict=True):
            if start < end:
                logger.warning(
                    "%s-%d: the log has no records for the messages from queue offset %d to %d "
                    "(excluded); going on without them", *key, start, end,
                )  # fmt: skip
        return [QueueSlice(*key, *run) for run in runs]

    def within(self, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
        """Return the parts of a range that may lie in parts of the log; see ``slices_within``."""
        queue = self._queues.open(piece.topic, piece.queue_id)
        return slices_within(queue, piece, spans, self._log.max_offset)


def choose_queues(
    selection: Selection,
    known_topics: list[str],
    ids_of: Callable[[str], list[int]],
    pruning: Pruning = NO_PRUNING,
) -> dict[str, list[int]]:
    """Return the topics and queues that a selection names; see :meth:`QueueRanges.choose`."""
    chosen_topics = choose_topics(selection, known_topics)
    topics = filter(pruning.keeps_topic, chosen_topics)
    assign = selection.assign
    chosen = {topic: ids_of(topic) for topic in topics}
    if not assign:
        return chosen
    return {
        topic: [queue_id for queue_id in queue_ids if queue_id in assign[topic]]
        for topic, queue_ids in chosen.items()
    }


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
        logger.warning("%s, byte %d: %s; going on with what is left", path, byte, reason)
    return [QueueSlice(*key, *run) for run in runs]


def may_choose_light_queues(selection: Selection) -> bool:
    """Tell whether a selection can include light message queues."""
    if selection.named_topics:
        return any(topic.startswith(LMQ_PREFIX) for topic in selection.named_topics)
    return selection.subscribe_pattern is not None or selection.include_system_topics
