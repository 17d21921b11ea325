"""Follows a store together with its tiered storage.

New messages come from the local store, so its tail says where they end. A message may move to
tiered storage at any time, with its queue offset, so a stream need not know where it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqstore.query.selection import Selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.store_parts import StoreParts
from rmqstore.source.tail import StoreTail
from rmqstore.spans import QueueKey


class TieredTail(StoreTail):
    """The ends of the chosen queues of a store and of its tiered storage.

    Where tiered storage is read alone, or the local store has no trace of a queue, the queue ends
    where tiered storage ends. What is in tiered storage is never cut off, and needs no
    confirmation by the log.
    """

    def __init__(self, store: StoreParts, selection: Selection) -> None:
        super().__init__(store, selection)
        self._has_looked = False
        self._joined_ends: dict[QueueKey, int] = {}

    @property
    def ends(self) -> Mapping[QueueKey, int]:
        return self._joined_ends

    def poll(self) -> None:
        """Take in what was written, cut off, moved or deleted since the last poll."""
        super().poll()
        in_tier = self.store.ranges.chosen_in_tier(self._selection)
        if not self._has_looked:
            self._has_looked = True
            for key in in_tier:
                self.store.queue_range(*key)  # warns if tiered storage continues after the log
        ends = dict(self._ends)
        for key in in_tier:
            if not ends.get(key):
                ends[key] = self.store.store_queues.with_local(key, (0, 0))[-1].end
        self._joined_ends = ends

    def first(self, key: QueueKey) -> int:
        parts = self.store.store_queues.with_local(key, self._span(key))
        return min(parts[0].start, self.ends.get(key, 0))

    def replaced(
        self, next_offsets: Mapping[QueueKey, int], last_record: LastRecord
    ) -> set[QueueKey]:
        shorter = {key for key, offset in next_offsets.items() if offset > self.ends.get(key, 0)}
        in_local = {
            key: offset for key, offset in next_offsets.items() if offset <= self._ends.get(key, 0)
        }
        return shorter | super().replaced(in_local, last_record)

    def gone(self, next_offsets: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Return the chosen queues that neither the store nor tiered storage has any more."""
        return super().gone(next_offsets) - self.ends.keys()


def tail_of(store: StoreParts, selection: Selection) -> StoreTail:
    """Return the tail of a store, with its tiered storage if that is read too."""
    return TieredTail(store, selection) if store.is_tiered else StoreTail(store, selection)
