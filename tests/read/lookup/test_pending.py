"""Pending messages, worked out by hand from the records of `live` and the actions of its driver.

Of 18 transactions every third was committed, every third after it rolled back, the others left
open. Messages with delay levels 1 and 2 and timers of a few seconds were delivered before the
store was closed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from reading import read
from rmqstore.errors import OptionError

COLUMNS = "topic,queueId,queueOffset,keys,pending,dueTimestamp,commitLogOffset,body"
MINUTE = 60_000
LEVELS_MS = [
    1000, 5000, 10_000, 30_000,
    *(m * MINUTE for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]  # fmt: skip


def pending(root: Path, **options: Any) -> list[dict[str, Any]]:
    with rmqstore.open(root) as store:
        defaults = {"columns": COLUMNS, "include_system_topics": False, "include_pending": True}
        return [row for row in read(store, **(defaults | options)) if row["pending"]]


def names(rows: list[dict[str, Any]], kind: str) -> set[str]:
    found = [row["keys"] for row in rows if row["pending"] == kind]
    assert len(set(found)) == len(found), "a message came twice"
    return set(found)


def families(root: Path) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return what families trans and timer of a store hold."""
    names = ("default", "timer", "trans")
    database = Rdict(
        str(root / "rocksdbstore"),
        Options(raw_mode=True),
        {family: Options(raw_mode=True) for family in names},
        AccessType.read_only(),
    )
    trans, timer = (dict(database.get_column_family(name).items()) for name in ("trans", "timer"))
    database.close()
    return trans, timer


@pytest.mark.parametrize("with_index_files", [True, False])
def test_the_log_tells_what_is_pending_in_rocksdb(
    golden_store: Golden, tmp_path: Path, *, with_index_files: bool
) -> None:
    root = Path(shutil.copytree(golden_store("v55-live-rocksdb"), tmp_path / "s"))
    if not with_index_files:  # then the index in RocksDB finds copies in the real topics
        shutil.rmtree(root / "index")
    rows = pending(root)
    trans, timer = families(Path(shutil.copytree(root, tmp_path / "for_the_library")))
    halves = {int.from_bytes(key[:8]) for key in trans if b"@" in key}
    found = {row["commitLogOffset"] for row in rows if row["pending"] == "transaction"}
    assert found == halves
    delivered_until = int.from_bytes(timer[b"timeline_checkpoint"])
    due = {
        (int.from_bytes(value[4:]), int.from_bytes(key[:8]))
        for key, value in timer.items()
        if len(value) == 12 and int.from_bytes(key[:8]) >= delivered_until
    }
    assert due == {
        (row["commitLogOffset"], round(row["dueTimestamp"].timestamp() * 1000))
        for row in rows
        if row["pending"] == "timer"
    }
    assert (len(halves), len(due)) == (6, 12)


@pytest.mark.parametrize(
    ("name", "delayed"),
    [
        ("live", {*range(15, 30)}),
        ("v55-live-lite", {*range(15, 28), 29}),
        ("v55-live-rocksdb", {*range(15, 28), 29}),
    ],
)
def test_what_is_on_its_way_is_found_with_its_real_topic_queue_and_time(
    golden_store: Golden, name: str, delayed: set[int]
) -> None:
    rows = pending(golden_store(name))
    assert names(rows, "transaction") == {f"tx-{number}" for number in range(2, 18, 3)}
    assert names(rows, "delay") == {f"delay-{number}" for number in delayed}
    assert names(rows, "timer") == {f"timer-{number}" for number in range(8, 20)}
    records = {row["physicalOffset"]: row for row in goldens.lines(name, "expected")}
    for row in rows:
        record = records[row["commitLogOffset"]]["properties"]
        stored = records[row["commitLogOffset"]]["storeTimestamp"]
        assert (row["topic"], row["queueId"]) == (record["REAL_TOPIC"], int(record["REAL_QID"]))
        assert row["queueOffset"] is None
        due_times = {
            "transaction": None,
            "timer": int(record.get("TIMER_OUT_MS", 0)),
            "delay": stored + LEVELS_MS[int(record.get("DELAY", 1)) - 1],
        }
        due = due_times[row["pending"]]
        found = row["dueTimestamp"]
        assert (None if found is None else round(found.timestamp() * 1000)) == due


