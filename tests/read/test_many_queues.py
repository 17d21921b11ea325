"""A store with many queues: each is listed once, and few files are open at a time."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from memory_storage import MemoryStorage
from rmqstore.format.columns import dispatch_requests
from rmqstore.inspect.verify import verify
from rmqstore.read import unit_merge
from rmqstore.storage.broker.store_config import StoreConfig
from written import require_valid

N_QUEUES = 300


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = build.Store(segment_bytes=1 << 16)
    for number in range(3 * N_QUEUES):
        store.append(build.Record(topic=f"T{number % 3}", queue_id=number % N_QUEUES // 3))
    return store.write(tmp_path_factory.mktemp("many") / "s")


def n_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def one_row_a_queue(prefix: str = "T") -> pa.RecordBatch:
    numbers = range(N_QUEUES)
    return pa.record_batch(
        {
            "topic": [f"{prefix}{number % 3}" for number in numbers],
            "queueId": pa.array([number // 3 for number in numbers], pa.int32()),
            "body": [b"more"] * N_QUEUES,
        }
    )


def test_a_queue_is_listed_once_for_a_scan_and_views(many: Path) -> None:
    storage = MemoryStorage(many)
    with rmqstore.open(storage.root, storage=storage) as store:
        assert store.count() == 3 * N_QUEUES
        store.view("queues").read_all()
        store.scan(starting_timestamp=build.T0).read_all()
    queues = [path for path in storage.n_listed if path.parent.parent.name == "consumequeue"]
    assert len(queues) == N_QUEUES
    # The queue of the newest record is looked at to see whether the store was closed properly.
    assert sum(storage.n_listed[path] for path in queues) <= N_QUEUES + 1


def test_a_scan_of_one_topic_lists_no_queue_of_the_others(many: Path) -> None:
    storage = MemoryStorage(many)
    with rmqstore.open(storage.root, storage=storage) as store:
        store.scan(subscribe="T1").read_all()
        store.scan(assign={"T1": [0, 5]}).read_all()
        with pytest.raises(rmqstore.OptionError, match="topic T1 has no queue"):
            store.scan(assign={"T1": [N_QUEUES]}).read_all()
    topics = {path.name for path in storage.n_listed if path.parent.name == "consumequeue"}
    # The queue of the newest record, of T2, is looked at to see whether the store was closed.
    queues = {path.parent.name for path in storage.n_listed if path.name.isdigit()}
    assert topics == {"T1"}
    assert queues == {"T1", "T2"}


@pytest.mark.parametrize("action", ["scan", "verify", "rebuild", "append"])
def test_few_files_are_open_at_a_time(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    gc.collect()  # what earlier tests left open is not closed beside this one
    before, peak = n_descriptors(), [0]
    opened = os.open

    def counted(*args: object, **named: object) -> int:
        descriptor = opened(*args, **named)  # type: ignore[arg-type]
        peak[0] = max(peak[0], n_descriptors() - before)
        return descriptor

    root = Path(shutil.copytree(many, tmp_path / "s"))
    monkeypatch.setattr(os, "open", counted)
    if action == "rebuild":
        with rmqstore.open(root, "a") as writer:
            writer.rebuild()
    if action == "append":
        with rmqstore.open(root, "a") as writer:
            writer.append(one_row_a_queue())
    with rmqstore.open(root) as store:
        if action in ("scan", "append"):
            n_rows = 3 * N_QUEUES if action == "scan" else 4 * N_QUEUES
            assert store.scan().read_all().num_rows == n_rows
        else:
            assert [one for one in verify(store) if one.part != "index"] == []
    assert 0 < peak[0] < 200


def test_every_folder_is_flushed_once_when_many_queues_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, flushed = os.fsync, []

    def noted(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(one_row_a_queue("New"))
    queues = tmp_path / "s" / "consumequeue"
    counts = Counter(path for path in flushed if path.is_relative_to(queues))
    files = [path for path in queues.rglob("*") if path.is_file()]
    assert len(files) == N_QUEUES
    names = {parent for path in files for parent in (path, path.parent, path.parent.parent)}
    assert counts == Counter({*names, queues})


def test_slices_that_are_longer_than_a_first_read_are_read_to_their_end(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmqstore.open(many) as store:
        expected = store.scan().read_all()
        monkeypatch.setattr(unit_merge, "_SHORT_SLICE", 1)
        assert store.scan().read_all().equals(expected)


@pytest.mark.parametrize("name", ["basic", "lmq", "compressed"])
def test_a_rebuild_with_a_small_buffer_builds_the_same(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    built = []
    for rows in (1 << 20, 1):
        root = Path(shutil.copytree(golden_store(name), tmp_path / str(rows)))
        monkeypatch.setattr(dispatch_requests, "_MAX_BUFFERED", rows)
        config = StoreConfig().updated(goldens.summary(name)["conf"])
        with rmqstore.open(root, "a", config=config) as writer:
            assert not writer.rebuild()
        require_valid(root)
        queues = root / "consumequeue"
        files = sorted(path for path in queues.rglob("*") if path.is_file())
        built.append({path.relative_to(root): path.read_bytes() for path in files})
    assert built[0] == built[1]
