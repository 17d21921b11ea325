"""The queues of a store that are kept open: which, and as of when."""

from __future__ import annotations

from pathlib import Path

import pytest

import store_builder as build
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery import queues as queues_module
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds


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
