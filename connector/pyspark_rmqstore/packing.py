"""Packs what is to be read of many stores into tasks. Pure: no session, no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.planning import Limits

# Bytes that could be read while a store is opened: spark.sql.files.openCostInBytes by default.
OPEN_COST = 4 << 20


@dataclass(frozen=True)
class PackedSplit(InputPartition):
    """A task of several small ones, which it reads one after the other."""

    splits: tuple[InputPartition, ...]


def splits_of(partition: InputPartition) -> tuple[InputPartition, ...]:
    """Return the tasks that a task consists of, in most cases only itself."""
    return partition.splits if isinstance(partition, PackedSplit) else (partition,)


S_co = TypeVar("S_co", bound=InputPartition, covariant=True)


@dataclass(frozen=True)
class Portion(Generic[S_co]):
    """A part of a read: of one store, and cut into tasks by itself.

    Attributes:
        store: path of the store.
        n_bytes: the bytes of its records, estimated.
        n_records: the number of its records; None if only reading them can tell.
        cut: returns its tasks within limits.
    """

    store: str
    n_bytes: float
    n_records: int | None
    cut: Callable[[Limits], Sequence[S_co]]


AnyPortion = Portion[InputPartition]


def plan_tasks(portions: Sequence[AnyPortion], limits: Limits) -> list[InputPartition]:
    """Return the tasks of all portions of a read.

    Portions that make one task each are packed into tasks as Spark packs small files: up to
    ``max_bytes``, where each store counts for ``OPEN_COST`` bytes more. Unlike Spark's, the order
    stays that of the stores.

    Args:
        portions: what is to be read.
        limits: for all portions together; see :func:`plan_queues`.
    """
    total = sum(portion.n_bytes for portion in portions)
    least = limits.min_partitions or 1
    cuts = [portion.cut(limits.share(portion.n_bytes, total)) for portion in portions]
    if sum(map(len, cuts)) < least and len(portions) > 1:
        cuts = [portion.cut(limits) for portion in portions]
    goal = float(limits.max_bytes)
    if limits.min_partitions:
        n_stores = len({portion.store for portion in portions})
        goal = min(goal, (total + n_stores * OPEN_COST) / limits.min_partitions)
    tasks: list[list[InputPartition]] = []
    pack = _Pack()
    for portion, splits in zip(portions, cuts, strict=True):
        is_small = len(splits) == 1 and (portion.n_records is not None or not limits.max_records)
        if not is_small:
            tasks += [[split] for split in splits]
            continue
        if not pack.takes(portion, goal, limits.max_records):
            tasks.append(pack.splits)
            pack = _Pack()
        pack.add(portion, splits[0])
    if pack.splits:
        tasks.append(pack.splits)
    while len(tasks) < least:
        largest = max(range(len(tasks)), key=lambda number: len(tasks[number]), default=None)
        if largest is None or len(tasks[largest]) == 1:
            break
        middle = len(tasks[largest]) // 2
        tasks[largest : largest + 1] = [tasks[largest][:middle], tasks[largest][middle:]]
    return [task[0] if len(task) == 1 else PackedSplit(tuple(task)) for task in tasks]


class _Pack:
    """Small tasks that become one."""

    def __init__(self) -> None:
        self.splits: list[InputPartition] = []
        self._n_bytes = 0.0
        self._n_records = 0
        self._store: str | None = None  # that of the last one

    def takes(self, portion: AnyPortion, max_bytes: float, max_records: int | None) -> bool:
        """Tell whether a portion fits; an empty pack takes any."""
        if not self.splits:
            return True
        n_records = self._n_records + (portion.n_records or 0)
        n_bytes = self._n_bytes + self._cost(portion)
        return n_bytes <= max_bytes and (max_records is None or n_records <= max_records)

    def add(self, portion: AnyPortion, split: InputPartition) -> None:
        """Add the only task of a portion."""
        self.splits.append(split)
        self._n_bytes += self._cost(portion)
        self._n_records += portion.n_records or 0
        self._store = portion.store

    def _cost(self, portion: AnyPortion) -> float:
        return portion.n_bytes + (OPEN_COST if portion.store != self._store else 0)
