"""Index files: keys are put in, however many at once, and lengths tell how large they were made."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from rmqstore.errors import StoreStateError
from rmqstore.format.layout import INDEX_ITEM, INDEX_SLOT
from rmqstore.storage import index_appender as file_appender
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_appender import IndexAppender, IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import (
    IndexFile,
    IndexSizes,
    _slot_counts,
    find_sizes,
    index_files,
    read_header,
)

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


FEW, GUESS = IndexSizes(10, 18), IndexSizes(5_000_000, 20_000_000)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Return the file of the example: 440 bytes, with keys of records at 1000, 1300 and 1600."""
    disk = Disk()
    file = IndexFileAppender.create(disk, tmp_path / "20260101000000000", FEW, None)
    hashes, offsets = np.array([3, 13, 5], np.int32), np.array([1000, 1300, 1600])
    file.put(IndexKeys(hashes, offsets, np.full(3, 1_700_000_000_000)))
    disk.close()
    return file.path


def test_the_example_of_slot_counts() -> None:
    counts = _slot_counts(440)
    assert [*counts][:3] == [5, 10, 15]
    assert counts[-1] == 90
    assert [(440 - 40 - 4 * count) // 20 for count in counts][:3] == [19, 18, 17]
    assert {IndexSizes(count, (400 - 4 * count) // 20).file_size for count in counts} == {440}


@pytest.mark.parametrize("length", [0, 40, 43, 83, 442])
def test_a_length_that_no_sizes_give_has_no_slot_counts(length: int) -> None:
    assert not _slot_counts(length)


def test_the_example_of_sizes_that_are_found(example: Path) -> None:
    stored = example.read_bytes()
    assert len(stored) == 440
    firsts = [np.frombuffer(stored, INDEX_ITEM, 1, 40 + 4 * count + 20)[0] for count in (5, 10, 15)]
    found = [(int(one["key_hash"]), int(one["physical_offset"])) for one in firsts]
    assert found == [(0, 0), (3, 1000), (13, 1300)]
    assert np.frombuffer(stored, INDEX_SLOT, 10, 40)[3] != 0
    assert find_sizes(example, GUESS) == FEW


@pytest.mark.parametrize(("at", "data"), [(100, bytes(20)), (40 + 4 * FEW.n_slots, b"\1")])
def test_sizes_are_not_found_without_the_first_item_or_with_the_one_that_is_never_used(
    example: Path, at: int, data: bytes
) -> None:
    stored = bytearray(example.read_bytes())
    stored[at : at + len(data)] = data
    example.write_bytes(stored)
    with pytest.raises(StoreStateError, match="0 pairs"):
        find_sizes(example, GUESS)


def test_a_file_is_read_without_a_disk(example: Path) -> None:
    file = IndexFile(example, FEW)
    items = file.items()
    assert (file.n_items, file.end_phy_offset, file.items_at_end(1600)) == (3, 1600, 1)
    assert items["physical_offset"].tolist() == [1000, 1300, 1600]
    assert not file.hidden(items).any()
