"""The queues of one broker that have a log each: in tiered storage, or compacted."""

from __future__ import annotations

from collections import OrderedDict

from rmqstore.spans import QueueKey
from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.tiered.compacted import CompactedLogs
from rmqstore.storage.tiered.folders import Tier
from rmqstore.storage.tiered.queue import TieredQueue

_FILES_AT_ONCE = 32
_QUEUES_AT_ONCE = 1 << 14  # whose listings are kept


class TieredQueues:
    """The queues of a broker by topic and id; few of their files stay open.

    The listings are kept until :meth:`refresh`.
    """

    def __init__(self, tier: Tier | CompactedLogs) -> None:
        self.tier = tier
        self._unit_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._log_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._open: OrderedDict[QueueKey, TieredQueue] = OrderedDict()
        self._ids: dict[str, list[int]] | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether queue offsets between those of messages may have no message."""
        return isinstance(self.tier, CompactedLogs)

    def topics(self) -> list[str]:
        """Return every topic with a queue, sorted."""
        return [topic for topic, queue_ids in self._queue_ids().items() if queue_ids]

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._queue_ids().get(topic, [])

    def queue(self, topic: str, queue_id: int) -> TieredQueue:
        """Return a queue; it is empty if there are no files."""
        key = (topic, queue_id)
        queue = self._open.get(key)
        if queue is None:
            files = (self._unit_files, self._log_files)
            queue = self._open[key] = self.tier.open_queue(topic, queue_id, *files)
            if len(self._open) > _QUEUES_AT_ONCE:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return queue

    def _queue_ids(self) -> dict[str, list[int]]:
        if self._ids is None:
            self._ids = {topic: self.tier.queue_ids(topic) for topic in self.tier.topics()}
        return self._ids

    def refresh(self) -> None:
        """List the files again."""
        self.tier.storage.refresh()
        self.close()
        self._ids = None

    def close(self) -> None:
        """Close all files, and forget their listings."""
        self._unit_files.close()
        self._log_files.close()
        self._open.clear()
