"""The queues of a store that are kept open: which, and as of when."""

from __future__ import annotations

from pathlib import Path

import pytest

import store_builder as build
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.queue import queue_set
from rmqstore.storage.queue.queue_set import Queues


def paths(root: Path) -> StorePaths:
    return StorePaths(root, (root / "commitlog",), root / "consumequeue", root / "index")


def test_a_queue_is_listed_again_and_may_change_its_kind_after_a_refresh(tmp_path: Path) -> None:
    queues = Queues(paths(tmp_path), dict, lambda: None)
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
    monkeypatch.setattr(queue_set, "_BATCH_QUEUES_AT_ONCE", 2)
    for number in range(3):
        (tmp_path / f"batchconsumequeue/B/{number}").mkdir(parents=True)
    queues = Queues(paths(tmp_path), dict, lambda: None)
    first = queues.open("B", 0)
    queues.open("B", 1)
    queues.drop(("B", 0))
    again = queues.open("B", 0)
    assert again is not first
    queues.open("B", 2)
    assert queues.open("B", 0) is again
