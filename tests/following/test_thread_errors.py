"""Errors and delays in the threads of a follower: none is lost, and none ends a copy by mistake."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from following.fake_master import FILE_BYTES, FakeMaster, log_of, more, part
from following.followers import (
    TIMING,
    Following,
    SlowStates,
    copying,
    follow_once,
    require_exact,
    wait_for,
)
from following.replicas import TICK, after, asking, decide, streaming
from rmqstore.errors import BrokerUnreachableError, CorruptRecordError, StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica import copy_store, events, follower
from rmqstore.replica.broker import ListenPort
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.events import Question
from rmqstore.replica.ha import Handshake
from rmqstore.replica.live_state import Decision, Ending, Phase, ReplicaState, wait_of
from rmqstore.replica.log_copy import LogCopy
from rmqstore.replica.retention import Retention
from rmqstore.replica.state import copy_paths, follow_status
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.writer_notes import CleanEnd, read_clean_end


def is_log(path: Path) -> bool:
    return path.parent.name == "commitlog"


class FailingDisk(Disk):
    """A disk whose flushes of the log wait, then fail, once that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_armed, self.began = False, threading.Event()
        self.may_go_on = threading.Event()

    def flush(self, path: Path) -> None:
        if is_log(path) and self.is_armed:
            self.began.set()
            self.may_go_on.wait(10)
            raise OSError(errno.EIO, "Input/output error", str(path))
        super().flush(path)


def test_files_are_flushed_that_are_there_after_a_cut(tmp_path: Path) -> None:
    """The thread has files open that were deleted; others have their names now."""
    stale: list[str] = []

    class WatchedDisk(Disk):
        def flush(self, path: Path) -> None:
            super().flush(path)
            if is_log(path) and os.fstat(self._open(path)).st_ino != path.stat().st_ino:
                stale.append(path.name)

    longer, other = part(log_of(60), 150, 200)
    assert longer.end > 2 * FILE_BYTES
    target = tmp_path / "copy"
    with copying(longer, target, make_disk=WatchedDisk) as (master, run):
        for _ in range(4):  # the state is written several times
            more(longer, 20)
            wait_for(lambda: run.follower.progress().end == longer.end)
        master.log = other
        master.cut_connections()
        wait_for(
            lambda: run.follower.progress().n_cuts == 1 and run.follower.progress().end == other.end
        )
    require_exact(target, other)
    assert stale == []


def test_an_interrupt_while_a_flush_fails_ends_the_follower(tmp_path: Path) -> None:
    """The copy cannot be completed, since the thread that would flush it has ended."""
    log, target, disk = log_of(100), tmp_path / "copy", FailingDisk()

    def interrupt(_: Any) -> None:
        if disk.began.is_set():
            threading.Timer(0.1, disk.may_go_on.set).start()
            raise KeyboardInterrupt

    with FakeMaster(log) as master:
        disk.is_armed = True
        run = Following(master.address, target, make_disk=lambda: disk)
        run.follower._progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            run.wait()
        assert follow_status(target)[0].end == 0
        follow_once(master, target)
    require_exact(target, log)


def test_another_broker_while_a_flush_fails_ends_the_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, target, disk = log_of(100), tmp_path / "copy", FailingDisk()

    def refuse(*_: Any) -> None:
        threading.Timer(0.1, disk.may_go_on.set).start()
        raise StoreStateError("the broker is a slave now")

    with FakeMaster(log) as master:
        run = Following(master.address, target, make_disk=lambda: disk)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        disk.is_armed = True
        monkeypatch.setattr(ListenPort, "source", refuse)
        more(log, 10)
        assert disk.began.wait(10)
        master.cut_connections()
        disk.may_go_on.set()
        with pytest.raises(StoreStateError):
            run.wait()
    assert not follow_status(target)[0].is_closed


