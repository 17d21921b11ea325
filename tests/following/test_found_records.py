"""Records that a killed follower left: they are compared where they are, and readers keep them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import rmqstore
from following.fake_master import FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import Following, copied, files, follow_once, require_exact, wait_for
from rmqstore.errors import StoreStateError
from rmqstore.replica import due
from rmqstore.replica.state import FollowState, copy_paths, read_state, state_path, write_state
from rmqstore.storage.files.disk import Disk
from store_builder import Store


def killed(target: Path, log: Store, end: int) -> None:
    """Let a copy of all of a log be as if its follower was killed when the state was at an end."""
    copied(log, target)
    paths, state = copy_paths(target), state_of(target)
    assert state.end == log.end
    disk = Disk()
    write_state(disk, paths, replace(state, end=end, built=end, is_closed=False))
    disk.close()
    paths.abort.write_text("rmqstore 1")
    paths.own.clean_end.unlink(missing_ok=True)


def kept_in(target: Path) -> list[Path]:
    return [path for path in (target / ".rmqstore" / "cut").rglob("*") if path.is_file()]


def state_of(target: Path) -> FollowState:
    state = read_state(copy_paths(target))
    assert state is not None
    return state


def require_seen_by_readers(master: FakeMaster, target: Path, n_rows: int) -> None:
    """Count what a reader sees before the master sends anything, and let it be compared then."""
    master.is_slow = True
    with Following(master.address, target) as run:
        wait_for(lambda: run.follower.progress().n_connections > 0)
        with rmqstore.open(target) as store:
            assert store.scan().read_all().num_rows == n_rows
        master.is_slow = False
        wait_for(lambda: state_of(target).end == master.log.end)


@pytest.mark.parametrize("kept", [0, 1, 150, 299])
def test_a_reader_keeps_what_it_has_read(kept: int, tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    killed(target, log, log.placed[kept].physical_offset)
    before = files(target)
    with FakeMaster(log) as master:
        require_seen_by_readers(master, target, 300)
        assert files(target) == before
        more(log, 40)
        follow_once(master, target)
    assert (state_of(target).n_cuts, kept_in(target)) == (0, [])
    require_exact(target, log)


@pytest.mark.parametrize(("sure", "common"), [(150, 200), (200, 150), (0, 10), (299, 299)])
def test_found_records_that_the_master_does_not_have_are_cut_and_kept(
    sure: int, common: int, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    log, other = part(log_of(common), 300 - common, 100)
    killed(target, log, log.placed[sure].physical_offset)
    copied(other, target)
    assert state_of(target).n_cuts == 1
    assert kept_in(target)
    require_exact(target, other)


def test_found_records_are_not_vouched_for_before_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "_STATE_SECONDS", 0.0)
    target, log = tmp_path / "copy", log_of(300)
    sure = log.placed[200].physical_offset
    killed(target, log, sure)
    before = files(target)
    with FakeMaster(log) as master:
        master.is_slow = True
        with Following(master.address, target) as run:
            wait_for(lambda: run.follower.progress().n_connections > 1)
            written = state_of(target).updated_at
            wait_for(lambda: state_of(target).updated_at > written)
            assert state_of(target).end == sure
    assert state_of(target).end == sure
    assert (target / "abort").exists()  # not closed
    assert files(target) == before
    with rmqstore.open(target) as store:
        assert store.scan().read_all().num_rows == 300
    copied(log, target)
    require_exact(target, log)


@pytest.mark.parametrize("n_lost", [1, 10, 200])
def test_a_record_that_was_written_in_part_is_fetched_again(n_lost: int, tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300, size=400)
    killed(target, log, log.placed[-5].physical_offset)
    path = max((target / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(log.end - n_lost - int(path.name))
        file.write(bytes(n_lost))
    copied(log, target)
    assert state_of(target).n_cuts == 0
    assert not kept_in(target)  # fetched again
    require_exact(target, log)


def test_retention_may_have_overtaken_what_the_state_vouches_for(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    killed(target, log, log.placed[10].physical_offset)
    before = files(target)
    more(log, 100)
    with FakeMaster(log) as master:
        master.low = 2 * FILE_BYTES
        with pytest.raises(StoreStateError, match="gap"):
            follow_once(master, target)
        assert files(target) == before
        follow_once(master, target, on_gap="restart")
    require_exact(target, log, 2 * FILE_BYTES)
    (aside,) = (path for path in tmp_path.iterdir() if path != target)
    assert files(aside) == before


def test_found_records_of_a_copy_without_a_state_are_kept_when_it_begins_elsewhere(
    tmp_path: Path,
) -> None:
    target, log = tmp_path / "copy", log_of(300)
    killed(target, log, 0)
    before = files(target)
    more(log, 100)
    with FakeMaster(log) as master:
        master.low = 2 * FILE_BYTES
        follow_once(master, target)
    require_exact(target, log, 2 * FILE_BYTES)
    kept = kept_in(target)
    assert sorted(path.name.partition(".")[0] for path in kept) == sorted(before)
    for path in kept:
        data = path.read_bytes()
        assert before[path.name.partition(".")[0]].rstrip(b"\0") == data.rstrip(b"\0")


def test_what_an_unfinished_cut_left_does_not_come_back(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(300)
    end = log.placed[200].physical_offset
    killed(target, log, end)
    path = state_path(copy_paths(target))
    path.write_text(path.read_text().replace('"last_cut": -1', f'"last_cut": {end}'))
    with FakeMaster(log) as master:
        require_seen_by_readers(master, target, 200)
    require_exact(target, log)
