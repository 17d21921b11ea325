"""Handles damage as the mode of a read says: by an error, a warning or a row with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import (
    CorruptRecordError,
    MalformedBytesError,
    number_of,
)
from rmqstore.format.columns.buffers import booleans
from rmqstore.format.layout import Bytes, Positions
from rmqstore.format.record import Expected, check_record
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.stages import Rows
from rmqstore.spans import LostSpan

logger = logging.getLogger(__name__)


# What is known of the damaged records of a batch: values by column, by row.
Faults = Mapping[int, Mapping[str, object]]


class Origin(NamedTuple):
    """Where the records of a batch are from."""

    path: str  # of their file, or the broker that sent them
    record_at: Callable[[int], Bytes]  # returns the bytes of the record at a physical offset


def expected_columns(expected: Expected) -> dict[str, object]:
    """Return what a queue unit says of a record, by column."""
    return {
        "topic": expected.topic,
        "queueId": expected.queue_id,
        "queueOffset": expected.queue_offset,
        "storeSize": expected.size,
    }


def lost_rows(schema: pa.Schema, known: Iterable[Mapping[str, object]]) -> pa.RecordBatch:
    """Return rows for damaged records alone, by what is known of each; other columns are null."""
    rows = [
        {name: value for name, value in values.items() if name in schema.names} for values in known
    ]
    return pa.RecordBatch.from_pylist(rows, schema)


def merge_faults(batch: pa.RecordBatch, rows: Positions, faults: Faults) -> pa.RecordBatch:
    """Put rows for damaged records in their places among the others."""
    lost = lost_rows(batch.schema, faults.values())
    order = np.argsort(np.concatenate((rows, [*faults])), kind="stable")
    both = pa.Table.from_batches([batch, lost]).take(pa.array(order)).combine_chunks()
    return both.to_batches()[0] if both.num_rows else batch


def report_flaws(batch: pa.RecordBatch, rows: Rows, spec: ReadSpec, path: str) -> pa.RecordBatch:
    """Return a batch without the values that its records lack, and with the reasons.

    Args:
        batch: the rows, decoded.
        rows: the rows after all steps.
        spec: the spec of the read, whose mode is PERMISSIVE if there are flaws.
        path: path of the file that the records are in, or the broker that sent them.
    """
    if not rows.flaws:
        return batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    reasons = columns[spec.corrupt_column].to_pylist()
    row_numbers = rows.row_numbers.tolist()
    for name, by_row in rows.flaws.items():
        lost = rows.lacks(name)
        if name in columns:
            values = columns[name]
            columns[name] = pc.if_else(booleans(lost), pa.scalar(None, values.type), values)
        for row in np.flatnonzero(lost).tolist():
            row_number = row_numbers[row]
            text = f"{path}, {int(rows.offsets[row_number])}: {by_row[row_number]}"
            reasons[row] = text if reasons[row] is None else f"{text}; {reasons[row]}"
    columns[spec.corrupt_column] = pa.array(reasons, pa.string())
    return pa.RecordBatch.from_arrays([*columns.values()], schema=batch.schema)


# Says what is wrong with the bytes of the record at a physical offset, given what a queue expects
# of it, if one does.
Explain = Callable[[Bytes, ReadSpec, int, Expected | None], str]


def explain(record: Bytes, spec: ReadSpec, physical_offset: int, expected: Expected | None) -> str:
    """Ask the reference codec what is wrong with a record."""
    try:
        check_record(
            record.data,
            0,
            physical_offset,
            check_crc=spec.check_crc,
            check_record_crc=spec.check_record_crc,
            expected=expected,
        )
    except MalformedBytesError as err:
        return err.reason
    return "the record changed while it was read"


def find_faults(rows: Rows, spec: ReadSpec, origin: Origin, explain_record: Explain) -> Faults:
    """Return the faults of the damaged rows; none where the mode drops these rows.

    Args:
        rows: the rows after all steps.
        spec: the spec of the read.
        origin: where the records are from.
        explain_record: says what is wrong with one of them.

    Raises:
        CorruptRecordError: a row is damaged and the mode is FAILFAST.
    """
    damaged = np.flatnonzero(~rows.valid).tolist()
    if not damaged:
        return {}
    if spec.mode == DROPMALFORMED:
        logger.warning(
            "%s: dropped %s, the first at %d",
            origin.path,
            number_of(len(damaged), "damaged record"),
            int(rows.offsets[damaged[0]]),
        )
        return {}
    faults: dict[int, dict[str, object]] = {}
    for row in damaged:
        expected = rows.units.expected(row) if rows.units else None
        physical_offset = int(rows.offsets[row])
        reason = rows.reasons.get(row)
        if not reason:
            record = origin.record_at(physical_offset)
            reason = explain_record(record, spec, physical_offset, expected)
        if spec.mode == FAILFAST:
            raise CorruptRecordError(origin.path, physical_offset, reason)
        faults[row] = _known(spec, origin.path, physical_offset, reason)
        if expected:
            faults[row] |= expected_columns(expected)
    return faults


def _known(spec: ReadSpec, path: str, physical_offset: int, reason: str) -> dict[str, object]:
    """Return what is known of damaged bytes, by column."""
    return {
        "commitLogOffset": physical_offset,
        "brokerName": spec.broker_name,
        spec.corrupt_column: f"{path}, {physical_offset}: {reason}",
    }


def refuse_spans(spans: Iterable[LostSpan], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Handle parts of the log without readable records as the read says.

    Raises:
        CorruptRecordError: bytes are damaged and the mode is FAILFAST.
        OffsetOutOfRangeError: a file is missing, and data loss is to fail.
    """
    for span in spans:
        if span.is_missing:
            text = f"{span.path}: the log from {span.start} to {span.end} is gone: {span.reason}"
            spec.report_loss(text)
            continue
        text = f"{span.reason}; {span.end - span.start} bytes up to the next record"
        if spec.mode == FAILFAST:
            raise CorruptRecordError(span.path, span.start, text)
        if spec.mode == DROPMALFORMED:
            logger.warning("%s: dropped a damaged span at %d: %s", span.path, span.start, text)
            continue
        yield lost_rows(spec.schema, [_known(spec, span.path, span.start, text)])
