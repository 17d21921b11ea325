"""Units that are appended to the files of a queue: which records get one, and where they stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.queue.appender import QueueAppender, begins_again_at, fit_offsets
from rmqstore.storage.queue.consumequeue import ConsumeQueue


def append(appender: QueueAppender, queue_offsets: list[int], physical_offset: int) -> None:
    """Append a unit for each queue offset, of records of 100 bytes from an offset of the log on."""
    units = np.zeros(len(queue_offsets), QUEUE_UNIT)
    units["physical_offset"] = physical_offset + 100 * np.arange(len(queue_offsets))
    units["size"] = 100
    appender.append(np.array(queue_offsets, np.int64), units)


@pytest.mark.parametrize("before", [[0, 1, 2], [0, 1, 2, 3, 4]])
def test_units_stand_at_their_queue_offsets_also_after_a_gap(
    tmp_path: Path, before: list[int]
) -> None:
    disk = Disk()
    appender = QueueAppender(disk, tmp_path / "0", 400, start=0, end=0, records_end=0, is_new=True)
    append(appender, before, 0)
    append(appender, [5, 6, 7, 8], 1000)
    append(appender, [9, 10], 1400)
    appender.finish()
    disk.close()
    assert appender.end == 11
    assert len(appender.misplaced) == (len(before) < 5)
    units = ConsumeQueue(tmp_path / "0").units(0, 11)
    gap = [1000] * (5 - len(before))  # the next record's unit fills it
    expected = [100 * at for at in before] + gap + [1000, 1100, 1200, 1300, 1400, 1500]
    assert units.physical_offsets.tolist() == expected


@pytest.mark.parametrize(
    ("offsets", "expected", "refused", "undecided"),
    [
        ([4, 5, 6, 7], 4, [], []),
        ([4, 5, 90, 7, 8], 4, [90], []),
        ([4, 5, 2, 7, 8], 4, [2], []),
        ([4, 5, 7, 8], 4, [], []),  # a gap
        ([4, 5, 90], 4, [], [90]),
        ([90, 1, 2, 3], None, [90], []),
        ([33, 34, 35], None, [], []),
        ([33], None, [], [33]),
        ([2, 3, 4, 5], 4, [2, 3], []),
        ([4, 5, 6, 5, 6, 7], 4, [5, 6], []),
        ([4, 90, 91, 5, 6, 7], 4, [90, 91], []),
        ([], 4, [], []),
    ],
)
def test_records_that_do_not_fit_those_around_them_are_refused(
    offsets: list[int], expected: int | None, refused: list[int], undecided: list[int]
) -> None:
    given = np.array(offsets, np.int64)
    found = fit_offsets(given, expected, is_end=False)
    assert given[found.refused].tolist() == refused
    assert given[found.undecided].tolist() == undecided
    taken = given[found.taken].tolist()
    assert taken == sorted(set(taken))
    assert sorted([*taken, *refused, *undecided]) == sorted(offsets)


@pytest.mark.parametrize(
    ("offset", "is_taken"), [(5, True), (6, True), (1005, True), (1006, False), (1 << 50, False)]
)
def test_the_last_record_may_leap_a_little(offset: int, *, is_taken: bool) -> None:
    found = fit_offsets(np.array([4, offset], np.int64), 4, is_end=True)
    assert len(found.taken) == 1 + is_taken
    assert not len(found.undecided)


def test_a_gap_that_would_take_much_of_the_disk_is_not_filled() -> None:
    found = fit_offsets(np.array([4, 5, 1 << 40, (1 << 40) + 1], np.int64), 4, is_end=True)
    assert found.taken.tolist() == [0, 1]
    assert found.refused.tolist() == [2, 3]


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
