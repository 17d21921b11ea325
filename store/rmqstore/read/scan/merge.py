"""Merges two streams of messages in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

PLACE = "commitLogOffset"


def merge_by_place(
    one: Iterable[pa.RecordBatch], other: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of two streams in the order of the log, one batch of each in memory.

    Args:
        one: batches with ``commitLogOffset``, which rises and is never null.
        other: likewise; its rows come after those of the first at the same place.
    """
    streams = [iter(one), iter(other)]
    heads = [_next(stream) for stream in streams]
    while (first := heads[0]) is not None and (second := heads[1]) is not None:
        limit = min(first.column(PLACE)[-1].as_py(), second.column(PLACE)[-1].as_py())
        parts = [head.filter(pc.less_equal(head.column(PLACE), limit)) for head in (first, second)]
        yield from _in_order(parts)
        for number, head in enumerate((first, second)):
            rest = head.slice(parts[number].num_rows)
            heads[number] = rest if rest.num_rows else _next(streams[number])
    for head, stream in zip(heads, streams, strict=True):
        if head is not None:
            yield head
            yield from stream


def _in_order(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    filled = [part for part in parts if part.num_rows]
    if len(filled) == 1:
        yield filled[0]
        return
    table = pa.Table.from_batches(filled)
    rows = pc.sort_indices(table.column(PLACE), sort_keys=[(PLACE, "ascending")])
    yield from table.take(rows).combine_chunks().to_batches()


def _next(stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the next batch that holds rows."""
    return next((batch for batch in stream if batch.num_rows), None)