def test_the_other_rows_are_those_of_a_read_without(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        plain = read(
            store, include_system_topics=False, columns="topic,queueOffset,commitLogOffset"
        )
        both = read(store, include_system_topics=False, include_pending=True, columns=COLUMNS)
    assert [row["commitLogOffset"] for row in both if not row["pending"]] == [
        row["commitLogOffset"] for row in plain
    ]
    assert all(row["dueTimestamp"] is None for row in both if not row["pending"])


def test_a_selection_is_of_the_real_topics(golden_store: Golden) -> None:
    root = golden_store("live")
    assert {row["topic"] for row in pending(root, subscribe="LiveTx")} == {"LiveTx"}
    some = pending(root, assign={"LiveDelay": [1]})
    assert {(row["topic"], row["queueId"]) for row in some} == {("LiveDelay", 1)}
    assert len(some) == 7
    assert names(pending(root, filter="KEYS = 'tx-8'"), "transaction") == {"tx-8"}
    assert pending(root, subscribe="LivePlain") == []
    late = pending(
        root, starting_timestamp=max(row["storeTimestamp"] for row in goldens.records("live")) + 1
    )
    assert late == []


def test_of_a_crashed_store_old_offsets_do_not_count_what_was_delivered(copied: Golden) -> None:
    root = copied("live")
    table = root / "config" / "delayOffset.json"
    table.write_text(re.sub(r"1:14,2:5", "1:0,2:0", table.read_text()))
    assert names(pending(root), "delay") > {f"delay-{number}" for number in range(15, 30)}
    (root / "abort").write_text("1")
    assert names(pending(root), "delay") == {f"delay-{number}" for number in range(15, 30)}
    (root / "config" / "timercheck").unlink()
    assert names(pending(root), "timer") == {f"timer-{number}" for number in range(8, 20)}


def test_an_offset_after_the_end_of_its_level_hides_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = build.Store()
    for key, level in (("A", "1"), ("B", "1"), ("C", "2")):
        store.append(on_its_way(key, DELAY, DELAY=level))
    store.append(arrived("A"))
    root = store.write(tmp_path / "s")
    (root / "config").mkdir()
    (root / "config/delayOffset.json").write_text('{"offsetTable":{1:9,2:0}}')
    assert names(pending(root), "delay") == {"B", "C"}
    assert "the offset 9 of delay level 1 lies after the end of its queue, 2" in caplog.text
    (root / "config/delayOffset.json").write_text('{"offsetTable":{1:2,2:0}}')
    assert names(pending(root), "delay") == {"C"}


def test_a_commit_that_no_op_record_names_yet_decides_its_half(tmp_path: Path) -> None:
    half = {"REAL_TOPIC": "T", "REAL_QID": "2", "TRAN_MSG": "true"}
    store = build.Store()
    for number in range(4):
        pairs = build.properties(half | {"UNIQ_KEY": f"ID{number % 3}", "KEYS": f"k{number}"})
        store.append(build.Record(HALF, body=b"%d" % number, properties=pairs))
    pairs = build.properties(half | {"UNIQ_KEY": "ID1"})
    store.append(build.Record("T", 2, body=b"1", sys_flag=build.COMMIT, properties=pairs))
    store.append(op_record("2,"))
    rows = pending(store.write(tmp_path / "s"))
    # ID0 was checked again (3 is its newer copy), ID1 was committed, an op record names ID2.
    assert [(row["topic"], row["queueId"], row["keys"], row["body"]) for row in rows] == [
        ("T", 2, "k3", b"3")
    ]


def test_hostile_properties_name_no_place(tmp_path: Path) -> None:
    hostile = [
        {"REAL_TOPIC": "T"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "T", "REAL_QID": "x" * 9},
        {"REAL_TOPIC": "T", "REAL_QID": "9" * 18},
    ]
    records = (build.Record(HALF, properties=build.properties(pairs)) for pairs in hostile)
    assert pending(build.filled(records).write(tmp_path / "s")) == []


@pytest.mark.parametrize("options", [{"scan": "commitlog"}, {"msg_key": "tx-2"}])
def test_only_a_read_by_queue_has_them(options: dict[str, str], golden_store: Golden) -> None:
    with pytest.raises(OptionError, match="include_pending"):
        pending(golden_store("live"), **options)


@pytest.mark.parametrize("value", ["9" * 5000, '"x"'], ids=["very many digits", "text"])
def test_an_offset_that_is_no_number_is_damage(copied: Golden, value: str) -> None:
    root = copied("live")
    (root / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{value}}}}}')
    (root / "config/delayOffset.json.bak").unlink(missing_ok=True)
    with pytest.raises(rmqstore.CorruptConfigError, match="delayOffset"):
        pending(root)


HALF, DELAY, TIMER = "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"


def on_its_way(key: str, topic: str, **more: str) -> build.Record:
    properties = {"UNIQ_KEY": key, "KEYS": key, "REAL_TOPIC": "T", "REAL_QID": "0"} | more
    queue_id = int(more.get("DELAY", 1)) - 1 if topic == DELAY else 0
    return build.Record(topic=topic, queue_id=queue_id, properties=build.properties(properties))


