"""The real RocketMQ opens the store of a dead append: all of its rows or none, and all old keys."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

import goldens
import rmqstore
from crash.faults import FaultyDisk, counted, cut_copies
from crash.test_append import append
from interop.rocketmq import RocketMQ
from rmqstore.format.layout import SCHEDULE_TOPIC
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.write.writer import StoreWriter

pytestmark = [pytest.mark.interop, pytest.mark.crash]

N = 60
N_CUTS = 10
N_KEYS = 25


def total(real: object, queues: set[tuple[str, int]]) -> int:
    return sum(high - low for low, high in (real.queue_range(*queue) for queue in queues))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "power"),
    [("rocketmq", None), ("rocketmq", 7), ("rocketmq_4", None), ("rocketmq_55", 7)],
    ids=["5.3.3, kill", "5.3.3, power", "4.9.8, kill", "5.5.1, power"],
)
def test_the_real_store_sees_all_rows_of_a_dead_append_or_none(
    request: pytest.FixtureRequest,
    golden_store: goldens.Golden,
    tmp_path: Path,
    version: str,
    power: int | None,
) -> None:
    rocketmq: RocketMQ = request.getfixturevalue(version)
    name = "v55-basic" if version == "rocketmq_55" else "basic"
    sizes = goldens.sizes(name)
    if version == "rocketmq_55":
        sizes["enableAcceleratedRecovery"] = True  # it requires the sixth field of the checkpoint
    queues = {*goldens.queues(name), *(("Fresh", queue_id) for queue_id in range(4))}
    before = sum(len(rows) for rows in goldens.queues(name).values())
    rng = random.Random(power or 0)
    keys = rng.sample(goldens.lines(name, "keys"), N_KEYS)
    act = partial(append, n=N)
    counting = counted(golden_store(name), tmp_path, act)
    commit = counting.commit
    places = {commit - 3, commit - 2, commit - 1, commit, commit + 1, counting.n_changes - 8}
    places |= set(rng.sample(range(5, counting.n_changes - 8), N_CUTS - len(places)))
    seen = set()
    for root, where in cut_copies(golden_store(name), tmp_path, act, sorted(places), power):
        with rocketmq.open(root, **sizes) as real:
            found = total(real, queues)
            assert found in (before, before + N), where
            seen.add(found)
            for answer in keys:
                hits = real.query(answer["topic"], answer["key"])
                assert set(answer["physicalOffsets"]) <= set(hits), (where, answer)
            delayed = {queue for queue in queues if queue[0] == SCHEDULE_TOPIC}
            # 4.9 delivers them while it runs
            n_due = total(real, delayed) if version == "rocketmq_4" else 0
            real.put("Fresh", 0, b"goes on", keys="on")
            real.wait()
            assert found + 1 <= total(real, queues) <= found + 1 + n_due, where
        with rmqstore.open(root, broker_name="b") as store:
            assert found + 1 <= store.count(include_system_topics=True) <= found + 1 + n_due, where
    assert seen == {before, before + N}


def test_the_real_store_completes_a_rebuild_that_was_cut(
    rocketmq_55: RocketMQ, golden_store: goldens.Golden, tmp_path: Path
) -> None:
    """With its accelerated recovery, which reads from the last record of all queues on."""
    name = "v55-basic"
    sizes = goldens.sizes(name)
    queues = {*goldens.queues(name)}
    before = sum(len(rows) for rows in goldens.queues(name).values())
    keys = random.Random(1).sample(goldens.lines(name, "keys"), N_KEYS)
    n = counted(golden_store(name), tmp_path, rebuild).n_changes
    places = (5, n // 8, n // 3, 2 * n // 3, n - 8)
    for root, where in cut_copies(golden_store(name), tmp_path, rebuild, places):
        with rocketmq_55.open(root, enableAcceleratedRecovery=True, **sizes) as real:
            assert total(real, queues) == before, where
            names = real.index_files()
            # named by the same millisecond: the keys of the first are lost to the second
            for answer in keys if len(set(names)) == len(names) else []:
                hits = real.query(answer["topic"], answer["key"])
                assert set(answer["physicalOffsets"]) <= set(hits), (where, answer)
        with rmqstore.open(root, broker_name="b") as store:
            found = store.scan(scan="commitlog", columns="commitLogOffset").read_all()[0]
            offsets = [row["physicalOffset"] for row in goldens.records(name)]
            assert found.to_pylist() == offsets, where


def rebuild(root: Path, disk: FaultyDisk) -> None:
    with StoreWriter(find_store(root), StoreConfig(), disk) as writer:
        writer.rebuild()
