"""A store is read only through its storage: one without a file system gives the same answers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from memory_storage import NOWHERE, MemoryStorage, refuse_direct_looks, serve
from remote_reads import ASKED, Ask, answer
from rmqstore import UnsupportedFeatureError
from rmqstore.format.layout import FRAME_HEAD

NAMES = ["basic", "batch-cq", "cq-ext", "crash", "edges", "expired", "lmq", "controller"]


@pytest.mark.parametrize(("name", "ask"), tiers.spread(2, NAMES, ASKED))
def test_any_storage_gives_what_the_disk_gives(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch, name: str, ask: Ask
) -> None:
    root = golden_store(name)
    expected = answer(lambda: rmqstore.open(root), ask, root)
    storage = MemoryStorage(root)
    refuse_direct_looks(monkeypatch)
    found = answer(lambda: rmqstore.open(storage.root, storage=storage), ask, storage.root)
    assert found == expected
    assert storage.n_listed


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("name", ["dledger-mixed", "dledger-crash3"])
def test_any_storage_gives_what_the_disk_gives_of_a_dledger_log(
    copied: Golden, monkeypatch: pytest.MonkeyPatch, name: str, ask: Ask
) -> None:
    root = copied(name)
    shutil.rmtree(root / "dledger-n0" / "index")  # sparse, and never read
    test_any_storage_gives_what_the_disk_gives(lambda _: root, monkeypatch, name, ask)


def test_direct_looks_at_a_served_path_fail_a_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuse_direct_looks(monkeypatch)
    assert tmp_path.exists()
    for look in (Path.exists, Path.is_dir, Path.read_bytes, os.stat, os.listdir):
        with pytest.raises(pytest.fail.Exception, match="goes round"):
            look(NOWHERE / "store")  # type: ignore[operator]


def test_a_look_up_reads_few_bytes_of_the_index(golden_store: Golden) -> None:
    """Slots and items that the chains lead to are read one by one, not the files that hold them."""
    root = golden_store("basic")
    storage = MemoryStorage(root)
    row = next(row for row in goldens.lines("basic", "expected") if row["keys"])
    with rmqstore.open(storage.root, storage=storage) as store:
        # finds how large the files were made
        assert store.query(row["topic"], row["keys"].split()[0])
        storage.n_read.clear()
        assert store.query(row["topic"], row["keys"].split()[0])
    files = sorted(serve(path) for path in (root / "index").iterdir())
    assert files
    for path in files:
        assert 0 < storage.n_read[path] < storage.size(path) // 4


def test_a_message_is_read_without_the_rest_of_its_segment(golden_store: Golden) -> None:
    storage = MemoryStorage(golden_store("basic"))
    row = goldens.lines("basic", "expected")[-1]
    with rmqstore.open(storage.root, storage=storage) as store:
        storage.n_read.clear()
        message = store.get(row["physicalOffset"])
    in_log = {path.parent.name: n_bytes for path, n_bytes in storage.n_read.items()}
    assert in_log == {"commitlog": message.storeSize + FRAME_HEAD.itemsize}


def test_a_store_that_is_not_on_the_disk_is_not_written_to(golden_store: Golden) -> None:
    storage = MemoryStorage(golden_store("one"))
    with pytest.raises(UnsupportedFeatureError, match="not on a local disk"):
        rmqstore.open(storage.root, mode="a", storage=storage)
