"""What a follower does before and while its copy is compared with the log of the broker."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from following.fake_master import FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import (
    Following,
    copied,
    files,
    follow_once,
    require_exact,
    wait_for,
)
from rmqstore.errors import StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica.agreement import FirstRecord
from rmqstore.replica.state import follow_status
from store_builder import Store, pack_blank

TABLES = ("consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json")


def fill_file(log: Store) -> None:
    left = FILE_BYTES - log.end % FILE_BYTES
    log.put(log.end, pack_blank(left))
    log.end += left


def tables_of(target: Path) -> dict[str, bytes]:
    found = sorted((target / "config").iterdir())
    return {path.name: path.read_bytes() for path in found if path.suffix == ".json"}


@pytest.mark.parametrize("overlap", [1000, 1 << 20])
def test_another_log_is_refused_and_its_tables_are_not_taken(overlap: int, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    copied(log_of(300), target)
    before, tables = files(target), tables_of(target)
    with FakeMaster(log_of(200, time_ms=77_000)) as master:
        master.tables[43] = b'{"offsetTable":{"T@G":{0:7}}}'
        with pytest.raises(StoreStateError, match="another log"):
            follow_once(master, target, overlap=overlap)
    assert tables_of(target) == tables
    assert files(target) == before
    assert not (target / "abort").exists()


def test_tables_of_another_broker_are_not_taken_while_nothing_comes(tmp_path: Path) -> None:
    """The broker is replaced while a follower runs; tables are asked for on another connection."""
    target, log = tmp_path / "copy", log_of(100)
    with FakeMaster(log) as master:
        run = Following(master.address, target, tables_seconds=0.2)
        wait_for((target / "config" / "topics.json").exists)
        wait_for(lambda: {*tables_of(target)} == {*TABLES})
        tables = tables_of(target)
        master.mangle = lambda _: b""
        master.heartbeat = 3600.0
        master.log = log_of(90, time_ms=77_000)
        master.tables[43] = b'{"offsetTable":{"T@G":{0:7}}}'
        asked = len(master.port.requests)
        wait_for(lambda: len(master.port.requests) > asked + 20 or run.error is not None)
        assert tables_of(target) == tables
        master.mangle = lambda frame: frame
        master.heartbeat = 0.05
        master.cut_connections()
        with pytest.raises(StoreStateError, match="another log"):
            run.wait()
    assert tables_of(target) == tables


@pytest.mark.parametrize("n_lost", [0, 30])
def test_a_copy_ends_where_the_log_does_and_not_at_an_earlier_heartbeat(
    n_lost: int, tmp_path: Path
) -> None:
    (longer, log), target = part(log_of(100), n_lost, 0), tmp_path / "copy"
    with FakeMaster(longer) as master:
        master.is_slow = True
        run = Following(master.address, target, once=True)
        wait_for(lambda: len(master.reports) > 0 and len(master.reports[0]) > 2)
        master.log, master.is_slow = log, False
        run.wait()
    require_exact(target, log)


def test_a_log_that_is_cut_before_what_is_compared_is_compared_again(tmp_path: Path) -> None:
    (longer, log), target = part(log_of(100), 100, 0), tmp_path / "copy"
    with FakeMaster(longer) as master:
        follow_once(master, target)
        n_before = len(master.reports)
        master.is_slow = True
        with Following(master.address, target, overlap=600) as run:
            wait_for(lambda: len(master.reports) > n_before and len(master.reports[-1]) > 1)
            master.log, master.is_slow = log, False
            wait_for(lambda: run.follower.progress().n_cuts == 1)
    require_exact(target, log)


def test_a_log_that_ends_inside_a_long_record_of_the_copy_is_compared_before_it(
    tmp_path: Path,
) -> None:
    target, other = tmp_path / "copy", log_of(20)
    longer = copy.deepcopy(other)
    more(longer, 1, size=5000)
    more(longer, 3)
    more(other, 8, mark=b"other", time_ms=10_000)
    copied(longer, target)
    with FakeMaster(other) as master:
        run = Following(master.address, target, once=True, overlap=600)
        wait_for(lambda: not run.is_alive())
        run.end()
    require_exact(target, other)


def test_a_copy_of_which_the_broker_has_nothing_left_is_not_appended_to(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(30)
    fill_file(log)
    with FakeMaster(log) as master:
        follow_once(master, target)
        before = files(target)
        more(log, 10)
        master.low = FILE_BYTES
        with pytest.raises(StoreStateError, match="without being compared"):
            follow_once(master, target)
    assert files(target) == before


@pytest.mark.parametrize("is_running", [False, True])
def test_a_copy_without_a_record_begins_again_where_the_broker_does(
    is_running: bool, tmp_path: Path
) -> None:
    target, log = tmp_path / "copy", log_of(0)
    with FakeMaster(log) as master:
        follow_once(master, target)
        assert follow_status(target)[0].end == 0
        run = Following(master.address, target)
        wait_for(lambda: len(master.reports) > 1)
        if not is_running:
            run.end()
        master.is_slow = True
        more(log, 300)
        master.low = 2 * FILE_BYTES
        master.cut_connections()
        master.is_slow = False
        if is_running:
            wait_for(lambda: run.error is not None or run.follower.progress().end == log.end)
            run.end()
        else:
            follow_once(master, target)
    require_exact(target, log, 2 * FILE_BYTES)


def test_a_copy_without_a_record_that_begins_after_the_log_begins_again(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(100)
    fill_file(log)
    with FakeMaster(log) as master:
        done = follow_once(master, target, start="last-file")
        assert done.begin == done.end == log.end
        master.log = log_of(50)
        follow_once(master, target)
    require_exact(target, log_of(50))


def test_more_is_compared_also_without_connecting_again(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    longer, other = part(log_of(100), 200, 10)
    copied(longer, target)
    copied(other, target, overlap=600, reconnect=False)
    require_exact(target, other)


def test_a_log_that_ends_before_the_copy_begins_is_refused(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    with FakeMaster(log) as master:
        master.low = 2 * FILE_BYTES
        follow_once(master, target)
        require_exact(target, log, master.low)
        before = files(target)
        master.low, master.log = 0, log_of(50)
        with pytest.raises(StoreStateError, match="another log"):
            follow_once(master, target)
    assert files(target) == before


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
    with FakeMaster(log_of(0)) as master, Following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().n_connections > 0)
        master.low = 3 * FILE_BYTES
        master.log = log
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        assert run.follower.progress().begin == master.low
    require_exact(target, log, master.low)
