"""The store that a copy is: its lock, its log, its queues and its state, in the right order.

The order in which changes come to the disk: the log, the state, queues and index, the checkpoint. A
cut is written to the state first. So the state is never ahead of the log. When the copy is opened
again, whole records that it does not cover are in doubt until they are compared; other bytes
are kept aside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rmqstore.replica.background import Metadata, Syncing
from rmqstore.replica.broker import Source
from rmqstore.replica.log_copy import Flush, LogCopy
from rmqstore.replica.log_files import (
    SpareSpace,
    Unvouched,
    begin_of_files,
    found_end,
    move_aside,
    new_cut_folder,
    warn_of_cut,
)
from rmqstore.replica.queue_builder import Building, QueueBuilder
from rmqstore.replica.retention import OldFiles
from rmqstore.replica.state import (
    CopiedEpochs,
    FollowState,
    copy_paths,
    first_state,
    read_state,
    require_new,
    write_state,
)
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.files.paths import our_abort
from rmqstore.storage.log.clean_end import CleanEnd, mark_as_closed

logger = logging.getLogger(__name__)


class CopyStore:
    """A copy, held by its lock from construction on.

    Args:
        root: its folder, which is made if it does not exist.
        make_disk: returns a disk to make changes with; each thread has its own.

    Raises:
        StoreStateError: the folder holds something else.
        StoreLockedError: a broker or another follower has it.

    Attributes:
        state: None until a new copy is opened.
        epochs: the epochs of the log, in controller mode.
        saved_end: physical offset up to which the state on the disk covers the log.
    """

    def __init__(self, root: Path, make_disk: Callable[[], Disk] = Disk) -> None:
        self.paths = copy_paths(root)
        self.state = read_state(self.paths)
        if self.state is None:
            require_new(root)
        self._disk, self._queue_disk, self._sync_disk = make_disk(), make_disk(), make_disk()
        for disk in (self._disk, self._queue_disk, self._sync_disk):
            disk.keep_within(root)
        self._disk.make_folder(root, is_private=True)
        self.epochs = CopiedEpochs(self.paths)
        self._lock = StoreLock(self.paths.lock)
        self.state = read_state(self.paths)  # another follower may have ended since
        self._log: LogCopy | None = None
        self._builder: QueueBuilder | None = None
        self._building: Building | None = None
        self._metadata: Metadata | None = None
        self._syncing = Syncing()
        self._spare = SpareSpace(self.paths.own.folder / "spare")
        self._unvouched = Unvouched(None)
        self.saved_end = 0
        self._is_whole = True  # whether no cut is under way, and none has failed

    @property
    def log(self) -> LogCopy:
        """The log of a copy that is open."""
        assert self._log is not None
        return self._log

    @property
    def built(self) -> int:
        """Physical offset up to which queues and index are built."""
        return 0 if self._building is None else self._building.built

    @property
    def _now_building(self) -> Building:
        assert self._building is not None
        return self._building

    @property
    def _known(self) -> FollowState:
        assert self.state is not None
        return self.state

    @property
    def _told(self) -> Metadata:
        assert self._metadata is not None
        return self._metadata

    @property
    def is_open(self) -> bool:
        """Whether :meth:`resume` was called."""
        return self._log is not None

    def resume(
        self,
        source: Source,
        address: str,
        begin: int,
        metadata: Metadata,
        *,
        builds_queues: bool = True,
    ) -> None:
        """Open the copy to be continued, or begin it.

        Args:
            source: the broker, which ``require_same_source`` does not refuse.
            address: where it was reached.
            begin: physical offset where a new copy begins.
            metadata: what the broker reports.
            builds_queues: whether queues and index are built.

        Raises:
            StoreStateError: files of the log are missing.
        """
        paths, disk = self.paths, self._disk
        self._metadata = metadata
        disk.make_folder(paths.own.folder)
        state = self.state or first_state(source, address, begin)
        was_closed = state.is_closed and not paths.has_abort
        begin = begin_of_files(paths, state.begin, state.end, state.file_size)
        state = state.opened(begin, builds_queues=builds_queues)
        self._save(state)  # before anything that makes the folder look like a store
        self._spare.reserve(disk)
        disk.replace(paths.abort, our_abort())
        disk.delete(paths.own.clean_end)
        for folder in (paths.commitlogs[0], paths.consumequeue, paths.config):
            disk.make_folder(folder)
        end = found_end(paths, state.end, state.last_cut)
        log = LogCopy(disk, paths, source.file_size, end, f"the log of {address}")
        self._log = log
        self._unvouched = Unvouched(new_cut_folder(paths))
        log.cut(end, "what follows may not be whole", self._unvouched.folder)
        log.doubt(state.end)  # until it is compared
        self.epochs.read(disk, state.begin, state.end, state.confirm_offset)
        log.read_last_time()
        queue_disk, is_batch = self._queue_disk, self._is_batch_topic
        builder = self._builder = QueueBuilder(
            queue_disk, paths, source.config, is_batch, self._note_built, log.starts
        )
        builder.recover(min(state.built, state.end), was_closed=was_closed)
        builder.protect()
        self._start_building()

    def _note_built(self, built: int) -> None:
        self._save(replace(self._known, built=built))

    def _save(self, state: FollowState, disk: Disk | None = None) -> None:
        """Let this be the state, also on the disk."""
        self.state = state
        write_state(disk or self._disk, self.paths, state)
        self.saved_end = state.end

    def _is_batch_topic(self, topic: str) -> bool:
        return self._now_building.is_batch_topic(topic)

    def _start_building(self) -> None:
        assert self._builder is not None
        self._building = Building(
            self._builder, self._queue_disk, self.paths, self._told, self.log.durable_end,
            builds_queues=self._known.builds_queues,
        )  # fmt: skip
        self._building.start()  # it asks by self._building for the kinds of topics

    def sync(self) -> None:
        """Bring the log to the disk, then the state; then queues may be built."""
        self._syncing.settle()
        self._bring(self.log.begin_flush(), self._disk)
        self.check()

    def begin_sync(self) -> bool:
        """Begin to do as :meth:`sync` does in a thread; return False if the last is under way."""
        if self._syncing.is_busy:
            return False
        self._syncing.settle()
        flush = self.log.begin_flush()
        self._syncing.begin(lambda: self._bring(flush, self._sync_disk))
        return True

    def _bring(self, flush: Flush, disk: Disk) -> None:
        self.log.flush(flush, disk)
        self.epochs.write(disk, flush.end)
        self._write_state(disk)
        self._now_building.go_on(flush.end)

    def write_state(self, *, is_closed: bool = False) -> None:
        """Write the state as it is on the disk."""
        self._syncing.settle()
        self._write_state(self._disk, is_closed=is_closed)
        extent = self._known.begin, self._known.end
        self._unvouched.drop_if_fetched(self._disk, extent, self.log.read)

    def _write_state(self, disk: Disk, *, is_closed: bool = False) -> None:
        end, high = self.log.durable_end, self._told.bounds.high
        state = replace(
            self._known,
            end=end,
            built=min(self._now_building.built, end),  # a cut may not have come to the queues
            is_closed=is_closed,
            tables_at=self._now_building.tables_at or self._known.tables_at,
            source_end=high,
            source_at=self._told.answered_at or self._known.source_at,
            behind_seconds=self.seconds_behind(),
            updated_at=int(time.time() * 1000),
            epoch=self.epochs.last,
            confirm_offset=self.epochs.confirm_offset,
        )
        self._save(state, disk)

    def confirm_source(self, address: str, source: Source) -> None:
        """Note where the broker is, now that its log was found to be the copy's."""
        self.state = self._known.confirmed(source, address)

    def delete_old(self, old_files: OldFiles) -> None:
        """Delete the files that need not stay."""
        self._syncing.settle()
        built = min(self._now_building.needed_from, self.log.durable_end)
        low = self._told.agreed_low()
        begin = old_files.new_begin(self.paths, self.log.log, self._known.broker, built, low)
        if begin is None:
            return
        self.state = replace(self._known, begin=max(self._known.begin, begin))
        self.write_state()  # before anything is missing
        if not self._known.builds_queues:
            self._now_building.delete_before(begin)  # a queue must not end before the log begins
        count = self.log.delete_before(begin)
        self._sync_disk.close()  # files that are open would not free their space
        self.epochs.retain(self._disk, begin, self.log.durable_end)
        logger.info("%s: %d files before %d are deleted", self.paths.root, count, begin)
        if self._known.builds_queues:
            self._now_building.delete_before(begin)

    def count_connection(self) -> None:
        """Count a connection to the broker."""
        self._syncing.settle()
        self.state = replace(self._known, n_connections=self._known.n_connections + 1)

    def seconds_behind(self) -> float:
        """Return how old the newest record is, 0 if the broker is not known to have more."""
        last = self.log.last_store_timestamp
        if self.log.durable_end >= self._told.bounds.high or not last:
            return 0.0
        return round(max(time.time() - last / 1000, 0.0), 3)

    def check(self) -> None:
        """Raise what ended a thread."""
        self._syncing.check()
        if self._metadata is not None:
            self._metadata.check()
        if self._building is not None:
            self._building.check()

    def _stop_building(self) -> None:
        """End the threads before files are deleted whose names others will have."""
        self._syncing.settle()
        self._now_building.drop()
        self._now_building.check()
        self._sync_disk.close()

    def cut(self, end: int, reason: str) -> None:
        """Cut the log where a record ends, and what was built of the records after it."""
        assert self._builder is not None
        self._is_whole = False
        self._stop_building()
        self.log.sync()
        folder, now = new_cut_folder(self.paths), int(time.time() * 1000)
        warn_of_cut(self.paths.root, self.log.log, (end, self.log.end), reason, folder)
        state = replace(self._known, built=self._now_building.built)
        self._save(state.with_cut(end, self.log.end - end, now, folder))
        self.log.cut(end, reason, folder)
        self.epochs.cut(self._disk, end)
        self._builder.cut(end)
        self._told.use_newest()
        self.log.read_last_time()
        self._start_building()
        self._is_whole = True

    def begin_again(self, begin: int) -> None:
        """Begin a copy at another physical offset; the state covers none of its records."""
        assert self._builder is not None
        self._is_whole = False
        self._stop_building()
        self.log.cut(self._known.begin, "the broker does not have it", new_cut_folder(self.paths))
        self.log.begin_again(begin)  # without files, the copy can begin anywhere
        self.epochs.begin_again(begin)
        self._save(replace(self._known, begin=begin, end=begin, built=begin))
        self._unvouched = Unvouched(None)
        self._builder.begin_again(begin)
        self._start_building()
        self._is_whole = True

    def close(self, old_files: OldFiles | None = None) -> None:
        """Complete queues and index, and leave a store that was closed; release the lock.

        After a change that failed, and if completing fails, this is :meth:`abandon`.

        Args:
            old_files: says which files are deleted before.
        """
        if self._log is None or not (self._is_whole and self._log.is_whole):
            self.abandon()
            return
        try:
            self._complete(old_files)
        except BaseException:
            self.abandon()
            raise
        self._release()

    def _complete(self, old_files: OldFiles | None = None) -> None:
        if self._building is None:
            return
        self.log.forget_begun()
        self.sync()
        self._building.finish()
        if not self._building.is_whole or self.log.sure_end < self.log.end:
            what = "compared" if self._building.is_whole else "built into their queues"
            logger.warning("%s is not closed: the last messages were not %s", self.paths.root, what)
            self.write_state()
            return
        if old_files is not None:
            self.delete_old(old_files)
        if self._builder is not None and self.epochs.last >= 0:
            self._builder.confirm(max(min(self.epochs.confirm_offset, self.log.end), 0))
        self._spare.free(self._disk)
        self.write_state(is_closed=True)
        end = CleanEnd(self.log.end, self.log.last_store_timestamp)
        self.log.log.refresh()
        mark_as_closed(self._disk, self.paths, self.log.log, end)

    def set_aside(self) -> Path:
        """Complete the copy and rename its folder, which may then be used again; return its name.

        The lock, a file in the folder, is held until the folder has its new name.
        """
        self._complete()
        self._stop_using()
        target = move_aside(self.paths.root, self._known.end)
        self._lock.release()
        return target

    def abandon(self) -> None:
        """Bring to the disk what is whole, as far as possible, and release the lock."""
        try:
            with suppress(OSError):
                self._syncing.settle()
                if self._log is not None and self._building is not None:
                    self._spare.free(self._disk)
                    self._log.sync()
                    self.write_state()
        finally:
            self._release()

    def _release(self) -> None:
        self._stop_using()
        self._lock.release()

    def _stop_using(self) -> None:
        """End the threads, and close all files but the lock."""
        self._syncing.close()
        if self._building is not None:
            self._building.drop()
        for part in (self._log, self._builder):
            if part is not None:
                part.close()
        for disk in (self._disk, self._queue_disk, self._sync_disk):
            with suppress(OSError):
                disk.close()
