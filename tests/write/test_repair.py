"""Opening a store for writing after any exit completes it as a broker's recovery does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from rmqstore.errors import CorruptRecordError, StoreStateError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log import walks as joined_walks
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.write.truncation import truncate_log
from rmqstore.write.writer import StoreWriter
from written import files_of

MESSAGES = "topic,queueId,queueOffset,commitLogOffset"
DATA = ("commitlog", "consumequeue", "index")


def repair(root: Path, **options: Any) -> None:
    StoreWriter(find_store(root), StoreConfig(), **options).close()


def rows(root: Path, **options: Any) -> set[tuple[Any, ...]]:
    with rmqstore.open(root, broker_name="b") as store:
        found = store.scan(columns=MESSAGES, **options).read_all().to_pylist()
    return {tuple(row.values()) for row in found}


def require_same(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Require the same bytes in the same files; those of the index are named by when they began."""
    assert without_index(before) == without_index(after)
    indexes = [
        [data for path, data in sorted(files.items()) if "index/" in path]
        for files in (before, after)
    ]
    assert indexes[0] == indexes[1]


def without_index(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if "index/" not in path}


@pytest.mark.parametrize("name", goldens.CRASHED)
def test_a_crashed_store_has_every_record_of_the_valid_log_in_its_queues(
    copied: Golden, name: str
) -> None:
    root = copied(name)
    repair(root, truncate=True)
    expected = {
        (row["recordTopic"], row["recordQueueId"], row["recordQueueOffset"], row["physicalOffset"])
        for row in goldens.lines(name, "expected")
    }
    by_log = {
        (row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"])
        for row in goldens.records(name)
    }
    assert expected <= by_log
    assert rows(root, include_system_topics=True) == rows(root, scan="commitlog") == by_log
    assert not (root / "abort").exists()


CLOSED = [name for name in goldens.PLAIN if name not in ("default-sizes", "empty")]


@pytest.mark.parametrize("name", [*CLOSED, "crash", "crash3", "crash4", "crash5"])
def test_a_store_that_was_closed_or_repaired_is_left_as_it_is(copied: Golden, name: str) -> None:
    root = copied(name)
    if name not in CLOSED:
        repair(root)
    before = files_of(root, *DATA)
    repair(root)
    assert files_of(root, *DATA) == before


def test_good_records_after_damage_are_cut_only_on_request_and_kept_aside(copied: Golden) -> None:
    root = copied("crash2")
    before = files_of(root, *DATA)
    with pytest.raises(CorruptRecordError, match="good records follow at"):
        repair(root)
    assert files_of(root, *DATA) == before
    assert (root / "abort").exists()
    repair(root, truncate=True)
    (kept,) = (root / ".rmqstore" / "cut").iterdir()
    name, _, offset = kept.name.partition(".")
    at = int(offset) - int(name)
    data = before[f"commitlog/{name}"]
    assert kept.read_bytes() == data[at:].rstrip(b"\0")
    assert not any((root / "commitlog" / name).read_bytes()[at:])


@pytest.mark.parametrize("lost", ["consumequeue", "index", "both"])
def test_queues_and_index_are_rebuilt_from_the_log(copied: Golden, lost: str) -> None:
    root = copied("basic")
    before = files_of(root, *DATA)
    for folder in ("consumequeue", "index"):
        if lost in (folder, "both"):
            shutil.rmtree(root / folder)
    StoreWriter(find_store(root), StoreConfig().updated(goldens.summary("basic")["conf"])).close()
    require_same(before, files_of(root, *DATA))


@pytest.mark.parametrize("lost", [[-1], [-2, -1, 0]], ids=["the newest file", "a hole"])
def test_a_queue_that_lost_files_is_rebuilt(copied: Golden, lost: list[int]) -> None:
    root = copied("basic")
    before = files_of(root, *DATA)
    files = sorted((root / "consumequeue/TopicA/2").iterdir())
    for number in lost:
        files[number].unlink()
    (root / "abort").touch()
    repair(root)
    after = files_of(root, *DATA)
    if 0 in lost:  # the oldest one is not made again
        oldest = str(files[0].relative_to(root))
        after[oldest] = before[oldest]
    assert without_index(after) == without_index(before)


@pytest.mark.parametrize(
    ("number", "left"),
    [(-1, b""), (-1, None), (-2, b"\0" * 60)],
    ids=["empty", "too short", "zeros before other units"],
)
def test_a_queue_that_a_broker_would_cut_or_refuse_is_rebuilt(
    copied: Golden, number: int, left: bytes | None
) -> None:
    root = copied("basic")
    before = files_of(root, *DATA)
    file = sorted((root / "consumequeue/TopicA/2").iterdir())[number]
    data = file.read_bytes()
    file.write_bytes(data[:20] if left is None else left and left + data[len(left) :])
    repair(root)
    assert without_index(files_of(root, *DATA)) == without_index(before)


def ends(root: Path) -> dict[tuple[str, int], int]:
    with rmqstore.open(root) as store:
        keys = [(topic, at) for topic in store.topics() for at in store.queue_ids(topic)]
        return {key: store.queue_range(*key)[1] for key in keys}


@pytest.mark.parametrize("name", ["basic", "preblank", "expired", "live", "v49"])
def test_rebuilding_gives_what_rocketmq_built(copied: Golden, name: str) -> None:
    root = copied(name)
    before, read = files_of(root, *DATA), rows(root, include_system_topics=True)
    queue_ends = ends(root)
    with rmqstore.open(root, mode="a") as writer:
        writer.rebuild()
    assert rows(root, include_system_topics=True) == read
    assert not (root / ".rmqstore" / "replaced").exists()
    assert ends(root) == queue_ends  # also of queues without records
    if name != "expired":  # files with units of deleted records only are not rebuilt
        require_same(before, files_of(root, *DATA))


def test_rebuild_reports_its_progress(copied: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_walks, "_SMALL_BYTES", 1 << 10)  # the store is a small one
    root, reports = copied("basic"), list[tuple[int, int]]()
    with StoreWriter(find_store(root), StoreConfig()) as writer:
        writer.rebuild(lambda done, total: reports.append((done, total)))
    end = goldens.summary("basic")["maxPhyOffset"]
    assert reports == sorted(reports)
    assert reports[-1] == (end, end)
    assert len(reports) > 2


def test_a_log_whose_only_file_is_empty_goes_on_where_it_was(copied: Golden) -> None:
    root = copied("expired")
    (only,) = (root / "commitlog").iterdir()
    only.write_bytes(b"")
    with pytest.raises(StoreStateError, match="mappedFileSizeCommitLog"):
        rmqstore.open(root, mode="a")
    with rmqstore.open(
        root, mode="a", config=StoreConfig(mapped_file_size_commit_log=65536)
    ) as writer:
        writer.append(pa.record_batch({"topic": ["New"], "body": [b"1"]}))
    with rmqstore.open(root) as store:
        assert store.scan(subscribe="New", columns="commitLogOffset").read_all().to_pydict() == {
            "commitLogOffset": [int(only.name)]
        }


def test_a_log_file_that_was_renamed_is_not_written_to(copied: Golden) -> None:
    root = copied("one")
    (only,) = (root / "commitlog").iterdir()
    only.rename(only.with_name(f"{20:020d}"))
    with pytest.raises(StoreStateError, match="give the file the name 0"):
        rmqstore.open(root, mode="a")


SIZE = 4096
FILES = [f"{number * SIZE:020d}" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a log of three files, each of which begins with a record."""
    store = build.Store(SIZE)
    while len(store.segments) < 3:
        store.append(build.Record(topic="T", body=b"x" * 100))
    return store.write(tmp_path / "s") / "commitlog"


@pytest.mark.parametrize(
    ("end", "left", "kept"),
    [
        pytest.param(2 * SIZE, FILES[:2], FILES[2:], id="between two files"),
        pytest.param(SIZE + 400, FILES[:2], [f"{FILES[1]}.{SIZE + 400}", FILES[2]], id="in a file"),
        pytest.param(0, FILES[:1], [f"{FILES[0]}.0", *FILES[1:]], id="at the first byte"),
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_files_after_the_end_go_and_the_first_one_stays(
    folder: Path, tmp_path: Path, end: int, left: list[str], kept: list[str], *, keeps: bool
) -> None:
    before = b"".join((folder / name).read_bytes() for name in FILES)
    copies = tmp_path / "cut"
    disk = Disk()
    log_end = LogEnd(end, FILES[0], "torn", 0)
    truncate_log(disk, CommitLog([folder]), log_end, copies if keeps else None)
    disk.close()
    assert sorted(path.name for path in folder.iterdir()) == left
    after = b"".join((folder / name).read_bytes() for name in left)
    assert after == before[:end] + bytes(len(left) * SIZE - end)
    assert copies.exists() == keeps
    if keeps:
        assert sorted(path.name for path in copies.iterdir()) == kept
        parts = [(copies / name).read_bytes() for name in kept]
        tail = before[end : len(left) * SIZE].rstrip(b"\0")
        assert b"".join(parts) == tail + before[len(left) * SIZE :]
