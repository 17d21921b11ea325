from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from following.fake_master import FakeMaster, more, part
from following.followers import TIMING, wait_for
from following.replicas import streaming
from following.test_failing_disk import FILE_BYTES, follow_with, log_of
from rmqstore.errors import StoreStateError
from rmqstore.replica import events
from rmqstore.replica.decisions import decide
from rmqstore.replica.events import Question
from rmqstore.replica.follower import Follower
from rmqstore.replica.remoting import Address, Endpoint, LogBounds
from rmqstore.replica.replica_state import Phase, Retaining, wait_of
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import follow_status
from rmqstore.storage.files.disk import Disk


def run_with(make_disk, address, target, stop, seconds=8, before=None, **settings):
    given = FollowSettings(**{"timing": TIMING, **settings})
    f = Follower(
        Endpoint(Address.parse(address), timeout=5.0), target, given, stop, make_disk=make_disk
    )
    if before:
        before(f)
    errors = []

    def go():
        try:
            f.run()
        except BaseException as err:
            errors.append(err)

    t = threading.Thread(target=go, daemon=True)
    t.start()
    return f, t, errors


def test_stale(tmp_path: Path) -> None:
    stale, fine = [], []

    class Watched(Disk):
        def flush(self, path: Path) -> None:
            super().flush(path)
            if path.parent.name == "commitlog":
                same = (
                    os.fstat(self._descriptors[path]).st_ino == os.stat(path).st_ino
                    if path.exists()
                    else None
                )
                (fine if same else stale).append((threading.current_thread().name, path.name))

    common = log_of(60)
    longer, other = part(common, 150, 200)
    assert longer.end > 2 * FILE_BYTES > 0
    stop = threading.Event()
    with FakeMaster(longer) as master:
        f, t, errors = run_with(Watched, master.address, tmp_path / "copy", stop)
        wait_for(lambda: f._now().end == longer.end)
        for _ in range(3):  # further states are written
            more(longer, 20)
            wait_for(lambda: f._now().end == longer.end)
        master.log = other
        master.cut_connections()
        wait_for(lambda: f._now().end == other.end and f._now().n_cuts == 1)
        stop.set()
        t.join(10)
    print("stale flushes", stale, "end", other.end, "common", common.end, errors)
    assert not stale


@pytest.mark.parametrize("ha", ["a..b:10912"])
def test_connect_error(tmp_path: Path, ha: str) -> None:
    log = log_of(20)
    stop = threading.Event()
    with FakeMaster(log) as master:
        f, t, errors = run_with(
            Disk, master.address, tmp_path / "copy", stop, ha_address=Address.parse(ha), once=True
        )
        t.join(4)
        alive, phase = t.is_alive(), f.state.phase
        stop.set()
        t.join(5)
    print(alive, phase, errors)
    assert not alive


def test_connect_reset(tmp_path: Path, monkeypatch) -> None:
    """getpeername of a connection that was reset at once"""
    log = log_of(20)
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    import struct

    def accept():
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()

    threading.Thread(target=accept, daemon=True).start()
    original = socket.create_connection

    def slow(address, *args, **kw):
        s = original(address, *args, **kw)
        if address[1] == listener.getsockname()[1]:
            time.sleep(0.05)  # a thread that has to wait for its turn
        return s

    monkeypatch.setattr(socket, "create_connection", slow)
    with FakeMaster(log) as master:
        f, t, errors = run_with(
            Disk,
            master.address,
            tmp_path / "copy",
            stop,
            ha_address=Address("127.0.0.1", listener.getsockname()[1]),
        )
        time.sleep(2)
        n1 = f._now().n_connections
        phase = f.state.phase
        time.sleep(1.5)
        n2 = f._now().n_connections
        stop.set()
        t.join(5)
    listener.close()
    print("connections", n1, n2, phase, errors)
    assert n2 > n1


