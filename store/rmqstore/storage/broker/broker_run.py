"""Signs of a broker's last run: lock, ``abort``, checkpoint and release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import OptionError, UnreadableFileError
from rmqstore.format.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import AnyPath, is_folder, read_start

# Source: StoreCheckpoint.java#getMinTimestamp.
_SAFETY_MS = 3000

Release = tuple[int, int]

_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d+)*", re.ASCII)
_SINCE_5_0 = ("timerwheel", "batchconsumequeue", "compaction", "epochFileCheckpoint")

_NS_PER_MS = 1_000_000

# The states of a store, as the column ``state`` has them, and what each means in a sentence.
CLOSED: Final = "closed"
OPEN: Final = "open"
NOT_CLOSED: Final = "not closed"
STATES: Final = {
    CLOSED: "the store was closed properly",
    OPEN: "the store is open: a broker or a writer has it",
    NOT_CLOSED: "the store was not closed: its broker or writer died, or it was copied while open",
}


def state_of(paths: StorePaths) -> str:
    """Return the state of a store, one of :data:`STATES`."""
    if not paths.has_abort:
        return CLOSED
    return OPEN if paths.storage.is_locked(paths.lock) else NOT_CLOSED


class Checkpoint(NamedTuple):
    """Store times in ms and physical offsets; 0 if unknown."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_phy_offset: int = 0

    @classmethod
    def all_safe(cls) -> Checkpoint:
        """Return the checkpoint for a store that was closed properly: all of it is on disk."""
        return cls(FOREVER, FOREVER, FOREVER)

    @property
    def min_timestamp(self) -> int:
        """The store time, ms, up to which log and queues were on the disk at the checkpoint."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS)

    def recovered_from(self, start: int) -> Checkpoint:
        """Return a checkpoint with which the recovery of brokers from 5.5.0 on begins early enough.

        They begin at the newest file whose first record lies at or before the last record that is
        in all queues, and ask for times only where that is 0. With enableAcceleratedRecovery they
        read from that very record on, so it has to be one, and refuse 0 unless the times are 0 too.

        Args:
            start: physical offset of the file where the recovery has to begin at the latest.

        Source: ConsumeQueueStore.java#isMappedFileMatchedRecover, #getDispatchFromPhyOffset;
        CommitLog.java#recoverAbnormally.
        """
        if not self.logics_phy_offset:
            return self
        last = min(self.logics_phy_offset, start)
        if last:
            return self._replace(logics_phy_offset=last)
        return self._replace(physic_msg_timestamp=0, logics_msg_timestamp=0, logics_phy_offset=0)

    def stored(self) -> bytes:
        """Return the file's bytes."""
        return np.array([tuple(self)], CHECKPOINT).tobytes().ljust(CHECKPOINT_FILE_BYTES, b"\0")


def read_checkpoint(paths: StorePaths) -> Checkpoint:
    """Read the checkpoint of a store; missing bytes count as zeros, as they do for a broker.

    Raises:
        UnreadableFileError: it is not a regular file.
    """
    stored = read_start(paths.storage, paths.checkpoint, CHECKPOINT.itemsize)
    fields = np.frombuffer(stored.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0]
    return Checkpoint(*fields.tolist())


def parse_release(text: str) -> Release:
    """Return the first two numbers of a release, such as those of ``5.3.3``.

    Raises:
        OptionError: it is none.
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"`broker_version` {text!r}: must be a release such as 5.3.3")
    return int(match[1]), int(match[2])


def earliest_release(paths: StorePaths) -> str:
    """Return the earliest release that makes all of these files, such as ``5.2``.

    No file names the release of the broker itself.
    """
    if read_checkpoint(paths).logics_phy_offset > 0:
        return "5.5"
    database = paths.rocksdb_store
    if is_folder(paths.storage, database) and paths.storage.list_folder(database):
        return "5.4"
    if paths.rocksdb_queues is not None:
        return "5.2"
    is_5 = any(paths.storage.exists(paths.root / name) for name in _SINCE_5_0)
    return "5.0" if is_5 else "3.2"


def may_be_before_5(paths: StorePaths) -> bool:
    """Return whether no file of a store shows that its broker is of release 5.0 or later."""
    return parse_release(earliest_release(paths)) < (5, 0)


class BrokerRun(NamedTuple):
    """One run of a broker.

    Its start is the time of the file ``lock``, which is written after the recovery.

    Source: DefaultMessageStore.java#start.
    """

    started_ns: int  # ns since the epoch; 0 if there is no lock file
    is_open: bool  # the store has an ``abort`` file: the broker is running or has died

    @classmethod
    def of(cls, paths: StorePaths) -> BrokerRun:
        """Return the current or last run of a store."""
        return cls(_changed_ns(paths, paths.lock), paths.has_abort)

    @property
    def started_ms(self) -> int:
        """Start of the run in ms, the unit of store times."""
        return self.started_ns // _NS_PER_MS

    def may_have_recovered(self, now: BrokerRun) -> bool:
        """Return whether a recovery may lie between this run and a later one.

        There is none after a clean shutdown.
        """
        return self.is_open and now.started_ns != self.started_ns


class StoreSigns(NamedTuple):
    """The listings of a store that a recovery changes.

    A recovery deletes log files, and deletes and creates queue files. Bytes that a running broker
    writes into existing files do not count.
    """

    run: BrokerRun
    log: tuple[str, ...]  # names of files
    queues: tuple[tuple[str, int], ...]  # folders and the times of their last changes, ns
    may_be_recovering: bool  # not closed, and not locked yet: a broker locks it after its recovery

    @classmethod
    def of(cls, paths: StorePaths, queues: Iterable[str]) -> StoreSigns:
        """Return the signs of a store and of the given queue folders."""
        run = BrokerRun.of(paths)
        log = sorted(
            entry.name
            for folder in paths.log_folders
            for entry in paths.storage.list_folder(folder)
        )
        changed = sorted((folder, _changed_ns(paths, folder)) for folder in queues)
        may_be_recovering = state_of(paths) == NOT_CLOSED
        return cls(run, tuple(log), tuple(changed), may_be_recovering)


def _changed_ns(paths: StorePaths, path: AnyPath) -> int:
    """Return when a file or folder was changed last, ns; 0 if it is not there or not readable."""
    with suppress(UnreadableFileError):
        status = paths.storage.status(path)
        return 0 if status is None else status.modified_ns
    return 0


def queue_folders(paths: StorePaths) -> Iterator[str]:
    """Yield the folders of all queues of a store one by one, because there may be many."""
    for root in (paths.consumequeue, paths.batch_folders.root):
        for topic in paths.storage.list_folder(root):
            if topic.is_folder:
                folder = root / topic.name
                yield from (f"{folder}/{entry.name}" for entry in paths.storage.list_folder(folder))


def folders_of(paths: StorePaths, queues: Iterable[QueueKey]) -> Iterator[str]:
    """Yield the folders of some queues of a store, of both kinds.

    Where a topic has no BatchConsumeQueues, the folder that the first of them would make stands for
    all of them.
    """
    batch_topics: dict[str, bool] = {}
    for topic, queue_id in queues:
        yield paths.queue_folders.queue_name(topic, queue_id)
        if topic not in batch_topics:
            folder = paths.batch_folders.root / topic
            batch_topics[topic] = is_folder(paths.storage, folder)
            yield str(folder)
        if batch_topics[topic]:
            yield str(paths.batch_folders.queue(topic, queue_id))
