"""The parts of a read of one store: values that describe what to read, and read it.

A plan consists of parts. Each of them can be cut into smaller ones, sent to another process and
read there, whatever the others are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

from rmqstore.format.layout import Positions
from rmqstore.progress import Advance, ignore_progress
from rmqstore.read.faults import refuse_spans
from rmqstore.read.last_record import LastRecord
from rmqstore.read.pending import PendingRows, read_pending
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import look_up, read_log, read_queues, read_records, read_units
from rmqstore.read.request import ScanRequest
from rmqstore.read.rows import UnitRows
from rmqstore.read.split import Limits, SampledQueues, SampledSpan, cut_log, cut_rows
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, LostSpan, QueueKey, QueueSlice
from rmqstore.storage.queue.queue import RecoveredUnits
from rmqstore.storage.recovery.store_ends import PlannedEnds, recovered_within

Batches: TypeAlias = Iterator[pa.RecordBatch]


class Part(ABC):
    """A part of a read of one store."""

    @property
    @abstractmethod
    def n_bytes(self) -> float:
        """The bytes of its records, estimated."""

    @property
    @abstractmethod
    def n_records(self) -> int | None:
        """The number of its records; None if only reading them can show it."""

    @property
    def ends(self) -> PlannedEnds | None:
        """The ends of the store as planned, for the process that reads the part.

        None if that has to look for itself.
        """
        return None

    @abstractmethod
    def split(self, limits: Limits) -> Sequence[Part]:
        """Return parts within limits that together are this one; none is empty."""

    def read(
        self, store: StoreParts, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Batches:
        """Return the rows that a request asks for, with the columns of ``request.spec``.

        Args:
            store: the store, which another process may have opened.
            request: the request that was planned, perhaps with other columns.
            advance: called when records were read.
        """
        spec = request.spec(store.broker_name, advance)
        return request.kept(self._rows(store, request, spec))

    @abstractmethod
    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        """Return the rows before the condition of the request decides."""


@dataclass(frozen=True)
class RangesPart:
    """Ranges of queues, wherever they are read; see :class:`Part`.

    Attributes:
        slices: the ranges.
        last_record: a record by which the log of the plan is recognized, None if there is none.
        sampled: the same ranges with samples, by which they are cut; None if they were not sampled.
    """

    slices: tuple[QueueSlice, ...]
    last_record: LastRecord | None = None
    sampled: SampledQueues | None = None

    @property
    def n_bytes(self) -> float:
        """The bytes of all messages, estimated."""
        return self._samples.n_bytes

    @property
    def n_records(self) -> int:
        """The number of all messages."""
        return sum(queue_slice.end - queue_slice.start for queue_slice in self.slices)

    def split(self, limits: Limits) -> list[Self]:
        """Return parts within limits that together are this one."""
        return [replace(self, slices=slices, sampled=None) for slices in self._samples.cut(limits)]

    @property
    def _samples(self) -> SampledQueues:
        assert self.sampled is not None, "the ranges were not sampled"
        return self.sampled


@dataclass(frozen=True)
class QueuesPart(RangesPart, Part):
    """Ranges of queues of a store.

    In a look-up they lie in tiered storage, and all of their messages are compared.

    Attributes:
        recovered: the units that only the log gives, of their queues and perhaps of others; None if
            a process that reads the part has to look for them.
        is_newest: whether no record that may be read lies after the last record.
    """

    recovered: dict[QueueKey, RecoveredUnits] | None = None
    is_newest: bool = True

    @property
    def ends(self) -> PlannedEnds | None:
        return None if self.recovered is None else PlannedEnds(self.recovered)

    def split(self, limits: Limits) -> list[Self]:
        parts = super().split(limits)
        if not self.recovered:
            return parts
        return [
            replace(part, recovered=recovered_within(self.recovered, part.slices)) for part in parts
        ]

    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        if request.lookup_keys:
            return look_up(store, self.slices, spec, request.log_filter())
        is_cut = self.last_record is not None and not self.last_record.is_in(store.log)
        if is_cut or self.is_newest:
            spec = replace(spec, last_record=self.last_record, is_cut=is_cut)
        return read_queues(store, self.slices, spec)


@dataclass(frozen=True)
class UnitsPart(Part):
    """Single messages of queues, which the index names.

    Attributes:
        picked: their units.
    """

    picked: UnitRows

    @property
    def n_bytes(self) -> float:
        return float(self.picked.sizes.sum())

    @property
    def n_records(self) -> int:
        return len(self.picked.sizes)

    @property
    def ends(self) -> PlannedEnds:
        return PlannedEnds({})

    def split(self, limits: Limits) -> list[UnitsPart]:
        return [UnitsPart(self.picked.take(rows)) for rows in cut_rows(self.picked.sizes, limits)]

    def _rows(self, store: StoreParts, _request: ScanRequest, spec: ReadSpec) -> Batches:
        return read_units(store, self.picked, spec)


@dataclass(frozen=True)
class LogPart(Part):
    """Ranges of the log, rising.

    Attributes:
        slices: the ranges.
        spans: the same ranges in spans that cannot be cut; None if these were not looked for.
    """

    slices: tuple[LogSlice, ...]
    spans: tuple[SampledSpan, ...] | None = None

    @property
    def n_bytes(self) -> float:
        assert self.spans is not None, "it is not known where the ranges can be cut"
        return sum(span.n_bytes for span in self.spans)

    @property
    def n_records(self) -> None:
        return None

    def split(self, limits: Limits) -> list[LogPart]:
        assert self.spans is not None, "it is not known where the ranges can be cut"
        return [LogPart(slices) for slices in cut_log(self.spans, limits)]

    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        chosen = request.log_filter()
        for log_slice in self.slices:
            yield from read_log(store, log_slice, spec, chosen)


@dataclass(frozen=True)
class RecordsPart(Part):
    """Single records of the log, which the index names.

    Attributes:
        physical_offsets: where they may begin, int64 (n,), rising.
        mean_bytes: the estimated size of one.
    """

    physical_offsets: Positions
    mean_bytes: float

    @property
    def n_bytes(self) -> float:
        return self.mean_bytes * len(self.physical_offsets)

    @property
    def n_records(self) -> int:
        return len(self.physical_offsets)

    def split(self, limits: Limits) -> list[RecordsPart]:
        sizes = np.full(self.n_records, self.mean_bytes, np.float64)
        return [
            replace(self, physical_offsets=self.physical_offsets[rows])
            for rows in cut_rows(sizes, limits)
        ]

    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        return read_records(store, self.physical_offsets, spec, request.log_filter())


@dataclass(frozen=True)
class PendingPart(Part):
    """Pending messages.

    Attributes:
        rows: the messages.
        mean_bytes: the estimated size of one.
    """

    rows: PendingRows
    mean_bytes: float

    @property
    def n_bytes(self) -> float:
        return self.mean_bytes * len(self.rows.physical_offsets)

    @property
    def n_records(self) -> int:
        return len(self.rows.physical_offsets)

    def split(self, limits: Limits) -> list[PendingPart]:
        sizes = np.full(self.n_records, self.mean_bytes, np.float64)
        return [replace(self, rows=self.rows.take(part)) for part in cut_rows(sizes, limits)]

    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        return read_pending(store, self.rows, spec, request.selection)


@dataclass(frozen=True)
class LostPart(Part):
    """Damage of the log that may have held messages of queues, and that no other part reports.

    Attributes:
        spans: the damaged parts of the log.
    """

    spans: tuple[LostSpan, ...]

    @property
    def n_bytes(self) -> float:
        return 0.0

    @property
    def n_records(self) -> int:
        return len(self.spans)

    def split(self, _: Limits) -> list[LostPart]:
        return [self]

    def _rows(self, _store: StoreParts, _request: ScanRequest, spec: ReadSpec) -> Batches:
        return refuse_spans(self.spans, spec)
