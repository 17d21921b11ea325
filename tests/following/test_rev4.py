from __future__ import annotations

import errno
import threading
from pathlib import Path

from following.fake_master import FakeMaster, more
from following.followers import wait_for
from following.test_failing_disk import log_of
from following.test_rev import run_with
from rmqstore.errors import StoreStateError
from rmqstore.storage.files.disk import Disk


def test_question_and_flush(tmp_path: Path) -> None:
    """the broker becomes something else (StoreStateError in the question) while a flush is under way, which fails"""
    log, stop = log_of(100), threading.Event()
    arm, began, gate = [False], threading.Event(), threading.Event()

    class Failing(Disk):
        def flush(self, path: Path) -> None:
            if path.parent.name == "commitlog" and arm[0]:
                began.set()
                gate.wait(10)
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().flush(path)

    with FakeMaster(log) as master:
        f, t, errors = run_with(Failing, master.address, tmp_path / "copy", stop)
        wait_for(lambda: f._now().queues_end == log.end)
        arm[0] = True

        def source(settings):
            threading.Timer(0.3, gate.set).start()
            raise StoreStateError("the broker is a slave now")

        f._informant.source = source
        more(log, 10)
        began.wait(5)
        master.cut_connections()
        t.join(5)
        alive = t.is_alive()
        stop.set()
        t.join(3)
        print(
            "alive", alive, "after stop", t.is_alive(), f.state.phase, f.state.work.flushing, errors
        )
    assert not alive


def test_stop_swallows_damage(tmp_path: Path) -> None:
    """END unanswered of an old connection etc. - here: exit when stopped with damage held"""
