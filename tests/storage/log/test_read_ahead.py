"""What is prefetched ahead of a long read, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import store_builder as build
from memory_storage import MemoryStorage
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read import read_ahead
from rmqstore.read.read_ahead import ReadAhead
from rmqstore.storage.log.commitlog import CommitLog

Window = list[tuple[int, int]]  # physical offset and size of each record


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """Return a log of several segments."""
    store = build.Store(segment_bytes=8192)
    for number in range(60):
        store.append(build.Record(body=b"%02d" % number * 150))
    storage = MemoryStorage(store.write(tmp_path / "store"))
    return CommitLog([storage.root / "commitlog"], storage=storage)


@pytest.fixture
def prefetched(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the spans that are prefetched: physical offset and size."""
    spans: list[tuple[int, int]] = []

    def file_of(segment: Any) -> SimpleNamespace:
        def note(starts: Any, sizes: Any) -> None:
            pairs = zip((starts + segment.start).tolist(), sizes.tolist(), strict=True)
            spans.extend(pairs)

        return SimpleNamespace(read_ahead=note)

    monkeypatch.setattr(log, "file_of", file_of)
    monkeypatch.setattr(read_ahead, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(read_ahead, "_AHEAD_BYTES", 3000)
    return spans


def _ahead(log: CommitLog, windows: Iterator[Window]) -> ReadAhead[Window]:
    def places(window: Window) -> Any:
        table = np.array(window, np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    return ReadAhead(log, windows, places)


def _records(start: int, stop: int) -> Window:
    return [(offset, 400) for offset in range(start, stop, 400)]


def test_a_bounded_part_is_announced_over_the_ends_of_windows(
    log: CommitLog, prefetched: list[tuple[int, int]]
) -> None:
    windows = [_records(0, 2000), _records(2000, 4000), _records(4000, 8000)]
    ahead = _ahead(log, iter(windows))
    given = []
    for window in ahead.windows():
        given.append(window)
        for offset, _ in window:
            ahead.prefetch_after(offset)
            ends = [start + size for start, size in prefetched]
            assert min(offset + 1000, 8000) <= max(ends) <= offset + 5200
    assert given == windows
    covered = sorted(prefetched)
    assert covered[0][0] == 0
    assert all(low + size == high for (low, size), (high, _) in pairwise(covered))


def test_spans_do_not_reach_over_segments(
    log: CommitLog, prefetched: list[tuple[int, int]]
) -> None:
    ahead = _ahead(log, iter([_records(7600, 9600)]))
    for window in ahead.windows():
        ahead.prefetch_after(window[0][0])
    assert {start // 8192 for start, _ in prefetched} == {0, 1}


def test_what_nobody_asked_for_in_time_is_left_out(
    log: CommitLog, prefetched: list[tuple[int, int]]
) -> None:
    ahead = _ahead(log, iter([_records(0, 4000), _records(4000, 8000)]))
    windows = ahead.windows()
    next(windows)
    next(windows)
    ahead.prefetch_after(4000)
    assert min(start for start, _ in prefetched) >= 3600


def test_an_error_comes_where_the_read_meets_it(
    log: CommitLog, prefetched: list[tuple[int, int]]
) -> None:
    def windows() -> Iterator[Window]:
        yield _records(0, 800)
        raise OffsetOutOfRangeError("gone")

    ahead = _ahead(log, windows())
    given = ahead.windows()
    assert next(given) == _records(0, 800)
    ahead.prefetch_after(0)
    assert prefetched
    with pytest.raises(OffsetOutOfRangeError, match="gone"):
        next(given)


@pytest.mark.parametrize("n_wanted", [0, 1])
def test_few_windows_are_made_ahead_where_few_records_are_wanted(
    log: CommitLog, prefetched: list[tuple[int, int]], n_wanted: int
) -> None:
    made = []

    def windows() -> Iterator[Window]:
        for number in range(100):
            made.append(number)
            yield _records(0, 400) if number < n_wanted else []

    ahead = _ahead(log, windows())
    for number, window in enumerate(ahead.windows()):
        for offset, _ in window:
            ahead.prefetch_after(offset)
        assert len(made) <= number + 6
    assert made == [*range(100)]
    assert len(prefetched) == n_wanted
