"""The golden stores: what the real RocketMQ wrote must read as the real RocketMQ reads it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import goldens
import rmqstore
from goldens import Golden
from reading import TOLD_COLUMNS, TOLD_OF_LOG, by_queue, column, offsets, plain, read, state
from rmqstore import MessageNotFoundError, OptionError, UnsupportedFeatureError
from rmqstore.errors import install
from rmqstore.format.record import from_millis

# The real store keeps a minimum here that points at no record (golden/README.md, facts 11 and 13).
STALE_MINIMUM = ("expired2", "preblank", "v55-preblank")
PLAIN = (*goldens.PLAIN, *goldens.NEWEST, *goldens.OF_GROUPS)
CRASHED = (*goldens.CRASHED, *goldens.NEWEST_CRASHED, *goldens.OF_GROUPS_CRASHED)
BY_QUEUE = (*goldens.BY_QUEUE, *goldens.NEWEST, "v55-lmq", *goldens.OF_GROUPS)
EVERY = (
    *(*goldens.EVERY, *goldens.NEWEST, *goldens.NEWEST_CRASHED, "v55-lmq"),
    *(*goldens.OF_GROUPS, *goldens.OF_GROUPS_CRASHED),
)
TRANSACTION_TYPE, WITHOUT_QUEUE = 12, (4, 12)  # prepared, and rolled back


def _columns_of(row: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize("name", PLAIN)
def test_scan_by_queue_gives_every_message_in_queue_order_and_nothing_else(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store(name), broker_name="b") as store:
        found = read(store)
    assert by_queue(found) == goldens.by_queue(name, "b")
    places = [row["physicalOffset"] for row in goldens.lines(name, "expected")]
    assert offsets(found) == sorted(places), "in the order of the log"


@pytest.mark.parametrize("name", EVERY)
def test_scan_of_the_log_gives_exactly_its_records_in_order(
    golden_store: Golden, name: str
) -> None:
    found = read(golden_store(name), scan="commitlog")
    expected = goldens.records(name)
    columns = goldens.RECORD_COLUMNS
    assert [[row[column] for column in columns.values()] for row in found] == [
        [row[key] for key in columns] for row in expected
    ]
    # what is empty is dropped
    assert [row["keys"] for row in found] == [row["keys"] or None for row in expected]
    assert [row["properties"].get("UNIQ_KEY") for row in found] == [
        row["uniqKey"] for row in expected
    ]


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in ("lmq", "v55-lmq", "batch-cq")]
)
def test_scan_of_the_log_gives_all_columns_of_the_messages_that_queues_hold(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store(name), broker_name="b") as store:
        found = {row["commitLogOffset"]: row for row in read(store, scan="commitlog")}
    for row in goldens.lines(name, "expected"):
        assert found[row["physicalOffset"]] == _columns_of(goldens.message(row, "b"), "tagsCode")


@pytest.mark.parametrize("name", BY_QUEUE)
def test_topics_and_queues_are_those_of_the_real_store(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name)) as store:
        found = {
            (info.topic, info.queue_id) for topic in store.topics() for info in store.queues(topic)
        }
    assert found == {queue for queue, rows in goldens.queues(name).items()}


@pytest.mark.parametrize("name", BY_QUEUE)
def test_queue_range_is_that_of_the_real_store(golden_store: Golden, name: str) -> None:
    expected = {}
    rows = goldens.queues(name)
    for queue in goldens.summary(name)["queues"]:
        key = queue["topic"], queue["queueId"]
        first = queue["minOffset"]
        if name in STALE_MINIMUM:
            first = min((row["queueOffset"] for row in rows[key]), default=queue["maxOffset"])
        expected[key] = first, queue["maxOffset"]
    with rmqstore.open(golden_store(name)) as store:
        assert {key: store.queue_range(*key) for key in expected} == expected


@pytest.mark.parametrize("name", BY_QUEUE)
def test_queue_info_has_times_and_bytes_of_the_messages(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name)) as store:
        for (topic, queue_id), rows in goldens.queues(name).items():
            info = store.queues(topic)[store.queue_ids(topic).index(queue_id)]
            times = (
                tuple(from_millis(row["storeTimestamp"]) for row in (rows[0], rows[-1]))
                if rows
                else (None, None)
            )
            assert (info.first_store_timestamp, info.last_store_timestamp) == times
            assert info.n_bytes == sum(row["storeSize"] for row in rows)


@pytest.mark.parametrize("name", [name for name in BY_QUEUE if name not in STALE_MINIMUM])
@pytest.mark.parametrize("boundary", ["LOWER", "UPPER"])
def test_offset_at_answers_time_queries_as_the_real_store_does(
    golden_store: Golden, name: str, boundary: str
) -> None:
    queries = [row for row in goldens.summary(name)["timeQueries"] if row["boundary"] == boundary]
    assert queries or name == "empty"
    known = set(goldens.queues(name))
    with rmqstore.open(golden_store(name)) as store:
        for row in queries:
            topic, queue_id, time = row["topic"], row["queueId"], row["timestamp"]
            if (topic, queue_id) in known:
                found = store.offset_at(topic, queue_id, time, boundary.lower())
                assert found == row["offset"], row
                by_queue_id = store.offsets_at(topic, time, boundary.lower())
                assert (by_queue_id[queue_id], [*by_queue_id]) == (found, store.queue_ids(topic))


@pytest.mark.parametrize("name", STALE_MINIMUM)
def test_offset_at_skips_dead_entries_in_front_of_a_queue(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name)) as store:
        for (topic, queue_id), rows in goldens.queues(name).items():
            first, last = store.queue_range(topic, queue_id)
            for timestamp in {
                row["storeTimestamp"] + step for row in rows for step in (-1, 0, 1)
            } | {0, 1 << 50}:
                later = [row["queueOffset"] for row in rows if row["storeTimestamp"] >= timestamp]
                earlier = [row["queueOffset"] for row in rows if row["storeTimestamp"] <= timestamp]
                assert store.offset_at(topic, queue_id, timestamp) == min(later, default=last)
                assert store.offset_at(topic, queue_id, timestamp, "upper") == max(
                    earlier, default=first
                )


@pytest.mark.parametrize("name", [*PLAIN, *CRASHED])
def test_get_finds_each_message_by_physical_offset_and_by_offset_message_id(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store(name), broker_name="b") as store:
        for row in goldens.lines(name, "expected"):
            expected = _columns_of(goldens.message(row, "b"), "tagsCode")
            for key in (row["physicalOffset"], row["msgId"], row["msgId"].lower()):
                found = plain(store.get(key)._asdict())
                assert {name: found[name] for name in TOLD_OF_LOG} == expected


@pytest.mark.parametrize("name", ["basic", "ipv6", "crash2", "dledger"])
def test_get_between_records_finds_no_message(golden_store: Golden, name: str) -> None:
    starts = {row["physicalOffset"] for row in goldens.records(name)}
    with rmqstore.open(golden_store(name)) as store:
        for at in [at + 1 for at in sorted(starts)[:50]]:
            with pytest.raises(MessageNotFoundError):
                store.get(at)


@pytest.mark.parametrize("name", ["crash", "crash2", "crash5"])
def test_get_after_the_end_of_a_crashed_log_finds_no_message(
    golden_store: Golden, name: str
) -> None:
    end = goldens.summary(name)["maxPhyOffset"]
    with rmqstore.open(golden_store(name)) as store:
        for at in (end, end + 1, end + 200):
            with pytest.raises(MessageNotFoundError):
                store.get(at)


@pytest.mark.parametrize(
    "name", ["crash", "crash2", "crash3", "crash5", "dledger-crash", "dledger-crash2"]
)
def test_log_end_of_a_crashed_store_is_where_the_real_recovery_ends(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store(name)) as store:
        assert store.log_end is not None
        assert store.log_end.physical_offset == goldens.summary(name)["maxPhyOffset"]


@pytest.mark.parametrize("name", CRASHED)
def test_scan_of_a_crashed_store_by_queue_gives_every_record_of_its_log(
    golden_store: Golden, name: str
) -> None:
    """The real store serves less after its recovery: facts 27 and 28 of golden/README.md."""
    with rmqstore.open(golden_store(name), broker_name="b") as store:
        expected = by_queue(
            row
            for row in read(store, scan="commitlog")
            if row["sysFlag"] & TRANSACTION_TYPE not in WITHOUT_QUEUE
        )
        found = by_queue(read(store))
        topics = store.topics()
    codes = {
        (key, row["queueOffset"]): row.pop("tagsCode")
        for key, rows in found.items()
        for row in rows
    }
    assert found == expected
    for key, rows in goldens.queues(name).items():
        assert [codes[key, row["queueOffset"]] for row in rows] == [row["tagsCode"] for row in rows]
    assert {topic for topic, _ in expected} <= {*topics}
    served = {
        (key, row["queueOffset"]) for key, rows in goldens.queues(name).items() for row in rows
    }
    assert served <= {(key, row["queueOffset"]) for key, rows in found.items() for row in rows}


def test_units_after_the_end_of_a_crashed_log_are_not_messages(golden_store: Golden) -> None:
    on_disk = {
        (row["topic"], row["queueId"]): row["onDiskBefore"]
        for row in goldens.summary("crash2")["queues"]
    }
    with rmqstore.open(golden_store("crash2")) as store:
        ends = {key: store.queue_range(*key)[1] for key in on_disk}
    last = {key: rows[-1]["queueOffset"] + 1 for key, rows in goldens.queues("crash2").items()}
    assert ends == last
    # golden/README.md, fact 29
    assert sum(disk["endUnit"] - last[key] for key, disk in on_disk.items()) == 55


@pytest.mark.parametrize("name", CRASHED)
@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_the_end_of_a_crashed_log_is_not_damage_in_any_mode(
    golden_store: Golden, name: str, mode: str
) -> None:
    found = read(golden_store(name), scan="commitlog", mode=mode, columns="commitLogOffset")
    assert [(row["commitLogOffset"], row.get("_corrupt_record")) for row in found] == [
        (row["physicalOffset"], None) for row in goldens.records(name)
    ]


def test_checked_crc_does_not_move_the_end_of_a_crashed_log(golden_store: Golden) -> None:
    found = read(
        golden_store("crash2"), scan="commitlog", columns="commitLogOffset", check_crc=False
    )
    assert offsets(found) == [row["physicalOffset"] for row in goldens.records("crash2")]


def test_ignore_log_end_reads_on_after_the_damage(golden_store: Golden) -> None:
    """The flipped body byte of crash2 costs one record if the scan goes on: good ones follow it."""
    end = goldens.summary("crash2")["maxPhyOffset"]
    with rmqstore.open(golden_store("crash2"), ignore_log_end=True) as store:
        found = column(store, "commitLogOffset", scan="commitlog", mode="DROPMALFORMED")
    kept = [row["physicalOffset"] for row in goldens.records("crash2")]
    assert found[: len(kept)] == kept
    assert len(found) > len(kept)
    assert end not in found


def test_rocksdb_queues_are_refused_without_the_library_with_the_way_round(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with rmqstore.open(golden_store("rocksdb-cq")) as store:
        cure = rf"RocksDB.*{re.escape(install('rocksdb'))}.*scan=commitlog"
        with pytest.raises(UnsupportedFeatureError, match=cure):
            read(store)
        with pytest.raises(UnsupportedFeatureError, match="RocksDB"):
            read(store, subscribe=goldens.summary("rocksdb-cq")["queues"][0]["topic"])


@pytest.mark.parametrize("name", ["basic", "cq-ext", "live", "v2"])
def test_tags_choose_exactly_the_messages_of_these_tags(golden_store: Golden, name: str) -> None:
    every = {row["tags"] or "" for row in goldens.lines(name, "expected")}
    tags = sorted(tag for tag in every if tag and "||" not in tag and tag == tag.strip())
    columns = ["commitLogOffset", "tags"]
    with rmqstore.open(golden_store(name)) as store:
        for chosen in (*([tag] for tag in tags), tags[:3]):
            found = read(store, tags=" || ".join(chosen), columns=columns)
            by_log = read(store, tags=" || ".join(chosen), columns=columns, scan="commitlog")
            expected = [row for row in goldens.lines(name, "expected") if row["tags"] in chosen]
            assert sorted(offsets(found)) == sorted(row["physicalOffset"] for row in expected)
            assert set(offsets(found)) <= set(offsets(by_log))


@pytest.mark.parametrize("name", ["basic", "live", "edges", "expired"])
def test_each_column_alone_equals_the_column_among_all(golden_store: Golden, name: str) -> None:
    with rmqstore.open(golden_store(name), broker_name="b") as store:
        expected = [goldens.message(row, "b") for row in goldens.lines(name, "expected")]
        expected.sort(key=lambda row: row["commitLogOffset"])
        for column in TOLD_COLUMNS:
            assert [row[column] for row in read(store, columns=column)] == [
                row[column] for row in expected
            ], column


@pytest.mark.parametrize("name", ["basic", "live", "default-sizes"])
def test_properties_as_text_are_the_stored_string(golden_store: Golden, name: str) -> None:
    import pyarrow as pa

    schema = pa.schema([("commitLogOffset", pa.int64()), ("properties", pa.string())])
    expected = {
        row["physicalOffset"]: row["propertiesRaw"] for row in goldens.lines(name, "expected")
    }
    assert {
        row["commitLogOffset"]: row["properties"]
        for row in read(golden_store(name), columns=schema)
    } == expected


def test_offsets_and_times_bound_each_queue(golden_store: Golden) -> None:
    rows = goldens.queues("basic")["TopicA", 0]
    lines = goldens.lines("basic", "expected")
    middle = sorted(row["storeTimestamp"] for row in lines)[len(lines) // 2]
    with rmqstore.open(golden_store("basic")) as store:
        found = read(
            store,
            assign={"TopicA": [0]},
            starting_offsets={"TopicA": {"0": 3}},
            ending_offsets='{"TopicA":{"0":9}}',
        )
        assert offsets(found) == [
            row["physicalOffset"] for row in rows if 3 <= row["queueOffset"] < 9
        ]
        # Times do not rise with the log here; a bound is a queue's first message at or after it.
        late = read(store, starting_timestamp=middle)
        early = read(store, ending_timestamp=middle)
    expected_late = set()
    for queue in goldens.queues("basic").values():
        cut = next(
            (at for at, row in enumerate(queue) if row["storeTimestamp"] >= middle), len(queue)
        )
        expected_late |= {row["physicalOffset"] for row in queue[cut:]}
    assert set(offsets(late)) == expected_late
    assert set(offsets(early)) == {row["physicalOffset"] for row in lines} - expected_late


def test_system_topics_are_left_out_unless_requested(golden_store: Golden) -> None:
    user = {
        "LiveAutoCreated", "LiveBatch", "LiveDelay", "LiveOrder", "LivePlain", "LivePop",
        "LiveRetry", "LiveTimer",
    }  # fmt: skip
    with rmqstore.open(golden_store("live")) as store:
        found = {row["topic"] for row in read(store, columns="topic", include_system_topics=False)}
        by_pattern = {
            row["topic"]
            for row in read(store, columns="topic", subscribe_pattern=".*LMQ.*|%DLQ%.*")
        }
    assert found == user | {"LiveTx"}
    assert by_pattern == {"%DLQ%CG_retry"}


@pytest.mark.parametrize("name", EVERY)
def test_reading_changes_nothing_in_the_folder(
    golden_store: Golden, tmp_path: Path, name: str
) -> None:
    root = golden_store(name)
    if name != "default-sizes":  # copying would fill its holes
        root = Path(shutil.copytree(root, tmp_path / name))
    before = state(root)
    with rmqstore.open(root) as store:
        for mode in ("FAILFAST", "PERMISSIVE"):
            read(store, scan="commitlog", mode=mode)
            read(store, mode=mode)
        for topic in store.topics():
            store.queues(topic)
        for row in goldens.records(name)[:20]:
            store.get(row["physicalOffset"])
        with pytest.raises(OptionError):
            store.get("no id")
        assert store.broker_name
    assert state(root) == before


def test_broker_name_is_that_of_the_live_broker(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        names = {
            topic
            for topic in store.parts.store_queues.known_topics()
            if topic.startswith("rmq_sys_SYNC_BROKER_MEMBER_")
        }
        assert names == {f"rmq_sys_SYNC_BROKER_MEMBER_{store.broker_name}"}


def test_messages_outlive_the_store_they_were_read_from(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("one"), broker_name="b") as store:
        table = store.scan(columns=TOLD_COLUMNS).read_all()
    expected = [goldens.message(row, "b") for row in goldens.lines("one", "expected")]
    assert [plain(row) for row in table.to_pylist()] == expected
