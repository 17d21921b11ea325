"""The signs of a store by which a stream's task sees that a recovery changed it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import store_builder as build
from rmqstore.storage.broker.broker_run import StoreSigns, folders_of, queue_folders
from rmqstore.storage.broker.folders import find_store

QUEUES = [("T", 0), ("T", 1), ("U", 0)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = build.filled(build.Record(topic, queue_id) for topic, queue_id in QUEUES)
    return store.write(tmp_path / "s")


def signs(root: Path) -> StoreSigns:
    paths = find_store(root)
    return StoreSigns.of(paths, folders_of(paths, QUEUES))


@pytest.mark.parametrize("queue", QUEUES)
def test_a_change_of_a_queue_folder_shows(root: Path, queue: tuple[str, int]) -> None:
    before = signs(root)
    assert signs(root) == before
    os.utime(root / "consumequeue" / queue[0] / str(queue[1]), ns=(1, 1))
    assert signs(root) != before


@pytest.mark.parametrize("queue", QUEUES)
def test_a_batch_consumequeue_that_appears_or_changes_shows(
    root: Path, queue: tuple[str, int]
) -> None:
    before = signs(root)
    folder = root / "batchconsumequeue" / queue[0] / str(queue[1])
    folder.mkdir(parents=True)
    appeared = signs(root)
    assert appeared != before
    os.utime(folder, ns=(1, 1))
    assert signs(root) != appeared


def test_the_folders_of_all_queues_are_listed(root: Path) -> None:
    (root / "batchconsumequeue" / "V" / "3").mkdir(parents=True)
    listed = {Path(folder).relative_to(root) for folder in queue_folders(find_store(root))}
    parts = {Path("consumequeue", topic, str(queue_id)) for topic, queue_id in QUEUES}
    assert listed == {*parts, Path("batchconsumequeue", "V", "3")}
