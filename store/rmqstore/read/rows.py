"""Units of queues as columns, and two streams of rows in the order of the log."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.layout import Mask, Positions
from rmqstore.format.record import Expected
from rmqstore.spans import QueueKey
from rmqstore.storage.queue.queue import Units

PHYSICAL_OFFSET = "commitLogOffset"


def merge_by_physical_offset(
    left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of two streams in the order of the log, one batch of each in memory.

    Args:
        left: batches with ``commitLogOffset``, which rises and is never null.
        right: likewise; its rows come after those of the first at the same place.
    """
    streams = [iter(left), iter(right)]
    headers = [_next(stream) for stream in streams]
    while (first := headers[0]) is not None and (second := headers[1]) is not None:
        limit = min(
            first.column(PHYSICAL_OFFSET)[-1].as_py(), second.column(PHYSICAL_OFFSET)[-1].as_py()
        )
        parts = [
            head.filter(pc.less_equal(head.column(PHYSICAL_OFFSET), limit))
            for head in (first, second)
        ]
        filled = [part for part in parts if part.num_rows]
        if len(filled) == 1:
            yield filled[0]
        else:
            table = pa.Table.from_batches(filled)
            order = pc.sort_indices(
                table.column(PHYSICAL_OFFSET), sort_keys=[(PHYSICAL_OFFSET, "ascending")]
            )
            yield from table.take(order).combine_chunks().to_batches()
        for number, head in enumerate((first, second)):
            rest = head.slice(parts[number].num_rows)
            headers[number] = rest if rest.num_rows else _next(streams[number])
    for head, stream in zip(headers, streams, strict=True):
        if head is not None:
            yield head
            yield from stream


def _next(stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the next batch that holds rows."""
    return next((batch for batch in stream if batch.num_rows), None)


class UnitRows(NamedTuple):
    """Units of any number of queues, (n,) each, with the records that they point at."""

    topics: list[str]  # the distinct topics
    topic_codes: NDArray[np.int32]  # positions in ``topics``
    queue_ids: NDArray[np.int32]
    queue_offsets: NDArray[np.int64]
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    @classmethod
    def of_queue(
        cls, topic: str, queue_id: int, queue_offsets: NDArray[np.int64], units: Units
    ) -> UnitRows:
        """Return units of one queue, (n,), with the queue offsets beside them."""
        topic_codes = np.zeros(len(queue_offsets), np.int32)
        queue_ids = np.full(len(queue_offsets), queue_id, np.int32)
        return cls([topic], topic_codes, queue_ids, queue_offsets, *units)

    @classmethod
    def joined(cls, parts: Sequence[UnitRows]) -> UnitRows:
        """Return the rows of one or more parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        topics = list(dict.fromkeys(topic for part in parts for topic in part.topics))
        codes = {topic: code for code, topic in enumerate(topics)}
        recoded = [
            np.array([codes[topic] for topic in part.topics], np.int32)[part.topic_codes]
            for part in parts
        ]
        columns = (
            np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True)
        )
        return cls(topics, np.concatenate(recoded), *columns)

    def take(self, rows: slice | Positions | Mask) -> UnitRows:
        """Return the chosen rows."""
        return UnitRows._make([self.topics, *(column[rows] for column in self[1:])])

    def are_of(self, topics: Container[str]) -> Mask:
        """Return a mask (n,) of the rows of some topics."""
        mask = np.array([topic in topics for topic in self.topics], np.bool_)
        return mask[self.topic_codes]

    def key(self, row: int) -> QueueKey:
        """Return the queue of one row."""
        return self.topics[self.topic_codes[row]], int(self.queue_ids[row])

    def expected(self, row: int) -> Expected:
        """Return what is expected of one record."""
        return Expected(*self.key(row), int(self.queue_offsets[row]), int(self.sizes[row]))