def test_a_flush_that_hangs_ends_the_connection_and_delays_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker keeps its files for whoever reports."""
    log, target = log_of(50), tmp_path / "copy"
    is_slow, may_go_on = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        def flush(self, path: Path) -> None:
            if is_log(path) and is_slow.is_set():
                may_go_on.wait(10)
            super().flush(path)

    timing = replace(TIMING, stall=0.2)
    with copying(log, target, make_disk=SlowDisk, timing=timing) as (_, run):
        wait_for(lambda: run.follower.progress().end == log.end)
        is_slow.set()
        more(log, 5)
        wait_for(lambda: "the copy takes too long" in caplog.text)
        n_connections = run.follower.progress().n_connections
        time.sleep(0.5)
        assert run.follower.progress().n_connections == n_connections
        may_go_on.set()
        wait_for(lambda: run.follower.progress().end == log.end)
    require_exact(target, log)


@pytest.mark.parametrize("n_missing", [100, 1 << 30])
def test_a_slow_flush_ends_no_connection_while_there_is_much_to_copy(n_missing: int) -> None:
    state, _ = decide(streaming(), 1.0, events.Received(0, 100))
    bounds = LogBounds(0, n_missing)
    state = state.with_link(bounds=bounds)
    state, actions = decide(state, 1.0, events.Written(100, 0))
    assert actions == [events.Flush(100)]
    for now in range(2, 13):
        state, actions = after(state, float(now), events.Received(now * 10, now * 10 + 10), TICK)
        if events.Write() in actions:
            state, _ = decide(state, float(now), events.Written(now * 10 + 10, 0))
    assert (state.phase is Phase.PAUSING) == (n_missing == 100)


def test_a_flush_that_was_too_slow_is_not_reported() -> None:
    state = streaming(acknowledge="synced")
    state, actions = after(state, 1.0, events.Received(0, 100), events.Written(100, 0))
    assert actions == [events.Flush(100)]
    state, (writing,) = decide(state, 3.0, events.Flushed(100, 1))
    late, _ = decide(state, 13.5, TICK)
    assert late.phase is Phase.PAUSING
    _, actions = decide(late, 14.0, events.StateWritten(writing.saved))
    assert not [each for each in actions if isinstance(each, events.Report)]
    _, actions = decide(state, 4.0, events.StateWritten(writing.saved))
    assert events.Report(100) in actions


def test_a_loop_that_was_held_up_takes_its_own_delay_for_no_slow_disk() -> None:
    state, _ = after(streaming(), 1.0, events.Received(0, 100), events.Written(100, 0))
    state, (writing,) = decide(state, 31.0, events.Flushed(100, 1))  # done long ago
    state, _ = after(state, 31.0, events.Received(100, 200), TICK)
    assert state.phase is Phase.APPENDING
    state, _ = after(state, 61.0, events.StateWritten(writing.saved), events.Received(200, 300))
    state, _ = decide(state, 61.0, TICK)
    assert state.phase is Phase.APPENDING


def test_an_address_that_cannot_be_one_ends_the_follower(tmp_path: Path) -> None:
    with FakeMaster(log_of(20)) as master:
        nowhere = Address.parse("a..b:10912")
        run = Following(master.address, tmp_path / "copy", ha_address=nowhere)
        with pytest.raises(UnicodeError):
            run.wait()


def test_a_connection_that_is_reset_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the socket has no other side any more, whose address could be asked for."""
    connect = socket.create_connection
    with FakeMaster(log_of(20)) as master, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    reset = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    connection.close()

        def connect_slowly(address: tuple[str, int], *args: Any) -> socket.socket:
            made = connect(address, *args)
            if address[1] == port:
                time.sleep(0.05)
            return made

        threading.Thread(target=accept, daemon=True).start()
        monkeypatch.setattr(socket, "create_connection", connect_slowly)
        address = Address("127.0.0.1", port)
        with Following(master.address, tmp_path / "copy", ha_address=address) as run:
            wait_for(lambda: run.follower.progress().n_connections > 2)


def test_a_connection_that_comes_after_the_end_is_closed(tmp_path: Path) -> None:
    log = log_of(20)
    with FakeMaster(log) as master:
        run = Following(master.address, tmp_path / "copy")
        wait_for(lambda: run.follower.progress().end == log.end)
        mail = run.follower._mail
        made = run.follower._made
        assert made is not None
        run.end()
        assert made.connection.fileno() == -1
        late = made._replace(connection=type(made.connection)(
            Address("127.0.0.1", int(master.settings["haListenPort"])), 5.0
        ))  # fmt: skip
        mail.put(late)
        assert late.connection.fileno() == -1


