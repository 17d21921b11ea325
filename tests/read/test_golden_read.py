"""The golden stores: what the real RocketMQ wrote must read as the real RocketMQ reads it."""

from __future__ import annotations

import re
import sys

import pytest

import goldens
import rmqstore
from goldens import Golden
from reading import TOLD_COLUMNS, TOLD_OF_LOG, by_queue, column, offsets, plain, read
from rmqstore import UnsupportedFeatureError
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


@pytest.mark.parametrize("name", [*PLAIN, "cq-ext"])
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


@pytest.mark.parametrize("name", [*BY_QUEUE, "batch-cq"])
def test_queues_have_the_ranges_of_the_real_store_and_times_and_bytes_of_the_messages(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store(name)) as store:
        infos = {
            (info.topic, info.queue_id): info
            for topic in store.topics()
            for info in store.queues(topic)
        }
        assert infos.keys() == goldens.queues(name).keys()
        for queue in goldens.summary(name)["queues"]:
            key, first = (queue["topic"], queue["queueId"]), queue["minOffset"]
            rows, info = goldens.queues(name)[key], infos[key]
            if name in STALE_MINIMUM:
                first = min((row["queueOffset"] for row in rows), default=queue["maxOffset"])
            assert store.queue_range(*key) == (info.min_offset, info.max_offset)
            assert store.queue_range(*key) == (first, queue["maxOffset"])
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
    topic = goldens.summary("basic")["queues"][0]["topic"]
    paths = [golden_store("basic"), golden_store("rocksdb-cq")]
    with rmqstore.open(paths) as cluster, pytest.raises(UnsupportedFeatureError, match=cure):
        cluster.scan(subscribe=topic)  # whether the second store has it is not known


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
