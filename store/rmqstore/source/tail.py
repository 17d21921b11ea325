"""Follows a store that is being written to, and reports the ends of its queues by new records.

The cost of finding the ends of all queues grows with their number, so it is paid once. Later polls
read only the new records of the log, and check the queues that these name until they hold the
records: a broker writes to the log first, and to the queue a little later.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Set as AbstractSet
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import group_by_queue, have_units, read_queue_units
from rmqstore.format.columns.lmq import lmq_headers
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.layout import LMQ_PREFIX, QUEUE_UNIT, Bytes
from rmqstore.query.selection import Selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.log_cursor import LogCursor
from rmqstore.read.request import ScanRequest
from rmqstore.read.store_parts import StoreParts
from rmqstore.source.continuation import Tail
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import BrokerRun
from rmqstore.storage.broker.folders import require_log
from rmqstore.storage.broker.retry import Restarts
from rmqstore.storage.log.commitlog import frame_start
from rmqstore.storage.queue.placing import begins_again_at, place_records
from rmqstore.storage.queue.queue import Queue, RecoveredUnits, find_first, places_of
from rmqstore.storage.queue.queue_set import is_in_rocksdb, open_files
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueues
from rmqstore.storage.recovery.log_end import find_written_end
from rmqstore.storage.recovery.unit_checks import completed_end, confirmed_end, confirmed_runs

logger = logging.getLogger(__name__)

_COLUMNS = ("queue_offset", "physical_offset", "total_size")

# Looks at which a queue may lack messages of the log before all queues are looked at again.
_MAX_WAITS = 20
_MAX_LAG = 64 << 20  # bytes of the log that a queue may lag by
_NEAR_UNITS = 4096  # behind the place that a search finds, which are compared with the log


class LoggedMessages(NamedTuple):
    """Messages of one queue according to their records, in the order of the log, (n,) each."""

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]  # zeros where nobody asks for them

    @classmethod
    def of(cls, headers: RecordHeaders, tags_codes: NDArray[np.int64]) -> Self:
        """Return the messages of records."""
        columns = [headers.column(name).astype(np.int64) for name in _COLUMNS]
        return cls._make([*columns, tags_codes])

    @classmethod
    def joined(cls, parts: Iterable[LoggedMessages]) -> Self:
        """Return the messages of all parts, one part after the other."""
        return cls._make(np.concatenate(column) for column in zip(*parts, strict=True))

    def after(self, recovered: RecoveredUnits) -> RecoveredUnits | None:
        """Return recovered units with those of the messages that follow them.

        None if a message does not follow on the one before, or is not the one that is known.
        """
        is_new = self.queue_offsets >= recovered.end
        ordinals = (self.queue_offsets - recovered.start)[~is_new]
        if (ordinals < 0).any():
            return None
        is_other = recovered.units["physical_offset"][ordinals] != self.physical_offsets[~is_new]
        if is_other.any() or (np.diff(self.queue_offsets) != 1).any():
            return None
        if not is_new.any():
            return recovered
        first = int(self.queue_offsets[is_new][0])
        if len(recovered.units) and first != recovered.end:
            return None
        units = np.empty(np.count_nonzero(is_new), QUEUE_UNIT)
        columns = (self.physical_offsets, self.sizes, self.tags_codes)
        for name, column in zip(QUEUE_UNIT.names or (), columns, strict=True):
            units[name] = column[is_new]
        start = recovered.start if len(recovered.units) else first
        return recovered._replace(start=start, units=np.concatenate([recovered.units, units]))


class StoreTail(Tail):
    """The ends of the chosen queues of one store, as of the last :meth:`poll`.

    Source: DefaultMessageStore.java#ReputMessageService, which follows the log in the same way.
    """

    def __init__(self, store: StoreParts, selection: Selection) -> None:
        super().__init__()
        self.store = store
        self._selection = selection
        self._ends: dict[QueueKey, int] = {}
        self._first_record: tuple[int, LastRecord | None] | None = None  # of the log's first byte
        # _built is the end of the records that the queues are known to hold, _seen the end of those
        # that the log holds. The span between the two is walked again at each poll: it may be
        # stale records that a recovery left after the end of the log, which are written over then.
        self._built: LogCursor | None = None
        self._seen = LogCursor(0)
        # Messages that the log has and queues may lack.
        self._awaited: dict[QueueKey, list[LoggedMessages]] = {}
        self._n_waits = 0  # polls, one after the other, at which a queue lacked something
        self._run = BrokerRun(0, is_open=False)
        self._is_chosen: dict[QueueKey, bool] = {}
        self._firsts: dict[QueueKey, int] = {}
        self._firsts_since = -1  # the log's first byte when these were found
        # Of the last message of each queue that was looked at: queue offset and physical offset.
        self._lasts: dict[QueueKey, tuple[int, int]] = {}
        self._deleted: dict[QueueKey, int] = {}  # where queues ended that are not there any more
        self._folders_changed_ns = -1  # when a topic was last added or deleted

    @property
    def ends(self) -> Mapping[QueueKey, int]:
        return self._ends

    def poll(self) -> None:
        """Take in what was written, cut off or deleted since the last poll.

        Raises:
            UnsupportedFeatureError: the queues are of a kind that cannot be read.
        """
        store = self.store
        store.retry(self._poll, Restarts(store.paths, store.refresh))

    def holds(self, last_record: LastRecord, _delivered: Mapping[QueueKey, int]) -> bool:
        """Return the answer of the last poll; a log needs no offsets of queues for it."""
        is_before_end = last_record.physical_offset < self._seen.position
        return is_before_end and last_record.is_in(self.store.log)

    @property
    def first_record(self) -> LastRecord | None:
        """The record that the log begins with; None without one.

        A recovery cuts the end of a log. So where this record is gone too, and not with its file,
        another store has taken the place of the one that had it.
        """
        begin = self.store.log.min_offset
        if self._first_record is None or self._first_record[0] != begin:
            self._first_record = begin, LastRecord.at(self.store.log, begin)
        return self._first_record[1]

    def _poll(self) -> None:
        run = BrokerRun.of(self.store.paths)
        self.store.refresh()
        log = self.store.log
        if not log.segments and not self.store.paths.dledger_logs:
            require_log(self.store.paths)  # it may be no longer mounted
        if self._built is not None:
            may_be_wrong = self._run.may_have_recovered(run) or self._n_waits > _MAX_WAITS
            if may_be_wrong or not (self._built.is_good(log) and self._seen.is_good(log)):
                logger.warning(
                    "%s: the log is not what it was up to %d; looking at all queues",
                    log.folders,
                    self._seen.position,
                )
                self._built = None
        self._run = run
        in_rocksdb, why_unread = self.store.ends.in_rocksdb, self.store.ends.why_unread
        if not why_unread and RocksDbQueues.of(self.store.paths, in_rocksdb) is not in_rocksdb:
            self._built = None  # the broker has flushed the queues
        if self._built is None:
            self._first_record = None
            self._built = self._look_at_all()
            self._seen = self._built
        else:
            self._look_for_deleted()
        before = self._seen
        waited_for = self._awaited.keys()
        self._seen = replace(self._built)
        self._awaited = {}
        batch_topics: set[str] | None = None  # until they are needed
        for data, records in self._seen.step(log, run.started_ms):
            headers = records.take(have_units(records.column("sys_flag")))
            self._note_queues(data, headers)
            if batch_topics is None:
                batch_topics = self.store.queues.batch_topics()
            self._note_queues(data, lmq_headers(data, headers, batch_topics))
        first_lacking = self._check_queues(before, waited_for)
        self._n_waits = self._n_waits + 1 if first_lacking is not None else 0
        if first_lacking is None or self._seen.position - self._built.position > _MAX_LAG:
            self._built = self._seen
            self._awaited = {}
        elif first_lacking >= before.position:
            self._built = before

    def _check_queues(self, before: LogCursor, waited_for: AbstractSet[QueueKey]) -> int | None:
        """Check the queues for the logged messages, and note their ends.

        Returns:
            The physical offset of the first message that a queue lacks, or None.
        """
        recovered = self.store.ends.recovered
        keys = {*waited_for} - self._awaited.keys() - recovered.keys()
        # A broker that writes may also build the units that only the log had.
        is_written_to = self._seen.position != before.position
        known = recovered.keys() & self._ends.keys()
        keys |= known if is_written_to else known & self._awaited.keys()
        for key in keys:
            self._note_end(key, *self._end_and_last(key))
        lacking = []
        for key, parts in self._awaited.items():
            logged = LoggedMessages.joined(parts)
            n_built = self._take_built(key, logged)
            if n_built < len(logged.physical_offsets):
                lacking.append(int(logged.physical_offsets[n_built]))
        return min(lacking, default=None)

    def _take_built(self, key: QueueKey, logged: LoggedMessages) -> int:
        """Note the end of a queue by the messages that the log has.

        Returns:
            How many of these messages, from the first on, the queue holds.
        """
        has_rocksdb = self.store.ends.in_rocksdb is not None
        if has_rocksdb and is_in_rocksdb(self._open_files(key)):
            return self._take_logged(key, logged)
        recovered = self.store.ends.recovered.get(key)
        if recovered is not None:
            last = recovered.units["physical_offset"][-1:].astype(np.int64).max(initial=-1)
            return int(np.count_nonzero(logged.physical_offsets <= last))
        with closing(self._open_files(key)) as queue:
            known = self._ends.setdefault(key, 0)
            n_built, last = _count_built(queue, known, logged)
            if queue.is_batch:  # the units say how many messages a record holds
                self._note_end(key, *self._end_and_last(key))
            elif last >= 0:
                self._lasts[key] = (last, queue.unit(last)[0])
                is_whole = n_built == len(logged.physical_offsets)
                is_whole &= not self._leads_behind_log(queue.unit(known - 1)[0])
                self._ends[key] = last + 1 if is_whole else max(known, last + 1)
            self._note_first(queue, key, self._ends[key])
        return n_built

    def _take_logged(self, key: QueueKey, logged: LoggedMessages) -> int:
        """Take the messages that the log has for messages of the queue.

        A broker flushes queues in RocksDB late, up to a million messages together.

        Returns:
            The number of messages, for the queue lacks none; 0 if they do not follow on it.
        """
        recovered = self.store.ends.recovered.get(key)
        if recovered is None:
            recovered = RecoveredUnits(self._open_files(key).end(), np.empty(0, QUEUE_UNIT))
        extended = logged.after(recovered)
        if extended is None:  # the topic was created again: all queues are looked at in the end
            return 0
        if extended is not recovered:
            self.store.ends.recovered[key] = recovered = extended
            self.store.queues.drop(key)
        self._note_end(key, recovered.end, int(logged.physical_offsets[-1]))
        return len(logged.physical_offsets)

    def _open_files(self, key: QueueKey) -> Queue:
        store = self.store
        return open_files(store.paths, *key, in_rocksdb=store.ends.in_rocksdb, log=store.log)

    def _look_at_all(self) -> LogCursor:
        store = self.store
        store.forget()
        # The queues decide where the log ends if the store was closed. Else the scan of a recovery
        # takes whole records that an earlier recovery cut off for messages again. While the broker
        # that cut them off is running, they are not messages.
        end = store.ends.log_end
        if end is not None and end.last_store_timestamp < self._run.started_ms:
            cursor = LogCursor(max(end.scanned_from, store.log.min_offset))
            for _ in cursor.step(store.log, self._run.started_ms):
                pass
            # It may have met damage that a recovery passes over, or a file that is lost.
            is_stale = LastRecord.at(store.log, cursor.position) is not None
            spans = store.log.segment_spans(cursor.position, end.physical_offset)
            if is_stale and all(span.segment is not None for span in spans):
                end = end._replace(physical_offset=min(cursor.position, end.physical_offset))
                store.ends.replace_log_end(end)
        store.ranges.require_queues(self._selection)
        keys = dict.fromkeys(store.ranges.keys(self._selection))
        self._awaited = {}
        self._n_waits = 0
        self._firsts = {}
        self._firsts_since = store.log.min_offset
        self._seen = LogCursor(store.log.max_offset if end is None else end.physical_offset)
        ends_and_lasts = {key: self._end_and_last(key) for key in keys}
        newest = max((last for _, last in ends_and_lasts.values()), default=-1)
        if end is None:
            # The queues show where the log ends, because stale records may follow in the log. The
            # newest record may be walked once more.
            newest_frame = newest if newest < 0 else frame_start(store.log, newest)
            position = max(newest_frame, store.store_queues.end_in_log(but=keys))
            self._seen = LogCursor(find_written_end(store.log) if position < 0 else position)
        self.last_record = LastRecord.at(store.log, newest)
        self._forget_deleted(keys)
        for key, (queue_end, last) in ends_and_lasts.items():
            self._note_end(key, queue_end, last)
        return LogCursor.at(store.log, self._seen.position)

    def _note_end(self, key: QueueKey, end: int, last: int) -> None:
        """Note where a queue ends, and the physical offset of its last message or -1."""
        self._ends[key] = end
        self._lasts[key] = (end - 1, last)
        self._deleted.pop(key, None)

    def _forget_deleted(self, present: Container[QueueKey]) -> None:
        """Note which of the known queues are not there any more."""
        for key in [key for key in self._ends if key not in present]:
            self._deleted[key] = self._ends.pop(key)
            self._lasts.pop(key, None)
            self._firsts.pop(key, None)

    def _look_for_deleted(self) -> None:
        """Note the queues of topics that were deleted since the last poll."""
        paths = self.store.paths
        status = paths.storage.status(paths.consumequeue)
        changed_ns = 0 if status is None else status.modified_ns
        if changed_ns == self._folders_changed_ns:
            return
        self._folders_changed_ns = changed_ns
        topics = set(self.store.queues.topics())
        self._forget_deleted({key for key in self._ends if key[0] in topics})

    def _end_and_last(self, key: QueueKey) -> tuple[int, int]:
        """Return where a queue ends, and the physical offset of its last message or -1."""
        recovered = self.store.ends.recovered.get(key)
        with closing(self._open_files(key)) as queue:
            # The order matters: a broker may build the missing units between the two calls.
            is_behind = recovered is not None and recovered.end > completed_end(
                self.store.log, queue, key, recovered.start, recovered.end, self._seen.position
            )
            end, last = self._in_files(queue, key)
            if recovered is not None and is_behind:
                if len(recovered.units):
                    last = int(recovered.units["physical_offset"][-1])
                return recovered.end, last
        if recovered is not None:
            self.store.forget_recovered(key)
        return end, last

    def _in_files(self, queue: Queue, key: QueueKey) -> tuple[int, int]:
        log_end = self._seen.position
        end = queue.end()
        physical_offset, size, _ = queue.unit(end - 1) if end else (-1, 0, 0)
        known = end
        if size <= 0 or not 0 <= physical_offset < log_end:
            known = queue.cut(queue.begin, end, log_end)
        if self._run.is_open:
            known = confirmed_end(self.store.log, queue, key, known, log_end)
        last = queue.unit(known - 1)[0] if known > queue.begin else -1
        if not self._leads_behind_log(physical_offset):
            end = known
        self._note_first(queue, key, end)
        return end, last

    def _leads_behind_log(self, physical_offset: int) -> bool:
        """Return whether a unit shows that a store which was closed has lost the end of its log.

        A read names what is lost.
        """
        return self.store.ends.log_end is None and physical_offset >= self.store.log.max_offset

    def _note_first(self, queue: Queue, key: QueueKey, end: int) -> None:
        if not queue.is_present:
            return
        # The remembered first offset does not hold if the queue was created again.
        known = self._firsts.get(key, -1)
        is_inside = queue.begin <= known <= end
        if is_inside and (known == queue.begin or queue.unit(known - 1)[0] < self._firsts_since):
            return
        self._firsts[key] = queue.first(end, self._firsts_since)

    def _note_queues(self, data: Bytes, headers: RecordHeaders) -> None:
        """Note the messages of chosen queues among records, and the newest of these records."""
        if not len(headers):
            return
        tags_codes = np.zeros(len(headers), np.int64)
        if self.store.ends.in_rocksdb is not None:
            tags_codes = read_queue_units(data, headers).units["tags_code"].astype(np.int64)
        for key, rows in group_by_queue(topics(data, headers), headers.column("queue_id")):
            if key not in self._is_chosen:
                self._is_chosen[key] = self.store.ranges.is_chosen(self._selection, *key)
            if not self._is_chosen[key]:
                continue
            if key not in self._ends:
                self.discovered.add(key)
            logged = LoggedMessages.of(headers.take(rows), tags_codes[rows])
            # A queue ends before messages of the log that replace its own.
            last_offset, last_physical_offset = self._lasts.get(key, (-1, -1))
            is_new = logged.physical_offsets > last_physical_offset
            if begins_again_at(logged.queue_offsets[is_new], last_offset + 1) is not None:
                self._ends[key] = 0
            self._awaited.setdefault(key, []).append(logged)
            physical_offset = int(logged.physical_offsets[-1])
            if self.last_record is None or physical_offset >= self.last_record.physical_offset:
                store_timestamp = headers.take(rows[-1:]).column("store_timestamp")[0]
                self.last_record = LastRecord(physical_offset, int(store_timestamp))

    def slices(
        self, key: QueueKey, start: int, stop: int, request: ScanRequest
    ) -> list[QueueSlice]:
        spec = request.spec(self.store.broker_name)
        return self.store.store_queues.slices(key, start, stop, spec)

    def are_confirmed(self, slices: Iterable[QueueSlice]) -> bool:
        return all(self.store.ranges.is_confirmed(part, self._seen.position) for part in slices)

    def confirmed(self, slices: Iterable[QueueSlice]) -> list[QueueSlice]:
        return [
            part
            for queue_slice in slices
            for part in self.store.ranges.confirmed(queue_slice, self._seen.position)
        ]

    def invalidate(self) -> None:
        """Look at all queues the next time, because the files differ from what was found."""
        self._built = None

    def spans(self) -> dict[QueueKey, tuple[int, int]]:
        """Look, and return where each queue begins and ends."""
        self.poll()
        return {key: (self.first(key), end) for key, end in self.ends.items()}

    def first(self, key: QueueKey) -> int:
        return self._span(key)[0]

    def _span(self, key: QueueKey) -> tuple[int, int]:
        """Return where the messages of a queue that are in the local store begin and end."""
        if self._firsts_since != self.store.log.min_offset:
            self._firsts.clear()
            self._firsts_since = self.store.log.min_offset
        end = self._ends.get(key, 0)
        if key not in self._firsts:
            queue = self.store.queues.open(*key)
            self._firsts[key] = (
                queue.first(queue.end(), self._firsts_since) if queue.is_present else end
            )
        return min(self._firsts[key], end), end

    def first_after(self, key: QueueKey, last_record: LastRecord) -> int:
        """Return the first queue offset whose message may have replaced a cut record.

        The message was stored later than that record, or lies after it in the log.
        """
        span = self._span(key)
        if span[0] >= span[1]:
            return self.ends.get(key, 0)
        at_time, time = self.store.store_queues.time_search(), last_record.store_timestamp + 1
        by_time = at_time(*key, time, span, tolerant=True)
        return min(by_time, self._first_at(key, last_record.physical_offset, span))

    def first_behind(self, key: QueueKey, last_record: LastRecord) -> int:
        span = self._span(key)
        if span[0] >= span[1]:
            return self.ends.get(key, 0)
        return self._first_at(key, last_record.physical_offset + 1, span)

    def _first_at(self, key: QueueKey, physical_offset: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span that lies at or after a physical offset.

        A damaged unit that seems to lie there ends the search, and messages before may follow it.
        """
        queue, stop = self.store.queues.open(*key), span[1]
        at = find_first(*span, lambda queue_offset: queue.unit(queue_offset)[0] >= physical_offset)
        near = min(at + _NEAR_UNITS, stop)
        before = confirmed_runs(self.store.log, queue, key, at, near, physical_offset)
        return max((end for _, end in before), default=at)

    def replaced(
        self, next_offsets: Mapping[QueueKey, int], last_record: LastRecord
    ) -> set[QueueKey]:
        found: set[QueueKey] = set()
        unknown, lasts, last_offset = (-1, -1), self._lasts, last_record.physical_offset
        for key, offset in next_offsets.items():
            last: int | None
            known, last = lasts.get(key, unknown)
            if known != offset - 1:
                if offset > self._ends.get(key, 0):
                    found.add(key)
                    continue
                physical_offset, size, _ = self.store.queues.open(*key).unit(offset - 1)
                last = physical_offset if size > 0 else None
            # A damaged unit may point anywhere.
            if last is not None and last_offset < last < self._seen.position:
                found.add(key)
        return found

    def gone(self, next_offsets: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Return the chosen queues that were deleted, and may have had unread messages.

        A broker that removes a queue because its messages have expired keeps its topic.
        """
        missing = [
            key
            for key in next_offsets.keys() - self._ends.keys()
            if next_offsets[key] and self.store.ranges.is_chosen(self._selection, *key)
        ]
        if not missing:
            return set()
        listed = {*self.store.config.topics()}
        known = listed | {*self.store.store_queues.topics()}
        return {
            (topic, queue_id)
            for topic, queue_id in missing
            if self._deleted.get((topic, queue_id), 0) > next_offsets[topic, queue_id]
            # LMQs are in no table, and a copy may have none.
            or (listed and topic not in known and not topic.startswith(LMQ_PREFIX))
        }


def _count_built(queue: Queue, known: int, logged: LoggedMessages) -> tuple[int, int]:
    """Return how many of the logged messages, from the first on, the queue needs no unit for.

    They have one, or get none: see ``placing``. Also returned is the queue offset of the last of
    the units, -1 without one.

    Args:
        queue: the queue as its files have it.
        known: where it is known to have ended.
        logged: all messages of the log after that, and some before.
    """
    n = len(logged.queue_offsets)
    span = queue.begin, min(queue.end(), known + n)
    if queue.is_batch:
        span = queue.begin, queue.end()
    places = places_of(queue, *logged[:3], span)
    lacks = places < 0
    if queue.is_batch:
        return int(np.argmax(lacks)) if lacks.any() else n, -1
    built = np.flatnonzero(~lacks)
    n_built = int(built[-1]) + 1 if len(built) else 0
    last = int(places[n_built - 1]) if n_built else -1
    for run in place_records(logged.queue_offsets[n_built:], last + 1 if n_built else known):
        if run.taken.start < run.taken.stop:
            return n_built + run.taken.start, last
    return n, last
