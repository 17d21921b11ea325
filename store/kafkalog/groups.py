"""Committed offsets of consumer groups, from the records of ``__consumer_offsets``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.consumer_offsets import (
    OffsetKey,
    OffsetValue,
    parse_offset_key,
    parse_offset_value,
)
from kafkalog.format.layout import KEY_FIELDS
from kafkalog.format.records import decode_chunks, salvaged
from kafkalog.format.reference import marker_in
from kafkalog.partition import Partition
from kafkalog.scan import ScanSpec
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.windows import Window, lowest_offsets
from rmqstore.errors import MalformedBytesError
from rmqstore.query.damage import FAILFAST

CONSUMER_OFFSETS: Final = "__consumer_offsets"

GROUP_OFFSETS: Final = pa.schema(
    [
        pa.field("group", pa.string(), nullable=False),
        *KEY_FIELDS,
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("commit_timestamp", pa.timestamp("ms", "UTC")),
    ]
)


class _Record(NamedTuple):
    """A record of ``__consumer_offsets`` that sets or deletes a committed offset."""

    offset: int
    producer: int | None  # of the transaction that it belongs to
    key: OffsetKey
    value: OffsetValue | None


class _Replay:
    """One walk through a partition of ``__consumer_offsets``.

    A deletion takes what transactions that are open then have committed for its key as well, even
    if such a transaction is committed later. This is the rule of the coordinator that brokers have
    by default since 4.0. The one before it kept those commits; a log does not say which of them
    wrote it, so the rule of the later one is taken for all.

    Source: OffsetMetadataManager.java#replay, #replayEndTransactionMarker; of the coordinator
    before, GroupMetadataManager.scala#doLoadGroupsAndOffsets.

    Attributes:
        committed: by key, the offset of the record that commits, and what it commits.
        damage: the damaged batches that were left out.
    """

    def __init__(self, log: PartitionLog, spec: ScanSpec) -> None:
        self.committed: dict[OffsetKey, tuple[int, OffsetValue]] = {}
        self.damage: list[CorruptBatchError] = []
        self._pending: dict[int, dict[OffsetKey, tuple[int, OffsetValue]]] = {}  # by producer
        self._spec = spec
        self._start_offset = log.start_offset
        for window in log.windows(log.start_offset):
            headers = window.headers
            valid = headers.check_crcs(window.data)
            # Records are replayed in runs between markers and damaged batches.
            first = 0
            for row in (*np.flatnonzero(headers.is_control | ~valid).tolist(), len(headers)):
                self._records(window, headers[first:row])
                if row < len(headers) and not valid[row]:
                    position = int(headers.position[row])
                    self._refuse(window.error(position, "the CRC is wrong"))
                else:
                    self._end(window, headers[row : row + 1])
                first = row + 1
            if window.stop is not None:
                self._refuse(window.error(*window.stop))

    def _refuse(self, damage: CorruptBatchError) -> None:
        if not self._spec.is_permissive:
            self._spec.refuse(damage)
        self.damage.append(damage)

    def _records(self, window: Window, headers: BatchHeaders) -> None:
        """Replay a run of batches; what is damaged of it is found by halving."""
        columns = ("key", "value", "offset")
        start = self._start_offset

        def read(some: BatchHeaders) -> Iterator[tuple[int, list[_Record]]]:
            records: list[_Record] = []
            for _, chunk in decode_chunks(window.data, some, columns, start):
                records += _parsed(some, chunk)
            yield window.end_of_batches, records

        for found in salvaged(headers, read):
            if isinstance(found, MalformedBytesError):
                self._refuse(window.error(found.position, found.reason))
                continue
            for record in found:
                if record.value is None:
                    self.committed.pop(record.key, None)
                    for pending in self._pending.values():
                        pending.pop(record.key, None)
                elif record.producer is None:
                    self.committed[record.key] = record.offset, record.value
                else:
                    pending = self._pending.setdefault(record.producer, {})
                    pending[record.key] = record.offset, record.value

    def _end(self, window: Window, header: BatchHeaders) -> None:
        """End the transaction whose marker this is: commits count, unless later ones did."""
        try:
            marker = marker_in(window.data, header)
        except MalformedBytesError as err:
            self._refuse(window.error(err.position, err.reason))
            return
        if marker is None:
            return
        ended = self._pending.pop(int(header.producer_id[0]), {})
        for key, (offset, value) in ended.items():
            known = self.committed.get(key)
            if marker.is_commit and (known is None or known[0] < offset):
                self.committed[key] = offset, value


def read_consumer_groups(partitions: Iterable[Partition], mode: str = FAILFAST) -> pa.Table:
    """Return the committed offsets of all groups, sorted by group, topic and partition.

    Args:
        partitions: those of ``__consumer_offsets`` are read.
        mode: what is done about damage, one of MODES. What a damaged batch said is not known, so an
            older offset may seem to be the last one.

    Returns:
        A table with the columns of GROUP_OFFSETS. With PERMISSIVE, each of them may be null, and
        one more has the reason in a row for each damaged batch; these come last.

    Raises:
        OptionError: the mode is unknown.
        CorruptBatchError: a batch is damaged, and the mode is FAILFAST.
    """
    spec = ScanSpec((), mode=mode)
    rows: list[tuple[OffsetKey, OffsetValue]] = []
    damage: list[CorruptBatchError] = []
    for partition in partitions:
        if partition.topic == CONSUMER_OFFSETS:
            replay = partition.answer(lambda log: _Replay(log, spec))
            rows += [(key, value) for key, (_, value) in replay.committed.items()]
            damage += replay.damage
    rows.sort()
    fields = [*GROUP_OFFSETS]
    entries: list[dict[str, Any]] = [{**key._asdict(), **value._asdict()} for key, value in rows]
    for entry in entries:
        for name in ("leader_epoch", "commit_timestamp"):
            entry[name] = entry[name] if entry[name] >= 0 else None
    if spec.is_permissive:
        reasons = [f"{err.path}, {err.offset}: {err.reason}" for err in damage]
        entries += [{spec.corrupt_column: reason} for reason in reasons]
        fields.append(pa.field(spec.corrupt_column, pa.string()))
        fields = [field.with_nullable(nullable=True) for field in fields]
    return pa.Table.from_pylist(entries, schema=pa.schema(fields))


def _parsed(headers: BatchHeaders, chunk: pa.RecordBatch) -> Iterator[_Record]:
    """Yield the records of a chunk that set or delete committed offsets.

    Raises:
        MalformedBytesError: one contradicts the format; the position is that of its batch.
    """
    keys, values, numbers = (column.to_pylist() for column in chunk.columns)
    owners = np.searchsorted(headers.last_offset, np.array(numbers, np.int64))
    owners = np.minimum(owners, len(headers) - 1)  # an offset may lie after its header's last one
    is_outside = (numbers < lowest_offsets(headers)[owners]) | (
        numbers > headers.last_offset[owners]
    )
    rows = zip(owners.tolist(), numbers, keys, values, is_outside.tolist(), strict=True)
    for owner, number, key, value, is_odd in rows:
        position = int(headers.position[owner])
        if is_odd:
            raise MalformedBytesError(position, f"offset {number} lies outside of its batch")
        try:
            entry = None if key is None else parse_offset_key(key)
            committed = None
            if entry is not None and value is not None:
                committed = parse_offset_value(value)
        except MalformedBytesError as err:
            raise MalformedBytesError(position, f"offset {number}: {err.reason}") from err
        if entry is not None:
            in_transaction = headers.is_transactional[owner]
            producer = int(headers.producer_id[owner]) if in_transaction else None
            yield _Record(number, producer, entry, committed)
