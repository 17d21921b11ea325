"""The paths of the parts of a store, the storage that holds them, and file names from offsets.

``storage.broker.folders`` finds them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rmqstore import platforms
from rmqstore.errors import StoreStateError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage, is_folder, path_of, read_start

logger = logging.getLogger(__name__)

# An abort file of ours begins with this; that of a broker holds only its process id.
OUR_ABORT = "rmqstore "
OWN_FOLDER = ".rmqstore"  # in the root, with the files that this package keeps in a store
UNFINISHED_COPY = "unfinished-copy"  # a file of the root, while a copy is made in a remote storage
_NAME_DIGITS = 20
MAX_OFFSET = 1 << 62  # above the name of any real file; sums stay inside an int64
MAX_QUEUE_ID = (1 << 31) - 1
_MAX_NAME_BYTES = 255  # NAME_MAX of every file system that RocketMQ runs on
# the names of files of a RocksDB database
DATABASE_FILE = re.compile(r"CURRENT|IDENTITY|LOCK|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)")


def offset_to_name(file_offset: int) -> str:
    """Return the name of the file that begins at this offset.

    Source: UtilAll.java#offset2FileName.
    """
    return f"{file_offset:0{_NAME_DIGITS}d}"


def name_to_offset(name: str) -> int | None:
    """Return the offset that a file name stands for, None if it is not the name of such a file.

    A broker reads a number of any length, and writes one of 20 digits.

    Source: DefaultMappedFile.java#init.
    """
    if not name.isascii() or not name.isdigit():
        return None
    return int(name) if int(name) < MAX_OFFSET else None


def our_abort() -> bytes:
    """Return the content of the abort file of a store that this process writes to."""
    return f"{OUR_ABORT}{os.getpid()}".encode()


class BrokerSettings(NamedTuple):
    """The settings of a broker's properties file.

    It stands for the file wherever the file's path is taken, and need not be read again.
    """

    file: str
    values: Mapping[str, str]

    def __fspath__(self) -> str:
        return self.file


class _Place:
    """A file or folder whose place in the root is the same in every store."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, paths: StorePaths | OwnFiles, _: type) -> Path:
        """Return its path in one store."""
        return paths.root.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The folders and files of one store, and the storage that they are read from.

    Source: StorePathConfigHelper.java, BrokerPathConfigHelper.java.
    """

    root: Path
    commitlogs: tuple[Path, ...]
    consumequeue: Path
    index: Path
    storage: Storage = LOCAL
    dledger_logs: tuple[Path, ...] = ()  # the folders of a DLedger log that have files
    # what the user says that the broker was started with
    settings: BrokerSettings | None = field(default=None, compare=False)

    checkpoint = _Place("checkpoint")
    abort = _Place("abort")
    lock = _Place("lock")
    config = _Place("config")
    topics_json = _Place("config", "topics.json")
    broker_identity = _Place("brokerIdentity")
    # the epochs of a broker in controller mode
    epochs = _Place("epochFileCheckpoint")
    # Source: TimerMessageStore.java#getTimerLogPath.
    timer_log = _Place("timerlog")
    # the RocksDB database that every broker from 5.4 on makes beside the queues
    # Source: StorePathConfigHelper.java, MessageRocksDBStorage.java.
    rocksdb_store = _Place("rocksdbstore")

    @property
    def name(self) -> str:
        """The name of the root folder."""
        return self.storage.full_path(self.root).name

    @property
    def has_abort(self) -> bool:
        """Whether a broker or a writer has the store open, or died with it open."""
        return self.storage.exists(self.abort)

    @property
    def has_our_abort(self) -> bool:
        """Whether a writer of this package was the last to open the store, and did not close it."""
        return read_start(self.storage, self.abort, len(OUR_ABORT)) == OUR_ABORT.encode()

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """All folders that hold files of the log."""
        return (*self.commitlogs, *self.dledger_logs)

    def given_folders(self) -> list[Path]:
        """Return the folders that a user named: the root, and parts of the store elsewhere."""
        parts = {*self.commitlogs, self.consumequeue, self.index}
        parts |= {folder for folder in self.dledger_logs if self.root not in folder.parents}
        usual = {self.root / name for name in ("commitlog", "consumequeue", "index")}
        return [self.root, *sorted(parts - usual)]

    @property
    def own(self) -> OwnFiles:
        """The files that this package keeps beside those of the store."""
        return OwnFiles(self.root)

    @property
    def queue_folders(self) -> QueueFolders:
        """The folders of ConsumeQueues."""
        return QueueFolders(self, self.consumequeue)

    @property
    def batch_folders(self) -> QueueFolders:
        """The folders of BatchConsumeQueues."""
        return QueueFolders(self, self.root / "batchconsumequeue")

    @property
    def rocksdb_queues(self) -> Path | None:
        """The RocksDB database that holds or held queues, None if there is no file of one.

        It may lie among the folders of queues in files, or in a folder of its own.

        Source: RocksDBConsumeQueueStore.java,
        StorePathConfigHelper.java#getStorePathRocksDBConsumeQueue.
        """
        folders = (self.consumequeue, self.root / "consumequeue_rocksdb")
        found = [folder for folder in folders if has_database(self.storage, folder)]
        return max(found, key=lambda folder: self.storage.exists(folder / "CURRENT"), default=None)


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The files that this package keeps in a folder of its own in a store, by the store's root."""

    root: Path

    folder = _Place(OWN_FOLDER)
    # the note of where an unfinished append began
    append_intent = _Place(OWN_FOLDER, "append")
    # the folder that holds the first append to an empty store until its commit
    new_log = _Place(OWN_FOLDER, "commitlog")
    # the note of where the log ended when the store was closed
    clean_end = _Place(OWN_FOLDER, "end")
    # the folder that holds the old queues during a rebuild
    replaced_queues = _Place(OWN_FOLDER, "replaced")
    # the history of commits
    commits = _Place(OWN_FOLDER, "commits")


