"""Cut an append at every change to the disk: all of its rows are there or none; keys are kept."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import goldens
import rmqstore
import tiers
from crash.faults import (
    Act,
    FaultyDisk,
    append_and_close,
    counted,
    cut_copies,
    mortal_writer,
)
from goldens import Golden
from rmqstore.query.selection import parse_selection
from rmqstore.source.tail import StoreTail
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.log_end import find_log_end
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter
from rmqstore.write.writer import StoreWriter

pytestmark = pytest.mark.crash

NEW_KEYS = ["new1"]
MESSAGES = "topic,queueId,queueOffset,commitLogOffset,body"


def messages(n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": [["TopicA", "Fresh"][number % 2] for number in range(n)],
            "body": [f"new {number} ".encode() * (number % 40) for number in range(n)],
            "keys": [f"new{number}" for number in range(n)],
        },
        pa.schema({"topic": pa.string(), "body": pa.binary(), "keys": pa.string()}),
    )


def append(root: Path, disk: FaultyDisk, n: int, txn: tuple[str, int] | None = None) -> None:
    with mortal_writer(root, disk) as writer:
        writer.append(messages(n))
        writer.flush(txn=txn)


def append_staged(root: Path, disk: FaultyDisk, n: int) -> None:
    """Stage rows in three tasks, append them and close; the process may die anywhere in it."""
    folder, batch, parts = root / ".rmqstore" / "staging" / "job", messages(n), []
    with closing(disk):
        disk.make_folder(folder)
        for task in range(3):
            first, stop = task * n // 3, (task + 1) * n // 3
            with PartWriter(disk, folder / f"part-{task}", 1 << 30) as file:
                file.write(MessageMaker(WriteSpec(), task).make(batch.slice(first, stop - first)))
                parts.append(file.part())
        with mortal_writer(root, disk) as writer:
            writer.append_staged(parts, are_all=True)
        disk.delete_tree(folder)


def rows(root: Path, **options: Any) -> set[tuple[Any, ...]]:
    with rmqstore.open(root, broker_name="b") as store:
        scan = store.scan(columns=MESSAGES, include_system_topics=True, **options)
        return {tuple(row.values()) for row in scan.read_all().to_pylist()}


def by_log(root: Path) -> set[tuple[Any, ...]]:
    """Records that belong into a queue."""
    with rmqstore.open(root, broker_name="b") as store:
        found = store.scan(columns=f"{MESSAGES},sysFlag", scan="commitlog").read_all().to_pylist()
    return {tuple(row.values())[:-1] for row in found if row["sysFlag"] & 0xC in (0, 8)}


def assert_reads_alike(root: Path, expected: set[tuple[Any, ...]], where: str) -> None:
    """Every way to read by queue shows what the log holds, before anything is repaired."""
    assert rows(root) == expected, where
    counts = Counter((topic, queue_id) for topic, queue_id, *_ in expected)
    with rmqstore.open(root, broker_name="b") as store:
        ranges = {key: store.queue_range(*key) for key in counts}
        view = store.view("queues", include_system_topics=True).read_all().to_pylist()
        tail = StoreTail(store.parts, parse_selection(include_system_topics=True))
        tail.poll()
    by_key = rows(root, msg_key=NEW_KEYS, index_only=False)
    in_view = {(row["topic"], row["queueId"]): row["messages"] for row in view if row["messages"]}
    assert {key: end - start for key, (start, end) in ranges.items()} == counts == in_view, where
    assert all(tail.ends[key] == end for key, (_, end) in ranges.items()), where
    assert by_key == {row for row in expected if row[-1].startswith(b"new 1 ")}, where


def all_or_none(
    root: Path, before: set[tuple[Any, ...]], n: int, where: str
) -> set[tuple[Any, ...]]:
    """Return the records of a store to which all of ``n`` rows were appended, or none."""
    read = by_log(root)
    assert len(read) in (len(before), len(before) + n), where
    assert before <= read, where
    assert_reads_alike(root, read, where)
    return read


EVERYWHERE, SAMPLED, FEW = 10_000, 40, 4
KILL, POWERS = None, (1, 2)  # what is lost of unflushed writes is drawn by the number
LARGER = [("basic", 5), ("basic", 700), ("edges", 200)]
CASES = [  # (how, store, rows, power, at how many changes)
    (append, "one", 3, KILL, EVERYWHERE),
    (append, "one", 3, 1, FEW),
    (append, "empty", 3, KILL, EVERYWHERE),
    (append, "empty", 3, 1, FEW),
    *((append, name, n, KILL, FEW) for name, n in LARGER),
    (append, *LARGER[0], 1, FEW),
    (append_staged, "one", 7, KILL, SAMPLED),
    (append_staged, "one", 7, 1, FEW),
    (append_staged, "empty", 7, KILL, SAMPLED),
    (append_staged, "empty", 7, 1, FEW),
    (append_staged, "basic", 700, KILL, FEW),
    *(
        pytest.param(act, name, n, power, EVERYWHERE, marks=pytest.mark.slow)
        for act, n in ((append, 3), (append_staged, 7))
        for name in ("one", "empty")
        for power in POWERS
    ),
    *(
        pytest.param(act, name, n, power, SAMPLED, marks=pytest.mark.slow)
        for act, name, n in (*((append, *case) for case in LARGER), (append_staged, "basic", 700))
        for power in (KILL, *POWERS)
    ),
]


def places(disk: FaultyDisk, at_most: int, seed: int) -> list[int]:
    """Return every change, or a sample with the commit of the append and its neighbours."""
    changes = range(disk.n_changes)
    around_commit = range(disk.commit - 1, disk.commit + 2) if disk.commit >= 0 else ()
    sample = random.Random(seed).sample(changes, min(disk.n_changes, at_most))
    return sorted({*sample, *(at for at in around_commit if at in changes)})


def cut_anywhere(
    whole: Path, folder: Path, act: Act, at_most: int, power: int | None = KILL
) -> Iterator[tuple[Path, str]]:
    """Yield copies of a store in which an act died at some of its changes, and where."""
    at = places(counted(whole, folder, act), at_most, power or 0)
    return cut_copies(whole, folder, act, at, power)


@pytest.mark.parametrize(("act", "name", "n", "power", "at_most"), CASES)
def test_every_cut_leaves_all_rows_or_none(
    golden_store: Golden,
    tmp_path: Path,
    act: Callable[..., object],
    name: str,
    n: int,
    power: int | None,
    at_most: int,
) -> None:
    whole, seen = golden_store(name), set()
    before = by_log(whole)
    for root, where in cut_anywhere(whole, tmp_path, partial(act, n=n), at_most, power):
        read = all_or_none(root, before, n, where)
        seen.add(len(read))
        StoreWriter(find_store(root), StoreConfig()).close()
        assert by_log(root) == rows(root) == read, where
        assert not (root / "abort").exists()
        act(root, FaultyDisk(), n)
        assert len(by_log(root)) == len(rows(root)) == len(read) + n, where
    assert seen == {len(before), len(before) + n}


def write_as_a_broker(root: Path, record: bytes) -> None:
    """Write a record where a recovery would, and clear nothing after it, as a broker does."""
    paths = find_store(root)
    log = CommitLog(paths.commitlogs)
    end = find_log_end(log, read_checkpoint(paths)).physical_offset
    segment = log.find(end)
    assert segment is not None
    placed = bytearray(record)
    placed[28:36] = end.to_bytes(8)
    with segment.path.open("r+b") as file:
        file.seek(end - segment.start)
        file.write(placed)
    log.close()


def test_a_dead_append_does_not_come_back_when_a_broker_writes_a_record_of_the_same_length(
    golden_store: Golden, tmp_path: Path
) -> None:
    n, name = 12, "basic"
    same = pa.RecordBatch.from_pydict(
        {"topic": ["Fresh"] * n, "body": [b"of one length"] * n, "keys": ["k"] * n}
    )
    before, act = len(by_log(golden_store(name))), partial(append_and_close, batch=same)
    disk = counted(golden_store(name), tmp_path, act)
    whole = tmp_path / "count" / name
    with rmqstore.open(whole) as store:
        batch = store.scan(columns="commitLogOffset,storeSize", subscribe="Fresh").read_all()
    first, size = min(tuple(row.values()) for row in batch.to_pylist())
    (segment,) = [
        path for path in (whole / "commitlog").iterdir() if 0 <= first - int(path.name) < 131072
    ]
    record = segment.read_bytes()[first - int(segment.name) :][:size]
    seen = set()
    around = range(disk.commit - 6, disk.commit + 3)
    for root, where in cut_copies(golden_store(name), tmp_path, act, around):
        read = len(by_log(root))
        assert read in (before, before + n), where
        seen.add(read)
        write_as_a_broker(root, record)
        assert len(by_log(root)) == read + 1, where
    assert seen == {before, before + n}


def test_copies_that_are_older_than_the_store_appear_all_or_none(
    golden_store: Golden, tmp_path: Path
) -> None:
    """A recovery begins at the newest file older than the checkpoint, not at one of the copies."""
    with rmqstore.open(golden_store("basic")) as store:
        copies = store.scan(verbatim=True, scan="commitlog", subscribe="TopicA").read_all()
    copies = copies.filter(pc.equal(copies["queueId"], 0))
    for name, value in (("storeTimestamp", datetime(2001, 9, 9, tzinfo=UTC)), ("topic", "Copied")):
        place = copies.schema.get_field_index(name)
        field = copies.schema.field(place)
        copies = copies.set_column(place, field, pa.array([value] * len(copies), field.type))
    whole, seen = golden_store("edges"), set()
    before, act = by_log(whole), partial(append_and_close, batch=copies, verbatim=True)
    commit = counted(whole, tmp_path, act).commit
    around = (commit - 6, commit - 1, commit, commit + 1)
    for root, where in cut_copies(whole, tmp_path, act, around):
        read = by_log(root)
        assert len(read) - len(before) in (0, len(copies)), where
        assert rows(root) == read, where
        seen.add(len(read) - len(before))
    assert seen == {0, len(copies)}


@pytest.mark.parametrize(
    ("name", "at_most"),
    [
        ("one", FEW),
        ("basic", FEW),
        pytest.param("one", EVERYWHERE, marks=pytest.mark.slow),
        pytest.param("basic", SAMPLED, marks=pytest.mark.slow),
    ],
)
def test_a_version_is_written_once_whatever_is_cut(
    golden_store: Golden, tmp_path: Path, name: str, at_most: int
) -> None:
    n, before = 20, len(by_log(golden_store(name)))
    act = partial(append, n=n, txn=("app", 1))
    for root, where in cut_anywhere(golden_store(name), tmp_path, act, at_most):
        with StoreWriter(find_store(root), StoreConfig()) as writer:
            done = writer.done_version("app")
            assert (len(by_log(root)) > before) == (done == 1), where
            if done is None:
                writer.append(messages(n))
                writer.flush(txn=("app", 1))
        assert len(rows(root)) == before + n, where


@pytest.mark.parametrize("at_most", tiers.sampled(FEW, SAMPLED))
@pytest.mark.parametrize("name", ["crash", "crash5"])
def test_a_repair_may_be_cut_anywhere(
    golden_store: Golden, tmp_path: Path, name: str, at_most: int
) -> None:
    config = StoreConfig().updated(goldens.summary(name)["conf"])
    expected = by_log(golden_store(name))

    def repair(root: Path, disk: FaultyDisk) -> None:
        StoreWriter(find_store(root), config, disk).close()

    for root, where in cut_anywhere(golden_store(name), tmp_path, repair, at_most):
        repair(root, FaultyDisk())
        assert rows(root) == by_log(root) == expected, where


@pytest.mark.parametrize("at_most", tiers.sampled(FEW, SAMPLED))
def test_a_rebuild_may_be_cut_anywhere(golden_store: Golden, tmp_path: Path, at_most: int) -> None:
    expected = by_log(golden_store("edges"))

    def rebuild(root: Path, disk: FaultyDisk) -> None:
        with mortal_writer(root, disk) as writer:
            writer.rebuild()

    for root, where in cut_anywhere(golden_store("edges"), tmp_path, rebuild, at_most):
        config = StoreConfig().updated(goldens.summary("edges")["conf"])
        StoreWriter(find_store(root), config).close()
        assert rows(root) == by_log(root) == expected, where
        assert not (root / ".rmqstore" / "replaced").exists()
