"""Inner batches: several messages in the body of one record, as a client sent them to a BatchConsumeQueue topic."""

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
from rmqstore.format.columns.heads import Heads
from rmqstore.format.columns.property_decode import parse_entries, property_column
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
_FEW_CHAINS: Final = 16  # fewer are cheaper one by one
_NUMBER: Final = r"^[1-9][0-9]{0,4}$"
_SIZE: Final = struct.Struct(">i")


class InnerMessages(NamedTuple):
    """The messages of r inner batches, m in all, batch by batch; positions are in the buffer of the bodies."""

    counts: NDArray[np.int64]  # (r,) messages of each, 0 for one that is not sound
    sound: Mask  # (r,) which bodies are whole messages, one behind the other
    flags: NDArray[np.int32]  # (m,)
    body_starts: Positions
    body_lengths: Positions
    property_starts: Positions
    property_lengths: Positions


def find_inner_messages(buf: Bytes, starts: Positions, lengths: Positions) -> InnerMessages:
    """Find the messages in the bodies of inner batches.

    Args:
        buf: uint8 (nbytes,).
        starts: int64 (r,), where the bodies stand, not compressed; every body lies inside ``buf``.
        lengths: int64 (r,), their bytes.

    Source: MessageDecoder.java#decodeMessages.
    """
    ends = starts + lengths
    heads, rows, stops = _follow(buf, starts, ends)
    fixed = windows(buf, _HEAD)[heads].view(INNER_HEAD)
    sizes, body_lengths = fixed["total_size"].astype(np.int64), fixed["body_length"].astype(np.int64)
    fits = (body_lengths >= 0) & (body_lengths <= sizes - _MIN_BYTES)
    body_lengths = np.where(fits, body_lengths, 0)
    property_starts = heads + _MIN_BYTES + body_lengths
    high = buf[property_starts - 2].view(np.int8).astype(np.int64) << 8
    property_lengths = high | buf[property_starts - 1]
    fits &= property_lengths == sizes - _MIN_BYTES - body_lengths
    sound = stops == ends
    sound[rows[~fits]] = False
    kept = sound[rows]
    return InnerMessages(
        np.bincount(rows[kept], minlength=len(starts)).astype(np.int64),
        sound,
        fixed["flag"].astype(np.int32)[kept],
        heads[kept] + _HEAD,
        body_lengths[kept],
        property_starts[kept],
        property_lengths[kept],
    )


def _follow(buf: Bytes, starts: Positions, ends: Positions) -> tuple[Positions, Positions, Positions]:
    """Follow the chain of sizes in every body, all of them side by side while they are many.

    Returns:
        Where messages begin, batch by batch; the batch of each; where each chain ended.
    """
    cursors, alive = starts.copy(), np.flatnonzero(starts < ends)
    heads: list[Positions] = []
    rows: list[Positions] = []
    while len(alive) > _FEW_CHAINS:
        at, left = cursors[alive], ends[alive] - cursors[alive]
        fits = left >= _MIN_BYTES
        sizes = windows(buf, 4)[np.where(fits, at, 0)].view(">i4").astype(np.int64)
        fits &= (sizes >= _MIN_BYTES) & (sizes <= left)
        alive, at = alive[fits], at[fits]
        heads.append(at)
        rows.append(alive)
        cursors[alive] = at + sizes[fits]
        alive = alive[cursors[alive] < ends[alive]]
    for row in alive.tolist():
        found, stop = _follow_plainly(buf, int(cursors[row]), int(ends[row]))
        cursors[row] = stop
        heads.append(np.array(found, np.int64))
        rows.append(np.full(len(found), row, np.int64))
    batch_of = np.concatenate([*rows, np.empty(0, np.int64)])
    order = np.argsort(batch_of, kind="stable")  # within a batch they came in their order
    return np.concatenate([*heads, np.empty(0, np.int64)])[order], batch_of[order], cursors


def _follow_plainly(buf: Bytes, start: int, end: int) -> tuple[list[int], int]:
    """Follow one chain of sizes; return where messages begin, and where it ended."""
    found, at, view = [], start, buf.data
    while end - at >= _MIN_BYTES:
        (size,) = _SIZE.unpack_from(view, at)
        if not _MIN_BYTES <= size <= end - at:
            break
        found.append(at)
        at += size
    return found, at