@dataclass(frozen=True, slots=True)
class QueueFolders:
    """The folders of the queues of one kind that a store has in files, by topic and queue id.

    Attributes:
        paths: the paths of the store.
        root: the folder that has a folder of each topic.
    """

    paths: StorePaths
    root: Path

    def topics(self) -> list[str]:
        """Return the topics that have a folder, sorted."""
        return self._subfolders(self.root)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted; other folders are left out."""
        names = self._subfolders(self.root / topic)
        return sorted(int(name) for name in names if is_queue_id(name))

    def queues(self) -> list[tuple[str, int]]:
        """Return every queue, by topic and id."""
        return [(topic, queue_id) for topic in self.topics() for queue_id in self.queue_ids(topic)]

    def queue(self, topic: str, queue_id: int) -> Path:
        """Return the folder of a queue; raises as :meth:`queue_name` does."""
        return path_of(self.queue_name(topic, queue_id))

    def queue_name(self, topic: str, queue_id: int) -> str:
        """Return the path of the folder of a queue as text.

        Raises:
            StoreStateError: the topic, which comes from a record, cannot name a folder: it could
                lead out of the store.
        """
        if not can_name_queues(topic):
            raise StoreStateError(
                f"{self.paths.root}: topic {topic!r} of a record cannot name a folder of queues"
            )
        return f"{self.root}/{topic}/{queue_id}"

    def files(self, topic: str) -> list[Path]:
        """Return the files of all queues of a topic."""
        folders = [self.queue(topic, queue_id) for queue_id in self.queue_ids(topic)]
        return [file for folder in folders for file in segment_files(self.paths.storage, folder)]

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic has a folder."""
        return can_name_queues(topic) and is_folder(self.paths.storage, self.root / topic)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has files; raises as :meth:`queue_name` does."""
        folder = self.queue_name(topic, queue_id)
        # A look at the first file, which most queues still have, costs less than a list.
        has_first = self.paths.storage.exists(f"{folder}/{offset_to_name(0)}")
        return has_first or bool(segment_files(self.paths.storage, path_of(folder)))

    def _subfolders(self, folder: Path) -> list[str]:
        names = [entry.name for entry in self.paths.storage.list_folder(folder) if entry.is_folder]
        for name in names:
            if not is_text(name):
                logger.warning(
                    "%s: the folder %r is not named in UTF-8 and is passed over", folder, name
                )
        return sorted(filter(is_text, names))


def has_database(storage: Storage, folder: Path) -> bool:
    """Return whether a folder has files of a RocksDB database, which may lack others."""
    if storage.exists(folder / "CURRENT"):
        return True
    if not is_folder(storage, folder):
        return False
    files = (entry.name for entry in storage.list_folder(folder) if not entry.is_folder)
    return any(map(DATABASE_FILE.fullmatch, files))


def ext_folders(paths: StorePaths) -> QueueFolders:
    """Return the folders of extension units of ConsumeQueues, which most queues lack."""
    return QueueFolders(paths, paths.root / "consumequeue_ext")


def has_queue_folder(paths: StorePaths, topic: str) -> bool:
    """Return whether a topic has a folder of queues, of either kind."""
    return paths.queue_folders.has_topic(topic) or paths.batch_folders.has_topic(topic)


def segment_files(storage: Storage, folder: Path) -> list[Path]:
    """Return the files of a folder that are named by an offset, sorted; [] without the folder.

    A broker passes over folders among them.
    """
    if not is_folder(storage, folder):
        return []
    names = (entry.name for entry in storage.list_folder(folder) if not entry.is_folder)
    return sorted(folder / name for name in names if name_to_offset(name) is not None)


def can_name_queues(topic: str) -> bool:
    """Return whether a topic, which comes from a record, can be the name of a folder."""
    return platforms.can_name_file(topic) and len(os.fsencode(topic)) <= _MAX_NAME_BYTES


def can_have_queue(topic: str, queue_id: int) -> bool:
    """Return whether a topic and a queue id, which come from a record, can name a queue on disk."""
    return can_name_queues(topic) and len(topic.encode()) <= _MAX_NAME_BYTES and queue_id >= 0


def is_queue_id(name: str) -> bool:
    """Return whether RocketMQ names a queue's folder like this: an int without leading zeros."""
    if not name.isascii() or not name.isdigit():
        return False
    return str(int(name)) == name and int(name) <= MAX_QUEUE_ID


def is_text(name: str) -> bool:
    """Return whether a name is UTF-8 on the disk: Python escapes any other as lone surrogates."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)
