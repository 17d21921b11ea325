"""Views must show what the real RocketMQ wrote and what is in the files."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from mutations import overwrite
from reading import Row, rows, state
from rmqstore import OptionError
from rmqstore.format.layout import INDEX_ITEM
from rmqstore.read.split import Limits
from rmqstore.read.views.catalogue import plan_view
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.schema import OF_MESSAGES, VIEWS, ViewSpec, view_spec
from rmqstore.store.opening import open_for

# The real store keeps a minimum here that points at no record (golden/README.md, facts 11 and 13).
STALE_MINIMUM = ("expired2", "preblank")
KEYS = (*goldens.RECORD_COLUMNS, "preparedTransactionOffset", "magic")
OURS = (*goldens.RECORD_COLUMNS.values(), "preparedTransactionOffset", "magic")
PLAIN_QUEUES = (*goldens.PLAIN, "cq-ext")
EVERY = (*goldens.EVERY, *goldens.OF_GROUPS, *goldens.OF_GROUPS_CRASHED)


def view(path: Path, name: str, **options: Any) -> list[Row]:
    with rmqstore.open(path, broker_name="b") as store:
        found = rows(store.view(name, **options))
    for row in found:
        for column in ("firstStoreTimestamp", "lastStoreTimestamp", "nextStoreTimestamp"):
            if row.get(column) is not None:
                row[column] = round(row[column].timestamp() * 1000)
    return found


# ---- commitlog


@pytest.mark.parametrize("name", EVERY)
def test_commitlog_shows_every_record_and_blank_of_the_real_store(
    golden_store: Golden, name: str
) -> None:
    found = view(golden_store(name), "commitlog")
    expected = goldens.lines(name, "commitlog")
    kept = [row for row in found if row["kind"] in ("record", "blank")]
    assert [tuple(row[column] for column in OURS) for row in kept] == [
        tuple(row.get(key) for key in KEYS) for row in expected
    ]
    assert [row["kind"] == "blank" for row in kept] == [bool(row.get("blank")) for row in expected]
    assert all(row["isValid"] and row["reason"] is None for row in kept)
    assert {row["kind"] for row in found} <= {"record", "blank", "end"}
    assert {row["brokerName"] for row in found} <= {"b"}
    if name == "empty":
        assert not found
    elif name != "edges":
        assert (found[-1]["kind"], found[-1]["commitLogOffset"]) == (
            "end", goldens.summary(name)["maxPhyOffset"],
        )  # fmt: skip


def test_commitlog_says_why_the_log_of_a_crashed_store_ends_and_what_follows(
    golden_store: Golden,
) -> None:
    last = view(golden_store("crash"), "commitlog")[-1]
    truncated = goldens.summary("crash")["recovery"]["commitLogBytesTruncated"]
    assert truncated == 488
    assert last["commitLogOffset"] + last["storeSize"] == 262144
    assert "the parts take" in last["reason"]  # its last record is torn in the body
    # of which a byte is flipped
    assert "CRC of the body" in view(golden_store("crash2"), "commitlog")[-1]["reason"]


def test_commitlog_shows_what_follows_the_end_when_that_is_ignored(golden_store: Golden) -> None:
    """crash2: a flipped byte of a body ends the log; good records follow."""
    with rmqstore.open(golden_store("crash2"), ignore_log_end=True) as store:
        found = rows(store.view("commitlog"))
    end = goldens.summary("crash2")["maxPhyOffset"]
    following = [row for row in found if row["commitLogOffset"] >= end and row["kind"] == "record"]
    assert not following[0]["isValid"]
    assert "CRC of the body" in following[0]["reason"]
    assert len(following) > 1
    assert all(row["isValid"] for row in following[1:])


@pytest.mark.parametrize(
    ("name", "view_name", "max_bytes", "least"),
    [
        *((name, "commitlog", 20_000, 6) for name in ("basic", "edges", "crash", "live")),
        ("basic", "index", 100 * INDEX_ITEM.itemsize, 11),
        ("basic", "consumequeue", 1000, 11),
        *(("live", "deadLetters", n_bytes, 2) for n_bytes in (1, 600, 2000)),
        ("live", "deadLetters", 1 << 20, 1),
    ],
)
def test_a_view_in_many_pieces_is_the_same(
    golden_store: Golden, name: str, view_name: str, max_bytes: int, least: int
) -> None:
    spec = view_spec(view_name)
    with open_for(golden_store(name)) as store:
        whole = rows(store.view(view_name))
        parts = plan_view(store.parts, spec, Limits(max_bytes=max_bytes))
    assert len(parts) >= least
    if view_name == "consumequeue":
        sizes = [sum(units.end - units.start for units in piece.slices) for piece in parts]
        assert max(sizes) == 50
    # each by a store of its own, as tasks do
    found = [row for piece in parts for row in _read_part(golden_store(name), spec, piece)]
    if view_name == "deadLetters":  # in no order over the pieces
        assert all(piece.n_bytes >= 0 for piece in parts)
        found, whole = sorted(found, key=str), sorted(whole, key=str)
    assert found == whole


def test_commitlog_of_a_topic_leaves_out_others(golden_store: Golden) -> None:
    found = view(
        golden_store("basic"), "commitlog", subscribe="TopicB", columns="commitLogOffset,kind,topic"
    )
    expected = [
        row["physicalOffset"] for row in goldens.records("basic") if row["topic"] == "TopicB"
    ]
    assert [row["commitLogOffset"] for row in found if row["kind"] == "record"] == expected
    assert {row["kind"] for row in found} == {"record", "end"}


def _damaged(folder: Path) -> Path:
    store = build.filled(build.Record(body=b"x" * 50, queue_offset=number) for number in range(6))
    return store.write(folder)


def test_commitlog_shows_damage_in_its_place_and_goes_on(tmp_path: Path) -> None:
    root = _damaged(tmp_path / "s")
    clean = [row for row in view(root, "commitlog") if row["kind"] == "record"]
    assert len(clean) == 6
    log = next((root / "commitlog").iterdir())
    overwrite(log, clean[1]["commitLogOffset"] + 4, b"\0\0\0\1")  # a magic
    overwrite(log, clean[3]["commitLogOffset"] + 88, b"y")  # the first byte of a body
    overwrite(log, clean[4]["commitLogOffset"] + 28, struct.pack(">q", 7))  # its own place
    found = view(root, "commitlog")
    found_rows = [
        (row["commitLogOffset"], row["kind"], row["isValid"])
        for row in found
        if row["kind"] != "end"
    ]
    kinds = ["record", "damage", "record", "record", "record", "record"]
    valid = [True, False, True, False, False, True]
    assert found_rows == [
        (row["commitLogOffset"], *pair)
        for row, pair in zip(clean, zip(kinds, valid, strict=True), strict=True)
    ]
    assert found[1]["storeSize"] == clean[1]["storeSize"]
    assert "magic 0x00000001" in found[1]["reason"]
    assert "CRC of the body" in found[3]["reason"]
    assert "physical offset is 7" in found[4]["reason"]
    kept = [
        row["commitLogOffset"]
        for row in view(root, "commitlog", mode="DROPMALFORMED")
        if row["kind"] == "record"
    ]
    assert kept == [clean[number]["commitLogOffset"] for number in (0, 2, 5)]
    assert view(root, "commitlog", check_crc=False)[3]["isValid"]


def test_commitlog_shows_a_missing_file_as_a_gap(copied: Golden) -> None:
    root = copied("basic")
    (root / "commitlog" / f"{131072:020d}").unlink()
    (gap,) = [row for row in view(root, "commitlog") if row["kind"] == "missing"]
    assert (gap["commitLogOffset"], gap["storeSize"], gap["isValid"]) == (131072, 131072, False)


# ---- queues and topics


def _is_in(row: Row, key: tuple[str, int]) -> bool:
    """Prepared and rolled back records (sysFlag 4 and 12) are in no queue."""
    return (row["topic"], row["queueId"]) == key and not row["sysFlag"] & 4


@pytest.mark.parametrize("name", [*PLAIN_QUEUES, *goldens.CRASHED])
def test_queues_are_those_of_the_real_store_after_its_recovery(
    golden_store: Golden, name: str
) -> None:
    expected = {}
    for queue in goldens.summary(name)["queues"]:
        key = queue["topic"], queue["queueId"]
        held = goldens.queues(name)[key]
        first = queue["minOffset"]
        # a real recovery does not look for a lost queue in the whole log; reads do
        if name in goldens.CRASHED:
            held = [
                {**row, "storeSize": row["size"]}
                for row in goldens.records(name)
                if _is_in(row, key)
            ]
        if name in (*STALE_MINIMUM, *goldens.CRASHED):
            first = min((row["queueOffset"] for row in held), default=queue["maxOffset"])
        times = (held[0]["storeTimestamp"], held[-1]["storeTimestamp"]) if held else (None, None)
        n_bytes = sum(row["storeSize"] for row in held)
        expected[key] = (
            first, queue["maxOffset"], queue["maxOffset"] - first, n_bytes, *times, None,
        )  # fmt: skip
    found = view(golden_store(name), "queues", include_system_topics=True)
    columns = (
        "minOffset", "maxOffset", "messages", "bytes", "firstStoreTimestamp", "lastStoreTimestamp",
        "reason",
    )  # fmt: skip
    assert {
        (row["topic"], row["queueId"]): tuple(row[column] for column in columns) for row in found
    } == expected


def test_messages_of_a_queue_without_one_of_its_files_are_not_counted(copied: Golden) -> None:
    root = copied("live")
    (root / "consumequeue" / "LivePlain" / "0" / f"{500:020d}").unlink()
    with rmqstore.open(root) as store:
        (row, *others) = store.view("queues", subscribe="LivePlain").read_all().to_pylist()
        (topic,) = store.view("topics", subscribe="LivePlain").read_all().to_pylist()
    assert (row["minOffset"], row["maxOffset"]) == (0, 53)
    assert all(other["messages"] and other["reason"] is None for other in others)
    for columns in (row, topic):
        assert columns["messages"] is columns["bytes"] is None
        assert "a file is missing or cut: queue offset 25 should be there" in columns["reason"]


def test_queues_hide_system_topics_and_take_a_selection(golden_store: Golden) -> None:
    def topics(**options: Any) -> set[str]:
        return {row["topic"] for row in view(golden_store("live"), "queues", **options)}

    assert "LivePlain" in topics()
    assert not {
        topic for topic in topics() if topic.startswith(("%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE"))
    }
    assert topics(subscribe="LiveTx,%RETRY%CG_retry") == {"LiveTx", "%RETRY%CG_retry"}
    found = view(golden_store("live"), "queues", assign={"LiveTx": [1]})
    assert [(row["topic"], row["queueId"]) for row in found] == [("LiveTx", 1)]


@pytest.mark.parametrize("name", sorted(VIEWS))
@pytest.mark.parametrize("store", goldens.OTHER_QUEUES)
def test_no_view_fails_for_queues_of_another_kind(
    golden_store: Golden, store: str, name: str
) -> None:
    found = view(golden_store(store), name)
    rowless = ("groups", "consumequeue", "queues", "topics", "epochs", "routes")
    assert found or name in (*rowless, *OF_MESSAGES)


def test_topics_sum_their_queues_and_show_what_the_broker_knows(golden_store: Golden) -> None:
    found = {
        row["topic"]: row
        for row in view(golden_store("live"), "topics", include_system_topics=True)
    }
    counts = goldens.summary("live")["counts"]["perTopic"]
    assert {topic: row["messages"] for topic, row in found.items() if row["messages"]} == counts
    config = json.loads((golden_store("live") / "config" / "topics.json").read_text())[
        "topicConfigTable"
    ]
    assert set(found) == {
        *counts,
        *config,
        *(row["topic"] for row in goldens.summary("live")["queues"]),
    }
    for topic, entry in config.items():
        row = found[topic]
        assert (row["readQueueNums"], row["writeQueueNums"], row["perm"]) == (
            entry["readQueueNums"], entry["writeQueueNums"], entry["perm"],
        )  # fmt: skip
    for topic in counts:
        held = [row for row in goldens.lines("live", "expected") if row["topic"] == topic]
        assert found[topic]["bytes"] == sum(row["storeSize"] for row in held)
        assert found[topic]["firstStoreTimestamp"] == min(row["storeTimestamp"] for row in held)
        assert found[topic]["lastStoreTimestamp"] == max(row["storeTimestamp"] for row in held)
    assert found["LiveTx"]["isSystem"] is False
    assert found["%RETRY%CG_retry"]["isSystem"] is True


# ---- consumequeue


@pytest.mark.parametrize("name", PLAIN_QUEUES)
def test_units_are_those_that_the_real_store_wrote(golden_store: Golden, name: str) -> None:
    found = view(golden_store(name), "consumequeue", include_system_topics=True)
    units = {
        (row["topic"], row["queueId"], row["queueOffset"]): struct.pack(
            ">qiq", row["commitLogOffset"], row["storeSize"], row["tagsCode"]
        ).hex()
        for row in found
        if row["isValid"]
    }
    expected = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["cqUnitHex"]
        for row in goldens.lines(name, "expected")
    }
    assert units == expected
    assert len(found) >= len(expected)


def test_invalid_units_say_why(golden_store: Golden) -> None:
    found = view(golden_store("preblank"), "consumequeue")
    assert {row["reason"] for row in found} == {
        None,
        "pre-blank filler, for offsets before the queue's first",
    }
    deleted = view(golden_store("expired2"), "consumequeue")
    assert {row["reason"] for row in deleted} == {None, "its record was deleted with its file"}
    minimum = goldens.summary("expired2")["minPhyOffset"]
    assert all((row["commitLogOffset"] >= minimum) == row["isValid"] for row in deleted)
    ahead = [row for row in view(golden_store("crash2"), "consumequeue") if row["reason"]]
    assert {row["reason"] for row in ahead} == {"points past the end of the log"}
    assert len(ahead) == goldens.summary("crash2")["recovery"]["cqEntriesTruncated"]
    zeroed = [
        row
        for row in view(golden_store("crash"), "consumequeue")
        if row["reason"] == "never written"
    ]
    assert zeroed == []  # the last three of CrashA/0 are zeros: the queue's files end before them


def test_units_of_queues_that_begin_late_make_as_many_pieces_as_are_asked_for(
    golden_store: Golden,
) -> None:
    with open_for(golden_store("expired")) as store:
        assert any(info.min_offset for topic in store.topics() for info in store.queues(topic))
        limits = Limits(1 << 30, min_partitions=8)
        assert len(plan_view(store.parts, view_spec("consumequeue"), limits)) >= 8


# ---- index


@pytest.mark.parametrize("name", goldens.EVERY)
def test_every_key_of_the_real_store_has_an_item(golden_store: Golden, name: str) -> None:
    found: dict[int, set[int]] = {}
    for row in view(golden_store(name), "index"):
        if row["isValid"]:
            found.setdefault(row["keyHash"], set()).add(row["commitLogOffset"])
    end = goldens.summary(name)["maxPhyOffset"]
    for row in goldens.lines(name, "keys"):
        value = build.java_hash(f"{row['topic']}#{row['key']}")
        wanted = 0 if value == -(1 << 31) else abs(value)
        lacking = set(row["physicalOffsets"]) - found.get(wanted, set())
        if name not in goldens.CRASHED:  # whose recovery built items that their files lack
            assert not lacking, row
    if name in goldens.PLAIN:
        assert all(offset < end for offsets in found.values() for offset in offsets)


def test_items_are_what_the_files_hold(golden_store: Golden) -> None:
    """Read by hand: 40 bytes of header, 100 slots of 4 bytes, items of 20 bytes."""
    found = view(golden_store("basic"), "index")
    expected = []
    for file in sorted((golden_store("basic") / "index").iterdir()):
        stored = file.read_bytes()
        (begin_ms,) = struct.unpack_from(">q", stored)
        (count,) = struct.unpack_from(">i", stored, 36)
        for number in range(1, count):
            item = struct.unpack_from(">iqii", stored, 40 + 4 * 100 + 20 * number)
            expected.append(
                (file.name, number, item[0] % 100, *item[:3], begin_ms + 1000 * item[2], item[3])
            )
    columns = (
        "file", "number", "slot", "keyHash", "commitLogOffset", "seconds", "storeTimestamp",
        "previous",
    )  # fmt: skip
    assert [tuple(row[column] for column in columns) for row in found] == expected
    assert all(row["isValid"] for row in found)


def test_damaged_items_say_what_is_wrong(copied: Golden) -> None:
    root = copied("basic")
    files = sorted((root / "index").iterdir())
    item = 40 + 4 * 100
    overwrite(files[1], item + 20 * 5, b"\xff")  # a hash becomes negative
    overwrite(files[1], item + 20 * 7 + 16, struct.pack(">i", 9))  # an older item that is newer
    overwrite(files[1], item + 20 * 9, bytes(20))
    overwrite(files[2], 36, struct.pack(">i", 1 << 30))  # the number of items
    found = view(root, "index")
    reasons = {(row["file"], row["number"]): row["reason"] for row in found if not row["isValid"]}
    assert reasons[files[1].name, 5] == "the hash is negative"
    assert reasons[files[1].name, 7] == "previous is not an older item"
    assert reasons[files[1].name, 9] == "never written"
    assert "its header counts up to item 1073741824" in reasons[files[2].name, None]
    kept = view(root, "index", mode="DROPMALFORMED")
    assert [row for row in found if row["isValid"]] == kept


@pytest.mark.parametrize("stored", [b"", b"\xff" * 39, b"\0" * 8440, b"\xff" * 8440])
def test_a_file_that_is_not_an_index_is_a_row(copied: Golden, stored: bytes) -> None:
    root = copied("basic")
    for file in (root / "index").iterdir():
        file.write_bytes(stored)
    found = view(root, "index")
    assert len({row["file"] for row in found}) == len(list((root / "index").iterdir()))
    assert not any(row["isValid"] for row in found)
    assert all(row["reason"] for row in found)


# ---- groups


@pytest.mark.parametrize(
    ("name", "file"), [("live", "consumerOffset.json"), ("v55-live-lite", "lmqConsumerOffset.json")]
)
def test_groups_are_as_far_behind_as_their_offsets_say(
    golden_store: Golden, name: str, file: str
) -> None:
    """The offsets as they stand in the only such file of the store."""
    text = (golden_store(name) / "config" / file).read_text()
    quoted = "".join(text.split())
    for number in range(20):
        quoted = quoted.replace(f"{{{number}:", f'{{"{number}":').replace(
            f",{number}:", f',"{number}":'
        )
    table = json.loads(quoted)["offsetTable"]
    expected = {}
    queues = {(row["topic"], row["queueId"]): row for row in goldens.summary(name)["queues"]}
    for key, offsets in table.items():
        topic, group = key.split("@")
        for queue, committed in offsets.items():
            held = goldens.queues(name).get((topic, int(queue)))
            real = queues.get((topic, int(queue)))
            lag = time = None
            if real is not None and held is not None:
                lag = real["maxOffset"] - committed
                time = (
                    held[-1]["storeTimestamp"] - held[committed]["storeTimestamp"] if lag > 0 else 0
                )
            expected[group, topic, int(queue)] = (committed, real and real["maxOffset"], lag, time)
    found = view(golden_store(name), "groups")
    columns = ("consumerOffset", "brokerOffset", "lag", "lagMillis")
    assert {
        (row["consumerGroup"], row["topic"], row["queueId"]): tuple(
            row[column] for column in columns
        )
        for row in found
    } == expected
    assert max(row["lag"] or 0 for row in found) > 0


def test_a_group_ahead_of_its_queue_or_of_no_queue(copied: Golden) -> None:
    root = copied("one")
    topic = goldens.lines("one", "expected")[0]["topic"]
    (root / "config").mkdir(exist_ok=True)
    table = {f"{topic}@ahead": {"0": 5}, "Gone@ahead": {"0": 1}, "../x@<script>": {"0": 0}}
    table[f"{topic}@huge"] = {"0": 10**30, str(10**12): 0}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    found = {(row["consumerGroup"], row["topic"]): row for row in view(root, "groups")}
    ahead = found["ahead", topic]
    assert (ahead["brokerOffset"], ahead["lag"], ahead["lagMillis"]) == (1, -4, 0)
    gone = found["ahead", "Gone"]
    assert (gone["lag"], gone["reason"]) == (None, "there is no such queue")
    assert found["<script>", "../x"]["lag"] is None
    huge = [row for row in view(root, "groups") if row["consumerGroup"] == "huge"]
    assert [(row["queueId"], row["consumerOffset"], row["lag"]) for row in huge] == [
        (0, None, None),
        (None, 0, None),
    ]


# ---- files


@pytest.mark.parametrize("name", goldens.EVERY)
def test_files_are_those_of_the_store(golden_store: Golden, name: str) -> None:
    found = view(golden_store(name), "files")
    expected = {row["path"]: row["size"] for row in goldens.summary(name)["files"]}
    assert {row["path"]: row["size"] for row in found} == expected
    by_kind = {row["kind"] for row in found if row["path"].startswith("commitlog/")}
    assert by_kind <= {"commitlog"}


def test_files_show_their_range_and_state(golden_store: Golden) -> None:
    found = {row["path"]: row for row in view(golden_store("crash"), "files")}
    last, ahead = found[f"commitlog/{196608:020d}"], found[f"commitlog/{262144:020d}"]
    assert (last["rangeStart"], last["rangeEnd"], last["state"]) == (196608, 262144, "live")
    assert ahead["state"] == "preallocated"
    unit = found[f"consumequeue/CrashA/0/{400:020d}"]
    assert unit["topic"] == "CrashA"
    assert unit["queueId"] == 0
    assert unit["rangeStart"] == 20
    assert unit["rangeEnd"] == 40
    assert found["abort.bak"]["state"] == "empty"
    stale = {
        row["path"] for row in view(golden_store("expired2"), "files") if row["state"] == "stale"
    }
    minimum = goldens.summary("expired2")["minPhyOffset"]
    expected = set()
    for path in (golden_store("expired2") / "consumequeue").rglob("0*"):
        if path.is_file():
            stored = path.read_bytes().rstrip(b"\0")
            last_unit = max((len(stored) - 1) // 20, 0) * 20
            if stored and struct.unpack_from(">q", path.read_bytes(), last_unit)[0] < minimum:
                expected.add(str(path.relative_to(golden_store("expired2"))))
    assert {path for path in stale if path.startswith("consumequeue")} == expected
    assert expected


def test_files_of_log_and_index_have_the_times_of_their_records(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        records = store.scan(
            scan="commitlog",
            columns=["commitLogOffset", "storeTimestamp"],
            include_system_topics=True,
        ).read_all()
        rows = store.view("files").read_all().to_pylist()
    stored = list(zip(*(column.to_pylist() for column in records.columns), strict=True))
    files = [row for row in rows if row["kind"] == "commitlog"]
    assert len(files) == 3
    for row in files:
        own = [time for at, time in stored if row["rangeStart"] <= at < row["rangeEnd"]]
        assert (row["firstStoreTimestamp"], row["lastStoreTimestamp"]) == (min(own), max(own))
    times = {time for _, time in stored}
    indexes = [row for row in rows if row["kind"] == "index" and row["state"] == "live"]
    assert indexes
    assert all(row["firstStoreTimestamp"] in times for row in indexes)
    assert {row["firstStoreTimestamp"] for row in rows if row["kind"] == "consumequeue"} == {None}


def test_files_of_databases_and_of_the_timer_wheel_have_kinds(copied: Golden) -> None:
    root = copied("v55-live-rocksdb")
    for name in ("timerwheel.52", "timerwheel.104", "timerwheel.156.tmp"):
        (root / name).write_bytes(b"x")
    (root / "consumequeue_rocksdb").mkdir()
    (root / "consumequeue_rocksdb" / "LOG").write_bytes(b"x")
    found = view(root, "files")
    assert {row["kind"] for row in found if row["path"].startswith("rocksdbstore/")} == {
        "rocksdbstore"
    }
    kinds = {row["path"]: (row["kind"], row["state"]) for row in found}
    assert kinds["consumequeue_rocksdb/LOG"] == ("consumequeue_rocksdb", "live")
    assert {path: kind for path, kind in kinds.items() if path.startswith("timerwheel")} == {
        "timerwheel": ("timerwheel", "stale"),
        "timerwheel.52": ("timerwheel", "stale"),
        "timerwheel.104": ("timerwheel", "live"),
        "timerwheel.156.tmp": ("timerwheel", "stale"),
    }


def test_a_file_that_was_cut_is_named(copied: Golden) -> None:
    root = copied("basic")
    log = root / "commitlog" / f"{655360:020d}"
    log.write_bytes(log.read_bytes()[:107000])
    index = min((root / "index").iterdir())
    index.write_bytes(index.read_bytes()[:1000])
    found = {row["path"]: row["state"] for row in view(root, "files")}
    assert found[str(log.relative_to(root))] == "cut"
    assert found[str(index.relative_to(root))] == "cut"


def test_names_that_are_not_text_do_not_stop_a_view(copied: Golden) -> None:
    root = copied("one")
    strange = bytes(root / "consumequeue") + b"/\xff\xfe"
    (Path(strange.decode("utf-8", "surrogateescape")) / "0").mkdir(parents=True)
    (root / "consumequeue" / "T" / "99999999999999999999").mkdir(parents=True)
    (Path(strange.decode("utf-8", "surrogateescape")) / "0" / f"{0:020d}").write_bytes(b"\0" * 20)
    for name in VIEWS:
        view(root, name)


# ---- all


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_views_have_their_documented_columns_and_only_the_requested_ones(
    golden_store: Golden, name: str
) -> None:
    with rmqstore.open(golden_store("controller" if name == "epochs" else "live")) as store:
        whole = store.view(name).read_all()
        assert whole.schema == VIEWS[name]
        assert whole.num_rows or name == "traces"  # of which the store has none
        for column in VIEWS[name].names:
            assert (
                store.view(name, columns=[column]).read_all().column(0).equals(whole.column(column))
            )


def test_reading_views_changes_nothing(golden_store: Golden) -> None:
    before = state(golden_store("crash"))
    for name in VIEWS:
        view(golden_store("crash"), name)
    assert state(golden_store("crash")) == before


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nonsense", {}, "messages, queues, topics, commitlog"),
        ("messages", {}, "view 'messages'"),
        ("files", {"subscribe": "T"}, "subscribe has no meaning with view files"),
        ("groups", {"include_system_topics": True}, "include_system_topics has no meaning"),
        ("queues", {"mode": "PERMISSIVE"}, "mode has no meaning"),
        ("index", {"check_crc": True}, "check_crc has no meaning"),
        ("commitlog", {"mode": "FAILFAST"}, "not stopped by damage"),
        ("queues", {"columns": "topic,body"}, "unknown body; view queues has"),
        ("queues", {"columns": []}, "at least one"),
        ("queues", {"starting_offsets": "earliest"}, "starting_offsets has no meaning"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(
    golden_store: Golden, name: str, options: dict[str, Any], reason: str
) -> None:
    with rmqstore.open(golden_store("one")) as store, pytest.raises(OptionError, match=reason):
        store.view(name, **options)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_files_that_retention_deletes_meanwhile_stop_no_view(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("basic")
    specs = [
        view_spec(name)
        for name in ("commitlog", "consumequeue", "index", "queues", "files", "groups", "topics")
    ]
    with open_for(root) as store:
        planned = [(spec, plan_view(store.parts, spec, Limits(max_bytes=20_000))) for spec in specs]
    (root / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(root / "consumequeue" / "TopicA" / "0")
    min((root / "index").iterdir()).unlink()
    found = {
        spec.view: [row for part in parts for row in _read_part(root, spec, part)]
        for spec, parts in planned
    }
    kept = [row["commitLogOffset"] for row in found["commitlog"] if row["kind"] == "record"]
    assert kept == [
        row["physicalOffset"] for row in goldens.records("basic") if row["physicalOffset"] >= 131072
    ]
    assert ("TopicA", 0) not in {(row["topic"], row["queueId"]) for row in found["consumequeue"]}
    assert any(row["topic"] == "TopicB" for row in found["consumequeue"])
    assert "was deleted meanwhile" in caplog.text
    assert len({row["file"] for row in found["index"]}) == len(list((root / "index").iterdir()))


def _read_part(root: Path, spec: ViewSpec, part: ViewPart) -> list[Row]:
    with open_for(root) as store:
        return rows(part.read(store.parts, spec))


def test_a_log_file_that_is_deleted_under_a_view_is_a_gap(copied: Golden) -> None:
    root = copied("basic")
    spec = view_spec("commitlog")
    with open_for(root) as store:
        (part,) = plan_view(store.parts, spec, Limits(1 << 30))
    with open_for(root) as store:  # it has listed the files, and opened none
        for path in (root / "commitlog").iterdir():
            if path.name != f"{0:020d}":
                path.unlink()
        found = rows(part.read(store.parts, spec))
    gaps = [(row["commitLogOffset"], row["storeSize"]) for row in found if row["kind"] == "missing"]
    assert gaps == [(131072 * number, 131072) for number in range(1, 6)]
    assert "deleted while it was read" in next(
        row["reason"] for row in found if row["kind"] == "missing"
    )


def test_folders_that_lie_elsewhere_are_listed_too(copied: Golden, tmp_path: Path) -> None:
    root = copied("basic")
    shutil.move(root / "commitlog", tmp_path / "log")
    shutil.move(root / "consumequeue", tmp_path / "queues")
    (root / "consumequeue").symlink_to(tmp_path / "queues")
    with rmqstore.open(root, commitlogs=[str(tmp_path / "log")]) as store:
        found = rows(store.view("files"))
    logs = [row for row in found if row["kind"] == "commitlog"]
    assert {row["path"] for row in logs} == {str(path) for path in (tmp_path / "log").iterdir()}
    assert {row["rangeStart"] for row in logs} == {131072 * number for number in range(6)}
    queues = [row for row in found if row["kind"] == "consumequeue"]
    expected = [
        row["path"]
        for row in goldens.summary("basic")["files"]
        if row["path"].startswith("consumequeue/")
    ]
    assert sorted(row["path"] for row in queues) == sorted(expected)
    assert {row["topic"] for row in queues} == {path.split("/")[1] for path in expected}
