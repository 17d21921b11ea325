"""Which parts of the log an index does not cover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import store_builder as build
from rmqstore.read.lookup import Lookup
from rmqstore.spans import FOREVER, Span
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.index_search import IndexSearch
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.recovery.store_ends import StoreEnds

RECORD_BYTES, N_RECORDS = 110, 10


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """Return a log of ten records, all of one length, each with a key."""
    store = build.Store()
    keyed = build.properties({"KEYS": "k"})
    padding = RECORD_BYTES - len(build.pack(build.Record(body=b"", properties=keyed), 0))
    for _ in range(N_RECORDS):
        assert (
            store.append(build.Record(body=bytes(padding), properties=keyed)).size == RECORD_BYTES
        )
    return CommitLog([store.write(tmp_path / "s") / "commitlog"])


@pytest.fixture
def look_up(
    tmp_path: Path, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lookup]:
    """Return a look-up whose index files cover some ranges and give some offsets for every key."""

    def make(spans: list[Span], places: list[int], log_end: int | None) -> Lookup:
        monkeypatch.setattr(IndexSearch, "spans", lambda *_: spans)
        monkeypatch.setattr(IndexSearch, "find", lambda *_: np.array(places, np.int64))
        store = find_store(tmp_path / "s")
        ends = StoreEnds(store, BrokerConfig(store), log, ignore_log_end=False)
        if log_end is not None:
            ends.replace_log_end(LogEnd(log_end, "", "", 0))
        monkeypatch.setattr(ends, "index_flushed_until", lambda: FOREVER)
        return Lookup(store, log, ends)

    return make


def numbered(spans: list[tuple[int, int]]) -> list[Span]:
    """Return ranges of the log by the numbers of the records where they begin and end."""
    return [Span(start * RECORD_BYTES, end * RECORD_BYTES) for start, end in spans]


@pytest.mark.parametrize(
    ("ranges", "are_whole", "uncovered"),
    [
        pytest.param([(2, 4), (4, 5), (7, 8)], True, [(0, 3), (6, 8), (9, 10)], id="as written"),
        pytest.param([(2, 4), (4, 5), (7, 8)], False, [(0, 3), (5, 8), (8, 10)], id="some keys"),
        pytest.param([(0, 4), (5, 9)], True, [], id="a file for each record"),
        pytest.param([(0, 4), (6, 9)], True, [(5, 7)], id="a lost file between"),
        pytest.param([(0, 6), (2, 4)], True, [(7, 10)], id="a file inside another"),
        pytest.param([], True, [(0, 10)], id="no file"),
    ],
)
@pytest.mark.parametrize("log_end", [N_RECORDS * RECORD_BYTES, None])
def test_the_worked_example_of_uncovered(
    look_up: Callable[..., Lookup],
    ranges: list[tuple[int, int]],
    are_whole: bool,
    uncovered: list[tuple[int, int]],
    log_end: int | None,
) -> None:
    spans = numbered(ranges)
    places = [span.end for span in spans] if are_whole else []
    assert look_up(spans, places, log_end).uncovered() == numbered(uncovered)


def test_a_file_that_begins_or_ends_inside_a_record_covers_nothing(
    look_up: Callable[..., Lookup],
) -> None:
    spans = [Span(2 * RECORD_BYTES, 4 * RECORD_BYTES + 1), Span(5 * RECORD_BYTES, 6 * RECORD_BYTES)]
    assert look_up(spans, [spans[-1].end], None).uncovered() == numbered([(0, 6), (7, 10)])
