"""One task of a stream, which reads what was planned.

A broker may have recovered the store since it was planned, or may be recovering it now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.hosts import naming_this_host
from pyspark_rmqstore.opened_stores import open_in_task, paths_of
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.planning import QueueSplit
from pyspark_rmqstore.tasks import SplitReader
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.session import StoreSession
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import BrokerRun, StoreSigns, folders_of
from rmqstore.storage.files.retry import ChangingStore

# A store that is opened and closed all the time is not recovered each time.
_MAX_READS = 10


@dataclass(frozen=True)
class StreamSplit(InputPartition):
    """A task of a stream."""

    planned: QueueSplit
    mark: LogMark | None  # the newest record of the store when the task was planned


def read_task(
    reader: SplitReader, split: StreamSplit, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task."""
    task = _StreamTask(reader, split, fail_on_data_loss=fail_on_data_loss)
    # The signs are taken before the store is opened: a file may be deleted while it is opened.
    changing = ChangingStore(task.signs, task.doubt)
    with option_names(), open_in_task(split.planned.store) as store:
        # Rows that Spark has got cannot be taken back. So only the first batch is read again here;
        # what fails later is left to Spark's own attempts.
        yield from changing.answer(lambda: task.begin(store))


class _StreamTask:
    def __init__(self, reader: SplitReader, split: StreamSplit, *, fail_on_data_loss: bool) -> None:
        self._reader = reader
        self._planned, self._mark = split.planned, split.mark
        self._fail_on_data_loss = fail_on_data_loss
        self._is_in_doubt = False

    def signs(self) -> StoreSigns:
        with naming_this_host():
            paths = paths_of(self._planned.store)
        queues = {(piece.topic, piece.queue_id) for piece in self._planned.slices}
        return StoreSigns.of(paths, folders_of(paths, queues))

    def doubt(self) -> None:
        self._is_in_doubt = True

    def begin(self, store: StoreSession) -> Iterator[pa.RecordBatch]:
        """Return the batches, the first of which is read already.

        A broker that starts after the plan was checked and before it is read may cut the log and
        write other records in the place of those that were planned. The first batch is dropped
        then, and everything is checked and read again.
        """
        for _ in range(_MAX_READS):
            run = BrokerRun.of(store.paths)
            split = self._planned if self._stands(store) else self._plan_again(store)
            batches = self._reader.rows(store, split)
            first = next(batches, None)
            if BrokerRun.of(store.paths) == run:
                break
            self._is_in_doubt = True
        return batches if first is None else chain([first], batches)

    def _stands(self, store: StoreSession) -> bool:
        """Tell whether the store still holds what was planned; one that was closed does."""
        if self._is_in_doubt:
            return False
        store.ends.recovered = self._planned.recovered
        if not store.paths.has_abort:
            return True
        return self._has_mark(store) and all(store.stands(piece) for piece in self._planned.slices)

    def _has_mark(self, store: StoreSession) -> bool:
        return self._mark is None or self._mark.stands_in(store.log)

    def _plan_again(self, store: StoreSession) -> QueueSplit:
        """Take from the log what queues lack by now.

        What a recovery cut off is left out if ``failOnDataLoss`` is false.
        """
        store.forget()
        slices = self._planned.slices
        if not self._fail_on_data_loss:
            # Messages that took the place of those that were cut off were stored later than the
            # mark, and come with the next micro-batch.
            until = LATEST_TIME
            if self._mark is not None and not self._has_mark(store):
                until = self._mark.store_timestamp
            confirmed = (store.confirmed(piece, store.log.max_offset, until) for piece in slices)
            slices = tuple(part for parts in confirmed for part in parts)
        return replace(self._planned, slices=slices, recovered=store.ends.recovered)
