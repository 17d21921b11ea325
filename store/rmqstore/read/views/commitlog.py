"""View ``commitlog``: every record, blank, damaged part and gap of the log in order.

It walks the log as ``read.reading`` does, but shows what a scan refuses or leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import MalformedBytesError, OffsetOutOfRangeError, RmqStoreError
from rmqstore.format.columns.buffers import valid_text
from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies, topics
from rmqstore.format.columns.record_headers import RecordHeaders, check_headers, read_headers
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    FRAME_HEAD,
    Bytes,
    Mask,
    Positions,
)
from rmqstore.format.record import check_record
from rmqstore.lazy import cached_property
from rmqstore.read.record_filter import log_filter
from rmqstore.read.split import Limits, join_parts
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.parts import LogEndPart
from rmqstore.read.views.rows import Column, times, to_batch
from rmqstore.read.views.schema import DROPMALFORMED, ViewSpec
from rmqstore.spans import LogSlice, Span
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.walks import Window, walk_forward
from rmqstore.storage.recovery.log_end import LogEnd, damage_met, last_record_before

logger = logging.getLogger(__name__)

RECORD, BLANK, DAMAGE, MISSING, END = "record", "blank", "damage", "missing", "end"

# Columns that show a field of the record's head unchanged.
_HEAD_COLUMNS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "sysFlag": "sys_flag",
    "bodySize": "body_length",
    "preparedTransactionOffset": "prepared_transaction_offset",
}


@dataclass(frozen=True)
class RecordsPart(LogEndPart):
    """A range of the log.

    Attributes:
        log_slice: the range.
        is_last: whether it is the last one.
    """

    log_slice: LogSlice
    is_last: bool

    @property
    def n_bytes(self) -> float:
        return self.log_slice.end - self.log_slice.start

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        return _LogView(source, spec).batches(
            self.log_slice, self.log_end if self.is_last else None
        )


def plan_record_rows(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[RecordsPart]:
    """Return ranges of the log, each beginning with a record."""
    source.ranges.warn_unknown_topics(spec.selection)
    whole = source.ends.log_slice()
    end = source.ends.log_end
    try:
        headers = source.sampler.log_headers()
    except RmqStoreError as err:
        logger.warning(
            "%s: queues do not show where the log may be cut: %s", source.paths.root, err
        )
        headers = [segment.start for segment in source.log.segments]
    parts = source.sampler.log_parts([whole], headers)
    goal = limits.target(sum(part.n_bytes for part in parts))
    slices = [part.log_slice for group in join_parts(parts, goal) for part in group]
    if not slices and end is not None and source.log.segments:
        slices = [whole]  # nothing but the row that says where the log ends
    return [RecordsPart(end, part, part is slices[-1]) for part in slices]


class _LogView:
    def __init__(self, source: StoreParts, spec: ViewSpec) -> None:
        self._source = source
        self._spec = spec
        self._log = source.log
        self._chosen = log_filter(spec.selection, spec.schema.names)
        self._names = frozenset(spec.schema.names)

    @cached_property
    def _queues_end(self) -> int:
        return self._source.store_queues.proved_end()

    def batches(self, log_slice: LogSlice, log_end: LogEnd | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, and of the end of the log if that is given."""
        for start, end, segment in self._log.segment_spans(log_slice.start, log_slice.end):
            if segment is None:
                yield from self._row(
                    MISSING, start, end - start, "the files that held it are missing"
                )
                continue
            try:
                # Shows that the file can be opened. What fails later, in the walk, is not a gap.
                self._log.file_of(segment)
            except (OffsetOutOfRangeError, OSError, RmqStoreError) as err:
                yield from self._row(MISSING, start, end - start, str(err), segment)
                continue
            is_closed = log_slice.is_closed
            if (yield from self._read_file(segment, Span(start, end), is_closed=is_closed)):
                return
        if log_end is not None:
            end = log_end.physical_offset
            reason = log_end.reason or None
            yield from self._row(END, end, log_end.bytes_behind, reason, self._log.find(end))

    def _read_file(
        self, segment: Segment, span: Span, *, is_closed: bool
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Yield the rows of one file; return whether the log ends in it."""
        position = span.start
        for window in walk_forward(self._log, segment, *span):
            # Records come in batches, with those that damaged sizes hid.
            starts, sizes = window.chain()
            ends = starts + sizes
            for rows in cut_batches(sizes, BATCH_ROWS, BATCH_BYTES):
                part = window.records._replace(starts=starts[rows], position=int(ends[rows][-1]))
                data, positions, _ = replace(window, records=part).rejoined()
                yield from self._records(segment, data, positions)
            if window.records.kind is StopKind.BLANK:
                framing = self._log.framing(segment)
                head = window.data[window.records.position :][: FRAME_HEAD.itemsize]
                size = int(head.view(">i4")[framing.size_word])
                yield from self._row(BLANK, window.stopped, size, None, segment)
            reason = window.damage
            if reason is not None and is_closed:
                reason = damage_met(window, self._queues_end)
                if reason is None:
                    yield from self._closed_end(window)
                    return True
            position = window.resumed
            if reason is not None:
                size = position - window.stopped
                yield from self._row(DAMAGE, window.stopped, size, reason, segment)
        if position > span.end and span.end < segment.end:
            reason = f"a record reaches over {span.end}, where another one was said to begin"
            yield from self._row(DAMAGE, span.end, 0, reason, segment)
        return False

    def _closed_end(self, window: Window) -> Iterator[pa.RecordBatch]:
        """Yield the row for the end of a closed log.

        Preallocated files after the end give no row.
        """
        segment = window.segment
        end = window.stopped
        is_later_file = end == segment.start != self._log.min_offset
        if is_later_file and last_record_before(self._log, end) is None:
            return
        stop = window.records
        is_written = stop.kind is not StopKind.EMPTY
        reason = f"old bytes follow: {stop.reason}" if is_written else None
        yield from self._row(END, end, segment.end - end, reason, segment)

    def _records(
        self, segment: Segment, data: Bytes, starts: Positions
    ) -> Iterator[pa.RecordBatch]:
        headers, whole = read_headers(data, starts)
        valid = whole & check_headers(headers, segment.start)
        if self._spec.check_crc:
            whole_headers = headers if whole.all() else headers.take(whole)
            valid[whole] &= valid_crcs(data, whole_headers, stored_bodies(data, whole_headers))
        mask = self._chosen.keep(data, headers) | ~whole
        if self._spec.mode == DROPMALFORMED:
            mask &= valid
        if not mask.all():
            headers, whole, valid = headers.take(mask), whole[mask], valid[mask]
        n = len(headers)
        if not n:
            return
        broken = None if whole.all() else ~whole
        makers: dict[str, Callable[[], Column]] = {
            "commitLogOffset": lambda: headers.starts + segment.start,
            "storeSize": lambda: headers.column("total_size").astype(np.int64),
            "kind": lambda: pa.repeat(pa.scalar(RECORD), n),
            "isValid": lambda: valid,
            "reason": lambda: self._reasons(segment, data, headers, valid),
            "topic": lambda: _null_where(valid_text(topics(data, headers)), broken),
            "storeTimestamp": lambda: _null_where(times(headers.column("store_timestamp")), broken),
            "bornTimestamp": lambda: _null_where(times(headers.column("born_timestamp")), broken),
            "propertiesSize": lambda: pa.array(headers.property_lengths, mask=broken),
            "file": lambda: pa.repeat(pa.scalar(segment.path.name), n),
        }
        columns = {name: make() for name, make in makers.items() if name in self._names}
        for name, column in _HEAD_COLUMNS.items():
            if name in self._names:
                columns[name] = pa.array(headers.column(column), mask=broken)
        if "magic" in self._names:  # as eight hex digits; few are distinct
            magics, codes = np.unique(headers.column("magic"), return_inverse=True)
            digits = pa.array([f"{magic & 0xFFFFFFFF:08x}" for magic in magics.tolist()])
            columns["magic"] = digits.take(pa.array(codes))
        yield to_batch(self._spec, self._source, columns, n)

    def _reasons(
        self, segment: Segment, data: Bytes, headers: RecordHeaders, valid: Mask
    ) -> pa.Array:
        """Return what the reference codec says is wrong with each damaged record, string (n,)."""
        if valid.all():
            return pa.nulls(len(headers), pa.string())
        texts: list[str | None] = [None] * len(headers)
        for row in np.flatnonzero(~valid).tolist():
            position = int(headers.starts[row])
            physical_offset = segment.start + position
            try:
                check_record(data.data, position, physical_offset, check_crc=self._spec.check_crc)
                texts[row] = "the record changed while it was read"
            except MalformedBytesError as err:
                texts[row] = err.reason
        return pa.array(texts, pa.string())

    def _row(
        self, kind: str, start: int, size: int, reason: str | None, segment: Segment | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the one row of something that is not a record."""
        if kind in (DAMAGE, MISSING) and self._spec.mode == DROPMALFORMED:
            return
        if kind == BLANK and self._chosen.chooses_topics:
            return
        is_valid = {BLANK: True, END: None}.get(kind, False)
        magic = file_name = None
        if segment is not None:
            file_name = segment.path.name
        if segment is not None and kind == BLANK:
            magic = f"{self._log.framing(segment).blank_magic & 0xFFFFFFFF:08x}"
        columns: dict[str, Column] = {
            "commitLogOffset": np.array([start]),
            "storeSize": np.array([size]),
            "kind": pa.array([kind]),
            "isValid": pa.array([is_valid], pa.bool_()),
            "reason": pa.array([reason], pa.string()),
            "magic": pa.array([magic], pa.string()),
            "file": pa.array([file_name], pa.string()),
        }
        yield to_batch(self._spec, self._source, columns, 1)


def _null_where(values: pa.Array, mask: Mask | None) -> pa.Array:
    if mask is None:
        return values
    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
