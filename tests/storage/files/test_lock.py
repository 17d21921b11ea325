"""The lock of a store: who holds it, and who releases it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.errors import StoreLockedError
from rmqstore.storage.files.lock import StoreLock, is_held


def test_a_lock_that_was_released_does_not_release_the_next_one(tmp_path: Path) -> None:
    first = StoreLock(tmp_path / "lock")
    first.release()
    second = StoreLock(tmp_path / "lock")
    first.release()
    with pytest.raises(StoreLockedError):
        StoreLock(tmp_path / "lock")
    assert is_held(tmp_path / "lock")
    second.release()
    assert not is_held(tmp_path / "lock")


def test_a_writer_that_is_closed_again_leaves_the_store_to_the_next_one(tmp_path: Path) -> None:
    first = rmqstore.create(tmp_path / "s")
    first.close()
    second = rmqstore.open(tmp_path / "s", mode="a")
    first.close()
    assert (tmp_path / "s" / "abort").exists()
    with pytest.raises(StoreLockedError):
        rmqstore.open(tmp_path / "s", mode="a")
    second.append(pa.table({"topic": ["T"], "body": [b"x"]}))
    second.close()
    with rmqstore.open(tmp_path / "s") as store:
        assert store.count() == 1
