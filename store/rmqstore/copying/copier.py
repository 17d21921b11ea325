"""Copies a store, and continues where an earlier attempt ended."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Unpack

import numpy as np

from rmqstore.copying.checks import (
    JOURNAL,
    LOCK,
    NOTED_BYTES,
    NOTED_FILES,
    CopySteps,
    Journal,
    config_content,
    findings_of,
    head_of,
    name_of,
    refuse_records_after,
    require_apart,
    require_ours,
    resolved,
    tables_of,
    take_lock,
)
from rmqstore.copying.plan import (
    CopyPlan,
    CopyRequest,
    PlannedFile,
    copy_until_stable,
    is_of_database,
    plan_copy,
    plan_database,
    require_possible,
)
from rmqstore.copying.remote_copier import RemoteCopier, require_copyable
from rmqstore.errors import Finding, StoreStateError, UnsupportedFeatureError
from rmqstore.format.columns.walk import cut_batches
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.times import is_relative, parse_timestamp
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig, sizes_of
from rmqstore.storage.broker.topic_table import keep_topics
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import our_abort
from rmqstore.storage.files.remote_location import locate
from rmqstore.storage.files.remote_storage import RemoteStorage
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.recovery.log_end import count_after, find_log_end
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import open_for
from rmqstore.write.existing_store import require_writable

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 8 << 20
_DATABASE_ATTEMPTS: Final = 5
_DISPATCH_SECONDS: Final = 1.0  # in which a broker has built the units of what is in its log


class Copied(NamedTuple):
    """What a copy has.

    Attributes:
        n_files: the files that were copied, by this attempt or an earlier one.
        n_bytes: their bytes up to the end of what was written.
        left_out: in words, what the source has and the copy does not.
        findings: what :func:`~rmqstore.inspect.verify.verify` finds in the copy.
    """

    n_files: int
    n_bytes: int
    left_out: tuple[str, ...]
    findings: tuple[Finding, ...]


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    since: str | float | None = None,
    topics: str | list[str] | None = None,
    config: StoreConfig | None = None,
    truncate: bool = False,
    verify: bool = True,
    progress: Progress = ignore_progress,
    disk: Disk | None = None,
    storage_options: Mapping[str, object] | None = None,
    filesystem: object = None,
    target_options: Mapping[str, object] | None = None,
    target_filesystem: object = None,
    **folders: Unpack[FolderArguments],
) -> Copied:
    """Copy a store into a new folder, as a valid store that was closed.

    The source may be in use. Its log is copied up to the end that it has when the copy begins;
    queues and index get what they lack, as a recovery would build it. Files of zeros and the unused
    ends of files take no space. The copy grows in a folder named ``TARGET.partial``, which gets its
    name when it is complete. A copy that was interrupted is continued by the same call.

    The log is never copied in part. Parts of it that lie elsewhere come into the usual folders.

    The target may be a URI. Only a store that was closed is copied there, because a copy is
    repaired on a local disk. Its files get their names at once; as long as the copy is not
    complete, a file in its folder says so, and readers refuse it.

    Args:
        source: the store, by its folder or by a URI.
        target: the new folder, or its URI; it must not exist.
        since: leave out the oldest files of the log, of queues and of the index whose messages were
            all stored before this time: epoch ms, ISO-8601, such as ``-7d``, or a datetime.
        topics: copy only the queues of these topics, and of the system's; the log keeps the
            messages of all.
        config: sizes of the queue files and index files that a repair of the copy makes, for kinds
            of which the store has no file.
        truncate: leave out good records that follow damage of a log that was not closed.
        verify: check the copy at the end.
        progress: called with the bytes that are done and their total, which counts the bytes once
            for the copy and once for the check.
        disk: performs all changes.
        storage_options: how to reach the storage that a URI names, as for ``rmqstore.open``.
        filesystem: the file system that has the source, as for ``rmqstore.open``.
        target_options: how to reach the storage that the target's URI names.
        target_filesystem: the file system that gets the copy.
        folders: as for ``rmqstore.open``.

    Raises:
        StoreStateError: the target exists, or holds the unfinished copy of another store.
        UnsupportedFeatureError: the store is in use, and is of a kind whose copy cannot be made
            valid, or the target is a URI.
        CorruptRecordError: the store was not closed, and good records follow damage of its log,
            and ``truncate`` is not set.
    """
    if isinstance(topics, str):
        topics = [topics]
    request = CopyRequest(
        None if since is None else parse_timestamp("since", since),
        None if topics is None else frozenset(topics),
        str(since).strip() if is_relative(since) else None,
    )
    name = name_of(source, filesystem)
    given = resolved(folders) if isinstance(name, Path) else folders
    steps = CopySteps(progress, verify=verify)

    def open_source() -> MessageStore:
        return open_for(name, storage_options=storage_options, filesystem=filesystem, **given)

    head = head_of(str(name), request, given)
    path, storage = locate(target, target_options, target_filesystem)
    if isinstance(storage, RemoteStorage):
        with open_source() as store:
            require_copyable(store, storage, request, str(path))
        remote = RemoteCopier(open_source, storage, request, head, steps)
        return _copied(*remote.run(verify=verify))
    goal = LOCAL.full_path(Path(path))
    own_disk = disk or Disk()
    partial = goal.with_name(goal.name + ".partial")
    if LOCAL.exists(goal):
        raise StoreStateError(f"{goal} exists already: a copy is made in a new folder")
    if not is_folder(LOCAL, goal.parent):
        raise StoreStateError(f"{goal}: there is no folder {goal.parent}")
    with open_source() as store:  # what is wrong with the arguments is said before any change
        store.parts.require("a copy")
        require_apart(store, goal, partial)
        require_possible(store.parts, request)
    require_ours(partial)
    own_disk.keep_within(partial)
    own_disk.make_folder(partial / JOURNAL.parent)
    lock = take_lock(partial)
    try:
        with named_os_errors(partial, "the same call continues the copy"):
            journal = Journal(own_disk, partial, head)
            copier = _Copier(
                own_disk, open_source, partial, request, journal, steps, truncates=truncate
            )
            plan = copier.run(config)
            findings = copier.check(goal) if verify else ()
            own_disk.keep_within(goal.parent)
            own_disk.rename(partial, goal)
            own_disk.flush_folder(goal.parent)
            own_disk.delete(goal / LOCK)
            own_disk.delete(goal / JOURNAL)
    finally:
        lock.release()
        own_disk.close()
    return _copied(plan, findings)


def _copied(plan: CopyPlan, findings: tuple[Finding, ...]) -> Copied:
    return Copied(len(plan.files), plan.n_bytes, (*plan.left_out, *plan.skipped), findings)


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in LOCAL.list_folder(folder):
        path = folder / entry.name
        if entry.is_folder and not entry.is_link:
            yield from _files_below(path)
        else:
            yield path


@dataclass(frozen=True)
class _Copier:
    disk: Disk
    open_source: Callable[[], MessageStore]
    target: Path
    request: CopyRequest
    journal: Journal
    steps: CopySteps
    truncates: bool

    def run(self, config: StoreConfig | None) -> CopyPlan:
        """Copy all files, and make the copy of a store valid whose queues may lack messages."""
        plan = copy_until_stable(
            self.open_source,
            self.request,
            self._copy,
            "stop its broker, or copy a snapshot of its disk",
        )
        if not plan.is_closed or self._lacks_units():
            # A writer repairs the copy, as it repairs a store whose writer has died.
            with self.open_source() as store:
                config = config or sizes_of(store.paths.settings)
            self.disk.replace(self.target / "abort", our_abort())
            open_for(self.target, "a", config=config).close()
        if self.request.topics is not None:
            # The repair may have built queues of the topics that are left out.
            paths = find_store(self.target)
            for topic in (*paths.queue_folders.topics(), *paths.batch_folders.topics()):
                if not self.request.has(topic):
                    self.disk.delete_tree(paths.consumequeue / topic)
                    self.disk.delete_tree(paths.batch_folders.root / topic)
            keep_topics(self.disk, paths, self.request.has)
        return plan

    def _lacks_units(self) -> bool:
        """Return whether queues in files lack messages of a log that a recovery leaves whole."""
        with open_for(self.target) as store:
            ends, log = store.parts.ends, store.parts.log
            if store.paths.rocksdb_queues is not None or not ends.recovered or ends.lost():
                return False
            return not count_after(log, find_log_end(log, read_checkpoint(store.paths)))[0]

    def check(self, goal: Path) -> tuple[Finding, ...]:
        """Return the findings of the copy before it gets its final name."""
        with open_for(self.target) as store:
            return findings_of(store, self.request, self.steps, str(goal))

    def _copy(self, store: MessageStore) -> CopyPlan:
        """Copy the files, as the store has them at this time; return what was copied."""
        paths = store.paths
        end = store.log_end
        log_end = None
        n_dropped = 0
        if end is not None:
            try:
                require_writable(paths)
            except UnsupportedFeatureError as err:
                raise UnsupportedFeatureError(
                    f"{err}; so the copy of such a store cannot be made valid while it is open: "
                    "stop its broker first"
                ) from err
            log_end = end.physical_offset
            n_dropped = store.parts.ends.after_end.n_records if end.reason else 0
            if n_dropped and not self.truncates:
                refuse_records_after(end, n_dropped)
            if paths.storage.is_locked(paths.lock):
                time.sleep(_DISPATCH_SECONDS)
        plan = plan_copy(store.parts, self.request, log_end)
        if n_dropped:
            plan.left_out.append(f"{n_dropped} good records after damage of the log")
        self._remove_others(plan)
        for name in ("commitlog", "consumequeue", "config"):
            self.disk.make_folder(self.target / name)
        self.steps.begin(plan.n_bytes)
        done = 0
        sizes = np.array([file.end for file in plan.files], np.int64)
        for together in cut_batches(sizes, NOTED_FILES, NOTED_BYTES):
            copied = []
            for file in plan.files[together]:
                status = LOCAL.status(self.target / file.name)
                is_whole = status is not None and status.size == file.size
                if not (is_whole and self.journal.has(file)):
                    self._copy_file(store, file)
                    copied.append(file)
                done += file.end
                self.steps.copied(done)
            self.disk.flush_all([self.target / file.name for file in copied])
            self.journal.add(copied)
        return plan if end is None else self._copy_database(store, plan)

    def _copy_database(self, store: MessageStore, plan: CopyPlan) -> CopyPlan:
        """Copy the index in RocksDB until its tables stayed the same meanwhile, or leave it out."""
        others = [file for file in plan.files if not is_of_database(file)]
        copied = [file for file in plan.files if is_of_database(file)]
        for attempt in range(_DATABASE_ATTEMPTS):
            now = plan_database(store.parts)
            if tables_of(now) == tables_of(copied):
                return plan._replace(files=[*others, *copied])
            if attempt == _DATABASE_ATTEMPTS - 1:
                break
            self._remove_others(plan._replace(files=others))
            copied = now
            try:
                for file in copied:
                    self._copy_file(store, file)
            except FileNotFoundError:
                continue
            self.disk.flush_all([self.target / file.name for file in copied])
        self._remove_others(plan._replace(files=others))
        text = f"{store.paths.rocksdb_store}, whose tables changed each time that they were copied"
        return plan._replace(files=others, skipped=[*plan.skipped, text])

    def _remove_others(self, plan: CopyPlan) -> None:
        """Delete what an earlier attempt copied and the store no longer has."""
        names = {file.name for file in plan.files}
        kept = {self.target / JOURNAL, self.target / LOCK}
        for path in _files_below(self.target):
            if path not in kept and path.relative_to(self.target).as_posix() not in names:
                self.disk.delete(path)

    def _copy_file(self, store: MessageStore, file: PlannedFile) -> None:
        path = self.target / file.name
        self.disk.make_folder(path.parent, is_flushed=False)
        self.disk.delete(path)
        if file.name.startswith("config/"):
            # A broker replaces these files, each by one of another length.
            content = config_content(store.paths.storage, file.source)
            self.disk.create(path, 0)
            self.disk.write(path, 0, content)
            return
        self.disk.create(path, file.size)
        chunk = np.empty(min(_CHUNK_BYTES, max(file.end, 1)), np.uint8)
        with store.paths.storage.open(file.source) as opened:
            for low, high in opened.data_spans(0, file.end, is_appended=file.is_appended):
                for position in range(low, high, len(chunk)):
                    window = chunk[: min(len(chunk), high - position)]
                    n_read = opened.read_into(window, position)
                    if window[:n_read].any():
                        self.disk.write(path, position, window[:n_read])
