"""Queues that have a log of their own: in tiered storage, or compacted.

Physical offsets in a unit, and in the record that it points to, are offsets in the log of the
queue. Everything else in a record is as the broker first stored it.

Messages are moved to tiered storage queue by queue. The hash of a name spreads the keys of an
object store; nothing is found by it::

    <tieredStoreFilePath>/<hash>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash><offset>
                                                                      /CONSUME_QUEUE/<hash><offset>

A file begins at the offset in its name and ends where it ends: none is preallocated or padded, and
any length is right.

A topic with ``cleanup.policy=COMPACTION`` keeps the newest message of each key beyond the retention
of the CommitLog. The broker serves its queues from here::

    compaction/compactionLog/<topic>/<queue id>/<offset>    # records
              /compactionCq/<topic>/<queue id>/<offset>     # units of a SparseConsumeQueue

Source: FlatMessageFile.java, FlatCommitLogFile.java, FlatConsumeQueueFile.java,
TieredFileSegment.java, FlatAppendFile.java, MessageStoreUtil.java, PosixFileSegment.java;
CompactionStore.java, CompactionLog.java.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import (
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    StoreFormatError,
    UnreadableFileError,
)
from rmqstore.format.layout import QUEUE_UNIT, SysFlag
from rmqstore.spans import QueueKey
from rmqstore.storage.broker.folders import COMPACTION_LOGS
from rmqstore.storage.files.local import LocalStorage
from rmqstore.storage.files.mapped_file_queue import OpenFiles, Segment, cut_overlaps
from rmqstore.storage.files.paths import MAX_OFFSET, StorePaths, is_queue_id, is_text
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.storage import (
    A_DANGLING_LINK,
    AnyPath,
    Entry,
    Status,
    Storage,
    StoredFile,
    is_folder,
    path_of,
)
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_source import QueuePart
from rmqstore.storage.queue.sparse_consumequeue import SparseConsumeQueue

logger = logging.getLogger(__name__)

_FILES_AT_ONCE = 32
_QUEUES_AT_ONCE = 1 << 14  # whose listings are kept

_QUEUES: Final = "compactionCq"

COMMIT_LOG: Final = "COMMIT_LOG"
CONSUME_QUEUE: Final = "CONSUME_QUEUE"
INDEX: Final = "INDEX"
METADATA: Final = "tieredStoreMetadata.json"  # the notes of a broker, in its own config folder
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # its folder has files of the index in place of queues

_HASH_DIGITS = 8
_CLUSTER = re.compile(rf"([0-9a-f]{{{_HASH_DIGITS}}})_(.+)", re.DOTALL)
_TOPICS_TO_LOOK_AT = 64  # to distinguish the folder of a broker from any other

_NAME = re.compile(r"[0-9a-f]{8}([0-9]{20})", re.ASCII)

_SYS_FLAG = slice(36, 40)  # of a record; see ``layout.FIXED_PART``


class NoFiles(LocalStorage):
    """A storage in which no path exists."""

    def list_folder(self, _folder: AnyPath) -> list[Entry]:
        return []

    def status(self, _path: AnyPath) -> Status | None:
        return None

    def size(self, path: AnyPath) -> int:
        raise FileNotFoundError(path)

    def read_bytes(self, path: AnyPath, _count: int) -> bytes:
        raise FileNotFoundError(path)

    def open(self, path: AnyPath, *, scattered: bool = False) -> StoredFile:
        raise FileNotFoundError(path, scattered)

    def full_path(self, path: Path) -> Path:
        return path

    def is_locked(self, _path: Path) -> bool:
        return False


def no_store(root: Path) -> StorePaths:
    """Return the paths of the store of which a folder has the tiered storage alone: no files."""
    return StorePaths(root, (), root / "consumequeue", root / "index", NoFiles())


class TieredQueues:
    """The queues of a broker by topic and id, as a source; few of their files stay open.

    The listings are kept until :meth:`refresh`.

    Attributes:
        tier: the files that they are in.
        folder: the folder that they are in.
        what: what is read, in words.
    """

    def __init__(self, tier: Tier | CompactedLogs) -> None:
        self.tier = tier
        self.folder = tier.folder
        self.what = tier.what
        self._unit_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._log_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._open: Recent[QueueKey, TieredQueue] = Recent(_QUEUES_AT_ONCE)
        self._ids: dict[str, list[int]] = {}  # by topic, once they were listed

    def topics(self) -> list[str]:
        """Return every topic with a queue, sorted."""
        return [topic for topic, queue_ids in self._queue_ids().items() if queue_ids]

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return [*self._queue_ids().get(topic, ())]

    def queue(self, topic: str, queue_id: int) -> TieredQueue:
        """Return a queue; it is empty if there are no files."""
        key, opened = (topic, queue_id), self._open
        queue = opened.get(key)
        if queue is not None:
            return queue
        files = (self._unit_files, self._log_files)
        return opened.put(key, self.tier.open_queue(topic, queue_id, *files))

    def open(self, topic: str, queue_id: int) -> Queue:
        """Return the units of a queue; there are none if it has no files."""
        return self.queue(topic, queue_id).units

    def part(self, topic: str, queue_id: int) -> QueuePart:
        """Return what is there of a queue."""
        queue = self.queue(topic, queue_id)
        return QueuePart(queue.log, queue.units, *queue.range(), str(self.folder))

    def _queue_ids(self) -> dict[str, list[int]]:
        known = self._ids
        if not known:
            known.update({topic: self.tier.queue_ids(topic) for topic in self.tier.topics()})
        return known

    def refresh(self) -> None:
        """List the files again."""
        self.tier.storage.refresh()
        self._unit_files.forget()
        self._log_files.forget()
        self._open = Recent(_QUEUES_AT_ONCE)
        self._ids = {}

    def close(self) -> None:
        """Close all files."""
        self._unit_files.close()
        self._log_files.close()


class CompactedLogs(NamedTuple):
    """The compacted logs of one broker.

    Attributes:
        folder: the folder ``compaction``.
        broker_name: the name of the broker.
        storage: the storage that the files are read from.
    """

    folder: Path
    broker_name: str
    storage: Storage

    @property
    def what(self) -> str:
        """What is read, in words."""
        return "compacted logs"

    def topics(self) -> list[str]:
        """Return the topics that have a folder, sorted."""
        return subfolders(self.storage, self.folder / COMPACTION_LOGS)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return _queue_ids(self.storage, self.folder / COMPACTION_LOGS / topic)

    def open_queue(
        self, topic: str, queue_id: int, unit_files: OpenFiles, log_files: OpenFiles
    ) -> CompactedQueue:
        """Return a queue; see :meth:`Tier.open_queue` for the arguments."""
        folder = self.folder / _QUEUES / topic / str(queue_id)
        # A broker writes records before their units, so units are listed first.
        units = SparseConsumeQueue(folder, unit_files)
        log = CommitLog([self.folder / COMPACTION_LOGS / topic / str(queue_id)], files=log_files)
        return CompactedQueue(units, log)


class Tier(NamedTuple):
    """What one broker has in tiered storage.

    Attributes:
        folder: the folder of the broker, which holds those of topics.
        broker_name: the name of the broker, which is that of the folder.
        storage: the storage that the files are read from.
    """

    folder: Path
    broker_name: str
    storage: Storage

    @property
    def what(self) -> str:
        """What is read, in words."""
        return "tiered storage"

    def topics(self) -> list[str]:
        """Return the topics that have a folder, sorted."""
        return sorted({*subfolders(self.storage, self.folder)} - {INDEX_TOPIC})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return _queue_ids(self.storage, self.folder / topic)

    def open_queue(
        self, topic: str, queue_id: int, unit_files: OpenFiles, log_files: OpenFiles
    ) -> TieredQueue:
        """Return a queue; it is empty if there are no files.

        Args:
            topic: topic name.
            queue_id: queue id.
            unit_files: opens the files of units.
            log_files: opens those of the log.
        """
        folder = self.folder / topic / str(queue_id)
        listers = SegmentLister(QUEUE_UNIT.itemsize), SegmentLister()
        # A broker writes records before their units, so units are listed first.
        units = ConsumeQueue(folder / CONSUME_QUEUE, unit_files, listers[0])
        log = CommitLog([folder / COMMIT_LOG], files=log_files, lister=listers[1])
        return TieredQueue(units, log, listers)


def hash_of(name: str) -> str:
    """Return the digits that stand before a name.

    Source: MessageStoreUtil.java#getHash.
    """
    digest = hashlib.md5(name.encode(), usedforsecurity=False)
    return digest.hexdigest()[:_HASH_DIGITS]


def segment_name(start: int) -> str:
    """Return the name of the file that begins at an offset.

    Source: MessageStoreUtil.java#offset2FileName.
    """
    return f"{hash_of(str(start))}{start:020d}"


def segment_start(name: str) -> int | None:
    """Return the offset at which a file begins, None if its name is none of a segment."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def is_tier(path: str | os.PathLike[str], storage: Storage) -> bool:
    """Return whether a path is a folder of tiered storage: of a broker, a cluster or several."""
    base = path_of(path if isinstance(path, Path) else os.fspath(path))
    try:
        return _is_of_broker(storage, base) or any(_brokers(storage, base))
    except UnreadableFileError:
        return False


