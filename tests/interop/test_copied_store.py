"""The real RocketMQ opens copies: of a store that it had open, and of a part of one."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RocketMQ
from interop.test_live_store import N_QUEUES, SIZES as LIVE_SIZES, TOPIC, Appender
from interop.test_written_store import CONFIG, SIZES, judge, messages
from written import rows_of

pytestmark = pytest.mark.interop
VERSIONS = pytest.mark.parametrize("version", ["rocketmq", "rocketmq_55"], ids=["5.3.3", "5.5.1"])


@VERSIONS
def test_a_store_is_copied_while_its_broker_appends(real_mq: RocketMQ, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with real_mq.open(tmp_path / "s", **LIVE_SIZES) as real, Appender(real) as appender:
        appender.until(100)
        copied = rmqstore.copy(tmp_path / "s", target)
        n_copied = appender.last[:]
    assert not copied.findings
    rows = rows_of(target)
    assert 3 * 100 <= len(rows) <= sum(n_copied)
    by_offset = {(row["queueId"], row["queueOffset"]): row for row in rows_of(tmp_path / "s")}
    assert all(by_offset[row["queueId"], row["queueOffset"]] == row for row in rows)
    with real_mq.open(target, **LIVE_SIZES) as real:
        assert sum(real.queue_range(TOPIC, queue_id)[1] for queue_id in range(N_QUEUES)) == len(
            rows
        )
        real.put(TOPIC, 0, b"after", keys="k")
        real.wait()
    assert [row["body"] for row in rows_of(target) if row["keys"] == "k"] == [b"after"]
    assert len(rows_of(target)) == len(rows) + 1


@VERSIONS
def test_a_copy_of_some_topics_and_files_is_served(real_mq: RocketMQ, tmp_path: Path) -> None:
    with rmqstore.create(tmp_path / "s", config=CONFIG) as writer:
        writer.append(messages(600))
        writer.flush()
        writer.append(messages(600, 600))
    since = rows_of(tmp_path / "s")[-1]["storeTimestamp"]
    copied = rmqstore.copy(tmp_path / "s", tmp_path / "copy", since=since, topics=["Orders"])
    assert len(copied.left_out) >= 3
    assert not copied.findings
    rows = rows_of(tmp_path / "copy")
    assert {row["topic"] for row in rows} == {"Orders"}
    assert 200 <= len(rows) < 400
    with real_mq.open(tmp_path / "copy", **SIZES) as real:
        judge(real, rows)
        real.put("Orders", 0, b"after", keys="after")
        real.put("Payments", 0, b"begins again", keys="again")
        real.wait()
    added = [row for row in rows_of(tmp_path / "copy") if row["keys"] in ("after", "again")]
    assert {row["body"] for row in added} == {b"after", b"begins again"}
