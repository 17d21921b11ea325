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
@pytest.mark.parametrize("kind", ["consumequeue", "batchconsumequeue"])
def test_a_folder_of_a_queue_that_appears_or_changes_shows(
    root: Path, kind: str, queue: tuple[str, int]
) -> None:
    before = signs(root)
    folder = root / kind / queue[0] / str(queue[1])
    if not folder.exists():
        folder.mkdir(parents=True)
        assert signs(root) != before
        before = signs(root)
    assert signs(root) == before
    os.utime(folder, ns=(1, 1))
    assert signs(root) != before


def test_the_folders_of_all_queues_are_listed(root: Path) -> None:
    (root / "batchconsumequeue" / "V" / "3").mkdir(parents=True)
    listed = {Path(folder).relative_to(root) for folder in queue_folders(find_store(root))}
    parts = {Path("consumequeue", topic, str(queue_id)) for topic, queue_id in QUEUES}
    assert listed == {*parts, Path("batchconsumequeue", "V", "3")}