def find_tier(
    path: str | os.PathLike[str], storage: Storage, broker_name: str | None = None
) -> Tier:
    """Return what a broker has in the tiered storage at a path.

    Args:
        path: the folder of a broker, that of a cluster, or ``tieredStoreFilePath``.
        storage: the storage that holds the folder.
        broker_name: the broker that is meant, if there are several.

    Raises:
        NotAStoreError: the path is not a folder of tiered storage.
        OptionError: it is not clear which broker is meant.
    """
    base = path_of(path if isinstance(path, Path) else os.fspath(path))
    if _is_of_broker(storage, base):
        return Tier(base, storage.full_path(base).name, storage)
    tiers = [Tier(folder, folder.name, storage) for folder in _brokers(storage, base)]
    if not tiers:
        raise NotAStoreError(
            f"{base} is not a folder of tiered storage: give the broker's tieredStoreFilePath, or "
            "the folder <hash>_<cluster>/<broker> in it"
        )
    chosen = [tier for tier in tiers if len(tiers) == 1 or tier.broker_name == broker_name]
    if len(chosen) != 1:
        listed = ", ".join(str(tier.folder) for tier in tiers)
        raise OptionError(
            f"{base} holds the messages of several brokers; give the folder of one of them: "
            f"{listed}"
        )
    return chosen[0]


