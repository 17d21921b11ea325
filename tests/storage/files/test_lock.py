"""The lock of a store: who holds it, and who releases it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
