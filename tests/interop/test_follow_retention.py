"""A real store deletes files while it is followed, and cuts off followers that hang."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

import rmqstore
from interop.rocketmq import RocketMQ
from interop.test_follow import Process, end_of, wait_for
from interop.test_follow_versions import FILE_BYTES, Load, serving
from rmqstore.errors import StoreStateError
from written import require_valid

HOUSEKEEPING_SECONDS = 4


@pytest.mark.interop
def test_files_that_the_master_deletes_stay_and_a_hung_follower_goes_on(
    rocketmq_55: RocketMQ, tmp_path: Path
) -> None:
    root, target, log = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    dice = random.Random(1)
    settings = {"haHousekeepingInterval": HOUSEKEEPING_SECONDS * 1000}
    with serving(rocketmq_55, root, **settings) as (port, store):
        written: dict[str, bytes] = {}

        def note() -> int:
            """Note the bytes of the log, before files are deleted; return where it ends."""
            for path in (root / "commitlog").iterdir():
                written[path.name] = path.read_bytes()
            return int(store.store.getMaxPhyOffset())

        def connections() -> int:
            return int(store.store.getHaService().getConnectionCount())

        with Process(port.address, target, log) as follower:
            with Load(store, dice):
                wait_for(lambda: end_of(target) > 5 * FILE_BYTES)
            end = note()
            wait_for(lambda: end_of(target) == end)
            assert store.expire(3) == 3  # ahead of nobody
            follower.signal(signal.SIGSTOP)
            with Load(store, dice):
                wait_for(lambda: not connections(), 6 * HOUSEKEEPING_SECONDS)
                time.sleep(1)
            follower.signal(signal.SIGCONT)
            end = note()
            wait_for(lambda: end_of(target) == end)
            follower.stop()

            with Load(store, dice):
                wait_for(lambda: int(store.store.getMaxPhyOffset()) > end + 5 * FILE_BYTES)
            while int(store.store.getMinPhyOffset()) <= end:
                assert store.expire(1) == 1  # ahead of the follower
            with pytest.raises(StoreStateError, match=f"ends at {end}, and the broker has nothing"):
                rmqstore.follow(port.address, target, once=True)
    copied = b"".join(path.read_bytes() for path in sorted((target / "commitlog").iterdir()))
    assert copied[:end] == b"".join(written[name] for name in sorted(written))[:end]
    assert not copied[end:].strip(b"\0")
    state = json.loads((target / ".rmqstore" / "follow.json").read_bytes())
    assert (state["begin"], state["end"], state["n_cuts"]) == (0, end, 0)
    require_valid(target)
