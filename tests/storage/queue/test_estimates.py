"""Estimates of where a queue's messages lie in the log: docstring examples and missing units."""

from __future__ import annotations

from pathlib import Path

import pytest

import store_builder as build
from rmqstore.read import queue_ranges
from rmqstore.read.queue_ranges import estimate_physical_offset, trim
from rmqstore.storage.queue.consumequeue import ConsumeQueue


def _queue(folder: Path, physical_offsets: list[int]) -> ConsumeQueue:
    build.write_queue(folder, [(at, 50, 0) for at in physical_offsets])
    return ConsumeQueue(folder)


@pytest.fixture
def voting_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ranges, "VOTING_UNITS", 2)


EXAMPLE = [10, 20, 30, 40, 300, 500, 600, 7, 99999, 900, 950]
FEW, RISING = [300, 500, 600, 700, 900], [10 * at for at in range(20)]


@pytest.mark.usefixtures("voting_units")
@pytest.mark.parametrize(
    ("places", "at", "span", "expected"),
    [
        (EXAMPLE, 7, (0, 11), 600),
        # only units of the range vote, and only those that a file has
        (FEW, 2, (0, 5), 600), (FEW, 2, (2, 5), 700), (FEW, 2, (0, 3), 500), (FEW, 2, (4, 5), 900),
        (RISING, 21, (0, 25), 190), (RISING, 22, (0, 25), None),
        ([-1, 5000, 1000], 0, (0, 3), None),
    ],
)  # fmt: skip
def test_an_estimate_is_what_most_units_around_it_say(
    tmp_path: Path, places: list[int], at: int, span: tuple[int, int], expected: int | None
) -> None:
    assert estimate_physical_offset(_queue(tmp_path / "0", places), at, *span, 1000) == expected


def test_the_example_of_a_trimmed_range(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [*[0] * 10, 100, 200, 300, 400, 500, 9999, 600])
    assert trim(queue, 10, 17, (250, 450), 1000) == (12, 16)


@pytest.mark.usefixtures("voting_units")
def test_a_range_is_trimmed_by_few_units_at_a_time(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", RISING)
    assert trim(queue, 0, 20, (90, 110), 1000) == (4, 16)
    assert trim(queue, 0, 20, (0, 1000), 1000) == (0, 20)
    assert trim(queue, 5, 8, (90, 110), 1000) == (8, 8)
