"""Builds the missing ends of queues in memory, as a recovery would build them on disk.

A broker writes a message to the log first and to its queue a little later, so a crash, or a copy of
a running store, leaves queues that lack their last units. Readers get these units from here;
``write.repairer`` writes them to the disk.

Where the log itself is damaged, or a file of it is missing, the queues continue after the gap. The
missing queue offsets get units that point at the gap, so that a read meets the damage where the
messages were.

Source: DefaultMessageStore.java#recover, #recoverTopicQueueTable; CommitLog.java#recoverAbnormally.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from copy import copy
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import number_of, rendered
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import (
    DispatchRules,
    group_by_queue,
    have_units,
    queue_keys,
    read_queue_units,
    topic_names,
)
from rmqstore.format.columns.inner_batch import is_inner_batch, message_headers
from rmqstore.format.columns.lmq import lmq_headers
from rmqstore.format.columns.record_headers import RecordHeaders, check_headers, read_headers
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    GAP_TAGS_CODE,
    MIN_RECORD_BYTES,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
    Bytes,
    Positions,
)
from rmqstore.format.topics import was_deleted
from rmqstore.spans import FOREVER, LostSpan, QueueKey
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import NEWEST_BYTES, Window, newest_windows, walk_forward
from rmqstore.storage.queue.placing import begins_again_at, lost_between, place_records
from rmqstore.storage.queue.queue import Queue, RecoveredUnits, records_end, valid_end
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueues
from rmqstore.storage.recovery.log_end import LogEnd, before_blank_of, written_end
from rmqstore.storage.recovery.unit_checks import completed_end

logger = logging.getLogger(__name__)

_BY_LOG: Final = "`scan=commitlog`"

_NEAR_UNITS = 1024  # of some pages
_MAX_UNITS = 10_000_000  # 200 MB
_MAX_LOST = 10_000  # spans that are named one by one
_MAX_UNIT_SIZE = PRE_BLANK_SIZE - 1
_start_of = attrgetter("start")


class OpenedQueue(NamedTuple):
    """The files of a queue.

    Attributes:
        queue: the queue as its files have it.
        since: the first physical offset whose record can belong to it. The queue of a deleted topic
            begins again at a later record of the log.
        has_keys: whether queue offsets are the keys of its units, as in RocksDB.
    """

    queue: Queue
    since: int = 0
    has_keys: bool = False


OpenQueue = Callable[[str, int], OpenedQueue | None]


class TailBuilder:
    """The units that one queue lacks, gathered while the log is scanned.

    Args:
        log: the log of the store.
        opened: the files of the queue.
        key: topic and queue id.
        first: queue offset of the first record of the queue that the scan met.
        log_end: physical offset where the log ends; None for a log that was closed, whose units
            are taken as they are.
    """

    def __init__(
        self, log: CommitLog, opened: OpenedQueue, key: QueueKey, first: int, log_end: int | None
    ) -> None:
        queue, self.since, has_keys = opened
        files_end = queue.end()
        if log_end is not None:
            # Units before the scanned part of the log count as whole: nothing could replace them.
            scanned_from = max(first, queue.begin)
            files_end = completed_end(log, queue, key, scanned_from, files_end, log_end)
        elif not queue.is_batch:
            # Without a unit that was written in part, and what is none before it.
            files_end = valid_end(queue, queue.begin, files_end)
        # Retention deletes files of a queue after those of the log: a queue that begins later has
        # lost its first files. One without a whole unit begins where its records do.
        is_lost = log_end is not None and (0 <= first < queue.begin or files_end == queue.begin)
        is_new = not queue.is_present or is_lost
        self.is_batch = queue.is_batch
        self._is_present = queue.is_present
        # whether a record that leaps ahead keeps its queue offset
        self.keeps_offsets = queue.is_batch or has_keys
        self.lacks_older = is_new and first > 0
        # whether no unit was built or is in the files that count
        self._is_new = is_new
        # queue offsets of the first unit that the files lack, and after the last unit built so far
        self.start = self.end = 0 if is_new else files_end
        # physical offsets after the records of the last unit in the files, and of the last one
        # built so far; -1 without any
        has_units = not is_new and self.end > queue.begin
        self.files_records_end = self.records_end = (
            records_end(queue, self.end) if has_units else -1
        )
        self.parts: list[NDArray[np.void]] = []
        self.n_repeated = 0
        self.n_seen = 0  # records of the queue in the log, up to where the scan is
        self.begun_at = -1  # the first record of the topic that replaced a deleted one
        self._earlier: TailBuilder | None = None  # before a record that may begin another topic
        self.is_short = False

    @property
    def n_units(self) -> int:
        return self.end - self.start

    @property
    def lacks_units(self) -> bool:
        """Whether the files lack units of scanned records."""
        return bool(self.parts) or self.is_short

    @property
    def known_end(self) -> int | None:
        """The queue offset after the last unit, None if the queue has none yet."""
        return None if self._is_new else self.end

    def add(self, units: NDArray[np.void], record_end: int, place: int) -> None:
        """Append units, QUEUE_UNIT (n,).

        Args:
            units: the units.
            record_end: physical offset after the record of the last one.
            place: the queue offset of the first one.
        """
        if self._is_new:
            self.start = place
            self._is_new = False
        self.parts.append(units)
        self.end = place + len(units)
        self.records_end = record_end

    def pass_over(self, n_records: int) -> None:
        """Note records that get no unit, because others before them have their queue offsets."""
        if self.records_end >= 0:
            self.n_repeated += n_records

    def of_newest_topic(
        self, headers: RecordHeaders, *, has_older: bool
    ) -> Iterator[RecordHeaders]:
        """Yield the records that the queue lacks without those of an earlier topic of its name.

        Those before a last one that may begin another topic come first, for the next records show.

        Args:
            headers: the records, of this queue.
            has_older: whether the log has earlier records of the queue.
        """
        queue_offsets = headers.column("queue_offset").astype(np.int64)
        if self._earlier is not None and len(headers):
            if queue_offsets[0] != 1:
                self._continue(self._earlier)
            self._earlier = None
        row = begins_again_at(queue_offsets, int(has_older))
        if row is None:
            yield headers
            return
        if row == len(headers) - 1:
            yield headers.take(slice(0, row))
            self._earlier = copy(self)
        self.start = self.end = 0
        self.begun_at = int(headers.column("physical_offset")[row])
        self.records_end = -1
        self.parts = []
        yield headers.take(slice(row, None))

    def _continue(self, earlier: TailBuilder) -> None:
        """Take records for later ones of the topic that was there before them."""
        self.start, self.begun_at = earlier.start, earlier.begun_at
        self.end += earlier.end
        self.parts = [*earlier.parts, *self.parts]

    def holds_batches(self, headers: RecordHeaders) -> bool:
        """Return whether it is a BatchConsumeQueue; without files, its records show it.

        Args:
            headers: the next records.
        """
        self.is_batch |= not self._is_present and bool(is_inner_batch(headers).any())
        return self.is_batch

    def begins_behind(self, physical_offset: int) -> bool:
        """Begin a queue with its next record if the log no longer has those of its units."""
        if self.parts or not 0 <= self.records_end <= physical_offset:
            return False
        self._is_new = True
        return True

    def note_gap(self) -> None:
        """Note missing units of earlier records before a scanned record."""
        self.lacks_older = True

    def give_up(self) -> None:
        """Drop all units, which are more than memory should hold."""
        self.parts.clear()
        self.start = self.end
        self.is_short = True

    def recovered(self) -> RecoveredUnits:
        """Return the units that were built."""
        units = np.concatenate([np.empty(0, QUEUE_UNIT), *self.parts])
        return RecoveredUnits(self.start, units, self.is_short, self.is_batch)


class _RecordUnits:
    """The units of records of the log, which are read together once a queue lacks one of them.

    A window of the log has a few records of each of many queues; reading the units of each queue
    by itself would take far longer.

    Args:
        data: the bytes of the records.
        headers: their headers, in the order of the log.
        rules: those of the broker.
    """

    def __init__(self, data: Bytes, headers: RecordHeaders, rules: DispatchRules) -> None:
        self._data = data
        self._headers = headers
        self._rules = rules
        self._units: NDArray[np.void] | None = None

    def of(self, headers: RecordHeaders) -> NDArray[np.void]:
        """Return the units of some of the records, or of messages in them, QUEUE_UNIT (n,)."""
        if self._units is None:
            self._units = read_queue_units(self._data, self._headers, self._rules).units
        physical_offsets = self._headers.column("physical_offset")
        rows = np.searchsorted(physical_offsets, headers.column("physical_offset"))
        return self._units[rows]


class RecoveredQueues(NamedTuple):
    """Units that queues lack, and the unreadable parts of the log that may have more."""

    tails: dict[QueueKey, RecoveredUnits]
    lost: tuple[LostSpan, ...] = ()


def recover_crashed(
    log: CommitLog, end: LogEnd, open_queue: OpenQueue, rules: DispatchRules
) -> RecoveredQueues:
    """Return the missing units of queues, for a log that was not closed; others are left out.

    Args:
        log: the log of the store.
        end: the end of the log. A recovery begins at ``end.scanned_from``; earlier records count
            as present in their queues.
        open_queue: returns the files of a queue, None for one that is not to be recovered.
        rules: those of the broker.
    """
    start = max(end.scanned_from, log.min_offset)
    recovery = _Recovery(log, open_queue, rules, end.physical_offset, start)
    recovery.scan(start, end.physical_offset)
    if recovery.lacks_older and start > log.min_offset:
        recovery = _Recovery(log, open_queue, rules, end.physical_offset, start)
        recovery.scan(log.min_offset, end.physical_offset)
    return recovery.recovered()


def recover_closed(
    log: CommitLog,
    end: LogEnd,
    open_queue: OpenQueue,
    rules: DispatchRules,
    queues_end: int,
) -> RecoveredQueues:
    """Return the missing units of queues, for a closed log; units in the files stay.

    A recovery has ended the log where a recovery scan would end it, if queues have all records
    before that physical offset and none after it. Otherwise the scan stops at damage, and records
    follow it.

    Args:
        log: the log of the store.
        end: where a recovery scan of the whole log would end.
        open_queue: returns the files of a queue, None for one that is not to be recovered.
        rules: those of the broker.
        queues_end: physical offset after the last record that the files of a queue point at, -1 if
            there is none.
    """
    recovery = _Recovery(log, open_queue, rules, None, queues_end + 1)
    recovery.scan(log.min_offset, before_blank_of(log, end).physical_offset)
    written = written_end(log)
    if written > end.physical_offset:
        if end.is_stale_after and queues_end <= end.physical_offset:
            return recovery.recovered()
        if recovery.is_whole and 0 <= queues_end <= end.physical_offset:
            _warn_of_cut(log, end.physical_offset, written, end.reason)
            return RecoveredQueues({})
        recovery.scan(end.physical_offset, written)
    return recovery.recovered()


def _warn_of_cut(log: CommitLog, end: int, written: int, reason: str) -> None:
    logger.warning(
        "%s: queues have every record before physical offset %d and none after it; "
        "%d bytes that follow are taken for what a recovery cut (%s); "
        "%s looks at them",
        log.folders, end, written - end, reason or "never written", rendered(_BY_LOG),
    )  # fmt: skip


class NewestRecords:
    """The newest records of a log that was closed, compared with its queues.

    Every read by queue of such a store begins with this, so it reads few bytes.

    Args:
        paths: paths of the store.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._windows: list[tuple[Window, RecordHeaders]] = []  # the newest first
        # None of its files stays open.
        log = CommitLog(paths.commitlogs, paths.storage, entry_folders=paths.dledger_logs)
        with closing(log):
            self._read(log)

    def _read(self, log: CommitLog) -> None:
        n_bytes = 0
        for window in newest_windows(log):
            for _, headers, whole in reversed(list(window.headers())):
                valid = window.without_torn(window.data, headers, whole)
                dispatched = headers.take(valid & have_units(headers.column("sys_flag")))
                if len(dispatched):
                    self._windows.append((window, dispatched))
            first = int(window.records.starts[0])
            n_bytes += window.records.position - first
            # The next window of the file begins further back, if this one does not begin the file.
            if self._windows and (first > 0 or n_bytes >= NEWEST_BYTES):
                return

    def are_built(self, open_queue: OpenQueue, built_until: int = FOREVER) -> bool:
        """Return whether the newest record is in its queues; true if no record has a queue.

        Queues are built in the order of the log, so those of a store that was closed properly have
        this record. Of a DLedger log, of which a broker that starts builds each queue on, the
        newest record of each queue is looked for.

        Args:
            open_queue: returns the files of a queue, None for one that is not to be recovered.
            built_until: physical offset from which on a database of queues lacks records.
        """
        if not self._windows:
            return True
        window, headers = self._windows[0]
        newest = headers.take(slice(len(headers) - 1, None))
        looked_for: Iterable[tuple[Bytes, RecordHeaders]] = [(window.data, newest)]
        if window.log.entry_segments:
            looked_for = self._newest_of_each()
        is_built = all(_is_built(*record, open_queue) for record in looked_for)
        is_built &= int(newest.column("physical_offset")[0]) < built_until
        if is_built and window.stopped < window.end and window.damage is not None:
            _warn_of_cut(window.log, window.stopped, window.end, window.records.reason)
        return is_built

    def have_lost_queue(
        self, known_topics: Collection[str], in_rocksdb: RocksDbQueues | None = None
    ) -> bool:
        """Return whether one of the records is of a queue whose files were lost, all of them.

        A broker makes a file with the first record, and deletes the last one with the topic.

        Args:
            known_topics: those of ``topics.json``; without any no topic counts as deleted.
            in_rocksdb: its queues in RocksDB, None if it has none there.
        """
        in_database = () if in_rocksdb is None else in_rocksdb.bounds
        folders = (self._paths.queue_folders, self._paths.batch_folders)
        return any(
            can_have_queue(*key)
            and not any(kind.has_queue(*key) for kind in folders)
            and not was_deleted(key[0], known_topics)
            for key in self._queues().difference(in_database)
        )

    def _newest_of_each(self) -> Iterator[tuple[Bytes, RecordHeaders]]:
        """Yield the newest of the records of each queue, with the bytes that hold it."""
        seen: set[QueueKey] = set()
        for window, headers in self._windows:
            found = group_by_queue(topics(window.data, headers), headers.column("queue_id"))
            for key, rows in found:
                if key not in seen:
                    seen.add(key)
                    yield window.data, headers.take(rows[-1:])

    def _queues(self) -> set[QueueKey]:
        """Return the queues that the records are of."""
        queues: set[QueueKey] = set()
        for window, headers in self._windows:
            records = headers.take(check_headers(headers, window.segment.start))
            in_lmqs = lmq_headers(window.data, records.take(~is_inner_batch(records)), ())
            for named in filter(len, (records, in_lmqs)):
                queues |= queue_keys(topics(window.data, named), named.column("queue_id"))
        return queues


