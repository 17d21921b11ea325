"""Look-ups by key, id and time, judged by RocketMQ's queryMessage and getOffsetInQueueByTime."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from mutations import overwrite
from reading import column, offsets, read
from rmqstore import Message
from rmqstore.errors import OptionError
from rmqstore.inspect.verify import verify
from rmqstore.storage import index_search
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.lock import is_held
from rmqstore.storage.index_appender import IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import IndexSizes, find_sizes

Row = dict[str, Any]
Key = tuple[str, int, int]  # a key, and where and when its message was stored
ROLLBACK = 12
INDEXED = [name for name in goldens.EVERY if name not in (*goldens.CRASHED, "empty")] + [
    "v55-edges",
    "v55-live-lite",
    *goldens.OF_GROUPS,
]


def has_key(record: Row, topic: str, key: str) -> bool:
    """Tell whether a record has a key in its CommitLog: fact 21 of the golden stores' README."""
    is_rollback = record["sysFlag"] & ROLLBACK == ROLLBACK
    keys = (record["uniqKey"], *(record["keys"] or "").split(" "))
    return record["topic"] == topic and not is_rollback and key in keys


def places(found: Iterable[Message]) -> list[int]:
    """Return the physical offsets of messages."""
    return [message.commitLogOffset for message in found]


@pytest.mark.parametrize("step", tiers.sampled(11, 1))
@pytest.mark.parametrize("name", INDEXED)
def test_every_key_is_answered_as_the_real_store_does_without_hash_twins(
    name: str, golden_store: Golden, step: int
) -> None:
    records = {row["physicalOffset"]: row for row in goldens.records(name)}
    n_twins = 0
    with rmqstore.open(golden_store(name)) as store:
        for keyed in goldens.lines(name, "keys")[::step]:
            answers = sorted(set(keyed["physicalOffsets"]))
            right = [at for at in answers if has_key(records[at], keyed["topic"], keyed["key"])]
            n_twins += len(answers) - len(right)
            found = store.query(keyed["topic"], keyed["key"])
            assert places(found) == right, keyed
            assert found.is_complete
    if name == "basic":
        assert n_twins, "the store has keys of one hash, which must be told apart"


@pytest.mark.parametrize("step", tiers.sampled(5, 1))
@pytest.mark.parametrize("name", ["basic", "live", "v49", "compressed"])
def test_times_are_met_to_the_millisecond_and_a_limit_keeps_the_newest(
    name: str, golden_store: Golden, step: int
) -> None:
    records = {row["physicalOffset"]: row for row in goldens.records(name)}
    widened = 0
    with rmqstore.open(golden_store(name)) as store:
        for query in goldens.summary(name)["keyQueries"][::step]:
            topic, key, begin, end = (query[part] for part in ("topic", "key", "begin", "end"))
            right = [
                at for at, row in records.items()
                if has_key(row, topic, key) and begin <= row["storeTimestamp"] <= end
            ]  # fmt: skip
            right = right[-query["maxNum"] :]
            found = places(store.query(topic, key, begin, end, query["maxNum"]))
            assert found == right, query
            widened += not query["physicalOffsets"] and bool(right)
    assert widened, "the real store's times have whole seconds: some windows must show it"


@pytest.mark.parametrize("step", tiers.sampled(31, 7))
@pytest.mark.parametrize("name", goldens.CRASHED)
def test_what_the_index_lost_is_reported_and_read_on_request(
    name: str, golden_store: Golden, step: int
) -> None:
    records = goldens.records(name)
    keys = {(row["topic"], row["key"]) for row in goldens.lines(name, "keys")}
    lost = 0
    with rmqstore.open(golden_store(name)) as store:
        for topic, key in sorted(keys)[::step]:
            right = [row["physicalOffset"] for row in records if has_key(row, topic, key)]
            scanned = store.query(topic, key, scan_uncovered=True)
            assert places(scanned) == right
            assert scanned.is_complete
            found = store.query(topic, key)
            at = places(found)
            assert set(at) <= set(right)
            lost += at != right
            assert at == right or not found.is_complete
    # crash3 has no index/, and crash lacks its newest file. The index files that RocketMQ would
    # delete of the others cover little, and that part of the log is read.
    assert bool(lost) == (name in ("crash", "crash3"))


