"""The topics and queues that a writer appended to, for ``topics.json``."""

from __future__ import annotations

from rmqstore.format.columns.dispatch_requests import Groups
from rmqstore.format.topics import SYSTEM_TOPICS
from rmqstore.storage.broker.topic_table import register_topics
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths


class WrittenTopics:
    """The topics that records were appended to since the last commit.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        default_queue_nums: number of queues of a new topic.
    """

    def __init__(self, disk: Disk, paths: StorePaths, default_queue_nums: int) -> None:
        self._disk, self._paths = disk, paths
        self._default_queue_nums = default_queue_nums
        self._highest_queue_ids: dict[str, int] = {}

    def add(self, groups: Groups) -> None:
        """Note the queues of appended rows."""
        for (topic, queue_id), _ in groups:
            highest = self._highest_queue_ids.get(topic, -1)
            self._highest_queue_ids[topic] = max(highest, queue_id)

    def register(self) -> None:
        """Add the topics to ``topics.json``, so that a broker serves them, and forget them."""
        least = {
            topic: highest + 1
            for topic, highest in self._highest_queue_ids.items()
            if topic not in SYSTEM_TOPICS
        }
        register_topics(self._disk, self._paths, least, self._default_queue_nums)
        self.clear()

    def clear(self) -> None:
        """Forget the topics, because their rows were discarded."""
        self._highest_queue_ids.clear()
