"""How many bytes of a log a read fetches from a remote storage: little more than it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import pytest

import rmqstore
import store_builder as build
from memory_storage import MemoryStorage
from reading import read
from rmqstore.format.layout import FIXED_PART_V4, FRAME_HEAD
from rmqstore.storage.log import walks
from rmqstore.storage.log.commitlog import CommitLog

SEGMENT_BYTES = 1 << 20
RARE = range(0, 900, 300)  # numbers of the messages of the small topic


def _large(folder: Path) -> MemoryStorage:
    """Return a store with one large segment, in which a topic has few messages, far apart."""
    store = build.Store(segment_bytes=SEGMENT_BYTES, units_per_file=1000)
    for number in range(900):
        topic = "Rare" if number in RARE else "Busy"
        store.append(
            build.Record(topic=topic, body=b"%d" % number * 300, store_timestamp=build.T0 + number)
        )
    return MemoryStorage(store.write(folder / "store"))


def _of_log(counts: Mapping[Path, int]) -> int:
    return sum(count for path, count in counts.items() if path.parent.name == "commitlog")


def test_a_small_topic_is_fetched_without_the_records_between_its_own(tmp_path: Path) -> None:
    storage = _large(tmp_path)
    with rmqstore.open(storage.root, storage=storage) as store:
        store.topics()
        storage.n_read.clear()
        storage.n_requests.clear()
        rows = read(store, subscribe="Rare")
    assert len(rows) == len(RARE)
    assert _of_log(storage.n_read) == sum(row["storeSize"] for row in rows)
    assert _of_log(storage.n_requests) == 1


def test_a_slow_storage_is_waited_for_once_where_requests_go_together(tmp_path: Path) -> None:
    delay = 0.2
    fast = _large(tmp_path)
    slow = MemoryStorage(tmp_path / "store", delay)
    rows = []
    for storage in (fast, slow):
        with rmqstore.open(storage.root, storage=storage) as store:
            store.topics()
            storage.n_requests.clear()
            began = monotonic()
            rows.append(read(store, subscribe="Rare", columns="topic,queueOffset,body"))
    n_requests = sum(slow.n_requests.values())
    assert rows[0] == rows[1]
    assert slow.n_requests == fast.n_requests
    assert n_requests < 20
    assert monotonic() - began >= n_requests * delay


def test_records_of_message_ids_are_fetched_together(tmp_path: Path) -> None:
    storage = _large(tmp_path)
    with rmqstore.open(storage.root, storage=storage) as store:
        messages = read(store, subscribe="Rare", columns=["offsetMsgId", "storeSize"])
        ids = [row["offsetMsgId"] for row in messages]
        storage.n_read.clear()
        storage.n_requests.clear()
        assert len(read(store, scan="commitlog", msg_id=ids, index_only=True)) == len(RARE)
    headers_and_records = len(RARE) * FIXED_PART_V4.itemsize + sum(
        row["storeSize"] for row in messages
    )
    assert _of_log(storage.n_read) < SEGMENT_BYTES // 4
    assert _of_log(storage.n_read) >= headers_and_records
    assert _of_log(storage.n_requests) < 8


def test_a_time_window_is_fetched_without_the_rest_of_its_segment(tmp_path: Path) -> None:
    storage = _large(tmp_path)
    times = {"starting_timestamp": build.T0 + 400, "ending_timestamp": build.T0 + 404}
    with rmqstore.open(storage.root, storage=storage) as store:
        rows = read(store, subscribe="Busy", **times)
    assert {row["storeTimestamp"] - build.T0 for row in rows} >= {400, 401, 402, 403}
    assert _of_log(storage.n_read) < SEGMENT_BYTES // 4


def test_the_end_of_a_log_is_found_without_its_first_records(tmp_path: Path) -> None:
    storage = _large(tmp_path)
    log = CommitLog([storage.root / "commitlog"], storage=storage)
    (segment,) = log.segments
    storage.n_read.clear()
    window = next(
        walks.walk_back(
            log, segment, segment.start + log.file_of(segment).written_end(segment.size)
        )
    )
    assert window.records.starts[0] > 0
    assert _of_log(storage.n_read) < 4 * walks.NEWEST_BYTES


@pytest.mark.parametrize("reach", [0, 64, 1 << 16])
@pytest.mark.parametrize("window_bytes", [1, 1000, 1 << 16])
def test_records_that_end_after_a_window_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int, reach: int
) -> None:
    storage = _small(tmp_path, damaged_size=0)
    expected = _records(storage)
    monkeypatch.setattr(walks, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(walks, "_OVERHANG_BYTES", FRAME_HEAD.itemsize + reach)
    assert len(expected) == 12
    assert _records(storage) == expected


@pytest.mark.parametrize("damaged_size", [400, 555, 1300, 3000])
@pytest.mark.parametrize("window_bytes", [1, 300, 1000])
def test_records_that_a_damaged_size_hides_are_found_over_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int, damaged_size: int
) -> None:
    """A record that was stepped over may end after the window that it was stepped over in."""
    storage = _small(tmp_path, damaged_size)
    monkeypatch.setattr(walks, "WINDOW_BYTES", window_bytes)
    expected = read(tmp_path / "store", scan="commitlog", mode="DROPMALFORMED")
    monkeypatch.setattr(walks, "_OVERHANG_BYTES", FRAME_HEAD.itemsize)
    with rmqstore.open(storage.root, storage=storage) as store:
        assert read(store, scan="commitlog", mode="DROPMALFORMED") == expected
    assert len(expected) >= 10


def _small(folder: Path, damaged_size: int) -> MemoryStorage:
    """Return a store of twelve 400-byte records; a size other than 0 is that of the third one."""
    store = build.Store(segment_bytes=8192)
    for number in range(12):
        store.append(build.Record(body=b"%02d" % number * 150))
    if damaged_size:
        store.put(store.placed[2].physical_offset, damaged_size.to_bytes(4))
    return MemoryStorage(store.write(folder / "store"))


def _records(storage: MemoryStorage) -> list[bytes]:
    """Return the bodies of the records that a walk finds, read from what its windows hold."""
    log = CommitLog([storage.root / "commitlog"], storage=storage)
    (segment,) = log.segments
    bodies = []
    for window in walks.walk_forward(log, segment, 0, segment.end):
        for _, headers, whole in window.headers():
            assert whole.all()
            spans = zip(headers.body_starts.tolist(), headers.body_lengths.tolist(), strict=True)
            bodies += [window.data[start : start + length].tobytes() for start, length in spans]
    return bodies
