"""A store opened for writing.

The writer holds the lock, and brings log, queues, index and checkpoint to disk in this order.
FORMAT.md says when an append becomes visible, and what a crash leaves.

Source: DefaultMessageStore.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import CommitError, Finding, RmqStoreError, StoreStateError
from rmqstore.format.columns.dispatch_requests import DispatchRequests, PlacedFields
from rmqstore.format.columns.encode import (
    Records,
    TopicColumn,
    encode_records,
    require_room,
    row_batches,
)
from rmqstore.format.columns.lmq import require_plain_parents
from rmqstore.format.layout import SCHEDULE_TOPIC
from rmqstore.format.topics import SYSTEM_TOPICS
from rmqstore.progress import Progress, ignore_progress
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.broker.topic_table import queue_nums, register_topics
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.lifetime import OpenedInTurns, Turns, in_turn
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.files.paths import StorePaths, our_abort
from rmqstore.storage.log.appender import LogAppend, Placement
from rmqstore.storage.log.commitlog import CommitLog, begins_record
from rmqstore.storage.log.writer_notes import CleanEnd, mark_as_closed, note_commit
from rmqstore.storage.queue.appender import QueueAppender
from rmqstore.storage.queue.next_offsets import NextOffsets
from rmqstore.write.dispatch import Dispatcher, SavedCheckpoint
from rmqstore.write.existing_store import (
    BrokerRelease,
    require_local,
    require_no_old_broker,
    require_writable,
    writable_config,
)
from rmqstore.write.ledger import Ledger
from rmqstore.write.messages import (
    ArrowStream,
    MessageMaker,
    WriteSpec,
    now_ms,
    record_batches,
    with_lmq_offsets,
)
from rmqstore.write.repairer import Repairer
from rmqstore.write.staged import StagedAppend, StagedRecords, StagedTask
from rmqstore.write.verbatim import claim_offsets, millis, verbatim_columns

_MAX_WAITING = 3_000_000  # rows of some 50 bytes each
_ROWS_A_BATCH = 100  # the objects of a batch take as much memory as this number of rows


class WrittenTopics:
    """The topics that records were appended to since the last commit.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        spec: the number of queues of a new topic, and the least of some topics.
        batch_topics: the topics whose queues are BatchConsumeQueues.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        spec: WriteSpec,
        batch_topics: Collection[str] = (),
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._spec = spec
        self._batch_topics = batch_topics
        self._highest_queue_ids: dict[str, int] = {}

    def add(self, topics: TopicColumn, queue_ids: NDArray[np.int32]) -> None:
        """Note the queues of appended rows, (n,)."""
        known = [self._highest_queue_ids.get(topic, -1) for topic in topics.names]
        highest = np.array(known, np.int32)
        higher = np.flatnonzero(queue_ids > highest[topics.codes])
        if not len(higher):  # as for almost all batches of a large job
            return
        np.maximum.at(highest, topics.codes[higher], queue_ids[higher])
        for topic, queue_id in zip(topics.names, highest.tolist(), strict=True):
            if queue_id >= 0:  # the column may know topics that no row has
                self._highest_queue_ids[topic] = queue_id

    def register(self) -> None:
        """Add the topics to ``topics.json``, so that a broker serves them, and forget them."""
        least = {
            topic: max(highest + 1, self._spec.queue_nums.get(topic, 0))
            for topic, highest in self._highest_queue_ids.items()
            if topic not in SYSTEM_TOPICS
        }
        if least and self._batch_topics:
            # A broker that finds queues of a batch topic without an entry does not start.
            for topic, queue_id in self._paths.batch_folders.queues():
                least[topic] = max(least.get(topic, 0), queue_id + 1)
        register_topics(
            self._disk, self._paths, least, self._spec.default_queue_nums, self._batch_topics
        )
        self.clear()

    def clear(self) -> None:
        """Forget the topics, because their rows were discarded."""
        self._highest_queue_ids.clear()


