"""Queues, index and tables of a copy, written after its log as far as that is on the disk.

Tables and log are not of one moment: an offset that was committed just now may lie after what was
copied so far. So a table is written when the copy has reached the end that the log had after the
table was asked for.

Source: SlaveSynchronize.java#syncAll, ConfigManager.java#persist.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, UnreadableFileError
from rmqstore.format.framing import StopKind
from rmqstore.remoting.client import MAX_BODY_BYTES
from rmqstore.replica.background import KindUnknownError, Metadata
from rmqstore.replica.broker_requests import TABLES, HeldTable
from rmqstore.replica.log_copy import RecordStarts
from rmqstore.replica.retention import delete_all_built, delete_built_files
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.config_files import is_table
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import window_at
from rmqstore.storage.queue.appender import QueueAppender
from rmqstore.storage.recovery.log_end import last_record_before
from rmqstore.write.dispatch import Dispatcher, SavedCheckpoint
from rmqstore.write.existing_store import existing_config
from rmqstore.write.queue_files import QueueFiles, known_batch_topics

logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.2
# A flush of many queues takes some time; building rests for as long.
_REST: Final = 1.0
_MOST_REST_SECONDS: Final = 1.0
_FAR_BYTES: Final = 64 << 20  # to copy, while which queues are flushed less often

_MAX_PARSED_BYTES: Final = 1 << 20  # a parsed table may take forty times as much memory

STEP_BYTES: Final = 64 << 20  # of the log, for which queues and index are built together
_FLUSH_BYTES: Final = 256 << 20  # after which they are brought to the disk at the latest


class Building:
    """A thread that builds queues and index after the log, and writes tables that may be shown.

    Args:
        builder: builds them; it belongs to the thread while that runs.
        disk: writes the tables.
        paths: the files of the copy.
        metadata: the tables of the broker.
        end: physical offset up to which the log is on the disk.
        builds_queues: whether queues and index are built; else only tables follow the log.

    Attributes:
        tables_at: when tables were written the last time, epoch ms; 0 if they were not.
    """

    def __init__(
        self,
        builder: QueueBuilder,
        disk: Disk,
        paths: StorePaths,
        metadata: Metadata,
        end: int,
        *,
        builds_queues: bool = True,
    ) -> None:
        self._builds_queues = builds_queues
        self._builder, self._disk, self._paths = builder, disk, paths
        self._metadata = metadata
        self._changed = threading.Condition()
        self._end, self._end_at = end, time.monotonic()
        self._is_ending = self._is_dropped = False
        self._ending_at: float | None = None
        self._begin: int | None = None
        self._is_whole = True
        self._error: BaseException | None = None
        self.tables_at = 0
        self._thread = threading.Thread(target=self._run, name="follow-queues", daemon=True)

    def start(self) -> None:
        """Start the thread, which calls back by :meth:`is_batch_topic` at once."""
        self._thread.start()

    @property
    def built(self) -> int:
        """Physical offset up to which queues and index are on the disk."""
        return self._builder.built

    @property
    def needed_from(self) -> int:
        """Physical offset from which on records are needed to build queues and index."""
        return self._builder.built if self._builds_queues else self._end

    def go_on(self, end: int) -> None:
        """Say up to where the log is on the disk."""
        with self._changed:
            self._end, self._end_at = end, time.monotonic()
            self._changed.notify()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Build what is missing, and end the thread; raises as :meth:`check` does."""
        self._join(is_dropped=False)
        self.check()

    def drop(self) -> None:
        """End the thread after the step that is under way."""
        self._join(is_dropped=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    @property
    def is_whole(self) -> bool:
        """Whether no step was given up halfway; then :meth:`finish` has built everything."""
        return self._is_whole

    def delete_before(self, begin: int) -> None:
        """Let files be deleted that belong to records before the begin of the log only.

        Where queues are not built, this waits until they are.
        """
        if not self.is_alive:
            self._builder.delete_before(begin)
            return
        with self._changed:
            self._begin = begin
            self._changed.notify()
            while not self._builds_queues and self._begin is not None and self.is_alive:
                self._changed.wait(_WAIT_SECONDS)

    def _forget_begin(self, begin: int) -> None:
        with self._changed:
            if self._begin == begin:  # else it has been set again
                self._begin = None
            self._changed.notify_all()

    def _join(self, *, is_dropped: bool) -> None:
        with self._changed:
            self._is_ending = True
            self._is_dropped = is_dropped
            self._ending_at = self._ending_at or time.monotonic()
            self._changed.notify()
        self._thread.join()

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether a topic has BatchConsumeQueues; called by the builder.

        Raises as :meth:`Metadata.is_batch_topic` does.
        """
        return self._metadata.is_batch_topic(topic, self._end_at, self._gives_up)

    def _gives_up(self) -> bool:
        """Return whether an answer of the broker is not awaited any longer."""
        patience = self._metadata.patience
        return self._is_dropped or (
            self._ending_at is not None and time.monotonic() - self._ending_at > patience
        )

    def _run(self) -> None:
        try:
            while not self._is_dropped:
                began = time.monotonic()
                with self._changed:
                    end, is_ending = self._end, self._is_ending
                    begin = self._begin
                if begin is not None:
                    self._builder.delete_before(begin)
                    self._forget_begin(begin)
                was_behind = self._builds_queues and self._builder.built < end
                is_far = not is_ending and self._metadata.bounds.high - end > _FAR_BYTES
                is_done = not self._builds_queues or self._builder.step(end, is_far=is_far)
                # A copy up to this end may show these tables.
                facts = self._metadata.take(self._builder.built if self._builds_queues else end)
                if facts is not None:
                    write_tables(self._disk, self._paths, facts.tables)
                    self.tables_at = int(time.time() * 1000)
                if is_done and is_ending:
                    return
                rest = min(_REST * (time.monotonic() - began), _MOST_REST_SECONDS)
                with self._changed:
                    if is_done and was_behind and not is_far:
                        self._changed.wait_for(lambda: self._is_ending, rest)
                    if is_done and self._end == end and not self._is_ending:
                        self._changed.wait(_WAIT_SECONDS)
        except KindUnknownError:
            self._is_whole = False
        except BaseException as err:  # noqa: BLE001 - raised in the thread that reads
            self._error = err


def write_tables(disk: Disk, paths: StorePaths, tables: Mapping[str, HeldTable]) -> None:
    """Replace the tables that have changed; the one before is kept as ``.bak``."""
    for name, table in tables.items():
        assert name in TABLES, name
        content = table.content
        if len(content) > _MAX_PARSED_BYTES:  # of a long table only both ends are looked at
            may_be_table = content.startswith(b"{") and content.rstrip().endswith(b"}")
        else:
            may_be_table = bool(content.strip()) and is_table(content)
        if not may_be_table:
            logger.warning("the broker's %s is not a table, and is not taken", name)
            continue
        path = paths.config / name
        old = b""
        with suppress(FileNotFoundError, UnreadableFileError):
            old = read_small(paths.storage, path, MAX_BODY_BYTES)
        if old == content:
            continue
        disk.make_folder(paths.config)
        if old:
            disk.replace(path.with_name(f"{name}.bak"), old)
        disk.replace(path, content)


class _BatchTopics(AbstractSet[str]):
    """The topics whose queues are BatchConsumeQueues; others are looked up when they come."""

    def __init__(
        self, paths: StorePaths, known: AbstractSet[str], is_batch_topic: Callable[[str], bool]
    ) -> None:
        self._is_batch = dict.fromkeys(paths.queue_folders.topics(), False) | dict.fromkeys(
            known, True
        )
        self._is_batch_topic = is_batch_topic

    def __contains__(self, topic: object) -> bool:
        if not isinstance(topic, str):
            return False
        if topic not in self._is_batch:
            self._is_batch[topic] = self._is_batch_topic(topic)
        return self._is_batch[topic]

    def __iter__(self) -> Iterator[str]:
        return (topic for topic, is_batch in self._is_batch.items() if is_batch)

    def __len__(self) -> int:
        return sum(self._is_batch.values())

    def __bool__(self) -> bool:
        return True  # a topic that is not known yet may be one of these


class QueueBuilder:
    """Builds queues and index from a log that only grows, step by step.

    Args:
        disk: performs all changes.
        paths: the files of the copy.
        config: sizes of new files, and what is indexed.
        is_batch_topic: returns whether the queues of a topic are BatchConsumeQueues. It is asked
            once for each topic, before the first unit is written.
        note_built: brings a lower ``built`` to the disk, before anything is removed.
        starts: where the last records of the log begin.

    Attributes:
        built: physical offset up to which queues and index are on the disk.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        config: StoreConfig,
        is_batch_topic: Callable[[str], bool],
        note_built: Callable[[int], None],
        starts: RecordStarts,
    ) -> None:
        self._starts = starts
        self._disk, self._paths, self._note_built = disk, paths, note_built
        self._log = CommitLog(paths.commitlogs)
        self._config = existing_config(paths, self._log, config)
        self._checkpoint = SavedCheckpoint(disk, paths, read_checkpoint(paths))
        batch_topics = _BatchTopics(paths, known_batch_topics(paths), is_batch_topic)
        self._queues = QueueFiles(disk, paths, self._config, batch_topics, may_begin_again=True)
        self._appenders: dict[tuple[str, int], QueueAppender] = {}
        self._dispatcher: Dispatcher | None = None
        self._last_store_timestamp = 0
        self._last_record: int | None = None
        self._is_clean = True  # whether all that was built is on the disk
        self.built = self._written = self._log.min_offset

    def recover(self, built: int, *, was_closed: bool) -> None:
        """Remove what may be half built.

        Args:
            built: physical offset up to which queues and index were on the disk.
            was_closed: whether nothing was built after it.
        """
        self._log.refresh()
        end = max(built, self._log.min_offset)
        # The index files that hold items of records at or after the end, the last one first, and
        # where the index has to be built from without them. The last file may not be whole.
        files = index_files(self._paths.index)
        start = end
        doubtful = []
        for number, path in reversed([*enumerate(files)]):
            header = read_header(path)
            is_last = number == len(files) - 1
            is_good = header["end_timestamp"] and header["end_phy_offset"] < end
            if is_good and (was_closed or not is_last):
                break
            doubtful.append(path)
            begin = int(read_header(files[number - 1])["end_phy_offset"]) if number else 0
            start = max(min(start, begin), self._log.min_offset)
        self.built = self._written = start
        if start < built:
            self._note_built(start)
            # A broker that finds this unfinished builds queues and index from there on.
            segment = self._log.find(start)
            if segment is not None:
                self._checkpoint.save(built=self._time_at(segment.start))
        self._queues.cut(end, was_closed=was_closed)
        for path in doubtful:
            self._disk.delete(path)
        if doubtful:
            self._disk.flush_folder(self._paths.index)

    def cut(self, end: int) -> None:
        """Remove units and items of records from a physical offset on, all of which are whole."""
        self._appenders.clear()
        self._dispatcher = None
        self._log.close()
        self._log = CommitLog(self._paths.commitlogs)
        self.recover(min(self.built, end), was_closed=self._is_clean)
        self._is_clean = True

    def begin_again(self, begin: int) -> None:
        """Begin at another physical offset, with a log that has no record."""
        self.cut(begin)
        self.built = self._written = begin

    def _time_at(self, physical_offset: int | None) -> int:
        """Return the store time of the record at a physical offset, 0 if it is not known."""
        try:
            return 0 if physical_offset is None else self._log.store_timestamp(physical_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return 0

    def step(self, end: int, *, is_far: bool = False) -> bool:
        """Build a part of what is missing before a physical offset, and bring it to the disk.

        Args:
            end: where a record ends; the log is on the disk up to there.
            is_far: much will follow soon, so several parts may come to the disk together, as they
                do where one step is not enough. A step that finds nothing to build brings them.

        Returns:
            Whether all of it is built.
        """
        start = self._written
        if start < end:
            self._is_clean = False
            if end > self._log.max_offset:
                self._log.refresh()
            stop = self._boundary(start, end)
            self._last_record = last_record_before(self._log, stop)
            last_time = self._time_at(self._last_record)
            self._last_store_timestamp = max(self._last_store_timestamp, last_time)
            for segment in self._log.segments:
                if start <= segment.start < stop:
                    self._checkpoint.set_back(self._time_at(segment.start))
            self._checkpoint.save(index=self._last_store_timestamp)
            self._dispatch(start, stop)
            self._written = stop
        is_done = self._written >= end
        is_due = start >= end or self._written - self.built >= _FLUSH_BYTES
        if self.built < self._written and (is_due or (is_done and not is_far)):
            self._flush()
        return is_done

    def _flush(self) -> None:
        """Bring what was built to the disk."""
        self._dispatch(self._written, self._written, is_flushed=True)
        self._checkpoint.set_dispatched(self._last_record or 0)
        self._checkpoint.save(built=self._last_store_timestamp)
        self.built = self._written
        self._is_clean = True

    def _boundary(self, start: int, end: int) -> int:
        """Return where a step ends: after a record, or at the end of a file."""
        segment = self._log.find(start)
        if segment is None or end - start <= STEP_BYTES:
            return end
        known = self._starts.boundary(start, start + STEP_BYTES)
        if known is not None:
            return known
        limit = min(segment.end, end)
        if limit - start <= STEP_BYTES:
            return limit
        window = window_at(self._log, segment, start, limit, STEP_BYTES)
        is_cut_by_size = window.damage is None and window.records.kind is not StopKind.BLANK
        return window.stopped if is_cut_by_size else limit

    def _dispatch(self, start: int, stop: int, *, is_flushed: bool = False) -> None:
        """Build units and items; a queue whose files do not fit the log is built again."""
        while True:
            dispatcher = self._dispatcher
            if dispatcher is None:
                self._disk.make_folder(self._paths.index)
                dispatcher = Dispatcher(
                    self._disk,
                    self._log,
                    self._paths.index,
                    self._config,
                    self._appender,
                    self._queues.batch_topics,
                    is_tolerant=True,
                    walk=self._starts.windows,
                )
            if start < stop:
                dispatcher.dispatch(start, stop)
            if is_flushed:
                dispatcher.flush()
            else:
                dispatcher.write()
            for finding in dispatcher.findings:
                logger.warning("%s %s: %s", *finding)
            dispatcher.findings.clear()
            if not dispatcher.misfits:
                self._dispatcher = dispatcher
                return
            for key, err in dispatcher.misfits.items():
                logger.warning("%s; the queue is built again from the log", err)
                self._queues.empty(Path(err.path))
                self._appenders.pop(key, None)
            self._dispatcher = None
            start = self._log.min_offset

    def _appender(self, topic: str, queue_id: int) -> QueueAppender:
        key = (topic, queue_id)
        if key not in self._appenders:
            self._appenders[key] = self._queues.appender(topic, queue_id)
        return self._appenders[key]

    def delete_before(self, begin: int) -> None:
        """Delete the files of queues and index whose records all lie before a physical offset.

        If records between were never built, everything goes: a queue must not have a gap.
        """
        self._log.refresh()
        if self.built < self._written:
            self._flush()
        if self.built < begin:
            self.built = self._written = self._log.min_offset
            self._note_built(self.built)
            delete_all_built(self._disk, self._paths)
        elif not delete_built_files(self._disk, self._paths, begin):
            return
        self._appenders.clear()  # they know where their files begin
        self._dispatcher = None

    def confirm(self, physical_offset: int) -> None:
        """Let a broker in controller mode that opens the copy read the log from there on."""
        self._checkpoint.set_confirmed(physical_offset)
        self._checkpoint.save()

    def protect(self) -> None:
        """Let a broker that opens the copy after a crash keep the index."""
        self._checkpoint.cover_index()
        self._checkpoint.save()

    def close(self) -> None:
        """Close the files that were read."""
        self._log.close()
