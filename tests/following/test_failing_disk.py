"""Disks that fail, and interrupts of a change: the state of a copy is never ahead of its log."""

from __future__ import annotations

import copy
import errno
import json
import random
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiers
from following.fake_master import FILE_BYTES, FakeMaster, content, log_of, more, part
from following.followers import (
    DyingDisk,
    SlowStates,
    copied,
    files,
    follow_once,
    require_exact,
)
from rmqstore.errors import StoreStateError
from rmqstore.replica import live_state
from rmqstore.replica.retention import Retention
from rmqstore.replica.state import copy_paths, follow_status, write_state
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_files import index_files, read_header


def follow_with(disk: Disk, master: FakeMaster, target: Path, **settings: Any) -> None:
    follow_once(master, target, make_disk=lambda: disk, **settings)


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
    """A disk at one of whose changes of the log an interrupt or an error comes, or after it."""

    def __init__(self, change: str, error: BaseException, *, is_late: bool) -> None:
        super().__init__()
        self._error = error
        original = getattr(self, change)

        def changed(path: Path, *args: Any, **settings: Any) -> None:
            is_concerned = path.parent.name == "commitlog" and self.is_armed
            if is_concerned and not is_late:
                raise self._error
            original(path, *args, **settings)
            if is_concerned:
                raise self._error

        self.is_armed = False
        setattr(self, change, changed)

    def replace(self, path: Path, text: bytes) -> None:
        super().replace(path, text)
        if path.name == "follow.json" and json.loads(text)["n_cuts"]:
            self.is_armed = True


@pytest.mark.parametrize("change", ["flush", "rename", "write"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), StoreStateError("a link")]
)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_unconfirmed", [False, True])
def test_a_cut_that_does_not_return_leaves_the_lower_end_and_a_store_that_is_open(
    change: str, error: BaseException, is_late: bool, is_unconfirmed: bool, tmp_path: Path
) -> None:
    target, common = tmp_path / "copy", log_of(100)
    longer, other = part(common, 300, 20)
    copied(longer, target)
    if is_unconfirmed:  # killed before the state covered the last records
        paths = copy_paths(target)
        end = longer.placed[300].physical_offset
        state = replace(follow_status(target)[0], end=end, built=end, is_closed=False)
        write_state(Disk(), paths, state)
        paths.abort.touch()
    with FakeMaster(other) as master:
        with pytest.raises((KeyboardInterrupt, StoreStateError)):
            follow_with(InterruptedDisk(change, error, is_late=is_late), master, target)
        state, is_running = follow_status(target)
        assert not is_running
        assert state.end == common.end
        assert state.built <= state.end
        assert not state.is_closed
        assert (target / "abort").exists()
        follow_once(master, target)
    require_exact(target, other)


CHANGES = (
    "create", "write", "flush", "flush_folder", "flush_all", "make_folder", "rename", "delete",
    "replace", "clear_append", "scatter", "delete_tree",
)  # fmt: skip


class FickleDisk(Disk):
    """A disk at one of whose changes, by any thread, an interrupt or an error comes once."""

    def __init__(self, at: int, error: BaseException | None) -> None:
        super().__init__()
        self.n_changes, self._at, self._error = 0, at, error
        self._guard = threading.RLock()
        for name in CHANGES:
            setattr(self, name, self._counted(getattr(self, name)))

    def _counted(self, change: Any) -> Any:
        def changed(*args: Any, **settings: Any) -> Any:
            with self._guard:
                self.n_changes += 1
                if self.n_changes == self._at and self._error is not None:
                    raise self._error
                return change(*args, **settings)

        return changed


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("n_places", tiers.sampled(8, 80))
def test_an_error_at_any_change_of_the_disk_ends_the_follower_and_the_copy_goes_on(
    n_places: int, kind: type[BaseException], tmp_path: Path
) -> None:
    base, common = tmp_path / "base", log_of(100)
    longer, other = part(common, 100, 200)
    copied(longer, base)
    with FakeMaster(other) as master:
        settings: dict[str, Any] = {
            "retention": Retention(max_bytes=FILE_BYTES), "sync_bytes": 4000, "sync_seconds": 0.01,
        }  # fmt: skip
        counted = FickleDisk(0, None)
        follow_with(counted, master, shutil.copytree(base, tmp_path / "count"), **settings)
        dice = random.Random(tiers.FIRST_SEED)
        for at in dice.sample(range(1, counted.n_changes + 1), n_places):
            target = shutil.copytree(base, tmp_path / f"at-{at}")
            error = OSError(errno.EIO, "lost", str(target)) if kind is OSError else kind()
            with suppress(kind, StoreStateError):
                follow_with(FickleDisk(at, error), master, target, **settings)
            state, is_running = follow_status(target)
            assert not is_running
            assert state.built <= state.end
            follow_once(master, target, **settings)
            begin = follow_status(target)[0].begin
            assert begin == other.end - other.end % FILE_BYTES
            last = {name: data for name, data in content(other).items() if int(name) >= begin}
            assert files(target) == last
            shutil.rmtree(target)


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
    copied(common, target)
    assert indexed(target) == len(common.placed)
    if not is_cut:
        (target / "abort").touch()
    with FakeMaster(log) as master:
        with pytest.raises(KeyboardInterrupt):
            follow_with(DyingDisk("index"), master, target)
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
        for n_files in (2, 3, 100):
            disk = SmallDisk(n_files * FILE_BYTES)
            if n_files < 100:
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


def test_nothing_is_acknowledged_that_the_state_does_not_vouch_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_state, "BATCH_BYTES", 1000)  # so that the thread syncs
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
