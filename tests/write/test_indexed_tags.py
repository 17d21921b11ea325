"""Tags in the index: added where a broker from 5.4 on has the store, and nowhere else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from goldens import Golden
from rmqstore.format.columns.dispatch_requests import key_hashes
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.index_files import IndexSizes, index_files
from rmqstore.storage.index_search import IndexSearch
from rmqstore.write.writer import StoreWriter
from written import require_valid, stage

ROWS = pa.RecordBatch.from_pylist(
    [
        {"topic": "New", "body": b"x", "tags": tags, "keys": keys}
        for tags in (None, "", "TagA", "标签 two words")
        for keys in (None, "k1 k2")
    ],
    pa.schema(
        {"topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string()}
    ),
)
N_TAGGED = 4


def n_tag_items(root: Path) -> int:
    """Return how many records of ROWS a broker finds by their tags."""
    search = IndexSearch(root / "index", IndexSizes.of(StoreConfig()))
    hashes = key_hashes(["New"], ["T#TagA", "T#标签 two words"]).ravel()
    return sum(len(search.find(hashes[row : row + 1])) for row in range(2))


def append(root: Path) -> None:
    with rmqstore.open(root, "a", config=StoreConfig()) as writer:
        writer.append(ROWS)


def append_staged(root: Path) -> None:
    with rmqstore.open(root, "a", config=StoreConfig()) as writer:
        writer.append_staged(stage(root, ROWS, rules=writer.config.rules))


@pytest.mark.parametrize("write", [append, append_staged])
@pytest.mark.parametrize(
    ("name", "without_folder", "expected"),
    [
        ("v55-edges", False, N_TAGGED),
        ("v55-edges", True, N_TAGGED),  # then its newest items tell
        ("v55-index-rocksdb", False, N_TAGGED),  # there are no index files
        ("v55-index-rocksdb", True, 0),
        ("basic", False, 0),
        ("v49", False, 0),
    ],
)
def test_they_are_added_where_the_store_has_them(
    copied: Golden, name: str, expected: int, write: Callable[[Path], None], *, without_folder: bool
) -> None:
    root = copied(name)
    if without_folder:
        shutil.rmtree(root / "rocksdbstore")
    write(root)
    assert n_tag_items(root) == expected
    require_valid(root)


@pytest.mark.parametrize("name", ["v55-edges", "v55-expired", "v55-preblank", "basic"])
def test_a_rebuild_makes_the_same_items(copied: Golden, name: str) -> None:
    root = copied(name)
    before = [path.read_bytes()[40:] for path in index_files(root / "index")]
    with rmqstore.open(root, "a") as writer:
        writer.rebuild()
    after = [path.read_bytes()[40:] for path in index_files(root / "index")]
    # Older files of one went first, so the new ones begin elsewhere.
    assert after == before or name == "v55-expired"
    assert after
    require_valid(root)


def test_a_repair_after_a_crash_adds_them(copied: Golden) -> None:
    root = copied("v55-crash4")
    append(root)
    assert n_tag_items(root) == N_TAGGED
    require_valid(root)


def test_a_store_of_both_kinds_is_valid(copied: Golden) -> None:
    root = copied("v55-edges")
    writer = StoreWriter(find_store(root), StoreConfig())
    writer.config = replace(writer.config, index_tags=False)
    with writer:
        writer.append(ROWS)
    assert n_tag_items(root) == 0
    append(root)
    assert n_tag_items(root) == N_TAGGED
    require_valid(root)


def test_an_item_of_other_tags_is_found_by_verify(copied: Golden) -> None:
    root = copied("v55-edges")
    append(root)
    newest = index_files(root / "index")[-1]
    data = bytearray(newest.read_bytes())
    (tag_hash,) = key_hashes(["New"], ["T#TagA"]).ravel()
    position = data.rindex(np.array(tag_hash, ">i4").tobytes())
    data[position + 3] ^= 1
    newest.write_bytes(data)
    with rmqstore.open(root) as store:
        assert any("do not belong to a key" in found.text for found in verify(store))
