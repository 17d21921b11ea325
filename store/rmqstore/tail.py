"""Following a store that somebody writes to: where its queues end now, found by what is new in its log.

Asking every queue where it ends costs as much as there are queues, whenever it is done. So that is done once; from then
on the log's next record is looked at, and only queues that new records name are asked, until they hold these records:
a broker writes to the log first, and to the queue a little later.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rmqstore.commitlog import CommitLog
from rmqstore.consumequeue import ConsumeQueue
from rmqstore.errors import CorruptRecordError, FileDeletedError, MalformedBytesError, OffsetOutOfRangeError
from rmqstore.files.mapped_file_queue import Segment
from rmqstore.format.decode import topics
from rmqstore.format.frames import StopKind, Walk, heads_of, walk
from rmqstore.format.heads import Heads
from rmqstore.format.layout import Bytes
from rmqstore.format.record import check_record
from rmqstore.format.requests import group_by_queue, have_units
from rmqstore.queues import QueueKey
from rmqstore.recovery import find_written_end
from rmqstore.selection import Selection
from rmqstore.store import MessageStore

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 64 << 10, 128 << 20  # the first one, and the largest: bytes never written are not to be touched
_PATIENCE = 10


class LogMark(NamedTuple):
    """A record by which a log is known again: cut by a recovery and written on, another one stands in its place."""

    physical_offset: int
    store_timestamp: int  # ms

    def stands_in(self, log: CommitLog) -> bool:
        """Tell whether the record still stands there, or was deleted with its file because of its age."""
        if self.physical_offset < log.min_offset:
            return True
        try:
            return log.store_timestamp(self.physical_offset) == self.store_timestamp
        except (CorruptRecordError, OffsetOutOfRangeError):
            return False


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
        self._cursor: int | None = None  # physical offset of the log's next record
        self._newest: LogMark | None = None  # the record before it, whosever it is
        self._awaited: dict[QueueKey, int] = {}  # queues that the log is ahead of, and the ends that it tells of
        self._is_chosen: dict[QueueKey, bool] = {}
        self._firsts: dict[QueueKey, int] = {}
        self._firsts_since = -1  # the log's first byte when these were found

    def look(self) -> None:
        """Take in what was written, cut off or deleted since the last look.

        Raises:
            UnsupportedFeatureError: a chosen topic has queues of a kind that cannot be read.
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
        if self._cursor is None:
            self._look_at_all()
        elif self._cursor < log.min_offset or not (self._newest is None or self._newest.stands_in(log)):
            logger.warning("%s: the log is not what it was up to %d; looking at all queues", log.folders, self._cursor)
            self.store.forget()
            self._look_at_all()
        self._await(self._walk())
        for key, expected in list(self._awaited.items()):
            self.ends[key] = end = self._end_and_last(key)[0]
            if end >= expected and key not in self.store.recovered:
                del self._awaited[key]

    def _look_at_all(self) -> None:
        store = self.store
        end = store.log_end
        self._cursor = find_written_end(store.log) if end is None else end.physical_offset
        chosen = store.chosen_queues(self._selection)
        keys = [(topic, queue_id) for topic, queue_ids in chosen.items() for queue_id in queue_ids]
        self._newest, self._awaited = None, {key: found.end for key, found in store.recovered.items() if key in keys}
        newest = -1
        self._forget_firsts()
        for key in keys:
            self.ends[key], last = self._end_and_last(key)
            newest = max(newest, last)
        self.mark = self._newest = self._mark_at(newest)

    def _mark_at(self, physical_offset: int) -> LogMark | None:
        try:
            return LogMark(physical_offset, self.store.log.store_timestamp(physical_offset))
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def _end_and_last(self, key: QueueKey) -> tuple[int, int]:
        """Return where a queue ends, and the physical offset of its last message, -1 if it has none."""
        end, last = self._in_files(key)
        recovered = self.store.recovered.get(key)
        if recovered is not None and end >= recovered.end:
            self.store.forget_recovered(key)
        elif recovered is not None:
            return recovered.end, int(recovered.units["physical_offset"][-1]) if len(recovered.units) else last
        return end, last

    def _in_files(self, key: QueueKey) -> tuple[int, int]:
        assert self._cursor is not None, "the log's end was found first"
        queue = ConsumeQueue(self.store.paths.queue(*key))
        try:
            end = queue.end()
            physical_offset, size, _ = queue.unit(end - 1) if end else (-1, 0, 0)
            if size <= 0 or not 0 <= physical_offset < self._cursor:
                end = queue.cut(queue.begin, end, self._cursor)
                physical_offset = queue.unit(end - 1)[0] if end > queue.begin else -1
            if key not in self._firsts and queue.segments:
                self._firsts[key] = queue.first(end, self._firsts_since)
        finally:
            queue.close()
        return end, physical_offset

    def _await(self, named: dict[QueueKey, int]) -> None:
        for key, end in named.items():
            if key not in self.ends:
                self.discovered.add(key)
            self._awaited[key] = end

    def _walk(self) -> dict[QueueKey, int]:
        """Step over the records behind the cursor; return the chosen queues that they name and what ends they tell."""
        assert self._cursor is not None, "the log's end was found first"
        log, named, size = self.store.log, dict[QueueKey, int](), _WINDOW_BYTES[0]
        while (segment := log.find(self._cursor)) is not None:
            data, position = log.data(segment), self._cursor - segment.start
            walked = walk(data, position, min(position + size, len(data)), segment.start)
            walked = _without_unfinished(data, walked, segment)
            for _, heads, whole in heads_of(data, walked):
                self._note(data, heads.take(whole & have_units(heads.column("sys_flag"))), named)
                last = heads.take(slice(len(heads) - 1, None))
                self._newest = LogMark(*(int(last.column(name)[0]) for name in LogMark._fields))
            self._cursor = segment.end if walked.kind is StopKind.BLANK else segment.start + walked.position
            if walked.kind in (StopKind.EMPTY, StopKind.DAMAGE):
                break
            size = min(8 * size, _WINDOW_BYTES[1])
        return named

    def _note(self, data: Bytes, heads: Heads, named: dict[QueueKey, int]) -> None:
        names = topics(data, heads)
        for key, rows in group_by_queue(names, heads.column("queue_id")) if len(heads) else ():
            if key not in self._is_chosen:
                self._is_chosen[key] = self.store.is_chosen(self._selection, *key)
            if self._is_chosen[key]:
                last = heads.take(rows[-1:])
                named[key] = int(last.column("queue_offset")[0]) + 1
                place = int(last.column("physical_offset")[0])
                if self.mark is None or place > self.mark.physical_offset:
                    self.mark = LogMark(place, int(last.column("store_timestamp")[0]))

    def first(self, key: QueueKey) -> int:
        """Return the first queue offset of a queue whose message is still there; its end if none is."""
        if self._firsts_since != self.store.log.min_offset:
            self._forget_firsts()
        if key not in self._firsts:
            first = self.store.first_offset(*key)
            self._firsts[key] = self.ends.get(key, 0) if first is None else first
        return self._firsts[key]

    def _forget_firsts(self) -> None:
        self._firsts.clear()
        self._firsts_since = self.store.log.min_offset

    def first_after(self, key: QueueKey, mark: LogMark) -> int:
        """Return the first queue offset of a queue whose message was stored after a record."""
        span = (self.first(key), self.ends.get(key, 0))
        return self.store.first_stored_at(*key, mark.store_timestamp + 1, span) if span[0] < span[1] else span[1]


def _without_unfinished(data: Bytes, walked: Walk, segment: Segment) -> Walk:
    """Leave out records from the first on that is not whole: of the last one its broker may be writing the end.

    The first one is looked at as well: a crash may have left it torn, with others behind it.
    """
    for place in sorted({0, len(walked.starts) - 1}) if len(walked.starts) else ():
        position = int(walked.starts[place])
        try:
            check_record(data.data, position, segment.start + position)
        except MalformedBytesError as err:
            return Walk(walked.starts[:place], StopKind.DAMAGE, position, err.reason)
    return walked
