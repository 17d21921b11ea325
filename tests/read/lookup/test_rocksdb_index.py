"""Look-ups where a broker keeps the index in RocksDB, judged by the records of the log."""

from __future__ import annotations

import logging
import os
import random
import shutil
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from mutations import damage
from reading import column, offsets, read
from rmqstore.query.selection import parse_lookup_keys, parse_selection
from rmqstore.read.reading import find_by_keys
from rmqstore.spans import Span
from rmqstore.storage.index_search import IndexTable
from rocksdb_index import HOUR, LAST_OFFSET, Items, item, items_of, write_index

Places = dict[str, list[int]]
NAME = "v55-index-rocksdb"  # no index files
BOTH = "v55-live-rocksdb"  # index files too
ROLLBACK = 12


@pytest.fixture
def root(golden_store: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_store(NAME), tmp_path / "s"))


@pytest.fixture(params=[NAME, BOTH])
def store_by_rocksdb(
    request: pytest.FixtureRequest, golden_store: Golden, tmp_path: Path
) -> tuple[str, Path]:
    """A store and its root, without index files."""
    copy = Path(shutil.copytree(golden_store(request.param), tmp_path / "s"))
    shutil.rmtree(copy / "index", ignore_errors=True)
    return request.param, copy


def records(name: str = NAME) -> list[dict[str, Any]]:
    return [row for row in goldens.records(name) if row["sysFlag"] & ROLLBACK != ROLLBACK]


def topics_of(name: str = NAME) -> list[str]:
    return sorted({row["topic"] for row in records(name)})


def places_by_id(name: str = NAME) -> Places:
    found: Places = defaultdict(list)
    for row in records(name):
        if row["uniqKey"]:
            found[row["uniqKey"]].append(row["physicalOffset"])
    return found


def places_by_key(name: str = NAME) -> Places:
    found: Places = defaultdict(list)
    for row in records(name):
        for key in {row["uniqKey"], *(row["keys"] or "").split(" ")} - {None, ""}:
            found[key].append(row["physicalOffset"])
    return found


def uncovered(root: Path, **wanted: Any) -> list[Span]:
    with rmqstore.open(root) as store:
        selection = parse_selection(subscribe=topics_of())
        return find_by_keys(store.parts, parse_lookup_keys(**wanted), selection).uncovered


def assert_all_ids_are_found(root: Path, name: str = NAME) -> None:
    by_id = places_by_id(name)
    every = sorted(place for places in by_id.values() for place in places)
    with rmqstore.open(root) as store:
        options = {"subscribe": topics_of(name), "columns": "commitLogOffset"}
        assert offsets(read(store, msg_id=sorted(by_id), **options)) == every
        for msg_id in sorted(by_id)[::20]:
            assert offsets(read(store, msg_id=msg_id, **options)) == by_id[msg_id]


def test_ids_are_found_by_the_index_alone(store_by_rocksdb: tuple[str, Path]) -> None:
    name, root = store_by_rocksdb
    by_id = places_by_id(name)
    assert_all_ids_are_found(root, name)
    with rmqstore.open(root) as store:
        options = {"subscribe": topics_of(name), "columns": "commitLogOffset", "index_only": True}
        every = sorted(place for places in by_id.values() for place in places)
        assert offsets(read(store, msg_id=sorted(by_id), **options)) == every
        for msg_id in sorted(by_id)[::10]:
            assert offsets(read(store, msg_id=msg_id, **options)) == by_id[msg_id]


def test_only_records_after_the_last_indexed_one_are_read_for_an_id(root: Path) -> None:
    last = max(row["physicalOffset"] for row in records() if row["uniqKey"])
    after = min(row["physicalOffset"] for row in records() if row["physicalOffset"] > last)
    end = goldens.summary(NAME)["maxPhyOffset"]
    assert uncovered(root, msg_id="x") == [Span(after, end)]


