"""A follower and a fake master in controller mode: the copy and its epochs after every switch."""

from __future__ import annotations

import copy
import json
import random
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import tiers
from crash.faults import Cut
from crash.test_killed_follower import SharedDisk
from following.fake_master import (
    FILE_BYTES,
    FakeController,
    FakeMaster,
    Handshake,
    log_of,
    more,
    part,
)
from following.followers import (
    Following,
    copied,
    epochs_of,
    files,
    follow_once,
    mangler,
    require_exact,
    require_survival,
    wait_for,
)
from rmqstore.errors import (
    BrokerUnreachableError,
    CorruptRecordError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.replica.follower import Mail
from rmqstore.replica.ha import NEVER, Connection
from rmqstore.replica.retention import parse_retention
from rmqstore.replica.state import copy_paths, follow_status, state_path
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.epochs import Epoch
from store_builder import Store


def switched(log: Store, lost: int, count: int) -> tuple[Store, int]:
    """Return a log without the last records of another, and with new ones; and where they begin."""
    other = Store(segment_bytes=FILE_BYTES)
    for placed in log.placed[: len(log.placed) - lost]:
        other.append(placed.record)
    point = other.end
    more(other, count, mark=b"new")
    return other, point


def test_a_copy_is_exact_and_has_the_epochs_of_its_broker(tmp_path: Path) -> None:
    log, target = log_of(300), tmp_path / "copy"
    middle, last = log.placed[100].physical_offset, log.placed[280].physical_offset
    epochs = [Epoch(1, 0), Epoch(2, middle), Epoch(7, last)]
    with FakeController(log, epochs) as master:
        master.confirm_offset = 123
        with Following(master.address, target) as run:
            wait_for(lambda: run.follower.progress().queues_end == log.end)
            wait_for(lambda: len(master.reports[0]) > 2)
            more(log, 10)
            master.epochs = [*epochs, Epoch(9, log.end)]
            more(log, 10)
            wait_for(lambda: run.follower.progress().queues_end == log.end)
        assert len(master.handshakes) == 1
        shaken = master.handshakes[0]
    require_exact(target, log)
    state, _ = follow_status(target)
    assert shaken == Handshake(0, 1, state.learner_id)
    assert state.learner_id < -(1 << 61)
    assert master.reports[0][0] == 0
    assert set(master.reports[0][1:]) == {NEVER}
    assert (state.mode, state.epoch, state.confirm_offset) == ("controller", 9, 123)
    assert epochs_of(target) == master.epochs
    assert read_checkpoint(copy_paths(target)).confirm_phy_offset == 123


def test_an_epoch_is_noted_when_the_copy_has_a_record_of_it(tmp_path: Path) -> None:
    log, target = log_of(50), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0), Epoch(2, log.end)]) as master:
        follow_once(master, target)
        assert epochs_of(target) == [Epoch(1, 0)]
        more(log, 1)
        follow_once(master, target)
        assert epochs_of(target) == [Epoch(1, 0), Epoch(2, log.placed[50].physical_offset)]


def test_a_copy_of_an_empty_log_goes_on_when_there_is_something(tmp_path: Path) -> None:
    log, target = Store(segment_bytes=FILE_BYTES), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master, Following(master.address, target) as run:
        wait_for(lambda: len(master.reports) == 1 and len(master.reports[0]) > 2)
        more(log, 30)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
    require_exact(target, log)


@pytest.mark.parametrize(("lost", "count"), [(0, 5), (1, 0), (1, 40), (90, 3), (90, 200)])
def test_after_a_switch_the_copy_is_cut_where_the_epochs_part(
    lost: int, count: int, tmp_path: Path
) -> None:
    """What is compared is far less than what the new master does not have."""
    log, target = log_of(200), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        first_id = master.handshakes[0].replica_id
        end = log.end
        master.log, point = switched(log, lost, count)
        master.epochs = [Epoch(1, 0), Epoch(2, point)]
        follow_once(master, target, overlap=500)
        assert len(master.handshakes) == 2  # nothing had to be compared again
        assert master.handshakes[1].replica_id == first_id
    require_exact(target, master.log)
    state, _ = follow_status(target)
    assert state.n_cuts == (1 if lost else 0)
    assert state.last_cut == (point if lost else -1)
    kept = [*(target / ".rmqstore" / "cut").rglob("*.*")]
    assert state.last_cut_bytes == end - point if lost else not kept
    assert epochs_of(target) == (master.epochs if count else [Epoch(1, 0)])


def test_a_switch_under_a_follower(tmp_path: Path) -> None:
    log, target = log_of(150), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master, Following(master.address, target) as run:
        for number in range(2, 6):
            end = master.log.end
            wait_for(lambda end=end: run.follower.progress().queues_end == end)
            log, point = switched(master.log, 20, 50)
            master.epochs = [
                *(each for each in master.epochs if each.start_offset < point),
                Epoch(number, point),
            ]
            master.log = log
            master.cut_connections()
        wait_for(
            lambda: run.follower.progress().end == log.end and master.reports[-1][-1:] == [NEVER]
        )
        wait_for(lambda: run.follower.progress().queues_end == log.end)
    require_exact(target, log)
    assert epochs_of(target) == master.epochs
    assert follow_status(target)[0].n_cuts == 4


