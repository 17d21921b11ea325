"""Queues with extension units, as RocketMQ wrote them and damaged."""

from __future__ import annotations

import json
import random
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from reading import read
from rmqstore.errors import CorruptQueueError, RmqStoreError
from rmqstore.format.hashing import bit_positions
from rmqstore.inspect.verify import verify
from rmqstore.storage.files.mapped_file_queue import OpenFiles
from rmqstore.storage.queue.consumequeue import ConsumeQueueExt
from written import require_valid

NAME = "cq-ext"


def rows_of(topic: str, queue_id: int) -> list[dict[str, Any]]:
    return goldens.queues(NAME)[topic, queue_id]


def addresses(rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(
        [int.from_bytes(bytes.fromhex(row["cqUnitHex"])[12:], signed=True) for row in rows],
        np.int64,
    )


@pytest.fixture
def copied(golden_store: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_store(NAME), tmp_path / "s"))


@pytest.mark.parametrize("queue", sorted(goldens.queues(NAME)))
def test_units_are_those_rocketmq_reads(golden_store: Golden, queue: tuple[str, int]) -> None:
    rows = rows_of(*queue)
    assert rows
    order = random.Random(1).sample(range(len(rows)), len(rows))  # across files, in any order
    folder = golden_store(NAME) / "consumequeue_ext" / queue[0] / str(queue[1])
    ext = ConsumeQueueExt([folder], OpenFiles())
    unit_addresses = addresses([rows[at] for at in order])
    found, maps = ext.units(unit_addresses), ext.bit_maps(unit_addresses).to_pylist()
    assert found.valid.all()
    expected = [rows[at]["ext"] for at in order]
    assert found.tags_codes.tolist() == [unit["tagsCode"] for unit in expected]
    assert found.store_timestamps.tolist() == [unit["msgStoreTime"] for unit in expected]
    assert (found.bit_map_sizes + 20).tolist() == [unit["size"] for unit in expected]
    assert [one and one.hex() for one in maps] == [unit.get("filterBitMapHex") for unit in expected]