def test_a_connection_that_comes_while_the_copy_is_completed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, target = log_of(20), tmp_path / "copy"
    is_cut, is_asked = threading.Event(), threading.Event()
    may_connect, may_close = threading.Event(), threading.Event()
    made: list[Any] = []
    connect = follower.connect

    class SlowStates(Disk):
        def replace(self, path: Path, text: bytes) -> None:
            if is_asked.is_set():
                may_close.wait(10)
            super().replace(path, text)

    def connect_slowly(*args: Any) -> Any:
        if is_cut.is_set():
            is_asked.set()
            may_connect.wait(10)
        made.append(connect(*args))
        return made[-1]

    monkeypatch.setattr(follower, "connect", connect_slowly)
    with FakeMaster(log) as master:
        run = Following(master.address, target, make_disk=SlowStates)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        is_cut.set()
        master.cut_connections()
        try:
            assert is_asked.wait(10)
            run.stop.set()
            wait_for(lambda: run.follower.state.phase is Phase.CLOSING)
            n_made = len(made)
            may_connect.set()
            wait_for(lambda: len(made) > n_made and made[-1].connection.fileno() == -1, 5)
            assert run.follower.state.phase is Phase.CLOSING
        finally:
            may_close.set()
            run.end()
    require_exact(target, log)


def test_the_first_thread_ends_if_there_is_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = copy_store.Worker

    def start_one(name: str, *args: Any) -> copy_store.Worker:
        if name == "follow-queues":
            raise RuntimeError("can't start new thread")
        return start(name, *args)

    monkeypatch.setattr(copy_store, "Worker", start_one)
    with FakeMaster(log_of(20)) as master, pytest.raises(RuntimeError, match="new thread"):
        follow_once(master, tmp_path / "copy")
    assert "follow-sync" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupt_after_a_write_leaves_a_note_of_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LogCopy.write_buffer

    def write_and_interrupt(copy: LogCopy) -> None:
        write(copy)
        raise KeyboardInterrupt

    monkeypatch.setattr(LogCopy, "write_buffer", write_and_interrupt)
    log, target = log_of(20), tmp_path / "copy"
    with FakeMaster(log) as master, pytest.raises(KeyboardInterrupt):
        follow_once(master, target)
    require_exact(target, log)
    paths = copy_paths(target)
    with closing(CommitLog(paths.commitlogs)) as copied:
        end = read_clean_end(paths, copied)
    assert end == CleanEnd(log.end, log.placed[-1].record.store_timestamp)


def test_a_question_that_is_asked_again_and_again_leaves_time_for_others() -> None:
    state, asked = idle(once=True, tables_seconds=5.0), list[Question]()
    state = state.with_copy(goal=None)
    position = state.link.position
    reported = events.BoundsReported(LogBounds(0, 1 << 17), position)
    for now in range(1, 10):
        state, actions = decide(state, now, events.HeartbeatCame(position))
        asked += [each.asked.question for each in actions]
        state, _ = decide(state, now, reported, Question.END)
        state, actions = decide(state, now, TICK)
        asked += [each.asked.question for each in actions if isinstance(each, events.Ask)]
    assert asked.count(Question.END) == 9
    assert asked.count(Question.TABLES) == 1


def test_a_question_that_fails_while_the_copy_is_completed_leaves_it_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, target = log_of(100), tmp_path / "copy"
    is_asked, may_fail = threading.Event(), threading.Event()

    def refuse(*_: Any) -> None:
        is_asked.set()
        may_fail.wait(10)
        raise StoreStateError("the broker is a slave now")

    with FakeMaster(log) as master:
        run = Following(master.address, target, make_disk=SlowStates)
        wait_for(lambda: run.follower.progress().queues_end == log.end)
        monkeypatch.setattr(ListenPort, "source", refuse)
        master.cut_connections()
        assert is_asked.wait(10)
        run.stop.set()
        wait_for(lambda: run.follower.state.phase is Phase.CLOSING)
        may_fail.set()
        run.wait()
    require_exact(target, log)
    assert follow_status(target)[0].is_closed


def idle(**settings: Any) -> ReplicaState:
    """Return a replica that has all of a log of four files, and whose broker has more."""
    end = 4 * FILE_BYTES
    state = streaming(**settings)
    state = state.with_copy(end=end, durable=end, saved_end=end, built=end)
    bounds = LogBounds(0, 2 * end)
    return state.with_link(bounds=bounds, agreed_low=0, position=end, has_begun=True)


