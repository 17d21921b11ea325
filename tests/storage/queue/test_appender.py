"""Units that are appended to the files of a queue: which records get one, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.spans import Span
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.queue.appender import FoundQueue, QueueAppender
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.placing import begins_again_at, place_records


def append(
    appender: QueueAppender,
    queue_offsets: list[int],
    physical_offset: int,
    lost: Sequence[Span] = (),
) -> None:
    """Append a unit for each queue offset, of records of 100 bytes from an offset of the log on."""
    units = np.zeros(len(queue_offsets), QUEUE_UNIT)
    units["physical_offset"] = physical_offset + 100 * np.arange(len(queue_offsets))
    units["size"] = 100
    appender.append(np.array(queue_offsets, np.int64), units, lost)


@pytest.mark.parametrize("before", [[0, 1, 2], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_record_keeps_its_queue_offset_where_the_log_lost_those_before(
    tmp_path: Path, before: list[int], *, is_lost: bool
) -> None:
    disk, n_gap = Disk(), (5 - len(before)) * is_lost
    appender = QueueAppender(disk, tmp_path / "0", 400, FoundQueue(records_end=0))
    append(appender, before, 0)
    append(appender, [5, 6, 7, 8], 1000, [Span(700, 900)] if is_lost else [])
    append(appender, [9, 10], 1400)
    disk.close()
    assert appender.end == len(before) + n_gap + 6
    assert len(appender.misplaced) == (n_gap > 0)
    units = ConsumeQueue(tmp_path / "0").units(0, appender.end)
    gap = [1000] * n_gap  # the next record's unit fills it
    expected = [100 * at for at in before] + gap + [1000, 1100, 1200, 1300, 1400, 1500]
    assert units.physical_offsets.tolist() == expected


LEAST = -(1 << 63)


@pytest.mark.parametrize(
    ("named", "end", "first", "taken"),
    [  # what a real 5.3.3 built: see interop/test_served_queues.py
        ([4, 5, 6], 4, 4, [4, 5, 6]),
        ([4, 5, 90, 7, 8], 4, 4, [4, 5, 90, 7, 8]),
        ([4, 5, 2, 7], 4, 4, [4, 5, 7]),
        ([4, 5, 6, 5, 6, 7], 4, 4, [4, 5, 6, 7]),
        ([2, 3, 4, 5], 4, 4, [4, 5]),
        ([4, 90, 91, 5, 6, 7], 4, 4, [4, 90, 91, 7]),
        ([4, 0, 5], 4, 4, [4, 0]),
        ([0, 0, 1, 2], 0, 0, [0, 0, 2]),
        ([4, 1 << 40], 4, 4, [4, 1 << 40]),
        ([1 << 40, 1], None, 1 << 40, [1 << 40]),
        ([33], None, 33, [33]),
        ([-5, 1], None, 1, [1]),
        ([LEAST, 1], None, 0, [LEAST, 1]),  # a broker's place in bytes overflows
        ([4, LEAST, 5], 4, 4, [4, 5]),
        ([4, 1 << 62, (1 << 63) - 1, 5], 4, 4, [4, 5]),
        ([(1 << 63) - 1, 1 << 58], None, 0, []),
        ([], 4, 0, []),
    ],
)
def test_records_are_placed_as_a_broker_places_them(
    named: list[int], end: int | None, first: int, taken: list[int]
) -> None:
    given = np.array(named, np.int64)
    found, places, n_passed = [], [], 0
    for run in place_records(given, end):
        found += given[run.taken].tolist()
        places += range(run.place, run.place + run.taken.stop - run.taken.start)
        n_passed += run.passed.stop - run.passed.start
    assert (found, places) == (taken, [*range(first, first + len(taken))])
    assert n_passed == len(named) - len(taken)


@pytest.mark.parametrize(
    ("queue_offsets", "end", "row"),
    [
        ([5, 6, 7], 5, None),
        ([0, 1, 2], 0, None),  # a new queue
        ([0, 1, 2], 5, 0),
        ([5, 6, 0], 5, 2),
        ([5, 6, 0, 1], 5, 2),
        ([5, 6, 0, 7, 8], 5, None),  # one record has a wrong queue offset
        ([5, 0, 1, 0, 1, 2], 5, 3),
        ([0, 1, 0, 1], 0, 2),
        ([5, 0, 1, 2, 0, 7], 5, 1),
        ([], 5, None),
    ],
)
def test_where_a_queue_begins_again(queue_offsets: list[int], end: int, row: int | None) -> None:
    assert begins_again_at(np.array(queue_offsets, np.int64), end) == row
