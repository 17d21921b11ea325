"""Look-ups and pushed filters: the same rows as without them, from fewer bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import goldens
import rmqstore
from connector.engine import meets
from connector.sparkreads import Golden, GoldenStore, collect, in_log_order, offsets
from connector.streams import rows_of
from pyspark_rmqstore.batch_reader import FilteringReader, RmqStoreReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.schema import default_schema
from reading import rows
from rmqstore.read.parts import LogPart, QueuesPart, RecordsPart, UnitsPart

STORES = ["basic", "crash", "expired", "live"]


class Condition(NamedTuple):
    """A WHERE clause, and the filters that Spark makes of it and offers to a source."""

    where: str
    filters: tuple[Filter, ...]


def condition(where: str, *filters: Filter) -> Condition:
    return Condition(where, filters)


def conditions(name: str) -> list[Condition]:
    """Return conditions that some rows of a store meet.

    Spark adds that a column is not null; it makes no filter of an OR.
    """
    some = goldens.lines(name, "expected")
    one, other = some[len(some) // 3], some[len(some) // 2]
    keyed = next(row for row in some if row["keys"] and " " in row["keys"])["keys"]
    times = sorted((one["storeTimestamp"], other["storeTimestamp"]))
    first, second = (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time) for time in times
    )
    low, high = sorted((one["physicalOffset"], other["physicalOffset"]))
    ids = [row["properties"]["UNIQ_KEY"] for row in some[::40] if "UNIQ_KEY" in row["properties"]]
    topic, queue_id, queue_offset, place = (
        (name,) for name in ("topic", "queueId", "queueOffset", "commitLogOffset")
    )
    stored, tags, keys, msg_id = ((name,) for name in ("storeTimestamp", "tags", "keys", "msgId"))
    return [
        condition(
            f"topic = '{one['topic']}' AND queueId = {one['queueId']}",
            IsNotNull(topic), IsNotNull(queue_id), EqualTo(topic, one["topic"]),
            EqualTo(queue_id, one["queueId"]),
        ),
        condition(
            f"topic IN ('{one['topic']}', 'absent') AND queueOffset BETWEEN 3 AND 11",
            IsNotNull(queue_offset), In(topic, [one["topic"], "absent"]),
            GreaterThanOrEqual(queue_offset, 3), LessThanOrEqual(queue_offset, 11),
        ),
        condition(
            f"topic LIKE '{one['topic'][:3]}%' AND NOT queueId = 0",
            IsNotNull(topic), IsNotNull(queue_id), StringStartsWith(topic, one["topic"][:3]),
            Not(EqualTo(queue_id, 0)),
        ),
        condition(
            f"commitLogOffset > {low} AND commitLogOffset <= {high}",
            IsNotNull(place), GreaterThan(place, low), LessThanOrEqual(place, high),
        ),
        condition(
            f"storeTimestamp BETWEEN timestamp_millis({times[0]}) AND timestamp_millis({times[1]})",
            IsNotNull(stored), GreaterThanOrEqual(stored, first), LessThanOrEqual(stored, second),
        ),
        condition(
            f"storeTimestamp < timestamp_millis({times[0]}) AND tags IS NOT NULL",
            IsNotNull(stored), LessThan(stored, first), IsNotNull(tags),
        ),
        condition(
            f"storeTimestamp IN (timestamp_millis({times[0]}), timestamp_millis({times[1]}))",
            In(stored, [first, second]),
        ),
        condition("tags = 'TagA'", IsNotNull(tags), EqualTo(tags, "TagA")),
        condition(
            "tags IN ('TagA', 'TagB') AND queueOffset < 5",
            IsNotNull(queue_offset), In(tags, ["TagA", "TagB"]), LessThan(queue_offset, 5),
        ),
        condition("tags IS NULL", IsNull(tags)),
        condition("tags <> 'TagA'", IsNotNull(tags), Not(EqualTo(tags, "TagA"))),
        condition(f"keys = '{keyed}'", IsNotNull(keys), EqualTo(keys, keyed)),
        condition(f"keys IN ('{keyed}', 'none', null)", In(keys, [keyed, "none", None])),
        condition("keys = 'none'", IsNotNull(keys), EqualTo(keys, "none")),
        condition("keys = ''", IsNotNull(keys), EqualTo(keys, "")),
        condition(f"msgId = '{ids[0]}'", IsNotNull(msg_id), EqualTo(msg_id, ids[0])),
        condition(f"msgId IN ({', '.join(repr(one) for one in ids)})", In(msg_id, ids)),
        condition(f"msgId = '{one['msgId']}'", IsNotNull(msg_id), EqualTo(msg_id, one["msgId"])),
        condition(
            f"msgId = '{ids[0]}' AND storeTimestamp > timestamp_millis({times[0]})",
            IsNotNull(msg_id), IsNotNull(stored), EqualTo(msg_id, ids[0]),
            GreaterThan(stored, first),
        ),
        condition("queueOffset = 1 OR queueOffset = 4"),
        condition(
            "queueOffset > 9 AND queueOffset < 3",
            IsNotNull(queue_offset), GreaterThan(queue_offset, 9), LessThan(queue_offset, 3),
        ),
        condition("topic > 'T'", IsNotNull(topic), GreaterThan(topic, "T")),
        condition("queueId <=> 1", EqualNullSafe(queue_id, 1)),
        condition(
            "brokerName = 'nobody'", IsNotNull(("brokerName",)), EqualTo(("brokerName",), "nobody")
        ),
        condition(
            "body IS NOT NULL AND queueOffset >= 2",
            IsNotNull(queue_offset), IsNotNull(("body",)), GreaterThanOrEqual(queue_offset, 2),
        ),
    ]  # fmt: skip


def test_option_where_reads_what_python_reads_also_in_a_stream(
    golden: Golden, tmp_path: Path
) -> None:
    where, path = "queueId = 0 AND queueOffset >= 2", golden.path("basic")
    with rmqstore.open(path) as store:
        expected = sorted(store.scan(where=where, columns="body").read_all()["body"].to_pylist())
    frame = golden.load(path, where=where, columns="body")
    assert sorted(frame.toArrow()["body"].to_pylist()) == expected
    assert frame.where(IsNotNull(("body",))).pushing().plan.left == (IsNotNull(("body",)),)
    followed = golden.engine.readStream.format("rmqstore").option("startingOffsets", "earliest")
    found = rows_of(followed.option("where", where).load(str(path)), tmp_path)
    assert sorted(row["body"] for row in found) == expected


@pytest.mark.parametrize("name", STORES)
def test_the_rows_are_the_same_with_filters_pushed_and_not(name: str, golden: Golden) -> None:
    path, n_rows = golden.path(name), 0
    for scan in ("queue", "commitlog"):
        frame = golden.load(path, scan=scan, includeSystemTopics="true")
        whole = frame.toArrow().sort_by("commitLogOffset")
        values, plain = whole.to_pylist(), rows(whole.to_batches())
        for where, filters in conditions(name):
            found = in_log_order(collect(frame.where(*filters).pushing()))
            assert found == [
                row
                for row, typed in zip(plain, values, strict=True)
                if all(meets(one, typed) for one in filters)
            ], where
            n_rows += len(found)
    assert n_rows > 100, "the conditions must find rows"


def reader(path: object, *filters: Filter, **options: str) -> tuple[FilteringReader, list[Filter]]:
    """Return a reader that was given filters, and those that it left to Spark."""
    parsed = parse_read_options({"path": str(path), **options})
    found = FilteringReader(default_schema(parsed.columns), parsed)
    return found, list(found.pushFilters(list(filters)))


def n_messages(found: FilteringReader) -> int:
    parts = [split.part for task in found.partitions() for split in task.tasks]
    assert all(isinstance(part, QueuesPart | UnitsPart) for part in parts)
    ranges = [
        queue_slice for part in parts if isinstance(part, QueuesPart) for queue_slice in part.slices
    ]
    single = [part for part in parts if isinstance(part, UnitsPart)]
    return sum(queue_slice.end - queue_slice.start for queue_slice in ranges) + sum(
        len(one.picked.physical_offsets) for one in single
    )


def test_each_filter_leaves_less_to_be_planned(golden_store: GoldenStore) -> None:
    path = golden_store("live")
    rows = goldens.lines("live", "expected")
    one = next(row for row in rows if row["topic"].startswith("Live"))
    whole = n_messages(reader(path)[0])
    key = one["properties"]["UNIQ_KEY"]
    for filters, most in [
        ([EqualTo(("topic",), one["topic"])], sum(row["topic"] == one["topic"] for row in rows)),
        ([In(("topic",), (one["topic"],)), EqualTo(("queueId",), 0)], whole // 2),
        ([StringStartsWith(("topic",), one["topic"][:5])], whole - 1),
        ([LessThanOrEqual(("queueOffset",), 0)], len(goldens.queues("live"))),
        ([LessThanOrEqual(("commitLogOffset",), rows[0]["physicalOffset"])], whole - 1),
        ([EqualTo(("msgId",), key)], 8), ([In(("msgId",), (key, "none"))], 8),
        ([EqualTo(("keys",), "none")], 0),
    ]:  # fmt: skip
        found, left = reader(path, *filters)
        assert left == []
        assert n_messages(found) <= most, filters


def test_what_cannot_be_answered_is_left_to_spark(golden_store: GoldenStore) -> None:
    filters = [
        EqualTo(("body",), b""), Not(EqualTo(("topic",), "T")), GreaterThan(("topic",), "T"),
        EqualTo(("queueId",), "text"), EqualTo(("properties", "a"), "b"),
        EqualTo(("queueOffset",), 1 << 70), StringStartsWith(("keys",), "k"),
        EqualTo(("absent",), 1),
    ]  # fmt: skip
    found, left = reader(golden_store("basic"), *filters)
    assert left == filters
    assert n_messages(found) == n_messages(reader(golden_store("basic"))[0])


@pytest.mark.parametrize("name", ["basic", "live", "crash3"])
def test_a_look_up_by_keys_is_one_pass_over_what_the_index_gives(name: str, golden: Golden) -> None:
    records = [row for row in goldens.records(name) if row["sysFlag"] & 12 != 12]
    keys = sorted({row["key"] for row in goldens.lines(name, "keys")})[::6]
    right = {
        row["physicalOffset"] for row in records
        if row["uniqKey"] in keys or set((row["keys"] or "").split(" ")) & set(keys)
    }  # fmt: skip
    found = collect(golden.load(name, msgKey=json.dumps(keys), includeSystemTopics="true"))
    assert offsets(found) == right
    options = {
        "path": str(golden.path(name)), "msgKey": json.dumps(keys), "includeSystemTopics": "true",
    }  # fmt: skip
    parsed = parse_read_options(options)
    tasks = RmqStoreReader(default_schema(parsed.columns), parsed).partitions()
    parts = [split.part for task in tasks for split in task.tasks]
    assert sum(isinstance(part, RecordsPart) for part in parts) == (name != "crash3")
    assert any(isinstance(part, LogPart) for part in parts) or name == "live"
    only = collect(golden.load(name, msgKey=json.dumps(keys),
                        includeSystemTopics="true", indexOnly="true"))  # fmt: skip
    assert offsets(only) <= right
    assert bool(only) == (name != "crash3")


@pytest.mark.parametrize(
    ("look_up", "is_meant"),
    [
        ({"msgKey": "order-25"}, lambda row: "order-25" in (row["keys"] or "").split(" ")),
        ({"msgTags": "TagA"}, lambda row: row["tags"] == "TagA"),
    ],
    ids=["key", "tag"],
)
def test_a_look_up_is_cut_into_tasks(
    golden: Golden, look_up: dict[str, str], is_meant: Callable[[dict[str, Any]], bool]
) -> None:
    of_topic = [row for row in goldens.lines("basic", "expected") if row["topic"] == "TopicA"]
    expected = {row["physicalOffset"] for row in of_topic if is_meant(row)}
    query: dict[str, Any] = look_up | {"subscribe": "TopicA", "columns": "commitLogOffset"}
    cut = golden.load("basic", **query, maxRecordsPerPartition="1")
    assert len(cut.tasks()) >= len(expected) > 0
    for frame in (cut, golden.load("basic", **query)):
        assert offsets(collect(frame)) == expected


def test_ids_are_looked_up_and_filters_meet_a_look_up(golden: Golden) -> None:
    some = goldens.lines("basic", "expected")[::97]
    ids = json.dumps([row["msgId"] for row in some])
    found = collect(golden.load("basic", msgId=ids, includeSystemTopics="true"))
    assert offsets(found) == {row["physicalOffset"] for row in some}
    frame = golden.load("basic", msgKey="order-25", includeSystemTopics="true")
    every = in_log_order(collect(frame))
    filters = EqualTo(("topic",), "TopicA"), GreaterThan(("queueId",), 0)
    assert in_log_order(collect(frame.where(*filters).pushing())) == [
        row for row in every if row["topic"] == "TopicA" and row["queueId"] > 0
    ]


def test_pending_messages_come_with_their_real_topic_and_queue(golden: Golden) -> None:
    frame = golden.load("live", includePending="true").pushing()
    assert frame.columns[-2:] == ["pending", "dueTimestamp"]
    found = {
        (row.keys, row.topic, row.queueId, row.queueOffset)
        for row in frame.where(EqualTo(("pending",), "transaction")).collect()
    }
    assert found == {(f"tx-{number}", "LiveTx", 1 - number % 2, None) for number in range(2, 18, 3)}
    assert frame.where(EqualTo(("topic",), "LiveDelay"), IsNotNull(("pending",))).count() == 15
    plain = golden.load("live").count()
    assert frame.where(IsNull(("pending",))).count() == plain
    with pytest.raises(PySparkException, match="includePending"):
        golden.load("live", includePending="true", scan="commitlog").collect()