@pytest.mark.parametrize(
    "name", ["basic", "crash", "crash3", "live", "expired2", "v49", "rocksdb-cq"]
)
def test_a_scan_by_keys_gives_what_all_queries_give(name: str, golden_store: Golden) -> None:
    pairs = [(row["topic"], row["key"]) for row in goldens.lines(name, "keys")][::5]
    records = goldens.records(name)
    topics, keys = {topic for topic, _ in pairs}, sorted({key for _, key in pairs})
    right = [
        row["physicalOffset"]
        for row in records
        if row["topic"] in topics and any(has_key(row, row["topic"], key) for key in keys)
    ]
    with rmqstore.open(golden_store(name)) as store:
        found = read(
            store, msg_key=keys, subscribe=sorted(topics), columns="topic,keys,commitLogOffset"
        )
        assert offsets(found) == right
        some = right[len(right) // 3 : 2 * len(right) // 3 + 1]
        times = [
            row["storeTimestamp"] for row in records if row["physicalOffset"] in (some[0], some[-1])
        ]
        within = read(
            store, msg_key=keys, subscribe=sorted(topics), columns="commitLogOffset",
            starting_timestamp=min(times), ending_timestamp=max(times),
        )  # fmt: skip
        expected = [row["physicalOffset"] for row in records if row["physicalOffset"] in right
                    and min(times) <= row["storeTimestamp"] < max(times)]  # fmt: skip
        assert offsets(within) == expected


def test_without_topics_a_look_up_leaves_system_topics_out(golden_store: Golden) -> None:
    records = goldens.records("live")
    key = next(row["uniqKey"] for row in records if row["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC")
    every = [row["physicalOffset"] for row in records if key == row["uniqKey"]]
    users = [
        row["physicalOffset"]
        for row in records
        if key == row["uniqKey"] and row["topic"] == "LiveTx"
    ]
    assert set(users) < set(every)
    with rmqstore.open(golden_store("live")) as store:
        assert column(store, "commitLogOffset", msg_key=key, include_system_topics=False) == users
        assert column(store, "commitLogOffset", msg_key=key) == every


@pytest.mark.parametrize("name", ["basic", "ipv6", "live", "expired", "crash2"])
def test_every_id_is_found_be_it_given_by_the_client_or_by_the_place(
    name: str, golden_store: Golden
) -> None:
    with rmqstore.open(golden_store(name)) as store:
        rows = read(store, scan="commitlog", columns="msgId,offsetMsgId,commitLogOffset,sysFlag")
        for id_column in ("msgId", "offsetMsgId"):
            ids = [row[id_column] for row in rows][::3]
            right = [
                row["commitLogOffset"]
                for row in rows
                if row["offsetMsgId"] in ids
                or (row["msgId"] in ids and row["sysFlag"] & ROLLBACK != ROLLBACK)
            ]
            assert column(store, "commitLogOffset", msg_id=ids) == right
        lower = rows[0]["offsetMsgId"].lower()
        assert column(store, "commitLogOffset", msg_id=lower) == [rows[0]["commitLogOffset"]]


@pytest.mark.parametrize("step", tiers.sampled(61, 9))
def test_long_chains_are_found_as_short_ones(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    sample = goldens.lines("basic", "keys")[::step]
    with rmqstore.open(golden_store("basic")) as store:
        usual = [store.query(row["topic"], row["key"]).messages for row in sample]
        monkeypatch.setattr(index_search, "_MAX_STEPS", 1)
        monkeypatch.setattr(index_search, "_ITEMS_AT_ONCE", 7)
        assert [store.query(row["topic"], row["key"]).messages for row in sample] == usual


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"msg_key": ""}, "empty"), ({"msg_key": "a b"}, "blank"),
        ({"msg_key": []}, "at least one"), ({"msg_key": "a", "msg_id": "b"}, "one of them"),
        ({"msg_id": [""]}, "empty"), ({"msg_key": "k" * 40_000}, "32767"),
        ({"msg_key": "a", "starting_offsets": {"TopicA": {"0": 1}}}, "queue"),
        ({"msg_key": "a", "columns": "tagsCode"}, "tagsCode"),
        ({"msg_tags": ""}, "must not be empty"), ({"msg_tags": []}, "name at least one"),
        ({"msg_tags": "a", "msg_key": "b"}, "msg_key and msg_tags: give one of them"),
        ({"msg_tags": "x" * 70_000}, "msg_tags"),
    ],
)  # fmt: skip
def test_what_no_look_up_can_answer_is_refused(
    wrong: Row, named: str, golden_store: Golden
) -> None:
    with rmqstore.open(golden_store("basic")) as store, pytest.raises(OptionError, match=named):
        read(store, **({"columns": "topic"} | wrong))


