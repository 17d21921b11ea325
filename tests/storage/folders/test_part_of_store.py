"""A folder or a file of a store that is given in the place of its root."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import rmqstore
from command_line import rows, run
from goldens import Golden
from memory_storage import MemoryStorage
from pyspark_rmqstore.options import parse_read_options
from rmqstore.errors import NotAStoreError
from rmqstore.storage.broker.folders import root_of_part

PARTS = [
    "commitlog", "commitlog/00000000000000000000", "consumequeue", "consumequeue/LivePlain/0",
    "consumequeue/LivePlain/0/00000000000000000000", "index", "config", "config/topics.json",
    "checkpoint",
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_part_stands_for_the_store_with_a_warning(
    golden_store: Golden, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("live")
    with rmqstore.open(root / part) as store:
        assert store.paths.root == root
        assert store.count() > 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{root / part} is a part of a store; its root is opened: {root}"
    )


def test_the_folder_of_a_dledger_log_is_a_part(golden_store: Golden) -> None:
    root = golden_store("dledger")
    for part in ("dledger-n0", "dledger-n0/data"):
        with rmqstore.open(root / part) as store:
            assert store.paths.root == root


def test_the_current_folder_may_be_a_part(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden_store("live")
    monkeypatch.chdir(root / "commitlog")
    with rmqstore.open(".") as store:
        assert store.paths.root == root
    monkeypatch.chdir(root)
    with rmqstore.open("config") as store:
        assert store.paths.root == Path()


def test_a_part_that_is_a_link_stands_for_the_store_that_has_it(
    copied: Golden, tmp_path: Path
) -> None:
    root = copied("live")
    (root / "commitlog").rename(tmp_path / "log")
    (root / "commitlog").symlink_to(tmp_path / "log")
    with rmqstore.open(root / "commitlog") as store:
        assert store.paths.root == root


@pytest.mark.parametrize("name", ["logs", "commitlog-old", "commitlog/a/b/c/d"])
def test_other_folders_are_not_stores(copied: Golden, name: str) -> None:
    root = copied("live")
    (root / name).mkdir(parents=True)
    with pytest.raises(NotAStoreError):
        rmqstore.open(root / name)


def test_a_part_in_another_storage_is_found_too(golden_store: Golden) -> None:
    root = golden_store("live")
    storage = MemoryStorage(root)
    assert root_of_part(storage.root / "config", storage) == storage.root


def test_a_writer_refuses_a_part(copied: Golden) -> None:
    root = copied("live")
    for name in ("commitlog", "config"):
        with pytest.raises(NotAStoreError, match=f"is a part of the store {root}: name that"):
            rmqstore.open(root / name, mode="a")
        with pytest.raises(NotAStoreError, match=f"is a part of the store {root}: name that"):
            rmqstore.create(root / name)
    assert not (root / "config" / "commitlog").exists()


def test_verbs_warn_and_show_the_store(
    golden_store: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("live")
    assert rows("stat", root / "config") == rows("stat", root)
    assert f"its root is opened: {root}" in caplog.text
    copied = run("copy", root / "config", tmp_path / "copy")
    assert copied.exit_code == 0, copied.output


def test_options_of_spark_name_the_root(golden_store: Golden) -> None:
    root = golden_store("live")
    (ref,) = parse_read_options({"path": str(root / "consumequeue")}).source.stores
    assert ref.path == str(root)
