"""Units of a BatchConsumeQueue as columns, and the choice of those that can be trusted."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import MAX_BATCH, Mask, Positions

_MAX_QUEUE_OFFSET = 1 << 60  # sums stay far from the limit of an int64


class Batches(NamedTuple):
    """Units as columns, (n,) each; their queue offsets rise and do not overlap."""

    numbers: Positions  # ordinal of the unit in the queue, 0 for the first one ever written
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
    """Return the units whose queue offsets agree with those of the units around them.

    Two units are linked if they stand side by side and the messages of the second begin where those
    of the first end. A unit without a link is dropped if a unit beside it has one. Of the others
    :func:`agreeing` chooses, and each ends where the next one begins at the latest.

    An example with a unit whose queue offset is damaged, and one whose number of messages is::

        numbers     0    1       2     3      4      5      6
        messages  0-3  3-7  99-101  9-11  11-19  15-16  16-18   # first and end, which is excluded
        linked    yes  yes      no   yes    yes    yes    yes
        returned  0-3  3-7          9-11  11-15  15-16  16-18   # no unit covers 7 and 8

    Args:
        units: BATCH_UNIT (n,).
        first: number of the first unit.
    """
    bases, counts = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
    valid = np.flatnonzero((bases >= 0) & (bases < _MAX_QUEUE_OFFSET) & (counts > 0))
    units, bases, counts = units[valid], bases[valid], counts[valid]
    batches = Batches(
        valid + first,
        bases,
        bases + counts,
        units["physical_offset"].astype(np.int64),
        units["size"].astype(np.int64),
        units["tags_code"].astype(np.int64),
    )
    is_contiguous = batches.starts[1:] == batches.ends[:-1]
    if is_contiguous.all():  # as in nearly all files
        return batches
    is_adjacent = batches.numbers[1:] == batches.numbers[:-1] + 1
    is_link = is_adjacent & is_contiguous  # between a unit and the next one
    is_linked = np.append(False, is_link) | np.append(is_link, False)
    is_after_linked = np.append(False, is_adjacent & is_linked[:-1])
    is_before_linked = np.append(is_adjacent & is_linked[1:], False)
    batches = batches.take(is_linked | ~(is_after_linked | is_before_linked))
    batches = batches.take(agreeing(batches.starts, batches.ends, MAX_BATCH))
    np.minimum(batches.ends[:-1], batches.starts[1:], out=batches.ends[:-1])
    return batches


def agreeing(starts: Positions, ends: Positions, widest: int) -> Mask:
    """Return a mask (n,) of the rising ranges that continue a neighbour or are continued by one.

    A neighbour is one or two steps away. The gap between the two is not negative, and no more than
    ``widest`` for each step. If no two ranges agree, the mask has all ranges that rise.

    An example with ranges that are up to 10 wide::

        starts      0     3   500     8    12
        ends        3     8   502    12    15
        one step      0   492  -494     0        # gaps: the first and the last agree
        two steps       497     0  -490          # the one in the middle does
        votes       1     2     0     2     1
        mask      yes   yes    no   yes   yes
    """
    votes = np.zeros(len(starts), np.int64)
    for step in (1, 2):
        gaps = starts[step:] - ends[:-step]
        agree = (gaps >= 0) & (gaps <= widest * step) & (starts[step:] > starts[:-step])
        votes[step:] += agree
        votes[: len(agree)] += agree
    elected = np.flatnonzero(votes > 0) if votes.any() else np.arange(len(starts))
    highest = np.maximum.accumulate(starts[elected])
    rises = np.ones(len(elected), np.bool_)
    rises[1:] = starts[elected[1:]] > highest[:-1]
    mask = np.zeros(len(starts), np.bool_)
    mask[elected[rises]] = True
    return mask


def with_unknown(batches: Batches, start: int, number: int) -> Batches:
    """Append a unit for one message of which only the queue offset is known."""
    unknown = (number, start, start + 1, 0, 0, 0)
    columns = zip(batches, unknown, strict=True)
    return Batches(*(np.append(column, value) for column, value in columns))
