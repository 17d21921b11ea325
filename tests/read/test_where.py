"""Scans with a condition: the matching rows of a plain scan, in its order, from fewer bytes."""

from __future__ import annotations

import logging
import operator
import random
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from memory_storage import MemoryStorage
from reading import EVERY_COLUMN, LOG_COLUMNS, offsets, read
from rmqstore import CorruptQueueError, CorruptRecordError, MessageStore, OptionError
from rmqstore.read.rows import merge_by_physical_offset

STORES = [
    "basic", "expired", "expired2", "preblank", "crash", "crash2", "crash3", "crash4", "v49",
    "live", "lmq", "batch-cq",
]  # fmt: skip
COLUMNS = (
    "topic", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "tags", "keys", "msgId",
    "brokerName", "sysFlag",
)  # fmt: skip
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def scanned(store: MessageStore, by: str, **options: Any) -> pa.Table:
    columns = EVERY_COLUMN if by == "queue" else LOG_COLUMNS
    return store.scan(
        **{"columns": columns, "include_system_topics": True, "scan": by, **options}
    ).read_all()


def literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def random_condition(
    chance: random.Random, table: pa.Table, depth: int = 0
) -> tuple[str, pc.Expression]:
    """Return a condition that some rows meet, or nearly, as text and as an expression."""
    kind = chance.choice(["leaf", "leaf", "AND", "AND", "OR", "NOT"]) if depth < 3 else "leaf"
    if kind == "leaf":
        return random_comparison(chance, table)
    text, expression = random_condition(chance, table, depth + 1)
    if kind == "NOT":
        return f"NOT ({text})", ~expression
    other, second = random_condition(chance, table, depth + 1)
    return (
        f"({text}) {kind} ({other})",
        expression & second if kind == "AND" else expression | second,
    )


def random_comparison(chance: random.Random, table: pa.Table) -> tuple[str, pc.Expression]:
    name = chance.choice(COLUMNS)
    field = pc.field(name)
    rows = [chance.randrange(table.num_rows) for _ in range(3)]
    some = [value for value in table.column(name).take(rows).to_pylist() if value is not None]
    if not some:
        return f"{name} IS NOT NULL", field.is_valid()
    symbol = chance.choice(["=", "=", "IN", "IN", "<>", *ORDERS, "LIKE"])
    if symbol == "LIKE" and name == "topic":
        prefix = some[0][:3].replace("%", "\\%").replace("_", "\\_")
        return f"topic LIKE '{prefix}%'", pc.starts_with(field, some[0][:3])
    if symbol in ORDERS:
        return f"{name} {symbol} {literal(some[0])}", ORDERS[symbol](field, some[0])
    if symbol in ("=", "<>"):
        expression = field == some[0] if symbol == "=" else field != some[0]
        return f"{name} {symbol} {literal(some[0])}", expression
    # An expression's isin is false for null, a text's IN unknown: the two would differ under NOT.
    equal = reduce(operator.or_, [field == value for value in some])
    return f"{name} IN ({', '.join(map(literal, some))})", equal


