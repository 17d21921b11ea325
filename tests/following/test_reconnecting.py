"""Connections that fail or have to be slow: what is told, and how fast bytes are taken."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from following.fake_master import FakeMaster, more
from following.followers import following, wait_for
from following.replicas import decide, streaming
from rmqstore.replica.events import Ticked
from store_builder import Store


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_broker_that_is_down_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{closed_port()}"
    with caplog.at_level(logging.DEBUG), following(address, tmp_path / "copy") as run:
        wait_for(lambda: bool(warnings(caplog)))
        run.stop.wait(0.5)
    (told,) = warnings(caplog)
    assert address in told


def test_a_port_for_replicas_that_cannot_be_reached_is_told_once_and_again_after_a_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Store(segment_bytes=1 << 14)
    more(log, 20)
    with FakeMaster(log) as master:
        good = master.settings["haListenPort"]
        master.settings["haListenPort"] = str(closed_port())
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
