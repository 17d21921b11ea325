"""Finds where records begin, by walking the chain of their total sizes.

Only the chain proves where records begin; a magic inside a body proves nothing. The fast walk
follows many chains at once. It *guesses* where the others start, and keeps a chain only if the
previous one ends exactly where it starts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import aligned_words, gather_words, has_aligned_words
from rmqstore.format.columns.heads import Heads, read_heads
from rmqstore.format.columns.search import find_next_record, guess_heads
from rmqstore.format.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    BLANK_MAGIC,
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
# Compared in memory order, so that only the sizes have to be swapped to native order.
_RAW_MAGIC_V1, _RAW_MAGIC_V2 = np.array([MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2], ">i4").view(np.int32)

_STRIPES = 1024  # more stripes cost more in TLB misses than they save in calls
_MIN_STRIPE_BYTES = 32 << 10
_FEW_CHAINS = 16  # up to this number it is cheaper to follow chains one by one
_FEWEST_STEPS, _MOST_STEPS = 4, 64  # of all chains between two checks
_WORD_BITS, _IN_WORD, _WORD_WIDTH = np.uint64(3), np.uint64(7), np.uint64(64)


class StopKind(Enum):
    """Why a walk ended."""

    END = "the end of the range"
    BLANK = "the blank that closes a file"
    EMPTY = "bytes never written"
    DAMAGE = "not a record"


class Walk(NamedTuple):
    """Records that follow one another, and what ended the walk.

    Attributes:
        starts: int64 (n,), where the records begin.
        kind: why the walk ended.
        position: where it ended: at the end of the range or beyond, or at bytes that are not the
            head of a record.
        reason: what is wrong with these bytes, if they are damaged.
    """

    starts: Positions
    kind: StopKind
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
    view = buf.data
    starts = []
    position = start
    while position < end:
        left = len(buf) - position
        if left < FRAME_HEAD.itemsize:
            break
        total_size, magic = _FRAME_HEAD.unpack_from(view, position)
        if magic not in TOPIC_LENGTH_BYTES or not MIN_RECORD_BYTES <= total_size <= left:
            break
        starts.append(position)
        position += total_size
    return _stopped(buf, np.array(starts, np.int64), position, end)


def _stopped(buf: Bytes, starts: Positions, position: int, end: int) -> Walk:
    """Return a walk that ended at a position, with the bytes there as the reason."""
    if position >= end:
        return Walk(starts, StopKind.END, position)
    left = len(buf) - position
    if left < FRAME_HEAD.itemsize:
        kind = StopKind.DAMAGE if buf[position:].any() else StopKind.EMPTY
        reason = f"{left} bytes are left, too few for a record or a blank"
        return Walk(starts, kind, position, reason)
    total_size, magic = _FRAME_HEAD.unpack_from(buf.data, position)
    # Source: CommitLog.java#checkMessageAndReturnSize: a shorter blank ends the file too.
    if magic == BLANK_MAGIC and total_size <= left:
        return Walk(starts, StopKind.BLANK, position)
    if total_size == 0 and magic == 0:
        return Walk(starts, StopKind.EMPTY, position)
    if magic == BLANK_MAGIC:
        reason = f"a blank of {total_size} bytes where {left} bytes are left"
    elif magic not in TOPIC_LENGTH_BYTES:
        reason = f"magic {magic & 0xFFFFFFFF:#010x} is neither a record's nor a blank's"
    else:
        reason = (
            f"total size {total_size} is not between {MIN_RECORD_BYTES} "
            f"and the {left} bytes left in the file"
        )
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
    stripes = np.linspace(start, end, n_stripes, endpoint=False).astype(np.int64)
    guesses = guess_heads(buf, stripes[1:], physical_base)
    heads = np.unique(np.append(guesses, start))
    bounds = np.append(heads[1:], end)
    chains, counts, last = follow_chains(buf, heads, bounds)
    if (last == bounds).all():
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
        next_chain = chain + 1 if is_head else chain
        next_head = int(heads[next_chain]) if next_chain < len(heads) else end
        if is_head:
            starts = chains[firsts[chain] : firsts[chain + 1]]
            stop = int(last[chain])
        else:
            plain = walk_plainly(buf, position, next_head)
            starts = plain.starts
            stop = plain.position
        parts.append(starts)
        is_stuck = stop < next_head or stop == position
        position = stop
        if is_stuck:
            break
    return _stopped(buf, np.concatenate(parts) if parts else np.empty(0, np.int64), position, end)


def follow_chains(
    buf: Bytes, heads: Positions, bounds: Positions
) -> tuple[Positions, NDArray[np.int64], Positions]:
    """Follow every chain from its head until it reaches its bound or breaks.

    Returns:
        All starts, chain by chain; the number of records of each chain; where each chain ended.
    """
    last = heads.copy()
    counts = np.zeros(len(heads), np.int64)
    phases: list[_Phase] = []
    alive = np.arange(len(heads))
    while len(alive):
        follow = _follow_together if len(alive) > _FEW_CHAINS else _follow_singly
        chains = _Chains(alive, last[alive], counts[alive], bounds[alive])
        phase, ends, running = follow(buf, chains)
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
    cursors: Positions  # where the next record of each chain begins
    before: NDArray[np.int64]  # number of records that each chain has so far
    bounds: Positions  # where each chain has to end


def _follow_together(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Take a block of steps on all chains, then count how many steps of each were valid.

    Returns:
        The phase; where each chain is now; a mask of the chains that have not ended yet.
    """
    cursors = chains.cursors
    n_chains = len(cursors)
    words = aligned_words(buf)
    next_words = words[1:]
    last_head = len(buf) - 2 * FRAME_HEAD.itemsize
    limit = np.uint64(last_head)
    n_steps = _block_steps(buf, chains)
    visited = np.empty((n_steps + 1, n_chains), np.int64)
    heads = np.empty((n_steps, n_chains), np.uint64)
    for step in range(n_steps):
        visited[step] = cursors
        # As an unsigned number a negative cursor is beyond the limit too.
        positions = np.minimum(cursors.view(np.uint64), limit)
        word = (positions >> _WORD_BITS).view(np.int64)
        shift = (positions & _IN_WORD) << _WORD_BITS
        heads[step] = (words[word] >> shift) | (next_words[word] << (_WORD_WIDTH - shift))
        cursors = cursors + heads[step].view(np.int32)[0::2].byteswap()
    visited[n_steps] = cursors
    raw = heads.view(np.int32).reshape(n_steps, n_chains, 2)
    sizes = raw[:, :, 0].byteswap()
    magics = raw[:, :, 1]
    begins = visited[:-1]
    is_valid = (magics == _RAW_MAGIC_V1) | (magics == _RAW_MAGIC_V2)
    is_valid &= (begins < chains.bounds) & (begins <= last_head)
    is_valid &= (sizes >= MIN_RECORD_BYTES) & (sizes <= len(buf) - begins)
    is_valid = np.logical_and.accumulate(is_valid, axis=0)
    moved = np.count_nonzero(is_valid, axis=0)
    phase = _Phase(chains.numbers, chains.before, moved, begins.T[is_valid.T])
    return phase, visited[moved, np.arange(n_chains)], is_valid[-1]


