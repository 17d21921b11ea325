"""A follower that dies at any change to the disk, also by a power cut: its copy becomes exact."""

from __future__ import annotations

import copy
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import tiers
from crash.faults import Cut, FaultyDisk, WatchedDisk, require_kept_index
from following.fake_master import FakeMaster, more
from following.followers import TIMING, follow_once, follower, require_exact
from rmqstore.errors import StoreStateError
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica import appending, live_state, queue_builder
from rmqstore.replica.follower import Follower
from rmqstore.replica.retention import Retention
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import follow_status
from rmqstore.storage import index_appender
from store_builder import Store

pytestmark = pytest.mark.crash

CHANGES = (
    "create", "write", "flush", "flush_folder", "flush_all", "make_folder", "rename", "delete",
    "replace", "clear_append", "scatter", "close", "delete_tree",
)  # fmt: skip


class SharedDisk(FaultyDisk):
    """A disk that both threads of a follower change, and that dies for both at once."""

    def __init__(self, at: int | None = None, power: random.Random | None = None) -> None:
        super().__init__(at, power)
        guard = threading.RLock()
        for name in CHANGES:
            setattr(self, name, self._guarded(getattr(self, name), guard))

    @staticmethod
    def _guarded(change: Any, guard: Any) -> Any:
        def changed(*args: Any, **settings: Any) -> Any:
            with guard:
                return change(*args, **settings)

        return changed


def follow_with(disk: SharedDisk, master: FakeMaster, target: Path, **given: Any) -> None:
    settings = FollowSettings(once=True, timing=TIMING, sync_bytes=4000, **given)
    endpoint = Endpoint(Address.parse(master.address))
    Follower(endpoint, target, settings, threading.Event(), make_disk=lambda: disk).run()


def die_anywhere(
    master: FakeMaster,
    base: Path | None,
    folder: Path,
    places: tuple[int, int | None],
    check: Callable[[Path], None],
    **given: Any,
) -> None:
    """Let followers die at some of their changes, and require that the next one ends the copy.

    Args:
        base: the copy with which each begins; None for a new one.
        places: the number of changes, and of the power cut.
    """

    def begun(name: str) -> Path:
        return folder / name if base is None else shutil.copytree(base, folder / name)

    (n_places, power), counted = places, SharedDisk()
    follow_with(counted, master, begun("count"), **given)
    check(folder / "count")
    # Old files are deleted at the end.
    changes = range(counted.n_changes // 2 if given else 0, counted.n_changes)
    for at in sorted(random.Random(power).sample(changes, n_places)):
        target = begun(f"at-{at}")
        disk = SharedDisk(at, None if power is None else random.Random(power * 1000 + at))
        with suppress(Cut):
            follow_with(disk, master, target, **given)
        with nullcontext() if base else suppress(StoreStateError):
            state, is_running = follow_status(target)
            assert not is_running
            assert state.built <= state.end
        follow_once(master, target, **given)
        check(target)
        shutil.rmtree(target)


def logs(*, is_cut: bool) -> tuple[Store, Store]:
    """Return the log of a copy, and what its master has later."""
    first = Store(segment_bytes=1 << 13)
    more(first, 60)
    later = copy.deepcopy(first)
    if is_cut:
        more(first, 40)
        more(later, 70, mark=b"other", time_ms=9_000)
    else:
        more(later, 110)
    return first, later


def test_no_kill_leaves_an_index_file_that_a_recovery_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_appender, "_KEYS_AT_ONCE", 20)  # others wait for a flush
    first, later = logs(is_cut=False)
    with FakeMaster(first) as master:
        follow_once(master, tmp_path / "copy")
    disks: list[WatchedDisk] = []

    def make_disk() -> WatchedDisk:
        disks.append(WatchedDisk(lambda: require_kept_index(tmp_path / "copy")))
        return disks[-1]

    with FakeMaster(later) as master:
        follower(master.address, tmp_path / "copy", once=True, make_disk=make_disk).run()
    assert sum(disk.n_looks for disk in disks) > 20
    require_exact(tmp_path / "copy", later)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("power", [None, 1, 2])
@pytest.mark.parametrize("n_places", tiers.sampled(6, 60))
def test_whatever_a_dead_follower_leaves_becomes_an_exact_copy(
    n_places: int, power: int | None, is_cut: bool, tmp_path: Path
) -> None:
    first, later = logs(is_cut=is_cut)
    base = tmp_path / "base"
    with FakeMaster(first) as master:
        follow_once(master, base)
    with FakeMaster(later) as master:
        die_anywhere(
            master, base, tmp_path, (n_places, power), lambda copied: require_exact(copied, later)
        )


@pytest.fixture(params=[False, True], ids=["near", "far"])
def is_far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a follower syncs its log in a thread, and flushes queues less often."""
    if request.param:
        monkeypatch.setattr(live_state, "BATCH_BYTES", 1000)
        monkeypatch.setattr(appending, "FAR_BYTES", 5000)
        monkeypatch.setattr(queue_builder, "STEP_BYTES", 2000)
        monkeypatch.setattr(queue_builder, "_FLUSH_BYTES", 6000)
    return bool(request.param)


@pytest.mark.parametrize("power", [None, 1])
@pytest.mark.parametrize("n_places", tiers.sampled(6, 40))
@pytest.mark.usefixtures("is_far")
def test_a_new_copy_may_die_anywhere(n_places: int, power: int | None, tmp_path: Path) -> None:
    log, _ = logs(is_cut=False)
    with FakeMaster(log) as master:
        die_anywhere(
            master, None, tmp_path, (n_places, power), lambda copied: require_exact(copied, log)
        )


@pytest.mark.parametrize("power", [None, 1, 2])
@pytest.mark.parametrize("n_places", tiers.sampled(6, 60))
def test_a_follower_may_die_while_it_deletes_old_files(
    n_places: int, power: int | None, tmp_path: Path
) -> None:
    first, later = logs(is_cut=False)
    base, retention = tmp_path / "base", Retention(max_bytes=2 << 13)
    begin = later.end - later.end % (1 << 13) - (1 << 13)
    kept = copy.deepcopy(later)
    for start in [start for start in kept.segments if start < begin]:
        del kept.segments[start]
    with FakeMaster(first) as master:
        follow_once(master, base)
    with FakeMaster(later) as master:
        die_anywhere(
            master,
            base,
            tmp_path,
            (n_places, power),
            lambda copied: require_exact(copied, kept, begin),
            retention=retention,
        )
