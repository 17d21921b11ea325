"""The real store serves what the recipes write: what a broker would give its consumers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rmqstore
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop
EXAMPLES = Path(__file__).parents[2] / "examples"
WINDOW = ("2026-11-21T02:17:02.400", "2026-11-21T02:17:02.600")


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)], check=True,
        capture_output=True, text=True, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("recipe", ["dead letters", "one person", "window"])
def test_the_real_store_serves_what_a_recipe_wrote(
    rocketmq: RocketMQ, golden_store: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    source, target = golden_store("live"), tmp_path / "target"
    if recipe == "dead letters":
        run("10_reprocess_dead_letters.py", source, target, "CG_retry")
    elif recipe == "window":
        run("14_replay_window.py", source, target, "LivePlain", *WINDOW)
    else:
        run("13_one_person.py", source, tmp_path / "p.parquet", target, "retry-3", "key-1")
    with rmqstore.open(target) as store:
        columns = "topic,queueId,queueOffset,commitLogOffset,body,keys"
        rows = store.scan(columns=columns, include_system_topics=True).read_all().to_pylist()
        queues = [(row["topic"], row["queueId"]) for row in rows]
    assert rows
    with rocketmq.open(target) as real:
        for topic, queue_id in sorted(set(queues)):
            ours = [row for row in rows if (row["topic"], row["queueId"]) == (topic, queue_id)]
            served = list(real.messages(topic, queue_id))
            assert [message["queueOffset"] for message in served] == [
                row["queueOffset"] for row in ours
            ]
            assert [message["body"] for message in served] == [row["body"] for row in ours]
            for message, row in zip(served, ours, strict=True):
                for key in (row["keys"] or "").split()[:1]:
                    assert row["commitLogOffset"] in real.query(topic, key)
                assert message.get("keys") == row["keys"]


@pytest.mark.parametrize("is_live", [True, False])
def test_bodies_of_a_real_broker_become_a_table_once(
    rocketmq: RocketMQ, tmp_path: Path, *, is_live: bool
) -> None:
    root, lake = tmp_path / "s", tmp_path / "lake"
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000}
    with RealBroker(rocketmq, root, sizes) as broker:
        broker.set_queues("Orders", 3)
        source = f"rocketmq://{broker.namesrv_address}" if is_live else root
        for n_sent in (20, 40):
            orders = [b'{"orderId": %d}' % number for number in range(n_sent - 20, n_sent)]
            broker.send("Orders", [*orders, b"no order"])
            shown = run("18_bodies_to_table.py", source, "Orders", lake, "parquet")
            n_bad = n_sent // 20
            assert f"{n_sent} orders, {n_bad} bad bodies, 0 queues with gaps" in shown
