"""View deadLetters: the copies that real brokers made, with their origin; damage; pieces."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from mutations import overwrite
from reading import Row, rows
from rmqstore.errors import OptionError
from rmqstore.format.columns.property_decode import KnownNames, origin_of
from rmqstore.format.schema import PROPERTIES
from rmqstore.read.views.dead_letters import origins
from rmqstore.read.views.schema import view_spec
from tier_builder import stored_messages, write_tier

NAMES = ("live", "v55-live-lite")


def view(path: Path, **options: Any) -> list[Row]:
    with rmqstore.open(path) as store:
        return rows(store.view("deadLetters", **options))


@pytest.mark.parametrize("name", NAMES)
def test_each_copy_has_its_row_and_its_origin(golden_store: Golden, name: str) -> None:
    messages = goldens.lines(name, "expected")
    first = {
        row["properties"].get("UNIQ_KEY"): row for row in messages if row["topic"][:4] == "Live"
    }
    copies = {
        (row["topic"], row["queueId"], row["queueOffset"]): row
        for row in messages
        if row["topic"].startswith(("%RETRY%", "%DLQ%"))
    }
    found = view(golden_store(name))
    assert len(found) == len(copies)
    for row in found:
        copy = copies.pop((row["topic"], row["queueId"], row["queueOffset"]))
        original = first[row["msgId"]]
        is_pop = "_LivePop" in row["topic"]
        assert row["originTopic"] == original["topic"] == ("LivePop" if is_pop else "LiveRetry")
        assert row["originMsgId"] == (None if is_pop else original["msgId"])
        assert row["consumerGroup"] == ("CG_pop" if is_pop else "CG_retry")
        assert row["kind"] == ("deadLetter" if row["topic"][:5] == "%DLQ%" else "retry")
        assert row["msgId"] == copy["properties"]["UNIQ_KEY"]
        for ours, theirs in {
            "commitLogOffset": "physicalOffset", "storeSize": "storeSize", "keys": "keys",
            "tags": "tags", "reconsumeTimes": "reconsumeTimes", "bornTimestamp": "bornTimestamp",
            "storeTimestamp": "storeTimestamp",
        }.items():  # fmt: skip
            assert row[ours] == copy[theirs]
        assert row["reason"] is None
    assert not copies


def test_topics_groups_and_bounds_choose_copies(golden_store: Golden) -> None:
    root = golden_store("live")
    every = view(root)
    assert {row["consumerGroup"] for row in view(root, consumer_group="CG_pop")} == {"CG_pop"}
    assert len(view(root, consumer_group="CG_pop")) == 5
    assert not view(root, consumer_group="CG")
    assert len(view(root, subscribe="%DLQ%CG_retry")) == 4
    assert len(view(root, subscribe_pattern="%RETRY%CG_.*")) == 9
    assert len(view(root, assign={"%RETRY%CG_retry": [0]})) == 4
    assert not view(root, subscribe="LivePlain")  # which holds no copies
    with pytest.raises(OptionError, match="starting_offsets=latest"):
        view(root, starting_offsets="latest")
    offsets = {"%DLQ%CG_retry": {0: 1}}
    assert len(view(root, assign={"%DLQ%CG_retry": [0]}, starting_offsets=offsets)) == 3
    cut = every[6]["storeTimestamp"]
    late = view(root, starting_timestamp=cut)
    early = view(root, ending_timestamp=cut)
    assert 0 < len(late) < len(every)
    assert len(late) + len(early) == len(every)
    assert min(row["storeTimestamp"] for row in late) >= cut
    assert [row["kind"] for row in view(root, columns="kind", consumer_group="CG_pop")] == (
        ["retry"] * 5
    )
    assert view(root, where="kind = 'deadLetter' AND reconsumeTimes = 2", columns="topic") == (
        [{"topic": "%DLQ%CG_retry"}] * 4
    )
    with pytest.raises(OptionError, match="include_system_topics has no meaning"):
        view(root, include_system_topics=True)
    with pytest.raises(OptionError, match="starting_timestamp has no meaning with view queues"):
        view_spec("queues", starting_timestamp=0)


def test_damaged_copies_have_the_reason(golden_store: Golden, copied: Golden) -> None:
    root = copied("live")
    row = next(row for row in view(root) if row["kind"] == "deadLetter")
    segment = root / "commitlog" / f"{row['commitLogOffset'] // 98304 * 98304:020d}"
    body = segment.read_bytes().index(b"retry", row["commitLogOffset"] % 98304)
    overwrite(segment, body, b"R")
    found = view(root)
    damaged = [row for row in found if row["reason"]]
    assert len(found) == len(view(golden_store("live")))
    (bad,) = damaged
    assert "CRC" in bad["reason"]
    assert (bad["topic"], bad["queueOffset"], bad["kind"]) == (
        "%DLQ%CG_retry", row["queueOffset"], "deadLetter",
    )  # fmt: skip
    assert len(view(root, mode="DROPMALFORMED")) == len(found) - 1
    assert not [row for row in view(root, check_crc=False) if row["reason"]]
    # its group is that of its topic
    assert len(view(root, consumer_group="CG_retry")) == 8


def test_a_queue_that_cannot_be_read_has_a_row(copied: Golden) -> None:
    root = copied("live")
    folder = root / "consumequeue" / "%DLQ%CG_retry" / "0"
    (folder / f"{7:020d}").write_bytes(bytes(500))
    found = view(root)
    reasons = {row["topic"]: row["reason"] for row in found if row["reason"]}
    assert set(reasons) <= {"%DLQ%CG_retry"}
    assert len([row for row in found if row["kind"] == "retry" and not row["reason"]]) == 9


def test_copies_in_tiered_storage_are_shown(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("live")
    keys = [("%DLQ%CG_retry", 0), ("%RETRY%CG_pop_LivePop", 0)]
    tier = write_tier(tmp_path, stored_messages(root, [*keys, ("LivePop", 0)]))
    known = [row for row in view(root) if (row["topic"], row["queueId"]) in keys]
    found = view(tier)
    for row in (*found, *known):
        del row["brokerName"], row["commitLogOffset"]
    assert sorted(found, key=str) == sorted(known, key=str)
    with rmqstore.open(root, tiered=tier, broker_name="oracle") as store:
        both = rows(store.view("deadLetters", columns="topic,queueOffset,originTopic"))
    assert sorted(both, key=str) == sorted(
        view(root, columns="topic,queueOffset,originTopic"), key=str
    )


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_origins_of_many_messages_equal_those_of_each(seed: int) -> None:
    rng = random.Random(seed)
    topics = [
        "%RETRY%g", "%RETRY%g_T", "%RETRY%a_b_T", "%DLQ%g", "%DLQ%a_b", "%RETRY%g+T", "%RETRY%",
    ]  # fmt: skip
    values = ["T", "%RETRY%g_T", "%RETRY%a_b+T", "%RETRY%g", "%RETRY%"]
    names = ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "x"]
    messages = [
        (rng.choice(topics), {name: rng.choice(values) for name in names if rng.random() < 0.4})
        for _ in range(200)
    ]
    known = KnownNames(groups={"g", "a_b"} if seed % 2 else set(), topics={"T"} if seed % 3 else ())
    found = origins(
        pa.array([topic for topic, _ in messages]).dictionary_encode(),
        pa.array([[*properties.items()] for _, properties in messages], PROPERTIES),
        known,
    )
    expected = [origin_of(topic, properties, known) for topic, properties in messages]
    assert all(expected)
    for column, field in (
        ("consumerGroup", "group"), ("originTopic", "topic"), ("originMsgId", "message_id"),
    ):  # fmt: skip
        assert found[column].to_pylist() == [getattr(origin, field) for origin in expected]
