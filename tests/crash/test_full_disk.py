"""The disk is full at some write: nothing is appended, or what was committed is completed later; each said clearly."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.test_append import by_log, messages, rows
from rmqstore.config import StoreConfig
from rmqstore.errors import CommitError, StoreStateError
from rmqstore.files.disk import Disk
from rmqstore.files.paths import find_store
from rmqstore.writer import StoreWriter

pytestmark = pytest.mark.crash

N = 120


class FullDisk(Disk):
    """Refuses write number ``at``, counted from when it is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.at: int | None = None
        self.n_writes = 0

    def write(self, path: Path, position: int, data: Any) -> None:
        self.n_writes += 1
        if self.at is not None and self.n_writes == self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, position, data)


def data_state(root: Path) -> dict[str, bytes]:
    found = (path for folder in ("commitlog", "consumequeue", "index") for path in (root / folder).rglob("*"))
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def append_with(root: Path, disk: FullDisk, at: int) -> None:
    with StoreWriter(find_store(root), StoreConfig(), disk) as writer:
        disk.n_writes, disk.at = 0, at
        writer.append(messages(N))
        writer.flush()


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_full_disk_leaves_nothing_or_is_completed_later(
    golden_store: Callable[[str], Path], tmp_path: Path, at: int
) -> None:
    root = Path(shutil.copytree(golden_store("edges"), tmp_path / "s"))
    before, before_rows = data_state(root), by_log(root)
    disk = FullDisk()
    with pytest.raises((StoreStateError, OSError)) as caught:
        append_with(root, disk, at)
    if isinstance(caught.value, CommitError):
        assert len(by_log(root)) == len(before_rows) + N
        StoreWriter(find_store(root), StoreConfig()).close()
        assert rows(root) == by_log(root)
    else:
        assert "full" in str(caught.value) or "space" in str(caught.value)
        assert data_state(root) == before
    with StoreWriter(find_store(root), StoreConfig()) as writer:
        writer.append(messages(5))
    assert rows(root) == by_log(root)
