"""The store that a copy is: its lock, its log, its queues and its state, and two threads.

The loop writes the log. One thread brings it to the disk, and then the state; another one builds
queues and index, and writes tables. Each receives actions, which are values, and returns events;
each has its own disk, and nothing of what it works with is changed by anybody else meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore.errors import StoreStateError
from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.dispatch_requests import read_queue_units
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.columns.search import store_their_offsets
from rmqstore.format.layout import Mask
from rmqstore.replica import events
from rmqstore.replica.events import Action, Event
from rmqstore.replica.log_copy import LogCopy, LogFlush, RecordStarts
from rmqstore.replica.queue_builder import QueueBuilder, write_tables
from rmqstore.replica.retention import OldFiles
from rmqstore.replica.state import (
    FollowState,
    copy_paths,
    cut_folder,
    epochs_within,
    note_epochs,
    noted_epochs,
    read_state,
    require_new,
    write_state,
)
from rmqstore.storage.broker.epochs import Epoch
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.files.paths import StorePaths, our_abort
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, next_record, walk_forward, whole_records
from rmqstore.storage.log.writer_notes import CleanEnd, mark_as_closed

logger = logging.getLogger(__name__)


_SPARE_BYTES: Final = 256 << 10
_BLOCK_BYTES: Final = 8 << 20
_POLL_SECONDS: Final = 0.05  # between two polls whether a thread has ended

_MOST_TOPICS_NAMED: Final = 10


def reserve_spare(disk: Disk, path: Path) -> None:
    """Reserve space that is freed when the disk is full, so that the state can be written.

    A state that lags behind the log would make the next follower move valid bytes aside, for
    which a full disk has no space either.

    Raises:
        OSError: there is none.
    """
    if not LOCAL.exists(path):
        disk.create(path, 0)
        disk.reserve(path, 0, _SPARE_BYTES)


def is_fetched_again(folder: Path, log: LogCopy, saved: FollowState) -> bool | None:
    """Return whether a log again has the bytes that were set aside when it was opened.

    The broker nearly always sends the same bytes again. Then they need not be kept twice. None if
    the log that is on the disk has not come as far.

    Args:
        folder: where the bytes are, in files named ``FILE`` or ``FILE.OFFSET``.
        log: the log of the copy.
        saved: the state that is on the disk.
    """
    with ExitStack() as stack:
        kept = []
        for entry in LOCAL.list_folder(folder):
            file = stack.enter_context(LOCAL.open(folder / entry.name))
            name, _, offset = entry.name.partition(".")
            kept.append((file, int(offset or name), file.written_end(file.size)))
        if any(start < saved.begin for _, start, _ in kept):
            return False
        if any(start + size > saved.end for _, start, size in kept):
            return None
        for file, start, size in kept:
            for done in range(0, size, _BLOCK_BYTES):
                block = np.empty(min(_BLOCK_BYTES, size - done), np.uint8)
                file.read_into(block, done)
                if not np.array_equal(block, log.read(start + done, len(block))):
                    return False
    return True


def begin_of_files(paths: StorePaths, saved: FollowState) -> int:
    """Return the begin of a log, whose first files may have been deleted.

    Raises:
        StoreStateError: files between the begin and the end are missing.
    """
    if saved.begin == saved.end:
        return saved.begin
    log = CommitLog(paths.commitlogs)
    expected = log.min_offset
    for segment in log.segments:
        if segment.start != expected or segment.size != saved.file_size:
            break
        expected = segment.end
    log.close()
    if not log.segments or log.min_offset >= saved.end or expected < saved.end:
        raise StoreStateError(
            f"{paths.commitlogs[0]} should reach to {saved.end}, and from {expected} on files are "
            "missing or have other sizes: put them back, or follow the broker into a new folder"
        )
    return max(saved.begin, log.min_offset)


def found_end(paths: StorePaths, saved: FollowState) -> int:
    """Return the end of the complete records after those that a state covers.

    A follower that was killed leaves them: they were written, and the state did not come as far.
    Somebody may have read them since. After a cut, they may be what was to be cut, and do not
    count.
    """
    end = saved.end
    if end == saved.last_cut:
        return end
    with closing(CommitLog(paths.commitlogs)) as log:
        for low, high, segment in log.segment_spans(end, log.max_offset):
            if segment is None:
                break
            for window in walk_forward(log, segment, low, high):
                for starts, headers, complete in window.headers():
                    valid = complete & _are_valid(window, headers)
                    if not valid.all():
                        return segment.start + int(starts[valid.argmin()])
                end = window.stopped
                if window.damage is not None:
                    return end
            end = segment.end
        return end


def _are_valid(window: Window, headers: RecordHeaders) -> Mask:
    """Return a mask (n,) of the records with their own offset, a valid body and a written end."""
    data = window.data
    has_its_body = valid_crcs(data, headers, stored_bodies(data, headers), of_records=False)
    ends = headers.starts + headers.column("total_size")
    # Nothing guards the properties. Of one write, a system may have done a part.
    is_written = (headers.property_lengths == 0) | (data[np.minimum(ends, len(data)) - 1] != 0)
    is_at_its_place = store_their_offsets(data, headers.starts, window.segment.start)
    valid: Mask = has_its_body & is_at_its_place & is_written
    return valid


def warn_of_cut(
    root: Path, log: CommitLog, start: int, end: int, *, reason: str, folder: Path
) -> None:
    """Report the messages that the broker has lost: those cut from a log and kept aside."""
    counts: Counter[str] = Counter()
    log.refresh()
    for window, headers in whole_records(log, start, end):
        units = read_queue_units(window.data, headers)
        for code, topic in enumerate(units.topics):
            counts[topic] += int((units.topic_codes == code).sum())
    named = ", ".join(f"{topic} {n}" for topic, n in counts.most_common(_MOST_TOPICS_NAMED))
    logger.warning(
        "%s: %d bytes from %d on are cut (%s) and kept in %s; the broker has lost "
        "%d messages of %d topics: %s",
        root, end - start, start, reason, folder, counts.total(), len(counts), named,
    )  # fmt: skip


def boundary_before(log: CommitLog, start: int, physical_offset: int) -> int:
    """Return the last offset up to a physical offset where a record begins or would begin.

    Args:
        log: the log of a copy.
        start: where a record of it begins.
        physical_offset: at or after ``start``.
    """
    segment = log.find(physical_offset)
    if segment is None or physical_offset <= max(start, segment.start):
        return physical_offset
    boundary = max(start, segment.start)
    for window in walk_forward(log, segment, boundary, physical_offset):
        starts = window.records.starts
        if len(starts):
            boundary = segment.start + int(starts[-1])
        if window.stopped <= physical_offset:
            boundary = window.stopped
        if window.damage is not None:
            break
    return boundary


class Worker:
    """A thread that performs actions, one after the other, and returns an event for each.

    An error ends it, and is an event too.

    Args:
        name: of the thread.
        perform: performs an action; returns the event.
        put: takes the event.

    Attributes:
        failed: the action that ended it, and its error; None as long as it runs.
    """

    def __init__(
        self, name: str, perform: Callable[[Any], Event], put: Callable[[Event], None]
    ) -> None:
        self._perform = perform
        self._put = put
        self._actions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failed: tuple[Any, BaseException] | None = None
        # An interrupt of join() makes a thread look ended.
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Let it begin. Whoever has to end it knows it before."""
        self._thread.start()

    def give(self, action: Any) -> None:  # noqa: ANN401 - whatever is performed
        """Give it an action."""
        self._actions.put(action)

    def _run(self) -> None:
        try:
            while self.failed is None and (action := self._actions.get()) is not None:
                if isinstance(action, threading.Event):  # all actions before are performed
                    action.set()
                    continue
                try:
                    event = self._perform(action)
                except BaseException as err:  # noqa: BLE001 - raised by the loop
                    self.failed = action, err
                    event = events.Failed(err, is_consistent=False)
                self._put(event)
        finally:
            self._has_ended.set()

    def finish(self) -> None:
        """Wait until it has performed all actions."""
        is_done = threading.Event()
        self._actions.put(is_done)
        while self._is_running and not is_done.wait(_POLL_SECONDS):
            pass

    def end(self) -> None:
        """End it, once it has performed all actions."""
        self._actions.put(None)
        while self._is_running:
            self._has_ended.wait(_POLL_SECONDS)

    @property
    def _is_running(self) -> bool:
        return self._thread.ident is not None and not self._has_ended.is_set()


