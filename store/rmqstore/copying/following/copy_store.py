"""The store that a copy is: its lock, its log, its queues and its state, in the right order.

The order in which changes come to the disk: the log, the state, queues and index, the checkpoint. A
cut is written to the state first. So the state is never ahead of the log, and whatever it does not
vouch for is kept aside when the copy is opened again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rmqstore.copying.following.background import Building, Metadata
from rmqstore.copying.following.log_copy import LogCopy
from rmqstore.copying.following.queue_builder import QueueBuilder
from rmqstore.copying.following.source import Source
from rmqstore.copying.following.state import FollowState, read_state, write_state
from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, StoreStateError
from rmqstore.format.columns.dispatch_requests import read_requests
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.files.paths import StorePaths, our_abort
from rmqstore.storage.log.clean_end import CleanEnd, mark_as_closed
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import walk_forward
from rmqstore.storage.recovery.log_end import last_record_before

logger = logging.getLogger(__name__)

_MOST_TOPICS_NAMED: Final = 10
_OURS: Final = {"lock", ".rmqstore"}  # what there is before the state was written the first time


def copy_paths(root: Path) -> StorePaths:
    """Return the files of a copy, which is always in one folder."""
    return StorePaths(root, (root / "commitlog",), root / "consumequeue", root / "index")


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
    """

    def __init__(self, root: Path, make_disk: Callable[[], Disk] = Disk) -> None:
        self.paths = copy_paths(root)
        self.state = read_state(self.paths)
        if self.state is None:
            names = {entry.name for entry in LOCAL.list_folder(root)} - _OURS
            if names:
                raise StoreStateError(
                    f"{root} exists already and is not a copy that a follower made: "
                    "name a new folder"
                )
        self._disk, self._queue_disk = make_disk(), make_disk()
        for disk in (self._disk, self._queue_disk):
            disk.keep_within(root)
        self._disk.make_folder(root, is_private=True)
        self._lock = StoreLock(self.paths.lock)
        self.state = read_state(self.paths)  # another follower may have ended since
        self._log: LogCopy | None = None
        self._builder: QueueBuilder | None = None
        self._building: Building | None = None
        self._metadata: Metadata | None = None
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
    def is_open(self) -> bool:
        """Whether :meth:`resume` was called."""
        return self._log is not None

    def require_source(self, source: Source) -> None:
        """Refuse another source than the copy has.

        Raises:
            StoreStateError: the copy is of another broker, or the broker's files have other sizes.
        """
        state = self.state
        if state is None:
            return
        if (state.cluster, state.broker) != (source.cluster, source.broker):
            raise StoreStateError(
                f"{self.paths.root} is a copy of broker {state.broker!r} of cluster "
                f"{state.cluster!r}, not of {source.broker!r} of {source.cluster!r}"
            )
        if state.file_size != source.file_size:
            raise StoreStateError(
                f"{self.paths.root} has files of {state.file_size} bytes, and the broker now "
                f"makes files of {source.file_size}: follow it into a new folder"
            )

    def resume(self, source: Source, address: str, begin: int, metadata: Metadata) -> None:
        """Open the copy to be continued, or begin it.

        Args:
            source: the broker, which :meth:`require_source` does not refuse.
            address: where it was reached.
            begin: physical offset where a new copy begins.
            metadata: what the broker tells.

        Raises:
            StoreStateError: files of the log are missing.
        """
        paths, disk = self.paths, self._disk
        self._metadata = metadata
        disk.make_folder(paths.own)
        state = self.state
        if state is None:
            state = FollowState(
                source.cluster, source.broker, address, source.file_size, begin, begin, begin
            )
        was_closed = state.is_closed and not paths.has_abort
        state = replace(
            state, address=address, is_closed=False, store_type=source.store_type, n_connections=0
        )
        state = replace(state, begin=self._begin_of(state))
        self.state = state
        write_state(disk, paths, state)  # before anything that makes the folder look like a store
        disk.write_new(paths.abort, our_abort())
        disk.delete(paths.clean_end)
        for folder in (paths.commitlogs[0], paths.consumequeue, paths.config):
            disk.make_folder(folder)
        log = LogCopy(disk, paths, source.file_size, state.end, f"the log of {address}")
        self._log = log
        log.cut(state.end, "what follows may not be whole", self._new_cut_folder())
        log.last_store_timestamp = self._last_store_timestamp()
        builder = QueueBuilder(
            self._queue_disk, paths, source.config, self._is_batch_topic, self._note_built
        )
        self._builder = builder
        builder.recover(min(state.built, state.end), was_closed=was_closed)
        builder.protect()
        self._start_building()

    def _begin_of(self, state: FollowState) -> int:
        """Return where the files of the log begin, some of which may have been deleted.

        Raises:
            StoreStateError: files between the begin and the end are missing.
        """
        if state.begin == state.end:
            return state.begin
        log = CommitLog(self.paths.commitlogs)
        expected = log.min_offset
        for segment in log.segments:
            if segment.start != expected or segment.size != state.file_size:
                break
            expected = segment.end
        log.close()
        if not log.segments or log.min_offset >= state.end or expected < state.end:
            raise StoreStateError(
                f"{self.paths.commitlogs[0]} should reach to {state.end}, and from {expected} on "
                "files are missing or have other sizes: put them back, or follow the broker into "
                "a new folder"
            )
        return max(state.begin, log.min_offset)

    def _note_built(self, built: int) -> None:
        assert self.state is not None
        self.state = replace(self.state, built=built)
        write_state(self._disk, self.paths, self.state)

    def _is_batch_topic(self, topic: str) -> bool:
        return self._building is not None and self._building.is_batch_topic(topic)

    def _start_building(self) -> None:
        assert self._builder is not None
        assert self._metadata is not None
        self._building = Building(
            self._builder, self._queue_disk, self.paths, self._metadata, self.log.durable_end
        )

    def _new_cut_folder(self) -> Path:
        """Return a new folder for what is cut."""
        now = time.time()
        name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        return self.paths.own / "cut" / f"{name}.{int(now * 1000) % 1000:03d}"

    def _last_store_timestamp(self) -> int:
        last = last_record_before(self.log.log, self.log.end) if self.log.end else None
        try:
            return 0 if last is None else self.log.log.store_timestamp(last)
        except (CorruptRecordError, OffsetOutOfRangeError):  # a time that is in no calendar
            return 0

    def sync(self) -> None:
        """Bring the log to the disk, then the state; then queues may be built."""
        assert self._building is not None
        self.log.sync()
        self.write_state()
        self._building.go_on(self.log.durable_end)

    def write_state(self, *, is_closed: bool = False) -> None:
        """Write the state as it is on the disk."""
        assert self.state is not None
        assert self._metadata is not None
        assert self._building is not None
        end, high = self.log.durable_end, self._metadata.bounds.high
        self.state = replace(
            self.state,
            end=end,
            built=min(self._building.built, end),  # a cut may not have come to the queues
            is_closed=is_closed,
            tables_at=self._building.tables_at or self.state.tables_at,
            source_end=high,
            behind_seconds=self.seconds_behind(),
            updated_at=int(time.time() * 1000),
        )
        write_state(self._disk, self.paths, self.state)

    def count_connection(self) -> None:
        """Count a connection to the broker."""
        assert self.state is not None
        self.state = replace(self.state, n_connections=self.state.n_connections + 1)

    def seconds_behind(self) -> float:
        """Return how old the newest record is, 0 if the broker is not known to have more."""
        assert self._metadata is not None
        last = self.log.last_store_timestamp
        if self.log.durable_end >= self._metadata.bounds.high or not last:
            return 0.0
        return round(max(time.time() - last / 1000, 0.0), 3)

    def check(self) -> None:
        """Raise what ended the thread that builds queues, or the one that asks."""
        if self._metadata is not None:
            self._metadata.check()
        if self._building is not None:
            self._building.check()

    def cut(self, end: int, reason: str) -> None:
        """Cut the log where a record ends, and what was built of the records after it."""
        assert self._building is not None
        assert self._builder is not None
        assert self._metadata is not None
        assert self.state is not None
        self._is_whole = False
        self._building.drop()
        self._building.check()
        self.log.sync()
        folder = self._new_cut_folder()
        n_bytes = self.log.end - end
        counts = self._messages_from(end)
        named = ", ".join(f"{topic} {n}" for topic, n in counts.most_common(_MOST_TOPICS_NAMED))
        logger.warning(
            "%s: %d bytes from %d on are cut (%s) and kept in %s; "
            "the broker has lost %d messages of %d topics: %s",
            self.paths.root, n_bytes, end, reason, folder, counts.total(), len(counts), named,
        )  # fmt: skip
        self.state = replace(self.state, built=self._building.built).with_cut(
            end, n_bytes, int(time.time() * 1000), folder
        )
        write_state(self._disk, self.paths, self.state)
        self.log.cut(end, reason, folder)
        self._builder.cut(end)
        self._metadata.use_newest()
        self.log.last_store_timestamp = self._last_store_timestamp()
        self._start_building()
        self._is_whole = True

    def begin_again(self, begin: int) -> None:
        """Begin a copy that has no record at another physical offset."""
        assert self._building is not None
        assert self._builder is not None
        assert self.state is not None
        assert self.log.end == self.state.begin
        self._is_whole = False
        self._building.drop()
        self._building.check()
        self.log.begin_again(begin)  # without files, the copy can begin anywhere
        self.state = replace(self.state, begin=begin, end=begin, built=begin)
        write_state(self._disk, self.paths, self.state)
        self._builder.begin_again(begin)
        self._start_building()
        self._is_whole = True

    def _messages_from(self, start: int) -> Counter[str]:
        """Return the number of messages from a record on, by topic."""
        counts: Counter[str] = Counter()
        log = self.log.log
        log.refresh()
        for low, high, segment in log.stretches(start, self.log.end):
            if segment is None:
                continue
            for window in walk_forward(log, segment, low, high):
                for _, heads, whole in window.heads():
                    units = read_requests(window.data, heads.take(whole.nonzero()[0])).units
                    for code, topic in enumerate(units.topics):
                        counts[topic] += int((units.topic_codes == code).sum())
                if window.damage is not None:
                    break
        return counts

    def close(self) -> None:
        """Complete queues and index, and leave a store that was closed; release the lock.

        After a change that failed, and if completing fails, this is :meth:`abandon`.
        """
        if self._log is None or not (self._is_whole and self._log.is_whole):
            self.abandon()
            return
        try:
            self._complete()
        except BaseException:
            self.abandon()
            raise
        self._release()

    def _complete(self) -> None:
        if self._building is None:
            return
        self.log.forget_begun()
        self.sync()
        self._building.finish()
        self.write_state(is_closed=True)
        end = CleanEnd(self.log.end, self.log.last_store_timestamp)
        self.log.log.refresh()
        mark_as_closed(self._disk, self.paths, self.log.log, end)

    def abandon(self) -> None:
        """Bring to the disk what is whole, as far as possible, and release the lock."""
        try:
            with suppress(OSError):
                if self._log is not None and self._building is not None:
                    self._log.sync()
                    self.write_state()
        finally:
            self._release()

    def _release(self) -> None:
        if self._building is not None:
            self._building.drop()
        for part in (self._log, self._builder):
            if part is not None:
                part.close()
        for disk in (self._disk, self._queue_disk):
            with suppress(OSError):
                disk.close()
        self._lock.release()
