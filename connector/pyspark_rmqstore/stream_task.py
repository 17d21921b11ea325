"""Reads a task of a micro-batch.

The store is opened again in the task: a broker may have recovered it since it was planned, or may
be recovering it now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from pyspark_rmqstore.opened_stores import naming_this_host, open_in_task
from rmqstore.read.parts import QueuesPart
from rmqstore.read.request import ScanRequest
from rmqstore.read.store_parts import StoreParts, paths_of
from rmqstore.read.store_ref import StoreRef
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import StoreSigns, folders_of
from rmqstore.storage.broker.retry import Recoveries, Restarts, retry


def read_planned(
    ref: StoreRef, planned: QueuesPart, request: ScanRequest
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part of a micro-batch, or what is left of it.

    Raises:
        OffsetOutOfRangeError: messages are gone, and data loss is to fail.
    """
    task = _StreamTask(ref, planned, request)
    # The signs are taken before the store is opened: a file may be deleted while it is opened.
    recoveries = Recoveries(task.signs, task.note_change)
    with open_in_task(ref, planned.ends) as store:
        # A broker that starts after the plan was checked and before it is read may cut the log and
        # write other records in the place of those that were planned. Rows that Spark has got
        # cannot be taken back. So only the first batch is read again here; what fails later is left
        # to Spark's own attempts.
        restarts = Restarts(store.paths, task.note_change)
        yield from retry(lambda: task.begin(store), recoveries, restarts)


class _StreamTask:
    def __init__(self, ref: StoreRef, planned: QueuesPart, request: ScanRequest) -> None:
        self._ref = ref
        self._planned = planned
        self._request = request
        self._may_have_changed = False

    def signs(self) -> StoreSigns:
        with naming_this_host():
            paths = paths_of(self._ref)
        queues = {(queue_slice.topic, queue_slice.queue_id) for queue_slice in self._planned.slices}
        return StoreSigns.of(paths, folders_of(paths, queues))

    def note_change(self) -> None:
        self._may_have_changed = True

    def begin(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        """Return the batches, the first of which is read already.

        They are planned again unless the store has what was planned. The last record of a closed
        store shows that.
        """
        part = self._planned
        is_valid = not self._may_have_changed and (
            part.last_record is None or part.last_record.is_in(store.log)
        )
        if is_valid and store.paths.has_abort:
            is_valid = all(store.ranges.still_holds(queue_slice) for queue_slice in part.slices)
        if not is_valid:
            # What queues now lack is taken from the log. What a recovery cut off is left out if
            # failOnDataLoss is false.
            store.forget()
            slices = part.slices
            if not self._request.fail_on_data_loss:
                # Messages that took the place of those that were cut off were stored later than the
                # last record, and come with the next micro-batch.
                until = LATEST_TIME
                if part.last_record is not None and not part.last_record.is_in(store.log):
                    until = part.last_record.store_timestamp
                confirmed = (
                    store.ranges.confirmed(planned, store.log.max_offset, until)
                    for planned in slices
                )
                slices = tuple(chain.from_iterable(confirmed))
            part = replace(part, slices=slices, recovered=store.ends.recovered)
        batches = part.read(store, self._request)
        first = next(batches, None)
        return batches if first is None else chain([first], batches)
