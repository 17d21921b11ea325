"""Finds every disagreement between a store's log, queues and index.

Reads all of the store and changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import (
    CorruptDatabaseError,
    CorruptRecordError,
    Finding,
    OffsetOutOfRangeError,
    number_of,
)
from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies, topics
from rmqstore.format.columns.dispatch_requests import (
    DispatchRules,
    QueueUnits,
    UnitBuffer,
    group_by_queue,
    have_units,
    read_queue_units,
    read_requests,
    topic_names,
)
from rmqstore.format.columns.inner_batch import count_messages, is_inner_batch
from rmqstore.format.columns.lmq import lmq_headers
from rmqstore.format.columns.record_headers import RecordHeaders, read_headers
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    DELIVERY_TOLERANCE_MS,
    GAP_TAGS_CODE,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
)
from rmqstore.format.topics import was_deleted
from rmqstore.inspect.broker_start import (
    BrokerStart,
    after_end,
    foresee,
    is_by_chance,
    misplaced_files,
    why_not_foretold,
)
from rmqstore.inspect.remedies import in_order
from rmqstore.inspect.verify_database import database_findings
from rmqstore.inspect.verify_epochs import epoch_findings
from rmqstore.inspect.verify_index import KeysOfLog, index_findings, read_tag_keys
from rmqstore.inspect.verify_tables import table_findings
from rmqstore.inspect.verify_tier import tier_findings
from rmqstore.inspect.verify_timers import checked_delays, delay_findings, timer_findings
from rmqstore.inspect.verify_units import (
    MAX_LED_ASTRAY,
    BuiltUnits,
    TagsCodes,
    UnitPlaces,
    damaged_messages,
    led_astray,
    n_records,
    named_offsets,
    ranges_of,
)
from rmqstore.progress import Progress, ignore_progress
from rmqstore.read.store_parts import StoreParts, leave_out_rocksdb
from rmqstore.spans import FOREVER, QueueKey, Span
from rmqstore.storage.broker.broker_run import OPEN, state_of
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.mapped_file_queue import OpenFiles
from rmqstore.storage.files.paths import can_have_queue, ext_folders, has_queue_folder
from rmqstore.storage.log.commitlog import CommitLog, SegmentSpan
from rmqstore.storage.log.walks import JoinedWindow, join_spans, walk_forward
from rmqstore.storage.queue.consumequeue import ConsumeQueueExt
from rmqstore.storage.queue.queue import Queue, chunks
from rmqstore.storage.queue.queue_set import is_in_rocksdb, open_files
from rmqstore.storage.queue.tiered import Tier
from rmqstore.storage.recovery.log_end import damage_met, n_written
from rmqstore.storage.recovery.unit_checks import confirm
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_Misplace: TypeAlias = Callable[[Bytes, RecordHeaders, int], None]
_MAX_FINDINGS = 1000  # damaged records that are reported one by one
_FILES_AT_ONCE = 64
_NONE = np.empty(0, np.int64)


def verify(store: MessageStore, progress: Progress = ignore_progress) -> Iterator[Finding]:
    """Yield every disagreement between the log, the queues and the index, the worst first.

    These are missing files of the log, damaged records, wrong units and keys that cannot be found.
    Tables under ``config/`` that are damaged are findings of the part ``config``, and records that
    a broker would lose when it starts are one of the part ``end``. Timed messages that it would
    not deliver are of the part ``timer``, and segments of tiered storage of the part ``tier``, if
    the store was opened with it. What is not looked at is named by a warning.

    Args:
        store: the store to check, opened for reading, or tiered storage alone.
        progress: called now and then with the bytes that are done, and their total, the size of
            the log. It is read twice, so a byte that was read once counts half.

    Raises:
        NotPermittedError: a file may not be read by this user, so nothing is known of it.
    """
    found: list[Finding] = []
    tiers = [queues.tier for queues in store.parts.tiers if isinstance(queues.tier, Tier)]
    if not tiers:
        store.parts.require("verify")
    if store.parts.has_store:
        for text in store.parts.kind().not_read:
            logger.warning("%s: not compared, and not looked at: %s", store.paths.root, text)
        local: AbstractContextManager[MessageStore] = nullcontext(store)
        if tiers:
            parts = store.parts
            ignores = parts.ends.ignores_log_end
            local = MessageStore(
                StoreParts.of(parts.paths, broker_name=parts.given_name, ignore_log_end=ignores)
            )
        with local as local_store:
            try:
                found += _found_in_store(local_store, progress)
            except CorruptDatabaseError as err:
                leave_out_rocksdb(local_store.parts, err)
                found = [*_found_in_store(local_store, progress)]
    next_offsets: dict[str, int] | None = None
    if not is_by_chance(found):
        next_offsets = {one.place: one.next_offset for one in found if one.next_offset is not None}
    for tier in tiers:
        found += tier_findings(store, tier, next_offsets)
    yield from in_order(found)


def _found_in_store(store: MessageStore, progress: Progress) -> Iterator[Finding]:
    yield from table_findings(store.parts)
    yield from database_findings(store.parts)
    yield from epoch_findings(store.parts)
    misplaced = [*misplaced_files(store.paths)]
    yield from misplaced
    log = store.parts.log
    broker = foresee(store.paths, log, store.parts.ends, misplaced)
    yield from after_end(log, store.parts.ends, broker)
    log_slice = store.parts.ends.log_slice()
    for start, stop, segment in log.segment_spans(log_slice.start, log_slice.end):
        if segment is None:
            text = f"no file holds the log from {start} to {stop}: a file is missing or too short"
            yield Finding("log", f"{log.folders}, {start}", text)
    (n_bytes,) = n_written(log, [log_slice])
    damaged = [*_damaged_records(store, lambda done: progress(min(done, n_bytes) // 2, n_bytes))]
    yield from damaged
    if kind := why_not_foretold(store.paths, log, broker, misplaced):
        broker = None
        text = f"whether a broker starts, and what it keeps of queues, is not foretold for {kind}"
        logger.warning("%s: %s", store.paths.root, text)
    known = {finding.place for finding in damaged}
    yield from _wrong_units_and_keys(store, broker, n_bytes, progress, known)
    yield from timer_findings(store)
    yield from delay_findings(store)


def _wrong_units_and_keys(
    store: MessageStore,
    broker: BrokerStart | None,
    n_bytes: int,
    progress: Progress,
    damaged: Collection[str],
) -> Iterator[Finding]:
    """Yield the differences of queues and index from the records of the log.

    Args:
        broker: what a starting broker would do.
        n_bytes: the size of the log, which one pass has read.
        progress: called with the progress of both passes.
        damaged: the places of damaged records, which are findings of the log.
    """
    end = store.parts.ends.log_slice().end
    log = store.parts.log
    # What a running broker has written since its log was looked at is not compared.
    is_running = state_of(store.paths) == OPEN
    known_until = end if is_running else FOREVER
    queues = _Queues(store.parts, broker, known_until)
    gaps: list[Span] = []
    batch_topics = queues.batch_topics
    in_batches: set[str] = set()
    has_entries = bool(log.entry_segments)
    keys = KeysOfLog()
    rules = DispatchRules(delay_levels=checked_delays(store))

    def second_pass(done: int, _total: int) -> None:
        progress((n_bytes + min(done, n_bytes)) // 2, n_bytes)

    for data, all_headers in _record_headers(store, end, gaps, second_pass, queues.misplace):
        headers = queues.without_torn(data, all_headers) if has_entries else all_headers
        requests = read_requests(data, headers, rules)
        for units in requests.units_of_messages(count_messages(data, headers), batch_topics):
            queues.compare(units)
        in_batches |= requests.units.topics_of(is_inner_batch(headers))
        with_units = headers.take(have_units(headers.column("sys_flag")))
        queues.compare(read_queue_units(data, lmq_headers(data, with_units, batch_topics), rules))
        keys.add(requests, read_tag_keys(data, headers), headers.column("sys_flag"))
    second_pass(end - log.min_offset, end - log.min_offset)
    gaps = [gap for gap in gaps if gap.start < known_until]
    if not store.parts.ends.are_queues_unread:
        yield from queues.findings(gaps, in_batches)
        if batch_topics:
            messages = damaged_messages(store, batch_topics)
            yield from (one for one in messages if one.place not in damaged)
    yield from index_findings(store.paths, keys, log.min_offset, gaps, broker, known_until)


def _damaged_records(store: MessageStore, progress: Callable[[int], None]) -> Iterator[Finding]:
    """Yield the records that reads refuse; ``progress`` gets the number of bytes read."""
    n_damaged = 0
    log = store.parts.ends.log_slice()
    # Bodies are read to see whether they inflate.
    batches = store.scan(
        scan="commitlog",
        columns=["commitLogOffset", "storeTimestamp", "body"],
        mode="PERMISSIVE",
        fail_on_data_loss=False,
    )
    for batch in batches:
        flawed = batch.filter(batch.column("_corrupt_record").is_valid())
        for row in flawed.slice(0, max(_MAX_FINDINGS - n_damaged, 0)).to_pylist():
            location, _, reason = row["_corrupt_record"].partition(": ")
            is_part = row["storeTimestamp"] is not None or row["body"] is not None
            yield Finding("log", location, reason, "part" if is_part else "")
        n_damaged += flawed.num_rows
        last = pc.max(batch.column("commitLogOffset")).as_py()
        if last is not None:
            progress(last - log.start)
    n_more = n_damaged - _MAX_FINDINGS
    if n_more > 0:
        yield Finding("log", str(store.paths.root), f"{n_more} more damaged records")


def _record_headers(
    store: MessageStore, end: int, gaps: list[Span], progress: Progress, misplace: _Misplace
) -> Iterator[tuple[Bytes, RecordHeaders]]:
    """Yield the headers of complete records in the order of the log, and the bytes around them.

    After damage they continue where reads do. A record that is damaged otherwise, for instance by
    an impossible time, has its unit and its keys all the same.

    Args:
        end: physical offset where the log ends.
        gaps: receives the parts of the log, up to any offset, in which no complete record lies.
        progress: called with the bytes that were walked.
        misplace: gets each complete record that has another physical offset than its own, and this.
    """
    log = store.parts.log
    for part in join_spans(log, log.min_offset, end):
        if isinstance(part, JoinedWindow) and part.has_true_sizes():
            for _, headers, is_valid in part.headers():
                yield from _valid_headers(part.data, headers, is_valid)
            progress(part.end - log.min_offset, end - log.min_offset)
            continue
        for span in part.spans if isinstance(part, JoinedWindow) else (part,):
            log_end = yield from _headers_of_span(store, span, gaps, misplace)
            progress(min(span.end, end) - log.min_offset, end - log.min_offset)
            if log_end is not None:
                gaps.append(Span(log_end, FOREVER))
                return
    gaps.append(Span(end, FOREVER))


def _headers_of_span(
    store: MessageStore, span: SegmentSpan, gaps: list[Span], misplace: _Misplace
) -> Generator[tuple[Bytes, RecordHeaders], None, int | None]:
    """Yield as :func:`_record_headers` does; return where the log ends, None if it continues."""
    start, end, segment = span
    if segment is None:
        gaps.append(Span(start, end))
        return None
    for window in walk_forward(store.parts.log, segment, start, end):
        data, starts, sizes = window.rejoined()
        for rows in cut_batches(sizes, BATCH_ROWS, BATCH_BYTES):
            headers, is_complete = read_headers(data, starts[rows])
            offsets_in_log = starts[rows] + segment.start
            is_valid = is_complete & (headers.column("physical_offset") == offsets_in_log)
            stops = offsets_in_log + sizes[rows]
            gaps += [
                Span(int(offsets_in_log[row]), int(stops[row]))
                for row in np.flatnonzero(~is_valid)[:_MAX_FINDINGS].tolist()
            ]
            is_misplaced = is_complete & ~is_valid
            cuts = np.flatnonzero(is_misplaced)[:_MAX_FINDINGS]
            for part in np.split(np.arange(len(headers)), cuts):
                if is_misplaced[part[:1]].any():
                    misplace(data, headers.take(part[:1]), int(offsets_in_log[part[0]]))
                yield from _valid_headers(data, headers.take(part), is_valid[part])
        if window.damage is None:
            continue
        # The log of a store that was closed may end where a walk ended.
        queues_end = store.parts.store_queues.proved_end
        if store.log_end is None and damage_met(window, queues_end()) is None:
            return window.stopped
        gaps.append(Span(window.stopped, window.resumed))
    return None


def _valid_headers(
    data: Bytes, headers: RecordHeaders, is_valid: Mask
) -> Iterator[tuple[Bytes, RecordHeaders]]:
    rows = np.flatnonzero(is_valid)
    if len(rows) == len(headers):
        yield data, headers
    elif len(rows):
        yield data, headers.take(rows)


class _Tally:
    """What the comparison of one queue has found so far."""

    def __init__(
        self,
        queue: Queue,
        flushed_until: int,
        open_ext: Callable[[], ConsumeQueueExt],
        first_physical_offset: int,
        start: BrokerStart | None,
        log_end: int,
        read_end: int,
        *,
        is_schedule: bool,
        has_keys: bool,
    ) -> None:
        self.queue = queue
        # Units of delayed messages have times of delivery, also those that fill a gap.
        self._is_schedule = is_schedule
        self._codes = TagsCodes(open_ext, DELIVERY_TOLERANCE_MS if is_schedule else 0)
        # physical offset of the record with queue offset 0, -1 if it is not there
        self._first_physical_offset = first_physical_offset
        self.n_earlier = 0  # records before it, of an earlier topic of this name
        # physical offset from which on the queue may lack units, because they are flushed late
        self._flushed_until = flushed_until
        self._begin = self.queue.begin
        self._end = queue.end()
        if log_end < FOREVER:
            self._end = queue.cut(self._begin, self._end, log_end)
        self._places = UnitPlaces(queue, self._end, has_keys=has_keys)
        self._broker = start
        self.built = BuiltUnits(queue, start, read_end)
        # the largest queue offset of a unit or a record, or at which reads give a message
        self._last = max(self._end, read_end) - 1
        self.n_missing = 0
        self._n_matched = self._n_wrong = self.n_shifted = 0
        self._n_records = 0  # of the queue, which the log has
        self._first_missing = -1
        self._wrong_offsets: list[int] = []  # the first of those that are wrong
        self.n_given_again = 0  # lost messages whose queue offsets a broker gives out again
        # those of records for which it builds none, and which it cuts off with the end of the log
        self._unbuilt: list[NDArray[np.int64]] = []
        self._cut: list[NDArray[np.int64]] = []

    def findings(self, key: QueueKey, log: CommitLog, gaps: Sequence[Span]) -> Iterator[Finding]:
        """Yield what is wrong with the queue.

        Args:
            key: its topic and queue id.
            log: the log of the store.
            gaps: the parts of the log in which no complete record lies, by offset.
        """
        queue_name = f"{key[0]}-{key[1]}"
        lost, n_other = self._without_record(key, log, gaps)
        following, unserved, cut = self._next_offset()
        is_foretold = self._broker is not None
        self.n_given_again = int((lost >= following).sum())
        again = ""
        next_offset = None
        if is_foretold and following <= self._last:
            next_offset = following
            again = f"; a broker that starts gives out queue offsets from {following} on again"
            if not (len(lost) or len(cut) or self.n_missing or len(unserved)):
                text = "a broker that starts cuts off messages that the log has deleted"
                yield Finding("queue", queue_name, text + again, "emptied", next_offset=following)
        yield from self.built.of_zeros(queue_name, following, log.min_offset)
        finding = partial(Finding, "queue", queue_name, next_offset=next_offset)
        if len(lost):
            count = number_of(len(lost), "unit does not point", "units do not point")
            text = f"{count} to a record of the queue: the log lost {named_offsets(lost)}"
            kind = "lost" if self.n_given_again else "gone" if self._n_records else "kept"
            yield finding(text + again, kind, unserved=ranges_of(lost) if is_foretold else ())
        of_units = "unit" if self._n_records else "kept"
        if n_other:
            count = number_of(n_other, "unit does not point", "units do not point")
            yield Finding("queue", queue_name, f"{count} to a record of the queue", of_units)
        if len(cut) and is_foretold:
            text = f"a broker that starts cuts off {named_offsets(cut)}"
            yield finding(text + again, "end", unserved=ranges_of(cut))
        if text := self._without_unit(unserved):
            kind = "unbuilt" if len(unserved) else ""
            yield finding(text + again, kind, unserved=ranges_of(unserved))
        yield from self._places.findings(queue_name)
        for text in self._wrong_units(key, log):
            yield Finding("queue", queue_name, text, of_units)
        yield from self._codes.findings(queue_name)

    def _without_unit(self, unserved: NDArray[np.int64]) -> str:
        """Return what is said of records that lack units, and of those that are not served."""
        texts = []
        if self.n_missing:
            count = number_of(self.n_missing, "record has no unit", "records have no unit")
            texts.append(f"{count}, the first at queue offset {self._first_missing}")
        if len(unserved):
            named = named_offsets(unserved)
            texts.append(f"a broker that starts does not serve {named}, which the log has")
            if self.queue.is_batch and unserved[0] < self.built.kept:
                texts.append("consumers may get earlier ones there without an end, or miss more")
        return "; ".join(texts)

    def of_wrong_kind(self, queue_name: str, *, has_batches: bool) -> Iterator[Finding]:
        """Yield that a queue of records with inner batches has ordinary units."""
        if has_batches and not self.queue.is_batch:
            text = "its records hold several messages each (INNER_BATCH), its units one"
            yield Finding("queue", queue_name, text, "unit")

    def _wrong_units(self, key: QueueKey, log: CommitLog) -> Iterator[str]:
        """Yield the faults of units whose records exist."""
        n_wrong = self._n_wrong
        for n_astray, text in led_astray(self.queue, key, self._wrong_offsets, log):
            n_wrong -= n_astray
            yield text
        if n_wrong > 0:
            count = number_of(
                n_wrong, "unit differs from its record", "units differ from their record"
            )
            yield f"{count}, the first at queue offset {self._wrong_offsets[0]}"

    def _without_record(
        self, key: QueueKey, log: CommitLog, gaps: Sequence[Span]
    ) -> tuple[NDArray[np.int64], int]:
        """Return the queue offsets whose record the log lost, and how many units are wrong else."""
        n_units = self.queue.count_units(self._begin, self._end, log.min_offset)
        n_extra = n_units - self._n_matched
        if n_extra <= 0:
            return _NONE, 0
        starts = np.array([span.start for span in gaps], np.int64)
        ends = np.array([span.end for span in gaps], np.int64)
        lost = []
        n_fillers, before = 0, -1
        for low, high in chunks(self.queue, self._begin, self._end):
            offsets = np.arange(low, high)
            units = self.queue.units(low, high)
            physical_offsets = units.physical_offsets
            if self._is_schedule:
                n_fillers += int((np.diff(physical_offsets, prepend=before) == 0).sum())
                before = int(physical_offsets[-1])
            gap = np.searchsorted(starts, physical_offsets, side="right") - 1
            is_lost = (
                units.may_be_right(FOREVER) & (physical_offsets >= log.min_offset) & (gap >= 0)
            )
            is_lost &= physical_offsets < ends[gap]
            rows = np.flatnonzero(is_lost)
            if len(rows):
                confirmed = confirm(log, self.queue, key, offsets[rows], FOREVER).mask
                lost.append(offsets[rows[~confirmed]])
                # Records after the end of the log, which are still there.
                self._cut.append(offsets[rows[confirmed]])
        found = np.concatenate([_NONE, *lost])
        n_known = len(found) + sum(map(len, self._cut)) + n_fillers
        return found, max(n_extra - n_known, 0)

    def _next_offset(self) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Return what a starting broker does with the queue.

        Returns:
            The queue offset that it gives out next; the queue offsets that it does not serve
            though the log has them; those that it cuts off with the end of the log.
        """
        unbuilt, cut = (
            np.unique(np.concatenate([_NONE, *parts])) for parts in (self._unbuilt, self._cut)
        )
        again = self.built.found_again()
        is_served = (unbuilt >= again.start) & (unbuilt < again.stop)
        return again.stop, unbuilt[~is_served], cut

    def compare(self, units: QueueUnits, rows: NDArray[np.int64]) -> None:
        """Compare the expected units of the queue with its own.

        Args:
            units: the units that records of several queues should have.
            rows: which of them are of this queue, (n,).
        """
        offsets, expected = units.queue_offsets[rows], units.units[rows]
        # A broker that builds the queue takes messages of an earlier topic as well.
        built = self.built.find(offsets, expected["physical_offset"])
        is_later = expected["physical_offset"] >= self._first_physical_offset
        self.n_earlier += int((~is_later).sum())
        offsets, expected, built = offsets[is_later], expected[is_later], built[is_later]
        if not len(offsets):
            return
        self._n_records += len(offsets)
        places = self._places.find(offsets, expected)
        has_place = places >= 0
        if not has_place.all():
            offsets, expected, places = offsets[has_place], expected[has_place], places[has_place]
            built = built[has_place]
            if not len(places):
                return
        exists, same, codes = self._compare_at(places, expected)
        physical_offsets = expected["physical_offset"]
        if self._broker is not None:
            self._foresee(self._broker, places, offsets, exists, expected, built)
        self._codes.compare(places[same], codes[same], expected["tags_code"][same].astype(np.int64))
        wrong = exists & ~same
        self.n_shifted += int(np.count_nonzero(same & (places != offsets)))
        # Records whose units are flushed late need not be in the queue yet.
        missing = np.flatnonzero(~exists & (physical_offsets < self._flushed_until))
        if len(missing) and not self.n_missing:
            self._first_missing = int(places[missing[0]])
        rest = MAX_LED_ASTRAY - len(self._wrong_offsets)
        self._wrong_offsets += places[wrong][:rest].tolist()
        self.n_missing += n_records(physical_offsets[missing])
        self._n_wrong += n_records(physical_offsets[wrong])
        self._n_matched += n_records(physical_offsets[exists])

    def _foresee(
        self,
        broker: BrokerStart,
        places: NDArray[np.int64],
        offsets: NDArray[np.int64],
        exists: Mask,
        expected: NDArray[np.void],
        built: NDArray[np.int64],
    ) -> None:
        """Note what a starting broker does with records whose units it drops.

        Reads of the log have a message where its record says, and so have those of a queue one
        without a unit.
        """
        named = np.where(exists, places, offsets)
        is_dropped = ~exists | (places >= self.built.kept)
        is_cut = is_dropped & (expected["physical_offset"] >= broker.log_end.physical_offset)
        is_unbuilt = is_dropped & ~is_cut & (built != places) & (built != named)
        self._cut.append(named[is_cut])
        rows = np.flatnonzero(is_unbuilt)
        if len(rows):  # some have a unit at both, as where a file has a twin
            same = self._compare_at(offsets[rows], expected[rows])[1]
            rows = rows[~same | (offsets[rows] >= self.built.kept)]
        self._unbuilt += [places[rows], offsets[rows]]
        of_records = np.where(is_cut | is_unbuilt, named, places)
        self._last = max(self._last, int(of_records.max()))

    def _compare_at(
        self, unit_offsets: NDArray[np.int64], expected: NDArray[np.void]
    ) -> tuple[Mask, Mask, NDArray[np.int64]]:
        """Return masks (n,) of the queue offsets with a unit, and with one of the expected record.

        The third column has the tags codes of the units.
        """
        exists = np.zeros(len(unit_offsets), np.bool_)
        is_same = np.zeros(len(unit_offsets), np.bool_)
        codes = np.zeros(len(unit_offsets), np.int64)
        low = max(int(unit_offsets.min()), self._begin)
        high = min(int(unit_offsets.max()) + 1, self._end)
        for start, stop in self.queue.runs(low, high) if low < high else ():
            stored = self.queue.units(start, stop)
            inside = np.flatnonzero((unit_offsets >= start) & (unit_offsets < stop))
            rows = unit_offsets[inside] - start
            sizes = stored.sizes[rows]
            same = stored.physical_offsets[rows] == expected["physical_offset"][inside]
            same &= sizes == expected["size"][inside]
            exists[inside] = (sizes != 0) & (stored.tags_codes[rows] != GAP_TAGS_CODE)
            is_same[inside] = same & exists[inside]
            codes[inside] = stored.tags_codes[rows]
        return exists, is_same, codes


