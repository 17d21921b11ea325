from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from following.fake_master import FakeMaster
from following.followers import wait_for
from following.test_failing_disk import log_of
from following.test_rev import run_with
from rmqstore.storage.files.disk import Disk


def test_cpu_idle_and_fds(tmp_path: Path) -> None:
    log, stop = log_of(100), threading.Event()
    with FakeMaster(log) as master:
        f, t, errors = run_with(Disk, master.address, tmp_path / "copy", stop)
        wait_for(lambda: f._now().queues_end == log.end)
        time.sleep(0.5)
        calls = [0]
        import rmqstore.replica.follower as fm

        orig = fm.decide

        def counted(s, e):
            calls[0] += 1
            return orig(s, e)

        fm.decide = counted
        time.sleep(2)
        print("decide calls in 2 s idle (poll 0.02):", calls[0])
        fds = []
        for n in range(25):
            before = f._now().n_connections
            master.cut_connections()
            wait_for(lambda: f._now().n_connections > before and f._now().is_connected)
            fds.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        print(fds[0], fds[5], fds[-1])
        fm.decide = orig
        stop.set()
        t.join(5)
    assert not errors


def test_once_stop_damage(tmp_path: Path) -> None:
    """acknowledge=synced while behind: how often does the loop wake"""
    log, stop = log_of(100), threading.Event()

    class Slow(FakeMaster):
        end_told = 1 << 30

        def _answer_to(self, code, fields):
            if code == 28:
                import json

                return 0, json.dumps(
                    {
                        "table": {
                            "commitLogMinOffset": "0",
                            "commitLogMaxOffset": str(1 << 30),
                            "brokerVersionDesc": self.version,
                        }
                    }
                ).encode()
            return super()._answer_to(code, fields)

    with Slow(log) as master:
        master.heartbeat = 5
        import rmqstore.replica.follower as fm

        orig, calls = fm.decide, [0]

        def counted(s, e):
            calls[0] += 1
            return orig(s, e)

        fm.decide = counted
        f, t, errors = run_with(Disk, master.address, tmp_path / "copy", stop, acknowledge="synced")
        time.sleep(1.2)
        print("decide calls in 1.2 s", calls[0])
        fm.decide = orig
        stop.set()
        t.join(5)
