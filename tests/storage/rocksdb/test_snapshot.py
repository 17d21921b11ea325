"""The files of a database as of one moment, whatever a broker does to them afterwards."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from reading import descriptors_in, state
from rmqstore import platforms
from rmqstore.errors import CorruptDatabaseError, UnsupportedFeatureError
from rmqstore.storage import rocksdb as database, rocksdb as module
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.rocksdb import Fingerprint, RocksDb, fingerprint, snapshot

_PAUSE_SECONDS = 0.04  # between two flushes, of which a broker makes far fewer


def number(value: int) -> bytes:
    return struct.pack(">q", value)


def key_of(value: int) -> bytes:
    return number(value % 20)


class Flushing(threading.Thread):
    """Writes to a database and flushes it again and again, so that its tables come and go.

    Attributes:
        done: the number that was flushed last; it is the value of its key.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        options = Options(raw_mode=True)
        options.set_level_zero_file_num_compaction_trigger(2)
        self.database = Rdict(str(folder), options)
        self.done = -1
        self._is_asked = threading.Event()

    def run(self) -> None:
        value = 0
        while not self._is_asked.is_set():
            self.database[key_of(value)] = number(value)
            self.database.flush()
            self.done = value
            value += 1
            time.sleep(_PAUSE_SECONDS)
        self.database.close()

    def end(self) -> None:
        self._is_asked.set()
        self.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database with two tables."""
    root = tmp_path / "db"
    database = Rdict(str(root), Options(raw_mode=True))
    for value in range(2):
        database[number(value)] = number(value)
        database.flush()
    database.close()
    return root


def test_a_database_is_opened_while_its_tables_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    writer = Flushing(folder)
    writer.start()
    tables: set[str] = set()
    try:
        while writer.done < 20:
            pass
        for _ in range(10):
            flushed = writer.done
            tables |= {path.name for path in folder.glob("*.sst")}
            opened = RocksDb(folder)
            values = [int.from_bytes(value) for value in opened.values("default", b"", b"\xff")]
            assert max(values) >= flushed
            assert sorted(values) == [*range(min(values), min(values) + 20)]
    finally:
        writer.end()
    assert len(tables - {path.name for path in folder.glob("*.sst")}) > 10


def test_a_deleted_table_stays_readable(folder: Path) -> None:
    with snapshot(folder, LOCAL) as files:
        for path in [*folder.glob("*.sst"), *folder.glob("MANIFEST-*"), folder / "CURRENT"]:
            path.unlink()
        families = {"default": Options(raw_mode=True)}
        read_only = AccessType.read_only(False)
        opened = Rdict(str(files.folder), Options(raw_mode=True), families, read_only)
        assert [*opened.values()] == [number(0), number(1)]
        assert descriptors_in(folder)
        opened.close()
        del opened
    assert not descriptors_in(folder)
    assert not files.folder.exists()


def change_fingerprints(
    monkeypatch: pytest.MonkeyPatch, n_calls: int, *more: tuple[str, int, int]
) -> list[Path]:
    """Let the first fingerprints of a database differ, with further files; return the calls."""
    calls: list[Path] = []

    def changing(path: Path, storage: Any) -> Fingerprint:
        calls.append(path)
        found = fingerprint(path, storage)
        if len(calls) < n_calls:
            found = tuple((name, size, len(calls)) for name, size, _ in found)
        return (*found, *more)

    monkeypatch.setattr(module, "fingerprint", changing)
    return calls


def test_files_are_opened_again_if_the_manifest_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = change_fingerprints(monkeypatch, 6)  # two an attempt
    with snapshot(folder, LOCAL) as files:
        assert files.fingerprint == fingerprint(folder, LOCAL)
        assert len(calls) == 8
        assert len(files.open_files) == len({*files.folder.iterdir()}) - 2


def test_a_manifest_that_changes_all_the_time_is_taken_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_fingerprints(monkeypatch, 1000)
    with snapshot(folder, LOCAL) as files:
        linked, there = (
            {path.name for path in one.glob("*.sst")} for one in (files.folder, folder)
        )
        assert linked == there


def test_a_write_ahead_log_that_is_gone_each_time_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_fingerprints(monkeypatch, 1000, ("000999.log", 5, 0))
    with (
        pytest.raises(CorruptDatabaseError, match="write-ahead log was deleted"),
        snapshot(folder, LOCAL),
    ):
        pass


@pytest.mark.parametrize("how", ["usual", "no /proc", "no descriptor left", "a long manifest"])
def test_no_way_to_link_changes_anything_in_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "no /proc":
        monkeypatch.setattr(platforms, "OPEN_FILES", folder / "nothing")
    elif how == "a long manifest":
        monkeypatch.setattr(module, "_MAX_COPIED_MANIFEST", 3)
    elif how == "no descriptor left":
        plain = os.open

        def failing(path: Any, flags: int, **more: Any) -> int:
            if str(path).endswith(".sst"):
                raise OSError(errno.EMFILE, "too many open files")
            return plain(path, flags, **more)

        monkeypatch.setattr(module.os, "open", failing)
    before = state(folder)
    opened = RocksDb(folder)
    assert [*opened.values("default", b"", b"\xff")] == [number(0), number(1)]
    assert state(folder) == before


def test_a_database_of_too_many_files_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FILES", 2)
    with pytest.raises(UnsupportedFeatureError, match=f"{folder} has . files; at most 2"):
        RocksDb(folder)


def test_a_database_that_changes_and_cannot_be_read_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(RocksDb, "is_current", lambda *_: False)
    min(folder.glob("*.sst")).unlink()
    with pytest.raises(CorruptDatabaseError, match="changed it during each of 20 attempts"):
        RocksDb(folder)
