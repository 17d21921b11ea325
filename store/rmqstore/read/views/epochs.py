"""View ``epochs``: which part of the log each master of a broker in controller mode wrote.

Two replicas of a broker can be compared by it: they agree up to the end of the last epoch that both
have with the same start.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rmqstore.errors import CorruptConfigError
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.slices import ViewSlice, to_batches
from rmqstore.storage.broker.epochs import read_epochs
from rmqstore.storage.recovery.log_end import find_written_end


def plan_epochs(source: StoreParts, _spec: ViewSpec, _limits: Limits) -> list[ViewSlice]:
    """Return all epochs in one slice."""
    return [ViewSlice(log_end=source.ends.log_end)]


def read_epoch_rows(
    source: StoreParts, spec: ViewSpec, _view_slice: ViewSlice
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each epoch, rising, or one that says why the epochs cannot be read."""
    try:
        epochs = read_epochs(source.paths)
    except CorruptConfigError as err:
        yield from to_batches(spec, source, iter([{"reason": str(err)}]))
        return
    if not epochs:
        return
    end = source.ends.of_records()
    log_end = find_written_end(source.log) if end is None else end
    ends = [*(epoch.start_offset for epoch in epochs[1:]), log_end]
    rows: list[dict[str, object]] = []
    for epoch, end_offset in zip(epochs, ends, strict=True):
        row: dict[str, object] = {
            "epoch": epoch.number,
            "startOffset": epoch.start_offset,
            "endOffset": max(end_offset, epoch.start_offset),
            "reason": None,
        }
        rows.append(row)
    yield from to_batches(spec, source, iter(rows))