@pytest.mark.parametrize("by", ["queue", "commitlog"])
@pytest.mark.parametrize("name", STORES)
def test_rows_are_those_of_a_plain_scan_that_meet_the_condition(
    name: str, by: str, golden_store: Golden
) -> None:
    chance = random.Random(f"{name} {by}")
    with rmqstore.open(golden_store(name)) as store:
        every = scanned(store, by)
        for _ in range(10):
            text, expression = random_condition(chance, every)
            expected = every.filter(expression)
            assert scanned(store, by, where=text).equals(expected), text
            assert scanned(store, by, where=expression).equals(expected), text
            limit = max(1, expected.num_rows // 2)
            some = store.scan(
                where=text, limit=limit, columns="keys", include_system_topics=True, scan=by
            ).read_all()
            assert some.equals(expected.slice(0, limit).select(["keys"])), text
            assert (
                store.count(where=expression, include_system_topics=True, scan=by)
                == expected.num_rows
            )


def test_an_empty_store_has_no_rows_that_meet_anything(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("empty")) as store:
        assert store.count(where="queueOffset >= 0") == 0


def test_a_condition_leaves_most_of_a_store_unread(
    golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmqstore.read.plan")
    with rmqstore.open(golden_store("basic")) as store:
        found = store.scan(
            where="topic = 'TopicA' AND queueId = 0 AND queueOffset BETWEEN 3 AND 5"
        ).read_all()
    assert found["queueOffset"].to_pylist() == [3, 4, 5]
    assert "the condition leaves 3 of " in caplog.text
    assert "queue_offsets 3..5" in caplog.text


@pytest.mark.parametrize(
    ("condition", "opened"),
    [
        ("topic = 'TopicA' AND queueId = 0 AND queueOffset < 5", {"TopicA/0"}),
        ("topic LIKE 'TopicA%' AND queueId IN (1, 2)", {"TopicA/1", "TopicA/2"}),
        ("topic = 'no such topic'", set()),
    ],
)
def test_queues_that_a_condition_rules_out_are_not_opened(
    condition: str, opened: set[str], golden_store: Golden
) -> None:
    storage = MemoryStorage(golden_store("basic"))
    with rmqstore.open(storage.root, storage=storage) as store:
        found = store.count(where=condition)
        queues = storage.root / "consumequeue"
        listed = {
            str(folder.relative_to(queues))
            for folder in storage.n_listed
            if queues in folder.parents and folder.name.isdigit()
        }
    newest = "TopicB/0"  # the queue of the newest record tells whether queues lack records
    assert listed == opened | {newest}
    assert (found > 0) == bool(opened)


def test_a_damaged_queue_that_a_condition_rules_out_is_not_reported(tmp_path: Path) -> None:
    store = build.Store(units_per_file=4)
    for number in range(20):
        store.append(build.Record(f"T{number % 2}", 0))
    root = store.write(tmp_path / "store")
    (root / "consumequeue" / "T1" / "0" / f"{4 * 20:020}").unlink()
    with rmqstore.open(root) as opened:
        assert opened.count(where="topic = 'T0'") == 10
        with pytest.raises(CorruptQueueError):
            opened.count(where="topic IN ('T0', 'T1')")


def test_a_key_is_read_through_the_index_in_the_order_of_the_log(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        every = store.scan().read_all()
        keys = [row["key"] for row in goldens.lines("live", "keys")]
        ids = every["msgId"].to_pylist()
        some = [*random.Random(7).sample(ids, 20), *keys[:3]]
        found = store.scan(where=pc.field("msgId").isin(some)).read_all()
    assert found.equals(every.filter(pc.field("msgId").isin(some)))
    assert found.num_rows >= 20


def test_messages_that_the_index_has_and_those_after_it_come_in_order(tmp_path: Path) -> None:
    """The index covers the first part of the log; a key is in both parts, in several queues."""
    root = tmp_path / "s"
    batch = pa.record_batch(
        {
            "topic": ["T"] * 300,
            "body": [b"x" * 200] * 300,
            "keys": [f"k{n % 3}" for n in range(300)],
        }
    )
    with rmqstore.create(root) as writer:
        writer.append(batch)
    (index,) = (root / "index").iterdir()
    kept = index.read_bytes()
    with rmqstore.open(root, mode="a") as writer:
        writer.append(batch.slice(0, 60))
    index.write_bytes(kept)
    with rmqstore.open(root) as store:
        found = offsets(read(store, where="keys = 'k1'"))
        assert found == [row["commitLogOffset"] for row in read(store) if row["keys"] == "k1"]
        assert len(found) == 120
        assert offsets(read(store, where="keys = 'k1'", limit=110)) == found[:110]


def test_streams_are_merged_by_place() -> None:
    chance = random.Random(3)
    for _ in range(200):
        places = sorted(chance.sample(range(1000), chance.randint(0, 40)))
        sides: list[list[int]] = [[], []]
        for place in places:
            sides[chance.random() < chance.choice([0.1, 0.5])].append(place)
        streams = [list(batches_of(chance, side)) for side in sides]
        merged = [
            place
            for batch in merge_by_physical_offset(*streams)
            for place in batch.column("commitLogOffset").to_pylist()
        ]
        assert merged == places


def batches_of(chance: random.Random, places: list[int]) -> list[pa.RecordBatch]:
    batches, start = [], 0
    while start < len(places):
        end = start + chance.randint(0, 9)
        batches.append(
            pa.record_batch({"commitLogOffset": pa.array(places[start:end], pa.int64())})
        )
        start = end
    return batches


def test_a_condition_meets_look_ups_filters_and_tags(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        rows = read(store, msg_key="order-25", columns=LOG_COLUMNS)
        assert rows
        where = f"queueOffset > {rows[0]['queueOffset']}"
        assert read(store, msg_key="order-25", columns=LOG_COLUMNS, where=where) == [
            row for row in rows if row["queueOffset"] > rows[0]["queueOffset"]
        ]
        some = read(store, tags="TagA || TagB", where="tags <> 'TagB'")
        assert some == read(store, tags="TagA")
        assert read(store, filter="TAGS = 'TagA'", where="queueId = 0") == [
            row for row in some if row["queueId"] == 0
        ]
        assert read(store, tags="TagA", where="tags = 'TagB'") == []


def test_a_condition_on_the_broker_reads_all_or_nothing(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic"), broker_name="b1") as store:
        assert store.count(where="brokerName = 'b1'") == store.count() > 0
        assert (
            store.count(where="brokerName = 'b2'") == store.count(where="brokerName <> 'b1'") == 0
        )


def test_a_condition_on_pending_messages(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        every = store.scan(include_pending=True).read_all()
        waiting = store.scan(include_pending=True, where="pending IS NOT NULL").read_all()
        assert waiting.num_rows
        assert waiting.equals(every.filter(pc.field("pending").is_valid()))
        assert (
            store.scan(include_pending=True, where="pending IS NULL")
            .read_all()
            .equals(every.filter(pc.field("pending").is_null()))
        )
        with pytest.raises(OptionError, match="'pending' is not a column"):
            store.scan(where="pending IS NULL")


def test_damage_in_what_a_condition_leaves_is_reported_as_ever(tmp_path: Path) -> None:
    store = build.Store()
    placed = [
        store.append(build.Record(queue_id=at % 2, body_crc=1 if at == 3 else None))
        for at in range(8)
    ]
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert opened.count(where="queueId = 0") == 4
        with pytest.raises(CorruptRecordError, match="CRC of the body"):
            opened.count(where="queueId = 1")
        assert opened.count(where="queueId = 1", mode="DROPMALFORMED") == 3
        (row,) = read(opened, where="_corrupt_record IS NOT NULL", mode="PERMISSIVE")
        assert row["commitLogOffset"] == placed[3].physical_offset
        with pytest.raises(OptionError, match="'_corrupt_record' is not a column"):
            opened.count(where="_corrupt_record IS NOT NULL")


def test_columns_as_another_type_and_exact_copies(tmp_path: Path) -> None:
    store = build.Store()
    for number in range(4):
        record = build.Record(
            body=b"b%d" % number, properties=build.properties({"TAGS": f"t{number}"})
        )
        store.append(record, tags=f"t{number}")
    wide = pa.schema(
        [("queueOffset", pa.int64()), ("body", pa.string()), ("storeSize", pa.int64())]
    )
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert (
            read(opened, columns=wide, where="body = 'b2' AND storeSize > 0 AND flag < 99")[0][
                "body"
            ]
            == "b2"
        )
        assert read(opened, columns="queueOffset", where="body = 'b2'") == [{"queueOffset": 2}]
        copies = opened.scan(verbatim=True, where="tags = 't3'").read_all()
        assert copies.equals(opened.scan(verbatim=True).read_all().slice(3))


def test_a_column_that_only_a_queue_has_is_refused_by_the_log(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("one")) as store:
        assert store.count(where="tagsCode >= 0 OR tagsCode < 0") == 1
        with pytest.raises(OptionError, match="tagsCode stands in the ConsumeQueue"):
            store.count(where="tagsCode >= 0", scan="commitlog")


def test_rows_of_a_view_meet_a_condition_on_its_columns(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        every = store.view("queues").read_all()
        some = store.view(
            "queues", where="topic = 'TopicA' AND messages > 0", columns="queueId,messages"
        ).read_all()
        assert some.equals(
            every.filter((pc.field("topic") == "TopicA") & (pc.field("messages") > 0)).select(
                ["queueId", "messages"]
            )
        )
        assert some.num_rows
        assert store.view("topics", where="isSystem = false").read_all().num_rows
        with pytest.raises(OptionError, match="'body' is not a column"):
            store.view("queues", where="body = 'x'")


def test_times_are_compared_to_the_microsecond(tmp_path: Path) -> None:
    store = build.filled([build.Record(store_timestamp=build.T0)])
    at = datetime.fromtimestamp(build.T0 // 1000, UTC) + timedelta(milliseconds=build.T0 % 1000)
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert opened.count(where=f"storeTimestamp = {build.T0}") == 1
        assert opened.count(where=f"storeTimestamp = '{at.isoformat()}'") == 1
        later = (at + timedelta(microseconds=400)).isoformat()
        assert opened.count(where=f"storeTimestamp < '{later}'") == 1
        assert opened.count(where=f"storeTimestamp >= '{later}'") == 0


def test_a_property_that_is_named_as_a_column_is_found_by_an_expression(tmp_path: Path) -> None:
    store = build.Store()
    for number in range(3):
        store.append(build.Record(properties=build.properties({"queueOffset": str(7 + number)})))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        with pytest.raises(OptionError, match="queueOffset is a column"):
            opened.count(filter="queueOffset = '8'")
        value = pc.map_lookup(pc.field("properties"), "queueOffset", "first")
        assert [row["queueOffset"] for row in read(opened, where=value == "8")] == [1]
