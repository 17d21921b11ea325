"""The parts of a read of one store: values that describe what to read, and read it.

A plan consists of parts. Each of them can be cut into smaller ones, sent to another process and
read there, whatever the others are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

from rmqstore.format.layout import Positions
from rmqstore.progress import Advance, ignore_progress
from rmqstore.read.faults import refuse_spans
from rmqstore.read.last_record import LastRecord
from rmqstore.read.newest import newest_of_log, newest_of_queues
from rmqstore.read.pending import PendingRows, read_pending
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import look_up, read_log, read_queues, read_records, read_units
from rmqstore.read.request import ScanRequest
from rmqstore.read.rows import PHYSICAL_OFFSET, UnitRows, merge_by_physical_offset
from rmqstore.read.split import (
    Limits,
    SampledQueues,
    SampledSpan,
    cut_log,
    cut_rows,
    total_length,
)
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LostSpan, QueueKey, QueueSlice
from rmqstore.storage.queue.queue import RecoveredUnits
from rmqstore.storage.recovery.store_ends import PlannedEnds, recovered_within

Batches: TypeAlias = Iterator[pa.RecordBatch]


class PlannedPart(ABC):
    """A part of a store that is read in one go, for messages or for a view."""

    @property
    @abstractmethod
    def n_bytes(self) -> float:
        """The bytes of the store that are read for it, estimated."""

    @property
    def n_records(self) -> int | None:
        """The number of its rows; None if only reading them can show it."""
        return None

    @property
    def ends(self) -> PlannedEnds | None:
        """The ends of the store as planned, for the process that reads the part.

        None if that has to look for itself, or needs none.
        """
        return None


class Part(PlannedPart):
    """A part of a read of the messages of one store."""

    def split(self, _: Limits) -> Sequence[Part]:
        """Return parts within limits that together are this one; none is empty."""
        return [self]

    @property
    def parts(self) -> Sequence[Part]:
        """The parts whose rows together are those of this one, where their order is free."""
        return [self]

    @abstractmethod
    def read(
        self, store: StoreParts, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Batches:
        """Return the rows that a request asks for, with the columns of ``request.spec`` at least.

        Args:
            store: the store, which another process may have opened.
            request: the request that was planned, perhaps with other columns.
            advance: called when records were read.
        """


class PlainPart(Part):
    """A part that holds no others."""

    def read(
        self, store: StoreParts, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Batches:
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
        sampled: the same ranges with samples, by which they are cut; None if they were not sampled,
            and so are not cut.
    """

    slices: tuple[QueueSlice, ...]
    last_record: LastRecord | None = None
    sampled: SampledQueues | None = None

    @property
    def n_bytes(self) -> float:
        """The bytes of all messages, estimated; 0 if they were not sampled."""
        return 0.0 if self.sampled is None else self.sampled.n_bytes

    @property
    def n_records(self) -> int:
        """The number of all messages."""
        return total_length(self.slices)

    def split(self, limits: Limits) -> list[Self]:
        """Return parts within limits that together are this one."""
        if self.sampled is None:
            return [self]
        return [replace(self, slices=slices, sampled=None) for slices in self.sampled.cut(limits)]


@dataclass(frozen=True)
class QueuesPart(RangesPart, PlainPart):
    """Ranges of queues of a store.

    In a look-up they lie in tiered storage, and all of their messages are compared.

    Attributes:
        recovered: the units that only the log gives, of their queues and perhaps of others; None if
            a process that reads the part has to look for them.
        is_newest: whether no record that may be read lies after the last record.
    """

    recovered: dict[QueueKey, RecoveredUnits] | None = None
    is_newest: bool = True

    def is_cut(self, store: StoreParts) -> bool:
        """Return whether a store has lost the record by which the log of the plan is recognized."""
        return self.last_record is not None and not self.last_record.is_in(store.log)

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
        is_cut = self.is_cut(store)
        if is_cut or self.is_newest:
            spec = replace(spec, last_record=self.last_record, is_cut=is_cut)
        return read_queues(store, self.slices, spec)


