"""One index file, however many keys are put together and however its slots are read and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqstore.storage import index_appender as file_appender
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_appender import IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import IndexSizes

SIZES = IndexSizes(n_slots=50, n_items=400)


def built(path: Path, at_once: int) -> bytes:
    dice = np.random.default_rng(7)
    hashes = dice.integers(0, 1 << 31, 300).astype(np.int32)
    keys = IndexKeys(hashes, np.arange(300) * 100, np.arange(300) * 1000 + 1_700_000_000_000)
    disk = Disk()
    file = IndexFileAppender.create(disk, path, SIZES, None)
    for start in range(0, 300, at_once):
        file.put(keys.take(slice(start, start + at_once)))
    file.commit()
    file = IndexFileAppender(disk, path, SIZES)  # goes on with what is in the file
    file.put(keys.take(slice(0, 20)))
    file.commit()
    disk.close()
    return path.read_bytes()


@pytest.mark.parametrize("at_once", [1, 37, 300])
@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("one_by_one", [0, 1000])
@pytest.mark.parametrize("slots_at_once", [7, 50, 1000])
def test_all_ways_give_the_same_file(
    at_once: int,
    few: int,
    one_by_one: int,
    slots_at_once: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = built(tmp_path / "20260101000000000", 300)
    monkeypatch.setattr(file_appender, "_FEW_KEYS", few)
    monkeypatch.setattr(file_appender, "_SLOTS_ONE_BY_ONE", one_by_one)
    monkeypatch.setattr(file_appender, "_SLOTS_AT_ONCE", slots_at_once)
    assert built(tmp_path / "20260101000000001", at_once) == expected
