"""Disagreements between a partition's log and the files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafkalog.dump import PartitionFile
from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import Mask
from kafkalog.format.layout import KEY_FIELDS
from kafkalog.format.records import decode_chunks, salvaged
from kafkalog.format.reference import marker_in
from kafkalog.partition import Partition, lost_end, lost_start
from kafkalog.storage.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    read_transaction_index,
    stored_offset_index,
    stored_time_index,
)
from kafkalog.storage.log_dirs import CHECKPOINTS, EPOCHS, METADATA, damage_of
from kafkalog.storage.partition_log import Ordered, PartitionLog, ordered_windows
from kafkalog.storage.producer_snapshots import read_snapshot, snapshot_offsets
from kafkalog.storage.recovery import NO_LIMIT
from kafkalog.storage.segments import INDEX, TIME_INDEX, TRANSACTION_INDEX, Segment
from kafkalog.storage.windows import Window, lowest_offsets, walk_segment
from kafkalog.storage.witnesses import Gap, Gaps, list_beside
from rmqstore.errors import FileDeletedError, Finding, MalformedBytesError
from rmqstore.storage.files.storage import Storage

PARTITIONS: Final = pa.schema(
    [
        *KEY_FIELDS,
        pa.field("start_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("last_stable_offset", pa.int64(), nullable=False),
        pa.field("high_watermark", pa.int64()),
        pa.field("segments", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("leader_epoch", pa.int32()),
        pa.field("recovery", pa.string()),
        pa.field("path", pa.string(), nullable=False),
    ]
)

_LOG: Final = "log"  # the parts that findings name
_INDEX: Final = "index"
_TIME_INDEX: Final = "timeindex"
_TRANSACTION_INDEX: Final = "txnindex"
_SNAPSHOT: Final = "snapshot"
_CHECKPOINT: Final = "checkpoint"
_DECODED: Final = ("offset", "headers")  # walks all fields of records, and makes few columns


def partition_row(partition: Partition) -> pa.RecordBatch:
    """Return the row of a partition.

    Returns:
        A batch with the columns of PARTITIONS. ``high_watermark`` is the checkpointed one, and
        ``leader_epoch`` the newest; both are null if no file has them. ``recovery`` says what a
        broker's recovery would take from the end, null if nothing.

    Raises:
        UnreadableFileError: the partition folder or a segment cannot be read.
    """
    epochs = partition.leader_epochs
    cut = partition.recovery
    recovery = None
    if cut is not None:
        dropped = f" and drops {len(cut.dropped)} segments after it" if cut.dropped else ""
        recovery = f"cuts {cut.path} at {cut.position}{dropped}: {cut.reason}"
    row = {
        "topic": partition.topic,
        "partition": partition.partition,
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
        "last_stable_offset": partition.last_stable_offset,
        "high_watermark": partition.high_watermark,
        "segments": len(partition.log().segments),
        "bytes": partition.n_bytes,
        "leader_epoch": epochs[-1].epoch if epochs else None,
        "recovery": recovery,
        "path": partition.path,
    }
    return pa.RecordBatch.from_pylist([row], schema=PARTITIONS)


class SegmentFacts:
    """What the batches of a log say about the indexes of one segment after the other.

    Attributes:
        open_since: first offset of the open transaction, by producer.
    """

    def __init__(self, log: PartitionLog) -> None:
        """Begin before the first segment."""
        self._log = log
        self.open_since: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._begins: dict[int, int] = {}  # lower bounds of offsets, by positions of batches
        self._last_offsets: list[int] = []
        self._max_timestamps: list[int] = []
        # First offset of each transaction that was aborted, by producer and offset of the marker;
        # None if nothing of it is left.
        self._aborted: dict[tuple[int, int], int | None] = {}
        self._is_valid = True

    def add(self, ordered: Ordered, valid: Mask) -> None:
        """Take the next window of the segment; ``valid`` are the batches whose CRC is right."""
        window = ordered.window
        positions = window.headers.position.tolist()
        lowest = lowest_offsets(window.headers).tolist()
        self._begins |= dict(zip(positions, lowest, strict=True))
        good = valid & ordered.in_order
        self._is_valid = self._is_valid and window.stop is None and bool(good.all())
        headers = window.headers[good]
        self._last_offsets += headers.last_offset.tolist()
        self._max_timestamps += headers.max_timestamp.tolist()
        for row in np.flatnonzero(headers.is_transactional).tolist():
            header = headers[row : row + 1]
            producer, offset = int(header.producer_id[0]), int(header.base_offset[0])
            if not header.is_control[0]:
                if header.record_count[0]:
                    self.open_since.setdefault(producer, offset)
                continue
            try:
                marker = marker_in(window.data, header)
            except MalformedBytesError:
                self._is_valid = False
                continue
            if marker is not None:
                first = self.open_since.pop(producer, None)
                if not marker.is_commit:
                    self._aborted[producer, offset] = first

    def compare(self, segment: Segment) -> Iterator[Finding]:
        """Yield what the indexes of a segment say otherwise; then the next segment begins.

        Where a recovery builds indexes again, they are not compared, nor without the offset index:
        a broker then builds all of them again, unless a cleaning of the segment was interrupted.
        Where the segment is damaged, only entries of the offset index are.
        """
        is_kept = not self._log.is_recovered(self._log.number_at(segment.base_offset))
        if is_kept and (segment.suffix or self._log.storage.exists(segment.path_of(INDEX))):
            offsets, positions = stored_offset_index(self._log.storage, segment)
            yield from self._zeros(_INDEX, segment.path_of(INDEX), len(offsets), OFFSET_ENTRY_BYTES)
            end = self._last_offsets[-1] + 1 if self._is_valid and self._last_offsets else NO_LIMIT
            limits = [*(self._begins.get(at, NO_LIMIT) for at in positions[1:].tolist()), end]
            entries = zip(offsets.tolist(), positions.tolist(), limits, strict=bool(len(offsets)))
            for offset, position, limit in entries:
                if not self._begins.get(position, limit) <= offset < limit:
                    text = f"an entry sends offset {offset} to {position}, where no batch of it"
                    yield Finding(_INDEX, segment.path_of(INDEX), f"{text} begins")
            if self._is_valid:
                yield from self._time_index(segment)
                yield from self._transaction_index(segment)
        self._begin()

    def _zeros(self, part: str, path: str, n_entries: int, entry_bytes: int) -> Iterator[Finding]:
        """Yield the zeros after the entries of an index, which a broker cuts off as it closes it.

        Args:
            part: of the finding.
            path: of the index.
            n_entries: how many entries it has.
            entry_bytes: of one of them.
        """
        n_bytes = n_entries * entry_bytes
        status = self._log.storage.status(path)
        if status is not None and status.size - n_bytes >= entry_bytes:
            text = "zeros follow its entries, which a broker that starts takes for entries"
            yield Finding(part, f"{path}, {n_bytes}", text)

    def _time_index(self, segment: Segment) -> Iterator[Finding]:
        """Yield the entries of a time index whose batch has another time, and a wrong last one."""
        path = segment.path_of(TIME_INDEX)
        timestamps, offsets = stored_time_index(self._log.storage, segment)
        yield from self._zeros(_TIME_INDEX, path, len(timestamps), TIME_ENTRY_BYTES)
        if (np.diff(timestamps) <= 0).any() or (np.diff(offsets) < 0).any():
            yield Finding(_TIME_INDEX, path, "its entries do not rise")
            return
        last_offsets, largest = np.array(self._last_offsets), np.array(self._max_timestamps)
        rows = np.searchsorted(last_offsets, offsets)
        for row, timestamp, offset in zip(
            rows.tolist(), timestamps.tolist(), offsets.tolist(), strict=True
        ):
            # a message of format v0 has no time, and its broker may have written one here
            if row == len(last_offsets) or largest[row] not in (timestamp, -1):
                text = f"an entry gives offset {offset} the time {timestamp}, which no batch has"
                yield Finding(_TIME_INDEX, path, f"{text} there")
        latest = int(largest.max(initial=-1))
        if timestamps.max(initial=-1) < latest:
            yield Finding(_TIME_INDEX, path, f"no entry has the largest time of a batch, {latest}")

    def _transaction_index(self, segment: Segment) -> Iterator[Finding]:
        """Yield entries without a marker, and aborted transactions without an entry."""
        path = segment.path_of(TRANSACTION_INDEX)
        listed: dict[tuple[int, int], int] = {}
        try:
            for entry in read_transaction_index(self._log.storage, path):
                key = int(entry["producer_id"]), int(entry["last_offset"])
                listed[key] = int(entry["first_offset"])
                if key not in self._aborted:
                    text = f"producer {key[0]} aborted nothing at offset {key[1]}, as an entry says"
                    yield Finding(_TRANSACTION_INDEX, path, text)
        except FileNotFoundError:
            pass  # as where no transaction was aborted
        except CorruptBatchError as err:
            yield Finding(_TRANSACTION_INDEX, f"{path}, {err.offset}", err.reason)
            return
        for (producer, offset), first in self._aborted.items():
            if first is not None and listed.get((producer, offset), first + 1) > first:
                text = (
                    f"no entry has the transaction of producer {producer} from {first} to {offset}"
                )
                yield Finding(_TRANSACTION_INDEX, path, f"{text}, which was aborted")


def compare_snapshots(log: PartitionLog) -> Iterator[Finding]:
    """Yield the damage of the producer snapshots of a cleanly closed log."""
    for offset, path in sorted(snapshot_offsets(log.storage, log.folder).items()):
        try:
            entries = read_snapshot(log.storage, path)
        except FileNotFoundError:
            continue  # a broker keeps only the newest ones
        except CorruptBatchError as err:
            yield Finding(_SNAPSHOT, f"{path}, {err.offset}", err.reason)
            continue
        for field in ("last_offset", "transaction_start"):
            for row in np.flatnonzero(entries[field] >= offset).tolist():
                producer, later = int(entries["producer_id"][row]), int(entries[field][row])
                text = f"producer {producer} has offset {later}, which lies after the snapshot"
                yield Finding(_SNAPSHOT, path, text)


def verify(partitions: Iterable[Partition]) -> Iterator[Finding]:
    """Yield the damage of partitions, and the ends that a recovery would cut.

    Every batch is read: its header, its CRC, its records, and that its offsets follow those before
    it. The entries of offset indexes must point to batches of their offsets, those of time indexes
    to batches of their times, and those of transaction indexes to markers, of which each that
    aborted records has one. Producer snapshots must have right CRCs. Where a recovery builds these
    files again, they are not compared. The log must begin and end where checkpoints, leader epochs
    and snapshots say, and have no index without its log file.

    Args:
        partitions: the partitions.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment cannot be read.
    """
    checked: set[str] = set()
    for partition in partitions:
        log = partition.log()
        yield from _unreadable(partition, checked)
        if log.cut is not None and not log.cuts_only_zeros():
            text = f"a recovery cuts the log here: {log.cut.reason}"
            yield Finding(_LOG, f"{log.cut.path}, {log.cut.position}", text)
            for path in log.cut.dropped:
                yield Finding(_LOG, path, "a recovery deletes the segment")
        if log.segments:
            yield from _damage(log, Gaps(partition.cleaner_offset), is_clean=partition.is_clean)
        lost = lost_start(partition)
        if lost is not None:
            text = f"the log {lost.text}: its first segments are gone"
            yield Finding(_LOG, partition.path, text)
        lost = lost_end(partition)
        if lost is not None:
            text = (
                f"the log {lost.text}: its last segments are gone or cut short; get them from"
                " another replica or a copy before a broker that leads the partition gives offset"
                f" {lost.found} out again"
            )
            yield Finding(_LOG, partition.path, text)
        beside = list_beside(log.storage, partition.path)
        for path in beside.orphans.values():
            yield Finding(_INDEX, path, "its log file is gone; a broker that starts deletes it")
        for path in beside.misnamed:
            text = "its name has no offset of 20 digits; a broker may refuse to start with it"
            yield Finding(_LOG, path, text)
        if partition.is_clean:
            yield from compare_snapshots(log)


def _unreadable(partition: Partition, checked: set[str]) -> Iterator[Finding]:
    """Yield the notes of a partition, and of its log directory once, that a broker cannot read."""
    storage = partition.log().storage
    log_dir = partition.path.rpartition("/")[0]
    paths = [f"{partition.path}/{name}" for name in (EPOCHS, METADATA)]
    if log_dir not in checked:
        paths += [f"{log_dir}/{name}" for name in CHECKPOINTS]
        checked.add(log_dir)
    for path in paths:
        reason = damage_of(storage, path)
        if reason is not None:
            text = f"{reason}; a broker may refuse the whole log directory because of it"
            yield Finding(_CHECKPOINT, path, text)
    if partition.folder.is_of_kraft and not storage.exists(f"{partition.path}/{METADATA}"):
        text = f"{METADATA} is missing: a broker that starts puts the folder aside as -stray"
        yield Finding(_CHECKPOINT, partition.path, text)


def _damage(log: PartitionLog, gaps: Gaps, *, is_clean: bool) -> Iterator[Finding]:
    """Yield the damage of a log's segments and indexes, and the gaps between segments.

    Without any producer snapshot, a broker that was stopped cleanly forgets open transactions.
    """
    gone: list[Gap] = []
    facts = SegmentFacts(log)
    previous: Segment | None = None
    for ordered in ordered_windows(log, log.segments[0].base_offset):
        window = ordered.window
        segment = ordered.window.segment
        if previous is not None and segment != previous:
            yield from facts.compare(previous)
        previous = segment
        valid = window.headers.check_crcs(window.data)
        for position, reason in _invalid(window, ordered.in_order, valid):
            yield Finding(_LOG, f"{segment.path}, {position}", reason)
        if window.stop is not None:
            yield Finding(_LOG, f"{segment.path}, {window.stop.position}", window.stop.reason)
        facts.add(ordered, valid)
        is_valid = window.stop is None and bool((valid & ordered.in_order).all())
        gap = gaps.before(window, is_valid=is_valid)
        if gap is not None:
            gone.append(gap)
    if previous is not None:
        yield from facts.compare(previous)
    if is_clean and facts.open_since and not snapshot_offsets(log.storage, log.folder):
        text = (
            "there is no producer snapshot: a broker that starts forgets the transaction that is"
            f" open from {min(facts.open_since.values())} on, and gives its records as committed"
        )
        yield Finding(_SNAPSHOT, log.folder, text)
    if not gaps.is_compacted:  # as a later window may show
        yield from (Finding(_LOG, gap.path, str(gap)) for gap in gone)


def verify_file(storage: Storage, file: PartitionFile) -> Iterator[Finding]:
    """Yield the damage of one file of a log: CRCs, records, and the end of its batches.

    Args:
        storage: the storage to read from.
        file: the file, of kind ``log``.

    Raises:
        FileDeletedError: there is no such file.
        UnreadableFileError: it cannot be read.
    """
    if not storage.exists(file.path):
        raise FileDeletedError(file.path)
    for window in walk_segment(storage, file.segment):
        in_order = np.ones(len(window.headers), np.bool_)  # which the folder decides
        for position, reason in _invalid(window, in_order, window.headers.check_crcs(window.data)):
            yield Finding(_LOG, f"{file.path}, {position}", reason)
        if window.stop is not None and window.stop.reason != "zeros":
            yield Finding(_LOG, f"{file.path}, {window.stop.position}", window.stop.reason)


def _invalid(
    window: Window, in_order: NDArray[np.bool_], valid: NDArray[np.bool_]
) -> Iterator[tuple[int, str]]:
    """Yield position and reason of the batches that are damaged.

    Args:
        in_order: the batches whose offsets follow those before them, (n,).
        valid: the batches whose CRC is right, (n,).
    """
    headers = window.headers
    for row in np.flatnonzero(~valid | ~in_order).tolist():
        reason = "the CRC is wrong"
        if valid[row]:
            reason = f"offset {headers.base_offset[row]} is not in order"
        yield int(headers.position[row]), reason

    read = partial(decode_chunks, window.data, columns=_DECODED)
    for found in salvaged(headers[valid & ~headers.is_control], read):
        if isinstance(found, MalformedBytesError):
            yield found.position, found.reason
