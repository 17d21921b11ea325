"""A broker opens a store whose repair or rebuild was cut: it rebuilds the queues, keeps the log."""

from __future__ import annotations

import random
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goldens
import rmqstore
from crash.faults import Act, Cut, FaultyDisk, cut_copies, mortal_writer
from goldens import Golden
from reading import read
from rmqstore.format.columns.walk import Walk
from rmqstore.format.layout import PRE_BLANK_SIZE, QUEUE_UNIT
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.appender import FoundQueue, QueueAppender
from rmqstore.storage.recovery import log_end
from rmqstore.storage.recovery.log_end import LogEnd, find_log_end

pytestmark = pytest.mark.crash

FIRST_BODY = 88  # bytes from the start of a record without IPv6 hosts
SAMPLED = 4


def config(root: Path) -> StoreConfig:
    return StoreConfig().updated(goldens.summary(root.name)["conf"])


def repair(root: Path, disk: FaultyDisk) -> None:
    with mortal_writer(root, disk, config(root)):
        pass


def rebuild(root: Path, disk: FaultyDisk) -> None:
    with mortal_writer(root, disk, config(root)) as writer:
        writer.rebuild()


def recovered_end(root: Path) -> LogEnd:
    """Return where the log ends for a broker that finds the store not closed."""
    paths = find_store(root)
    with closing(CommitLog(paths.commitlogs)) as log:
        return find_log_end(log, read_checkpoint(paths))


def copy(golden: Path, folder: Path) -> Path:
    return Path(shutil.copytree(golden, folder / golden.name))


def damage_first_record(root: Path) -> None:
    path = min((root / "commitlog").iterdir())
    stored = bytearray(path.read_bytes())
    stored[FIRST_BODY] ^= 0xFF
    path.write_bytes(stored)


class CountingDisk(FaultyDisk):
    """Notes which changes build queues: after the first of them, a queue is half built."""

    def __init__(self) -> None:
        super().__init__()
        self.building: list[int] = []

    def _step(self, what: str, path: Path) -> bool:
        if what == "write" and "consumequeue" in path.parts:
            self.building.append(self.n_changes)
        return super()._step(what, path)


@pytest.mark.parametrize("name", ["crash", "crash3", "crash4"])
def test_a_broker_rebuilds_what_a_repair_left_half_built(
    golden_store: Golden, tmp_path: Path, name: str
) -> None:
    disk = CountingDisk()
    repair(copy(golden_store(name), tmp_path / "count"), disk)
    sampled = random.Random(0).sample(disk.building, SAMPLED)
    for root, where in cut_copies(golden_store(name), tmp_path, repair, sampled):
        assert (root / "abort").exists(), where
        assert recovered_end(root).scanned_from == 0, where


@pytest.mark.parametrize(("name", "verb"), [("crash", repair), ("crash", rebuild)])
def test_a_broker_keeps_the_log_though_it_is_damaged_before_what_was_half_built(
    golden_store: Golden, tmp_path: Path, name: str, verb: Act
) -> None:
    whole = copy(golden_store(name), tmp_path / "count")
    damage_first_record(whole)
    expected, disk = recovered_end(whole).physical_offset, CountingDisk()
    assert expected > 0
    damaged = copy(whole, tmp_path / "damaged")
    verb(whole, disk)
    sampled = random.Random(0).sample(disk.building, SAMPLED)
    for root, where in cut_copies(damaged, tmp_path, verb, sampled):
        assert recovered_end(root).physical_offset >= expected, where


@pytest.mark.parametrize("verb", [repair, rebuild])
def test_a_closed_store_with_a_damaged_log_is_not_believed_half_built(
    golden_store: Golden, tmp_path: Path, verb: Act
) -> None:
    damaged = copy(golden_store("live"), tmp_path / "damaged")
    with (damaged / "commitlog/00000000000000098304").open("r+b") as file:
        file.seek(30_000)
        file.write(bytes(4096))
    shutil.rmtree(damaged / "consumequeue/LivePlain")

    def found(root: Path) -> list[dict[str, Any]]:
        with rmqstore.open(root) as store:
            return read(store, mode="DROPMALFORMED", fail_on_data_loss=False)

    whole, disk = found(damaged), CountingDisk()
    done = copy(damaged, tmp_path / "count")
    verb(done, disk)
    assert found(done) == whole
    assert not (done / "abort").exists()
    sampled = random.Random(0).sample(disk.building, SAMPLED)
    for root, where in cut_copies(damaged, tmp_path, verb, [*disk.building[1:9], *sampled]):
        assert (root / "abort").exists(), where
        assert found(root) == whole, where
        repair(root, FaultyDisk())
        assert found(root) == whole, where
        assert not (root / "abort").exists(), where


@pytest.mark.parametrize("name", ["crash", "edges"])
def test_a_repair_and_a_rebuild_scan_no_file_of_the_log_twice(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root, scan, scanned = copy(golden_store(name), tmp_path), log_end._scan, []

    def noted(log: CommitLog, segment: Segment, *others: Any) -> tuple[Walk, int]:
        scanned.append(segment.start)
        return scan(log, segment, *others)

    monkeypatch.setattr(log_end, "_scan", noted)
    rebuild(root, FaultyDisk())
    with closing(CommitLog(find_store(root).commitlogs)) as log:
        assert len(log.segments) > 1
        assert sorted(scanned) == [segment.start for segment in log.segments]


def test_a_queue_that_does_not_begin_at_0_has_its_filler_and_unit_from_the_start(
    tmp_path: Path,
) -> None:
    first, file_size = 25, 400
    unit = np.array([(7, 100, 0)], QUEUE_UNIT)
    seen = set()
    for at in range(20):
        folder, disk = tmp_path / f"{at}", FaultyDisk(at)
        with suppress(Cut):
            queue = QueueAppender(disk, folder, file_size, FoundQueue())
            queue.append(np.array([first]), unit)
        for path in folder.glob("*"):
            stored = np.fromfile(path, QUEUE_UNIT)
            assert (stored["size"][: first % 20] == PRE_BLANK_SIZE).all(), disk.done
            seen.add(int(stored["size"][first % 20]))
    assert seen == {100}


def test_a_unit_that_is_half_cleared_points_at_no_record(
    golden_store: Golden, tmp_path: Path
) -> None:
    root, disk = copy(golden_store("crash"), tmp_path / "count"), CountingDisk()
    repair(root, disk)
    first = disk.building[0]  # CrashA/1 has a unit of the torn record, and nothing after it
    for at, kept in ((first, None), (first + 1, None), (first + 1, 0)):
        root = copy(golden_store("crash"), tmp_path / f"{at}-{kept}")
        with suppress(Cut):
            repair(root, FaultyDisk(at, kept=kept))
        units = np.fromfile(max((root / "consumequeue" / "CrashA" / "1").iterdir()), QUEUE_UNIT)
        assert not ((units["size"] > 0) & (units["physical_offset"] == 0)).any()
