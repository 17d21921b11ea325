"""Queues, index and tables of a copy, written after its log as far as that is on the disk.

Tables and log are not of one moment: an offset that was committed just now may lie after what was
copied so far. So a table is written when the copy has reached the end that the log had after the
table was asked for.

Source: SlaveSynchronize.java#syncAll, ConfigManager.java#persist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, UnreadableFileError
from rmqstore.format.framing import StopKind
from rmqstore.remoting import MAX_BODY_BYTES
from rmqstore.replica.broker import MAX_PARSED_BYTES, TopicKinds
from rmqstore.replica.broker_requests import TABLES, PackedTable
from rmqstore.replica.log_copy import RecordStarts
from rmqstore.replica.retention import delete_all_built, delete_built_files
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.config_files import is_table
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, window_at
from rmqstore.storage.queue.appender import QueueAppender
from rmqstore.storage.recovery.log_end import last_record_before
from rmqstore.write.dispatch import Dispatcher, SavedCheckpoint, UnknownTopicsError
from rmqstore.write.existing_store import existing_config
from rmqstore.write.queue_files import QueueFiles, known_batch_topics
from rmqstore.write.truncation import LeftOpen

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 64 << 20  # of the log, for which queues and index are built together
_FLUSH_BYTES: Final = 256 << 20  # after which they are brought to the disk at the latest


def write_tables(disk: Disk, paths: StorePaths, tables: Mapping[str, PackedTable]) -> None:
    """Replace the tables that have changed; the one before is kept as ``.bak``."""
    for name, table in tables.items():
        assert name in TABLES, name
        content = table.content
        if len(content) > MAX_PARSED_BYTES:  # of a long table only both ends are checked
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


class BuildProgress(NamedTuple):
    """How far queues and index are.

    Attributes:
        built: physical offset up to which they are on the disk.
        written: physical offset up to which they are built.
        unknown: topics of the next record, whose kind has to be known.
    """

    built: int
    written: int
    unknown: frozenset[str] = frozenset()


class _Last(NamedTuple):
    """The last record that was dispatched, and the highest store time up to it."""

    record: int | None = None
    time: int = 0


class _Open(NamedTuple):
    """The open queues, and their appenders."""

    appenders: dict[tuple[str, int], QueueAppender]
    dispatcher: Dispatcher | None


class QueueBuilder:
    """Builds queues and index from a log that only grows, step by step.

    Args:
        disk: performs all changes.
        paths: the files of the copy.
        config: sizes of new files, and what is indexed.

    Attributes:
        progress: how far they are.
    """

    def __init__(self, disk: Disk, paths: StorePaths, config: StoreConfig) -> None:
        self._disk = disk
        self._paths = paths
        self._log = CommitLog(paths.commitlogs)
        self._config = existing_config(paths, self._log, config)
        self._checkpoint = SavedCheckpoint(disk, paths, read_checkpoint(paths))
        # The kind of each topic that has queues, whatever the broker reports later.
        self._is_batch = dict.fromkeys(paths.queue_folders.topics(), False)
        self._is_batch |= dict.fromkeys(known_batch_topics(paths), True)
        self._kinds: TopicKinds | None = None
        self._queues = QueueFiles(disk, paths, self._log, self._config, set())
        self._open = _Open({}, None)
        self._starts = RecordStarts()
        self._last = _Last()
        self.progress = BuildProgress(self._log.min_offset, self._log.min_offset)

    @property
    def is_clean(self) -> bool:
        """Whether all that was built is on the disk."""
        return self.progress.built == self.progress.written

    def _stale_index_files(self, built: int, *, was_closed: bool) -> tuple[int, list[Path]]:
        """Return the index files that may hold items of records at or after an end.

        The last file comes first; it may be incomplete. Also returned is from where on queues and
        index have to be built without these files.
        """
        self._log.refresh()
        files = index_files(self._paths.index)
        start = end = max(built, self._log.min_offset)
        stale = []
        for number, path in reversed([*enumerate(files)]):
            header = read_header(path)
            is_last = number == len(files) - 1
            is_good = header["end_timestamp"] and header["end_phy_offset"] < end
            if is_good and (was_closed or not is_last):
                break
            stale.append(path)
            begin = int(read_header(files[number - 1])["end_phy_offset"]) if number else 0
            start = max(min(start, begin), self._log.min_offset)
        return start, stale

    def planned(self, built: int, *, was_closed: bool) -> int:
        """Return from where on queues and index are built once :meth:`recover` was called."""
        return self._stale_index_files(built, was_closed=was_closed)[0]

    def recover(self, built: int, *, was_closed: bool) -> None:
        """Remove half-built units and items; the state file has their start before.

        Args:
            built: physical offset up to which queues and index were on the disk.
            was_closed: whether nothing was built after it.
        """
        start, stale = self._stale_index_files(built, was_closed=was_closed)
        if start < built:
            # A broker that finds this unfinished builds queues and index from there on.
            segment = self._log.find(start)
            if segment is not None:
                self._checkpoint.save(built=self._time_at(segment.start))
        end = max(built, self._log.min_offset)
        self._queues.cut(end, None if was_closed else LeftOpen(self._log, end))
        for path in stale:
            self._disk.delete(path)
        if stale:
            self._disk.flush_folder(self._paths.index)
        self.progress = BuildProgress(start, start)

    def cut(self, end: int) -> None:
        """Remove units and items of records from a physical offset on, where a record begins."""
        built = min(self.progress.built, end)
        was_clean = self.is_clean
        self._open = _Open({}, None)
        self._log.close()
        self._log = CommitLog(self._paths.commitlogs)
        self.recover(built, was_closed=was_clean)

    def begin_again(self, begin: int) -> None:
        """Begin at another physical offset, with a log that has no record."""
        self.cut(begin)
        self.progress = BuildProgress(begin, begin)

    def _time_at(self, physical_offset: int | None) -> int:
        """Return the store time of the record at a physical offset, 0 if it is not known."""
        try:
            return 0 if physical_offset is None else self._log.store_timestamp(physical_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return 0

    def step(self, end: int, kinds: TopicKinds, starts: RecordStarts, *, is_far: bool) -> None:
        """Build a part of what is missing before a physical offset, and bring it to the disk.

        Args:
            end: where a record ends; the log is on the disk up to there.
            kinds: of the topics. The step ends before the first record of another topic.
            starts: where the last records before the end begin.
            is_far: much will follow soon, so several parts may come to the disk together, as they
                do where one step is not enough. A step that finds nothing to build brings them.
        """
        if kinds != self._kinds:
            if not self.is_clean:
                self._flush()
            self._open = _Open({}, None)
            self._kinds = kinds
            plain = {topic for topic, is_batch in self._is_batch.items() if not is_batch}
            batch = {*self._is_batch, *kinds.batch} - plain
            self._queues = QueueFiles(self._disk, self._paths, self._log, self._config, batch)
        self._starts = starts
        start = stop = self.progress.written
        unknown = frozenset[str]()
        if start < end:
            if end > self._log.max_offset:
                self._log.refresh()
            stop = self._boundary(start, end)
            last = self._last_before(stop)
            for segment in self._log.segments:
                if start <= segment.start < stop:
                    self._checkpoint.set_back(self._time_at(segment.start))
            self._checkpoint.save(index=last.time)
            stop, unknown = self._dispatch(start, stop)
            self._last = self._last_before(stop) if unknown else last
        built = min(self.progress.built, stop)
        self.progress = BuildProgress(built, stop, unknown)
        is_done = stop >= end
        is_due = start >= end or stop - built >= _FLUSH_BYTES
        if built < stop and (is_due or (is_done and not is_far)):
            self._flush()

    def _last_before(self, stop: int) -> _Last:
        record = last_record_before(self._log, stop)
        return _Last(record, max(self._last.time, self._time_at(record)))

    def _flush(self) -> None:
        """Bring what was built to the disk."""
        written = self.progress.written
        self._dispatch(written, written, is_flushed=True)
        self._checkpoint.set_dispatched(self._last.record or 0)
        self._checkpoint.save(built=self._last.time)
        self.progress = self.progress._replace(built=written)

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

    def _dispatch(
        self, start: int, stop: int, *, is_flushed: bool = False
    ) -> tuple[int, frozenset[str]]:
        """Build units and items; a queue whose files do not fit the log is built again.

        Returns:
            Up to where, and topics whose kind has to be known to continue.
        """
        while True:
            dispatcher = self._open.dispatcher
            if dispatcher is None:
                assert self._kinds is not None
                known = self._kinds.batch | self._kinds.plain | self._is_batch.keys()
                self._disk.make_folder(self._paths.index)
                dispatcher = Dispatcher(
                    self._disk, self._log, self._paths.index, self._config, self._appender,
                    self._queues.batch_topics, known_topics=known, is_tolerant=True,
                    walk=self._windows,
                )  # fmt: skip
            end = stop
            unknown = frozenset[str]()
            try:
                if start < stop:
                    dispatcher.dispatch(start, stop)
            except UnknownTopicsError as err:
                end = err.physical_offset
                unknown = err.topics
            if is_flushed:
                dispatcher.flush()
            else:
                dispatcher.write()
            for finding in dispatcher.findings:
                logger.warning("%s %s: %s", finding.part, finding.place, finding.text)
            dispatcher.findings.clear()
            if not dispatcher.mismatches:
                self._open = self._open._replace(dispatcher=dispatcher)
                return end, unknown
            for key, mismatch in dispatcher.mismatches.items():
                logger.warning("%s; the queue is built again from the log", mismatch)
                self._queues.empty(Path(mismatch.path))
                self._open.appenders.pop(key, None)
            self._open = self._open._replace(dispatcher=None)
            start = self._log.min_offset

    def _windows(self, log: CommitLog, segment: Segment, start: int, end: int) -> Iterator[Window]:
        return self._starts.windows(log, segment, start, end)  # those of the present step

    def _appender(self, topic: str, queue_id: int) -> QueueAppender:
        key = (topic, queue_id)
        appenders = self._open.appenders
        if key not in appenders:
            appenders[key] = self._queues.appender(topic, queue_id)
            self._is_batch.setdefault(topic, topic in self._queues.batch_topics)
        return appenders[key]

    def delete_before(self, begin: int) -> None:
        """Delete the files of queues and index whose records all lie before a physical offset.

        If records between were never built, everything goes: a queue must not have a gap.
        """
        self._log.refresh()
        if not self.is_clean:
            self._flush()
        if self.progress.built < begin:
            self.progress = BuildProgress(self._log.min_offset, self._log.min_offset)
            delete_all_built(self._disk, self._paths)
        else:
            delete_built_files(self._disk, self._paths, begin)
        self._open = _Open({}, None)  # the queues know where their files begin

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