@dataclass(frozen=True)
class UnitsPart(PlainPart):
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
class LogPart(PlainPart):
    """Ranges of the log, rising.

    Attributes:
        spans: the ranges, none of which can be cut.
    """

    spans: tuple[SampledSpan, ...]

    @property
    def n_bytes(self) -> float:
        return sum(span.n_bytes for span in self.spans)

    def split(self, limits: Limits) -> list[LogPart]:
        return [LogPart(spans) for spans in cut_log(self.spans, limits)]

    def _rows(self, store: StoreParts, request: ScanRequest, spec: ReadSpec) -> Batches:
        chosen = request.log_filter()
        for span in self.spans:
            yield from read_log(store, span.log_slice, spec, chosen)


@dataclass(frozen=True)
class RecordsPart(PlainPart):
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
class PendingPart(PlainPart):
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
class LostPart(PlainPart):
    """Damage of the log that may have held messages of queues, and that no other part reports.

    Attributes:
        spans: the damaged parts of the log.
        n_bytes, n_records: none, for none of them is a message.
    """

    spans: tuple[LostSpan, ...]
    n_bytes: float = 0.0
    n_records: int = 0

    def _rows(self, _store: StoreParts, _request: ScanRequest, spec: ReadSpec) -> Batches:
        return refuse_spans(self.spans, spec)


@dataclass(frozen=True)
class Merged(Part):
    """Parts whose rows are those of one part, in the order of the log.

    Attributes:
        singles: messages or records that the index names.
        others: ranges of queues with other messages, or the log where the index does not cover it.
    """

    singles: UnitsPart | RecordsPart
    others: QueuesPart | LogPart

    @property
    def parts(self) -> Sequence[Part]:
        return [self.others, self.singles]

    @property
    def n_bytes(self) -> float:
        return self.singles.n_bytes + self.others.n_bytes

    @property
    def n_records(self) -> int | None:
        others = self.others.n_records
        return None if others is None else others + self.singles.n_records

    def split(self, limits: Limits) -> list[Part]:
        shares = [(part, limits.share(part.n_bytes, self.n_bytes)) for part in self.parts]
        return [cut for part, share in shares for cut in part.split(share)]

    def read(
        self, store: StoreParts, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Batches:
        if isinstance(self.singles, RecordsPart) and isinstance(self.others, LogPart):
            parts = _in_order(self.singles, self.others)
            return chain.from_iterable(part.read(store, request, advance) for part in parts)
        wider = request.with_columns([PHYSICAL_OFFSET])
        return merge_by_physical_offset(
            self.others.read(store, wider, advance), self.singles.read(store, wider, advance)
        )


def _in_order(singles: RecordsPart, log: LogPart) -> Iterator[Part]:
    """Yield single records and ranges of the log, none of which has one of them, in their order."""
    offsets = singles.physical_offsets
    for span in log.spans:
        before = int(np.searchsorted(offsets, span.log_slice.start))
        yield replace(singles, physical_offsets=offsets[:before])
        yield LogPart((span,))
        offsets = offsets[before:]
    yield replace(singles, physical_offsets=offsets)


@dataclass(frozen=True)
class NewestPart(Part):
    """The newest messages of a part: of each queue, or of the log, in the order of the log.

    Attributes:
        part: the part.
        count: how many messages.
        n_first: the bytes of the log that are read first; more are if too few messages are there.
        lost: damage of the log that may have held some of them; only an error in it counts.
    """

    part: QueuesPart | LogPart
    count: int
    n_first: float = 0.0
    lost: tuple[LostSpan, ...] = ()

    @property
    def n_bytes(self) -> float:
        return self.part.n_bytes if isinstance(self.part, QueuesPart) else self.n_first

    @property
    def n_records(self) -> int | None:
        if isinstance(self.part, LogPart):
            return None
        counts = Counter[QueueKey]()
        for topic, queue_id, start, end in self.part.slices:
            counts[topic, queue_id] += end - start
        return sum(min(count, self.count) for count in counts.values())

    def read(
        self, store: StoreParts, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Batches:
        deque(refuse_spans(self.lost, request.spec()), maxlen=0)
        if isinstance(self.part, LogPart):
            yield from newest_of_log(
                self.part.spans,
                self.count,
                lambda span: LogPart((span,)).read(store, request, advance),
                request.spec().schema,
            )
            return
        yield from newest_of_queues(
            request,
            self.part.slices,
            self.count,
            lambda wider, slices: QueuesPart(tuple(slices)).read(store, wider, advance),
            "storeTimestamp" if store.is_tiered else PHYSICAL_OFFSET,
        )
