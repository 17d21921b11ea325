"""Repairs a store that is opened for writing, however it was left.

The log ends where a broker's recovery would end it. Unlike a broker, the repair loses no unit and
no key: every record of the valid log is in its queue and in the index. What is cut from the log is
kept under ``.rmqstore/cut``. Readers find the same end in memory (``storage.recovery``).

Source: DefaultMessageStore.java#load, #recover; CommitLog.java#recoverNormally, #recoverAbnormally.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import READS_AFTER_END, CorruptRecordError, Finding, StoreLockedError
from rmqstore.format.topics import was_deleted
from rmqstore.progress import Progress, ignore_progress
from rmqstore.storage.broker.broker_run import Checkpoint, read_checkpoint
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.store_config import StoreConfig, named_size
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths, can_have_queue, our_abort
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.index_files import IndexSizes, index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog, read_frame
from rmqstore.storage.log.walks import next_record
from rmqstore.storage.log.writer_notes import read_clean_end, read_intent
from rmqstore.storage.recovery.log_end import (
    LogEnd,
    before_blank_of,
    before_our_blank,
    end_in_last_files,
    find_log_end,
    is_damaged_at,
    is_whole_between,
    last_record_before,
    scan_start,
    written_end,
)
from rmqstore.storage.recovery.queue_tails import NewestRecords, OpenedQueue
from rmqstore.write.dispatch import Dispatcher
from rmqstore.write.existing_store import fit_log_files, plan_sizes
from rmqstore.write.queue_files import (
    QueueFiles,
    known_batch_topics,
    restore_queues,
    topics_set_aside,
)
from rmqstore.write.truncation import (
    DELETED,
    MOVED,
    LeftOpen,
    LogChange,
    plan_truncation,
    truncate_log,
)

logger = logging.getLogger(__name__)

_FEW_QUEUES = 256
_QUEUE_SIZES = ("mapped_file_size_consume_queue", "mapper_file_size_batch_consume_queue")
_SHORT_LOG = 64 << 20  # bytes; their index is built in about a second


class Repaired(NamedTuple):
    """The state of a store that may be appended to."""

    end: int  # physical offset of the log end
    last_store_timestamp: int  # ms, 0 if the log has no records
    checkpoint: Checkpoint


class LogCut(NamedTuple):
    """The end of a log, and how it was found.

    Attributes:
        end: the end.
        is_noted: whether our last writer noted it and the bytes of the log prove it.
        is_our_own: whether what follows is an append of ours that was not completed.
    """

    end: LogEnd
    is_noted: bool = False
    is_our_own: bool = False


class Repairer:
    """Brings the log, the queues and the index of one store into agreement.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        config: sizes of new files.
        log: the log of the store.
        truncate: cut the log at damage even if good records follow it.
        check_log: walk the end of the log and look at every queue, even if our last writer
            noted where the log ends.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        config: StoreConfig,
        log: CommitLog,
        *,
        truncate: bool = False,
        check_log: bool = False,
    ) -> None:
        self._truncates = truncate
        self._is_checked = check_log or truncate
        self._disk = disk
        self._paths = paths
        self._config = config
        self._log = log
        self.queues = QueueFiles(disk, paths, log, config, known_batch_topics(paths))
        # a recovery whose scan begins at this physical offset, or later, gets to the log end
        self._valid_from = log.max_offset

    def repair(self) -> Repaired:
        """Repair a store that was not closed cleanly; else do nothing.

        Raises:
            CorruptRecordError: good records follow damage of the log, and ``truncate`` is not set.
            StoreStateError: as :func:`fit_log_files` does.
        """
        was_closed = not self._paths.has_abort
        checkpoint = read_checkpoint(self._paths)
        plan_sizes(self._paths, self._log)  # it refuses before anything is changed
        end, is_noted = self._cut_log()
        fit_log_files(self._disk, self._paths, self._log)
        is_rebuilding = is_folder(LOCAL, self._paths.own.replaced_queues)
        if not was_closed:
            self._ask_for_recovery(self._log.min_offset, checkpoint, end)
        # A few queues are looked at one by one, which costs little. Of many, those that are written
        # to are looked at when they are opened. If the log had lost its end, units of other queues
        # would lead to the records that are written there next.
        known_until = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
        has_its_end = not end.reason and end.last_store_timestamp >= known_until
        is_trusted = is_noted or (
            has_its_end and any(count > _FEW_QUEUES for count in accumulate(self.queues.numbers()))
        )
        log_end = end.physical_offset

        def open_queue(topic: str, queue_id: int) -> OpenedQueue | None:
            if not can_have_queue(topic, queue_id):
                return None
            return OpenedQueue(self.queues.files(topic, queue_id))

        # Queues are built in the order of the log: if the newest record has its unit, all have.
        is_looked_up = was_closed and not self._is_checked and is_trusted
        newest = NewestRecords(self._paths) if was_closed else None
        if newest is not None and is_looked_up and newest.are_built(open_queue):
            self.queues.check_when_opened(log_end)
            queues_end = log_end
        else:
            safe_until = self._log.min_offset if is_rebuilding else end.scanned_from
            left_open = None if was_closed else LeftOpen(self._log, safe_until)
            queues_end = self.queues.cut(log_end, left_open)
        if newest is not None and newest.have_lost_queue(BrokerConfig(self._paths).topics()):
            queues_end = self._log.min_offset  # a queue that is lost is built from there on
        self._build_missing(end, queues_end, checkpoint, was_closed=was_closed)
        if is_folder(LOCAL, self._paths.own.replaced_queues):
            restore_queues(self._disk, self._paths, self._log)
        if is_folder(LOCAL, self._paths.own.new_log):
            self._disk.delete_tree(self._paths.own.new_log)
        self._disk.delete(self._paths.own.append_intent)
        return Repaired(log_end, end.last_store_timestamp, checkpoint)

    def _cut_log(self) -> tuple[LogEnd, bool]:
        """Find the end of the log, and remove the bytes after it; the first step of a repair.

        Returns:
            The end, and whether our last writer noted it and the bytes of the log prove it.

        Raises:
            CorruptRecordError: as :meth:`repair` does.
        """
        cut = self.plan_cut()
        if LOCAL.exists(self._paths.own.clean_end):
            # The note is removed before anything is changed. A note that outlived a crash, after
            # which a broker recovered the store, would hide what the recovery left after the end.
            self._disk.delete(self._paths.own.clean_end)
            self._disk.flush_folder(self._paths.own.folder)
        if not cut.is_noted:
            copies = None if cut.is_our_own else self._paths.own.folder / "cut"
            truncate_log(self._disk, self._log, cut.end, copies)
            self._valid_from = cut.end.scanned_from
        return cut.end, cut.is_noted

    def plan_cut(self) -> LogCut:
        """Return where the log ends. Nothing is changed.

        Raises:
            CorruptRecordError: as :meth:`repair` does.
        """
        was_closed = not self._paths.has_abort
        # where an append of ours began that was not completed
        append_start = read_intent(self._paths)
        is_rebuilding = is_folder(LOCAL, self._paths.own.replaced_queues)
        may_be_noted = was_closed and append_start is None and not is_rebuilding
        if may_be_noted and not self._is_checked:
            noted = read_clean_end(self._paths, self._log)
            if noted is not None:
                end = LogEnd(noted.physical_offset, "", "", 0, noted.last_store_timestamp)
                return LogCut(end, is_noted=True)
        scanned_by = Checkpoint.all_safe() if was_closed else read_checkpoint(self._paths)
        end = before_our_blank(self._log, find_log_end(self._log, scanned_by), append_start)
        # When it is repaired, the store is closed, and after a cut other files are the last ones.
        by_files = end_in_last_files(self._log, self._paths, end.scanned_from)
        while by_files is not None and by_files.physical_offset < end.physical_offset:
            end = by_files._replace(reason=by_files.reason or "nothing was written there")
            by_files = end_in_last_files(
                self._log, self._paths, end.scanned_from, end.physical_offset
            )
        # A copy of what lies after the log end is kept unless it is an append of ours.
        is_our_own = append_start == end.physical_offset
        if (end.reason or was_closed) and not is_our_own:
            self._require_no_records_after(end, was_closed=was_closed)
        return LogCut(end, is_our_own=is_our_own)

    def _build_missing(
        self, end: LogEnd, queues_end: int, checkpoint: Checkpoint, *, was_closed: bool
    ) -> None:
        """Build the units and the index items that records before the log end lack.

        Items are built in the order of the log, so an index file in the middle cannot be built
        again alone: with one that the checkpoint does not cover, all later ones are.

        Source: IndexService.java#load.
        """
        log_end = end.physical_offset
        outdated: list[Path] = []
        index_end = -1
        files = index_files(self._paths.index)
        size = IndexSizes.of(self._config).file_size
        for path in files:
            header = read_header(path)
            stored_until = header["end_timestamp"]
            record_end = header["end_phy_offset"]
            is_late = not was_closed and stored_until > checkpoint.index_msg_timestamp
            is_late |= LOCAL.size(path) != size
            if outdated or is_late or record_end >= max(log_end, 1) or stored_until == 0:
                outdated.append(path)
            else:
                index_end = int(record_end)
        is_trusted = bool(files) and not outdated
        if not files and was_closed and log_end - self._log.min_offset > _SHORT_LOG:
            logger.warning(
                "%s: there is no index; keys are added from here on, `rmqstore rebuild` adds all",
                self._paths.index,
            )
            is_trusted = True
        if not self._config.message_index_enable or is_trusted:
            # nothing is missing, as far as one can see without reading the log
            index_end = log_end
        start = self._log.min_offset
        if was_closed:
            start = max(min(queues_end, index_end), start)
            if outdated or start < log_end:
                self._ask_for_recovery(start, checkpoint, end)
        for path in outdated:
            logger.info(
                "%s or a file before it is newer than the checkpoint or the log, or has a wrong "
                "length; it is built again",
                path,
            )
            self._disk.delete(path)
        if start < log_end:
            before = self._topics_with_queues()
            self._dispatch(start, log_end)
            self._name_returned(before)

    def _require_no_records_after(self, end: LogEnd, *, was_closed: bool) -> None:
        segment = self._log.find(end.physical_offset)
        if segment is None or written_end(self._log) <= end.physical_offset:  # nothing follows
            return
        if was_closed and not is_damaged_at(self._log, end, self.queues.end()):
            return
        follows = self._find_record(segment, end.physical_offset + 1)
        if follows is None and self._log.segments[-1].start > segment.start:
            later = next(other for other in self._log.segments if other.start > segment.start)
            follows = self._find_record(later, later.start)
        if follows is not None and not self._truncates:
            raise CorruptRecordError(
                end.path,
                end.physical_offset,
                f"{end.reason}; good records follow at {follows}, which would be cut off, as "
                f"a broker may do: copy them out first ({READS_AFTER_END}; so does "
                "rmqstore export --ignore-log-end --mode DROPMALFORMED --all --where "
                f"'commitLogOffset >= {end.physical_offset}'), then run rmqstore rebuild "
                "--truncate, which keeps a copy of what it cuts (in Python truncate=True)",
            )

    def _find_record(self, segment: Segment, start: int) -> int | None:
        """Return where the first valid record of a file from ``start`` on begins, or None."""
        physical_offset = next_record(self._log, segment, start, segment.end)
        return physical_offset if physical_offset < segment.end else None

    def _ask_for_recovery(self, start: int, checkpoint: Checkpoint, end: LogEnd) -> None:
        """Make whoever finds this repair unfinished build queues and index again.

        It has to begin at ``start`` at the latest. A queue that is half built would mislead the
        broker: it puts the units of the records that its recovery reads after those that are there,
        whatever their queue offsets. But its recovery must not meet damage, where it would cut the
        log. Queues can be built again; records cannot. The folder of a rebuild says it to us.
        """
        of_first_file = checkpoint._replace(physic_msg_timestamp=0, logics_msg_timestamp=0)
        for candidate in (checkpoint, of_first_file):
            # as brokers before 5.5 do; for later ones the checkpoint is made to lead there
            by_times = candidate._replace(logics_phy_offset=0)
            scanned_from = scan_start(self._log, by_times)
            if scanned_from > start:
                continue
            if self._is_valid_from(scanned_from):
                self._leave_open(candidate.recovered_from(scanned_from))
                return
            break
        self._disk.make_folder(self._paths.own.replaced_queues)
        newest = max(end.last_store_timestamp, checkpoint.physic_msg_timestamp)
        at_end = checkpoint._replace(physic_msg_timestamp=newest, logics_msg_timestamp=newest)
        self._leave_open(checkpoint if self._paths.has_abort else at_end)

    def _leave_open(self, checkpoint: Checkpoint) -> None:
        """Mark the store as open until the repair is done."""
        self._disk.replace(self._paths.checkpoint, checkpoint.stored())
        if not self._paths.has_abort:
            # The note of an append that a closed store still has is older than its closing.
            self._disk.delete(self._paths.own.append_intent)
            self._disk.replace(self._paths.abort, our_abort())

    def is_valid(self) -> bool:
        """Return whether a recovery from the first file of the log gets to its end."""
        return self._is_valid_from(self._log.min_offset)

    def _is_valid_from(self, start: int) -> bool:
        """Return whether a recovery from the start of a file gets to the end of the log.

        What was scanned to find the end is not read again, and what was appended since is our own.
        """
        if not is_whole_between(self._log, start, self._valid_from):
            return False
        self._valid_from = min(self._valid_from, start)
        return True

    def _dispatch(
        self, start: int, end: int, progress: Progress = ignore_progress
    ) -> list[Finding]:
        """Build the missing units and items.

        A queue whose files do not fit the log is built again from the log. So is one without files
        of a topic whose records show only now that its queues are BatchConsumeQueues.

        Returns:
            What could not be built.
        """
        while True:
            dispatcher = Dispatcher(
                self._disk,
                self._log,
                self._paths.index,
                self._config,
                self.queues.appender,
                self.queues.batch_topics,
                is_tolerant=True,
            )
            dispatcher.dispatch(start, end, progress)
            dispatcher.flush()
            has_new_kind = self.queues.turn_into_batches(dispatcher.inner_batches)
            if not dispatcher.mismatches and not has_new_kind:
                break
            for err in dispatcher.mismatches.values():
                logger.warning("%s; the queue is built again from the log", err)
                self.queues.empty(Path(err.path))
            start = self._log.min_offset
        for finding in dispatcher.findings:
            logger.warning("%s %s: %s", finding.part, finding.place, finding.text)
        return dispatcher.findings

    def rebuild(self, end: int, progress: Progress) -> list[Finding]:
        """Build queues and index again from the log alone, up to ``end``.

        A repair completes a rebuild that was interrupted. A queue stays as it was if the log holds
        none of its records any more, because only its files show its next queue offset.

        Returns:
            What could not be built.
        """
        findings: list[Finding] = []
        for path in index_files(self._paths.index):
            self._disk.delete(path)
        self.queues.set_aside()
        sizes = {name: named_size(self._paths.settings, name) for name in _QUEUE_SIZES}
        named = {name: size for name, size in sizes.items() if size is not None}
        config = replace(self._config, **named)  # type: ignore[arg-type]  # sizes all of them
        self.queues = QueueFiles(
            self._disk, self._paths, self._log, config, self.queues.batch_topics
        )
        if self._log.min_offset < end:
            findings = self._dispatch(self._log.min_offset, end, progress)
        self._name_returned({*chain(*topics_set_aside(self._paths))})
        return [*findings, *restore_queues(self._disk, self._paths, self._log)]

    def _topics_with_queues(self) -> set[str]:
        return {*self._paths.queue_folders.topics(), *self._paths.batch_folders.topics()}

    def _name_returned(self, before: set[str]) -> None:
        """Log which topics have queues again that had neither queues ``before`` nor an entry."""
        known = {*BrokerConfig(self._paths).topics()}
        built = self._topics_with_queues() - before
        returned = sorted(topic for topic in built if was_deleted(topic, known))
        if returned:
            logger.warning(
                "%s: topics that were in neither queues nor topics.json, as after they were "
                "deleted, have queues again from what the log has of them: %s",
                self._paths.root, ", ".join(returned),
            )  # fmt: skip


