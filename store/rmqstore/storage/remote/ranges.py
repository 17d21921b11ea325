"""Which ranges of a file are requested, so that few requests fetch few bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES: Final = 32 << 10  # what the cache holds is made of blocks of this size
MAX_REQUEST_BYTES: Final = 8 << 20
_GAP_BYTES: Final = 256 << 10  # fetched along, because another request would take longer


def blocks_of(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the blocks that hold spans of bytes, rising and distinct.

    Args:
        starts: positions in the file, (n,).
        ends: positions after the spans, (n,); a span that ends where it starts needs no block.
    """
    is_filled = ends > starts
    firsts = starts[is_filled] // BLOCK_BYTES
    counts = (ends[is_filled] - 1) // BLOCK_BYTES - firsts + 1
    if len(counts) == 1:
        return np.arange(firsts[0], firsts[0] + counts[0])
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.repeat(firsts, counts) + offsets)


def runs_of(blocks: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the runs of blocks that follow one another: the first and the last of each.

    Args:
        blocks: numbers of blocks, rising and distinct, (n,).
    """
    if not len(blocks):
        return []
    ends = np.flatnonzero(np.diff(blocks) != 1)
    firsts = blocks[np.append(0, ends + 1)]
    lasts = blocks[np.append(ends, len(blocks) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def requests_for(
    blocks: NDArray[np.int64], size: int, max_bytes: int = MAX_REQUEST_BYTES
) -> list[tuple[int, int]]:
    """Return the ranges of bytes to request for blocks, rising.

    Args:
        blocks: numbers of blocks, rising, (n,).
        size: length of the file, where the last range ends at most.
        max_bytes: of one range.
    """
    if not len(blocks):
        return []
    far = np.flatnonzero((np.diff(blocks) - 1) * BLOCK_BYTES >= _GAP_BYTES) + 1
    firsts = blocks[np.append(0, far)]
    lasts = blocks[np.append(far - 1, len(blocks) - 1)]
    ranges = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        start, end = first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size)
        ranges += [(low, min(low + max_bytes, end)) for low in range(start, end, max_bytes)]
    return ranges
