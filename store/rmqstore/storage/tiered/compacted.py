"""The folder with the compacted logs of a broker, one for each queue of a compacted topic.

A topic with ``cleanup.policy=COMPACTION`` keeps the newest message of each key beyond the retention
of the CommitLog. The broker serves its queues from here::

    compaction/compactionLog/<topic>/<queue id>/<offset>    # records
              /compactionCq/<topic>/<queue id>/<offset>     # units of a SparseConsumeQueue

Source: CompactionStore.java.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.folders.part_of_store import COMPACTION_LOGS
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.sparse_consumequeue import SparseConsumeQueue
from rmqstore.storage.tiered.folders import is_queue_id, subfolders
from rmqstore.storage.tiered.queue import CompactedQueue

_QUEUES: Final = "compactionCq"


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
        names = subfolders(self.storage, self.folder / COMPACTION_LOGS / topic)
        return sorted(int(name) for name in names if is_queue_id(name))

    def open_queue(
        self, topic: str, queue_id: int, unit_files: OpenFiles, log_files: OpenFiles
    ) -> CompactedQueue:
        """Return a queue; see :meth:`Tier.open_queue` for the arguments."""
        folder = self.folder / _QUEUES / topic / str(queue_id)
        # A broker writes records before their units, so units are listed first.
        units = SparseConsumeQueue(folder, unit_files)
        log = CommitLog([self.folder / COMPACTION_LOGS / topic / str(queue_id)], files=log_files)
        return CompactedQueue(units, log)
