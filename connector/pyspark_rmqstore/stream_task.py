"""One task of a stream: reads what was planned, of a store that a broker may have recovered, or recovers, since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.planning import QueueSplit
from pyspark_rmqstore.tasks import SplitReader, open_ref, paths_of
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.session import StoreSession
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import BrokerRun, StoreSigns
from rmqstore.storage.files.retry import ChangingStore


@dataclass(frozen=True)
class StreamSplit(InputPartition):
    """A task of a stream: ranges of queues, and the newest record of their store when they were planned."""

    planned: QueueSplit
    mark: LogMark | None


def read_task(
    reader: SplitReader, split: StreamSplit, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task."""
    task = _StreamTask(reader, split, fail_on_data_loss=fail_on_data_loss)
    # from before the store is opened: what is listed may go then
    changing = ChangingStore(task.signs, task.doubt)
    with option_names(), open_ref(split.planned.store) as store:
        # Rows that are handed on stay so: after the first batch, what fails is a matter for Spark's
        # own attempts.
        yield from changing.answer(lambda: task.begin(store))


class _StreamTask:
    def __init__(self, reader: SplitReader, split: StreamSplit, *, fail_on_data_loss: bool) -> None:
        self._reader, self._planned, self._mark = reader, split.planned, split.mark
        self._fail_on_data_loss = fail_on_data_loss
        self._is_in_doubt = False

    def signs(self) -> StoreSigns:
        paths = paths_of(self._planned.store)
        queues = {(piece.topic, piece.queue_id) for piece in self._planned.slices}
        folders = (
            str(folder(*key)) for key in queues for folder in (paths.queue, paths.batch_queue)
        )
        return StoreSigns.of(paths, folders)

    def doubt(self) -> None:
        self._is_in_doubt = True

    def begin(self, store: StoreSession) -> Iterator[pa.RecordBatch]:
        """Return the batches, the first of which is read already.

        A broker that starts after the plan was checked and before it is read may cut the log and
        write other records in the place of those that were planned. What was read is dropped then,
        and all is checked and read again.
        """
        while True:
            run = BrokerRun.of(store.paths)
            left = self._planned if self._stands(store) else self._look_anew(store)
            batches = self._reader.rows(store, left)
            first = next(batches, None)
            if BrokerRun.of(store.paths) == run:
                return batches if first is None else chain([first], batches)
            self._is_in_doubt = True

    def _stands(self, store: StoreSession) -> bool:
        """Tell whether the store is still what was planned.

        One that was closed is not recovered.
        """
        if self._is_in_doubt:
            return False
        store.ends.recovered = self._planned.recovered
        if not store.paths.has_abort:
            return True
        return self._has_mark(store) and all(store.stands(piece) for piece in self._planned.slices)

    def _has_mark(self, store: StoreSession) -> bool:
        return self._mark is None or self._mark.stands_in(store.log)

    def _look_anew(self, store: StoreSession) -> QueueSplit:
        """Take from the log what queues lack by now; leave out what a recovery cut off, if that is allowed."""
        store.forget()
        slices = self._planned.slices
        if not self._fail_on_data_loss:
            # Messages that took the place of what was cut off are stored later, and come with the
            # next micro-batch.
            until = (
                LATEST_TIME
                if self._mark is None or self._has_mark(store)
                else self._mark.store_timestamp
            )
            confirmed = (store.confirmed(piece, store.log.max_offset, until) for piece in slices)
            slices = tuple(part for parts in confirmed for part in parts)
        return replace(self._planned, slices=slices, recovered=store.ends.recovered)
