"""The newest messages of queues or of the log, found from their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.format.layout import Mask
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import SampledSpan
from rmqstore.spans import QueueKey, QueueSlice

_QUEUE_COLUMNS: Final = ("topic", "queueId", "queueOffset")
_GROWTH: Final = 4

ReadQueues = Callable[[ScanRequest, list[QueueSlice]], Iterator[pa.RecordBatch]]
ReadLog = Callable[[SampledSpan], Iterator[pa.RecordBatch]]


def newest_of_queues(
    request: ScanRequest, slices: Sequence[QueueSlice], count: int, read: ReadQueues, order: str
) -> Iterator[pa.RecordBatch]:
    """Yield the newest messages of each queue that a request asks for, in one order over all.

    Args:
        request: what is asked for.
        slices: ranges of queues, those of one queue in their order.
        count: how many messages of each queue.
        read: reads ranges for a request with some more columns, and may leave messages out.
        order: the column by which the messages are sorted.
    """
    wider = request.with_columns((*_QUEUE_COLUMNS, order))
    schema = wider.spec().schema
    left: dict[QueueKey, list[QueueSlice]] = {}
    for queue_slice in slices:
        if queue_slice.start < queue_slice.end:
            left.setdefault((queue_slice.topic, queue_slice.queue_id), []).append(queue_slice)
    missing = dict.fromkeys(left, count)
    tables: list[pa.Table] = []
    n_read = count
    while left:
        parts = [
            part for queue_slices in left.values() for part in _take_last(queue_slices, n_read)
        ]
        rows = pa.Table.from_batches(read(wider, parts), schema)
        tables.append(rows.filter(pa.array(_newest_rows(rows, missing))))
        left = {
            key: queue_slices
            for key, queue_slices in left.items()
            if queue_slices and missing[key] > 0
        }
        n_read *= _GROWTH
    rows = pa.concat_tables([schema.empty_table(), *reversed(tables)])
    rows = rows.take(pc.sort_indices(rows.column(order)))
    yield from request.returned(iter(rows.to_batches()))


def newest_of_log(
    parts: Sequence[SampledSpan], count: int, read: ReadLog, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the newest records of the log that meet the conditions of a read.

    Args:
        parts: parts of the log in their order, small ones.
        count: how many records.
        read: reads a part, and may leave records out.
        schema: the columns that ``read`` gives.
    """
    left = [*parts]
    tables: list[pa.Table] = []
    n_rows, n_parts = 0, 1
    while left and n_rows < count:
        left, taken = left[:-n_parts], left[-n_parts:]
        table = pa.Table.from_batches((batch for part in taken for batch in read(part)), schema)
        tables.append(table)
        n_rows += len(table)
        n_parts *= _GROWTH
    table = pa.concat_tables([schema.empty_table(), *reversed(tables)])
    yield from table.slice(max(len(table) - count, 0)).to_batches()


def _take_last(queue_slices: list[QueueSlice], count: int) -> list[QueueSlice]:
    """Take the last ``count`` messages away from ranges of a queue, and return their ranges."""
    taken: list[QueueSlice] = []
    while queue_slices and count > 0:
        queue_slice = queue_slices.pop()
        start = max(queue_slice.start, queue_slice.end - count)
        if start > queue_slice.start:
            queue_slices.append(queue_slice._replace(end=start))
        taken.insert(0, queue_slice._replace(start=start))
        count -= queue_slice.end - start
    return taken


def _newest_rows(rows: pa.Table, missing: dict[QueueKey, int]) -> Mask:
    """Return a mask (n,) of the newest rows of a queue up to its number; they are counted."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    names = rows.column("topic").combine_chunks().dictionary_encode()
    topics = names.dictionary.to_pylist()
    codes = names.indices.to_numpy(zero_copy_only=False)
    queue_ids = rows.column("queueId").to_numpy()
    offsets = pc.fill_null(rows.column("queueOffset"), -1).to_numpy()
    is_chosen = np.zeros(len(rows), np.bool_)
    for of_queue in rows_by_queue(codes, queue_ids):
        newest = of_queue[np.argsort(-offsets[of_queue], kind="stable")]
        key = topics[codes[newest[0]]], int(queue_ids[newest[0]])
        n_chosen = min(missing[key], len(newest))
        missing[key] -= n_chosen
        is_chosen[newest[:n_chosen]] = True
    return is_chosen
