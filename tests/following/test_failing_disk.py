"""Disks that fail, and interrupts of a change: the state of a copy is never ahead of its log."""

from __future__ import annotations

import copy
import errno
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from following.fake_master import FakeMaster, more
from following.followers import TIMING, follow_once, require_exact
from rmqstore.errors import StoreStateError
from rmqstore.remoting.client import Address, Endpoint
from rmqstore.replica import session
from rmqstore.replica.follower import Follower
from rmqstore.replica.progress import follow_status
from rmqstore.replica.settings import FollowSettings
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_files import index_files, read_header
from store_builder import Store

FILE_BYTES = 1 << 14


def log_of(count: int) -> Store:
    log = Store(segment_bytes=FILE_BYTES)
    more(log, count)
    return log


def follow_with(disk: Disk, master: FakeMaster, target: Path, **settings: Any) -> None:
    endpoint = Endpoint(Address.parse(master.address))
    given = FollowSettings(once=True, timing=TIMING, **settings)
    Follower(endpoint, target, given, threading.Event(), make_disk=lambda: disk).run()


class ForgetfulDisk(Disk):
    """A disk that loses bytes of the log and says so once, as Linux does."""

    n_failed = 0

    def flush(self, path: Path) -> None:
        if path.parent.name == "commitlog" and not self.n_failed:
            self.n_failed += 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        super().flush(path)


def test_the_state_stays_where_it_was_after_a_flush_that_failed(tmp_path: Path) -> None:
    log, target = log_of(100), tmp_path / "copy"
    with FakeMaster(log) as master:
        follow_once(master, target)
        before, _ = follow_status(target)
        more(log, 100)
        with pytest.raises(StoreStateError, match="Input/output error"):
            follow_with(ForgetfulDisk(), master, target)
        after, _ = follow_status(target)
        assert after.end == before.end
        assert not after.is_closed
        follow_once(master, target)
    require_exact(target, log)


class InterruptedDisk(Disk):
    """A disk at one of whose changes of the log an interrupt or an error comes."""

    def __init__(self, change: str, error: BaseException) -> None:
        super().__init__()
        self._error = error
        original = getattr(self, change)

        def changed(path: Path, *args: Any, **settings: Any) -> None:
            if path.parent.name == "commitlog" and self.is_armed:
                raise self._error
            original(path, *args, **settings)

        self.is_armed = False
        setattr(self, change, changed)

    def replace(self, path: Path, text: bytes) -> None:
        super().replace(path, text)
        if path.name == "follow.json" and json.loads(text)["n_cuts"]:
            self.is_armed = True


@pytest.mark.parametrize("change", ["clear_append", "rename", "write"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), StoreStateError("a link")]
)
def test_a_cut_that_does_not_return_leaves_the_lower_end_and_a_store_that_is_open(
    change: str, error: BaseException, tmp_path: Path
) -> None:
    target, common = tmp_path / "copy", log_of(100)
    longer, other = copy.deepcopy(common), copy.deepcopy(common)
    more(longer, 300)
    more(other, 20, mark=b"other", time_ms=10_000)
    with FakeMaster(longer) as master:
        follow_once(master, target)
    with FakeMaster(other) as master:
        with pytest.raises((KeyboardInterrupt, StoreStateError)):
            follow_with(InterruptedDisk(change, error), master, target)
        state, is_running = follow_status(target)
        assert not is_running
        assert state.end == common.end
        assert state.built <= state.end
        assert not state.is_closed
        assert (target / "abort").exists()
        follow_once(master, target)
    require_exact(target, other)


