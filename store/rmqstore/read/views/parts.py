"""The parts of a view of one store: values that describe what to read, and read it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import pyarrow as pa

from rmqstore.read.parts import PlannedPart
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row, to_batches
from rmqstore.read.views.schema import ViewSpec
from rmqstore.spans import QueueKey
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.store_ends import PlannedEnds


class ViewPart(PlannedPart):
    """A part of a view, which is read in one go, perhaps in another process."""

    def split(self, _: Limits) -> Sequence[Self]:
        """Return the part: views are planned within limits."""
        return [self]

    @abstractmethod
    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        """Return the rows, in the columns that are asked for."""


@dataclass(frozen=True)
class LogEndPart(ViewPart):
    """A part whose rows depend on where the log ends.

    Attributes:
        log_end: where it ends; None of a closed store.
    """

    log_end: LogEnd | None

    @property
    def ends(self) -> PlannedEnds:
        return PlannedEnds({}, self.log_end, is_log_end_known=True)


# Makes rows of some queues or topics; of the whole of a view if none are named.
MakeRows: TypeAlias = Callable[[StoreParts, ViewSpec, Sequence[Any]], Iterator[Row]]


@dataclass(frozen=True)
class RowsPart(ViewPart):
    """Rows that are made one by one.

    Attributes:
        make: makes them.
        names: the queues or topics that they are of; empty for the whole of a view.
        ends, n_bytes: see :class:`ViewPart`.
    """

    make: MakeRows
    names: Sequence[Any]
    ends: PlannedEnds | None = None
    n_bytes: float = 0.0

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        return to_batches(spec, source, self.make(source, spec, self.names))


def rows_part(
    source: StoreParts,
    make: MakeRows,
    names: Sequence[Any] = (),
    keys: Collection[QueueKey] = (),
    n_bytes: float = 0.0,
) -> RowsPart:
    """Return rows that are made one by one as a part, with the ends of the queues they need.

    Args:
        source: the store.
        make, names, n_bytes: see :class:`RowsPart`.
        keys: the queues that are read. Without any, none is recovered.
    """
    recovered = source.ends.recovered if keys else {}
    ends = PlannedEnds(
        {key: recovered[key] for key in keys if key in recovered},
        source.ends.log_end,
        is_log_end_known=True,
    )
    return RowsPart(make, names, ends, n_bytes)