def small_store(folder: Path) -> tuple[Path, list[Key]]:
    """Make a store with one small index file; return it with its keys and physical offsets."""
    root = folder / "small"
    with rmqstore.create(
        root, config=StoreConfig(1 << 16, 400, max_hash_slot_num=5, max_index_num=24)
    ) as store:
        table = {
            "topic": ["T"] * 6,
            "queueId": [0] * 6,
            "body": [b"body %d" % row for row in range(6)],
            "keys": ["a b", "b c", "c", "d", "e a", "cAa cBB"],
            "msgId": [f"ID{row}" for row in range(6)],
        }
        store.append(pa.RecordBatch.from_pydict(table))
    rows = read(root, columns="keys,msgId,commitLogOffset,storeTimestamp")
    return root, [
        (key, row["commitLogOffset"], row["storeTimestamp"])
        for row in rows
        for key in (row["msgId"], *row["keys"].split(" "))
    ]


def damaged_answers(root: Path, keys: list[Key]) -> tuple[bool, bool]:
    """Return whether all keys are still found and whether ``verify`` names damage.

    A wrong answer fails.
    """
    found_all = True
    with rmqstore.open(root) as store:
        for key, place, stored in keys:
            right = [at for name, at, _ in keys if name == key]
            for times, expected in (((None, None), right), ((stored, stored), [place])):
                try:
                    found = places(store.query("T", key, *times))
                except rmqstore.RmqStoreError:
                    found = []
                assert set(found) <= set(right), key
                found_all &= set(expected) <= set(found)
    with rmqstore.open(root) as store:
        return found_all, any(finding.part == "index" for finding in verify(store))


@pytest.mark.parametrize("step", tiers.sampled(37, 1))
def test_a_changed_byte_of_an_index_makes_nothing_wrong_and_what_it_hides_is_named(
    tmp_path: Path, step: int
) -> None:
    root, keys = small_store(tmp_path)
    path = next((root / "index").iterdir())
    whole = path.read_bytes()
    assert damaged_answers(root, keys) == (True, False)
    hidden = 0
    for at in range(0, len(whole), step):
        for change in (0xFF, 0x01):
            changed = bytearray(whole)
            changed[at] ^= change
            path.write_bytes(changed)
            found_all, named = damaged_answers(root, keys)
            assert found_all or named, f"byte {at} ^ {change:#x} hides keys, and verify is silent"
            hidden += not found_all
    assert hidden, "some byte must matter"


def test_chains_that_lead_in_circles_end(tmp_path: Path) -> None:
    root, keys = small_store(tmp_path)
    path = next((root / "index").iterdir())
    data = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
    items = data[40 + 5 * 4 :].view(index_search.INDEX_ITEM)
    count = int(data[36:40].view(">i4")[0])
    for previous in (1, count - 1, 1 << 30, -5):
        items["previous"][1:count] = previous
        path.write_bytes(data.tobytes())
        damaged_answers(root, keys)


