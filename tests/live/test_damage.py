"""Damaged records in answers: each mode does what it does for stores."""

from __future__ import annotations

import logging
import struct

import pytest

from live.fake_cluster import FakeCluster, offsets, one_queue
from rmqstore.errors import CorruptRecordError, StoreFormatError
from rmqstore.live import pulls, reading
from rmqstore.live.live_cluster import LiveCluster

N, DAMAGED = 100, 41  # it has a body, of which a CRC is compared


def change(fake: FakeCluster, part: str) -> None:
    each = fake.brokers["a"].queues["T", 0].stored[DAMAGED]
    record = bytearray(each.record)
    if part == "crc":
        record[8] ^= 0x55
    elif part == "queue id":
        record[12:16] = struct.pack(">i", 3)
    elif part == "topic":
        record[record.rindex(b"\x01T") + 1] = ord("X")
    else:
        place = 84 if not struct.unpack_from(">i", record, 36)[0] & 0x10 else 96
        record[place : place + 4] = struct.pack(">i", 1 << 30)
    each.record = bytes(record)


def require_one_row_of_damage(cluster: LiveCluster) -> None:
    assert offsets(cluster, mode="DROPMALFORMED") == [*range(DAMAGED), *range(DAMAGED + 1, N)]
    table = cluster.scan(mode="PERMISSIVE", columns="topic,queueId,queueOffset,body").read_all()
    (row,) = [row for row in table.to_pylist() if row["_corrupt_record"] is not None]
    assert (row["topic"], row["queueId"], row["queueOffset"]) == ("T", 0, DAMAGED)
    assert row["body"] is None
    assert table.num_rows == N


@pytest.mark.parametrize("part", ["crc", "queue id", "topic", "body length"])
def test_one_damaged_record(part: str) -> None:
    with FakeCluster({"a": one_queue(N)}) as fake, fake.open() as cluster:
        change(fake, part)
        with pytest.raises((CorruptRecordError, StoreFormatError), match=fake.brokers["a"].address):
            offsets(cluster)
        require_one_row_of_damage(cluster)


def test_damage_in_the_middle_of_a_long_read_loses_no_answer_on_its_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 500)
    caplog.set_level(logging.INFO, pulls.__name__)
    count, damaged = 6000, 1000
    with FakeCluster({"a": one_queue(count)}) as fake, fake.open() as cluster:
        each = fake.brokers["a"].queues["T", 0].stored[damaged]
        each.record = bytes(4) + each.record[4:]
        found = offsets(cluster, mode="DROPMALFORMED")
    assert found == [number for number in range(count) if number != damaged]
    assert "trying again" not in caplog.text


@pytest.mark.parametrize(
    "head",
    [*(struct.pack(">i", size) for size in (-1, 0, 3, 10_000, (1 << 31) - 1)), b"\0\0\1\0no"],
)
def test_bytes_that_are_no_record_hide_no_other_message(head: bytes) -> None:
    with FakeCluster({"a": one_queue(N)}) as fake, fake.open() as cluster:
        each = fake.brokers["a"].queues["T", 0].stored[DAMAGED]
        each.record = head + each.record[len(head) :]
        with pytest.raises(StoreFormatError, match=fake.brokers["a"].address):
            offsets(cluster)
        require_one_row_of_damage(cluster)


def test_bytes_after_the_last_record_are_damage() -> None:
    with FakeCluster({"a": one_queue(N)}) as fake, fake.open() as cluster:
        fake.brokers["a"].queues["T", 0].stored[-1].record += b"abc"
        with pytest.raises(StoreFormatError, match=f"queue offset {N} of T-0 is not a record"):
            offsets(cluster)


def test_without_check_crc_a_changed_body_is_read() -> None:
    with FakeCluster({"a": one_queue(N)}) as fake, fake.open() as cluster:
        change(fake, "crc")
        assert offsets(cluster, check_crc=False) == list(range(N))