def _is_built(data: Bytes, record: RecordHeaders, open_queue: OpenQueue) -> bool:
    """Return whether a record is in its queue, and in the light message queues that it names."""
    topic = topic_names(topics(data, record).dictionary_encode())[0]
    opened = open_queue(topic, int(record.column("queue_id")[0]))
    is_batch = opened is not None and opened.queue.is_batch
    in_lmqs = lmq_headers(data, record, [topic] if is_batch else [])
    return _has_unit(opened, record) and all(
        _has_unit(open_queue(name, 0), in_lmqs.take(slice(row, row + 1)))
        for row, name in enumerate(topics(data, in_lmqs).to_pylist())
    )


def _has_unit(opened: OpenedQueue | None, head: RecordHeaders) -> bool:
    if opened is None:
        return True
    physical_offset = int(head.column("physical_offset")[0])
    with closing(opened.queue) as queue:
        # The queue may be behind its records by some places: see unit_checks.
        for queue_offset in (int(head.column("queue_offset")[0]), queue.end() - 1):
            found, size, _ = queue.unit(queue_offset)
            if found == physical_offset and size > 0:  # zeros seem to lead to the log's begin
                return queue.is_batch or opened.has_keys or _follows_units(queue, queue_offset)
    return False


def _follows_units(queue: Queue, queue_offset: int) -> bool:
    """Return whether no zeros lie right before a unit of a queue.

    A page that a crash took leaves zeros, at which a broker cuts the queue.

    Source: ConsumeQueue.java#recover.
    """
    runs = [*queue.runs(max(queue.begin, queue_offset - _NEAR_UNITS), queue_offset)]
    return not runs or bool((queue.units(*runs[-1]).sizes != 0).all())


