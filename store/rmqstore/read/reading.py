"""Reads what was planned of one store: ranges of queues and of the log, and single messages."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby
from statistics import fmean

import numpy as np
import pyarrow as pa

from rmqstore.errors import FileDeletedError, OffsetOutOfRangeError, UnsupportedFeatureError
from rmqstore.format.columns.search import have_magic
from rmqstore.format.columns.walk import total_sizes
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import FIXED_PART_V4, Positions
from rmqstore.format.schema import select_columns
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.query.selection import LookupKeys, Selection, choose_topics, parse_selection
from rmqstore.read.assembler import Assembler, plain_pipeline
from rmqstore.read.faults import refuse_spans
from rmqstore.read.lookup import SMALL_GAPS, Found, QueryResult, tagged_offsets
from rmqstore.read.queue_scan import QueueScan
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.record_filter import ALL_RECORDS, LogFilter, log_filter
from rmqstore.read.rows import UnitRows
from rmqstore.read.stages import LogBytes
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LATEST_TIME, LogSlice, LostSpan, QueueSlice, Span
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import SegmentSpan, begins_record, read_frame
from rmqstore.storage.log.walks import JoinedWindow, join_spans, walk_forward
from rmqstore.storage.recovery.log_end import damage_met

_SIZE_SAMPLES = 64  # records, at least, whose sizes make a mean
_OVERREAD = 4  # candidates read per requested message, newest first


class LogScan:
    """Reads slices of the log.

    Args:
        store: the store.
        spec: how to read the records.
        chosen: which records to return.
    """

    def __init__(self, store: StoreParts, spec: ReadSpec, chosen: LogFilter) -> None:
        self._log = store.log
        self._queues_end = store.store_queues.proved_end
        self._spec = spec
        self._pipeline = plain_pipeline(spec, chosen)

    def batches(self, log_slice: LogSlice) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice.

        Raises:
            CorruptRecordError: there is no valid record, and the mode is FAILFAST.
            OffsetOutOfRangeError: a file is missing, and data loss is to fail.
        """
        for part in join_spans(self._log, log_slice.start, log_slice.end):
            spans: Sequence[SegmentSpan] = [part] if isinstance(part, SegmentSpan) else part.spans
            # In mode FAILFAST the read ends at the record that led the walk over others.
            if isinstance(part, JoinedWindow) and (
                self._spec.mode == FAILFAST or part.has_true_sizes()
            ):
                yield from self._read_joined(part)
                continue
            for span in spans:
                if (yield from self._read_span(span, is_closed=log_slice.is_closed)):
                    return

    def _read_joined(self, window: JoinedWindow) -> Iterator[pa.RecordBatch]:
        """Yield the records of small files."""
        n_between = window.spans[-1].end - window.spans[0].start
        for part in window.cut():
            n_between -= int(part.sizes.sum())
            n_read = yield from self._pipeline.batches(
                LogBytes(part.data, part.bases), part.starts, None
            )
            self._spec.advance(n_read, int(part.sizes[:n_read].sum()))
            record_offsets = part.starts[n_read:] + part.bases[n_read:]
            sizes = part.sizes[n_read:]
            for span in window.spans if len(record_offsets) else ():
                rows = slice(*np.searchsorted(record_offsets, (span.start, span.end)).tolist())
                own_offsets = record_offsets[rows]
                own_sizes = sizes[rows]
                if not len(own_offsets):
                    continue
                segment = span.segment
                assert segment is not None
                end = int(own_offsets[-1] + own_sizes[-1])
                assembler = Assembler(self._log, segment, self._pipeline)
                try:
                    yield from assembler.batches(own_offsets - segment.start, own_sizes, None)
                except FileDeletedError as err:
                    yield from self._lose(int(own_offsets[assembler.n_done]), end, str(err))
        self._spec.advance(0, max(n_between, 0))

    def _read_span(
        self, span: SegmentSpan, *, is_closed: bool
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Yield the records of a span; return whether the log ends in it."""
        position, end, segment = span
        if segment is None:
            yield from self._lose(position, end, "the files that held it are missing")
            return False
        assembler = Assembler(self._log, segment, self._pipeline)
        try:
            for window in walk_forward(self._log, segment, position, end, is_scan=True):
                if self._spec.mode == FAILFAST:
                    # The first damage ends the scan: what a damaged size hides is not needed.
                    data, (starts, sizes) = window.data, window.chain()
                else:
                    data, starts, sizes = window.rejoined()
                # A mapping is copied from first; see Assembler. Others were just filled.
                buffered = data if self._log.is_remote else None
                yield from assembler.batches(starts, sizes, None, buffered)
                reason = window.damage
                if reason is not None and is_closed:
                    reason = damage_met(window, self._queues_end())
                    if reason is None:
                        return True
                # Bytes between records, such as those of damage, are read as well, and so is the
                # blank that closes a file.
                is_closing = window.records.kind is StopKind.BLANK
                passed = (end if is_closing else window.resumed) - position
                self._spec.advance(0, max(passed - int(sizes.sum()), 0))
                position = window.resumed
                if reason is not None:
                    yield from self._refuse(segment, Span(window.stopped, position), reason)
        except FileDeletedError as err:
            yield from self._lose(position, end, str(err))
            return False
        if position > end and end < segment.end:
            reason = f"a record reaches over the bound {end} of a task"
            yield from self._refuse(segment, Span(position, position), reason)
        return False

    def _lose(self, start: int, end: int, reason: str) -> Iterator[pa.RecordBatch]:
        yield from refuse_spans(
            [LostSpan(self._log.folders, start, end, reason, is_missing=True)], self._spec
        )

    def _refuse(self, segment: Segment, span: Span, reason: str) -> Iterator[pa.RecordBatch]:
        """Handle a span that holds no record as the mode says."""
        yield from refuse_spans([LostSpan(str(segment.path), *span, reason)], self._spec)


def find_lost(store: StoreParts, slices: Iterable[QueueSlice], spec: ReadSpec) -> list[LostSpan]:
    """Return the lost parts of the log that a read of ranges of queues would not report.

    Queues that were recovered from a damaged log may lack messages for which there is no unit.
    """
    is_reported = spec.is_tolerant and not spec.tags  # their units have no tags
    return store.ends.lost(slices if is_reported else ())


def read_queues(
    store: StoreParts, slices: Sequence[QueueSlice], spec: ReadSpec
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges of queues; see ``queue_scan.QueueScan``.

    Those in tiered storage come first, queue by queue. Those of the local store follow, in the
    order of its log.
    """
    in_tier, local = _divided(store, slices)
    yield from _read_tier(store, in_tier, spec)
    if in_tier and local:
        # Retention continues while tiered storage is read, which can take long.
        store.log.refresh()
        moved, local = _divided(store, local)
        for tier in store.tiers if moved else ():
            tier.refresh()
        yield from _read_tier(store, moved, spec)
    yield from _queue_scan(store, spec).batches(local)


def _divided(
    store: StoreParts, slices: Sequence[QueueSlice]
) -> tuple[list[QueueSlice], list[QueueSlice]]:
    """Return the parts of queues' ranges by source; see ``StoreQueues.divide``."""
    return store.retry(lambda: store.store_queues.divide(slices))


def _read_tier(
    store: StoreParts,
    slices: Sequence[QueueSlice],
    spec: ReadSpec,
    chosen: LogFilter = ALL_RECORDS,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges of queues in the tier of a store."""
    # The CRC of a whole record covers its physical offset, which is another one here.
    spec = replace(spec, check_record_crc=False, last_record=None)
    batch_topics = store.queues.batch_topics() if slices else ()
    for tier in store.tiers:
        for (topic, queue_id), group in groupby(slices, lambda queue_slice: queue_slice[:2]):
            queue, queue_slices = tier.queue(topic, queue_id), [*group]
            whole = (queue_slices[0].start, queue_slices[-1].end)
            has_batches = topic in batch_topics or queue.holds_inner_batches(*whole)
            if has_batches and not spec.inflate:
                raise UnsupportedFeatureError(
                    f"{topic}: a record holds several messages (queue.type=BatchCQ), and exact "
                    "copies are of records, which tiered storage has once for each message"
                )
            scan = QueueScan(
                queue.log,
                tier.open,
                store.queues.open_ext,
                spec,
                batch_topics=(topic,) if has_batches else (),
                chosen=chosen,
                is_sparse=queue.is_sparse,
            )
            yield from scan.batches(queue_slices)


def _queue_scan(store: StoreParts, spec: ReadSpec) -> QueueScan:
    queues = store.queues
    return QueueScan(store.log, queues.open, queues.open_ext, spec, queues.batch_topics())


def look_up(
    store: StoreParts, slices: Sequence[QueueSlice], spec: ReadSpec, chosen: LogFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of ranges in tiered storage, all of which are read."""
    in_tier, _ = _divided(store, slices)
    return _read_tier(store, in_tier, spec, chosen)


def read_units(store: StoreParts, picked: UnitRows, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Yield the messages of single units; see ``queue_scan.QueueScan.single``."""
    return _queue_scan(store, spec).single(picked)


def read_log(
    store: StoreParts, log_slice: LogSlice, spec: ReadSpec, chosen: LogFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range of the log; see :class:`LogScan`."""
    return LogScan(store, spec, chosen).batches(log_slice)


def find_candidates(
    store: StoreParts,
    lookup_keys: LookupKeys,
    topics: Sequence[str],
    low: int | None,
    high: int | None,
) -> Found:
    """Return the records that may have the keys, and the parts of the log to search for more.

    See ``Lookup.find``.
    """

    def find() -> Found:
        tagged = (
            tagged_offsets(store.queues, topics, lookup_keys.tags) if lookup_keys.tags else None
        )
        return store.lookup.find(lookup_keys, topics, low, high, tagged)

    return store.retry(find)


def find_by_keys(store: StoreParts, lookup_keys: LookupKeys, selection: Selection) -> Found:
    """Return where messages with the wanted keys, ids or tags may lie; see ``Lookup.find``.

    Raises:
        OptionError: the selection has queue offsets.
        UnsupportedFeatureError: no topic is named, and only a RocksDB database knows them.
    """
    selection.require_by_log()
    # Named topics are searched even if no queue has them.
    named = selection.subscribe or selection.assign
    if named:
        topics = sorted(named)
    else:
        known = store.store_queues.known_topics()
        if not known and store.ends.are_queues_unread:
            raise UnsupportedFeatureError(
                "only queues in RocksDB show which topics there are, as config/topics.json has "
                f"none: {store.ends.why_unread}, or name the topics to search (subscribe)"
            )
        topics = choose_topics(selection, known)
    end = selection.end.timestamp
    last_time = None if end is None else end - 1
    times = (_in_range(selection.start.timestamp), _in_range(last_time))
    return find_candidates(store, lookup_keys, topics, *times)


def _in_range(time: int | None) -> int | None:
    """Return the nearest time (ms) that an index can be searched for."""
    return None if time is None else min(max(time, 0), LATEST_TIME)


def uncovered_slices(store: StoreParts, found: Found) -> list[LogSlice]:
    """Return the parts of the log that the index does not cover, as slices to read."""
    is_closed = store.ends.log_end is None
    return [LogSlice(span.start, span.end, is_closed=is_closed) for span in found.uncovered]


def read_records(
    store: StoreParts, physical_offsets: Positions, spec: ReadSpec, chosen: LogFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted ones of the records at physical offsets, in the order of the log.

    Args:
        store: the store to read from.
        physical_offsets: int64 (n,), ascending. One where no record has a magic code gives
            none: after a log was cut, the index may point at such an offset.
        spec: how to read the records.
        chosen: which records are wanted.

    Raises:
        CorruptRecordError: a record is damaged and the mode is FAILFAST.
        OffsetOutOfRangeError: a file was deleted meanwhile, and data loss is to fail.
    """
    log = store.log
    pipeline = plain_pipeline(spec, chosen)
    for segment in log.segments:
        first, stop = np.searchsorted(physical_offsets, (segment.start, segment.end))
        inside = physical_offsets[first:stop]
        if not len(inside):
            continue
        try:
            file = log.file_of(segment)
        except FileDeletedError as err:
            spec.report_loss(str(err))
            continue
        starts = inside - segment.start
        head_size = FIXED_PART_V4.itemsize
        file.prefetch(starts, head_size)
        headers = log.read_in_place(segment, starts, np.full(len(starts), head_size))
        starts = starts[have_magic(headers, starts)]
        assembler = Assembler(log, segment, pipeline)
        yield from assembler.batches(starts, total_sizes(headers, starts), None)


def mean_size(store: StoreParts, physical_offsets: Positions) -> float:
    """Estimate the mean size in bytes of the records at physical offsets (n,) by a sample."""
    log = store.log
    sizes = []
    step = max(1, len(physical_offsets) // _SIZE_SAMPLES)
    for physical_offset in physical_offsets[::step].tolist():
        with suppress(OffsetOutOfRangeError):
            if begins_record(log, physical_offset):
                sizes.append(max(read_frame(log, log.locate(physical_offset))[0], 0))
    return fmean(sizes) if sizes else 0.0


def query(
    store: StoreParts,
    topic: str,
    lookup_keys: LookupKeys,
    times: tuple[int, int],
    limit: int | None,
    *,
    scan_uncovered: bool,
) -> QueryResult:
    """Return the messages of a topic that have a key or tags; see ``MessageStore.query``.

    Args:
        times: first and last store time, ms, both included.
    """
    chosen = log_filter(parse_selection(subscribe=[topic]), [], lookup_keys)._replace(
        start_timestamp=times[0], end_timestamp=times[1] + 1
    )
    spec = ReadSpec(select_columns(["commitLogOffset"]))
    candidates = find_candidates(store, lookup_keys, [topic], *times)
    is_scanned = scan_uncovered or candidates.n_uncovered_bytes <= SMALL_GAPS
    log_slices = uncovered_slices(store, candidates) if is_scanned else []
    physical_offsets = _physical_offsets(
        batch for part in log_slices for batch in read_log(store, part, spec, chosen)
    )
    rest = candidates.outside(log_slices)
    stop = 0 if limit is None else _OVERREAD * limit
    while len(rest) and (
        limit is None or len(physical_offsets) < limit or physical_offsets[-limit] < rest[-1]
    ):
        newest = rest[-stop:]  # most candidates have the key, so the newest few suffice
        found = _physical_offsets(read_records(store, newest, spec, chosen))
        physical_offsets = np.union1d(physical_offsets, found)
        rest = rest[: len(rest) - len(newest)]
    if limit is not None:
        physical_offsets = physical_offsets[-limit:]
    messages = tuple(
        store.log.get(physical_offset, store.broker_name)
        for physical_offset in physical_offsets.tolist()
    )
    return QueryResult(messages, tuple(candidates.uncovered), is_scanned)


def read_copies(
    store: StoreParts,
    lookup_keys: LookupKeys,
    topics: Sequence[str],
    start: int,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Return topic, msgId and commitLogOffset of matching messages, in any order.

    Some of them may lie before the physical offset from which on they are needed.
    """
    columns = select_columns(["topic", "msgId", "commitLogOffset"])
    spec = ReadSpec(
        columns, mode=DROPMALFORMED, fail_on_data_loss=fail_on_data_loss, check_crc=False
    )
    chosen = log_filter(parse_selection(subscribe=topics), columns.names, lookup_keys)
    candidates = find_candidates(store, lookup_keys, topics, None, None)
    log_slices = [part for part in uncovered_slices(store, candidates) if part.end > start]
    parts = [read_records(store, candidates.outside(log_slices), spec, chosen)]
    parts += [read_log(store, log_slice, spec, chosen) for log_slice in log_slices]
    return chain.from_iterable(parts)


def _physical_offsets(batches: Iterable[pa.RecordBatch]) -> Positions:
    columns = [batch.column(0).to_numpy() for batch in batches]
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
