import json
import threading
import time

from following.fake_master import FakeMaster
from following.test_failing_disk import log_of
from following.test_rev import run_with
from rmqstore.storage.files.disk import Disk


def test_spin(tmp_path):
    log, stop = log_of(100), threading.Event()

    class Slow(FakeMaster):
        def _answer_to(self, code, fields):
            if code == 28:
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
        for mode in ("synced", "never"):
            c = time.process_time()
            f, t, errors = run_with(Disk, master.address, tmp_path / mode, stop, acknowledge=mode)
            time.sleep(0.9)
            print(mode, "cpu in 0.9 s", round(time.process_time() - c, 2))
            stop.set()
            t.join(5)
            stop.clear()
