"""Look-ups beside the real store: it writes the index, and answers the same questions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RocketMQ, store_sizes
from rmqstore.format.topics import HALF_TOPIC
from written import require_valid

SIZES = store_sizes(32768, 20 * 20, 20, 150)
TOPICS = ["T", "Other", HALF_TOPIC]
WORDS = [
    "hot", "Aa", "BB", "AaBB", "BBAa", "键", "x" * 200,
    *(f"order-{number}" for number in range(60)),
]  # fmt: skip


@pytest.mark.interop
@pytest.mark.parametrize("seed", [1, 2])
def test_every_key_is_answered_as_the_real_store_does_while_it_appends(
    rocketmq: RocketMQ, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    put: dict[tuple[str, str], list[int]] = {}
    with rocketmq.open(tmp_path / "s", **SIZES) as real:
        for number in range(500):
            topic, words = (
                chance.choice(TOPICS),
                chance.sample(WORDS, chance.choice([0, 1, 1, 2, 4])),
            )
            unique = {"UNIQ_KEY": f"{seed}-{number}"} if chance.random() < 0.8 else {}
            found = real.put(
                topic, 0, b"x" * chance.randint(0, 300), tags="t", keys=" ".join(words) or None,
                properties=unique,
            )  # fmt: skip
            for key in (*unique.values(), *words):
                put.setdefault((topic, key), []).append(found.getWroteOffset())
            if number % 100 == 99:
                real.wait()
                _compare(real, put, tmp_path / "s", chance)
    _compare(None, put, tmp_path / "s", chance)


def _compare(
    real: object, put: dict[tuple[str, str], list[int]], root: Path, chance: random.Random
) -> None:
    sample = chance.sample(sorted(put), min(len(put), 40))
    with rmqstore.open(root) as store:
        for topic, key in sample:
            answer = store.query(topic, key)
            ours = [message.commitLogOffset for message in answer]
            assert ours == put[topic, key]
            assert answer.is_complete
            assert store.query(topic, key, limit=2).messages == answer[-2:]
            if real is not None:
                theirs = set(real.query(topic, key))  # type: ignore[attr-defined]
                assert set(ours) <= theirs or len(theirs) >= 64
        assert not store.query("T", "nowhere")
        topics = sorted({topic for topic, _ in sample})
        batches = store.scan(
            msg_key=[key for _, key in sample],
            subscribe=topics,
            columns="topic,keys,commitLogOffset",
        )
        keys = {key for _, key in sample}
        expected = {
            physical_offset
            for (topic, key), physical_offsets in put.items()
            if key in keys and topic in topics
            for physical_offset in physical_offsets
        }
        assert sorted(expected) == [
            at for batch in batches for at in batch.column("commitLogOffset").to_pylist()
        ]


@pytest.mark.interop
@pytest.mark.parametrize("length", [0, 100])
def test_the_real_store_uses_an_index_file_without_items_whatever_its_length(
    rocketmq: RocketMQ, tmp_path: Path, length: int
) -> None:
    root = tmp_path / "s"

    def put(start: int, stop: int) -> list[list[int]]:
        with rocketmq.open(root, **SIZES) as real:
            for number in range(start, stop):
                real.put("T", 0, b"x", keys=f"k{number}")
            real.wait()
            return [real.query("T", f"k{number}") for number in range(stop)]

    before = put(0, 20)
    last = max((root / "index").iterdir())
    unused = last.with_name(str(int(last.name) + 1))
    unused.write_bytes(bytes(length))
    require_valid(root)
    after = put(20, 40)
    assert after[:20] == before
    assert all(len(places) == 1 for places in after)
    assert unused.stat().st_size == last.stat().st_size
    require_valid(root)