def test_the_bodies_of_messages_that_tags_or_a_filter_drop_are_not_looked_at(
    tmp_path: Path,
) -> None:
    store = build.Store()
    for tag in ("Aa", "BB", "Aa"):  # of one hash
        wrong = 1 if tag == "BB" else None
        store.append(
            build.Record(body_crc=wrong, properties=build.properties({"TAGS": tag})), tags=tag
        )
    root = store.write(tmp_path / "s")
    with rmqstore.open(root) as opened:
        for options in (
            {"tags": "Aa"},
            {"filter": "TAGS = 'Aa'"},
            {"tags": "Aa", "scan": "commitlog"},
        ):
            found = read(opened, columns="queueOffset,body", **options)
            assert [row["queueOffset"] for row in found] == [0, 2]
        with pytest.raises(rmqstore.CorruptRecordError, match="CRC"):
            read(opened, columns="queueOffset,body", tags="BB")
        rows = read(opened, columns="queueOffset", mode="PERMISSIVE", tags="BB || Aa")
        assert [(row["queueOffset"], row["_corrupt_record"] is None) for row in rows] == [
            (0, True),
            (1, False),
            (2, True),
        ]


def keyed(folder: Path, *keys: str, **options: Any) -> Path:
    """Make a closed store with these keys and RocketMQ's order of index items."""
    root = folder / "keyed"
    config = StoreConfig(1 << 16, 400, max_hash_slot_num=3, max_index_num=200)
    with rmqstore.create(root, config=config, **options) as store:
        store.append(
            pa.RecordBatch.from_pydict(
                {"topic": ["T"] * len(keys), "body": [b"x"] * len(keys), "keys": keys}
            )
        )
    return root


def look_up(root: Path, key: str, **options: Any) -> tuple[list[int], bool]:
    with rmqstore.open(root) as store:
        found = store.query("T", key, **options)
    return places(found), found.is_complete


def test_slots_that_lead_to_items_not_counted_yet_hide_no_older_ones(tmp_path: Path) -> None:
    root = keyed(tmp_path, *(f"k{number}" for number in range(40)))
    path = next((root / "index").iterdir())
    usual = [look_up(root, f"k{number}")[0] for number in range(40)]
    data = bytearray(path.read_bytes())
    counted = int.from_bytes(data[36:40])
    # as read a moment before the slots
    path.write_bytes(data[:36] + (counted - 25).to_bytes(4) + data[40:])
    assert [look_up(root, f"k{number}")[0] for number in range(40)] == usual


@pytest.mark.parametrize("step", tiers.sampled(35, 5))
@pytest.mark.parametrize("name", ["crash", "crash2", "crash5"])
def test_index_files_that_a_recovery_throws_away_are_not_relied_on(
    name: str, copied: Golden, step: int
) -> None:
    root = copied(name)
    # half of the slots never reached the disk
    overwrite(max((root / "index").iterdir()), 40, bytes(50 * 2))
    records = goldens.records(name)
    with rmqstore.open(root) as store:
        for keyed in goldens.lines(name, "keys")[::step]:
            right = [
                row["physicalOffset"]
                for row in records
                if has_key(row, keyed["topic"], keyed["key"])
            ]
            found = store.query(keyed["topic"], keyed["key"])
            at = places(found)
            assert at == right or not found.is_complete
            every = store.query(keyed["topic"], keyed["key"], scan_uncovered=True)
            assert places(every) == right