def test_groups_are_matched_by_the_bits_of_the_unit(golden_store: Golden) -> None:
    """The store's groups are unknown: one is invented whose bits are in the fullest bit map."""
    maps = {
        row["queueOffset"]: bytes.fromhex(row["ext"]["filterBitMapHex"])
        for row in rows_of("ExtA", 0)
    }
    held = {
        at: {bit for bit in range(8 * len(bits)) if bits[bit // 8] & 1 << bit % 8}
        for at, bits in maps.items()
    }
    fullest, n_bits = max(held.values(), key=len), 8 * len(maps[0])
    made_up = (f"group{number}" for number in count())
    group = next(one for one in made_up if set(bit_positions(one, "ExtA", n_bits)) <= fullest)
    bits = set(bit_positions(group, "ExtA", n_bits))
    groups = ["other", group]
    with rmqstore.open(golden_store(NAME)) as store:
        found = {at: store.matched_groups("ExtA", 0, at, groups) for at in maps}
        assert found == {at: [group] if bits <= held[at] else [] for at in maps}
        assert [group] in found.values()
        assert [] in found.values()
        assert store.matched_groups("ExtC", 0, 0, groups) is None  # no filter, so no bit map
        assert store.matched_groups("ExtA", 0, 0) == []  # no group is registered


def test_a_store_without_extension_knows_no_groups(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        assert store.parts.config.filter_groups("LivePlain") == {"CG_sql": 1795227427517}
        assert store.matched_groups("LivePlain", 0, 0) is None


def test_what_was_stored_before_a_filter_was_registered_may_match(copied: Path) -> None:
    row = next(
        row for row in rows_of("ExtA", 0) if not any(bytes.fromhex(row["ext"]["filterBitMapHex"]))
    )
    (copied / "config").mkdir(exist_ok=True)
    stored_ms = row["ext"]["msgStoreTime"]
    groups = {"old": {"bornTime": stored_ms - 1}, "new": {"bornTime": stored_ms}}
    filters = {"filterDataByTopic": {"ExtA": {"groupFilterData": groups}}}
    (copied / "config/consumerFilter.json").write_text(json.dumps(filters), encoding="utf-8")
    with rmqstore.open(copied) as store:
        assert store.matched_groups("ExtA", 0, row["queueOffset"]) == ["new"]


def _damage(root: Path) -> tuple[dict[str, Any], Path, int]:
    """Damage the size of one unit; return its message, its file and its position there."""
    row = next(row for row in rows_of("ExtA", 1)[5:] if row["tags"])
    offset = int(addresses([row])[0] & (1 << 63) - 1)
    path = root / "consumequeue_ext/ExtA/1" / f"{0:020d}"
    assert offset < 2048
    data = bytearray(path.read_bytes())
    data[offset + 1] ^= 0x40
    path.write_bytes(data)
    return row, path, offset


def test_a_damaged_unit_costs_its_code_only(copied: Path) -> None:
    row, path, offset = _damage(copied)
    columns = ["commitLogOffset", "tags", "tagsCode"]
    with rmqstore.open(copied) as store:
        with pytest.raises(CorruptQueueError, match="leave column tagsCode out") as caught:
            read(store, columns=columns)
        assert (caught.value.path, caught.value.offset) == (str(path), offset)
        dropped = read(store, columns=columns, mode="DROPMALFORMED")
        kept = read(store, columns=columns, mode="PERMISSIVE")
        whole = read(store, columns=columns[:2])
        tagged = read(store, columns=columns[:1], tags=row["tags"])
    everything = {
        line["physicalOffset"]: line["tagsCode"] for line in goldens.lines(NAME, "expected")
    }
    lost = row["physicalOffset"]
    assert {one["commitLogOffset"]: one["tagsCode"] for one in dropped} == {
        at: code for at, code in everything.items() if at != lost
    }
    assert {one["commitLogOffset"]: one["tagsCode"] for one in kept} == everything | {lost: None}
    assert [one["commitLogOffset"] for one in kept if one["_corrupt_record"]] == [lost]
    assert len(whole) == len(everything)
    expected = [
        line["physicalOffset"]
        for line in goldens.lines(NAME, "expected")
        if line["tags"] == row["tags"]
    ]
    assert sorted(one["commitLogOffset"] for one in tagged) == sorted(expected)


def test_verify_looks_into_the_extension(copied: Path) -> None:
    require_valid(copied)
    row, _, _ = _damage(copied)
    with rmqstore.open(copied) as store:
        (found,) = verify(store)
    assert (found.part, found.place) == ("queue", "ExtA-1")
    assert f"queue offset {row['queueOffset']} lead to no unit of the extension" in found.text


def test_without_its_files_an_extended_queue_is_read_without_codes(copied: Path) -> None:
    shutil.rmtree(copied / "consumequeue_ext")
    with rmqstore.open(copied) as store:
        assert len(read(store, columns="tags")) == len(goldens.lines(NAME, "expected"))
        kept = read(store, columns="tagsCode", mode="PERMISSIVE")
        assert {row["tagsCode"] for row in kept} == {None}
        with pytest.raises(CorruptQueueError, match="consumequeue_ext"):
            read(store, columns="tagsCode")


@pytest.mark.parametrize("step", tiers.sampled(4, 1))
def test_changed_and_cut_bytes_never_escape(copied: Path, step: int) -> None:
    """Every byte of one file, and cuts: each row is a message of the store; errors are our own."""
    columns = "commitLogOffset,tagsCode,queueId"
    path = copied / "consumequeue_ext/ExtB/0" / f"{0:020d}"
    valid, rng = path.read_bytes(), random.Random(7)
    rows = rows_of("ExtB", 0)
    unit_addresses = addresses(rows)
    hostile = np.concatenate((unit_addresses, [-(1 << 63), -(1 << 31) - 1, -(1 << 40)]))
    places = {row["physicalOffset"] for row in rows}
    for at in range(0, len(valid.rstrip(b"\0")), step):
        data = bytearray(valid)
        data[at] ^= rng.randrange(1, 256)
        if at % 3 == 0:
            del data[rng.randrange(len(data)) :]
        path.with_name("fresh").write_bytes(data)
        path.with_name("fresh").replace(path)
        ext = ConsumeQueueExt([path.parent], OpenFiles())
        found, maps = ext.units(hostile), ext.bit_maps(hostile)
        ext.close()
        assert found.bit_map_sizes.max() <= len(data)
        assert all(one is None or one in data for one in maps.to_pylist())
        if at % 64:
            continue
        with rmqstore.open(copied) as store:
            for mode in ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"):
                try:
                    got = read(store, subscribe="ExtB", columns=columns, mode=mode)
                except RmqStoreError:
                    assert mode == "FAILFAST"
                    continue
                assert {row["commitLogOffset"] for row in got if row["queueId"] == 0} <= places
