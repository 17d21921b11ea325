"""Messages of one queue as their records tell of them, before the queue may have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.heads import Heads
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.queue.units import RecoveredUnits

_COLUMNS = ("queue_offset", "physical_offset", "total_size")


class LoggedMessages(NamedTuple):
    """Messages of one queue according to their records, in the order of the log, (n,) each."""

    queue_offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]  # zeros where nobody asks for them

    @classmethod
    def of(cls, heads: Heads, tags_codes: NDArray[np.int64]) -> Self:
        """Return the messages of records."""
        columns = [heads.column(name).astype(np.int64) for name in _COLUMNS]
        return cls._make([*columns, tags_codes])

    @classmethod
    def joined(cls, parts: Iterable[LoggedMessages]) -> Self:
        """Return the messages of all parts, one part after the other."""
        return cls._make(np.concatenate(column) for column in zip(*parts, strict=True))

    def after(self, recovered: RecoveredUnits) -> RecoveredUnits | None:
        """Return recovered units with those of the messages that follow them.

        None if a message does not follow on the one before, or is not the one that is known.
        """
        is_new = self.queue_offsets >= recovered.end
        ordinals = self.queue_offsets - recovered.start
        if (ordinals[~is_new] < 0).any():
            return None
        is_known = ~is_new
        places = recovered.units["physical_offset"][ordinals[is_known]]
        if (places != self.places[is_known]).any() or (np.diff(self.queue_offsets) != 1).any():
            return None
        if not is_new.any():
            return recovered
        if len(recovered.units) and self.queue_offsets[is_new][0] != recovered.end:
            return None
        units = np.empty(np.count_nonzero(is_new), QUEUE_UNIT)
        columns = (self.places, self.sizes, self.tags_codes)
        for name, column in zip(QUEUE_UNIT.names or (), columns, strict=True):
            units[name] = column[is_new]
        start = recovered.start if len(recovered.units) else int(self.queue_offsets[is_new][0])
        return recovered._replace(start=start, units=np.concatenate([recovered.units, units]))
