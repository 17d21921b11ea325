"""Reads the messages that a request asks for, one part of the plan after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from rmqstore.format.schema import select_columns
from rmqstore.progress import Advance, Progress, Tally, ignore_progress
from rmqstore.query.arrow_rows import first_rows
from rmqstore.read.newest import newest_of_log, newest_of_queues
from rmqstore.read.parts import (
    LogPart,
    LostPart,
    Part,
    PendingPart,
    QueuesPart,
    RecordsPart,
    UnitsPart,
)
from rmqstore.read.plan import plan, queues_part, records_part
from rmqstore.read.read_spec import FAILFAST
from rmqstore.read.request import ScanRequest
from rmqstore.read.rows import PHYSICAL_OFFSET, merge_by_physical_offset
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, QueueSlice
from rmqstore.storage.recovery.log_end import n_written

_ONE_PART = Limits(1 << 62)  # so that only the sizes of parts are found out

P = TypeVar("P", bound=Part)


class MessageScan:
    """One scan of one store.

    Args:
        store: the store.
        request: what is asked for.
        progress: called while the scan is read, with what is done and the total: messages of a scan
            by queue, else bytes of the log.
    """

    def __init__(
        self, store: StoreParts, request: ScanRequest, progress: Progress = ignore_progress
    ) -> None:
        self._store = store
        self._request = request
        self._tally = None if progress is ignore_progress else Tally(progress)
        self._advance: Advance = ignore_progress
        if self._tally is not None:
            by_queue = request.is_by_queue
            self._advance = self._tally.add_records if by_queue else self._tally.add_bytes

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Return the messages as batches with the columns that are returned.

        What is read is planned now, but for a look-up, which is planned when it begins.

        Raises:
            OptionError: the request contradicts itself or names an unknown topic.
            UnsupportedFeatureError: such a store cannot answer it.
        """
        request, store = self._request, self._store
        if request.lookup_keys:
            return request.returned(self._look_up())
        if request.is_by_queue and request.pruning.keeps_broker(store.broker_name):
            store.ranges.require_queues(request.selection, tolerant=request.mode != FAILFAST)
            store.ranges.require_named(request.selection)
        parts = plan(store, request)
        if request.last is not None:
            return request.returned(self._newest(parts, request.last))
        if request.by == "commitlog":
            self._expect(n_written(store.log, _log_slices(parts)))
            return request.returned(self._in_turn(parts))
        return request.returned(self._by_queue(parts))

    def count(self, limit: int | None) -> int:
        """Return the number of messages, at most ``limit``; by the ends of queues if they give it.

        If not, few columns are read, except where damaged rows count: which rows are damaged may
        depend on the columns.
        """
        count = self._n_planned()
        if count is not None:
            return count if limit is None else min(count, limit)
        request = self._request
        if request.mode == FAILFAST:
            request = replace(request, schema=select_columns(["queueOffset"]))
        batches = first_rows(MessageScan(self._store, request).rows(), limit)
        return sum(batch.num_rows for batch in batches)

    def _n_planned(self) -> int | None:
        """Return the number of messages if the ends of queues give it, None if they do not.

        They do where each queue offset gives a row or an error.
        """
        request, store = self._request, self._store
        if not request.is_by_queue or not request.is_quick or request.include_pending:
            return None
        if request.mode != FAILFAST or not request.fail_on_data_loss:
            return None
        parts = plan(store, request)
        if not all(isinstance(part, QueuesPart) for part in parts):
            return None
        slices = _queue_slices(parts)
        return store.retry(
            lambda: sum(store.store_queues.n_messages(*queue_slice) for queue_slice in slices)
        )

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        return part.read(self._store, self._request, self._advance)

    def _in_turn(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from self._read(part)

    def _expect(self, amount: int) -> None:
        if self._tally is not None:
            self._tally.expect(amount)

    def _by_queue(self, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """Yield lost ranges, then messages in the order of the log, then pending ones.

        Messages in tiered storage come before all others.
        """
        queues, singles = _of_kind(parts, QueuesPart), _of_kind(parts, UnitsPart)
        n_single = sum(part.n_records for part in singles)
        self._expect(sum(part.n_records for part in queues) + n_single)
        yield from self._in_turn(_of_kind(parts, LostPart))
        if not singles:
            yield from self._in_turn(queues)
        for single in singles:
            in_tier, local = self._store.store_queues.divide(_queue_slices(parts))
            yield from self._read(QueuesPart(tuple(in_tier)))
            wider = self._request.with_columns([PHYSICAL_OFFSET])
            ranges = QueuesPart(tuple(local)).read(self._store, wider, self._advance)
            yield from merge_by_physical_offset(
                ranges, single.read(self._store, wider, self._advance)
            )
        yield from self._in_turn(_of_kind(parts, PendingPart))

    def _newest(self, parts: Sequence[Part], count: int) -> Iterator[pa.RecordBatch]:
        """Yield the newest messages of each queue, or of the log, in the order of the log."""
        logs = _of_kind(parts, LogPart)
        if logs:
            log_slices = [span.log_slice for part in logs for span in part.spans or ()]
            schema = self._request.spec().schema

            def read(log_slice: LogSlice) -> Iterator[pa.RecordBatch]:
                self._expect(n_written(self._store.log, [log_slice]))
                return self._read(LogPart((log_slice,)))

            yield from newest_of_log(log_slices, count, read, schema).to_batches()
            return
        for _ in self._in_turn(_of_kind(parts, LostPart)):
            pass  # only its errors count
        yield from self.newest(_queue_slices(parts), count)

    def newest(self, slices: Sequence[QueueSlice], count: int) -> Iterator[pa.RecordBatch]:
        """Yield the newest messages of ranges of queues, in the order of the log."""

        def read(request: ScanRequest, queue_slices: list[QueueSlice]) -> Iterator[pa.RecordBatch]:
            part = QueuesPart(tuple(queue_slices))
            self._expect(part.n_records)
            return part.read(self._store, request, self._advance)

        order = "storeTimestamp" if self._store.is_tiered else PHYSICAL_OFFSET
        return newest_of_queues(self._request, slices, count, read, order)

    def _look_up(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a look-up: those in tiered storage, then those of the log."""
        parts = plan(self._store, self._request)
        queues, singles = _of_kind(parts, QueuesPart), _of_kind(parts, RecordsPart)
        log_slices = _log_slices(parts)
        if self._tally is not None:
            store, n_bytes = self._store, float(n_written(self._store.log, log_slices))
            for part in queues:
                n_bytes += queues_part(store, part.slices, _ONE_PART).n_bytes
            for records in singles:
                n_bytes += records_part(store, records.physical_offsets, _ONE_PART).n_bytes
            self._expect(round(n_bytes))
        yield from self._in_turn(queues)
        for records in singles:
            offsets = records.physical_offsets
            for log_slice in log_slices:
                before = int(np.searchsorted(offsets, log_slice.start))
                yield from self._read(replace(records, physical_offsets=offsets[:before]))
                yield from self._read(LogPart((log_slice,)))
                offsets = offsets[before:]
            yield from self._read(replace(records, physical_offsets=offsets))


def _of_kind(parts: Iterable[Part], kind: type[P]) -> list[P]:
    return [part for part in parts if isinstance(part, kind)]


def _queue_slices(parts: Iterable[Part]) -> list[QueueSlice]:
    return [part for queues in _of_kind(parts, QueuesPart) for part in queues.slices]


def _log_slices(parts: Iterable[Part]) -> list[LogSlice]:
    return [part for log in _of_kind(parts, LogPart) for part in log.slices]
