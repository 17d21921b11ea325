"""The ends of queues in memory as a recovery would build them on disk: a reader's view of a store that was not closed.

A broker writes a message to the log first and to its queue a little later, so a crash, or a copy of
a running store, leaves queues that lack their last units. The writer's side of this is
``write.repair``.

Where the log itself is damaged, or a file of it is missing, the queues go on after the gap: the
    queue offsets that are
missing get units that point at it, so that a read meets the damage where the messages were.

Source: DefaultMessageStore.java#recover, #recoverTopicQueueTable; CommitLog.java#recoverAbnormally.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import (
    have_units,
    read_requests,
    rows_by_queue,
    topic_names,
)
from rmqstore.format.columns.heads import Heads, check_heads, read_heads
from rmqstore.format.columns.inner_batch import message_heads
from rmqstore.format.columns.lmq import lmq_heads
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    MIN_RECORD_BYTES,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
    Bytes,
    Positions,
)
from rmqstore.spans import LostStretch, QueueKey
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, walk_back, walk_forward
from rmqstore.storage.queue.bounds import reach, whole_end
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.units import RecoveredUnits
from rmqstore.storage.recovery.log_end import LogEnd, written_end
from rmqstore.storage.recovery.unit_checks import confirmed_end

logger = logging.getLogger(__name__)

_MAX_UNITS = 10_000_000  # 200 MB
_MAX_LOST = 10_000  # stretches that are named one by one
_MAX_UNIT_SIZE = PRE_BLANK_SIZE - 1


class OpenedQueue(NamedTuple):
    """The files of a queue, and the physical offset from which on records can be of it: a deleted one begins again."""

    queue: Queue
    since: int = 0


OpenQueue = Callable[[str, int], OpenedQueue | None]


class RecoveredQueues(NamedTuple):
    """What queues lack and the log has, and the parts of the log that cannot be read for it."""

    tails: dict[QueueKey, RecoveredUnits]
    lost: tuple[LostStretch, ...] = ()


def recover_crashed(log: CommitLog, end: LogEnd, open_queue: OpenQueue) -> RecoveredQueues:
    """Return the units that queues lack of a log that was not closed; queues that are whole are not in it.

    Args:
        log: of the store.
        end: where it ends. A recovery begins at ``end.scanned_from``; what lies before is taken to
            be in its queues.
        open_queue: gives the files of a queue, None for one that is not to be recovered.
    """
    start = max(end.scanned_from, log.min_offset)
    found = _Recovery(log, open_queue, end.physical_offset)
    found.scan(start, end.physical_offset)
    if found.lacks_older and start > log.min_offset:
        found = _Recovery(log, open_queue, end.physical_offset)
        found.scan(log.min_offset, end.physical_offset)
    return found.recovered()


def recover_closed(
    log: CommitLog, end: LogEnd, open_queue: OpenQueue, queues_end: Callable[[], int]
) -> RecoveredQueues:
    """Return the units that queues lack of a log that was closed.

    Units that are there stay, whatever they are.

    Where a recovery scan would end the log, and queues have all records before that place and none
    after it, a recovery did end it there. Anywhere else in a log that was closed such a place is
    damage, and records follow it.

    Args:
        log: of the store.
        end: where a recovery scan of all of it would end.
        open_queue: gives the files of a queue, None for one that is not to be recovered.
        queues_end: asks for the physical offset after the last record that the files of a queue
            point at, -1 without.
    """
    found = _Recovery(log, open_queue, None)
    found.scan(log.min_offset, end.physical_offset)
    written = written_end(log)
    if written > end.physical_offset:
        if found.is_whole and queues_end() >= 0:
            _warn_of_cut(log, end.physical_offset, written, end.reason)
            return RecoveredQueues({})
        found.scan(end.physical_offset, written)
    return found.recovered()


def _warn_of_cut(log: CommitLog, end: int, written: int, reason: str) -> None:
    logger.warning(
        "%s: queues have every record before physical offset %d and none after it; %d bytes that follow are taken for "
        "what a recovery cut (%s); scan=commitlog looks at them",
        log.folders, end, written - end, reason or "never written",
    )  # fmt: skip


def is_newest_built(log: CommitLog, open_queue: OpenQueue) -> bool:
    """Tell whether the newest record of a log is in its queue; true where there is none to ask for.

    Queues are built in the order of the log, so those of a store that was closed well have this
    one. Few bytes are
    read: a store is asked this whenever it is read by queue.
    """
    for segment in reversed(log.segments):
        for window in walk_back(log, segment, segment.start + log.written_end(segment)):
            for _, heads, whole in reversed(list(window.heads())):
                rows = np.flatnonzero(whole & have_units(heads.column("sys_flag")))
                if len(rows):
                    is_built = _is_built(window.data, heads.take(rows[-1:]), open_queue)
                    if is_built and window.stopped < window.end and window.damage is not None:
                        _warn_of_cut(log, window.stopped, window.end, window.records.reason)
                    return is_built
    return True


def _is_built(data: Bytes, head: Heads, open_queue: OpenQueue) -> bool:
    topic, queue_offset = (
        topic_names(topics(data, head).dictionary_encode())[0],
        int(head.column("queue_offset")[0]),
    )
    opened = open_queue(topic, int(head.column("queue_id")[0]))
    if opened is None:
        return True
    queue = opened.queue
    try:
        return (
            queue.unit(queue_offset)[0] == int(head.column("physical_offset")[0])
            and queue.is_present
        )
    finally:
        queue.close()


def _start_of(stretch: LostStretch) -> int:
    return stretch.start


class _Tail:
    """What is known of one queue while the log is scanned."""

    def __init__(
        self, log: CommitLog, opened: OpenedQueue, key: QueueKey, first: int, log_end: int | None
    ) -> None:
        queue, self.since = opened
        kept = queue.end()
        if log_end is not None:
            kept = confirmed_end(log, queue, key, queue.cut(queue.begin, kept, log_end), log_end)
            # Older units are taken for whole: where the log is not scanned, nothing could be put in
            # their place.
            kept = whole_end(queue, min(max(first, queue.begin), kept), kept)
        # Retention deletes files of a queue after those of the log: a queue that begins later has
        # lost its first files.
        self.is_new = not queue.is_present or (log_end is not None and first < queue.begin)
        self.is_batch = queue.is_batch
        self.next = first if self.is_new else kept
        self.reached = (
            reach(queue, self.next) if not self.is_new and self.next > queue.begin else -1
        )
        self.start, self.begun = self.next, self.reached
        self.parts: list[NDArray[np.void]] = []
        self.lacks_older = self.is_new and first > 0
        self.n_repeated = 0
        self.is_short = False

    @property
    def n_units(self) -> int:
        return self.next - self.start

    def add(self, units: NDArray[np.void], reached: int) -> None:
        self.parts.append(units)
        self.next += len(units)
        self.reached = reached

    def give_up(self) -> None:
        self.parts.clear()
        self.start, self.is_short = self.next, True


class _Recovery:
    def __init__(self, log: CommitLog, open_queue: OpenQueue, log_end: int | None) -> None:
        self._log, self._open_queue, self._log_end = log, open_queue, log_end
        self._tails: dict[QueueKey, _Tail | None] = {}
        self._lost: list[LostStretch] = []
        self._n_units = 0

    @property
    def lacks_older(self) -> bool:
        """Whether a queue lacks units of records before those that were scanned."""
        return any(tail.lacks_older for tail in self._open_tails())

    @property
    def is_whole(self) -> bool:
        """Whether no queue lacks a record that was scanned."""
        return not any(tail.parts or tail.is_short for tail in self._open_tails())

    def _open_tails(self) -> Iterator[_Tail]:
        return (tail for tail in self._tails.values() if tail is not None)

    def scan(self, start: int, end: int) -> None:
        """Take the records in ``[start, end)``, and note the parts of it that hold none."""
        for low, high, segment in self._log.stretches(start, end):
            if segment is None:
                reason = "the files that held it are missing"
                self._lose(LostStretch(self._log.folders, low, high, reason, is_missing=True))
            else:
                for window in walk_forward(self._log, segment, low, high):
                    self._take(window)
                    if window.damage is not None:
                        self._lose(
                            LostStretch(
                                str(segment.path), window.stopped, window.resumed, window.damage
                            )
                        )

    def _take(self, window: Window) -> None:
        """Take walked records, and those that a damaged total size hid."""
        segment, walked = window.segment, window.records
        data, starts, sizes = window.rejoined()
        for rows in cut_batches(sizes, BATCH_ROWS, BATCH_BYTES):
            heads, whole = read_heads(data, starts[rows])
            # a unit for another place would hide those that follow
            whole &= check_heads(heads, segment.start)
            if not whole.all():
                self._lose_records(
                    segment,
                    heads.starts,
                    whole,
                    int(starts[rows.stop]) if rows.stop < len(starts) else walked.position,
                )
            wanted = whole & have_units(heads.column("sys_flag"))
            dispatched = heads if wanted.all() else heads.take(wanted)
            self._add(data, segment, dispatched)
            self._add(data, segment, lmq_heads(data, dispatched))

    def _lose_records(
        self, segment: Segment, starts: Positions, whole: NDArray[np.bool_], end: int
    ) -> None:
        """Note records that are not whole, each up to the next one."""
        ends = np.append(starts[1:], end)
        for row in np.flatnonzero(~whole)[:_MAX_LOST].tolist():
            self._lose_bytes(segment, int(starts[row]), int(ends[row]), "no whole record")

    def _lose_bytes(self, segment: Segment, start: int, end: int, reason: str) -> None:
        self._lose(
            LostStretch(str(segment.path), segment.start + start, segment.start + end, reason)
        )

    def _lose(self, stretch: LostStretch) -> None:
        if len(self._lost) < _MAX_LOST:
            insort(self._lost, stretch, key=_start_of)
        else:  # one stretch stands for all that follow
            self._lost[-1] = self._lost[-1]._replace(end=max(stretch.end, self._lost[-1].end))

    def _add(self, data: Bytes, segment: Segment, heads: Heads) -> None:
        if not len(heads):
            return
        encoded = topics(data, heads).dictionary_encode()
        names, codes = (
            topic_names(encoded),
            np.from_dlpack(encoded.indices).astype(np.int32, copy=False),
        )
        queue_ids, queue_offsets = heads.column("queue_id"), heads.column("queue_offset")
        ends = heads.column("physical_offset") + heads.column("total_size")
        places = heads.column("physical_offset").astype(np.int64)
        for rows in rows_by_queue(codes, queue_ids):
            key = (names[int(codes[rows[0]])], int(queue_ids[rows[0]]))
            tail = self._tail(key, places[rows], queue_offsets[rows])
            if tail is not None and not tail.is_short:
                lacking = heads.take(
                    rows[(ends[rows] > tail.reached) & (places[rows] >= tail.since)]
                )
                self._extend(
                    tail, data, segment, message_heads(data, lacking) if tail.is_batch else lacking
                )

    def _tail(
        self, key: QueueKey, places: Positions, queue_offsets: NDArray[np.int64]
    ) -> _Tail | None:
        """Return what is known of a queue, None where none of the records at hand can be of it."""
        if key not in self._tails:
            opened = self._open_queue(*key)
            if opened is None:
                self._tails[key] = None
                return None
            with closing(opened.queue):
                counted = np.flatnonzero(places >= opened.since)
                if not len(counted):
                    return None
                self._tails[key] = _Tail(
                    self._log, opened, key, int(queue_offsets[counted[0]]), self._log_end
                )
        return self._tails[key]

    def _extend(self, tail: _Tail, data: Bytes, segment: Segment, heads: Heads) -> None:
        """Add the units of records of one queue, run by run of queue offsets that follow on one another."""
        if not len(heads):
            return
        queue_offsets, places = (
            heads.column(name).astype(np.int64) for name in ("queue_offset", "physical_offset")
        )
        cuts = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
        for rows in np.split(np.arange(len(heads)), cuts):
            first = int(queue_offsets[rows[0]])
            if first < tail.next:
                n_known = min(tail.next - first, len(rows))
                tail.n_repeated += n_known if tail.reached >= 0 else 0
                # Messages of one record come together: a unit that is there, damaged or not, is for
                # all of them.
                rows = rows[n_known:][places[rows[n_known:]] > places[rows[n_known - 1]]]  # noqa: PLW2901
            elif first > tail.next and not self._fill_gap(tail, first, int(places[rows[0]])):
                tail.lacks_older = True
                self._lose_odd(segment, heads.take(rows), tail.next)
                continue
            if len(rows):
                self._add_units(tail, data, heads.take(rows))
            if tail.is_short:
                return

    def _add_units(self, tail: _Tail, data: Bytes, heads: Heads) -> None:
        reached = int(heads.column("physical_offset")[-1] + heads.column("total_size")[-1])
        tail.add(read_requests(data, heads).units.units, reached)
        self._count(len(heads))

    def _count(self, n_units: int) -> None:
        self._n_units += n_units
        if self._n_units > _MAX_UNITS:
            longest = max(self._open_tails(), key=lambda one: one.n_units)
            self._n_units -= longest.n_units
            longest.give_up()

    def _fill_gap(self, tail: _Tail, first: int, physical_offset: int) -> bool:
        """Add units for the queue offsets before ``first`` that a lost part of the log explains, if one does."""
        before = self._lost[: bisect_left(self._lost, physical_offset, key=_start_of)]
        begun = bisect_left(before, tail.reached, key=_start_of)
        gaps = before[begun:] or [gap for gap in before[-1:] if gap.end > tail.reached]
        n_missing, n_bytes = first - tail.next, sum(gap.end - gap.start for gap in gaps)
        least = 1 if tail.is_batch else MIN_RECORD_BYTES
        if not gaps or n_missing > max(n_bytes // least, 1):
            return False
        if n_missing > _MAX_UNITS:
            tail.give_up()
            return True
        size = max(min(n_bytes // n_missing, _MAX_UNIT_SIZE), 1)
        tail.add(np.full(n_missing, np.array((gaps[0].start, size, 0), QUEUE_UNIT)), gaps[-1].end)
        self._count(n_missing)
        return True

    def _lose_odd(self, segment: Segment, heads: Heads, expected: int) -> None:
        """Note records whose queue offsets do not follow on those before, though nothing between is lost."""
        start = int(heads.column("physical_offset")[0]) - segment.start
        end = (
            int(heads.column("physical_offset")[-1] + heads.column("total_size")[-1])
            - segment.start
        )
        told = int(heads.column("queue_offset")[0])
        reason = f"{len(heads)} records of a queue from queue offset {told} on, where {expected} should follow"
        self._lose_bytes(segment, start, end, reason)

    def recovered(self) -> RecoveredQueues:
        """Return what was found, and say so."""
        found = {}
        for (topic, queue_id), tail in self._tails.items():
            if tail is None:
                continue
            if tail.n_repeated:
                logger.warning(
                    "%s-%d: %d records have queue offsets that do not follow on those before; they are in no queue: "
                    "compare scan=commitlog",
                    topic, queue_id, tail.n_repeated,
                )  # fmt: skip
            if tail.parts or tail.is_short:
                units = np.concatenate([np.empty(0, QUEUE_UNIT), *tail.parts])
                found[topic, queue_id] = RecoveredUnits(
                    tail.start, units, tail.is_short, tail.is_batch
                )
        if found:
            logger.warning(
                "%d units that %d queues lack are taken from the log, as a recovery would",
                sum(len(tail.units) for tail in found.values()), len(found),
            )  # fmt: skip
        return RecoveredQueues(found, self._lost_to_queues())

    def _lost_to_queues(self) -> tuple[LostStretch, ...]:
        """Return the stretches that may have held what queues lack; of those before, units in files tell."""
        begun = [tail.begun for tail in self._open_tails() if tail.parts or tail.is_short]
        since = min(begun) if begun else (-1 if not self._tails else self._log.max_offset)
        return tuple(
            sorted(
                (stretch for stretch in self._lost if stretch.start >= since),
                key=lambda one: one.start,
            )
        )