def test_a_key_is_answered_by_the_index_and_the_rest_of_the_log_is_named(
    store_by_rocksdb: tuple[str, Path],
) -> None:
    name, root = store_by_rocksdb
    by_row = {row["physicalOffset"]: row for row in records(name)}
    n_without_id = 0
    with rmqstore.open(root) as store:
        for key, places in sorted(places_by_key(name).items())[::7]:
            topic = by_row[places[0]]["topic"]
            own = [place for place in places if by_row[place]["topic"] == topic]
            indexed = [place for place in own if by_row[place]["uniqKey"]]
            found = store.query(topic, key)
            assert [message.commitLogOffset for message in found] == indexed
            assert not found.is_complete
            n_without_id += indexed != own
            scanned = store.query(topic, key, scan_uncovered=True)
            assert [message.commitLogOffset for message in scanned] == own
            assert scanned.is_complete
    assert bool(n_without_id) == (name == NAME)


def test_a_scan_by_keys_reads_the_log_unless_only_the_index_is_asked_for(root: Path) -> None:
    keys = sorted(places_by_key())
    every = sorted({place for places in places_by_key().values() for place in places})
    indexed = sorted(row["physicalOffset"] for row in records() if row["uniqKey"])
    assert set(indexed) < set(every)
    with rmqstore.open(root) as store:
        options = {"subscribe": topics_of(), "columns": "commitLogOffset", "msg_key": keys}
        assert offsets(read(store, **options)) == every
        assert offsets(read(store, index_only=True, **options)) == indexed


