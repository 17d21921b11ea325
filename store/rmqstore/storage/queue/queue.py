"""The methods of a queue, whatever the kind of its files.

Each kind of queue is a class with these methods. ``storage.queue.bounds`` and
``storage.queue.estimates`` work for any kind.

Source: ConsumeQueueInterface.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.queue.units import Units


class Queue(Protocol):
    """One queue of one topic, read-only.

    A queue offset is the ordinal of a message in its queue, counted from the first one ever stored.
    The unit with this offset leads to the record of the message.
    """

    @property
    def is_batch(self) -> bool:
        """Whether one record can hold several messages of the queue.

        Source: ConsumeQueueInterface.java#getCQType.
        """

    @property
    def is_recovered(self) -> bool:
        """Whether the end of the queue comes from the log, because its files lack it."""

    @property
    def is_present(self) -> bool:
        """Whether the queue has a file, or a unit that was recovered. Source: #isFirstFileExist."""

    @property
    def end_files(self) -> tuple[str, str] | None:
        """The first and the last file, if they show where the queue begins and ends."""

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all its files but the last, which may be nearly empty."""

    @property
    def begin(self) -> int:
        """The first queue offset with a unit, even if its record was deleted; 0 without units."""

    def end(self) -> int:
        """Return the queue offset after the last unit that was ever written.

        Source: #getMaxOffsetInQueue.
        """

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``.

        The record of a damaged unit counts as existing. Source: #correctMinOffset.
        """

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end.

        A unit is before the log end if its physical offset is.

        Source: FileQueueLifeCycle.java#truncateDirtyLogicFiles.
        """

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that have units.

        The units between them were in a missing or truncated file.
        """

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if there is none.

        Source: #get.
        """

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: some are missing, for instance because a file was deleted since
                the store was opened.
        """

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with some queue offsets, which rise; zeros where there is none."""

    def want(self, queue_offsets: NDArray[np.int64], count: int) -> None:
        """Announce that ``count`` units from each queue offset (n,) on will be read next.

        A queue in a remote storage begins to fetch them.
        """

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        Raises as :meth:`units` does.
        """

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``.

        Messages of one record share its unit, which counts once.
        """

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a unit and its position there, to name the unit in an error.

        If the unit is missing, this is where it should stand.
        """

    def refresh(self) -> None:
        """List the files again."""

    def close(self) -> None:
        """Close the files."""
