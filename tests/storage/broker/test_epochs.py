"""The epochs of a broker in controller mode, and what a damaged file of them says."""

from __future__ import annotations

import logging

import pytest

import rmqstore
import store_builder as build
from goldens import Golden
from reading import rows
from rmqstore import CorruptConfigError
from rmqstore.storage.broker.epochs import Epoch, read_epochs
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.paths import StorePaths

EPOCHS = [Epoch(1, 0), Epoch(2, 41308), Epoch(5, 85369)]


@pytest.fixture
def paths(copied: Golden) -> StorePaths:
    return find_store(copied("controller"))


def packed(*lines: str, count: int | None = None, crc: int | None = None) -> str:
    listed = "".join(f"{line}\n" for line in lines)
    actual = build.body_crc(listed.encode())
    return f"{len(lines) if count is None else count}\n{actual if crc is None else crc}\n{listed}"


def test_epochs_are_those_of_the_broker(paths: StorePaths) -> None:
    assert read_epochs(paths) == EPOCHS


def test_a_store_without_the_mode_has_none(golden_store: Golden) -> None:
    assert read_epochs(find_store(golden_store("basic"))) == []
    with rmqstore.open(golden_store("basic")) as store:
        assert rows(store.view("epochs")) == []


def test_a_damaged_file_is_named_and_the_one_before_is_read(
    paths: StorePaths, caplog: pytest.LogCaptureFixture
) -> None:
    stored = paths.epochs.read_text()
    paths.epochs.write_text(stored.replace("41308", "41309"))
    with caplog.at_level(logging.WARNING):
        assert read_epochs(paths) == EPOCHS[:2]
    assert "CRC 1096396712 is not" in caplog.text
    paths.epochs.unlink()
    assert read_epochs(paths) == EPOCHS[:2]


def test_the_crc_zero_is_not_checked(paths: StorePaths) -> None:
    paths.epochs.write_text(packed("3-0", "4-10", crc=0))
    assert read_epochs(paths) == [Epoch(3, 0), Epoch(4, 10)]


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "3", "x\n1\n", "1\n-5\n1-0\n", packed("1-0", count=2), packed("1-0", crc=1),
        packed("1"), packed("1-0-0"), packed("1--5"), packed("2-0", "1-5"), packed("1-5", "2-4"),
        packed("1-0", "1-5"), packed(f"1-{1 << 63}"), packed(f"{1 << 31}-0"), packed("a-b"),
        packed("\u0661-0"), "\udcff\n1\n", "9" * 5000,
    ],
    ids=range(19),
)  # fmt: skip
def test_hostile_text_is_an_error_with_the_path(paths: StorePaths, text: str) -> None:
    stored = text.encode("utf-8", "surrogateescape")
    for file in (paths.epochs, paths.epochs.with_name("epochFileCheckpoint.bak")):
        file.write_bytes(stored)
    with pytest.raises(CorruptConfigError, match="epochFileCheckpoint"):
        read_epochs(paths)
    with rmqstore.open(paths.root) as store:
        (row,) = rows(store.view("epochs"))
    assert row["epoch"] is None
    assert "epochFileCheckpoint" in row["reason"]


def test_a_folder_in_place_of_the_file_is_not_read(paths: StorePaths) -> None:
    paths.epochs.unlink()
    paths.epochs.mkdir()
    assert read_epochs(paths) == EPOCHS[:2]


def test_each_epoch_ends_where_the_next_one_starts_or_the_log_ends(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("controller"), broker_name="b") as store:
        found = rows(store.view("epochs"))
        end = store.parts.log.max_offset
        newest = max(row["commitLogOffset"] for row in rows(store.scan(scan="commitlog")))
    assert [(row["epoch"], row["startOffset"]) for row in found] == EPOCHS
    assert [row["endOffset"] for row in found[:2]] == [41308, 85369]
    assert newest < found[2]["endOffset"] <= end
