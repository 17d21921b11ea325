"""Queues of every kind through one protocol: as their files, with an end from the log, or open."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import store_builder as build
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.read import queue_ranges
from rmqstore.read.queue_ranges import estimate_physical_offset, trim
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Queue, RecoveredUnits, records_end, total_weight, whole_end
from rmqstore.storage.queue.queue_set import RecoveredQueue, open_files
from rmqstore.storage.recovery import queues as queues_module
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds

KEY = ("T", 0)


class Put(NamedTuple):
    """A record of a queue: its physical offset, its size and its number of messages."""

    physical_offset: int
    size: int
    count: int


def paths(root: Path) -> StorePaths:
    return StorePaths(root, (root / "commitlog",), root / "consumequeue", root / "index")


def write_plain(root: Path, records: list[Put]) -> None:
    build.write_queue(
        root / "consumequeue/T/0", [(one.physical_offset, one.size, 0) for one in records]
    )


def write_batch(root: Path, records: list[Put]) -> None:
    folder = root / "batchconsumequeue/T/0"
    folder.mkdir(parents=True)
    bases = np.cumsum([0, *(one.count for one in records)]).tolist()
    units = [
        struct.pack(">qiqqqhii", one.physical_offset, one.size, 0, build.T0, base, one.count, -1, 0)
        for one, base in zip(records, bases, strict=False)
    ]
    for at in range(0, len(units), 7):
        (folder / f"{at * 46:020d}").write_bytes(b"".join(units[at : at + 7]).ljust(7 * 46, b"\0"))


def put_plain(n_records: int) -> list[Put]:
    return [Put(1000 + 300 * row, 100 + row, 1) for row in range(n_records)]


def put_batch(n_records: int) -> list[Put]:
    return [Put(1000 + 300 * row, 100 + row, row % 4 + 1) for row in range(n_records)]


Write = Callable[[Path, list[Put]], None]
KINDS = [
    pytest.param(write_plain, put_plain, id="plain"),
    pytest.param(write_batch, put_batch, id="batch"),
]


def answers(queue: Queue, bounds: list[int]) -> dict[str, object]:
    """Return what a queue answers for ranges between these queue offsets."""
    end = bounds[-1]
    spans = [(low, high) for row, low in enumerate(bounds) for high in bounds[row:]]
    places = [0, 1000, 1150, 1300, 4000, 6000, 9000, 12000]
    picked = np.arange(0, end + 4, 3)
    return {
        "kind": (queue.is_batch, queue.is_present),
        "bounds": (queue.begin, queue.end()),
        "first": [queue.first(end, place) for place in places],
        "cut": [queue.cut(low, high, place) for low, high in spans for place in places],
        "runs": [list(queue.runs(*span)) for span in spans],
        "unit": [queue.unit(at) for at in range(end + 4)],
        "units": [[column.tolist() for column in queue.units(*span)] for span in spans],
        "units_of": [column.tolist() for column in queue.units_of(picked)],
        "weights": [int(queue.weights(*span).sum()) for span in spans],
        "lengths": [len(queue.weights(*span)) for span in spans],
        "counts": [queue.count_units(*span, place) for span in spans for place in places],
        "records_end": [records_end(queue, bound) for bound in bounds],
        "whole": [whole_end(queue, *span) for span in spans],
        "total": [total_weight(queue, *span) for span in spans],
        "estimates": [
            estimate_physical_offset(queue, at, 0, end, 20_000) for at in range(0, end, 5)
        ],
        "trimmed": [trim(queue, *span, (3000, 7000), 20_000) for span in spans],
    }


@pytest.mark.parametrize(("write", "put"), KINDS)
@pytest.mark.parametrize("n_in_files", [0, 1, 6, 7, 15, 29])
@pytest.mark.parametrize("n_stale", [0, 4, 20])
def test_a_recovered_queue_answers_as_files_that_lack_nothing(
    tmp_path: Path, write: Write, put: Callable[[int], list[Put]], n_in_files: int, n_stale: int
) -> None:
    """Units in the files do not count where the log has its own, as after a recovery."""
    records = put(30)
    write(tmp_path / "whole", records)
    stale = [Put(90_000 + 300 * row, 77, 1) for row in range(n_stale)]
    if n_in_files + n_stale:
        write(tmp_path / "cut", records[:n_in_files] + stale)
    whole = open_files(paths(tmp_path / "whole"), *KEY)
    files = open_files(paths(tmp_path / "cut"), *KEY, is_batch=whole.is_batch)
    ends = np.cumsum([one.count for one in records]).tolist()
    start = ends[n_in_files - 1] if n_in_files else 0
    tail = np.array(
        [(*one[:2], 0) for one in records[n_in_files:] for _ in range(one.count)], QUEUE_UNIT
    )
    recovered = RecoveredQueue(files, RecoveredUnits(start, tail, is_batch=whole.is_batch))
    bounds = [0, ends[0], ends[6], ends[14], ends[15], ends[28], ends[29]]
    assert answers(recovered, bounds) == answers(whole, bounds)
    assert (whole.is_recovered, recovered.is_recovered) == (False, True)


@pytest.mark.parametrize(("write", "put"), KINDS)
def test_units_that_do_not_follow_from_the_log_are_out_of_range(
    tmp_path: Path, write: Write, put: Callable[[int], list[Put]]
) -> None:
    write(tmp_path, put(4))
    files = open_files(paths(tmp_path), *KEY)
    end = files.end()
    tail = np.array([(5000, 100, 0)] * 3, QUEUE_UNIT)
    recovered = RecoveredQueue(files, RecoveredUnits(end, tail, is_batch=files.is_batch))
    assert len(recovered.units(end - 1, end + 3).sizes) == 4
    for span in ((end - 1, end + 4), (end + 3, end + 4)):
        with pytest.raises(OffsetOutOfRangeError, match=str(tmp_path)):
            recovered.units(*span)


@pytest.mark.parametrize(("write", "put"), KINDS)
def test_a_range_that_ends_before_it_starts_has_no_units(
    tmp_path: Path, write: Write, put: Callable[[int], list[Put]]
) -> None:
    write(tmp_path, put(8))
    files = open_files(paths(tmp_path), *KEY)
    tail = RecoveredUnits(6, np.array([(9000, 100, 0)] * 3, QUEUE_UNIT), is_batch=files.is_batch)
    for queue in (files, RecoveredQueue(files, tail)):
        for span in ((3, 3), (5, 2), (8, 7), (8, 2)):
            assert len(queue.units(*span).sizes) == len(queue.weights(*span)) == 0
            assert list(queue.runs(*span)) == []


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_queue_without_a_folder_is_of_the_requested_kind(tmp_path: Path, is_batch: bool) -> None:
    queue = open_files(paths(tmp_path), *KEY, is_batch=is_batch)
    assert (queue.is_batch, queue.is_present, queue.begin, queue.end()) == (is_batch, False, 0, 0)


def test_the_folder_of_a_topic_decides_the_kind_of_its_queues(tmp_path: Path) -> None:
    write_batch(tmp_path, put_batch(3))
    assert open_files(paths(tmp_path), *KEY).is_batch
    assert open_files(paths(tmp_path), "T", 1).is_batch
    assert not open_files(paths(tmp_path), "U", 0).is_batch


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


def queues_of(root: Path) -> Queues:
    paths = StorePaths(root, (root / "commitlog",), root / "consumequeue", root / "index")
    log = CommitLog(paths.commitlogs, paths.storage)
    return Queues(paths, log, StoreEnds(paths, BrokerConfig(paths), log, ignore_log_end=True))


def test_a_queue_is_listed_again_and_may_change_its_kind_after_a_refresh(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    assert not queues.open("T", 0).is_present
    assert not queues.open("T", 1).is_present
    build.write_queue(tmp_path / "consumequeue/T/0", [(0, 100, 0)])
    (tmp_path / "batchconsumequeue/B/0").mkdir(parents=True)
    assert not queues.open("T", 0).is_present
    assert not queues.open("B", 0).is_batch
    queues.refresh()
    assert queues.open("T", 0).end() == 1
    assert queues.open("B", 0).is_batch
    queues.close()


def test_a_batch_queue_that_was_dropped_is_the_newest_when_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "_BATCH_QUEUES_AT_ONCE", 2)
    for number in range(3):
        (tmp_path / f"batchconsumequeue/B/{number}").mkdir(parents=True)
    queues = queues_of(tmp_path)
    first = queues.open("B", 0)
    queues.open("B", 1)
    queues.drop(("B", 0))
    again = queues.open("B", 0)
    assert again is not first
    queues.open("B", 2)
    assert queues.open("B", 0) is again