def test_old_files_stay_while_an_answer_decides_about_the_connection() -> None:
    state = idle(retention=Retention(max_bytes=1))
    position = state.link.position
    state, actions = decide(state, 30.0, events.HeartbeatCame(position))
    assert [each.asked.question for each in actions] == [Question.END]
    state, actions = decide(state, 30.01, TICK)
    assert not [each for each in actions if isinstance(each, events.FindOldFiles)]
    reported = events.BoundsReported(LogBounds(0, 1 << 17), position)
    state, _ = decide(state, 30.02, reported, Question.END)
    assert state.phase is Phase.PAUSING
    state, actions = decide(state, 30.03, TICK)
    assert [each for each in actions if isinstance(each, events.FindOldFiles)]


def saved(state: ReplicaState, now: float, start: int, stop: int) -> Decision:
    """Let bytes come to the disk; return what the replica does then."""
    state, _ = after(state, now, events.Received(start, stop), TICK, events.Written(stop, 0))
    state, (writing,) = decide(state, now, events.Flushed(stop, 1))
    return decide(state, now, events.StateWritten(writing.saved))


def retaining() -> ReplicaState:
    """Return a replica that is to delete old files, while its queues are being built."""
    state = streaming(acknowledge="synced", retention=Retention(max_bytes=1))
    state, _ = saved(state, 1.0, 0, 100)
    assert state.work.building
    state, _ = decide(state, 2.0, events.OldFilesFound(0, FILE_BYTES, 2 * FILE_BYTES))
    return state


def test_the_stream_goes_on_while_old_files_wait_for_the_queues() -> None:
    state = retaining()
    assert wait_of(state).reads
    state, actions = saved(state, 3.0, 100, 200)
    assert actions == [events.Report(200)]
    state, (writing,) = decide(state, 4.0, events.Built(100, 100, frozenset(), 3.0))
    assert writing.saved.begin == FILE_BYTES
    assert wait_of(state).reads
    state, actions = decide(state, 4.0, events.StateWritten(writing.saved))
    assert actions[-1] == events.DeleteOldFiles(FILE_BYTES)


def test_old_files_are_deleted_before_the_end() -> None:
    state = retaining()
    state, _ = after(state, 3.0, events.StopAsked(), TICK)
    for now in (3.1, 3.2):
        state, actions = decide(state, now, TICK)
        assert (state.phase, actions) == (Phase.CLOSING, [])
    state, (writing,) = decide(state, 4.0, events.Built(100, 100, frozenset(), 3.0))
    assert writing.saved.begin == FILE_BYTES
    for event in (events.StateWritten(writing.saved), events.StepDone()):
        state, actions = decide(state, 4.0, event)
    state, actions = decide(state, 4.0, events.StateWritten(actions[0].saved))
    assert actions == [events.DeleteOldQueues(FILE_BYTES)]
    state, actions = decide(state, 4.0, events.QueuesChanged(100))
    assert isinstance(actions[0], events.Flush)


def test_no_connection_begins_before_old_files_are_deleted() -> None:
    state, _ = decide(retaining(), 3.0, events.Lost("closed"))
    state, _ = decide(state, 99.0, TICK)
    assert state.phase is Phase.PAUSING


def test_an_answer_that_decides_about_the_connection_is_asked_for_again_if_it_is_lost() -> None:
    state = idle()
    state = state.with_link(pending="nothing came")
    state, actions = decide(state, 1.0, TICK)
    assert Question.END in [each.asked.question for each in actions if isinstance(each, events.Ask)]
    state, _ = decide(state, 2.0, events.BoundsReported(LogBounds(0, 9), 0), Question.END)
    assert state.phase is Phase.PAUSING


ANSWERS = [
    (Question.FACTS, events.Unanswered(StoreStateError("it is a slave now"))),
    (Question.END, events.Unanswered(BrokerUnreachableError("b", "gone"))),
    (Question.END, events.BoundsReported(LogBounds(0, 1), 1)),
    (Question.RECORD, events.RecordReported(b"1")),
    (Question.CONNECTION, events.Connected(Handshake(0, []), is_public=False)),
    (Question.CONNECTION, events.Lost("closed")),
]


@pytest.mark.parametrize(("question", "answer"), ANSWERS)
def test_an_answer_decides_nothing_while_the_copy_is_completed(
    question: Question, answer: Any
) -> None:
    state, _ = after(asking(streaming(), question), 1.0, events.StopAsked(), TICK)
    assert state.phase is Phase.CLOSING
    then, actions = decide(state, 2.0, answer, question)
    assert not actions
    assert (then.phase, then.work.change) == (Phase.CLOSING, state.work.change)