def _follow_singly(buf: Bytes, chains: _Chains) -> tuple[_Phase, Positions, Mask]:
    """Follow one chain after the other, each to its end; returns as :func:`_follow_together`."""
    pairs = zip(chains.cursors.tolist(), chains.bounds.tolist(), strict=True)
    walks = [walk_plainly(buf, cursor, bound) for cursor, bound in pairs]
    moved = np.array([len(walked.starts) for walked in walks])
    starts = np.concatenate([walked.starts for walked in walks])
    phase = _Phase(chains.numbers, chains.before, moved, starts)
    return phase, np.array([walked.position for walked in walks]), np.zeros(len(walks), np.bool_)


def _block_steps(buf: Bytes, chains: _Chains) -> int:
    """Estimate how many steps most chains still need."""
    heads = gather_words(buf, np.minimum(chains.cursors, len(buf) - FRAME_HEAD.itemsize))
    sizes = heads.view(np.int32)[0::2].byteswap()
    record_bytes = max(float(np.median(sizes)), MIN_RECORD_BYTES)
    steps = np.median(chains.bounds - chains.cursors) / record_bytes
    return int(np.clip(steps, _FEWEST_STEPS, _MOST_STEPS))


def _join(phases: list[_Phase], counts: NDArray[np.int64]) -> Positions:
    """Return the starts of all phases, chain by chain."""
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    for phase in phases:
        phase_firsts = np.cumsum(phase.moved) - phase.moved
        ranks = np.arange(len(phase.starts)) - np.repeat(phase_firsts, phase.moved)
        targets = np.repeat(firsts[phase.chains] + phase.before, phase.moved)
        starts[targets + ranks] = phase.starts
    return starts


