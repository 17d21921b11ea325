"""Reads the messages of a store while it is written to, each of them once.

New messages come from the local store, so its tail says where they end. A message may move to
tiered storage at any time, with its queue offset, so a stream need not know where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.query.selection import Selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.parts import NewestPart, Part, QueuesPart
from rmqstore.read.request import ScanRequest
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.tail import StoreTail, continued, replacements
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.broker.retry import Recoveries

logger = logging.getLogger(__name__)


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


class TailingScan:
    """Follows the queues that a scan chooses, as a stream does; see ``read.tail``."""

    def __init__(self, store: StoreParts, request: ScanRequest) -> None:
        """Begin where the selection of the scan starts, or before its newest ``last`` messages.

        Args:
            store: the store.
            request: a scan by queue, whose selection is parsed for a stream: it has no end, and
                starts at the latest messages unless it names another start.

        Raises:
            OptionError: the scan is one by log, or a poll-up.
        """
        if not request.is_by_queue or request.include_pending:
            raise OptionError("only the messages of queues can be followed: `scan=queue`")
        self._store = store
        self._request = request
        self._tail = tail_of(store, request.selection)
        paths = store.paths
        self._recoveries = Recoveries(
            lambda: StoreSigns.of(paths, queue_folders(paths)), self._tail.invalidate
        )
        self._last_record: LastRecord | None = None
        self._first_record: LastRecord | None = None
        self._read_until: dict[QueueKey, int] | None = None  # None until the first poll
        self._reported: set[QueueKey] = set()  # deleted queues that there was a warning of

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Poll once, and yield what was written since the last poll.

        The first poll yields what there is from the start on.

        Raises:
            OffsetOutOfRangeError: messages were deleted, or cut off by a recovery, before they were
                read, and data loss is to fail.
        """
        request = self._request
        is_first = self._read_until is None
        slices = self._store.retry(self._new, self._recoveries)
        queues = QueuesPart(tuple(slices))
        part: Part = queues
        if is_first and request.last is not None:
            part = NewestPart(queues, request.last)
        yield from request.returned(part.read(self._store, request))

    def _new(self) -> list[QueueSlice]:
        """Look, and return the ranges of queues that were not read yet."""
        tail, request = self._tail, self._request
        starts: dict[QueueKey, int] = {}
        if self._read_until is None and request.last is not None:
            # The newest messages are chosen from all of the queues.
            for key, (first, _) in tail.spans().items():
                starts[key] = first
        elif self._read_until is None:
            starts = self._store.ranges.starts(
                request.selection,
                self._store.broker_name,
                tail.spans,
                fail_on_data_loss=request.fail_on_data_loss,
            )
        else:
            tail.poll()
            starts = self._continued()
        slices: list[QueueSlice] = []
        for key, start in starts.items():
            end = tail.ends.get(key, 0)
            if start < end:
                slices += self._store.store_queues.slices(key, start, end, request.spec())
        if not request.fail_on_data_loss and not tail.are_confirmed(slices):
            slices = tail.confirmed(slices)
        read_until = dict(self._read_until or {})
        for key, end in tail.ends.items():
            read_until[key] = max(end, starts.get(key, 0))
        self._read_until = read_until
        self._last_record = tail.last_record or self._last_record
        self._first_record = tail.first_record
        return slices

    def _continued(self) -> dict[QueueKey, int]:
        """Return the offsets at which queues continue: after those read, unless these are gone."""
        tail, last_record, next_offsets = self._tail, self._last_record, self._read_until
        assert next_offsets is not None
        is_cut = last_record is not None and not tail.holds(last_record)
        first_record = self._first_record
        is_replaced = is_cut and first_record is not None and not tail.holds(first_record)
        begins = replacements(
            tail, next_offsets, last_record, is_cut=is_cut, is_replaced=is_replaced
        )
        for key in sorted(tail.gone(next_offsets) - self._reported):
            self._lose(key, f"it was deleted after offset {next_offsets[key]} was reached")
            self._reported.add(key)
        starts = {}
        for key, end in tail.ends.items():
            if key in begins or next_offsets.get(key) != end:
                starts[key], losses = continued(
                    tail, key, next_offsets.get(key), end, begins.get(key),
                    is_cut=is_cut, is_replaced=is_replaced,
                )  # fmt: skip
                for text in losses:
                    self._lose(key, text)
        return starts

    def _lose(self, key: QueueKey, text: str) -> None:
        """Report messages that are lost.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        self._request.report_loss(f"{key[0]}-{key[1]}: {text}", "continues without them")
