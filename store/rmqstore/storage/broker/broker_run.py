"""The current or last run of the broker of a store, and the signs of a recovery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from rmqstore.errors import UnreadableFileError
from rmqstore.spans import QueueKey
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage, is_folder

_NS_PER_MS = 1_000_000


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
        started = None
        with suppress(UnreadableFileError):
            started = paths.storage.status(paths.lock)
        return cls(0 if started is None else started.modified_ns, paths.has_abort)

    @property
    def started_ms(self) -> int:
        """Start of the run in ms, the unit of store times."""
        return self.started_ns // _NS_PER_MS

    def may_have_recovered(self, now: BrokerRun) -> bool:
        """Tell whether a recovery may lie between this run and a later one.

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
        changed = sorted((folder, _changed_ns(paths.storage, folder)) for folder in queues)
        may_be_recovering = run.is_open and not paths.storage.is_locked(paths.lock)
        return cls(run, tuple(log), tuple(changed), may_be_recovering)


def queue_folders(paths: StorePaths) -> Iterator[str]:
    """Yield the folders of all queues of a store one by one, because there may be many."""
    for root in (paths.consumequeue, paths.batch_consumequeue):
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
        yield paths.queue_name(topic, queue_id)
        if topic not in batch_topics:
            folder = paths.batch_consumequeue / topic
            batch_topics[topic] = is_folder(paths.storage, folder)
            yield str(folder)
        if batch_topics[topic]:
            yield str(paths.batch_queue(topic, queue_id))


def _changed_ns(storage: Storage, folder: str) -> int:
    with suppress(UnreadableFileError):
        status = storage.status(folder)
        return 0 if status is None else status.modified_ns
    return 0
