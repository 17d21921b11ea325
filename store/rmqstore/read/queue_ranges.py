"""The ranges of queues that a selection names, and their parts in parts of the log.

With combineCQUseRocksdbForLmq the broker keeps plain queues in files, and LMQs in a RocksDB
database in a folder of its own, so only the log shows which LMQs there are.

Source: CombineConsumeQueueStore.java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from rmqstore.errors import (
    CorruptQueueError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    UnsupportedFeatureError,
    rendered,
)
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import have_units
from rmqstore.format.columns.lmq import lmq_headers
from rmqstore.format.layout import LMQ_PREFIX, Mask
from rmqstore.lazy import cached_property
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.selection import (
    Selection,
    choose_topics,
    require_named,
)
from rmqstore.read.bounds import BoundResolver
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.store_queues import StoreQueues
from rmqstore.spans import LATEST_TIME, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import OFFSETS, BrokerConfig, why_unknown
from rmqstore.storage.broker.topic_table import queue_nums
from rmqstore.storage.files.paths import StorePaths, can_name_queues, has_queue_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import whole_records
from rmqstore.storage.queue.queue import NO_UNITS, Queue, Units, find_first, short_units
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds
from rmqstore.storage.recovery.unit_checks import confirmed_end, confirmed_runs, is_confirmed

logger = logging.getLogger(__name__)

_MAX_NAMES = 5
_MOST_QUEUES = 1 << 16  # of a topic, as far as a damaged table is believed
VOTING_UNITS: Final = 64  # consulted on each side of a queue offset


def _committed(paths: StorePaths, config: BrokerConfig, group: str) -> Mapping[QueueKey, int]:
    offsets = config.consumer_offsets(group)
    if not offsets:
        known = ", ".join(config.groups()) or "none"
        text = f"group {group!r} has no committed offsets in config/; groups that have: {known}"
        unknown = why_unknown(paths, OFFSETS)
        raise OptionError(text if unknown is None else f"{text}; {unknown}")
    return offsets


def count_lmq_messages(log: CommitLog, end: int, batch_topics: Collection[str]) -> Counter[str]:
    """Return the number of messages in each LMQ that records before ``end`` name.

    Reads the whole log.
    """
    counts: Counter[str] = Counter()
    for window, headers in whole_records(log, log.min_offset, end):
        delivered = headers.take(have_units(headers.column("sys_flag")))
        of_lmqs = lmq_headers(window.data, delivered, batch_topics)
        if len(of_lmqs):
            counts.update(topics(window.data, of_lmqs).to_pylist())
    return counts


def describe_lmqs(counts: Counter[str], names: Collection[str]) -> str:
    """Describe LMQs in words: how many messages they have, and the first few names."""
    total = sum(counts[name] for name in names)
    listed = sorted(names)[:_MAX_NAMES]
    others = f" and {len(names) - len(listed)} others" if len(names) > len(listed) else ""
    return f"{total} messages of light message queues {', '.join(listed)}{others}"


class QueueRanges:
    """The ranges of queues that a selection names.

    Args:
        paths: paths of the local store.
        config: configuration of its broker.
        log: its CommitLog.
        queues: its queues.
        store_queues: the same queues, with what tiered storage has of them.
        ends: where its log ends.
    """

    def __init__(
        self,
        paths: StorePaths,
        config: BrokerConfig,
        log: CommitLog,
        queues: Queues,
        store_queues: StoreQueues,
        ends: StoreEnds,
    ) -> None:
        self._paths = paths
        self._config = config
        self._log = log
        self._queues = queues
        self._store_queues = store_queues
        self._ends = ends
        self._has_warned = False

    def require_queues(self, selection: Selection | None = None, *, tolerant: bool = False) -> None:
        """Refuse a store whose queues cannot be read.

        Where only light message queues lie in RocksDB and this version does not read it, a
        selection that names one of them is refused, and a selection that would include them
        without naming them causes a warning.

        Args:
            selection: topics and queues; None for all.
            tolerant: read on without a damaged database, with a warning.

        Raises:
            CorruptDatabaseError: the database with queues cannot be opened.
            UnsupportedFeatureError: the queues lie in RocksDB.
        """
        why = self._ends.why_unread
        if why is None:
            return
        if self._ends.rocksdb_damage is not None:
            if not tolerant:
                raise self._ends.rocksdb_damage
            self._warn(f"{why}; continuing with queues in files and what the log has of others")
            return
        if self._ends.are_queues_unread:
            text = f"queues cannot be read: {why}, or read messages by log with `scan=commitlog`"
            raise UnsupportedFeatureError(text)
        if selection is None or not may_choose_lmqs(selection):
            return
        counts = self.lmq_messages_apart
        chosen = choose_topics(selection, sorted(counts))
        if not chosen:
            return
        text = (
            f"{describe_lmqs(counts, chosen)} lie in RocksDB alone: {why}; `scan=commitlog` has "
            "their records, under the topic that they were sent to"
        )
        if selection.named_topics:
            raise UnsupportedFeatureError(text)
        self._warn(text)

    def _warn(self, text: str) -> None:
        """Log a warning of the queues in RocksDB, once."""
        if not self._has_warned:
            logger.warning("%s", rendered(text))
            self._has_warned = True

    @cached_property
    def lmq_messages_apart(self) -> Counter[str]:
        """The number of messages in each light message queue that only RocksDB holds.

        Reads the whole log once.
        """
        if self._ends.why_unread is None or self._ends.are_queues_unread:
            return Counter()
        end = self._ends.log_slice().end
        counts = count_lmq_messages(self._log, end, self._queues.batch_topics())
        in_files = set(self._queues.topics())
        return Counter({topic: count for topic, count in counts.items() if topic not in in_files})

    def choose(self, selection: Selection, pruning: Pruning = NO_PRUNING) -> dict[str, list[int]]:
        """Return the chosen topics and their queues, without those that pruning rules out.

        A topic that only another store of the same read has is not an error here; see
        ``StoreQueues.known_topics``.
        """
        queues = self._store_queues
        topics = choose_topics(selection, queues.known_topics())
        chosen = {topic: queues.ids(topic) for topic in topics if pruning.keeps_topic(topic)}
        assign = selection.assign
        return {
            topic: [
                queue_id
                for queue_id in queue_ids
                if (not assign or queue_id in assign[topic]) and pruning.keeps(topic, queue_id)
            ]
            for topic, queue_ids in chosen.items()
        }

    def keys(self, selection: Selection, pruning: Pruning = NO_PRUNING) -> Iterator[QueueKey]:
        """Yield the queues of :meth:`choose` one by one."""
        for topic, queue_ids in self.choose(selection, pruning).items():
            for queue_id in queue_ids:
                yield topic, queue_id

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return every topic if the selection names topics, else nothing.

        Beside each topic stand its queues if the selection names queues of it, else none. A queue
        that the broker serves need not have a message yet.
        """
        if not selection.named_topics:
            return {}
        named, served = selection.named_queues, dict[str, int]()
        if named:
            with suppress(RmqStoreError):  # said where the topics are asked for
                served = queue_nums(self._paths)
        queues: dict[str, set[int]] = {}
        for topic in self._store_queues.known_topics():
            queues[topic] = set()
            if topic in named:
                queues[topic].update(self._store_queues.ids(topic))
                queues[topic].update(range(min(served.get(topic, 0), _MOST_QUEUES)))
        return queues

    def require_named(self, selection: Selection) -> None:
        """Refuse a selection of unknown topics or queues.

        Raises:
            OptionError: a topic or queue is missing. The message lists those that exist.
        """
        require_named(selection, [self.named_queues(selection)], str(self._paths.root))

    def require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that share a record."""
        batch_topics = {*self._queues.batch_topics()} & {*self.choose(selection)}
        if batch_topics:
            raise UnsupportedFeatureError(
                f"{', '.join(sorted(batch_topics))}: a record holds several messages "
                "(queue.type=BatchCQ), exact copies are of records: use `scan=commitlog`"
            )

    def warn_unknown_topics(
        self, selection: Selection, consequence: str = "the records of the log decide"
    ) -> None:
        """Log named topics that neither queues nor ``config/topics.json`` know.

        They are misspelt, deleted, or not created yet. A read of the log needs no queue, so none is
        opened for it, and nothing is said where only RocksDB knows the queues.
        """
        named = selection.named_topics
        if not named or self._paths.rocksdb_queues is not None:
            return
        known = {topic for tier in self._store_queues.tiers for topic in tier.topics()}
        known.update(self._config.topics())
        known.update(filter(partial(has_queue_folder, self._paths), named))
        unknown = sorted(named - known)
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; %s",
                self._paths.root, ", ".join(unknown), consequence,
            )  # fmt: skip

    def indexed_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those topics whose messages the index knows by their own keys.

        The index knows records, not the messages of inner batches, nor LMQs, which show
        other queues' records.
        """
        batch_topics = set(self._queues.batch_topics())
        return {topic for topic in topics if not topic.startswith(LMQ_PREFIX)} - batch_topics

    def chosen_in_tier(self, selection: Selection) -> list[QueueKey]:
        """Return the queues in tiered storage that a selection names."""
        return [
            (topic, queue_id)
            for tier in self._store_queues.tiers
            for topic in tier.topics()
            for queue_id in tier.ids(topic)
            if self.is_chosen(selection, topic, queue_id)
        ]

    def resolve(
        self, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
    ) -> Iterator[QueueSlice]:
        """Yield the non-empty ranges that a selection names.

        No file of a queue is opened whose topic and id cannot meet the conditions of ``pruning``.

        Args:
            selection: topics, queues and bounds.
            spec: names the broker. If data loss is not to fail, a bound may lie outside of the
                messages that are left. Unless its mode is FAILFAST, there is a warning where a file
                of a queue is missing or cut.
            pruning: conditions on topics and queue ids; it may have others.

        Raises:
            CorruptQueueError: a file of a queue is missing or cut, in mode FAILFAST.
            OffsetOutOfRangeError: offsets of the selection are gone and data loss is to fail, or no
                message was stored at or after a start time and the strategy is ``error``.
            OptionError: the group has no offsets.
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        queues = self._store_queues
        resolver = self._resolver(
            selection,
            spec.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.is_tolerant,
        )
        for key in queues.prefetched(self.keys(selection, pruning)):
            parts = queues.parts(*key)
            bounds = resolver.bounds(*key, (parts[0].start, parts[-1].end))
            yield from queues.slices_of_parts(key, parts, bounds, spec)

    def _resolver(
        self, selection: Selection, broker: str, *, fail_on_data_loss: bool, tolerant: bool
    ) -> BoundResolver:
        return BoundResolver(
            selection,
            broker,
            self._store_queues.time_search(),
            partial(_committed, self._paths, self._config),
            fail_on_data_loss=fail_on_data_loss,
            tolerant=tolerant,
        )

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Return whether a selection names a queue, whether or not the queue exists."""
        if not selection.chooses(topic, queue_id):
            return False
        if not can_name_queues(topic):
            logger.warning(
                "%s: a record is of topic %r, which can have no queues", self._paths.root, topic
            )
            return False
        return True

    def starts(
        self,
        selection: Selection,
        broker: str,
        spans: Callable[[], Mapping[QueueKey, tuple[int, int]]],
        *,
        fail_on_data_loss: bool,
    ) -> dict[QueueKey, int]:
        """Return the queue offset where a selection starts in each queue.

        Raises the errors of :meth:`resolve`.

        Args:
            selection: topics, queues and bounds.
            broker: name of the broker.
            spans: returns the queues and where each begins and ends. Called after the committed
                offsets of a group were read, because a running consumer may commit messages that
                were only just written.
            fail_on_data_loss: whether a bound outside of the messages that are left is an error.
        """
        resolver = self._resolver(
            selection, broker, fail_on_data_loss=fail_on_data_loss, tolerant=False
        )
        return {key: resolver.start(*key, span) for key, span in spans().items()}

    def is_confirmed(self, queue_slice: QueueSlice, log_end: int) -> bool:
        """Return whether the log confirms a range's units; see ``unit_checks.is_confirmed``.

        Units in tiered storage need no confirmation.
        """
        for part in self._store_queues.divide([queue_slice])[-1]:
            key = (part.topic, part.queue_id)
            queue = self._queues.open(*key)
            if not is_confirmed(self._log, queue, key, part.start, part.end, log_end):
                return False
        return True

    def still_holds(self, queue_slice: QueueSlice) -> bool:
        """Return whether the queue files and the last record of a planned range still exist."""
        for part in self._store_queues.divide([queue_slice])[-1]:
            key = (part.topic, part.queue_id)
            queue = self._queues.open(*key)
            if [*queue.runs(part.start, part.end)] != [(part.start, part.end)]:
                return False
            log_end = self._log.max_offset
            if confirmed_end(self._log, queue, key, part.end, log_end) != part.end:
                return False
        return True

    def confirmed(
        self, queue_slice: QueueSlice, log_end: int, stored_until: int = LATEST_TIME
    ) -> list[QueueSlice]:
        """Return the parts of a range that the log confirms, or that lie in tiered storage.

        A warning names the parts that are left out.

        Args:
            queue_slice: the range.
            log_end: the physical offset where the log ends.
            stored_until: the latest store time (ms) of a record that confirms a unit.
        """
        slices, local = self._store_queues.divide([queue_slice])
        for part in local:
            key = (part.topic, part.queue_id)
            queue = self._queues.open(*key)
            runs = list(
                confirmed_runs(self._log, queue, key, part.start, part.end, log_end, stored_until)
            )
            gap_bounds = [part.start, *(bound for run in runs for bound in run), part.end]
            for start, end in zip(gap_bounds[::2], gap_bounds[1::2], strict=True):
                if start < end:
                    logger.warning(
                        "%s-%d: the log has no records for the messages from queue offset %d to "
                        "%d (excluded); continuing without them", *key, start, end,
                    )  # fmt: skip
            slices += (QueueSlice(*key, *run) for run in runs)
        return slices


