"""How large the index files of a store were made: the examples of the docstrings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqstore.errors import StoreStateError
from rmqstore.format.layout import INDEX_ITEM, INDEX_SLOT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_appender import IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import IndexFile, IndexSizes, _slot_counts, find_sizes

SIZES, GUESS = IndexSizes(10, 18), IndexSizes(5_000_000, 20_000_000)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Return the file of the example: 440 bytes, with keys of records at 1000, 1300 and 1600."""
    disk = Disk()
    file = IndexFileAppender.create(disk, tmp_path / "20260101000000000", SIZES, None)
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
    assert find_sizes(example, GUESS) == SIZES


@pytest.mark.parametrize(("at", "data"), [(100, bytes(20)), (40 + 4 * SIZES.n_slots, b"\1")])
def test_sizes_are_not_found_without_the_first_item_or_with_the_one_that_is_never_used(
    example: Path, at: int, data: bytes
) -> None:
    stored = bytearray(example.read_bytes())
    stored[at : at + len(data)] = data
    example.write_bytes(stored)
    with pytest.raises(StoreStateError, match="0 pairs"):
        find_sizes(example, GUESS)


def test_a_file_is_read_without_a_disk(example: Path) -> None:
    file = IndexFile(example, SIZES)
    items = file.items()
    assert (file.n_items, file.end_phy_offset, file.items_at_end(1600)) == (3, 1600, 1)
    assert items["physical_offset"].tolist() == [1000, 1300, 1600]
    assert not file.hidden(items).any()