def test_bytes_that_agree_are_kept_whatever_the_epochs_say(tmp_path: Path) -> None:
    """Brokers up to 5.3.3 do not announce an epoch that begins without a switch of masters."""
    log, target = log_of(100), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        more(log, 10)
        master.epochs = [Epoch(1, 0), Epoch(2, log.placed[40].physical_offset)]
        follow_once(master, target)
        assert epochs_of(target) == master.epochs
    require_exact(target, log)
    assert follow_status(target)[0].n_cuts == 0


def test_an_end_that_was_lost_in_the_same_epoch_is_cut(tmp_path: Path) -> None:
    log, target = log_of(100), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        master.log, point = switched(log, 30, 80)
        master.epochs = [Epoch(1, 0), Epoch(2, master.log.end - 1)]
        follow_once(master, target)
    require_exact(target, master.log)
    assert follow_status(target)[0].last_cut == point


def test_a_broker_without_a_common_epoch_and_record_is_refused(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0), Epoch(2, log.placed[1].physical_offset)]) as master:
        follow_once(master, target)
        before = files(target), epochs_of(target)
        master.log = Store(segment_bytes=FILE_BYTES)
        more(master.log, 300, mark=b"other", time_ms=5)
        master.epochs = [Epoch(3, 0)]
        with pytest.raises(StoreStateError, match="another log"):
            follow_once(master, target, overlap=500)
        assert len(master.handshakes) == 2  # it does not compare all of it
        assert (files(target), epochs_of(target)) == before
        master.log, master.epochs = copy.deepcopy(log), [Epoch(3, 0)]
        more(master.log, 10)
        follow_once(master, target)  # the bytes prove that it is the same log
    require_exact(target, master.log)


@pytest.mark.parametrize("is_told_late", [False, True])
@pytest.mark.parametrize(
    "settings", [{"brokerRole": "SLAVE"}, {"brokerId": "2"}, {"brokerId": "-1"}]
)
def test_only_a_master_is_asked_for_its_log(
    settings: dict[str, str], is_told_late: bool, tmp_path: Path
) -> None:
    log, target = log_of(50), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0)]) as master:
        good = dict(master.settings)
        if is_told_late:  # it is demoted after it was asked
            master.on_handshake = lambda: master.settings.update(settings)
        else:
            master.settings.update(settings)
        with pytest.raises(BrokerUnreachableError, match="not the master"):
            follow_once(master, target, reconnect=False)
        assert len(master.handshakes) == is_told_late
        assert not any(master.reports)
        master.on_handshake = lambda: None
        with Following(master.address, target) as run:
            master.settings = good
            wait_for(lambda: run.follower.progress().queues_end == log.end)
    require_exact(target, log)


def test_versions_without_these_messages_and_acknowledgements_are_refused(tmp_path: Path) -> None:
    with FakeController(log_of(5), [Epoch(1, 0)]) as master:
        with pytest.raises(UnsupportedFeatureError, match="learner"):
            follow_once(master, tmp_path / "copy", acknowledge="synced")
        for master.version in ("V5_1_0", "V5_0_0", "V4_9_8", "nothing"):
            with pytest.raises(UnsupportedFeatureError, match=r"5\.1\.1"):
                follow_once(master, tmp_path / "copy")
        assert not master.connections


def test_a_port_that_does_not_know_the_handshake_is_named(tmp_path: Path) -> None:
    log = log_of(5)
    with FakeMaster(log) as master:
        master.settings |= {"enableControllerMode": "true"}
        with pytest.raises(BrokerUnreachableError, match="handshake"):
            follow_once(master, tmp_path / "copy", reconnect=False)
    with FakeController(log, [Epoch(1, 0)]) as master:
        master.settings |= {"enableControllerMode": "false"}
        with pytest.raises(BrokerUnreachableError, match=r"nothing came|closed"):
            follow_once(master, tmp_path / "other", reconnect=False)
        assert not master.handshakes


