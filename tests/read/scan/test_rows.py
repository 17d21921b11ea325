"""Units of queues as rows."""

from __future__ import annotations

import numpy as np

from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.format.record import Expected
from rmqstore.read.rows import UnitRows
from rmqstore.storage.queue.queue import Units


def _rows(topic: str, queue_id: int, first: int, count: int) -> UnitRows:
    units = np.array([(100 * at, at + 1, -at) for at in range(first, first + count)], QUEUE_UNIT)
    return UnitRows.of_queue(topic, queue_id, np.arange(first, first + count), Units.of(units))


def test_joined_rows_keep_their_queues() -> None:
    mixed = UnitRows.joined([_rows("B", 1, 5, 2), _rows("A", 0, 7, 0), _rows("A", 3, 9, 1)])
    every = UnitRows.joined([_rows("A", 4, 2, 1), mixed, _rows("B", 0, 1, 1)])
    expected = [("A", 4, 2), ("B", 1, 5), ("B", 1, 6), ("A", 3, 9), ("B", 0, 1)]
    assert [every.expected(row) for row in range(5)] == [
        Expected(*key, key[2] + 1) for key in expected
    ]
    assert every.physical_offsets.tolist() == [200, 500, 600, 900, 100]
    assert every.tags_codes.tolist() == [-2, -5, -6, -9, -1]
    turned = every.take(np.array([4, 0]))
    assert [turned.expected(row)[:3] for row in range(2)] == [("B", 0, 1), ("A", 4, 2)]
