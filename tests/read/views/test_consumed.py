"""View consumed: messages against the offsets that groups have committed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from mutations import overwrite
from reading import Row, rows
from rmqstore.errors import CorruptConfigError, OptionError
from rmqstore.read.split import Limits
from rmqstore.read.views.catalogue import plan_view
from rmqstore.read.views.schema import view_spec
from rmqstore.store.opening import open_for

KEY = ("topic", "queueId", "queueOffset", "consumerGroup")


def view(path: Path, **options: Any) -> list[Row]:
    with rmqstore.open(path) as store:
        return rows(store.view("consumed", **options))


def committed_of(root: Path) -> dict[str, dict[str, dict[int, int]]]:
    """Return the offsets in the broker's file by topic and group."""
    text = (root / "config" / "consumerOffset.json").read_text()
    # fastjson writes queue ids without quotes
    stored = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', text))["offsetTable"]
    by_topic: dict[str, dict[str, dict[int, int]]] = {}
    for key, offsets in stored.items():
        topic, group = key.split("@")
        by_queue = {int(number): offset for number, offset in offsets.items()}
        by_topic.setdefault(topic, {})[group] = by_queue
    return by_topic


def test_each_message_is_held_against_each_group(golden_store: Golden) -> None:
    root = golden_store("live")
    committed = committed_of(root)
    expected = []
    for row in goldens.lines("live", "expected"):
        groups: dict[str | None, dict[int, int]] = {**committed.get(row["topic"], {})}
        for group, offsets in (groups or {None: {}}).items():
            offset = offsets.get(row["queueId"])
            key = (row["topic"], row["queueId"], row["queueOffset"], group)
            is_passed = offset is not None and offset > row["queueOffset"]
            expected.append((*key, offset, is_passed, row["physicalOffset"], row["storeTimestamp"]))
    found = view(root, include_system_topics=True)
    shown = [
        tuple(row[name] for name in (*KEY, "consumerOffset", "isPassed", "commitLogOffset",
                                     "storeTimestamp"))
        for row in found
    ]  # fmt: skip
    assert sorted(shown, key=str) == sorted(expected, key=str)
    assert not any(row["reason"] for row in found)
    user = view(root)
    assert user == [row for row in found if row["topic"].startswith("Live")]


def test_a_group_and_bounds_choose_rows(golden_store: Golden) -> None:
    root = golden_store("live")
    every = view(root)
    part = view(root, consumer_group="CG_part")
    assert part == [row for row in every if row["consumerGroup"] == "CG_part"]
    assert {row["topic"] for row in part} == {"LivePlain"}
    ahead = view(root, consumer_group="CG_part", starting_offsets="group:CG_part")
    assert sorted(ahead, key=str) == sorted((row for row in part if not row["isPassed"]), key=str)
    with pytest.raises(OptionError, match="no consumer group nobody"):
        view(root, consumer_group="nobody")
    assert {row["queueId"] for row in view(root, assign={"LivePlain": [1]})} == {1}
    cut = every[100]["storeTimestamp"]
    assert len(view(root, ending_timestamp=cut)) + len(view(root, starting_timestamp=cut)) == (
        len(every)
    )
    assert view(root, columns="isPassed", subscribe="LiveTx") == [{"isPassed": False}] * 6
    with pytest.raises(OptionError, match="no topic Nope"):
        view(root, subscribe="Nope")
    assert view_spec("consumed", consumer_group="g").consumer_group == "g"


def test_a_queue_without_an_offset_has_not_been_passed(copied: Golden) -> None:
    root = copied("live")
    table = {"LivePlain@one": {0: 3}, "LivePlain@two": {1: 5, 77: 9}, "Gone@one": {0: 1}}
    build.write_offsets(root, table)
    found = view(root, subscribe="LivePlain")
    assert len(found) == 2 * 210
    passed = [tuple(row[name] for name in KEY[1:]) for row in found if row["isPassed"]]
    assert sorted(passed) == [
        *((0, offset, "one") for offset in range(3)), *((1, offset, "two") for offset in range(5))
    ]  # fmt: skip
    assert {row["consumerOffset"] for row in found if row["queueId"] > 1} == {None}


@pytest.mark.parametrize("committed", [(1 << 63) - 1, 1 << 63, 1 << 70])
def test_an_offset_that_no_queue_reaches_gives_no_lag(copied: Golden, committed: int) -> None:
    root = copied("live")
    build.write_offsets(root, {"LivePlain@one": {0: committed, 1: 5}})
    with rmqstore.open(root) as store:
        first, second = store.view("groups").read_all().to_pylist()
        assert store.view("consumed", subscribe="LivePlain").read_all().num_rows > 0
    assert (first["consumerOffset"], first["lag"], first["lagMillis"]) == (None, None, None)
    assert "9223372036854775807 or more, to which no queue comes" in first["reason"]
    assert (second["consumerOffset"], second["lag"], second["reason"]) == (5, 48, None)


def test_offsets_are_those_of_the_plan(copied: Golden) -> None:
    root = copied("live")
    spec = view_spec("consumed", subscribe="LivePlain")
    with open_for(root) as store:
        parts = plan_view(store.parts, spec, Limits(10_000))
    before = view(root, subscribe="LivePlain")
    (root / "config" / "consumerOffset.json").unlink()
    found = []
    for part in parts:
        with open_for(root) as store:
            found += rows(part.read(store.parts, spec))
    assert len(parts) > 3
    assert sorted(found, key=str) == sorted(before, key=str)
    # each piece is a part of the log over all queues
    places = [row["commitLogOffset"] for row in found]
    assert places == sorted(places)


def test_damage_has_the_reason_and_the_groups(copied: Golden) -> None:
    root = copied("live")
    row = view(root, subscribe="LivePlain")[0]
    log = root / "commitlog" / f"{0:020d}"
    overwrite(log, row["commitLogOffset"] + 100, b"\xff\x00\xff")
    damaged = [row for row in view(root, subscribe="LivePlain") if row["reason"]]
    assert [row["consumerGroup"] for row in damaged] == ["CG_part", "CG_sql"]
    assert {(row["queueId"], row["queueOffset"]) for row in damaged} == {(0, 0)}
    assert all(row["isPassed"] for row in damaged)
    (root / "config" / "consumerOffset.json").write_text("[1]")
    (root / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    with pytest.raises(CorruptConfigError):
        view(root)
