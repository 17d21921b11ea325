"""What is so on Windows only, or where it is simulated."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
import simulated
from goldens import Golden
from reading import state
from rmqstore import platforms
from rmqstore.errors import UnsupportedFeatureError
from rmqstore.storage.files.lock import is_held
from rmqstore.storage.files.remote_location import local_path
from rmqstore.storage.files.storage import UriPath, path_of

pytestmark = pytest.mark.skipif(simulated.SYSTEM != "win32", reason="of Windows only")

MESSAGE = pa.table({"topic": ["T"], "body": [b"x"]})


@pytest.fixture
def writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let changes be refused as on Windows; the simulation lets other tests write."""
    for name in simulated.WRITERS:
        module = import_module(f"rmqstore.storage.files.{name}")
        monkeypatch.setattr(module, "platforms", platforms)
        monkeypatch.setattr(module, "os", os)


@pytest.mark.usefixtures("writes_nothing")
@pytest.mark.parametrize(
    "change",
    [
        lambda _, folder: rmqstore.create(folder / "new"),
        lambda store, _: rmqstore.open(store, mode="a"),
        lambda store, folder: rmqstore.copy(store, folder / "copy"),
        lambda store, _: rmqstore.follow("127.0.0.1:1", store),
    ],
    ids=["create", "append", "copy", "follow"],
)
def test_what_changes_a_store_is_refused(
    golden_store: Golden, tmp_path: Path, change: Callable[[Path, Path], object]
) -> None:
    store = golden_store("basic")
    before = state(store)
    with pytest.raises(UnsupportedFeatureError, match="Windows"):
        change(store, tmp_path)
    assert not list(tmp_path.iterdir())
    assert state(store) == before


@pytest.mark.usefixtures("writes_nothing")
def test_a_lock_is_seen_by_its_byte_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: LockFileEx, which a broker's lock is there."""
    lock = tmp_path / "lock"
    assert not is_held(lock)
    lock.write_bytes(b"lock")
    assert not is_held(lock)

    def refuse(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", refuse)
        assert is_held(lock)


@pytest.mark.parametrize("store", ["rocksdb-cq", "v55-rocksdb-cq"])
def test_queues_in_rocksdb_are_refused_by_the_name_of_the_system(
    golden_store: Golden, store: str
) -> None:
    with (
        rmqstore.open(golden_store(store)) as opened,
        pytest.raises(UnsupportedFeatureError, match="on Windows it is not read"),
    ):
        opened.scan()


def test_a_topic_of_a_record_leads_to_no_other_folder() -> None:
    for name in ("..\\x", "C:x", "a/b", "CON.", "a ", "..", "a*", "%DLQ%g|x"):
        assert not platforms.can_name_file(name), name
    for name in ("T", "%RETRY%g", "a.b", "测试"):
        assert platforms.can_name_file(name), name


def test_local_uris_and_patterns_may_name_a_drive_and_others_keep_their_slashes() -> None:
    name = path_of("s3://bucket/store") / "commitlog"
    assert isinstance(name, UriPath)
    assert str(name) == "s3://bucket/store/commitlog"
    assert local_path("file:///C:/stores/a%20b") == "C:/stores/a b"
    assert local_path("file:///srv/store") == "/srv/store"
    assert platforms.with_slashes("C:\\stores\\*") == "C:/stores/*"