class RebuildPlan(NamedTuple):
    """What a rebuild would change.

    Attributes:
        root: the store.
        log_start: physical offset of the first file of the log.
        log_end: physical offset after the last record.
        reason: why the log ends there; "" for a valid end.
        log_changes: the changes of files of the log.
        n_queues: queues that are built again; here those that have files.
        n_queue_files: their files, which are replaced.
        n_index_files: index files that are replaced.
    """

    root: Path
    log_start: int
    log_end: int
    reason: str
    log_changes: tuple[LogChange, ...]
    n_queues: int
    n_queue_files: int
    n_index_files: int

    def lines(self) -> list[str]:
        """Return the plan in words."""
        reason = f" ({self.reason})" if self.reason else ""
        built = (
            f"{self.n_queue_files:,} files of {self.n_queues:,} queues and "
            f"{self.n_index_files:,} index files are built again from the log"
        )
        if self.log_start == self.log_end and (self.n_queue_files or self.n_index_files):
            built = (
                f"the log has no record to build from: of {self.n_queues:,} queues all units that "
                f"lead to {self.log_end:,} or later are removed, and {self.n_index_files:,} index "
                "files; put the files of the log back first if there are any"
            )
        return [
            f"{self.root}: the log reaches from {self.log_start:,} to {self.log_end:,}{reason}",
            *map(str, self.log_changes or ("no byte of the log changes",)),
            built,
            "records that can have no unit show in the rebuild itself, which then exits with 1",
            "it names topics that were deleted and have queues again",
        ]


