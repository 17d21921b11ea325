"""Finds where records begin in several ranges of a buffer, by following their chains together."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import has_aligned_words, windows
from rmqstore.format.columns.search import guess_heads
from rmqstore.format.columns.walk import follow_chains
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, Bytes, Mask, Positions

_STRIPE_BYTES: Final = 128 << 10  # the chains of the ranges are many, so stripes may be long


class Walks(NamedTuple):
    """Records of several ranges of a buffer.

    Attributes:
        starts: int64 (n,), where the records begin, range by range.
        sizes: int64 (n,), the distance of each to what follows it.
        counts: int64 (k,), the number of records in each range.
        is_sound: (k,) which ranges end properly; the records of the others mean nothing.
    """

    starts: Positions
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    is_sound: Mask


def walk_each(
    buf: Bytes, starts: Positions, ends: Positions, limits: Positions, physical_bases: Positions
) -> Walks:
    """Walk several ranges side by side.

    A walk over one of them alone is the same if it is sound, which means that it ends at the end of
    the file or at a blank.

    Args:
        buf: uint8 (nbytes,), more than the ranges by a few bytes.
        starts: (k,), where the ranges begin, rising: each at the head of a record.
        ends: (k,), where they end.
        limits: (k,), where their files would end if the buffer held all of these.
        physical_bases: (k,), the difference between physical offsets and positions in each.
    """
    if not has_aligned_words(buf):
        nothing = np.empty(0, np.int64)
        counts = np.zeros(len(starts), np.int64)
        return Walks(nothing, nothing, counts, np.zeros(len(starts), np.bool_))
    heads, ranges = _heads_of_chains(buf, starts, ends, physical_bases)
    is_last = np.append(ranges[1:] != ranges[:-1], True)
    bounds = np.where(is_last, ends[ranges], np.append(heads[1:], 0))
    chains, chain_counts, last = follow_chains(buf, heads, bounds)
    stops = last[is_last]
    frames = windows(buf, FRAME_HEAD.itemsize)[np.clip(stops, 0, len(buf) - FRAME_HEAD.itemsize)]
    frames = frames.view(FRAME_HEAD)
    is_blank = (frames["magic"] == BLANK_MAGIC) & (frames["total_size"] <= limits - stops)
    is_sound = (stops == ends) & (ends == limits)
    is_sound |= is_blank & (stops + FRAME_HEAD.itemsize <= ends)
    is_sound &= ~np.isin(np.arange(len(starts)), ranges[~is_last & (last != bounds)])
    counts = np.bincount(ranges, chain_counts, len(starts)).astype(np.int64)
    nexts = np.append(chains[1:], 0)
    nexts[np.cumsum(counts)[counts > 0] - 1] = stops[counts > 0]
    return Walks(chains, nexts - chains, counts, is_sound)


def _heads_of_chains(
    buf: Bytes, starts: Positions, ends: Positions, physical_bases: Positions
) -> tuple[Positions, NDArray[np.int64]]:
    """Return where chains begin in ranges, and the range of each, (n,) each, rising."""
    heads = [starts]
    ranges = [np.arange(len(starts))]
    for number in np.flatnonzero(ends - starts >= 2 * _STRIPE_BYTES).tolist():
        low, high = int(starts[number]), int(ends[number])
        stripes = np.arange(low + _STRIPE_BYTES, high, _STRIPE_BYTES)
        guesses = np.unique(guess_heads(buf, stripes, int(physical_bases[number])))
        guesses = guesses[guesses < high]
        heads.append(guesses)
        ranges.append(np.full(len(guesses), number))
    every = np.concatenate(heads)
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate(ranges)[order]
