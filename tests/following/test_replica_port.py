"""A follower that reaches only the port for replicas, and what it then does not know."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from following.fake_master import FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import (
    TIMING,
    Following,
    files,
    follow_once,
    follower,
    following,
    require_exact,
    wait_for,
)
from rmqstore.errors import (
    BrokerUnreachableError,
    CorruptRecordError,
    OptionError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.replica.retention import parse_retention
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import FollowProgress, follow_status

ALONE: dict[str, Any] = {"ha_mode": "default", "timing": replace(TIMING, quiet=0.2)}
NEW: dict[str, Any] = {**ALONE, "file_size": FILE_BYTES, "start": 0}


def replicas(master: FakeMaster) -> str:
    return f"127.0.0.1:{master.settings['haListenPort']}"


def copy_once(master: FakeMaster, target: Path, **settings: Any) -> FollowProgress:
    """Copy the log up to the end that it has, by the port for replicas alone."""
    return follower(replicas(master), target, once=True, **settings).run()


@pytest.mark.parametrize("count", [0, 50, 400])
def test_a_log_is_copied_without_the_ordinary_port(count: int, tmp_path: Path) -> None:
    log, target = log_of(count), tmp_path / "copy"
    with FakeMaster(log) as master:
        done = copy_once(master, target, **NEW)
        assert (done.begin, done.end, done.queues_end) == (0, log.end, log.end)
        assert not done.source_at
        more(log, 100)
        copy_once(master, target, **ALONE)
        assert not master.n_asked
    require_exact(target, log)
    assert not list((target / "config").iterdir())  # no table is told


def test_a_copy_grows_with_the_log(tmp_path: Path) -> None:
    log, target = log_of(10), tmp_path / "copy"
    with FakeMaster(log) as master:
        with following(replicas(master), target, **NEW) as run:
            for _ in range(3):
                more(log, 150)
                wait_for(lambda: run.follower._now().queues_end == log.end)
        assert not master.n_asked
    require_exact(target, log)


def test_the_names_of_the_broker_are_learned_later_and_then_kept(tmp_path: Path) -> None:
    log, target = log_of(50), tmp_path / "copy"
    with FakeMaster(log, name="a") as master:
        copy_once(master, target, **NEW)
        assert follow_status(target)[0].broker == ""
        follow_once(master, target)
        state, _ = follow_status(target)
        assert (state.cluster, state.broker, state.address) == ("C", "a", master.address)
        assert (target / "config" / "topics.json").exists()
        more(log, 50)
        copy_once(master, target, **ALONE)
        state, _ = follow_status(target)
        assert (state.cluster, state.broker, state.address) == ("C", "a", master.address)
    with FakeMaster(log, name="b") as other, pytest.raises(StoreStateError, match="copy of broker"):
        follow_once(other, target)
    require_exact(target, log)


def test_the_begin_of_a_log_of_several_files_has_to_be_named(tmp_path: Path) -> None:
    log = log_of(500)
    last = log.end - log.end % FILE_BYTES
    with FakeMaster(log) as master:
        with pytest.raises(OptionError, match=f"last file begins at {last}"):
            copy_once(master, tmp_path / "copy", **{**NEW, "start": "earliest"})
        done = copy_once(master, tmp_path / "copy", **{**NEW, "start": "last-file"})
        assert (done.begin, done.end) == (last, log.end)
    with FakeMaster(log_of(20)) as master:
        assert copy_once(master, tmp_path / "short", **{**NEW, "start": "earliest"}).begin == 0


@pytest.mark.parametrize("overlap", [600, 1 << 20])
@pytest.mark.parametrize("n_lost", [1, 30, 200])
@pytest.mark.parametrize("n_more", [0, 1, 500])
def test_an_end_that_the_master_has_lost_is_cut_and_kept(
    n_lost: int, n_more: int, overlap: int, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    common = log_of(300)
    longer, other = part(common, n_lost, n_more)
    with FakeMaster(longer) as master:
        follow_once(master, target)
    with FakeMaster(other) as master:
        done = copy_once(master, target, overlap=overlap, **ALONE)
    assert done.n_cuts == 1
    require_exact(target, other)
    state, _ = follow_status(target)
    assert state.last_cut == common.end
    assert list(Path(state.last_cut_kept).iterdir())


def test_a_gap_is_refused(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(100)
    with FakeMaster(log) as master:
        follow_once(master, target)
        before = files(target)
        more(log, 600)
        master.low = log.end - log.end % FILE_BYTES
        with pytest.raises(StoreStateError, match="gap"):
            copy_once(master, target, **ALONE)
    assert files(target) == before


def test_a_gap_may_begin_a_new_copy_with_the_last_file(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(100)
    with FakeMaster(log) as master:
        end = follow_once(master, target).end
        more(log, 600)
        master.low = log.end - log.end % FILE_BYTES
        restart = {**ALONE, "file_size": FILE_BYTES, "start": "last-file", "on_gap": "restart"}
        assert copy_once(master, target, **restart).begin == master.low
    assert (tmp_path / f"copy.until-{end}").is_dir()


def test_heartbeats_of_a_slow_master_neither_cut_nor_end_a_copy(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        follow_once(master, target)
        more(log, 100)
        master.is_slow, master.heartbeat = True, 0.01
        timing = replace(TIMING, quiet=3.0, first_header=5.0, silence=5.0)
        run = Following(replicas(master), target, once=True, ha_mode="default", timing=timing)
        wait_for(lambda: len(master.reports) > 2)  # one of them asked for the last file
        with pytest.raises(AssertionError, match="waited in vain"):
            wait_for(lambda: not run.is_alive(), 0.5)
        master.is_slow = False
        run.wait()
    require_exact(target, log)
    assert not follow_status(target)[0].n_cuts


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (5 * FILE_BYTES // 4, OptionError, "begins at"),
        (FILE_BYTES // 2, CorruptRecordError, "are left"),
        (2 * FILE_BYTES, CorruptRecordError, "a blank of"),
    ],
)
def test_a_wrong_size_of_files_is_found(
    size: int, error: type[Exception], text: str, tmp_path: Path
) -> None:
    log = log_of(500)
    assert log.end // FILE_BYTES == 6  # even, so a multiple of twice the size
    with FakeMaster(log) as master, pytest.raises(error, match=text):
        copy_once(master, tmp_path / "copy", **{**NEW, "file_size": size})


def test_a_port_that_says_nothing_is_told(tmp_path: Path) -> None:
    settings = {**NEW, "reconnect": False, "timing": replace(TIMING, first_header=0.2)}
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(BrokerUnreachableError, match="in default mode"),
    ):
        follower(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path / "copy", **settings).run()


def test_a_listen_port_is_not_taken_for_an_ha_port(tmp_path: Path) -> None:
    settings = {**NEW, "reconnect": False, "timing": replace(TIMING, first_header=0.2)}
    with FakeMaster(log_of(5)) as master, pytest.raises(BrokerUnreachableError, match="HA port"):
        follower(master.address, tmp_path / "copy", **settings).run()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"ha_mode": "controller"}, UnsupportedFeatureError, "master of its group"),
        ({"ha_mode": "other"}, OptionError, "must be default"),
        ({"file_size": FILE_BYTES}, OptionError, "needs ha_mode"),
        ({"ha_mode": "default", "file_size": 7}, OptionError, "no broker has such files"),
        (
            {"ha_mode": "default", "retention": parse_retention("retain", "mirror")},
            OptionError,
            "mirror",
        ),
        ({"ha_mode": "default", "on_gap": "restart"}, OptionError, "needs start"),
        ({"ha_mode": "default", "ha_address": object()}, OptionError, "the source is"),
    ],
)
def test_what_needs_the_listen_port_is_refused(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        FollowSettings(**given)


def test_a_new_copy_needs_the_size_of_files(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="file_size: needed"):
        follower("127.0.0.1:1", tmp_path / "copy", **ALONE)
    assert not (tmp_path / "copy").exists()