def test_the_state_is_not_written_after_the_lock_was_released(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(50)
    was_locked = []

    class FullDisk(Disk):
        def replace(self, path: Path, text: bytes) -> None:
            if path.name == "follow.json":
                _, is_running = follow_status(target) if path.exists() else (None, True)
                was_locked.append(is_running)
                if json.loads(text)["is_closed"]:
                    raise OSError(errno.ENOSPC, "No space left on device", str(path))
            super().replace(path, text)

    with FakeMaster(log) as master, pytest.raises(StoreStateError, match="full"):
        follow_with(FullDisk(), master, target)
    assert len(was_locked) > 2
    assert all(was_locked)
    assert not follow_status(target)[0].is_closed


class DyingDisk(Disk):
    """A disk of a process that is killed after it has deleted a file of the index."""

    is_dead = False

    def delete(self, path: Path) -> None:
        self._require_alive()
        super().delete(path)
        self.is_dead |= path.parent.name == "index"

    def replace(self, path: Path, text: bytes) -> None:
        self._require_alive()
        super().replace(path, text)

    def write(self, path: Path, position: int, data: Any) -> None:
        self._require_alive()
        super().write(path, position, data)

    def _require_alive(self) -> None:
        if self.is_dead:
            raise KeyboardInterrupt


def indexed(target: Path) -> int:
    return sum(int(read_header(path)["index_count"]) - 1 for path in index_files(target / "index"))


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_index_whose_file_was_deleted_before_a_kill_is_built_again(
    is_cut: bool, tmp_path: Path
) -> None:
    target, common = tmp_path / "copy", log_of(200)
    log = copy.deepcopy(common)
    if is_cut:
        more(common, 20, mark=b"lost")
    more(log, 30)
    with FakeMaster(common) as master:
        follow_once(master, target)
    assert indexed(target) == len(common.placed)
    if not is_cut:
        (target / "abort").touch()
    with FakeMaster(log) as master:
        with pytest.raises(KeyboardInterrupt):
            follow_with(DyingDisk(), master, target)
        follow_once(master, target)
    require_exact(target, log)
    assert indexed(target) == len(log.placed)


class SmallDisk(Disk):
    """A disk with space for some bytes of the log, and for nothing else once it is full."""

    def __init__(self, space: int) -> None:
        super().__init__()
        self._space, self._spare = space, Path()

    def write(self, path: Path, position: int, data: Any) -> None:
        if path.parent.name == "commitlog":
            self._space -= memoryview(data).nbytes
        if self._space < 0 and path.suffix != ".bin":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write(path, position, data)

    def delete(self, path: Path) -> None:
        if path.name == "spare" and path.exists():
            assert path.stat().st_blocks * 512 >= 1 << 16
            self._space = max(self._space, 0)
        super().delete(path)


def test_the_state_is_written_although_the_disk_is_full(tmp_path: Path) -> None:
    log, target = log_of(1000), tmp_path / "copy"
    with FakeMaster(log) as master:
        for files in (2, 3, 100):
            disk = SmallDisk(files * FILE_BYTES)
            if files < 100:
                with pytest.raises(StoreStateError, match=r"the disk is full.* bytes more"):
                    follow_with(disk, master, target)
                state, _ = follow_status(target)
                names = sorted(path.name for path in (target / "commitlog").iterdir())
                assert state.end > int(names[0]) + FILE_BYTES
            else:
                follow_with(disk, master, target)
    require_exact(target, log)
    assert not (target / ".rmqstore" / "spare").exists()


@pytest.mark.parametrize("are_same", [True, False])
def test_what_the_state_did_not_vouch_for_goes_once_it_was_fetched_again(
    are_same: bool, tmp_path: Path
) -> None:
    log, target = log_of(300), tmp_path / "copy"
    with FakeMaster(log) as master:
        follow_once(master, target)
        path = target / ".rmqstore" / "follow.json"
        state = json.loads(path.read_text())
        end = next(at.physical_offset for at in log.placed if at.physical_offset > FILE_BYTES)
        path.write_text(json.dumps({**state, "end": end, "built": 0, "is_closed": False}))
        if not are_same:
            last = max((target / "commitlog").iterdir())
            data = bytearray(last.read_bytes())
            data[20:24] = b"else"
            last.write_bytes(data)
        follow_once(master, target)
    require_exact(target, log)
    kept = [path for path in (target / ".rmqstore" / "cut").rglob("0*") if path.is_file()]
    assert bool(kept) != are_same


class SlowStates(Disk):
    """A disk that takes its time to write a state."""

    def replace(self, path: Path, text: bytes) -> None:
        time.sleep(0.2)
        super().replace(path, text)


def test_nothing_is_acknowledged_that_the_state_does_not_vouch_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BATCH_BYTES", 1000)  # so that the thread syncs
    log, target = log_of(1000), tmp_path / "copy"
    ahead: list[int] = []

    class Master(FakeMaster):
        def _report(self, received: bytes) -> int:
            reported = super()._report(received)
            if self.reports[-1]:  # the first is the request
                ahead.append(reported - follow_status(target)[0].end)
            return reported

    with Master(log, batch=1000) as master:
        follow_with(
            SlowStates(), master, target,
            acknowledge="synced", sync_bytes=5000, max_rate=log.end // 2,
        )  # fmt: skip
    assert ahead
    assert max(ahead) <= 0
