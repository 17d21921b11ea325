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


@pytest.mark.usefixtures("voting_units")
def test_the_example_of_an_estimate(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [10, 20, 30, 40, 300, 500, 600, 7, 99999, 900, 950])
    assert estimate_physical_offset(queue, 7, 0, 11, 1000) == 600


@pytest.mark.usefixtures("voting_units")
def test_only_units_of_the_range_vote(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [300, 500, 600, 700, 900])
    ranges = ((0, 5), (2, 5), (0, 3), (4, 5))
    estimates = [estimate_physical_offset(queue, 2, low, high, 1000) for low, high in ranges]
    assert estimates == [600, 700, 500, 900]


def test_an_estimate_of_damaged_units_is_none(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [-1, 5000, 1000])
    assert estimate_physical_offset(queue, 0, 0, 3, 1000) is None


@pytest.mark.usefixtures("voting_units")
def test_units_that_no_file_has_do_not_vote(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [10 * at for at in range(20)])
    assert estimate_physical_offset(queue, 21, 0, 25, 1000) == 190
    assert estimate_physical_offset(queue, 22, 0, 25, 1000) is None


def test_the_example_of_a_trimmed_range(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [*[0] * 10, 100, 200, 300, 400, 500, 9999, 600])
    assert trim(queue, 10, 17, (250, 450), 1000) == (12, 16)


@pytest.mark.usefixtures("voting_units")
def test_a_range_is_trimmed_by_few_units_at_a_time(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "0", [10 * at for at in range(20)])
    assert trim(queue, 0, 20, (90, 110), 1000) == (4, 16)
    assert trim(queue, 0, 20, (0, 1000), 1000) == (0, 20)
    assert trim(queue, 5, 8, (90, 110), 1000) == (8, 8)
