from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from following.fake_master import FakeMaster, more
from following.followers import TIMING, wait_for
from following.test_failing_disk import log_of
from following.test_rev import run_with
from rmqstore.storage.files.disk import Disk


def test_stall(tmp_path: Path, caplog) -> None:
    log, stop = log_of(50), threading.Event()
    slow = [0.0]

    class Slow(Disk):
        def flush(self, path):
            if path.parent.name == "commitlog":
                time.sleep(slow[0])
            super().flush(path)

    with FakeMaster(log) as master:
        f, t, errors = run_with(
            Slow, master.address, tmp_path / "copy", stop, timing=replace(TIMING, stall=0.3)
        )
        wait_for(lambda: f._now().end == log.end)
        slow[0] = 1.0
        n = f._now().n_connections
        reports = len(master.reports[-1])
        more(log, 5)
        time.sleep(0.9)
        print("reports during a flush of 1 s:", len(master.reports[-1]) - reports)
        time.sleep(0.8)
        print(
            "connections", n, f._now().n_connections, [r.getMessage()[-60:] for r in caplog.records]
        )
        slow[0] = 0
        stop.set()
        t.join(5)
