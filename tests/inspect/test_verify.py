"""Every disagreement of log, queues and index is named, and none is made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from mutations import overwrite
from rmqstore.errors import Finding
from rmqstore.inspect.remedies import kind_of
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LocalStorage
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Units


@pytest.fixture
def root(copied: Golden) -> Path:
    """Return a copy of a store with several files of each kind, which verify finds whole."""
    return copied("basic")


def findings(root: Path) -> list[Finding]:
    with rmqstore.open(root, broker_name="b") as store:
        return list(verify(store))


SLOTS_AT, ITEMS_AT = 40, 40 + 4 * 100  # in the index files of the golden stores


def numbers(data: bytes, start: int, count: int, step: int = 4) -> list[int]:
    """Return numbers of an index file, one at each step."""
    return [int.from_bytes(data[at : at + 4]) for at in range(start, start + count * step, step)]


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in goldens.PLAIN if name != "default-sizes"),
        *(*goldens.NEWEST, *goldens.OTHER_QUEUES, "v55-lmq", *goldens.OF_GROUPS),
    ],
)
def test_nothing_is_found_in_a_store_that_rocketmq_closed(golden_store: Golden, name: str) -> None:
    assert findings(golden_store(name)) == []


def test_zeros_behind_the_last_unit_of_a_queue_are_not_read(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_units, units = [0], ConsumeQueue.units

    def counted(queue: ConsumeQueue, start: int, end: int) -> Units:
        n_units[0] += end - start
        return units(queue, start, end)

    monkeypatch.setattr(ConsumeQueue, "units", counted)
    assert findings(golden_store("default-sizes")) == []
    assert 0 < n_units[0] < 300_000  # those of one file


@pytest.mark.parametrize("name", goldens.CRASHED)
def test_nothing_is_left_to_find_after_a_repair(copied: Golden, name: str) -> None:
    root = copied(name)
    broken = findings(root)
    sizes = StoreConfig().updated(goldens.summary(name)["conf"])
    with rmqstore.open(root, mode="a", truncate=True, config=sizes):
        pass
    assert findings(root) == []
    if name != "crash3":  # which has neither queues nor index, and lets them be built
        assert broken


def test_progress_rises_up_to_its_total(golden_store: Golden) -> None:
    seen: list[tuple[int, int]] = []
    with rmqstore.open(golden_store("edges")) as store:
        assert not list(verify(store, lambda done, total: seen.append((done, total))))
    done, totals = zip(*seen, strict=True)
    assert len({*totals}) == 1
    assert list(done) == sorted(done)
    assert 0 < done[0] < totals[0] // 2
    assert done[-1] == totals[0]


def test_missing_units_are_counted(root: Path) -> None:
    newest = max((root / "consumequeue/TopicA/2").iterdir())
    n_units = -(-len(newest.read_bytes().rstrip(b"\0")) // 20)
    newest.unlink()
    (found,) = findings(root)
    assert (found.part, found.place) == ("queue", "TopicA-2")
    assert f"{n_units} records have no unit" in found.text
    assert "a broker that starts does not serve queue offset" in found.text


def test_a_wrong_unit_is_named(root: Path) -> None:
    path = root / "consumequeue/TopicA/2" / f"{0:020d}"
    overwrite(path, 3 * 20 + 8, b"\x00\x00\x01\x01")
    (found,) = findings(root)
    assert found.place == "TopicA-2"
    assert found.text == "1 unit differs from its record, the first at queue offset 3"


@pytest.mark.parametrize(
    ("name", "extension", "expected"),
    [
        ("basic", "", "offset 3 have another"),
        ("cq-ext", "ExtA/1", "offsets 0 to 92 lead to no unit"),
    ],
)
def test_a_right_unit_with_another_tags_code_is_named_as_such(
    copied: Golden, name: str, extension: str, expected: str
) -> None:
    """A broker serves the right message; without an extension it passes over none for its tags."""
    root = copied(name)
    if extension:
        shutil.rmtree(root / "consumequeue_ext" / extension)
    else:
        overwrite(root / "consumequeue/TopicA/2" / f"{0:020d}", 3 * 20 + 19, b"\x11")
    (found,) = findings(root)
    assert kind_of(found) == "tags"
    assert f"the units of queue {expected}" in found.text


def test_units_of_no_record_are_counted(root: Path) -> None:
    path = max((root / "consumequeue/TopicA/2").iterdir())
    data = path.read_bytes()
    end = -(-len(data.rstrip(b"\0")) // 20) * 20
    overwrite(path, end, (0).to_bytes(8) + (200).to_bytes(4) + bytes(8))
    (found,) = findings(root)
    assert (found.place, found.text) == (
        "TopicA-2", "1 unit does not point to a record of the queue",
    )  # fmt: skip
    newest = max((root / "consumequeue/TopicA/2").iterdir())
    overwrite(newest, 0, bytes(3 * 20))  # as many units and more are missing
    assert any("1 unit does not point to a record" in one.text for one in findings(root))


def test_damaged_records_are_named(root: Path) -> None:
    victim = next(row for row in goldens.lines("basic", "expected") if row["bodyBase64"])
    overwrite(root / "commitlog" / f"{0:020d}", victim["physicalOffset"] + 90, b"\xff\xfe")
    found = findings(root)
    assert [one.part for one in found] == ["log"]
    assert str(victim["physicalOffset"]) in found[0].place


def test_a_record_with_an_impossible_time_has_its_unit_and_its_keys(root: Path) -> None:
    """A broker serves it and finds it by key; only its time, which a column cannot hold, counts."""
    with rmqstore.open(root) as store:
        offsets = store.scan(scan="commitlog", columns=["commitLogOffset"]).read_all()[0]
    place = offsets[100].as_py()
    segment = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= place)
    # the highest byte of the store time
    overwrite(segment, place - int(segment.name) + 56, b"\x40")
    # The index file says when the record was stored before.
    assert [found.part for found in findings(root)] == ["log", "index"]
    with rmqstore.open(root, mode="a") as writer:
        writer.rebuild()
    assert [found.part for found in findings(root)] == ["log"]


def test_keys_that_cannot_be_found_are_counted(root: Path) -> None:
    files = sorted((root / "index").iterdir())
    overwrite(files[2], ITEMS_AT + 20 * 7, b"\x12\x34\x56\x78")  # another hash
    texts = [one.text for one in findings(root)]
    assert any("1 keys are not in an index file" in text for text in texts)
    assert any("1 items do not belong to a key" in text for text in texts)


@pytest.mark.parametrize("n_gone", [1, 7])
@pytest.mark.parametrize("way", ["deleted", "emptied"])
def test_keys_of_lost_index_files_are_counted(copied: Golden, way: str, n_gone: int) -> None:
    """A broker deletes an index file only once its last record is older than the log."""
    root = copied("basic")
    for path in sorted((root / "index").iterdir())[:n_gone]:
        path.unlink()
        if way == "emptied":
            path.touch()
    (found,) = findings(root)
    assert (found.part, found.place) == ("index", str(root / "index"))
    assert "keys are not in an index file, the first of them of the record at 0" in found.text


def test_a_broker_that_writes_no_index_lacks_none(copied: Golden, tmp_path: Path) -> None:
    root = copied("basic")
    shutil.rmtree(root / "index")
    conf = tmp_path / "broker.conf"
    conf.write_text("messageIndexEnable=false\n", encoding="utf-8")
    with rmqstore.open(root, conf=conf) as store:
        assert list(verify(store)) == []


def test_a_folder_in_place_of_an_index_file_is_named(copied: Golden) -> None:
    root = copied("basic")
    for name in ("1", "notes"):
        (root / "index" / name).mkdir()
    (found,) = findings(root)
    assert (found.part, found.place, found.kind) == ("index", str(root / "index" / "1"), "start")


def test_a_cut_chain_is_counted(root: Path) -> None:
    newest = max((root / "index").iterdir())
    data = newest.read_bytes()
    slots = numbers(data, SLOTS_AT, 100)
    previous = numbers(data, ITEMS_AT + 16, max(slots) + 1, 20)
    count, item = 0, max(slots)
    while item:
        count, item = count + 1, previous[item]
    assert count > 1
    overwrite(newest, SLOTS_AT + 4 * slots.index(max(slots)), bytes(4))
    (found,) = findings(root)
    assert (found.part, found.text) == ("index", f"{count} keys are not in the chain of their slot")


def test_an_item_that_was_put_twice_may_be_hidden_once(root: Path) -> None:
    """A put was cut before it wrote its slots, and the recovery put the keys again."""
    newest = max((root / "index").iterdir())
    data = newest.read_bytes()
    (count,) = numbers(data, 36, 1)
    last = data[ITEMS_AT + 20 * (count - 1) : ITEMS_AT + 20 * count]
    slot = int.from_bytes(last[:4]) % 100
    assert numbers(data, SLOTS_AT, 100)[slot] == count - 1
    overwrite(newest, ITEMS_AT + 20 * count, last)  # its chain goes on after the hidden one
    overwrite(newest, SLOTS_AT + 4 * slot, count.to_bytes(4))
    overwrite(newest, 36, (count + 1).to_bytes(4))
    assert findings(root) == []


def test_a_chain_that_leads_in_a_circle_ends(root: Path) -> None:
    newest = max((root / "index").iterdir())
    previous = numbers(newest.read_bytes(), ITEMS_AT + 16, 100, 20)
    linked = next(at for at in range(1, 100) if previous[at])
    # to itself: older ones of its slot are cut off
    overwrite(newest, ITEMS_AT + 20 * linked + 16, linked.to_bytes(4))
    (found,) = findings(root)
    assert found.part == "index"
    assert "not in the chain of their slot" in found.text


def test_a_missing_file_of_the_log_is_named_and_all_else_compared(root: Path) -> None:
    second = sorted((root / "commitlog").iterdir())[1]
    end = 2 * int(second.name)
    second.unlink()
    overwrite(root / "consumequeue/TopicA/2" / f"{0:020d}", 3 * 20 + 8, b"\x00\x00\x01\x01")
    found = findings(root)
    assert f"no file holds the log from {int(second.name)} to {end}" in found[0].text
    assert any("1 unit differs from its record" in one.text for one in found)
    assert any("do not point to a record" in one.text for one in found)


def test_a_damaged_header_hides_nothing_that_other_files_lack(root: Path) -> None:
    files = sorted((root / "index").iterdir())
    overwrite(files[-1], SLOTS_AT, bytes(400))
    alone = [one for one in findings(root) if "chain of their slot" in one.text]
    overwrite(files[0], 16, (12345).to_bytes(8))
    found = findings(root)
    assert [one for one in found if "chain of their slot" in one.text] == alone != []
    texts = [one.text for one in found if one.place == str(files[0])]
    assert any("the header says records from 12345" in text for text in texts)


@pytest.mark.parametrize("length", [0, 30, 100, 1 << 20])
def test_the_length_of_an_index_file_without_items_does_not_matter(root: Path, length: int) -> None:
    newest = max((root / "index").iterdir())
    (root / "index" / str(int(newest.name) + 1)).write_bytes(bytes(length))
    assert findings(root) == []


@pytest.mark.parametrize("length", [30, 1000], ids=["a part of its header", "some items"])
def test_an_index_file_that_was_cut_is_named_and_the_others_compared(
    root: Path, length: int
) -> None:
    file = sorted((root / "index").iterdir())[2]
    file.write_bytes(file.read_bytes()[:length])
    named, lacking = findings(root)
    assert (named.place, lacking.place) == (str(file), str(root / "index"))
    assert "are not in an index file" in lacking.text


def test_records_of_a_deleted_topic_are_no_damage(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("live")
    shutil.rmtree(root / "consumequeue" / "LivePlain")
    assert [(one.part, one.place) for one in findings(root)] == [
        ("queue", f"LivePlain-{queue_id}") for queue_id in range(4)
    ]
    forget_topic(root, "LivePlain")
    caplog.clear()
    assert findings(root) == []
    (said,) = caplog.messages
    assert "records are of topics that were deleted (LivePlain)" in said


def test_records_of_before_a_topic_was_made_again_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = build.Store()
    for life in (1, 2):
        made.queues.clear()
        for number in range(3):
            made.append(build.Record(body=b"life %d, %d" % (life, number)))
    assert findings(made.write(tmp_path / "s")) == []
    assert "3 records are of topics that were deleted (T)" in caplog.text


def forget_topic(root: Path, topic: str) -> None:
    """Take a topic out of topics.json, as a broker does that deletes it."""
    for name in ("topics.json", "topics.json.bak"):
        file = root / "config" / name
        if file.exists():
            table = json.loads(file.read_text(encoding="utf-8"))
            table["topicConfigTable"].pop(topic, None)
            file.write_text(json.dumps(table), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "body", "end", "n_records"),
    [
        pytest.param("crash2", None, 235158, "54 records of 19337 bytes", id="left open"),
        pytest.param("crash4", 192658, 192650, "176 records of 62236 bytes", id="closed, no queue"),
    ],
)
def test_records_after_the_end_of_a_log_are_a_finding(
    copied: Golden, name: str, body: int | None, end: int, n_records: str
) -> None:
    root = copied(name)
    if body is not None:  # in the third file, which only a broker without queues reads
        (root / "abort").unlink(missing_ok=True)
        overwrite(root / "commitlog" / f"{131072:020d}", body - 131072, b"\xff")
    first = next(one for one in findings(root) if one.part == "end")
    assert first.place.endswith(f", {end}")
    assert first.text == (f"{n_records} follow the end of the log; a broker that starts drops them")


def test_a_record_with_a_damaged_place_and_topic_is_named(tmp_path: Path) -> None:
    store = build.Store()
    store.append(build.Record())
    store.append(build.Record(topic=b"\xff", physical_offset=1 << 40))
    texts = [one.text for one in findings(store.write(tmp_path / "s"))]
    assert f"physical offset is {1 << 40}, not {store.places[1]}" in texts


def test_what_a_running_broker_writes_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues and the index are read after the log, and may have newer messages by then."""
    with rmqstore.create(tmp_path / "s") as writer:
        rows = pa.table({"topic": ["T"] * 50, "body": [b"b"] * 50, "keys": ["k"] * 50})
        writer.append(rows)
        writer.flush()
        (tmp_path / "s" / "abort").write_text("1")
        monkeypatch.setattr(LocalStorage, "is_locked", lambda *_: True)
        with rmqstore.open(tmp_path / "s") as store:
            assert store.log_end is not None
            writer.append(rows)
            writer.flush()
            assert list(verify(store)) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v55-basic", []),
        ("v55-index-rocksdb", ["index in RocksDB"]),
        ("v55-live-rocksdb", ["index, timed messages, transactions in RocksDB"]),
        ("live", []),
    ],
)
def test_what_lies_in_the_database_of_a_broker_is_named(
    golden_store: Golden, caplog: pytest.LogCaptureFixture, name: str, said: list[str]
) -> None:
    assert findings(golden_store(name)) == []
    texts = [text.partition("not looked at: ")[2] for text in caplog.messages]
    assert [text for text in texts if text] == said


