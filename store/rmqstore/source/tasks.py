"""Tasks: a part of a read, and where any process reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import pyarrow as pa

from rmqstore.read.parts import Part, QueuesPart, RangesPart
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts, open_ref, paths_of
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.parts import ViewPart
from rmqstore.spans import LATEST_TIME
from rmqstore.storage.broker.broker_run import StoreSigns, folders_of
from rmqstore.storage.broker.retry import Recoveries, Restarts, retry


@dataclass(frozen=True)
class Task(ABC):
    """A part of a read. Its subclasses know where it is read."""

    part: Part | RangesPart | ViewPart

    @property
    @abstractmethod
    def source(self) -> str:
        """What is opened to read the part, in words."""

    @property
    def n_bytes(self) -> float:
        """The bytes of its records, estimated."""
        return self.part.n_bytes

    @property
    def n_records(self) -> int | None:
        """The number of its records; None if only reading them can show it."""
        return self.part.n_records

    def split(self, limits: Limits) -> Sequence[Self]:
        """Return tasks within limits that together are this one."""
        return [replace(self, part=part) for part in self.part.split(limits)]

    @abstractmethod
    def read(self, request: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - of its parts
        """Yield the rows of the request, for messages or a view, that was planned."""


@dataclass(frozen=True)
class StoreTask(Task):
    """A part of a read of one store."""

    part: Part | ViewPart
    store: StoreRef

    @property
    def source(self) -> str:
        """The path of the store."""
        return self.store.path

    def read(self, request: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - of its parts
        """Yield the rows of the request, for messages or a view, that was planned."""
        with open_ref(self.store, self.part.ends) as store:
            yield from self.part.read(store, request)


@dataclass(frozen=True)
class MicroBatchTask(StoreTask):
    """A part of a micro-batch of one store, which may be planned again after a restart."""

    part: QueuesPart

    def read(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the part, or of what is left of it.

        A broker may have recovered the store since it was planned, or may be recovering it now.

        Raises:
            OffsetOutOfRangeError: messages are gone, and data loss is to fail.
        """
        queues = {(queue_slice.topic, queue_slice.queue_id) for queue_slice in self.part.slices}
        may_have_changed = False

        def note_change() -> None:
            nonlocal may_have_changed
            may_have_changed = True

        def signs() -> list[StoreSigns]:
            paths = paths_of(self.store)
            return [StoreSigns.of(paths, folders_of(paths, queues))]

        def begin() -> Iterator[pa.RecordBatch]:
            """Return the batches, the first of which is read already."""
            part = self.part
            if may_have_changed or not _is_as_planned(store, part):
                part = _planned_again(store, part, request)
            batches = part.read(store, request)
            first = next(batches, None)
            return batches if first is None else chain([first], batches)

        # The signs are taken before the store is opened: a file may be deleted while it is opened.
        recoveries = Recoveries(signs, note_change)
        with open_ref(self.store, self.part.ends) as store:
            # A broker that starts after the plan was checked and before it is read may cut the log
            # and write other records in the place of those that were planned. Rows that were given
            # cannot be taken back. So only the first batch is read again here; what fails later is
            # left to Spark's own attempts.
            restarts = Restarts(store.paths, note_change)
            yield from retry(begin, recoveries, restarts)


def _is_as_planned(store: StoreParts, part: QueuesPart) -> bool:
    """Return whether a store has what was planned; the last record of a closed one shows that."""
    if part.is_cut(store):
        return False
    return not store.paths.has_abort or all(map(store.ranges.still_holds, part.slices))


def _planned_again(store: StoreParts, part: QueuesPart, request: ScanRequest) -> QueuesPart:
    """Return what is left of a part of a micro-batch; what queues lack is taken from the log.

    What a recovery cut off is left out if data loss is not to fail.
    """
    store.forget()
    slices = part.slices
    if not request.fail_on_data_loss:
        # Messages that took the place of those that were cut off were stored later than the last
        # record, and come with the next micro-batch.
        until = LATEST_TIME
        if part.last_record is not None and part.is_cut(store):
            until = part.last_record.store_timestamp
        confirmed = (
            store.ranges.confirmed(planned, store.log.max_offset, until) for planned in slices
        )
        slices = tuple(chain.from_iterable(confirmed))
    return replace(part, slices=slices, recovered=store.ends.recovered)
