"""Compares the files beside the logs of segments with their batches: indexes and snapshots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_heads import BatchHeads, Mask
from kafkalog.format.control import markers
from kafkalog.read.ordered import Ordered
from kafkalog.storage.indexes import read_offset_index, stored_time_index
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.producer_snapshots import read_snapshot, snapshot_offsets
from kafkalog.storage.segments import Segment
from kafkalog.storage.transaction_index import read_transaction_index
from kafkalog.storage.windows import Window, lowest_offsets
from rmqstore.errors import Finding, MalformedBytesError

_INDEX, _TIME_INDEX, _TRANSACTION_INDEX = "index", "timeindex", "txnindex"
_SNAPSHOT = "snapshot"


class SegmentFacts:
    """What the batches of a log say about the indexes of one segment after the other."""

    def __init__(self, log: PartitionLog) -> None:
        """Begin before the first segment."""
        self._log = log
        self._open: dict[int, int] = {}  # first offset of the open transaction, by producer
        self._begin()

    def _begin(self) -> None:
        self._begins: dict[int, int] = {}  # lower bounds of offsets, by positions of batches
        self._last_offsets: list[int] = []
        self._max_timestamps: list[int] = []
        # First offset of each transaction that was aborted, by producer and offset of the marker;
        # None if nothing of it is left.
        self._aborted: dict[tuple[int, int], int | None] = {}
        self._is_whole = True

    def add(self, ordered: Ordered, sound: Mask) -> None:
        """Take the next window of the segment; ``sound`` are the batches whose CRC is right."""
        window = ordered.window
        positions, lowest = window.heads.position.tolist(), lowest_offsets(window.heads).tolist()
        self._begins |= dict(zip(positions, lowest, strict=True))
        good = sound & ordered.in_order
        self._is_whole = self._is_whole and window.stop is None and bool(good.all())
        heads = window.heads[good]
        self._last_offsets += heads.last_offset.tolist()
        self._max_timestamps += heads.max_timestamp.tolist()
        for row in np.flatnonzero(heads.is_transactional).tolist():
            self._add_transactional(window, heads[row : row + 1])

    def _add_transactional(self, window: Window, head: BatchHeads) -> None:
        producer, offset = int(head.producer_id[0]), int(head.base_offset[0])
        if not head.is_control[0]:
            if head.record_count[0]:
                self._open.setdefault(producer, offset)
            return
        try:
            found = markers(window.data, head)
        except MalformedBytesError:
            self._is_whole = False
            return
        for marker in found:
            first = self._open.pop(producer, None)
            if not marker.is_commit:
                self._aborted[producer, offset] = first

    def compare(self, segment: Segment) -> Iterator[Finding]:
        """Yield what the indexes of a segment say otherwise; then the next segment begins.

        Where a recovery builds indexes again, they are not compared. Where the segment is damaged,
        only entries of the offset index are.
        """
        if not self._log.is_recovered(self._log.number_at(segment.base_offset)):
            yield from self._offset_index(segment)
            if self._is_whole:
                yield from self._time_index(segment)
                yield from self._transaction_index(segment)
        self._begin()

    def _offset_index(self, segment: Segment) -> Iterator[Finding]:
        """Yield the entries of an offset index that point to no batch of their offset."""
        index = read_offset_index(self._log.storage, segment)
        for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
            if self._begins.get(position, offset + 1) > offset:
                text = f"an entry sends offset {offset} to {position}, where no batch of it begins"
                yield Finding(_INDEX, segment.index_path, text)

    def _time_index(self, segment: Segment) -> Iterator[Finding]:
        """Yield the entries of a time index whose batch has another time, and a wrong last one."""
        path = segment.time_index_path
        timestamps, offsets = stored_time_index(self._log.storage, segment)
        if (np.diff(timestamps) <= 0).any() or (np.diff(offsets) < 0).any():
            yield Finding(_TIME_INDEX, path, "its entries do not rise")
            return
        last_offsets, largest = np.array(self._last_offsets), np.array(self._max_timestamps)
        rows = np.searchsorted(last_offsets, offsets)
        for row, timestamp, offset in zip(
            rows.tolist(), timestamps.tolist(), offsets.tolist(), strict=True
        ):
            # a message of format v0 has no time, and its broker may have written one here
            if row == len(last_offsets) or largest[row] not in (timestamp, -1):
                text = f"an entry gives offset {offset} the time {timestamp}, which no batch has"
                yield Finding(_TIME_INDEX, path, f"{text} there")
        latest = int(largest.max(initial=-1))
        if len(timestamps) and timestamps[-1] < latest:
            text = f"its last entry has the time {timestamps[-1]}, and a batch has {latest}"
            yield Finding(_TIME_INDEX, path, text)

    def _transaction_index(self, segment: Segment) -> Iterator[Finding]:
        """Yield entries without a marker, and aborted transactions without an entry."""
        path = segment.transaction_index_path
        listed: dict[tuple[int, int], int] = {}
        try:
            for entry in read_transaction_index(self._log.storage, path):
                key = int(entry["producer_id"]), int(entry["last_offset"])
                listed[key] = int(entry["first_offset"])
                if key not in self._aborted:
                    text = f"producer {key[0]} aborted nothing at offset {key[1]}, as an entry says"
                    yield Finding(_TRANSACTION_INDEX, path, text)
        except FileNotFoundError:
            pass  # as where no transaction was aborted
        except CorruptBatchError as err:
            yield Finding(_TRANSACTION_INDEX, f"{path}, {err.offset}", err.reason)
            return
        for (producer, offset), first in self._aborted.items():
            if first is not None and listed.get((producer, offset), first + 1) > first:
                text = (
                    f"no entry has the transaction of producer {producer} from {first} to {offset}"
                )
                yield Finding(_TRANSACTION_INDEX, path, f"{text}, which was aborted")


def compare_snapshots(log: PartitionLog) -> Iterator[Finding]:
    """Yield what is wrong in the producer snapshots of a log that was closed cleanly."""
    for offset, path in sorted(snapshot_offsets(log.storage, log.folder).items()):
        try:
            entries = read_snapshot(log.storage, path)
        except FileNotFoundError:
            continue  # a broker keeps only the newest ones
        except CorruptBatchError as err:
            yield Finding(_SNAPSHOT, f"{path}, {err.offset}", err.reason)
            continue
        for field in ("last_offset", "transaction_start"):
            for row in np.flatnonzero(entries[field] >= offset).tolist():
                producer, later = int(entries["producer_id"][row]), int(entries[field][row])
                text = f"producer {producer} has offset {later}, which lies after the snapshot"
                yield Finding(_SNAPSHOT, path, text)
