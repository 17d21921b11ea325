"""What Python workers of Spark keep from one task to the next."""

from __future__ import annotations

import gc
import weakref

import pytest

from pyspark_rmqstore.worker import tune_worker


def test_garbage_of_later_tasks_is_collected_and_modules_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Node:
        other: Node

    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    tune_worker.cache_clear()
    try:
        tune_worker()
        frozen = gc.get_freeze_count()
        node = Node()
        node.other = node
        gone = weakref.ref(node)
        tune_worker()  # by the next task
        # Objects that were frozen can be freed meanwhile; none was added.
        assert len(gc.get_objects()) < gc.get_freeze_count() <= frozen
        del node
        gc.collect()
        assert gone() is None
    finally:
        gc.unfreeze()
        tune_worker.cache_clear()
