"""What a queue is to the rest of the package, whatever the kind of its files.

Source: ConsumeQueueInterface.java. A kind of queue is a class of its own that has these methods;
what works
through them for any kind is in ``storage.queue.bounds`` and ``storage.queue.estimates``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.queue.units import Units


class Queue(Protocol):
    """One queue of one topic, read-only: a unit for each queue offset, which leads to the record of the message.

    A queue offset is the ordinal of a message in its queue, counted from the first one ever stored.
    """

    @property
    def is_batch(self) -> bool:
        """Whether one record can hold several messages of the queue.

        Source: ConsumeQueueInterface.java#getCQType.
        """

    @property
    def is_recovered(self) -> bool:
        """Whether the end of the queue comes from the log, because the files of the queue lack it."""

    @property
    def is_present(self) -> bool:
        """Whether the queue has a file, or a unit that was recovered. Source: #isFirstFileExist."""

    @property
    def begin(self) -> int:
        """The first queue offset that has a unit, whether or not its record is still there; 0 for no queue."""

    def end(self) -> int:
        """Return the queue offset after the last unit that was ever written.

        Source: #getMaxOffsetInQueue.
        """

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record is not deleted; ``end`` if all are.

        The record of a damaged unit counts as not deleted. Source: #correctMinOffset.
        """

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit that points before the end of the log.

        Source: FileQueueLifeCycle.java#truncateDirtyLogicFiles.
        """

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that have units.

        What lies between is in a missing or cut file.
        """

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if there is none.

        Source: #get.
        """

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: some are not there, as when a file was deleted since the store
                was opened.
        """

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with some queue offsets, which rise; zeros where there is none."""

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,); see :meth:`units`."""

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units in ``[start, end)`` point into the log from an offset on.

        Messages of one record that share its unit count once.
        """

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file, and the byte in it, where a unit stands or should stand, to name it in an error."""

    def refresh(self) -> None:
        """List the files again."""

    def close(self) -> None:
        """Close the files."""
