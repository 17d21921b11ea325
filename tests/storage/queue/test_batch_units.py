"""Which units of a BatchConsumeQueue are trusted: the examples of the docstrings."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore.format.layout import BATCH_UNIT
from rmqstore.storage.queue.batch_consumequeue import agreeing, trusted

EXAMPLE = [(0, 3), (3, 7), (99, 101), (9, 11), (11, 19), (15, 16), (16, 18)]


def _units(messages: list[tuple[int, int]]) -> np.ndarray:
    units = np.zeros(len(messages), BATCH_UNIT)
    units["base_offset"] = [start for start, _ in messages]
    units["batch_size"] = [end - start for start, end in messages]
    units["physical_offset"] = np.arange(len(messages)) * 100
    return units


def test_the_example_of_trusted_units() -> None:
    found = trusted(_units(EXAMPLE), 40)
    spans = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert spans == [(0, 3), (3, 7), (9, 11), (11, 15), (15, 16), (16, 18)]
    assert found.numbers.tolist() == [40, 41, 43, 44, 45, 46]
    assert found.physical_offsets.tolist() == [0, 100, 300, 400, 500, 600]


def test_a_unit_that_nothing_contradicts_is_trusted() -> None:
    """Without its two neighbours, the damaged unit of the example has no linked unit next to it."""
    found = trusted(_units([EXAMPLE[2]]), 0)
    assert (found.starts.tolist(), found.ends.tolist()) == ([99], [101])


@pytest.mark.parametrize("unit", [(-5, 3), (1 << 61, (1 << 61) + 2), (7, 7)])
def test_a_unit_that_can_be_of_no_message_is_not_trusted(unit: tuple[int, int]) -> None:
    found = trusted(_units([EXAMPLE[0], unit, (4, 6)]), 0)
    assert (found.starts.tolist(), found.numbers.tolist()) == ([0, 4], [0, 2])


def test_the_example_of_agreeing_ranges() -> None:
    starts, ends = np.array([0, 3, 500, 8, 12]), np.array([3, 8, 502, 12, 15])
    assert agreeing(starts, ends, widest=10).tolist() == [True, True, False, True, True]


def test_ranges_of_which_no_two_agree_are_those_that_rise() -> None:
    starts = np.array([0, 500, 300, 900, 900])
    assert agreeing(starts, starts + 3, widest=10).tolist() == [True, True, False, True, False]
    assert agreeing(starts[:0], starts[:0], widest=10).tolist() == []