def may_choose_lmqs(selection: Selection) -> bool:
    """Return whether a selection can include light message queues."""
    if selection.named_topics:
        return any(topic.startswith(LMQ_PREFIX) for topic in selection.named_topics)
    return selection.subscribe_pattern is not None or selection.include_system_topics


def estimate_physical_offset(
    queue: Queue, queue_offset: int, start: int, end: int, log_end: int
) -> int | None:
    """Return the median physical offset of the plausible units around a queue offset.

    The median is the physical offset of a unit at most ``VOTING_UNITS`` away, and a few damaged
    units do not move it far. A unit is plausible if it has the size of a record and points before
    the end of the log. If no unit is plausible, the result is None.

    An example with two voting units on each side, for queue offset 7 in a log of 1,000 bytes::

        queue offsets      4     5     6     7      8     9    10
        physical offsets  300   500   600    7  99999   900   950
        voters                  500   600    7          900        # 99999 is after the log end
        sorted              7   500   600   900
        estimate                      600                          # upper one of the middle two

    Args:
        queue: any kind of queue.
        queue_offset: in the range.
        start: first queue offset of the range whose units may vote.
        end: queue offset after the last of them.
        log_end: physical offset where the log ends.
    """
    low = max(queue_offset - VOTING_UNITS, start)
    high = min(queue_offset + VOTING_UNITS + 1, end)
    try:
        units = queue.units(low, high)
    except OffsetOutOfRangeError:
        # Some units are missing: those that the files have may vote.
        units = Units.joined(NO_UNITS, *(queue.units(*run) for run in queue.runs(low, high)))
    voters = np.sort(units.physical_offsets[units.may_be_right(log_end)])
    return int(voters[len(voters) // 2]) if len(voters) else None


def trim(
    queue: Queue, start: int, end: int, physical_offsets: tuple[int, int], log_end: int
) -> tuple[int, int]:
    """Shrink a range by the messages at its ends that lie outside of a part of the log.

    No more than ``2 * VOTING_UNITS`` units are looked at on each side. A unit that is not plausible
    ends the search, for its message may lie anywhere.

    An example, for the part of the log from 250 to 450 and a log of 1,000 bytes::

        queue offsets     10    11    12    13    14    15    16
        physical offsets 100   200   300   400   500  9999   600
        outside          yes   yes                            yes  # 9999 may belong inside
        trimmed range                 12 ... ... ... ... 16        # (12, 16)

    Args:
        queue: any kind of queue.
        start: first queue offset of the range.
        end: queue offset after its last.
        physical_offsets: where the part of the log begins and ends.
        log_end: physical offset where the log ends.
    """
    max_units = 2 * VOTING_UNITS
    for low, high in queue.runs(start, min(start + max_units, end)):
        if low == start:
            units = queue.units(low, high)
            is_before = units.may_be_right(log_end) & (units.physical_offsets < physical_offsets[0])
            start += _n_leading(is_before)
        break
    for low, high in queue.runs(max(end - max_units, start), end):
        if high == end:
            units = queue.units(low, high)
            is_after = units.may_be_right(log_end) & (units.physical_offsets >= physical_offsets[1])
            end -= _n_leading(is_after[::-1])
    return start, end


def _n_leading(mask: Mask) -> int:
    """Return how many rows a mask sets before the first that it does not."""
    return len(mask) if mask.all() else int(np.argmin(mask))


def slices_within(
    queue: Queue, queue_slice: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice]:
    """Return the parts of a range whose messages may lie in parts of the log, ascending.

    Around damaged units the parts also include some neighbouring messages.

    Args:
        queue: any kind of queue.
        queue_slice: the range of it.
        spans: the parts of the log, rising.
        log_end: physical offset where the log ends.
    """
    parts = _valid_within(queue, queue_slice, spans, log_end)
    if parts is not None:
        return parts

    def first_at(physical_offset: int, start: int) -> int:
        def is_reached(queue_offset: int) -> bool:
            estimate = estimate_physical_offset(
                queue, queue_offset, queue_slice.start, queue_slice.end, log_end
            )
            if estimate is None:
                raise CorruptQueueError(*queue.location(queue_offset), "no unit around is valid")
            return estimate >= physical_offset

        return find_first(start, queue_slice.end, is_reached)

    parts = []
    stop = queue_slice.start
    try:
        for span in spans:
            start = first_at(span.start, stop)
            stop = first_at(span.end, start)
            low = max(start - VOTING_UNITS, queue_slice.start)
            high = min(stop + VOTING_UNITS, queue_slice.end)
            low, high = trim(queue, low, high, span, log_end)
            if low >= high:
                continue
            if parts and low <= parts[-1].end:
                parts[-1] = parts[-1]._replace(end=max(high, parts[-1].end))
            else:
                parts.append(queue_slice._replace(start=low, end=high))
    except CorruptQueueError as err:
        logger.info("%s: all of the range is read", err)
        return [queue_slice]
    return parts


def _valid_within(
    queue: Queue, queue_slice: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice] | None:
    """Return the parts of a short range in parts of the log; None unless all units are valid."""
    units = short_units(queue, (queue_slice.start, queue_slice.end))
    if units is None or not units.may_be_right(log_end).all():
        return None
    physical_offsets = units.physical_offsets
    if (np.diff(physical_offsets) < 0).any():
        return None
    parts: list[QueueSlice] = []
    for low, high in (queue_slice.start + np.searchsorted(physical_offsets, spans)).tolist():
        if parts and low == parts[-1].end:
            parts[-1] = parts[-1]._replace(end=high)
        elif low < high:
            parts.append(queue_slice._replace(start=low, end=high))
    return parts
