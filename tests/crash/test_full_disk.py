"""The disk is full or read-only: nothing is appended, or what was committed is completed later.

Either way the error says so clearly.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import missing
import tiers
from crash.test_append import by_log, messages, rows
from goldens import Golden
from rmqstore.errors import CommitError, StoreStateError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.write.writer import StoreWriter
from written import files_of

DATA = ("commitlog", "consumequeue", "index")
pytestmark = pytest.mark.crash

N = 120


class FullDisk(Disk):
    """Refuses write number ``at`` after it is armed; with ``stays`` also every later write."""

    def __init__(self, *, stays: bool = False) -> None:
        super().__init__()
        self.at: int | None = None
        self.n_writes = 0
        self._stays = stays

    def write(self, path: Path, position: int, data: Any) -> None:
        self.n_writes += 1
        if self.at is not None and (
            self.n_writes == self.at or (self._stays and self.n_writes > self.at)
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, position, data)


def append_with(root: Path, disk: FullDisk, at: int) -> None:
    with StoreWriter(find_store(root), StoreConfig(), disk) as writer:
        disk.n_writes, disk.at = 0, at
        append_and_flush(writer)


def append_and_flush(writer: StoreWriter) -> None:
    writer.append(messages(N))
    writer.flush()


@pytest.mark.parametrize("at", tiers.split([1, 4, 10, 19, 31, 7, 13, 16, 22, 25, 28, 34, 37], 5))
def test_a_full_disk_leaves_nothing_or_is_completed_later(copied: Golden, at: int) -> None:
    root = copied("edges")
    before, before_rows = files_of(root, *DATA), by_log(root)
    disk = FullDisk()
    with pytest.raises((StoreStateError, OSError)) as caught:
        append_with(root, disk, at)
    if isinstance(caught.value, CommitError):
        assert len(by_log(root)) == len(before_rows) + N
        StoreWriter(find_store(root), StoreConfig()).close()
        assert rows(root) == by_log(root)
    else:
        assert "full" in str(caught.value) or "space" in str(caught.value)
        assert files_of(root, *DATA) == before
    with StoreWriter(find_store(root), StoreConfig()) as writer:
        writer.append(messages(5))
    assert rows(root) == by_log(root)


@pytest.mark.parametrize("at", [1, 2, 6, 9, 15])
def test_a_disk_that_stays_full_leaves_nothing_half_committed(copied: Golden, at: int) -> None:
    root = copied("edges")
    before, before_rows = files_of(root, *DATA), by_log(root)
    disk = FullDisk(stays=True)
    writer = StoreWriter(find_store(root), StoreConfig(), disk)
    disk.n_writes, disk.at = 0, at
    with pytest.raises((StoreStateError, CommitError)) as caught:
        append_and_flush(writer)
    is_committed = isinstance(caught.value, CommitError)
    if is_committed:
        for action in (lambda: writer.append(messages(1)), writer.flush):
            with pytest.raises(StoreStateError, match="open the store again"):
                action()
    writer.close()
    assert is_committed or files_of(root, *DATA) == before
    StoreWriter(find_store(root), StoreConfig()).close()
    assert len(by_log(root)) == len(before_rows) + N * is_committed
    assert rows(root) == by_log(root)


@pytest.mark.parametrize("at", [1, 2])
def test_a_disk_that_is_full_when_a_store_is_opened_is_named(
    golden_store: Golden, copied: Golden, at: int
) -> None:
    root, disk = copied("edges"), FullDisk()
    disk.at = at
    with pytest.raises(StoreStateError, match="the disk is full; the store could not be opened"):
        StoreWriter(find_store(root), StoreConfig(), disk)
    StoreWriter(find_store(root), StoreConfig()).close()
    assert rows(root) == by_log(root) == by_log(golden_store("edges"))


@pytest.mark.parametrize("at", tiers.split([4, 28, 64, 16, 40, 52, 76, 88], 3))
def test_a_disk_that_gets_full_during_a_rebuild_is_named(
    golden_store: Golden, copied: Golden, at: int
) -> None:
    root, disk = copied("edges"), FullDisk()
    writer = StoreWriter(find_store(root), StoreConfig(), disk)
    disk.n_writes, disk.at = 0, at
    with pytest.raises(
        StoreStateError, match="the disk is full; the next writer that opens the store completes"
    ):
        writer.rebuild()
    writer.close()
    StoreWriter(find_store(root), StoreConfig()).close()
    assert rows(root) == by_log(root) == by_log(golden_store("edges"))


class WatchedDisk(Disk):
    """Refuses to write through a mapping where no blocks are reserved: a full disk kills there."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[Path, set[int]] = {}
        self.n_checked = 0

    def reserve(self, path: Path, position: int, size: int) -> None:
        super().reserve(path, position, size)
        self.taken.setdefault(path, set()).update(range(position, position + size))

    def scatter(self, path: Path, positions: Any, values: Any) -> None:
        if path.parent.name == "commitlog":
            at = {int(first) + byte for first in positions for byte in range(values.dtype.itemsize)}
            assert at <= self.taken[path], "a place that was never reserved"
            self.n_checked += len(at)
        super().scatter(path, positions, values)


