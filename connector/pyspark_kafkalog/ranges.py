"""Cuts ranges of offsets into tasks. Pure: no session, no files.

Source: KafkaOffsetRangeCalculator of Spark; tasks of a limited size are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from kafkalog.storage.names import TopicPartition
from kafkalog.storage.recovery import Mark
from rmqstore.errors import OptionError

_JOINED_BYTES: Final = 32 << 20
_OPEN_COST: Final = 4 << 20  # bytes that could be read while a partition is opened
_MOST_PARTS: Final = 100_000  # each has a task, which the driver plans and keeps


class OffsetRange(NamedTuple):
    """Records of one partition, by offset; ``end`` is excluded.

    Attributes:
        topic: of the partition.
        partition: its number.
        start: the first offset.
        end: the offset after the last.
        n_bytes: of its batches, estimated.
        mark: where planning found the end of the partition, so that a task need not look for it.
        follows: whether another task has the range before, which reports damage that begins there.
    """

    topic: str
    partition: int
    start: int
    end: int
    n_bytes: float
    mark: Mark | None = None
    follows: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it has; there may be fewer records."""
        return self.end - self.start

    def divided(self, n_parts: int) -> Iterator[OffsetRange]:
        """Yield parts of about the same size, at most as many as there are offsets."""
        n_parts = min(n_parts, self.size)
        mean_bytes = self.n_bytes / self.size
        start, follows = self.start, self.follows
        for left in range(n_parts, 0, -1):
            end = start + (self.end - start) // left
            n_bytes = mean_bytes * (end - start)
            yield self._replace(start=start, end=end, n_bytes=n_bytes, follows=follows)
            start, follows = end, True


@dataclass(frozen=True)
class RangeSplit(InputPartition):
    """A task that reads ranges of partitions, one after the other.

    Attributes:
        ranges: what it reads.
    """

    ranges: tuple[OffsetRange, ...]


def divide_ranges(
    ranges: Iterable[OffsetRange],
    *,
    max_bytes: int,
    max_records: int | None,
    min_partitions: int | None,
) -> list[OffsetRange]:
    """Return ranges that are cut into parts for tasks, in order.

    Args:
        ranges: of all partitions; empty ones are left out.
        max_bytes: the most bytes of a part, estimated.
        max_records: the most offsets of a part.
        min_partitions: the least number of parts. Large ranges are cut to reach it, in proportion
            to their size; rounding may give some more or fewer.

    Raises:
        OptionError: there would be more than 100,000 parts.
    """
    pieces = [piece for piece in ranges if piece.size > 0]
    counts = [min(_n_parts(piece, max_bytes, max_records), piece.size) for piece in pieces]
    total = max(sum(counts), min(min_partitions or 0, sum(piece.size for piece in pieces)))
    if total > _MOST_PARTS:
        raise OptionError(
            f"{total:,} tasks would be needed, and there can be {_MOST_PARTS:,}: set larger "
            "maxRecordsPerPartition or maxBytesPerPartition, or a smaller minPartitions"
        )
    parts = [
        part for piece, count in zip(pieces, counts, strict=True) for part in piece.divided(count)
    ]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    # Large parts are cut further, so that there are at least about as many.
    size = sum(part.size for part in parts)
    is_small = [_share(part.size, size, min_partitions) == 1 for part in parts]
    large_size = sum(part.size for part, small in zip(parts, is_small, strict=True) if not small)
    n_large_parts = max(min_partitions - sum(is_small), 1)
    enough: list[OffsetRange] = []
    for part, small in zip(parts, is_small, strict=True):
        if small:
            enough.append(part)
        else:
            enough += part.divided(_share(part.size, large_size, n_large_parts))
    return enough


def pack_ranges(
    ranges: Iterable[OffsetRange], *, max_bytes: int, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Return small ranges joined into tasks, in order, as Spark joins small files.

    Args:
        ranges: no larger than a task may be.
        max_bytes: the most bytes of a task; those that join ranges have 32 MiB at most, where each
            range counts for 4 MiB more than it has.
        max_records: the most offsets of a task.
    """
    tasks: list[list[OffsetRange]] = []
    n_bytes, n_records = 0.0, 0
    for piece in ranges:
        n_bytes += piece.n_bytes + _OPEN_COST
        n_records += piece.size
        too_many = max_records is not None and n_records > max_records
        if not tasks or n_bytes > min(_JOINED_BYTES, max_bytes) or too_many:
            tasks.append([])
            n_bytes, n_records = piece.n_bytes + _OPEN_COST, piece.size
        tasks[-1].append(piece)
    return [tuple(task) for task in tasks]


def _n_parts(piece: OffsetRange, max_bytes: int, max_records: int | None) -> int:
    by_records = math.ceil(piece.size / max_records) if max_records else 1
    return max(by_records, math.ceil(piece.n_bytes / max_bytes), 1)


def _share(size: int, total: int, n_parts: int) -> int:
    return max(1, math.floor(size / total * n_parts + 0.5))
