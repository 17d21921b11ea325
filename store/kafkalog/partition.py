"""One partition: its bounds, look-ups by time, and its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from kafkalog.batches import PartitionReader
from kafkalog.format.layout import RECORD
from kafkalog.format.reference import records_of
from kafkalog.scan import IsolationLevel, Scan, ScanSpec, counted, parse_scan
from kafkalog.storage.identity import LogIdentity, is_another, note_before
from kafkalog.storage.indexes import TimeEntry, read_time_index
from kafkalog.storage.log_dirs import (
    EPOCHS,
    METADATA,
    LeaderEpoch,
    PartitionFolder,
    read_leader_epochs,
    read_topic_id,
)
from kafkalog.storage.names import TopicPartition
from kafkalog.storage.partition_log import PartitionLog, read_partition_log
from kafkalog.storage.recovery import Cut, RecoveredEnd, segment_sizes
from kafkalog.storage.witnesses import Gaps, Loss, earliest, furthest, list_beside
from kafkalog.transactions import OpenTransactions, find_open_transactions, read_transactions
from rmqstore.errors import FileDeletedError, MalformedBytesError, OptionError
from rmqstore.progress import Progress, Tally, ignore_progress
from rmqstore.query.arguments import Time
from rmqstore.query.arrow_rows import require_positive
from rmqstore.query.damage import CORRUPT_RECORD, Mode
from rmqstore.query.times import optional_timestamp
from rmqstore.storage.files.lifetime import Lifetime
from rmqstore.storage.files.storage import Storage

logger = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000

_MAX_LISTINGS = 10  # of one look-up, each after a segment was deleted

T = TypeVar("T")
# The first offset and the one after the last; None stands for the start or the end of the log.
Span: TypeAlias = tuple[int | None, int | None]


def offset_for_time(log: PartitionLog, timestamp: int) -> int | None:
    """Return the offset that a broker gives for a time, None if it gives none.

    A broker looks into one segment only: the first whose largest timestamp is not earlier. In it,
    the answer is the first record that is not earlier; records of aborted transactions and markers
    count. The largest timestamp of a segment without any is the time of its file, so an empty
    segment, or one of format v0, may hide what follows it.

    Args:
        log: the log of a partition.
        timestamp: ms since the epoch, not negative.

    Raises:
        OptionError: the timestamp is negative.
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
        CorruptBatchError: the batch that has the answer is damaged, or one that may have it. A
            broker compares no CRC here, and believes what damaged batches say.

    Source: UnifiedLog.java#fetchOffsetByTimestamp, LogSegment.java#findOffsetByTimestamp.
    """
    if timestamp < 0:
        raise OptionError(f"`timestamp` {timestamp}: must not be negative")
    for number in range(len(log.segments)):
        largest, position = _largest_timestamp(log, number, timestamp)
        if largest >= timestamp:
            return _first_at(log, number, timestamp, position)
    return None


def _largest_timestamp(log: PartitionLog, number: int, timestamp: int) -> tuple[int, int | None]:
    """Return the largest timestamp of a segment, ms; the time of its file if it has none.

    A walk that begins at the start of the segment ends at the first batch that is not earlier than
    the timestamp asked for. The position of that batch is returned as well, or else None.

    The last entry of a time index was written when the segment was closed, unless the index was cut
    or the segment was not closed, so the batches after the one that it means count, too. Their
    headers are believed, as by a broker. A recovery builds the index again, from the batches.
    """
    last = -1
    begin = None
    if log.is_recovered(number):
        last = log.largest_timestamps[log.segments[number].base_offset]
    else:
        entry = read_time_index(log.storage, log.segments[number]).last
        position = _position_of(log, number, entry)
        if entry is None or position is None:
            last, begin = _first_later(log, number, timestamp)
        else:
            maxima = (window.headers.max_timestamp for window in log.windows_of(number, position))
            last = max(entry.timestamp, *(int(times.max(initial=-1)) for times in maxima))
    if last >= 0:
        return last, begin
    status = log.storage.status(log.segments[number].path)
    if status is None:
        return -1, None
    return status.modified_ns // _NS_PER_MS, None


def _first_later(log: PartitionLog, number: int, timestamp: int) -> tuple[int, int | None]:
    """Walk a segment to the first batch that is not earlier than a time.

    Returns:
        The largest timestamp up to it, and its position; None if all batches are earlier.

    Raises:
        CorruptBatchError: a batch up to it is damaged.
    """
    largest = -1
    for window in log.windows_of(number):
        headers = window.headers
        later = np.flatnonzero(headers.max_timestamp >= timestamp)
        largest = max(largest, int(headers.max_timestamp.max(initial=-1)))
        if len(later):
            window.require_valid(headers[: later[0] + 1])
            return largest, int(headers.position[later[0]])
        window.require_valid(headers)
    return largest, None


def _position_of(log: PartitionLog, number: int, entry: TimeEntry | None) -> int | None:
    """Return a position at or before the batch that an entry of a time index means.

    Returns:
        None without an entry, or if the batch with its offset does not have its timestamp.
    """
    if entry is None:
        return None
    position = log.position_of(number, entry.offset)
    for window in log.windows_of(number, position):
        headers = window.headers
        rows = np.flatnonzero(headers.last_offset >= entry.offset)
        if len(rows):
            return position if headers.max_timestamp[rows[0]] == entry.timestamp else None
    return None


def _first_at(log: PartitionLog, number: int, timestamp: int, position: int | None) -> int | None:
    """Return the offset of the first record of a segment that is not earlier, None without one.

    Args:
        position: all batches before it are known to be earlier; None if nothing is known.
    """
    last_earlier = -1  # the index says that all up to this offset is earlier
    if position is None and not log.is_recovered(number):
        entry = read_time_index(log.storage, log.segments[number]).before(timestamp)
        position = _position_of(log, number, entry)
        if entry is not None and position is not None:
            last_earlier = entry.offset
    for window in log.windows_of(number, position or 0):
        headers = window.headers
        rows = (headers.max_timestamp >= timestamp) & (headers.last_offset >= log.start_offset)
        n_checked = int(
            np.count_nonzero(np.logical_and.accumulate(headers.last_offset <= last_earlier))
        )
        for row in np.flatnonzero(rows).tolist():
            window.require_valid(headers[n_checked : row + 1])
            n_checked = row + 1
            try:
                for record in records_of(window.data, headers[row : row + 1]):
                    if record.timestamp >= timestamp and record.offset >= log.start_offset:
                        return record.offset
            except MalformedBytesError as err:
                raise window.error(err.position, err.reason) from err
        window.require_valid(headers[n_checked:])
    return None


class Partition:
    """The log of one partition, which is only read.

    Bounds are those of the moment when they were first asked for; :meth:`refresh` forgets them.
    Without a clean stop of the broker, the log is walked from its recovery point on when a bound is
    first asked for, and it ends where a broker's recovery would end it.

    Attributes:
        topic: the topic.
        partition: the number of the partition.
        path: the partition folder.
        is_clean: whether the broker was stopped cleanly, so that no recovery would run.
        high_watermark: the checkpointed high watermark, the first offset that consumers had not
            been given; it may be some seconds old. What a follower has above it may be cut later.
        cleaner_offset: the checkpointed first offset that was not compacted yet; None if none was.
        folder: the folder, and what the checkpoints say of it.
    """

    def __init__(
        self,
        storage: Storage,
        folder: PartitionFolder,
        lifetime: Lifetime,
        before: Partition | None,
    ) -> None:
        """Take a partition folder; nothing of it is read yet.

        Args:
            storage: the storage to read from.
            folder: the folder, and what the checkpoints say of it.
            lifetime: that of the log directories, after which nothing is read any more.
            before: the same partition as it was listed before. What it knows of the log need not be
                walked again.
        """
        self._storage = storage
        self._lifetime = lifetime
        self.folder = folder
        self.topic, self.partition = folder.topic_partition
        self.path = folder.path
        self.is_clean = folder.is_clean
        self.high_watermark = folder.high_watermark
        self.cleaner_offset = folder.cleaner_offset
        # Open transactions, by whether CRCs are compared: before, and of the log as it is held.
        self._open_before: dict[bool, OpenTransactions] = {}
        self._recovered_end: RecoveredEnd | None = None
        if before is not None:
            self._open_before = before.open_transactions
            self._recovered_end = before.recovered_end
        self._log: PartitionLog | None = None
        self._open: dict[bool, OpenTransactions] = {}

    def __repr__(self) -> str:
        """Return topic, number and folder."""
        return f"<Partition {self.folder.topic_partition} in {self.path}>"

    @property
    def topic_id(self) -> str | None:
        """The topic's id in base64url, 22 characters; None if the folder does not name it."""
        self._lifetime.require()
        return read_topic_id(self._storage, f"{self.path}/{METADATA}")

    @property
    def leader_epochs(self) -> list[LeaderEpoch]:
        """The leader epochs and their first offsets, rising."""
        self._lifetime.require()
        return read_leader_epochs(self._storage, f"{self.path}/{EPOCHS}")

    @property
    def start_offset(self) -> int:
        """The first offset that consumers get (log start offset); gaps may follow it."""
        return self.log().start_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be written (log end offset, LEO)."""
        return self.log().end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset at which read_committed ends (LSO).

        It is that of the oldest transaction that is not decided, or else the end offset. The log is
        walked from the newest producer snapshot on when it is first asked for, and later from where
        that walk ended.
        """
        return self.stable_offset(is_strict=False)

    def stable_offset(self, *, is_strict: bool, check_crcs: bool = True) -> int:
        """Return :attr:`last_stable_offset`.

        Args:
            is_strict: whether damage is an error that may hide the end of the oldest transaction.
            check_crcs: whether a batch whose CRC is wrong is damaged.

        Raises:
            CorruptBatchError: there is such damage, and that is strict.
        """
        if check_crcs not in self._open:
            known = self._open_before.get(check_crcs)
            self._open[check_crcs] = self.answer(
                lambda log: find_open_transactions(log, known, check_crcs=check_crcs)
            )
        return self._open[check_crcs].stable_offset(self.log(), is_strict=is_strict)

    @property
    def n_bytes(self) -> int:
        """The length of all segments of the log, bytes."""
        return sum(self.answer(lambda log: segment_sizes(log.storage, log.segments)).values())

    @property
    def recovery(self) -> Cut | None:
        """What a broker's recovery would take from the end of the log; None if nothing."""
        return self.log().cut

    @property
    def recovered_end(self) -> RecoveredEnd | None:
        """The newest end of the log that a recovery found; None if there was none.

        A later search for the end continues from there, also in another process that is given it.
        """
        return self._recovered_end if self._log is None else self._log.recovered_end

    @property
    def open_transactions(self) -> dict[bool, OpenTransactions]:
        """The open transactions at the newest end that was looked for, by whether CRCs matter.

        A later search for the last stable offset continues from there.
        """
        return self._open_before | self._open

    def resume(self, recovered_end: RecoveredEnd | None) -> None:
        """Continue from the end that a recovery found, unless the end is known already."""
        self._lifetime.require()
        if recovered_end is not None and self._log is None:
            self._recovered_end = recovered_end

    def refresh(self) -> None:
        """Forget the bounds, so that they are looked up again."""
        self._lifetime.require()
        self._recovered_end = self.recovered_end
        self._open_before = self.open_transactions
        self._log = None
        self._open = {}

    def log(self) -> PartitionLog:
        """Return segments and bounds as of the first time that they were asked for.

        Raises:
            UnreadableFileError: the folder or a segment cannot be read.
            StoreStateError: the log directories were closed.
        """
        self._lifetime.require()
        if self._log is None:
            self._log = read_partition_log(
                self._storage, self.folder, recovered_end=self._recovered_end
            )
        return self._log

    def offset_for_time(self, timestamp: int) -> int | None:
        """Return the offset that a broker gives for a time, None if it gives none.

        It is nearly always that of the first record whose timestamp is not earlier, be it a marker
        or of an aborted transaction; :func:`kafkalog.partition.offset_for_time` has the
        exceptions.

        Args:
            timestamp: ms since the epoch, not negative.

        Raises:
            OptionError: the timestamp is negative.
            CorruptBatchError: the batch that has the answer is damaged, or one that may have it.

        Source: UnifiedLog.java#fetchOffsetByTimestamp.
        """
        return self.answer(lambda log: offset_for_time(log, timestamp))

    def offsets_between(self, start: int | None, end: int | None) -> tuple[int, int]:
        """Return the range of offsets from one time to another; raises as the look-up does.

        Args:
            start: ms since the epoch; None for the first offset.
            end: ms since the epoch; None for the end. The offset of this time is not included.
        """
        first = self.start_offset
        last = self.end_offset
        if start is not None:
            found = self.offset_for_time(start)
            first = last if found is None else max(first, found)
        if end is not None:
            found = self.offset_for_time(end)
            last = last if found is None else max(min(last, found), self.start_offset)
        return first, last

    def scan(
        self,
        starting_offset: int | None = None,
        ending_offset: int | None = None,
        *,
        starting_timestamp: Time | None = None,
        ending_timestamp: Time | None = None,
        columns: str | Iterable[str] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        mode: Mode = "FAILFAST",
        column_name_of_corrupt_record: str = CORRUPT_RECORD,
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        limit: int | None = None,
        last: int | None = None,
        progress: Progress = ignore_progress,
    ) -> Scan:
        """Return the records of a range of offsets, in the order of their offsets.

        Args:
            starting_offset: the first offset; by default that of the log. An offset in a gap means
                the next record.
            ending_offset: the offset after the last one; by default, or if it lies after the end,
                the end of the log, or the last stable offset.
            starting_timestamp: start at the offset that a broker gives for this time, in place of
                an offset: epoch ms, ISO-8601, such as ``-1h``, or a datetime. If it gives none,
                nothing is read.
            ending_timestamp: end at the offset that a broker gives for this time, excluded.
            columns: names of columns, as a list or joined by commas; by default all of
                ``kafkalog.format.layout.RECORD``.
            isolation_level: ``read_committed`` gives no record of a transaction that was aborted or
                is not decided yet, and none after the last stable offset.
            mode: FAILFAST raises at a damaged batch; DROPMALFORMED drops it with a warning;
                PERMISSIVE gives one row for it, with the reason in a column of its own. Reading
                continues with the next batch.
            column_name_of_corrupt_record: name of that column. It is the last one, unless
                ``columns`` names it.
            check_crc: whether a batch is damaged if its CRC is wrong.
            fail_on_data_loss: whether records that are gone are an error; if not, a warning.
            limit: return only this many records, the first ones; reading stops then.
            last: return only this many records, the newest ones.
            progress: called while the scan is read, with the offsets that are done and the total.

        Returns:
            A scan, which reads the folder each time that it is asked for its batches.

        Raises:
            OptionError: a column, the mode or the isolation level is unknown, a time is not one, or
                ``limit`` or ``last`` is not a positive integer.
        """
        self._lifetime.require()
        require_positive("last", last)
        given = ScanSpec(
            isolation_level=isolation_level,
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
        )
        spec, names = parse_scan(columns, RECORD.names, given)
        start_ms = optional_timestamp("starting_timestamp", starting_timestamp)
        end_ms = optional_timestamp("ending_timestamp", ending_timestamp)

        def read() -> Iterator[pa.RecordBatch]:
            span = span_at((starting_offset, ending_offset), self, start_ms, end_ms)
            for _, batch in read_spans([(self, span)], spec, last, progress):
                yield batch.select(names)

        schema = pa.schema([spec.schema.field(name) for name in names])
        is_quick = self.is_clean and not spec.is_committed and start_ms is None and end_ms is None
        return Scan(schema, read, limit=limit, is_quick=is_quick)

    def read(
        self,
        spec: ScanSpec,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        requires_end: bool = False,
        follows: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range as a spec says; see :meth:`scan`.

        Args:
            spec: how records are read.
            start_offset: the first offset; by default that of the log.
            end_offset: the offset after the last one; by default the end.
            requires_end: whether the log reached the end offset before, so that records are gone if
                it does not now. For a read of committed records, that was a last stable offset, or
                lay before it, and is not looked for again.
            follows: whether another read has the range before. The row of a damaged batch that
                begins there is left to it.

        Raises:
            CorruptBatchError: a batch is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: the start lies before or after the log, or records are gone, and
                data loss is to fail.
        """
        log = self.log()
        name = str(self.folder.topic_partition)
        end = log.end_offset if end_offset is None else min(end_offset, log.end_offset)
        if requires_end and end_offset is not None and end_offset > log.end_offset:
            spec.report_loss(f"{name}: was to be read up to {end_offset}, ends at {log.end_offset}")
        if spec.is_committed and not requires_end:
            end = self.committed_end(spec, end)
        start = log.start_offset if start_offset is None else start_offset
        if start < log.start_offset:
            spec.report_loss(
                f"{name}: offset {start} lies before the log, which begins at {log.start_offset}"
            )
            start = log.start_offset
        elif start > log.end_offset:
            spec.report_loss(
                f"{name}: offset {start} lies after the log, which ends at {log.end_offset}"
            )
        transactions = None
        if spec.is_committed:
            transactions = self.answer(lambda log: read_transactions(log, start, end, spec))
        gaps = Gaps(self.cleaner_offset)
        reader = PartitionReader(name, self._relisted, spec, transactions, gaps)
        yield from reader.read(log, start, end, follows=follows)

    def committed_end(self, spec: ScanSpec, end: int) -> int:
        """Return where a read of committed records up to an offset ends.

        Raises:
            CorruptBatchError: damage keeps the last stable offset low, so it may hide committed
                records before the offset, and the mode is FAILFAST.
        """
        if end <= self.stable_offset(is_strict=False, check_crcs=spec.check_crc):
            return end
        return min(end, self.stable_offset(is_strict=spec.is_strict, check_crcs=spec.check_crc))

    def _relisted(self, known: PartitionLog | None) -> PartitionLog:
        """List the segments again; without a known log, look for the end of the log as well."""
        if known is None:
            self.refresh()
        self._log = read_partition_log(self._storage, self.folder, known, self._recovered_end)
        return self._log

    def answer(self, ask: Callable[[PartitionLog], T]) -> T:
        """Return what a look-up gives; it is repeated if a segment is deleted meanwhile."""
        for _ in range(_MAX_LISTINGS):
            log = self.log()
            try:
                return ask(log)
            except FileNotFoundError as err:
                gone = str(err.filename or err)
                self._relisted(log)
        raise FileDeletedError(gone)


def span_at(span: Span, partition: Partition, start_ms: int | None, end_ms: int | None) -> Span:
    """Return a span of offsets, whose ends give way to times that are not None."""
    start, end = span
    first, last = partition.offsets_between(start_ms, end_ms)
    return start if start_ms is None else first, end if end_ms is None else last


def lost_start(partition: Partition) -> Loss | None:
    """Where the log began before its first segments went; None if no file shows that any did.

    Only what a clean stop wrote says so, as retention deletes segments.
    """
    claim = earliest(partition.folder, partition.leader_epochs) if partition.is_clean else None
    segments = partition.log().segments
    if claim is None or not segments or claim.offset >= segments[0].base_offset:
        return None
    begin = segments[0].base_offset
    text = f"begins at {begin}, and {claim.source} says that it began at {claim.offset}"
    return Loss(begin, text)


def lost_end(partition: Partition) -> Loss | None:
    """How far the log reached before its end went; None if nothing says that it did."""
    log = partition.log()
    beside = list_beside(log.storage, partition.path)
    claim = furthest(partition.folder, partition.leader_epochs, beside)
    if claim is None or claim.offset <= _end_of(log):
        return None
    if not partition.is_clean:  # a running broker may have written it since the end was looked for
        log = read_partition_log(
            log.storage, partition.folder, recovered_end=partition.recovered_end
        )
    end = _end_of(log)
    if claim.offset <= end:
        return None
    return Loss(end, f"ends at {end}, and {claim.source} says that it reached {claim.offset}")


def warn_of_losses(partition: Partition, start: int | None = None, end: int | None = None) -> None:
    """Warn of records that are gone from the ends of the log, as far as a range has these ends.

    Args:
        partition: is read.
        start: the first offset; None for that of the log.
        end: the offset after the last one; None for the end.
    """
    losses = []
    if start is None or start <= partition.start_offset:
        losses.append(lost_start(partition))
    if end is None or end >= partition.end_offset:
        losses.append(lost_end(partition))
    for lost in losses:
        if lost is not None:
            logger.warning("data loss: %s %s", partition.path, lost.text)


def identity_of(partition: Partition, offset: int) -> LogIdentity:
    """Return the identity of this log at an offset, for a later comparison with its namesake."""
    return LogIdentity(partition.topic_id, partition.answer(lambda log: note_before(log, offset)))


def began_again(partition: Partition, noted: LogIdentity, offset: int) -> bool:
    """Return whether this is another log than the one that was noted at an offset.

    So it is if the topic was deleted and made again. Without topic ids on both sides, a log
    that was cut before the offset and written again counts as another one, too. Where nothing
    can be compared it is taken for the same.
    """
    topic_id = partition.topic_id
    if noted.topic_id is not None and topic_id is not None:
        return noted.topic_id != topic_id
    batch = noted.batch
    return batch is not None and partition.answer(lambda log: is_another(log, batch, offset))


def _end_of(log: PartitionLog) -> int:
    """Return the end of a log's segments; a broker deletes them if its log begins later."""
    return log.end_offset if log.ended_at is None else log.ended_at


def offsets_in(
    partition: Partition, start: int | None, end: int | None, last: int | None = None
) -> int:
    """Return how many offsets of a log lie between two; None stands for its start or its end.

    Args:
        partition: has the log.
        start: the first offset.
        end: the offset after the last one.
        last: the most that count, if not None.
    """
    first = partition.start_offset
    after = partition.end_offset
    if start is not None:
        first = max(first, start)
    if end is not None:
        after = min(after, end)
    n_offsets = max(after - first, 0)
    if last is not None:
        n_offsets = min(n_offsets, last)
    return n_offsets


def read_range(
    partition: Partition, spec: ScanSpec, start: int | None, end: int | None, last: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, or only the newest of them; see :meth:`Partition.read`.

    To find the newest ones, the range is read in parts from its end on. Each part is twice as long
    as the one after it, because markers, gaps and records that were aborted may leave few records
    in one.

    Args:
        partition: is read.
        spec: how records are read.
        start: the first offset; None for that of the log.
        end: the offset after the last one; None for the end.
        last: the number of records, None for all.
    """
    warn_of_losses(partition, start, end)
    if last is None:
        yield from partition.read(spec, start, end)
        return
    first = partition.start_offset if start is None else start
    part_end = partition.end_offset if end is None else min(end, partition.end_offset)
    if spec.is_committed:
        part_end = partition.committed_end(spec, part_end)
    found: list[pa.RecordBatch] = []
    n_found = 0
    length = last
    is_first = False
    while n_found < last and not is_first:
        part_start = max(first, part_end - length)
        is_first = part_start == first
        part = [*partition.read(spec, part_start, part_end, follows=not is_first)]
        n_found += sum(batch.num_rows for batch in part)
        found = part + found
        part_end = part_start
        length *= 2
    surplus = max(n_found - last, 0)
    for batch in found:
        n_left_out = min(surplus, batch.num_rows)
        surplus -= n_left_out
        if n_left_out < batch.num_rows:
            yield batch.slice(n_left_out)


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
    tally = Tally(progress)
    is_counted = progress is not ignore_progress
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