@pytest.mark.parametrize("phase", [Phase.APPENDING, Phase.COMPARING])
def test_a_second_answer_decides_nothing(phase: Phase) -> None:
    state = asking(streaming().in_phase(phase), Question.END)
    answer = events.Unanswered(CorruptRecordError("x", 0, "y"))
    state, _ = decide(state, 1.0, answer, Question.END)
    assert state.work.is_stopping
    state = state.with_work(is_stopping=False)
    state, _ = decide(state, 1.0, answer, Question.END)
    assert not state.work.is_stopping


def ending_of(state: ReplicaState) -> Ending:
    assert isinstance(state.work.change, Ending)
    return state.work.change


def test_what_came_before_the_connection_ended_is_in_a_copy_that_is_closed() -> None:
    state, _ = decide(streaming(reconnect=False), 1.0, events.Received(0, 100))
    state, actions = decide(state, 1.0, events.Lost("closed"))
    assert actions == [events.Write()]
    state, actions = decide(state, 1.0, events.Written(100, 0))
    assert actions[-1] == events.Flush(100)
    assert isinstance(ending_of(state).error, BrokerUnreachableError)


@pytest.mark.parametrize("until", [50, 100])
def test_a_copy_that_is_complete_when_the_connection_ends_is_no_error(until: int) -> None:
    state, _ = decide(streaming(reconnect=False, until=until), 1.0, events.Received(0, 100))
    lost, _ = decide(state, 1.0, events.Lost("closed"))
    state, _ = decide(state, 1.0, TICK)
    for each in (lost, state):
        end, _ = after(each, 1.0, events.Written(100, 0), events.Lost("closed"))
        assert ending_of(end).error is None


@pytest.mark.parametrize("reconnect", [False, True])
def test_a_connection_that_ends_after_a_stop_is_no_error(*, reconnect: bool) -> None:
    state, _ = decide(streaming(reconnect=reconnect), 1.0, events.StopAsked())
    state, actions = decide(state, 1.0, events.Lost("closed"))
    assert ending_of(state).error is None
    assert not [each for each in actions if isinstance(each, events.Log)]


def test_what_takes_too_long_ends_the_connection() -> None:
    state, _ = decide(streaming(), 1.0, events.Received(0, 100))
    for seconds, phase in ((9.0, Phase.APPENDING), (11.0, Phase.PAUSING)):
        then, _ = decide(state, 1.0 + seconds, events.Written(100, 0, seconds=seconds))
        assert then.phase is phase
    comparing = state.in_phase(Phase.COMPARING)
    then, _ = decide(comparing, 12.0, events.Agreed(0, 0, seconds=11.0))
    assert then.phase is Phase.PAUSING


def test_what_is_no_part_of_the_copy_may_take_long() -> None:
    """Such as old files that are deleted, or the callback of the progress."""
    state, _ = after(streaming(), 1.0, events.Received(0, 100), events.Written(100, 0))
    state, _ = decide(state, 1.1, events.Flushed(100, 0))
    state, _ = decide(state, 1.2, events.StateWritten(state.copy.saved))
    state, _ = decide(state, 13.0, TICK)
    assert state.phase is Phase.APPENDING


def test_damage_before_the_connection_ended_is_the_error() -> None:
    state, _ = decide(streaming(reconnect=False), 1.0, events.Received(0, 100))
    state, actions = decide(state, 1.0, events.Lost("closed"))
    assert actions == [events.Write()]
    error = CorruptRecordError("the log", 30, "no record")
    state, _ = decide(state, 1.0, events.Written(30, 0, error))
    assert ending_of(state).error is error


@pytest.mark.parametrize("n_whole", [0, 3])
def test_damage_in_the_last_bytes_before_a_stop_is_an_error(n_whole: int) -> None:
    """But for the first bytes of a copy: the log of the broker may begin somewhere else."""
    state = streaming()
    state, actions = after(state, 1.0, events.Received(0, 100), events.StopAsked(), TICK)
    assert events.Write() in actions
    error = CorruptRecordError("the log", 30, "no record")
    state, _ = decide(state, 1.0, events.Written(n_whole * 10, 0, error))
    assert ending_of(state).error is (error if n_whole else None)
