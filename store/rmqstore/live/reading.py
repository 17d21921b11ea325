"""Makes RecordBatches of the answers to pulls, and proves that no message is missing."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import (
    StoreFormatError,
    UnsupportedFeatureError,
)
from rmqstore.format.columns.buffers import GATHER_SLACK, windows
from rmqstore.format.columns.inner_batch import count_messages
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.columns.walk import follow_chains
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    FIXED_PART_V4,
    MIN_RECORD_BYTES,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)
from rmqstore.format.topics import is_system_topic
from rmqstore.live.bounds import still_has
from rmqstore.live.broker import LiveBroker
from rmqstore.live.pulls import Pulled, Pulls
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.read.assembler import Pipeline, plain_pipeline
from rmqstore.read.faults import Origin, lost_rows
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.rows import UnitRows
from rmqstore.read.shared_records import shared_pipeline
from rmqstore.read.stages import LogBytes, Rows, keep_planned
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.config_files import BATCH_QUEUES, QUEUE_TYPE

logger = logging.getLogger(__name__)

_PLAIN_TAG: Final = re.compile(r"[^|\s]*[^|\s*][^|\s]*")
_INNER_BATCH: Final = np.int32(SysFlag.INNER_BATCH)


class LiveScan:
    """Reads ranges of queues of one broker.

    The ranges are read one after the other; with tags, those of several queues come as the broker
    answers.

    Args:
        broker: the broker.
        spec: how records are read. Where it names tags, the broker leaves out messages with
            others, which look like lost messages then.
    """

    def __init__(self, broker: LiveBroker, spec: ReadSpec) -> None:
        self._broker = broker
        self._spec = spec

    def batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the slices.

        Raises:
            BrokerUnreachableError: the broker did not answer for a long time.
            BrokerRefusedError: it refuses.
            CorruptRecordError, StoreFormatError: a record is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: messages are gone, and data loss is to fail.
        """
        topics = {queue_slice.topic for queue_slice in slices}
        tags = self._spec.tags
        if tags is not None and not _can_compare(self._broker, topics, tags):
            tags = None
        yield from self._read(Pulls(self._broker, slices, tags))

    def _read(self, answers: Iterable[Pulled]) -> Iterator[pa.RecordBatch]:
        """Yield the messages that answers to pulls hold."""
        window: list[Pulled] = []
        n_messages = n_bytes = 0
        for pulled in answers:
            if pulled.loss:
                self._lose(pulled.queue_slice, pulled.start, pulled.end, pulled.loss)
            elif pulled.records:
                window.append(pulled)
                most = len(pulled.records) // MIN_RECORD_BYTES
                n_messages += min(pulled.end - pulled.start, most)
                n_bytes += len(pulled.records)
            self._spec.advance(pulled.end - pulled.start, len(pulled.records))
            if n_messages >= BATCH_ROWS or n_bytes >= BATCH_BYTES:
                yield from self._decode(window)
                window = []
                n_messages = n_bytes = 0
        if window:
            yield from self._decode(window)

    def _decode(self, window: list[Pulled]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of some answers."""
        walked = _walk(window)
        if walked.is_valid.all():
            yield from self._rows(walked)
            return
        number = int(np.argmin(walked.is_valid))  # of the first answer that is no chain of records
        walked = _walk(window[: number + 1])
        yield from self._rows(walked)
        pulled = window[number]
        at = pulled.start
        if walked.counts[-1]:
            queue_offsets, n_messages = self._queue_offsets(walked)
            at = int(queue_offsets[-1] + n_messages[-1])
        if not pulled.is_filtered:  # else only a read without a filter shows which record it is
            yield from self._refuse(pulled.queue_slice, at)
            at += 1
        if at < pulled.end:
            rest = pulled.queue_slice._replace(start=at, end=pulled.end)
            with self._broker.separate() as broker:  # other answers come on this connection
                answers = [*Pulls(broker, [rest])]
            yield from self._read(answers)
        if number + 1 < len(window):
            yield from self._decode(window[number + 1 :])

    def _rows(self, walked: _Walked) -> Iterator[pa.RecordBatch]:
        """Yield the messages of records."""
        window = walked.window
        queue_offsets, n_messages = self._queue_offsets(walked)
        # A record of several messages has a row for each of them.
        rows = np.repeat(np.arange(len(walked.starts)), n_messages)
        first_rows = np.cumsum(n_messages) - n_messages
        offsets = queue_offsets[rows] + np.arange(len(rows)) - first_rows[rows]
        answer_of = walked.answers[rows]
        within = offsets >= np.array([pulled.start for pulled in window])[answer_of]
        within &= offsets < np.array([pulled.end for pulled in window])[answer_of]
        rows, offsets, answer_of = rows[within], offsets[within], answer_of[within]
        queue_slices = [pulled.queue_slice for pulled in window]
        topics = list(dict.fromkeys(queue_slice.topic for queue_slice in queue_slices))
        codes = {topic: code for code, topic in enumerate(topics)}
        topic_codes = np.array([codes[queue_slice.topic] for queue_slice in queue_slices], np.int32)
        queue_ids = np.array([queue_slice.queue_id for queue_slice in queue_slices], np.int32)
        units = UnitRows(
            topics,
            topic_codes[answer_of],
            queue_ids[answer_of],
            offsets,
            walked.column("physical_offset")[rows],
            walked.column("total_size")[rows],
            np.zeros(len(rows), np.int64),
        )
        batch_topics = {topics[code] for code in topic_codes[walked.answers[walked.inner]].tolist()}
        if batch_topics and not self._spec.inflate:
            raise UnsupportedFeatureError(
                f"{', '.join(sorted(batch_topics))}: a record holds several messages "
                "(queue.type=BatchCQ), and exact copies are of records: copy the store"
            )
        if batch_topics:
            pipeline = shared_pipeline(self._spec, batch_topics)
        else:
            pipeline = plain_pipeline(self._spec)
        yield from self._records(pipeline, walked.buffer, walked.starts[rows], units)

    def _queue_offsets(self, walked: _Walked) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the queue offset of each record, and how many messages it holds, (n,) each.

        Where an answer holds as many messages as it covers queue offsets, that of each follows from
        its number, as consumers count: after a record that a broker could not dispatch, the queue
        offsets in the records that follow are too high. Else the records say theirs, and the queue
        offsets without a record are lost.
        """
        window = walked.window
        counts = walked.counts
        inner = walked.inner
        n_messages = np.ones(len(walked.starts), np.int64)
        if len(inner):
            headers, _ = read_headers(walked.buffer, walked.starts[inner])
            n_messages[inner] = np.maximum(count_messages(walked.buffer, headers), 1)
        first_offsets = np.array([pulled.start for pulled in window], np.int64)
        covered = np.array([pulled.following for pulled in window], np.int64) - first_offsets
        firsts = np.cumsum(counts) - counts
        by_number = (first_offsets - firsts)[walked.answers] + np.arange(len(walked.starts))
        is_counted = (counts == covered) | ~walked.is_valid
        is_counted[walked.answers[inner]] = False
        if is_counted.all():
            return by_number, n_messages
        queue_offsets = np.where(
            is_counted[walked.answers], by_number, walked.column("queue_offset")
        )
        for number in np.flatnonzero(~is_counted).tolist():
            mine = slice(int(firsts[number]), int(firsts[number] + counts[number]))
            self._require_complete(window[number], queue_offsets[mine], n_messages[mine])
        return queue_offsets, n_messages

    def _require_complete(
        self, pulled: Pulled, queue_offsets: NDArray[np.int64], n_messages: NDArray[np.int64]
    ) -> None:
        """Report the queue offsets of an answer that no record has.

        Raises:
            OffsetOutOfRangeError: there are some, and data loss is to fail.
            StoreFormatError: the records do not say where they lie.
        """
        ends = queue_offsets + n_messages
        if (queue_offsets[1:] < ends[:-1]).any():
            raise StoreFormatError(
                f"{self._broker}: {len(queue_offsets)} records for the queue offsets "
                f"{pulled.start} to {pulled.following} (excluded) of {_name(pulled.queue_slice)}: "
                "which of them they are is not known"
            )
        if pulled.is_filtered:
            return
        at = pulled.start
        spans = [*zip(queue_offsets.tolist(), ends.tolist(), strict=True), (pulled.end, 0)]
        for queue_offset, end in spans:
            before = min(queue_offset, pulled.end)
            if at < before:
                self._lose(pulled.queue_slice, at, before, "the broker passes over them")
            at = max(at, end)

    def _records(
        self, pipeline: Pipeline, buffer: NDArray[np.uint8], starts: Positions, units: UnitRows
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of records as batches."""

        def record_at(physical_offset: int) -> Bytes:
            row = int(np.argmax(units.physical_offsets == physical_offset))
            start, size = int(starts[row]), int(units.sizes[row])
            return buffer[start : start + size]

        pipeline = replace(pipeline, steps=(self._keep_planned, *pipeline.steps))
        source = LogBytes(buffer, units.physical_offsets - starts)
        yield from pipeline.batches(source, starts, units, Origin(str(self._broker), record_at))

    def _keep_planned(self, rows: Rows) -> Rows:
        """Return the rows without those in the place of planned ones, if the log was cut.

        They were stored later than the newest record that was known, and this is gone. A broker's
        clock that was set back lets rows seem later too.
        """
        last_record = self._spec.last_record
        units = rows.units
        if last_record is None or units is None:
            return rows
        if (rows.headers.column("store_timestamp") <= last_record.store_timestamp).all():
            return rows
        keys = zip(units.topic_codes.tolist(), units.queue_ids.tolist(), strict=True)
        queues = {(units.topics[code], queue_id) for code, queue_id in keys}
        with self._broker.separate() as broker:  # other answers come on this connection
            if still_has(broker, broker.spans([*queues]), last_record) is not False:
                return rows
        return keep_planned(rows, replace(self._spec, is_cut=True))

    def _refuse(self, queue_slice: QueueSlice, queue_offset: int) -> Iterator[pa.RecordBatch]:
        """Handle bytes that are not a record as the mode says."""
        text = (
            f"{self._broker}: what is answered for queue offset {queue_offset} of "
            f"{_name(queue_slice)} is not a record"
        )
        if self._spec.mode == FAILFAST:
            raise StoreFormatError(text)
        if self._spec.mode == DROPMALFORMED:
            logger.warning("%s: it is dropped", text)
            return
        known = {
            "topic": queue_slice.topic,
            "queueId": queue_slice.queue_id,
            "queueOffset": queue_offset,
            "brokerName": self._spec.broker_name,
            self._spec.corrupt_column: text,
        }
        yield lost_rows(self._spec.schema, [known])

    def _lose(self, queue_slice: QueueSlice, start: int, end: int, why: str) -> None:
        """Report messages that are gone.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        offsets = f"queue offsets {start} to {end} (excluded) of {_name(queue_slice)}"
        text = f"{self._broker}: {offsets}: {why}"
        self._spec.report_loss(text)


def _name(queue_slice: QueueSlice) -> str:
    return f"{queue_slice.topic}-{queue_slice.queue_id}"


def _can_compare(broker: LiveBroker, topics: set[str], tags: frozenset[str]) -> bool:
    """Return whether a broker can leave out messages with other tags.

    It compares hashes in the units of queues. Units of delayed messages hold times, and those of
    inner batches are of several messages.
    """
    if any(map(is_system_topic, topics)):
        return False
    if not all(map(_PLAIN_TAG.fullmatch, tags)):  # a broker reads an expression, A || B
        return False
    attributes = broker.attributes(sorted(topics))
    return all(of_topic.get(QUEUE_TYPE) != BATCH_QUEUES for of_topic in attributes)


class _Walked(NamedTuple):
    """Answers side by side in one buffer, and the records in them, (n,) each.

    Attributes:
        window: the answers, (k,).
        buffer: their bytes, and a few more.
        starts: where the records begin.
        answers: the number of the answer that each record is in.
        counts: how many records each answer holds, (k,).
        is_valid: whether the records of each answer reach to its end, (k,).
        fixed: the fixed parts of the records; fields after the first host may be shifted.
        inner: the numbers of the records that hold inner batches.
    """

    window: Sequence[Pulled]
    buffer: NDArray[np.uint8]
    starts: Positions
    answers: NDArray[np.int64]
    counts: NDArray[np.int64]
    is_valid: Mask
    fixed: NDArray[np.void]
    inner: NDArray[np.int64]

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a field of the fixed parts that is before the first host."""
        return self.fixed[name].astype(np.int64)


def _walk(window: Sequence[Pulled]) -> _Walked:
    """Return the records in some answers."""
    parts = [pulled.records for pulled in window]
    buffer = np.frombuffer(b"".join([*parts, bytes(GATHER_SLACK)]), np.uint8)
    lengths = np.array([len(part) for part in parts], np.int64)
    bounds = np.cumsum(lengths)
    starts, counts, stops = follow_chains(buffer, bounds - lengths, bounds)
    fixed = windows(buffer, FIXED_PART_V4.itemsize)[starts].view(FIXED_PART_V4)
    inner = np.flatnonzero((fixed["sys_flag"].astype(np.int32) & _INNER_BATCH) != 0)
    answers = np.repeat(np.arange(len(window)), counts)
    return _Walked(window, buffer, starts, answers, counts, stops == bounds, fixed, inner)