class WaitingRequests:
    """The dispatch requests of the records that wait for their commit, up to a limit of memory.

    From them queues and index are built without reading the records back. Requests beyond the limit
    are read back from the log after the commit.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        self._sources: deque[Callable[[], Iterable[DispatchRequests]]] = deque()
        self.end: int | None = None  # physical offset after the last record of these requests
        self._n_rows = 0
        self._is_full = False

    def add(self, requests: DispatchRequests, end: int) -> None:
        """Keep the requests of records that end at the physical offset ``end``."""
        self._is_full |= self._n_rows > _MAX_WAITING
        if not self._is_full:
            self._n_rows += len(requests.has_unit) + _ROWS_A_BATCH
            self.add_source(lambda: [requests], end)

    def add_source(self, source: Callable[[], Iterable[DispatchRequests]], end: int) -> None:
        """Keep a function for the requests of records up to ``end``, which takes no memory."""
        if not self._is_full:
            self._sources.append(source)
            self.end = end

    def stop(self) -> None:
        """Keep no further requests, as if there were too many."""
        self._is_full = True

    def requests(self) -> Iterator[DispatchRequests]:
        """Yield and forget the requests, in the order of the log."""
        while self._sources:
            yield from self._sources.popleft()()


class StoreWriter(OpenedInTurns):
    """The only writer of a store. :meth:`flush` makes all appended rows visible at once.

    A context manager: leaving it flushes and closes. An exception discards what was not flushed.
    :meth:`close` flushes, marks the store as closed and releases the lock. After a failed write
    nothing is flushed; the next writer or broker that opens the store repairs it.

    It takes one call at a time: a call of another thread waits until this one has returned. A call
    after :meth:`close`, or of another process than the one that opened it, such as a forked child,
    is refused with a ``StoreStateError`` and changes nothing.

    Args:
        paths: the files of the store.
        config: the sizes of new files; None for those that its files and its settings show.
        disk: performs all changes.
        spec: how messages are made.
        truncate: cut the log at damage even if good records follow it.
        check_log: walk the end of the log even if the last writer noted where it is.
        broker_stopped: no broker has the store open, though no lock shows it.

    Raises:
        StoreLockedError: a broker or another writer holds the store.
        StoreStateError: the store cannot be written to, a link in it leads elsewhere, or a broker
            that makes no lock may hold it and ``broker_stopped`` is not set.
    """

    def __init__(
        self,
        paths: StorePaths,
        config: StoreConfig | None,
        disk: Disk | None = None,
        *,
        spec: WriteSpec | None = None,
        truncate: bool = False,
        check_log: bool = False,
        broker_stopped: bool = False,
    ) -> None:
        require_local(paths)
        if not broker_stopped:
            require_no_old_broker(paths)
        again = "open the store again with mode='a' to write to it"
        self.turns = Turns(f"the writer of {paths.root}", again)
        self.paths = paths
        self._disk = disk or Disk()
        changed = (paths.consumequeue, paths.index, paths.config, paths.own.folder)
        self._disk.keep_within(*paths.given_folders(), checked=(*paths.commitlogs, *changed))
        self._lock = StoreLock(paths.lock)
        try:
            with named_os_errors(self.paths.root, "the store could not be opened"):
                self._open(config, spec, truncate=truncate, check_log=check_log)
        except BaseException:
            with suppress(OSError):
                self._disk.close()
            self._lock.release()
            raise

    def _open(
        self,
        config: StoreConfig | None,
        spec: WriteSpec | None,
        *,
        truncate: bool,
        check_log: bool,
    ) -> None:
        require_writable(self.paths)
        self._log = CommitLog(self.paths.commitlogs)
        self.config = writable_config(self.paths, self._log, config)
        self._spec = spec or WriteSpec(max_message_size=self.config.max_message_size)
        self._file_size = self.config.mapped_file_size_commit_log
        self._release = BrokerRelease(self.paths, self._log, self._spec.broker_version)
        self._repairer = Repairer(
            self._disk, self.paths, self.config, self._log, truncate=truncate, check_log=check_log
        )
        repaired = self._repairer.repair()
        self._queues: dict[tuple[str, int], QueueAppender] = {}
        self._waiting = WaitingRequests()
        self._last_store_timestamp = repaired.last_store_timestamp
        self._checkpoint = SavedCheckpoint(self._disk, self.paths, repaired.checkpoint)
        dispatched = repaired.checkpoint.logics_phy_offset
        if dispatched >= repaired.end or not begins_record(self._log, dispatched):
            self._checkpoint.set_dispatched(0)
        self._append = self._begin(repaired.end)
        self._offsets = NextOffsets(self._next_queue_offset)
        # set by a failed write, after which queues and index may be incomplete
        self._has_failed = False
        nums = {**self.queue_nums(), **self._spec.queue_nums}
        spec = replace(self._spec, queue_nums=nums, n_delay_levels=self.config.n_delay_levels)
        self._maker = MessageMaker(spec)
        self._batch_topics = self._repairer.queues.batch_topics
        self._topics = WrittenTopics(self._disk, self.paths, self._spec, self._batch_topics)
        self._ledger = Ledger(self._disk, self.paths.root)
        self._ledger.complete(self._log)
        self._protect()

    def _begin(self, end: int) -> LogAppend:
        return LogAppend(self._disk, self.paths, end, self._file_size)

    def _protect(self) -> None:
        """Protect the index from a broker's recovery, then mark the store as open."""
        self._checkpoint.cover_index()
        self._checkpoint.save(built=self._last_store_timestamp)
        self._disk.replace(self.paths.abort, our_abort())

    @in_turn
    def append(
        self, rows: pa.RecordBatch | ArrowStream, *, verbatim: bool = False, first_row: int = 1
    ) -> None:
        """Append rows, which become visible at :meth:`flush`.

        Nothing of a refused batch is appended. Earlier batches of the same table or stream stay
        appended: to discard them, let the error leave the ``with`` block, or call :meth:`abandon`.

        Args:
            rows: a ``pyarrow.RecordBatch``, or anything with ``__arrow_c_stream__`` (a Table, a
                RecordBatchReader, a pandas or Polars DataFrame). Its columns are those of messages
                (``format.schema.WRITE_TYPES``), or with ``verbatim`` those of
                ``format.schema.VERBATIM``.
            verbatim: store bodies, properties, sysFlag, times, hosts and queue offsets as they are.
            first_row: number of the first row, for errors, which count rows from 1.

        Raises:
            TypeError: the rows are not Arrow data.
            IllegalMessageError: a row cannot be stored.
            StoreStateError: a row is delayed, and the delays of the broker's levels are not known.
            UnsupportedFeatureError: the broker of the store may not be able to read a row.
        """
        self._require_usable()
        for batch in record_batches(rows):
            self._append_batch(batch, first_row, verbatim=verbatim)
            first_row += len(batch)

    def _append_batch(self, batch: pa.RecordBatch, first_row: int, *, verbatim: bool) -> None:
        if not len(batch):
            return
        columns = verbatim_columns(batch) if verbatim else self._maker.make(batch, first_row)
        self._release.require(columns.topics.names, columns.host_bits)
        if SCHEDULE_TOPIC in columns.topics.names:
            self.config.require_delay_levels()
        lmqs = columns.lmqs
        with self._offsets.undone_on_error():
            if lmqs is not None and not verbatim:
                require_plain_parents(columns.topics, lmqs, self._batch_topics, first_row)
                columns = with_lmq_offsets(columns, lmqs, self._offsets, first_row)
            sizes = columns.sizes()
            require_room(sizes, self._file_size, first_row)
            if verbatim:
                times = millis(batch, "storeTimestamp")
                queue_offsets = batch.column("queueOffset").to_numpy()
                claim = (queue_offsets, self._batch_topics, first_row)
                has_one_unit = claim_offsets(self._offsets, columns, *claim)
            else:
                times = np.broadcast_to(np.int64(self._now()), len(columns))
                queue_offsets = self._offsets.assign(columns.topics, columns.queue_ids)
                has_one_unit = lmqs is None
        if not has_one_unit:  # the units of these records are built by reading them back
            self._waiting.stop()
        for rows in row_batches(sizes):
            part = columns.take(rows)
            placement = self._append.place(sizes[rows])
            fields = PlacedFields(queue_offsets[rows], placement.physical_offsets, times[rows])
            records = encode_records(part, fields)
            with self._all_or_nothing():
                requests = part.requests(records, self.config.rules)
                self._waiting.add(requests.placed(fields), placement.end)
                self._put(records, placement, times[rows])
        self._topics.add(columns.topics, columns.queue_ids)

    def _now(self) -> int:
        # Searches by time rely on store times that never fall.
        # Source: CommitLog.java#asyncPutMessage.
        return max(now_ms(), self._last_store_timestamp)

    def _put(self, records: Records, placement: Placement, times: NDArray[np.int64]) -> None:
        """Write records to the log, where nobody can read them yet."""
        self._checkpoint.set_back(int(times.min()))
        self._append.write(records, placement)
        self._last_store_timestamp = max(self._last_store_timestamp, int(times[-1]))

    @in_turn
    def append_staged(self, parts: Sequence[StagedTask], *, are_all: bool = False) -> None:
        """Append what tasks staged, part by part, and remove the files of records.

        With ``are_all``, which makes it cheaper, nothing else may be appended before :meth:`flush`.

        Raises:
            IllegalMessageError: a record does not fit into a CommitLog file.
            UnsupportedFeatureError: the broker of the store may not be able to read a record.
            OSError: a file does not hold what its task staged.
        """
        self._require_usable()
        run = StagedAppend(parts, self._offsets, self._append.end, self._file_size)
        if any(part.n_lmqs for part in parts):  # their records become larger
            self._waiting.stop()
        elif are_all and self._append.start == self._append.end:
            self._append.expect(run.n_records, run.n_bytes)
        with self._all_or_nothing(), StagedRecords(self._disk) as staged:
            for placed in run.place(self._now):
                self._release.require(placed.topics.names, placed.batch.sys_flags)
                if SCHEDULE_TOPIC in placed.topics.names:
                    self.config.require_delay_levels()
                records = placed.records(staged, self._batch_topics)
                self._put(records, placed.placement, placed.fields.store_timestamps)
                self._topics.add(placed.topics, placed.batch.requests.queue_ids)
            self._waiting.add_source(run.requests(), self._append.end)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Discard all that was appended if a write fails; raise CommitError after the commit."""
        try:
            yield
        except BaseException as err:
            if self._append.is_committed:
                self._has_failed = True
                if not isinstance(err, (OSError, RmqStoreError)):
                    raise
                raise CommitError(
                    f"{self.paths.root}: committed, but queues and index are incomplete ({err}); "
                    "the next writer or broker that opens the store completes them: "
                    "do not append the rows again"
                ) from err
            consequence = "nothing since the last flush is kept, and the write can be repeated"
            try:
                self._abandon()
            except OSError:
                consequence = "the next to open the store discards what was not flushed"
            with named_os_errors(self.paths.root, consequence):
                raise

    def _require_usable(self) -> None:
        """Refuse to continue after a write that failed: the store is repaired when it is opened."""
        if self._has_failed:
            raise StoreStateError(
                f"{self.paths.root}: an earlier write failed; "
                "close this writer and open the store again"
            )

    @in_turn
    def queue_nums(self) -> dict[str, int]:
        """Return the number of write queues of each topic."""
        return queue_nums(self.paths)

    @in_turn
    def taken_offsets(self) -> list[QueueSlice]:
        """Return the queue offsets that rows took in each queue, also before a flush.

        They are of all rows since the writer was opened, rebuilt the queues or discarded rows.
        """
        return self._offsets.taken()

    @in_turn
    def done_version(self, app_id: str) -> int | None:
        """Return the newest version of an application's writes that is in the store, or None."""
        return self._ledger.version(app_id, self._log)

    @in_turn
    def flush(self, *, txn: tuple[str, int] | None = None) -> None:
        """Commit what was appended: first the log, then queues and index, then the checkpoint.

        Args:
            txn: the id of an application and the version of this write, for :meth:`done_version`.

        Raises:
            StoreStateError: the disk is full, or an earlier write failed; nothing was committed.
            CommitError: everything was committed, but queues and index are incomplete.
        """
        self._flush(txn)

    def _flush(self, txn: tuple[str, int] | None = None) -> None:
        self._require_usable()
        start = self._append.start
        end = self._append.end
        with self._all_or_nothing():
            if txn is not None:
                self._ledger.intend(*txn, self._log, *self._append.first_and_last())
            if start != end:
                self._append.commit()
                self._complete(start, end)
            if txn is not None:
                self._ledger.done(txn[0])
        if start != end or txn is not None:
            note_commit(self._disk, self.paths, self._append, txn)
        self._append = self._begin(end)

    @in_turn
    def abandon(self) -> None:
        """Discard what was appended since the last flush."""
        self._abandon()

    def _abandon(self) -> None:
        had_failed = self._has_failed
        self._has_failed = True
        self._waiting.clear()
        self._append.abandon()
        self._append = self._begin(self._append.start)
        self._offsets.forget()
        self._topics.clear()
        self._has_failed = had_failed

    @in_turn
    def rebuild(self, progress: Progress = ignore_progress) -> list[Finding]:
        """Flush, then build queues and index again from the CommitLog alone.

        Args:
            progress: called now and then with the bytes of the log that are done, and their total.

        Returns:
            What could not be built: damage in the log, and records whose topic, queue id or queue
            offset does not fit.

        Raises:
            StoreStateError: times of delivery follow a table of levels that is not known.
        """
        self.config.require_delay_levels()
        self._flush()
        dispatched = self._checkpoint.dispatched
        self._checkpoint.ask_for_all(self._log.min_offset, is_valid=self._repairer.is_valid())
        self._has_failed = True
        with named_os_errors(
            self.paths.root, "the next writer that opens the store completes the rebuild"
        ):
            findings = self._repairer.rebuild(self._append.end, progress)
        self._queues.clear()
        self._offsets.forget()
        self._has_failed = False
        self._checkpoint.set_dispatched(dispatched)
        self._protect()
        return findings

    def _complete(self, start: int, end: int) -> None:
        """Build queues and index of committed records.

        If this is interrupted, the next writer or broker does it.
        """
        self._log.refresh()
        # The checkpoint comes first, because a recovery deletes index files that are newer, with
        # all the older keys in them.
        self._checkpoint.save(index=self._last_store_timestamp)
        dispatcher = Dispatcher(
            self._disk,
            self._log,
            self.paths.index,
            self.config,
            self._queue,
            self._batch_topics,
        )
        for requests in self._waiting.requests():
            dispatcher.put(requests)
        dispatcher.dispatch(self._waiting.end or start, end)
        dispatcher.flush()
        self._waiting.clear()
        self._topics.register()
        _, last = self._append.first_and_last()
        assert last is not None, "what was committed has a last record"
        self._checkpoint.set_dispatched(last.physical_offset)
        self._checkpoint.save(built=self._last_store_timestamp)
        self._append.complete()

    def _queue(self, topic: str, queue_id: int) -> QueueAppender:
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = self._repairer.queues.appender(topic, queue_id)
        return self._queues[key]

    def _next_queue_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._queue(topic, queue_id)
        return None if queue.is_new else queue.end

    def _close(self, *, completes: bool) -> None:
        try:
            if not (completes or self._has_failed):
                self._abandon()
            if not self._has_failed:
                self._flush()
                end = CleanEnd(self._append.start, self._last_store_timestamp)
                mark_as_closed(self._disk, self.paths, self._log, end)
        finally:
            with suppress(OSError):  # what was committed was flushed
                self._disk.close()
            self._log.close()
            self._lock.release()
            # A writer refers to itself, so it stays until the next full collection of garbage.
            self._queues.clear()
            self._offsets.forget()
