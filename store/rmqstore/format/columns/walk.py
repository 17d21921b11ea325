"""Finds where records begin, by walking the chain of their sizes.

Only the chain proves where records begin; a magic inside a body proves nothing. The chain goes from
frame to frame, as the framing of a file says. The fast walk follows many chains at once. It
*guesses* where the others start, and keeps a chain only if the previous one ends exactly where it
starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import gather_words, has_aligned_words, windows
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.columns.search import find_next_record, guess_headers
from rmqstore.format.framing import RECORDS, FrameNumbers, Framing, StopKind
from rmqstore.format.layout import (
    FRAME_HEAD,
    Bytes,
    Mask,
    Positions,
)

_STRIPE_BYTES: Final = 128 << 10  # the chains of the ranges are many, so stripes may be long

_STRIPES = 1024  # more stripes cost more in TLB misses than they save in calls
_MIN_STRIPE_BYTES = 32 << 10
_FEW_CHAINS = 16  # up to this number it is cheaper to follow chains one by one
_FEWEST_STEPS, _MOST_STEPS = 4, 64  # of all chains between two checks


class Walks(NamedTuple):
    """Records of several ranges of a buffer.

    Attributes:
        starts: int64 (n,), where the records begin, range by range.
        sizes: int64 (n,), the distance of each to the frame that follows it.
        counts: int64 (k,), the number of records in each range.
        is_valid: (k,) which ranges end properly; the records of the others mean nothing.
    """

    starts: Positions
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    is_valid: Mask


def walk_each(
    buf: Bytes,
    starts: Positions,
    ends: Positions,
    limits: Positions,
    physical_bases: Positions,
    framing: Framing = RECORDS,
) -> Walks:
    """Walk several ranges side by side.

    A walk over one of them alone is the same if it is valid, which means that it ends at the end of
    the file or at a blank.

    Args:
        buf: uint8 (nbytes,), more than the ranges by a few bytes.
        starts: (k,), where the ranges begin, rising: each at the head of a frame.
        ends: (k,), where they end.
        limits: (k,), where their files would end if the buffer held all of these.
        physical_bases: (k,), the difference between physical offsets and positions in each.
        framing: how records follow one another, in all ranges.
    """
    if not has_aligned_words(buf):
        nothing = np.empty(0, np.int64)
        counts = np.zeros(len(starts), np.int64)
        return Walks(nothing, nothing, counts, np.zeros(len(starts), np.bool_))
    # Where chains begin, and the range of each, rising: a long range has several.
    firsts_of_chains = [starts]
    ranges_of_chains = [np.arange(len(starts))]
    for number in np.flatnonzero(ends - starts >= 2 * _STRIPE_BYTES).tolist():
        low, high = int(starts[number]), int(ends[number])
        stripes = np.arange(low + _STRIPE_BYTES, high, _STRIPE_BYTES)
        guesses = np.unique(guess_headers(buf, stripes, int(physical_bases[number]), framing))
        guesses = guesses[guesses < high]
        firsts_of_chains.append(guesses)
        ranges_of_chains.append(np.full(len(guesses), number))
    headers = np.concatenate(firsts_of_chains)
    order = np.argsort(headers, kind="stable")
    headers = headers[order]
    ranges = np.concatenate(ranges_of_chains)[order]
    is_last = np.append(ranges[1:] != ranges[:-1], True)
    bounds = np.where(is_last, ends[ranges], np.append(headers[1:], 0))
    frames, chain_counts, last = follow_chains(buf, headers, bounds, framing)
    stops = last[is_last]
    words = windows(buf, FRAME_HEAD.itemsize)[np.clip(stops, 0, len(buf) - FRAME_HEAD.itemsize)]
    pairs = words.view(">i4").reshape(-1, 2)
    sizes = pairs[:, framing.size_word].tolist()
    magics = pairs[:, 1 - framing.size_word].tolist()
    is_blank = np.array(
        [*map(framing.is_blank, magics, sizes, (limits - stops).tolist())], np.bool_
    )
    is_valid = (stops == ends) & (ends == limits)
    is_valid |= is_blank & (stops + FRAME_HEAD.itemsize <= ends)
    is_valid &= ~np.isin(np.arange(len(starts)), ranges[~is_last & (last != bounds)])
    counts = np.bincount(ranges, chain_counts, len(starts)).astype(np.int64)
    ends_of_ranges = np.cumsum(counts)
    if framing.head_bytes:  # a record without a frame is refused by its size and magic alone
        firsts = (ends_of_ranges - counts)[counts > 0]
        range_of_rows = np.repeat(np.arange(len(starts)), counts)
        bases = physical_bases[range_of_rows]
        is_valid[range_of_rows[framing.refused_rows(buf, frames, bases, firsts)]] = False
    nexts = np.append(frames[1:], 0)
    nexts[ends_of_ranges[counts > 0] - 1] = stops[counts > 0]
    records = frames + framing.head_bytes
    return Walks(records, nexts - records, counts, is_valid)


class Walk(NamedTuple):
    """Consecutive records, and the reason for the end of the walk.

    Attributes:
        starts: int64 (n,), where the records begin.
        kind: why the walk ended.
        position: where it ended: at the end of the range or beyond, or at bytes that are not the
            head of a frame.
        reason: what is wrong with these bytes, if they are damaged.
        head_bytes: bytes of each frame before its record.
        last: the numbers of the last frame, which the next one has to continue.
    """

    starts: Positions
    kind: StopKind
    position: int
    reason: str = ""
    head_bytes: int = 0
    last: FrameNumbers | None = None

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes from each record to the frame after it, int64 (n,)."""
        return np.diff(self.starts, append=self.position + self.head_bytes) - self.head_bytes


