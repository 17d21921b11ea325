"""Units that point at the record of another unit of their queue, which is served twice then.

A broker's crash leaves single ones, and a file that was copied or restored to the name of another
one consists of them. The place of a unit decides: a broker serves the record there too, and not
the one that the unit should lead to.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import RmqStoreError, number_of
from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.read.rows import UnitRows
from rmqstore.spans import QueueKey
from rmqstore.storage.queue.queue import Queue, have_units_at

logger = logging.getLogger(__name__)


class RepeatedUnits:
    """Counts the units of a read that point at the record of another unit."""

    def __init__(self, open_queue: Callable[[str, int], Queue]) -> None:
        self._open_queue = open_queue
        self._counts: Counter[QueueKey] = Counter()
        self._firsts: dict[QueueKey, int] = {}

    def note(self, units: UnitRows, stored: NDArray[np.int64]) -> None:
        """Count those of some units whose record has a unit of its own.

        Args:
            units: units, (n,), whose records name other queue offsets than theirs.
            stored: the queue offsets in the records, (n,).
        """
        for rows in rows_by_queue(units.topic_codes, units.queue_ids):
            key = units.key(rows[0])
            with suppress(RmqStoreError, OSError):  # said where they are read
                own = self._open_queue(*key), stored[rows]
                of_units = units.physical_offsets[rows], units.sizes[rows]
                repeated = rows[have_units_at(*own, *of_units)]
                if len(repeated):
                    self._counts[key] += len(repeated)
                    first = int(units.queue_offsets[repeated].min())
                    self._firsts[key] = min(first, self._firsts.get(key, first))

    def warn(self) -> None:
        """Say how many there were in each queue."""
        for (topic, queue_id), count in self._counts.items():
            logger.warning(
                "%s-%d: %s, the first at queue offset %d, for the record of another unit: a broker "
                "serves such a message twice, and not the one that should be there; "
                "`rmqstore verify` says more",
                topic,
                queue_id,
                number_of(count, "unit"),
                self._firsts[topic, queue_id],
            )
        self._counts.clear()
