"""Records that stand for other messages than they say: the parents of light message queues, and inner batches.

Rows are messages here, of which several may lie in one record. A record is read and checked once; then each of its
messages gets a head of its own, whose body and properties are spans of the record, and goes the way of all others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.checks import sound_crcs, sound_topics
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.heads import Heads, check_heads, read_heads
from rmqstore.format.columns.inner_batch import (
    InnerMessages,
    find_inner_messages,
    inflate_batches,
    inner_heads,
    is_inner_batch,
)
from rmqstore.format.columns.lmq import name_queues
from rmqstore.format.layout import LMQ_PREFIX, Mask, Positions, SysFlag
from rmqstore.format.record import Expected, split_record
from rmqstore.format.utf8 import decode_text
from rmqstore.read.scan.assembler import Assembler, Kept
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import ReadSpec
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog


class PlacedAssembler(Assembler):
    """Makes RecordBatches of messages whose place in a queue is not what their record says.

    Args:
        batch_topics: those whose queues are BatchConsumeQueues.
    """

    def __init__(self, spec: ReadSpec, log: CommitLog, segment: Segment, batch_topics: Collection[str]) -> None:
        super().__init__(spec, log, segment)
        self._batch_topics = batch_topics

    def _weights(self, starts: Positions, sizes: NDArray[np.int64], units: UnitRows | None) -> NDArray[np.int64]:
        assert units is not None
        return np.where(_begin_records(starts, units), sizes, 0)

    def _make(self, starts: Positions, units: UnitRows | None) -> tuple[pa.RecordBatch, int]:
        data = self._data
        try:
            return super()._make(starts, units)
        finally:
            self._data = data  # bodies that were inflated stood in another buffer

    def _take_sound(self, starts: Positions, units: UnitRows | None) -> tuple[Kept, Mask, dict[int, str]]:
        """Read and check records, and find the message of each row in them; see ``Assembler``."""
        assert units is not None
        begins = _begin_records(starts, units)
        firsts, record_of = np.flatnonzero(begins), np.cumsum(begins) - 1
        heads, whole = read_heads(self._data, starts[firsts])
        told = units.take(firsts)
        is_sound = self._check_records(heads, whole, told)
        good = np.flatnonzero(is_sound)
        records = self._unwrap(heads.take(good), self._are_batches(told)[good])
        if len(records.heads) < len(good):  # bodies inflated to so much that the others are left for the next batch
            units = units.take(slice(0, int(firsts[good[len(records.heads)]])))
        n = len(units.queue_offsets)
        sound = is_sound[record_of[:n]]
        rows = np.flatnonzero(sound)
        of_row = (np.cumsum(is_sound) - 1)[record_of[rows]]
        rank = units.queue_offsets[rows] - records.heads.column("queue_offset")[of_row]
        there = (rank >= 0) & (rank < records.counts[of_row])
        is_lmq = self._are_lmq(units)[rows]
        if is_lmq.any():
            there[is_lmq] = self._are_named(records.heads.take(of_row[is_lmq]), units.take(rows[is_lmq]))
        reasons = {
            int(rows[at]): records.reason(int(of_row[at]), units.expected(int(rows[at])))
            for at in np.flatnonzero(~there & (is_lmq | self._are_batches(units)[rows])).tolist()
        }
        sound[rows[~there]] = False
        rows, of_row, rank = rows[there], of_row[there], rank[there]
        messages = np.where(records.is_wrapped[of_row], records.firsts[of_row] + rank, -1)
        placed = inner_heads(records.heads, of_row, records.inner, messages)
        placed = placed.placed(units.queue_ids[rows], units.queue_offsets[rows])
        topics = pa.array(units.topics, pa.string()).take(pa.array(units.topic_codes[rows]))
        return Kept(placed, {"topic": topics}, rows), sound, reasons

    def _check_records(self, heads: Heads, whole: Mask, told: UnitRows) -> Mask:
        """Return which records are what their units say, as far as it can be said of a record alone."""
        is_lmq = self._are_lmq(told)
        sound: Mask = whole & check_heads(heads, self._base) & (heads.column("total_size") == told.sizes)
        same, _ = sound_topics(self._data, heads, told.topics, told.topic_codes)
        sound &= is_lmq | (same & (heads.column("queue_id") == told.queue_ids))
        if self._spec.check_crc:
            sound &= sound_crcs(self._data, heads, stored_bodies(self._data, heads))
        return sound

    def _check_crcs(self, kept: Kept, sound: Mask) -> None:
        """Do nothing: CRCs are of records, which were checked before their messages were found."""

    def _unwrap(self, heads: Heads, is_batch: Mask) -> _Records:
        """Find the messages in those of the records that hold an inner batch; only so many as inflate at once."""
        is_wrapped = is_batch & is_inner_batch(heads)
        packed = np.flatnonzero(is_wrapped & (heads.column("sys_flag") & np.int32(SysFlag.COMPRESSED) != 0))
        broken: dict[int, str] = {}
        if len(packed):
            self._data, heads, broken = inflate_batches(self._data, heads, packed)
            is_wrapped = is_wrapped[: len(heads)]
        wrapped = np.flatnonzero(is_wrapped)
        inner = find_inner_messages(self._data, heads.body_starts[wrapped], heads.body_lengths[wrapped])
        counts, firsts = np.ones(len(heads), np.int64), np.zeros(len(heads), np.int64)
        counts[wrapped] = inner.counts
        firsts[wrapped] = np.cumsum(inner.counts) - inner.counts
        for row in wrapped[~inner.sound].tolist():
            broken.setdefault(row, "the body is no chain of whole inner messages")
        return _Records(heads, is_wrapped, counts, firsts, inner, broken)

    def _are_named(self, heads: Heads, units: UnitRows) -> Mask:
        """Return which records name the light message queue whose unit points at them, at its queue offset."""
        expected = pa.array(units.topics, pa.string()).take(pa.array(units.topic_codes))
        named = name_queues(self._data, heads, expected, units.queue_offsets)
        named &= units.queue_ids == 0
        return named

    def _reason(self, physical_offset: int, expected: Expected | None) -> str:
        """Ask the reference codec what is wrong, but for what only the queue tells."""
        assert expected is not None
        try:
            parts = split_record(self._file.data, physical_offset - self._segment.start)
        except MalformedBytesError as err:
            return err.reason
        if expected.topic.startswith(LMQ_PREFIX):
            topic, queue_id = decode_text(parts.topic), int(parts.fixed["queue_id"])
            expected = Expected(topic, queue_id, int(parts.fixed["queue_offset"]), expected.size)
        elif expected.topic in self._batch_topics:
            expected = expected._replace(queue_offset=int(parts.fixed["queue_offset"]))
        return super()._reason(physical_offset, expected)

    def _are_lmq(self, units: UnitRows) -> Mask:
        return np.array([topic.startswith(LMQ_PREFIX) for topic in units.topics], np.bool_)[units.topic_codes]

    def _are_batches(self, units: UnitRows) -> Mask:
        return np.array([topic in self._batch_topics for topic in units.topics], np.bool_)[units.topic_codes]


class _Records(NamedTuple):
    """n sound records, and the messages of those that hold an inner batch."""

    heads: Heads
    is_wrapped: Mask
    counts: NDArray[np.int64]  # messages of each; 1 where it is one itself
    firsts: NDArray[np.int64]  # of its messages in ``inner``
    inner: InnerMessages
    broken: dict[int, str]  # why a batch could not be unwrapped

    def reason(self, record: int, expected: Expected) -> str:
        """Say why a message that a unit tells of is not in a record."""
        if record in self.broken:
            return self.broken[record]
        if expected.topic.startswith(LMQ_PREFIX):
            return f"the record does not name {expected.topic} with queue offset {expected.queue_offset}"
        first = int(self.heads.column("queue_offset")[record])
        held = f"{int(self.counts[record])} from queue offset {first} on"
        return f"queue offset {expected.queue_offset} is none of the record's messages, which are {held}"


def _begin_records(starts: Positions, units: UnitRows) -> Mask:
    """Return which rows (n,) are of another record, or another queue, than the row before."""
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = starts[1:] != starts[:-1]
    begins[1:] |= units.topic_codes[1:] != units.topic_codes[:-1]
    begins[1:] |= units.queue_ids[1:] != units.queue_ids[:-1]
    return begins
