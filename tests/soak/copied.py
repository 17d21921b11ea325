"""Checks that the store of a sink has each message once, while files of it are deleted."""

from __future__ import annotations

import time
from pathlib import Path

import rmqstore
from rmqstore.errors import StoreLockedError
from rmqstore.storage.files.lock import StoreLock
from rmqstore.store.opening import is_store
from soak.live_writer import N_QUEUES, NUMBER_BYTES, TOPICS
from soak.retention import delete_oldest

_LOCK_SECONDS = 5


class CopiedMessages:
    """The messages of a sink's store that were seen, which are those up to an offset of a queue."""

    def __init__(self, root: Path, n_segments: int) -> None:
        self._root, self._n_segments = root, n_segments
        self.next_offsets = {
            topic: {str(queue_id): 0 for queue_id in range(N_QUEUES)} for topic in TOPICS
        }

    def check(self) -> None:
        if not is_store(self._root):
            return
        with rmqstore.open(self._root) as store:
            present = {topic: set(map(str, store.queue_ids(topic))) for topic in store.topics()}
            starts = {
                topic: {one: offset for one, offset in offsets.items() if one in present[topic]}
                for topic, offsets in self.next_offsets.items()
                if topic in present
            }
            if not starts:
                return
            columns = "topic,queueId,queueOffset,body"
            for batch in store.scan(
                columns=columns, assign=numbers(starts), starting_offsets=starts
            ):
                for topic, queue_id, queue_offset, body in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    self._take(topic, str(queue_id), queue_offset, int(body[:NUMBER_BYTES]))
        self._delete_oldest()

    def _take(self, topic: str, queue_id: str, queue_offset: int, number: int) -> None:
        """Check one message: as the source has each queue from offset 0 on, so has the sink."""
        expected = self.next_offsets[topic][queue_id]
        assert (queue_offset, number) == (expected, expected), (topic, queue_id)
        self.next_offsets[topic][queue_id] = expected + 1

    def _delete_oldest(self) -> None:
        patience = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                lock = StoreLock(self._root / "lock")
            except StoreLockedError:
                if time.monotonic() > patience:
                    return  # the next check deletes them
                time.sleep(0.005)
                continue
            try:
                delete_oldest(self._root, self._n_segments)
            finally:
                lock.release()
            return


def numbers(starts: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    return {topic: list(map(int, offsets)) for topic, offsets in starts.items()}