def files_of_queues(paths: StorePaths) -> list[Path]:
    """Return the files of all queues."""
    folders = (paths.queue_folders, paths.batch_folders)
    return [file for kind in folders for topic in kind.topics() for file in kind.files(topic)]


def plan_rebuild(
    paths: StorePaths, config: StoreConfig | None = None, *, truncate: bool = False
) -> RebuildPlan:
    """Return what a rebuild of a store would change. Nothing is changed, and no lock is taken.

    Args:
        paths: the store, which a writer may open.
        config: sizes of new files.
        truncate: cut a damaged log even if good records follow.

    Raises:
        StoreLockedError: a broker or a writer has the store.
        CorruptRecordError: good records follow damage of the log, and ``truncate`` is not set.
    """
    if LOCAL.is_locked(paths.lock):
        raise StoreLockedError(f"{paths.lock}: a running broker or another writer has the store")
    with closing(CommitLog(paths.commitlogs)) as log:
        sizes = config or StoreConfig()
        cut = Repairer(Disk(), paths, sizes, log, truncate=truncate).plan_cut()
        changes = plan_truncation(log, cut.end, keeps_copies=not cut.is_our_own)
        gone = {change.path for change in changes if change.what in (DELETED, MOVED)}
        changes += [change for change in plan_sizes(paths, log) if change.path not in gone]
        min_offset = log.min_offset
        end = before_blank_of(log, cut.end)
        of_end = log.find(end.physical_offset)
        if of_end is not None and of_end.path in gone:  # the log ends with the file before it
            last = last_record_before(log, of_end.start)
            if last is not None:
                size, _ = read_frame(log, log.locate(last))
                end = end._replace(physical_offset=last + size)
    queue_files = files_of_queues(paths)
    return RebuildPlan(
        paths.root,
        min_offset,
        end.physical_offset,
        end.reason,
        tuple(changes),
        len({file.parent for file in queue_files}),
        len(queue_files),
        len(index_files(paths.index)),
    )
