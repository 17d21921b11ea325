"""Connections that fail or have to be slow: what is told, and how fast bytes are taken."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from following.fake_master import FakeMaster, log_of
from following.followers import following, wait_for
from following.replicas import decide, streaming
from ports import free_ports
from rmqstore.replica.events import Ticked


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_broker_that_is_down_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with caplog.at_level(logging.DEBUG), following(address, tmp_path / "copy") as run:
        wait_for(lambda: bool(warnings(caplog)))
        run.stop.wait(0.5)
    (told,) = warnings(caplog)
    assert address in told


def test_a_port_for_replicas_that_cannot_be_reached_is_told_once_and_again_after_a_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(20)
    with FakeMaster(log) as master:
        good = master.settings["haListenPort"]
        master.settings["haListenPort"] = str(free_ports(1)[0])
        with following(master.address, tmp_path / "copy") as run:
            wait_for(lambda: bool(warnings(caplog)))
            run.stop.wait(0.5)
            (told,) = warnings(caplog)
            assert "no connection" in told
            master.settings["haListenPort"] = good
            wait_for(lambda: run.follower.progress().end == log.end)
            master.cut_connections()
            wait_for(lambda: len(warnings(caplog)) == 2)


def test_a_rest_earns_one_second_of_bytes() -> None:
    def paused(max_rate: int | None, *came: tuple[int, float]) -> list[float]:
        """Return how long a replica does not read after each of some bytes, given the times."""
        state, pauses = streaming(max_rate=max_rate), []
        for count, now in came:
            state, _ = decide(state, now, Ticked(is_drained=True, n_bytes=count))
            pauses.append(max(state.link.rate_due - now, 0.0))
        return pauses

    came = [(500, 0.0), (500, 0.5), (500, 3600.0), (500, 3600.0), (500, 3600.0)]
    assert paused(1000, *came) == [0.5, 0.5, 0.0, 0.0, 0.5]
    assert paused(None, (1 << 30, 0.0)) == [0.0]
