"""Messages that the real broker's tiered storage uploads: followed while they move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RocketMQ
from interop.test_other_queues import configured
from interop.test_rocksdb_queues import COLUMNS, Rows, by_queue, follow, joined, put
from interop.tiered import RealTieringStore
from rmqstore.query.selection import parse_selection
from rmqstore.source.tiered_tail import tail_of

pytestmark = pytest.mark.interop

SIZES = {"mappedFileSizeCommitLog": 8192, "maxHashSlotNum": 50, "maxIndexNum": 400}


def read(path: Path, **options: object) -> Rows:
    with rmqstore.open(path, **options) as store:
        return by_queue(iter(store.scan(columns=COLUMNS)))


def test_a_tail_gives_each_message_once_while_the_broker_moves_it(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root, tier = tmp_path / "store", tmp_path / "tier"
    followed: Rows = {}
    with RealTieringStore(rocketmq, root, SIZES, tier) as real:
        sent = put(real, 0, 120)
        real.upload()
        assert real.expire(10) > 0
        with rmqstore.open(root, tiered=tier) as store, rmqstore.open(tier) as alone:
            joined_tail = tail_of(store.parts, parse_selection())
            tier_tail = tail_of(alone.parts, parse_selection())
            in_tier: Rows = {}
            for number in range(4):
                follow(joined_tail, followed)
                follow(tier_tail, in_tier)
                sent = joined(sent, put(real, 120 + 60 * number, 60))
                if number % 2 == 0:
                    follow(joined_tail, followed)
                real.upload()
                assert real.expire(10) > 0
            follow(joined_tail, followed)
            follow(tier_tail, in_tier)
        assert followed == in_tier == sent
        assert read(root, tiered=tier) == read(tier) == sent
        for (topic, queue_id), rows in sent.items():
            assert real.queue_range(topic, queue_id) == (0, len(rows))
        n_left = sum(len(rows) for rows in read(root).values())
        assert n_left < sum(len(rows) for rows in sent.values()) / 2


def test_messages_of_uploaded_batches_are_read_one_by_one(
    rocketmq: RocketMQ, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    root, tier = copied("batch-cq"), tmp_path / "tier"
    with rmqstore.open(root) as store:
        batch_topics = {*store.parts.queues.batch_topics()}
        expected = by_queue(iter(store.scan(columns=COLUMNS, subscribe=sorted(batch_topics))))
        table = store.scan(columns="commitLogOffset", subscribe=sorted(batch_topics)).read_all()
        n_records = len(set(table.column(0).to_pylist()))
    _, sizes = configured("batch-cq")
    with RealTieringStore(rocketmq, root, sizes, tier, batch_topics) as real:
        for key in expected:
            real.begin(*key)
        real.upload()
        found = read(tier)
        assert {key: found.get(key) for key in expected} == expected
        n_copies = sum(len(rows) for rows in expected.values())
        assert n_copies > n_records, "each message has a copy of its record"
