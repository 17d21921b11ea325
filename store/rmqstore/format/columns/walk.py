"""Where records begin: walks the chain of total sizes, plainly or many chains at once. Looks at heads only.

The chain is the one truth about where records begin; a magic inside a body proves nothing. So the fast walk only
*guesses* places to start more chains from, and keeps a chain only if the one before it ends exactly there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import aligned_words, gather_words, has_aligned_words, windows
from rmqstore.format.columns.heads import Heads, read_heads
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    BLANK_MAGIC,
    FIXED_PART_V4,
    FRAME_HEAD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
)

_FRAME_HEAD = struct.Struct(">ii")
_MAGIC_HEAD = MESSAGE_MAGIC_V1.to_bytes(4, signed=True)[:3]  # V1 and V2 differ in the last byte only
_BLANK_HEAD = BLANK_MAGIC.to_bytes(4, signed=True)
_MAGIC_AT = FRAME_HEAD.fields["magic"][1]  # type: ignore[index]
_OFFSET_AT = FIXED_PART_V4.fields["physical_offset"][1]  # type: ignore[index]

_STRIPES = 1024  # more would cost more TLB misses than they save calls
_MIN_STRIPE_BYTES = 32 << 10
_FEW_CHAINS = 16  # fewer are cheaper one by one
_SYNC_BYTES = 8 << 10
_SYNC_TRIES = 8
_BLOCK_STEPS = 4, 64
_WORD_BITS, _IN_WORD, _WORD_WIDTH = np.uint64(3), np.uint64(7), np.uint64(64)
_RESYNC_BLOCKS = 4 << 10, 1 << 20


class StopKind(Enum):
    """Why a walk ended."""

    END = "the end of the range"
    BLANK = "the blank that closes a file"
    EMPTY = "bytes never written"
    DAMAGE = "no record"


class Walk(NamedTuple):
    """Records found one behind the other, and what ended the walk."""

    starts: Positions
    kind: StopKind
    position: int  # where the walk ended: the range's end or beyond it, or the head that is no record's
    reason: str = ""


def walk_plainly(buf: Bytes, start: int, end: int) -> Walk:
    """Walk record by record from ``start``; the reference of :func:`walk`.

    Args:
        buf: uint8 (nbytes,), one CommitLog file.
        start: position of a record head.
        end: records that begin before it are walked; at most nbytes.

    Source: CommitLog.java#recoverNormally.
    """
    starts, position, view = [], start, buf.data
    while position < end:
        if len(buf) - position < FRAME_HEAD.itemsize:
            break
        total_size, magic = _FRAME_HEAD.unpack_from(view, position)
        if magic not in TOPIC_LENGTH_BYTES or not MIN_RECORD_BYTES <= total_size <= len(buf) - position:
            break
        starts.append(position)
        position += total_size
    return _stopped(buf, np.array(starts, np.int64), position, end)


def _stopped(buf: Bytes, starts: Positions, position: int, end: int) -> Walk:
    """Say what stands at the position where a walk ended."""
    left = len(buf) - position
    if position >= end:
        return Walk(starts, StopKind.END, position)
    if left < FRAME_HEAD.itemsize:
        kind = StopKind.DAMAGE if buf[position:].any() else StopKind.EMPTY
        return Walk(starts, kind, position, f"{left} bytes are left, too few for a record or a blank")
    total_size, magic = _FRAME_HEAD.unpack_from(buf.data, position)
    if magic == BLANK_MAGIC:
        if total_size <= left:  # Source: CommitLog.java#checkMessageAndReturnSize: a shorter one closes the file too
            return Walk(starts, StopKind.BLANK, position)
        return Walk(starts, StopKind.DAMAGE, position, f"a blank of {total_size} bytes where {left} are left")
    if total_size == 0 and magic == 0:
        return Walk(starts, StopKind.EMPTY, position)
    if magic not in TOPIC_LENGTH_BYTES:
        reason = f"magic {magic & 0xFFFFFFFF:#010x} is neither a record's nor a blank's"
        return Walk(starts, StopKind.DAMAGE, position, reason)
    reason = f"total size {total_size} is not between {MIN_RECORD_BYTES} and the {left} bytes left in the file"
    return Walk(starts, StopKind.DAMAGE, position, reason)


def walk(buf: Bytes, start: int, end: int, physical_base: int) -> Walk:
    """Walk like :func:`walk_plainly`, following many chains in lockstep.

    Args:
        physical_base: physical offset of the buffer's first byte.
    """
    n_stripes = min(_STRIPES, (end - start) // _MIN_STRIPE_BYTES)
    if n_stripes < 2 or not has_aligned_words(buf):
        return walk_plainly(buf, start, end)
    heads = _guess_heads(buf, np.linspace(start, end, n_stripes, endpoint=False).astype(np.int64)[1:], physical_base)
    heads = np.unique(np.append(heads, start))
    bounds = np.append(heads[1:], end)
    chains, counts, last = _follow(buf, heads, bounds)
    broken = np.flatnonzero(last != bounds)
    if not len(broken):
        return _stopped(buf, chains, int(last[-1]), end)
    return _mend(buf, end, heads, chains, counts, last)


def _mend(buf: Bytes, end: int, heads: Positions, chains: Positions, counts: Positions, last: Positions) -> Walk:
    """Keep the chains that join up; walk plainly from where one misses the next until the chain meets another."""
    firsts = np.concatenate(([0], np.cumsum(counts)))
    pieces, position, chain = [], int(heads[0]), 0
    while position < end:
        chain = int(np.searchsorted(heads, position))
        if chain < len(heads) and heads[chain] == position:
            pieces.append(chains[firsts[chain] : firsts[chain + 1]])
            stop, begun = int(last[chain]), position
            goal = int(heads[chain + 1]) if chain + 1 < len(heads) else end
        else:
            goal = int(heads[chain]) if chain < len(heads) else end
            plain = walk_plainly(buf, position, goal)
            pieces.append(plain.starts)
            stop, begun = plain.position, position
        position = stop
        if stop < goal or stop == begun:
            break
    return _stopped(buf, np.concatenate(pieces) if pieces else np.empty(0, np.int64), position, end)


def _guess_heads(buf: Bytes, stripes: Positions, physical_base: int) -> Positions:
    """Return for each stripe the first place that looks like a record's head: magic, and its own physical offset."""
    guesses = []
    for stripe in stripes.tolist():
        near = buf[stripe : stripe + _SYNC_BYTES].tobytes()
        found = near.find(_MAGIC_HEAD, _MAGIC_AT)
        for _ in range(_SYNC_TRIES):
            at = found - _MAGIC_AT
            if found < 0 or at + FIXED_PART_V4.itemsize > len(near):
                break
            offset = int.from_bytes(near[at + _OFFSET_AT : at + _OFFSET_AT + 8], signed=True)
            if offset == physical_base + stripe + at:
                guesses.append(stripe + at)
                break
            found = near.find(_MAGIC_HEAD, found + 1)
    return np.array(guesses, np.int64)