class _LogAction(NamedTuple):
    """An action on the log or the state, and how many times files of the log were deleted."""

    action: LogFlush | events.WriteState
    n_removals: int


class _LogKeeper:
    """Brings the log, the epochs and the state to the disk."""

    def __init__(self, disk: Disk, paths: StorePaths, epochs: tuple[Epoch, ...]) -> None:
        self._disk = disk
        self._paths = paths
        self._epochs = epochs
        self._n_removals = 0

    def perform(self, to_do: _LogAction) -> Event:
        began = time.monotonic()
        # What is open may be deleted: a flush of it says nothing of a new file with its name, and
        # it takes space.
        if to_do.n_removals != self._n_removals:
            self._disk.close()
            self._n_removals = to_do.n_removals
        action = to_do.action
        if isinstance(action, LogFlush):
            action.perform(self._disk)
            return events.Flushed(action.end, action.number, time.monotonic() - began)
        if action.epochs != self._epochs:
            note_epochs(self._disk, self._paths, action.epochs)
            self._epochs = action.epochs
        write_state(self._disk, self._paths, action.saved)
        return events.StateWritten(action.saved, time.monotonic() - began)


def _perform_on_queues(
    disk: Disk, paths: StorePaths, builder: QueueBuilder, to_do: tuple[Action, RecordStarts]
) -> Event:
    """Build queues and index, or write tables; return the event of that."""
    action, starts = to_do
    began = time.monotonic()
    match action:
        case events.Build(end, is_far, kinds):
            builder.step(end, kinds, starts, is_far=is_far)
            return events.Built(*builder.progress, seconds=time.monotonic() - began)
        case events.TakeTables(facts):
            write_tables(disk, paths, facts.tables)
            return events.TablesWritten()
        case events.PlanCut(end):
            end = min(end, builder.progress.built)
            return events.QueuesChanged(builder.planned(end, was_closed=builder.is_clean))
        case events.CutQueues(end, is_new):
            if is_new:
                builder.begin_again(end)
            else:
                builder.cut(end)
        case events.DeleteOldQueues(begin):
            builder.delete_before(begin)
        case events.Complete(confirm_offset):
            if confirm_offset is not None:
                builder.confirm(confirm_offset)
    return events.QueuesChanged(builder.progress.built)