def test_a_store_that_is_open_elsewhere_is_known_by_its_lock_and_stays_locked(
    tmp_path: Path,
) -> None:
    root = keyed(tmp_path, "a")
    assert not is_held(root / "lock")
    assert not is_held(root / "nothing")
    code = (
        f"import rmqstore, sys; w = rmqstore.open({str(root)!r}, mode='a'); "
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert is_held(root / "lock")
        with pytest.raises(rmqstore.StoreLockedError):
            rmqstore.open(root, mode="a")
        other.communicate("")
    with rmqstore.open(root, mode="a"):
        assert is_held(root / "lock")
        assert subprocess.run(
            [sys.executable, "-c", code], input="", text=True, capture_output=True, check=False
        ).returncode


def test_the_unwritten_end_of_a_closed_log_is_nothing_that_lacks_an_index(tmp_path: Path) -> None:
    root = keyed(tmp_path, "a", "b")
    (root / "commitlog" / f"{1 << 16:020d}").write_bytes(bytes(1 << 16))  # allocated ahead
    assert look_up(root, "a", scan_uncovered=False)[1]
    with rmqstore.open(root) as store:
        assert store.query("T", "a").uncovered == ()
    shutil.rmtree(root)
    root = keyed(tmp_path, "a", "")
    with rmqstore.open(root) as store:
        uncovered = store.query("T", "a").uncovered
        assert sum(span.end - span.start for span in uncovered) < 400


def test_an_index_without_items_is_none_at_all(tmp_path: Path) -> None:
    root = keyed(tmp_path, "a")
    path = next((root / "index").iterdir())
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:32] + bytes(4) + (1).to_bytes(4) + bytes(len(data) - 40))
    assert look_up(root, "a") == (look_up(root, "a", scan_uncovered=True)[0], True)
    (root / "index" / "20270101000000000").mkdir()
    assert len(look_up(root, "a")[0]) == 1


