"""The real RocketMQ opens the store of a killed writer and writes: nothing is lost or misplaced."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import goldens
import rmqstore
from crash import killed
from interop.rocketmq import RealStore, RocketMQ
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.crash]

AT_ONCE = 8  # a store takes seconds to shut down, mostly waiting
SAMPLED = 4
SPREAD = 24  # places of one verb in one store that the slow tests look at, of up to 1,500
COLUMNS = "topic,queueId,queueOffset,commitLogOffset"
CASES: list[tuple[str, killed.Verb]] = [
    *((name, killed.repair) for name in goldens.CRASHED),
    *((name, killed.rebuild) for name in ("edges", "expired", "expired2")),
    *((name, killed.append) for name in ("one", "edges")),
]
# topic, queue id, queue offset, physical offset, CRC of the body
Served = set[tuple[str, int, int, int, bytes]]


def served(real: RealStore) -> Served:
    found: Served = set()
    for queues in dict(real.store.getConsumeQueueTable()).values():
        for queue in dict(queues).values():
            topic, queue_id = queue.getTopic(), queue.getQueueId()
            for queue_offset, record in real.records(topic, queue_id):
                found.add(
                    (topic, queue_id, queue_offset, int.from_bytes(record[28:36]), record[8:12])
                )
    return found


def damaged_parts(root: Path) -> set[str]:
    with rmqstore.open(root, broker_name="b") as store:
        return {finding.part for finding in verify(store)}


class Trial:
    """What one killed verb leaves of one store, and what the real RocketMQ makes of that.

    Attributes:
        changes: the verb's changes to the disk, in order.
    """

    def __init__(self, rocketmq: RocketMQ, golden: Path, folder: Path, verb: killed.Verb) -> None:
        self._rocketmq, self._golden, self._folder, self._verb = rocketmq, golden, folder, verb
        self._sizes = goldens.sizes(golden.name)
        self._config = StoreConfig().updated(goldens.summary(golden.name)["conf"])
        untouched, whole = self._copy("untouched"), self._copy("whole")
        self.changes = killed.run(verb, whole, self._config)
        self._before, self._after = self._opened(untouched), self._opened(whole)
        # RocketMQ's own recovery may lose units and keys
        self._damaged_before = damaged_parts(untouched)
        assert not damaged_parts(whole)
        self.seen: set[str] = set()

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self._golden, self._folder / name))

    def _opened(self, root: Path) -> Served:
        with self._rocketmq.open(root, **self._sizes) as real:
            real.wait()
            return served(real)

    def judge(self, at: int) -> None:
        """Kill the verb after one change; check the store once a broker has written to it."""
        root, where = self._copy(f"{at}"), f"killed after change {at}: {self.changes[at]}"
        killed.run(self._verb, root, self._config, at)
        with self._rocketmq.open(root, **self._sizes) as real:
            real.wait()
            found = served(real)
            assert found in (self._before, self._after), (where, len(found))
            queues = [
                *sorted({(topic, queue_id) for topic, queue_id, *_ in found})[:3],
                ("Later", 0),
            ]
            for queue in queues:
                real.put(*queue, b"goes on", keys="on")
            real.wait()
            later = served(real)
            assert later > found, where
            assert len(later) == len(found) + len(queues), where
            names = real.index_files()
        damaged = damaged_parts(root)
        # named by the same millisecond: the keys of the first are lost to the second
        if len(set(names)) < len(names):
            damaged.discard("index")
        if damaged:
            assert (found, damaged) == (self._before, damaged & self._damaged_before), (
                where,
                damaged,
            )
        else:
            with rmqstore.open(root, broker_name="b") as store:
                rows = (
                    store.scan(columns=COLUMNS, include_system_topics=True).read_all().to_pylist()
                )
            assert {tuple(row.values()) for row in rows} == {tuple(place) for *place, _ in later}, (
                where
            )
        assert self._opened(root) == later, where
        self.seen.add(
            "as before" if damaged or found == self._before != self._after else "complete"
        )
        shutil.rmtree(root)

    def judge_all(self, places: Iterable[int]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self.judge, at) for at in places]:
                done.result()


def case_id(value: object) -> str:
    return value if isinstance(value, str) else str(getattr(value, "__name__", value))


@pytest.mark.parametrize(("name", "verb"), [CASES[0], CASES[6]], ids=case_id)
def test_the_real_store_goes_on_where_a_writer_was_killed(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path: Path, name: str, verb: killed.Verb
) -> None:
    trial = Trial(rocketmq, golden_store(name), tmp_path, verb)
    in_queues = [
        at
        for at, change in enumerate(trial.changes)
        if "write" in change and "/consumequeue/" in change
    ]
    trial.judge_all(random.Random(0).sample(in_queues, SAMPLED))
    assert trial.seen == {"complete"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verb"), CASES, ids=case_id)
def test_the_real_store_goes_on_wherever_a_writer_was_killed(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path: Path, name: str, verb: killed.Verb
) -> None:
    trial = Trial(rocketmq, golden_store(name), tmp_path, verb)
    trial.judge_all(
        np.unique(np.linspace(0, len(trial.changes) - 1, SPREAD, dtype=np.int64)).tolist()
    )
    assert "complete" in trial.seen