class _Recovery:
    """A scan of the log for the units that queues lack, and the lost spans on its way.

    Args:
        log, open_queue, rules, log_end: as for :class:`TailBuilder` and :func:`recover_crashed`.
        built_from: physical offset from which on a broker that starts builds units.
    """

    def __init__(
        self,
        log: CommitLog,
        open_queue: OpenQueue,
        rules: DispatchRules,
        log_end: int | None,
        built_from: int,
    ) -> None:
        self._log = log
        self._open_queue = open_queue
        self._rules = rules
        self._log_end = log_end
        self._built_from = built_from
        self._tails: dict[QueueKey, TailBuilder | None] = {}
        self._batch_topics: set[str] = set()  # of those in _tails
        self._lost: list[LostSpan] = []
        self._n_units = 0

    @property
    def lacks_older(self) -> bool:
        """Whether a queue lacks units of records before those that were scanned."""
        return any(tail.lacks_older for tail in self._open_tails())

    @property
    def is_whole(self) -> bool:
        """Whether no queue lacks a record that was scanned."""
        return not any(tail.lacks_units for tail in self._open_tails())

    def _open_tails(self) -> Iterator[TailBuilder]:
        return (tail for tail in self._tails.values() if tail is not None)

    def scan(self, start: int, end: int) -> None:
        """Add the records in ``[start, end)``, and note the parts of the range that hold none."""
        for low, high, segment in self._log.segment_spans(start, end):
            if segment is None:
                reason = "the files that held it are missing"
                self._lose(LostSpan(self._log.folders, low, high, reason, is_missing=True))
                continue
            for window in walk_forward(self._log, segment, low, high):
                # The records of the walk, and those that a damaged total size hid.
                data, starts, sizes = window.rejoined()
                ends = starts + sizes
                for rows in cut_batches(sizes, BATCH_ROWS, BATCH_BYTES):
                    headers, whole = read_headers(data, starts[rows])
                    # A unit with another physical offset would hide the units that follow.
                    whole &= check_headers(headers, segment.start)
                    for row in np.flatnonzero(~whole)[:_MAX_LOST].tolist():
                        first, last = int(starts[rows][row]), int(ends[rows][row])
                        self._lose_bytes(segment, first, last, "no whole record")
                    is_dispatched = whole & have_units(headers.column("sys_flag"))
                    dispatched = headers if is_dispatched.all() else headers.take(is_dispatched)
                    self._add(data, window, dispatched)
                    self._add(data, window, lmq_headers(data, dispatched, self._batch_topics))
                if window.damage is not None:
                    path = str(segment.path)
                    self._lose(LostSpan(path, window.stopped, window.resumed, window.damage))

    def _lose_bytes(self, segment: Segment, start: int, end: int, reason: str) -> None:
        """Note a lost span by its positions in a file."""
        base = segment.start
        self._lose(LostSpan(str(segment.path), base + start, base + end, reason))

    def _lose(self, span: LostSpan) -> None:
        if len(self._lost) < _MAX_LOST:
            insort(self._lost, span, key=_start_of)
        else:  # one span stands for all that follow
            last = self._lost[-1]
            self._lost[-1] = last._replace(end=max(span.end, last.end))

    def _add(self, data: Bytes, window: Window, headers: RecordHeaders) -> None:
        if not len(headers):
            return
        units = _RecordUnits(data, headers, self._rules)
        queue_offsets = headers.column("queue_offset")
        physical_offsets = headers.column("physical_offset").astype(np.int64)
        ends = physical_offsets + headers.column("total_size")
        for key, rows in group_by_queue(topics(data, headers), headers.column("queue_id")):
            tail = self._tail(key, physical_offsets[rows], queue_offsets[rows])
            if tail is None or tail.is_short:
                continue
            is_lacking = (ends[rows] > tail.records_end) & (physical_offsets[rows] >= tail.since)
            lacking = headers.take(rows[is_lacking])
            valid = window.without_torn(data, lacking, np.ones(len(lacking), np.bool_))
            if not valid.all():
                # A broker puts these records into no queue.
                sizes = lacking.column("total_size")
                for row in np.flatnonzero(~valid)[:_MAX_LOST].tolist():
                    start = int(lacking.starts[row])
                    end = start + int(sizes[row])
                    self._lose_bytes(window.segment, start, end, "a torn body")
                lacking = lacking.take(valid)
            if tail.holds_batches(lacking):
                lacking = message_headers(data, lacking)
            for records in tail.of_newest_topic(lacking, has_older=bool(tail.n_seen)):
                self._extend(tail, records, units)
            tail.n_seen += len(rows)

    def _tail(
        self, key: QueueKey, physical_offsets: Positions, queue_offsets: NDArray[np.int64]
    ) -> TailBuilder | None:
        """Return the builder of a queue, None if none of these records can be in the queue."""
        if key not in self._tails:
            opened = self._open_queue(*key)
            if opened is None:
                self._tails[key] = None
                return None
            with closing(opened.queue):
                if opened.queue.is_batch:
                    self._batch_topics.add(key[0])
                candidates = np.flatnonzero(physical_offsets >= opened.since)
                if not len(candidates):
                    return None
                first = int(queue_offsets[candidates[0]])
                self._tails[key] = TailBuilder(self._log, opened, key, first, self._log_end)
        return self._tails[key]

    def _extend(self, tail: TailBuilder, headers: RecordHeaders, units: _RecordUnits) -> None:
        """Add the units of records of one queue, one run of consecutive queue offsets at a time."""
        if not len(headers):
            return
        queue_offsets = headers.column("queue_offset").astype(np.int64)
        physical_offsets = headers.column("physical_offset").astype(np.int64)

        def keeps_gap(row: int, n_missing: int) -> bool:
            return self._fill_gap(tail, headers.take(slice(row, row + 1)), n_missing, units)

        n_older = (
            int(np.searchsorted(physical_offsets, self._built_from))
            if tail.files_records_end >= 0
            else 0
        )
        for run in place_records(queue_offsets, tail.known_end, keeps_gap, n_older):
            tail.pass_over(run.passed.stop - run.passed.start)
            rows = np.arange(run.taken.start, run.taken.stop)
            if run.passed.start < run.passed.stop:
                # Messages of one record share a unit: if it is there, damaged or not, none of them
                # gets another.
                rows = rows[physical_offsets[rows] > physical_offsets[run.passed.stop - 1]]
            if len(rows):
                added = headers.take(rows)
                record_end = added.column("physical_offset")[-1] + added.column("total_size")[-1]
                tail.add(units.of(added), int(record_end), run.place)
                self._count(len(added))
            if tail.is_short:
                return

    def _count(self, n_units: int) -> None:
        self._n_units += n_units
        if self._n_units > _MAX_UNITS:
            longest = max(self._open_tails(), key=lambda tail: tail.n_units)
            self._n_units -= longest.n_units
            longest.give_up()

    def _fill_gap(
        self, tail: TailBuilder, following: RecordHeaders, n_missing: int, units: _RecordUnits
    ) -> bool:
        """Add units for the queue offsets that a record leaves out, if it is to keep its own.

        They point at what the log has lost between the last unit and the record. Where nothing was
        lost, the record keeps its queue offset only if all of the queue do, or if no broker puts it
        behind units whose records the log no longer has.

        Args:
            tail: the end of the queue.
            following: the record.
            n_missing: how many queue offsets it leaves out.
            units: those of records.

        Returns:
            Whether the record keeps its queue offset.
        """
        stop = int(following.column("physical_offset")[0])
        min_bytes = 1 if tail.is_batch else MIN_RECORD_BYTES
        lost = lost_between(self._lost, tail.records_end, stop, n_missing, min_bytes)
        if not lost and not tail.keeps_offsets:
            tail.note_gap()
            return stop < self._built_from and tail.begins_behind(self._log.min_offset)
        if n_missing > _MAX_UNITS:
            tail.give_up()
            return True
        if lost:
            n_bytes = sum(gap.end - gap.start for gap in lost)
            size = max(min(n_bytes // n_missing, _MAX_UNIT_SIZE), 1)
            unit = np.array([(lost[0].start, size, 0)], QUEUE_UNIT)
        else:
            unit = units.of(following).copy()
            unit["tags_code"] = GAP_TAGS_CODE
        tail.add(np.repeat(unit, n_missing), lost[-1].end if lost else stop, tail.end)
        self._count(n_missing)
        return True

    def recovered(self) -> RecoveredQueues:
        """Return the units of all queues that lack some, and log a summary."""
        tails = {}
        for (topic, queue_id), tail in self._tails.items():
            if tail is None:
                continue
            if tail.n_repeated:
                logger.warning(
                    "%s-%d: %d records have queue offsets that do not follow on those before; "
                    "they are in no queue: compare %s",
                    topic, queue_id, tail.n_repeated, rendered(_BY_LOG),
                )  # fmt: skip
            if tail.begun_at >= 0:
                logger.warning(
                    "%s-%d: the topic was deleted and made again before physical offset %d; "
                    "messages of the earlier one are in no queue: %s has them",
                    topic, queue_id, tail.begun_at, rendered(_BY_LOG),
                )  # fmt: skip
            if tail.lacks_units:
                tails[topic, queue_id] = tail.recovered()
        if tails:
            units = np.concatenate([tail.units for tail in tails.values()])
            n_built = int((units["physical_offset"] >= self._built_from).sum())
            compared = "as a recovery would"
            if n_built < len(units):
                compared = (
                    f"of which a broker that starts builds {n_built} at most: "
                    "`rmqstore verify` says what to do before that"
                )
            logger.warning(
                "%s that %s %s taken from the log, %s",
                number_of(len(units), "unit"),
                number_of(len(tails), "queue lacks", "queues lack"),
                "is" if len(units) == 1 else "are",
                compared,
            )
        # The spans that may have held the messages that queues lack. Units in files point at
        # the earlier spans, so a read finds those by itself.
        lacking = (tail.files_records_end for tail in self._open_tails() if tail.lacks_units)
        since = min(lacking, default=self._log.max_offset) if self._tails else -1
        lost = (span for span in self._lost if span.start >= since)
        return RecoveredQueues(tails, tuple(sorted(lost, key=_start_of)))