# Compared as they lie in memory, so that only the sizes are swapped to native order.
_RAW_MAGICS = np.array([MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2], ">i4").view(np.int32)


def _follow(buf: Bytes, heads: Positions, bounds: Positions) -> tuple[Positions, NDArray[np.int64], Positions]:
    """Follow every chain from its head until it reaches its bound or breaks.

    Returns:
        All starts, chain by chain; how many each chain has; where each chain ended.
    """
    last, counts = heads.copy(), np.zeros(len(heads), np.int64)
    phases: list[_Phase] = []
    alive = np.arange(len(heads))
    while len(alive):
        follow = _follow_together if len(alive) > _FEW_CHAINS else _follow_singly
        phase, ends, running = follow(buf, _Chains(alive, last[alive], counts[alive], bounds[alive]))
        phases.append(phase)
        last[alive] = ends
        counts[alive] += phase.moved
        alive = alive[running]
    return _join(phases, counts), counts, last


class _Phase(NamedTuple):
    """Chains followed together: which, how many records each had before, how many it got, and their starts."""

    chains: NDArray[np.int64]
    before: NDArray[np.int64]
    moved: NDArray[np.int64]
    starts: Positions


class _Chains(NamedTuple):
    """Chains to follow, side by side: which, where each is, how many records it had before, where it is to end."""

    numbers: NDArray[np.int64]
    cursors: Positions
    before: NDArray[np.int64]
    bounds: Positions


