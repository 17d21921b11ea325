"""Which records of a queue get a unit, by the queue offsets that they say."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore.storage.queue.appender import fit_offsets


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
