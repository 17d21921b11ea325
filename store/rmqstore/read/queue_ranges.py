"""Where queues begin and end, and which ranges of them a selection names.

With combineCQUseRocksdbForLmq the broker keeps plain queues in files, and light queues in a RocksDB
database in a folder of its own, so only the log shows which light queues there are.

Source: CombineConsumeQueueStore.java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, Protocol

import numpy as np

from rmqstore.errors import (
    Argument,
    CorruptQueueError,
    OffsetOutOfRangeError,
    OptionError,
    Text,
    UnsupportedFeatureError,
    about,
)
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import have_units
from rmqstore.format.columns.lmq import lmq_heads
from rmqstore.format.layout import LMQ_PREFIX, Mask
from rmqstore.format.schema import Message
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.selection import EARLIEST, LATEST, Bound, Selection, choose_topics
from rmqstore.read.time_search import FoundTimes, first_stored_at, search_together, short_units
from rmqstore.spans import LATEST_TIME, QueueKey, QueueSlice, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths, can_name_queues
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import walk_forward
from rmqstore.storage.queue.queue import NO_UNITS, Queue, Units, find_first, reach
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.queue.rocksdb_queue import are_queues_unreadable, has_unreadable_queues
from rmqstore.storage.recovery.unit_checks import confirmed_end, confirmed_runs, look_confirmed
from rmqstore.storage.rocksdb.database import INSTALL_ROCKSDB

logger = logging.getLogger(__name__)

_MAX_NAMES = 5


VOTING_UNITS: Final = 64  # consulted on each side of a queue offset


_QUEUES_TOGETHER = 128  # whose ends a remote storage fetches together


class QueueOffsets(Protocol):
    """The method of ``queue_ranges.QueueRanges`` that this module uses."""

    def at_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        span: tuple[int, int],
        *,
        tolerant: bool = False,
    ) -> int: ...


class _Side(NamedTuple):
    """Where the ranges of a selection start, or where they end."""

    argument: str  # starting_offsets or ending_offsets
    bound: Bound
    committed: Mapping[QueueKey, int]  # the offsets of the group that the bound names, if any


class BoundResolver:
    """Turns the bounds of one selection into offsets of one store's queues.

    Args:
        queues: tells where queues begin and end.
        selection: the selection with the bounds.
        config: configuration of the store's broker, which has the committed offsets of groups.
        broker: name of the broker.
        fail_on_data_loss: whether a bound outside of the messages that are left is an error.
        tolerant: whether a damaged message whose time is needed is skipped.

    Raises:
        OptionError: the group of a bound has no offsets.
    """

    def __init__(
        self,
        queues: QueueOffsets,
        selection: Selection,
        config: BrokerConfig,
        broker: str,
        *,
        fail_on_data_loss: bool,
        tolerant: bool,
    ) -> None:
        self._queues, self._selection, self._broker = queues, selection, broker
        self._fail_on_data_loss, self._tolerant = fail_on_data_loss, tolerant
        start, end = selection.start, selection.end
        self._start = _Side("starting_offsets", start, _committed(start.group, config))
        self._end = _Side("ending_offsets", end, _committed(end.group, config))

    def times(self, topic: str, queue_id: int) -> set[int]:
        """Return the store times, ms, for which a queue has to be searched."""
        times = (self._time(topic, queue_id, side.bound) for side in (self._start, self._end))
        return {time for time in times if time is not None}

    def bounds(
        self, topic: str, queue_id: int, span: tuple[int, int], found: FoundTimes
    ) -> tuple[int, int]:
        """Return where the selection starts and ends in a queue.

        Args:
            topic: topic name.
            queue_id: queue id.
            span: where the queue begins and ends.
            found: results of searches by time; others are made when they are needed.
        """
        start = self.start(topic, queue_id, span, found)
        return start, self._offset(topic, queue_id, span, self._end, found)

    def start(self, topic: str, queue_id: int, span: tuple[int, int], found: FoundTimes) -> int:
        """Return where the selection starts in a queue; see :meth:`bounds`."""
        return self._offset(topic, queue_id, span, self._start, found)

    def _time(self, topic: str, queue_id: int, bound: Bound) -> int | None:
        if bound.timestamp is not None:
            return bound.timestamp
        return bound.of(self._broker, topic, queue_id, bound.by_timestamp)

    def _offset(
        self, topic: str, queue_id: int, span: tuple[int, int], side: _Side, found: FoundTimes
    ) -> int:
        bound = side.bound
        timestamp = self._time(topic, queue_id, bound)
        if timestamp is not None:
            return self._at_time(topic, queue_id, span, side, timestamp, found)
        queue_offset = side.committed.get((topic, queue_id))
        if queue_offset is None:
            queue_offset = bound.of(self._broker, topic, queue_id, bound.offsets)
        if queue_offset is None:
            queue_offset = bound.default
        if queue_offset == EARLIEST:
            return span[0]
        if queue_offset == LATEST:
            return span[1]
        return self._within(topic, queue_id, span, side, queue_offset)

    def _at_time(
        self,
        topic: str,
        queue_id: int,
        span: tuple[int, int],
        side: _Side,
        timestamp: int,
        found: FoundTimes,
    ) -> int:
        first = found.get(((topic, queue_id), timestamp))
        if first is None:
            tolerant = self._tolerant or not self._fail_on_data_loss
            first = self._queues.at_time(topic, queue_id, timestamp, span, tolerant=tolerant)
        is_start = side is self._start
        if first == span[1] and is_start and self._selection.timestamp_strategy == "error":
            raise OffsetOutOfRangeError(
                Text(
                    f"{topic}-{queue_id} has no message stored at or after {timestamp} ms; ",
                    Argument("starting_offsets_by_timestamp_strategy", "latest"),
                    " begins at the end of such queues",
                )
            )
        return first

    def _within(
        self, topic: str, queue_id: int, span: tuple[int, int], side: _Side, queue_offset: int
    ) -> int:
        """Return an offset that lies in the queue: a bound itself, or the nearest offset to it."""
        low, high = span
        if low <= queue_offset <= high:
            return queue_offset
        if side is self._end and queue_offset < low:
            # The range ends before the messages that are left; its start shows a loss.
            return low
        text = about(
            side.argument,
            f" of {topic}-{queue_id} is {queue_offset}, the queue holds {low} to {high} (excluded)",
        )
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(
                Text(text, "; ", Argument("fail_on_data_loss", value=False), " reads what is left")
            )
        logger.warning("data loss: %s; reading what is left", text)
        return min(max(queue_offset, low), high)


def _committed(group: str | None, config: BrokerConfig) -> Mapping[QueueKey, int]:
    if group is None:
        return {}
    offsets = config.consumer_offsets(group)
    if not offsets:
        known = ", ".join(config.groups()) or "none"
        raise OptionError(
            f"group {group!r} has no committed offsets in config/; groups that have: {known}"
        )
    return offsets


def count_light_messages(log: CommitLog, end: int, batch_topics: Collection[str]) -> Counter[str]:
    """Return the number of messages in each light queue that records before ``end`` name.

    Reads the whole log.
    """
    counts: Counter[str] = Counter()
    for start, stop, segment in log.stretches(log.min_offset, end):
        if segment is None:
            continue
        for window in walk_forward(log, segment, start, stop):
            for _, heads, whole in window.heads():
                delivered = heads.take(whole & have_units(heads.column("sys_flag")))
                light = lmq_heads(window.data, delivered, batch_topics)
                if len(light):
                    counts.update(topics(window.data, light).to_pylist())
    return counts


def describe_light_queues(counts: Counter[str], names: Collection[str]) -> str:
    """Describe light queues in words: how many messages they have, and the first few names."""
    total = sum(counts[name] for name in names)
    listed = sorted(names)[:_MAX_NAMES]
    others = f" and {len(names) - len(listed)} others" if len(names) > len(listed) else ""
    return f"{total} messages of light message queues {', '.join(listed)}{others}"


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
    units = _units_there(queue, low, high)
    voters = np.sort(units.physical_offsets[units.may_be_right(log_end)])
    return int(voters[len(voters) // 2]) if len(voters) else None


def _units_there(queue: Queue, start: int, end: int) -> Units:
    """Return the units of a range that the files have, in most cases all."""
    with suppress(OffsetOutOfRangeError):
        return queue.units(start, end)
    return Units.joined(NO_UNITS, *(queue.units(*run) for run in queue.runs(start, end)))


def trim(
    queue: Queue, start: int, end: int, places: tuple[int, int], log_end: int
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
        places: physical offsets where the part of the log begins and ends.
        log_end: physical offset where the log ends.
    """
    max_units = 2 * VOTING_UNITS
    for low, high in queue.runs(start, min(start + max_units, end)):
        if low == start:
            units = queue.units(low, high)
            is_before = units.may_be_right(log_end) & (units.physical_offsets < places[0])
            start += _n_leading(is_before)
        break
    for low, high in queue.runs(max(end - max_units, start), end):
        if high == end:
            units = queue.units(low, high)
            is_after = units.may_be_right(log_end) & (units.physical_offsets >= places[1])
            end -= _n_leading(is_after[::-1])
    return start, end


