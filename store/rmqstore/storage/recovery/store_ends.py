"""Where a store ends: its log, and its queues where only the log tells.

Found when first asked for, then kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

from rmqstore.errors import CorruptConfigError
from rmqstore.format.topics import is_system_topic
from rmqstore.spans import FOREVER, LogSlice, LostStretch, QueueKey, QueueSlice
from rmqstore.storage.broker.checkpoint import Checkpoint, read_checkpoint
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths, can_name_queues
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.log.append_intent import committed_since, read_intent
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import reach
from rmqstore.storage.queue.queue_set import open_files
from rmqstore.storage.queue.units import RecoveredUnits
from rmqstore.storage.recovery.log_end import LogEnd, count_after, find_log_end
from rmqstore.storage.recovery.queue_tails import (
    OpenedQueue,
    RecoveredQueues,
    is_newest_built,
    recover_closed,
    recover_crashed,
)

logger = logging.getLogger(__name__)


class StoreEnds:
    """Where one store ends.

    Of a store that was closed, its files tell; else its log is read as a recovery would.

    Args:
        paths: of the store.
        config: of its broker.
        log: its CommitLog.
        ignore_log_end: take files for all that there is, as if the store had been closed.
    """

    def __init__(
        self, paths: StorePaths, config: BrokerConfig, log: CommitLog, *, ignore_log_end: bool
    ) -> None:
        self._paths, self._config, self._log, self._ignore_log_end = (
            paths,
            config,
            log,
            ignore_log_end,
        )

    def refresh(self) -> None:
        """List the files of the log again. Where it ends stays as it was found."""
        self._log.refresh()

    def forget(self) -> None:
        """Find everything again: another process has repaired the store."""
        for name in ("log_end", "_recovered_queues", "recovered"):
            self.__dict__.pop(name, None)

    def take(self, log_end: LogEnd | None, recovered: dict[QueueKey, RecoveredUnits]) -> None:
        """Take what another process has found of the same store."""
        self.log_end, self.recovered = log_end, recovered

    @cached_property
    def log_end(self) -> LogEnd | None:
        """Where the log ends, if the store was not closed (it has an ``abort`` file); None for a closed one."""
        return self._find_log_end()

    @retry_if_deleted
    def _find_log_end(self) -> LogEnd | None:
        if self._ignore_log_end or not self._paths.has_abort:
            return None
        end = find_log_end(self._log, read_checkpoint(self._paths))
        if end.reason:
            logger.warning(
                "%s: the store was not closed; its log ends at physical offset %d; "
                "the %d bytes after it are not messages: %s",
                end.path, end.physical_offset, end.bytes_behind, end.reason,
            )  # fmt: skip
        # What a running broker, or an append of ours that was not committed, has written there is
        # not lost.
        if (
            not self._paths.storage.is_locked(self._paths.lock)
            and read_intent(self._paths) != end.physical_offset
        ):
            self._warn_of_records_after(end)
        return end

    def _warn_of_records_after(self, end: LogEnd) -> None:
        n_records, n_bytes = count_after(self._log, end)
        if n_records:
            logger.warning(
                "%s: %d records of %d bytes follow the end of the log at %d; a broker that starts drops them; "
                "ignore_log_end=True with mode=DROPMALFORMED reads them",
                end.path, n_records, n_bytes, end.physical_offset,
            )  # fmt: skip

    def of_records(self) -> int | None:
        """Return the physical offset after the last record; None for a store that was closed, whose bytes tell."""
        return None if self.log_end is None else self.log_end.physical_offset

    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records: up to its end, or to its last byte in a closed store."""
        end = self.of_records()
        return LogSlice(
            self._log.min_offset,
            self._log.max_offset if end is None else end,
            is_closed=end is None,
        )

    def index_flushed_until(self) -> int:
        """Return until when, in ms, what index files hold was on disk: a broker that starts deletes the others.

        Source: IndexService.java#load.
        """
        if not self._paths.has_abort or self._paths.storage.is_locked(self._paths.lock):
            return FOREVER  # closed, or running: what it has written is seen
        return read_checkpoint(self._paths).index_msg_timestamp

    @cached_property
    def recovered(self) -> dict[QueueKey, RecoveredUnits]:
        """The ends of queues that their files lack and the log has: of a store that crashed, or was copied in haste.

        May be set, to what was found before: see :meth:`recovered_in`.
        """
        return self._recovered_queues.tails

    @cached_property
    def _recovered_queues(self) -> RecoveredQueues:
        return self._recover_queues()

    def lost(self, slices: Iterable[QueueSlice] = ()) -> list[LostStretch]:
        """Return the parts of the log that queues were to be recovered from and that cannot be read.

        Args:
            slices: ranges of queues that are read; what their own units point at is left out.
        """
        lost = self._recovered_queues.lost
        if not lost:
            return []
        starts, told = [stretch.start for stretch in lost], set[int]()
        for tail in self.recovered_in(slices).values():
            places = tail.units["physical_offset"].astype(np.int64)
            told.update(np.unique(places[np.isin(places, starts)]).tolist())
        return [stretch for stretch in lost if stretch.start not in told]

    @retry_if_deleted
    def _recover_queues(self) -> RecoveredQueues:
        was_closed = self._ignore_log_end or not self._paths.has_abort
        if self._paths.has_rocksdb_queues:
            return RecoveredQueues({})
        in_batches, known = (
            self._of_topics_json(self._config.batch_topics),
            self._of_topics_json(self._config.topics),
        )

        since = committed_since(self._paths)

        def files_of(topic: str, queue_id: int) -> OpenedQueue | None:
            if not can_name_queues(topic):
                return None
            queue = open_files(self._paths, topic, queue_id, is_batch=topic in in_batches)
            # A topic with neither files nor an entry in a topics.json that has others was deleted:
            # it stays so. But not that of an append of ours: it enters its topics when their queues
            # are built.
            if not queue.is_present and known and topic not in known and not is_system_topic(topic):
                return None if since is None else OpenedQueue(queue, since)
            return OpenedQueue(queue)

        if not was_closed:
            return recover_crashed(
                self._log, self.log_end or find_log_end(self._log, Checkpoint.all_safe()), files_of
            )
        if is_newest_built(self._log, files_of):
            return RecoveredQueues({})
        return recover_closed(
            self._log, find_log_end(self._log, Checkpoint.all_safe()), files_of, self._end_of_files
        )

    def _end_of_files(self) -> int:
        """Return the physical offset after the last record that the files of a queue point at, -1 without queues."""
        reached = -1
        for key in (*self._paths.queues(), *self._paths.batch_queues()):
            queue = open_files(self._paths, *key)
            reached = max(reached, reach(queue, queue.end()))
            queue.close()
        return reached

    def _of_topics_json(self, ask: Callable[[], list[str]]) -> set[str]:
        try:
            return {*ask()}
        except CorruptConfigError as err:
            logger.warning("%s; going on as if the broker knew no topics", err)
            return set()

    def recovered_in(self, slices: Iterable[QueueSlice]) -> dict[QueueKey, RecoveredUnits]:
        """Return of :attr:`recovered` what reading these slices needs, to be given to another process."""
        bounds: dict[QueueKey, tuple[int, int]] = {}
        for piece in slices:
            start, end = bounds.get((piece.topic, piece.queue_id), (piece.start, piece.end))
            bounds[piece.topic, piece.queue_id] = min(start, piece.start), max(end, piece.end)
        found: dict[QueueKey, RecoveredUnits] = {}
        for key, (start, end) in bounds.items():
            tail = self.recovered.get(key)
            if tail is not None and end > tail.start:
                begun = max(start, tail.start)
                found[key] = tail._replace(
                    start=begun, units=tail.units[begun - tail.start : end - tail.start]
                )
        return found
