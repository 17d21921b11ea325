"""Flushes of a log that is written to meanwhile, and a follower that is far behind."""

from __future__ import annotations

import copy
import errno
import os
import threading
from pathlib import Path

import pytest

from following.fake_master import FakeMaster, log_of, more
from following.followers import TIMING, follow_once, require_exact, wait_for
from rmqstore.errors import StoreStateError
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica import appending, live_state, queue_builder
from rmqstore.replica.copy_store import Worker
from rmqstore.replica.events import Event, Failed
from rmqstore.replica.follower import Follower
from rmqstore.replica.log_copy import Unflushed
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import follow_status
from rmqstore.storage.files.disk import Disk


class FlushedDisk(Disk):
    """A disk that says what was flushed, and calls back before."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []
        self.before = lambda: None

    def flush(self, path: Path) -> None:
        self.before()
        self.flushed.append(path.name)

    def flush_folder(self, path: Path) -> None:
        self.flushed.append(f"{path.name}/")


def test_what_is_written_during_a_flush_waits_for_the_next(tmp_path: Path) -> None:
    folder, disk = tmp_path / "commitlog", FlushedDisk()
    unflushed = Unflushed(folder)
    unflushed.add(folder / "a", is_new=True)
    unflushed.add(folder / "b", is_new=False)
    first = unflushed.begin(100)
    disk.before = lambda: unflushed.add(folder / "b", is_new=False)
    first.perform(disk)
    unflushed.forget(first.number)
    assert disk.flushed == ["a", "b", "commitlog/"]
    assert folder / "a" not in unflushed
    assert folder / "b" in unflushed
    disk.before = lambda: None
    second = unflushed.begin(200)
    second.perform(disk)
    unflushed.forget(second.number)
    assert disk.flushed[3:] == ["b"]
    assert folder / "b" not in unflushed


def test_an_interrupted_flush_is_repeated_and_a_failed_one_is_not(tmp_path: Path) -> None:
    """Whoever flushes ends with the first error, and the copy is left as the disk has it."""
    folder, disk = tmp_path / "commitlog", FlushedDisk()
    unflushed = Unflushed(folder)
    unflushed.add(folder / "a", is_new=True)
    flush = unflushed.begin(100)

    def fail() -> None:
        raise OSError(errno.EIO, "lost")

    disk.before = fail
    found: list[Event] = []
    worker = Worker("follow-sync", lambda order: order.perform(disk), found.append)
    worker.start()
    worker.give(flush)
    worker.give(flush)
    worker.end()
    assert folder / "a" in unflushed
    (event,) = found
    assert isinstance(event, Failed)
    assert worker.failed == (flush, event.error)
    assert str(event.error) == "[Errno 5] lost"
    assert not event.is_consistent


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a follower do for a small log what it does for a large one that it is far behind of."""
    monkeypatch.setattr(live_state, "BATCH_BYTES", 1000)
    monkeypatch.setattr(appending, "FAR_BYTES", 5000)
    monkeypatch.setattr(queue_builder, "STEP_BYTES", 2000)
    monkeypatch.setattr(queue_builder, "_FLUSH_BYTES", 12_000)


def contents(target: Path, folder: str) -> dict[str, bytes]:
    paths = sorted(path for path in (target / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in paths}


def test_a_copy_that_was_far_behind_is_the_same(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = log_of(700)
    with FakeMaster(log) as master:
        follow_once(master, tmp_path / "near")
        request.getfixturevalue("far")
        follow_once(master, tmp_path / "far", sync_bytes=3000)
    require_exact(tmp_path / "far", log)
    for folder in ("commitlog", "consumequeue"):
        assert contents(tmp_path / "far", folder) == contents(tmp_path / "near", folder)


@pytest.mark.usefixtures("far")
def test_a_flush_that_fails_in_the_thread_ends_the_follower(tmp_path: Path) -> None:
    class FailingDisk(Disk):
        def flush(self, path: Path) -> None:
            if path.parent.name == "commitlog":
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().flush(path)

    log, target = log_of(300), tmp_path / "copy"
    with FakeMaster(log) as master:
        settings = FollowSettings(once=True, sync_bytes=3000)
        endpoint = Endpoint(Address.parse(master.address))
        with pytest.raises(StoreStateError, match="Input/output error"):
            Follower(endpoint, target, settings, threading.Event(), make_disk=FailingDisk).run()
        assert follow_status(target)[0].end == 0
        follow_once(master, target)
    require_exact(target, log)


@pytest.mark.usefixtures("far")
def test_the_stream_goes_on_while_the_log_comes_to_the_disk(tmp_path: Path) -> None:
    """The first flush in the thread waits until the log has grown; the state is not ahead."""
    has_grown = threading.Event()

    class SlowDisk(Disk):
        def flush(self, path: Path) -> None:
            is_beside = threading.current_thread().name.startswith("follow-sync")
            if path.parent.name == "commitlog" and is_beside:
                assert has_grown.wait(20)
            super().flush(path)

    log, target = log_of(700), tmp_path / "copy"
    with FakeMaster(log) as master:
        run = Follower(
            Endpoint(Address.parse(master.address)), target,
            FollowSettings(once=True, sync_bytes=3000), threading.Event(), make_disk=SlowDisk,
        )  # fmt: skip
        thread = threading.Thread(target=run.run)
        thread.start()
        try:
            wait_for(lambda: run.state.copy.end > log.end // 2)
            assert run.state.copy.durable == 0
        finally:
            has_grown.set()
        thread.join(30)
    require_exact(target, log)


@pytest.mark.usefixtures("far")
def test_files_that_were_made_again_are_flushed_and_not_those_before(tmp_path: Path) -> None:
    class LinkedDisk(Disk):
        def flush(self, path: Path) -> None:
            assert os.fstat(self._open(path)).st_ino == path.stat().st_ino
            super().flush(path)

    common, target = log_of(100), tmp_path / "copy"
    longer, other = copy.deepcopy(common), copy.deepcopy(common)
    more(longer, 600)
    more(other, 700, mark=b"other", time_ms=10_000)
    with FakeMaster(longer) as master:
        settings = FollowSettings(sync_bytes=3000, timing=TIMING)
        endpoint = Endpoint(Address.parse(master.address))
        stop = threading.Event()
        run = Follower(endpoint, target, settings, stop, make_disk=LinkedDisk)
        thread = threading.Thread(target=run.run)
        thread.start()
        try:
            wait_for(lambda: run.progress().end == longer.end)
            master.log = other
            master.cut_connections()
            wait_for(lambda: run.progress().n_cuts == 1 and run.progress().end == other.end)
        finally:
            stop.set()
            thread.join(30)
    require_exact(target, other)
