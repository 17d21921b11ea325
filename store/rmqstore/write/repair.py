"""Repairs a store that is opened for writing, however it was left.

The log ends where a broker's recovery would end it. Unlike a broker, the repair loses no unit and
no key: every record of the valid log is in its queue and in the index. What is cut from the log is
kept under ``.rmqstore/cut``. Readers find the same end in memory (``storage.recovery``).

Source: DefaultMessageStore.java#load, #recover; CommitLog.java#recoverNormally, #recoverAbnormally.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmqstore.errors import CorruptRecordError
from rmqstore.findings import Finding
from rmqstore.format.columns.walk import StopKind, Walk
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.progress import Progress, ignore_progress
from rmqstore.storage.broker.checkpoint import Checkpoint, read_checkpoint
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths, our_abort
from rmqstore.storage.files.storage import StoredFile, is_folder
from rmqstore.storage.index.index_file import index_files, read_header
from rmqstore.storage.log.append_intent import read_intent
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import next_record, window_at
from rmqstore.storage.queue.appender import QueueAppender
from rmqstore.storage.queue.bounds import reach, sound_end, whole_end
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.recovery.log_end import (
    LogEnd,
    damage_at,
    find_log_end,
    is_whole_between,
    scan_start,
)
from rmqstore.write.dispatch import Dispatcher

logger = logging.getLogger(__name__)

_UNIT = QUEUE_UNIT.itemsize
_OFFSET_BYTES = QUEUE_UNIT["physical_offset"].itemsize
_BLOCK_BYTES = 8 << 20
_UNITS_AT_ONCE = 1 << 20


class Repaired(NamedTuple):
    """The state of a store that may be appended to."""

    end: int  # physical offset of the log end
    last_store_timestamp: int  # ms, 0 if the log has no records
    checkpoint: Checkpoint


class Repairer:
    """Brings the log, the queues and the index of one store into agreement.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        config: sizes of new files.
        log: the log of the store.
        truncate: cut the log at damage even if good records follow it.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        config: StoreConfig,
        log: CommitLog,
        *,
        truncate: bool = False,
    ) -> None:
        self._disk, self._paths, self._config, self._log = disk, paths, config, log
        self._truncate = truncate
        # a recovery that begins to scan here, or later, gets to the end of the log
        self._whole_from = log.max_offset
        self._cut_folder = paths.root / ".rmqstore" / "cut"
        # holds the old queues during a rebuild
        self._replaced = paths.root / ".rmqstore" / "replaced"

    def repair(self) -> Repaired:
        """Repair what the state of the store requires, which is nothing if it was closed cleanly.

        Raises:
            CorruptRecordError: the log is damaged, good records follow, and ``truncate`` is not
                set.
        """
        was_closed = not self._paths.has_abort
        checkpoint = read_checkpoint(self._paths)
        began_at = read_intent(self._paths)
        end = self._before_our_blank(
            find_log_end(self._log, Checkpoint.all_safe() if was_closed else checkpoint), began_at
        )
        is_our_own = began_at == end.physical_offset
        if end.reason and not is_our_own:
            self._require_no_records_behind(end, was_closed=was_closed)
        self._cut_log(end, keep_copy=not is_our_own)
        self._whole_from = end.scanned_from
        start = self._log.min_offset
        if not was_closed:
            self._ask_for_recovery(start, checkpoint)
        reached = self._cut_queues(end.physical_offset, was_closed=was_closed)
        outdated, indexed = self._outdated_index(
            end.physical_offset, None if was_closed else checkpoint
        )
        if was_closed:
            start = max(min(reached, indexed), start)
            if outdated or start < end.physical_offset:
                self._ask_for_recovery(start, checkpoint)
        for path in outdated:
            logger.info("%s is newer than the checkpoint or the log; it is built again", path)
            self._disk.delete(path)
        if start < end.physical_offset:
            self._dispatch(start, end.physical_offset)
        if is_folder(LOCAL, self._replaced):
            self._restore_queues()
        self._disk.delete(self._paths.append_intent)
        return Repaired(end.physical_offset, end.last_store_timestamp, checkpoint)

    def _before_our_blank(self, end: LogEnd, began_at: int | None) -> LogEnd:
        """Return the start of our own append if all that it wrote is a blank; otherwise ``end``."""
        segment = None if began_at is None else self._log.find(began_at)
        if began_at is None or segment is None or end.physical_offset != segment.end:
            return end
        found = window_at(self._log, segment, began_at, segment.end).records
        if len(found.starts) or found.kind is not StopKind.BLANK:
            return end
        # what stands before our append was committed
        scanned_from = min(end.scanned_from, segment.start)
        return end._replace(
            physical_offset=began_at, path=str(segment.path), scanned_from=scanned_from
        )

    def _require_no_records_behind(self, end: LogEnd, *, was_closed: bool) -> None:
        segment = self._log.find(end.physical_offset)
        if segment is None:  # the log ends with an empty file, after which there is nothing
            return
        if was_closed:
            stop = Walk(
                np.empty(0, np.int64),
                StopKind.DAMAGE,
                end.physical_offset - segment.start,
                end.reason,
            )
            if damage_at(self._log, segment, stop, self._queues_end()) is None:
                return
        follows = self._find_record(segment, end.physical_offset + 1)
        if follows is None and self._log.segments[-1].start > segment.start:
            later = next(other for other in self._log.segments if other.start > segment.start)
            follows = self._find_record(later, later.start)
        if follows is not None and not self._truncate:
            raise CorruptRecordError(
                end.path,
                end.physical_offset,
                f"{end.reason}; good records follow at {follows}. A broker that opens this store drops them: copy them "
                "out first (ignore_log_end=True with mode=DROPMALFORMED reads them; so does rmqstore export "
                "--ignore-log-end --mode DROPMALFORMED), then open the store with truncate=True (rmqstore rebuild "
                "--truncate), which keeps a copy of what it cuts",
            )

    def _find_record(self, segment: Segment, start: int) -> int | None:
        """Return where the first whole record of a file from a physical offset on begins, None without any."""
        found = next_record(self._log, segment, start, segment.end)
        return found if found < segment.end else None

    def _cut_log(self, end: LogEnd, *, keep_copy: bool) -> None:
        """Delete files and clear bytes after the end of the log; with ``keep_copy`` what is not zero is kept aside."""
        for segment in self._log.segments:
            is_later = segment.start >= end.physical_offset and segment.start > self._log.min_offset
            if is_later or not segment.size:
                self._drop(segment, keep_copy=keep_copy)
            elif segment.start <= end.physical_offset < segment.end:
                self._clear_tail(segment, end, keep_copy=keep_copy)
        self._log.refresh()

    def _drop(self, segment: Segment, *, keep_copy: bool) -> None:
        with LOCAL.open(segment.path) as file:
            is_empty = not file.written_end(segment.size)
        if is_empty or not keep_copy:
            self._disk.delete(segment.path)
            return
        self._disk.make_folder(self._cut_folder)
        target = self._cut_folder / segment.path.name
        logger.warning("%s lies after the end of the log; it is moved to %s", segment.path, target)
        self._disk.rename(segment.path, target)
        self._disk.flush_folder(self._cut_folder)
        self._disk.flush_folder(segment.path.parent)

    def _clear_tail(self, segment: Segment, end: LogEnd, *, keep_copy: bool) -> None:
        position = end.physical_offset - segment.start
        with LOCAL.open(segment.path) as file:
            stop = file.written_end(segment.size)
            if stop <= position:
                return
            if keep_copy:
                self._keep(segment, end, file, stop)
        self._disk.clear(segment.path, position, stop)
        self._disk.flush(segment.path)

    def _keep(self, segment: Segment, end: LogEnd, file: StoredFile, stop: int) -> None:
        position = end.physical_offset - segment.start
        self._disk.make_folder(self._cut_folder)
        target = self._cut_folder / f"{segment.path.name}.{end.physical_offset}"
        logger.warning(
            "%s: the log ends at %d (%s); the %d bytes after it are kept in %s and cleared",
            segment.path, end.physical_offset, end.reason or "never written", stop - position, target,
        )  # fmt: skip
        self._disk.delete(target)
        self._disk.create(target, 0)
        for start in range(position, stop, _BLOCK_BYTES):
            block = np.empty(min(_BLOCK_BYTES, stop - start), np.uint8)
            file.read_into(block, start)
            self._disk.write(target, start - position, block)
        self._disk.flush(target)
        self._disk.flush_folder(self._cut_folder)

    def _queues_end(self) -> int:
        ends = [-1]
        for topic, queue_id in self._paths.queues():
            queue = ConsumeQueue(self._paths.queue(topic, queue_id))
            ends.append(reach(queue, queue.end()))
            queue.close()
        return max(ends)

    def _cut_queues(self, log_end: int, *, was_closed: bool) -> int:
        """Remove the units of records after the log end; return the physical offset up to which the queues reach."""
        reached = 0
        for topic, queue_id in self._paths.queues():
            queue = ConsumeQueue(self._paths.queue(topic, queue_id))
            start, end = queue.begin, queue.end()
            kept = queue.cut(start, end, log_end)
            if not was_closed:
                kept = whole_end(queue, start, kept)
            kept = sound_end(queue, start, kept)
            if kept < end:
                logger.warning(
                    "%s: %d units after the end of the log are removed", queue.folder, end - kept
                )
                self._clear_units(queue, kept)
            if kept > start:
                reached = max(reached, reach(queue, kept))
            queue.close()
        return reached

    def _clear_units(self, queue: ConsumeQueue, kept: int) -> None:
        for segment in queue.segments:
            if segment.start >= kept * _UNIT:
                self._disk.delete(segment.path)
            elif segment.end > kept * _UNIT:
                position = kept * _UNIT - segment.start
                with LOCAL.open(segment.path) as file:
                    written = file.written_end(segment.size)
                # The physical offset of the first one goes last: a unit with a size and none would
                # point at offset 0.
                self._disk.clear(segment.path, position + _OFFSET_BYTES, written)
                self._disk.clear(segment.path, position, min(position + _OFFSET_BYTES, written))
                self._disk.flush(segment.path)
        self._disk.flush_folder(queue.folder)

    def _outdated_index(
        self, log_end: int, checkpoint: Checkpoint | None
    ) -> tuple[list[Path], int]:
        """Return the index files that the checkpoint does not vouch for, and the physical offset to rebuild from.

        Source: IndexService.java#load.
        """
        outdated, reached = [], -1
        files = index_files(self._paths.index)
        for path in files:
            header = read_header(path)
            is_late = (
                checkpoint is not None and header["end_timestamp"] > checkpoint.index_msg_timestamp
            )
            if (
                is_late
                or header["end_phy_offset"] >= max(log_end, 1)
                or header["end_timestamp"] == 0
            ):
                outdated.append(path)
            else:
                reached = int(header["end_phy_offset"])
        if not self._config.message_index_enable or (files and not outdated):
            reached = log_end  # nothing is missing, as far as one can tell without reading the log
        return outdated, reached

    def _ask_for_recovery(self, start: int, checkpoint: Checkpoint) -> None:
        """Make a broker that finds this repair unfinished build queues and index again, from ``start`` at the latest.

        A queue that is half built would mislead the broker: it puts the units of the records that
            its recovery reads
        after those that are there, whatever their queue offsets. But its recovery must not have to
        pass damage, where it would cut the log. Queues can be built again; records cannot.
        """
        for asked in (
            checkpoint,
            checkpoint._replace(physic_msg_timestamp=0, logics_msg_timestamp=0),
        ):
            begun = scan_start(self._log, asked)
            if begun > start:
                continue
            if self._is_whole_from(begun):
                self._disk.replace(self._paths.checkpoint, asked.stored())
                self._open_as_our_own()
            return

    def _open_as_our_own(self) -> None:
        """Make ``abort`` in a store that was closed; a note of an append that it still has is older than that."""
        if not self._paths.has_abort:
            self._disk.delete(self._paths.append_intent)
            self._disk.write_new(self._paths.abort, our_abort())

    def is_whole(self) -> bool:
        """Tell whether a recovery from the first file of the log gets to its end."""
        return self._is_whole_from(self._log.min_offset)

    def _is_whole_from(self, start: int) -> bool:
        """Tell whether a recovery from the start of a file gets to the end of the log.

        What was scanned to find the end is not read again, and what was appended since is our own.
        """
        if not is_whole_between(self._log, start, self._whole_from):
            return False
        self._whole_from = min(self._whole_from, start)
        return True

    def _dispatch(
        self, start: int, end: int, progress: Progress = ignore_progress
    ) -> list[Finding]:
        """Build the missing units and items; a queue whose files do not fit the log is built again from the log.

        Returns:
            What could not be built.
        """
        while True:
            dispatcher = Dispatcher(
                self._disk,
                self._log,
                self._paths.index,
                self._config,
                self.open_queue,
                is_tolerant=True,
            )
            dispatcher.dispatch(start, end, progress)
            dispatcher.flush()
            if not dispatcher.misfits:
                break
            for err in dispatcher.misfits.values():
                logger.warning("%s; the queue is built again from the log", err)
                self._empty(Path(err.path))
            start = self._log.min_offset
        for finding in dispatcher.findings:
            logger.warning("%s %s: %s", *finding)
        return dispatcher.findings

    def _empty(self, folder: Path) -> None:
        for entry in LOCAL.list_folder(folder):
            self._disk.delete(folder / entry.name)
        self._disk.flush_folder(folder)

    def rebuild(self, end: int, progress: Progress) -> list[Finding]:
        """Build queues and index again from the log alone, up to ``end``; a repair completes an interrupted rebuild.

        A queue stays as it was if the log holds none of its records any more, because only its
        files tell its next queue offset.

        Returns:
            What could not be built.
        """
        findings: list[Finding] = []
        for path in index_files(self._paths.index):
            self._disk.delete(path)
        self._disk.make_folder(self._replaced)
        target = self._replaced / "consumequeue"
        if is_folder(LOCAL, self._paths.consumequeue):
            self._disk.rename(self._paths.consumequeue, target)
        self._disk.make_folder(self._paths.consumequeue)
        if self._log.min_offset < end:
            findings = self._dispatch(self._log.min_offset, end, progress)
        return [*findings, *self._restore_queues()]

    def _restore_queues(self) -> list[Finding]:
        """Put back the queues that were set aside and not built again; delete the others.

        Returns:
            Queues that are kept although their units point into the log, which holds no record of
            them.
        """
        findings = []
        aside = self._replaced / "consumequeue"
        for topic in (entry for entry in LOCAL.list_folder(aside) if entry.is_folder):
            for queue in LOCAL.list_folder(aside / topic.name):
                target = self._paths.consumequeue / topic.name / queue.name
                if not LOCAL.exists(target):
                    self._disk.make_folder(target.parent)
                    self._disk.rename(aside / topic.name / queue.name, target)
                    self._disk.flush_folder(target.parent)
                    findings += self._unfounded(topic.name, queue.name)
        self._disk.delete_tree(self._replaced)
        return findings

    def _unfounded(self, topic: str, queue: str) -> list[Finding]:
        if not queue.isdecimal() or int(queue) not in self._paths.queue_ids(topic):
            return []
        with closing(ConsumeQueue(self._paths.queue(topic, int(queue)))) as files:
            n_wrong = sum(
                int(
                    (
                        files.units(start, min(start + _UNITS_AT_ONCE, high)).physical_offsets
                        >= self._log.min_offset
                    ).sum()
                )
                for low, high in files.runs(files.begin, files.end())
                for start in range(low, high, _UNITS_AT_ONCE)
            )
        if not n_wrong:
            return []
        text = (
            f"{n_wrong} units point into the log, which holds no record of this queue; the queue is kept because only "
            "its files tell its next queue offset"
        )
        logger.warning("%s-%s: %s", topic, queue, text)
        return [Finding("queue", f"{topic}-{queue}", text)]

    def open_queue(self, topic: str, queue_id: int) -> QueueAppender:
        """Return the appender of a queue."""
        folder = self._paths.queue(topic, queue_id)
        queue = ConsumeQueue(folder)
        start, end, is_new = queue.begin, queue.end(), not queue.segments
        reached = reach(queue, end)
        queue.close()
        file_size = self._config.mapped_file_size_consume_queue
        return QueueAppender(
            self._disk, folder, file_size, start=start, end=end, reached=reached, is_new=is_new
        )
