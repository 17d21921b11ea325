"""The epochs that a copy notes: those of its own records, however it came by them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from crash.faults import Cut
from crash.test_killed_follower import SharedDisk
from following.fake_controller import FakeController
from following.fake_master import FakeMaster, log_of, more, part
from following.followers import epochs_of, follow_once, following, require_exact, wait_for
from rmqstore.errors import CorruptRecordError, StoreStateError
from rmqstore.replica.retention import parse_retention
from rmqstore.replica.state import copy_paths, follow_status, state_path
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.epochs import Epoch


def test_a_copy_that_begins_again_earlier_has_all_epochs(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    short = log_of(60)
    with FakeController(log_of(200), [Epoch(1, 0)]) as master:
        master.is_slow = True
        with following(master.address, target, start="last-file") as run:
            wait_for(lambda: bool(master.reports) and len(master.reports[-1]) > 1)
            assert run.follower.progress().begin > 0
            master.log = short
            master.epochs = [Epoch(1, 0), Epoch(2, short.placed[20].physical_offset)]
            master.is_slow = False
            master.cut_connections()
            wait_for(lambda: run.follower.progress().queues_end == short.end)
    require_exact(target, short)
    assert epochs_of(target) == master.epochs
    assert follow_status(target)[0].epoch == 2
    assert read_checkpoint(copy_paths(target)).confirm_phy_offset == short.end


def test_epochs_that_end_before_the_copy_begins_are_left_out(tmp_path: Path) -> None:
    log, target = log_of(500), tmp_path / "copy"
    last = Epoch(3, 40_000)
    with FakeController(log, [Epoch(1, 0), Epoch(2, 4010), last]) as master:
        follow_once(master, target, retention=parse_retention("40kB"))
    assert follow_status(target)[0].begin > 40_000
    assert epochs_of(target) == [last]


def test_an_epoch_that_was_cut_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    common, target = log_of(100), tmp_path / "copy"
    log, other = part(common, 50, 2)
    with FakeController(log, [Epoch(1, 0), Epoch(2, log.placed[120].physical_offset)]) as master:
        follow_once(master, target)

    class Dying(SharedDisk):
        def replace(self, path: Path, content: bytes) -> None:
            if path.name == "epochFileCheckpoint":
                self._is_dead = True
                raise Cut
            super().replace(path, content)

    with FakeController(other, [Epoch(1, 0), Epoch(3, common.end)]) as master, suppress(Cut):
        follow_once(master, target, make_disk=Dying)
    assert epochs_of(target)[-1].number == 2  # the file is older than the cut
    more(other, 80)
    with FakeMaster(other) as plain:
        follow_once(plain, target)
    require_exact(target, other)
    assert epochs_of(target) == [Epoch(1, 0)]


def test_an_epoch_is_noted_though_damage_follows_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it comes in one read: records of a new epoch, damage, and a heartbeat."""
    log, target = log_of(30), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        begin = log.end
        more(log, 10)
        good = log.end
        more(log, 5)
        log.segments[0][good + 4 : good + 8] = b"\1\2\3\4"
        master.epochs = [Epoch(1, 0), Epoch(2, begin)]
        frame, held = master.frame, bytearray()

        def frames(place: int, body: bytes) -> bytes:
            if not body:
                return b"" if place < log.end else frame(place, body)
            held.extend(frame(place, body))
            end = place + len(body)
            return bytes(held) + frame(end, b"") if end == log.end else b""

        monkeypatch.setattr(master, "frame", frames)
        with pytest.raises(CorruptRecordError):
            follow_once(master, target, reconnect=False)
    state, _ = follow_status(target)
    assert (state.end, state.is_closed, state.epoch) == (good, True, 2)
    assert epochs_of(target) == master.epochs


@pytest.mark.parametrize("learner_id", [2, 1 << 64, -1, -(1 << 63)])
def test_an_id_that_a_replica_could_have_is_damage(learner_id: int, tmp_path: Path) -> None:
    log, target = log_of(20), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        path = state_path(copy_paths(target))
        noted = follow_status(target)[0].learner_id
        path.write_text(path.read_text().replace(str(noted), str(learner_id)))
        with pytest.raises(StoreStateError, match=f"{learner_id} is not an id of a learner"):
            follow_once(master, target)