def walk_plainly(
    buf: Bytes,
    start: int,
    end: int,
    physical_base: int = 0,
    framing: Framing = RECORDS,
    after: FrameNumbers | None = None,
) -> Walk:
    """Walk frame by frame from ``start``; :func:`walk` must equal it.

    Args:
        buf: uint8 (nbytes,), one file of the log.
        start: position of a frame.
        end: frames that begin before this position are walked; at most nbytes.
        physical_base: physical offset of the buffer's first byte.
        framing: how records follow one another.
        after: the numbers of the frame before ``start``, None if they are not known.
    """
    frames, position = framing.follow(buf, start, end, physical_base, after)
    return _walked(buf, frames, position, end, physical_base, framing, after)


def _walked(
    buf: Bytes,
    frames: Positions,
    position: int,
    end: int,
    physical_base: int,
    framing: Framing,
    after: FrameNumbers | None,
) -> Walk:
    """Return a walk over frames that ended at a position, with the bytes there as the reason."""
    last = framing.numbers(buf, int(frames[-1])) if len(frames) else after
    starts = frames + framing.head_bytes if framing.head_bytes else frames
    kind, reason = StopKind.END, ""
    if position < end:
        kind, reason = framing.stop(buf, position, physical_base, last)
    return Walk(starts, kind, position, reason, framing.head_bytes, last)


