"""One index file, however many keys are put together and however its slots are read and written."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from rmqstore.storage import index_appender as file_appender
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_appender import IndexAppender, IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import IndexFile, IndexSizes, index_files, read_header

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


def keys_at(*places: int) -> IndexKeys:
    """Return keys of records, which were stored in the second that their place says."""
    offsets = np.array(places, np.int64)
    hashes = np.arange(len(places), dtype=np.int32) + 3
    return IndexKeys(hashes, offsets, offsets * 1000 + 1_700_000_000_000)


def stored_items(folder: Path, sizes: IndexSizes) -> list[list[tuple[int, int]]]:
    """Return physical offset and seconds of the items of each file."""
    found = []
    for path in index_files(folder):
        data = path.read_bytes()[40 + sizes.n_slots * 4 + 20 :]
        count = IndexFile(path, sizes).n_items
        items = [struct.unpack_from(">iqii", data, 20 * number) for number in range(count)]
        found.append([(place, seconds) for _, place, seconds, _ in items])
    return found


def test_the_first_key_of_a_file_counts_from_the_last_one_of_the_file_before(
    tmp_path: Path,
) -> None:
    """Source: IndexService.java#getAndCreateLastIndexFile; IndexFile.java#putKey."""
    sizes, disk = IndexSizes(n_slots=5, n_items=4), Disk()
    index = IndexAppender(disk, tmp_path, sizes)
    index.add(keys_at(10, 15, 30, 37, 50))
    index.flush()
    disk.close()
    assert stored_items(tmp_path, sizes) == [[(10, 0), (15, 5), (30, 20)], [(37, 7), (50, 13)]]
    begins = [read_header(path)["begin_timestamp"] for path in index_files(tmp_path)]
    assert begins == [1_700_000_010_000, 1_700_000_037_000]


@pytest.mark.parametrize("n_there", [1, 2, 3])
def test_keys_that_the_last_record_of_an_index_lacks_are_added(
    tmp_path: Path, n_there: int
) -> None:
    """A crash may come between two keys of one record."""
    sizes, disk = IndexSizes(n_slots=5, n_items=3), Disk()
    keys = keys_at(10, 20, 20, 20, 30)
    index = IndexAppender(disk, tmp_path, sizes)
    index.add(keys.take(slice(0, 1 + n_there)))
    index.flush()
    index = IndexAppender(disk, tmp_path, sizes)
    index.add(keys)
    index.flush()
    disk.close()
    places = [place for items in stored_items(tmp_path, sizes) for place, _ in items]
    assert places == [10, 20, 20, 20, 30]
