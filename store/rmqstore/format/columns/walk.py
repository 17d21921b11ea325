"""Finds where records begin, by walking the chain of total sizes: plainly, or along many chains at once.

Only the chain proves where records begin; a magic inside a body proves nothing. So the fast walk
only *guesses* positions to start more chains from, and keeps a chain only if the previous one ends
exactly where it starts.
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
# V1 and V2 differ in the last byte only
_MAGIC_HEAD = MESSAGE_MAGIC_V1.to_bytes(4, signed=True)[:3]
_BLANK_HEAD = BLANK_MAGIC.to_bytes(4, signed=True)
_MAGIC_AT = FRAME_HEAD.fields["magic"][1]  # type: ignore[index]
_OFFSET_AT = FIXED_PART_V4.fields["physical_offset"][1]  # type: ignore[index]

_STRIPES = 1024  # more stripes cost more in TLB misses than they save in calls
_MIN_STRIPE_BYTES = 32 << 10
_FEW_CHAINS = 16  # up to this number it is cheaper to follow chains one by one
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
    DAMAGE = "not a record"


class Walk(NamedTuple):
    """Records that follow one another, and what ended the walk."""

    starts: Positions
    kind: StopKind
    # where the walk ended: at the end of the range or beyond, or at bytes that are not a record's
    # head
    position: int
    reason: str = ""


def walk_plainly(buf: Bytes, start: int, end: int) -> Walk:
    """Walk record by record from ``start``; :func:`walk` must equal it.

    Args:
        buf: uint8 (nbytes,), one CommitLog file.
        start: position of a record's head.
        end: records that begin before this position are walked; at most nbytes.

    Source: CommitLog.java#recoverNormally.
    """
    starts, position, view = [], start, buf.data
    while position < end:
        if len(buf) - position < FRAME_HEAD.itemsize:
            break
        total_size, magic = _FRAME_HEAD.unpack_from(view, position)
        if (
            magic not in TOPIC_LENGTH_BYTES
            or not MIN_RECORD_BYTES <= total_size <= len(buf) - position
        ):
            break
        starts.append(position)
        position += total_size
    return _stopped(buf, np.array(starts, np.int64), position, end)


def _stopped(buf: Bytes, starts: Positions, position: int, end: int) -> Walk:
    """Return a walk that ended at a position, with what is there."""
    left = len(buf) - position
    if position >= end:
        return Walk(starts, StopKind.END, position)
    if left < FRAME_HEAD.itemsize:
        kind = StopKind.DAMAGE if buf[position:].any() else StopKind.EMPTY
        return Walk(
            starts, kind, position, f"{left} bytes are left, too few for a record or a blank"
        )
    total_size, magic = _FRAME_HEAD.unpack_from(buf.data, position)
    if magic == BLANK_MAGIC:
        # Source: CommitLog.java#checkMessageAndReturnSize: a shorter blank ends the file too
        if total_size <= left:
            return Walk(starts, StopKind.BLANK, position)
        return Walk(
            starts,
            StopKind.DAMAGE,
            position,
            f"a blank of {total_size} bytes where {left} bytes are left",
        )
    if total_size == 0 and magic == 0:
        return Walk(starts, StopKind.EMPTY, position)
    if magic not in TOPIC_LENGTH_BYTES:
        reason = f"magic {magic & 0xFFFFFFFF:#010x} is neither a record's nor a blank's"
        return Walk(starts, StopKind.DAMAGE, position, reason)
    reason = f"total size {total_size} is not between {MIN_RECORD_BYTES} and the {left} bytes left in the file"
    return Walk(starts, StopKind.DAMAGE, position, reason)


def walk(buf: Bytes, start: int, end: int, physical_base: int) -> Walk:
    """Walk as :func:`walk_plainly` does, but follow many chains in lockstep.

    Args:
        buf, start, end: as for :func:`walk_plainly`.
        physical_base: physical offset of the buffer's first byte.
    """
    n_stripes = min(_STRIPES, (end - start) // _MIN_STRIPE_BYTES)
    if n_stripes < 2 or not has_aligned_words(buf):
        return walk_plainly(buf, start, end)
    heads = _guess_heads(
        buf, np.linspace(start, end, n_stripes, endpoint=False).astype(np.int64)[1:], physical_base
    )
    heads = np.unique(np.append(heads, start))
    bounds = np.append(heads[1:], end)
    chains, counts, last = _follow(buf, heads, bounds)
    broken = np.flatnonzero(last != bounds)
    if not len(broken):
        return _stopped(buf, chains, int(last[-1]), end)
    return _mend(buf, end, heads, chains, counts, last)


def _mend(
    buf: Bytes, end: int, heads: Positions, chains: Positions, counts: Positions, last: Positions
) -> Walk:
    """Keep the chains that join up.

    Where one misses the next, walk plainly until the walk meets a later chain.
    """
    firsts = np.concatenate(([0], np.cumsum(counts)))
    parts: list[Positions] = []
    position = int(heads[0])
    while position < end:
        chain = int(np.searchsorted(heads, position))
        is_head = chain < len(heads) and heads[chain] == position
        following = chain + 1 if is_head else chain
        goal = int(heads[following]) if following < len(heads) else end
        if is_head:
            starts, stop = chains[firsts[chain] : firsts[chain + 1]], int(last[chain])
        else:
            plain = walk_plainly(buf, position, goal)
            starts, stop = plain.starts, plain.position
        parts.append(starts)
        is_stuck = stop < goal or stop == position
        position = stop
        if is_stuck:
            break
    return _stopped(buf, np.concatenate(parts) if parts else np.empty(0, np.int64), position, end)


def _guess_heads(buf: Bytes, stripes: Positions, physical_base: int) -> Positions:
    """Return for each stripe the first position that looks like a head: a magic, and the right physical offset."""
    guesses = []
    for stripe in stripes.tolist():
        near = buf[stripe : stripe + _SYNC_BYTES].tobytes()
        magic = near.find(_MAGIC_HEAD, _MAGIC_AT)
        for _ in range(_SYNC_TRIES):
            head = magic - _MAGIC_AT
            if magic < 0 or head + FIXED_PART_V4.itemsize > len(near):
                break
            offset = int.from_bytes(near[head + _OFFSET_AT : head + _OFFSET_AT + 8], signed=True)
            if offset == physical_base + stripe + head:
                guesses.append(stripe + head)
                break
            magic = near.find(_MAGIC_HEAD, magic + 1)
    return np.array(guesses, np.int64)


# Compared in memory order, so that only the sizes have to be swapped to native order.
_RAW_MAGICS = np.array([MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2], ">i4").view(np.int32)


def _follow(
    buf: Bytes, heads: Positions, bounds: Positions
) -> tuple[Positions, NDArray[np.int64], Positions]:
    """Follow every chain from its head until it reaches its bound or breaks.

    Returns:
        All starts, chain by chain; the number of records of each chain; where each chain ended.
    """
    last, counts = heads.copy(), np.zeros(len(heads), np.int64)
    phases: list[_Phase] = []
    alive = np.arange(len(heads))
    while len(alive):
        follow = _follow_together if len(alive) > _FEW_CHAINS else _follow_singly
        phase, ends, running = follow(
            buf, _Chains(alive, last[alive], counts[alive], bounds[alive])
        )
        phases.append(phase)
        last[alive] = ends
        counts[alive] += phase.moved
        alive = alive[running]
    return _join(phases, counts), counts, last


class _Phase(NamedTuple):
    """Records that were added to some chains by following them together."""

    chains: NDArray[np.int64]  # numbers of the chains
    before: NDArray[np.int64]  # number of records that each chain had before
    moved: NDArray[np.int64]  # number of records added to each chain
    starts: Positions  # of the added records, chain by chain


class _Chains(NamedTuple):
    """Chains to be followed side by side."""

    numbers: NDArray[np.int64]
    cursors: Positions  # where each chain has got to
    before: NDArray[np.int64]  # number of records that each chain has so far
    bounds: Positions  # where each chain has to end


def _follow_together(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Take a block of steps on all chains without checking them, then count how many steps of each chain were valid.

    Returns:
        The phase; where each chain is now; a mask of the chains that have not ended yet.
    """
    cursors, n_chains = chains.cursors, len(chains.numbers)
    words = aligned_words(buf)
    following = words[1:]
    last_head = len(buf) - 2 * FRAME_HEAD.itemsize
    limit = np.uint64(last_head)
    n_steps = _block_steps(buf, chains)
    visited = np.empty((n_steps + 1, n_chains), np.int64)
    heads = np.empty((n_steps, n_chains), np.uint64)
    for step in range(n_steps):
        visited[step] = cursors
        # a negative cursor becomes a huge one
        positions = np.minimum(cursors.view(np.uint64), limit)
        word = (positions >> _WORD_BITS).view(np.int64)
        shift = (positions & _IN_WORD) << _WORD_BITS
        heads[step] = (words[word] >> shift) | (following[word] << (_WORD_WIDTH - shift))
        cursors = cursors + heads[step].view(np.int32)[0::2].byteswap()
    visited[n_steps] = cursors
    raw = heads.view(np.int32).reshape(n_steps, n_chains, 2)
    sizes, magics = raw[:, :, 0].byteswap(), raw[:, :, 1]
    begins = visited[:-1]
    is_valid = (magics == _RAW_MAGICS[0]) | (magics == _RAW_MAGICS[1])
    is_valid &= (begins < chains.bounds) & (begins <= last_head)
    is_valid &= (sizes >= MIN_RECORD_BYTES) & (sizes <= len(buf) - begins)
    is_valid = np.logical_and.accumulate(is_valid, axis=0)
    moved = np.count_nonzero(is_valid, axis=0)
    phase = _Phase(chains.numbers, chains.before, moved, begins.T[is_valid.T])
    return phase, visited[moved, np.arange(n_chains)], is_valid[-1]


