"""Gives staged records their places: once to write the log, once more to build queues and index.

The places follow from the sizes of the records and the ends of log and queues, so they are
computed again instead of being kept: a large job would fill the memory with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.format.columns.dispatch_requests import Places, Requests
from rmqstore.format.encoding.light_queues import (
    extend_properties,
    offset_strings,
    require_plain_parents,
)
from rmqstore.format.encoding.pieces import lengths_of
from rmqstore.format.encoding.records import Records, TopicColumn, require_room, stamp
from rmqstore.storage.log.appender import Placement, place_records
from rmqstore.storage.queue.next_offsets import NextOffsets
from rmqstore.write.staged.part import StagedBatch, StagedPart, StagedRecords, read_batches


class PlacedBatch(NamedTuple):
    """Consecutive records of a part, and their places."""

    part: StagedPart
    batch: StagedBatch
    topics: TopicColumn
    placement: Placement
    places: Places
    light_offsets: pa.BinaryArray | None  # a property string for each record; None without any

    def records(self, staged: StagedRecords, batch_topics: Collection[str]) -> Records:
        """Return the records, as :meth:`StagedRecords.read` does, at their places.

        Raises:
            IllegalMessageError: a record is in a batch topic and names a light message queue, or
                its properties become too long.
            OSError: the file has no such bytes.
        """
        records = staged.read(self.part, self.batch, int(self.placement.physical_offsets[0]))
        if self.batch.light_queues is not None and self.light_offsets is not None:
            require_plain_parents(self.topics, self.batch.light_queues, batch_topics)
            records = extend_properties(records, self.light_offsets)
        stamp(records, *self.places)
        return records


class StagedRun:
    """Parts that are appended one after the other, in the order of their partitions.

    Args:
        parts: what the tasks staged.
        offsets: the next offset of each queue.
        start: physical offset of the first record.
        file_size: bytes of a CommitLog file.

    Attributes:
        n_records: number of all records.
        n_bytes: their bytes.
    """

    def __init__(
        self, parts: Sequence[StagedPart], offsets: NextOffsets, start: int, file_size: int
    ) -> None:
        self._parts, self._offsets = parts, offsets
        self.n_records = sum(part.n_records for part in parts)
        self.n_bytes = sum(part.n_bytes for part in parts)
        self._start, self._file_size = start, file_size
        self._times: list[int] = []  # the store time of each batch, ms
        offsets.mark()

    def place(self, now: Callable[[], int]) -> Iterator[PlacedBatch]:
        """Yield all batches with their places; this advances the queue offsets.

        Args:
            now: returns the store time of the next batch, ms.

        Raises:
            IllegalMessageError: a record does not fit into a CommitLog file.
            OSError: a file does not hold what its task staged.
        """
        for placed in self._placed(self._offsets, now):
            self._times.append(int(placed.places.store_timestamps[0]))
            yield placed

    def requests(self) -> Callable[[], Iterator[Requests]]:
        """Return a function that yields the dispatch requests of all batches, once placed."""
        offsets = self._offsets.rewound()

        def again() -> Iterator[Requests]:
            times = iter(self._times)
            for placed in self._placed(offsets, lambda: next(times)):
                yield placed.batch.requests.placed(placed.places)

        return again

    def _placed(self, offsets: NextOffsets, now: Callable[[], int]) -> Iterator[PlacedBatch]:
        end = self._start
        for part in self._parts:
            for batch in read_batches(part):
                requests = batch.requests
                light_offsets = None
                if batch.light_queues is not None:
                    rows, queues, _ = batch.light_queues
                    offsets_there = offsets.assign(queues, batch.light_queues.queue_ids)
                    light_offsets = offset_strings(len(requests.sizes), rows, offsets_there)
                    sizes = requests.sizes + lengths_of(light_offsets).astype(np.int32)
                    requests = requests._replace(sizes=sizes)
                require_room(requests.sizes, self._file_size)
                placement = place_records(requests.sizes.astype(np.int64), end, self._file_size)
                topics = TopicColumn(requests.topics, requests.topic_codes)
                queue_offsets = offsets.assign(topics, requests.queue_ids)
                times = np.broadcast_to(np.int64(now()), len(requests.sizes))
                places = Places(queue_offsets, placement.physical_offsets, times)
                yield PlacedBatch(part, batch, topics, placement, places, light_offsets)
                end = placement.end
