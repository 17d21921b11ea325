"""What a real store does with a broken segment of its tiered storage; see broken_stores.py."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import broken_stores
import goldens
import tiers
from broken_stores import Case, Row, spans
from interop.rocketmq import RocketMQ
from interop.tiered import RealTieringStore

Served = dict[str, dict[int, bytes]]
TRUTH = broken_stores.truth("tiered")
SAMPLE = [
    Case("tiered", "closed", "COMMIT_LOG", "first", "cut"),
    Case("tiered", "closed", "COMMIT_LOG", "newest", "missing"),
    Case("tiered", "closed", "CONSUME_QUEUE", "middle", "missing"),
    Case("tiered", "closed", "CONSUME_QUEUE", "alone", "missing"),
    Case("tiered", "closed", "INDEX", "first", "missing"),
    Case("tiered", "crashed", "COMMIT_LOG", "middle", "page"),
]
CASES = dict.fromkeys([*SAMPLE, *TRUTH])
PAGE = 32
_KEYS = 2
_PHYSICAL_OFFSET = slice(28, 36)  # of a record, which differs in tier and local store
_OF_TIER = ("tiered", "readAhead")


class Observer:
    """Opens broken stores, and compares what they serve with what the whole one serves."""

    def __init__(self, rocketmq: RocketMQ, whole: Path, folder: Path) -> None:
        self._rocketmq, self._whole, self._folder = rocketmq, whole, folder
        case = Case("tiered", "closed", "INDEX", "first", "")
        self.served: Served = {}
        self.found: dict[tuple[str, str], set[int]] = {}
        self._look(Path(shutil.copytree(whole, folder / "whole")), case, self.served, self.found)
        for rows in self.served.values():
            del rows[max(rows)]  # the message that was put last

    def observe(self, case: Case) -> Row:
        """Return what the real store makes of a broken one.

        ``lost`` are the queue offsets that it does not serve when it is asked for each, as spans;
        ``stops`` where a consumer stops that asks for the next ones; ``deleted`` how many segments
        it deletes; ``keys`` how many keys it does not find.
        """
        root = self._folder / "broken"
        shutil.rmtree(root, ignore_errors=True)
        broken_stores.make(self._whole, case, root)
        before = {file for file in (root / "tieredstore").rglob("*") if file.is_file()}
        served: Served = {}
        found: dict[tuple[str, str], set[int]] = {}
        try:
            stops = self._look(root, case, served, found)
        except AssertionError:
            return {"starts": False}
        lost = {
            queue: spans([at for at, record in rows.items() if served[queue].get(at) != record])
            for queue, rows in self.served.items()
        }
        row: Row = {"starts": True, "lost": {queue: runs for queue, runs in lost.items() if runs}}
        if stops:
            row["stops"] = stops
        deleted = sum(not file.exists() for file in before)
        if deleted:
            row["deleted"] = deleted
        if case.part == "INDEX":
            row["keys"] = sum(not self.found[key] <= found[key] for key in self.found)
        return row

    def _look(
        self, root: Path, case: Case, served: Served, found: dict[tuple[str, str], set[int]]
    ) -> dict[str, int]:
        conf = goldens.summary("tiered")["conf"]
        sizes = {name: int(value) for name, value in conf.items() if not is_of_tier(name)}
        settings = {name: value for name, value in conf.items() if is_of_tier(name)}
        tier, stops = root / "tieredstore", {}
        with RealTieringStore(
            self._rocketmq, root, sizes, tier, brokerName="oracle", **settings
        ) as real:
            for topic, queue_id in goldens.queues("tiered"):
                real.put(topic, queue_id, b"next", properties={"a": "b"})
            real.wait()
            real.settle()
            for topic, queue_id in goldens.queues("tiered"):
                name = f"{topic}-{queue_id}"
                served[name], stop = read(real, topic, queue_id)
                if stop is not None:
                    stops[name] = stop
            if case.part == "INDEX":
                for row in goldens.lines("tiered", "keys"):
                    key = row["topic"], row["key"]
                    try:
                        found[key] = set(real.query(*key))
                    except Exception:  # noqa: BLE001 - what the real store throws
                        found[key] = set()
        return stops


@cache
def is_of_tier(name: str) -> bool:
    return name.startswith(_OF_TIER)


def read(real: Any, topic: str, queue_id: int) -> tuple[dict[int, bytes], int | None]:
    """Return the records of a queue, and the queue offset at which a consumer stops before its end.

    Their physical offsets are left out.
    """
    begin, end = real.queue_range(topic, queue_id)
    found = {at: record for at in range(begin, end) if (record := ask(real, topic, queue_id, at))}
    at = begin
    while at < end:
        answer = real.store.getMessage("g", topic, queue_id, at, PAGE, None)
        following = int(answer.getNextBeginOffset())
        answer.release()
        if following <= at:
            return found, at
        at = following
    return found, None


def ask(real: Any, topic: str, queue_id: int, at: int) -> bytes | None:
    answer = real.store.getMessage("g", topic, queue_id, at, 1, None)
    try:
        if answer.getStatus().toString() != "FOUND":
            return None
        buffer = answer.getMessageBufferList().get(0)
        record = bytearray(real.bytes_of(buffer))
    finally:
        answer.release()
    record[_PHYSICAL_OFFSET] = bytes(8)
    return bytes(record)


@pytest.fixture(scope="module")
def observer(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path_factory: pytest.TempPathFactory
) -> Observer:
    return Observer(rocketmq, golden_store("tiered"), tmp_path_factory.mktemp("tiers"))


@pytest.mark.interop
@pytest.mark.parametrize("case", tiers.split(CASES, len(SAMPLE)), ids=str)
def test_the_real_tiered_store_does_what_is_recorded(observer: Observer, case: Case) -> None:
    """But for a key or two: which segments of the index are sealed is a matter of time."""
    real, known = observer.observe(case), dict(TRUTH[case])
    assert abs(real.pop("keys", 0) - known.pop("keys", 0)) <= _KEYS
    assert real == known
