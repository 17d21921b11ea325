"""Packs small parts of a read into tasks of Spark, as that packs files, and reads these."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.hosts import naming_this_host
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.worker import tune_worker
from rmqstore.read.split import Limits

if TYPE_CHECKING:
    from rmqstore.source.tasks import Task

# Bytes that could be read while a source is opened: spark.sql.files.openCostInBytes by default.
OPEN_COST = 4 << 20


@dataclass(frozen=True)
class Packed(InputPartition):
    """A task of Spark: parts that it reads one after the other."""

    tasks: tuple[Any, ...]


def rows_of(
    partition: InputPartition, read: Callable[[Any], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of Spark. Runs in a task.

    There are none in the partition that Spark makes by itself where nothing was planned.
    """
    tune_worker()
    for task in partition.tasks if isinstance(partition, Packed) else ():
        with option_names(), naming_this_host():
            yield from read(task)


T = TypeVar("T")


class Pack(Generic[T]):
    """Small parts that become one task.

    Each source that is opened counts for ``OPEN_COST`` bytes.

    Args:
        max_bytes: the most bytes of a task.
        max_records: the most records of a task.
    """

    def __init__(self, max_bytes: float, max_records: int | None) -> None:
        self.values: list[T] = []
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._n_bytes = 0.0
        self._n_records = 0
        self._source: Hashable = None  # that of the last one

    def add(self, value: T, n_bytes: float, n_records: int, source: Hashable) -> bool:
        """Add a part if it fits, and return whether it does; an empty pack takes any.

        Args:
            value: what is read.
            n_bytes: its bytes, estimated.
            n_records: the number of its records.
            source: what is opened for it. Parts of one source that follow each other open it once.
        """
        n_bytes += self._n_bytes
        if source != self._source:
            n_bytes += OPEN_COST
        n_records += self._n_records
        has_too_many = self._max_records is not None and n_records > self._max_records
        if self.values and (has_too_many or n_bytes > self._max_bytes):
            return False
        self._n_bytes = n_bytes
        self._n_records = n_records
        self._source = source
        self.values.append(value)
        return True


def plan_tasks(reads: Sequence[Task], limits: Limits) -> list[Packed]:
    """Return the tasks of all reads of a read.

    Reads that make one task each are packed into tasks as Spark packs small files: up to
    ``max_bytes``, where each store counts for ``OPEN_COST`` bytes more. Unlike Spark's, the order
    stays that of the stores.

    Args:
        reads: what is to be read.
        limits: for all reads together.
    """
    total = sum(read.n_bytes for read in reads)
    least = limits.min_partitions or 1
    cuts = [read.split(limits.share(read.n_bytes, total)) for read in reads]
    if sum(map(len, cuts)) < least and len(reads) > 1:
        cuts = [read.split(limits) for read in reads]
    goal = float(limits.max_bytes)
    if limits.min_partitions:
        n_stores = len({read.source for read in reads})
        goal = min(goal, (total + n_stores * OPEN_COST) / limits.min_partitions)
    tasks: list[list[Task]] = []
    pack: Pack[Task] = Pack(goal, limits.max_records)
    for read, splits in zip(reads, cuts, strict=True):
        is_small = len(splits) == 1 and (read.n_records is not None or not limits.max_records)
        if not is_small:
            tasks += [[split] for split in splits]
            continue
        part = splits[0], read.n_bytes, read.n_records or 0, read.source
        if not pack.add(*part):
            tasks.append(pack.values)
            pack = Pack(goal, limits.max_records)
            pack.add(*part)
    if pack.values:
        tasks.append(pack.values)
    while len(tasks) < least:
        largest = max(range(len(tasks)), key=lambda number: len(tasks[number]), default=None)
        if largest is None or len(tasks[largest]) == 1:
            break
        middle = len(tasks[largest]) // 2
        tasks[largest : largest + 1] = [tasks[largest][:middle], tasks[largest][middle:]]
    return [Packed(tuple(task)) for task in tasks]
