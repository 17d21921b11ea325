"""A record that the real store cannot dispatch shifts the queue after it; we read it as served."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RocketMQ
from rmqstore.format.record import split_record
from rmqstore.inspect.verify import verify

SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 100}


@pytest.mark.interop
def test_a_shifted_queue_is_read_as_the_real_store_serves_it(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with rocketmq.open(root, **SIZES) as real:
        for number in range(4):
            real.put("T", 0, b"before %d" % number, keys="k")
        # The properties of the batch come after those of its messages: together they are too long
        # for the two bytes of their length.
        real.put_batch("T", 0, [b"lost"], b"k\1" + b"v" * 32_700 + b"\2", {"p": "w" * 200})
        real.wait()  # it skips all that it has read at once after such a record
        for number in range(7):
            real.put("T", 0, b"after %d" % number, keys="k")
        real.wait()
        served = [(at, split_record(data, 0)) for at, data in real.records("T", 0)]
        assert [at for at, _ in served] == list(range(11))
        assert int(served[-1][1].fixed["queue_offset"]) == 11  # in the record
        with rmqstore.open(root) as live:
            assert _read(live) == [(at, parts.body) for at, parts in served]
    with rmqstore.open(root) as store:
        assert _read(store) == [(at, parts.body) for at, parts in served]
        parts = [(one.part, one.text) for one in verify(store)]
    (end, cut, _log, shifted) = (text for part, text in parts if part != "index")
    assert end.startswith("7 records")
    assert cut.startswith("a broker that starts cuts off queue offsets 4 to 10;")
    assert cut.endswith("a broker that starts gives out queue offsets from 4 on again")
    assert shifted.startswith("7 units stand at another queue offset than their record names")
    with rocketmq.open(root, **SIZES) as real:  # its recovery ends the log at that record
        assert real.put("T", 0, b"restarted", keys="k").getLogicsOffset() == 4
        real.wait()
        served = [(at, split_record(data, 0)) for at, data in real.records("T", 0)]
        with rmqstore.open(root) as live:
            assert _read(live) == [(at, parts.body) for at, parts in served]


def _read(store: rmqstore.MessageStore) -> list[tuple[int, bytes]]:
    rows = store.scan(columns=["queueOffset", "body"]).read_all()
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
