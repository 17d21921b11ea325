"""Units of a BatchConsumeQueue as columns, and which are trusted: what their neighbours contradict is no unit."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import MAX_BATCH, Mask, Positions

_MAX_OFFSET = 1 << 60  # of a queue: sums stay far from the end of an int64


class Batches(NamedTuple):
    """Units as columns, (n,) each; their queue offsets rise and do not overlap."""

    numbers: Positions  # of the unit in the queue, the first there ever was is 0
    starts: Positions  # queue offset of its first message
    ends: Positions
    physical_offsets: Positions
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    def take(self, rows: slice | Mask) -> Batches:
        """Return the chosen units."""
        return Batches(*(column[rows] for column in self))


NO_BATCHES: Final = Batches(*[np.empty(0, np.int64)] * 6)


def trusted(units: NDArray[np.void], first: int) -> Batches:
    """Return the units that tell queue offsets which agree with those around them.

    Args:
        units: BATCH_UNIT (n,).
        first: number of the first.
    """
    bases, counts = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
    valid = np.flatnonzero((bases >= 0) & (bases < _MAX_OFFSET) & (counts > 0))
    units, bases, counts = units[valid], bases[valid], counts[valid]
    found = Batches(
        valid + first,
        bases,
        bases + counts,
        units["physical_offset"].astype(np.int64),
        units["size"].astype(np.int64),
        units["tags_code"].astype(np.int64),
    )
    contiguous = found.starts[1:] == found.ends[:-1]
    if contiguous.all():  # as nearly all files are
        return found
    adjacent = found.numbers[1:] == found.numbers[:-1] + 1
    linked, beside = np.zeros(len(bases), np.bool_), np.zeros(len(bases), np.bool_)
    linked[1:] |= adjacent & contiguous
    linked[:-1] |= adjacent & contiguous
    beside[1:] |= adjacent & linked[:-1]
    beside[:-1] |= adjacent & linked[1:]
    found = found.take(linked | ~beside)  # one that fits none of its neighbours, which fit others, is wrong
    found = found.take(agreeing(found.starts, found.ends, MAX_BATCH))
    np.minimum(found.ends[:-1], found.starts[1:], out=found.ends[:-1])
    return found


def agreeing(starts: Positions, ends: Positions, widest: int) -> Mask:
    """Return which stretches (n,) rise and lie near those beside them; if none lies near another, which rise."""
    votes = np.zeros(len(starts), np.int64)
    for step in (1, 2):
        gaps = starts[step:] - ends[:-step]
        agree = (gaps >= 0) & (gaps <= widest * step) & (starts[step:] > starts[:-step])
        votes[step:] += agree
        votes[: len(agree)] += agree
    kept = votes > 0 if votes.any() else np.ones(len(starts), np.bool_)
    places = np.flatnonzero(kept)
    highest = np.maximum.accumulate(starts[places])
    kept[places[1:][starts[places[1:]] <= highest[:-1]]] = False
    return kept


def with_unknown(found: Batches, start: int, number: int) -> Batches:
    """Add a unit for one message, of which nothing is known but that it stands there."""
    unknown = (number, start, start + 1, 0, 0, 0)
    return Batches(*(np.append(column, value) for column, value in zip(found, unknown, strict=True)))