@pytest.mark.parametrize("gone", ["*.sst", "CURRENT"])
def test_a_damaged_database_with_the_index_is_a_finding(copied: Golden, gone: str) -> None:
    root = copied("v55-index-rocksdb")
    for path in (root / "rocksdbstore").glob(gone):
        path.unlink()
    (found,) = findings(root)
    assert (found.part, found.kind, found.place) == ("index", "check", f"{root / 'rocksdbstore'}")


def test_without_their_database_messages_that_wait_in_it_are_named_still(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("v55-live-rocksdb")
    shutil.rmtree(root / "rocksdbstore")
    assert findings(root) == []
    assert caplog.messages[0].endswith("not looked at: timed messages, transactions in RocksDB")


def test_epochs_that_no_broker_can_read_are_damage(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("controller")
    (root / "epochFileCheckpoint").write_bytes(b"")
    (found,) = findings(root)
    assert (found.part, found.kind, found.stops_broker) == ("config", "epochfile", True)
    assert found.place == f"{root / 'epochFileCheckpoint'}, 0"
    (root / "epochFileCheckpoint.bak").unlink()
    (root / "epochFileCheckpoint").write_text("1\n5\n1-0\n")
    (found,) = findings(root)
    assert (found.part, found.kind, found.stops_broker) == ("config", "", False)
    (root / "epochFileCheckpoint").unlink()
    assert findings(root) == []
    assert "there is no epochFileCheckpoint: its epochs are not known" in caplog.messages[-1]


def test_an_epoch_after_the_end_of_the_log_is_named(copied: Golden) -> None:
    root = copied("controller")
    (root / "epochFileCheckpoint").write_text("3\n0\n1-0\n2-41308\n5-999999\n")
    reason = "it starts at 999999, after the end of the log at 129584"
    place = f"{root / 'epochFileCheckpoint'}, epoch 5"
    assert findings(root) == [Finding("config", place, reason, "epochs")]
    with rmqstore.open(root) as store:
        scan = store.view("epochs", columns=["startOffset", "endOffset", "reason"])
        rows = scan.read_all().to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 41308, None),
        (41308, 129584, None),
        (999999, 999999, reason),
    ]
