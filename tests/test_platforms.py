"""The slower ways of systems other than Linux, and a sample of the tests where these are simulated.

``simulated.py`` says what a simulation shows. ``make test-platforms`` runs all fast tests in it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import simulated
from rmqstore import platforms
from rmqstore.storage.files.disk import Disk

TESTS = Path(__file__).parent
# Reads, look-ups, checks, appends, running brokers and the command line: 13 s of CPU time.
SAMPLE = (
    "systems", "storage/files/test_lock.py", "storage/files/test_local.py", "live/test_writer.py",
    "cli/test_get.py", "inspect/test_verify.py", "test_store.py",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o644)
    yield descriptor
    os.close(descriptor)


def test_each_system_has_the_lock_of_its_own_headers() -> None:
    """Source: bits/fcntl.h of glibc; sys/fcntl.h of XNU, where the type follows the process."""
    linux, macos = platforms._LINUX_FLOCK, platforms._MACOS_FLOCK
    assert linux.layout.pack(*linux.first_byte) == struct.pack("=hhiqqii", 0, 0, 0, 0, 1, 0, 0)
    assert macos.layout.pack(*macos.first_byte) == struct.pack("=qqihh", 0, 1, 0, 0, 0)
    assert linux.layout.unpack(struct.pack("=hhiqqii", 7, 0, 0, 0, 0, 0, 0))[linux.type_at] == 7
    assert macos.layout.unpack(struct.pack("=qqihh", 0, 0, 0, 7, 0))[macos.type_at] == 7


@pytest.mark.parametrize(
    ("position", "size"),
    [(0, 1), (0, 10_000), (4096, 4096), (5000, 3_000_000), (1_048_000, 2_000), (2_999_999, 70_000)],
)
def test_space_is_reserved_by_zeros_that_overwrite_nothing(
    file: int, monkeypatch: pytest.MonkeyPatch, position: int, size: int
) -> None:
    monkeypatch.setattr(platforms, "_CAN_RESERVE", False)
    os.ftruncate(file, 3_000_000)
    for at in (0, 8191, 12_288, 1_048_575, 1_048_576, 2_999_999):
        os.pwrite(file, b"x", at)
    before = os.pread(file, 3_000_000, 0)
    platforms.reserve(file, position, size)
    end = max(3_000_000, position + size)
    assert os.pread(file, end + 1, 0) == before.ljust(end, b"\0")
    assert os.lseek(file, position, os.SEEK_HOLE) >= position + size


@pytest.mark.parametrize("has_pread", [True, False])
def test_bytes_at_a_position_are_read_without_preadv(
    file: int, monkeypatch: pytest.MonkeyPatch, *, has_pread: bool
) -> None:
    monkeypatch.setattr(platforms, "_HAS_PREADV", False)
    monkeypatch.setattr(platforms, "_HAS_PREAD", has_pread)
    content = np.arange(50_000, dtype=np.uint32).view(np.uint8)
    os.pwrite(file, content.data, 0)

    def has_own_bytes(position: int) -> bool:
        window = np.zeros(1000, np.uint8)
        count = platforms.read_at(file, window.data, position)
        return window[:count].tobytes() == content[position : position + 1000].tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(has_own_bytes, range(0, len(content), 777)))
    assert platforms.read_at(file, memoryview(bytearray(8)), len(content)) == 0


def test_macos_flushes_the_memory_of_a_disk_too(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def full(descriptor: int, request: int) -> None:
        asked.append((f"request {request}", descriptor))
        if failing:
            raise OSError(failing[0], os.strerror(failing[0]))

    failing: list[int] = []
    monkeypatch.setattr(platforms, "_FULL_FLUSH", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(("fsync", descriptor)))
    platforms.flush(file)
    assert asked == [("request 51", file)]
    failing.append(errno.ENOTSUP)  # a file system of a network
    platforms.flush(file)
    assert asked[1:] == [("request 51", file), ("fsync", file)]
    failing[:] = [errno.EIO]  # the disk lost something, and fsync might not say so
    with pytest.raises(OSError, match="Input/output error"):
        platforms.flush(file)
    assert len(asked) == 4


def test_a_write_that_cannot_be_waited_for_is_followed_by_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    monkeypatch.setattr(platforms, "_CAN_WRITE_THROUGH", False)
    monkeypatch.setattr(os, "fsync", flushed.append)
    disk = Disk()
    disk.create(tmp_path / "file", 16)
    disk.write_through(tmp_path / "file", 4, np.frombuffer(b"abcd", np.uint8))
    disk.close()
    assert (tmp_path / "file").read_bytes() == bytes(4) + b"abcd" + bytes(8)
    assert len(flushed) == 1


@pytest.mark.parametrize("name", [platforms.LINUX, platforms.MACOS])
def test_a_pipe_that_nobody_reads_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A descriptor that ``poll`` does not know is a terminal on macOS."""
    monkeypatch.setattr(platforms, "NAME", name)
    reader, writer = os.pipe()
    is_closed = platforms.watch_of_pipe(writer)
    assert not is_closed()
    os.close(reader)
    assert is_closed()
    os.close(writer)
    assert is_closed() == (name == platforms.LINUX)


def test_what_needs_linux_names_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms.require_linux("a live copy")
    monkeypatch.setattr(platforms, "NAME", "FreeBSD")
    with pytest.raises(platforms.UnsupportedFeatureError, match=r"a live copy needs Linux, .*BSD"):
        platforms.require_linux("a live copy")


@pytest.mark.medium  # each takes a process of its own
@pytest.mark.parametrize("system", sorted(simulated.NAMES))
def test_a_sample_of_the_tests_holds_on_another_system(system: str) -> None:
    if simulated.SIMULATED:
        pytest.skip("it is simulated already")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    chosen = "not medium and not thorough and not slow and not crash and not interop"
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [*command, "-m", chosen, *(str(TESTS / name) for name in SAMPLE)],
        env=environment | {"RMQSTORE_SIMULATE": system},
        cwd=TESTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50