def _is_of_broker(storage: Storage, base: Path) -> bool:
    """Return whether a folder is that of a broker, by its place or by the queues in it."""
    if not is_folder(storage, base):
        return False
    if _is_cluster(storage.full_path(base).parent.name):
        return True
    for topic in subfolders(storage, base)[:_TOPICS_TO_LOOK_AT]:
        for queue_id in filter(is_queue_id, subfolders(storage, base / topic)):
            queue = base / topic / queue_id
            if is_folder(storage, queue / COMMIT_LOG) or is_folder(storage, queue / CONSUME_QUEUE):
                return True
    return False


def _brokers(storage: Storage, base: Path) -> Iterator[Path]:
    """Yield the folders of brokers in the folder of a cluster, or in that of several clusters."""
    if not is_folder(storage, base):
        return
    names = subfolders(storage, base)
    is_one = _is_cluster(storage.full_path(base).name)
    clusters = [base] if is_one else [base / name for name in names if _is_cluster(name)]
    for cluster in clusters:
        yield from (cluster / name for name in subfolders(storage, cluster))


def _is_cluster(name: str) -> bool:
    match = _CLUSTER.fullmatch(name)
    return match is not None and match[1] == hash_of(match[2])


def subfolders(storage: Storage, folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    names = (entry.name for entry in storage.list_folder(folder) if entry.is_folder)
    return sorted(name for name in names if is_text(name))


def _queue_ids(storage: Storage, folder: Path) -> list[int]:
    return sorted(int(name) for name in subfolders(storage, folder) if is_queue_id(name))


class Mismatch(NamedTuple):
    """A file that contradicts its name or the other files; messages may be lost."""

    path: str
    position: int
    reason: str


class SegmentLister:
    """Lists segments, and keeps what is wrong with them.

    Args:
        unit: the number of bytes of which each segment holds a multiple; 1 for any number.

    Attributes:
        mismatches: what the last listing found to be wrong.
    """

    __slots__ = ("_unit", "mismatches")

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self.mismatches: list[Mismatch] = []

    def __call__(self, folders: Sequence[str], storage: Storage) -> list[Segment]:
        """Return the segments in some folders, by offset, without overlaps."""
        found: list[Mismatch] = []
        segments = [
            segment
            for folder in folders
            for entry in storage.list_folder(folder)
            if (segment := self._segment(f"{folder}/{entry.name}", entry, storage, found))
        ]
        segments.sort()
        for before, after in pairwise(segments):
            if after.start < before.end:
                reason = f"the file begins inside of {before.file}, which ends at {before.end}"
                found.append(Mismatch(after.file, 0, reason))
        self.mismatches = found
        return cut_overlaps(segments) if segments else []

    def _segment(
        self, file: str, entry: Entry, storage: Storage, found: list[Mismatch]
    ) -> Segment | None:
        start = segment_start(entry.name)
        if start is None:
            logger.warning("%s: not named as a file of tiered storage; it is passed over", file)
            return None
        if start >= MAX_OFFSET or start % self._unit:
            reason = f"no file begins at offset {start}"
            if start % self._unit:
                reason += f", which is not a multiple of {self._unit}"
            found.append(Mismatch(file, 0, reason))
            return None
        try:
            size = storage.size(file)
        except FileNotFoundError:
            if entry.is_link:
                found.append(Mismatch(file, 0, f"the path is {A_DANGLING_LINK}"))
            return None  # retention deleted the file during the listing
        except UnreadableFileError as err:
            reason = f"the path is {err.found}; {err.expected} is expected"
            found.append(Mismatch(file, 0, reason))
            return None
        if size % self._unit:
            reason = f"the file ends inside of a unit of {self._unit} bytes"
            found.append(Mismatch(file, size - size % self._unit, reason))
        return Segment(start, size, file)


class TieredQueue:
    """One queue in tiered storage.

    Args:
        units: its units.
        log: the log that they point into.
        listers: what lists the files of the two.
    """

    is_sparse = False  # whether queue offsets between those of messages may have no message

    def __init__(self, units: Queue, log: CommitLog, listers: tuple[SegmentLister, ...]) -> None:
        self.units = units
        self.log = log
        self._listers = listers

    def mismatches(self) -> list[Mismatch]:
        """Return the files that contradict their names or one another."""
        return [mismatch for lister in self._listers for mismatch in lister.mismatches]

    def range(self) -> tuple[int, int]:
        """Return the first queue offset whose record is there, and the one after the last unit.

        Retention deletes units and records each for itself, so the first units may point at
        records that are gone.

        Source: FlatMessageFile.java#getConsumeQueueMinOffset.
        """
        end = self.units.end()
        return self.units.first(end, self.log.min_offset), end

    def holds_inner_batches(self, start: int, end: int) -> bool:
        """Return whether the first or the last record of a range holds an inner batch.

        A broker uploads such a record with each of its messages.
        """
        for queue_offset in {start, end - 1}:
            with suppress(StoreFormatError, OffsetOutOfRangeError):
                located = self.log.locate(self.units.unit(queue_offset)[0])
                head = self.log.read(*located, _SYS_FLAG.stop)
                if int.from_bytes(head.data[_SYS_FLAG]) & SysFlag.INNER_BATCH:
                    return True
        return False

    def refresh(self) -> None:
        """List the files again."""
        self.units.refresh()
        self.log.refresh()


class CompactedQueue(TieredQueue):
    """One queue of a topic with ``cleanup.policy=COMPACTION``, whose messages have gaps between.

    Source: CompactionLog.java.
    """

    is_sparse = True
    units: SparseConsumeQueue

    def __init__(self, units: SparseConsumeQueue, log: CommitLog) -> None:
        super().__init__(units, log, ())

    def mismatches(self) -> list[Mismatch]:
        """Return the files of units without one of the log, and the reverse; see #sanityCheck."""
        found = [Mismatch(file, 0, reason) for file, reason in self.units.overlaps()]
        logged = {segment.path.name: segment.file for segment in self.log.segments}
        named = self.units.files()
        for files, others, missing in ((named, logged, "log"), (logged, named, "units")):
            found += [
                Mismatch(files[name], 0, f"there is no file of the {missing} with its name")
                for name in sorted(files.keys() - others.keys())
            ]
        return found

    def range(self) -> tuple[int, int]:
        """Return 0, and the queue offset after the last message.

        The broker serves the first message that is left for any offset before it.
        """
        return 0, self.units.end()

    def holds_inner_batches(self, _start: int, _end: int) -> bool:
        """Return False: such a record has no keys of its own, and so it is not in this log."""
        return False
