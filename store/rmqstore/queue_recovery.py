"""The ends of queues in memory as a recovery would build them on disk: a reader's view of a store that was not closed.

A broker writes a message to the log first and to its queue a little later, so a crash, or a copy of a running store,
leaves queues that lack their last units. The writer's side of this is ``repair``.

Source: DefaultMessageStore.java#recover, #recoverTopicQueueTable; CommitLog.java#recoverAbnormally.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rmqstore.batchqueue import BatchConsumeQueue
from rmqstore.commitlog import CommitLog
from rmqstore.consumequeue import ConsumeQueue, RecoveredUnits
from rmqstore.format.decode import topics
from rmqstore.format.frames import StopKind, find_next_record, heads_of, walk
from rmqstore.format.heads import Heads
from rmqstore.format.inner_batch import message_heads
from rmqstore.format.layout import QUEUE_UNIT, Bytes
from rmqstore.format.multi_dispatch import lmq_heads
from rmqstore.format.requests import have_units, read_requests, rows_by_queue, topic_names
from rmqstore.queues import QueueKey
from rmqstore.unit_checks import confirmed_end

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 128 << 20
_NEWEST_BYTES = 1 << 16
_MAX_UNITS = 10_000_000  # 200 MB

OpenQueue = Callable[[str, int], ConsumeQueue | None]


def recover_queues(
    log: CommitLog, start: int, end: int, open_queue: OpenQueue, *, was_closed: bool = False
) -> dict[QueueKey, RecoveredUnits]:
    """Return the units that queues lack, by topic and queue id; queues that are whole are not in it.

    Args:
        log: of the store.
        start: physical offset where a recovery of the log begins; what lies before is taken to be in its queues.
        end: physical offset where the log ends.
        open_queue: gives the files of a queue, None for one that is not to be recovered.
        was_closed: units that are there stay, whatever they are: what is wrong with them is damage.
    """
    log_end = None if was_closed else end
    found = _Recovery(log, open_queue, log_end)
    found.scan(start, end)
    if found.lacks_older and start > log.min_offset:
        found = _Recovery(log, open_queue, log_end)
        found.scan(log.min_offset, end)
    return found.recovered()


def is_newest_built(log: CommitLog, open_queue: OpenQueue) -> bool:
    """Tell whether the newest record of a log is in its queue; true where there is none to ask for.

    Queues are built in the order of the log, so those of a store that was closed well have this one. Few bytes are
    read: a store is asked this whenever it is read by queue.
    """
    for segment in reversed(log.segments):
        stop, size = log.written_end(segment), _NEWEST_BYTES
        data = log.data(segment)
        while stop:
            low = max(0, stop - size)
            first = find_next_record(data, low, stop, segment.start) if low else 0
            walked = walk(data, first, stop, segment.start)
            for _, heads, whole in reversed(list(heads_of(data, walked))):
                rows = np.flatnonzero(whole & have_units(heads.column("sys_flag")))
                if len(rows):
                    return _is_built(data, heads.take(rows[-1:]), open_queue)
            if not low:
                break
            size *= 8
    return True


def _is_built(data: Bytes, head: Heads, open_queue: OpenQueue) -> bool:
    topic, queue_offset = topic_names(topics(data, head).dictionary_encode())[0], int(head.column("queue_offset")[0])
    queue = open_queue(topic, int(head.column("queue_id")[0]))
    if queue is None:
        return True
    try:
        return queue.unit(queue_offset)[0] == int(head.column("physical_offset")[0]) and bool(queue.segments)
    finally:
        queue.close()


class _Tail:
    """What is known of one queue while the log is scanned."""

    def __init__(self, log: CommitLog, queue: ConsumeQueue, key: QueueKey, first: int, log_end: int | None) -> None:
        kept = queue.end()
        if log_end is not None:
            kept = confirmed_end(log, queue, key, queue.cut(queue.begin, kept, log_end), log_end)
            # Older units are taken for whole: where the log is not scanned, nothing could be put in their place.
            kept = queue.whole_end(min(max(first, queue.begin), kept), kept)
        self.is_new, self.is_batch = not queue.segments, isinstance(queue, BatchConsumeQueue)
        self.next = first if self.is_new else kept
        self.reached = queue.reach(self.next) if self.next > queue.begin else -1
        self.start = self.next
        self.parts: list[NDArray[np.void]] = []
        self.lacks_older = self.is_new and first > 0
        self.is_odd = self.is_short = False

    @property
    def n_units(self) -> int:
        return self.next - self.start

    def give_up(self) -> None:
        self.parts.clear()
        self.start, self.is_short = self.next, True


class _Recovery:
    def __init__(self, log: CommitLog, open_queue: OpenQueue, log_end: int | None) -> None:
        self._log, self._open_queue, self._log_end = log, open_queue, log_end
        self._tails: dict[QueueKey, _Tail | None] = {}
        self._n_units = 0

    @property
    def lacks_older(self) -> bool:
        """Whether a queue lacks units of records before those that were scanned."""
        return any(tail is not None and tail.lacks_older for tail in self._tails.values())

    def scan(self, start: int, end: int) -> None:
        """Walk the records in ``[start, end)``, all of which a recovery takes; missing files are passed over."""
        for segment in self._log.segments:
            position, stop = max(start - segment.start, 0), min(end, segment.end) - segment.start
            data = self._log.data(segment) if position < stop else None
            while data is not None and position < stop:
                walked = walk(data, position, min(position + _WINDOW_BYTES, stop), segment.start)
                for _, heads, whole in heads_of(data, walked):
                    rows = whole & have_units(heads.column("sys_flag"))
                    dispatched = heads if rows.all() else heads.take(rows)
                    self._add(data, dispatched)
                    self._add(data, lmq_heads(data, dispatched))
                position = walked.position if walked.kind is StopKind.END else stop

    def _add(self, data: Bytes, heads: Heads) -> None:
        if not len(heads):
            return
        encoded = topics(data, heads).dictionary_encode()
        names, codes = topic_names(encoded), encoded.indices.to_numpy()
        queue_ids, queue_offsets = heads.column("queue_id"), heads.column("queue_offset")
        ends = heads.column("physical_offset") + heads.column("total_size")
        for rows in rows_by_queue(codes, queue_ids):
            key = (names[int(codes[rows[0]])], int(queue_ids[rows[0]]))
            if key not in self._tails:
                queue = self._open_queue(*key)
                self._tails[key] = None
                if queue is not None:
                    self._tails[key] = _Tail(self._log, queue, key, int(queue_offsets[rows[0]]), self._log_end)
                    queue.close()
            tail = self._tails[key]
            if tail is not None and not (tail.is_odd or tail.is_short):
                lacking = heads.take(rows[ends[rows] > tail.reached])
                self._extend(tail, data, message_heads(data, lacking) if tail.is_batch else lacking)

    def _extend(self, tail: _Tail, data: Bytes, heads: Heads) -> None:
        if not len(heads):
            return
        queue_offsets = heads.column("queue_offset")
        if (queue_offsets != np.arange(tail.next, tail.next + len(heads))).any():
            tail.lacks_older |= int(queue_offsets[0]) > tail.next
            tail.is_odd = True
            return
        tail.parts.append(read_requests(data, heads).units.units)
        tail.next += len(heads)
        tail.reached = int(heads.column("physical_offset")[-1] + heads.column("total_size")[-1])
        self._n_units += len(heads)
        if self._n_units > _MAX_UNITS:
            longest = max((one for one in self._tails.values() if one is not None), key=lambda one: one.n_units)
            self._n_units -= longest.n_units
            longest.give_up()

    def recovered(self) -> dict[QueueKey, RecoveredUnits]:
        """Return what was found, and say so."""
        found = {}
        for (topic, queue_id), tail in self._tails.items():
            if tail is None:
                continue
            if tail.is_odd:
                logger.warning(
                    "%s-%d: the queue offsets of its records do not follow on its files, from %d on; it is read as the "
                    "files have it: compare scan=commitlog, or build it anew with `rmqstore rebuild`",
                    topic, queue_id, tail.next,
                )  # fmt: skip
            if tail.parts or tail.is_short:
                units = np.concatenate([np.empty(0, QUEUE_UNIT), *tail.parts])
                found[topic, queue_id] = RecoveredUnits(tail.start, units, tail.is_short, tail.is_batch)
        if found:
            logger.warning(
                "%d units that %d queues lack are taken from the log, as a recovery would",
                sum(len(tail.units) for tail in found.values()), len(found),
            )  # fmt: skip
        return found
