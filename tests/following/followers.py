"""Followers for tests, with short pauses, and what a copy has to be afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import rmqstore
from following.fake_master import FakeMaster, content
from rmqstore.errors import RmqStoreError
from rmqstore.inspect.verify import verify
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.follower import Follower
from rmqstore.replica.settings import FollowSettings, Timing
from rmqstore.replica.state import FollowProgress, copy_paths
from rmqstore.storage.broker.epochs import Epoch, read_epochs
from rmqstore.storage.files.disk import Disk
from store_builder import Store

TIMING = Timing(
    pause=0.05, report=0.1, first_header=1.0, silence=1.0, stall=10.0, poll=0.02, bounds=0.2,
    tables=0.1, last_answer=0.5, retention=0.05,
)  # fmt: skip


class SlowStates(Disk):
    def replace(self, path: Path, text: bytes) -> None:
        time.sleep(0.2)
        super().replace(path, text)


class DyingDisk(Disk):
    """A disk of a process that is killed after it has deleted a file below a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder, self.is_dead = folder, False

    def delete(self, path: Path) -> None:
        self._require_alive()
        super().delete(path)
        self.is_dead |= self._folder in path.parts

    def replace(self, path: Path, text: bytes) -> None:
        self._require_alive()
        super().replace(path, text)

    def write(self, path: Path, position: int, data: Any) -> None:
        self._require_alive()
        super().write(path, position, data)

    def _require_alive(self) -> None:
        if self.is_dead:
            raise KeyboardInterrupt


def follower(
    address: str,
    target: Path,
    stop: threading.Event | None = None,
    make_disk: Callable[[], Disk] = Disk,
    **settings: Any,
) -> Follower:
    given = FollowSettings(**{"timing": TIMING, **settings})
    endpoint = Endpoint(Address.parse(address), timeout=5.0)
    return Follower(endpoint, target, given, stop or threading.Event(), make_disk=make_disk)


def follow_once(master: FakeMaster, target: Path, **settings: Any) -> FollowProgress:
    """Copy the log up to the end that it has now."""
    return follower(master.address, target, once=True, **settings).run()


def copied(log: Store, target: Path, **settings: Any) -> FollowProgress:
    with FakeMaster(log) as master:
        return follow_once(master, target, **settings)


class Following:
    """A follower in a thread; a context manager, which stops it at the end."""

    def __init__(self, address: str, target: Path, **settings: Any) -> None:
        self.stop = threading.Event()
        self.follower = follower(address, target, self.stop, **settings)
        self.start(self.follower.run)

    def start(self, run: Callable[[], object]) -> None:
        self.error: BaseException | None = None

        def keep_error() -> None:
            try:
                run()
            except BaseException as err:  # noqa: BLE001 - raised in the test
                self.error = err

        self._thread = threading.Thread(target=keep_error)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.stop.set()
        self.wait()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def copying(log: Store, target: Path, **settings: Any) -> Iterator[tuple[FakeMaster, Following]]:
    with FakeMaster(log) as master, Following(master.address, target, **settings) as run:
        yield master, run


def wait_for(is_so: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def files(target: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((target / "commitlog").iterdir())}


def mangler(
    dice: random.Random, ways_of: Callable[[random.Random, bytes], list[bytes]]
) -> Callable[[bytes], bytes]:
    """Return what cuts, doubles or changes a frame now and then; ``ways_of`` it are of a kind."""

    def mangle(frame: bytes) -> bytes:
        if dice.random() < 0.8:
            return frame
        cut, late = frame[: dice.randrange(len(frame))], dice.randbytes(dice.randrange(40)) + frame
        return dice.choice([cut, frame * 2, late, *ways_of(dice, frame)])

    return mangle


def require_survival(master: FakeMaster, target: Path) -> None:
    """Follow a master that mangles what it sends: the copy may be late, and has no wrong bytes."""
    end = master.log.end
    run = Following(master.address, target, sync_seconds=0.05)
    with suppress(AssertionError):
        wait_for(lambda: run.follower.progress().end == end or run.error is not None, 2)
    with suppress(RmqStoreError):
        run.end()
    for name, data in files(target).items() if (target / "commitlog").exists() else ():
        assert len(data) == master.log.segment_bytes
        assert content(master.log)[name].startswith(data.rstrip(b"\0"))


def epochs_of(target: Path) -> list[Epoch]:
    return read_epochs(copy_paths(target))


def require_exact(target: Path, log: Store, begin: int = 0) -> None:
    """Require a closed store that has the log, and all that follows from it."""
    assert not (target / "abort").exists()
    expected = {name: data for name, data in content(log).items() if int(name) >= begin}
    assert files(target) == expected
    with rmqstore.open(target) as store:
        assert list(verify(store)) == []
        offsets = store.scan(columns="commitLogOffset").read_all().column(0).to_pylist()
    assert sorted(offsets) == [
        at.physical_offset for at in log.placed if at.physical_offset >= begin
    ]
