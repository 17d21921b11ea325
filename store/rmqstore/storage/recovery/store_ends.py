"""The end of a store's log, and the ends of queues that only the log shows.

Both are computed on first use and cached. Threads may do so at the same time, and find the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from rmqstore.errors import (
    READS_AFTER_END,
    CorruptDatabaseError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    UnsupportedFeatureError,
    rendered,
)
from rmqstore.format.columns.dispatch_requests import DispatchRules
from rmqstore.format.topics import was_deleted
from rmqstore.spans import FOREVER, LogSlice, LostSpan, QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import (
    NOT_CLOSED,
    OPEN,
    STATES,
    BrokerRun,
    Checkpoint,
    read_checkpoint,
    state_of,
)
from rmqstore.storage.broker.config_files import BrokerConfig, batch_topics_of
from rmqstore.storage.broker.retry import Deletions, retry
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.writer_notes import committed_since, read_intent
from rmqstore.storage.queue.queue import RecoveredUnits, records_end
from rmqstore.storage.queue.queue_set import open_files
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueues
from rmqstore.storage.recovery.delay_levels import find_delay_levels
from rmqstore.storage.recovery.log_end import (
    LogEnd,
    before_blank_of,
    count_after,
    find_end_from,
    find_log_end,
    find_written_end,
    scan_start,
    written_end,
)
from rmqstore.storage.recovery.queue_tails import (
    NewestRecords,
    OpenedQueue,
    RecoveredQueues,
    recover_closed,
    recover_crashed,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
# The queues in RocksDB, or why they cannot be read; None if there are none.
_Opened: TypeAlias = RocksDbQueues | CorruptDatabaseError | UnsupportedFeatureError | None


class RecordsAfter(NamedTuple):
    """The complete records after the end of a log, which a starting broker drops."""

    n_records: int
    n_bytes: int


class PlannedEnds(NamedTuple):
    """The ends of a store as planned, for the process that reads the plan.

    Attributes:
        recovered: the ends of queues that only the log has, as far as the plan needs them.
        log_end: where the log ends; None of a closed store.
        is_log_end_known: whether ``log_end`` says so; if not, the process looks by itself.
    """

    recovered: dict[QueueKey, RecoveredUnits]
    log_end: LogEnd | None = None
    is_log_end_known: bool = False


class StoreEnds:
    """Where one store ends.

    The files of a store that was closed show its ends. For any other store, the log is read as a
    recovery would read it.

    Args:
        paths: paths of the store.
        config: configuration of its broker.
        log: its CommitLog.
        ignore_log_end: read the files to their ends, as if the store had been closed.
        planned: what another process has found of the same store; None to look here.
    """

    def __init__(
        self,
        paths: StorePaths,
        config: BrokerConfig,
        log: CommitLog,
        *,
        ignore_log_end: bool,
        planned: PlannedEnds | None = None,
    ) -> None:
        self._paths = paths
        self._config = config
        self._log = log
        self.ignores_log_end = ignore_log_end
        self.after_end = RecordsAfter(0, 0)  # once ``log_end`` was looked for
        self._found: dict[str, Any] = {}
        if planned is not None:
            self._found["recovered"] = planned.recovered
            if planned.is_log_end_known:
                self._found["log_end"] = planned.log_end

    @property
    def were_of_closed_store(self) -> bool:
        """Whether the files themselves show the ends; they may not, once a writer has the store."""
        return not self.ignores_log_end and self.log_end is None

    def refresh(self) -> None:
        """List the files of the log again. The cached ends do not change."""
        self._paths.storage.refresh()
        self._log.refresh()

    def forget(self) -> None:
        """Drop the cached ends, because another process has repaired the store."""
        self._found = {}

    def _once(self, name: str, find: Callable[[], T]) -> T:
        """Return what is looked for on first use, and kept until :meth:`forget`."""
        found = self._found  # what another thread forgets meanwhile is not kept
        if name not in found:
            found[name] = find()
        return found[name]  # type: ignore[no-any-return]

    def replace_log_end(self, log_end: LogEnd) -> None:
        """Set the end that a later walk of the log has shown."""
        self._found["log_end"] = log_end

    @property
    def log_end(self) -> LogEnd | None:
        """The end of the log of a store with an ``abort`` file; None if the store was closed."""
        return self._once("log_end", lambda: retry(self._find_log_end, Deletions(self)))

    def _find_log_end(self) -> LogEnd | None:
        if self.ignores_log_end or not self._paths.has_abort:
            return None
        append_start = read_intent(self._paths)
        scanned = find_log_end(self._log, self._checkpoint())
        # Records after the end are not lost if a running broker wrote them, or an append of ours
        # that was not committed.
        state = state_of(self._paths)
        of_state = STATES[state]
        is_running = state == OPEN
        if is_running and scanned.reason:
            scanned = self._after_refused(scanned)
        end = before_blank_of(self._log, scanned)
        if not is_running and append_start != end.physical_offset:
            # Stale records may stand in a blank.
            self.after_end = RecordsAfter(*count_after(self._log, scanned))
        if self.after_end.n_records:
            logger.warning(
                "%s: %s; its log ends at physical offset %d: %s. "
                "%d records of %d bytes follow, which a broker that starts drops; %s",
                end.path, of_state, end.physical_offset, end.reason or "nothing was written there",
                *self.after_end, rendered(READS_AFTER_END),
            )  # fmt: skip
        elif end.reason:
            logger.warning(
                "%s: %s; its log ends at physical offset %d; "
                "the %d bytes after it are not messages: %s",
                end.path, of_state, end.physical_offset, end.bytes_behind, end.reason,
            )  # fmt: skip
        return end

    def _after_refused(self, end: LogEnd) -> LogEnd:
        """Return the end of a running broker's log, which continues after a refused record.

        The broker has put records after it into queues since it was started.
        """
        physical_offset, queues_end = self._last_in_queues()
        if queues_end <= end.physical_offset:
            return end
        try:
            stored = self._log.store_timestamp(physical_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return end
        if stored < BrokerRun.of(self._paths).started_ms:
            return end  # a unit of before a recovery
        logger.warning(
            "%s: a broker that starts ends the log at physical offset %d (%s); the running one "
            "has gone on, and what follows is read",
            end.path, end.physical_offset, end.reason,
        )  # fmt: skip
        later = find_end_from(self._log, queues_end)
        return later._replace(scanned_from=end.scanned_from)

    def end_of_records(self) -> int:
        """Return the physical offset after the last record; of a closed store it is looked for."""
        end = self.log_end
        return find_written_end(self._log) if end is None else end.physical_offset

    def log_slice(self) -> LogSlice:
        """Return the range of the log up to its end; for a closed store, up to its last byte."""
        end = self.log_end
        last = self._log.max_offset if end is None else end.physical_offset
        return LogSlice(self._log.min_offset, last, is_closed=end is None)

    def index_flushed_until(self) -> int:
        """Return the store time, ms, up to which index files are known to be on the disk.

        A broker that starts deletes index files with later records.

        Source: IndexService.java#load.
        """
        if state_of(self._paths) != NOT_CLOSED:
            return FOREVER  # the store was closed, or its broker runs: all writes can be read
        return read_checkpoint(self._paths).index_msg_timestamp

    @property
    def _rocksdb(self) -> _Opened:
        return self._once("rocksdb", self._open_rocksdb)

    def _open_rocksdb(self) -> _Opened:
        try:
            return RocksDbQueues.of(self._paths)
        except (CorruptDatabaseError, UnsupportedFeatureError) as err:
            return err

    @property
    def in_rocksdb(self) -> RocksDbQueues | None:
        """The queues in RocksDB, to which :attr:`recovered` adds the missing units.

        None if there are none, or if they cannot be read.
        """
        opened = self._rocksdb
        return opened if isinstance(opened, RocksDbQueues) else None

    @property
    def why_unread(self) -> CorruptDatabaseError | UnsupportedFeatureError | None:
        """Why queues in RocksDB cannot be read; None if they can, or if there are none."""
        opened = self._rocksdb
        return None if isinstance(opened, RocksDbQueues) else opened

    @property
    def rocksdb_damage(self) -> CorruptDatabaseError | None:
        """The damage because of which queues in RocksDB cannot be read."""
        opened = self._rocksdb
        return opened if isinstance(opened, CorruptDatabaseError) else None

    def leave_out_rocksdb(self, why: CorruptDatabaseError) -> None:
        """Take the queues in RocksDB for damaged: a part of them could not be read."""
        self._found["rocksdb"] = why

    @property
    def are_queues_unread(self) -> bool:
        """Whether all queues are such ones, and the log is not read for them.

        Source: CombineConsumeQueueStore.java, which keeps both kinds.
        """
        is_unread = isinstance(self.why_unread, UnsupportedFeatureError)
        return is_unread and not self._paths.queue_folders.topics()

    @property
    def recovered(self) -> dict[QueueKey, RecoveredUnits]:
        """The ends of queues that only the log has, after a crash or in a copy of a running store.

        Another process can be given them: see :func:`recovered_within`.
        """
        return self._once("recovered", lambda: self._recovered_queues.tails)

    def lost(self, slices: Iterable[QueueSlice] = ()) -> list[LostSpan]:
        """Return the unreadable parts of the log that may have held messages of recovered queues.

        Args:
            slices: ranges of queues that are read; parts that their units point at are left out,
                because the read itself meets them.
        """
        lost = self._recovered_queues.lost
        if not lost:
            return []
        starts = [span.start for span in lost]
        pointed_at: set[int] = set()
        for tail in recovered_within(self.recovered, slices).values():
            physical_offsets = tail.units["physical_offset"].astype(np.int64)
            matches = physical_offsets[np.isin(physical_offsets, starts)]
            pointed_at.update(np.unique(matches).tolist())
        return [span for span in lost if span.start not in pointed_at]

    @property
    def _recovered_queues(self) -> RecoveredQueues:
        return self._once("queues", lambda: retry(self._recover_queues, Deletions(self)))

    def _recover_queues(self) -> RecoveredQueues:
        if self.are_queues_unread:
            return RecoveredQueues({})
        known_topics = self._config.known_topic_entries()
        batch_topics = batch_topics_of(known_topics)
        since = committed_since(self._paths)
        in_rocksdb = self.in_rocksdb
        is_damaged = self.rocksdb_damage is not None

        def open_queue(topic: str, queue_id: int) -> OpenedQueue | None:
            if in_rocksdb is None and not can_have_queue(topic, queue_id):
                return None
            is_batch = topic in batch_topics
            queue = open_files(
                self._paths,
                topic,
                queue_id,
                is_batch=is_batch,
                in_rocksdb=in_rocksdb,
                log=self._log,
            )
            if not queue.is_present and self.why_unread is not None:  # it may be in the database
                return OpenedQueue(queue) if is_damaged else None
            if queue.is_present or not was_deleted(topic, known_topics):
                return OpenedQueue(queue, has_keys=in_rocksdb is not None)
            # The topic was deleted, unless an append of ours was killed: it enters its topics in
            # topics.json only after it has built their queues.
            return None if since is None else OpenedQueue(queue, since, in_rocksdb is not None)

        if self._paths.has_abort:
            end = self._end_in_queues()
            end = end._replace(scanned_from=min(end.scanned_from, self._built_until()))
            return recover_crashed(self._log, end, open_queue, self._rules())
        built_until = FOREVER if in_rocksdb is None else in_rocksdb.checkpoint
        if is_damaged:
            built_until = 0
        newest = NewestRecords(self._paths)
        is_built = newest.are_built(open_queue, built_until)
        if is_built and not newest.have_lost_queue(known_topics, in_rocksdb):
            return RecoveredQueues({})
        end = self._scanned_end()
        _, queues_end = self._last_in_queues()
        return recover_closed(self._log, end, open_queue, self._rules(), queues_end)

    def _end_in_queues(self) -> LogEnd:
        """Return up to where the log of a store with an ``abort`` file has messages of queues.

        It is the end of the log, or of what was written if the end is ignored.
        """
        if not self.ignores_log_end:
            return self.log_end or before_blank_of(self._log, self._scanned_end())
        scanned = find_log_end(self._log, self._checkpoint())
        end = before_blank_of(self._log, scanned)
        written = written_end(self._log)
        if written <= scanned.physical_offset:
            return end
        if scanned.is_stale_after and self._last_in_queues()[1] <= scanned.physical_offset:
            return end
        return end._replace(physical_offset=written)

    def _built_until(self) -> int:
        """Return the start of the first file of the log whose queues may not be on the disk.

        ``FOREVER`` if the checkpoint of the broker shows it.
        """
        if is_folder(self._paths.storage, self._paths.own.replaced_queues):
            return self._log.min_offset  # all queues are being built
        if self.in_rocksdb is None:
            return FOREVER
        # A broker flushes queues there late, but says how late.
        flushed = self._log.find(max(self.in_rocksdb.checkpoint, self._log.min_offset))
        return self._log.min_offset if flushed is None else flushed.start

    def _rules(self) -> DispatchRules:
        levels = find_delay_levels(self._paths, self._log, self.in_rocksdb)
        return DispatchRules(delay_levels=levels.delays)

    def _checkpoint(self) -> Checkpoint:
        """Return what a recovery goes by: where the queues end, if they are in RocksDB.

        Queues that are in files as well do not reach further then. If the database has a folder of
        its own, the broker goes by the files first, and begins where both are on the disk.

        Source: CommitLog.java, CombineConsumeQueueStore.java#isMappedFileMatchedRecover.
        """
        checkpoint, in_rocksdb = read_checkpoint(self._paths), self.in_rocksdb
        if in_rocksdb is None or checkpoint.logics_phy_offset:
            return checkpoint
        by_rocksdb = checkpoint._replace(logics_phy_offset=in_rocksdb.checkpoint)
        if not self._paths.queue_folders.topics():
            return by_rocksdb
        if self._paths.rocksdb_queues != self._paths.consumequeue:
            return min(checkpoint, by_rocksdb, key=lambda each: scan_start(self._log, each))
        is_behind = self._last_in_queues()[0] > in_rocksdb.checkpoint
        return checkpoint if is_behind else by_rocksdb

    def _scanned_end(self) -> LogEnd:
        return find_log_end(self._log, Checkpoint.all_safe())

    def _last_in_queues(self) -> tuple[int, int]:
        """Return the bounds of the last record that files of queues point at, or (-1, -1).

        Both are physical offsets.
        """
        last = -1, -1
        in_rocksdb = self.in_rocksdb
        keys = {*self._paths.queue_folders.queues(), *self._paths.batch_folders.queues()}
        keys |= set() if in_rocksdb is None else in_rocksdb.bounds.keys()
        for key in keys:
            opened = open_files(self._paths, *key, in_rocksdb=in_rocksdb, log=self._log)
            with closing(opened) as queue:
                end = queue.end()
                last = max(
                    last, (queue.unit(end - 1)[0], records_end(queue, end)), key=itemgetter(1)
                )
        return last


def recovered_within(
    recovered: Mapping[QueueKey, RecoveredUnits], slices: Iterable[QueueSlice]
) -> dict[QueueKey, RecoveredUnits]:
    """Return the part of :attr:`StoreEnds.recovered` that is needed to read ranges of queues."""
    if not recovered:
        return {}
    bounds: dict[QueueKey, tuple[int, int]] = {}
    for queue_slice in slices:
        key = (queue_slice.topic, queue_slice.queue_id)
        start, end = bounds.get(key, (queue_slice.start, queue_slice.end))
        bounds[key] = min(start, queue_slice.start), max(end, queue_slice.end)
    tails: dict[QueueKey, RecoveredUnits] = {}
    for key, (start, end) in bounds.items():
        tail = recovered.get(key)
        if tail is not None and end > tail.start:
            first = max(start, tail.start)
            units = tail.units[first - tail.start : end - tail.start]
            tails[key] = tail._replace(start=first, units=units)
    return tails
