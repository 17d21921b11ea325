"""What is so on macOS only, or where it is simulated."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
import simulated
from rmqstore import platforms
from rmqstore.errors import UnsupportedFeatureError
from rmqstore.inspect.verify import verify

pytestmark = pytest.mark.skipif(simulated.SYSTEM != "darwin", reason="of macOS only")


def test_an_append_flushes_what_it_names_by_the_request_of_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = import_module("fcntl")  # which Windows does not have
    requests, real = [], fcntl.fcntl

    def noted(descriptor: int, request: int, *args: Any) -> Any:
        requests.append(request)
        return real(descriptor, request, *args)

    with rmqstore.create(tmp_path / "s") as writer:
        monkeypatch.setattr(fcntl, "fcntl", noted)
        writer.append(pa.table({"topic": ["T"] * 3, "body": [b"x", b"y", b"z"]}))
        assert requests.count(fcntl.F_FULLFSYNC) >= 2
    with rmqstore.open(tmp_path / "s", mode="a") as writer:
        writer.append(pa.table({"topic": ["T"], "body": [bytes(3 << 20)]}))
    with rmqstore.open(tmp_path / "s") as store:
        assert store.count() == 4
        assert not list(verify(store))


def test_a_live_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="a live copy needs Linux, and this is macOS"):
        rmqstore.follow("127.0.0.1:1", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_holes_are_not_asked_for(tmp_path: Path) -> None:
    """APFS names holes where bytes are that it has not put on the disk yet."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        with pytest.raises(OSError, match="not supported"):
            platforms.next_data(file.fileno(), 0)
