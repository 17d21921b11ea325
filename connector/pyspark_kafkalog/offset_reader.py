"""Asks log directories for the offsets of a query, on the driver.

Source: KafkaOffsetReaderAdmin of Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from kafkalog import CorruptBatchError, Partition
from kafkalog.partition import warn_of_losses
from kafkalog.scan import ScanSpec
from kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.options import OffsetLimit, ReadOptions
from pyspark_kafkalog.ranges import OffsetRange, divide_ranges, pack_ranges
from pyspark_rmqstore.packing import Packed
from rmqstore.errors import OptionError
from rmqstore.query.damage import FAILFAST
from rmqstore.query.selection import EARLIEST, LATEST

logger = logging.getLogger(__name__)

_MOST_NAMES: Final = 10  # of topics or partitions, in an error


class OffsetReader:
    """The chosen partitions and their offsets, as of the last poll.

    Attributes:
        partitions: the chosen partitions, sorted.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Poll the log directories. Raises as :meth:`poll`."""
        self._options = options
        self._spec = options.spec
        self._strict = ScanSpec(("offset",), check_crc=options.spec.check_crc)
        self._log_dirs = options.log_dirs.open()
        self._take()

    def poll(self) -> None:
        """List the log directories again; the ends of partitions are looked for from the last.

        Raises:
            NotAStoreError: a path is not a log directory.
            StoreStateError: two directories hold the same partition.
        """
        self._log_dirs.refresh()
        self._take()

    def _take(self) -> None:
        known = self._log_dirs.partitions
        chosen = self._options.choice.of(known)
        self.partitions: dict[TopicPartition, Partition] = {key: known[key] for key in chosen}

    def require_named(self) -> None:
        """Refuse options with unknown partitions, or without some that they must have.

        Raises:
            OptionError: a topic or partition does not exist, or offsets or times by partition do
                not name exactly the partitions that are read.
        """
        choice = self._options.choice
        where = self._options.log_dirs
        topics = self._log_dirs.topics()
        for topic in choice.topics or ():
            if topic not in topics:
                hint = _near(topic, topics)
                raise OptionError(f"subscribe: {where} has no topic {topic}; {hint}")
        absent = sorted((choice.partitions or frozenset()) - self._log_dirs.partitions.keys())
        if absent:
            raise OptionError(f"assign: {where} has no partition {_names(absent)}")
        for end, limit in (("starting", self._options.start), ("ending", self._options.end)):
            if limit.named is None:
                continue
            missing = sorted(self.partitions.keys() - limit.named)
            others = sorted(limit.named - self.partitions.keys())
            if not missing and not others:
                continue
            contradictions = []
            if missing:
                contradictions.append(f"does not name {_names(missing)}")
            if others:
                contradictions.append(f"names {_names(others)}, which is not read")
            by_time = "ByTimestamp"
            remedy = ""
            if limit.times is None:
                by_time = ""
                remedy = "; -2 is the earliest offset, -1 the latest"
            raise OptionError(
                f"{end}Offsets{by_time} must name every partition that is read, and no other: it"
                f" {' and '.join(contradictions)}{remedy}"
            )

    def earliest(self, key: TopicPartition) -> int:
        """Return the first offset of a partition."""
        return self.partitions[key].start_offset

    def latest(self, key: TopicPartition) -> int:
        """Return the offset after the last one that a read may give.

        That is the last stable offset for a read of committed records.

        Raises:
            CorruptBatchError: what may have ended the oldest transaction is damaged, and the mode
                is FAILFAST.
        """
        partition = self.partitions[key]
        spec = self._spec
        if not spec.is_committed:
            return partition.end_offset
        return partition.stable_offset(is_strict=spec.is_strict, check_crcs=spec.check_crc)

    def latest_offsets(self) -> dict[TopicPartition, int]:
        """Return the latest offset of each chosen partition."""
        return {key: self.latest(key) for key in self.partitions}

    def starts(self) -> dict[TopicPartition, int]:
        """Return where each chosen partition starts, as the options say.

        Raises:
            OptionError: a start time lies after the last record of a partition, and that is an
                error by the options.
            OffsetOutOfRangeError: a start offset does not exist, and data loss is to fail.
        """
        return {key: self._start(key) for key in self.partitions}

    def stable_starts(self) -> dict[TopicPartition, int]:
        """Return where a query starts: as ``starts``, and not after the latest offset.

        A start after the last stable offset would be a step back for the first micro-batch of a
        stream. Of a batch, Spark's Kafka source refuses it: the start is greater than the end.
        """
        starts = self.starts()
        for key, start in starts.items():
            if start > (last := self.latest(key)):
                first = self.earliest(key)
                self._spec.report_loss(
                    f"startingOffsets of {key} is {start}, but its committed records have the"
                    f" offsets {first} to {last}, its last stable offset"
                )
                starts[key] = last
        return starts

    def ends(self) -> dict[TopicPartition, int]:
        """Return where each chosen partition ends, as the options say; raises as ``starts``.

        Of committed records, none are read from the last stable offset on.
        """
        ends: dict[TopicPartition, int] = {}
        for key, partition in self.partitions.items():
            end = self._resolved("endingOffsets", self._options.end, key)
            ends[key] = self.latest(key) if end is None else end
            if self._spec.is_committed:
                ends[key] = partition.committed_end(self._spec, ends[key])
        return ends

    def _start(self, key: TopicPartition) -> int:
        time = self._options.start.time_of(key)
        found = self._resolved("startingOffsets", self._options.start, key)
        is_searched = time is not None and time >= 0 and self._spec.is_committed
        hidden = ""
        if found is not None and is_searched and found >= (end := self.latest(key)):
            # a broker gives no offset either that a consumer of committed records may not see yet
            found = None
            hidden = f" before the last stable offset {end}"
        if found is not None:
            return found
        if self._options.start_is_strict:
            raise OptionError(
                f"no record of {key}{hidden} has a time of {time} or later; "
                "startingOffsetsByTimestampStrategy=latest starts such a partition at its end"
            )
        return self.latest(key)

    def _resolved(self, name: str, limit: OffsetLimit, key: TopicPartition) -> int | None:
        """Return where a partition starts or ends; None if none of its records is that late."""
        time = limit.time_of(key)
        if time is None:
            return self._within(name, key, self._offset(limit.offset_of(key), key))
        if time < 0:
            return self._offset(time, key)
        return self.partitions[key].offset_for_time(time)

    def _offset(self, offset: int, key: TopicPartition) -> int:
        """Return an offset of a partition that may be EARLIEST or LATEST."""
        if offset == EARLIEST:
            return self.earliest(key)
        if offset == LATEST:
            return self.latest(key)
        return offset

    def _within(self, name: str, key: TopicPartition, offset: int) -> int:
        first = self.earliest(key)
        last = self.partitions[key].end_offset
        if first <= offset <= last:
            return offset
        self._spec.report_loss(
            f"{name} of {key} is {offset}, but its offsets are {first} to {last}"
        )
        return min(max(offset, first), last)

    def ranges(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Return the ranges of partitions between offsets, with their estimated bytes."""
        return [
            self._range(key, starts[key], end) for key, end in ends.items() if starts[key] < end
        ]

    def _range(self, key: TopicPartition, start: int, end: int) -> OffsetRange:
        partition = self.partitions[key]
        n_bytes = partition.answer(lambda log: log.bytes_between(start, end))
        return OffsetRange(*key, start, end, n_bytes, partition.recovered_end)

    def unreadable_ends(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """Return empty ranges at the ends of partitions that have damage there and nothing else.

        Without a task, nobody would meet the damage.
        """
        return [
            OffsetRange(*key, start, start, 0, self.partitions[key].recovered_end)
            for key, start in starts.items()
            if start == ends[key] and self._damage_at_end(key, start) is not None
        ]

    def require_readable(self) -> None:
        """Report partitions that have damage and no record.

        Raises:
            CorruptBatchError: there is one, and the mode is FAILFAST.
        """
        for key in self.partitions:
            damage = self._damage_at_end(key, self.earliest(key))
            if damage is None:
                continue
            if self._spec.mode == FAILFAST:
                raise damage
            logger.warning("no record of %s can be read: %s", key, damage)

    def _damage_at_end(self, key: TopicPartition, start: int) -> CorruptBatchError | None:
        """Return the damage from an offset on, if the log ends with it.

        Where a recovery would cut the damage off, it is not part of the log.
        """
        partition = self.partitions[key]
        is_at_end = partition.is_clean and start == partition.end_offset
        if not is_at_end or not partition.log().end_position:
            return None
        try:
            for _ in partition.read(self._strict, start, start):
                pass
        except CorruptBatchError as err:
            return err
        return None

    def splits(
        self, ranges: Iterable[OffsetRange], unreadable: Iterable[OffsetRange] = ()
    ) -> list[Packed]:
        """Return the tasks that read ranges.

        Args:
            ranges: what is read, cut and joined into tasks.
            unreadable: empty ranges where tasks report damage.
        """
        limits = self._options.limits
        parts = divide_ranges(ranges, limits)
        if limits.min_partitions is None:
            tasks = pack_ranges(parts, limits)
        else:
            tasks = [(part,) for part in parts]
        tasks += [(empty,) for empty in unreadable]
        return [Packed((task,)) for task in tasks]  # which open the log directories once

    def warn_of_losses(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Warn of records that have gone from the ends of the read partitions.

        A partition without a folder that the checkpoints name is gone as well.
        """
        for key, start in starts.items():
            warn_of_losses(self.partitions[key], start, ends[key])
        missing = self._log_dirs.missing
        for key in self._options.choice.of(missing):
            logger.warning("data loss: partition %s of %s is gone", key, missing[key])


def _names(keys: list[TopicPartition]) -> str:
    more = f" and {len(keys) - _MOST_NAMES} others" if len(keys) > _MOST_NAMES else ""
    return ", ".join(map(str, keys[:_MOST_NAMES])) + more


def _near(topic: str, topics: list[str]) -> str:
    near = get_close_matches(topic, topics, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"it has {', '.join(topics[:_MOST_NAMES])}" if topics else "it has none"
