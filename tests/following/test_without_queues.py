"""A follower that builds no queues: the log is the copy, and queues can be built later."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import rmqstore
from following.fake_master import FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import (
    DyingDisk,
    Following,
    copied,
    files,
    follow_once,
    require_exact,
    wait_for,
)
from rmqstore.cli import main
from rmqstore.replica.retention import parse_retention
from rmqstore.replica.state import follow_status
from store_builder import Store


def offsets(target: Path) -> list[int]:
    with rmqstore.open(target) as store:
        columns = ["commitLogOffset"]
        return sorted(store.scan(columns=columns).read_all().column(0).to_pylist())


def queue_files(target: Path) -> list[Path]:
    return [path for path in (target / "consumequeue").rglob("*") if path.is_file()]


def placed(log: Store) -> list[int]:
    return [at.physical_offset for at in log.placed]


def test_the_log_and_the_tables_are_copied_and_readers_find_all_messages(tmp_path: Path) -> None:
    log, target = log_of(400), tmp_path / "copy"
    done = copied(log, target, build_queues=False)
    assert (done.end, done.queues_end) == (log.end, 0)
    assert not queue_files(target)
    assert not (target / "index").exists()
    assert (target / "config" / "topics.json").exists()
    assert not (target / "abort").exists()
    assert offsets(target) == placed(log)
    assert not follow_status(target)[0].builds_queues
    with rmqstore.open(target) as store:
        assert len(store.query("T", "k77", scan_uncovered=True)) == 1


def test_a_reader_beside_the_follower_finds_all_messages(tmp_path: Path) -> None:
    log, target = log_of(300), tmp_path / "copy"
    with FakeMaster(log) as master, Following(master.address, target, build_queues=False) as run:
        wait_for(lambda: run.follower.progress().end == log.end)
        assert offsets(target) == placed(log)


def test_queues_are_built_when_they_are_wanted_again(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        for turn in range(4):
            follow_once(master, target, build_queues=bool(turn % 2))
            assert offsets(target) == placed(log)
            if turn % 2:
                require_exact(target, log)
            more(log, 100)
        follow_once(master, target)
    require_exact(target, log)


@pytest.mark.parametrize("n_lost", [1, 150])
def test_a_cut_reaches_queues_that_were_built_before(n_lost: int, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    longer, other = part(log_of(200), n_lost, 40)
    copied(longer, target)
    with FakeMaster(other) as master:
        assert follow_once(master, target, build_queues=False).n_cuts == 1
        assert offsets(target) == placed(other)
        follow_once(master, target)
    require_exact(target, other)


def test_files_whose_queues_are_not_built_may_be_deleted(tmp_path: Path) -> None:
    log, target = log_of(100), tmp_path / "copy"
    retention = parse_retention("mirror")
    with FakeMaster(log) as master:
        follow_once(master, target)
        more(log, 500)
        follow_once(master, target, build_queues=False)
        master.low = 3 * FILE_BYTES
        follow_once(master, target, build_queues=False, retention=retention)
        assert min(files(target)) == f"{master.low:020d}"
        kept = [at for at in placed(log) if at >= master.low]
        assert offsets(target) == kept
        follow_once(master, target)
    require_exact(target, log, master.low)


def test_rebuild_builds_the_queues(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    copied(log, target, build_queues=False)
    refused = CliRunner().invoke(main, ["rebuild", str(target)])
    assert refused.exit_code == 2
    assert "name the broker's file (-c/--conf)" in refused.stderr
    conf = tmp_path / "broker.conf"  # the sizes of queues and index are RocketMQ's
    conf.write_text(f"mappedFileSizeCommitLog={FILE_BYTES}\n", encoding="utf-8")
    assert CliRunner().invoke(main, ["rebuild", str(target), "-c", str(conf)]).exit_code == 0
    assert queue_files(target)
    require_exact(target, log)


def test_a_follower_that_dies_while_it_deletes_queues_leaves_none_that_counts(
    tmp_path: Path,
) -> None:
    log, target = log_of(100), tmp_path / "copy"
    with FakeMaster(log) as master:
        follow_once(master, target)
        more(log, 500)
        follow_once(master, target, build_queues=False)
        master.low = 3 * FILE_BYTES
        settings = {"build_queues": False, "retention": parse_retention("mirror")}
        with pytest.raises(KeyboardInterrupt):
            follow_once(master, target, make_disk=partial(DyingDisk, "consumequeue"), **settings)
        assert follow_status(target)[0].built == 0
        follow_once(master, target)
    require_exact(target, log, min(int(name) for name in files(target)))
