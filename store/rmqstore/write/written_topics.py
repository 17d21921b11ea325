"""The topics and queues that a writer appended to, for ``topics.json``."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.encoding.records import TopicColumn
from rmqstore.format.topics import SYSTEM_TOPICS
from rmqstore.storage.broker.topic_table import register_topics
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.write.messages import WriteSpec


class WrittenTopics:
    """The topics that records were appended to since the last commit.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        spec: the number of queues of a new topic, and the least of some topics.
        batch_topics: the topics whose queues are BatchConsumeQueues.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        spec: WriteSpec,
        batch_topics: Collection[str] = (),
    ) -> None:
        self._disk, self._paths = disk, paths
        self._spec, self._batch_topics = spec, batch_topics
        self._highest_queue_ids: dict[str, int] = {}

    def add(self, topics: TopicColumn, queue_ids: NDArray[np.int32]) -> None:
        """Note the queues of appended rows, (n,)."""
        known = [self._highest_queue_ids.get(topic, -1) for topic in topics.names]
        highest = np.array(known, np.int32)
        higher = np.flatnonzero(queue_ids > highest[topics.codes])
        if not len(higher):  # as for almost all batches of a large job
            return
        np.maximum.at(highest, topics.codes[higher], queue_ids[higher])
        for topic, queue_id in zip(topics.names, highest.tolist(), strict=True):
            if queue_id >= 0:  # the column may know topics that no row has
                self._highest_queue_ids[topic] = queue_id

    def register(self) -> None:
        """Add the topics to ``topics.json``, so that a broker serves them, and forget them."""
        least = {
            topic: max(highest + 1, self._spec.queue_nums.get(topic, 0))
            for topic, highest in self._highest_queue_ids.items()
            if topic not in SYSTEM_TOPICS
        }
        register_topics(
            self._disk, self._paths, least, self._spec.default_queue_nums, self._batch_topics
        )
        self.clear()

    def clear(self) -> None:
        """Forget the topics, because their rows were discarded."""
        self._highest_queue_ids.clear()
