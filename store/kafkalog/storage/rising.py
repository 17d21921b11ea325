"""Which batches have offsets that can be right: those of a log rise from batch to batch.

The CRC of a batch does not cover its base offset, so only the order shows a changed byte of it.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.storage.windows import Window

NO_LIMIT = int(np.iinfo(np.int64).max)


def batches_in_order(
    window: Window, floor: int, limit: int = NO_LIMIT, following: Window | None = None
) -> NDArray[np.bool_]:
    """Tell which batches of a window have offsets that rise, bool (n,).

    If some do not, the fewest batches are taken to be wrong. Those whose CRC is wrong as well are
    not in order either, if any are looked at: their heads may say anything.

    Args:
        window: the batches.
        floor: lower bound of their offsets.
        limit: the offsets lie before it.
        following: the next batches of the segment, which tell whether the last one here is wrong.
    """
    heads = window.heads
    n_after = 0 if following is None else len(following.heads)
    first, last = heads.base_offset, heads.last_offset
    if following is not None:
        first = np.concatenate([first, following.heads.base_offset])
        last = np.concatenate([last, following.heads.last_offset])
    rises = bool((last >= first).all() and (first[1:] > last[:-1]).all())
    if not len(first) or (rises and first[0] >= floor and last[-1] < limit):
        return np.ones(len(heads), np.bool_)
    sound = heads.check_crcs(window.data)
    if following is not None and n_after:
        sound = np.concatenate([sound, following.heads.check_crcs(following.data)])
    possible = np.flatnonzero(sound & (first >= floor) & (last >= first) & (last < limit))
    in_order = np.zeros(len(first), np.bool_)
    in_order[possible[_longest_rise(first[possible], last[possible])]] = True
    return in_order[: len(heads)]


def leaves_a_gap(heads: BatchHeads, next_offset: int) -> bool:
    """Tell whether the last batch does not begin right after the one before it.

    Args:
        heads: the batches.
        next_offset: the offset after all batches before them.
    """
    if not len(heads):
        return False
    before = int(heads.last_offset[-2]) + 1 if len(heads) > 1 else next_offset
    return int(heads.base_offset[-1]) != before


def _longest_rise(first: NDArray[np.int64], last: NDArray[np.int64]) -> list[int]:
    """Return the numbers of the most ranges that follow one another, in order."""
    ends: list[int] = []  # by how many ranges follow one another, the least end
    at: list[int] = []  # the last of those ranges
    before: list[int] = []  # each range's predecessor
    for number, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        length = bisect_left(ends, low)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(high)
            at.append(number)
        elif high < ends[length]:
            ends[length], at[length] = high, number
    chosen: list[int] = []
    number = at[-1] if at else -1
    while number >= 0:
        chosen.append(number)
        number = before[number]
    return chosen[::-1]