def total_sizes(buf: Bytes, starts: Positions) -> NDArray[np.int64]:
    """Return the total sizes of the records at ``starts``, int64 (n,).

    They are taken from the heads, and cut off at the end of the buffer.
    """
    if len(buf) < FRAME_HEAD.itemsize:  # a truncated file
        return np.zeros(len(starts), np.int64)
    heads = gather_words(buf, np.minimum(starts, len(buf) - FRAME_HEAD.itemsize))
    left = np.maximum(len(buf) - starts, 0)
    return np.clip(heads.view(np.int32)[0::2].byteswap().astype(np.int64), 0, left)


def cut_batches(sizes: NDArray[np.int64], max_rows: int, max_bytes: int) -> Iterator[slice]:
    """Yield slices that cover all records in order, within both limits or of one record each."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows, len(sizes))
        yield slice(start, stop)
        start = stop


def heads_of(buf: Bytes, walked: Walk) -> Iterator[tuple[Positions, Heads, Mask]]:
    """Yield batches of walked records: where they begin, their heads, and which are whole."""
    sizes = np.diff(walked.starts, append=walked.position)
    for rows in cut_batches(sizes, BATCH_ROWS, BATCH_BYTES):
        starts = walked.starts[rows]
        yield starts, *read_heads(buf, starts)


def have_true_sizes(data: Bytes, physical_base: int, starts: Positions) -> Mask:
    """Return a mask (n,) of the records whose total size can be believed.

    They are whole, and stand where they say. A record of another place may have come there with a
    page of the disk, which need not hold all of it.
    """
    heads, whole = read_heads(data, starts)
    mask: Mask = whole & (heads.column("physical_offset") == starts + physical_base)
    return mask


def rejoin(data: Bytes, physical_base: int, walked: Walk) -> tuple[Positions, NDArray[np.int64]]:
    """Find the records that a walk stepped over because a total size led it too far.

    Returns:
        Where all records begin, and their sizes, int64 (n,) each.
    """
    has_true_size = have_true_sizes(data, physical_base, walked.starts)
    if has_true_size.all():
        return walked.starts, np.diff(walked.starts, append=walked.position)
    parts: list[Positions] = []
    done = 0
    for row in np.flatnonzero(~has_true_size).tolist():
        limit = int(walked.starts[row + 1]) if row + 1 < len(walked.starts) else walked.position
        parts.append(walked.starts[done : row + 1])
        parts += _records_inside(data, physical_base, int(walked.starts[row]) + 1, limit)
        done = row + 1
    parts.append(walked.starts[done:])
    starts = np.concatenate(parts)
    # Records overlap where a size is damaged, so the distance to the next start is not a size.
    return starts, total_sizes(data, starts)


def _records_inside(data: Bytes, physical_base: int, start: int, limit: int) -> list[Positions]:
    """Return the starts of the records between two positions; no record need begin at these."""
    parts: list[Positions] = []
    position = find_next_record(data, start, limit, physical_base)
    while position < limit:
        inside = walk_plainly(data, position, limit)
        parts.append(inside.starts)
        if inside.position >= limit:
            break
        position = find_next_record(data, inside.position + 1, limit, physical_base)
    return parts
