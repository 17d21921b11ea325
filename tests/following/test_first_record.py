"""The first record of a new copy is the one that the broker's ordinary port tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from following.fake_master import FILE_BYTES, FakeMaster, log_of
from following.followers import follow_once, following, require_exact, wait_for
from rmqstore.errors import StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica.agreement import FirstRecord


def replicas(master: FakeMaster) -> Address:
    return Address("127.0.0.1", int(master.settings["haListenPort"]))


@pytest.mark.parametrize("size", [100, 5000])
def test_a_new_copy_by_the_port_of_another_broker_is_refused(size: int, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with (
        FakeMaster(log_of(20, size=size)) as master,
        FakeMaster(log_of(20, size=size, time_ms=77_000), name="other") as other,
    ):
        with pytest.raises(StoreStateError, match="of different brokers"):
            follow_once(master, target, ha_address=replicas(other))
        assert not list((target / "commitlog").iterdir())
        assert not list((target / "config").iterdir())  # no table either
        follow_once(master, target)
        require_exact(target, master.log)


def test_a_copy_begins_where_the_first_record_is_not_told(tmp_path: Path) -> None:
    log = log_of(50)
    with FakeMaster(log) as master:
        master.hides_records = True
        follow_once(master, tmp_path / "copy")
    require_exact(tmp_path / "copy", log)


@pytest.mark.parametrize("step", [1, 3, 10, 100])
@pytest.mark.parametrize("begin", [0, 1000])
def test_a_record_is_compared_as_it_comes(begin: int, step: int) -> None:
    record, rest = bytes(range(40)), b"rest"
    stream = record + rest
    first = FirstRecord(begin, record)
    for place in range(0, len(stream), step):
        assert first.has_come == (place >= len(record))
        expected = first.expected(begin + place, begin + place + step)
        assert expected == record[place : place + step]
        first = first._replace(n_come=place + len(expected))
    assert first.has_come


@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("place", [1, 20, 39])
def test_each_byte_of_a_record_counts(place: int, step: int, tmp_path: Path) -> None:
    class OtherRecords(FakeMaster):
        def _record_at(self, physical_offset: int) -> tuple[int, bytes]:
            code, record = super()._record_at(physical_offset)
            other = bytearray(record)
            other[place] ^= 1
            return code, bytes(other)

    target = tmp_path / "copy"
    with (
        OtherRecords(log_of(20), batch=step) as master,
        pytest.raises(StoreStateError, match="different brokers"),
    ):
        follow_once(master, target)
    assert not list((target / "commitlog").iterdir())


def test_a_log_that_was_empty_may_begin_anywhere(tmp_path: Path) -> None:
    """A slave without a log begins with the last file of its master."""
    target, log = tmp_path / "copy", log_of(600)
    with FakeMaster(log_of(0)) as master, following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().n_connections > 0)
        master.low = 3 * FILE_BYTES
        master.log = log
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        assert run.follower.progress().begin == master.low
    require_exact(target, log, master.low)