def test_place_is_taken_before_it_is_written_to_through_a_mapping(copied: Golden) -> None:
    root, disk = copied("edges"), WatchedDisk()
    with StoreWriter(find_store(root), StoreConfig(), disk) as writer:
        for _ in range(9):  # over the ends of files, so with blanks
            writer.append(messages(N))
            writer.flush()
    assert disk.n_checked


# Runs in a process of its own: on a file system of its own, or as somebody else.
APPEND = """
import os, sys
from pathlib import Path
import pyarrow as pa
import rmqstore
import rmqstore.store.opening  # while root may still read where Python lies
if os.geteuid() == 0 and sys.argv[3:]:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root may write anywhere
root, n = Path(sys.argv[1]), int(sys.argv[2])
batch = pa.RecordBatch.from_pydict({"topic": ["TopicA"] * n, "body": [b"x" * 1000] * n})
try:
    with rmqstore.open(root, mode="a") as writer:
        writer.append(batch)
except rmqstore.RmqStoreError as err:
    print(f"{type(err).__name__}: {err}")
"""


def _run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


def _run_with_mounts(script: str) -> subprocess.CompletedProcess[str]:
    done = _run("unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        what, why = "a file system of the test's own", "unshare must be allowed to mount one"
        missing.skip(what, f"{why}: {done.stderr}", may_lack=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_file_system_that_is_full_leaves_the_store_as_it_was(
    golden_store: Golden, tmp_path: Path
) -> None:
    """A small tmpfs, in a mount namespace of its own."""
    mount = tmp_path / "small"
    mount.mkdir()
    script = f"""
set -e
mount -t tmpfs -o size=4m tmpfs {mount}
cp -r {golden_store("basic")} {mount}/s
{sys.executable} -c '{APPEND}' {mount}/s 5000
cp -r {mount}/s {tmp_path}/after
"""
    done = _run_with_mounts(script)
    assert done.stdout.startswith("StoreStateError"), done.stdout
    assert "CREATE_MAPPED_FILE_FAILED" in done.stdout
    assert files_of(tmp_path / "after", *DATA) == files_of(golden_store("basic"), *DATA)
    assert rows(tmp_path / "after") == rows(golden_store("basic"))


SMALL_DISKS = range(0, 4400, 200)  # KiB that the copied store leaves free
# Says of each attempt how it ended, then how many messages are read.
APPEND_OFTEN_AND_READ = """
import sys
import pyarrow as pa
import rmqstore
batch = pa.RecordBatch.from_pydict({"topic": ["TopicA"] * 100, "body": [b"x" * 1000] * 100})
for attempt in range(2):
    try:
        with rmqstore.open(sys.argv[1], mode="a") as writer:
            for _ in range(9):
                writer.append(batch)
                writer.flush()
        print("done")
    except rmqstore.RmqStoreError as err:
        print(f"{type(err).__name__}: {err}")
with rmqstore.open(sys.argv[1]) as store:
    assert not store.query("TopicA", "nothing").messages
    print(store.scan(columns="queueOffset").read_all().num_rows)
"""


@pytest.mark.parametrize("step", tiers.sampled(7, 1))
def test_no_size_of_a_small_disk_kills_a_process_that_uses_sparse_files(
    golden_store: Golden, tmp_path: Path, step: int
) -> None:
    """Reading a hole of a tmpfs through a mapping takes a page; SIGBUS kills if there is none."""
    mount, sparse = tmp_path / "small", golden_store("default-sizes")
    sizes = SMALL_DISKS[::-step][::-1]
    mount.mkdir()
    occupied = sum(path.stat().st_blocks // 2 for path in sparse.rglob("*"))
    script = f"""
set -e
for free in {" ".join(map(str, sizes))}; do
    mount -t tmpfs -o size=$((free + {occupied} + 64))k tmpfs {mount}
    cp -r --sparse=always {sparse} {mount}/s
    {sys.executable} -c '{APPEND_OFTEN_AND_READ}' {mount}/s
    umount {mount}
done
"""
    done = _run_with_mounts(script)
    lines = done.stdout.splitlines()
    counts = [int(line) - len(rows(sparse)) for line in lines if line.isdigit()]
    assert len(counts) == len(sizes)
    assert all(count % 100 == 0 for count in counts)
    assert counts[-1] == 1800, "the largest of these disks has room for all"
    ends = {line.partition(":")[0] for line in lines if not line.isdigit()}
    assert ends <= {"done", "StoreStateError", "CommitError"}
    assert any("CREATE_MAPPED_FILE_FAILED" in line for line in lines)


def test_a_folder_that_cannot_be_written_to_is_refused(golden_store: Golden) -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that others may enter
        Path(folder).chmod(0o755)
        root = Path(shutil.copytree(golden_store("basic"), Path(folder, "s")))
        (root / "lock").unlink(missing_ok=True)
        before = files_of(root, *DATA)
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = _run(sys.executable, "-c", APPEND, str(root), "5", "as nobody")
        assert done.stdout.startswith(f"StoreStateError: {root} cannot be written to"), (
            done.stdout,
            done.stderr,
        )
        assert files_of(root, *DATA) == before
        for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
            path.chmod(0o755)
