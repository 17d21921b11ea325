"""How appends are hidden until their commit: what may be said of them, and what is left of them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from rmqstore.errors import StoreStateError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files import disk as disk_module, scratch
from rmqstore.storage.files.disk import Disk
from rmqstore.write.writer import StoreWriter
from written import stage

SIZES = StoreConfig().updated({"mappedFileSizeCommitLog": 65536})


def rows(n: int, size: int = 200) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": ["T"] * n, "body": [b"x" * size] * n})


def n_rows(root: Path) -> int:
    with rmqstore.open(root) as store:
        by_log = store.scan(columns="body", scan="commitlog").read_all().num_rows
        assert store.scan(columns="body").read_all().num_rows == by_log
    return by_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store with five messages."""
    with rmqstore.create(tmp_path / "s", config=SIZES) as writer:
        writer.append(rows(5))
    return tmp_path / "s"


def test_an_append_may_follow_a_staged_one_into_the_next_segment(root: Path) -> None:
    with StoreWriter(find_store(root), SIZES) as writer:
        writer.append_staged(stage(root, rows(10)))
        writer.append(rows(400))
        assert n_rows(root) == 5
        writer.append_staged(stage(root, rows(20), first=1))
    assert n_rows(root) == 435


def test_more_than_all_is_refused_and_nothing_is_kept(root: Path) -> None:
    with StoreWriter(find_store(root), SIZES) as writer:
        writer.append_staged(stage(root, rows(10)), are_all=True)
        with pytest.raises(StoreStateError, match="more than it said"):
            writer.append(rows(1))
        writer.append(rows(3))
    assert n_rows(root) == 8


def test_several_jobs_of_one_writer_hide_each_for_itself(root: Path) -> None:
    with StoreWriter(find_store(root), SIZES) as writer:
        for n in (10, 20, 30):
            writer.append_staged(stage(root, rows(n)), are_all=True)
            writer.flush()
    assert n_rows(root) == 65


def test_a_log_that_ends_in_our_blank_is_read_up_to_it(root: Path) -> None:
    """A read that was planned while an append is hidden stays right after its commit."""
    with StoreWriter(find_store(root), SIZES) as writer:
        writer.append_staged(stage(root, rows(50)), are_all=True)
        with rmqstore.open(root) as store:
            planned = store.parts.ends.log_slice()
            writer.flush()
            assert store.parts.ends.log_slice() == planned
            assert store.scan(columns="body", scan="commitlog").read_all().num_rows == 5
    assert n_rows(root) == 55


@pytest.mark.parametrize("can_be_replaced", [True, False])  # a mount point cannot
def test_the_first_log_keeps_the_mode_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_replaced: bool
) -> None:
    root = tmp_path / "s"
    rmqstore.create(root, config=SIZES).close()
    (root / "commitlog").chmod(0o2770)
    if not can_be_replaced:
        monkeypatch.setattr(scratch.Path, "rename", refuse)
    before = (root / "commitlog").stat()
    with StoreWriter(find_store(root), SIZES) as writer:
        writer.append(rows(400))
    after = (root / "commitlog").stat()
    assert after.st_mode == before.st_mode
    assert can_be_replaced or after.st_ino == before.st_ino
    assert n_rows(root) == 400


def refuse(*_: Any) -> None:
    raise OSError(16, "Device or resource busy")


def test_an_interrupted_wait_leaves_no_writing_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, goes_on = tmp_path / "file", threading.Event()
    path.write_bytes(bytes(8192))
    write = disk_module.write_all

    def slow(*arguments: Any) -> None:
        goes_on.wait(10)
        write(*arguments)

    monkeypatch.setattr(disk_module, "write_all", slow)
    disk = Disk()
    disk.write_large(path, 0, np.ones(4096, np.uint8))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            disk.flush_all([path])
    threading.Timer(0.2, goes_on.set).start()
    disk.forget_large_write()
    assert path.read_bytes()[:4096] == b"\1" * 4096, "the thread has ended its write"
    disk.close()