def _follow_singly(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Do the same as :func:`_follow_together`, but follow one chain after the other, each to its end."""
    pairs = zip(chains.cursors.tolist(), chains.bounds.tolist(), strict=True)
    walks = [walk_plainly(buf, cursor, bound) for cursor, bound in pairs]
    moved = np.array([len(one.starts) for one in walks])
    phase = _Phase(
        chains.numbers, chains.before, moved, np.concatenate([one.starts for one in walks])
    )
    return phase, np.array([one.position for one in walks]), np.zeros(len(walks), np.bool_)


def _block_steps(buf: Bytes, chains: _Chains) -> int:
    """Estimate how many steps most chains still need."""
    heads = gather_words(buf, np.minimum(chains.cursors, len(buf) - FRAME_HEAD.itemsize))
    sizes = heads.view(np.int32)[0::2].byteswap()
    steps = np.median(chains.bounds - chains.cursors) / max(
        float(np.median(sizes)), MIN_RECORD_BYTES
    )
    return int(np.clip(steps, *_BLOCK_STEPS))


def _join(phases: list[_Phase], counts: NDArray[np.int64]) -> Positions:
    """Return the starts of all phases, chain by chain."""
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    for phase in phases:
        ranks = np.arange(len(phase.starts)) - np.repeat(
            np.cumsum(phase.moved) - phase.moved, phase.moved
        )
        starts[np.repeat(firsts[phase.chains] + phase.before, phase.moved) + ranks] = phase.starts
    return starts


def total_sizes(buf: Bytes, starts: Positions) -> NDArray[np.int64]:
    """Return the total sizes that the heads at ``starts`` give, int64 (n,), cut off at the end of the buffer."""
    if len(buf) < FRAME_HEAD.itemsize:  # a truncated file
        return np.zeros(len(starts), np.int64)
    heads = gather_words(buf, np.minimum(starts, len(buf) - FRAME_HEAD.itemsize))
    left = np.maximum(len(buf) - starts, 0)
    return np.clip(heads.view(np.int32)[0::2].byteswap().astype(np.int64), 0, left)


def knows_its_place(buf: Bytes, position: int, physical_offset: int) -> bool:
    """Tell whether a head at ``position`` names this physical offset, whether or not its record is whole."""
    head = buf[position : position + FIXED_PART_V4.itemsize]
    if len(head) < FIXED_PART_V4.itemsize:
        return False
    fixed = head.view(FIXED_PART_V4)[0]
    return (
        int(fixed["magic"]) in TOPIC_LENGTH_BYTES
        and int(fixed["physical_offset"]) == physical_offset
    )


def know_their_places(buf: Bytes, positions: Positions, physical_base: int) -> Mask:
    """Return :func:`knows_its_place` of any positions, for the physical offsets that they have, as a mask (n,)."""
    mask = (positions >= 0) & (positions <= len(buf) - FIXED_PART_V4.itemsize)
    inside = positions[mask]
    if len(inside):
        fixed = windows(buf, FIXED_PART_V4.itemsize)[inside].view(FIXED_PART_V4)
        has_magic = np.isin(fixed["magic"].astype(np.int64), list(TOPIC_LENGTH_BYTES))
        mask[mask] = has_magic & (fixed["physical_offset"] == inside + physical_base)
    return mask


def find_next_record(buf: Bytes, start: int, end: int, physical_base: int) -> int:
    """Return the first position in ``[start, end)`` of a whole record with the right physical offset, or ``end``.

    This is how a walk goes on after damage. It could only be misled by a body that holds a copy of
    a record at exactly the physical offset that the copy names.
    """
    for low, high in search_blocks(start, end):
        heads = find_heads(buf, low, high, physical_base)
        if len(heads):
            records = heads[read_heads(buf, heads)[1]]
            if len(records):
                return int(records[0])
    return end


def search_blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, end)`` in which a search for the next record looks one after the other."""
    size = _RESYNC_BLOCKS[0]
    while start < end:
        yield start, min(start + size, end)
        start += size
        size = min(2 * size, _RESYNC_BLOCKS[1])


def find_heads(buf: Bytes, start: int, end: int, physical_base: int) -> Positions:
    """Return the positions in ``[start, end)``, rising, of all heads that know their place, of whole records or not."""
    near = buf[start + _MAGIC_AT : end + FRAME_HEAD.itemsize]
    hits = near == _MAGIC_HEAD[0]
    for index, byte in enumerate(_MAGIC_HEAD[1:], start=1):
        hits[:-index] &= near[index:] == byte
    hits[1 - len(_MAGIC_HEAD) :] = False
    candidates = np.flatnonzero(hits) + start
    candidates = candidates[candidates < end]
    return candidates[know_their_places(buf, candidates, physical_base)]


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
    """Yield slices that cover all records in order, each within ``max_rows`` and ``max_bytes``, or of one record."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows, len(sizes))
        yield slice(start, stop)
        start = stop


def heads_of(buf: Bytes, walked: Walk) -> Iterator[tuple[Positions, Heads, Mask]]:
    """Yield the starts of walked records, their heads and a mask of the whole ones, one batch at a time."""
    for rows in cut_batches(
        np.diff(walked.starts, append=walked.position), BATCH_ROWS, BATCH_BYTES
    ):
        starts = walked.starts[rows]
        yield starts, *read_heads(buf, starts)


def rejoin(data: Bytes, physical_base: int, walked: Walk) -> tuple[Positions, NDArray[np.int64]]:
    """Find the records that a walk stepped over because of a damaged total size; return all starts, and all sizes."""
    _, whole = read_heads(data, walked.starts)
    if whole.all():
        return walked.starts, np.diff(walked.starts, append=walked.position)
    parts: list[Positions] = []
    done = 0
    for row in np.flatnonzero(~whole).tolist():
        limit = int(walked.starts[row + 1]) if row + 1 < len(walked.starts) else walked.position
        parts.append(walked.starts[done : row + 1])
        parts += _records_inside(data, physical_base, int(walked.starts[row]) + 1, limit)
        done = row + 1
    parts.append(walked.starts[done:])
    starts = np.concatenate(parts)
    # Records overlap where a size is damaged, so the distance to the next start is not a size.
    return starts, total_sizes(data, starts)


def _records_inside(data: Bytes, physical_base: int, start: int, limit: int) -> list[Positions]:
    """Return the starts of the records between two positions, which need not be those of records."""
    parts: list[Positions] = []
    position = find_next_record(data, start, limit, physical_base)
    while position < limit:
        inside = walk_plainly(data, position, limit)
        parts.append(inside.starts)
        if inside.position >= limit:
            break
        position = find_next_record(data, inside.position + 1, limit, physical_base)
    return parts
