"""Inner batches: several messages in the body of one record.

A client sends them to a topic whose queues are BatchConsumeQueues.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import array_bytes, gather_spans, windows
from rmqstore.format.columns.checks import inflate_bodies
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.property_decode import Entries, parse_entries, property_column
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.layout import (
    INNER_HEAD,
    MAX_BATCH,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_INNER_NUM,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)

_HEAD: Final = INNER_HEAD.itemsize
_MIN_BYTES: Final = _HEAD + PROPERTIES_LENGTH_BYTES
_FEW_CHAINS: Final = 16  # up to this number it is cheaper to follow chains one by one
_NUMBER: Final = r"^[1-9][0-9]{0,4}$"
_SIZE: Final = struct.Struct(">i")


class InnerMessages(NamedTuple):
    """The m messages of r inner batches; positions are those in the buffer of the bodies."""

    counts: NDArray[np.int64]  # (r,) number of messages of each batch, 0 if it is not valid
    valid: Mask  # (r,) whether the body consists of whole messages, one after the other
    flags: NDArray[np.int32]  # (m,)
    body_starts: Positions
    body_lengths: Positions
    property_starts: Positions
    property_lengths: Positions


def find_inner_messages(buf: Bytes, starts: Positions, lengths: Positions) -> InnerMessages:
    """Find the messages in the bodies of inner batches.

    Args:
        buf: uint8 (nbytes,).
        starts: int64 (r,), where the uncompressed bodies begin; every body lies inside ``buf``.
        lengths: int64 (r,), sizes of the bodies.

    Source: MessageDecoder.java#decodeMessages.
    """
    ends = starts + lengths
    headers, rows, stops = _follow(buf, starts, ends)
    fixed = windows(buf, _HEAD)[headers].view(INNER_HEAD)
    sizes = fixed["total_size"].astype(np.int64)
    body_lengths = fixed["body_length"].astype(np.int64)
    fits = (body_lengths >= 0) & (body_lengths <= sizes - _MIN_BYTES)
    body_lengths = np.where(fits, body_lengths, 0)
    property_starts = headers + _MIN_BYTES + body_lengths
    high = buf[property_starts - 2].view(np.int8).astype(np.int64) << 8
    property_lengths = high | buf[property_starts - 1]
    fits &= property_lengths == sizes - _MIN_BYTES - body_lengths
    valid = stops == ends
    valid[rows[~fits]] = False
    is_valid = valid[rows]
    return InnerMessages(
        np.bincount(rows[is_valid], minlength=len(starts)).astype(np.int64),
        valid,
        fixed["flag"].astype(np.int32)[is_valid],
        headers[is_valid] + _HEAD,
        body_lengths[is_valid],
        property_starts[is_valid],
        property_lengths[is_valid],
    )


def _follow(
    buf: Bytes, starts: Positions, ends: Positions
) -> tuple[Positions, Positions, Positions]:
    """Follow the chain of sizes in every body, side by side as long as there are many.

    Returns:
        Where messages begin, batch by batch; the batch of each message; where each chain ended.
    """
    cursors = starts.copy()
    alive = np.flatnonzero(starts < ends)
    headers: list[Positions] = []
    rows: list[Positions] = []
    while len(alive) > _FEW_CHAINS:
        begins = cursors[alive]
        left = ends[alive] - begins
        fits = left >= _MIN_BYTES
        sizes = windows(buf, 4)[np.where(fits, begins, 0)].view(">i4").astype(np.int64)
        fits &= (sizes >= _MIN_BYTES) & (sizes <= left)
        alive = alive[fits]
        begins = begins[fits]
        headers.append(begins)
        rows.append(alive)
        cursors[alive] = begins + sizes[fits]
        alive = alive[cursors[alive] < ends[alive]]
    view = buf.data
    for row in alive.tolist():
        positions = []
        cursor = int(cursors[row])
        end = int(ends[row])
        while end - cursor >= _MIN_BYTES:
            (size,) = _SIZE.unpack_from(view, cursor)
            if not _MIN_BYTES <= size <= end - cursor:
                break
            positions.append(cursor)
            cursor += size
        cursors[row] = cursor
        headers.append(np.array(positions, np.int64))
        rows.append(np.full(len(positions), row, np.int64))
    all_rows = np.concatenate([*rows, np.empty(0, np.int64)])
    all_headers = np.concatenate([*headers, np.empty(0, np.int64)])
    order = np.argsort(all_rows, kind="stable")  # messages of one batch are in their order already
    return all_headers[order], all_rows[order], cursors


def is_inner_batch(headers: RecordHeaders) -> Mask:
    """Return a mask (n,) of the records that hold an inner batch."""
    mask: Mask = headers.column("sys_flag") & np.int32(SysFlag.INNER_BATCH) != 0
    return mask


def inner_headers(
    headers: RecordHeaders, rows: Positions, inner: InnerMessages, messages: Positions
) -> RecordHeaders:
    """Return a head for each of m messages.

    It is the head of its record, with the flag, body and properties of the message. The COMPRESSED
    bit of its sysFlag is cleared, because only the body of the record is compressed.

    Args:
        headers: headers of the records.
        rows: int64 (m,), the record of each message.
        inner: messages of inner batches.
        messages: int64 (m,), index of each message in ``inner``; -1 for a message that is the whole
            record.

    Source: MessageDecoder.java#decodeMessage, of a MessageExt.
    """
    record_headers = headers.take(rows)
    is_inner = np.flatnonzero(messages >= 0)
    inner_rows = messages[is_inner]
    fixed = record_headers.fixed.copy()
    fixed["flag"][is_inner] = inner.flags[inner_rows]
    fixed["sys_flag"][is_inner] &= ~np.int32(SysFlag.COMPRESSED)
    spans = {}
    for name in ("body_starts", "body_lengths", "property_starts", "property_lengths"):
        values = getattr(record_headers, name).copy()
        values[is_inner] = getattr(inner, name)[inner_rows]
        spans[name] = values
    return replace(record_headers, fixed=fixed, _columns={}, **spans)


def count_messages(buf: Bytes, headers: RecordHeaders) -> NDArray[np.int64]:
    """Return the number of messages of each record by its property, (n,).

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: n whole records.

    Source: CommitLog.java#checkMessageAndReturnSize.
    """
    is_batch = is_inner_batch(headers)
    if not is_batch.any():
        return np.ones(len(headers), np.int64)
    return _counts(parse_entries(buf, headers.property_starts, headers.property_lengths), is_batch)


def explicit_counts(strings: pa.BinaryArray, is_batch: Mask) -> NDArray[np.int64]:
    """Return the number of messages of n records by their property strings, binary (n,).

    It is 1 for records that are not inner batches, by ``is_batch``, (n,).
    """
    data, bounds = array_bytes(strings)
    return _counts(parse_entries(data, bounds[:-1], np.diff(bounds)), is_batch)


def _counts(entries: Entries, is_batch: Mask) -> NDArray[np.int64]:
    explicit = property_column(entries, PROPERTY_INNER_NUM)
    is_number = pc.fill_null(pc.match_substring_regex(explicit, _NUMBER), fill_value=False)
    numbers = pc.if_else(is_number, explicit, pa.scalar("1")).cast(pa.int64()).to_numpy()
    return np.where(is_batch & (numbers <= MAX_BATCH), numbers, 1)


def message_headers(buf: Bytes, headers: RecordHeaders) -> RecordHeaders:
    """Return a head for every queue offset of records, in the order of the records.

    The records are those of BatchConsumeQueues. Such a head is that of the record, with another
    queue offset. The number of messages is taken from the record's property, as the broker does;
    its body is not read.

    Args:
        buf: uint8 (nbytes,), the buffer that ``record_headers`` was read from.
        headers: whole records.

    Source: CommitLog.java#checkMessageAndReturnSize;
    BatchConsumeQueue.java#putMessagePositionInfoWrapper.
    """
    counts = count_messages(buf, headers)
    if (counts == 1).all():
        return headers
    rows = np.repeat(np.arange(len(headers)), counts)
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    record_headers = headers.take(rows)
    queue_offsets = record_headers.column("queue_offset") + ranks
    return record_headers.placed(record_headers.column("queue_id"), queue_offsets)


def inflate_batches(
    buf: Bytes, headers: RecordHeaders, rows: Positions
) -> tuple[Bytes, RecordHeaders, dict[int, str]]:
    """Copy records into one buffer, together with the decompressed bodies of some of them.

    Args:
        buf: the buffer that ``record_headers`` was read from.
        headers: n whole records.
        rows: the records whose body is a compressed inner batch, rising.

    Returns:
        The buffer; the headers in it, fewer than n if all bodies would be too large; and by row the
        reason why a body does not inflate.
    """
    batches = headers.take(rows)
    compressed = stored_bodies(buf, batches)
    bodies, n_inflated, reasons = inflate_bodies(compressed, batches.column("sys_flag"))
    n = len(headers) if n_inflated == len(rows) else int(rows[n_inflated])
    headers = headers.take(slice(0, n))
    rows = rows[:n_inflated]
    sizes = headers.column("total_size").astype(np.int64)
    records = gather_spans(buf, headers.starts, sizes, pa.binary())
    stored, begins = array_bytes(records)
    inflated, bounds = array_bytes(bodies)
    shifts = begins[:-1] - headers.starts
    body_starts = headers.body_starts + shifts
    body_starts[rows] = len(stored) + bounds[:-1]
    body_lengths = headers.body_lengths.copy()
    body_lengths[rows] = np.diff(bounds)
    # The zeros at the end are there because a gather may read a whole word.
    together = np.concatenate((stored, inflated, np.zeros(8, np.uint8)))
    moved = replace(
        headers,
        starts=headers.starts + shifts,
        body_starts=body_starts,
        body_lengths=body_lengths,
        topic_starts=headers.topic_starts + shifts,
        property_starts=headers.property_starts + shifts,
    )
    return together, moved, {int(rows[row]): reason for row, reason in reasons.items()}
