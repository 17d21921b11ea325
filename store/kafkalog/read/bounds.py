"""The offsets at which a selection starts and ends in partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafkalog.read.partition import Partition, offsets_in, read_range
from kafkalog.read.scan import ScanSpec, counted
from kafkalog.storage.names import TopicPartition
from rmqstore.errors import Argument, OffsetOutOfRangeError, OptionError, Text
from rmqstore.progress import Progress, Tally, ignore_progress
from rmqstore.query.selection import EARLIEST, LATEST, Bound, QueueKey, Selection

NO_BROKER: Final = ""  # a log directory does not have the name of its broker
# The committed offset of each partition of a consumer group, by the name of the group.
Committed: TypeAlias = Mapping[str, Mapping[TopicPartition, int]]
# The first offset and the one after the last; None stands for the start or the end of the log.
Span: TypeAlias = tuple[int | None, int | None]


def by_topic(offsets: Mapping[Any, Any] | str | None) -> Mapping[str, Any] | str | None:
    """Return offsets by topic and partition as tables of partitions by topic."""
    if not isinstance(offsets, Mapping):
        return offsets
    tables: dict[str, Any] = {}
    for key, value in offsets.items():
        if isinstance(key, tuple):
            topic, partition = key
            tables.setdefault(topic, {})[partition] = value
        else:
            tables[key] = value
    return tables


def groups_of(selection: Selection) -> list[str]:
    """Return the consumer groups at whose committed offsets a selection starts or ends."""
    names = (selection.start.group, selection.end.group)
    return [name for name in names if name is not None]


def has_times(selection: Selection) -> bool:
    """Return whether a selection starts or ends at a time."""
    bounds = (selection.start, selection.end)
    return any(bound.timestamp is not None or bound.by_timestamp for bound in bounds)


def tables_of(selection: Selection) -> dict[str, Mapping[QueueKey, int]]:
    """Return the offsets and times by partition, by the name of the argument."""
    start, end = selection.start, selection.end
    return {
        "starting_offsets": start.offsets,
        "ending_offsets": end.offsets,
        "starting_offsets_by_timestamp": start.by_timestamp,
        "ending_offsets_by_timestamp": end.by_timestamp,
    }


def committed_offsets(rows: list[dict[str, Any]], groups: list[str]) -> Committed:
    """Return the committed offsets of groups.

    Args:
        rows: those of all groups, as of ``LogDirs.consumer_groups``.
        groups: names of the groups that are asked for.

    Raises:
        OptionError: a group has no committed offset.
    """
    committed: dict[str, dict[TopicPartition, int]] = {}
    for row in rows:
        if row["group"] is not None:
            offsets = committed.setdefault(row["group"], {})
            offsets[TopicPartition(row["topic"], row["partition"])] = row["offset"]
    for name in groups:
        if name not in committed:
            known = ", ".join(committed) or "none"
            raise OptionError(f"group {name!r} has no committed offsets; groups that have: {known}")
    return committed


def span_of(partition: Partition, selection: Selection, committed: Committed) -> Span:
    """Return where a selection starts and ends in a partition.

    Raises:
        OffsetOutOfRangeError: no record is as late as a start time, and that is an error.
        CorruptBatchError: the batch that a time leads to is damaged.
    """
    key = TopicPartition(partition.topic, partition.partition)
    start_ms, end_ms = _time(selection.start, key), _time(selection.end, key)
    is_strict = selection.timestamp_strategy == "error"
    if start_ms is not None and is_strict and partition.offset_for_time(start_ms) is None:
        raise OffsetOutOfRangeError(
            Text(
                f"{key} has no record of {start_ms} ms or later; ",
                Argument("starting_offsets_by_timestamp_strategy", "latest"),
                " begins at the end of such partitions",
            )
        )
    first, last = _offset(selection.start, key, committed), _offset(selection.end, key, committed)
    if start_ms is not None:
        first = partition.offsets_between(start_ms, None)[0]
    if end_ms is not None:
        last = partition.offsets_between(None, end_ms)[1]
    return first, last


def _time(bound: Bound, key: TopicPartition) -> int | None:
    if bound.timestamp is not None:
        return bound.timestamp
    return bound.of(NO_BROKER, *key, bound.by_timestamp)


def _offset(bound: Bound, key: TopicPartition, committed: Committed) -> int | None:
    """Return the offset that decides, None for the start or the end of the log."""
    offset = None if bound.group is None else committed[bound.group].get(key)
    if offset is None:
        offset = bound.of(NO_BROKER, *key, bound.offsets)
    if offset is None:
        offset = bound.default
    return None if offset in {EARLIEST, LATEST} else offset


def read_spans(
    spans: Iterable[tuple[Partition, Span]], spec: ScanSpec, last: int | None, progress: Progress
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield the records of partitions, one after the other.

    Args:
        spans: the partitions, and where they are read; they are taken as they are read, or all at
            the start if the progress is asked for.
        spec: how records are read.
        last: the number of records of each partition, the newest ones; None for all.
        progress: called with the offsets that are done, and the total.
    """
    tally, is_counted = Tally(progress), progress is not ignore_progress
    if is_counted:
        spans = list(spans)
        tally.expect(sum(offsets_in(partition, *span, last) for partition, span in spans))
    for partition, span in spans:
        key = TopicPartition(partition.topic, partition.partition)
        batches = read_range(partition, spec, *span, last)
        if is_counted:
            batches = counted(batches, offsets_in(partition, *span, last), tally)
        for batch in batches:
            yield key, batch
