"""Finds where records begin in several ranges of a buffer, by following their chains together."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import has_aligned_words, windows
from rmqstore.format.columns.search import guess_heads
from rmqstore.format.columns.walk import follow_chains
from rmqstore.format.framing import RECORDS, Framing
from rmqstore.format.layout import FRAME_HEAD, Bytes, Mask, Positions

_STRIPE_BYTES: Final = 128 << 10  # the chains of the ranges are many, so stripes may be long


class Walks(NamedTuple):
    """Records of several ranges of a buffer.

    Attributes:
        starts: int64 (n,), where the records begin, range by range.
        sizes: int64 (n,), the distance of each to the frame that follows it.
        counts: int64 (k,), the number of records in each range.
        is_sound: (k,) which ranges end properly; the records of the others mean nothing.
    """

    starts: Positions
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    is_sound: Mask


def walk_each(
    buf: Bytes,
    starts: Positions,
    ends: Positions,
    limits: Positions,
    physical_bases: Positions,
    framing: Framing = RECORDS,
) -> Walks:
    """Walk several ranges side by side.

    A walk over one of them alone is the same if it is sound, which means that it ends at the end of
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
    heads, ranges = _heads_of_chains(buf, starts, ends, physical_bases, framing)
    is_last = np.append(ranges[1:] != ranges[:-1], True)
    bounds = np.where(is_last, ends[ranges], np.append(heads[1:], 0))
    frames, chain_counts, last = follow_chains(buf, heads, bounds, framing)
    stops = last[is_last]
    words = windows(buf, FRAME_HEAD.itemsize)[np.clip(stops, 0, len(buf) - FRAME_HEAD.itemsize)]
    pairs = words.view(">i4").reshape(-1, 2)
    sizes = pairs[:, framing.size_word].tolist()
    magics = pairs[:, 1 - framing.size_word].tolist()
    is_blank = np.array(
        [*map(framing.is_blank, magics, sizes, (limits - stops).tolist())], np.bool_
    )
    is_sound = (stops == ends) & (ends == limits)
    is_sound |= is_blank & (stops + FRAME_HEAD.itemsize <= ends)
    is_sound &= ~np.isin(np.arange(len(starts)), ranges[~is_last & (last != bounds)])
    counts = np.bincount(ranges, chain_counts, len(starts)).astype(np.int64)
    ends_of_ranges = np.cumsum(counts)
    if framing.head_bytes:  # a record without a frame is refused by its size and magic alone
        firsts = (ends_of_ranges - counts)[counts > 0]
        range_of_rows = np.repeat(np.arange(len(starts)), counts)
        bases = physical_bases[range_of_rows]
        is_sound[range_of_rows[framing.refused_rows(buf, frames, bases, firsts)]] = False
    nexts = np.append(frames[1:], 0)
    nexts[ends_of_ranges[counts > 0] - 1] = stops[counts > 0]
    records = frames + framing.head_bytes
    return Walks(records, nexts - records, counts, is_sound)


def _heads_of_chains(
    buf: Bytes,
    starts: Positions,
    ends: Positions,
    physical_bases: Positions,
    framing: Framing,
) -> tuple[Positions, NDArray[np.int64]]:
    """Return where chains begin in ranges, and the range of each, (n,) each, rising."""
    heads = [starts]
    ranges = [np.arange(len(starts))]
    for number in np.flatnonzero(ends - starts >= 2 * _STRIPE_BYTES).tolist():
        low, high = int(starts[number]), int(ends[number])
        stripes = np.arange(low + _STRIPE_BYTES, high, _STRIPE_BYTES)
        guesses = np.unique(guess_heads(buf, stripes, int(physical_bases[number]), framing))
        guesses = guesses[guesses < high]
        heads.append(guesses)
        ranges.append(np.full(len(guesses), number))
    every = np.concatenate(heads)
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate(ranges)[order]
