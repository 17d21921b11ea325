"""The steps from records to a batch: check, choose, verify, inflate, decode.

Each is a function of one frozen value. A damaged record is unset in :attr:`Rows.valid`, and
``faults`` handles it; one that is only left out by a filter leaves no trace. ``shared_records`` has
one more step, for records that several messages share.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import number_of
from rmqstore.format.columns.buffers import in_calendar, mask_of, numbers, texts
from rmqstore.format.columns.checks import inflate_bodies, rows_with_crc, valid_crcs, valid_topics
from rmqstore.format.columns.decode import (
    decode_columns,
    property_values,
    repeat_text,
    stored_bodies,
)
from rmqstore.format.columns.record_headers import RecordHeaders, check_headers, read_headers
from rmqstore.format.hashing import body_crc
from rmqstore.format.layout import MAX_EXT_ADDRESS, Bytes, Mask, Positions, SysFlag
from rmqstore.format.record import time_reason
from rmqstore.format.schema import ALL_COLUMNS, PENDING
from rmqstore.query.damage import PERMISSIVE
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.record_filter import LogFilter
from rmqstore.read.repeated_units import RepeatedUnits
from rmqstore.read.rows import UnitRows

logger = logging.getLogger(__name__)

_NO_REASONS: Mapping[int, str] = {}


class LogBytes(NamedTuple):
    """Bytes of the log.

    If they are of one file, ``base`` is the physical offset of the first of them. If they were
    copied from several files, each record has its own base, (n,): the difference between its
    physical offset and its position.
    """

    data: Bytes
    base: int | Positions

    def bases(self, rows: slice | Positions) -> int | Positions:
        """Return the bases of the chosen records."""
        return self.base if isinstance(self.base, int) else self.base[rows]


@dataclass(frozen=True, slots=True)
class Rows:
    """The n requested rows of a batch, and the m of them that are still in it."""

    data: Bytes  # the bytes that the positions of the headers are in
    offsets: Positions  # (n,) physical offsets
    units: UnitRows | None  # (n,) what queues say of them; None in a read by log
    valid: Mask  # (k,) which rows are not damaged; k < n where a step ended the batch early
    headers: RecordHeaders  # (m,)
    row_numbers: Positions  # (m,) which of the n rows they are
    # (m,) each, by name: those that an earlier step made
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    # What is wrong with a row, where a step knows better than the reference codec.
    reasons: Mapping[int, str] = field(default_factory=dict)
    # Why a column of a row has no value although the rest of its record is valid, by the column
    # and the row.
    flaws: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def narrow(self, rows: Positions) -> Rows:
        """Return these of the m rows, by number, without the others."""
        return replace(
            self,
            headers=self.headers.take(rows),
            row_numbers=self.row_numbers[rows],
            columns={name: column.take(numbers(rows)) for name, column in self.columns.items()},
        )

    def drop_damaged(self, is_valid: Mask, reasons: Mapping[int, str] = _NO_REASONS) -> Rows:
        """Return the rows without those of the m that are damaged, (m,); ``reasons`` by number."""
        if is_valid.all():
            return self
        valid = self.valid.copy()
        valid[self.row_numbers[~is_valid]] = False
        more_reasons = {int(self.row_numbers[row]): reason for row, reason in reasons.items()}
        narrowed = self.narrow(np.flatnonzero(is_valid))
        return replace(narrowed, valid=valid, reasons={**self.reasons, **more_reasons})

    def lose(self, column: str, reasons: Mapping[int, str]) -> Rows:
        """Return the rows without the column of some of the m, by number, and with the reasons."""
        known = self.flaws.get(column, _NO_REASONS)
        more = {int(self.row_numbers[row]): reason for row, reason in reasons.items()}
        return replace(self, flaws={**self.flaws, column: {**more, **known}})

    def lacks(self, column: str) -> Mask:
        """Return a mask (m,) of the rows without the column."""
        return np.isin(self.row_numbers, [*self.flaws.get(column, ())])

    def end_after(self, count: int) -> Rows:
        """Return the first ``count`` of the m rows; the batch ends before the next of them."""
        if count == len(self.headers):
            return self
        end = int(self.row_numbers[count])
        return replace(self.narrow(np.arange(count)), valid=self.valid[:end])

    def with_column(self, name: str, column: pa.Array) -> Rows:
        """Return the rows with a column (m,) that a later step need not make again."""
        return replace(self, columns={**self.columns, name: column})


def check(
    source: LogBytes,
    starts: Positions,
    units: UnitRows | None,
    *,
    keeps_parts: bool = False,
    repeated: RepeatedUnits | None = None,
    is_sparse: bool = False,
) -> Rows:
    """Read the headers of records, and keep those that are valid but for their checksums.

    Args:
        source: the bytes.
        starts: int64 (n,), where the records begin in them.
        units: what queues say of the records, None in a read by log.
        keeps_parts: whether a record without a time of its storage is kept, without that time.
        repeated: notes units that point at the record of another one.
        is_sparse: whether units say themselves which queue offsets they have, and may be wrong.
    """
    topic = units.topics[0].encode() if units is not None and len(units.topics) == 1 else None
    headers, whole = read_headers(source.data, starts, topic)
    valid = whole & check_headers(headers, source.base, any_time=keeps_parts)
    columns: dict[str, pa.Array] = {}
    reasons: dict[int, str] = {}
    if units is not None:
        valid &= headers.column("total_size") == units.sizes
        valid &= headers.column("queue_id") == units.queue_ids
        same, expected = valid_topics(source.data, headers, units.topics, units.topic_codes)
        valid &= same
        if expected is not None:
            columns["topic"] = expected
        # The place of a unit is the queue offset of its message, whatever its record names.
        stored = headers.column("queue_offset")
        is_moved = stored != units.queue_offsets
        if is_sparse:
            for row in np.flatnonzero(valid & is_moved).tolist():
                reasons[row] = f"queue offset is {stored[row]}, not {units.queue_offsets[row]}"
            valid &= ~is_moved
        elif is_moved.any():
            if repeated is not None:
                moved = np.flatnonzero(valid & is_moved)
                repeated.note(units.take(moved), stored[moved])
            headers = headers.placed(units.queue_ids, units.queue_offsets)
    every = np.ones(len(starts), np.bool_)
    numbers = np.arange(len(starts))
    rows = Rows(source.data, starts + source.base, units, every, headers, numbers, columns)
    rows = rows.drop_damaged(valid, reasons)
    return note_times(rows) if keeps_parts else rows


def note_times(rows: Rows) -> Rows:
    """Note which records have no time of their storage."""
    stored = rows.headers.column("store_timestamp")
    is_time = in_calendar(stored)
    if is_time.all():
        return rows
    reasons = {row: time_reason(int(stored[row])) for row in np.flatnonzero(~is_time).tolist()}
    return rows.lose("storeTimestamp", reasons)


def keep_planned(rows: Rows, spec: ReadSpec) -> Rows:
    """Return the rows without messages that were written after the read was planned.

    They are in the place of others: a topic was deleted and made again, or the log was cut.

    Raises:
        OffsetOutOfRangeError: there are some, and data loss is to fail.
    """
    if spec.last_record is None:
        return rows
    is_newer = rows.offsets[rows.row_numbers] > spec.last_record.physical_offset
    if spec.is_cut:
        is_newer |= rows.headers.column("store_timestamp") > spec.last_record.store_timestamp
    if not is_newer.any():
        return rows
    units, row_numbers = rows.units, rows.row_numbers[is_newer]
    assert units is not None, "only reads by queue have a last record"
    first = units.expected(int(row_numbers[0]))
    text = (
        f"{number_of(len(row_numbers), 'message is', 'messages are')} newer than the plan of "
        f"this read, the first at queue offset {first.queue_offset} of "
        f"{first.topic}-{first.queue_id}: what was planned was cut off, or deleted with its "
        "topic, and this is in its place"
    )
    spec.report_loss(text)
    return rows.narrow(np.flatnonzero(~is_newer))


def verify_properties(rows: Rows) -> Rows:
    """Drop records whose own CRC is wrong.

    A step that chooses by properties must be able to trust them.
    """
    numbers = rows_with_crc(rows.data, rows.headers)
    headers = rows.headers.take(numbers)
    valid = np.ones(len(rows.headers), np.bool_)
    valid[numbers] = valid_crcs(rows.data, headers, stored_bodies(rows.data, headers))
    return rows.drop_damaged(valid)


def choose(rows: Rows, spec: ReadSpec, chosen: LogFilter) -> Rows:
    """Keep the rows that all filters keep."""
    mask = chosen.keep(rows.data, rows.headers)
    if spec.tags is not None:
        tags = decode_columns(rows.data, rows.headers, pa.schema([ALL_COLUMNS.field("tags")]))[0]
        has_tag = pc.is_in(tags, value_set=texts(sorted(spec.tags)), skip_nulls=True)
        mask &= mask_of(has_tag)
    if spec.filter is not None:
        columns = property_values(rows.data, rows.headers, spec.filter.names)
        mask &= spec.filter.keep(columns, len(rows.headers))
    return rows if mask.all() else rows.narrow(np.flatnonzero(mask))


def verify_crc(rows: Rows, spec: ReadSpec) -> Rows:
    """Drop records with a wrong checksum, if the read checks them.

    In mode PERMISSIVE a record is kept, without its body, if only that has a wrong CRC. Bodies that
    earlier steps left out are not read.
    """
    if not spec.check_crc:
        return rows
    bodies = stored_bodies(rows.data, rows.headers)
    valid = valid_crcs(rows.data, rows.headers, bodies, of_records=spec.check_record_crc)
    checked = rows.with_column("body", bodies)
    if spec.mode == PERMISSIVE and not valid.all():
        stored = rows.headers.column("body_crc")
        reasons = {}
        for row in np.flatnonzero(~valid).tolist():
            found = body_crc(bodies[row].as_py())
            if found != stored[row]:
                reasons[row] = f"CRC of the body is {found}, not {int(stored[row])}"
        valid[[*reasons]] = True
        checked = checked.lose("body", reasons)
    return checked.drop_damaged(valid)


def inflate(rows: Rows, spec: ReadSpec) -> Rows:
    """Make column ``body`` as it was before compression, if the read needs it.

    The batch ends before a body that would make it too large. In mode PERMISSIVE a record is kept,
    without its body, if that does not inflate.
    """
    if not spec.inflate or "body" not in spec.schema.names:
        return rows
    flags = rows.headers.column("sys_flag")
    if not (flags & np.int32(SysFlag.COMPRESSED)).any():
        return rows
    stored = rows.columns.get("body")
    if stored is None:
        stored = stored_bodies(rows.data, rows.headers)
    if "body" in rows.flaws:
        flags = np.where(rows.lacks("body"), 0, flags)
    bodies, count, broken = inflate_bodies(stored, flags)
    inflated = rows.end_after(count).with_column("body", bodies)
    if spec.mode == PERMISSIVE:
        return inflated.lose("body", broken) if broken else inflated
    valid = np.ones(count, np.bool_)
    valid[list(broken)] = False
    return inflated.drop_damaged(valid, broken)


def decode(rows: Rows, spec: ReadSpec, decoded: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a batch.

    Args:
        rows: the rows after all other steps.
        spec: the spec of the read.
        decoded: those of its columns that are in records.
    """
    n = len(rows.headers)
    names = spec.schema.names
    values = decode_columns(rows.data, rows.headers, decoded, rows.columns)
    columns = dict(zip(decoded.names, values, strict=True))
    if "brokerName" in names:
        columns["brokerName"] = repeat_text(spec.broker_name, n)
    if "tagsCode" in names:
        assert rows.units is not None, "tagsCode is of the queue; a scan by the log is refused it"
        codes = rows.units.tags_codes[rows.row_numbers]
        columns["tagsCode"] = pa.array(codes, mask=codes <= MAX_EXT_ADDRESS)
    columns |= {field.name: pa.nulls(n, field.type) for field in PENDING if field.name in names}
    no_times = pa.nulls(n, pa.string())  # why messages have no bornTimestamp
    born = columns.get("bornTimestamp")
    if born is not None and born.null_count:
        # Their clients gave them others. RocketMQ looks at this time nowhere, so such a message is
        # as valid as any.
        stored = numbers(rows.headers.column("born_timestamp")).cast(pa.string())
        text = "bornTimestamp: the client's time is not in the years 1 to 9999: "
        given = pc.binary_join_element_wise(stored, "ms", " ")
        whys = pc.binary_join_element_wise(text, given, "")
        no_times = pc.if_else(born.is_null(), whys, pa.scalar(None, pa.string()))
    if spec.corrupt_column in names:
        reasons = no_times
        tags_codes = columns.get("tagsCode")
        if tags_codes is not None and tags_codes.null_count:
            lost = pa.scalar("tagsCode: the queue's unit leads to no unit of consumequeue_ext")
            reasons = pc.if_else(tags_codes.is_null(), lost, no_times)
        columns[spec.corrupt_column] = reasons
    elif no_times.null_count < n:
        physical_offsets = rows.offsets[rows.row_numbers]
        first = int(np.argmax(no_times.is_valid().to_numpy(zero_copy_only=False)))
        logger.warning(
            "%d messages have no bornTimestamp%s, the first at physical offset %d: %s",
            n - no_times.null_count,
            "" if spec.inflate else ", so they cannot be written verbatim",
            int(physical_offsets[first]),
            no_times[first],
        )
    return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=spec.schema)
