"""The index in RocksDB: every item is found, and databases that no broker wrote do no harm."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

import goldens
import tiers
from rmqstore.errors import CorruptDatabaseError
from rmqstore.storage import index_search as index_table
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.index_search import IndexTable, ItemKind, item_prefix
from rocksdb_index import HOUR, LAST_OFFSET, Items, item, items_of, write_index

START = 472_222 * HOUR
NOTHING: list[int] = []


def table_of(root: Path, items: Items) -> IndexTable:
    (root / "commitlog").mkdir(parents=True)
    write_index(root, items)
    found = IndexTable.of(find_store(root))
    assert found is not None
    return found


def prefix(name: str, kind: ItemKind = ItemKind.KEY, topic: str = "T") -> bytes:
    return item_prefix(topic, kind, name)


def test_the_test_writes_what_a_broker_writes(tmp_path: Path) -> None:
    for name in ("v55-index-rocksdb", "v55-live-rocksdb"):
        root = goldens.unpack(name, tmp_path)
        database = Rdict(
            str(root / "rocksdbstore"),
            Options(raw_mode=True),
            {family: Options(raw_mode=True) for family in ("default", "timer", "trans")},
        )
        stored = dict(database.items())
        database.close()
        records = [row for row in goldens.records(name) if row["sysFlag"] & 12 != 12]
        written = items_of(records)
        without_tags = {key: value for key, value in stored.items() if b"@T@" not in key}
        assert {key: value for key, value in written.items() if b"@T@" not in key} == without_tags


def test_each_kind_of_name_is_found_by_itself(tmp_path: Path) -> None:
    items = {
        item(START, "T", "K", "a@u1", 100): b"",
        item(START, "T", "U", "a", 200): b"",
        item(START, "T", "T", "a@u1", 300): b"",
        item(START, "T2", "K", "a@u1", 400): b"",
        item(START, "T", "K", "a@b@u1", 500): b"",  # also of key a and UNIQ_KEY b@u1
        item(START, "T", "K", "ab@u1", 600): b"",
        item(START + HOUR, "T", "K", "a@u1", 50): b"",
    }
    table = table_of(tmp_path, items)
    assert table.find([prefix("a")]).tolist() == [50, 100, 500]
    assert table.find([prefix("a@b")]).tolist() == [500]
    assert table.find([prefix("a", ItemKind.UNIQUE_KEY)]).tolist() == [200]
    assert table.find([prefix("a", ItemKind.TAGS)]).tolist() == [300]
    assert table.find([prefix("a", topic="T2"), prefix("ab")]).tolist() == [400, 600]
    assert table.find([prefix("c")]).tolist() == table.find([]).tolist() == NOTHING


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (START, START, [1]), (START + HOUR - 1, START + HOUR - 1, [1]),
        (START + HOUR, START + HOUR, [2]), (START + HOUR - 1, START + HOUR, [1, 2]),
        (START + 3 * HOUR, 1 << 63, NOTHING), (0, START - 1, NOTHING), (0, (1 << 63) - 1, [1, 2]),
    ],
)  # fmt: skip
def test_only_hours_that_times_may_lie_in_are_searched(
    tmp_path: Path, begin: int, end: int, expected: list[int]
) -> None:
    items = {item(START + HOUR * n, "T", "K", "a@u", n + 1): b"" for n in range(2)}
    assert table_of(tmp_path, items).find([prefix("a")], begin, end).tolist() == expected


def test_hours_of_a_time_zone_with_half_hours_are_met(tmp_path: Path) -> None:
    half = START + HOUR // 2
    table = table_of(tmp_path, {item(half, "T", "U", "u", 7): b""})
    prefixes = [prefix("u", ItemKind.UNIQUE_KEY)]
    for time, expected in ((half - 1, NOTHING), (half, [7]), (half + HOUR - 1, [7])):
        assert table.find(prefixes, time, time).tolist() == expected
        assert table.hour_of("T", "u", 7, time) == (half if expected else None)
    assert table.hour_of("T", "u", 8, half) is None
    assert table.hour_of("T", "v", 7, half) is None


@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_many_names_are_found_by_a_walk_as_by_seeks(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    names = [random_.choice(["", "@", "é", "k"]) + str(number) for number in range(40)]
    items = {
        item(
            START + HOUR * random_.randrange(5),
            random_.choice(["T", "T2"]),
            random_.choice("KTU"),
            random_.choice(names) + random_.choice(["", "@u", "@u@v"]),
            random_.randrange(1 << 40),
        ): b""
        for _ in range(300)
    }
    table = table_of(tmp_path, items)
    every = [
        prefix(name, kind, topic) for name in names for kind in ItemKind for topic in ("T", "T2")
    ]
    assert len(every) * 5 > table._database.n_entries
    by_walk = table.find(every, START + HOUR, START + 4 * HOUR - 1)
    hours = [START + HOUR * n for n in range(1, 4)]
    by_seeks = {struct.unpack(">q", key[-8:])[0] for key in table._of_each(hours, every)}
    assert by_walk.tolist() == sorted(by_seeks)
    assert len(by_walk) > 100


def test_a_key_may_have_any_form(tmp_path: Path) -> None:
    valid = item(START, "T", "K", "a@u", 5)
    random_ = random.Random(0)
    items = {random_.randbytes(length): b"x" for length in range(1, 60)}
    items |= {
        valid: b"any value",
        valid[:-1]: b"",
        valid[:20]: b"",
        valid[:8]: b"",
        b"": b"",
        b"\0" * 8: b"",
        b"\xff" * 8 + valid[8:]: b"",  # an hour before all times
        b"\x7f" + b"\xff" * 7 + valid[8:]: b"",  # and one after them
        valid[:-8] + struct.pack(">q", -1): b"",
        valid[:8] + b"@" * 70_000: b"",
    }
    table = table_of(tmp_path, items)
    cut = int.from_bytes(valid[-9:-1])  # no item, but the records decide
    assert table.find([prefix("a")]).tolist() == [-1, 5, cut]
    many = [prefix("a"), *(prefix(str(number)) for number in range(200))]
    assert table.find(many).tolist() == [-1, 5, cut]
    assert table.hour_of("T", "u", 5, START) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (struct.pack(">q", 5), 5), (struct.pack(">q", -7), -7),
        (b"\x7f" + b"\xff" * 7, (1 << 63) - 1), (b"", -1), (b"short", -1), (bytes(9), -1),
        (None, -1),
    ],
)  # fmt: skip
def test_the_end_of_the_table_may_be_any_value(
    tmp_path: Path, value: bytes | None, expected: int
) -> None:
    items = {item(START, "T", "U", "u", 5): b""}
    if value is not None:
        items[LAST_OFFSET] = value
    assert table_of(tmp_path, items).last_offset == expected


def test_more_hours_than_a_broker_writes_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_table, "_MAX_HOURS", 10)
    (tmp_path / "s/commitlog").mkdir(parents=True)
    write_index(tmp_path / "s", {struct.pack(">q", n) + b"@": b"" for n in range(1, 12)})
    with pytest.raises(CorruptDatabaseError, match="more than 10 hours"):
        IndexTable.of(find_store(tmp_path / "s"))


def test_items_may_be_missing_between_hours_that_are_a_week_apart(tmp_path: Path) -> None:
    hours = [START + HOUR * n for n in (0, 100, 300, 301)]
    table = table_of(tmp_path, {item(hour, "T", "U", "u", 1): b"" for hour in hours})
    assert table.may_lack_hours((hours[0], hours[2]))
    assert table.may_lack_hours((hours[3], hours[1]))
    assert not table.may_lack_hours((hours[0], hours[1]))
    assert not table.may_lack_hours((hours[2], hours[2]))


def test_an_empty_database_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_table, "open_rocksdb", None)
    for name in ("v55-edges", "v55-live-lite"):
        assert IndexTable.of(find_store(goldens.unpack(name, tmp_path))) is None


def test_a_database_without_items_and_a_missing_library_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = goldens.unpack("v55-index-rocksdb", tmp_path)
    assert IndexTable.of(find_store(root)) is not None
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert IndexTable.of(find_store(root)) is None
    monkeypatch.undo()
    write_index(root, {b"something": b"else"})
    table = IndexTable.of(find_store(root))
    assert table is None or not len(table.find([prefix("a")]))