class _Queues:
    def __init__(self, parts: StoreParts, start: BrokerStart | None, log_end: int) -> None:
        paths = self._paths = parts.paths
        self._log = parts.log
        self._start = start
        self._log_end = log_end
        self._known_topics = frozenset(BrokerConfig(paths).topics())  # empty if they are not known
        self.batch_topics = parts.queues.batch_topics()
        self._tallies: dict[tuple[str, int], _Tally] = {}
        self._without_queue: Counter[tuple[str, int]] = Counter()
        self._waiting = UnitBuffer()
        self._files = OpenFiles(paths.storage, _FILES_AT_ONCE)
        self._in_rocksdb = parts.ends.in_rocksdb
        self._recovered = parts.ends.recovered
        self._flushed_until = FOREVER
        if self._in_rocksdb is not None and paths.has_abort:
            self._flushed_until = self._in_rocksdb.checkpoint

    def _tally(self, topic: str, queue_id: int) -> _Tally:
        key = (topic, queue_id)
        if key in self._tallies:
            return self._tallies[key]
        start = None if self._start is None else self._start.of_queue(self._paths, key)
        queue = open_files(
            self._paths, *key, is_batch=topic in self.batch_topics, files=self._files,
            in_rocksdb=self._in_rocksdb, log=self._log,
        )  # fmt: skip
        is_in_database = is_in_rocksdb(queue)
        first_physical_offset = -1
        tail = self._recovered.get(key)
        physical_offset, size, _ = queue.unit(0)
        if tail is not None and not tail.start and len(tail.units):
            first_physical_offset = int(tail.units["physical_offset"][0])
        elif not queue.begin and size > 0:
            with suppress(CorruptRecordError, OffsetOutOfRangeError):
                parts = self._log.parts(physical_offset)
                fixed = parts.fixed
                found = parts.topic, int(fixed["queue_id"]), int(fixed["queue_offset"])
                if found == (topic.encode(), queue_id, 0):
                    first_physical_offset = physical_offset
        self._tallies[key] = _Tally(
            queue,
            self._flushed_until if is_in_database else FOREVER,
            lambda: ConsumeQueueExt([ext_folders(self._paths).queue(*key)], self._files),
            first_physical_offset,
            start,
            self._log_end,
            0 if tail is None else tail.end,
            is_schedule=topic == SCHEDULE_TOPIC,
            has_keys=is_in_database,
        )
        return self._tallies[key]

    def compare(self, units: QueueUnits) -> None:
        """Compare the expected units of records with those that exist, now or later."""
        self._waiting.add(units)
        if self._waiting.is_full:
            self._compare_waiting()

    def misplace(self, data: Bytes, record: RecordHeaders, offset_in_log: int) -> None:
        """Note a record with another physical offset than its own, which its unit gets."""
        self._compare_waiting()
        ((key, _),) = group_by_queue(topics(data, record), record.column("queue_id"))
        if can_have_queue(*key):
            names = "queue_offset", "physical_offset", "total_size"
            named, stored, size = (int(record.column(name)[0]) for name in names)
            self._tally(*key).built.misplace(named, stored, size, offset_in_log)

    def _compare_waiting(self) -> None:
        units = self._waiting.take()
        if units is None:
            return
        in_rocksdb = self._in_rocksdb
        for key, rows in units.by_queue():
            if can_have_queue(*key) or (in_rocksdb is not None and key in in_rocksdb.bounds):
                self._tally(*key).compare(units, rows)
            else:
                self._without_queue[key] += len(rows)

    def without_torn(self, data: Bytes, headers: RecordHeaders) -> RecordHeaders:
        """Leave out torn records that no unit points at.

        A DLedger log keeps them, and a broker gives them no unit.
        """
        keeps = valid_crcs(data, headers, stored_bodies(data, headers))
        for row in np.flatnonzero(~keeps):
            torn = headers.take(np.array([row]))
            topic = topic_names(topics(data, torn).dictionary_encode())[0]
            queue_id = int(torn.column("queue_id")[0])
            if can_have_queue(topic, queue_id):
                unit = self._tally(topic, queue_id).queue.unit(int(torn.column("queue_offset")[0]))
                keeps[row] = unit[0] == int(torn.column("physical_offset")[0]) and unit[1] > 0
        return headers if keeps.all() else headers.take(keeps)

    def findings(self, gaps: Iterable[Span], in_batches: Container[str]) -> Iterator[Finding]:
        """Yield the findings queue by queue, and how many messages all of them lose.

        Args:
            gaps: the parts of the log in which no complete record lies.
            in_batches: the topics whose records hold inner batches.
        """
        is_unread = self._in_rocksdb is None and self._paths.rocksdb_queues is not None
        self._compare_waiting()
        in_files = (*self._paths.queue_folders.queues(), *self._paths.batch_folders.queues())
        in_rocksdb = () if self._in_rocksdb is None else self._in_rocksdb.bounds
        for key in (*in_files, *in_rocksdb):
            self._tally(*key)
        of_deleted: Counter[str] = Counter()
        ordered = sorted(gaps)
        for (topic, queue_id), tally in sorted(self._tallies.items()):
            if is_unread and not has_queue_folder(self._paths, topic):
                continue  # its queues may be in the database
            of_deleted[topic] += tally.n_earlier
            is_unknown = was_deleted(topic, self._known_topics)
            if is_unknown and not has_queue_folder(self._paths, topic):
                of_deleted[topic] += tally.n_missing
                continue
            has_batches = topic in in_batches and topic not in self._known_topics
            yield from tally.of_wrong_kind(f"{topic}-{queue_id}", has_batches=has_batches)
            yield from tally.findings((topic, queue_id), self._log, ordered)
        self._files.close()
        n_shifted = sum(tally.n_shifted for tally in self._tallies.values())
        if n_shifted:
            logger.warning(
                "%s: %s at another queue offset than the record names; a broker serves the message "
                "there, and so do reads",
                self._paths.root,
                number_of(n_shifted, "unit stands", "units stand"),
            )
        given_again = [tally.n_given_again for tally in self._tallies.values()]
        if any(given_again):
            n_queues = np.count_nonzero(given_again)
            text = (
                f"{sum(given_again)} messages of {n_queues} queues are lost with the end "
                "of the log; a broker that starts gives their queue offsets out again"
            )
            yield Finding("log", self._log.folders, text, "lost")
        if of_deleted.total():
            logger.warning(
                "%s: %d records are of topics that were deleted (%s): they have no unit, and go "
                "with their files of the log",
                self._paths.root,
                of_deleted.total(),
                ", ".join(topic for topic, count in sorted(of_deleted.items()) if count),
            )
        for (topic, queue_id), count in sorted(self._without_queue.items()):
            text = (
                f"{count} records have no unit: "
                "their topic or queue id cannot be the name of a folder"
            )
            yield Finding("queue", f"{topic!r}-{queue_id}", text, "nowhere")