def test_interrupt_while_a_flush_fails(tmp_path: Path) -> None:
    gate, began = threading.Event(), threading.Event()

    class Failing(Disk):
        def flush(self, path: Path) -> None:
            if path.parent.name == "commitlog":
                began.set()
                gate.wait(10)
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().flush(path)

    log, stop = log_of(100), threading.Event()

    def before(f):
        def progress(_):
            if began.is_set():
                threading.Timer(0.3, gate.set).start()
                raise KeyboardInterrupt

        f._progress = progress

    with FakeMaster(log) as master:
        f, t, errors = run_with(Failing, master.address, tmp_path / "copy", stop, before=before)
        began.wait(5)
        t.join(6)
        alive = t.is_alive()
        stop.set()
        t.join(3)
        print("alive", alive, t.is_alive(), f.state.phase, f.state.work.flushing, errors)
        assert not alive


def test_question_fails_while_closing(tmp_path: Path) -> None:
    log, stop = log_of(100), threading.Event()
    target = tmp_path / "copy"
    asked, gate = threading.Event(), threading.Event()

    class Slow(Disk):
        def replace(self, path: Path, text: bytes) -> None:
            if asked.is_set():
                time.sleep(0.3)
            super().replace(path, text)

    with FakeMaster(log) as master:
        f, t, errors = run_with(Slow, master.address, target, stop)
        wait_for(lambda: f._now().queues_end == log.end)
        real = f._informant.source

        def source(settings):
            asked.set()
            gate.wait(10)
            raise StoreStateError("the broker is a slave now")

        f._informant.source = source
        master.cut_connections()
        asked.wait(5)
        stop.set()
        wait_for(lambda: f.state.phase is Phase.CLOSING)
        gate.set()
        t.join(10)
    print(errors, (target / "abort").exists(), follow_status(target)[0].is_closed)
    assert not errors and not (target / "abort").exists()


def test_pending_lost() -> None:
    state = streaming()
    now = 1.0
    state = state._replace(
        stream=state.stream._replace(pending="the broker has its log up to 9, and sent nothing"),
        broker=state.broker._replace(asking=frozenset({Question.END})),
        timers=state.timers._replace(end_asked_at=0.9),
        change=Retaining(1 << 14, None),
        copy=state.copy._replace(end=1 << 16, durable=1 << 16, saved_end=1 << 16, built=1 << 16),
    )
    state, _ = decide(state, events.BoundsReported(now, Question.END, LogBounds(0, 9), 0, 0))
    state, acts = decide(state, events.StateWritten(now, state.copy.saved, False))
    for _ in range(20):
        new = []
        for a in acts:
            match a:
                case events.WriteState(saved, _, drops):
                    new.append(events.StateWritten(now, saved, drops))
                case events.DeleteOldFiles():
                    new.append(events.OldFilesDeleted(now))
                case events.DeleteOldQueues():
                    new.append(events.QueuesChanged(now, 1 << 16))
        acts = []
        for e in new:
            state, more_ = decide(state, e)
            acts += more_
    assert state.change is None
    for k in range(1000):
        now += 1
        state, acts = decide(state, events.Ticked(now, 0, True))
        for a in acts:
            if isinstance(a, events.Ask):
                state, _ = decide(
                    state, events.BoundsReported(now, a.question, LogBounds(0, 9), a.position, 0)
                )
            if isinstance(a, events.WriteState):
                state, _ = decide(state, events.StateWritten(now, a.saved, a.drops_fetched))
    print(state.phase, state.stream and state.stream.pending, wait_of(state))
    assert state.phase is Phase.PAUSING or state.stream is None


def test_full_state(tmp_path: Path) -> None:
    log, target, stop = log_of(100), tmp_path / "copy", threading.Event()
    full = [False]

    class Full(Disk):
        def replace(self, path: Path, text: bytes) -> None:
            if path.name == "follow.json" and json.loads(text)["end"] and not full[0]:
                full[0] = True
            if full[0] and (path.parent / "spare").exists():
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            super().replace(path, text)

    with FakeMaster(log) as master, pytest.raises(StoreStateError) as err:
        follow_with(Full(), master, target)
    print(err.value, follow_status(target)[0].end, (target / ".rmqstore/spare").exists())
    assert follow_status(target)[0].end == log.end