def test_a_result_is_shown_without_its_bodies(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        assert repr(store.query("LivePlain", "key-1")) == "QueryResult of 5 messages"
    with rmqstore.open(golden_store("crash3")) as store:
        found = store.query(store.topics()[0], "none")
        assert repr(found).startswith("QueryResult of 0 messages, and the index does not cover")


def test_times_and_limits_out_of_all_bounds(tmp_path: Path) -> None:
    root = keyed(tmp_path, "a", "a", "b")
    every = look_up(root, "a")[0]
    assert len(every) == 2
    assert look_up(root, "a", begin=1 - (1 << 63), end=(1 << 63) - 1)[0] == every
    assert look_up(root, "a", begin=1 - (1 << 63), end=1 << 60)[0] == every
    assert look_up(root, "a", end=-5)[0] == []
    assert look_up(root, "a", limit=1)[0] == every[-1:]
    for limit in (0, -1):
        with pytest.raises(OptionError, match="limit"):
            look_up(root, "a", limit=limit)
    with pytest.raises(OptionError, match="UTF-8"):
        look_up(root, "\ud800")


def test_a_record_with_a_crc_of_its_own_is_checked_before_its_tags_are_believed(
    tmp_path: Path,
) -> None:
    store = build.Store()
    for tag in ("TagA", "TagA"):
        store.append(
            build.Record(prop_crc=True, properties=build.properties({"TAGS": tag, "KEYS": "k"})),
            tags=tag,
        )
    root = store.write(tmp_path / "s")
    path = next((root / "commitlog").iterdir())
    data = path.read_bytes()
    path.write_bytes(data.replace(b"TagA", b"TagX", 1))
    with rmqstore.open(root) as opened:
        for options in (
            {"tags": "TagA"},
            {"filter": "TAGS = 'TagA'"},
            {"tags": "TagA", "scan": "commitlog"},
        ):
            with pytest.raises(rmqstore.CorruptRecordError, match="CRC"):
                read(opened, columns="queueOffset", **options)


def test_messages_in_files_that_were_deleted_since_are_not_there(tmp_path: Path) -> None:
    config = StoreConfig(1 << 14, 400, max_hash_slot_num=50, max_index_num=4000)
    rows = [{"topic": "T", "body": b"x" * 500, "keys": f"k{at % 4}"} for at in range(200)]
    with rmqstore.create(tmp_path / "s", config=config) as writer:
        writer.append(pa.RecordBatch.from_pylist(rows))
    questions: list[Callable[[rmqstore.MessageStore], list[int]]] = [
        lambda store: places(store.query("T", "k3")),
        lambda store: column(store, "commitLogOffset", msg_key="k3"),
        lambda store: column(
            store, "commitLogOffset", msg_key=["k3", "k9"], fail_on_data_loss=False
        ),
    ]
    for ask in questions:
        with rmqstore.open(tmp_path / "s") as store:
            before = ask(store)
        with rmqstore.open(tmp_path / "s") as store:
            oldest = store.parts.log.segments[0]
            oldest.path.unlink()
            assert ask(store) == [at for at in before if at >= oldest.end]
            assert len(before) > len(ask(store)) > 10


@pytest.mark.parametrize("n_slots", [7, 500, 1000, 1001, 4999])
@pytest.mark.parametrize("n_messages", [1, 2, 60, 900])
def test_an_index_of_any_sizes_is_used(tmp_path: Path, n_slots: int, n_messages: int) -> None:
    config = StoreConfig(1 << 18, 4000, max_hash_slot_num=n_slots, max_index_num=4 * n_slots)
    rows = [{"topic": "T", "body": b"x", "keys": f"k{at}"} for at in range(n_messages)]
    with rmqstore.create(tmp_path / "s", config=config) as writer:
        writer.append(pa.RecordBatch.from_pylist(rows))
    with rmqstore.open(tmp_path / "s") as store:
        for key in ("k0", f"k{n_messages - 1}"):
            found = store.query("T", key)
            assert (len(found), found.uncovered) == (1, ())


def test_a_topic_that_nobody_knows_is_named(
    golden_store: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(golden_store("live")) as store:
        assert not store.query("Nope", "key-1")
        assert "knows Nope" in caplog.text
        caplog.clear()
        assert not read(store, msg_key="key-1", subscribe="Nope", columns="msgId")
        assert "knows Nope" in caplog.text


def test_the_id_of_a_client_is_distinguished_from_one_of_a_broker(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        one = read(store, subscribe="LivePlain")[0]
        assert len(one["msgId"]) in (32, 56)
        with pytest.raises(rmqstore.OffsetOutOfRangeError, match="query -m"):
            store.get(one["msgId"])


def test_get_of_a_crashed_store_whose_oldest_file_went_meanwhile(tmp_path: Path) -> None:
    store = build.filled(build.Record(body=b"%0200d" % number) for number in range(200))
    root = store.write(tmp_path / "s")
    (root / "abort").touch()
    with rmqstore.open(root) as opened:
        segments = opened.parts.log.segments
        segments[0].path.unlink()
        assert opened.get(store.queues["T", 0][-1][0]).body == b"%0200d" % 199


def test_sizes_of_a_large_index_are_found_at_once(tmp_path: Path) -> None:
    sizes = IndexSizes(500_000, 2_000_000)
    hashes = np.arange(1, 100_001, dtype=np.int32) * 7
    hashes[5] = sizes.n_slots  # of slot 0: any place of zeros points there
    file = IndexFileAppender.create(Disk(), tmp_path / "20260101000000000", sizes, None)
    file.put(
        IndexKeys(hashes, np.arange(len(hashes)) * 300, 1_700_000_000_000 + np.arange(len(hashes)))
    )
    file.commit()
    tracemalloc.start()
    try:
        assert find_sizes(file.path, IndexSizes(5_000_000, 20_000_000)) == sizes
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_log_file_cut_to_a_byte_raises_an_error_of_ours(copied: Golden) -> None:
    root = copied("expired")
    (only,) = (root / "commitlog").iterdir()
    only.write_bytes(only.read_bytes()[:1])
    with rmqstore.open(root) as store:
        for topic in store.topics():
            with suppress(rmqstore.RmqStoreError):
                assert not store.query(topic, "none", scan_uncovered=True)