def walk(
    buf: Bytes,
    start: int,
    end: int,
    physical_base: int,
    framing: Framing = RECORDS,
    after: FrameNumbers | None = None,
) -> Walk:
    """Walk as :func:`walk_plainly` does, but follow many chains in lockstep.

    Args:
        buf, start, end, physical_base, framing, after: as for :func:`walk_plainly`.
    """
    n_stripes = min(_STRIPES, (end - start) // _MIN_STRIPE_BYTES)
    if n_stripes < 2 or not has_aligned_words(buf):
        return walk_plainly(buf, start, end, physical_base, framing, after)
    stripes = np.linspace(start, end, n_stripes, endpoint=False).astype(np.int64)
    guesses = guess_headers(buf, stripes[1:], physical_base, framing)
    headers = np.concatenate(([start], guesses))  # guesses rise, as one stripe is far from the next
    bounds = np.append(headers[1:], end)
    chains, counts, last = follow_chains(buf, headers, bounds, framing)
    if (last[:-1] == bounds[:-1]).all():
        frames, position = chains, int(last[-1])
    else:
        # Chains that join up are kept. Where one misses the next, a plain walk leads to a later
        # chain.
        firsts = np.concatenate(([0], np.cumsum(counts)))
        parts: list[Positions] = [np.empty(0, np.int64)]
        position = start
        while position < end:
            chain = int(np.searchsorted(headers, position))
            is_head = chain < len(headers) and headers[chain] == position
            next_chain = chain + 1 if is_head else chain
            next_head = int(headers[next_chain]) if next_chain < len(headers) else end
            if is_head:
                frames = chains[firsts[chain] : firsts[chain + 1]]
                stop = int(last[chain])
            else:
                frames, stop = framing.follow(buf, position, next_head, physical_base, None)
            parts.append(frames)
            is_stuck = stop < next_head or stop == position
            position = stop
            if is_stuck:
                break
        frames = np.concatenate(parts)
    first = np.zeros(min(len(frames), 1), np.int64)
    refused = framing.refused_rows(buf, frames, physical_base, first, after)
    if len(refused):
        position = int(frames[refused[0]])
        frames = frames[: refused[0]]
    return _walked(buf, frames, position, end, physical_base, framing, after)


def follow_chains(
    buf: Bytes, headers: Positions, bounds: Positions, framing: Framing = RECORDS
) -> tuple[Positions, NDArray[np.int64], Positions]:
    """Follow every chain of frames from its head until it reaches its bound or breaks.

    Only magics and sizes are looked at; ``framing.refused_rows`` finds what else is wrong.

    Returns:
        All starts, chain by chain; the number of frames of each chain; where each chain ended.
    """
    last = headers.copy()
    counts = np.zeros(len(headers), np.int64)
    phases: list[_Phase] = []
    alive = np.arange(len(headers))
    while len(alive):
        follow = _follow_together if len(alive) > _FEW_CHAINS else _follow_singly
        chains = _Chains(alive, last[alive], counts[alive], bounds[alive])
        phase, ends, running = follow(buf, chains, framing)
        phases.append(phase)
        last[alive] = ends
        counts[alive] += phase.moved
        alive = alive[running]
    # The starts of all phases, chain by chain.
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    for phase in phases:
        phase_firsts = np.cumsum(phase.moved) - phase.moved
        ranks = np.arange(len(phase.starts)) - np.repeat(phase_firsts, phase.moved)
        targets = np.repeat(firsts[phase.chains] + phase.before, phase.moved)
        starts[targets + ranks] = phase.starts
    return starts, counts, last


class _Phase(NamedTuple):
    """Frames that were added to some chains by following them together."""

    chains: NDArray[np.int64]  # numbers of the chains
    before: NDArray[np.int64]  # number of frames that each chain had before
    moved: NDArray[np.int64]  # number of frames added to each chain
    starts: Positions  # of the added frames, chain by chain


class _Chains(NamedTuple):
    """Chains to be followed side by side."""

    numbers: NDArray[np.int64]
    cursors: Positions  # where the next frame of each chain begins
    before: NDArray[np.int64]  # number of frames that each chain has so far
    bounds: Positions  # where each chain has to end


def _follow_together(
    buf: Bytes, chains: _Chains, framing: Framing
) -> tuple[_Phase, Positions, Mask]:
    """Take a block of steps on all chains, then count how many steps of each were valid.

    Returns:
        The phase; where each chain is now; a mask of the chains that have not ended yet.
    """
    cursors = chains.cursors
    n_chains = len(cursors)
    words = windows(buf, FRAME_HEAD.itemsize)
    last_head = len(buf) - 2 * FRAME_HEAD.itemsize
    limit = np.uint64(last_head)
    size_word = framing.size_word
    # As many steps as most chains still need, by the sizes of their next frames.
    next_headers = words[np.minimum(cursors, len(words) - 1)]
    next_sizes = next_headers.view(np.int32)[size_word::2].byteswap()
    frame_bytes = max(_middle(next_sizes), framing.min_bytes)
    n_needed = _middle(chains.bounds - cursors) / frame_bytes
    n_steps = int(np.clip(n_needed, _FEWEST_STEPS, _MOST_STEPS))
    visited = np.empty((n_steps + 1, n_chains), np.int64)
    headers = np.empty((n_steps, n_chains), words.dtype)
    raw = headers.view(np.int32).reshape(n_steps, n_chains, 2)
    for step in range(n_steps):
        visited[step] = cursors
        # As an unsigned number a negative cursor is beyond the limit too.
        positions = np.minimum(cursors.view(np.uint64), limit)
        headers[step] = words[positions.view(np.int64)]
        cursors = cursors + raw[step, :, size_word].byteswap()
    visited[n_steps] = cursors
    sizes = raw[:, :, size_word].byteswap()
    magics = raw[:, :, 1 - size_word]
    begins = visited[:-1]
    is_valid = magics == framing.raw_magics[0]
    for magic in framing.raw_magics[1:]:
        is_valid |= magics == magic
    is_valid &= (begins < chains.bounds) & (begins <= last_head)
    is_valid &= (sizes >= framing.min_bytes) & (sizes <= len(buf) - begins)
    is_valid = np.logical_and.accumulate(is_valid, axis=0)
    moved = np.count_nonzero(is_valid, axis=0)
    phase = _Phase(chains.numbers, chains.before, moved, begins.T[is_valid.T])
    return phase, visited[moved, np.arange(n_chains)], is_valid[-1]


def _follow_singly(buf: Bytes, chains: _Chains, framing: Framing) -> tuple[_Phase, Positions, Mask]:
    """Follow one chain after the other, each to its end; returns as :func:`_follow_together`."""
    pairs = zip(chains.cursors.tolist(), chains.bounds.tolist(), strict=True)
    followed = [framing.follow_by_size(buf, cursor, bound) for cursor, bound in pairs]
    moved = np.array([len(frames) for frames, _ in followed])
    starts = np.concatenate([frames for frames, _ in followed])
    phase = _Phase(chains.numbers, chains.before, moved, starts)
    ends = np.array([position for _, position in followed])
    return phase, ends, np.zeros(len(followed), np.bool_)


def _middle(values: NDArray[np.integer[Any]]) -> int:
    """Return the upper median, much faster than numpy's."""
    middle = len(values) // 2
    return int(np.partition(values, middle)[middle])


def total_sizes(buf: Bytes, starts: Positions) -> NDArray[np.int64]:
    """Return the total sizes of the records at ``starts``, int64 (n,).

    They are taken from the headers, and cut off at the end of the buffer.
    """
    if len(buf) < FRAME_HEAD.itemsize:  # a truncated file
        return np.zeros(len(starts), np.int64)
    headers = gather_words(buf, np.minimum(starts, len(buf) - FRAME_HEAD.itemsize))
    left = np.maximum(len(buf) - starts, 0)
    return np.clip(headers.view(np.int32)[0::2].byteswap().astype(np.int64), 0, left)


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


def have_true_sizes(data: Bytes, physical_base: int, starts: Positions) -> Mask:
    """Return a mask (n,) of the records whose total size can be believed.

    They are whole, and stand where they say. A record of another place may have come there with a
    page of the disk, which need not hold all of it.
    """
    headers, whole = read_headers(data, starts)
    mask: Mask = whole & (headers.column("physical_offset") == starts + physical_base)
    return mask


def rejoin(
    data: Bytes, physical_base: int, walked: Walk, framing: Framing = RECORDS
) -> tuple[Positions, NDArray[np.int64]]:
    """Find the records that a walk stepped over because a size led it too far.

    Returns:
        Where all records begin, and their sizes, int64 (n,) each.
    """
    has_true_size = have_true_sizes(data, physical_base, walked.starts)
    if has_true_size.all():
        return walked.starts, walked.sizes()
    nexts = walked.starts + walked.sizes()
    parts: list[Positions] = []
    done = 0
    for row in np.flatnonzero(~has_true_size).tolist():
        limit = int(nexts[row])
        parts.append(walked.starts[done : row + 1])
        position = int(walked.starts[row]) + 1  # no frame need begin there
        while position < limit:
            frame = find_next_record(data, position, limit, physical_base, framing)
            inside = walk_plainly(data, frame, limit, physical_base, framing)
            parts.append(inside.starts)
            position = inside.position + 1
        done = row + 1
    parts.append(walked.starts[done:])
    starts = np.concatenate(parts)
    # Records overlap where a size is damaged, so the distance to the next start is not a size.
    return starts, total_sizes(data, starts)
