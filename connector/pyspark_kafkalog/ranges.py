"""Cuts ranges of offsets into tasks. Pure: no session, no files.

Source: KafkaOffsetRangeCalculator of Spark; tasks of a limited size are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kafkalog.storage.identity import LogIdentity
from kafkalog.storage.names import TopicPartition
from kafkalog.storage.recovery import RecoveredEnd
from pyspark_rmqstore.packing import Pack
from rmqstore.errors import OptionError
from rmqstore.read.split import Limits

_JOINED_BYTES: Final = 32 << 20
_MOST_PARTS: Final = 100_000  # each has a task, which the driver plans and keeps


class OffsetRange(NamedTuple):
    """Records of one partition, by offset; ``end`` is excluded.

    Attributes:
        topic: of the partition.
        partition: its number.
        start: the first offset.
        end: the offset after the last.
        n_bytes: of its batches, estimated.
        recovered_end: where planning found the end of the partition, which a task need not
            look for then.
        follows: whether another task has the range before, which reports damage that begins there.
        identity: the log that was planned to be read, by what lay before ``noted_at``.
        noted_at: the offset at which all that is read of the partition ends.
    """

    topic: str
    partition: int
    start: int
    end: int
    n_bytes: float
    recovered_end: RecoveredEnd | None = None
    follows: bool = False
    identity: LogIdentity = LogIdentity()
    noted_at: int = 0

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


def divide_ranges(ranges: Iterable[OffsetRange], limits: Limits) -> list[OffsetRange]:
    """Return ranges that are cut into parts for tasks, in order.

    Args:
        ranges: of all partitions; empty ones are left out.
        limits: ``max_bytes`` of a part are estimated, and ``max_records`` are offsets. Large ranges
            are cut to reach ``min_partitions``, in proportion to their size; rounding may give some
            more or fewer.

    Raises:
        OptionError: there would be more than 100,000 parts.
    """
    offset_ranges = [offset_range for offset_range in ranges if offset_range.size > 0]
    min_partitions = limits.min_partitions
    counts = []
    for offset_range in offset_ranges:
        count = max(math.ceil(offset_range.n_bytes / limits.max_bytes), 1)
        if limits.max_records:
            count = max(count, math.ceil(offset_range.size / limits.max_records))
        counts.append(min(count, offset_range.size))
    total = max(
        sum(counts),
        min(min_partitions or 0, sum(offset_range.size for offset_range in offset_ranges)),
    )
    if total > _MOST_PARTS:
        raise OptionError(
            f"{total:,} tasks would be needed, and there can be {_MOST_PARTS:,}: set larger "
            "maxRecordsPerPartition or maxBytesPerPartition, or a smaller minPartitions"
        )
    parts = [
        part
        for offset_range, count in zip(offset_ranges, counts, strict=True)
        for part in offset_range.divided(count)
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


def pack_ranges(ranges: Iterable[OffsetRange], limits: Limits) -> list[tuple[OffsetRange, ...]]:
    """Return small ranges joined into tasks, in order, as Spark joins small files.

    Args:
        ranges: no larger than a task may be.
        limits: ``max_records`` are offsets. Tasks that join ranges have 32 MiB at most, where each
            range counts for 4 MiB more than it has.
    """
    max_bytes = min(_JOINED_BYTES, limits.max_bytes)
    packs: list[Pack[OffsetRange]] = []
    for offset_range in ranges:
        part = offset_range, offset_range.n_bytes, offset_range.size, offset_range
        if not packs or not packs[-1].add(*part):
            packs.append(Pack(max_bytes, limits.max_records))
            packs[-1].add(*part)
    return [tuple(pack.values) for pack in packs]


def _share(size: int, total: int, n_parts: int) -> int:
    return max(1, math.floor(size / total * n_parts + 0.5))
