"""The parts of a view of one store: values that describe what to read, and read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row, to_batches
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.recovery.store_ends import PlannedEnds


class ViewPart(ABC):
    """A part of a view, which is read in one go, perhaps in another process; as ``read.parts``."""

    n_bytes: float = 0.0  # of the store that are read for it, estimated

    @property
    def n_records(self) -> None:
        """The number of its rows, which only reading them can show."""
        return None

    @property
    def ends(self) -> PlannedEnds | None:
        """The ends of the store as planned; None if they are not needed."""
        return None

    def split(self, _: Limits) -> Sequence[Self]:
        """Return the part: views are planned within limits."""
        return [self]

    @abstractmethod
    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        """Return the rows, in the columns that are asked for."""


@dataclass(frozen=True)
class RowsPart(ViewPart):
    """Rows that are made one by one.

    Attributes:
        make: makes them.
        names: the queues or topics that they are of; empty for the whole of a view.
        planned: see ``ends``.
        n_bytes: see :class:`ViewPart`.
    """

    make: Callable[[StoreParts, ViewSpec, Sequence[Any]], Iterator[Row]]
    names: Sequence[Any] = ()
    planned: PlannedEnds | None = None
    n_bytes: float = 0.0

    @property
    def ends(self) -> PlannedEnds | None:
        return self.planned

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        return to_batches(spec, source, self.make(source, spec, self.names))