def is_inner_batch(heads: Heads) -> Mask:
    """Return a mask (n,) of the records that hold an inner batch."""
    found: Mask = heads.column("sys_flag") & np.int32(SysFlag.INNER_BATCH) != 0
    return found


def inner_heads(heads: Heads, rows: Positions, inner: InnerMessages, messages: Positions) -> Heads:
    """Return a head (m,) for each message: that of its record, but for flag, body and properties.

    Its sysFlag does not say that the body is compressed: its own is not.

    Args:
        heads: of records.
        rows: int64 (m,), the record of each message.
        inner: messages of inner batches.
        messages: int64 (m,), in ``inner``; -1 for a message that is the whole record.

    Source: MessageDecoder.java#decodeMessage, of a MessageExt.
    """
    taken = heads.take(rows)
    own = np.flatnonzero(messages >= 0)
    chosen = messages[own]
    fixed = taken.fixed.copy()
    fixed["flag"][own] = inner.flags[chosen]
    fixed["sys_flag"][own] &= ~np.int32(SysFlag.COMPRESSED)
    spans = {}
    for name in ("body_starts", "body_lengths", "property_starts", "property_lengths"):
        values = getattr(taken, name).copy()
        values[own] = getattr(inner, name)[chosen]
        spans[name] = values
    return replace(taken, fixed=fixed, _columns={}, **spans)


def message_heads(buf: Bytes, heads: Heads) -> Heads:
    """Return a head for every queue offset of records in BatchConsumeQueues, in the order of the records.

    Such a head is that of the record, but for the queue offset. The record tells how many there are, as the broker
    believes it; its body is not looked at.

    Args:
        buf: uint8 (nbytes,), what the heads were read from.
        heads: whole records.

    Source: CommitLog.java#checkMessageAndReturnSize; BatchConsumeQueue.java#putMessagePositionInfoWrapper.
    """
    told = property_column(parse_entries(buf, heads.property_starts, heads.property_lengths), PROPERTY_INNER_NUM)
    is_number = pc.fill_null(pc.match_substring_regex(told, _NUMBER), fill_value=False)
    counts = pc.if_else(is_number, told, pa.scalar("1")).cast(pa.int64()).to_numpy()
    counts = np.where(is_inner_batch(heads) & (counts <= MAX_BATCH), counts, 1)
    if (counts == 1).all():
        return heads
    rows = np.repeat(np.arange(len(heads)), counts)
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    taken = heads.take(rows)
    return taken.placed(taken.column("queue_id"), taken.column("queue_offset") + ranks)


def inflate_batches(buf: Bytes, heads: Heads, rows: Positions) -> tuple[Bytes, Heads, dict[int, str]]:
    """Bring records, and the bodies of some as they were before compression, into one buffer.

    Args:
        buf: what the heads were read from.
        heads: n whole records.
        rows: rising; those whose body is compressed and is an inner batch.

    Returns:
        The buffer; the heads in it, less than n where all would be too much at once; and for bodies that do not inflate
        the reason, by row.
    """
    some = heads.take(rows)
    bodies, done, broken = inflate_bodies(stored_bodies(buf, some), some.column("sys_flag"))
    n = len(heads) if done == len(rows) else int(rows[done])
    heads, rows = heads.take(slice(0, n)), rows[:done]
    records = gather_spans(buf, heads.starts, heads.column("total_size").astype(np.int64), pa.binary())
    (stored, begins), (inflated, bounds) = array_bytes(records), array_bytes(bodies)
    moved = begins[:-1] - heads.starts
    body_starts, body_lengths = heads.body_starts + moved, heads.body_lengths.copy()
    body_starts[rows] = len(stored) + bounds[:-1]
    body_lengths[rows] = np.diff(bounds)
    together = np.concatenate((stored, inflated, np.zeros(8, np.uint8)))  # a gather may look at a whole word
    placed = replace(
        heads,
        starts=heads.starts + moved,
        body_starts=body_starts,
        body_lengths=body_lengths,
        topic_starts=heads.topic_starts + moved,
        property_starts=heads.property_starts + moved,
    )
    return together, placed, {int(rows[row]): reason for row, reason in broken.items()}
