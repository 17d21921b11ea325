"""Follows queues that begin in tiered storage and go on in the local store.

New messages come from the local store, so its tail tells where they end. A message may move to
tiered storage at any time, with its queue offset, so a stream need not know where it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqstore.query.selection import Selection
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.session import StoreSession
from rmqstore.read.tail import StoreTail
from rmqstore.read.tiered.session import TieredSession
from rmqstore.spans import QueueKey, QueueSlice


class TieredTail:
    """The ends of the chosen queues of a store and of its tiered storage.

    Where tiered storage is read alone, or the local store has no trace of a queue, the queue ends
    where tiered storage ends. See :class:`StoreTail` for the attributes and methods.
    """

    def __init__(self, store: TieredSession, selection: Selection) -> None:
        self.store, self._selection = store, selection
        self._local = StoreTail(store, selection)
        self._has_looked = False
        self.ends: dict[QueueKey, int] = {}

    @property
    def mark(self) -> LogMark | None:
        """The newest record of a chosen queue in the local store, or None."""
        return self._local.mark

    @property
    def discovered(self) -> set[QueueKey]:
        """Queues that the local store did not have at the first look."""
        return self._local.discovered

    def look(self) -> None:
        """Take in what was written, cut off, moved or deleted since the last look."""
        self._local.look()
        in_tier = self.store.chosen_in_tier(self._selection)
        if not self._has_looked:
            self._has_looked = True
            for key in in_tier:
                self.store.queue_range(*key)  # warns if tiered storage goes on after the log
        ends = dict(self._local.ends)
        for key in in_tier:
            if not ends.get(key):
                ends[key] = self.store.with_local(key, (0, 0)).end
        self.ends |= ends

    def holds(self, mark: LogMark) -> bool:
        """Tell whether a record still stands in the local log, or was deleted for its age."""
        return self._local.holds(mark)

    def spans(self) -> dict[QueueKey, tuple[int, int]]:
        """Look, and return where each queue begins and ends."""
        self.look()
        return {key: (self.first(key), end) for key, end in self.ends.items()}

    def first(self, key: QueueKey) -> int:
        """Return the first queue offset whose message is there, or the queue's end."""
        joined = self.store.with_local(key, self._in_local(key))
        return min(joined.start, self.ends.get(key, 0))

    def _in_local(self, key: QueueKey) -> tuple[int, int]:
        return self._local.first(key), self._local.ends.get(key, 0)

    def first_after(self, key: QueueKey, mark: LogMark) -> int:
        """Return the first queue offset whose message may have replaced a record that was cut off.

        What is in tiered storage is never cut off.
        """
        start, end = self._in_local(key)
        return self._local.first_after(key, mark) if start < end else self.ends.get(key, 0)

    def began_after(self, key: QueueKey, mark: LogMark) -> bool:
        """Tell whether all messages of a queue lie after a record of the local log."""
        start, end = self._in_local(key)
        return start < end and self._local.began_after(key, mark)

    def look_confirmed(self, slices: Iterable[QueueSlice]) -> bool:
        """Tell whether the log confirms the units of ranges that are in the local store."""
        return self._local.look_confirmed(slices)

    def confirmed(self, slices: Iterable[QueueSlice]) -> list[QueueSlice]:
        """Return the parts of ranges that the log confirms, or that are in tiered storage."""
        return self._local.confirmed(slices)

    def doubt(self) -> None:
        """Look at all queues of the local store the next time."""
        self._local.doubt()


def follow(store: StoreSession, selection: Selection) -> StoreTail | TieredTail:
    """Return the tail of a store, with its tiered storage if that is read too."""
    if isinstance(store, TieredSession):
        return TieredTail(store, selection)
    return StoreTail(store, selection)
