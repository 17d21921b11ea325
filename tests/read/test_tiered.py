"""Tiered storage: what RocketMQ uploaded, alone and before the local store that it continues."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from memory_storage import MemoryStorage
from mutations import overwrite
from reading import by_queue, plain, read, rows
from rmqstore.errors import (
    CorruptQueueError,
    CorruptRecordError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    UnsupportedFeatureError,
)
from rmqstore.format.record import from_millis
from rmqstore.format.schema import select_columns
from rmqstore.query.conditions import Between, Pruning
from rmqstore.query.selection import parse_selection
from rmqstore.read.pruner import prune_tiered
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.read.store_parts import open_parts
from tier_builder import Stored, files_of, stored_messages, write_tier

_STORE_TIME = 56  # where a record with IPv4 hosts has it
COLUMNS = "topic,queueId,queueOffset,body,properties"


@pytest.fixture(params=goldens.IN_TIER)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def tier_of(root: Path) -> Path:
    return root / "tieredstore"


def alone_and_continued(root: Path, tier: Path) -> Iterator[rmqstore.MessageStore]:
    """Open tiered storage alone, and then the local store that continues it."""
    with rmqstore.open(tier) as store:
        yield store
    with rmqstore.open(root, tiered=tier) as store:
        yield store


def many_messages(root: Path) -> list[Stored]:
    """Return the messages of a queue that has 100 or more."""
    return next(stored for stored in stored_messages(root).values() if len(stored) >= 100)


def test_the_tier_has_the_messages_that_rocketmq_serves_from_it(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(tier_of(golden_store(name))) as store:
        assert store.broker_name == "oracle"
        assert by_queue(read(store)) == goldens.by_queue(name, "oracle")
        for queue in goldens.summary(name)["queues"]:
            span = store.queue_range(queue["topic"], queue["queueId"])
            assert span == (queue["minOffset"], queue["maxOffset"])


def test_the_local_store_goes_on_where_it_begins(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(root, tiered=tier_of(root)) as store, rmqstore.open(root) as alone:
        local = by_queue(read(alone))
        found = by_queue(read(store))
        in_tier = goldens.by_queue(name, store.broker_name)
        for queue in goldens.summary(name)["queues"]:
            key = (queue["topic"], queue["queueId"])
            rows = found[key]
            start, end = queue["minOffset"], queue["localMaxOffset"]
            assert store.queue_range(*key) == (start, end)
            assert [row["queueOffset"] for row in rows] == [*range(start, end)]
            local_start = max(queue["localMinOffset"], start)
            assert rows[: local_start - start] == in_tier[key][: local_start - start]
            assert rows[local_start - start :] == local.get(key, [])
            # the parts overlap, and agree but for where they lie
            overlap = rows[local_start - start : queue["maxOffset"] - start]
            # msgId is offsetMsgId where there is no UNIQ_KEY
            moved = ("commitLogOffset", "offsetMsgId", "msgId")
            for mine, tiered in zip(overlap, in_tier[key][local_start - start :], strict=True):
                assert {**mine, **{column: tiered[column] for column in moved}} == tiered


def test_store_times_find_queue_offsets_in_both(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(tier_of(root)) as tier, rmqstore.open(root, tiered=tier_of(root)) as store:
        n_compared = 0
        for asked in goldens.summary(name)["timeQueries"]:
            # RocketMQ reads the times of messages with IPv6 hosts at a wrong position, and throws
            # where the first units point at deleted records.
            if asked["boundary"] != "LOWER" or asked["topic"] == "TierV6":
                continue
            if isinstance(asked["offset"], int):
                key = (asked["topic"], asked["queueId"], asked["timestamp"])
                assert tier.offset_at(*key) == asked["offset"]
                n_compared += 1
        assert n_compared > 50
        times = {
            key: [row["storeTimestamp"] for row in rows]
            for key, rows in by_queue(read(store)).items()
        }
        for key, stored in times.items():
            start, _ = store.queue_range(*key)
            for time in {*stored, stored[0] - 1, stored[-1] + 1}:
                late = [number for number, other in enumerate(stored) if other >= time]
                expected = start + (late[0] if late else len(stored))
                assert store.offset_at(*key, time) == expected
        time = sorted(time for stored in times.values() for time in stored)[300]
        found = by_queue(read(store, starting_timestamp=time))
        assert {key: len(rows) for key, rows in found.items()} == {
            key: n for key, stored in times.items() if (n := sum(other >= time for other in stored))
        }


def test_a_condition_on_columns_keeps_the_same_messages(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        every = read(store)
        some = random.Random(name).choice([row for row in every if row["keys"]])
        stored = some["storeTimestamp"]
        time = datetime.fromtimestamp(stored / 1000, UTC).isoformat()
        for where, holds in {
            f"keys = '{some['keys']}'": lambda row: row["keys"] == some["keys"],
            f"msgId = '{some['msgId']}'": lambda row: row["msgId"] == some["msgId"],
            "queueOffset >= 30 AND topic = 'TierA'": lambda row: (
                row["queueOffset"] >= 30 and row["topic"] == "TierA"
            ),
            "commitLogOffset < 20000": lambda row: row["commitLogOffset"] < 20000,
            f"tags = '{some['tags']}'": lambda row: row["tags"] == some["tags"],
            f"storeTimestamp >= '{time}'": lambda row: row["storeTimestamp"] >= stored,
            "queueId = 1": lambda row: row["queueId"] == 1,
        }.items():
            found = by_queue(read(store, where=where))
            assert found == by_queue(filter(holds, every)), where
        tags = read(store, tags="TagA || TagB")
        assert by_queue(tags) == by_queue(row for row in every if row["tags"] in ("TagA", "TagB"))


def test_conditions_leave_most_of_a_tier_unread(golden_store: Golden, name: str) -> None:
    storage = MemoryStorage(golden_store(name))
    with rmqstore.open(tier_of(storage.root), storage=storage) as store:
        every = read(store)
        logs = [row["commitLogOffset"] for row in every]
        times = sorted(row["storeTimestamp"] for row in every)
        rng = random.Random(name)
        for _ in range(20):
            low, high = sorted(rng.sample(times, 2))
            after, before = (
                datetime.fromtimestamp(time / 1000, UTC).isoformat() for time in (low, high)
            )
            where = f"storeTimestamp >= '{after}' AND storeTimestamp < '{before}'"
            found = by_queue(read(store, where=where))
            assert found == by_queue(row for row in every if low <= row["storeTimestamp"] < high)
            first, last = sorted(rng.sample(logs, 2))
            where = f"commitLogOffset >= {first} AND commitLogOffset <= {last}"
            found = by_queue(read(store, where=where))
            assert found == by_queue(
                row for row in every if first <= row["commitLogOffset"] <= last
            )
        storage.n_read.clear()
        assert read(store, where="commitLogOffset < 400", check_crc=False)
        n_read = sum(n for path, n in storage.n_read.items() if path.parent.name == "COMMIT_LOG")
        assert n_read < sum(row["storeSize"] for row in every) / 10
        pruning = Pruning(store_timestamps=Between(times[-10], times[-1]))
        slices = [
            *store.parts.ranges.resolve(parse_selection(), ReadSpec(select_columns(["body"])))
        ]
        left = prune_tiered(store.parts.tiers[0], slices, pruning)
        assert sum(part.end - part.start for part in left) < len(every) / 2


def test_no_clock_hides_a_message_from_a_condition(golden_store: Golden, tmp_path: Path) -> None:
    messages = many_messages(golden_store("basic"))
    rng = random.Random(3)
    times = [1_700_000_000_000 + 1000 * number for number in range(100)]
    for number in rng.sample(range(100), 5):
        times[number] += rng.choice([-1, 1]) * 10**9  # the clock was wrong for one message
    changed = []
    for message, time in zip(messages, times, strict=False):
        record = bytearray(message.record)
        struct.pack_into(">q", record, _STORE_TIME, time)
        changed.append(Stored(message.queue_offset, bytes(record), message.tags_code))
    write_tier(tmp_path, {_key_of(messages[0]): changed})
    with rmqstore.open(tmp_path) as store:
        for low in rng.sample(times, 30):
            high = low + rng.choice([0, 3000, 10**6])
            where = f"storeTimestamp BETWEEN {low} AND {high}"
            found = sorted(row["storeTimestamp"] for row in read(store, where=where))
            assert found == sorted(time for time in times if low <= time <= high)


def test_topics_queues_and_offsets_can_be_chosen(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        chosen = {"TierA": {"0": 70, "1": 100}}
        ends = {"TierA": {"0": 80, "1": 101}}
        rows = read(store, assign={"TierA": [0, 1]}, starting_offsets=chosen, ending_offsets=ends)
        found = {key: [row["queueOffset"] for row in rows] for key, rows in by_queue(rows).items()}
        assert found == {("TierA", 0): [*range(70, 80)], ("TierA", 1): [100]}
        with pytest.raises(OptionError, match="NoSuchTopic"):
            store.scan(subscribe="NoSuchTopic")
        with pytest.raises(OffsetOutOfRangeError, match="starting_offsets of TierA-1 is 3"):
            store.scan(assign={"TierA": [1]}, starting_offsets={"TierA": {"1": 3}})
        info = {queue.queue_id: queue for queue in store.queues("TierA")}
        rows = by_queue(read(store, subscribe="TierA"))["TierA", 1]
        assert info[1].n_bytes == sum(row["storeSize"] for row in rows)
        assert info[1].first_store_timestamp == from_millis(rows[0]["storeTimestamp"])
        assert info[1].last_store_timestamp == from_millis(rows[-1]["storeTimestamp"])


def test_any_storage_holds_a_tier(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    storage = MemoryStorage(root)
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        expected = by_queue(read(store, columns="topic,queueId,queueOffset,body,commitLogOffset"))
    tier = tier_of(storage.root)
    with rmqstore.open(storage.root, storage=storage, tiered=tier) as store:
        found = read(store, columns="topic,queueId,queueOffset,body,commitLogOffset")
        assert by_queue(found) == expected
    with rmqstore.open(tier, storage=storage) as store:
        assert store.count() == goldens.summary(name)["counts"]["messages"]


def test_what_needs_one_log_is_refused(golden_store: Golden) -> None:
    root = golden_store("tiered")
    refused: list[Callable[[rmqstore.MessageStore], object]] = [
        lambda store: store.get(0),
        lambda store: store.query("TierA", "k18543"),
        lambda store: store.matched_groups("TierA", 0, 0),
        lambda store: store.scan(scan="commitlog").read_all(),
    ]
    for store in alone_and_continued(root, tier_of(root)):
        for ask in refused:
            with pytest.raises(UnsupportedFeatureError, match="with tiered storage"):
                ask(store)
        for view in ("commitlog", "consumequeue", "index", "epochs", "files"):
            with pytest.raises(UnsupportedFeatureError, match="with tiered storage"):
                store.view(view)
    with rmqstore.open(tier_of(root)) as store:
        with pytest.raises(UnsupportedFeatureError, match="include_pending"):
            store.scan(include_pending=True)
        for view in ("groups", "consumed"):
            with pytest.raises(UnsupportedFeatureError, match=f"view {view}"):
                store.view(view)
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        assert store.count(include_pending=True) == store.count()
    with pytest.raises(UnsupportedFeatureError, match="read only"):
        rmqstore.open(root, "a", tiered=tier_of(root))


def test_views_count_messages_wherever_they_are(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    for store in alone_and_continued(root, tier_of(root)):
        messages = by_queue(read(store))
        queues = rows(store.view("queues", include_system_topics=True))
        assert {(row["topic"], row["queueId"]) for row in queues} >= messages.keys()
        for row in queues:
            found = messages.get((row["topic"], row["queueId"]), [])
            assert row["reason"] is None
            assert row["messages"] == len(found)
            assert row["maxOffset"] - row["minOffset"] == len(found)
            assert row["bytes"] == sum(message["storeSize"] for message in found)
            if found:
                assert row["minOffset"] == found[0]["queueOffset"]
                times = [plain(row)[f"{which}StoreTimestamp"] for which in ("first", "last")]
                expected = [found[place]["storeTimestamp"] for place in (0, -1)]
                assert [millis(time) for time in times] == expected
        topics = {row["topic"]: row for row in rows(store.view("topics"))}
        for topic in {topic for topic, _ in messages}:
            n = sum(len(found) for (one, _), found in messages.items() if one == topic)
            assert topics[topic]["messages"] == n
            assert topics[topic]["reason"] == "config/topics.json has no entry for it"
        with pytest.raises(OptionError, match="NoSuchTopic"):
            store.view("queues", subscribe="NoSuchTopic")


def test_the_lag_of_groups_counts_messages_in_the_tier(copied: Golden) -> None:
    root = copied("tiered")
    build.write_offsets(root, {"TierA@g": {0: 10, 1: 200}})
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        messages = by_queue(read(store))
        found = {row["queueId"]: row for row in rows(store.view("groups"))}
        for queue_id, committed in ((0, 10), (1, 200)):
            there = messages["TierA", queue_id]
            assert found[queue_id]["lag"] == there[-1]["queueOffset"] + 1 - committed
            assert found[queue_id]["minOffset"] == there[0]["queueOffset"]
        stored = messages["TierA", 0][10]["storeTimestamp"]
        assert millis(found[0]["nextStoreTimestamp"]) == stored


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def test_look_ups_find_what_the_tier_has(golden_store: Golden, name: str) -> None:
    root = golden_store(name)
    asked = [row for row in goldens.lines(name, "keys") if row["maxNum"] == 64]
    columns = "topic,queueId,queueOffset,commitLogOffset,msgId,offsetMsgId,keys,storeTimestamp"
    with rmqstore.open(tier_of(root)) as tier, rmqstore.open(root, tiered=tier_of(root)) as store:
        every = read(store, columns=columns)
        for row in random.Random(name).sample(asked, 40):
            key, topic = row["key"], row["topic"]
            found = read(tier, msg_key=key, subscribe=topic, columns="commitLogOffset")
            assert sorted(one["commitLogOffset"] for one in found) == sorted(row["inStore"])
            found = read(store, msg_key=key, subscribe=topic, columns=columns)
            assert by_queue(found) == by_queue(
                one
                for one in every
                if one["topic"] == topic
                and (key == one["msgId"] or key in (one["keys"] or "").split(" "))
            )
        some = random.Random(name).sample(every, 20)
        for column in ("msgId", "offsetMsgId"):
            ids = [row[column] for row in some]
            found = read(store, msg_id=ids, columns=columns)
            assert by_queue(found) == by_queue(
                row for row in every if {row["msgId"], row["offsetMsgId"]} & {*ids}
            )
        times = sorted(row["storeTimestamp"] for row in every)
        late = {"starting_timestamp": times[100], "ending_timestamp": times[500]}
        keys = sorted({row["key"] for row in asked})
        found = read(store, msg_key=keys, columns=columns, **late)
        assert {row["msgId"] for row in found} == {
            row["msgId"]
            for row in read(store, msg_key=keys, columns=columns)
            if times[100] <= row["storeTimestamp"] < times[500]
        }
        assert read(tier, msg_key=keys, columns=columns, index_only=True) == []
        tagged = read(store, msg_tags="TagA", columns=columns)
        assert by_queue(tagged) == by_queue(read(store, tags="TagA", columns=columns))


def test_a_read_without_the_tier_names_the_option(
    golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("tiered")
    with rmqstore.open(root) as store:
        store.count()
        assert "tiered= with the broker's tieredStoreFilePath" in caplog.text
        assert len(store.parts.kind().not_read) == 1
    caplog.clear()
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        store.count()
        assert not caplog.records
        kind = store.parts.kind()
        assert not kind.not_read
        assert "CommitLog, continued from tiered storage in" in str(kind)
    with rmqstore.open(tier_of(root)) as store:
        assert str(store.parts.kind()).startswith("tiered storage in")


def test_a_broker_is_found_from_each_folder(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("tiered")
    cluster = next(tier_of(root).iterdir())
    for folder in (tier_of(root), cluster, cluster / "oracle"):
        with rmqstore.open(folder) as store:
            assert store.queue_ids("TierA") == [0, 1, 2]
            assert store.paths.root == cluster / "oracle"
    copied = shutil.copytree(cluster / "oracle", tmp_path / "elsewhere")
    with rmqstore.open(copied) as store:
        assert store.broker_name == "elsewhere"
    with rmqstore.open(copied, broker_name="b") as store:
        assert {row["brokerName"] for row in read(store, columns="brokerName")} == {"b"}
    several = shutil.copytree(tier_of(root), tmp_path / "several")
    shutil.copytree(cluster / "oracle", several / cluster.name / "other")
    for options in ({}, {"broker_name": "third"}):
        with pytest.raises(OptionError, match=r"several brokers.*oracle, .*other"):
            rmqstore.open(several, **options)
    with rmqstore.open(several, broker_name="other") as store:
        assert store.broker_name == "other"
    with rmqstore.open(root, tiered=several, broker_name="oracle") as store:
        assert store.queue_range("TierA", 0)[0] == 0
    for folder in (tmp_path, tmp_path / "missing", root / "config"):
        with pytest.raises(NotAStoreError, match="is not a folder of tiered storage"):
            rmqstore.open(root, tiered=folder)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAStoreError, match="is not a RocketMQ store"):
            rmqstore.open(folder)
    with pytest.raises(OptionError, match=r"tiered: .* is tiered storage"):
        rmqstore.open(several, tiered=several)


def made_tier(golden_store: Golden, folder: Path, **options: int) -> Path:
    """Write tiered storage of one queue of a golden store, and return the folder of the queue."""
    messages = many_messages(golden_store("basic"))
    key = _key_of(messages[0])
    broker = write_tier(folder, {key: messages[:100]}, **options)
    return broker / key[0] / str(key[1])


def _key_of(message: Stored) -> tuple[str, int]:
    """Return topic and queue of a record of version 1 with IPv4 hosts."""
    (body_length,) = struct.unpack_from(">i", message.record, 84)
    topic_at = 88 + body_length
    length = message.record[topic_at]
    topic = message.record[topic_at + 1 : topic_at + 1 + length].decode()
    return topic, struct.unpack_from(">i", message.record, 12)[0]


def test_files_may_have_any_length_and_begin_anywhere(golden_store: Golden, tmp_path: Path) -> None:
    rng = random.Random(7)
    root = golden_store("basic")
    messages = {key: stored for key, stored in stored_messages(root).items() if len(stored) > 10}
    expected = by_queue(read(golden_store("basic"), columns=COLUMNS))
    for number in range(6):
        first = {key: rng.randrange(len(stored)) for key, stored in messages.items()}
        broker = write_tier(
            tmp_path / str(number),
            {key: stored[first[key] :] for key, stored in messages.items()},
            log_file=rng.choice([1, 700, 5000, 1 << 20]),
            units_per_file=rng.choice([1, 3, 50, 10_000]),
            log_start=rng.choice([0, 123, 1 << 33]),
        )
        with rmqstore.open(broker) as store:
            found = by_queue(read(store, columns=COLUMNS))
            assert found == {
                key: [
                    row
                    for row in expected[key]
                    if row["queueOffset"] >= stored[first[key]].queue_offset
                ]
                for key, stored in messages.items()
            }


def test_the_crc_of_a_whole_record_is_not_checked(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("prop-crc")
    messages = {key: stored for key, stored in stored_messages(root).items() if stored}
    broker = write_tier(tmp_path, messages, log_start=40)
    expected = by_queue(read(root, columns=COLUMNS))
    with rmqstore.open(broker) as store:
        assert by_queue(read(store, columns=COLUMNS)) == expected
        tagged = read(store, columns=COLUMNS, tags="TagA", filter="TAGS IS NOT NULL")
        assert all(row["properties"]["TAGS"] == "TagA" for row in tagged)


def test_overlap_is_read_once_and_a_gap_is_a_loss(
    golden_store: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store("expired")
    local = stored_messages(root)
    key, messages = next((key, stored) for key, stored in local.items() if len(stored) > 20)
    first = messages[0].queue_offset
    assert first > 4
    with rmqstore.open(root) as store:
        _, end = store.queue_range(*key)

    def older(start: int, stop: int) -> list[Stored]:
        """Return messages that the local store has lost, and some that it has."""
        by_offset = {message.queue_offset: message for message in messages}
        template = messages[0]
        made = []
        for queue_offset in range(start, stop):
            record = bytearray(by_offset.get(queue_offset, template).record)
            struct.pack_into(">q", record, 20, queue_offset)
            made.append(Stored(queue_offset, bytes(record), template.tags_code))
        return made

    def offsets(tier: Path, **options: object) -> list[int]:
        with rmqstore.open(root, tiered=tier) as store:
            assert store.queue_range(*key)[1] == max(end, store.queue_range(*key)[1])
            rows = read(store, assign={key[0]: [key[1]]}, **options)
            return [row["queueOffset"] for row in rows]

    cases = {  # by first and last queue offset in tiered storage: the first that is read
        (0, first + 7): 0,
        (2, first): 2,
        (0, end): 0,
        (first, end): first,
        (first + 3, end): first,
    }
    for number, ((start, stop), begin) in enumerate(cases.items()):
        tier = write_tier(tmp_path / f"t{number}", {key: older(start, stop)})
        assert offsets(tier) == [*range(begin, end)]
    gap = write_tier(tmp_path / "gap", {key: older(0, first - 3)})
    with pytest.raises(OffsetOutOfRangeError, match=f"{first - 3} to {first} .* are gone"):
        offsets(gap)
    caplog.clear()
    assert offsets(gap, fail_on_data_loss=False) == [*range(first - 3), *range(first, end)]
    assert "data loss" in caplog.text
    beyond = write_tier(tmp_path / "beyond", {key: older(0, end + 5)})
    caplog.clear()
    assert offsets(beyond) == [*range(end)]
    assert f"the queue offsets {end} to {end + 5} (excluded)" in caplog.text
    empty = write_tier(tmp_path / "empty", {key: []})
    assert offsets(empty) == [*range(first, end)]


def test_the_tier_of_another_store_is_refused(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("tiered")
    key = ("TierA", 0)
    with rmqstore.open(tier_of(root)) as store:
        queue = store.parts.tiers[0].queue(*key)
        messages = []
        for queue_offset in range(*store.queue_range(*key)):
            place, size, code = queue.units.unit(queue_offset)
            record = bytearray(queue.log.read(*queue.log.locate(place), size).tobytes())
            record[_STORE_TIME + 7] ^= 1
            messages.append(Stored(queue_offset, bytes(record), code))
    other = write_tier(tmp_path, {key: messages})
    with rmqstore.open(root, tiered=other) as store:
        with pytest.raises(OptionError, match="is not the tiered storage of this store"):
            store.count(subscribe="TierA")
        with pytest.raises(OptionError, match="is not the tiered storage of this store"):
            store.parts.store_queues.slices(
                key, 0, 5, ReadSpec(select_columns(["body"]))
            )  # of a stream
        assert store.count(subscribe="TierB") > 0


def test_damage_where_the_local_store_begins_is_not_taken_for_another_store(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("tiered")
    start = 74  # of TierA-0 in the local store
    with rmqstore.open(root) as store:
        assert store.queue_range("TierA", 0)[0] == start
    tier = Path(shutil.copytree(tier_of(root), tmp_path / "t"))
    queue = next(tier.iterdir()) / "oracle" / "TierA" / "0"
    units = files_of(queue, "CONSUME_QUEUE")[1]
    overwrite(units, (start - 50) * 20, bytes(20))
    with rmqstore.open(root, tiered=tier) as store:
        rows = by_queue(read(store))["TierA", 0]
        assert [row["queueOffset"] for row in rows] == [*range(104)]
    with rmqstore.open(tier) as store, pytest.raises(CorruptQueueError, match=f"{units}, byte 480"):
        read(store)


def test_what_is_deleted_after_planning_comes_from_the_tier(copied: Golden) -> None:
    root = copied("tiered")
    schema = select_columns(["topic", "queueId", "queueOffset"])
    spec = ReadSpec(schema)
    with open_parts(root, tiered=tier_of(root)) as planned:
        slices = [*planned.ranges.resolve(parse_selection(), spec)]
        expected = {(piece.topic, piece.queue_id): 0 for piece in slices}
        for piece in slices:
            expected[piece.topic, piece.queue_id] += piece.end - piece.start
        starts = {key: planned.queues.first(*key) for key in expected}
    min(root.joinpath("commitlog").iterdir()).unlink()
    with open_parts(root, tiered=tier_of(root)) as store:
        later = {key: store.queues.first(*key) for key in expected}
        assert later != starts
        found = by_queue(rows(read_queues(store, slices, spec)))
        for key, count in expected.items():
            offsets = [row["queueOffset"] for row in found[key]]
            assert offsets == [*range(offsets[0], offsets[0] + count)]


def test_what_is_deleted_while_a_tier_is_read_comes_from_the_tier(copied: Golden) -> None:
    root = copied("tiered")
    spec = ReadSpec(select_columns(["topic", "queueId", "queueOffset"]))
    with open_parts(root, tiered=tier_of(root)) as store:
        slices = [*store.ranges.resolve(parse_selection(), spec)]
        batches = read_queues(store, slices, spec)
        found = rows([next(batches)])
        store.log.close()  # as if so many files were read that this one was closed
        min(root.joinpath("commitlog").iterdir()).unlink()
        found += rows(batches)
    assert len(found) == sum(piece.end - piece.start for piece in slices)
    for read_rows in by_queue(found).values():
        offsets = [row["queueOffset"] for row in read_rows]
        assert offsets == [*range(offsets[0], offsets[0] + len(offsets))]


def test_records_and_units_that_retention_deleted_are_left_out(
    golden_store: Golden, tmp_path: Path
) -> None:
    queue = made_tier(golden_store, tmp_path)
    logs = files_of(queue, "COMMIT_LOG")
    logs[0].unlink()
    with rmqstore.open(tmp_path) as store:
        key = (queue.parent.name, int(queue.name))
        start, end = store.queue_range(*key)
        assert 0 < start < 20
        assert [row["queueOffset"] for row in read(store)] == [*range(start, end)]
        files_of(queue, "CONSUME_QUEUE")[0].unlink()
        store.refresh()
        assert store.queue_range(*key) == (20, end)
        assert len(read(store)) == end - 20
        # orphans: records whose units a crash has lost
        with logs[-1].open("ab") as file:
            file.write(os.urandom(100))
        store.refresh()
        assert len(read(store)) == end - 20


def damage_of(store: Path, mode: str) -> tuple[list[dict], Exception | None]:
    try:
        return read(store, columns=None, mode=mode), None
    except RmqStoreError as err:
        return [], err


def test_a_damaged_record_is_named_with_its_own_offset(
    golden_store: Golden, tmp_path: Path
) -> None:
    queue = made_tier(golden_store, tmp_path, log_start=1000)
    file = files_of(queue, "COMMIT_LOG")[1]
    base = int(file.name[-20:])
    overwrite(file, 100, b"\xff")  # in the body of the first record
    _, err = damage_of(tmp_path, "FAILFAST")
    assert isinstance(err, CorruptRecordError)
    assert err.path == str(file)
    assert err.offset == base
    rows, _ = damage_of(tmp_path, "DROPMALFORMED")
    assert len(rows) == 99
    rows, _ = damage_of(tmp_path, "PERMISSIVE")
    damaged = [row for row in rows if row["_corrupt_record"]]
    assert len(rows) == 100
    assert [row["commitLogOffset"] for row in damaged] == [base]
    assert f"{file}, {base}: CRC of the body" in damaged[0]["_corrupt_record"]


def test_a_cut_or_missing_file_is_an_error_with_its_path(
    golden_store: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = made_tier(golden_store, tmp_path / "good")
    units, logs = files_of(queue, "CONSUME_QUEUE"), files_of(queue, "COMMIT_LOG")
    good = tmp_path / "good"

    def changed(name: str, change: Callable[[Path], object], file: Path) -> Path:
        folder = shutil.copytree(good, tmp_path / name)
        change(folder / file.relative_to(good))
        return folder

    def cut(size: int) -> Callable[[Path], None]:
        return lambda file: os.truncate(file, max(file.stat().st_size + size, 0))

    def renamed(offset: int) -> Callable[[Path], Path]:
        return lambda file: file.rename(file.with_name(f"00000000{offset:020d}"))

    def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
        return lambda file: (file.unlink(), make(file))

    def lost_link(file: Path) -> None:
        file.symlink_to("nowhere")

    cases: dict[str, tuple[Callable[[Path], object], Path, type[Exception]]] = {
        "units cut inside of one": (cut(-7), units[1], CorruptQueueError),
        "last units cut inside of one": (cut(-7), units[-1], CorruptQueueError),
        "units cut": (cut(-40), units[1], CorruptQueueError),
        "units gone": (Path.unlink, units[1], CorruptQueueError),
        "units renamed": (renamed(7), units[1], CorruptQueueError),
        "units beyond": (renamed(10**19), units[1], CorruptQueueError),
        "units inside": (renamed(60), units[1], CorruptQueueError),
        "units in a folder": (replaced(Path.mkdir), units[1], CorruptQueueError),
        "units in a pipe": (replaced(os.mkfifo), units[1], CorruptQueueError),
        "log in a lost link": (replaced(lost_link), logs[0], CorruptQueueError),
        "log cut": (cut(-9), logs[1], CorruptRecordError),
        "log gone": (Path.unlink, logs[1], OffsetOutOfRangeError),
        "last log cut": (cut(-9), logs[-1], RmqStoreError),
        "last log gone": (Path.unlink, logs[-1], RmqStoreError),
        "log empty": (cut(-(10**6)), logs[1], OffsetOutOfRangeError),
    }
    for name, (change, file, kind) in cases.items():
        folder = changed(name, change, file)
        rows, err = damage_of(folder, "FAILFAST")
        assert isinstance(err, kind), (name, len(rows), err)
        assert str(queue.relative_to(good)) in str(err)
        caplog.clear()
        left = read(folder, mode="DROPMALFORMED", fail_on_data_loss=False)
        assert 0 < len(left) < 100
        assert caplog.records, f"{name}: nothing is left out without a warning"


def test_a_queue_without_a_valid_name_is_not_taken_for_an_empty_one(
    golden_store: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = made_tier(golden_store, tmp_path / "tier", units_per_file=1000)
    file = files_of(queue, "CONSUME_QUEUE")[0]
    bad = file.rename(file.with_name("0" * 27 + "7"))
    empty = tmp_path / "store"
    (empty / "commitlog").mkdir(parents=True)
    for store in alone_and_continued(empty, tmp_path / "tier"):
        with pytest.raises(CorruptQueueError, match=f"{bad}.*not a multiple of 20"):
            store.count()
        caplog.clear()
        assert store.count(mode="DROPMALFORMED") == 0
        assert "not a multiple of 20" in caplog.text
    shutil.rmtree(queue / "CONSUME_QUEUE")
    with rmqstore.open(tmp_path / "tier") as store:
        caplog.clear()
        assert store.count() == 0
        assert "without units" in caplog.text


@pytest.mark.parametrize("name", ["crash", "crash3"])
def test_a_store_that_was_not_closed_is_continued_too(
    golden_store: Golden, tmp_path: Path, name: str
) -> None:
    root = golden_store(name)
    columns = "topic,queueId,queueOffset,body,commitLogOffset"
    with rmqstore.open(root) as store:
        expected = by_queue(read(store, columns=columns, mode="DROPMALFORMED"))
        spans = {key: store.queue_range(*key) for key in expected}
        messages = {}
        for (topic, queue_id), (start, end) in spans.items():
            queue = store.parts.queues.open(topic, queue_id)
            place, size, code = queue.unit(start)
            record = store.parts.log.read(*store.parts.log.locate(place), size).tobytes()
            messages[topic, queue_id] = [Stored(start, record, code)]
            assert start < end
    tier = write_tier(tmp_path, messages)
    with rmqstore.open(root, tiered=tier) as store:
        assert {key: store.queue_range(*key) for key in expected} == spans
        assert by_queue(read(store, columns=columns, mode="DROPMALFORMED")) == expected


def test_an_exact_copy_of_a_tier_is_a_store(golden_store: Golden, tmp_path: Path) -> None:
    root = golden_store("tiered")
    with rmqstore.open(tier_of(root)) as store:
        expected = by_queue(read(store, columns=COLUMNS))
        with rmqstore.create(tmp_path / "copy") as copy:
            for batch in store.scan(verbatim=True, subscribe=["TierB", "TierLate", "TierV6"]):
                copy.append(batch, verbatim=True)
    with rmqstore.open(tmp_path / "copy") as store:
        found = by_queue(read(store, columns=COLUMNS))
        assert found == {key: rows for key, rows in expected.items() if key in found}
        assert len(found) == 4


def test_a_unit_that_a_broker_is_writing_is_waited_for(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = made_tier(golden_store, tmp_path)
    newest = files_of(queue, "CONSUME_QUEUE")[-1]
    content = newest.read_bytes()
    newest.write_bytes(content[:-3])
    monkeypatch.setattr(
        "rmqstore.read.store_queues.sleep", lambda _seconds: newest.write_bytes(content)
    )
    with rmqstore.open(tmp_path) as store:
        assert store.count() == 100


def test_other_names_are_passed_over(
    golden_store: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = made_tier(golden_store, tmp_path)
    for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
        (queue / kind / "readme.txt").write_text("nothing")
        (queue / kind / ("0" * 20)).write_bytes(b"\0" * 40)
    (queue.parent / "x1").mkdir()
    (queue.parent / "007").mkdir()
    (queue.parent / "99999999999").mkdir()
    (queue.parent / "5" / "COMMIT_LOG").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(queue.parent.parent) + b"/\xff\xfe")).mkdir()
    with rmqstore.open(tmp_path) as store:
        assert store.topics() == [queue.parent.name]
        assert store.queue_ids(queue.parent.name) == [int(queue.name), 5]
        assert store.queue_range(queue.parent.name, 5) == (0, 0)
        assert len(read(store)) == 100
    assert caplog.text.count("not named as a file of tiered storage") == 4


def test_inner_batches_are_read_message_by_message(golden_store: Golden, tmp_path: Path) -> None:
    """A broker uploads a unit, and a copy of the whole record, for each message of a batch."""
    root = golden_store("batch-cq")
    messages = {key: stored for key, stored in stored_messages(root).items() if stored}
    tier = write_tier(tmp_path, messages)
    # offsetMsgId is that of a copy, and so is msgId where a message has no UNIQ_KEY
    columns = "topic,queueId,queueOffset,body,properties,tags,keys,storeTimestamp"
    with rmqstore.open(root) as store:
        expected = by_queue(read(store, columns=columns))
        batch_topics = {*store.parts.queues.batch_topics()}
    some = next(row for rows in expected.values() for row in rows if row["tags"] and row["keys"])
    for store in alone_and_continued(root, tier):
        assert by_queue(read(store, columns=columns)) == expected
        tagged = by_queue(read(store, columns=columns, tags=some["tags"]))
        assert tagged == by_queue(
            row for rows in expected.values() for row in rows if row["tags"] == some["tags"]
        )
        key = some["keys"].split(" ")[0]
        found = by_queue(read(store, columns=columns, msg_key=key, subscribe=some["topic"]))
        wanted = by_queue(
            row
            for rows in expected.values()
            for row in rows
            if row["topic"] == some["topic"] and key in (row["keys"] or "").split(" ")
        )
        assert found == wanted
    with rmqstore.open(tier) as store, pytest.raises(UnsupportedFeatureError, match="BatchCQ"):
        read(store, columns=None, verbatim=True, subscribe=sorted(batch_topics))


def test_assignments_count_messages_in_the_tier(copied: Golden) -> None:
    root = copied("tiered")
    entries = {"TierA": {"topicName": "TierA", "readQueueNums": 2}}
    build.write_offsets(root, {"TierA@g": {0: 10}})
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": entries}))
    sharing = {"consumer_group": "g", "clients": "c"}
    with rmqstore.open(root, tiered=tier_of(root)) as store:
        messages = by_queue(read(store))
        found = {row["queueId"]: row for row in rows(store.view("assignments", **sharing))}
        assert [row["topic"] for row in rows(store.view("routes"))] == ["TierA"]
        assert [row["isRead"] for row in rows(store.view("stores"))] == [True]
    for queue_id, committed in ((0, 10), (1, 0)):
        left = [one for one in messages["TierA", queue_id] if one["queueOffset"] >= committed]
        assert found[queue_id]["lag"] == len(left)
        assert found[queue_id]["lagBytes"] == sum(one["storeSize"] for one in left)
    with (
        rmqstore.open(tier_of(root)) as store,
        pytest.raises(UnsupportedFeatureError, match="view assignments"),
    ):
        store.view("assignments", **sharing)