def arrived(key: str, sys_flag: int = 0) -> build.Record:
    pairs = build.properties({"UNIQ_KEY": key})
    return build.Record("T", sys_flag=sys_flag, properties=pairs)


def op_record(named: str) -> build.Record:
    pairs = build.properties({"TAGS": "d"})
    return build.Record("RMQ_SYS_TRANS_OP_HALF_TOPIC", body=named.encode(), properties=pairs)


def waiting(folder: Path, *records: build.Record, op: str = "", **options: Any) -> list[str]:
    store = build.filled(records)
    if op:
        store.append(op_record(op))
    return [row["keys"] for row in pending(store.write(folder / "s"), **options)]


def test_a_half_message_that_was_checked_again_is_decided_when_one_of_its_copies_is(
    tmp_path: Path,
) -> None:
    half = on_its_way("A", HALF)
    assert waiting(tmp_path / "commit", half, arrived("A", build.COMMIT), half, op="0,") == []
    assert waiting(tmp_path / "lost-op", half, arrived("A", build.COMMIT), half) == []
    assert waiting(tmp_path / "rollback", half, half, op="0,") == []
    assert waiting(tmp_path / "open", half, half, on_its_way("B", HALF), op="2,") == ["A"]


def test_a_half_message_in_the_topic_of_rocksdb_is_decided_by_its_physical_offset(
    tmp_path: Path,
) -> None:
    half_topic, op_topic = (f"RMQ_SYS_ROCKSDB_TRANS_{kind}TOPIC" for kind in ("HALF_", "OP_HALF_"))
    store = build.Store()
    halves = [store.append(on_its_way(key, half_topic)) for key in "ABCDE"]
    store.append(arrived("C", build.COMMIT))  # and no op record, which a crash lost
    ops = [
        {"TAGS": "d", "TRANS_OFFSET": str(halves[0].physical_offset)},
        {"TAGS": "d", "TRANS_OFFSET": "9" * 30},
        {"TAGS": "d"},
        {"TAGS": "d", "TRANS_OFFSET": str(halves[3].physical_offset)},
    ]
    for properties in ops:
        record = build.Record(topic=op_topic, body=b"\0", properties=build.properties(properties))
        store.append(record)
    found = pending(store.write(tmp_path / "s"))
    assert [(row["keys"], row["pending"]) for row in found] == [
        ("B", "transaction"),
        ("E", "transaction"),
    ]


def test_a_level_that_no_offset_is_known_of_is_looked_up(tmp_path: Path) -> None:
    assert waiting(
        tmp_path, on_its_way("A", DELAY, DELAY="3"), on_its_way("B", DELAY, DELAY="3"), arrived("A")
    ) == ["B"]


@pytest.mark.parametrize("deleted", ["A", "T+A"])
def test_a_timer_that_was_cancelled_is_on_its_way_nowhere(tmp_path: Path, deleted: str) -> None:
    late = {"TIMER_OUT_MS": str(build.T0 + 10**9)}
    cancel = on_its_way("C", TIMER, TIMER_DEL_UNIQKEY=deleted, **late)
    assert waiting(
        tmp_path, on_its_way("A", TIMER, **late), on_its_way("B", TIMER, **late), cancel
    ) == ["B"]


def test_damage_in_the_brokers_own_topics_is_treated_as_the_mode_says(tmp_path: Path) -> None:
    wrong = build.Record(
        topic=DELAY, body_crc=1, properties=build.properties({"REAL_TOPIC": "T", "REAL_QID": "0"})
    )
    records = on_its_way("A", DELAY), wrong, arrived("X")
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        assert waiting(tmp_path / mode, *records, mode=mode) == ["A"]
    with pytest.raises(rmqstore.CorruptRecordError):
        waiting(tmp_path / "fail", *records)


@pytest.mark.parametrize("due", ["999999999999999999", "253402300800000"])
def test_a_time_that_no_calendar_has_is_none(tmp_path: Path, due: str) -> None:
    store = build.Store()
    store.append(on_its_way("A", TIMER, TIMER_OUT_MS=due))
    (row,) = pending(store.write(tmp_path / "s"))
    assert (row["keys"], row["dueTimestamp"]) == ("A", None)


@pytest.mark.parametrize("is_delivered", [False, True])
def test_only_a_later_message_shows_that_one_was_delivered(
    tmp_path: Path, *, is_delivered: bool
) -> None:
    """Here a message is sent once more, with a delay, under the key that it had before."""
    delayed = [on_its_way(key, DELAY, DELAY="1") for key in ("other", "again")]
    made = build.filled([delayed[0], arrived("again"), delayed[1]])
    if is_delivered:
        made.append(arrived("again"))
    root = made.write(tmp_path / "s", abort=True)
    build.write_config(root, topics=["T"])
    assert names(pending(root), "delay") == ({"other"} if is_delivered else {"other", "again"})