class CopyStore:
    """A copy, held by its lock from construction on.

    Args:
        root: its folder, which is made if it does not exist.
        put: takes the events of the threads.
        make_disk: returns a disk to make changes with; each thread has its own.
        old_files: finds the files that need not stay.

    Raises:
        StoreStateError: the folder holds something else.
        StoreLockedError: a broker or another follower has it.

    Attributes:
        paths: its files.
        saved: what the state file said; None of a new copy.
    """

    def __init__(
        self,
        root: Path,
        put: Callable[[Event], None],
        make_disk: Callable[[], Disk],
        old_files: OldFiles,
    ) -> None:
        self.paths = copy_paths(root)
        if read_state(self.paths) is None:
            require_new(root)
        self._put = put
        self._make_disk = make_disk
        self._old_files = old_files
        self._parts: list[Disk | LogCopy | QueueBuilder] = []  # what is closed at the end
        self._disk = self._new_disk()
        self._disk.make_folder(root, is_private=True)
        self._lock = StoreLock(self.paths.lock)
        self.saved = read_state(self.paths)
        self._log: LogCopy | None = None
        self._spare = self.paths.own.folder / "spare"
        self._aside: Path | None = None  # what was set aside, and is not known to have come again
        self._workers: tuple[Worker, ...] = ()

    def _new_disk(self) -> Disk:
        disk = self._make_disk()
        disk.keep_within(self.paths.root)
        self._parts.append(disk)
        return disk

    @property
    def log(self) -> LogCopy:
        """The log of a copy that is open."""
        assert self._log is not None
        return self._log

    def perform(self, action: Action) -> Event | None:
        """Perform an action; return the event if there is one at once."""
        match action:
            case events.Open():
                return self._open(action)
            case events.FindStart(physical_offset, begin, high):
                return self._find_start(physical_offset, begin, high)
            case events.FindBoundary():
                return self.differed(*action)
            case events.ForgetBegun():
                self.log.forget_begun()
            case events.Cut():
                return self._cut(action)
            case events.FindOldFiles():
                found = self._old_files.find(self.paths, self.log.log, *action)
                return events.OldFilesFound(*found)
            case events.DeleteOldFiles(begin):
                count = self.log.delete_before(begin)
                logger.info("%s: %d files before %d are deleted", self.paths.root, count, begin)
                return events.StepDone()
            case events.MarkClosed(end, last_time):
                self.log.log.refresh()
                mark_as_closed(self._disk, self.paths, self.log.log, CleanEnd(end, last_time))
                return events.StepDone()
            case _:
                self._give(action)
        return None

    def _open(self, action: events.Open) -> events.Opened:
        """Open the copy to be continued, or make it.

        Raises:
            StoreStateError: files of the log are missing.
        """
        paths, disk, saved = self.paths, self._disk, action.saved
        disk.make_folder(paths.own.folder)
        was_closed = saved.is_closed and not paths.has_abort
        begin = begin_of_files(paths, saved)
        saved = saved.opened(begin, builds_queues=action.builds_queues)
        write_state(disk, paths, saved)  # before anything that makes the folder look like a store
        reserve_spare(disk, self._spare)
        disk.replace(paths.abort, our_abort())
        disk.delete(paths.own.clean_end)
        for folder in (paths.commitlogs[0], paths.consumequeue, paths.config):
            disk.make_folder(folder)
        end = found_end(paths, saved)
        log = LogCopy(disk, paths, saved.file_size, end, f"the log of {action.address}")
        self._log = log
        self._parts.append(log)
        self._aside = cut_folder(paths.root, int(time.time() * 1000))
        log.cut(end, "what follows may not be whole", self._aside)
        log.flush_again(saved.end)  # once it is compared
        stored = noted_epochs(paths)
        epochs = epochs_within(stored, begin, saved.end)
        if epochs != stored:
            note_epochs(disk, paths, epochs)
        log.read_last_time()
        queue_disk = self._new_disk()
        builder = QueueBuilder(queue_disk, paths, action.source.config)
        built = min(saved.built, saved.end)
        self._parts.append(builder)
        start = builder.planned(built, was_closed=was_closed)
        saved = replace(saved, built=start)
        if start < built:
            write_state(disk, paths, saved)
        builder.recover(built, was_closed=was_closed)
        builder.protect()
        keeper = _LogKeeper(self._new_disk(), paths, tuple(epochs))
        on_queues = partial(_perform_on_queues, queue_disk, paths, builder)
        self._workers = (
            Worker("follow-sync", keeper.perform, self._put),
            Worker("follow-queues", on_queues, self._put),
        )
        for worker in self._workers:
            worker.start()
        return events.Opened(saved, end, log.last_store_timestamp, tuple(epochs))

    def _give(self, action: Action) -> None:
        """Give an action to the thread that performs it."""
        flushes, builds = self._workers
        n_removals = self.log.unflushed.n_removals
        if isinstance(action, events.Flush):
            flushes.give(_LogAction(self.log.begin_flush(action.end), n_removals))
        elif isinstance(action, events.WriteState):
            flushes.give(_LogAction(action, n_removals))
        elif isinstance(action, events.Build):
            builds.give((action, self.log.starts.until(action.end)))
        else:
            if isinstance(action, events.Complete):
                self._disk.delete(self._spare)
            builds.give((action, RecordStarts()))

    def note(self, event: Event) -> None:
        """Take note of what a thread has done.

        What was set aside when the copy was opened goes if the log has the same bytes again.
        """
        if isinstance(event, events.Flushed):
            self.log.unflushed.forget(event.number)
        elif isinstance(event, events.Built):
            self.log.starts.forget_before(event.written)
        elif isinstance(event, events.StateWritten) and self._aside is not None:
            is_fetched = is_fetched_again(self._aside, self.log, event.saved)
            if is_fetched:
                self._disk.delete_tree(self._aside)
            if is_fetched is not None:  # other bytes stay
                self._aside = None

    def failure(self, error: BaseException) -> events.Failed:
        """Return an error as an event, after the threads have performed all actions."""
        for worker in self._workers:
            worker.finish()
        is_consistent = all(worker.failed is None for worker in self._workers)
        log = self._log
        if log is None:
            return events.Failed(error, is_consistent)
        is_consistent = is_consistent and log.is_consistent
        return events.Failed(error, is_consistent, log.end, log.last_store_timestamp)

    def _find_start(self, physical_offset: int, begin: int, high: int) -> events.StartFound:
        """Find the record of the copy from which on the logs are compared."""
        copy = self.log
        copy.log.refresh()
        compared = physical_offset
        segment = copy.log.find(physical_offset)
        if segment is not None and physical_offset > segment.start:
            stop = min(segment.end, copy.end)
            first = next_record(copy.log, segment, physical_offset, stop)
            compared = first if first < stop else segment.start
        if compared > high:  # inside of a long record, the log of the broker ends
            compared = boundary_before(copy.log, begin, physical_offset)
        compared = max(compared, begin)
        agreed_from = copy.record_end(compared) if compared < copy.end else None
        return events.StartFound(compared, agreed_from)

    def differed(self, differs_at: int, compared_from: int, reason: str) -> events.Differed:
        """Return a difference, with the last offset up to there where a record begins."""
        boundary = boundary_before(self.log.log, compared_from, differs_at)
        return events.Differed(differs_at, boundary, reason)

    def _cut(self, action: events.Cut) -> events.LogCut:
        """Cut the log, and keep the cut bytes; the equal part of a record is buffered."""
        end, differs_at, reason, folder, begins_at = action
        copy = self.log
        if begins_at is None:
            root = self.paths.root
            warn_of_cut(root, copy.log, end, copy.end, reason=reason, folder=folder)
        agreed = copy.read(end, differs_at - end).tobytes() if differs_at > end else b""
        copy.cut(end, reason, folder)
        copy.read_last_time()
        copy.buffer(agreed)
        if begins_at is not None:
            copy.begin_again(begins_at)
            self._aside = None
        return events.LogCut(copy.end, copy.last_store_timestamp)

    def set_aside(self, end: int) -> Path:
        """Rename the folder, which may then be used again; return its name.

        The lock, a file in the folder, is held until the folder has its new name.
        """
        self._stop_using()
        root = self.paths.root
        name = f"{root.name}.until-{end}"
        target = root.with_name(name)
        number = 1
        while LOCAL.exists(target):
            number += 1
            target = root.with_name(f"{name}.{number}")
        with closing(Disk()) as disk:
            disk.rename(root, target)
            disk.flush_folder(root.parent)
        self._lock.release()
        return target

    def abandon(self, state_of: Callable[[int], events.WriteState | None]) -> None:
        """Bring to the disk what is valid, as far as possible, and release the lock.

        Args:
            state_of: returns what the state file has to say of a log that ends at a physical
                offset; None if the copy is not open.
        """
        try:
            for worker in self._workers:
                worker.end()
            failed = self._workers[0].failed if self._workers else None
            # After a flush of the log that failed, another one says nothing.
            has_lost_bytes = failed is not None and isinstance(failed[0].action, LogFlush)
            with suppress(OSError):
                if self._log is not None and self._workers and not has_lost_bytes:
                    self._disk.delete(self._spare)
                    self._log.begin_flush(self._log.end).perform(self._disk)
                    last_write = state_of(self._log.end)
                    if last_write is not None:
                        write_state(self._disk, self.paths, last_write.saved)
        finally:
            self.release()

    def release(self) -> None:
        """End the threads, close all files and release the lock."""
        self._stop_using()
        self._lock.release()

    def _stop_using(self) -> None:
        """End the threads, and close all files but the lock."""
        for worker in self._workers:
            worker.end()
        for part in self._parts:
            with suppress(OSError):
                part.close()
        self._log = None
