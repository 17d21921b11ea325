"""Messages without a record of their own: those of light message queues and of inner batches.

Rows are messages here, and several of them may lie in one record. A record is read, checked and
verified once, for the first of its rows. Then :func:`expand` gives each of its messages a head of
its own, whose body and properties are spans of the record, and the other steps follow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.checks import valid_topics
from rmqstore.format.columns.inner_batch import (
    InnerMessages,
    find_inner_messages,
    inflate_batches,
    inner_headers,
    is_inner_batch,
)
from rmqstore.format.columns.lmq import offsets_in_queues
from rmqstore.format.columns.record_headers import RecordHeaders, check_headers, read_headers
from rmqstore.format.layout import GAP_TAGS_CODE, LMQ_PREFIX, Bytes, Mask, Positions, SysFlag
from rmqstore.format.record import Expected, split_record
from rmqstore.format.text import decode_text
from rmqstore.query.damage import PERMISSIVE
from rmqstore.read.assembler import Pipeline
from rmqstore.read.faults import explain
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.record_filter import ALL_RECORDS, LogFilter
from rmqstore.read.repeated_units import RepeatedUnits
from rmqstore.read.rows import UnitRows
from rmqstore.read.stages import (
    LogBytes,
    Rows,
    choose,
    inflate,
    keep_planned,
    note_times,
    verify_crc,
)


def shared_pipeline(
    spec: ReadSpec,
    batch_topics: Collection[str],
    chosen: LogFilter = ALL_RECORDS,
    repeated: RepeatedUnits | None = None,
) -> Pipeline:
    """Return the steps for messages whose queue or queue offset is not that in their record.

    Checksums are of records, so they are verified before the messages of a record are found.

    Args:
        spec: the spec of the read.
        batch_topics: topics whose queues are BatchConsumeQueues.
        chosen: keeps messages by topic, time, key and id.
        repeated: notes units that point at the record of another one.
    """
    steps = (
        partial(verify_crc, spec=spec),
        partial(expand, batch_topics=batch_topics, repeated=repeated),
        partial(keep_planned, spec=spec),
        partial(choose, spec=spec, chosen=chosen),
        partial(inflate, spec=spec),
    )
    own_check = partial(check_records, keeps_parts=spec.mode == PERMISSIVE)
    return Pipeline(spec, own_check, steps, explain_shared, _weigh)


def _weigh(
    starts: Positions, sizes: NDArray[np.int64], units: UnitRows | None
) -> NDArray[np.int64]:
    assert units is not None
    return np.where(_begin_records(starts, units), sizes, 0)


def check_records(
    source: LogBytes, starts: Positions, units: UnitRows | None, *, keeps_parts: bool = False
) -> Rows:
    """Read each record once, and keep those that match their units.

    The check goes as far as a record alone can show. Only the first row of each record is still in
    the result; :func:`expand` brings the others back.
    """
    assert units is not None
    physical_offsets = starts + source.base
    firsts = np.flatnonzero(_begin_records(physical_offsets, units))
    headers, whole = read_headers(source.data, starts[firsts])
    first_units = units.take(firsts)
    has_topic, _ = valid_topics(source.data, headers, first_units.topics, first_units.topic_codes)
    valid = whole & check_headers(headers, source.bases(firsts), any_time=keeps_parts)
    valid &= headers.column("total_size") == first_units.sizes
    is_of_queue = has_topic & (headers.column("queue_id") == first_units.queue_ids)
    valid &= _are_lmq(first_units) | is_of_queue
    every = np.ones(len(starts), np.bool_)
    rows = Rows(source.data, physical_offsets, units, every, headers, firsts)
    rows = rows.drop_damaged(valid)
    return note_times(rows) if keeps_parts else rows


def expand(
    rows: Rows, batch_topics: Collection[str], repeated: RepeatedUnits | None = None
) -> Rows:
    """Return a row for each message of the records in place of one for each record."""
    rows = _without_lost_batches(rows)
    assert rows.units is not None
    record_units = rows.units.take(rows.row_numbers)
    records = _unwrap(rows.data, rows.headers, record_units.are_of(batch_topics))
    # Bodies that inflate to too much are left for the next batch.
    unwrapped = rows.end_after(len(records.headers))
    # If a record is damaged, ``valid`` is unset for the first of its rows, which stands for all.
    n = len(unwrapped.valid)
    begins = _begin_records(rows.offsets[:n], rows.units.take(slice(n)))
    is_valid = unwrapped.valid[begins]  # of every record
    every_record_of = np.cumsum(begins) - 1
    row_numbers = np.flatnonzero(is_valid[every_record_of])  # whose record is still in the batch
    valid_before = np.cumsum(is_valid) - 1
    record_of = valid_before[every_record_of[row_numbers]]
    units = rows.units.take(row_numbers)
    rank = units.queue_offsets - records.headers.column("queue_offset")[record_of]
    is_batch = units.are_of(batch_topics)
    # Of others the place of a unit decides, as in a plain read.
    is_there = ~is_batch | ((rank >= 0) & (rank < records.counts[record_of]))
    is_lmq = _are_lmq(units)
    is_moved = ~is_batch & ~is_lmq & (rank != 0)
    if repeated is not None and is_moved.any():
        moved = units.take(is_moved)
        repeated.note(moved, moved.queue_offsets - rank[is_moved])
    topics = pa.array(units.topics, pa.string()).take(pa.array(units.topic_codes))
    if is_lmq.any():
        parents = records.headers.take(record_of[is_lmq])
        names = topics.filter(pa.array(is_lmq))
        is_named = offsets_in_queues(records.data, parents, names) >= 0
        is_there[is_lmq] = is_named & (units.queue_ids[is_lmq] == 0)
    is_gap = ~is_there & (units.tags_codes == GAP_TAGS_CODE)
    absent = np.flatnonzero(~is_there & ~is_gap & (is_lmq | is_batch)).tolist()
    reasons = {
        int(row_numbers[row]): records.reason(int(record_of[row]), units.expected(row))
        for row in absent
    }
    valid = np.zeros(len(unwrapped.valid), np.bool_)
    valid[row_numbers[is_there | is_gap]] = True
    units = units.take(is_there)
    return replace(
        unwrapped,
        data=records.data,
        valid=valid,
        reasons=reasons,
        flaws=_flaws_of_messages(unwrapped, row_numbers[is_there], record_of[is_there]),
        headers=records.messages(record_of[is_there], rank[is_there], units),
        columns={"topic": topics.filter(pa.array(is_there))},
        row_numbers=row_numbers[is_there],
    )


def _without_lost_batches(rows: Rows) -> Rows:
    """Return the rows without inner batches whose body is lost, and so all of their messages."""
    if "body" not in rows.flaws:
        return rows
    lost = rows.lacks("body") & is_inner_batch(rows.headers)
    flaws = rows.flaws["body"]
    reasons = {row: flaws[int(rows.row_numbers[row])] for row in np.flatnonzero(lost).tolist()}
    return rows.drop_damaged(~lost, reasons)


def _flaws_of_messages(
    rows: Rows, row_numbers: Positions, record_of: Positions
) -> Mapping[str, Mapping[int, str]]:
    """Return what the messages of some records lack, as :attr:`Rows.flaws` has it.

    Args:
        row_numbers: (m,) which of the rows that were asked for the messages are.
        record_of: (m,) the record of each message.
    """
    firsts = rows.row_numbers
    flaws: dict[str, Mapping[int, str]] = {}
    for column, by_row in rows.flaws.items():
        lost = rows.lacks(column)[record_of]
        flaws[column] = {
            int(row_numbers[row]): by_row[int(firsts[record_of[row]])]
            for row in np.flatnonzero(lost).tolist()
        }
    return flaws


def _unwrap(data: Bytes, headers: RecordHeaders, is_batch: Mask) -> _Records:
    """Find the messages in the records that hold an inner batch, in as many as inflate at once."""
    is_wrapped = is_batch & is_inner_batch(headers)
    is_compressed = headers.column("sys_flag") & np.int32(SysFlag.COMPRESSED) != 0
    packed = np.flatnonzero(is_wrapped & is_compressed)
    broken: dict[int, str] = {}
    if len(packed):
        data, headers, broken = inflate_batches(data, headers, packed)
        is_wrapped = is_wrapped[: len(headers)]
    wrapped = np.flatnonzero(is_wrapped)
    inner = find_inner_messages(data, headers.body_starts[wrapped], headers.body_lengths[wrapped])
    counts = np.ones(len(headers), np.int64)
    firsts = np.zeros(len(headers), np.int64)
    counts[wrapped] = inner.counts
    firsts[wrapped] = np.cumsum(inner.counts) - inner.counts
    for row in wrapped[~inner.valid].tolist():
        broken.setdefault(row, "the body is no chain of whole inner messages")
    return _Records(data, headers, is_wrapped, counts, firsts, inner, broken)


class _Records(NamedTuple):
    """Valid records, (r,) each, and the messages of those that hold an inner batch."""

    # All positions are in these bytes. If bodies were inflated, the records were read from others.
    data: Bytes
    headers: RecordHeaders
    is_wrapped: Mask
    counts: NDArray[np.int64]  # messages of each; 1 for a record that is a message itself
    firsts: NDArray[np.int64]  # number of the first of its messages in ``inner``
    inner: InnerMessages
    broken: dict[int, str]  # why a batch could not be unwrapped

    def messages(
        self, record_of: Positions, rank: NDArray[np.int64], units: UnitRows
    ) -> RecordHeaders:
        """Return a head (m,) for each message.

        Args:
            record_of: int64 (m,), the record that it is in.
            rank: int64 (m,), which of the record's messages it is.
            units: (m,) what queues say of it.
        """
        numbers = np.where(self.is_wrapped[record_of], self.firsts[record_of] + rank, -1)
        headers = inner_headers(self.headers, record_of, self.inner, numbers)
        return headers.placed(units.queue_ids, units.queue_offsets)

    def reason(self, record: int, expected: Expected) -> str:
        """Say why a message that a unit describes is not in a record."""
        if record in self.broken:
            return self.broken[record]
        queue_offset = expected.queue_offset
        if expected.topic.startswith(LMQ_PREFIX):
            return f"the record does not name {expected.topic}"
        first = int(self.headers.column("queue_offset")[record])
        held = f"{int(self.counts[record])} from queue offset {first} on"
        return f"queue offset {queue_offset} is none of the record's messages, which are {held}"


def explain_shared(
    record: Bytes,
    spec: ReadSpec,
    physical_offset: int,
    expected: Expected | None,
) -> str:
    """Return the fault of a record by the reference codec, apart from those in its queue."""
    assert expected is not None
    try:
        parts = split_record(record.data, 0)
    except MalformedBytesError as err:
        return err.reason
    if expected.topic.startswith(LMQ_PREFIX):
        topic, queue_id = decode_text(parts.topic), int(parts.fixed["queue_id"])
        expected = expected._replace(topic=topic, queue_id=queue_id, queue_offset=0)
    elif parts.fixed["sys_flag"] & SysFlag.INNER_BATCH:
        expected = expected._replace(queue_offset=0)
    return explain(record, spec, physical_offset, expected)


def _are_lmq(units: UnitRows) -> Mask:
    return units.are_of({topic for topic in units.topics if topic.startswith(LMQ_PREFIX)})


def _begin_records(starts: Positions, units: UnitRows) -> Mask:
    """Return which rows (n,) are of another record, or another queue, than the row before."""
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = starts[1:] != starts[:-1]
    begins[1:] |= units.topic_codes[1:] != units.topic_codes[:-1]
    begins[1:] |= units.queue_ids[1:] != units.queue_ids[:-1]
    return begins
