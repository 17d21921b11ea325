"""Builds queue units and index items from the records of the log.

This happens after each append, in a repair and in a rebuild.

Source: DefaultMessageStore.java#ReputMessageService, #CommitLogDispatcherBuildConsumeQueue
and #CommitLogDispatcherBuildIndex; StoreCheckpoint.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set as AbstractSet
from pathlib import Path

import numpy as np

from rmqstore.errors import CorruptQueueError, CorruptRecordError, Finding
from rmqstore.format.columns.decode import first_topic
from rmqstore.format.columns.dispatch_requests import (
    DispatchRequests,
    QueueUnits,
    UnitBuffer,
    have_units,
    read_queue_units,
    read_requests,
)
from rmqstore.format.columns.inner_batch import count_messages, is_inner_batch
from rmqstore.format.columns.lmq import lmq_headers
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.layout import BATCH_ROWS, LMQ_PREFIX, Bytes, Mask
from rmqstore.progress import Progress, ignore_progress
from rmqstore.spans import Span
from rmqstore.storage.broker.broker_run import Checkpoint
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.index_appender import IndexAppender, IndexKeys
from rmqstore.storage.index_files import IndexSizes, index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog, SegmentSpan
from rmqstore.storage.log.walks import JoinedWindow, Window, join_spans, walk_forward
from rmqstore.storage.queue.appender import QueueAppender

_MAX_FINDINGS = 1000
_MAX_LOST = 10_000  # spans that are remembered one by one
_BATCH_ROWS = BATCH_ROWS * 3 // 2  # a call costs as much as some hundred records


class UnknownTopicsError(Exception):
    """The kind of queues of some topics is not known; all records before were dispatched.

    Attributes:
        physical_offset: of the first record that may be of one of them.
        topics: the topics.
    """

    def __init__(self, physical_offset: int, topics: frozenset[str]) -> None:
        super().__init__(physical_offset, topics)
        self.physical_offset = physical_offset
        self.topics = topics


class SavedCheckpoint:
    """Keeps the file ``checkpoint`` such that a broker's recovery loses no unit and no key.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        checkpoint: the checkpoint as the repair of the store found it.
    """

    def __init__(self, disk: Disk, paths: StorePaths, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._paths = paths
        self._checkpoint = checkpoint
        self._keeps_dispatched = checkpoint.logics_phy_offset > 0

    def save(self, *, built: int | None = None, index: int | None = None) -> None:
        """Write the file.

        Args:
            built: store time up to which log and queues are on disk, ms; None leaves it as it is.
            index: store time up to which index files are on disk, ms; None leaves it as it is.
        """
        if built is not None:
            self._checkpoint = self._checkpoint._replace(
                physic_msg_timestamp=built, logics_msg_timestamp=built
            )
        if index is not None:
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=index)
        self._disk.replace(self._paths.checkpoint, self._checkpoint.stored())

    @property
    def dispatched(self) -> int:
        """Physical offset of the last record that is in all queues; 0 if the store has no such."""
        return self._checkpoint.logics_phy_offset

    def set_dispatched(self, physical_offset: int) -> None:
        """Set the last record whose units are in all queues; :meth:`save` writes it.

        It stays 0 where no broker set it, as none before 5.5.0 does.

        Args:
            physical_offset: where the record begins: a broker may read from there on. 0 if unknown.
        """
        if self._keeps_dispatched:
            self._checkpoint = self._checkpoint._replace(logics_phy_offset=physical_offset)

    def set_confirmed(self, physical_offset: int) -> None:
        """Set up to where a broker in controller mode takes the log it opens for dispatched.

        :meth:`save` writes it. Other brokers do not read it.

        Source: DefaultMessageStore.java#loadCheckPoint, #start.
        """
        self._checkpoint = self._checkpoint._replace(confirm_phy_offset=physical_offset)

    def ask_for_all(self, log_start: int, *, is_valid: bool) -> None:
        """Have a broker build all queues and the index if a rebuild of ours is interrupted.

        Its recovery then scans all of the log. Where it would cut the log at damage, it is not
        asked to.

        Args:
            log_start: physical offset where the log begins.
            is_valid: whether a recovery gets from there to the end of the log.
        """
        built = None
        if is_valid:
            self._checkpoint = self._checkpoint.recovered_from(log_start)
            built = 0
        self.save(built=built, index=0)

    def cover_index(self) -> None:
        """Flush the newest index file, and guarantee all of them at the next :meth:`save`.

        A recovery deletes index files that are newer than the checkpoint. It builds items only for
        the records that it scans, so the keys of older records would be lost.
        """
        files = index_files(self._paths.index)
        if files:
            self._disk.flush(files[-1])
            newest = int(read_header(files[-1])["end_timestamp"])
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=newest)

    def set_back(self, store_timestamp: int) -> None:
        """Set the checkpoint back if records say that they were stored before it, as copies may.

        A recovery begins at the newest file whose first record is older than the checkpoint. If
        that were a file of this append, the recovery would take everything before it for
        dispatched and build no units for it.
        """
        if store_timestamp <= self._checkpoint.min_timestamp:
            self.save(built=store_timestamp)


class Dispatcher:
    """Builds the queues and the index of a store from its log.

    Args:
        disk: performs all changes.
        log: the log to read.
        index_folder: the folder of the index files.
        config: sizes of new files, and what is indexed.
        open_queue: returns the appender of a queue, by topic and queue id.
        batch_topics: the topics whose queues are BatchConsumeQueues.
        known_topics: those whose kind is known; None if all others have plain queues.
        is_tolerant: skip damage and report it in :attr:`findings`. Queues that do not fit the log
            are listed in :attr:`mismatches`, and nothing more is appended to them.
        walk: finds the records of a part of one file.

    Attributes:
        inner_batches: the topics that have records with inner batches.
    """

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        index_folder: Path,
        config: StoreConfig,
        open_queue: Callable[[str, int], QueueAppender],
        batch_topics: Collection[str] = (),
        *,
        known_topics: AbstractSet[str] | None = None,
        is_tolerant: bool = False,
        walk: Callable[[CommitLog, Segment, int, int], Iterator[Window]] = walk_forward,
    ) -> None:
        self._walk = walk
        self._disk = disk
        self._log = log
        self._config = config
        self._open_queue = open_queue
        self._is_tolerant = is_tolerant
        self._batch_topics = batch_topics
        self._known_topics = known_topics
        self._index = IndexAppender(disk, index_folder, IndexSizes.of(config))
        self._touched: dict[tuple[str, int], QueueAppender] = {}
        self._waiting = UnitBuffer()
        self._topic: bytes | None = None  # of all records before; most likely of those after
        self._lost: list[Span] = []  # parts of the log without records, rising
        self.findings: list[Finding] = []
        self.mismatches: dict[tuple[str, int], CorruptQueueError] = {}
        self.inner_batches: set[str] = set()

    def dispatch(self, start: int, end: int, progress: Progress = ignore_progress) -> None:
        """Build the missing units and items of the records in ``[start, end)``.

        Raises:
            CorruptRecordError: bytes are not a record, and the dispatcher is not tolerant.
            UnknownTopicsError: a record is of a topic whose kind is not known.
        """
        for part in join_spans(self._log, start, end):
            spans = [part] if isinstance(part, SegmentSpan) else part.spans
            if isinstance(part, JoinedWindow) and part.has_true_sizes():
                for _, headers, _ in part.headers():
                    self._put_records(part.data, headers)
            else:
                for low, high, segment in spans:
                    if segment is not None:
                        self._dispatch_file(
                            segment, low, high, lambda at: progress(at - start, end - start)
                        )
                    else:
                        reason = f"no file holds the log from {low} to {high}"
                        self._report_damage(self._log.folders, Span(low, high), reason)
            progress(spans[-1].end - start, end - start)

    def _dispatch_file(
        self, segment: Segment, start: int, end: int, progress: Callable[[int], None]
    ) -> None:
        path = str(segment.path)
        for window in self._walk(self._log, segment, start, end):
            for starts, headers, is_complete in window.headers(self._topic, _BATCH_ROWS):
                physical_offsets = starts + segment.start
                valid = is_complete & (headers.column("physical_offset") == physical_offsets)
                stops = physical_offsets + headers.column("total_size")
                for row in np.flatnonzero(~valid).tolist():
                    span = Span(int(physical_offsets[row]), int(stops[row]))
                    reason = "not a whole record with this physical offset"
                    self._report_damage(path, span, reason)
                valid_headers = headers if valid.all() else headers.take(np.flatnonzero(valid))
                if len(valid_headers):
                    self._put_records(window.data, valid_headers)
            progress(min(window.stopped, end))
            if window.damage is not None:
                span = Span(window.stopped, window.resumed)
                self._report_damage(path, span, window.damage)

    def _put_records(self, data: Bytes, headers: RecordHeaders) -> None:
        requests = read_requests(data, headers, self._config.rules)
        units = requests.units
        if self._known_topics is not None:
            named = frozenset(topic for topic in units.topics if not topic.startswith(LMQ_PREFIX))
            unknown = named - self._known_topics
            if unknown:
                raise UnknownTopicsError(int(headers.column("physical_offset")[0]), unknown)
        self.inner_batches |= units.topics_of(is_inner_batch(headers))
        self._topic = first_topic(data, headers) if len(units.topics) == 1 else None
        if self._batch_topics:
            counts = count_messages(data, headers)
            for part in requests.units_of_messages(counts, self._batch_topics):
                self._put_units(part)
        else:
            self._put_units_of(units, requests.has_unit)
        self._put_keys(requests)
        if requests.may_name_lmqs:
            # The light message queues that records name get units too. Source: LmqDispatch.java.
            with_unit = headers.take(have_units(headers.column("sys_flag")))
            of_queues = lmq_headers(data, with_unit, self._batch_topics)
            if len(of_queues):
                self._put_units(read_queue_units(data, of_queues, self._config.rules))

    def _report_damage(self, path: str, span: Span, reason: str) -> None:
        """Report a damaged part of the log.

        Raises:
            CorruptRecordError: the dispatcher is not tolerant.
        """
        if not self._is_tolerant:
            raise CorruptRecordError(path, span.start, f"{reason}; nothing is built after it")
        if len(self._lost) < _MAX_LOST:
            self._lost.append(span)
        else:  # one span stands for all that follow
            self._lost[-1] = self._lost[-1]._replace(end=span.end)
        self._add_finding("log", f"{path}, {span.start}", f"{reason}; nothing was built from it")

    def _add_finding(self, part: str, place: str, text: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Finding(part, place, text))
        elif len(self.findings) == _MAX_FINDINGS:
            text = f"more than {_MAX_FINDINGS} findings"
            self.findings.append(Finding(part, self._log.folders, text))

    def put(self, requests: DispatchRequests) -> None:
        """Append the units and items of records that are in the log, in its order.

        Each record holds one message.
        """
        self._put_units_of(requests.units, requests.has_unit)
        self._put_keys(requests)

    def _put_units_of(self, units: QueueUnits, has_unit: Mask) -> None:
        self._put_units(units if has_unit.all() else units.take(has_unit))

    def _put_keys(self, requests: DispatchRequests) -> None:
        if self._config.message_index_enable:
            offsets = requests.units.units["physical_offset"].astype(np.int64)
            keys = IndexKeys(
                requests.key_hashes,
                offsets[requests.key_rows],
                requests.units.store_timestamps[requests.key_rows],
            )
            self._index.add(keys)

    def _put_units(self, units: QueueUnits) -> None:
        self._waiting.add(units)
        if self._waiting.is_full:
            self.write()

    def write(self) -> None:
        """Write the waiting units of each queue, which :meth:`flush` brings to the disk."""
        units = self._waiting.take()
        if units is None:
            return
        for key, rows in units.by_queue():
            if key in self.mismatches:
                continue
            if self._is_tolerant and not can_have_queue(*key):
                for physical_offset in units.units["physical_offset"][rows].tolist():
                    text = (
                        f"the record at {physical_offset} names a topic or queue id "
                        "that no folder can have; it has no unit"
                    )
                    self._add_finding("queue", f"{key[0]!r}-{key[1]}", text)
                continue
            try:
                queue = self._touched.get(key)
                if queue is None:
                    queue = self._touched[key] = self._open_queue(*key)
                stored = queue.stored(units, rows)
                queue.append(units.queue_offsets[rows], stored, self._lost)
            except CorruptQueueError as err:
                if not self._is_tolerant:
                    raise
                self.mismatches[key] = err

    def flush(self) -> None:
        """Flush queues and index to disk."""
        self.write()
        for (topic, queue_id), queue in self._touched.items():
            for text in queue.misplaced:
                self._add_finding("queue", f"{topic}-{queue_id}", text)
            queue.misplaced.clear()
        self._disk.flush_all([path for queue in self._touched.values() for path in queue.touched])
        for queue in self._touched.values():
            queue.touched.clear()
        self._touched.clear()
        self._index.flush()
