"""A follower and a fake master: the copy is exact, whatever happens on the way."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rmqstore
import tiers
from following.fake_master import BATCH_TOPIC, FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import (
    TIMING,
    Following,
    copied,
    copying,
    files,
    follow_once,
    require_exact,
    wait_for,
)
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptRecordError,
    StoreLockedError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.format.columns import dispatch_requests
from rmqstore.replica.ha import NEVER
from rmqstore.replica.settings import FollowSettings, settings_of
from rmqstore.replica.state import copy_paths, follow_status
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.files.disk import Disk
from store_builder import Record, Store, properties


@pytest.mark.parametrize("count", [0, 1, 50, 400, 1000])
def test_a_copy_of_a_log_that_is_at_rest_is_exact(count: int, tmp_path: Path) -> None:
    log = log_of(count)
    with FakeMaster(log) as master:
        done = follow_once(master, tmp_path / "copy")
        assert (done.begin, done.end, done.queues_end) == (0, log.end, log.end)
    if count:
        require_exact(tmp_path / "copy", log)
        checkpoint = read_checkpoint(copy_paths(tmp_path / "copy"))
        times = [placed.record.store_timestamp for placed in log.placed]
        assert checkpoint.logics_msg_timestamp == max(times)


def test_a_copy_grows_with_the_log_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    log, target = log_of(10), tmp_path / "copy"
    with FakeMaster(log) as master:
        for turn in range(4):
            with Following(master.address, target) as run:
                for _ in range(5):
                    more(log, 37 + turn)
                    wait_for(lambda: run.follower.progress().queues_end == log.end)
            require_exact(target, log)
        assert all(reports[1:] and set(reports[1:]) == {NEVER} for reports in master.reports)


def test_tables_wait_for_the_log(tmp_path: Path) -> None:
    log, target = log_of(100), tmp_path / "copy"
    file = target / "config" / "consumerOffset.json"
    with copying(log, target, tables_seconds=0.3, max_rate=log.end // 2) as (master, run):
        wait_for(lambda: run.follower.progress().end > 0)
        assert not file.exists()
        wait_for(file.exists)
        assert run.follower.progress().end == log.end
        master.tables[43] = b'{"offsetTable":{"T@G":{0:9}}}'
        wait_for(lambda: file.read_bytes() == master.tables[43])
    assert file.with_name("topics.json").read_bytes() == master.tables[21]
    with rmqstore.open(target) as store:
        groups = store.view("groups").read_all().to_pylist()
    places = [(row["consumerGroup"], row["queueId"], row["consumerOffset"]) for row in groups]
    assert ("G", 0, 9) in places
    kept = file.with_name("consumerOffset.json.bak")
    assert kept.read_bytes() == b'{"offsetTable":{"T@G":{0:1,1:2}}}'


def test_tables_are_asked_for_as_often_as_is_asked(tmp_path: Path) -> None:
    timing = replace(TIMING, bounds=60.0)
    file = tmp_path / "copy" / "config" / "consumerOffset.json"
    with copying(log_of(10), tmp_path / "copy", tables_seconds=0.2, timing=timing) as (master, _):
        wait_for(file.exists)
        master.tables[43] = b'{"offsetTable":{"T@G":{0:9}}}'
        wait_for(lambda: file.read_bytes() == master.tables[43], 5)


def test_what_is_synced_is_acknowledged_before_producers_give_up(tmp_path: Path) -> None:
    log = log_of(30)
    timing = replace(TIMING, report=3600.0)
    with copying(log, tmp_path / "copy", acknowledge="synced", timing=timing) as (master, _):
        for _ in range(3):
            wait_for(lambda: bool(master.reports) and log.end in master.reports[0][1:], 5)
            more(log, 5)
    assert sorted(master.reports[0][1:]) == master.reports[0][1:]


def test_a_new_copy_may_begin_with_the_last_file(tmp_path: Path) -> None:
    log = log_of(500)
    done = copied(log, tmp_path / "copy", start="last-file")
    assert done.begin == log.end - log.end % FILE_BYTES
    assert list(files(tmp_path / "copy")) == [f"{done.begin:020d}"]


@pytest.mark.parametrize("overlap", [600, 5000, 1 << 20])
@pytest.mark.parametrize("n_lost", [1, 30, 200])
@pytest.mark.parametrize("n_more", [0, 1, 500])
def test_an_end_that_the_master_has_lost_is_cut_and_kept(
    n_lost: int, n_more: int, overlap: int, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    common = log_of(300)
    longer, other = part(common, n_lost, n_more)
    copied(longer, target)
    before = files(target)
    done = copied(other, target, overlap=overlap)
    assert done.n_cuts == 1
    require_exact(target, other)
    state, is_running = follow_status(target)
    assert not is_running
    # A difference inside of a record cuts before it: all bytes of the record are kept.
    assert state.last_cut == common.end
    for path in Path(state.last_cut_kept).iterdir():
        name, _, first = path.name.partition(".")
        cut_from = int(first or name) - int(name)
        kept = path.read_bytes()
        assert kept == before[name][cut_from : cut_from + len(kept)]
        assert not before[name][cut_from + len(kept) :].strip(b"\0")
        before[name] = before[name][:cut_from]
    rest = b"".join(data for name, data in before.items() if int(name) >= common.end)
    assert not rest


@pytest.mark.parametrize("seed", tiers.split(range(20), 4))
def test_a_connection_that_breaks_again_and_again_leaves_an_exact_copy(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    log = log_of(100)
    with (
        FakeMaster(log, batch=dice.choice([17, 500, 3000])) as master,
        Following(master.address, tmp_path / "copy", sync_seconds=0.05) as run,
    ):
        for _ in range(8):
            more(log, dice.randrange(60), size=dice.choice([1, 100, 4000]))
            if dice.random() < 0.7:
                master.cut_connections()
        wait_for(lambda: run.follower.progress().queues_end == log.end)
    require_exact(tmp_path / "copy", log)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(50)
    with FakeMaster(log) as master:
        follow_once(master, target)
        for name, value, match in (
            ("brokerName", "other", "is a copy of broker 'b'"),
            ("mappedFileSizeCommitLog", "32768", "makes files of 32768"),
        ):
            good, master.settings[name] = master.settings[name], value
            with pytest.raises(StoreStateError, match=match):
                follow_once(master, target)
            master.settings[name] = good


def test_a_broker_without_a_role_is_refused(tmp_path: Path) -> None:
    with FakeMaster(log_of(5)) as master:
        del master.settings["brokerRole"]
        with pytest.raises(StoreStateError, match="role"):
            follow_once(master, tmp_path / "copy")
        assert not master.reports


@pytest.mark.parametrize("name", ["enableDLegerCommitLog", "duplicationEnable"])
def test_other_kinds_of_replication_are_refused_before_a_byte_is_sent(
    name: str, tmp_path: Path
) -> None:
    with FakeMaster(log_of(5)) as master:
        master.settings[name] = "true"
        with pytest.raises(UnsupportedFeatureError):
            follow_once(master, tmp_path / "copy")
        assert not master.reports


def test_a_sync_master_of_4_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    log = log_of(50)
    with FakeMaster(log) as master:
        master.settings["brokerRole"], master.version = "SYNC_MASTER", "V4_9_8"
        with pytest.raises(StoreStateError, match="SYNC_MASTER"):
            follow_once(master, tmp_path / "copy")
        assert not master.reports
        follow_once(master, tmp_path / "copy", allow_sync_master=True)
    require_exact(tmp_path / "copy", log)


def test_refusals_and_failures_of_the_ordinary_port_are_told(tmp_path: Path) -> None:
    with FakeMaster(log_of(5)) as master:
        master.answer_code = 16
        with pytest.raises(BrokerRefusedError, match="code 16"):
            follow_once(master, tmp_path / "copy")
        master.answer_code = 2
        with pytest.raises(BrokerUnreachableError, match="why"):
            follow_once(master, tmp_path / "copy", reconnect=False)


def test_a_copy_that_is_in_use_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(50)
    with FakeMaster(log) as master, Following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().end == log.end)
        with pytest.raises(StoreLockedError):
            follow_once(master, target)
        other = Store().write(tmp_path / "other")
        before = sorted(path.name for path in other.iterdir())
        with pytest.raises(StoreStateError, match="is not a copy"):
            follow_once(master, other)
        assert sorted(path.name for path in other.iterdir()) == before


def test_a_master_whose_log_is_no_chain_of_records_ends_the_copy_before_it(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(100)
    bad = log.placed[60].physical_offset
    log.put(bad + 4, b"\1\2\3\4")
    with FakeMaster(log) as master, pytest.raises(CorruptRecordError, match=str(bad)):
        follow_once(master, target)
    state, _ = follow_status(target)
    assert state.end == bad
    with rmqstore.open(target) as store:
        assert store.scan().read_all().num_rows == 60


def test_bytes_after_what_the_state_vouches_for_are_kept_and_cleared(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(100)
    with FakeMaster(log) as master:
        follow_once(master, target)
        path = max((target / "commitlog").iterdir())
        position = log.end % FILE_BYTES
        data = bytearray(path.read_bytes())
        data[position : position + 4] = b"junk"
        path.write_bytes(data)
        more(log, 30)
        follow_once(master, target)
    require_exact(target, log)
    kept = list((target / ".rmqstore" / "cut").rglob("*.*"))
    assert any(path.is_file() and path.read_bytes() == b"junk" for path in kept)


def test_batch_queues_are_built_as_such(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(20)
    with FakeMaster(log) as master, Following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        master.tables[21] = BATCH_TOPIC
        for number in range(5):
            log.append(Record(topic="B", body=b"%d" % number, store_timestamp=1_700_000_009_000))
        wait_for(lambda: run.follower.progress().queues_end == log.end)
    assert (target / "batchconsumequeue" / "B").is_dir()
    assert not (target / "consumequeue" / "B").exists()


def test_records_that_hold_many_messages_are_dispatched_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, dice = Store(segment_bytes=FILE_BYTES), random.Random(2)
    offset = 0
    for _ in range(100):
        count = dice.choice([1, 2, 30])
        log.append(
            Record(
                topic="B", queue_offset=offset, body=b"x", sys_flag=0x80 | 0x40,
                properties=properties({"INNER_NUM": str(count)}),
            ),
            queued=False,
        )  # fmt: skip
        offset += count
    copies = []
    for number, most in enumerate((1 << 17, 7)):
        monkeypatch.setattr(dispatch_requests, "_MOST_MESSAGES", most)
        with FakeMaster(log) as master:
            master.tables[21] = BATCH_TOPIC
            follow_once(master, tmp_path / str(number))
        folder = tmp_path / str(number) / "batchconsumequeue" / "B" / "0"
        copies.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert copies[0] == copies[1]
    assert copies[0]


@pytest.mark.parametrize("interval", ["0", "1", "99999999", "9" * 18])
def test_intervals_that_mean_nothing_are_bounded(interval: str, tmp_path: Path) -> None:
    log, target = log_of(50), tmp_path / "copy"
    with FakeMaster(log) as master:
        master.settings |= {"haSendHeartbeatInterval": interval, "haHousekeepingInterval": interval}
        follow_once(master, target)
    require_exact(target, log)


def test_the_headers_count_for_a_rate(tmp_path: Path) -> None:
    log = log_of(100)
    n_bytes = 2 * log.end  # a header of 12 bytes for each 12 of the log
    with FakeMaster(log, batch=12) as master:
        began = time.monotonic()
        follow_once(master, tmp_path / "copy", max_rate=int(n_bytes / 1.2))
    assert time.monotonic() - began > 0.9


def test_a_rate_does_not_let_each_read_be_written(tmp_path: Path) -> None:
    log = log_of(400)
    n_writes = []

    class CountingDisk(Disk):
        def write(self, path: Path, position: int, data: Any) -> None:
            if path.parent.name == "commitlog":
                n_writes.append(len(data))
            super().write(path, position, data)

    copied(log, tmp_path / "a", max_rate=log.end, make_disk=CountingDisk)
    assert len(n_writes) < 15  # of some 50 reads, and 6 files


@pytest.mark.parametrize(
    "ignored", [{"other": 1}, {"overlap": 5}, {"timing": None}, {"retention": 1}]
)
def test_other_arguments_than_those_that_are_documented_change_nothing(
    ignored: dict[str, Any], tmp_path: Path
) -> None:
    log = log_of(20)
    with FakeMaster(log) as master:
        done = rmqstore.follow(master.address, tmp_path / "copy", once=True, **ignored)
    assert done.end == log.end
    assert settings_of(ignored) == FollowSettings()  # type: ignore[arg-type]
