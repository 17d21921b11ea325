"""Cut appends to batch queues and light message queues, and a rebuild, at their changes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
from crash.faults import FaultyDisk, counted, cut_copies, mortal_writer
from goldens import Golden
from rmqstore.storage.broker.store_config import StoreConfig
from written import require_valid, stage

pytestmark = pytest.mark.crash

COLUMNS = "topic,queueId,queueOffset,body"
N_CUTS = 8


def config(name: str) -> StoreConfig:
    return StoreConfig().updated(goldens.summary(name)["conf"])


def messages(name: str) -> tuple[pa.RecordBatch, int]:
    """Return rows for a store, and the number of messages that they are in all queues together."""
    lmqs = ["%LMQ%sub_1", "%LMQ%sub_1,%LMQ%new"] if name == "lmq" else []
    properties = [[("INNER_MULTI_DISPATCH", lmqs[n % 2])] if lmqs else [] for n in range(40)]
    topics = ["Parent"] if lmqs else ["BatchA", "BatchB", "Plain"]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": [topics[n % len(topics)] for n in range(40)],
            "body": [b"new %d" % n for n in range(40)],
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )
    return batch, 40 + (60 if lmqs else 0)


def rows(root: Path) -> list[tuple[object, ...]]:
    with rmqstore.open(root) as store:
        found = store.scan(columns=COLUMNS, include_system_topics=True).read_all().to_pylist()
    return [tuple(row.values()) for row in found]


def change(root: Path, disk: FaultyDisk, name: str, way: str) -> None:
    """Append, or rebuild, as a process does that may die anywhere in it."""
    parts = stage(root, messages(name)[0]) if way == "staged" else []
    with mortal_writer(root, disk, config(name)) as writer:
        if way == "rebuild":
            writer.rebuild()
        elif way == "staged":
            writer.append_staged(parts, are_all=True)
        else:
            writer.append(messages(name)[0])


@pytest.mark.parametrize("way", ["append", "staged", "rebuild"])
@pytest.mark.parametrize("power", [None, 1], ids=["killed", "power cut"])
@pytest.mark.parametrize("name", ["batch-cq", "lmq"])
def test_a_change_that_is_cut_is_whole_or_absent(
    golden_store: Golden, tmp_path: Path, name: str, power: int | None, way: str
) -> None:
    whole, act = golden_store(name), partial(change, name=name, way=way)
    before = rows(whole)
    n_new = 0 if way == "rebuild" else messages(name)[1]
    n_changes = counted(whole, tmp_path, act).n_changes
    assert len(rows(tmp_path / "count" / name)) == len(before) + n_new
    places = sorted(random.Random(0).sample(range(n_changes), min(N_CUTS, n_changes)))
    for root, where in cut_copies(whole, tmp_path, act, places, power):
        if way != "rebuild":  # the queues of a rebuild that was cut stand aside
            assert len(rows(root)) in (len(before), len(before) + n_new), where
        with rmqstore.open(root, "a", config=config(name)):
            pass
        after = rows(root)
        assert len(after) in (len(before), len(before) + n_new), where
        assert {*before} <= {*after}, where
        require_valid(root, where)
        with rmqstore.open(root, "a", config=config(name)) as writer:
            writer.append(messages(name)[0])
        assert len(rows(root)) == len(after) + messages(name)[1], where
