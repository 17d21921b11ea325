"""Which files of a store are copied, and up to where.

The log is never copied in part: a queue unit may point at any of its records, and a recovery walks
all of them. What is left out is whole files, and whole queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import (
    FileDeletedError,
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnreadableFileError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.format.topics import is_system_topic
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.files.paths import name_to_offset
from rmqstore.storage.files.storage import Entry
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.storage.log.walks import whole_records
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_MAX_ROUNDS: Final = 10  # each after the store was opened, or a file of the log was deleted

_MAX_BYTES = (1 << 31) - 1
_LEDGER = ".rmqstore/ledger"
_HISTORY = ".rmqstore/commits.older", ".rmqstore/commits"
_DATABASE = "rocksdbstore"
# Of the root: what has a place of its own in a plan, and what belongs to who has the store open.
_NOT_BY_NAME = {"commitlog", "consumequeue", "index", "lock", "abort", ".rmqstore"}
_BY_TOPIC = {"batchconsumequeue", "consumequeue_ext"}
_APPENDED = {"commitlog", "consumequeue", *_BY_TOPIC}


def copy_until_stable(
    open_source: Callable[[], MessageStore],
    request: CopyRequest,
    copy_files: Callable[[MessageStore], CopyPlan],
    advice: str,
) -> CopyPlan:
    """Copy the files of a store, round by round; return what the last round copied.

    It warns of files that cannot be copied.

    Args:
        open_source: opens the store.
        request: what of it is copied.
        copy_files: makes one round; returns what it copied.
        advice: what to do about a store that changes faster than it can be copied.

    Raises:
        StoreStateError: the store changes all the time.
    """
    for _ in range(_MAX_ROUNDS):
        try:
            with open_source() as store:
                plan = copy_files(store)
                is_outdated = False
                if plan.is_closed:  # a writer may have opened it since the copy was planned
                    store.paths.storage.refresh()
                    store.parts.refresh()
                    is_outdated = (
                        store.paths.has_abort
                        or store.paths.storage.is_locked(store.paths.lock)
                        or plan_copy(store.parts, request, None, plan.log_start) != plan
                    )
        except (FileDeletedError, FileNotFoundError) as err:
            logger.info("%s; continuing with the files that remain", err)
            continue
        if is_outdated:
            logger.info("the store was opened meanwhile; copying what has changed")
            continue
        for text in plan.skipped:
            logger.warning("not copied: %s", text)
        return plan
    raise StoreStateError(f"the store changes faster than it can be copied: {advice}")


class PlannedFile(NamedTuple):
    """A file that is copied.

    Attributes:
        source: its path.
        name: its path in the copy.
        size: its length in bytes, in the copy too.
        end: where the bytes end that are copied; zeros follow.
        modified_ns: when it was last changed, ns since the epoch.
        is_final: whether nobody writes to it any more.
    """

    source: Path
    name: str
    size: int
    end: int
    modified_ns: int
    is_final: bool

    @property
    def is_appended(self) -> bool:
        """Whether it is filled from its start on, as the log and queues are."""
        return self.name.split("/")[0] in _APPENDED


class CopyRequest(NamedTuple):
    """What of a store is copied.

    Attributes:
        since: files of the log with older messages only are left out; ms, None for no such limit.
        topics: the topics whose queues are copied, beside those of the system; None for all.
        named: ``since`` in words if it was given relative to now. A copy that continues later has
            the same words, and a later time.
    """

    since: int | None = None
    topics: frozenset[str] | None = None
    named: str | None = None

    def has(self, topic: str) -> bool:
        """Return whether the queues of a topic are copied."""
        return self.topics is None or topic in self.topics or is_system_topic(topic)


class CopyPlan(NamedTuple):
    """What is copied.

    Attributes:
        files: the files of the copy.
        left_out: in words, what is left out because the request says so.
        skipped: in words, what cannot be copied.
        log_start: physical offset of the first file of the log.
        is_closed: whether the store was closed.
    """

    files: list[PlannedFile]
    left_out: list[str]
    skipped: list[str]
    log_start: int
    is_closed: bool

    @property
    def n_bytes(self) -> int:
        """The bytes that are copied, at most."""
        return sum(file.end for file in self.files)


def plan_copy(
    store: StoreParts, request: CopyRequest, log_end: int | None, log_start: int | None = None
) -> CopyPlan:
    """List the files of a copy.

    Args:
        store: the source.
        request: what of it is copied.
        log_end: physical offset where its log ends; None if the store was closed.
        log_start: physical offset of the first file of the log that is copied; None to find it.

    Raises:
        FileDeletedError: a file of the log was deleted since it was listed.
        UnsupportedFeatureError: a file of the log is a symbolic link.
    """
    planner = _Planner(store, request, log_end)
    return planner.plan(planner.first_kept() if log_start is None else log_start)


def plan_database(store: StoreParts) -> list[PlannedFile]:
    """Return the files of the index in RocksDB as they are now, of a store that is open."""
    planner = _Planner(store, CopyRequest(), store.log.max_offset)
    return [*planner.folder(store.paths.rocksdb_store, _DATABASE)]


def is_of_database(file: PlannedFile) -> bool:
    """Return whether a file belongs to the index in RocksDB."""
    return file.name.startswith(f"{_DATABASE}/")


def require_possible(store: StoreParts, request: CopyRequest) -> None:
    """Refuse a request that the store cannot meet.

    Raises:
        OptionError: the store has no queues of a topic that is named.
        UnsupportedFeatureError: the store is of a kind of which no part can be left out.
    """
    paths = store.paths
    if request.topics is not None:
        known = {
            *store.store_queues.known_topics(),
            *paths.queue_folders.topics(),
            *paths.batch_folders.topics(),
        }
        unknown = sorted(request.topics - known)
        if unknown:
            raise OptionError(
                f"{paths.root} does not have the topic {', '.join(unknown)}; it has "
                f"{', '.join(sorted(topic for topic in known if not is_system_topic(topic)))}"
            )
        if paths.rocksdb_queues is not None:
            raise UnsupportedFeatureError(
                f"{paths.rocksdb_queues} holds the queues of all topics in one database: "
                "copy the store without topics="
            )
    if request.since is not None and (paths.dledger_logs or paths.rocksdb_queues is not None):
        raise UnsupportedFeatureError(
            f"{paths.root}: only of a plain log, with queues in files, can old files be left out: "
            "copy the store without since="
        )


class _Planner:
    def __init__(self, store: StoreParts, request: CopyRequest, log_end: int | None) -> None:
        self._paths = store.paths
        self._storage = store.paths.storage
        self._log = store.log
        self._segments = [
            one for one in store.log.segments if log_end is None or one.start < log_end
        ]
        self._request = request
        self._log_end = log_end
        self._left_out: list[str] = []
        self._skipped: list[str] = []

    def first_kept(self) -> int:
        """Return the start of the first copied file of the log.

        Files before it have only records that were stored before a time (ms). All of their records
        are checked, because a clock may have been set back.
        """
        since = self._request.since
        if since is None or not self._segments:
            return self._log.min_offset
        for segment in self._segments[:-1]:
            newest = 0  # without records
            for _, headers in whole_records(self._log, segment.start, segment.end):
                newest = max(newest, int(headers.column("store_timestamp").max(initial=0)))
            if not 0 < newest < since:
                return segment.start
        return self._segments[-1].start

    def plan(self, log_start: int) -> CopyPlan:
        # The ledger first: what it says is done must be in the log, whose end is already known.
        files = [*self.folder(self._paths.root / _LEDGER, _LEDGER)]
        for name in _HISTORY:
            files += self._file(self._paths.root / name, name)
        files += self._of_log(log_start)
        files += self._queues(log_start)
        files += self._index(log_start)
        # What else lies in the root: configuration, checkpoint, timers, databases.
        apart = {*self._paths.log_folders, self._paths.consumequeue, self._paths.index}
        names = _NOT_BY_NAME | _BY_TOPIC
        logs = self._paths.dledger_logs
        for entry in sorted(self._storage.list_folder(self._paths.root)):
            path = self._paths.root / entry.name
            if logs and path.name.startswith("dledger-") and path / "data" not in logs:
                self._skipped.append(f"{path}, the DLedger log of another node")
            elif entry.name not in names and path not in apart:
                files += self._entry(path, entry.name, entry)
        is_closed = self._log_end is None
        return CopyPlan(files, self._left_out, self._skipped, log_start, is_closed)

    def _file(self, source: Path, name: str, end: int | None = None) -> Iterator[PlannedFile]:
        """Yield a file as it is copied; nothing if it is gone, or skipped for it is not regular."""
        try:
            status = self._storage.status(source)
        except RmqStoreError as err:
            self._skipped.append(f"{source}: {err}")
            return
        if status is None:
            return  # its owner has just deleted it
        if not status.is_file:
            self._skipped.append(f"{source}, which is {status.kind}")
            return
        size = status.size
        if size > _MAX_BYTES:
            self._skipped.append(f"{source}, which is longer than any file of RocketMQ")
            return
        end = size if end is None else min(end, size)
        is_dated = status.modified_ns > 0  # else another content may have come in its place
        # A file of the log is written only once.
        folder, _, file = name.rpartition("/")
        is_of_log = folder.split("/")[0] == "commitlog" and name_to_offset(file) is not None
        is_final = is_dated and (self._log_end is None or (end == size and is_of_log))
        yield PlannedFile(source, name, size, end, status.modified_ns, is_final)

    def _of_log(self, log_start: int) -> Iterator[PlannedFile]:
        """Plan the files of the log, without those after its end and those that are too old."""
        log_end = self._log_end
        kept = [segment for segment in self._segments if segment.start >= log_start]
        if len(kept) < len(self._segments):
            self._left_out.append(
                f"{len(self._segments) - len(kept)} files of the log, "
                "with messages that were stored before that time"
            )
        folders = {segment.path.parent for segment in kept}
        links = {folder: self._storage.list_folder(folder) for folder in folders}
        for segment in kept:
            end = segment.size if log_end is None else log_end - segment.start
            folder = segment.path.parent
            if any(entry.is_link and entry.name == segment.path.name for entry in links[folder]):
                raise UnsupportedFeatureError(
                    f"{segment.path} is a symbolic link, which is not followed: "
                    "put the file in its place"
                )
            name = "commitlog"
            if folder in self._paths.dledger_logs:
                node = folder.parent.name
                name = f"{node if node.startswith('dledger-') else 'dledger-n0'}/data"
            planned = [*self._file(segment.path, f"{name}/{segment.path.name}", end)]
            if not planned:
                raise FileDeletedError(segment.file)
            yield from planned

    def _queues(self, log_start: int) -> Iterator[PlannedFile]:
        """Plan the queues in files, and a database of queues in their folder."""
        for entry in sorted(self._storage.list_folder(self._paths.consumequeue)):
            if not entry.is_folder:  # of a database
                path = self._paths.consumequeue / entry.name
                yield from self._entry(path, f"consumequeue/{entry.name}", entry)
        n_old = 0
        for folder, name in self._topic_folders(self._paths.consumequeue, "consumequeue"):
            for entry in sorted(self._entries(folder)):
                queue = entry.name
                files = [*self._entry(folder / queue, f"{name}/{queue}", entry)]
                files.sort(key=lambda file: file.name)
                n_first = self._n_old(files, log_start)
                n_old += n_first
                yield from files[n_first:]
        if n_old:
            self._left_out.append(f"{n_old} files of queues, with units of those messages")
        for name in _BY_TOPIC:
            for folder, topic in self._topic_folders(self._paths.root / name, name):
                yield from self.folder(folder, topic)

    def _topic_folders(self, folder: Path, name: str) -> Iterator[tuple[Path, str]]:
        n_others = 0
        for entry in sorted(self._storage.list_folder(folder)):
            path = folder / entry.name
            if entry.is_link:
                self._skipped.append(f"{path}, which is a symbolic link")
            elif entry.is_folder and self._request.has(entry.name):
                yield path, f"{name}/{entry.name}"
            elif entry.is_folder:
                n_others += 1
        if n_others:
            self._left_out.append(f"the queues of {n_others} topics in {name}")

    def _n_old(self, files: list[PlannedFile], log_start: int) -> int:
        """Return how many files of a queue hold only units of records before the first file."""
        if self._request.since is None:
            return 0
        for number, file in enumerate(files[:-1]):
            has_units = file.size and file.size % QUEUE_UNIT.itemsize == 0
            if not has_units or name_to_offset(file.source.name) is None:
                return number
            with self._storage.open(file.source) as opened:
                last = opened.read(file.size - QUEUE_UNIT.itemsize, QUEUE_UNIT.itemsize)
            unit = np.frombuffer(last.tobytes(), QUEUE_UNIT)
            is_unit = len(unit) and int(unit["size"][0]) > 0
            if not is_unit or int(unit["physical_offset"][0]) >= log_start:
                return number
        return max(len(files) - 1, 0)

    def _index(self, log_start: int) -> Iterator[PlannedFile]:
        n_old = 0
        links = {entry.name for entry in self._entries(self._paths.index) if entry.is_link}
        for path in index_files(self._paths.index, self._storage):
            if path.name in links:
                self._skipped.append(f"{path}, which is a symbolic link")
                continue
            if self._request.since is not None:
                last = int(read_header(path, self._storage)["end_phy_offset"])
                if 0 < last < log_start:
                    n_old += 1
                    continue
            yield from self._file(path, f"index/{path.name}")
        if n_old:
            self._left_out.append(f"{n_old} index files, with keys of those messages")

    def folder(self, folder: Path, name: str) -> Iterator[PlannedFile]:
        """Plan all files of a folder, except those of the log."""
        if folder in self._paths.log_folders:
            return
        for entry in sorted(self._entries(folder)):
            yield from self._entry(folder / entry.name, f"{name}/{entry.name}", entry)

    def _entries(self, folder: Path) -> list[Entry]:
        """Return the entries of a folder; none if it cannot be listed, and so is skipped."""
        try:
            return self._storage.list_folder(folder)
        except UnreadableFileError as err:
            self._skipped.append(f"{folder}: {err}")
            return []

    def _entry(self, path: Path, name: str, entry: Entry) -> Iterator[PlannedFile]:
        if entry.is_link:
            self._skipped.append(f"{path}, which is a symbolic link")
        elif entry.is_folder:
            yield from self.folder(path, name)
        else:
            yield from self._file(path, name)
