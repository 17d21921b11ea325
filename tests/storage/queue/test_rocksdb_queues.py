"""Queues in databases that no broker wrote: every claim is checked, and no process dies."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from rocksdict import Options, Rdict

import goldens
import rmqstore
from goldens import Golden
from reading import read
from rmqstore.errors import (
    CorruptDatabaseError,
    CorruptQueueError,
    StoreFormatError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.inspect.doctor import WRONG, examine
from rmqstore.inspect.remedies import kind_of
from rmqstore.inspect.verify import verify
from rmqstore.source.tail import LoggedMessages
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.remote_location import locate
from rmqstore.storage.queue.queue import RecoveredUnits
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueue, RocksDbQueues
from rmqstore.storage.rocksdb import RocksDb
from rocksdb_index import write_database

KEY = ("T", 1)


def bound_key(topic: bytes, which: bytes, queue_id: int) -> bytes:
    return b"\1".join([struct.pack(">i", len(topic)), topic, which, struct.pack(">i", queue_id)])


def unit_key(topic: bytes, queue_id: int, queue_offset: int) -> bytes:
    return bound_key(topic, struct.pack(">i", queue_id), 0)[:-4] + struct.pack(">q", queue_offset)


def unit(physical_offset: int, size: int = 100, tags_code: int = 7) -> bytes:
    return struct.pack(">qiqq", physical_offset, size, tags_code, 1_700_000_000_000)


def write(root: Path, units: dict[bytes, bytes], offsets: dict[bytes, bytes]) -> RocksDbQueues:
    """Write a database of queues as a broker does, and open it."""
    (root / "commitlog").mkdir(parents=True)
    write_database(root / "consumequeue", {"default": units, "offset": offsets})
    found = RocksDbQueues.of(find_store(root))
    assert found is not None
    return found


def queue_of(root: Path, queue_offsets: range, last: int, first: int | None = None) -> RocksDbQueue:
    """Return queue 1 of topic T with units at some queue offsets, and the bounds as given."""
    offsets = {bound_key(b"T", b"max", 1): struct.pack(">qq", 5, last)}
    if first is not None:
        offsets[bound_key(b"T", b"min", 1)] = struct.pack(">qq", 5, first)
    units = {unit_key(b"T", 1, offset): unit(100 * offset) for offset in queue_offsets}
    neighbours = {unit_key(b"T", queue_id, 0): unit(1) for queue_id in (0, 2)}
    return RocksDbQueue(write(root, units | neighbours, offsets), KEY)


@pytest.mark.parametrize(
    ("there", "last", "first", "expected"),
    [
        (range(10), 9, None, (0, 10)),
        (range(4, 10), 9, 4, (4, 10)),
        (range(4, 10), 9, None, (4, 10)),  # compaction dropped the first units
        (range(4, 10), 9, 2, (4, 10)),
        (range(4, 10), 9, 12, (4, 10)),  # a first offset after the last one says nothing
        (range(0), 9, None, (10, 10)),
        (range(20, 30), 9, None, (10, 10)),  # no unit before the end
        (range(10), -1, None, (0, 0)),
    ],
)
def test_a_queue_begins_at_its_first_unit_and_ends_after_the_last_it_claims(
    tmp_path: Path, there: range, last: int, first: int | None, expected: tuple[int, int]
) -> None:
    queue = queue_of(tmp_path, there, last, first)
    assert (queue.begin, queue.end()) == expected
    runs = [expected] if expected[0] < expected[1] else []
    assert list(queue.runs(-5, 1 << 40)) == runs


def test_units_are_read_by_range_and_one_by_one(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, range(100), 99)
    assert queue.units(10, 20).physical_offsets.tolist() == [100 * n for n in range(10, 20)]
    assert queue.units(0, 1).tags_codes.tolist() == [7]
    assert queue.unit(99) == (9900, 100, 7)
    assert queue.unit(100) == queue.unit(-1) == (0, 0, 0)
    some = queue.units_of(np.array([3, 50, 100]))
    assert some.physical_offsets.tolist() == [300, 5000, 0]
    assert queue.first(100, 250) == 3


def test_a_missing_unit_is_one_of_zeros(tmp_path: Path) -> None:
    units = {unit_key(b"T", 1, offset): unit(offset) for offset in (0, 1, 3)}
    units[unit_key(b"T", 1, 2) + b"longer"] = unit(77)
    units[unit_key(b"T", 1, 4)] = b"short"
    offsets = {bound_key(b"T", b"max", 1): struct.pack(">qq", 5, 4)}
    queue = RocksDbQueue(write(tmp_path, units, offsets), KEY)
    assert queue.units(0, 5).sizes.tolist() == [100, 100, 0, 100, 0]


def test_a_queue_that_claims_more_units_than_there_are_keys_is_damaged(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, range(10), 1 << 40)
    with pytest.raises(CorruptQueueError, match=r"T-1 is to end at queue offset 1099511627776"):
        queue.end()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\xff" * 30, b"x" * 16),
        (bound_key(b"T", b"mid", 1), b"x" * 16),
        (bound_key(b"T", b"max", -1), b"\0" * 16),
        (bound_key(b"\xff\xfe", b"max", 1), b"\0" * 16),
        (bound_key(b"T", b"max", 1) + b"more", b"\0" * 16),
        (bound_key(b"T", b"max", 1), b"\0" * 3),
        (bound_key(b"T", b"max", 1), struct.pack(">qq", 0, (1 << 63) - 1)),
        (bound_key(b"T", b"max", 1), struct.pack(">qq", 0, -5)),
        (bound_key(b"CHECKPOINT_TOPIC", b"max", 0), b"\0"),
    ],
)
def test_a_key_of_bounds_that_makes_no_sense_is_no_queue(
    tmp_path: Path, key: bytes, value: bytes
) -> None:
    database = write(tmp_path, {}, {key: value})
    assert (database.bounds, database.checkpoint) == ({}, 0)


@pytest.mark.parametrize("checkpoint", [-1, 1, 12345, (1 << 63) - 1])
def test_a_checkpoint_may_be_any_number(copied: Golden, checkpoint: int) -> None:
    """Units that the queues lack are taken from the log, wherever the database says it ends."""
    name = "v55-rocksdb-cq"
    root = copied(name)
    (root / "abort").touch()
    database = Rdict(
        str(root / "consumequeue"),
        Options(raw_mode=True),
        {family: Options(raw_mode=True) for family in ("default", "offset")},
    )
    family = database.get_column_family("offset")
    family[bound_key(b"CHECKPOINT_TOPIC", b"max", 0)] = struct.pack(">q", checkpoint)
    family.flush()
    family.close()
    database.close()
    with rmqstore.open(root) as store:
        assert len(read(store, columns="queueOffset")) == len(goldens.lines(name, "expected"))


def without(names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for path in folder.glob(names):
            path.unlink()

    return remove


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "rocksdbstore", folder)


def flipped(folder: Path) -> None:
    path = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = np.fromfile(path, np.uint8)
    data[20:2000:50] ^= 1
    path.write_bytes(data.tobytes())


@pytest.mark.parametrize(
    "breaks",
    [*map(without, ("CURRENT", "MANIFEST-*", "*.sst", "[!L]*")), replaced, flipped],
    ids=["CURRENT", "MANIFEST", "tables", "all but LOCK", "another", "flipped"],
)
def test_any_file_of_a_database_shows_that_queues_are_missing_and_the_log_is_read_without_them(
    copied: Golden, breaks: Callable[[Path], None]
) -> None:
    name = "v55-rocksdb-lmq"
    root = copied(name)
    breaks(root / "consumequeue")
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptDatabaseError, match=r"consumequeue.*scan=commitlog"):
            read(store)
        assert len(read(store, scan="commitlog")) == len(goldens.records(name))
        expected = goldens.lines(name, "expected")
        assert len(read(store, mode="PERMISSIVE")) == len(expected)
        assert [kind_of(finding) for finding in verify(store)] == ["database"]
    topic = expected[0]["topic"]
    with rmqstore.open(root) as store:  # which has not left the database out yet
        named = read(store, mode="PERMISSIVE", subscribe=topic)
        assert len(named) == sum(row["topic"] == topic for row in expected)
    with pytest.raises(UnsupportedFeatureError, match="cannot be written"):
        rmqstore.open(root, "a")
    assert breaks is flipped or [*examine(root)][-1].state == WRONG, "no unit is read for it"


def test_queues_that_a_torn_manifest_hides_are_taken_from_the_log(copied: Golden) -> None:
    root = copied("v55-combine-lmq")
    (manifest,) = (root / "consumequeue").glob("MANIFEST-*")
    with manifest.open("r+b") as file:
        file.truncate(manifest.stat().st_size // 2)
    with rmqstore.open(root) as store:
        assert len(read(store)) == len(goldens.lines("v55-combine-lmq", "expected"))


@pytest.mark.parametrize("target", [None, "nowhere", "/dev/zero"], ids=["fifo", "none", "device"])
def test_an_entry_that_is_not_a_file_is_refused(copied: Golden, target: str | None) -> None:
    root = copied("v55-rocksdb-cq")
    path = root / "consumequeue" / "000011.sst"
    path.unlink()
    os.mkfifo(path) if target is None else path.symlink_to(target)
    with rmqstore.open(root) as store, pytest.raises(StoreFormatError):
        read(store)


@pytest.mark.parametrize("name", ["CURRENT", "IDENTITY"])
def test_a_short_file_that_is_huge_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, {}, {bound_key(b"T", b"max", 1): struct.pack(">qq", 0, 0)})
    with (tmp_path / "consumequeue" / name).open("r+b") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(RocksDb, "_try_out", None)
    with pytest.raises(CorruptDatabaseError, match=f"{name} has {1 << 40} bytes instead"):
        RocksDb(tmp_path / "consumequeue")


@pytest.mark.parametrize("n_units", [None, 0, 5])
def test_an_older_folder_of_a_topic_hides_no_message(copied: Golden, n_units: int | None) -> None:
    """As a broker leaves one that was changed to RocksDB."""
    name = "v55-rocksdb-cq"
    root = copied(name)
    queue = goldens.queues(name).popitem()[1]
    folder = root / "consumequeue" / queue[0]["topic"]
    folder.mkdir()
    if n_units is not None:
        file = folder / str(queue[0]["queueId"]) / f"{0:020d}"
        file.parent.mkdir()
        units = [unit(row["physicalOffset"])[:20] for row in queue[:n_units]]
        file.write_bytes(b"".join(units).ljust(400, b"\0"))
    with rmqstore.open(root) as store:
        assert len(read(store, columns="queueOffset")) == len(goldens.lines(name, "expected"))


def test_a_database_stays_open_for_who_holds_it(tmp_path: Path) -> None:
    units = {unit_key(b"T", 1, 0): unit(0)}
    offsets = {bound_key(b"T", b"max", 1): struct.pack(">qq", 0, 0)}
    roots = [tmp_path / str(number) for number in range(20)]
    for root in roots:
        write(root, units, offsets)
    known = RocksDbQueues.of(find_store(roots[0]))
    for root in roots:
        RocksDbQueues.of(find_store(root))
    assert RocksDbQueues.of(find_store(roots[0])) is not known, "no more than some stay open"
    assert RocksDbQueues.of(find_store(roots[0]), known) is known
    (roots[0] / "consumequeue" / "000099.log").touch()
    assert RocksDbQueues.of(find_store(roots[0]), known) is not known


def test_databases_of_two_storages_by_one_name_are_two(tmp_path: Path) -> None:
    """Such as one URI at two endpoints."""
    for number, name in enumerate("ab"):
        last = struct.pack(">qq", 0, 10 + number)
        write(tmp_path / name / "store", {}, {bound_key(b"T", b"max", 1): last})
    places = {}
    for name in "abab":
        filesystem = SubTreeFileSystem(str(tmp_path / name), LocalFileSystem())
        path, storage = locate("store", filesystem=filesystem)
        queues = RocksDbQueues.of(find_store(path, storage=storage))
        assert queues is not None
        assert queues.is_current(storage)
        places[name] = queues.bounds["T", 1].last
    assert places == {"a": 10, "b": 11}


def test_messages_follow_on_those_that_are_known() -> None:
    def logged(*pairs: tuple[int, int]) -> LoggedMessages:
        offsets, places = (np.array(column) for column in zip(*pairs, strict=True))
        return LoggedMessages(offsets, places, np.full(len(pairs), 9), np.zeros(len(pairs), int))

    known = logged((3, 30), (4, 40)).after(RecoveredUnits(3, np.empty(0, QUEUE_UNIT)))
    assert known is not None
    assert (known.start, known.end) == (3, 5)
    more = logged((4, 40), (5, 50)).after(known)
    assert more is not None
    assert more.units["physical_offset"].tolist() == [30, 40, 50]
    assert logged((3, 30), (4, 40)).after(known) is known
    for wrong in (
        logged((4, 41), (5, 50)),  # another record is there
        logged((6, 60)),  # a leap
        logged((5, 50), (7, 70)),
        logged((0, 500), (1, 501)),  # the topic was created again
    ):
        assert wrong.after(known) is None