def test_times_and_limits_hold(copied: Golden) -> None:
    root = copied(BOTH)
    shutil.rmtree(root / "index")
    topic, key = "LiveBatch", "b-0"
    own = {
        row["physicalOffset"]: row["storeTimestamp"]
        for row in records(BOTH)
        if row["topic"] == topic and key in (row["keys"] or "").split(" ")
    }
    stored = sorted(own.values())
    begin, end = stored[len(stored) // 4], stored[-1] - 1
    right = [place for place, time in own.items() if begin <= time <= end]
    assert 1 < len(right) < len(own)
    with rmqstore.open(root) as store:
        for limit in (None, 1, 2):
            found = store.query(topic, key, begin, end, limit)
            assert [m.commitLogOffset for m in found] == right[-(limit or 0) :]


def test_tags_are_found_by_the_index_where_only_it_is_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore.read.reading.tagged_offsets", lambda *_: None)
    rows = [row for row in goldens.lines(NAME, "expected") if row["tags"]]
    ids = {row["physicalOffset"] for row in records() if row["uniqKey"]}
    tags = sorted({row["tags"] for row in rows})
    with rmqstore.open(root) as store:
        options = {"subscribe": topics_of(), "columns": "commitLogOffset", "msg_tags": tags}
        found = offsets(read(store, index_only=True, **options))
    assert set(found) >= {row["physicalOffset"] for row in rows} & ids
    assert set(found) <= ids


def test_index_files_stay_the_way(golden_store: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexTable, "of", None)
    assert_all_ids_are_found(golden_store(BOTH), BOTH)


def test_without_the_library_the_log_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    end = goldens.summary(NAME)["maxPhyOffset"]
    assert uncovered(root, msg_id="x") == uncovered(root, msg_key="x") == [Span(0, end)]
    assert_all_ids_are_found(root)


def without_items(items: Items, low: int, high: int) -> Items:
    """Return what is left without the items of a part of the log."""
    return {
        key: value
        for key, value in items.items()
        if key.startswith(b"last") or not low <= struct.unpack(">q", key[-8:])[0] < high
    }


@pytest.mark.parametrize("seed", tiers.seeds(6))
def test_what_was_stored_while_the_index_was_off_is_read_from_the_log(
    root: Path, seed: int
) -> None:
    """As far as it is not within one file, between two records that the index has."""
    items, file_size = items_of(records()), 65536
    some = [row["physicalOffset"] for row in records() if row["uniqKey"]]
    low, high = [
        (0, file_size),  # switched on with the second file
        (0, some[len(some) // 2]),  # within the first file
        (file_size, some[-1] + 1),  # all of the last file, though lastOffsetPy says otherwise
        (0, some[-1] + 1),
        (some[0], some[0] + 1),
        (some[-1], some[-1] + 1),
    ][seed]
    write_index(root, without_items(items, low, high) | {item(HOUR, "T", "U", "u", 0): b""})
    assert_all_ids_are_found(root)


def test_nothing_is_covered_across_hours_whose_items_may_have_been_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(IndexTable, "may_lack_hours", lambda _, hours: asked.append(hours) or True)
    assert uncovered(root, msg_id="x") == [Span(0, goldens.summary(NAME)["maxPhyOffset"])]
    hour = records()[0]["storeTimestamp"] // HOUR * HOUR
    assert asked == [(hour, hour)] * 2
    assert_all_ids_are_found(root)


@pytest.mark.parametrize("last", [-1, -(1 << 63), (1 << 63) - 1, 1 << 40, 65536, 131072, 17, None])
def test_an_index_that_ends_at_no_record_of_the_log_does_not_hide_any(
    root: Path, last: int | None
) -> None:
    items = items_of(records())
    missing = max(row["physicalOffset"] for row in records() if row["uniqKey"])
    items = without_items(items, missing, missing + 1)
    del items[LAST_OFFSET]
    if last is not None:
        items[LAST_OFFSET] = struct.pack(">q", last)
    write_index(root, items)
    assert_all_ids_are_found(root)


def test_items_that_lead_elsewhere_find_nothing_but_what_matches(root: Path) -> None:
    random_ = random.Random(3)
    rows = [row for row in records() if row["uniqKey"]]
    places = [0, 1, 17, -1, -(1 << 63), (1 << 63) - 1, 1 << 40, 65536, 65530]
    places += [row["physicalOffset"] + random_.choice([0, 0, 1, -1]) for row in rows]
    items = items_of(records())
    for row in rows:
        hour = row["storeTimestamp"] // HOUR * HOUR
        for place in random_.sample(places, 5):
            items[item(hour, row["topic"], "U", row["uniqKey"], place)] = b"time"
            items[item(hour, row["topic"], "K", f"{row['uniqKey']}@x", place)] = b""
    write_index(root, items)
    assert_all_ids_are_found(root)
    by_key = places_by_key()
    with rmqstore.open(root) as store:
        for row in rows[::15]:
            found = store.query(row["topic"], row["uniqKey"])
            assert {m.commitLogOffset for m in found} <= set(by_key[row["uniqKey"]])


@pytest.mark.parametrize("seed", tiers.split(range(300), 12))
def test_damage_in_any_file_of_the_database_loses_no_record(root: Path, seed: int) -> None:
    random_ = random.Random(seed)
    files = [path for path in sorted((root / "rocksdbstore").iterdir()) if path.stat().st_size]
    path = random_.choice(files)
    path.write_bytes(damage(path.read_bytes(), random_))
    assert_all_ids_are_found(root)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_database_that_cannot_be_opened_is_named(
    root: Path, is_file: bool, caplog: pytest.LogCaptureFixture
) -> None:
    current = root / "rocksdbstore/CURRENT"
    if is_file:
        current.write_text("MANIFEST-000099\n")
    else:
        current.unlink()
        current.symlink_to("/dev/zero")
    with caplog.at_level(logging.WARNING):
        assert_all_ids_are_found(root)
    assert f"{root}/rocksdbstore" in caplog.text
    assert "is not used" in caplog.text


def put_file(path: Path) -> None:
    path.write_text("x")


def put_loop(path: Path) -> None:
    path.symlink_to(path.name)


def put_empty_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("put", [os.mkfifo, put_file, put_loop, put_empty_folder])
@pytest.mark.parametrize("name", ["rocksdbstore", "rocksdbstore/000013.sst"])
def test_whatever_is_in_the_place_of_the_database_loses_no_record(
    root: Path, name: str, put: Callable[[Path], None]
) -> None:
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    put(path)
    assert_all_ids_are_found(root)


def test_a_condition_on_an_id_is_pruned_by_the_index(root: Path) -> None:
    in_queues = {row["physicalOffset"] for row in goldens.lines(NAME, "expected")}
    with rmqstore.open(root) as store:
        for msg_id, places in sorted(places_by_id().items())[::25]:
            found = column(store, "commitLogOffset", where=f"msgId = '{msg_id}'")
            assert sorted(found) == [place for place in places if place in in_queues]
        for key, places in sorted(places_by_key().items())[::25]:
            rows = read(store, where=f"keys = '{key}'", columns="commitLogOffset,keys")
            assert {row["commitLogOffset"] for row in rows} <= set(places)
            assert len(rows) == sum(row["keys"] == key for row in records())
