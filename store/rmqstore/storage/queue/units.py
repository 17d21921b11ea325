"""Units of one queue as columns, and the units at its end that only the log has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import PRE_BLANK_SIZE, QUEUE_UNIT, Mask


class Units(NamedTuple):
    """Consecutive units of a queue as columns, native byte order, (n,)."""

    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.void]) -> Units:
        """Return stored units, QUEUE_UNIT or ROCKSDB_UNIT (n,), as columns."""
        return cls(*(units[name].astype(np.int64) for name in QUEUE_UNIT.names or ()))

    @classmethod
    def joined(cls, *parts: Units) -> Units:
        """Return the units of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def may_be_right(self, log_end: int) -> Mask:
        """Return a mask (n,) of the units that can point at a record before the log end."""
        has_record_size: Mask = (self.sizes > 0) & (self.sizes < PRE_BLANK_SIZE)
        return has_record_size & (self.physical_offsets >= 0) & (self.physical_offsets < log_end)


NO_UNITS = Units.of(np.empty(0, QUEUE_UNIT))


class RecoveredUnits(NamedTuple):
    """The end of a queue, taken from the log because the files of the queue lack it or are wrong.

    A BatchConsumeQueue has a unit here for each message of a record.
    """

    start: int  # queue offset of the first unit
    units: NDArray[np.void]  # QUEUE_UNIT (n,), in the order of the log
    is_short: bool = False  # memory should not hold all the units, so none are here
    is_batch: bool = False  # of a BatchConsumeQueue

    @property
    def end(self) -> int:
        """The queue offset after the last unit."""
        return self.start + len(self.units)
