"""Stores of older releases: they write, we read; we append, and they open, serve and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from interop.conftest import start
from interop.rocketmq import RealStore, RocketMQ, store_sizes
from rmqstore.format.record import split_record
from rmqstore.write.messages import WriteSpec
from written import require_valid

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SIZES = store_sizes(65536, 20 * 30, 100, 400)
TOPICS = ("Orders", "Payments")
N = 300


@pytest.fixture(scope="module", params=["4.2.0", "4.7.1", "5.1.4", "5.4.0"])
def real_mq(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RocketMQ]:
    version: str = request.param
    real = start(version, tmp_path_factory.mktemp(f"rocketmq-{version}"))
    yield real
    real.close()


def test_what_either_writes_the_other_reads(real_mq: RocketMQ, tmp_path: Path) -> None:
    root, copied = tmp_path / "s", tmp_path / "copied"
    with real_mq.open(root, **SIZES) as real:
        for number in range(N):
            real.put(
                TOPICS[number % 2], number % 3, b"body %d " % number * (number % 20),
                tags="TagA" if number % 4 else None, keys=f"k{number}",
            )  # fmt: skip
        real.wait()
        expected = _served(real)
        rmqstore.copy(root, copied)
    assert _ours(root) == _ours(copied) == expected
    require_valid(root)
    with real_mq.open(copied, **SIZES) as real:
        assert _served(real) == expected
    rows = pa.table(
        {
            "topic": [TOPICS[number % 2] for number in range(N)],
            "queueId": pa.array([number % 3 for number in range(N)], pa.int32()),
            "body": [b"ours %d" % number for number in range(N)],
            "keys": [f"o{number}" for number in range(N)],
        }
    )
    with rmqstore.open(root, "a", spec=WriteSpec()) as writer:
        writer.append(rows)
    expected = _ours(root)
    assert sum(map(len, expected.values())) == 2 * N
    with real_mq.open(root, **SIZES) as real:
        assert _served(real) == expected
        assert len(real.query(TOPICS[1], "o7")) == 1
        real.put(TOPICS[0], 0, b"after ours", keys="after")
        real.wait()
        expected = _served(real)
    assert _ours(root) == expected
    require_valid(root)


def _served(real: RealStore) -> dict[tuple[str, int], list[bytes]]:
    keys = [(topic, queue_id) for topic in TOPICS for queue_id in range(3)]
    return {key: [split_record(one, 0).body for one in real.stored(*key)] for key in keys}


def _ours(root: Path) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {
        (topic, queue_id): [] for topic in TOPICS for queue_id in range(3)
    }
    with rmqstore.open(root) as store:
        for row in store.scan(columns=["topic", "queueId", "body"]).read_all().to_pylist():
            found[row["topic"], row["queueId"]].append(row["body"])
    return found