def _n_leading(mask: Mask) -> int:
    """Return how many rows a mask sets before the first that it does not."""
    return len(mask) if mask.all() else int(np.argmin(mask))


def slices_within(
    queue: Queue, piece: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice]:
    """Return the parts of a range whose messages may lie in parts of the log, ascending.

    Around damaged units the parts also include some neighbouring messages.

    Args:
        queue: any kind of queue.
        piece: the range of it.
        spans: the parts of the log, rising.
        log_end: physical offset where the log ends.
    """
    parts = _sound_within(queue, piece, spans, log_end)
    if parts is not None:
        return parts

    def first_at(physical_offset: int, start: int) -> int:
        def is_reached(queue_offset: int) -> bool:
            estimate = estimate_physical_offset(
                queue, queue_offset, piece.start, piece.end, log_end
            )
            if estimate is None:
                raise CorruptQueueError(*queue.place(queue_offset), "no unit around is sound")
            return estimate >= physical_offset

        return find_first(start, piece.end, is_reached)

    parts = []
    stop = piece.start
    try:
        for span in spans:
            start = first_at(span.start, stop)
            stop = first_at(span.end, start)
            low = max(start - VOTING_UNITS, piece.start)
            high = min(stop + VOTING_UNITS, piece.end)
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


def _sound_within(
    queue: Queue, piece: QueueSlice, spans: Sequence[Span], log_end: int
) -> list[QueueSlice] | None:
    """Return the parts of a short range in parts of the log; None unless all units are sound."""
    units = short_units(queue, (piece.start, piece.end))
    if units is None or not units.may_be_right(log_end).all():
        return None
    physical_offsets = units.physical_offsets
    if (np.diff(physical_offsets) < 0).any():
        return None
    parts: list[QueueSlice] = []
    for low, high in (piece.start + np.searchsorted(physical_offsets, spans)).tolist():
        if parts and low == parts[-1].end:
            parts[-1] = parts[-1]._replace(end=high)
        elif low < high:
            parts.append(piece._replace(start=low, end=high))
    return parts


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
