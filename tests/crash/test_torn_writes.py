"""A write that a kill ends between two pages, in each file that is written in place.

A torn unit may name its record without its tags code, or with half of it; a unit of a batch may
lack its last field. What follows is that consumers that choose a tag miss the message.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
import tiers
from crash.faults import Act, FaultyDisk, mortal_writer, torn_copies
from crash.test_other_queues import config
from goldens import Golden
from rmqstore.format.layout import BATCH_UNIT
from written import require_valid, rows_of

pytestmark = pytest.mark.crash

LMQ, MAP = [("INNER_MULTI_DISPATCH", "%LMQ%sub_1")], pa.map_(pa.string(), pa.string())


def append(root: Path, disk: FaultyDisk, **columns: object) -> None:
    """Append three messages to a queue, whose tag has a negative hash code."""
    rows = {"topic": ["Fresh"] * 3, "body": [b"new"] * 3, "tags": ["Refund"] * 3, **columns}
    queue_ids = pa.array([0] * 3, pa.int32())
    with mortal_writer(root, disk, config(root.name)) as writer:
        writer.append(pa.table({"keys": ["k"] * 3, "queueId": queue_ids, **rows}))


def repair(root: Path, disk: FaultyDisk) -> None:
    with mortal_writer(root, disk, config(root.name)):
        pass


def tagged(root: Path, scan: str) -> int:
    """Return how many messages have the tag of the new ones, by their units or by the log."""
    with rmqstore.open(root) as store:
        return store.scan(columns="body", tags="Refund", scan=scan).read_all().num_rows


@pytest.mark.parametrize("of_each", tiers.sampled(3, 50))
@pytest.mark.parametrize(
    ("name", "act", "page"),
    [
        ("empty", append, 4),
        ("one", partial(append, tags=[""] * 3, delayTimeLevel=pa.array([2] * 3, pa.int32())), 4),
        ("batch-cq", partial(append, topic=["BatchA"] * 3), 2),
        ("lmq", partial(append, topic=["Parent"] * 3, properties=pa.array([LMQ] * 3, MAP)), 4),
        pytest.param("crash", repair, 4, marks=pytest.mark.slow),
    ],
)
def test_a_torn_write_is_completed_by_the_next_writer(
    golden_store: Golden, tmp_path: Path, name: str, act: Act, page: int, of_each: int
) -> None:
    for root, where in torn_copies(golden_store(name), tmp_path, act, page, of_each):
        assert tagged(root, "queue") == tagged(root, "commitlog"), where
        before = rows_of(root)
        repair(root, FaultyDisk())
        assert rows_of(root) == before, where
        require_valid(root, where)
        for path in (root / "batchconsumequeue").glob("*/*/*"):
            units = np.fromfile(path, BATCH_UNIT)
            assert (units["compacted"] == -1).sum() == (units["size"] > 0).sum(), where