def _follow_together(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Take a block of steps on all chains, blindly; then see how many of the steps each chain was right to take.

    Returns:
        The phase; where each chain is now; which of them have not ended yet.
    """
    cursors, n_chains = chains.cursors, len(chains.numbers)
    words, last_head = aligned_words(buf), len(buf) - 2 * FRAME_HEAD.itemsize
    following, limit = words[1:], np.uint64(last_head)
    n_steps = _block_steps(buf, chains)
    visited = np.empty((n_steps + 1, n_chains), np.int64)
    heads = np.empty((n_steps, n_chains), np.uint64)
    for step in range(n_steps):
        visited[step] = cursors
        at = np.minimum(cursors.view(np.uint64), limit)  # what is negative becomes huge
        word, shift = (at >> _WORD_BITS).view(np.int64), (at & _IN_WORD) << _WORD_BITS
        heads[step] = (words[word] >> shift) | (following[word] << (_WORD_WIDTH - shift))
        cursors = cursors + heads[step].view(np.int32)[0::2].byteswap()
    visited[n_steps] = cursors
    raw = heads.view(np.int32).reshape(n_steps, n_chains, 2)
    sizes, magics, at = raw[:, :, 0].byteswap(), raw[:, :, 1], visited[:-1]
    right = (magics == _RAW_MAGICS[0]) | (magics == _RAW_MAGICS[1])
    right &= (at < chains.bounds) & (at <= last_head) & (sizes >= MIN_RECORD_BYTES) & (sizes <= len(buf) - at)
    right = np.logical_and.accumulate(right, axis=0)
    moved = np.count_nonzero(right, axis=0)
    phase = _Phase(chains.numbers, chains.before, moved, at.T[right.T])
    return phase, visited[moved, np.arange(n_chains)], right[-1]


def _follow_singly(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Do what :func:`_follow_together` does, chain after chain and each to its end."""
    pairs = zip(chains.cursors.tolist(), chains.bounds.tolist(), strict=True)
    walks = [walk_plainly(buf, cursor, bound) for cursor, bound in pairs]
    moved = np.array([len(found.starts) for found in walks])
    phase = _Phase(chains.numbers, chains.before, moved, np.concatenate([found.starts for found in walks]))
    return phase, np.array([found.position for found in walks]), np.zeros(len(walks), np.bool_)


def _block_steps(buf: Bytes, chains: _Chains) -> int:
    """Guess how many steps most chains still have to go."""
    heads = gather_words(buf, np.minimum(chains.cursors, len(buf) - FRAME_HEAD.itemsize))
    sizes = heads.view(np.int32)[0::2].byteswap()
    steps = np.median(chains.bounds - chains.cursors) / max(float(np.median(sizes)), MIN_RECORD_BYTES)
    return int(np.clip(steps, *_BLOCK_STEPS))


def _join(phases: list[_Phase], counts: NDArray[np.int64]) -> Positions:
    """Put the starts of all phases in the order of chains."""
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    for phase in phases:
        ranks = np.arange(len(phase.starts)) - np.repeat(np.cumsum(phase.moved) - phase.moved, phase.moved)
        starts[np.repeat(firsts[phase.chains] + phase.before, phase.moved) + ranks] = phase.starts
    return starts


def total_sizes(buf: Bytes, starts: Positions) -> NDArray[np.int64]:
    """Return what the heads at ``starts`` say is their size, int64 (n,), never more than the buffer has left."""
    if len(buf) < FRAME_HEAD.itemsize:  # a file that was cut
        return np.zeros(len(starts), np.int64)
    heads = gather_words(buf, np.minimum(starts, len(buf) - FRAME_HEAD.itemsize))
    left = np.maximum(len(buf) - starts, 0)
    return np.clip(heads.view(np.int32)[0::2].byteswap().astype(np.int64), 0, left)


def knows_its_place(buf: Bytes, position: int, physical_offset: int) -> bool:
    """Tell whether something at ``position`` calls itself a record of this physical offset, be it whole or not."""
    head = buf[position : position + FIXED_PART_V4.itemsize]
    if len(head) < FIXED_PART_V4.itemsize:
        return False
    fixed = head.view(FIXED_PART_V4)[0]
    return int(fixed["magic"]) in TOPIC_LENGTH_BYTES and int(fixed["physical_offset"]) == physical_offset


def know_their_places(buf: Bytes, positions: Positions, physical_base: int) -> Mask:
    """Return :func:`knows_its_place` of many positions, any of them, for the physical offsets they have, mask (n,)."""
    found = (positions >= 0) & (positions <= len(buf) - FIXED_PART_V4.itemsize)
    inside = positions[found]
    if len(inside):
        fixed = windows(buf, FIXED_PART_V4.itemsize)[inside].view(FIXED_PART_V4)
        is_known = np.isin(fixed["magic"].astype(np.int64), list(TOPIC_LENGTH_BYTES))
        found[found] = is_known & (fixed["physical_offset"] == inside + physical_base)
    return found


def find_next_record(buf: Bytes, start: int, end: int, physical_base: int) -> int:
    """Return the first position in ``[start, end)`` where a whole record stands that knows its place; ``end`` if none.

    For going on behind damage. A body that holds a copy of a record at just its own physical offset would deceive it.
    """
    block, size = start, _RESYNC_BLOCKS[0]
    while block < end:
        near = buf[block : min(block + size, end) + FRAME_HEAD.itemsize]
        hits = near == _MAGIC_HEAD[0]
        for index, byte in enumerate(_MAGIC_HEAD[1:], start=1):
            hits[:-index] &= near[index:] == byte
        hits[1 - len(_MAGIC_HEAD) :] = False
        places = np.flatnonzero(hits) + (block - _MAGIC_AT)
        places = places[(places >= start) & (places < end)]
        if len(places):
            heads, whole = read_heads(buf, places)
            found = places[whole & (heads.column("physical_offset") == places + physical_base)]
            if len(found):
                return int(found[0])
        block += size
        size = min(2 * size, _RESYNC_BLOCKS[1])
    return end


def find_blanks(buf: Bytes, start: int, end: int) -> Positions:
    """Return the positions in ``[start, end)``, rising, of what would be a blank that reaches to the buffer's end."""
    near = buf[start : end + FRAME_HEAD.itemsize]
    if near.tobytes().find(_BLANK_HEAD) < 0:  # mostly there is none
        return np.empty(0, np.int64)
    heads = windows(near, FRAME_HEAD.itemsize).view(FRAME_HEAD)
    places = np.flatnonzero(heads["magic"] == BLANK_MAGIC) + start
    closing: Positions = places[heads["total_size"][places - start] == len(buf) - places]
    return closing


def cut_batches(sizes: NDArray[np.int64], max_rows: int, max_bytes: int) -> Iterator[slice]:
    """Yield slices that cover all records in order, each of at most so many rows and bytes, or of one record."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows, len(sizes))
        yield slice(start, stop)
        start = stop


def heads_of(buf: Bytes, found: Walk) -> Iterator[tuple[Positions, Heads, Mask]]:
    """Yield the starts of walked records, their heads, and which are whole, so many at a time."""
    for rows in cut_batches(np.diff(found.starts, append=found.position), BATCH_ROWS, BATCH_BYTES):
        starts = found.starts[rows]
        yield starts, *read_heads(buf, starts)


def rejoin(data: Bytes, physical_base: int, found: Walk) -> tuple[Positions, NDArray[np.int64]]:
    """Look for records that a damaged total size made a walk step over; return all starts, and sizes."""
    _, whole = read_heads(data, found.starts)
    if whole.all():
        return found.starts, np.diff(found.starts, append=found.position)
    pieces, done = [], 0
    for row in np.flatnonzero(~whole).tolist():
        start = int(found.starts[row])
        limit = int(found.starts[row + 1]) if row + 1 < len(found.starts) else found.position
        pieces.append(found.starts[done : row + 1])
        done = row + 1
        at = find_next_record(data, start + 1, limit, physical_base)
        while at < limit:
            inside = walk_plainly(data, at, limit)
            pieces.append(inside.starts)
            at = limit if inside.position >= limit else find_next_record(
                data, inside.position + 1, limit, physical_base
            )  # fmt: skip
    pieces.append(found.starts[done:])
    starts = np.concatenate(pieces)
    # Records overlap where a size is damaged, so the way to the next one is no size.
    return starts, total_sizes(data, starts)
