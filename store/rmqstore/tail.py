"""Following a store that somebody writes to: where its queues end now, found by what is new in its log.

Asking every queue where it ends costs as much as there are queues, whenever it is done. So that is done once; from then
on the log's next record is looked at, and only queues that new records name are asked, until they hold these records:
a broker writes to the log first, and to the queue a little later.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from rmqstore.consumequeue import ConsumeQueue
from rmqstore.errors import FileDeletedError
from rmqstore.format.decode import topics
from rmqstore.format.heads import Heads
from rmqstore.format.layout import Bytes
from rmqstore.format.multi_dispatch import lmq_heads
from rmqstore.format.requests import group_by_queue, have_units
from rmqstore.log_cursor import LogCursor, LogMark
from rmqstore.queues import QueueKey, open_files
from rmqstore.recovery import find_written_end
from rmqstore.selection import Selection
from rmqstore.store import MessageStore

logger = logging.getLogger(__name__)

_PATIENCE = 10
_FAR = 64 << 20  # bytes of the log that a queue may be behind


class StoreTail:
    """The ends of the chosen queues of one store, as of the last :meth:`look`.

    Attributes:
        ends: by topic and queue id, the queue offset behind the last message. What was deleted stays in it.
        mark: the newest record of a chosen queue; None without any. It lies at or behind all that ``ends`` covers.
        discovered: queues that were not there at the first look.

    Source: DefaultMessageStore.java#ReputMessageService, which follows the log in the same way.
    """

    def __init__(self, store: MessageStore, selection: Selection) -> None:
        self.store, self._selection = store, selection
        self.ends: dict[QueueKey, int] = {}
        self.mark: LogMark | None = None
        self.discovered: set[QueueKey] = set()
        # Behind the records that the queues are known to have, and behind those that the log has. What lies between is
        # walked again at each look: it may be what a recovery left behind the log's end, and is written over then.
        self._built: LogCursor | None = None
        self._seen = LogCursor(0)
        self._awaited: dict[QueueKey, int] = {}  # queues that the log is ahead of, and the ends that it tells of
        self._is_chosen: dict[QueueKey, bool] = {}
        self._firsts: dict[QueueKey, int] = {}
        self._firsts_since = -1  # the log's first byte when these were found

    def look(self) -> None:
        """Take in what was written, cut off or deleted since the last look.

        Raises:
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        for _ in range(_PATIENCE):
            try:
                return self._look()
            except FileDeletedError as err:
                logger.info("%s; looking again", err)
        return self._look()

    def _look(self) -> None:
        self.store.refresh()
        log = self.store.log
        if self._built is not None and not (self._built.is_good(log) and self._seen.is_good(log)):
            logger.warning("%s: the log is not what it was up to %d; looking at all queues", log.folders,
                           self._seen.position)  # fmt: skip
            self._built = None
        if self._built is None:
            self._built = self._look_at_all()
            self._seen = self._built
        before, awaited_before = self._seen, self._awaited
        self._seen, self._awaited = replace(self._built), {}
        for data, heads in self._seen.step(log):
            self._note(data, heads)
        self._ask(awaited_before | self._awaited)
        if self._seen.position > before.position:  # somebody writes, maybe also what only the log told of
            self._ask({key: tail.end for key, tail in self.store.ends.recovered.items() if key in self.ends})
        if self._are_built(self._awaited) or self._seen.position - self._built.position > _FAR:
            self._built = self._seen
        elif self._are_built(awaited_before):
            self._built = before

    def _ask(self, queues: dict[QueueKey, int]) -> None:
        """Ask queues where they end that are not known to have come so far."""
        for key, end in queues.items():
            if self.ends.get(key) != end or key in self.store.ends.recovered:
                self.ends[key] = self._end_and_last(key)[0]

    def _are_built(self, awaited: dict[QueueKey, int]) -> bool:
        return all(self.ends.get(key, -1) >= end for key, end in awaited.items())

    def _look_at_all(self) -> LogCursor:
        store = self.store
        store.forget()
        end = store.log_end
        chosen = store.chosen_queues(self._selection)
        keys = {(topic, queue_id): None for topic, queue_ids in chosen.items() for queue_id in queue_ids}
        self._awaited, self._firsts = {}, {}
        self._firsts_since = store.log.min_offset
        self._seen = LogCursor(store.log.max_offset if end is None else end.physical_offset)
        found = {key: self._end_and_last(key) for key in keys}
        newest = max((last for _, last in found.values()), default=-1)
        if end is None:
            # As the queues have it: stale records may follow. The newest one may be walked once more.
            reached = max(newest, store.end_in_log(but=keys))
            self._seen = LogCursor(find_written_end(store.log) if reached < 0 else reached)
        self.mark = LogMark.at(store.log, newest)
        self.ends |= {key: reached for key, (reached, _) in found.items()}
        return LogCursor.at(store.log, self._seen.position)

    def _end_and_last(self, key: QueueKey) -> tuple[int, int]:
        """Return where a queue ends, and the physical offset of its last message, -1 if it has none."""
        end, last = self._in_files(key)
        recovered = self.store.ends.recovered.get(key)
        if recovered is not None and end >= recovered.end:
            self.store.forget_recovered(key)
        elif recovered is not None:
            return recovered.end, int(recovered.units["physical_offset"][-1]) if len(recovered.units) else last
        return end, last

    def _in_files(self, key: QueueKey) -> tuple[int, int]:
        queue, log_end = open_files(self.store.paths, *key), self._seen.position
        try:
            end = queue.end()
            physical_offset, size, _ = queue.unit(end - 1) if end else (-1, 0, 0)
            if size <= 0 or not 0 <= physical_offset < log_end:
                end = queue.cut(queue.begin, end, log_end)
                physical_offset = queue.unit(end - 1)[0] if end > queue.begin else -1
            if queue.segments and not self._is_first(queue, key, end):
                self._firsts[key] = queue.first(end, self._firsts_since)
        finally:
            queue.close()
        return end, physical_offset

    def _is_first(self, queue: ConsumeQueue, key: QueueKey, end: int) -> bool:
        """Tell whether what is remembered as a queue's first offset still is: the queue may have been made anew."""
        known = self._firsts.get(key)
        if known is None or not queue.begin <= known <= end:
            return False
        return known == queue.begin or queue.unit(known - 1)[0] < self._firsts_since

    def _note(self, data: Bytes, heads: Heads) -> None:
        """Take in which chosen queues records name, what ends they tell, and the newest of them."""
        heads = heads.take(have_units(heads.column("sys_flag")))
        self._note_queues(data, heads)
        self._note_queues(data, lmq_heads(data, heads))

    def _note_queues(self, data: Bytes, heads: Heads) -> None:
        for key, rows in group_by_queue(topics(data, heads), heads.column("queue_id")) if len(heads) else ():
            if key not in self._is_chosen:
                self._is_chosen[key] = self.store.is_chosen(self._selection, *key)
            if self._is_chosen[key]:
                if key not in self.ends:
                    self.discovered.add(key)
                last = heads.take(rows[-1:])
                self._awaited[key] = int(last.column("queue_offset")[0]) + 1
                place = int(last.column("physical_offset")[0])
                if self.mark is None or place >= self.mark.physical_offset:
                    self.mark = LogMark(place, int(last.column("store_timestamp")[0]))

    def spans(self) -> dict[QueueKey, tuple[int, int]]:
        """Look, and return where each queue begins and ends."""
        self.look()
        return {key: (self.first(key), end) for key, end in self.ends.items()}

    def first(self, key: QueueKey) -> int:
        """Return the first queue offset of a queue whose message is still there; its end if none is."""
        if self._firsts_since != self.store.log.min_offset:
            self._firsts.clear()
            self._firsts_since = self.store.log.min_offset
        end = self.ends.get(key, 0)
        if key not in self._firsts:
            first = self.store.first_offset(*key)
            self._firsts[key] = end if first is None else first
        return min(self._firsts[key], end)

    def first_after(self, key: QueueKey, mark: LogMark) -> int:
        """Return the first queue offset of a queue whose message took the place of a record that was cut off.

        It was stored after that record, or lies behind it, whatever the clock said.
        """
        span = (self.first(key), self.ends.get(key, 0))
        if span[0] >= span[1]:
            return span[1]
        by_time = self.store.first_stored_at(*key, mark.store_timestamp + 1, span)
        return min(by_time, self.store.first_behind(*key, mark.physical_offset, span))

    def began_after(self, key: QueueKey, mark: LogMark) -> bool:
        """Tell whether all messages of a queue lie behind a record."""
        span = (self.first(key), self.ends.get(key, 0))
        return self.store.first_behind(*key, mark.physical_offset + 1, span) == span[0]