@pytest.mark.parametrize("thread_is_first", [False, True])
def test_a_follower_ends_without_an_error_while_it_waits_for_a_handshake(
    thread_is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the thread of the handshake sees the stop first."""
    log, target = log_of(30), tmp_path / "copy"
    is_late, waits = threading.Event(), threading.Event()
    wait = Mail.wait

    def wait_late(mail: Mail, connection: Connection | None, seconds: float) -> bool:
        if is_late.is_set():
            waits.set()
            wait_for(lambda: bool(mail._found))
        return wait(mail, connection, seconds)

    monkeypatch.setattr(Mail, "wait", wait_late)
    with FakeController(log, [Epoch(1, 0)]) as master:
        master.mangle_handshake = lambda handshake: handshake[:-1]
        with Following(master.address, target, reconnect=False):
            wait_for(lambda: len(master.handshakes) == 1)
            if thread_is_first:
                is_late.set()
                assert waits.wait(20)
        is_late.clear()
        master.mangle_handshake = lambda handshake: handshake
        follow_once(master, target)
    require_exact(target, log)


def test_a_copy_goes_on_when_its_broker_changes_its_mode(tmp_path: Path) -> None:
    log, target = log_of(60), tmp_path / "copy"
    copied(log, target)
    more(log, 60)
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        assert epochs_of(target) == [Epoch(1, 0)]
        assert follow_status(target)[0].mode == "controller"
        assert read_checkpoint(copy_paths(target)).confirm_phy_offset == log.end
    more(log, 60)
    copied(log, target)
    require_exact(target, log)
    assert follow_status(target)[0].mode == "default"


def test_a_log_that_is_older_than_its_epochs_is_copied_from_the_next_file_on(
    tmp_path: Path,
) -> None:
    log, target = log_of(60), tmp_path / "copy"
    assert log.end < FILE_BYTES
    with FakeController(log, [Epoch(1, log.placed[50].physical_offset)]) as master:
        with pytest.raises(StoreStateError, match="first epoch"):
            follow_once(master, target)
        assert not any(master.reports)
        more(log, 100)
        follow_once(master, target)
        require_exact(target, log, FILE_BYTES)
        more(log, 100)
        follow_once(master, target)
    require_exact(target, log, FILE_BYTES)


def test_epochs_of_older_files_stay_when_the_broker_forgets_them(tmp_path: Path) -> None:
    log, target = log_of(400), tmp_path / "copy"
    starts = [0, *(log.placed[number].physical_offset for number in (20, 250, 300))]
    epochs = [Epoch(number, start) for number, start in enumerate(starts)]
    with FakeController(log, epochs) as master:
        follow_once(master, target)
        more(log, 20)
        master.low, master.epochs = FILE_BYTES, epochs[1:]
        follow_once(master, target)
        assert epochs_of(target) == epochs
        follow_once(master, tmp_path / "later")
        assert epochs_of(tmp_path / "later") == epochs[1:]
        more(log, 20)
        follow_once(master, target, retention=parse_retention("mirror"))
        follow_once(master, target)
        assert epochs_of(target) == epochs[1:]


def test_damaged_epochs_of_a_copy_are_asked_for_again(tmp_path: Path) -> None:
    log, target = log_of(60), tmp_path / "copy"
    with FakeController(log, [Epoch(1, 0), Epoch(4, 200)]) as master:
        follow_once(master, target)
        (target / "epochFileCheckpoint").write_bytes(b"2\n77\n1-0\n4-200\n")
        more(log, 10)
        follow_once(master, target)
        assert epochs_of(target) == master.epochs
    require_exact(target, log)


def with_wrong_header(dice: random.Random, frame: bytes) -> list[bytes]:
    head = bytearray(frame)
    # Not in the size: one that is possible shows only at the next header. What came until then
    # is compared on the next connection, as nothing else guards the stream.
    at = dice.choice([*range(4), *range(8, 36)])
    head[at] ^= 1 << dice.randrange(8)
    fields = list(struct.unpack_from(">iiqiqq", frame))
    field = dice.randrange(6)
    fields[field] = dice.choice([-1, 0, fields[field] + 1, fields[field] - 1, (1 << 31) - 1])
    return [bytes(head), *[struct.pack(">iiqiqq", *fields) + frame[36:]] * 3]


@pytest.mark.parametrize("seed", tiers.split(range(30), 5))
def test_mangled_headers_delay_a_copy_and_do_not_damage_it(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log, target = log_of(300), tmp_path / "copy"
    epochs = [Epoch(1, 0), Epoch(3, 9000), Epoch(4, 9000 + 4096)]
    with FakeController(log, epochs, batch=1000) as master:
        master.mangle = mangler(dice, with_wrong_header)
        master.mangle_handshake = lambda answer: dice.choice(
            [answer] * 3 + [answer[: dice.randrange(len(answer))], dice.randbytes(60), answer[::-1]]
        )
        require_survival(master, target)
        master.mangle = master.mangle_handshake = lambda sent: sent
        follow_once(master, target)
    require_exact(target, log)
    assert epochs_of(target) == epochs


def test_the_state_of_an_earlier_version_gets_an_id(tmp_path: Path) -> None:
    log, target = log_of(20), tmp_path / "copy"
    copied(log, target)
    path = target / ".rmqstore" / "follow.json"
    state = json.loads(path.read_bytes())
    for name in ("mode", "learner_id", "epoch", "confirm_offset"):
        del state[name]
    path.write_text(json.dumps(state))
    assert follow_status(target)[0].learner_id == 0
    with FakeController(log, [Epoch(1, 0)]) as master:
        follow_once(master, target)
        follow_once(master, target)
        assert master.handshakes[0] == master.handshakes[1]
    require_exact(target, log)


def test_a_copy_that_begins_again_earlier_has_all_epochs(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    short = log_of(60)
    with FakeController(log_of(200), [Epoch(1, 0)]) as master:
        master.is_slow = True
        with Following(master.address, target, start="last-file") as run:
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
