"""Flushes of a log that is written to meanwhile, and a follower that is far behind."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from following.fake_master import FakeMaster, log_of
from following.followers import Following, follow_once, require_exact, wait_for
from rmqstore.replica import appending, live_state, queue_builder
from rmqstore.replica.copy_store import Worker
from rmqstore.replica.events import Event, Failed
from rmqstore.replica.log_copy import Unflushed
from rmqstore.storage.files.disk import Disk
from written import files_of


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


def test_a_copy_that_was_far_behind_is_the_same(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = log_of(700)
    with FakeMaster(log) as master:
        follow_once(master, tmp_path / "near")
        request.getfixturevalue("far")
        follow_once(master, tmp_path / "far", sync_bytes=3000)
    require_exact(tmp_path / "far", log)
    near, far = (files_of(tmp_path / name / "consumequeue") for name in ("near", "far"))
    assert near == far != {}


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
        run = Following(master.address, target, once=True, sync_bytes=3000, make_disk=SlowDisk)
        try:
            wait_for(lambda: run.follower.state.copy.end > log.end // 2)
            assert run.follower.state.copy.durable == 0
        finally:
            has_grown.set()
        run.wait()
    require_exact(target, log)
