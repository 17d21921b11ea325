"""Units of many queues in log order: equal to sorting them all, and without needless reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiers
from rmqstore.read.unit_merge import UnitMerge
from rmqstore.spans import QueueSlice
from rmqstore.storage.queue.queue import Units

FIRST = 7  # queue offset


class Queues:
    """Units in memory; counts how often a queue is read."""

    def __init__(self, physical_offsets: list[NDArray[np.int64]]) -> None:
        self.physical_offsets = physical_offsets
        self.slices = [
            QueueSlice("T", number, FIRST, FIRST + len(units))
            for number, units in enumerate(physical_offsets)
        ]
        self.n_reads = 0

    def read(self, piece: QueueSlice, start: int, count: int) -> tuple[int, Units]:
        self.n_reads += 1
        units = self.physical_offsets[piece.queue_id][start - FIRST : start - FIRST + count]
        return start, Units(units, np.full(len(units), 100), units * 3)

    def sample(self, piece: QueueSlice, queue_offset: int) -> NDArray[np.int64]:
        return self.physical_offsets[piece.queue_id][
            queue_offset - FIRST : queue_offset - FIRST + 1
        ]

    def merged(self, window_units: int) -> list[Any]:
        return list(UnitMerge(self.slices, self.read, self.sample, window_units).windows())

    def expected(self) -> NDArray[np.int64]:
        """Return slice, queue and physical offsets, by the slice's highest offset so far."""
        rows = [
            (key, number, FIRST + row, units[row])
            for number, units in enumerate(self.physical_offsets)
            for row, key in enumerate(np.maximum.accumulate(np.maximum(units, -1)).tolist())
        ]
        return np.array(sorted(rows), np.int64).reshape(-1, 4)[:, 1:]


def spread(rng: np.random.Generator, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return physical offsets of queues of these lengths, whose messages come at random."""
    owners = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return [np.flatnonzero(owners == number) * 100 for number in range(len(counts))]


SHAPES = {
    "even": lambda rng: spread(rng, np.full(50, 60)),
    "one giant": lambda rng: spread(rng, np.append(3000, rng.integers(0, 5, 200))),
    "one queue": lambda rng: spread(rng, np.array([2000])),
    "none": lambda _: [],
    "empty": lambda _: [np.empty(0, np.int64)] * 3,
    "quiet since long": lambda rng: np.split(
        np.arange(3000) * 100, np.sort(rng.integers(0, 3000, 40))
    ),
    "in bursts": lambda rng: [
        np.sort(rng.integers(0, 10**9, 5))[rng.integers(0, 5, 80)].cumsum() for _ in range(30)
    ],
}


@pytest.mark.parametrize("seed", tiers.seeds(2))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window_units", [3, 100, 1 << 19])
def test_windows_together_are_all_units_sorted(shape: str, seed: int, window_units: int) -> None:
    rng = np.random.default_rng(seed)
    queues = Queues(SHAPES[shape](rng))
    if seed % 2:  # damaged units: anywhere, or nowhere
        for units in queues.physical_offsets[:5]:
            units[rng.integers(0, len(units), min(len(units), 2))] = rng.integers(-5, 10**9)
    windows = queues.merged(window_units)
    merged = [
        np.stack([window.slices, window.queue_offsets, window.physical_offsets], 1)
        for window in windows
    ]
    assert np.array_equal(np.concatenate([np.empty((0, 3), np.int64), *merged]), queues.expected())
    assert all(np.array_equal(window.tags_codes, window.physical_offsets * 3) for window in windows)
    assert all(len(window.keys) for window in windows)


def test_a_queue_is_read_for_the_windows_that_hold_its_units_only() -> None:
    rng = np.random.default_rng(1)
    queues = Queues(spread(rng, np.append(50_000, np.full(500, 2))))
    assert len(queues.merged(1000)) > 40
    assert queues.n_reads < 2_000


def test_windows_of_many_queues_are_as_many_as_those_of_few() -> None:
    rng = np.random.default_rng(2)
    for n_queues in (4, 2_000):
        windows = Queues(spread(rng, np.full(n_queues, 40_000 // n_queues))).merged(2_000)
        assert len(windows) < 30
        assert max(len(window.keys) for window in windows) < 6_000


def test_units_that_are_gone_are_passed_over() -> None:
    queues = Queues([np.arange(0, 1000, 10), np.arange(5, 1000, 10)])

    def read(piece: QueueSlice, start: int, count: int) -> tuple[int, Units]:
        if piece.queue_id == 0 and start < FIRST + 40:  # files of the queue were deleted meanwhile
            start = FIRST + 40
        return queues.read(piece, start, count)

    (window,) = UnitMerge(queues.slices, read, lambda *_: np.empty(0, np.int64)).windows()
    assert window.queue_offsets[window.slices == 0].tolist() == list(range(FIRST + 40, FIRST + 100))
    assert np.count_nonzero(window.slices == 1) == 100
    assert (np.diff(window.physical_offsets) > 0).all()
