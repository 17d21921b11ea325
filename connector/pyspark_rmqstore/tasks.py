"""Tasks of Spark: a part of a read, and where it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.opened_stores import open_in_task
from pyspark_rmqstore.stream_task import read_planned
from rmqstore.read.parts import Part, QueuesPart, RangesPart
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.parts import ViewPart


@dataclass(frozen=True)
class Task(InputPartition, ABC):
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
        """Yield the rows of the request that was planned."""

    def read_planned(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a micro-batch, which may be planned again after a restart."""
        return self.read(request)


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
        with open_in_task(self.store, self.part.ends) as store:
            yield from self.part.read(store, request)

    def read_planned(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a micro-batch, whose store may have been recovered since its plan."""
        assert isinstance(self.part, QueuesPart), "a micro-batch reads queues"
        return read_planned(self.store, self.part, request)
