"""Where queues begin and end, by queue offset and by store time, and which ranges of them a selection names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property

from rmqstore.errors import (
    CorruptQueueError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    OptionError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.query.selection import EARLIEST, LATEST, Bound, Selection, choose_topics
from rmqstore.read.plan.light_queues import count_light_messages, describe_light_queues
from rmqstore.spans import LATEST_TIME, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths, can_name_queues
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import find_first, reach
from rmqstore.storage.queue.estimates import VOTING_UNITS, estimate_physical_offset, trim
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.recovery.unit_checks import confirmed_end, confirmed_runs, look_confirmed

logger = logging.getLogger(__name__)

_NEIGHBOURS = 256  # messages tried after a damaged one for a store time


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
        end, log_end = queue.end(), self._log_end()
        first = queue.first(end, self._log.min_offset)
        if log_end is None or queue.is_recovered:
            return first, end
        end = confirmed_end(
            self._log, queue, (topic, queue_id), queue.cut(first, end, log_end), log_end
        )
        return min(first, end), end

    def first(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, the end if none is; None for a queue without files."""
        queue = self._queues.open(topic, queue_id)
        if not queue.is_present:
            return None
        return queue.first(queue.end(), self._log.min_offset)

    def at_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        span: tuple[int, int],
        *,
        tolerant: bool = False,
    ) -> int:
        """Return the first queue offset in ``span`` stored at or after a time (ms), or the end of ``span`` if none is.

        Args:
            tolerant: take the time of the next readable message where one is damaged.

        Raises:
            CorruptRecordError, OffsetOutOfRangeError: a message whose time is needed is damaged or
                missing.
        """
        queue = self._queues.open(topic, queue_id)

        def is_late(queue_offset: int) -> bool:
            for neighbour in range(queue_offset, min(queue_offset + _NEIGHBOURS, span[1])):
                try:
                    return self._log.store_timestamp(queue.unit(neighbour)[0]) >= timestamp
                except (CorruptRecordError, OffsetOutOfRangeError):
                    if not tolerant:
                        raise
            return False

        return find_first(*span, is_late)

    def require_plain_queues(self, selection: Selection | None = None) -> None:
        """Refuse a store whose queues this version cannot read.

        Where only light message queues lie in RocksDB, a selection that names one of them is
        refused, and a selection that would include them without naming them causes a warning.

        Raises:
            UnsupportedFeatureError: the queues lie in RocksDB.
        """
        if self._paths.rocksdb_queues is None:
            return
        if self._paths.has_rocksdb_queues:
            raise UnsupportedFeatureError(
                f"{self._paths.rocksdb_queues} holds RocksDB queues (storeType=defaultRocksDB), not readable yet; "
                "the messages can: use scan=commitlog"
            )
        if selection is not None and may_choose_light_queues(selection):
            self._report_light_queues(selection)

    def _report_light_queues(self, selection: Selection) -> None:
        counts = self.light_messages_apart
        chosen = choose_topics(selection, sorted(counts))
        if not chosen:
            return
        text = (
            f"{describe_light_queues(counts, chosen)} lie in {self._paths.rocksdb_queues} alone, a RocksDB database "
            "that is not readable yet; scan=commitlog has their records, under the topic that they were sent to"
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
        if self._paths.rocksdb_queues is None or self._paths.has_rocksdb_queues:
            return Counter()
        end = self._log_end()
        counts = count_light_messages(self._log, self._log.max_offset if end is None else end)
        in_files = set(self._queues.topics())
        return Counter({topic: count for topic, count in counts.items() if topic not in in_files})

    def choose(self, selection: Selection, config: BrokerConfig) -> dict[str, list[int]]:
        """Return the chosen topics and their queues.

        A topic that only another store of the same read has is not an error here; see
        ``known_topics``.

        Raises:
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        self.require_plain_queues(selection)
        topics = choose_topics(selection, self.known_topics(config))
        assign = selection.assign
        chosen = {}
        for topic in topics:
            queue_ids = self._queues.ids(topic)
            chosen[topic] = (
                [queue for queue in queue_ids if queue in assign[topic]] if assign else queue_ids
            )
        return chosen

    def known_topics(self, config: BrokerConfig) -> list[str]:
        """Return every topic with a queue folder or an entry in ``config/topics.json``, sorted."""
        return sorted({*self._queues.topics(), *config.topics()})

    def end_in_log(self, but: Container[QueueKey] = ()) -> int:
        """Return the physical offset after the last record that a queue points at; -1 without queues.

        Args:
            but: queues that are left out.
        """
        ends = [-1]
        for key in self._queues.plain():
            if key not in but:
                queue = self._queues.open(*key)
                ends.append(reach(queue, queue.end()))
        return max(ends)

    def vouched_end(self) -> int:
        """Return :meth:`end_in_log`, or -1 if queue files lack records and so do not show where the log ends."""
        return -1 if self._queues.lack_records else self.end_in_log()

    def resolve(
        self,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> list[QueueSlice]:
        """Return the non-empty ranges that a selection names.

        Args:
            selection: topics, queues and bounds.
            config: configuration of the store's broker, which has the committed offsets of groups.
            broker: name of the broker.
            fail_on_data_loss: whether a bound outside of the messages that are left is an error.
            tolerant: whether to warn and go on where a file of a queue is missing or cut.

        Raises:
            CorruptQueueError: a file of a queue is missing or cut, and ``tolerant`` is false.
            OffsetOutOfRangeError: offsets of the selection are gone and ``fail_on_data_loss``
                holds, or no message was stored at or after a start time and the strategy is
                ``error``.
            OptionError: the group has no offsets.
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        resolver = _Resolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=tolerant
        )
        slices = []
        for topic, queue_ids in self.choose(selection, config).items():
            for queue_id in queue_ids:
                slices += self.slices(
                    topic, queue_id, *resolver.bounds(topic, queue_id), tolerant=tolerant
                )
        return slices

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
        """Return the queue offset where a selection starts in each queue; raises as :meth:`resolve` does.

        Args:
            spans: returns the queues and where each begins and ends. Called after the committed
                offsets of a group were read, because a running consumer may commit messages that
                were only just written.
        """
        resolver = _Resolver(
            self, selection, config, broker, fail_on_data_loss=fail_on_data_loss, tolerant=False
        )
        return {queue: resolver.start(*queue, span) for queue, span in spans().items()}

    def slices(
        self, topic: str, queue_id: int, start: int, end: int, *, tolerant: bool
    ) -> list[QueueSlice]:
        """Return the parts of a range that the queue's files have; raises as :meth:`resolve` does."""
        runs = list(self._queues.open(topic, queue_id).runs(start, end))
        if start < end and runs != [(start, end)]:
            self._report_gap(topic, queue_id, start, runs, tolerant=tolerant)
        return [QueueSlice(topic, queue_id, *run) for run in runs]

    def look_confirmed(self, piece: QueueSlice, log_end: int) -> bool:
        """Tell whether the log confirms the units of a range; see ``storage.recovery.unit_checks.look_confirmed``."""
        key = (piece.topic, piece.queue_id)
        return look_confirmed(
            self._log, self._queues.open(*key), key, piece.start, piece.end, log_end
        )

    def stands(self, piece: QueueSlice) -> bool:
        """Tell whether the queue files and the last record of a planned range still exist."""
        key = (piece.topic, piece.queue_id)
        queue, log = self._queues.open(*key), self._log
        has_units = [*queue.runs(piece.start, piece.end)] == [(piece.start, piece.end)]
        return has_units and confirmed_end(log, queue, key, piece.end, log.max_offset) == piece.end

    def confirmed(
        self, piece: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range whose units are confirmed by records stored until a time (ms).

        What is left out is logged.
        """
        key = (piece.topic, piece.queue_id)
        queue = self._queues.open(*key)
        runs = list(
            confirmed_runs(self._log, queue, key, piece.start, piece.end, log_end, stored_until)
        )
        left = [piece.start, *(bound for run in runs for bound in run), piece.end]
        for start, end in zip(left[::2], left[1::2], strict=True):
            if start < end:
                logger.warning(
                    "%s-%d: the log has no records for the messages from queue offset %d to %d (excluded); going on "
                    "without them", *key, start, end,
                )  # fmt: skip
        return [QueueSlice(*key, *run) for run in runs]

    def within(self, piece: QueueSlice, spans: Sequence[Span]) -> list[QueueSlice]:
        """Return the parts of a range whose messages may lie in parts of the log, in ascending order.

        Around damaged units the parts also include some neighbouring messages.
        """
        queue, log_end = self._queues.open(piece.topic, piece.queue_id), self._log.max_offset

        def first_at(physical_offset: int, start: int) -> int:
            def is_reached(queue_offset: int) -> bool:
                estimate = estimate_physical_offset(
                    queue, queue_offset, piece.start, piece.end, log_end
                )
                if estimate is None:
                    raise CorruptQueueError(*queue.place(queue_offset), "no unit around is sound")
                return estimate >= physical_offset

            return find_first(start, piece.end, is_reached)

        parts: list[QueueSlice] = []
        stop = piece.start
        try:
            for span in spans:
                start = first_at(span.start, stop)
                stop = first_at(span.end, start)
                low, high = (
                    max(start - VOTING_UNITS, piece.start),
                    min(stop + VOTING_UNITS, piece.end),
                )
                low, high = trim(queue, low, high, span, log_end)
                if low >= high:
                    continue
                if parts and low <= parts[-1].end:
                    parts[-1] = parts[-1]._replace(end=max(high, parts[-1].end))
                else:
                    parts.append(piece._replace(start=low, end=high))
        except CorruptQueueError as err:
            logger.info("%s: all of the range is read", err)
            return [piece]
        return parts

    def _report_gap(
        self, topic: str, queue_id: int, start: int, runs: list[tuple[int, int]], *, tolerant: bool
    ) -> None:
        missing = runs[0][1] if runs and runs[0][0] == start else start
        path, byte = self._queues.open(topic, queue_id).place(missing)
        reason = f"a file is missing or cut: queue offset {missing} should be there"
        if not tolerant:
            raise CorruptQueueError(path, byte, reason)
        logger.warning("%s, byte %d: %s; going on with what is left", path, byte, reason)


def may_choose_light_queues(selection: Selection) -> bool:
    """Tell whether a selection can include light message queues."""
    if selection.named_topics:
        return any(topic.startswith(LMQ_PREFIX) for topic in selection.named_topics)
    return selection.subscribe_pattern is not None or selection.include_system_topics


class _Resolver:
    """Turns the bounds of a selection into queue offsets."""

    def __init__(
        self,
        ranges: QueueRanges,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> None:
        self._ranges, self._selection, self._broker = ranges, selection, broker
        self._fail_on_data_loss, self._tolerant = fail_on_data_loss, tolerant
        self._start_committed = _committed(selection.start.group, config)
        self._end_committed = _committed(selection.end.group, config)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        span = self._ranges.range(topic, queue_id)
        start = self.start(topic, queue_id, span)
        end = self._bound(
            topic, queue_id, span, self._selection.end, self._end_committed, "ending_offsets"
        )
        return start, end

    def start(self, topic: str, queue_id: int, span: tuple[int, int]) -> int:
        return self._bound(
            topic, queue_id, span, self._selection.start, self._start_committed, "starting_offsets"
        )

    def _bound(
        self,
        topic: str,
        queue_id: int,
        span: tuple[int, int],
        bound: Bound,
        committed: Mapping[tuple[str, int], int],
        name: str,
    ) -> int:
        timestamp = bound.timestamp
        if timestamp is None:
            timestamp = bound.of(self._broker, topic, queue_id, bound.by_timestamp)
        if timestamp is not None:
            tolerant = self._tolerant or not self._fail_on_data_loss
            first = self._ranges.at_time(topic, queue_id, timestamp, span, tolerant=tolerant)
            if (
                first == span[1]
                and name == "starting_offsets"
                and self._selection.timestamp_strategy == "error"
            ):
                raise OffsetOutOfRangeError(
                    f"{topic}-{queue_id} has no message stored at or after {timestamp} ms; "
                    "starting_offsets_by_timestamp_strategy=latest begins at the end of such queues"
                )
            return first
        queue_offset = committed.get((topic, queue_id))
        if queue_offset is None:
            queue_offset = bound.of(self._broker, topic, queue_id, bound.offsets)
        if queue_offset is None:
            queue_offset = bound.default
        if queue_offset == EARLIEST:
            return span[0]
        if queue_offset == LATEST:
            return span[1]
        return self._within(topic, queue_id, span, queue_offset, name)

    def _within(
        self, topic: str, queue_id: int, span: tuple[int, int], queue_offset: int, name: str
    ) -> int:
        if span[0] <= queue_offset <= span[1]:
            return queue_offset
        if name == "ending_offsets" and queue_offset < span[0]:
            # the range ends before the messages that are left; its start shows whether any were
            # lost
            return span[0]
        text = f"{name} of {topic}-{queue_id} is {queue_offset}, the queue holds {span[0]} to {span[1]} (excluded)"
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; fail_on_data_loss=False reads what is left")
        logger.warning("data loss: %s; reading what is left", text)
        return min(max(queue_offset, span[0]), span[1])


def _committed(group: str | None, config: BrokerConfig) -> Mapping[tuple[str, int], int]:
    if group is None:
        return {}
    offsets = config.consumer_offsets(group)
    if not offsets:
        known = ", ".join(config.groups()) or "none"
        raise OptionError(
            f"group {group!r} has no committed offsets in consumerOffset.json; groups that have: {known}"
        )
    return offsets
