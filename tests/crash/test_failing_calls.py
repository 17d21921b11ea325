"""Any system call of a job may fail: its error is clear, all of its rows are there or none.

The job stages rows in three tasks and commits them with a version. After a failure the store opens
and is valid, and the same job again makes its rows complete, each once.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
import tiers
from crash.test_append import all_or_none, by_log, messages, rows
from goldens import Golden
from pyspark_rmqstore.sink import begin, job_folder, sweep
from rmqstore.errors import CommitError, RmqStoreError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter
from rmqstore.write.writer import StoreWriter
from written import require_valid

pytestmark = pytest.mark.crash

N, N_TASKS = 30, 3
# Calls that take blocks of the disk, and all that change or read what a job writes.
_OF_FULL_DISK = ("ftruncate", "link", "mkdir", "posix_fallocate", "pwrite", "pwritev")
_OF_BROKEN_DISK = (*_OF_FULL_DISK, "close", "fsync", "preadv", "rename", "replace", "unlink")
CALLS = {errno.ENOSPC: _OF_FULL_DISK, errno.EIO: _OF_BROKEN_DISK}
NAMES = {errno.ENOSPC: ("disk is full", "No space left"), errno.EIO: ("Input/output error",)}


class Calls:
    """Counts the calls of a job."""

    names: tuple[str, ...] = _OF_BROKEN_DISK

    def __init__(self) -> None:
        self.done: list[str] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put this between Python and the system calls."""
        for name in self.names:
            patch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            if name == "close" and not _is_written(args[0]):
                return call(*args, **options)
            self.done.append(f"{name} {_path(args[0])}")
            if not self.fails(len(self.done) - 1):
                return call(*args, **options)
            if name == "close":  # it closes the descriptor even if it fails
                call(*args, **options)
            raise self.error()

        return counting

    def fails(self, number: int) -> bool:
        del number
        return False

    def error(self) -> OSError:
        raise NotImplementedError


class FailingCalls(Calls):
    """Lets call number ``at`` of some calls fail; with ``stays`` all later ones, too."""

    def __init__(self, code: int, at: int | None = None, *, stays: bool = False) -> None:
        super().__init__()
        self.names = CALLS[code]
        self._code, self._at, self._stays = code, at, stays

    def fails(self, number: int) -> bool:
        if self._at is None:
            return False
        return number >= self._at if self._stays else number == self._at

    def error(self) -> OSError:
        return OSError(self._code, os.strerror(self._code))


def _is_written(descriptor: int) -> bool:
    import fcntl  # which a simulated Windows does not have; others take the class Calls from here

    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _path(target: Any) -> str:
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115 - as the job uses os
    return str(target)


def large_rows() -> pa.RecordBatch:
    """Return rows of which each task has more than goes through the page cache."""
    bodies = [b"%d " % number * 50_000 for number in range(N)]
    return pa.record_batch({"topic": ["TopicA"] * N, "body": bodies, "keys": ["k"] * N})


def run_job(root: Path, batch: pa.RecordBatch) -> None:
    """Do what the tasks and the driver of a job do."""
    parts = []
    try:
        begin(str(root), "job")
        for task in range(N_TASKS):
            columns = MessageMaker(WriteSpec(), task).make(batch.slice(task * 10, 10))
            with PartWriter(Disk(), job_folder(str(root), "job") / f"part-{task}", 1 << 30) as file:
                file.write(columns)
                parts.append(file.part())
        with StoreWriter(find_store(root), StoreConfig()) as writer:
            if writer.done_version("app") is None:
                writer.append_staged(parts)
                writer.flush(txn=("app", 1))
    finally:
        sweep(str(root), "job")


def fail_at(root: Path, batch: pa.RecordBatch, code: int, at: int, *, stays: bool) -> str:
    """Run the job, of which a call fails; return how it ended, checking what it says."""
    calls = FailingCalls(code, at, stays=stays)
    before = by_log(root)
    ended = "done"
    with pytest.MonkeyPatch.context() as patch:
        calls.install(patch)
        try:
            run_job(root, batch)
        except RmqStoreError as err:
            ended, text = type(err).__name__, str(err)
    where = f"call {at}, {calls.done[at]}: {ended}"
    if ended != "done":
        assert str(root) in text, f"{where}: {text}"
        assert any(name in text for name in NAMES[code]), f"{where}: {text}"
    n_new = len(all_or_none(root, before, N, where)) - len(before)
    assert bool(n_new) == (ended in ("done", CommitError.__name__)), where
    return ended


FEW, EVERY = 4, 10_000


@pytest.fixture(scope="module")
def bases(golden_store: Golden, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a store of a broker with small files, and one of ours with those of usual size."""
    usual = tmp_path_factory.mktemp("base") / "s"
    with rmqstore.create(usual) as writer:
        writer.append(messages(5))
    return {"small": golden_store("one"), "large": usual}


@pytest.mark.parametrize("at_most", tiers.sampled(FEW, EVERY))
@pytest.mark.parametrize("stays", [False, True], ids=["once", "stays"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_job_of_which_any_call_fails_writes_all_rows_or_none(
    bases: dict[str, Path], tmp_path: Path, size: str, code: int, at_most: int, *, stays: bool
) -> None:
    base, batch = bases[size], messages(N) if size == "small" else large_rows()
    before, calls = len(by_log(base)), FailingCalls(code)
    counted = copy(base, tmp_path / "count")
    with pytest.MonkeyPatch.context() as patch:
        calls.install(patch)
        run_job(counted, batch)
    n_calls, ends = len(calls.done), set()
    for at in sorted(random.Random(code).sample(range(n_calls), min(n_calls, at_most))):
        root = copy(base, tmp_path / f"{at}")
        ended = fail_at(root, batch, code, at, stays=stays)
        ends.add(ended)
        where = f"call {at}, {calls.done[at]}: {ended}"
        StoreWriter(find_store(root), StoreConfig()).close()
        require_valid(root, where)
        run_job(root, batch)
        assert len(by_log(root)) == len(rows(root)) == before + N, where
        require_valid(root, where)
        assert not (root / ".rmqstore" / "staging").exists(), where
        shutil.rmtree(root)
    if at_most == EVERY:
        assert ends >= {"done", "StoreStateError", "CommitError"}


def copy(base: Path, root: Path) -> Path:
    """Copy a store, whose files stay sparse."""
    subprocess.run(["cp", "-r", "--sparse=always", base, root], check=True)
    return root
